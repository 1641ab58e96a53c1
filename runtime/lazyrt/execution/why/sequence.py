"""A boundary that moved: what two graphs computed one after the other, two others do now.

Neither of the two can be understood alone. Against the nearest graph it has operations more or
less, which look like modules that came or went; with the graph that ran before it, it is what
two graphs, or one, were together. So both sides are compared without their cuts, and what
differs then has causes of its own.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from lazyrt.execution.why.boundaries import (
    cut_fix,
    cut_lines,
    differs,
    is_cut,
    is_fallback,
    ran_on_the_cpu,
)
from lazyrt.execution.why.causes import Cause, Taken
from lazyrt.execution.why.cuts import ends_alike, of_new_inputs
from lazyrt.execution.why.edits import (
    Edits,
    at,
    count,
    exclusive,
    is_kept,
    is_view,
    not_reached,
)
from lazyrt.execution.why.joined import Joined, alone, follows, goes_on, joined
from lazyrt.execution.why.pieces import begun_by
from lazyrt.execution.why.same_part import (
    begin_alike,
    has_a_like,
    nodes_of,
    spot_of,
)
from lazyrt.ir.match import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lazyrt.execution.census import Census, CompiledGraph
    from lazyrt.ir.snapshot import Snapshot

# What two graphs share with those before, by their ops, so that they may be the same program.
_ALIKE = 0.6
# Of candidates that are about as alike, the one that ran last tells whether there was a cut.
_AS_ALIKE = 0.1
# Operations that changed sides the other way are mistakes of the matching.
_STRAY = 0.2
# So many candidates are compared vertex by vertex.
_TRIED = 2


_GONE_FIX = (
    "nothing to do where the cut is gone for good; a step that is cut in some rounds only is "
    "another graph in the others"
)


class Moved(NamedTuple):
    """A boundary that moved.

    Attributes:
        cause: Where it stands now, and where it stood.
        old: The graph before that the new one stands for.
        edits: What differs apart from the boundary.
    """

    cause: Cause
    old: CompiledGraph
    edits: Edits


def moved_boundary(now: CompiledGraph, census: Census) -> Moved | None:
    """Return that a boundary in front of a graph, or at its end, moved.

    Args:
        now: The new graph.
        census: The graphs before, and which ran after which.
    """
    if now.snapshot is None or now.labels is None or has_a_like(now, census):
        return None
    previous = census.latest
    if previous is not None and not goes_on(now, previous):
        previous = begun_by(now, census)
    if previous is not None:
        return _began_elsewhere(now, previous, census)
    return _ended_elsewhere(now, census)


def _began_elsewhere(
    now: CompiledGraph, previous: CompiledGraph, census: Census
) -> Moved | None:
    both = (previous, now)
    old = [each for each in _earlier(census, previous) if _may_be(both, each, now)]
    ours, size = _by_op(both), previous.nodes + now.nodes

    def likeness(each: tuple[CompiledGraph, ...]) -> tuple[float, tuple[int, int]]:
        theirs = _by_op(each)
        alike = shared(ours, theirs) / max(size, theirs.total(), 1)
        return alike, (_common(now, each[-1]), 0)

    for candidate in _best(old, likeness):
        new, before = joined(previous, now), _as_one(candidate)
        edits = Edits(before.record, new.record)
        moved = _changed_sides(edits, before, new)
        if moved:
            _forget_what_lived_at_the_cut(edits, before, new)
            taken = _take_what_the_cuts_brought(edits, before, new)
            return Moved(_cause(both, candidate, moved, taken), candidate[-1], edits)
    return None


def _as_one(records: Sequence[CompiledGraph]) -> Joined:
    return joined(*records) if len(records) > 1 else alone(records[0])


def _earlier(
    census: Census, previous: CompiledGraph
) -> Iterator[tuple[CompiledGraph, ...]]:
    """Yield graphs that ran one after the other, and single ones, the latest first.

    The second of two is one alone where the new graphs, too, began after the first: a program
    with two optimizers ends a step in its middle as well.
    """
    rests = set()
    for first, second in census.successions():
        if previous not in (first, second) and follows(second, first):
            rests.add(second)
            yield first, second
    for record in reversed(list(census)):
        if record is previous or not record.snapshot:
            continue
        if record not in rests or not differs(
            previous.key.began_after, record.key.began_after
        ):
            yield (record,)


def _may_be(
    new: Sequence[CompiledGraph], old: Sequence[CompiledGraph], now: CompiledGraph
) -> bool:
    """Return whether graphs are alike by size, end alike, and are not the same two swapped."""
    sizes = [sum(record.nodes for record in side) for side in (new, old)]
    if min(sizes) < _ALIKE * max(sizes):
        return False
    if any(
        record.labels is None for record in (*new, *old)
    ):  # given up to bound memory
        return False
    return now.key.ended_by[0] == old[-1].key.ended_by[0]


def _best(
    candidates: Sequence[tuple[CompiledGraph, ...]],
    likeness: Callable[[tuple[CompiledGraph, ...]], tuple[float, tuple[int, int]]],
) -> list[tuple[CompiledGraph, ...]]:
    """Return the few that are most alike: as the program ran last, cut in two or whole."""
    scored = [(likeness(each), -k, each) for k, each in enumerate(candidates)]
    scored.sort(key=lambda item: item[:2], reverse=True)
    alike = [each for score, _, each in scored if score[0] >= _ALIKE]
    near = [
        each for score, _, each in scored if score[0] >= scored[0][0][0] - _AS_ALIKE
    ]
    latest = max(near, key=lambda each: each[-1].last_step, default=())
    alike.sort(key=lambda each: len(each) != len(latest))
    return alike[:_TRIED]


def _common(one: CompiledGraph, other: CompiledGraph) -> int:
    """Return how many operations two graphs have in common, with the types of their results.

    It tells which of two graphs that run in turn comes first.
    """
    return shared(one.labels or Counter(), other.labels or Counter())


def _by_op(records: Sequence[CompiledGraph]) -> Counter[str]:
    total: Counter[str] = Counter()
    for record in records:
        total.update(record.ops)
    return total


def _changed_sides(edits: Edits, old: Joined, new: Joined) -> int:
    """Return how many operations run before the boundary that ran after it, or less than none.

    Operations that went both ways were matched across two parts that are alike.
    """
    earlier = later = 0
    for k, partner in enumerate(edits.match.to_before):
        if partner < 0 or edits.b.vertices[k].is_leaf:
            continue
        earlier += new.parts[k] < old.parts[partner]
        later += new.parts[k] > old.parts[partner]
    if min(earlier, later) > _STRAY * max(earlier, later):
        return 0
    return earlier if earlier > later else -later


def _forget_what_lived_at_the_cut(edits: Edits, old: Joined, new: Joined) -> None:
    """Variables alive at one place of the cut, and not at the other, have it for their cause."""
    match = edits.match
    edits.new_roots = _of_their_own(
        edits.b, edits.new_roots, edits.added, match.to_before, new, old
    )
    edits.gone_roots = _of_their_own(
        edits.a, edits.gone_roots, edits.removed, match.to_now, old, new
    )


def _of_their_own(
    snapshot: Snapshot, roots: list[int], free: set[int], partners: Sequence[int],
    mine: Joined, other: Joined,
) -> list[int]:  # fmt: skip
    """Return the results of one side that the cut does not account for.

    Args:
        snapshot: That of the side.
        roots: Its results that the other side has not.
        free: Its vertices without a partner.
        partners: The partner of each vertex.
        mine: The side.
        other: The other one.
    """
    return [
        k
        for k in roots
        if not _was_alive(snapshot.roots[k], partners, other)
        and (
            is_kept(snapshot.root_names.get(k))
            or snapshot.roots[k][0] in free
            or not _lived(snapshot.roots[k][0], partners, mine, other)
        )
    ]


def _take_what_the_cuts_brought(edits: Edits, old: Joined, new: Joined) -> Taken:
    """Take out what was computed to be read at a cut, and what is computed of what was read."""
    added = _brought(edits.b, edits.new_roots, edits.added, new)
    removed = _brought(edits.a, edits.gone_roots, edits.removed, old)
    return edits.take(added, removed)


def _brought(
    snapshot: Snapshot, roots: list[int], free: set[int], side: Joined
) -> set[int]:
    if side.record is side.first:
        return set()
    if not is_cut(side.first.key.ended_by):
        return _views_taken_again(snapshot, free, side)
    read = [
        k
        for k in roots
        if not side.parts[snapshot.roots[k][0]]
        and not is_kept(snapshot.root_names.get(k))
    ]
    found = exclusive(snapshot, read, free)[0] | of_new_inputs(snapshot, free)
    return found | _views_taken_again(snapshot, free, side)


def _views_taken_again(snapshot: Snapshot, free: set[int], side: Joined) -> set[int]:
    """Return the views that the second part takes of what the first one computed."""
    found: set[int] = set()
    for k in sorted(free):
        vertex = snapshot.vertices[k]
        if is_view(vertex) and all(
            operand in found or not side.parts[operand]
            for operand, _ in vertex.operands
        ):
            found.add(k)
    return found


def _was_alive(root: tuple[int, int], partners: Sequence[int], other: Joined) -> bool:
    """Return whether a result of one side is one of the other side, too, by whatever name."""
    vertex, index = root
    return (partners[vertex], index) in other.alive


def _lived(vertex: int, partners: Sequence[int], mine: Joined, other: Joined) -> bool:
    return not mine.parts[vertex] or not other.parts[partners[vertex]]


def _cause(
    new: Sequence[CompiledGraph],
    old: Sequence[CompiledGraph],
    moved: int,
    brought: Taken,
) -> Cause:
    """Return the cause of a graph that begins elsewhere.

    Args:
        new: The graph before it and itself.
        old: What both were, in two graphs or in one.
        moved: How many ops run before the cut that ran after it, or less than none.
        brought: What was computed for the sake of a cut.
    """
    mark, was = new[0].key.ended_by, old[0].key.ended_by
    line = f"{mark[0]}{at(mark[1])}"
    if len(old) == 1 and is_fallback(mark):
        text = ran_on_the_cpu(mark)
    elif len(old) == 1:
        text = (
            f"the step began later: {line} ran its first part alone ({new[0].name}), which "
            f"{old[0].name} ran as one with the rest"
        )
    else:
        if differs(mark, was):
            line += f" instead of {was[0]}{at(was[1])}"
        sides = "before it run after it" if moved < 0 else "after it run before it"
        text = (
            f"the boundary in front of this graph came {'earlier' if moved < 0 else 'later'}, "
            f"{line}: {count(abs(moved), 'operation')} that ran {sides} now"
        )
    return Cause(
        kind="fallback" if is_fallback(mark) and differs(mark, was) else "step_cut",
        text=text,
        fix=cut_fix(mark),
        now=mark[1],
        before=was[1],
        taken=Taken(max(-moved, 0) + brought.added, max(moved, 0) + brought.removed, 0),
    )


def _ended_elsewhere(now: CompiledGraph, census: Census) -> Moved | None:
    """Return that a graph is the first of two with their boundary at another place."""
    pairs = [
        pair
        for pair in dict.fromkeys(census.successions())
        if now not in pair and follows(pair[1], pair[0]) and _begins_alike(now, pair[0])
    ]
    ours = now.ops

    def likeness(pair: tuple[CompiledGraph, ...]) -> tuple[float, tuple[int, int]]:
        theirs = _by_op(pair)
        alike = shared(ours, theirs) / max(min(ours.total(), theirs.total()), 1)
        return alike, (_common(now, pair[0]), _common(now, pair[1]))

    for first, second in _best(pairs, likeness):
        if _is_longer(now, first, second):
            found = _later(now, first, second)
        else:
            found = _sooner(now, first)
        if found is not None:
            return found
    return None


def _begins_alike(now: CompiledGraph, first: CompiledGraph) -> bool:
    return (
        first.snapshot is not None
        and begin_alike(now, first)
        and not is_cut(now.key.ended_by)
        # A step of one graph begins where it ended: its loops are no boundary that moved.
        and differs(now.key.began_after, first.key.ended_by)
        and _share(now, first) >= _ALIKE
    )


def _share(now: CompiledGraph, first: CompiledGraph) -> float:
    """Return how many operations of the smaller graph stand where the other has some too.

    In evaluation they are others on the same lines.
    """
    ours, theirs = (
        Counter(spot_of(vertex)[1:] for vertex in nodes_of(record))
        for record in (now, first)
    )
    return shared(ours, theirs) / max(min(ours.total(), theirs.total()), 1)


def _is_longer(now: CompiledGraph, first: CompiledGraph, second: CompiledGraph) -> bool:
    """Return whether a graph goes on into what ran after the boundary, at the same places."""
    ours, own, after = (
        Counter(spot_of(vertex) for vertex in nodes_of(record))
        for record in (now, first, second)
    )
    return bool((ours - own) & after)


def _later(
    now: CompiledGraph, first: CompiledGraph, second: CompiledGraph
) -> Moved | None:
    old = joined(first, second)
    edits = Edits(old.record, now)
    after = [
        k
        for k, partner in enumerate(edits.match.to_before)
        if partner >= 0 and old.parts[partner] and not edits.b.vertices[k].is_leaf
    ]
    brought = _take_what_the_cuts_brought(edits, old, alone(now))
    left = _take_what_was_not_reached(edits)
    edits.new_roots = [
        k
        for k in edits.new_roots
        if not _was_alive(edits.b.roots[k], edits.match.to_before, old)
    ]
    # The same graph twice over is a boundary that is missing between two steps.
    if not after or (not left and first is second):
        return None
    mark, was = now.key.ended_by, first.key.ended_by
    return Moved(
        _at_the_end(
            mark,
            was,
            "later",
            len(after),
            "after",
            added=len(after) + brought.added,
            removed=brought.removed,
        ),
        first,
        edits,
    )


def _sooner(now: CompiledGraph, first: CompiledGraph) -> Moved | None:
    """Return that a mark came earlier: it stands elsewhere, or is that of an earlier round."""
    mark, was = now.key.ended_by, first.key.ended_by
    if cut_lines(first, now):  # other lines say it themselves
        return None
    edits = Edits(first, now)
    if ends_alike(edits):
        return None
    if not differs(mark, was) and _are_gradients(edits, not_reached(edits)):
        return None  # nobody asks for them any more
    left = _take_what_was_not_reached(edits)
    more = sum(not edits.b.vertices[k].is_leaf for k in edits.added)
    goes_on_for_long = first.nodes < _ALIKE * now.nodes and left <= _STRAY * more
    if not left or goes_on_for_long:
        return None
    return Moved(
        _at_the_end(mark, was, "earlier", left, "before", removed=left), first, edits
    )


def _are_gradients(edits: Edits, vertices: set[int]) -> bool:
    """Return whether some ops of the graph before only gave gradients of parameters."""
    names = edits.a.root_names
    given = [
        names[k].holder if k in names else ""
        for k, (vertex, _) in enumerate(edits.a.roots)
        if vertex in vertices
    ]
    return bool(given) and {*given} == {"gradient"}


def _at_the_end(
    mark: Any, was: Any, when: str, number: int, side: str, **taken: int
) -> Cause:
    instead = f" instead of {was[0]}{at(was[1])}" if differs(mark, was) else ""
    verb = "run before it" if side == "after" else "run after it"
    return Cause(
        kind="step_cut",
        text=f"the step ended {when}: {mark[0]}{at(mark[1])}{instead}, "
        f"{count(number, 'operation')} that ran {side} it {verb} now",
        fix=_GONE_FIX if is_cut(was) and not is_cut(mark) else cut_fix(mark),
        now=mark[1],
        before=was[1],
        taken=Taken(**taken),
    )


def _take_what_was_not_reached(edits: Edits) -> int:
    """Take out what the old graph computes of results of the new one; return how many ops."""
    found = not_reached(edits)
    edits.new_roots = [k for k in edits.new_roots if is_kept(edits.b.root_names.get(k))]
    edits.gone_roots = [
        k
        for k in edits.gone_roots
        if is_kept(edits.a.root_names.get(k)) and edits.a.roots[k][0] not in found
    ]
    edits.take(removed=found)
    return sum(not edits.a.vertices[k].is_leaf for k in found)
