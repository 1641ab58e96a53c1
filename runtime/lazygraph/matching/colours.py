"""Weisfeiler-Leman colours of what is unpaired, with the pairs as fixed points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from lazygraph.matching.labels import Numbers, numbers
from lazygraph.matching.tiers import pair_in_order

if TYPE_CHECKING:
    from lazygraph.matching.state import Matching, Side

_MAX_USERS = 64
_MAX_SLOT = 7
# Nodes that could be paired, if fewer than one in so many, are worth finding out who is near.
_SPARSE = 4

Ties = Literal["leave", "equal", "any"]


def pair_by_colour(
    matching: Matching, rounds: int, ties: Ties, *, exact: bool = False
) -> int:
    """Pair nodes of equal colour; return how many pairs that made.

    Args:
        matching: Grows.
        rounds: How far the colours see.
        ties: Of several nodes of one colour: `leave` them, pair them in order of height if
            both sides have `equal` numbers, or pair `any`.
        exact: Whether sizes, dtypes and constants are part of the colours.
    """
    mine, theirs = matching.a.unpaired(), matching.b.unpaired()
    if not mine or not theirs:
        return 0
    before = matching.pairs
    classes_a, classes_b = _classes(matching, mine, theirs, rounds, exact=exact)
    tied: list[tuple[list[int], list[int]]] = []
    for colour, nodes in classes_a.items():
        others = classes_b.get(colour)
        if others is None:
            continue
        if len(nodes) == 1 == len(others):
            pair_in_order(matching, nodes, others)
        elif ties == "any" or (ties == "equal" and len(nodes) == len(others)):
            tied.append((nodes, others))
    if tied:
        _pair_tied(matching, tied)
    return matching.pairs - before


def _classes(
    matching: Matching,
    mine: list[int],
    theirs: list[int],
    rounds: int,
    *,
    exact: bool,
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    known = numbers()
    a, b = matching.a, matching.b
    labels_a, labels_b = (a.full, b.full) if exact else (a.skeleton, b.skeleton)
    colours_a = {n: known["first", labels_a[n], a.is_output[n]] for n in mine}
    colours_b = {n: known["first", labels_b[n], b.is_output[n]] for n in theirs}
    shared = set(colours_a.values()).intersection(colours_b.values())
    if not shared:
        return {}, {}
    reach_a = _reach(a, colours_a, shared, rounds)
    reach_b = _reach(b, colours_b, shared, rounds)
    for wanted_a, wanted_b in zip(reach_a, reach_b, strict=True):
        colours_a = _refined(a, colours_a, wanted_a, known, own=True)
        colours_b = _refined(b, colours_b, wanted_b, known, own=False)
    return _by_colour(colours_a), _by_colour(colours_b)


def _reach(
    side: Side, colours: dict[int, int], shared: set[int], rounds: int
) -> list[list[int]]:
    """Return for each round the nodes whose colour matters: for what the other side has too."""
    wanted = [node for node, colour in colours.items() if colour in shared]
    found = [wanted]
    if len(wanted) * _SPARSE > len(colours):
        return [list(colours)] * (rounds - 1) + found
    near = dict.fromkeys(wanted)
    edge = wanted
    for _ in range(rounds - 1):
        reached: dict[int, None] = {}
        for node in edge:
            reached.update(dict.fromkeys(side.operands[node]))
            if len(side.users[node]) <= _MAX_USERS:
                reached.update(dict.fromkeys([user for user, _ in side.users[node]]))
        edge = [node for node in reached if node in colours and node not in near]
        near.update(dict.fromkeys(edge))
        found.append(list(near))
    return found[::-1]


def _refined(
    side: Side,
    colours: dict[int, int],
    wanted: list[int],
    known: Numbers,
    *,
    own: bool,
) -> dict[int, int]:
    partner = side.partner
    refined = {}
    for node in wanted:
        seen: list[int | None] = [colours[node]]
        for operand in side.operands[node]:
            other = partner[operand]
            pair = operand if own else other
            seen.append(colours[operand] if other < 0 else -1 - pair)
        users = side.users[node]
        if len(users) <= _MAX_USERS:
            above = []
            for user, slot in users:
                other = partner[user]
                pair = user if own else other
                seen_user = colours[user] if other < 0 else -1 - pair
                above.append(seen_user * (_MAX_SLOT + 1) + min(slot, _MAX_SLOT))
            seen.append(None)
            seen += sorted(above)
        refined[node] = known[tuple(seen)]
    return refined


def _by_colour(colours: dict[int, int]) -> dict[int, list[int]]:
    classes: dict[int, list[int]] = {}
    for node, colour in colours.items():
        classes.setdefault(colour, []).append(node)
    return classes


def _pair_tied(matching: Matching, tied: list[tuple[list[int], list[int]]]) -> None:
    """Pair interchangeable nodes in order of height, the tallest class first."""
    heights_a, heights_b = _heights(matching.a), _heights(matching.b)
    for nodes, others in tied:
        nodes.sort(key=lambda node: (heights_a[node], matching.a.full[node]))
        others.sort(key=lambda node: (heights_b[node], matching.b.full[node]))
    tied.sort(key=lambda both: (-heights_a[both[0][-1]][0], both[0][-1]))
    for nodes, others in tied:
        mine = [node for node in nodes if matching.a.partner[node] < 0]
        theirs = [node for node in others if matching.b.partner[node] < 0]
        if pair_in_order(matching, mine, theirs):
            matching.grow(similar=True)


def _heights(side: Side) -> list[tuple[int, int]]:
    """Return for each node its height above the inputs and minus its depth below the outputs."""
    height = [0] * len(side.operands)
    depth = [0] * len(side.operands)
    for node, row in enumerate(side.operands):
        if row:
            height[node] = 1 + max([height[operand] for operand in row])
    for node in range(len(depth) - 1, -1, -1):
        below = depth[node] + 1
        for operand in side.operands[node]:
            depth[operand] = max(depth[operand], below)
    return [(up, -down) for up, down in zip(height, depth, strict=True)]
