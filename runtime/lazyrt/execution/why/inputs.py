"""Causes that enter with the inputs: other shapes and dtypes, modules, state, leftovers."""

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
    of_results,
    place,
    updated,
)
from lazyrt.execution.why.program import is_mode
from lazyrt.execution.why.updates import (
    is_of_optimizer,
    only_updated,
    take_updates_of,
)
from lazyrt.ir.match import cone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lazyrt.execution.why.causes import Kind
    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Name, Snapshot
    from lazyrt.observe.events import Site

_CREATIONS = (
    "aten.zeros", "aten.ones", "aten.full", "aten.empty", "aten.zero.", "aten.arange",
    "aten.scalar_tensor", "aten.rand", "aten.normal", "aten.uniform", "aten.bernoulli",
)  # fmt: skip
_FINISH = "finish it before the step ends (flush the buckets, run the callbacks)"
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
_SECOND_STEP = (
    "nothing to do when it happens once, in the second step, as with an optimizer"
)
_HANDED_ON = (
    "nothing to do when it happens once, as with a state that each step hands to the next; to "
    "save the compile, end the step after making the first one (`lazyrt.mark_step()`)"
)
_ACCUMULATES = (
    "nothing to do where it comes back: the first batch of an update and the later ones are one "
    "graph each; `zero_grad(set_to_none=False)` makes it one graph for all"
)


def modules(edits: Edits) -> list[Cause]:
    """Return which modules were added, removed, made again, or called on one side only."""
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
    return causes


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
    logged = of_results(snapshot, roots if is_gain else gone, free, set(seeds))
    near = _within(snapshot, connected(snapshot, seeds, free - logged), free - logged)
    site = first_site(snapshot.vertices[k] for k in sorted(near))
    # What merely joins the neighbours anew goes with the module.
    taken = (
        edits.take(added=near, removed=_touching(edits, near, added=True))
        if is_gain
        else edits.take(removed=near, added=_touching(edits, near, added=False))
    )
    updated = take_updates_of(edits, paths)
    kind: Kind = "module_added" if is_gain else "module_removed"
    noun, verb = ("module", "was") if len(paths) == 1 else ("modules", "were")
    what = _CALLED[is_gain].format(edits.before.name, verb)
    return Cause(
        kind="module_call" if exists else kind,
        text=f"{noun} {listed(paths)} {verb} {what if exists else _BUILT[is_gain]}: "
        f"{count(len(seeds), 'parameter')}, {count(len(near) - len(seeds), 'operation')}",
        fix=_CALL_FIX if exists else _BUILD_FIX,
        variable=paths[0],
        now=site if is_gain else None,
        before=None if is_gain else site,
        taken=Taken(*map(sum, zip(taken, updated, strict=True))),
    )


def _touching(edits: Edits, near: set[int], *, added: bool) -> set[int]:
    """Return the few free vertices of the other side that sat where a module is now."""
    free = set(edits.removed if added else edits.added)
    snapshot = edits.a if added else edits.b
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


def state(edits: Edits, *, of_optimizer: bool = False) -> list[Cause]:
    """Return which inputs are results of the nearest graph: it created, this one goes on.

    Args:
        edits: The differences.
        of_optimizer: Whether only an optimizer's state counts.
    """
    earlier = _results_of(edits, edits.before.name)
    if of_optimizer:
        called = edits.b.leaf_names
        earlier = [
            k for k in earlier if k in called and called[k].holder == "optimizer"
        ]
    created = [leaf for leaf in earlier if _was_removed(edits, leaf)]
    if not created:
        return []
    roots = [_root_before(edits, leaf) for leaf in created]
    gone = edits.removed & cone(
        edits.a, [root for root in roots if root is not None], lambda _: True
    )
    site = edits.b.origins[created[0]].site
    names = [edits.b.leaf_names[k].text for k in created if k in edits.b.leaf_names]
    what = f" ({listed(names)})" if names else ""
    near = connected(edits.b, created, edits.added)
    _forget_untouched_state(edits)
    return [
        Cause(
            kind="state_became_input",
            text=f"state that {edits.before.name} created{at(site)} is an input from now on: "
            f"{count(len(created), 'tensor')}{what}, {count(len(gone), 'fewer creation')}",
            fix=_SECOND_STEP if _are_an_optimizers(edits, created) else _HANDED_ON,
            variable=names[0] if names else "",
            before=site,
            taken=edits.take(added=near, removed=gone),
        )
    ]


