"""Which of the graphs before a new one is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazygraph.explain.compare import differs, position
from lazygraph.snapshot import shared

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping

    from lazygraph.explain.model import Record
    from lazygraph.snapshot import Name

# Each thing in common counts a tenth of the share of operations, which ranges from 0 to 1: the end,
# the sort of end, the start, the inputs' names, and who wrote the state that is read. One number
# for all: of 819 explanations of the tests, 1 was compared with another graph under five weights.
_TENTH = 0.1
# A graph that is a part of the other one is similar, but less so than an equal; a graph of two
# operations is a part of many. Without this, 16 of 267 recompilations were compared with others.
_AS_PART = 0.9
_LEAST_PART = 3


def nearest(record: Record, records: Iterable[Record]) -> tuple[Record, float] | None:
    """Return the graph that explains a new one best, and how similar it is; None if none is.

    All are considered: by operations and types first, then by the lines where they begin and
    end, and the inputs that have names. Of equals it is the one that has fewest operations which
    the new one lacks: work that joined a step takes nothing from it. Then it is the one that ran last.
    Few are compared type by type: the others' operations alone say that they rank behind.

    Args:
        record: The new graph.
        records: Those before; it may be among them.

    Returns:
        The graph, and the share of operations and types that both have, 0 to 1.
    """
    others = [
        (op_similarity(record, other), other)
        for other in records
        if other is not record and other.labels is not None and other.snapshot
    ]
    if not others:
        return None
    others.sort(key=lambda item: item[0], reverse=True)
    alike: dict[Record, float] = {}
    most = 0.0
    for bound, other in others:
        if bound <= most:
            break
        alike[other] = closeness(record, other)
        most = max(most, alike[other])
    best = _best(record, others, alike)
    return best, min(1.0, alike[best])


def _best(
    record: Record,
    others: list[tuple[float, Record]],
    alike: dict[Record, float],
) -> Record:
    """Return the best by all measures."""
    bounds = [
        (ops + _boundary_similarity(record, other), age, other)
        for age, (ops, other) in enumerate(others)
    ]
    bounds.sort(key=lambda item: item[:2], reverse=True)
    best: tuple[float, int, int, str] = (-1.0, 0, -1, "")
    found = others[0][1]
    for bound, _, other in bounds:
        if bound + _TENTH < best[0]:
            break
        if other not in alike:
            alike[other] = closeness(record, other)
        score = (
            alike[other]
            + _boundary_similarity(record, other)
            + _input_similarity(record, other)
        )
        lacked = (other.ops - record.ops).total()
        rank = (score, -lacked, other.last_step, other.name)
        if rank > best:
            best, found = rank, other
    return found


def closeness(one: Record, other: Record) -> float:
    """Return the similarity by ops and types; the same ops on other sizes are close too."""
    assert one.labels is not None
    assert other.labels is not None
    typed = _similarity(one.labels, other.labels)
    return max(typed, (typed + 2 * op_similarity(one, other)) / 3)


def op_similarity(one: Record, other: Record) -> float:
    """Return a cheap similarity, never less than `closeness`: of ops alone, types ignored."""
    return _similarity(one.ops, other.ops)


def _similarity(one: Counter[Any], other: Counter[Any]) -> float:
    common = shared(one, other)
    sizes = one.total(), other.total()
    whole, part = common / max(*sizes, 1), common / max(min(sizes), 1)
    return max(whole, _AS_PART * part if min(sizes) >= _LEAST_PART else 0.0)


def _boundary_similarity(one: Record, other: Record) -> float:
    ends = not differs(one.key.ended_by, other.key.ended_by)
    begins = (
        not differs(one.key.began_after, other.key.began_after)
        or position(one.lines[0]) == position(other.lines[0]) is not None
        or _joined(one, other)
    )
    sort = _sort(one.key.ended_by[0]) == _sort(other.key.ended_by[0])
    return _TENTH * (ends + sort + begins)


def _joined(one: Record, other: Record) -> bool:
    """Return whether a graph has all that another one has, and before it work of other lines."""
    first, snapshot = position(other.lines[0]), one.snapshot
    if first is None or snapshot is None or other.ops - one.ops:
        return False
    return any(position(vertex.site) == first for vertex in snapshot.vertices)


def _sort(ended_by: str) -> str:
    """Return what sort of mark ended a graph: a block, by whatever name, a read, a loader."""
    return ended_by.partition(" ")[0]


def _input_similarity(one: Record, other: Record) -> float:
    """Return how alike two graphs are by their inputs' names and origins."""
    a, b = one.snapshot, other.snapshot
    assert a is not None
    assert b is not None
    return _TENTH * _common(*(_names(side.leaf_names) for side in (a, b)))


def _names(names: Mapping[int, Name]) -> set[str]:
    """Return what there is in each step; the state of an optimizer is not, in the first."""
    return {name.text for name in names.values() if name.holder != "optimizer"}


def _common(one: set[str], other: set[str]) -> float:
    return len(one & other) / max(len(one | other), 1)
