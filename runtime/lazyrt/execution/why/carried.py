"""Results of earlier steps that enter as inputs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from lazyrt.execution.why.causes import Cause, Taken, ranked
from lazyrt.execution.why.edits import (
    at,
    connected,
    count,
    first_site,
    leaf_name,
    listed,
    of_results,
    place,
    text_of,
)
from lazyrt.execution.why.joined import goes_on
from lazyrt.execution.why.results import ITEM
from lazyrt.execution.why.updates import stale_gradients

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazyrt.execution.census import Census, CompiledGraph
    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Snapshot


_FINISH = "finish it before the step ends (flush the buckets, run the callbacks)"
_ACCUMULATES = (
    "nothing to do where it comes back: the first batch of an update and the later ones are one "
    "graph each; `zero_grad(set_to_none=False)` makes it one graph for all"
)


def carried_over(edits: Edits) -> list[Cause]:
    """Return whether another number of results of the step before entered as inputs.

    Work that the step before began and did not finish, such as gradients that wait in a
    bucket, changes with how much was left over.
    """
    stale = stale_gradients(edits.b)
    left = [leaf for leaf in _left_over(edits.b) if leaf not in stale]
    before = _left_over(edits.a)
    previous = max((o.step for o in edits.b.origins.values()), default=-1)
    fresh = [
        leaf
        for leaf, origin in edits.b.origins.items()
        if leaf in edits.added
        and leaf not in stale
        and origin.step == previous >= 0
        # What an earlier program made, before this one began, is an input like any other.
        and previous >= edits.before.last_step
    ]
    # What is computed of such a result to be kept has the keeping for its cause.
    kept = of_results(edits.b, edits.new_roots, edits.added, set())
    kept |= _of_same_lists(edits.b, fresh, kept)
    fresh = [leaf for leaf in fresh if leaf not in kept]
    # A program that replaces its state by a new one has as many on both sides.
    is_more = edits.added & set(left) or edits.removed & set(before)
    if not fresh and not is_more:
        return []
    if not is_more:
        left, before = fresh, []
    free = connected(edits.b, {*left, *fresh}, edits.added)
    gone = connected(edits.a, before, edits.removed)
    snapshot, one = (edits.b, left[0]) if left else (edits.a, before[0])
    origin = snapshot.origins[one]
    names = [
        n
        for k in left or before
        if (n := snapshot.origins[k].name or leaf_name(snapshot, k))
    ]
    called = f" ({listed(names)})" if names else ""
    verb = "are inputs" if len(left) > 1 else "is an input"
    # Backward goes on with what has a name; what it needs of a part of the step before has none.
    is_backward = bool(names) and all(name.endswith(".grad") for name in names)
    accumulates = (
        is_backward
        and all(_is_gradient(edits.b, k) for k in {*left, *fresh} & edits.added)
        and all(_is_gradient(edits.a, k) for k in edits.removed.intersection(before))
    )
    if is_backward:
        free = _with_backward_beside(edits.b, free, edits.added)
        gone = _with_backward_beside(edits.a, gone, edits.removed)
    if accumulates:  # a result that is an input now is not gone
        edits.gone_roots = [
            k
            for k in edits.gone_roots
            if text_of(edits.a.root_names.get(k)) not in names
        ]
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


def _of_same_lists(
    snapshot: Snapshot, leaves: Iterable[int], kept: set[int]
) -> set[int]:
    """Return the inputs that stand in a list with some: a loop's variable has another name."""
    origins = snapshot.origins
    lists = {_list_of(origins[k].name) for k in kept if k in origins} - {""}
    return {k for k in leaves if _list_of(origins[k].name) in lists}


def _list_of(name: str) -> str:
    """Return what the list is called whose item has this name; empty for anything else."""
    item = ITEM.fullmatch(name)
    return item[1] if item is not None else ""


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


def _left_over(snapshot: Snapshot) -> list[int]:
    """Return the inputs that an execution computed and that nothing holds at the end.

    Gradients are such inputs whoever holds them: the next backward adds to them.
    """
    return [
        leaf
        for leaf, origin in snapshot.origins.items()
        if origin.step >= 0 and (origin.dropped or origin.name.endswith(".grad"))
    ]


def _is_gradient(snapshot: Snapshot, leaf: int) -> bool:
    name = snapshot.origins[leaf].name or leaf_name(snapshot, leaf)
    return name.endswith(".grad")


def with_what_the_part_before_hands_on(
    causes: tuple[Cause, ...],
    record: CompiledGraph,
    other: CompiledGraph,
    census: Census,
) -> tuple[Cause, ...]:
    """Return causes; what another number of inputs follows from is told in its place.

    A program with two optimizers has two graphs for each round. What is new in the first one
    changes what the second one reads of it, and is no cause of its own.

    Args:
        causes: Those of the second graph.
        record: That graph.
        other: The one that it is compared with.
        census: The graphs before.
    """
    carried = next((cause for cause in causes if cause.fix == _FINISH), None)
    first = census.latest
    if carried is None or first is None or not _is_second(record, other, first, census):
        return causes
    assert first.explanation is not None
    origin = first.explanation.top
    rest = [cause for cause in causes if cause is not carried]
    place = next((k for k, cause in enumerate(rest) if cause.kind == origin.kind), -1)
    if place < 0:
        text = f"{first.name}, whose results this graph reads, is new: {origin.text}"
        told = dataclasses.replace(origin, text=text, taken=carried.taken)
        return ranked([told, *rest])
    same = rest[place]
    taken = Taken(*map(sum, zip(same.taken, carried.taken, strict=True)))
    rest[place] = dataclasses.replace(same, taken=taken)
    return tuple(rest)


def _is_second(
    record: CompiledGraph, other: CompiledGraph, first: CompiledGraph, census: Census
) -> bool:
    """Return whether a graph goes on with a new one, as the nearest did with that one's nearest."""
    if first.explanation is None or first.runs > 1 or not goes_on(record, first):
        return False
    against = first.explanation.against
    return first is not other and any(
        one.name == against and one is not other and two is other
        for one, two in census.successions()
    )