def replaced_creations(edits: Edits) -> list[Cause]:
    """Return which tensors the graph before made anew and are results of the step before now."""
    pairs = {
        leaf: made
        for leaf, origin in edits.b.origins.items()
        if leaf in edits.added
        and origin.step >= 0
        and (made := _creation_before(edits, leaf)) is not None
    }
    if not pairs:
        return []
    names = [name for leaf in pairs if (name := _leaf_name(edits.b, leaf))]
    first, made = next(iter(pairs.items()))
    origin, vertex = edits.b.origins[first], edits.a.vertices[made]
    what = listed(names) if names else count(len(pairs), "tensor")
    many = max(len(names), 1 if names else len(pairs)) > 1
    gone = cone(edits.a, pairs.values(), edits.removed.__contains__)
    return [
        Cause(
            kind="state_became_input",
            text=f"{what}, which {edits.before.name} made by {vertex.op}{at(vertex.site)}, "
            f"{'are results' if many else 'is a result'} of step {origin.step}{at(origin.site)} "
            "now",
            fix=_HANDED_ON,
            variable=names[0] if names else "",
            now=leaf_site(edits.b, first),
            before=vertex.site,
            taken=edits.take(added=pairs, removed=gone),
        )
    ]


def _creation_before(edits: Edits, leaf: int) -> int | None:
    """Return the vertex that only made data, where the other graph's reader reads it."""
    for number, vertex in enumerate(edits.b.vertices):
        partner = edits.match.to_before[number]
        if partner < 0 or leaf not in (operand for operand, _ in vertex.operands):
            continue
        theirs = edits.a.vertices[partner].operands
        for slot, (operand, _) in enumerate(vertex.operands):
            if operand != leaf or slot >= len(theirs):
                continue
            made = theirs[slot][0]
            if made in edits.removed and edits.a.vertices[made].op.startswith(
                _CREATIONS
            ):
                return made
    return None


def _are_an_optimizers(edits: Edits, leaves: list[int]) -> bool:
    names = [edits.b.leaf_names.get(leaf) for leaf in leaves]
    return any(name is None or name.holder == "optimizer" for name in names)


def _forget_untouched_state(edits: Edits) -> None:
    """State that was created beside the rest and is not read here needs no cause of its own."""
    edits.gone_roots = [
        k
        for k in edits.gone_roots
        if not edits.a.vertices[edits.a.roots[k][0]].op.startswith(_CREATIONS)
    ]


def _results_of(edits: Edits, graph: str) -> list[int]:
    """Return new inputs that the other graph computes: by execution, or by name."""
    made = {name.text for name in edits.a.root_names.values()}
    made -= {name.text for name in edits.a.leaf_names.values()}
    return [
        leaf
        for leaf, origin in edits.b.origins.items()
        if edits.match.to_before[leaf] < 0
        and not origin.dropped
        and (origin.graph == graph or _leaf_name(edits.b, leaf) in made)
    ]


def _root_before(edits: Edits, leaf: int) -> int | None:
    """Return the vertex of the other graph that made what now comes in."""
    origin = edits.b.origins[leaf]
    if origin.graph == edits.before.name:
        return edits.a.roots[origin.output][0]
    name = _leaf_name(edits.b, leaf)
    return next(
        (
            edits.a.roots[k][0]
            for k, found in edits.a.root_names.items()
            if found.text == name
        ),
        None,
    )


