"""How long work will take here: guesses by kind and size, set right by what it took before.

A guess knows no machine. What work took, set against its guess, is a factor that later guesses of
the same kind and size class get; without one the kind's of other sizes, then that of the whole
family (`compile`, `run`, ...), which tells of the machine and is set by `calibration`. Factors outlive the process in a small
file beside the executables on disk.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from lazyrt.execution import cache

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

now = time.perf_counter_ns
"""The clock; a test may put another one here."""

_VERSION = 2  # of the guesses, too: factors are of them
_MAX_FACTORS = 4_000
_MOST = math.log(1_000)  # a factor beyond this tells of an accident
_MOST_OF_FIXED = math.log(5)  # of what is there beside the work
_NOTICED = 0.1  # smaller shares of a time tell nothing of their part
_SHORTEST_NS = 200_000  # such a wait tells of the clock, not of the work
# What is guessed shorter tells nothing of other sizes and kinds.
_TELLING_NS = 1_000_000
_SAVE_EVERY_S = 30.0
# How far a guess may be off, both ways: by a factor of its own kind and size, of its kind, of none.
_SPREADS = (1.0, 1.6, 2.0)
# Families that a machine does at one pace.
_FAMILIES = {
    "slice": "compile",
    "fused-run": "run",
    "fused-dense": "dense",
}
# What the latest time weighs at least in the factors of each of these.
_WEIGHTS = (0.5, 0.4, 0.25)


class Part(NamedTuple):
    """A piece of work.

    Attributes:
        kind: Family and kind, such as `run aten.mm.default`.
        size: Class of its size, such that work of one class takes about as long.
        guess_ns: Nanoseconds by a plain guess.
    """

    kind: str
    size: int
    guess_ns: float

    @property
    def is_fixed(self) -> bool:
        """Whether it is there beside the work: it tells of nothing but itself."""
        return self.kind.startswith("fixed ")

    @property
    def keys(self) -> tuple[str, str, str]:
        """What its factor is kept under, the most telling first."""
        family = self.kind.partition(" ")[0]
        return f"{self.kind} {self.size}", self.kind, _FAMILIES.get(family, family)


class Span(NamedTuple):
    """An expectation in nanoseconds, and between what it lies."""

    ns: int
    low_ns: int
    high_ns: int


class _Factor(NamedTuple):
    log: float
    times: int


_lock = threading.RLock()
_factors: dict[str, _Factor] = {}
_read: set[Path] = set()
_saved_s = 0.0
_changed = False
_calibrated = False


def size_class(amount: float) -> int:
    """Return a class of size; a class takes in amounts that differ by up to four times."""
    return int(max(amount, 1)).bit_length() // 2


def expected(parts: Iterable[Part]) -> Span:
    """Return how long some work takes here, as far as it is known."""
    with _lock:
        _remember_disk()
        ns = low = high = 0.0
        for part in _joined(parts):
            log, level = _factor(part)
            took = part.guess_ns * math.exp(log)
            ns += took
            low += took / _SPREADS[level]
            high += took * _SPREADS[level]
    return Span(int(ns), int(low), int(high))


def learn(parts: Iterable[Part], took_ns: float) -> None:
    """Take into account what some work took together.

    What is known already is believed, and the rest told by what is left; where all is known,
    each part gets its share of the difference.
    """
    joined = _joined(parts)
    if not joined or took_ns < _SHORTEST_NS:
        return
    with _lock:
        _remember_disk()
        known: list[tuple[Part, float]] = []
        fresh: list[tuple[Part, float]] = []
        for part in joined:
            log, level = _factor(part)
            (fresh if level else known).append((part, part.guess_ns * math.exp(log)))
        total = sum(ns for _, ns in known + fresh)
        unknown = sum(ns for _, ns in fresh)
        if unknown >= _NOTICED * total:
            rest = took_ns - (total - unknown)
            off = math.log(max(rest, _NOTICED * min(unknown, took_ns)) / unknown)
            told, total = fresh, unknown
        else:
            off, told = math.log(took_ns / total), known
        # What came first in a process cannot be told from what else is new: both tell the pace.
        mixed = len(fresh) > 1 and any("first" in p.kind for p, _ in fresh)
        for part, ns in told:
            if ns >= _NOTICED * total:
                _note(part, math.log(ns / part.guess_ns) + off, only_family=mixed)
    _save_now_and_then()


def is_calibrated() -> bool:
    """Return whether this machine was timed, in this process or in an earlier one."""
    with _lock:
        _remember_disk()
        return _calibrated


def set_calibrated() -> None:
    """Take note that this machine is timed."""
    global _calibrated, _changed
    with _lock:
        _calibrated = _changed = True


def forget() -> None:
    """Go back to the guesses alone."""
    global _changed, _calibrated
    with _lock:
        _factors.clear()
        _read.clear()
        _changed = _calibrated = False


def save() -> None:
    """Write the factors beside the executables on disk; failing to is harmless."""
    global _changed, _saved_s
    path = cache.pace_path()
    with _lock:
        if path is None or not _changed:
            return
        _changed, _saved_s = False, time.monotonic()
        table = {key: [round(f.log, 4), f.times] for key, f in _factors.items()}
        held = {"version": _VERSION, "calibrated": _calibrated, "factors": table}
    with contextlib.suppress(Exception):  # a full disk must not stop a training run
        cache.write_text(path, json.dumps(held))


atexit.register(save)


def _joined(parts: Iterable[Part]) -> list[Part]:
    """Return parts of one kind and size as one."""
    sums: dict[tuple[str, int], float] = {}
    for kind, size, guess in parts:
        sums[kind, size] = sums.get((kind, size), 0.0) + guess
    return [Part(kind, size, ns) for (kind, size), ns in sums.items() if ns > 0]


def _factor(part: Part) -> tuple[float, int]:
    """Return the logarithm of a part's factor, and the position of the key that had it."""
    for level, key in enumerate(part.keys):
        found = _factors.get(key)
        if found is not None:
            return found.log, level
    return 0.0, len(_SPREADS) - 1


