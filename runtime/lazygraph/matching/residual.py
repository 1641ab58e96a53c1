"""What is left at the end: pairs that make the edit script shorter, the best first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazygraph.graph import CONSTANT, PARAMETER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazygraph.matching.state import Matching, Side

_MAX_USERS = 64
_MAX_PASSES = 6
# A pair saves the removal of one node and the addition of the other.
_SAVED = 2


def pair_contested(matching: Matching) -> None:
    """Pair contested leads for which more speaks than against, the clearest first."""
    while matching.contested:
        found = []
        skeleton_a, skeleton_b = matching.a.skeleton, matching.b.skeleton
        for x, y in matching.contested:
            if matching.is_free(x, y) and skeleton_a[x] == skeleton_b[y]:
                agree, conflict = matching.evidence(x, y)
                if agree > conflict:
                    found.append((conflict - agree, x, y))
        matching.contested.clear()
        found.sort()
        before = matching.pairs
        for score, x, y in found:
            if not matching.is_free(x, y):
                continue
            agree, conflict = matching.evidence(x, y)
            if agree > conflict and conflict - agree <= score:
                matching.pair(x, y)
        if matching.pairs == before:
            return
        matching.grow(similar=True)


def pair_by_gain(matching: Matching) -> None:
    """Pair nodes in the same place while that makes the edit script shorter."""
    for _ in range(_MAX_PASSES):
        found = _gainful(matching)
        before = matching.pairs
        for _, _, _, x, y in found:
            if matching.is_free(x, y):
                matching.pair(x, y)
        if matching.pairs == before:
            return
        matching.grow(similar=True)


def _gainful(matching: Matching) -> list[tuple[int, bool, bool, int, int]]:
    found = []
    a, b = matching.a, matching.b
    ops_a, ops_b = a.graph.ops, b.graph.ops
    for x in a.unpaired():
        for y in _candidates(matching, x):
            gain = _gain(matching, x, y)
            if gain > 0:
                alike = a.skeleton[x] == b.skeleton[y]
                found.append((-gain, not alike, ops_a[x] != ops_b[y], x, y))
    found.sort()
    return found


def _candidates(matching: Matching, x: int) -> dict[int, None]:
    """Return unpaired nodes that share an operand or a user with x, in the same slot."""
    a, b = matching.a, matching.b
    found: dict[int, None] = {}
    for slot, operand in enumerate(a.operands[x]):
        other = a.partner[operand]
        if other >= 0 and len(b.users[other]) <= _MAX_USERS:
            for user, other_slot in b.users[other]:
                if other_slot == slot and b.partner[user] < 0:
                    found[user] = None
    for user, slot in a.users[x][:_MAX_USERS]:
        other = a.partner[user]
        if other >= 0 and slot < len(b.operands[other]):
            operand = b.operands[other][slot]
            if b.partner[operand] < 0:
                found[operand] = None
    return found


def _gain(matching: Matching, x: int, y: int) -> int:
    """Return by how much pairing x with y shortens the script; 0 if they may not pair."""
    a, b = matching.a, matching.b
    op_a, op_b = a.graph.ops[x], b.graph.ops[y]
    if op_a != op_b and not may_change_into(matching, x, y):
        return 0
    agreeing, possible, rewired = _slots(matching, x, y)
    users = _agreeing_users(matching, x, y)
    outputs = bool(a.is_output[x] and b.is_output[y])
    if op_a != op_b:
        below = agreeing or possible or not a.operands[x]
        if not (below and (users or outputs)):
            return 0
    return _SAVED + users + outputs - (a.full[x] != b.full[y]) - rewired


def may_change_into(matching: Matching, x: int, y: int) -> bool:
    """Return whether nodes of two ops may be one node whose op changed.

    An input, a constant, and an op that reads nothing (`ones`) are never said to have become
    something that computes, however short the script would be.
    """
    a, b = matching.a, matching.b
    special = {a.graph.ops[x], b.graph.ops[y]} & {PARAMETER, CONSTANT}
    return not special and bool(a.operands[x]) == bool(b.operands[y])


def _slots(matching: Matching, x: int, y: int) -> tuple[int, int, int]:
    """Return how many operand slots agree, still may, and are rewired."""
    a, b = matching.a, matching.b
    row_a, row_b = a.operands[x], b.operands[y]
    agreeing = possible = 0
    rewired = abs(len(row_a) - len(row_b))
    for c, d in zip(row_a, row_b, strict=False):
        other = a.partner[c]
        if other == d:
            agreeing += 1
        elif other >= 0 or b.partner[d] >= 0:
            rewired += 1
        elif a.skeleton[c] == b.skeleton[d]:
            possible += 1
    return agreeing, possible, rewired


def _agreeing_users(matching: Matching, x: int, y: int) -> int:
    a, b = matching.a, matching.b
    count = 0
    for user, slot in a.users[x]:
        other = a.partner[user]
        if other >= 0:
            row = b.operands[other]
            count += slot < len(row) and row[slot] == y
    return count


def pair_lone_leaves(matching: Matching) -> None:
    """Pair inputs and constants that are outputs and nothing else, by their labels alone.

    Among equal ones, that which is an output most often goes with the other side's.
    """
    _pair_lone(matching, matching.a.full, matching.b.full)


def pair_handed_through(matching: Matching) -> None:
    """Pair what is left of such leaves, whatever became of their types and shardings.

    Equal types go together first. Strangers would be an input and an output less, and one more.
    """
    a, b = matching.a.graph, matching.b.graph
    typed = [[*zip(each.ops, each.types, strict=True)] for each in (a, b)]
    _pair_lone(matching, *typed)
    _pair_lone(matching, a.ops, b.ops)


def _pair_lone(
    matching: Matching, labels_a: Sequence[object], labels_b: Sequence[object]
) -> None:
    theirs = _lone_leaves(matching.b, labels_b)
    for label, leaves in _lone_leaves(matching.a, labels_a).items():
        for x, y in zip(leaves, theirs.get(label, ()), strict=False):
            matching.pair(x, y)


def _lone_leaves(side: Side, labels: Sequence[object]) -> dict[object, list[int]]:
    """Return the free ones by label, those first that are outputs most often."""
    found: dict[object, list[int]] = {}
    for node in sorted(set(side.graph.outputs), key=lambda n: -side.is_output[n]):
        is_lone = not side.operands[node] and not side.users[node]
        if is_lone and side.partner[node] < 0:
            found.setdefault(labels[node], []).append(node)
    return found


def pair_leaves(matching: Matching) -> None:
    """Pair the inputs and constants that are left over, equal ones, the nearest first.

    A leaf reads nothing, so a pair of equal ones can only make the script shorter.
    """
    theirs: dict[int, list[int]] = {}
    for y in matching.b.unpaired():
        if not matching.b.operands[y]:
            theirs.setdefault(matching.b.full[y], []).append(y)
    if not theirs:
        return
    found = []
    for x in matching.a.unpaired():
        if matching.a.operands[x]:
            continue
        near = _surroundings(matching.a, x, own=True)
        for y in theirs.get(matching.a.full[x], ())[:_MAX_USERS]:
            shared = near & _surroundings(matching.b, y, own=False)
            found.append((-len(shared), x, y))
    found.sort()
    for _, x, y in found:
        if matching.is_free(x, y):
            matching.pair(x, y)
    matching.grow(similar=True)


def _surroundings(side: Side, leaf: int, *, own: bool) -> set[int]:
    """Return the pairs two steps away from a leaf, by their number on the first side."""
    near: set[int] = set()
    for user, _ in side.users[leaf][:_MAX_USERS]:
        near.add(user)
        near.update(side.operands[user])
        near.update([each for each, _ in side.users[user][:_MAX_USERS]])
    partner = side.partner
    return {node if own else partner[node] for node in near if partner[node] >= 0}