def _was_removed(edits: Edits, leaf: int) -> bool:
    """Return whether this graph no longer creates what now comes in."""
    root = _root_before(edits, leaf)
    if root is None:
        return False
    creations = {
        k for k in edits.removed if edits.a.vertices[k].op.startswith(_CREATIONS)
    }
    needs = cone(edits.a, [root], lambda _: True)
    partner = edits.match.to_now[root]
    return bool(needs & creations) or root in edits.removed or partner in edits.changed


def _leaf_name(snapshot: Snapshot, leaf: int) -> str:
    return snapshot.leaf_names[leaf].text if leaf in snapshot.leaf_names else ""


def tied_parameters(edits: Edits) -> list[Cause]:
    """Return which parameters of modules are one tensor now, or were before."""
    return _same_input(edits, _is_parameter)


def same_input(edits: Edits) -> list[Cause]:
    """Return which two inputs are one tensor now, or were before."""
    return _same_input(edits, lambda *_: True)


def _is_parameter(snapshot: Snapshot, leaf: int) -> bool:
    name = snapshot.leaf_names.get(leaf)
    return name is not None and name.in_module


def _same_input(
    edits: Edits, is_wanted: Callable[[Snapshot, int], bool]
) -> list[Cause]:
    causes = []
    for is_gain, free in ((False, edits.removed), (True, edits.added)):
        snapshot, other = (edits.b, edits.a) if is_gain else (edits.a, edits.b)
        partners = edits.match.to_before if is_gain else edits.match.to_now
        for leaf in sorted(free):
            if not is_wanted(snapshot, leaf):
                continue
            twin = _twin(snapshot, other, partners, leaf)
            if twin is None:
                continue
            pair = [_called(snapshot, k) for k in (twin, leaf)]
            one = f"{' and '.join(pair)} {{}} one tensor"
            text = (
                f"{one.format('were')} and are two now"
                if is_gain
                else f"{one.format('are')} now and were two"
            )
            causes.append(
                Cause(
                    kind="same_input",
                    text=text,
                    fix="give both as tensors of their own (`y.clone()`), or as one, in every "
                    "step; tensors of equal values are no difference",
                    variable=_leaf_name(snapshot, leaf),
                    now=leaf_site(edits.b, leaf if is_gain else partners[twin]),
                    before=leaf_site(edits.a, partners[twin] if is_gain else leaf),
                    taken=_take_with_update(edits, leaf, is_gain=is_gain),
                )
            )
    return causes


def _take_with_update(edits: Edits, leaf: int, *, is_gain: bool) -> Taken:
    """Take out an input; of a parameter also its update, and the sum of the gradients of both."""
    snapshot = edits.b if is_gain else edits.a
    mine, others = ("added", "removed") if is_gain else ("removed", "added")
    if not _is_parameter(snapshot, leaf):
        return edits.take(**{mine: [leaf]})
    name = _leaf_name(snapshot, leaf)
    gone = {name, f"{name}.grad"}
    edits.new_roots = [k for k in edits.new_roots if _text(edits.b.root_names.get(k)) not in gone]  # fmt: skip
    edits.gone_roots = [k for k in edits.gone_roots if _text(edits.a.root_names.get(k)) not in gone]  # fmt: skip
    other = edits.a if is_gain else edits.b
    sums = [
        k
        for k in (edits.removed if is_gain else edits.added)
        if other.vertices[k].backward and other.vertices[k].op.startswith("aten.add.")
    ]
    updates = [k for k in edits.changed if is_of_optimizer(edits.b.vertices[k])]
    return edits.take(**{mine: [leaf], others: sums, "changed": updates})


def _twin(
    snapshot: Snapshot, other: Snapshot, partners: Sequence[int], leaf: int
) -> int | None:
    """Return the input whose partner is read wherever `leaf` is, by the partners of its readers."""
    if snapshot.vertices[leaf].op != "data":
        return None
    read = set()
    users = snapshot.users()[leaf]
    # The update of a parameter has one operand less when it is tied to another.
    users = [user for user in users if snapshot.vertices[user[0]].scope] or users
    for user, slot in users:
        operands = (
            other.vertices[partners[user]].operands if partners[user] >= 0 else ()
        )
        read.add(operands[slot][0] if slot < len(operands) else -1)
    if len(read) != 1:
        return None
    found = read.pop()
    is_input = found >= 0 and other.vertices[found].op == "data"
    return partners.index(found) if is_input and found in partners else None


