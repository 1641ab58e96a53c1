"""What a timeline is made of: spans, and the time of each cell; the same as tables."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from lazyviz.doc import Doc, Note, Part, Sentence, Table
from lazyviz.draw.model import clip
from lazyviz.draw.palette import PHASES
from lazyviz.render import text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence


LANES = ("cell", "step", "host", "compile", "transfer", "device")
NO_LINES: Counter[Any] = Counter()  # one for all cells that were not sampled
# Neither recording nor waiting for something that works.
_LOST = ("python", "dispatch", "transfer")
_MAX_LINES = 3
_TEXT_ROWS = 40
Piece = tuple[int, int]


class Span(NamedTuple):
    """Something that took time, or a moment (then it ends when it starts).

    Attributes:
        lane: `cell`, `step`, `host`, `compile`, `transfer`, `device` or, of several, `device 1`;
            `memory`.
        kind: What it is, within its lane: a phase of the ledger, `barrier`, `implicit barrier`,
            `closure`, `to_device`, `fallback`, ...
        name: A few words.
        start_ns, end_ns: On the clock of `time.perf_counter_ns`.
        cell: Execution count of the cell, None outside cells.
        site: The user's line; empty if not known.
        detail: One sentence more, for whoever looks closer.
        flow: Number that a dispatch and its execution share; 0 for none.
        level: How much of the row's height it has, from 0 to 1.
    """

    lane: str
    kind: str
    name: str
    start_ns: int
    end_ns: int
    cell: int | None
    site: str = ""
    detail: str = ""
    flow: int = 0
    level: float = 1.0

    @property
    def duration_ns(self) -> int:
        """How long it took; 0 for a moment."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTime:
    """One cell's time.

    Attributes:
        number: Execution count.
        start_ns, end_ns: When it ran.
        parts: Phases of its own thread and their nanoseconds; they add up to its time.
        device_ns: How long the device worked for it, whatever the thread did meanwhile.
        lines: Samples of the lines that recorded, by line.
    """

    number: int | None
    start_ns: int
    end_ns: int
    parts: dict[str, int]
    device_ns: int
    lines: Counter[Any] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineView:
    """What is shown of a timeline.

    Attributes:
        cells: Cells, in order; the picture's time axis is made of them.
        spans: Spans that ended in or after the first of them.
        dropped: How many earlier spans of the session are forgotten.
        gaps: Whom to blame for the device's idle time in these cells.
        lines: Recording by line: line, source, share.
        earlier: How many cells of the session came before these.
        whole: What the one cell stands for where no session ran it, such as `profile`.
        lanes: The rows, from top to bottom.
    """

    cells: Sequence[CellTime]
    spans: Sequence[Span]
    dropped: int = 0
    gaps: Gaps | None = None
    lines: Sequence[tuple[str, str, float]] = field(default_factory=list)
    earlier: int = 0
    whole: str = ""
    lanes: Sequence[str] = LANES


def timeline_tables(view: TimelineView, rows: int = _TEXT_ROWS) -> Doc:
    """Return the same as tables: the cells by phase, what happened last, and who waited."""
    if not view.cells:
        said = (
            "Nothing has happened on the lazy device in a cell that has ended. The timeline "
            "begins with the first one."
        )
        return Doc([Sentence(said)])
    parts: list[Part] = [_cell_table(view.cells)]
    if view.earlier:
        parts.append(Note(f"({text.plural(view.earlier, 'cell')} before these)"))
    if view.gaps is not None:
        parts.append(Sentence(gaps_text(view.gaps)))
    if (breaks := _breaks(view.spans)) is not None:
        parts.append(breaks)
    if view.lines:
        lines = [
            (at, text.share(share), clip(line, 60)) for at, line, share in view.lines
        ]
        table = Table(["at", "share", "line"], lines)
        parts.append(Doc([Note("recording by line, sampled:"), table]))
    events = [span for span in view.spans if span.lane not in {"host", "transfer"}]
    if events and rows:
        parts.append(_event_table(events[-rows:], view.cells))
        hidden = len(events) - rows
        if hidden > 0 or view.dropped:
            many = text.plural(max(hidden, 0) + view.dropped, "earlier span")
            kept = "%lazy timeline --export FILE.json writes all kept"
            parts.append(Note(f"({many}; {kept})"))
    return Doc(parts, gap="\n\n")


def _cell_table(cells: Sequence[CellTime]) -> Table:
    names = phases_of([cell.parts for cell in cells])
    rows = [
        (
            cell.number,
            *phase_row(cell.end_ns - cell.start_ns, cell.parts, cell.device_ns, names),
        )
        for cell in cells
    ]
    return Table(["cell", "time", *names, "device"], rows)


def phases_of(every: Collection[Mapping[str, int]]) -> list[str]:
    """Return the phases that any of some times has, in their order."""
    return [name for name in PHASES if any(name in parts for parts in every)]


def phase_row(
    wall_ns: int, parts: Mapping[str, int], device_ns: int, names: Iterable[str]
) -> list[str]:
    """Return a time, its phases and the device's time in words, empty where there is none."""
    words = [text.duration(parts[name]) if name in parts else "" for name in names]
    device = text.duration(device_ns) if device_ns else ""
    return [text.duration(wall_ns), *words, device]


