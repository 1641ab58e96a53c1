"""Operations that both graphs have, and that read something else now."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lazyrt.execution.why.edits import at, is_view

if TYPE_CHECKING:
    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Snapshot
    from lazyrt.observe.events import Site


class Rewired(NamedTuple):
    """An operation that reads another value of those that both graphs have.

    Attributes:
        text: What it reads now, and what it read before.
        now, before: Its lines.
    """

    text: str
    now: Site | None
    before: Site | None


def rewired(edits: Edits) -> Rewired | None:
    """Return the first operation of the forward pass that reads another value; None if none does.

    What merely follows from operations that came or went is no such one.
    """
    match, a, b = edits.match, edits.a, edits.b
    for partner, k, slot in sorted(match.rewired, key=lambda found: found[1]):
        vertex, old = b.vertices[k], a.vertices[partner]
        if vertex.backward or is_view(vertex):
            continue
        if len(vertex.operands) != len(old.operands):
            continue
        reads, read = vertex.operands[slot][0], old.operands[slot][0]
        if match.to_before[reads] < 0 or match.to_now[read] < 0:
            continue
        return Rewired(
            f"{vertex.op}{at(vertex.site)} reads {_called(b, reads)} where it read "
            f"{_called(a, read)}",
            vertex.site,
            old.site,
        )
    return None


def _called(snapshot: Snapshot, k: int) -> str:
    vertex = snapshot.vertices[k]
    names = [snapshot.leaf_names.get(k)]
    names += [
        snapshot.root_names.get(n) for n, r in enumerate(snapshot.roots) if r[0] == k
    ]
    name = next((name.text for name in names if name is not None), "")
    if name:
        return f"`{name}`"
    return (
        f"an input {vertex.types[0]}"
        if vertex.is_leaf
        else f"the {vertex.op}{at(vertex.site)}"
    )
