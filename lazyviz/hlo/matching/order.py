"""Both programs in an order of their own, laid side by side as two texts are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazyviz.hlo.matching.state import Matching, Side

# More steps than so many between the two orders cost more than they tell.
_MAX_STEPS = 800


def pair_in_reading_order(matching: Matching) -> None:
    """Pair what stands in the same place when both programs are read from their first result.

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
    heights = [0] * len(side.operands)
    for node, row in enumerate(side.operands):
        if row:
            heights[node] = max([heights[operand] for operand in row]) + 1
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
    """Return the pairs of a longest common subsequence; none if the orders differ in much.

    Where an op was inserted behind every layer, so much reads another op than before that the
    orders are alike only in what stands there, and not in what that reads.
    """
    ids: dict[object, int] = {}
    one = _symbols(matching.a, order_a, ids)
    two = _symbols(matching.b, order_b, ids)
    found = common(one, two, _MAX_STEPS)
    if not found:
        one = [matching.a.skeleton[node] for node in order_a]
        two = [matching.b.skeleton[node] for node in order_b]
        found = common(one, two, _MAX_STEPS)
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


def common(one: Sequence[int], two: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Return the positions of a longest common subsequence of two rows, by Myers' algorithm.

    Args:
        one: A row.
        two: The other one.
        most: Entries of either row that may be left over; with more, nothing is returned.
    """
    size_one, size_two = len(one), len(two)
    reach = {1: 0}
    trail: list[dict[int, int]] = []
    for step in range(min(most, size_one + size_two) + 1):
        trail.append(reach.copy())
        for diagonal in range(-step, step + 1, 2):
            down = diagonal == -step or (
                diagonal != step
                and reach.get(diagonal - 1, -1) < reach.get(diagonal + 1, -1)
            )
            at = reach[diagonal + 1] if down else reach[diagonal - 1] + 1
            other = at - diagonal
            while at < size_one and other < size_two and one[at] == two[other]:
                at += 1
                other += 1
            reach[diagonal] = at
            if at >= size_one and other >= size_two:
                return _walked_back(trail, size_one, size_two)
    return []


def _walked_back(
    trail: Sequence[dict[int, int]], at: int, other: int
) -> list[tuple[int, int]]:
    found = []
    for step in range(len(trail) - 1, -1, -1):
        reach, diagonal = trail[step], at - other
        down = diagonal == -step or (
            diagonal != step
            and reach.get(diagonal - 1, -1) < reach.get(diagonal + 1, -1)
        )
        before = diagonal + 1 if down else diagonal - 1
        start = reach[before] if step else 0
        end = start - before if step else 0
        while at > start and other > end:
            at -= 1
            other -= 1
            found.append((at, other))
        at, other = start, end
    return found[::-1]
