"""Random numbers that are drawn on one side only, and those that backward draws again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyrt.execution.why.causes import Cause
from lazyrt.execution.why.edits import (
    at,
    connected,
    count,
    first_site,
    listed,
    place,
    with_leaves,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Snapshot


def random_numbers(edits: Edits) -> list[Cause]:
    """Return which random ops one side has and the other has not."""
    more = [k for k in edits.added if edits.b.vertices[k].op in edits.b.random]
    fewer = [k for k in edits.removed if edits.a.vertices[k].op in edits.a.random]
    if len(more) == len(fewer):
        return []
    vertices = [edits.b.vertices[k] for k in sorted(more)]
    old = [edits.a.vertices[k] for k in sorted(fewer)]
    change = f"{count(len(more), 'random op')} more" if more else ""
    change += " and " if more and fewer else ""
    change += f"{count(len(fewer), 'random op')} fewer" if fewer else ""
    first = [*vertices, *old][0]
    return [
        Cause(
            kind="rng",
            text=f"the step draws random numbers another number of times: {change}, "
            f"{first.op}{at(first.site)}",
            fix="draw in every step or in none, or before the step begins",
            now=first_site(vertices),
            before=first_site(old),
            taken=edits.take(
                added=_on_lines_of(edits.b, more, edits.added),
                removed=_on_lines_of(edits.a, fewer, edits.removed),
            ),
        )
    ]


def recomputed(edits: Edits) -> list[Cause]:
    """Return whether backward computes forward ops again, as gradient checkpointing does.

    Without random numbers they are the nodes of the forward pass, and the graph is the same.
    """
    for snapshot, free, is_gain in (
        (edits.b, edits.added, True),
        (edits.a, edits.removed, False),
    ):
        again = sorted(k for k in free if _is_drawn_in_backward(snapshot, k))
        if not again:
            continue
        vertices = [snapshot.vertices[k] for k in again]
        backward = {k for k in free if snapshot.vertices[k].backward}
        mine = with_leaves(snapshot, connected(snapshot, again, backward), free)
        taken = edits.take(added=mine) if is_gain else edits.take(removed=mine)
        site, scopes = first_site(vertices), [v.scope for v in vertices if v.scope]
        where = f" (in module {listed(scopes)})" if scopes else ""
        verb = "computes forward ops again" if is_gain else "computes no op again"
        return [
            Cause(
                kind="code_path",
                text=f"backward {verb}, as {'with' if is_gain else 'without'} gradient checkpointing: "
                f"{count(len(again), 'random op')} {'more' if is_gain else 'fewer'}, "
                f"{vertices[0].op}{at(site)}{where}",
                fix="checkpoint the same modules in every step; with and without it is one graph each",
                now=site if is_gain else None,
                before=None if is_gain else site,
                taken=taken,
            )
        ]
    return []


def _is_drawn_in_backward(snapshot: Snapshot, k: int) -> bool:
    vertex = snapshot.vertices[k]
    return vertex.backward and vertex.op in snapshot.random


def _on_lines_of(
    snapshot: Snapshot, vertices: Iterable[int], free: set[int]
) -> set[int]:
    """Return what is connected with vertices and stands on their lines, backward with it."""
    lines = {place(snapshot.vertices[k].site) for k in vertices}
    near = connected(snapshot, vertices, free)
    mine = [
        k
        for k in near
        if snapshot.vertices[k].backward or place(snapshot.vertices[k].site) in lines
    ]
    return with_leaves(snapshot, mine, near)
