"""Which of the graphs before a new one is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazygraph.explain.compare import differs, position
from lazygraph.snapshot import shared

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping

    from lazygraph.explain.record import Record
    from lazygraph.snapshot import Name, Snapshot

# Added to the share of operations, which ranges from 0 to 1: of two that are about as similar, the
# same step of the program, of the same model, with the same results.
_SAME_END = 0.15
_SAME_SORT_OF_END = 0.12
_SAME_START = 0.1
_SAME_INPUTS = 0.1
_SAME_SIZE = 0.1
_SAME_RESULTS = 0.05
# A step that makes an optimizer's state is told from those that go on with it, and they from it.
_MAKES_STATE = 0.06
_READS_STATE = 0.03
# What wrote the state that a step goes on with last was the same step of the program, and what
# made it is what the step differs from by reading it.
_WROTE_ITS_STATE = 0.1
_MADE_ITS_STATE = 0.25
# Nothing makes up for operations: at least this share of what the most similar graph has.
_ENOUGH = 0.75
# A part of the other graph is similar, but less so than an equal.
_AS_PART = 0.9
_MORE_THAN_A_SCRAP = 2


def nearest(record: Record, records: Iterable[Record]) -> tuple[Record, float] | None:
    """Return the graph that explains a new one best, and how similar it is; None if none is.

    All are considered: by operations and types first, then by the lines where they begin and
    end, the inputs that have names, and the results. Of equals it is the one that ran last.
    Few are compared type by type: the others' operations alone say that they come behind.

    Args:
        record: The new graph.
        records: Those before; it may be among them.

    Returns:
        The graph, and the share of operations and types that both have, 0 to 1.
    """
    others = [
        (ops_alike(record, other), other)
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
    best = _best(record, others, alike, _ENOUGH * most)
    return best, min(1.0, alike[best])


def _best(
    record: Record,
    others: list[tuple[float, Record]],
    alike: dict[Record, float],
    least: float,
) -> Record:
    """Return the best by all measures of those that are similar enough."""
    bounds = [
        (ops + _lies_alike(record, other), age, other)
        for age, (ops, other) in enumerate(others)
        if ops >= least
    ]
    bounds.sort(key=lambda item: item[:2], reverse=True)
    best: tuple[float, int, str] = (-1.0, -1, "")
    found = others[0][1]
    most = _SAME_INPUTS + _SAME_RESULTS + _MAKES_STATE
    if record.snapshot is not None and _reads_state(record.snapshot):
        most += _MADE_ITS_STATE
    for bound, _, other in bounds:
        if bound + most < best[0]:
            break
        if other not in alike:
            alike[other] = closeness(record, other)
        if alike[other] < least:
            continue
        score = alike[other] + _lies_alike(record, other) + _named_alike(record, other)
        if (score, other.last_step, other.name) > best:
            best, found = (score, other.last_step, other.name), other
    return found


def closeness(one: Record, other: Record) -> float:
    """Return the similarity by ops and types; the same ops on other sizes are close too."""
    assert one.labels is not None
    assert other.labels is not None
    typed = _similarity(one.labels, other.labels)
    return max(typed, (typed + 2 * ops_alike(one, other)) / 3)


def ops_alike(one: Record, other: Record) -> float:
    """Return a cheap similarity, never less than `closeness`: of ops alone, types ignored."""
    return _similarity(one.ops, other.ops)


def _similarity(one: Counter[Any], other: Counter[Any]) -> float:
    common = shared(one, other)
    sizes = one.total(), other.total()
    whole, part = common / max(*sizes, 1), common / max(min(sizes), 1)
    return max(whole, _AS_PART * part if min(sizes) > _MORE_THAN_A_SCRAP else 0.0)


def _lies_alike(one: Record, other: Record) -> float:
    ends = not differs(one.key.ended_by, other.key.ended_by)
    begins = not differs(one.key.began_after, other.key.began_after) or (
        position(one.lines[0]) == position(other.lines[0]) is not None
    )
    sort = _sort(one.key.ended_by[0]) == _sort(other.key.ended_by[0])
    size = min(one.nodes, other.nodes) / max(one.nodes, other.nodes, 1)
    return (
        _SAME_END * ends
        + _SAME_SORT_OF_END * sort
        + _SAME_START * begins
        + _SAME_SIZE * size
    )


def _sort(ended_by: str) -> str:
    """Return what sort of mark ended a graph: a block, by whatever name, a read, a loader."""
    return ended_by.partition(" ")[0]


def _named_alike(one: Record, other: Record) -> float:
    """Return how alike two graphs are by what the user calls their inputs and results."""
    a, b = one.snapshot, other.snapshot
    assert a is not None
    assert b is not None
    inputs = _common(*(_names(side.leaf_names) for side in (a, b)))
    results = _common(*(_names(side.root_names) for side in (a, b)))
    state = _READS_STATE if _reads_state(a) else _MAKES_STATE
    alike = not _keeps_state(a) or _reads_state(a) == _reads_state(b)
    return (
        _SAME_INPUTS * inputs
        + _SAME_RESULTS * results
        + state * alike
        + _wrote_state(a, other.name, b)
    )


def _keeps_state(snapshot: Snapshot) -> bool:
    """Return whether a graph writes what an optimizer keeps: an evaluation does not."""
    return any(name.holder == "optimizer" for name in snapshot.root_names.values())


def _wrote_state(reader: Snapshot, graph: str, writer: Snapshot) -> float:
    """Return how much it counts that a graph gave what another one reads of an optimizer's state."""
    names = reader.leaf_names
    given = {
        names[leaf].text
        for leaf, origin in reader.origins.items()
        if origin.graph == graph and leaf in names and names[leaf].holder == "optimizer"
    }
    if not given:
        return 0.0
    read = {name.text for name in writer.leaf_names.values()}
    return _WROTE_ITS_STATE if given <= read else _MADE_ITS_STATE


def _reads_state(snapshot: Snapshot) -> bool:
    """Return whether a graph reads what an optimizer keeps, and so does not make it."""
    return any(name.holder == "optimizer" for name in snapshot.leaf_names.values())


def _names(names: Mapping[int, Name]) -> set[str]:
    """Return what there is in each step; the state of an optimizer is not, in the first."""
    return {name.text for name in names.values() if name.holder != "optimizer"}


def _common(one: set[str], other: set[str]) -> float:
    return len(one & other) / max(len(one | other), 1)
