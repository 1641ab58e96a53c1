"""State that one graph created and the next one goes on with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyrt.execution.why.causes import Cause
from lazyrt.execution.why.edits import (
    at,
    connected,
    count,
    leaf_name,
    leaf_site,
    listed,
    place,
    with_leaves,
)
from lazyrt.ir.match import cone
from lazyrt.ir.snapshot import OPERAND

if TYPE_CHECKING:
    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Snapshot
    from lazyrt.observe.events import Site


_CREATIONS = (
    "aten.zeros", "aten.ones", "aten.full", "aten.empty", "aten.zero.", "aten.arange",
    "aten.scalar_tensor", "aten.rand", "aten.normal", "aten.uniform", "aten.bernoulli",
)  # fmt: skip
_NUMBER_FIX = (
    "nothing to do when it happens once, in the second step; to save the compile, begin with a "
    "tensor (`torch.zeros((), device=...)`)"
)
_SECOND_STEP = (
    "nothing to do when it happens once, in the second step, as with an optimizer"
)
_HANDED_ON = (
    "nothing to do when it happens once, as with a state that each step hands to the next; to "
    "save the compile, end the step after making the first one (`lazyrt.mark_step()`)"
)


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
    if not earlier:
        return []
    made_of = _made_of_creations(edits)
    numbers = {leaf for leaf, _, _ in _were_numbers(edits)}
    created = [
        leaf
        for leaf in earlier
        if leaf not in numbers and _was_removed(edits, leaf, made_of)
    ]
    if not created:
        return []
    roots = [_root_before(edits, leaf) for leaf in created]
    gone = edits.removed & cone(
        edits.a, [root for root in roots if root is not None], lambda _: True
    )
    site = edits.b.origins[created[0]].site
    gone = _without_what_came_first(edits, gone, made_of, site)
    names = [edits.b.leaf_names[k].text for k in created if k in edits.b.leaf_names]
    what = f" ({listed(names)})" if names else ""
    near = connected(edits.b, created, edits.added)
    creations = len(gone)
    if any(name.holder == "optimizer" for name in edits.a.leaf_names.values()):
        # Where some parameters had no state yet, all were updated one by one.
        gone = with_leaves(edits.a, gone | _on_line(edits.a, edits.removed, site), edits.removed)  # fmt: skip
        near = with_leaves(edits.b, near | _on_line(edits.b, edits.added, site), edits.added)  # fmt: skip
    _forget_untouched_state(edits)
    return [
        Cause(
            kind="state_became_input",
            text=f"state that {edits.before.name} created{at(site)} is an input from now on: "
            f"{count(len(created), 'tensor')}{what}, {count(creations, 'fewer creation')}",
            fix=_SECOND_STEP if _are_an_optimizers(edits, created) else _HANDED_ON,
            variable=names[0] if names else "",
            before=site,
            taken=edits.take(added=near, removed=gone),
        )
    ]


def _without_what_came_first(
    edits: Edits, gone: set[int], made_of: list[bool], site: Site | None
) -> set[int]:
    """Return what made state, without what other lines gave it and others, as clipped gradients."""
    users = edits.a.users()
    kept = _on_line(edits.a, gone, site)
    for k in sorted(gone - kept, reverse=True):
        if made_of[k] or all(user in kept for user, _ in users[k]):
            kept.add(k)
    return kept


def _on_line(snapshot: Snapshot, free: set[int], site: Site | None) -> set[int]:
    return {k for k in free if site and place(snapshot.vertices[k].site) == place(site)}


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
    names = [name for leaf in pairs if (name := leaf_name(edits.b, leaf))]
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


def replaced_numbers(edits: Edits) -> list[Cause]:
    """Return which tensors the graph before had as plain numbers, as a sum that starts at zero."""
    for leaf, k, number in _were_numbers(edits):
        now, before = edits.b.vertices[k], edits.a.vertices[edits.changed[k]]
        origin, name = edits.b.origins[leaf], leaf_name(edits.b, leaf)
        called = f"`{name}`" if name else "a tensor"
        return [
            Cause(
                kind="state_became_input",
                text=f"{called}, which {edits.before.name} had as the number "
                f"{number}{at(before.site)}, is a result of step {origin.step} now",
                fix=_NUMBER_FIX,
                variable=name,
                now=now.site,
                before=before.site,
                taken=edits.take(added=[leaf], changed=[k]),
            )
        ]
    return []


def _were_numbers(edits: Edits) -> list[tuple[int, int, str]]:
    """Return inputs that stand for a number, each with the op that reads it and that number."""
    found = []
    for k, partner in edits.changed.items():
        now, before = edits.b.vertices[k], edits.a.vertices[partner]
        numbers = [
            old
            for new, old in zip(now.attrs, before.attrs, strict=False)
            if new == OPERAND != old
        ]
        more = {operand for operand, _ in now.operands} & edits.added
        leaf = next((each for each in more if _is_earlier_result(edits, each)), None)
        if leaf is not None and len(numbers) == 1:
            found.append((leaf, k, numbers[0]))
    return found


def _is_earlier_result(edits: Edits, leaf: int) -> bool:
    origin = edits.b.origins.get(leaf)
    return origin is not None and origin.step >= 0


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
    had = {name.text for name in edits.a.leaf_names.values()}
    made -= had
    # A parameter that is read by another name, as a pruned one's, was there before.
    kept = {k for k, name in edits.a.root_names.items() if name.text in had}
    return [
        leaf
        for leaf, origin in edits.b.origins.items()
        if edits.match.to_before[leaf] < 0
        and not origin.dropped
        and not origin.how
        and (
            (origin.graph == graph and origin.output not in kept)
            or leaf_name(edits.b, leaf) in made
        )
    ]


def _root_before(edits: Edits, leaf: int) -> int | None:
    """Return the vertex of the other graph that made what now comes in."""
    origin = edits.b.origins[leaf]
    if origin.graph == edits.before.name:
        return edits.a.roots[origin.output][0]
    name = leaf_name(edits.b, leaf)
    return next(
        (
            edits.a.roots[k][0]
            for k, found in edits.a.root_names.items()
            if found.text == name
        ),
        None,
    )


def _made_of_creations(edits: Edits) -> list[bool]:
    """Return for each vertex of the graph before whether it needs data that this one does not make.

    One pass for however many inputs ask.
    """
    found: list[bool] = []
    for k, vertex in enumerate(edits.a.vertices):
        is_made = k in edits.removed and vertex.op.startswith(_CREATIONS)
        found.append(is_made or any(found[operand] for operand, _ in vertex.operands))
    return found


def _was_removed(edits: Edits, leaf: int, made_of: list[bool]) -> bool:
    """Return whether this graph no longer creates what now comes in."""
    root = _root_before(edits, leaf)
    if root is None:
        return False
    partner = edits.match.to_now[root]
    return made_of[root] or root in edits.removed or partner in edits.changed
