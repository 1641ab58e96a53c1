"""What a program repeats: rounds of a loop, micro-batches, unrolled steps, equal layers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from lazygraph.snapshot import Snapshot, SourceLocation, Vertex

_Entry = TypeVar("_Entry", bound="Hashable")

# Layers of a model are rounds too, but fewer.
_MANY = 100
_MIN_TIMES = 3
_MIN_OPS = 5
_SHARE = 0.5  # of all ops: the rounds make up most of them
# What is there eight times is there four times twice: a few ops more decide nothing. Rounds
# that lack nothing account for more.
_NEARLY, _NEARLY_WHOLE = 0.8, 0.9
_MAX_COUNTS = 32


class Rounds(NamedTuple):
    """Operations that come again and again.

    Attributes:
        ops: How many there are in one round.
        times: How many rounds.
        lines: Where they stand, such as `cell 3 lines 2-3`; empty where unknown.
    """

    ops: int
    times: int
    lines: str

    def __str__(self) -> str:
        """Return `cell 3 lines 2-3 recorded 3 ops 250 times`."""
        noun = "op" if self.ops == 1 else "ops"
        return f"{self.lines} recorded {self.ops:,} {noun} {self.times:,} times"


def times_of(
    counts: Mapping[_Entry, int], least: int = 2, *, is_whole: bool = False
) -> tuple[int, set[_Entry]]:
    """Return how many rounds account for most of some entries, and for which; 0 for none.

    Args:
        counts: How often each entry is there.
        least: Fewer rounds are none.
        is_whole: Whether each round has all; else an entry may be there once less or more, as
            the first round lacks what adds to the round before, and the last may break off.

    Example:
        >>> times, entries = times_of({"mul": 6, "add": 6, "tanh": 12, "sum": 1})
        >>> times, sorted(entries)
        (6, ['add', 'mul', 'tanh'])
    """
    common = Counter(n for n in counts.values() if n >= least).most_common(_MAX_COUNTS)
    covered = {
        times: sum(n for n in counts.values() if n % times == 0) for times, _ in common
    }
    most = max(covered.values(), default=0)
    if not most:
        return 0, set()
    off, nearly = (0, _NEARLY_WHOLE) if is_whole else (1, _NEARLY)
    times = max(each for each in covered if covered[each] >= nearly * most)
    return times, {
        entry
        for entry, n in counts.items()
        if n >= times - off and min(n % times, -n % times) <= off
    }


def rounds_in(ops: Iterable[tuple[str, SourceLocation | None]]) -> Rounds | None:
    """Return the loop that recorded most of some ops; None if there is no such loop.

    Example:
        >>> from lazygraph.snapshot import SourceLocation
        >>> line = SourceLocation("train.py", 7, "train")
        >>> str(rounds_in([("aten.mul.Tensor", line), ("aten.add.Tensor", line)] * 300))
        'train.py:7 recorded 2 ops 300 times'
    """
    counts = Counter(ops)
    known = {entry: n for entry, n in counts.items() if entry[1] is not None}
    times, inside = times_of(known, _MANY)
    if sum(counts[entry] for entry in inside) < max(1, _SHARE * counts.total()):
        return None
    return Rounds(
        sum(round(counts[entry] / times) for entry in inside),
        times,
        lines_of(site for _, site in inside if site),
    )


def repeated_block(
    snapshot: Snapshot, ended_at: SourceLocation | None
) -> Rounds | None:
    """Return the block that most of a graph repeats; None if there is none.

    Rounds read the same parameters. Layers, which have their own, are no rounds. Of several
    functions, lines in that of the line which ended the graph are told.
    """
    nodes = [vertex for vertex in snapshot.vertices if not vertex.is_leaf]
    counts = Counter(map(_spot, nodes))
    times, spots = times_of(counts, _MIN_TIMES)
    if not times:
        return None
    ops = sum(round(counts[spot] / times) for spot in spots)
    covered = sum(counts[spot] for spot in spots)
    if ops < _MIN_OPS or covered < _SHARE * len(nodes):
        return None
    if not _read_alike(snapshot, times):
        return None
    sites = [v.site for v in nodes if v.site is not None and _spot(v) in spots]
    wanted = (ended_at.file, ended_at.function) if ended_at is not None else None
    kept = [site for site in sites if (site.file, site.function) == wanted]
    return Rounds(ops, times, lines_of(kept or sites))


def _spot(vertex: Vertex) -> Hashable:
    return (vertex.op, vertex.types, vertex.scope, vertex.backward, vertex.site)


def _read_alike(snapshot: Snapshot, times: int) -> bool:
    """Return whether some input is read in each round, as it is or turned once for all."""
    vertices = snapshot.vertices
    reads = Counter(operand for v in vertices for operand, _ in v.operands)
    return any(
        vertices[each].op == "data"
        for k, number in reads.items()
        if number >= times
        for each in (k, *(operand for operand, _ in vertices[k].operands))
    )


def lines_of(sites: Iterable[SourceLocation]) -> str:
    """Return the lines of the function that most of some places stand in."""
    found = list(sites)
    if not found:
        return ""
    file, function = Counter((s.file, s.function) for s in found).most_common(1)[0][0]
    kept = [site for site in found if (site.file, site.function) == (file, function)]
    first, last = min(site.line for site in kept), max(site.line for site in kept)
    span = f"{first}-{last}" if first != last else f"{first}"
    if kept[0].cell is not None:
        return f"cell {kept[0].cell} line{'s' if first != last else ''} {span}"
    return f"{file.rsplit('/', 1)[-1]}:{span}"
