"""Both programs in an order of their own, laid side by side as two texts are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazygraph.matching.anchors import anchored
from lazygraph.matching.rows import common

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazygraph.matching.state import Matching, Side

# More steps than so many between the two orders cost more than they tell.
_MAX_STEPS = 800
# In longer orders they are not looked for: between landmarks it takes a fifth of the time.
_SHORT = 5_000
# A share of an order that was found in the other one says that they are alike.
_ALIKE = 0.5
# A share of a program that the first result needs.
_MUCH = 0.2


def pair_in_reading_order(matching: Matching, *, whole: bool = True) -> None:
    """Pair what stands in the same place when both programs are read from their first result.

    A chain of like layers has no landmarks, but its order says which layer was inserted.

    Args:
        matching: Grows.
        whole: Whether all is laid side by side. Else it is what the first result needs, if that
            is much, as the forward pass is for the loss: what reads it follows from it then,
            where the order of the backward pass could contradict that of the forward one.
    """
    order_a, order_b = _reading_order(matching.a), _reading_order(matching.b)
    if not whole:
        order_a, order_b = (
            _first_part(matching.a, order_a),
            _first_part(matching.b, order_b),
        )
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


def _first_part(side: Side, order: list[int]) -> list[int]:
    """Return a program's reading order up to its first result, if that is much of it."""
    end = next((k for k, node in enumerate(order, 1) if side.is_output[node]), 0)
    return order[:end] if end > _MUCH * len(order) else order


def _aligned(
    matching: Matching, order_a: Sequence[int], order_b: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the pairs of a longest common subsequence, or of nearly one.

    Where an op was inserted behind every layer, so much reads another op than before that the
    orders are alike only in what stands there, and not in what that reads.
    """
    is_short = max(len(order_a), len(order_b)) <= _SHORT
    ids: dict[object, int] = {}
    one = _symbols(matching.a, order_a, ids)
    two = _symbols(matching.b, order_b, ids)
    found = common(one, two, _MAX_STEPS) if is_short else anchored(one, two)
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
