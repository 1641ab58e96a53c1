"""Causes in the optimizer's update: whether it ran, which one, and what it updated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyrt.execution.why.causes import Cause, Taken
from lazyrt.execution.why.edits import (
    at,
    connected,
    count,
    first_site,
    is_view,
    listed,
    place,
    readers_of,
    text_of,
)
from lazyrt.execution.why.gradients import (
    PART_FIX,
    site_of,
    take_gradients,
    without_gradients,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from lazyrt.execution.why.edits import Edits, Place
    from lazyrt.ir.snapshot import Snapshot, Vertex
    from lazyrt.observe.events import Site

_BESIDE_FIX = (
    "nothing to do where both come back: with and without the update is one graph each"
)
WRITTEN_FIX = (
    "nothing to do where both come back: with and without is one graph each; or write to them in "
    "every step, or in a step of its own (`with lazyrt.step():`)"
)
_STALE_FIX = (
    "; `parameter.grad = None` where it is frozen, as `zero_grad()` leaves what the optimizer does "
    "not hold"
)
_OTHER_FIX = "make the optimizer once, before the loop; each one costs a compile"
_MOST = 0.5
OF_OPTIMIZERS = ("aten._foreach", "aten._fused")
OPTIONS_FIX = (
    "options of the optimizer, such as weight_decay, momentum or amsgrad, choose what it computes: "
    "set them before the loop; each choice costs a compile"
)


def updates(edits: Edits) -> list[Cause]:
    """Return whether the update ran on one side only, by another optimizer, or in part."""
    before, now = states_of(edits.a), states_of(edits.b)
    for old, new, other, is_gain in (
        (before, now, edits.b, False),
        (now, before, edits.a, True),
    ):
        # Those of other modules have their own cause, where modules ran.
        known = _parameters(other) | other.modules
        lost = [
            name
            for name in old
            if name not in new and (owner_of(name) in known or _is_update_alone(edits))
        ]
        if not lost:
            continue
        exchanged = _exchanged(edits, lost, [*new], is_gain=is_gain)
        found = exchanged or _update(edits, lost, has_others=bool(new), is_gain=is_gain)
        return found + _without_state(edits, besides={*before, *now})
    if before or now:
        return _without_state(edits, besides={*before, *now})
    return _without_state(edits) or without_gradients(edits)


def _is_update_alone(edits: Edits) -> bool:
    """Return whether the optimizer has a step of its own, in which no module runs."""
    return not any(v.scope for side in (edits.a, edits.b) for v in side.vertices)


def _without_state(edits: Edits, besides: Collection[str] = ()) -> list[Cause]:
    """Return whether an optimizer without state updates other parameters than before.

    Args:
        edits: What is left of the difference.
        besides: State of an optimizer: what it trains is none of these parameters, nor is what
            has gradients.
    """
    before, now = written(edits.a), written(edits.b)
    if besides:
        trained = set(map(owner_of, besides)) | _trained(edits.a) | _trained(edits.b)
        before, now = (
            {name: None for name in names if name not in trained}
            for names in (before, now)
        )
    for old, new, snapshot, other, is_gain in (
        (before, now, edits.a, edits.b, False),
        (now, before, edits.b, edits.a, True),
    ):
        known = _parameters(other) | other.modules
        made = {n.text for n in other.root_names.values() if n.in_module} - set(new)
        lost = [name for name in old if name not in {*new, *made} and name in known]
        site = site_of(snapshot, lost)
        if not lost or site is None or not _is_left(edits, lost, is_gain=is_gain):
            continue
        taken = take_states(edits, lost, [f"{name}.grad" for name in lost])
        if not sum(taken):
            continue
        if new:
            more = take_gradients(edits, lost, place(site), is_gain=is_gain)
            taken = Taken(*map(sum, zip(taken, more, strict=True)))
            trains = not _trained(snapshot).isdisjoint(lost)
            return [_in_part(edits, lost, site, taken, is_gain=is_gain, trains=trains)]
        what = f"{count(len(lost), 'parameter')} ({listed(lost)})"
        return [
            Cause(
                kind="update",
                text=f"the update{at(site)} {_ran(edits, is_gain=is_gain)}: {what}",
                fix=_BESIDE_FIX,
                variable=lost[0],
                now=site if is_gain else None,
                before=None if is_gain else site,
                taken=taken,
            )
        ]
    return []


def _is_left(edits: Edits, names: list[str], *, is_gain: bool) -> bool:
    """Return whether what gives some parameters anew still wants a cause: a cut may be one."""
    snapshot = edits.b if is_gain else edits.a
    left = edits.added if is_gain else edits.removed
    left = left | ({*edits.changed} if is_gain else {*edits.changed.values()})
    return any(
        name.text in names and snapshot.roots[k][0] in left
        for k, name in snapshot.root_names.items()
    )


def _ran(edits: Edits, *, is_gain: bool) -> str:
    if is_gain:
        return f"runs in this step and did not in {edits.before.name}"
    return f"ran in {edits.before.name} and does not run in this step"


def written(snapshot: Snapshot) -> dict[str, None]:
    """Return the names of the parameters that a graph reads and gives anew."""
    read = {name.text for name in snapshot.leaf_names.values()}
    names = snapshot.root_names.values()
    return dict.fromkeys(
        n.text for n in names if n.holder == "module" and n.text in read
    )


def only_updated(snapshot: Snapshot) -> set[str]:
    """Return the parameters that nothing reads but the line that updates them."""
    names = written(snapshot)
    lines = {
        snapshot.root_names[k].text: place(snapshot.vertices[vertex].site)
        for k, (vertex, _) in enumerate(snapshot.roots)
        if k in snapshot.root_names
    }
    users = snapshot.users()
    return {
        name.text
        for leaf, name in snapshot.leaf_names.items()
        if name.text in names
        and all(
            place(snapshot.vertices[user].site) == lines[name.text]
            and not snapshot.vertices[user].scope
            for user, _ in users[leaf]
        )
    }


def is_of_update(edits: Edits) -> bool:
    """Return whether all that is left was recorded by an optimizer: on the lines that update."""
    left = [edits.b.vertices[k] for k in (*edits.added, *edits.changed)]
    left += [edits.a.vertices[k] for k in edits.removed]
    ops = [vertex for vertex in left if not vertex.is_leaf]
    lines = _update_lines(edits.a) | _update_lines(edits.b)
    keeps_state = bool(states_of(edits.a) or states_of(edits.b))
    return bool(ops) and all(
        place(vertex.site) in lines
        and not (vertex.scope or vertex.backward)
        and (keeps_state or is_of_optimizer(vertex))
        for vertex in ops
    )


def _update_lines(snapshot: Snapshot) -> set[Place | None]:
    """Return the lines that give parameters, or what an optimizer keeps of them."""
    return {
        place(snapshot.vertices[snapshot.roots[k][0]].site)
        for k, name in snapshot.root_names.items()
        if name.holder in {"module", "optimizer"}
    }


def is_of_optimizer(vertex: Vertex) -> bool:
    """Return whether an op takes many tensors at once, as optimizers do."""
    return vertex.op.startswith(OF_OPTIMIZERS)


def _trained(snapshot: Snapshot) -> set[str]:
    """Return the parameters whose gradients a graph reads or gives."""
    names = (*snapshot.leaf_names.values(), *snapshot.root_names.values())
    return {owner_of(name.text) for name in names if name.holder == "gradient"}


def _in_part(
    edits: Edits,
    owners: list[str],
    site: Site,
    taken: Taken,
    *,
    is_gain: bool,
    trains: bool = True,
) -> Cause:
    more = "more" if is_gain else "fewer"
    verb = "is" if len(owners) == 1 else "are"
    text = (
        f"{count(len(owners), 'parameter')} {more} {verb} updated{at(site)}: "
        f"{listed(owners)}"
    )
    fix = PART_FIX if trains else WRITTEN_FIX
    left = edits.added & stale_gradients(edits.b)
    if left:
        readers = [edits.b.vertices[k] for k in readers_of(edits.b, sorted(left))]
        step = max(edits.b.origins[leaf].step for leaf in left)
        noun = "a gradient" if len(left) == 1 else f"{len(left)} gradients"
        text += f"; {noun} that step {step} computed of {'it' if len(owners) == 1 else 'them'} "
        text += (
            f"{'is' if len(left) == 1 else 'are'} still read{at(first_site(readers))}"
        )
        fix += _STALE_FIX
    more_taken = edits.take(added=left)
    return Cause(
        kind="update",
        text=text,
        fix=fix,
        variable=owners[0],
        now=site,
        before=site,
        taken=Taken(*map(sum, zip(taken, more_taken, strict=True))),
    )


def stale_gradients(snapshot: Snapshot) -> set[int]:
    """Return the inputs that are gradients of parameters that a step updates no longer.

    Backward adds nothing to them. A step that gathers gradients for a later one updates nothing,
    so it has none.
    """
    owners = {*written(snapshot), *map(owner_of, states_of(snapshot))}
    if not owners:
        return set()
    called = {
        leaf: origin.name or text_of(snapshot.leaf_names.get(leaf))
        for leaf, origin in snapshot.origins.items()
    }
    found = {
        leaf
        for leaf, name in called.items()
        if name.endswith(".grad") and owner_of(name) not in owners
    }
    added_to = {
        operand
        for vertex in (snapshot.vertices if found else ())
        if vertex.backward
        for operand, _ in vertex.operands
    }
    return found - added_to


def take_updates_of(edits: Edits, paths: Iterable[str]) -> Taken:
    """Take out gradients and updates of parameters that one side lacks, by module or by name."""
    lacking = set(paths)
    starts = tuple(f"{path}." for path in lacking)
    names = [
        name.text
        for side in (edits.a, edits.b)
        for name in (*side.leaf_names.values(), *side.root_names.values())
        if name.holder in {"optimizer", "gradient"} and name.text.startswith(starts)
    ]
    # An optimizer without state leaves the parameters themselves as results.
    names += [
        name.text
        for side in (edits.a, edits.b)
        for name in side.root_names.values()
        if name.in_module and (name.text in lacking or name.text.startswith(starts))
    ]
    return take_states(edits, names, gradients_of(names)) if names else Taken()


def _update(
    edits: Edits, lost: list[str], *, has_others: bool, is_gain: bool
) -> list[Cause]:
    snapshot, other = (edits.b, edits.a) if is_gain else (edits.a, edits.b)
    site = site_of(snapshot, lost)
    if site is None:
        return []
    runs_on_both = any(place(v.site) == place(site) for v in other.vertices)
    with_gradients = runs_on_both and has_others
    taken = take_states(edits, lost, gradients_of(lost) if with_gradients else ())
    if not sum(taken):  # a cut has taken it away
        return []
    if with_gradients:
        trained = dict.fromkeys(map(owner_of, lost))
        more = take_gradients(edits, trained, place(site), is_gain=is_gain)
        taken = Taken(*map(sum, zip(taken, more, strict=True)))
    line = at(site)
    state = f"{count(len(lost), 'tensor')} of its state ({listed(lost)})"
    if not runs_on_both:
        text = f"the optimizer's update{line} {_ran(edits, is_gain=is_gain)}: {state}"
        fix = _BESIDE_FIX
    elif not has_others and _is_option(lost):
        keeps = "keeps" if is_gain else "no longer keeps"
        owners = list(dict.fromkeys(map(owner_of, lost)))
        text = (
            f"the optimizer{line} {keeps} {kinds_of(lost)} of each of "
            f"{count(len(owners), 'parameter')} ({listed(owners)})"
            + (", where it kept nothing" if is_gain else "")
        )
        fix = OPTIONS_FIX
    elif not has_others:
        text = f"another optimizer updates the parameters{line}: " + (
            f"it has {state}" if is_gain else f"{state} are not read any more"
        )
        fix = _OTHER_FIX
    else:
        owners = list(dict.fromkeys(map(owner_of, lost)))
        part = _in_part(edits, owners, site, taken, is_gain=is_gain)
        text, fix, taken = part.text, part.fix, part.taken
    return [
        Cause(
            kind="update",
            text=text,
            fix=fix,
            variable=lost[0],
            now=site if is_gain or runs_on_both else None,
            before=None if is_gain and not runs_on_both else site,
            taken=taken,
        )
    ]


def _exchanged(
    edits: Edits, lost: list[str], others: list[str], *, is_gain: bool
) -> list[Cause]:
    """Return whether the same parameters have other state: another optimizer, or an option of it.

    Args:
        edits: What is left of the difference.
        lost: State that one side alone has: of this graph if `is_gain`, else of the one before.
        others: All state of the other side.
        is_gain: See `lost`.
    """
    owners = dict.fromkeys(map(owner_of, lost))
    old = set(states_of(edits.b if is_gain else edits.a))
    instead = [name for name in others if name not in old and owner_of(name) in owners]
    # Equal state, as of the two biases of an LSTM, is one result with one name.
    shared = len(owners.keys() & set(map(owner_of, others)))
    if shared < len(owners) * (_MOST if instead else 1):
        return []
    snapshot, other = (edits.b, edits.a) if is_gain else (edits.a, edits.b)
    before, now = site_of(other, others), site_of(snapshot, lost)
    if not is_gain:
        before, now = now, before
    names = [*lost, *instead]
    taken = take_states(edits, names, gradients_of(names))
    if now is None or not sum(taken):
        return []
    of_each = f"of each of {count(len(owners), 'parameter')} ({listed([*owners])})"
    if instead:
        text = (
            f"another optimizer updates the parameters{at(now)}: it keeps "
            f"{kinds_of(instead)} {of_each}, the one of {edits.before.name} kept {kinds_of(lost)}"
        )
        fix = _OTHER_FIX
    else:
        keeps = (
            f"keeps {kinds_of(lost)}, too,"
            if is_gain
            else f"no longer keeps {kinds_of(lost)}"
        )
        text = f"the optimizer{at(now)} {keeps} {of_each}"
        fix = OPTIONS_FIX
    return [
        Cause(
            kind="update",
            text=text,
            fix=fix,
            variable=lost[0],
            now=now,
            before=before,
            taken=taken,
        )
    ]


def _is_option(states: Iterable[str]) -> bool:
    """Return whether an optimizer keeps states or nothing as one option of it says: SGD's momentum."""
    return all(name.endswith(".momentum_buffer") for name in states)


