"""What is known of one replica: its barriers in order, their graphs, and its last sign of life."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from lazygraph import Graph
    from lazygraph.snapshot import SourceLocation


State = Literal["ended", "failed", "full", "running", "silent", "dump"]

Kind = Literal["equal", "gap", "graph", "place", "cut", "idle"]
# Cells of the tables that are filled, all groups together, and barriers of one that are aligned.
_MAX_CELLS = 1_000_000
_MAX_ALIGNED = 250
_SAME, _SAME_PLACE, _SAME_GRAPH = 6, 3, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """One barrier of a replica.

    Attributes:
        cause: Such as `mark_step()` or `read by .cpu()`.
        tensor: What was read, as the source names it; may be empty.
        place: The user's line; None where unknown.
        lines: The lines that lead there, innermost first.
        step: Name and number of the `step()` around it; may be empty.
        graph: What tells its graph from others, equal for equal graphs of all replicas; empty
            where none ran.
        ops: Size of the graph.
        ran: Whether anything ran.
        time: When it was done, in seconds since 1970; 0 where unknown.
        word: What it is called: a barrier, or a collective.
    """

    cause: str
    tensor: str = ""
    place: SourceLocation | None = None
    lines: tuple[SourceLocation, ...] = ()
    step: str = ""
    graph: str = ""
    ops: int = 0
    ran: bool = True
    time: float = 0.0
    word: Literal["barrier", "collective"] = "barrier"

    @property
    def where(self) -> tuple[str, str]:
        """What is equal for the same barrier of two replicas: why it was, and on which line."""
        return self.cause, str(self.place or "")

    @property
    def what(self) -> tuple[tuple[str, str], str]:
        """Where it was, and what it ran."""
        return self.where, self.graph

    def __str__(self) -> str:
        """Return `mark_step() at train.py:41`."""
        return f"{self.cause} at {self.place}" if self.place else self.cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One graph of a replica.

    Attributes:
        load: Gives it in normal form.
        record: Gives the runtime's own record of it, for its causes; None for others' dumps.
    """

    load: Callable[[], Graph]
    record: Callable[[], Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """What one replica left behind.

    Attributes:
        name: Such as `0`.
        path: The file.
        barriers: In order.
        programs: Its graphs, by what tells them apart.
        of: How many replicas there are, as the program was told; None where it was not.
        state: How the file ends: `ended`, `failed` (an exception), `full` (its limit), `running`
            (a sign of life just now), `silent` (none, and no end), `dump` (nothing is known).
        started, last_time: First and last sign of life, in seconds since 1970; 0 where unknown.
        last_lines: Where it was then, innermost first.
        entered: A barrier that was entered and never done.
        failure: Name of the exception that ended it; may be empty.
        notes: What else is to be said of the file.
    """

    name: str
    path: Path
    barriers: tuple[Barrier, ...]
    programs: Mapping[str, Program] = field(default_factory=dict)
    of: int | None = None
    state: State = "dump"
    started: float = 0.0
    last_time: float = 0.0
    last_lines: tuple[SourceLocation, ...] = ()
    entered: Barrier | None = None
    failure: str = ""
    notes: tuple[str, ...] = ()

    @property
    def is_cut(self) -> bool:
        """Whether more may have followed than it tells of."""
        return self.state in {"failed", "full", "running", "silent"}


def order(name: str) -> tuple[bool, int, str]:
    """Return what sorts replicas: numbers first, by their value."""
    return not name.isdecimal(), int(name) if name.isdecimal() else 0, name


def called(names: Sequence[str]) -> str:
    """Return some replicas as a subject: `replica 1`, `replicas 0 and 2`, `replicas 0 to 6`.

    Example:
        >>> called(["3"]), called(["0", "1", "2", "5"])
        ('replica 3', 'replicas 0 to 2 and 5')
    """
    if len(names) == 1:
        return f"replica {names[0]}"
    parts = _ranges(names)
    if len(parts) > 6:  # noqa: PLR2004 - more are no sentence
        return f"{len(names)} replicas ({', '.join(parts[:5])}, ...)"
    return f"replicas {', '.join(parts[:-1])}{' and ' if len(parts) > 1 else ''}{parts[-1]}"


def _ranges(names: Sequence[str]) -> list[str]:
    if not all(name.isdecimal() for name in names):
        return list(names)
    parts: list[list[int]] = []
    for number in sorted(map(int, names)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return [
        f"{p[0]} to {p[-1]}" if len(p) > 2 else " and ".join(map(str, p))  # noqa: PLR2004
        for p in parts
    ]


@dataclass(frozen=True, slots=True)
class Row:
    """One barrier, as each replica has it.

    Attributes:
        cells: Position of the barrier in each replica's own list; None for a gap.
        kind: `equal`; `graph` or `place`, for which it differs; `gap`, one that some have not;
            `cut`, one that some have not as they ended before; `idle`, a gap where nothing ran.
    """

    cells: tuple[int | None, ...]
    kind: Kind


class Aligned(NamedTuple):
    """All rows that were compared.

    Attributes:
        rows: In order; equal ones at the start are `common` and not listed.
        common: Rows at the start that are equal in all.
        left: Barriers of each replica behind the last row, which were not compared.
    """

    rows: tuple[Row, ...]
    common: int
    left: tuple[int, ...]


def align(tracks: Sequence[Track]) -> Aligned:
    """Return the barriers of replicas side by side."""
    whole = [tuple(b.what for b in track.barriers) for track in tracks]
    common = _common(whole)
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, sequence in enumerate(whole):
        rest = sequence[common:]
        # Of those that stopped early, the rest is not known: they are no model for the others.
        groups.setdefault((rest, tracks[number].is_cut), []).append(number)
    window = max(16, min(_MAX_ALIGNED, int((_MAX_CELLS / len(groups)) ** 0.5)))
    members = sorted(
        groups.values(),
        key=lambda m: (tracks[m[0]].is_cut, -len(m), -len(whole[m[0]]), m[0]),
    )
    parts = [tracks[m[0]].barriers[common : common + window] for m in members]
    rows = []
    reached = [common] * len(tracks)
    for cells in _merged(parts):
        spread: list[int | None] = [None] * len(tracks)
        for cell, group in zip(cells, members, strict=True):
            for number in group:
                if cell is not None:
                    spread[number] = cell + common
                    reached[number] = cell + common + 1
        rows.append(_row(tuple(spread), tracks, reached, common + window))
    left = tuple(max(0, len(s) - common - window) for s in whole)
    return Aligned(tuple(rows), common, left)


def _common(sequences: Sequence[Sequence[object]]) -> int:
    shortest = min(map(len, sequences))
    first = sequences[0]
    for number in range(shortest):
        if any(sequence[number] != first[number] for sequence in sequences[1:]):
            return number
    return shortest


def _merged(parts: Sequence[Sequence[Barrier]]) -> list[tuple[int | None, ...]]:
    """Return the rows of several lists, each aligned with the first one."""
    base = parts[0]
    between: list[dict[tuple[object, int], list[int | None]]] = [
        {} for _ in range(len(base) + 1)
    ]
    matched: list[list[int | None]] = [
        [k, *[None] * (len(parts) - 1)] for k in range(len(base))
    ]
    for number, part in enumerate(parts[1:], 1):
        at = 0
        for mine, theirs in [*_pairs(base, part), (len(base), len(part))]:
            seen: dict[object, int] = {}
            for extra in range(at, theirs):
                where = part[extra].where
                seen[where] = seen.get(where, 0) + 1
                row = between[mine].setdefault(
                    (where, seen[where]), [None] * len(parts)
                )
                row[number] = extra
            if mine < len(base):
                matched[mine][number] = theirs
            at = theirs + 1
    rows: list[tuple[int | None, ...]] = []
    for position, extras in enumerate(between):
        rows += map(tuple, extras.values())
        if position < len(base):
            rows.append(tuple(matched[position]))
    return rows


def _pairs(one: Sequence[Barrier], other: Sequence[Barrier]) -> list[tuple[int, int]]:
    """Return which barriers of two lists are the same, in order, by the most that is alike."""
    best = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i in range(len(one) - 1, -1, -1):
        below, here, mine = best[i + 1], best[i], one[i]
        for k in range(len(other) - 1, -1, -1):
            alike = _alike(mine, other[k])
            here[k] = max(below[k], here[k + 1], below[k + 1] + alike if alike else 0)
    pairs = []
    i = k = 0
    while i < len(one) and k < len(other):
        alike, most = _alike(one[i], other[k]), best[i][k]
        # What a barrier that was left out would have run is run by the next one: of two ways as
        # good, the one in which the gap comes before the graph that differs.
        is_gap_in_time = alike < _SAME and most in {best[i + 1][k], best[i][k + 1]}
        if alike and not is_gap_in_time and most == best[i + 1][k + 1] + alike:
            pairs.append((i, k))
            i, k = i + 1, k + 1
        elif most == best[i + 1][k]:
            i += 1
        else:
            k += 1
    return pairs


def _alike(one: Barrier, other: Barrier) -> int:
    if one.where == other.where:
        return _SAME if one.graph == other.graph else _SAME_PLACE
    return _SAME_GRAPH if one.graph and one.graph == other.graph else 0


def _row(
    cells: tuple[int | None, ...], tracks: Sequence[Track], reached: list[int], end: int
) -> Row:
    """Return a row with its kind.

    `reached` says how many barriers of each replica stand in the rows up to this one, `end` how many
    were aligned at most.
    """
    pairs = list(zip(cells, tracks, strict=True))
    there = [track.barriers[cell] for cell, track in pairs if cell is not None]
    graphs = {b.graph for b in there}
    if len(there) == len(tracks):
        if len(graphs) > 1:
            return Row(cells, "graph")
        return Row(cells, "equal" if len({b.where for b in there}) == 1 else "place")
    if not any(b.ran for b in there):
        return Row(cells, "idle")
    is_over = all(
        count >= end or (track.is_cut and count == len(track.barriers))
        for cell, track, count in zip(cells, tracks, reached, strict=True)
        if cell is None
    )
    if not is_over:
        return Row(cells, "gap")
    return Row(cells, "cut" if len(graphs) == 1 else "graph")
