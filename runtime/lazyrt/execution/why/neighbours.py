"""What follows beside modules and parameters that came or went: lists, and linear layers in another form."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from lazyrt.execution.why.edits import downstream, is_view

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Snapshot

_PRODUCTS = frozenset(("aten.mm.default", "aten.addmm.default", "aten.bmm.default"))
# What torch makes of a linear layer, by the strides and dimensions of its input.
_OF_LINEAR = _PRODUCTS | {
    "aten.add.Tensor", "aten.sum.dim_IntList", "aten.transpose.int", "aten.expand.default",
}  # fmt: skip


def longer_lists(edits: Edits) -> set[int]:
    """Return the changed ops that join more or fewer tensors than before, with what follows."""
    joins = [
        k
        for k, partner in edits.changed.items()
        if len(edits.b.vertices[k].operands) != len(edits.a.vertices[partner].operands)
        and edits.b.vertices[k].op.startswith(
            ("aten._foreach", "aten.stack", "aten.cat")
        )
    ]
    return downstream(edits.b, joins, set(edits.changed)) if joins else set()


def scopes_of(edits: Edits, paths: Iterable[str]) -> set[str]:
    """Return the scopes in which modules record, by what the user calls these."""
    wanted = set(paths)
    scopes = {v.scope for side in (edits.a, edits.b) for v in side.vertices} - {""}
    return {
        scope
        for scope in scopes
        if any(path == scope or path.endswith(f".{scope}") for path in wanted)
    }


def linear_forms(edits: Edits) -> tuple[set[int], set[int], set[int]]:
    """Return what is left of linear layers that both graphs have: added, removed and changed.

    Torch multiplies an input of three dimensions in another way where it is not contiguous.
    """
    sides = (edits.b, edits.added), (edits.a, edits.removed)
    ours, theirs = (_by_scope(side, free) for side, free in sides)
    products = _products(edits.b), _products(edits.a)
    stay = {
        scope
        for scope in ours.keys() | theirs.keys()
        if products[0][scope] == products[1][scope] > 0
    }
    # A pair across two modules is two forms of two layers.
    crossed = {
        k
        for k, partner in edits.changed.items()
        if edits.b.vertices[k].scope != edits.a.vertices[partner].scope
        and not stay.isdisjoint(
            (edits.b.vertices[k].scope, edits.a.vertices[partner].scope)
        )
        and _is_of_linear(edits.b, k)
    }
    came, gone = (
        set[int]().union(*(found[scope] for scope in stay & found.keys()))
        for found in (ours, theirs)
    )
    return came, gone, crossed


def _by_scope(snapshot: Snapshot, free: set[int]) -> dict[str, set[int]]:
    """Return the free vertices of each scope in which all of them are of linear layers."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for k in free:
        if scope := snapshot.vertices[k].scope:
            found[scope].add(k)
    return {
        scope: mine
        for scope, mine in found.items()
        if all(_is_of_linear(snapshot, k) for k in mine)
    }


def _is_of_linear(snapshot: Snapshot, k: int) -> bool:
    vertex = snapshot.vertices[k]
    return vertex.op in _OF_LINEAR or is_view(vertex)


def _products(snapshot: Snapshot) -> Counter[str]:
    """Return how many products of the forward pass each module has recorded."""
    found = (v for v in snapshot.vertices if v.op in _PRODUCTS and not v.backward)
    return Counter(vertex.scope for vertex in found)
