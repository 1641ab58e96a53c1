"""Modules that came, went, were made again, or were called on one side only."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from lazyrt.execution.why.causes import Cause, Taken
from lazyrt.execution.why.edits import (
    at,
    connected,
    count,
    first_site,
    is_kept,
    is_view,
    listed,
    lists,
    of_results,
    place,
    updated,
    with_leaves,
)
from lazyrt.execution.why.gradients import gives_other_gradients
from lazyrt.execution.why.neighbours import linear_forms, longer_lists, scopes_of
from lazyrt.execution.why.train_eval import is_mode
from lazyrt.execution.why.updates import (
    only_updated,
    take_updates_of,
)
from lazyrt.ir.match import cone

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lazyrt.execution.why.causes import Kind
    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Snapshot


_ITEM = re.compile(r"\[[^\]]*\]$")
_BUILT = {True: "added", False: "removed"}
_BUILD_FIX = (
    "build the model before the loop and leave it as it is; one compile for each structure is "
    "what it costs"
)
_CALLED = {
    True: "called in this step and not in {0}",
    False: "not called in this step and {1} in {0}",
}
_CALL_FIX = (
    "call the same modules in each step, and end each step at one place; one compile for each "
    "choice of modules is what it costs"
)


def modules(edits: Edits) -> list[Cause]:
    """Return which modules were added, removed, made again, or called on one side only."""
    came = _kept_apart(edits.b, edits.a, edits.new_roots)
    went = _kept_apart(edits.a, edits.b, edits.gone_roots)
    causes = _recreated(edits)
    for is_gain in (True, False):
        snapshot, other = (edits.b, edits.a) if is_gain else (edits.a, edits.b)
        names, known = _module_names(snapshot), _module_names(other)
        new = {name: leaf for name, leaf in names.items() if name not in known}
        # A model under another name is no other model: its parameters are matched.
        free = edits.added if is_gain else edits.removed
        new = {name: leaf for name, leaf in new.items() if leaf in free}
        new = {k: leaf for k, leaf in new.items() if k not in only_updated(snapshot)}
        paths = _new_prefixes(new, known)
        there = {prefix for name in other.modules for prefix in _prefixes(name)}
        for mine, exists in (
            ([path for path in paths if path not in there], False),
            ([path for path in paths if path in there], True),
        ):
            seeds = [new[name] for name in new if _is_under(name, mine)]
            made = exists and not any(snapshot.vertices[k].is_leaf for k in seeds)
            if seeds and made and is_gain:
                names = {n: leaf for n, leaf in new.items() if _is_under(n, mine)}
                near = cone(edits.b, seeds, edits.added.__contains__)
                causes.append(_made_again(edits, names, near, set()))
            elif seeds and made:
                causes.append(_was_made(edits, mine, seeds))
            elif seeds:
                causes.append(
                    _modules(edits, mine, seeds, exists=exists, is_gain=is_gain)
                )
        own = {name: k for name, k in new.items() if not _is_under(name, paths)}
        causes += _parameters(edits, own, is_gain=is_gain)
    causes = _with_what_joins_anew(edits, causes)
    # Who keeps what a new module gives keeps it for reasons of its own.
    edits.new_roots = sorted({*edits.new_roots, *came})
    edits.gone_roots = sorted({*edits.gone_roots, *went})
    return causes


def _kept_apart(snapshot: Snapshot, other: Snapshot, roots: Iterable[int]) -> list[int]:
    """Return the results that something keeps, but for items of what the other side has, too.

    An average of the weights has one item more for each new parameter.
    """
    names = {k: snapshot.root_names[k] for k in roots if k in snapshot.root_names}
    there = {_ITEM.sub("", name.text) for name in other.root_names.values()}
    return [
        k
        for k, name in names.items()
        if is_kept(name) and _ITEM.sub("", name.text) not in there
    ]


def _with_what_joins_anew(edits: Edits, causes: list[Cause]) -> list[Cause]:
    """Return causes, the last with what little is left of the gradients of their neighbours.

    A linear layer whose input comes from another module takes it in another form.
    """
    if not causes:
        return []
    last, weight = causes[-1], sum(cause.weight for cause in causes)
    sides = (edits.b, edits.added), (edits.a, edits.removed)
    came, gone, crossed = linear_forms(edits)
    backward = [{k for k in free if side.vertices[k].backward} for side, free in sides]
    if sum(map(len, backward)) <= max(4, weight // 10):
        came, gone = came | backward[0], gone | backward[1]
    sums = [
        k
        for k, partner in edits.changed.items()
        if edits.b.vertices[k].backward
        and edits.b.vertices[k].op.startswith("aten.sum.")
        and edits.b.vertices[k].attrs != edits.a.vertices[partner].attrs
    ]
    taken = edits.take(came, gone, crossed.union(sums))
    both = Taken(*map(sum, zip(last.taken, taken, strict=True)))
    return [*causes[:-1], dataclasses.replace(last, taken=both)]


def _parameters(edits: Edits, own: Mapping[str, int], *, is_gain: bool) -> list[Cause]:
    """Return which parameters or buffers modules have that they had not, as adapters and masks."""
    snapshot, other = (edits.b, edits.a) if is_gain else (edits.a, edits.b)
    free = edits.added if is_gain else edits.removed
    seeds = [
        leaf
        for name, leaf in own.items()
        if name not in other.modules
        and leaf in free
        and snapshot.vertices[leaf].is_leaf
    ]
    if not seeds:
        return []
    names = [name for name, leaf in own.items() if leaf in seeds]
    owners = listed(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    near = connected(snapshot, seeds, free)
    near = {k for k in near if k in seeds or not snapshot.vertices[k].is_leaf}
    site = first_site(snapshot.vertices[k] for k in sorted(near))
    near = _within(snapshot, near, free)
    verb = "was" if len(names) == 1 else "were"
    taken = _take_with_neighbours(edits, near, is_gain=is_gain)
    updated = take_updates_of(edits, names)
    scopes = {snapshot.vertices[k].scope for k in near} - {""}
    scopes |= scopes_of(edits, {name.rpartition(".")[0] for name in names})
    beside = _take_beside(edits, scopes)
    return [
        Cause(
            kind="module_added" if is_gain else "module_removed",
            text=f"{count(len(names), 'parameter')} {verb} "
            f"{'added to' if is_gain else 'removed from'} {owners}: {listed(names)}",
            fix=_BUILD_FIX,
            variable=names[0],
            now=site if is_gain else None,
            before=None if is_gain else site,
            taken=Taken(*map(sum, zip(taken, updated, beside, strict=True))),
        )
    ]


def _take_beside(edits: Edits, scopes: set[str]) -> Taken:
    """Take out what modules do on both sides beside their new parameters, and lists of these.

    With a bias a linear layer is another op, and so is its gradient; what modules make of numbers
    alone, such as a state for each layer, has other sizes.
    """
    changed = {
        k
        for k in edits.changed
        if edits.b.vertices[k].scope in scopes
        and not edits.b.vertices[k].is_leaf
        and (not edits.b.vertices[k].operands or gives_other_gradients(edits, k))
    }
    return edits.take(
        _of_scopes(edits.b, edits.added, scopes),
        _of_scopes(edits.a, edits.removed, scopes),
        changed | longer_lists(edits),
    )


def _of_scopes(snapshot: Snapshot, free: set[int], scopes: set[str]) -> set[int]:
    """Return the free vertices that some modules have recorded, with the inputs of these alone."""
    found = {k for k in free if snapshot.vertices[k].scope in scopes}
    return with_leaves(snapshot, found, free)


def _was_made(edits: Edits, paths: list[str], seeds: list[int]) -> Cause:
    """Return that the graph before made modules, which are there from now on."""
    gone = connected(edits.a, seeds, edits.removed)
    site = first_site(edits.a.vertices[k] for k in sorted(gone))
    return Cause(
        kind="module_recreated",
        text=f"{'module' if len(paths) == 1 else 'modules'} {listed(paths)} "
        f"{'was' if len(paths) == 1 else 'were'} made in {edits.before.name}{at(site)} and "
        f"{'is' if len(paths) == 1 else 'are'} not made again: "
        f"{count(len(seeds), 'parameter')}",
        fix="nothing to do when it happens once, in the first step; `lazyrt.mark_step()` after "
        "the model is built keeps it out of that step",
        variable=paths[0],
        before=site,
        taken=edits.take(removed=gone),
    )


def _is_under(name: str, paths: list[str]) -> bool:
    return any(name.startswith(f"{path}.") for path in paths)


def _modules(
    edits: Edits, paths: list[str], seeds: list[int], *, exists: bool, is_gain: bool
) -> Cause:
    """Return that modules came or went; with `exists`, that the program has them all the same."""
    snapshot, free = (edits.b, edits.added) if is_gain else (edits.a, edits.removed)
    roots, gone = edits.new_roots, edits.gone_roots
    own = free - of_results(snapshot, roots if is_gain else gone, free, set(seeds))
    own -= _of_others(snapshot, own, paths)
    near = _within(snapshot, connected(snapshot, seeds, own), own)
    near |= _views_of(snapshot, set(seeds), free)
    site = first_site(snapshot.vertices[k] for k in sorted(near))
    # Equal layers may be matched with one another's parameters: those left over stand for the new ones.
    parameters = near.intersection(_module_names(snapshot).values()) | set(seeds)
    taken = _take_with_neighbours(edits, near, is_gain=is_gain)
    updated = take_updates_of(edits, paths)
    joins = edits.take(changed=longer_lists(edits))
    kind: Kind = "module_added" if is_gain else "module_removed"
    noun, verb = ("module", "was") if len(paths) == 1 else ("modules", "were")
    what = _CALLED[is_gain].format(edits.before.name, verb)
    return Cause(
        kind="module_call" if exists else kind,
        text=f"{noun} {listed(paths)} {verb} {what if exists else _BUILT[is_gain]}: "
        f"{count(len(parameters), 'parameter')}, "
        f"{count(len(near - parameters), 'operation')}",
        fix=_CALL_FIX if exists else _BUILD_FIX,
        variable=paths[0],
        now=site if is_gain else None,
        before=None if is_gain else site,
        taken=Taken(*map(sum, zip(taken, updated, joins, strict=True))),
    )


def _views_of(snapshot: Snapshot, parameters: set[int], free: set[int]) -> set[int]:
    """Return free views of parameters, wherever they are taken for backward's sake."""
    return {
        k
        for k in free
        if is_view(snapshot.vertices[k])
        and parameters.issuperset(
            operand for operand, _ in snapshot.vertices[k].operands
        )
    }


