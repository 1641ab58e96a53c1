"""The timeline of a session as tables, and what both its text and its picture show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lazyviz.render import text
from lazyviz.render.gaps import Gaps, gaps_text
from lazyviz.render.measure import clip
from lazyviz.render.phases import PHASES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazyviz.render.spans import CellTime, Span

_TEXT_ROWS = 40


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
    """

    cells: Sequence[CellTime]
    spans: Sequence[Span]
    dropped: int = 0
    gaps: Gaps | None = None
    lines: Sequence[tuple[str, str, float]] = field(default_factory=list)
    earlier: int = 0
    whole: str = ""


def timeline_text(view: TimelineView, rows: int = _TEXT_ROWS) -> str:
    """Return the same as tables: the cells by phase, what happened last, and who waited."""
    if not view.cells:
        return (
            "Nothing has happened on the lazy device in a cell that has ended. The timeline "
            "begins with the first one."
        )
    parts = [_cell_table(view.cells)]
    if view.earlier:
        parts.append(f"({text.plural(view.earlier, 'cell')} before these)")
    if view.gaps is not None:
        parts.append(gaps_text(view.gaps))
    if view.lines:
        parts.append(_lines_text(view.lines))
    events = [span for span in view.spans if span.lane not in {"host", "transfer"}]
    if events and rows:
        parts.append(_event_table(events[-rows:], view.cells))
        hidden = len(events) - rows
        if hidden > 0 or view.dropped:
            many = text.plural(max(hidden, 0) + view.dropped, "earlier span")
            parts.append(f"({many}; %lazy timeline --export FILE.json writes all kept)")
    return "\n\n".join(part for part in parts if part)


def _lines_text(lines: Sequence[tuple[str, str, float]]) -> str:
    rows = [
        (site, text.share(share), clip(source, 60)) for site, source, share in lines
    ]
    return "recording by line, sampled:\n" + text.table(["at", "share", "line"], rows)


def _cell_table(cells: Sequence[CellTime]) -> str:
    names = [name for name in PHASES if any(name in cell.parts for cell in cells)]
    header = ["cell", "time", *names, "device"]
    rows = [
        (
            cell.number if cell.number is not None else "",
            text.duration(cell.end_ns - cell.start_ns),
            *(
                text.duration(cell.parts[name]) if name in cell.parts else ""
                for name in names
            ),
            text.duration(cell.device_ns) if cell.device_ns else "",
        )
        for cell in cells
    ]
    return text.table(header, rows)


def _event_table(spans: Sequence[Span], cells: Sequence[CellTime]) -> str:
    start = cells[0].start_ns
    rows = [
        (
            f"{max(span.end_ns - start, 0) / 1e9:.3f} s",
            span.cell if span.cell is not None else "",
            span.lane if span.lane != "step" else span.kind,
            clip(span.name, 60),
            text.duration(span.duration_ns) if span.duration_ns else "",
            span.site,
        )
        for span in spans
    ]
    return text.table(["ended at", "cell", "what", "name", "took", "line"], rows)
