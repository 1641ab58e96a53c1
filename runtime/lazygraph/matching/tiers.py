"""The tiers that start or restart the matching, from the surest to the boldest."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from operator import ne
from typing import TYPE_CHECKING

from lazygraph.matching.labels import Numbers, numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lazygraph.matching.state import Matching, Side


# Scopes that name their nodes otherwise on the other side, at most so much of a slot for each.
_MAX_DISPUTED = 0.01
# Unpaired nodes on both sides, and pairs for each of them, that make another look worthwhile;
# and of how many pairs the users are asked before it.
_MANY = 5_000
_ENOUGH = 0.25
_FIRST_LEADS = 300


def pair_equal_cones(matching: Matching, labels: str, *, similar: bool = False) -> None:
    """Pair nodes whose whole cone of operands occurs once on each side, the tallest first.

    Args:
        matching: Grows.
        labels: `full` or `skeleton`: what makes two nodes equal.
        similar: Whether what grows from them may differ in sizes.
    """
    _pair_by_cones(matching, labels)
    if labels == "full" and _is_worth_another_look(matching):
        matching.grow(most=_FIRST_LEADS)
        _pair_by_cones(matching, labels)
    matching.grow(similar=similar)


def _is_worth_another_look(matching: Matching) -> bool:
    """Return whether a break in a large graph leaves much whose cones are equal beyond it.

    Where a few leads have stepped over the break, one more look at all cones pairs what is
    beyond it at a third of the time of following lead after lead.
    """
    rest = min(len(matching.a.unpaired()), len(matching.b.unpaired()))
    return rest > _MANY and matching.pairs > _ENOUGH * rest


def _pair_by_cones(matching: Matching, labels: str) -> None:
    ids = numbers()
    known_a, known_b = matching.a.graph.cones, matching.b.graph.cones
    if known_a and known_b and labels == "full" and not matching.pairs:
        a, b = [ids[cone] for cone in known_a], [ids[cone] for cone in known_b]
    else:
        a = _cone_ids(matching.a, getattr(matching.a, labels), ids, own=True)
        b = _cone_ids(matching.b, getattr(matching.b, labels), ids, own=False)
    heights = _heights(matching.a)
    found = _pairs_of_cones(matching, a, b, heights, len(ids))
    _pair_cones(matching, found, heights)


def pair_local_cones(
    matching: Matching, scopes_a: Sequence[int], scopes_b: Sequence[int]
) -> None:
    """Pair nodes whose cone within their scope occurs once on each side.

    What a scope reads from others counts by its label alone, so that a change in one scope
    leaves the others as they are.

    Args:
        matching: Grows.
        scopes_a: For each node of a number of its scope; 0 for none.
        scopes_b: Likewise.
    """
    ids = numbers()
    a = _local_cone_ids(matching.a, scopes_a, ids)
    b = _local_cone_ids(matching.b, scopes_b, ids)
    heights = [
        height if scope else 0
        for height, scope in zip(_heights(matching.a), scopes_a, strict=True)
    ]
    found = _pairs_of_cones(matching, a, b, heights, len(ids))
    if _agree(matching, found):
        _pair_cones(matching, found, heights)


def _agree(matching: Matching, found: list[tuple[int, int]]) -> bool:
    """Return whether pairs read each other, which those of misleading scopes do not.

    Equal cones have equally many operands, so that all slots can be laid in one row.
    """
    partner = dict(found)
    slots_a = chain.from_iterable(map(matching.a.operands.__getitem__, partner))
    slots_b = list(
        chain.from_iterable(map(matching.b.operands.__getitem__, partner.values()))
    )
    disputed: int = sum(map(ne, map(partner.get, slots_a, slots_b), slots_b))
    return disputed <= _MAX_DISPUTED * len(found)


def _pairs_of_cones(
    matching: Matching, a: list[int], b: list[int], heights: list[int], count: int
) -> list[tuple[int, int]]:
    """Return the nodes that are the only ones of their cone on each side, leaves apart."""
    once_a = _singles(matching.a.unpaired(), a, count)
    once_b = _singles(matching.b.unpaired(), b, count)
    return [
        (x, y)
        for x, y in zip(once_a, once_b, strict=True)
        if x >= 0 and y >= 0 and heights[x]
    ]


def _pair_cones(
    matching: Matching, found: list[tuple[int, int]], heights: list[int]
) -> None:
    matching.pair_all(found if not matching.pairs else _undisputed(matching, found))
    partner, users = matching.a.partner, matching.a.users
    reading = {user for node in matching.a.unpaired() for user, _ in users[node]}
    open_pairs = [
        (-heights[x], -x, y) for x, y in found if x in reading and partner[x] == y
    ]
    open_pairs.sort()
    # What several nodes compute alike is told apart by who reads it, the tallest first.
    for _, minus_x, y in open_pairs:
        matching.note_operands(-minus_x, y)
        matching.descend()
    matching.note_frontier(found)


def _undisputed(
    matching: Matching, found: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the pairs that earlier pairs do not contradict."""
    kept = []
    # Where few are paired, most have no neighbour that could say anything.
    near_a, near_b = matching.near_pairs()
    for x, y in found:
        if near_a is not None and x not in near_a and y not in near_b:
            kept.append((x, y))
            continue
        agree, conflict = matching.evidence(x, y)
        if not conflict or conflict < agree:
            kept.append((x, y))
    return kept


