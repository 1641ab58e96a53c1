"""Peak memory of training, counted from the executables: no timing, no sampling."""

import pytest

from benchmarks import memory
from lazyrt import config


@pytest.mark.slow
def test_a_bert_loop_needs_little_more_memory_than_donated_jax():
    with config.scoped(share_layers=False):  # programs of layers keep what they hand on
        mine, theirs = sum(memory.lazy_peak()), sum(memory.jax_peak())

    assert theirs > 6 * 2**20  # weights and two states of AdamW
    assert mine <= memory.GOAL * theirs
