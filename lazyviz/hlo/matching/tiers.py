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
    once_b = _singles(matching.b, b)
    found = [
        (-heights[x], -x, once_b[cone])
        for cone, x in _singles(matching.a, a).items()
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
) -> tuple[list[int], list[int]]:
    """Return for each node the number of its cone and its height; pairs are their own cone."""
    cones = [0] * len(labels)
    heights = [0] * len(labels)
    operands, partner = side.operands, side.partner
    for node, label in enumerate(labels):
        other = partner[node]
        if other >= 0:
            cones[node] = -1 - (node if own else other)
            continue
        row = operands[node]
        if row:
            cones[node] = ids[(label, *[cones[operand] for operand in row])]
            heights[node] = 1 + max([heights[operand] for operand in row])
        else:
            cones[node] = ids[label]
    return cones, heights


def _singles(side: Side, cones: Sequence[int]) -> dict[int, int]:
    """Return the cones that one unpaired node has, with that node."""
    nodes: dict[int, int] = {}
    several: set[int] = set()
    for node, other in enumerate(side.partner):
        if other < 0:
            cone = cones[node]
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
