"""Pairs that read no partners, or compute something else: where an assignment may be wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lazyviz.hlo.matching.state import Matching


def disputed(matching: Matching) -> list[int]:
    """Return the nodes of `a` whose partners read something else."""
    rows_a, rows_b = matching.a.operands, matching.b.operands
    partner_of = matching.a.partner.__getitem__
    return [
        x
        for x, y in enumerate(matching.a.partner)
        if y >= 0 and tuple(map(partner_of, rows_a[x])) != rows_b[y]
    ]


def crossed(matching: Matching) -> int:
    """Return how many pairs read, in one slot, nodes that have other partners on both sides.

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
        for x in disputed(matching)
    )


def other_ops(matching: Matching) -> int:
    """Return how many pairs are of two opcodes."""
    ops_a, ops_b = matching.a.graph.ops, matching.b.graph.ops
    return sum(
        y >= 0 and ops_a[x] != ops_b[y] for x, y in enumerate(matching.a.partner)
    )
