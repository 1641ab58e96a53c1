"""Gradients that one side alone computes: parameters that are frozen, or trained again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyrt.execution.why.causes import Cause, Taken
from lazyrt.execution.why.edits import (
    at,
    count,
    first_site,
    is_view,
    listed,
    lists,
    place,
    readers_of,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazyrt.execution.why.edits import Edits, Place
    from lazyrt.ir.snapshot import Snapshot
    from lazyrt.observe.events import Site

# What clips gradients takes all of them at once.
_LISTS = "aten._foreach"
PART_FIX = "choose the parameters that are trained before the loop; each choice costs a compile"


def without_gradients(edits: Edits) -> list[Cause]:
    """Return whether a graph that updates nothing computes gradients of other parameters."""
    sides = [
        dict.fromkeys(
            n.text for n in each.root_names.values() if n.holder == "gradient"
        )
        for each in (edits.a, edits.b)
    ]
    for is_gain in (False, True):
        mine, others = sides[is_gain], sides[not is_gain]
        snapshot, other = (edits.b, edits.a) if is_gain else (edits.a, edits.b)
        lost = [name for name in mine if name not in others]
        owners = [name.removesuffix(".grad") for name in lost]
        if not lost or not others or not other.modules.issuperset(owners):
            continue
        read = {name.text for name in other.leaf_names.values()}
        if read.isdisjoint(owners):  # modules that are not called have their own cause
            continue
        site = site_of(snapshot, lost)
        taken = take_gradients(edits, owners, None, is_gain=is_gain)
        if not sum(taken):
            continue
        roots = edits.new_roots if is_gain else edits.gone_roots
        left = [k for k in roots if text_of(snapshot.root_names.get(k)) not in lost]
        if is_gain:
            edits.new_roots = left
        else:
            edits.gone_roots = left
        return [
            Cause(
                kind="update",
                text=f"gradients of {count(len(owners), 'parameter')} "
                f"{'more' if is_gain else 'fewer'} are computed{at(site)}: {listed(owners)}",
                fix=PART_FIX,
                variable=owners[0],
                now=site if is_gain else None,
                before=None if is_gain else site,
                taken=taken,
            )
        ]
    return []


def take_gradients(
    edits: Edits, owners: Iterable[str], update: Place | None, *, is_gain: bool
) -> Taken:
    """Take out how the gradients of some parameters are computed, and what reads them in lists."""
    snapshot, free = (edits.b, edits.added) if is_gain else (edits.a, edits.removed)
    to_before = edits.match.to_before
    joins = {
        k if is_gain else to_before[k]
        for k, partner in edits.changed.items()
        if len(edits.b.vertices[k].operands) != len(edits.a.vertices[partner].operands)
    }
    gradients = {f"{owner}.grad" for owner in owners}
    other, partners = (edits.a, edits.match.to_now) if is_gain else (edits.b, to_before)
    # What is left of them from an earlier step stands in the same lists.
    joins |= {partners[k] for k in readers_of(other, _called(other, gradients))}
    kept = {
        vertex
        for k, (vertex, _) in enumerate(snapshot.roots)
        if text_of(snapshot.root_names.get(k)) not in gradients
    }
    users = snapshot.users()
    found: set[int] = set()
    for k in sorted(free - kept, reverse=True):
        vertex = snapshot.vertices[k]
        if (vertex.backward or is_view(vertex)) and all(
            user in found
            or user in joins
            or (user in free and snapshot.vertices[user].op.startswith(_LISTS))
            or place(snapshot.vertices[user].site) == update
            for user, _ in users[k]
        ):
            found.add(k)
    asked = {k for k in edits.changed if gives_other_gradients(edits, k)}
    came, gone = (found, set[int]()) if is_gain else (set[int](), found)
    changed = lists(edits, came, gone) | asked
    # Without a gradient of its weight, torch computes a linear layer in another way.
    scopes = {name.rpartition(".")[0] for name in owners}
    came |= _of_modules(edits.b, edits.added, scopes)
    gone |= _of_modules(edits.a, edits.removed, scopes)
    return edits.take(came, gone, changed | _beside(edits))


def _called(snapshot: Snapshot, names: set[str]) -> list[int]:
    """Return the inputs that have one of some names, or had it where they were computed."""
    found = {leaf for leaf, name in snapshot.leaf_names.items() if name.text in names}
    found |= {leaf for leaf, o in snapshot.origins.items() if o.name in names}
    return sorted(found)


def _of_modules(snapshot: Snapshot, free: set[int], paths: set[str]) -> set[int]:
    """Return the free vertices that modules have recorded, by what the user calls these."""
    scopes = {vertex.scope for vertex in snapshot.vertices} - {""}
    mine = {
        scope
        for scope in scopes
        if any(path == scope or path.endswith(f".{scope}") for path in paths)
    }
    return {k for k in free if snapshot.vertices[k].scope in mine}


def _beside(edits: Edits) -> set[int]:
    """Return the changed views next to what one side alone has."""
    to_before, to_now = edits.match.to_before, edits.match.to_now
    users = edits.b.users(), edits.a.users()
    found = set()
    for k, partner in edits.changed.items():
        if not is_view(edits.b.vertices[k]):
            continue
        ours = [o for o, _ in edits.b.vertices[k].operands] + [
            u for u, _ in users[0][k]
        ]
        theirs = [o for o, _ in edits.a.vertices[partner].operands]
        theirs += [u for u, _ in users[1][partner]]
        if any(to_before[n] < 0 for n in ours) or any(to_now[n] < 0 for n in theirs):
            found.add(k)
    return found


def gives_other_gradients(edits: Edits, k: int) -> bool:
    """Return whether an op of backward gives the same, but for gradients that nobody asks for."""
    now, before = edits.b.vertices[k], edits.a.vertices[edits.match.to_before[k]]
    return (
        now.backward
        and len(now.types) == len(before.types)
        and all(
            new == old or "none" in {new, old}
            for new, old in zip(now.types, before.types, strict=True)
        )
    )


def site_of(snapshot: Snapshot, names: Iterable[str]) -> Site | None:
    """Return the line that computes the first of these states."""
    wanted = set(names)
    return first_site(
        snapshot.vertices[snapshot.roots[k][0]]
        for k, name in snapshot.root_names.items()
        if name.text in wanted
    )
