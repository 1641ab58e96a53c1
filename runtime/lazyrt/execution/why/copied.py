"""Parameters that were given the data of others: a target network brought up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyrt.execution.why.causes import Cause
from lazyrt.execution.why.edits import (
    at,
    count,
    downstream,
    first_site,
    leaf_name,
    place,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Snapshot, Vertex

_FIX = (
    "end the step after the copy or the load (`lazyrt.mark_step()`), so that the next one begins "
    "with memory of its own"
)


def copied_parameters(edits: Edits) -> list[Cause]:
    """Return which parameters the step had just copied from others, and read as one with them.

    A copy is recorded like all else: until it has run, what is read of it is what it was made of.
    """
    pairs = {leaf: twin for leaf, twin in _twins(edits) if twin is not None}
    if not pairs:
        return []
    names = [leaf_name(edits.a, leaf) for leaf in pairs]
    sources = [leaf_name(edits.b, twin) for twin in pairs.values()]
    readers = [
        k for k in edits.added if _reads_any(edits.b.vertices[k], {*pairs.values()})
    ]
    gone = downstream(edits.a, pairs, edits.removed)
    came = downstream(edits.b, readers, edits.added)
    site = first_site(edits.b.vertices[k] for k in sorted(came))
    before = first_site(edits.a.vertices[k] for k in sorted(gone - set(pairs)))
    many = len(pairs) > 1
    more = f" and {count(len(pairs) - 1, 'more parameter')}" if many else ""
    return [
        Cause(
            kind="same_input",
            text=f"`{names[0]}`{more} had just been copied from `{sources[0]}`"
            f"{' and others' if len({*sources}) > 1 else ''}: this step{at(site)} reads "
            f"{'each pair' if many else 'both'} as one tensor, {edits.before.name} read two",
            fix=_FIX,
            variable=names[0],
            now=site,
            before=before,
            taken=edits.take(added=came, removed=gone),
        )
    ]


def _reads_any(vertex: Vertex, leaves: set[int]) -> bool:
    return any(operand in leaves for operand, _ in vertex.operands)


def _twins(edits: Edits) -> Iterator[tuple[int, int | None]]:
    """Yield each parameter that is there and is not read any more, with what is read instead."""
    a, b = edits.a, edits.b
    read = {name.text for name in b.leaf_names.values()}
    made = {name.text for name in b.root_names.values()}
    readers: dict[object, list[Vertex]] = {}
    for vertex in b.vertices:
        if not vertex.is_leaf:
            readers.setdefault(_spot(vertex), []).append(vertex)
    users = a.users()
    for leaf in sorted(edits.removed):
        name = a.leaf_names.get(leaf)
        if name is None or not name.in_module or name.text in read | made:
            continue
        if name.text not in b.modules:
            continue
        yield leaf, _instead(a, b, users[leaf], readers)


def _instead(
    a: Snapshot,
    b: Snapshot,
    users: list[tuple[int, int]],
    readers: dict[object, list[Vertex]],
) -> int | None:
    """Return the one parameter that is read where a leaf was, by the same ops on the same lines."""
    type_ = None
    found: set[int] = set()
    for user, slot in users:
        vertex = a.vertices[user]
        type_ = a.vertices[vertex.operands[slot][0]].types
        here = {
            each.operands[slot][0]
            for each in readers.get(_spot(vertex), [])
            if slot < len(each.operands)
        }
        if not here:
            return None
        found |= {k for k in here if b.vertices[k].types == type_}
    known = {
        k
        for k in found
        if k in b.leaf_names and b.leaf_names[k].in_module and b.vertices[k].is_leaf
    }
    there = {name.text for name in a.leaf_names.values()}
    known = {k for k in known if b.leaf_names[k].text in there}
    return known.pop() if len(known) == 1 else None


def _spot(vertex: Vertex) -> object:
    return (vertex.op, vertex.types, vertex.scope, place(vertex.site))
