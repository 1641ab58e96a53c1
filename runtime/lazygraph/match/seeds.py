"""Pairs to begin with: the same rows in the same order, and what is alike around them."""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from lazygraph.match.grow import heights_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lazygraph.match.state import Matching, Side


# Entries of a landmark; where none of a length is found, shorter ones are looked for.
_LONGEST = 256
_SHORTER = 4
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
    not grow with the number of differences: between landmarks each is looked for alone. Where
    nothing occurs once, nothing is said.

    Example:
        >>> anchored([1, 2, 3, 4], [1, 5, 3, 4])
        [(0, 0), (2, 2), (3, 3)]
    """
    found: list[tuple[int, int]] = []
    gaps = [_Gap(0, len(one), 0, len(two))]
    while gaps:
        gap, ends = _without_ends(one, two, gaps.pop())
        found += ends
        if gap.start == gap.end or gap.other == gap.other_end or not gap.length:
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
    starts_a = _stretches(one, gap.start, gap.end, gap.length)
    starts_b = _stretches(two, gap.other, gap.other_end, gap.length)
    found = [
        (at, starts_b[total])
        for total, at in starts_a.items()
        if at >= 0 and starts_b.get(total, -1) >= 0
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


# A share of an order that was found in the other one says that they are alike.
_ALIKE = 0.5


def pair_in_reading_order(matching: Matching) -> None:
    """Pair first of all what stands in the same place, read from the first result of each program.

    A chain of like layers has no landmarks, but its order says which layer was inserted.
    """
    order_a, order_b = _reading_order(matching.a), _reading_order(matching.b)
    found = dict(_aligned(matching, order_a, order_b))
    rows_a, rows_b = matching.a.operands, matching.b.operands
    seen = set(found.values())
    kept = [
        (x, y)
        for x, y in found.items()
        if matching.is_free(x, y)
        and all(
            found[c] == d if c in found else d not in seen
            for c, d in zip(rows_a[x], rows_b[y], strict=False)
        )
    ]
    matching.pair_all(kept)
    for x, y in kept:
        matching.note_operands(x, y)
    matching.note_frontier(kept)
    matching.grow()


def _reading_order(side: Side) -> list[int]:
    """Return the nodes as a depth-first walk finishes them, the lowest result first."""
    heights = heights_of(side)
    results = sorted(
        dict.fromkeys(side.graph.outputs),
        key=lambda node: (heights[node], side.skeleton[node], node),
    )
    order: list[int] = []
    seen = bytearray(len(heights))
    stack = results[::-1]
    while stack:
        node = stack.pop()
        if node < 0:
            order.append(-1 - node)
        elif not seen[node]:
            seen[node] = 1
            stack.append(-1 - node)
            stack += [each for each in reversed(side.operands[node]) if not seen[each]]
    return order


def _aligned(
    matching: Matching, order_a: Sequence[int], order_b: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the pairs of nearly a longest common subsequence.

    Where an op was inserted behind every layer, so much reads another op than before that the
    orders are alike only in what stands there, and not in what that reads.
    """
    ids: dict[object, int] = {}
    one = _symbols(matching.a, order_a, ids)
    two = _symbols(matching.b, order_b, ids)
    found = anchored(one, two)
    if len(found) <= _ALIKE * min(len(one), len(two)):
        one = [matching.a.skeleton[node] for node in order_a]
        two = [matching.b.skeleton[node] for node in order_b]
        found = anchored(one, two)
    return [(order_a[i], order_b[k]) for i, k in found]


def _symbols(side: Side, order: Sequence[int], ids: dict[object, int]) -> list[int]:
    skeleton, number = side.skeleton, ids.setdefault
    return [
        number(
            (skeleton[node], *[skeleton[each] for each in side.operands[node]]),
            len(ids),
        )
        for node in order
    ]
