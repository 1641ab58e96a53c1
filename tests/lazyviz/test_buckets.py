"""Padding buckets: the fewest nanoseconds of compiling and running, from what was measured."""

import itertools
import random

import pytest
import torch

import lazyrt
from lazyviz.timing.buckets import Size, doc, families, plan, run_time
from tests.harness import DEVICE, cold_start

MS = 1_000_000


def size(n, runs=1, compile_ms=100.0, run_ms=None):
    run_ns = (n if run_ms is None else run_ms) * MS
    return Size(size=n, runs=runs, compile_ns=int(compile_ms * MS), run_ns=run_ns)


def cost(sizes, buckets):
    takes = run_time(sizes)
    compiled = sum(each.compile_ns for each in sizes if each.size in buckets)
    padded = (min(b for b in buckets if b >= each.size) for each in sizes)
    return compiled + sum(e.runs * takes(b) for e, b in zip(sizes, padded, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_no_other_choice_of_buckets_takes_less_time(seed):
    draw = random.Random(seed)  # noqa: S311 - samples
    sizes = [
        size(n, draw.randint(1, 40), draw.uniform(5, 200), draw.uniform(0.5, 1.5) * n)
        for n in sorted(draw.sample(range(1, 64), 7))
    ]
    found = plan("p", sizes)
    top = sizes[-1].size
    others = [each.size for each in sizes[:-1]]
    choices = [
        (*chosen, top)
        for k in range(len(sizes))
        for chosen in itertools.combinations(others, k)
    ]

    best = min(cost(sizes, each) for each in choices)

    assert found.cost_ns == pytest.approx(best)
    assert cost(sizes, found.buckets) == pytest.approx(best)


def test_costly_compiles_make_one_bucket_and_many_runs_make_many():
    few = plan("p", [size(n, runs=1, compile_ms=10_000) for n in (8, 16, 32)])
    many = plan("p", [size(n, runs=100_000, compile_ms=1) for n in (8, 16, 32)])

    assert few.buckets == (32,)
    assert "Padded to 1 bucket (32), they would take about" in few.sentence
    assert many.buckets == (8, 16, 32)
    assert many.sentence.endswith("No padding is better.")


def test_a_larger_size_is_never_taken_to_be_quicker():
    takes = run_time([size(8, run_ms=5), size(16, run_ms=4)])

    assert takes(16) == takes(8) > 0


def test_sizes_of_an_evaluation_are_found_with_what_they_took():
    cold_start()
    w = torch.randn(8, 4).to(DEVICE)
    lazyrt.mark_step()
    with lazyrt.config.scoped(compile_tier="fast"):
        for n in (3, 5, 7, 3, 5, 3):
            x = torch.ones(n, 8).to(DEVICE)
            with lazyrt.step("eval"):
                y = (x @ w).relu().sum()
    assert y is not None
    graphs = [g for g in lazyrt.compiled_graphs() if g.nodes == 3]
    times = {g.fingerprint: 1e6 * k for k, g in enumerate(graphs, 1)}

    (found,) = families(lazyrt.compiled_graphs(), times, lazyrt.cached_executables())

    assert [(each.size, each.runs) for each in found.sizes] == [(3, 3), (5, 2), (7, 1)]
    assert all(each.compile_ns > 0 for each in found.sizes)
    assert found.buckets[-1] == 7
    assert "pad to" in doc([found]).to_text()


def test_sizes_of_a_training_loop_are_one_family_whatever_order_their_ops_have():
    cold_start()
    model = torch.nn.Linear(32, 32).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sizes = (7, 9, 13, 16, 24, 32)
    with lazyrt.config.scoped(compile_tier="fast"):
        for n in sizes:
            model(torch.ones(n, 32).to(DEVICE)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            lazyrt.mark_step()

    (found,) = families(lazyrt.compiled_graphs(), {})

    assert tuple(each.size for each in found.sizes) == sizes


def test_a_loop_over_an_input_makes_graphs_that_differ_in_its_size():
    cold_start()
    weight = torch.ones(4, 4).to(DEVICE)
    for n in (3, 5):
        x = torch.ones(2, n, 4).to(DEVICE)
        with lazyrt.step("eval"):
            hidden = x[:, 0]
            for k in range(1, n):
                hidden = (hidden @ weight + x[:, k]).tanh()
            del k

    (found,) = families(lazyrt.compiled_graphs(), {})
    assert [each.size for each in found.sizes] == [3, 5]


def test_graphs_that_differ_otherwise_are_no_sizes():
    cold_start()
    for n in (3, 5):
        x = torch.ones(n, n + 1).to(DEVICE)
        with lazyrt.step("eval"):
            x = x * 2

    assert families(lazyrt.compiled_graphs(), {}) == []
    assert "No size varied" in doc([]).to_text()
