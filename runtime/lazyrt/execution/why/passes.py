"""A backward pass, with the update that follows it, that one of two steps at one place lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyrt.execution.why.boundaries import differs
from lazyrt.execution.why.causes import Cause, Taken
from lazyrt.execution.why.edits import (
    at,
    count,
    downstream,
    exclusive,
    first_site,
    is_kept,
    listed,
)
from lazyrt.execution.why.gradients import site_of
from lazyrt.execution.why.updates import owner_of, states_of, take_states, written

if TYPE_CHECKING:
    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Snapshot

_FIX = (
    "nothing to do where both come back: with and without gradients is one graph each; "
    "`torch.no_grad()`, `requires_grad` and a loss that is not asked for its gradients choose"
)


def backward_pass(edits: Edits) -> list[Cause]:
    """Return that one of two steps that end at one place computes no gradients."""
    old, new = edits.before.key, edits.now.key
    sides = [any(v.backward for v in side.vertices) for side in (edits.a, edits.b)]
    if sides[0] == sides[1] or differs(old.ended_by, new.ended_by):
        return []
    is_gain = sides[1]
    snapshot, free = (edits.b, edits.added) if is_gain else (edits.a, edits.removed)
    backward = {k for k in free if snapshot.vertices[k].backward}
    if len(backward) < sum(v.backward for v in snapshot.vertices):
        return []
    if backward <= _of_kept_results(edits, free, is_gain=is_gain):
        return []
    site = first_site(snapshot.vertices[k] for k in sorted(backward))
    states = [*states_of(snapshot)]
    owners = list(dict.fromkeys(map(owner_of, states))) or [*written(snapshot)]
    updated = site_of(snapshot, states or owners)
    below = _with_what_only_they_read(
        snapshot, downstream(snapshot, backward, free), free
    )
    taken = edits.take(**{"added" if is_gain else "removed": below})
    taken = Taken(*map(sum, zip(taken, take_states(edits, states, ()), strict=True)))
    many = updated is not None
    what = f"the backward pass{at(site)} ({count(len(backward), 'operation')})"
    if many:
        what += f" and the optimizer's update{at(updated)} of "
        what += f"{count(len(owners), 'parameter')} ({listed(owners)})"
    before = edits.before.name
    text = (
        f"{what} {'run' if many else 'runs'} in this step and did not in {before}"
        if is_gain
        else f"{what} ran in {before} and {'do' if many else 'does'} not run in this step"
    )
    return [
        Cause(
            kind="update",
            text=text,
            fix=_FIX,
            now=site if is_gain else None,
            before=None if is_gain else site,
            taken=taken,
        )
    ]


def _of_kept_results(edits: Edits, free: set[int], *, is_gain: bool) -> set[int]:
    """Return what only results that the program keeps need, such as a norm that it logs."""
    snapshot = edits.b if is_gain else edits.a
    roots = edits.new_roots if is_gain else edits.gone_roots
    kept = [k for k in roots if is_kept(snapshot.root_names.get(k))]
    return exclusive(snapshot, kept, free)[0] if kept else set()


def _with_what_only_they_read(
    snapshot: Snapshot, vertices: set[int], free: set[int]
) -> set[int]:
    """Return vertices with the free ones that nothing else reads, such as the first gradient."""
    users, found = snapshot.users(), set(vertices)
    for k in sorted(free - found, reverse=True):
        if users[k] and all(user in found for user, _ in users[k]):
            found.add(k)
    return found
