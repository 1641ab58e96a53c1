"""Whether a graph is the same part of the program as one before, whatever else differs."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING, Any

from lazyrt.execution.why.boundaries import differs
from lazyrt.execution.why.edits import place

if TYPE_CHECKING:
    from lazyrt.execution.census import Census, CompiledGraph
    from lazyrt.ir.snapshot import Vertex

# So many graphs are looked at in every detail.
_TRIED = 2


def has_a_like(now: CompiledGraph, census: Census) -> bool:
    """Return whether a graph before is the same part of the program, so that none has moved."""
    others = [other for other in census if other is not now]
    names = _parameters(now)
    if any(_is_same_work(now, other, names) for other in others):
        return True
    between = [
        other for other in others if other.labels is not None and _lie_alike(now, other)
    ]
    latest = heapq.nlargest(_TRIED, between, key=lambda other: other.last_step)
    return any(_is_same_part(now, other, census) for other in latest)


def _is_same_work(now: CompiledGraph, other: CompiledGraph, names: set[str]) -> bool:
    """Return whether two graphs have the very same ops.

    Equal layers of a model have the same ops, too. Their parameters have other names.
    """
    return (
        other.nodes == now.nodes
        and other.ops == now.ops
        and _parameters(other) == names
    )


def _lie_alike(one: CompiledGraph, other: CompiledGraph) -> bool:
    """Return whether two graphs end at one place, and begin at one boundary or on one line."""
    ends_alike = not differs(one.key.ended_by, other.key.ended_by)
    return ends_alike and begin_alike(one, other)


def begin_alike(one: CompiledGraph, other: CompiledGraph) -> bool:
    """Return whether two graphs begin at one boundary, whatever came in front, or on one line."""
    after, before = one.key.began_after, other.key.began_after
    return not differs(after, before) or place(one.lines[0]) == place(other.lines[0])


def _is_same_part(now: CompiledGraph, other: CompiledGraph, census: Census) -> bool:
    """Return whether a graph differs by nothing that the boundary at either end may account for.

    Where one mark of a loop is every boundary, one of its graphs has more or less of what those
    beside it have; what an earlier mark leaves is in a graph that is still to come.
    """
    lost = _read(other) - _read(now)
    mine, theirs = _spots(now), _spots(other)
    if lost or (theirs - mine).keys() & mine.keys():
        return False
    beside = [census.latest] if census.latest is not None else []
    for pair in census.successions():
        beside += pair if other in pair else ()
    moved = {*(mine - theirs), *(theirs - mine)}
    gained = _read(now) - _read(other)
    return not any(
        moved & _spots(one).keys() or gained & _read(one)
        for one in {*beside} - {now, other}
    )


def _read(record: CompiledGraph) -> set[str]:
    """Return what the user calls the inputs of a graph, state of an optimizer aside."""
    names = record.snapshot.leaf_names if record.snapshot is not None else {}
    return {
        name.text
        for name in names.values()
        if name.holder not in {"optimizer", "gradient"}
    }


def _spots(record: CompiledGraph) -> Counter[Any]:
    return Counter(spot_of(vertex) for vertex in nodes_of(record))


def _parameters(record: CompiledGraph) -> set[str]:
    names = record.snapshot.leaf_names if record.snapshot is not None else {}
    return {name.text for name in names.values() if name.in_module}


def nodes_of(record: CompiledGraph) -> list[Vertex]:
    """Return the vertices of a graph that are no inputs."""
    vertices = record.snapshot.vertices if record.snapshot is not None else ()
    return [vertex for vertex in vertices if not vertex.is_leaf]


def spot_of(vertex: Vertex) -> Any:
    """Return what tells ops of a program apart: op, module, pass and line."""
    return (vertex.op, vertex.scope, vertex.backward, place(vertex.site))
