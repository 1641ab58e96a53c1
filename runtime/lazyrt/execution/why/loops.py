"""Loops that ran another number of times, and boundaries that are missing between rounds."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, Any

from lazyrt.execution.why.causes import Cause
from lazyrt.execution.why.edits import (
    at,
    count,
    first_site,
    is_view,
    lists,
    with_leaves,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Snapshot, Vertex


_WHOLE = 0.8
# Of a line alone, so many kinds of op tell that it is a loop's.
_LINES_OPS = 4
_NO_WORK = (
    "aten._to_copy",
    "aten.slice",
    "aten.select",
    "aten._reshape_alias",
    "aten.expand",
    "aten.scalar_tensor",
)


def repeats(edits: Edits) -> list[Cause]:
    """Return a loop that ran another number of times, or a step that held several."""
    sides = (
        (edits.b, edits.a, edits.added, "added"),
        (edits.a, edits.b, edits.removed, "removed"),
    )
    # Types help to tell places apart, unless an input's shape has changed all of them; of equal
    # ops recorded twice, the node says for one only whether it was backward and in which module.
    for (more, fewer, free, sign), spot in product(
        sides, (_typed_spot, _spot, _line_spot)
    ):
        has, had = _count_by(spot, more), _count_by(spot, fewer)
        # What came nowhere before has another cause.
        extra = [
            k
            for k in free
            if not more.vertices[k].is_leaf and had.get(spot(more.vertices[k]))
        ]
        # One op more is no round, and neither is what only views or follows from others.
        if len(extra) < 2 or not any(_is_work(more.vertices[k]) for k in extra):  # noqa: PLR2004
            continue
        places = {spot(more.vertices[k]) for k in extra}
        rounds = _rounds(Counter((had[found], has[found]) for found in places))
        if (
            rounds is None
        ):  # of a gradient's gradient each round adds more to the ones before
            forward = [k for k in extra if not more.vertices[k].backward]
            of_forward = {spot(more.vertices[k]) for k in forward}
            rounds = _rounds(Counter((had[found], has[found]) for found in of_forward))
            places = places if rounds is None or len(forward) < 2 else of_forward  # noqa: PLR2004
        if rounds is None or (spot is _line_spot and len(places) < _LINES_OPS):
            continue
        is_short = rounds[0] == 1 and len(places) < _LINES_OPS
        if is_short and _follow_what_is_told(edits, more, extra):
            continue
        number = sum(has[k] - had[k] for k in places) // (rounds[1] - rounds[0])
        other = edits.removed if sign == "added" else edits.added
        unmatched = [k for k in other if spot(fewer.vertices[k]) in places]
        return [_repeat(edits, rounds, number, extra, unmatched, sign)]
    return []


def _follow_what_is_told(edits: Edits, side: Snapshot, extra: list[int]) -> bool:
    """Return whether few operations are all on results of what has a cause, as another module's."""
    is_now = side is edits.b
    partners = edits.match.to_before if is_now else edits.match.to_now
    free = edits.added if is_now else edits.removed
    told: set[int] = set()
    for k, vertex in enumerate(side.vertices):
        if partners[k] >= 0 or vertex.is_leaf:
            continue
        if k not in free or any(operand in told for operand, _ in vertex.operands):
            told.add(k)
    return told.issuperset(extra)


def _rounds(counts: Counter[tuple[int, int]]) -> tuple[int, int] | None:
    """Return how often a loop ran on both sides, the fewer first, from how often each op came.

    A line of a loop may record an op several times a round, and the first round or the last
    one more or less of them.

    Example:
        >>> _rounds(Counter({(4, 7): 9, (8, 14): 2, (3, 6): 5}))
        (4, 7)
        >>> _rounds(Counter({(3, 4): 4, (6, 8): 9}))
        (3, 4)
    """
    found = {
        pair: sum(n for each, n in counts.items() if _is_of_loop(*each, *pair))
        for pair in counts
        if pair[1] > pair[0]
    }
    whole = [pair for pair, hits in found.items() if hits >= _WHOLE * counts.total()]
    # The numbers of most ops are those of the rounds, unless these record them several times each.
    most = max(whole, key=lambda pair: (counts[pair], -pair[0]), default=None)
    if most is None:
        return None
    # What sums the rounds up comes once less than they do.
    above = (most[0] + 1, most[1] + 1)
    if above in whole and 2 * counts[above] >= counts[most]:
        most = above
    parts = [pair for pair in whole if pair[0] * most[1] == pair[1] * most[0]]
    return min(parts)


