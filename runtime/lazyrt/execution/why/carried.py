"""Results of earlier steps that enter as inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyrt.execution.why.causes import Cause
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

if TYPE_CHECKING:
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
    left, before = _left_over(edits.b), _left_over(edits.a)
    previous = max((o.step for o in edits.b.origins.values()), default=-1)
    fresh = [
        leaf
        for leaf, origin in edits.b.origins.items()
        if leaf in edits.added
        and origin.step == previous >= 0
        # What an earlier program made, before this one began, is an input like any other.
        and previous >= edits.before.last_step
    ]
    # What is computed of such a result to be kept has the keeping for its cause.
    kept = of_results(edits.b, edits.new_roots, edits.added, set())
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
    accumulates = bool(names) and all(name.endswith(".grad") for name in names)
    if accumulates:  # a result that is an input now is not gone
        edits.gone_roots = [
            k
            for k in edits.gone_roots
            if text_of(edits.a.root_names.get(k)) not in names
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


def _left_over(snapshot: Snapshot) -> list[int]:
    """Return the inputs that an execution computed and that nothing holds at the end.

    Gradients are such inputs whoever holds them: the next backward adds to them.
    """
    return [
        leaf
        for leaf, origin in snapshot.origins.items()
        if origin.step >= 0 and (origin.dropped or origin.name.endswith(".grad"))
    ]