def _note(part: Part, log: float, *, only_family: bool) -> None:
    global _changed
    most = _MOST_OF_FIXED if part.is_fixed else _MOST
    log = min(max(log, -most), most)
    levels = list(zip(part.keys, _WEIGHTS, strict=True))
    if only_family:
        levels = levels[-1:]
    elif part.guess_ns < _TELLING_NS or part.is_fixed:
        levels = levels[:1]
    for key, least in levels:
        before = _factors.pop(key, None) or _Factor(log, 0)
        weight = max(1 / (before.times + 1), least)
        _factors[key] = _Factor(
            before.log + weight * (log - before.log), before.times + 1
        )
    while len(_factors) > _MAX_FACTORS:
        del _factors[next(iter(_factors))]
    _changed = True


def _save_now_and_then() -> None:
    if time.monotonic() - _saved_s > _SAVE_EVERY_S:
        save()


def _remember_disk() -> None:
    """Take in what earlier processes learned, once; what this one knows comes first."""
    global _calibrated
    path = cache.pace_path()
    if path is None or path in _read:
        return
    _read.add(path)
    found, calibrated = _parsed(cache.read_text(path))
    _calibrated = _calibrated or calibrated
    here = dict(_factors)
    _factors.clear()
    _factors.update(found | here)


def _parsed(text: str) -> tuple[dict[str, _Factor], bool]:
    """Return the factors that a file holds, and whether its machine was timed.

    None of another version's or of a damaged one.
    """
    try:
        held = json.loads(text)
        if held["version"] != _VERSION:
            return {}, False
        pairs = list(held["factors"].items())[-_MAX_FACTORS:]
        factors = {
            key: _Factor(min(max(float(log), -_MOST), _MOST), max(1, int(count)))
            for key, (log, count) in pairs
            if math.isfinite(log)
        }
        return factors, held.get("calibrated") is True
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ):
        return {}, False
