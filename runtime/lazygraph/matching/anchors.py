"""Two rows laid side by side between landmarks: stretches that occur once in either."""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from lazygraph.matching.rows import common

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Entries of a landmark; where none of a length is found, shorter ones are looked for.
_LONGEST = 512
_SHORTEST = 8
_SHORTER = 4
# Entries that may be left over between two landmarks.
_MAX_STEPS = 200
# Of the sums by which stretches are told apart: a prime, and a number below it.
_PRIME = (1 << 61) - 1
_BASE = 1_000_003


class _Gap(NamedTuple):
    """What is to be aligned: from where to where in both rows, and by which landmarks."""

    start: int
    end: int
    other: int
    other_end: int
    length: int = _LONGEST


def anchored(one: Sequence[int], two: Sequence[int]) -> list[tuple[int, int]]:
    """Return positions in two rows that belong together, in both rows' order.

    Of rows that differ in little it is nearly a longest common subsequence, in a time that does
    not grow with the number of differences: between landmarks each is looked for alone.

    Example:
        >>> anchored([1, 2, 3, 4], [1, 5, 3, 4])
        [(0, 0), (2, 2), (3, 3)]
    """
    found: list[tuple[int, int]] = []
    gaps = [_Gap(0, len(one), 0, len(two))]
    while gaps:
        gap, ends = _without_ends(one, two, gaps.pop())
        found += ends
        if gap.start == gap.end or gap.other == gap.other_end:
            continue
        if gap.length < _SHORTEST:
            found += _filled(one, two, gap)
            continue
        landmarks = _landmarks(one, two, gap)
        if landmarks:
            runs = list(_runs(one, two, gap, landmarks))
            gaps += _between(gap, runs)
            found += [(i + n, k + n) for i, k, size in runs for n in range(size)]
        else:
            gaps.append(gap._replace(length=gap.length // _SHORTER))
    return sorted(found)


def _without_ends(
    one: Sequence[int], two: Sequence[int], gap: _Gap
) -> tuple[_Gap, list[tuple[int, int]]]:
    """Return a gap without what is equal at its two ends, and the pairs of that."""
    start, end, other, other_end, length = gap
    found = []
    while start < end and other < other_end and one[start] == two[other]:
        found.append((start, other))
        start += 1
        other += 1
    while start < end and other < other_end and one[end - 1] == two[other_end - 1]:
        end -= 1
        other_end -= 1
        found.append((end, other_end))
    return _Gap(start, end, other, other_end, length), found


def _filled(
    one: Sequence[int], two: Sequence[int], gap: _Gap
) -> Iterator[tuple[int, int]]:
    """Yield the pairs of a gap without landmarks."""
    start, end, other, other_end, _ = gap
    for i, k in common(one[start:end], two[other:other_end], _MAX_STEPS):
        yield start + i, other + k


def _runs(
    one: Sequence[int],
    two: Sequence[int],
    gap: _Gap,
    landmarks: Sequence[tuple[int, int]],
) -> Iterator[tuple[int, int, int]]:
    """Yield where landmarks begin in both rows, and for how long both are equal from there on."""
    at, other = gap.start, gap.other
    for i, k in landmarks:
        if i < at or k < other:
            continue
        at, other = i, k
        while at < gap.end and other < gap.other_end and one[at] == two[other]:
            at += 1
            other += 1
        yield i, k, at - i


def _between(gap: _Gap, runs: Sequence[tuple[int, int, int]]) -> Iterator[_Gap]:
    """Yield what runs leave of a gap."""
    start, _, other, _, length = gap
    for i, k, size in runs:
        yield _Gap(start, i, other, k, length)
        start, other = i + size, k + size
    yield gap._replace(start=start, other=other)


def _landmarks(
    one: Sequence[int], two: Sequence[int], gap: _Gap
) -> list[tuple[int, int]]:
    """Return where stretches begin that occur once in either row, as many as keep their order."""
    mine = _stretches(one, gap.start, gap.end, gap.length)
    theirs = _stretches(two, gap.other, gap.other_end, gap.length)
    found = [
        (at, theirs[total])
        for total, at in mine.items()
        if at >= 0 and theirs.get(total, -1) >= 0
    ]
    return _increasing(found)


def _stretches(row: Sequence[int], start: int, end: int, length: int) -> dict[int, int]:
    """Return where each stretch of a length begins, by a sum over it; -1 if it occurs twice."""
    sums, total = [0], 0
    for entry in islice(row, start, end):
        total = (total * _BASE + entry + 1) % _PRIME
        sums.append(total)
    lost = pow(_BASE, length, _PRIME)
    found: dict[int, int] = {}
    ends = islice(sums, length, None)
    for at, (before, now) in enumerate(zip(sums, ends, strict=False), start):
        key = (now - before * lost) % _PRIME
        found[key] = -1 if key in found else at
    return found


def _increasing(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the most of some pairs of positions that rise in both; the first rises already."""
    lowest: list[int] = []  # ends of the best rows of each length
    last: list[int] = []
    before: list[int] = []
    for n, (_, other) in enumerate(found):
        length = bisect_left(lowest, other)
        before.append(last[length - 1] if length else -1)
        lowest[length : length + 1] = [other]
        last[length : length + 1] = [n]
    kept = []
    at = last[-1] if last else -1
    while at >= 0:
        kept.append(found[at])
        at = before[at]
    return kept[::-1]