def _take_with_neighbours(edits: Edits, near: set[int], *, is_gain: bool) -> Taken:
    """Take out what modules do on one side, with what merely joins the neighbours anew."""
    around = _touching(edits, near, added=is_gain)
    added, removed = (near, around) if is_gain else (around, near)
    changed = lists(edits, added, removed)
    snapshot, free = (edits.b, edits.added) if is_gain else (edits.a, edits.removed)
    joins = _gradients_beside(snapshot, near, free)
    if is_gain:
        added = added | joins
    else:
        removed = removed | joins
    return edits.take(added, removed, changed)


def _gradients_beside(snapshot: Snapshot, near: set[int], free: set[int]) -> set[int]:
    """Return what little is left of the gradients of modules: equal layers take each other's."""
    backward = [snapshot.vertices[k] for k in near if snapshot.vertices[k].backward]
    lines = {place(vertex.site) for vertex in backward}
    found = {
        k
        for k in free - near
        if snapshot.vertices[k].backward and place(snapshot.vertices[k].site) in lines
    }
    return found if len(found) <= max(4, len(near) // 4) else set()


def _of_others(snapshot: Snapshot, free: set[int], paths: list[str]) -> set[int]:
    """Return free ops of the forward pass that modules neither record nor share a line with.

    What the program does with the results of a new module may be new for reasons of its own.
    """
    inside = [v for v in snapshot.vertices if _is_recorded_by(v.scope, paths)]
    lines = {place(vertex.site) for vertex in inside}
    if not inside:  # parameters that a function of torch was given
        return set()
    return {
        k
        for k in free
        if not (snapshot.vertices[k].backward or snapshot.vertices[k].is_leaf)
        and not _is_recorded_by(snapshot.vertices[k].scope, paths)
        and place(snapshot.vertices[k].site) not in lines
    }


def _is_recorded_by(scope: str, paths: list[str]) -> bool:
    """Return whether a module or one within it recorded an op; scopes begin at the called module."""
    outer = [".".join(scope.split(".")[:k]) for k in range(1, scope.count(".") + 2)]
    return bool(scope) and any(
        path == each or path.endswith(f".{each}") for path in paths for each in outer
    )


def _touching(edits: Edits, near: set[int], *, added: bool) -> set[int]:
    """Return the few free vertices of the other side that sat where a module is now."""
    free = set(edits.removed if added else edits.added)
    snapshot, other = (edits.a, edits.b) if added else (edits.b, edits.a)
    # What lines do that the other side has not has reasons of its own.
    lines = {place(vertex.site) for vertex in other.vertices}
    free -= {
        k
        for k in free
        if not (snapshot.vertices[k].backward or snapshot.vertices[k].is_leaf)
        and place(snapshot.vertices[k].site) not in lines
    }
    # Dropout that is gone has a reason of its own.
    free -= {k for k in free if is_mode(snapshot.vertices[k])}
    # So has a result that nobody keeps any more.
    free -= of_results(
        snapshot, edits.gone_roots if added else edits.new_roots, free, set()
    )
    return free if len(free) <= max(4, len(near) // 4) else set()


def _within(snapshot: Snapshot, near: set[int], free: set[int]) -> set[int]:
    """Return free vertices with those that the same modules record, backward too."""
    scopes = {snapshot.vertices[k].scope for k in near} - {""}
    inside = {k for k, v in enumerate(snapshot.vertices) if v.scope in scopes}
    users = snapshot.users()
    beside = {
        k
        for k in free
        if snapshot.vertices[k].backward
        and not inside.isdisjoint(
            [*(k for k, _ in snapshot.vertices[k].operands), *(u for u, _ in users[k])]
        )
    }
    return near | (inside & free) | beside


def _module_names(snapshot: Snapshot) -> dict[str, int]:
    """Return the vertex of each parameter: an input, or what the step makes it from."""
    made = {
        name.text: snapshot.roots[k][0]
        for k, name in snapshot.root_names.items()
        if name.in_module
    }
    return made | {
        name.text: leaf for leaf, name in snapshot.leaf_names.items() if name.in_module
    }


def _new_prefixes(new: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the shortest module paths above `new` that lead to nothing known."""
    taken = {prefix for name in known for prefix in _prefixes(name)}
    found: dict[str, None] = {}
    for name in new:
        fresh = [prefix for prefix in _prefixes(name) if prefix not in taken]
        if fresh:
            found[fresh[0]] = None
    return list(found)


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:k]) for k in range(1, len(parts))]


def _recreated(edits: Edits) -> list[Cause]:
    """Parameters that were inputs and are computed by this step: it initialises them."""
    had = {
        name.text
        for name in edits.a.leaf_names.values()
        if name.in_module or name.holder == "variable"
    }
    has = {name.text for name in edits.b.leaf_names.values()}
    has |= updated(edits.b)
    now = {
        name.text: edits.b.roots[k][0]
        for k, name in edits.b.root_names.items()
        if name.text in had - has and name.in_module
    }
    if not now:
        return []
    leaves = {leaf for leaf, name in edits.a.leaf_names.items() if name.text in now}
    made = _read_instead(edits, leaves)
    near = cone(edits.b, [*now.values(), *made], edits.added.__contains__)
    turned = {
        k
        for k in edits.added
        if is_view(edits.b.vertices[k])
        and near.issuperset(operand for operand, _ in edits.b.vertices[k].operands)
    }
    return [_made_again(edits, now, near | turned, leaves)]


def _made_again(
    edits: Edits, names: Mapping[str, int], near: set[int], leaves: set[int]
) -> Cause:
    """Return that a step initialises parameters.

    Args:
        edits: The differences.
        names: The parameters, with the vertices that give them.
        near: What initialises them, and what merely views them.
        leaves: The inputs that they were before.
    """
    near = _within(edits.b, near, edits.added)
    paths = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    site = first_site(edits.b.vertices[k] for k in sorted(near))
    return Cause(
        kind="module_recreated",
        text=f"{'module' if len(paths) == 1 else 'modules'} {listed(paths)} "
        f"{'was' if len(paths) == 1 else 'were'} made again{at(site)}: "
        f"{count(len(names), 'parameter')} that were inputs are initialised in this step",
        fix="build the model once, before the loop; or end the step after building it "
        "(`lazyrt.mark_step()`)",
        variable=next(iter(names)),
        now=site,
        taken=edits.take(added=near, removed=leaves, changed=names.values()),
    )


def _read_instead(edits: Edits, leaves: set[int]) -> list[int]:
    """Return what the readers of the old inputs read now."""
    users = edits.a.users()
    found = []
    for leaf in sorted(leaves):
        for user, slot in users[leaf]:
            partner = edits.match.to_now[user]
            operands = edits.b.vertices[partner].operands if partner >= 0 else ()
            found += [operand for operand, _ in operands[slot : slot + 1]]
    return found
