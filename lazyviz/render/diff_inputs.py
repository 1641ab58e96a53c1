"""Which inputs of two programs stand for each other, and what says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyviz.hlo.graph import PARAMETER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazyviz.hlo.difference import GraphDiff
    from lazyviz.hlo.graph import Graph


def pairing_lines(found: GraphDiff) -> list[str]:
    """Return a line for each pair of inputs that were moved or changed.

    Example: `%p827.1 (0) → %p852.7 (3): same shape, same reader %dot.4`; the numbers are
    the inputs' places.
    """
    changed = [
        (x, y)
        for x, y in found.changed
        if found.a.label(x).op == PARAMETER == found.b.label(y).op
    ]
    return [
        f"{_named(found.a, x)} → {_named(found.b, y)}: {', '.join(_reasons(found, x, y))}"
        for x, y in sorted({*found.moved_parameters, *changed})
    ]


def _named(graph: Graph, node: int) -> str:
    return f"{graph.names[node]} ({graph.numbers.get(node, '?')})"


def _reasons(found: GraphDiff, x: int, y: int) -> Iterator[str]:
    a, b = found.a, found.b
    types = a.label(x).type, b.label(y).type
    yield "same shape" if types[0] == types[1] else f"{types[0]} → {types[1]}"
    if a.origin(x).op_name and a.origin(x).op_name == b.origin(y).op_name:
        yield f"same name {a.origin(x).op_name}"
    theirs = set(b.users[y])
    for reader, slot in a.users[x]:
        partner = found.partner_a[reader]
        if (partner, slot) in theirs:
            yield f"same reader {b.names[partner]} ({b.label(partner).op})"
            return
    if set(a.outputs) & {x} and set(b.outputs) & {y}:
        yield "both are results"
