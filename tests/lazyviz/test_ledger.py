"""The parts of a cell's time never overlap and leave nothing out."""

import random

import pytest

from lazyviz.draw.palette import PHASES
from lazyviz.timing.ledger import Ledger


def test_inner_intervals_keep_their_time_and_the_outer_gets_the_rest():
    ledger = Ledger(0)

    ledger.add("lower", 20, 30)
    ledger.add("compile", 18, 60)
    ledger.add("dispatch", 10, 70)

    assert ledger.parts(100) == {
        "trace": 40,
        "dispatch": 18,
        "lower": 10,
        "compile": 32,
    }


def test_what_came_before_the_start_does_not_count():
    ledger = Ledger(50)

    assert ledger.add("compile", 0, 60) == [(50, 60)]
    assert ledger.add("transfer", 10, 40) == []
    assert ledger.parts(60) == {"compile": 10}


@pytest.mark.parametrize("seed", range(20))
def test_the_parts_add_up_whatever_the_intervals(seed):
    """The union of the intervals is claimed once, and the rest is tracing."""
    generator = random.Random(seed)  # noqa: S311
    ledger = Ledger(0)
    covered: set[int] = set()
    now = 0
    for _ in range(60):
        now += generator.randrange(1, 30)
        start = max(0, now - generator.randrange(1, 80))
        pieces = ledger.add(generator.choice(PHASES), start, now)
        told = {n for a, b in pieces for n in range(a, b)}
        assert told == set(range(start, now)) - covered
        covered |= set(range(start, now))

    assert sum(ledger.parts(now + 7).values()) == now + 7
    assert ledger.claimed_ns == len(covered)


def test_thousands_of_intervals_stay_few_and_are_never_counted_twice():
    ledger = Ledger(0)
    for i in range(5_000):
        ledger.add("transfer", 10 * i, 10 * i + 3)

    ledger.add("dispatch", 0, 50_000)

    assert len(ledger._claimed) <= 64
    assert sum(ledger.parts(60_000).values()) == 60_000
    assert ledger.parts(60_000)["transfer"] == 15_000