def _called(snapshot: Snapshot, leaf: int) -> str:
    """Return how a sentence calls an input: by its name, else by the line that reads it."""
    name = _leaf_name(snapshot, leaf)
    return f"`{name}`" if name else f"the one read{at(leaf_site(snapshot, leaf))}"


def carried_over(edits: Edits) -> list[Cause]:
    """Return whether another number of results of the step before entered as inputs.

    Work that the step before began and did not finish, such as gradients that wait in a
    bucket, changes with how much was left over.
    """
    left, before = _left_over(edits.b), _left_over(edits.a)
    previous = max((o.step for o in edits.b.origins.values()), default=-1)
    fresh = [
        leaf
        for leaf, origin in edits.b.origins.items()
        if leaf in edits.added and origin.step == previous >= 0
    ]
    # A program that replaces its state by a new one has as many on both sides.
    if not fresh and not edits.added & set(left) and not edits.removed & set(before):
        return []
    if not left:
        left = fresh
    free = connected(edits.b, {*left, *fresh}, edits.added)
    gone = connected(edits.a, before, edits.removed)
    snapshot, one = (edits.b, left[0]) if left else (edits.a, before[0])
    origin = snapshot.origins[one]
    names = [
        n
        for k in left or before
        if (n := snapshot.origins[k].name or _leaf_name(snapshot, k))
    ]
    called = f" ({listed(names)})" if names else ""
    verb = "are inputs" if len(left) > 1 else "is an input"
    accumulates = bool(names) and all(name.endswith(".grad") for name in names)
    if accumulates:  # a result that is an input now is not gone
        edits.gone_roots = [
            k for k in edits.gone_roots if _text(edits.a.root_names.get(k)) not in names
        ]
        free = _with_backward_beside(edits.b, free, edits.added)
        gone = _with_backward_beside(edits.a, gone, edits.removed)
    noun = "gradient" if accumulates else "tensor"
    what = count(len(left), noun) if left else f"no {noun}"
    if not left:
        previous = origin.step
    return [
        Cause(
            kind="carried_over",
            text=f"{what}{called} that step {previous} computed"
            f"{at(origin.site)} {verb} of this step, {len(before)} in {edits.before.name}: "
            + (
                "gradients accumulate over steps"
                if accumulates
                else "the work of a step is finished in the next one"
            ),
            fix=(_ACCUMULATES if accumulates else _FINISH),
            variable=names[0] if names else "",
            now=first_site(edits.b.vertices[k] for k in sorted(free)),
            before=origin.site,
            taken=edits.take(added=free, removed=gone),
        )
    ]


def _with_backward_beside(
    snapshot: Snapshot, near: set[int], free: set[int]
) -> set[int]:
    """Return vertices with what backward records on their lines, such as transposes."""
    lines = {
        place(snapshot.vertices[k].site) for k in near if snapshot.vertices[k].backward
    }
    return near | {
        k
        for k in free
        if snapshot.vertices[k].backward and place(snapshot.vertices[k].site) in lines
    }


def _text(name: Name | None) -> str:
    return name.text if name is not None else ""


def _left_over(snapshot: Snapshot) -> list[int]:
    """Return the inputs that an execution computed and that nothing holds at the end.

    Gradients are such inputs whoever holds them: the next backward adds to them.
    """
    return [
        leaf
        for leaf, origin in snapshot.origins.items()
        if origin.step >= 0 and (origin.dropped or origin.name.endswith(".grad"))
    ]


def leaf_site(snapshot: Snapshot, leaf: int) -> Site | None:
    """Return the line of the first operation that reads an input."""
    readers = [
        vertex
        for vertex in snapshot.vertices
        if any(operand == leaf for operand, _ in vertex.operands)
    ]
    return first_site(readers)
