"""Python's collector does not look through a step's tensors again and again."""

import gc

import pytest
import torch

import lazyrt
from lazyrt.execution import process
from tests.harness import DEVICE, cold_start, run_python

OPS = 240


@pytest.fixture
def looks():
    """The collections since, by whether they found something; thresholds are less than half of Python's."""
    found = []

    def note(phase, info):
        if phase == "stop":
            found.append(info["collected"] > 0)

    before = gc.get_threshold()
    gc.set_threshold(280, 10, 10)
    process.adapt_collector()
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)
    gc.set_threshold(*before)
    process.adapt_collector()


def step(x, *, with_cycles=False):
    kept = []
    for _ in range(OPS):
        x = x + 1
        kept.append(x)
        if with_cycles:
            cycle = [x]
            cycle.append(cycle)
    lazyrt.mark_step()
    return x


def steps(count, **options):
    x = torch.zeros(2).to(DEVICE)
    for _ in range(count):
        x = step(x, **options)
    return x


@pytest.mark.lazy_only("is about steps of many ops")
def test_a_loop_of_steps_is_soon_looked_through_no_more(looks):
    steps(12)
    looks.clear()

    x = steps(8)

    assert looks == []
    assert x.tolist() == [8 * OPS] * 2


@pytest.mark.lazy_only("is about steps of many ops")
def test_the_threshold_stops_growing_when_a_step_fits_below_it(looks):
    steps(12)
    reached = gc.get_threshold()

    steps(30)

    assert gc.get_threshold() == reached
    assert 280 < reached[0] < 50 * OPS
    assert reached[1:] == (10, 10)


def test_cycles_are_found_and_leave_the_threshold_as_it_is(looks):
    steps(4, with_cycles=True)

    assert any(looks)
    assert gc.get_threshold()[0] <= 560


def test_a_step_that_compiles_is_no_measure(looks):
    cold_start()
    looks.clear()

    x = step(torch.zeros(5).to(DEVICE))

    assert looks
    assert gc.get_threshold()[0] <= 560
    assert x.tolist() == [OPS] * 5


def test_a_threshold_that_the_program_has_set_stays(looks):
    gc.set_threshold(200, 10, 10)

    steps(6)

    assert gc.get_threshold() == (200, 10, 10)


def test_looks_that_the_program_asks_for_do_not_count(looks):
    x = torch.zeros(2).to(DEVICE)
    for _ in range(6):
        x = x + 1
        gc.collect(0)
        gc.collect(0)

    assert gc.get_threshold() == (280, 10, 10)


@pytest.mark.slow
def test_importing_leaves_the_collector_as_it_was():
    program = """
import gc
{before}
import lazyrt
print(gc.isenabled(), gc.get_freeze_count() > 0, gc.get_threshold()[1:])
"""
    assert run_python(program.format(before=""), anew=True) == "True False (10, 10)"
    frozen = run_python(program.format(before="gc.freeze(); gc.disable()"))
    assert frozen == "False True (10, 10)"
