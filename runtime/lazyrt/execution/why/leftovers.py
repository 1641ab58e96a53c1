"""What earlier cells of a notebook had left pending."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyrt.execution.why.causes import Cause
from lazyrt.execution.why.edits import (
    count,
    first_site,
)

if TYPE_CHECKING:
    from lazyrt.execution.why.edits import Edits
    from lazyrt.observe.events import Site


def left_by_cells(edits: Edits) -> list[Cause]:
    """Return that one of the graphs also ran what earlier cells of a notebook had left pending."""
    for is_gain in (True, False):
        record, snapshot = (edits.now, edits.b) if is_gain else (edits.before, edits.a)
        free = edits.added if is_gain else edits.removed
        ended = record.key.ended_by[1]
        own = record.key.cell or (ended.cell if ended is not None else None)
        left = {
            k: site.cell
            for k in free
            if (site := snapshot.vertices[k].site) is not None
            and _is_left_by(site, own)
        }
        # What the cell itself needs of it is an input of another name, and no rest.
        if not left or any(
            operand in left and k not in left and not _is_left_by(v.site, own)
            for k, v in enumerate(snapshot.vertices)
            for operand, _ in v.operands
        ):
            continue
        return [_left(edits, left, is_gain=is_gain)]
    return []


def _is_left_by(site: Site | None, own: int | None) -> bool:
    """Return whether a line of an earlier cell, in no function, recorded an op."""
    if site is None or own is None or site.cell is None:
        return False
    return site.cell < own and site.function.startswith(("<module>", "<cell"))


def _left(edits: Edits, left: dict[int, int | None], *, is_gain: bool) -> Cause:
    snapshot = edits.b if is_gain else edits.a
    cells = sorted({cell for cell in left.values() if cell is not None})
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
    what = f"what {named} had left pending: {count(work, 'operation')}"
    site = first_site(snapshot.vertices[k] for k in sorted(left))
    return Cause(
        kind="missing_boundary",
        text=f"this step also ran {what}"
        if is_gain
        else f"{edits.before.name} also ran {what}",
        fix="end a cell whose work is to run with `lazyrt.mark_step()`, or read what it makes: "
        "what is pending runs with whatever step comes next",
        now=site if is_gain else None,
        before=None if is_gain else site,
        taken=edits.take(
            added=found if is_gain else (), removed=() if is_gain else found
        ),
    )
