"""The helpers that users put into their own tests."""

import sys

import pytest
import torch

import lazyrt
from lazyrt.errors import FrozenError, UsageError
from lazyrt.testing import assert_compiles, assert_executions, frozen
from tests.harness import DEVICE, cold_start


@pytest.fixture(autouse=True)
def _cold():
    cold_start()


def caller_line():
    return sys._getframe(1).f_lineno


def step(size=3):
    x = torch.ones(size, device=DEVICE) * 2
    lazyrt.mark_step()
    return x


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_counts_that_are_right_pass():
    with assert_compiles(1), assert_executions(2):
        step()
        step()


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_wrong_compiles_are_told_with_their_reasons():
    step(3)

    with pytest.raises(AssertionError) as caught, assert_compiles(0):  # noqa: PT012
        step(4)
        step(5)

    first, *others = str(caught.value).splitlines()
    assert first == "expected 0 new step graphs, found 2:"
    assert len(others) == 2
    assert all(line.startswith("  2 ops: ") and len(line) > 12 for line in others)


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_wrong_executions_are_told_with_cause_and_line():
    line = caller_line() + 4

    with pytest.raises(AssertionError) as caught, assert_executions(1):  # noqa: PT012
        y = torch.ones(3, device=DEVICE) * 2
        y.tolist()
        (y + 1).tolist()

    assert str(caught.value).splitlines() == [
        "expected 1 execution, found 2:",
        f"  2 ops: read by .tolist() at test_testing.py:{line}",
        f"  1 op: read by .tolist() at test_testing.py:{line + 1}",
    ]


@pytest.mark.not_eager("counts graphs and executions of steps")
def test_what_is_still_pending_is_named():
    with (
        pytest.raises(AssertionError, match="2 ops still pending"),
        assert_executions(1),
    ):
        y = torch.ones(3, device=DEVICE) * 2

    assert lazyrt.is_pending(y)


def test_prints_and_peeks_do_not_count():
    with assert_compiles(0), assert_executions(0):
        y = torch.ones(3, device=DEVICE) * 2
        repr(y)
        lazyrt.materialise(y + 1)


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_an_executable_from_disk_counts_as_a_new_graph(tmp_path):
    lazyrt.config.cache_dir = tmp_path

    for _ in range(2):
        cold_start()
        with assert_compiles(1):
            step()

    assert lazyrt.counters()["disk_hits"] == 1


def test_an_error_of_the_block_goes_first():
    with pytest.raises(ZeroDivisionError), assert_compiles(5), assert_executions(5):
        raise ZeroDivisionError


@pytest.mark.parametrize("helper", [assert_compiles, assert_executions])
@pytest.mark.parametrize("count", [-1, 1.5, True, None])
def test_counts_are_whole_numbers(helper, count):
    with (
        pytest.raises(UsageError, match=rf"{helper.__name__}\(\) got {count}"),
        helper(count),
    ):
        pass


def test_known_graphs_run_inside_frozen():
    step()

    with frozen():
        assert step().tolist() == [2.0, 2.0, 2.0]


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_a_new_graph_raises_with_its_cause_and_nothing_is_lost():
    step(3)

    with pytest.raises(FrozenError) as caught, frozen():  # noqa: PT012
        y = torch.ones(4, device=DEVICE) * 2
        lazyrt.mark_step()

    text = str(caught.value)
    assert text.startswith("a new graph of 2 ops inside frozen(): ")
    assert ": . " not in text
    assert lazyrt.is_pending(y)
    assert lazyrt.counters()["compiles"] == 1
    assert y.tolist() == [2.0] * 4


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_an_executable_on_disk_is_new_too(tmp_path):
    lazyrt.config.cache_dir = tmp_path
    step()
    cold_start()

    with pytest.raises(FrozenError), frozen():
        step()


def test_looking_is_allowed_inside_frozen():
    y = torch.ones(3, device=DEVICE) * 2

    with frozen():
        assert repr(y) == "tensor([2., 2., 2.], device='lazyrt:0')"


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_frozen_ends_with_its_block_and_nests():
    with frozen():
        with frozen():
            pass
        with pytest.raises(FrozenError):
            step()
    step()
