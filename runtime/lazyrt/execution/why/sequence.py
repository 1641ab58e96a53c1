"""A boundary that moved: what two graphs computed one after the other, two others do now.

The second of them cannot be understood alone. Against the nearest graph it has operations more or
less, which look like modules that came or went; with the graph that ran before it, it is what
two graphs, or one, were together.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from lazyrt.execution.why.causes import Cause, Taken
from lazyrt.execution.why.edits import at, count
from lazyrt.execution.why.key import cut_fix, differs, is_cut
from lazyrt.ir.match import shared

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lazyrt.execution.census import Census, CompiledGraph

# Together two graphs share at least so much with what there was.
_ALIKE = 0.95
_FIX = (
    "end the step at the same place every time; both places are one compile for each graph, and "
    "nothing after that"
)


def moved_boundary(
    now: CompiledGraph, census: Census
) -> tuple[Cause, CompiledGraph, int] | None:
    """Return that the boundary in front of a graph moved, and what it stood in front of before.

    The number is that of operations which are not the same ones as before for all that.

    Args:
        now: The new graph.
        census: The graphs before, and which ran after which.
    """
    previous = census.latest
    if previous is None or not _goes_on(now, previous):
        return None
    for earlier in _earlier(census, previous):
        if _together_alike((previous, now), earlier) and _is_another_cut(
            previous, now, earlier
        ):
            both = _labels((previous, now)), _labels(earlier)
            rest = (both[0] - both[1]) + (both[1] - both[0])  # type: ignore[operator]
            return _cause(previous, now, earlier), earlier[-1], rest.total()
    return None


def _earlier(
    census: Census, previous: CompiledGraph
) -> Iterator[tuple[CompiledGraph, ...]]:
    """Yield graphs that ran one after the other, and single ones, the latest first."""
    yield from (pair for pair in census.successions() if previous not in pair)
    yield from ((record,) for record in census if record is not previous)


def _goes_on(now: CompiledGraph, previous: CompiledGraph) -> bool:
    """Return whether a graph reads what the one before left half done: no parameter, no state."""
    snapshot = now.snapshot
    if snapshot is None or previous.labels is None:
        return False
    names = snapshot.leaf_names
    return any(
        origin.graph == previous.name
        and not (
            leaf in names
            and (names[leaf].in_module or names[leaf].holder == "optimizer")
        )
        for leaf, origin in snapshot.origins.items()
    )


def _together_alike(new: Sequence[CompiledGraph], old: Sequence[CompiledGraph]) -> bool:
    sizes = [sum(record.nodes for record in side) for side in (new, old)]
    if min(sizes) < _ALIKE * max(sizes):
        return False
    ours, theirs = (_labels(side) for side in (new, old))
    if ours is None or theirs is None:
        return False
    return shared(ours, theirs) >= _ALIKE * max(ours.total(), theirs.total())


def _labels(records: Sequence[CompiledGraph]) -> Counter[Any] | None:
    total: Counter[Any] = Counter()
    for record in records:
        if record.labels is None:  # given up to bound memory
            return None
        total += record.labels
    return total


def _is_another_cut(
    previous: CompiledGraph, now: CompiledGraph, old: Sequence[CompiledGraph]
) -> bool:
    """Return whether boundaries or modules say so: rounds of one loop may add up alike."""
    if now.nodes == old[-1].nodes or now.key.ended_by[0] != old[-1].key.ended_by[0]:
        return False
    if _together_alike((previous,), old[-1:]):  # the same two the other way round
        return False
    mark, was = previous.key.ended_by, old[0].key.ended_by
    return differs(mark, was) or _modules(now) != _modules(old[-1])


def _modules(record: CompiledGraph) -> set[str]:
    names = record.snapshot.leaf_names.values() if record.snapshot else ()
    return {name.text for name in names if name.in_module}


def _cause(
    previous: CompiledGraph, now: CompiledGraph, old: Sequence[CompiledGraph]
) -> Cause:
    mark, was = previous.key.ended_by, old[0].key.ended_by
    moved = now.nodes - old[-1].nodes
    line = f"{mark[0]}{at(mark[1])}"
    if len(old) == 1:
        text = (
            f"the step began later: {line} ran its first part alone ({previous.name}), which "
            f"{old[0].name} ran as one with the rest"
        )
    else:
        if differs(mark, was):
            line += f" instead of {was[0]}{at(was[1])}"
        sides = "before it run after it" if moved > 0 else "after it run before it"
        text = (
            f"the boundary in front of this graph came {'earlier' if moved > 0 else 'later'}, "
            f"{line}: {count(abs(moved), 'operation')} that ran {sides} now"
        )
    return Cause(
        kind="step_cut",
        text=text,
        fix=cut_fix(mark) if is_cut(mark) else _FIX,
        now=mark[1],
        before=was[1],
        taken=Taken(added=max(moved, 0), removed=max(-moved, 0)),
    )