def _breaks(spans: Sequence[Span]) -> Part | None:
    """Return the graph breaks by the scope or block that each has split; None without any."""
    around = [span for span in spans if span.kind in {"scope", "block"}]
    times: Counter[tuple[str, str, str]] = Counter()
    lost: Counter[tuple[str, str, str]] = Counter()
    for cut in spans:
        if cut.kind != "cut":
            continue
        inner = min(
            (each for each in around if each.start_ns < cut.end_ns < each.end_ns),
            key=lambda each: each.duration_ns,
            default=None,
        )
        key = inner.name if inner is not None else "", cut.name, cut.site
        times[key] += 1
        lost[key] += cut.duration_ns
    if not times:
        return None
    rows = [(*key, times[key], text.duration(ns)) for key, ns in lost.most_common()]
    table = Table(["scope", "graph break", "line", "times", "time"], rows)
    return Doc([Note("graph breaks, by the scope that each has split:"), table])


def _event_table(spans: Sequence[Span], cells: Sequence[CellTime]) -> Table:
    start = cells[0].start_ns
    rows = [
        (
            f"{max(span.end_ns - start, 0) / 1e9:.3f} s",
            span.cell,
            span.lane if span.lane != "step" else span.kind,
            clip(span.name, 60),
            text.duration(span.duration_ns) if span.duration_ns else "",
            span.site,
        )
        for span in spans
    ]
    return Table(["ended at", "cell", "what", "name", "took", "line"], rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """The device's idle time within some cells.

    Attributes:
        wall_ns: Time of the cells.
        device_ns: How much of it the device worked.
        idle_ns: The rest, by what the cells' thread did meanwhile.
        sites: Time in which neither recording nor the device went on, by the line after it.
    """

    wall_ns: int
    device_ns: int
    idle_ns: dict[str, int] = field(default_factory=dict)
    sites: dict[str, int] = field(default_factory=dict)

    @property
    def lost_ns(self) -> int:
        """Time in which neither tracing nor the device went on."""
        return sum(self.idle_ns.get(name, 0) for name in _LOST)


def gaps(cells: Sequence[CellTime], spans: Iterable[Span], since_ns: int = 0) -> Gaps:
    """Return the device's idle time in some cells and whom to blame for it.

    Args:
        cells: They do not overlap.
        spans: Of the whole session.
        since_ns: Nothing before it counts, for spans that have been forgotten.
    """
    found = list(spans)
    timed = [(max(c.start_ns, since_ns), c.end_ns) for c in cells]
    timed = [piece for piece in timed if piece[0] < piece[1]]
    busy = union(
        (s.start_ns, s.end_ns) for s in found if s.lane == "device" and s.duration_ns
    )
    idle = [piece for cell in timed for piece in _without(busy, *cell)]
    totals: Counter[str] = Counter()
    sites: Counter[str] = Counter()
    for span in found:
        if span.lane != "host" or span.kind == "handover":
            continue
        shared = overlap_ns(idle, span.start_ns, span.end_ns)
        totals[span.kind] += shared
        if span.kind in _LOST and span.site:
            sites[span.site] += shared
    wall = sum(end - start for start, end in timed)
    idle_total = sum(end - start for start, end in idle)
    totals["trace"] += idle_total - sum(totals.values())
    return Gaps(
        wall_ns=wall,
        device_ns=wall - idle_total,
        idle_ns={name: ns for name, ns in totals.most_common() if ns > 0},
        sites={site: ns for site, ns in sites.most_common(_MAX_LINES) if ns > 0},
    )


def gaps_text(gaps: Gaps) -> str:
    """Return the attribution in two sentences at most.

    Example:
        >>> print(gaps_text(Gaps(wall_ns=10**9, device_ns=250_000_000, sites={
        ...     "cell 3 line 7": 200_000_000}, idle_ns={"trace": 550_000_000,
        ...     "python": 200_000_000})))
        device idle 75 % of 1.0 s: trace 55 %, python 20 %
        neither tracing nor the device at work: 200 ms, of which 200 ms before cell 3 line 7
    """
    if not gaps.wall_ns:
        return ""
    idle = gaps.wall_ns - gaps.device_ns
    shares = ", ".join(
        f"{name} {text.share(ns, gaps.wall_ns)}" for name, ns in gaps.idle_ns.items()
    )
    lines = [
        f"device idle {text.share(idle, gaps.wall_ns)} of {text.duration(gaps.wall_ns)}"
        + (f": {shares}" if shares else "")
    ]
    if gaps.lost_ns:
        places = ", ".join(
            f"{text.duration(ns)} before {site}" for site, ns in gaps.sites.items()
        )
        lines.append(
            "neither tracing nor the device at work: "
            + text.duration(gaps.lost_ns)
            + (f", of which {places}" if places else "")
        )
    return "\n".join(lines)


def union(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the stretches that at least one piece covers, in order."""
    found: list[Piece] = []
    for start, end in sorted(pieces):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif end > start:
            found.append((start, end))
    return found


def within(pieces: Sequence[Piece], start: int, end: int) -> Iterator[Piece]:
    """Yield the parts of a stretch that some pieces cover; they are disjoint and in order."""
    first = bisect.bisect_right(pieces, start, key=lambda piece: piece[1])
    for low, high in itertools.islice(pieces, first, None):
        if low >= end:
            return
        yield max(low, start), min(high, end)


def overlap_ns(pieces: Sequence[Piece], start: int, end: int) -> int:
    """Return how much of a stretch some pieces cover; they are disjoint and in order."""
    return sum(high - low for low, high in within(pieces, start, end))


def _without(busy: Sequence[Piece], start: int, end: int) -> Iterator[Piece]:
    """Yield the parts of a stretch that no piece covers."""
    for low, high in within(busy, start, end):
        if low > start:
            yield start, low
        start = high
    if start < end:
        yield start, end