def _cone_ids(
    side: Side, labels: Sequence[int], ids: Numbers, *, own: bool
) -> list[int]:
    """Return the cone of each node; a paired one is a cone of its own."""
    partner, operands = side.partner, side.operands
    cones = [0] * len(partner)
    free = side.unpaired()
    if len(free) < len(partner):
        for node in free:
            for operand in operands[node]:
                other = partner[operand]
                if other >= 0:
                    cones[operand] = -1 - (operand if own else other)
    for node in free:
        row = operands[node]
        if len(row) == 1:
            cones[node] = ids[labels[node], cones[row[0]]]
        elif len(row) == 2:  # noqa: PLR2004 - most nodes have one or two
            one, two = row
            cones[node] = ids[labels[node], cones[one], cones[two]]
        elif row:
            cones[node] = ids[(labels[node], *[cones[o] for o in row])]
        else:
            cones[node] = ids[labels[node]]
    return cones


def _heights(side: Side) -> list[int]:
    """Return the height of each node above the inputs and the paired nodes."""
    operands = side.operands
    heights = [0] * len(operands)
    for node in side.unpaired():
        row = operands[node]
        if len(row) == 1:
            heights[node] = heights[row[0]] + 1
        elif len(row) == 2:  # noqa: PLR2004 - most nodes have one or two
            up, other = heights[row[0]], heights[row[1]]
            heights[node] = (up if up > other else other) + 1  # noqa: FURB136 - twice as quick
        elif row:
            heights[node] = max([heights[o] for o in row]) + 1
    return heights


def _local_cone_ids(side: Side, scopes: Sequence[int], ids: Numbers) -> list[int]:
    """Return the cone of each node within its scope."""
    labels = side.full
    cones = [ids[label] for label in labels]
    for node, row in enumerate(side.operands):
        scope = scopes[node]
        if not scope or not row:
            continue
        if len(row) == 1:
            (one,) = row
            seen = cones[one] if scopes[one] == scope else -1 - labels[one]
            cones[node] = ids[labels[node], seen]
        elif len(row) == 2:  # noqa: PLR2004 - most nodes have one or two
            one, two = row
            seen = cones[one] if scopes[one] == scope else -1 - labels[one]
            other = cones[two] if scopes[two] == scope else -1 - labels[two]
            cones[node] = ids[labels[node], seen, other]
        else:
            rest = [cones[o] if scopes[o] == scope else -1 - labels[o] for o in row]
            cones[node] = ids[(labels[node], *rest)]
    return cones


def _singles(nodes: Iterable[int], cones: Sequence[int], count: int) -> list[int]:
    """Return for each cone the node that has it; -1 for none, -2 for several."""
    found = [-1] * count
    for node in nodes:
        cone = cones[node]
        found[cone] = node if found[cone] == -1 else -2
    return found


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
