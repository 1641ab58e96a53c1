"""Peak memory of training, counted from the executables: no timing, no sampling."""

import pytest

from benchmarks import memory


@pytest.mark.slow
def test_a_bert_loop_needs_little_more_memory_than_donated_jax():
    mine, theirs = sum(memory.lazy_peak()), sum(memory.jax_peak())

    assert theirs > 6 * 2**20  # weights and two states of AdamW
    assert mine <= memory.GOAL * theirs