def kinds_of(names: Iterable[str]) -> str:
    """Return what states are called, without the parameters that they belong to."""
    return listed(list(dict.fromkeys(name.rpartition(".")[2] for name in names)))


def states_of(snapshot: Snapshot) -> dict[str, None]:
    """Return the names of the optimizer's state that a graph reads or writes."""
    names = (*snapshot.leaf_names.values(), *snapshot.root_names.values())
    return dict.fromkeys(name.text for name in names if name.holder == "optimizer")


def _parameters(snapshot: Snapshot) -> set[str]:
    names = (*snapshot.leaf_names.values(), *snapshot.root_names.values())
    return {name.text for name in names if name.holder not in {"optimizer", "gradient"}}


def owner_of(state: str) -> str:
    """Return the parameter whose state it is."""
    return state.rpartition(".")[0]


def gradients_of(states: Iterable[str]) -> set[str]:
    """Return the names of the gradients of the parameters that states belong to."""
    return {f"{owner_of(each)}.grad" for each in states if not each.endswith(".grad")}


def take_states(edits: Edits, states: list[str], gradients: Iterable[str]) -> Taken:
    """Take out the lines that update these states, and the gradients with these names."""
    names = {*states, *gradients}
    states = [name for name in states if not name.endswith(".grad")]
    places = {
        place(side.vertices[side.roots[k][0]].site)
        for side in (edits.a, edits.b)
        for k, name in side.root_names.items()
        if name.text in states
    } - {None}
    added = _region(edits.b, edits.added, names, places)
    removed = _region(edits.a, edits.removed, names, places)
    changed = [k for k in edits.changed if place(edits.b.vertices[k].site) in places]
    edits.new_roots = _others(edits.b, edits.new_roots, names, places)
    edits.gone_roots = _others(edits.a, edits.gone_roots, names, places)
    return edits.take(added=added, removed=removed, changed=changed)