def _is_of_loop(had: int, has: int, old: int, new: int) -> bool:
    if had * new == has * old:
        return True
    times, left = divmod(has - had, new - old)
    if new - old == 1:  # every difference is a multiple of one
        return times == 1 and abs(had - old) <= 1
    return times > 0 and not left and had >= times * (old - 1)


def _repeat(
    edits: Edits,
    counts: tuple[int, int],
    number: int,
    extra: list[int],
    unmatched: list[int],
    sign: str,
) -> Cause:
    """Return the cause of `number` ops a round, in which `unmatched` are of the other side."""
    old, new = counts
    snapshot = edits.b if sign == "added" else edits.a
    site = first_site(snapshot.vertices[k] for k in sorted(extra))
    whole = len(extra) * old >= _WHOLE * (new - old) * sum(
        not v.is_leaf for v in (edits.a if sign == "added" else edits.b).vertices
    )
    opposite = "removed" if sign == "added" else "added"
    if any(snapshot.vertices[k].backward for k in extra):
        extra = _with_backward(edits, extra, sign)
        unmatched = _with_backward(edits, unmatched, opposite)
    ours, theirs = (extra, unmatched) if sign == "added" else (unmatched, extra)
    collects = lists(edits, ours, theirs)
    taken = edits.take(
        added=with_leaves(edits.b, ours, edits.added),
        removed=with_leaves(edits.a, theirs, edits.removed),
        changed=collects,
    )
    # Where every operation comes k times as often, the boundary between them is missing; a loop
    # within the step ends where it ended before.
    is_within = edits.now.key.ended_by == edits.before.key.ended_by
    if whole and sign == "added" and new % old == 0 and not is_within:
        return Cause(
            kind="missing_boundary",
            text=f"this graph is {edits.before.name} {new // old} times over: no step boundary "
            f"came between them{at(edits.now.key.ended_by[1])}",
            fix="put the work of each step in `with lazyrt.step():`, which ends in a boundary "
            "however it is left",
            now=edits.now.key.ended_by[1],
            before=edits.before.key.ended_by[1],
            taken=taken,
        )
    if sign == "removed":
        old, new = new, old
    return Cause(
        kind="loop_count",
        text=f"the same {count(number, 'operation')}{at(site)} "
        f"came {'once' if new == 1 else f'{new} times'} instead of {old}"
        + (_draws(snapshot, extra) if sign == "added" else ""),
        fix="run the loop a fixed number of times, or put each round in a step of its own",
        now=site if sign == "added" else None,
        before=site if sign == "removed" else None,
        taken=taken,
        sizes=((old, new),),
    )


def _with_backward(edits: Edits, extra: list[int], sign: str) -> list[int]:
    """Return the ops of more rounds, with what is left of their backward pass.

    It adds gradients up, in the first round and in the last one others than in between. What
    is saved for it is no result of the program.
    """
    snapshot, free = (
        (edits.b, edits.added) if sign == "added" else (edits.a, edits.removed)
    )
    edits.new_roots = [k for k in edits.new_roots if k in edits.b.root_names]
    edits.gone_roots = [k for k in edits.gone_roots if k in edits.a.root_names]
    more = {k for k in free if snapshot.vertices[k].backward}
    return sorted({*extra, *more})


def _is_work(vertex: Vertex) -> bool:
    return not (vertex.backward or is_view(vertex) or vertex.op.startswith(_NO_WORK))


def _draws(snapshot: Snapshot, extra: list[int]) -> str:
    """Return how much further the state of random numbers goes within the step."""
    draws = sum(snapshot.vertices[k].op in snapshot.random for k in extra)
    if not draws:
        return ""
    return (
        f"; random numbers are drawn {count(draws, 'time')} more in one step, as no boundary came "
        "between the rounds"
    )


def _count_by(spot: Callable[[Vertex], Any], snapshot: Snapshot) -> Counter[Any]:
    return Counter(spot(v) for v in snapshot.vertices if not v.is_leaf)


def _spot(vertex: Vertex) -> Any:
    site = vertex.site
    where = (site.line, site.function) if site is not None else None
    return (vertex.op, vertex.scope, vertex.backward, where)


def _line_spot(vertex: Vertex) -> Any:
    return (vertex.op, vertex.site.line if vertex.site is not None else None)


def _typed_spot(vertex: Vertex) -> Any:
    return (*_spot(vertex), vertex.types)
