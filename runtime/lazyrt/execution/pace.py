"""How long a peek will take: a guess from kinds and sizes of ops, set right by earlier peeks.

The guess knows no machine and no load. So what peeks have taken here lately, set against what
was guessed of them, is a factor on the next guess: one for compiling, one for running.
"""

from __future__ import annotations

from typing import Literal

Part = Literal["compile", "run"]

_LEAST, _MOST = 0.2, 8.0
_WEIGHT = 0.5  # of the latest peek
_NOTICED_NS = 2_000_000  # shorter waits tell of the clock, not of the work

_factors: dict[Part, float] = {"compile": 1.0, "run": 1.0}


def expected_ns(compile_ns: float, run_ns: float) -> int:
    """Return how many nanoseconds a peek takes here by the guesses for its two parts."""
    return int(compile_ns * _factors["compile"] + run_ns * _factors["run"])


def learn(part: Part, guessed_ns: float, took_ns: float) -> None:
    """Take into account what a peek took."""
    if guessed_ns <= 0 or max(guessed_ns, took_ns) < _NOTICED_NS:
        return
    factor = min(max(took_ns / guessed_ns, _LEAST), _MOST)
    _factors[part] += _WEIGHT * (factor - _factors[part])


def forget() -> None:
    """Go back to the guesses alone."""
    _factors["compile"] = _factors["run"] = 1.0