def _others(
    snapshot: Snapshot, roots: list[int], names: set[str], places: set[Place | None]
) -> list[int]:
    """Return the roots that have none of the names and stand on none of the lines."""
    return [
        k
        for k in roots
        if not (k in snapshot.root_names and snapshot.root_names[k].text in names)
        and place(snapshot.vertices[snapshot.roots[k][0]].site) not in places
    ]


def _region(
    snapshot: Snapshot, free: set[int], names: set[str], places: set[Place | None]
) -> set[int]:
    """Return the free vertices of some lines, what only they read, and named gradients."""
    found = {k for k in free if place(snapshot.vertices[k].site) in places}
    gradients = [
        vertex
        for k, (vertex, _) in enumerate(snapshot.roots)
        if k in snapshot.root_names and snapshot.root_names[k].text in names
    ]
    found |= connected(
        snapshot, gradients, {k for k in free if snapshot.vertices[k].backward}
    )
    users = snapshot.users()
    # Later ones read earlier ones: a gradient is turned before it is read.
    for k in sorted(free, reverse=True):
        vertex = snapshot.vertices[k]
        if (vertex.is_leaf or is_view(vertex)) and all(
            user in found or place(snapshot.vertices[user].site) in places
            for user, _ in users[k]
        ):
            found.add(k)
    return found
