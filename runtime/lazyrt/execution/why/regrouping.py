"""Tensors that are joined in other groups, as the buckets of gradients are."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from lazyrt.execution.why.causes import Cause
from lazyrt.execution.why.edits import (
    at,
    connected,
    downstream,
    first_site,
    is_view,
    readers_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Snapshot, Vertex


_CONCATENATIONS = ("aten.cat", "aten.stack")
_PARTS = ("aten.slice", "aten.split", "aten.narrow")


def regrouped(edits: Edits) -> list[Cause]:
    """Return whether the same tensors are joined in other groups, as gradient buckets are."""
    before = _groups(edits.a, edits.match.to_now)
    now = _groups(edits.b, range(len(edits.b.vertices)))
    members = [_in_one_group(side.values()) for side in (before, now)]
    common = members[0] & members[1]
    if len(common) < 2 or 2 * len(common) < max(map(len, members)):  # noqa: PLR2004
        return []
    parts_before = {frozenset(g) & common for g in before.values()} - {frozenset()}
    parts_now = {frozenset(g) & common for g in now.values()} - {frozenset()}
    if parts_before == parts_now:
        return []
    sizes = [
        sorted((len(g) for g in side.values()), reverse=True) for side in (before, now)
    ]
    moved = [
        k for k, group in now.items() if frozenset(group) & common not in parts_before
    ]
    gone = [
        k for k, group in before.items() if frozenset(group) & common not in parts_now
    ]
    site = first_site(edits.b.vertices[k] for k in moved or now)
    added = connected(edits.b, [*moved, *readers_of(edits.b, moved)], edits.added)
    # What takes the members out again, and turns them back.
    flow = downstream(edits.b, moved, edits.added | set(edits.changed))
    added |= {k for k in flow & edits.added if _is_taken_out(edits.b.vertices[k])}
    removed = connected(edits.a, [*gone, *readers_of(edits.a, gone)], edits.removed)
    changed = downstream(edits.b, moved or now, set(edits.changed))
    # Where each member lies in its group follows from the grouping.
    changed |= {k for k in edits.changed if edits.b.vertices[k].op.startswith(_PARTS)}
    return [
        Cause(
            kind="regrouped",
            text=f"the same tensors are joined in other groups{at(site)}: "
            f"{_resized(*sizes)}",
            fix="flush the buckets before the step ends, so that each step fills them alike",
            now=site,
            before=first_site(edits.a.vertices[k] for k in gone or before),
            taken=edits.take(added=added, removed=removed, changed=changed),
        )
    ]


def _is_taken_out(vertex: Vertex) -> bool:
    return is_view(vertex) or vertex.op.startswith(_PARTS)


def _in_one_group(groups: Iterable[list[int]]) -> set[int]:
    """Return what is joined once: what lies in two groups, as a loop's state does, is no part."""
    times = Counter(member for group in groups for member in set(group) if member >= 0)
    return {member for member, number in times.items() if number == 1}


def _resized(before: list[int], now: list[int]) -> str:
    """Return how the sizes of groups changed.

    Example:
        >>> _resized([3, 2], [4, 1])
        'sizes [3, 2] became [4, 1]'
        >>> _resized([3, 3], [3, 3])
        'sizes [3, 3] as before, with other members'
    """
    if before == now:
        return f"sizes {_sizes(now)} as before, with other members"
    return f"sizes {_sizes(before)} became {_sizes(now)}"


def _sizes(sizes: list[int]) -> str:
    shown = ", ".join(map(str, sizes[:6])) + (", ..." if len(sizes) > 6 else "")  # noqa: PLR2004
    return f"[{shown}]"


def _groups(snapshot: Snapshot, names: Any) -> dict[int, list[int]]:
    """Return the members of each concatenation, as vertices of `b`."""
    return {
        k: [names[_unshaped(snapshot, operand)] for operand, _ in vertex.operands]
        for k, vertex in enumerate(snapshot.vertices)
        if vertex.op.startswith(_CONCATENATIONS) and vertex.operands
    }


def _unshaped(snapshot: Snapshot, vertex: int) -> int:
    """Return what a chain of views shows: buckets join flattened tensors."""
    while True:
        found = snapshot.vertices[vertex]
        if not is_view(found) or len(found.operands) != 1:
            return vertex
        vertex = found.operands[0][0]
