"""What earlier cells of a notebook had left pending."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyrt.execution.why.causes import Cause
from lazyrt.execution.why.edits import (
    count,
    first_site,
)

if TYPE_CHECKING:
    from collections.abc import Container

    from lazyrt.execution.census import CompiledGraph
    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Snapshot


def left_by_cells(edits: Edits) -> list[Cause]:
    """Return that one of the graphs also ran what earlier cells of a notebook had left pending."""
    now, before = _of_earlier_cells(edits.now, edits.b), _of_earlier_cells(edits.before, edits.a)  # fmt: skip
    for is_gain in (True, False):
        snapshot = edits.b if is_gain else edits.a
        earlier, others = (now, before) if is_gain else (before, now)
        # Where the cells of both graphs go on with earlier ones' work, they are one program.
        kept = _read_by_others(snapshot, earlier) if others else set()
        free = edits.added if is_gain else edits.removed
        left = {k: earlier[k] for k in free if k in earlier and k not in kept}
        if left:
            return [_left(edits, left, is_gain=is_gain)]
    return []


def _of_earlier_cells(record: CompiledGraph, snapshot: Snapshot) -> dict[int, int]:
    """Return the operations that earlier cells than a step's own one recorded, with the cells."""
    ended = record.key.ended_by[1]
    own = record.key.cell or (ended.cell if ended is not None else None)
    if own is None:
        return {}
    return {
        k: vertex.cell
        for k, vertex in enumerate(snapshot.vertices)
        if vertex.cell is not None and vertex.cell < own
    }


def _read_by_others(snapshot: Snapshot, found: Container[int]) -> set[int]:
    """Return which of some operations the rest of a graph needs."""
    needed: set[int] = set()
    for k in range(len(snapshot.vertices) - 1, -1, -1):
        if k not in found or k in needed:
            needed.update(operand for operand, _ in snapshot.vertices[k].operands)
    return needed


def _left(edits: Edits, left: dict[int, int], *, is_gain: bool) -> Cause:
    snapshot = edits.b if is_gain else edits.a
    cells = sorted(set(left.values()))
    users = snapshot.users()
    free = edits.added if is_gain else edits.removed
    found = set(left)
    for k in sorted(free, reverse=True):  # what only the rest reads, the last first
        if users[k] and all(user in found for user, _ in users[k]):
            found.add(k)
    roots = {k for k, (vertex, _) in enumerate(snapshot.roots) if vertex in left}
    if is_gain:
        edits.new_roots = [k for k in edits.new_roots if k not in roots]
    else:
        edits.gone_roots = [k for k in edits.gone_roots if k not in roots]
    work = sum(not snapshot.vertices[k].is_leaf for k in found)
    named = f"cell{'s' if len(cells) > 1 else ''} {', '.join(map(str, cells[:4]))}"
    what = f"{count(work, 'operation')} that {named} left pending joined"
    site = first_site(snapshot.vertices[k] for k in sorted(left))
    return Cause(
        kind="missing_boundary",
        text=f"{what} this step's graph"
        if is_gain
        else f"{what} {edits.before.name}, and none joined this step's graph",
        fix="end the earlier cell with `lazyrt.mark_step()`, or read what it makes there: pending "
        "ops run with whichever step comes next",
        now=site if is_gain else None,
        before=None if is_gain else site,
        taken=edits.take(
            added=found if is_gain else (), removed=() if is_gain else found
        ),
    )
