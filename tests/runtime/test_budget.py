"""Caches stay within their budgets, say so, and change no result and no fingerprint."""

import pytest
import torch

import lazyrt
from lazyrt.config import config
from lazyrt.execution import compiler
from lazyrt.frontend import record
from lazyrt.lowering import registry, spec
from lazyrt.observe import events
from tests.harness import DEVICE, assert_same, cold_start, recorded


def one_off(number):
    """Run a graph of its own shape; return its fingerprint and value."""
    x = torch.ones(2 + number, device=DEVICE)
    y = (x + x).sum()
    fingerprint = lazyrt.pending_graph(y).fingerprint
    lazyrt.mark_step()
    return fingerprint, y.item()


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_executables_above_the_budget_are_dropped_and_told():
    cold_start()
    lazyrt.reset_counters()

    with (
        config.scoped(max_executables=8, compile_tier="fast"),
        recorded(events.CacheEvicted) as evicted,
    ):
        before = [one_off(number) for number in range(12)]
        kept = compiler.executable_count()
        again = [one_off(number) for number in range(12)]

    assert kept <= 9
    assert again == before
    assert [value for _, value in before] == [2.0 * (2 + k) for k in range(12)]
    assert next((e.cache, e.dropped, e.kept, e.budget) for e in evicted) == (
        "executables", 3, 6, 8,
    )  # fmt: skip
    assert lazyrt.counters()["evictions"] == len(evicted)
    assert 12 < lazyrt.counters()["compiles"] <= 24


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_a_step_that_goes_on_is_never_dropped():
    cold_start()
    weight = torch.ones(3, device=DEVICE)
    lazyrt.mark_step()
    compiles = []

    with config.scoped(max_executables=8, compile_tier="fast"):
        for number in range(30):
            lazyrt.reset_counters()
            weight.mul_(0.5)
            lazyrt.mark_step()
            compiles.append(lazyrt.counters()["compiles"])
            one_off(number)

    assert compiles == [1] + [0] * 29
    assert weight.tolist() == [0.5**30] * 3


def test_tables_of_nodes_above_the_budget_are_emptied_and_told():
    cold_start()
    expected = [one_off(number)[0] for number in range(6)]

    with (
        config.scoped(max_interned_nodes=5),
        recorded(events.CacheEvicted) as evicted,
    ):
        found = [one_off(number)[0] for number in range(6)]

    assert found == expected
    assert {event.cache for event in evicted} == {"nodes"}
    assert all(event.dropped > event.budget == 5 for event in evicted)
    assert record.interned_nodes() <= 5


@pytest.mark.lazy_only("is about executables of steps")
def test_plans_and_result_types_above_their_budgets_are_forgotten_and_told():
    cold_start()
    expected = [one_off(number) for number in range(6)]
    lazyrt.reset_counters()

    with (
        config.scoped(max_plans=4, max_result_types=3),
        recorded(events.CacheEvicted) as evicted,
    ):
        cold_start()
        found = [one_off(number) for number in range(6)]

    assert found == expected
    told = {(e.cache, e.dropped, e.kept, e.budget) for e in evicted}
    assert told == {("plans", 4, 0, 4), ("result types", 3, 0, 3)}
    assert lazyrt.counters()["evictions"] == len(evicted)


@pytest.mark.lazy_only("is about executables of steps")
def test_slices_above_their_budget_are_forgotten_and_told():
    cold_start()

    def peeks():
        found = []
        for number in range(4):
            x = torch.ones(2 + number, device=DEVICE)
            for _ in range(5):
                x = (x + x).cos()  # long enough that one slice is cheaper than its ops
            found.append(lazyrt.materialise(x.sum()).item())
        return found

    expected = peeks()
    cold_start()
    with config.scoped(max_slices=2), recorded(events.CacheEvicted) as evicted:
        assert peeks() == expected

    assert [(e.cache, e.dropped, e.budget) for e in evicted] == [("slices", 2, 2)]


def test_decompositions_above_their_budget_are_forgotten_and_told(monkeypatch):
    monkeypatch.setattr(spec, "_specs", {})
    monkeypatch.setattr(registry, "_programs", {})
    cold_start()

    with config.scoped(max_decompositions=1), recorded(events.CacheEvicted) as evicted:
        for size in (3, 4, 5):
            x = torch.full((2, size), 3.0)
            found = x.to(DEVICE).renorm(2, 0, 1.0)  # no rule of its own
            assert_same(found, x.renorm(2, 0, 1.0), 1e-5)

    assert {(e.cache, e.dropped, e.budget) for e in evicted} == {
        ("decompositions", 1, 1)
    }


@pytest.mark.lazy_only("is about executables of steps")
def test_the_folder_of_executables_stays_within_its_bytes(tmp_path):
    cold_start()
    with config.scoped(cache_dir=tmp_path, compile_tier="fast"):
        expected = one_off(0)
        (first,) = tmp_path.rglob("*.xla")
        size = first.stat().st_size
        budget = 4 * size
        with (
            config.scoped(max_cache_bytes=budget),
            recorded(events.CacheEvicted) as evicted,
        ):
            for number in range(1, 9):
                one_off(number)
        left = sum(file.stat().st_size for file in tmp_path.rglob("*.xla"))
        cold_start()
        again = one_off(0)

    assert left <= budget
    assert {(e.cache, e.budget) for e in evicted} == {("disk", budget)}
    assert sum(e.dropped for e in evicted) >= 4
    assert again == expected


def usage():
    import jax

    return {
        "nodes": record.interned_nodes(),
        "executables": compiler.executable_count(),
        "arrays": len(jax.live_arrays()),
        "bytes": sum(array.nbytes for array in jax.live_arrays()),
        "tensors": len(lazyrt.live_tensors()),
    }


@pytest.mark.slow
def test_three_thousand_steps_leave_nothing_behind():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999)
    x = torch.randn(8, 4).to(DEVICE)

    def train(steps):
        for number in range(steps):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            schedule.step()
            if number % 100 == 0:
                repr(loss)
                float(loss.detach())
        lazyrt.wait()

    found = []
    for steps in (
        300,
        3_000,
    ):  # from one line: another one would record nodes of its own
        train(steps)
        found.append((usage(), resident_bytes()))

    (before, memory), (after, memory_after) = found
    assert after == before
    assert memory_after - memory < 8 * 2**20


def resident_bytes():
    """Return this process's memory, 0 where the system does not tell it."""
    import gc
    from pathlib import Path

    gc.collect()
    file = Path("/proc/self/statm")
    pages = int(file.read_text("ascii").split()[1]) if file.exists() else 0
    return pages * 4096
