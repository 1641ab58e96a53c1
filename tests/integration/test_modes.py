"""Execution modes on whole models."""

import pytest
import torch

import lazyrt
from benchmarks import modes
from tests.harness import DEVICE, cold_start

pytestmark = pytest.mark.slow


def tiny_bert(layers):
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForMaskedLM(config)


def counts_of_a_step(layers):
    """Return compiles and executions of one training step from a cold start."""
    model = tiny_bert(layers).to(DEVICE)
    ids = torch.arange(16).reshape(2, 8).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cold_start()
    before = lazyrt.counters()
    with lazyrt.eager_mode():
        model(ids, labels=ids).loss.backward()
        optimizer.step()
    used = lazyrt.counters() - before
    assert used["eager_compiles"] + used["eager_cache_hits"] == used["eager_executions"]
    return used["eager_compiles"], used["eager_executions"]


def test_repeated_layers_hit_the_op_cache():
    """Four times the layers compile hardly more, and run three times as much."""
    compiles2, executions2 = counts_of_a_step(2)
    compiles8, executions8 = counts_of_a_step(8)

    assert compiles8 / compiles2 <= 1.3
    assert executions8 / executions2 >= 3


def test_lazy_mode_compiles_once_in_ten_iterations():
    """The lazy half of the experiment."""
    model = tiny_bert(2).to(DEVICE)
    ids = torch.arange(16).reshape(2, 8).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    lazyrt.mark_step()
    lazyrt.clear_caches()
    lazyrt.reset_counters()

    for _ in range(10):
        optimizer.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        loss.item()

    counts = lazyrt.counters()
    assert (counts["compiles"], counts["executions"]) == (1, 10)


@pytest.mark.parametrize(
    ("eager", "lazy", "expected"),
    [
        ([1.0, 1.0, 1.0], [2.0, 0.5, 0.5], 3),
        ([1.0, 1.0, 1.0], [0.5, 0.5, 0.5], 1),
        ([1.0, 1.0, 1.0, 1.0], [9.0, 0.5, 0.5, 0.5], 17),
        ([1.0, 1.0], [2.0, 1.0], float("inf")),
    ],
)
def test_the_crossover_is_where_lazy_mode_has_caught_up(eager, lazy, expected):
    assert modes.crossover(eager, lazy) == expected
