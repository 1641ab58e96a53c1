"""The tiers that start or restart the matching, from the surest to the boldest."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lazyviz.hlo.matching.labels import Interner

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lazyviz.hlo.matching.state import Matching, Side


def pair_equal_cones(matching: Matching, labels: str, *, similar: bool = False) -> None:
    """Pair nodes whose whole cone of operands occurs once on each side, the tallest first.

    Args:
        matching: Grows.
        labels: `full` or `skeleton`: what makes two nodes equal.
        similar: Whether what grows from them may differ in sizes.
    """
    ids = Interner()
    a, heights = _cone_ids(matching.a, getattr(matching.a, labels), ids, own=True)
    b, _ = _cone_ids(matching.b, getattr(matching.b, labels), ids, own=False)
    once_b = _singles(b)
    found = [
        (-heights[x], -x, once_b[cone])
        for cone, x in _singles(a).items()
        if cone in once_b and heights[x] > 0
    ]
    found.sort()
    for _, minus_x, y in found:
        x = -minus_x
        if not matching.is_free(x, y):
            continue
        agree, conflict = matching.evidence(x, y)
        if conflict and conflict >= agree:
            continue
        matching.pair(x, y)
        matching.descend()
    matching.grow(similar=similar)


def _cone_ids(
    side: Side, labels: Sequence[int], ids: Interner, *, own: bool
) -> tuple[dict[int, int], dict[int, int]]:
    """Return cone and height of each unpaired node; a paired operand is a cone of its own."""
    cones: dict[int, int] = {}
    heights: dict[int, int] = {}
    operands, partner = side.operands, side.partner
    for node in side.unpaired():
        row = operands[node]
        if not row:
            cones[node] = ids[labels[node]]
            heights[node] = 0
            continue
        key = [labels[node]]
        height = 0
        for operand in row:
            other = partner[operand]
            if other >= 0:
                key.append(-1 - (operand if own else other))
                continue
            key.append(cones[operand])
            if heights[operand] > height:  # noqa: PLR1730 - `max` takes twice as long
                height = heights[operand]
        cones[node] = ids[tuple(key)]
        heights[node] = height + 1
    return cones, heights


def _singles(cones: dict[int, int]) -> dict[int, int]:
    """Return the cones that one node has, with that node."""
    nodes: dict[int, int] = {}
    several: set[int] = set()
    for node, cone in cones.items():
        if cone in nodes:
            several.add(cone)
        else:
            nodes[cone] = node
    for cone in several:
        del nodes[cone]
    return nodes


def pair_unique_labels(
    matching: Matching, nodes_a: Iterable[int], nodes_b: Iterable[int]
) -> None:
    """Pair nodes whose label is the only one of its kind on either side."""
    a, b = matching.a, matching.b
    mine = [node for node in nodes_a if a.partner[node] < 0]
    theirs = [node for node in nodes_b if b.partner[node] < 0]
    counts_a = Counter([a.full[node] for node in mine])
    counts_b = Counter([b.full[node] for node in theirs])
    node_of = {b.full[node]: node for node in theirs}
    for x in mine:
        label = a.full[x]
        if counts_a[label] != 1 or counts_b.get(label) != 1:
            continue
        y = node_of[label]
        agree, conflict = matching.evidence(x, y)
        if conflict <= agree + 1 and matching.is_free(x, y):
            matching.pair(x, y)


def pair_in_order(
    matching: Matching, nodes_a: Sequence[int], nodes_b: Sequence[int]
) -> int:
    """Pair two rows of interchangeable nodes one by one; return how many."""
    made = 0
    for x, y in zip(nodes_a, nodes_b, strict=False):
        if matching.is_free(x, y) and not matching.evidence(x, y)[1]:
            matching.pair(x, y)
            made += 1
    return made
