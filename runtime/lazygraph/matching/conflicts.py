"""Pairs that read no partners, or compute something else: where an assignment may be wrong."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from lazygraph.matching.state import UNPAIRED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lazygraph.matching.state import Matching, Side

# Pairs that are looked at together; most have no edit.
_BLOCK = 128
# A share of the disputed nodes that, gone here and new elsewhere, looks like a shift.
_MOVED = 0.05
# Places that read a part that was inserted.
_READERS = 2


def disputed(matching: Matching) -> list[int]:
    """Return the nodes of `a` whose partners read something else."""
    if matching.rewired is not None:
        return [x for x, _ in matching.rewired]
    partner, rows_a, rows_b = (
        matching.a.partner,
        matching.a.operands,
        matching.b.operands,
    )
    partner_of = partner.__getitem__
    paired = [x for x, y in enumerate(partner) if y >= 0]
    found: list[int] = []
    for start in range(0, len(paired), _BLOCK):
        block = paired[start : start + _BLOCK]
        if not _reads_partners(matching, block):
            found += [
                x
                for x in block
                if tuple(map(partner_of, rows_a[x])) != rows_b[partner[x]]
            ]
    return found


def _reads_partners(matching: Matching, block: Sequence[int]) -> bool:
    """Return whether all slots of some pairs read partners; without a loop of ours."""
    partner_of = matching.a.partner.__getitem__
    rows_a = [*map(matching.a.operands.__getitem__, block)]
    rows_b = [*map(matching.b.operands.__getitem__, map(partner_of, block))]
    if [*map(len, rows_a)] != [*map(len, rows_b)]:
        return False
    read = [*map(partner_of, chain.from_iterable(rows_a))]
    return read == [*chain.from_iterable(rows_b)]


def crossed(matching: Matching, nodes: Iterable[int]) -> int:
    """Return how many of some disputed nodes read, in one slot, nodes with other partners both.

    Where something was inserted or removed one of them has none. What is crossed was rewired, or
    like nodes were mistaken for each other.
    """
    rows_a, rows_b = matching.a.operands, matching.b.operands
    partner_a, partner_b = matching.a.partner, matching.b.partner
    return sum(
        any(
            partner_a[c] != d and partner_a[c] >= 0 <= partner_b[d]
            for c, d in zip(rows_a[x], rows_b[partner_a[x]], strict=False)
        )
        for x in nodes
    )


def may_be_mistaken(matching: Matching) -> bool:
    """Return whether like nodes may have been taken for each other.

    More than half of what is gone is new elsewhere then, and it is no small part of what differs:
    of a thousand edits a few are alike by chance.
    """
    a, b = matching.a, matching.b
    gone = Counter([a.full[node] for node in a.unpaired()])
    moved = (gone & Counter([b.full[node] for node in b.unpaired()])).total()
    return moved > max(gone.total() / 2, _MOVED * len(disputed(matching)))


def only_inserts(matching: Matching, nodes: Sequence[int]) -> bool:
    """Return whether some disputed nodes are all that insertions into one side explain.

    One side is wholly paired then, nothing is crossed, and what the other has more is read in two
    places for each of its parts: a branch of a layer is, in the forward pass and the backward.
    """
    small, large = matching.a, matching.b
    if small.partner.count(UNPAIRED) and large.partner.count(UNPAIRED):
        return False
    if small.partner.count(UNPAIRED):
        small, large = large, small
    return not crossed(matching, nodes) and len(nodes) <= _READERS * _parts(large)


def _parts(side: Side) -> int:
    """Return into how many connected parts the unpaired nodes of a side fall."""
    part = {node: node for node in side.unpaired()}
    count = len(part)
    for node in side.unpaired():
        for operand in side.operands[node]:
            if operand in part:
                one, other = _first(part, node), _first(part, operand)
                count -= one != other
                part[one] = other
    return count


def _first(part: dict[int, int], node: int) -> int:
    while part[node] != node:
        part[node] = node = part[part[node]]
    return node


def other_ops(matching: Matching) -> int:
    """Return how many pairs are of two opcodes."""
    ops_a, ops_b = matching.a.graph.ops, matching.b.graph.ops
    return sum(
        y >= 0 and ops_a[x] != ops_b[y] for x, y in enumerate(matching.a.partner)
    )
