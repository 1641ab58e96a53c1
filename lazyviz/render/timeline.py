"""The timeline of a session as a picture and as text. Bounded, whatever the session did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from lazyviz.render import text
from lazyviz.render.escape import markup
from lazyviz.render.gaps import Gaps, gaps_text
from lazyviz.render.measure import clip
from lazyviz.render.phases import COLOURS, PHASES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lazyviz.render.spans import CellTime, Span

MAX_SVG_BYTES = 60_000
MAX_DETAILED_BYTES = 400_000
_WIDTH = 940
_LABELS = 74
_ROW = 18
_GAP = 6
_BREAK = 14  # width of a pause between cells
_AXIS = 22
_LEGEND = 20
_CHAR = 6.0
_ROW_NAMES = {
    "cell": "cells",
    "step": "steps",
    "host": "host",
    "compile": "compiles",
    "transfer": "transfers",
    "device": "device",
}
_ROWS = tuple(_ROW_NAMES)
_MARKS = ("barrier", "implicit barrier", "look", "fallback", "dropped")
# Colours of what is no phase of the host.
_OTHERS = {
    "cell": "#dfe6f1",
    "run": "#b9cbe8",
    "run2": "#d5e0f2",
    "block": "#7d9dd0",
    "scope": "#9fb6da",
    "closure": "#b78ac6",
    "asynchronous closure": "#d3b5de",
    "load": "#f0dba6",
    "to_device": "#4aa3a8",
    "to_host": "#86c5c8",
    "step": "#5b86d6",
    "peek": "#a27fce",
}
_DEVICE_OTHER = "#8fa9d8"
_DARK = frozenset((COLOURS["dispatch"],))  # labels on these are white
_MARK_COLOURS = {kind: f"var(--m{k})" for k, kind in enumerate(_MARKS)}
_MARK_NAMES = {
    "barrier": "▼ barrier you wrote",
    "implicit barrier": "◇ barrier by itself",
    "look": "○ look",
    "fallback": "✕ CPU fallback",
    "dropped": "– dropped",
}
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
    """

    cells: Sequence[CellTime]
    spans: Sequence[Span]
    dropped: int = 0
    gaps: Gaps | None = None
    lines: Sequence[tuple[str, str, float]] = field(default_factory=list)
    earlier: int = 0


class _Axis:
    """Where a moment stands: cells to scale, what lies between them as a mark."""

    def __init__(self, cells: Sequence[CellTime]) -> None:
        self._pieces: list[tuple[int, int, float, float]] = []
        total = sum(cell.end_ns - cell.start_ns for cell in cells) or 1
        room = _WIDTH - _LABELS - _BREAK * (len(cells) - 1)
        x = float(_LABELS)
        for cell in cells:
            width = room * (cell.end_ns - cell.start_ns) / total
            self._pieces.append((cell.start_ns, cell.end_ns, x, width))
            x += width + _BREAK
        self.ns_per_px = total / room

    def __call__(self, ns: int) -> float:
        for start, end, x, width in self._pieces:
            if ns < start:
                return x
            if ns <= end:
                return x + width * (ns - start) / max(end - start, 1)
        return self._pieces[-1][2] + self._pieces[-1][3]

    @property
    def pieces(self) -> list[tuple[int, int, float, float]]:
        return self._pieces


class _Shape(NamedTuple):
    x: float
    width: float
    kind: str
    label: str
    title: str


def timeline_svg(view: TimelineView, *, is_detailed: bool = False) -> str:
    """Return the picture; empty without cells.

    Args:
        view: What it shows.
        is_detailed: Whether it is for a page that zooms: also what is much narrower than a
            pixel is drawn by itself then, and the picture may be `MAX_DETAILED_BYTES` large
            instead of `MAX_SVG_BYTES`.
    """
    if not view.cells:
        return ""
    grain = 0.01 if is_detailed else 1.5
    most = MAX_DETAILED_BYTES if is_detailed else MAX_SVG_BYTES
    while True:
        picture = _draw(view, grain)
        if len(picture) <= most or grain > _WIDTH:
            return picture
        grain *= 2


def _draw(view: TimelineView, grain: float) -> str:
    axis = _Axis(view.cells)
    rows: dict[str, list[Span]] = {name: [] for name in _ROWS}
    marks: list[Span] = []
    for span in view.spans:
        if span.lane == "step" and span.kind in _MARKS:
            marks.append(span)
        elif span.lane in rows and span.kind != "handover":
            rows[span.lane].append(span)
    legend_kinds = _legend_kinds(view, rows, marks)
    legend = _legend(legend_kinds)
    height = _AXIS + len(_ROWS) * (_ROW + _GAP) + 14 + legend[1]
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="lzt" width="{_WIDTH}" '
        f'height="{height}" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{markup(_summary(view))}" data-left="{_LABELS}" '
        f'data-floor="{_FLOOR}" data-cells="{_pieces_text(axis)}"><style>{_STYLE}</style>'
    )
    parts = [start]
    parts += _scale(axis)
    y = float(_AXIS)
    for name in _ROWS:
        parts.append(
            f'<text class="l" x="0" y="{y + 12:.0f}">{_ROW_NAMES[name]}</text>'
        )
        parts.append(f'<g data-row="{_ROW_NAMES[name]}">')
        if name == "cell":
            parts += [_rect(shape, y, name, grain) for shape in _cells(view, axis)]
        else:
            if name == "host":
                parts += [_rect(shape, y, name, grain) for shape in _tracing(axis)]
            spans = _side_by_side(rows[name]) if name == "compile" else rows[name]
            shapes = _shapes(spans, axis, grain)
            parts += [_rect(shape, y, name, grain) for shape in shapes]
        parts.append("</g>")
        if name == "step":
            parts += _drawn_marks(marks, axis, y + _ROW, max(grain, 5.0))
            y += 14
        y += _ROW + _GAP
    parts += legend[0](y + 4)
    parts.append("</svg>")
    return "".join(parts)


_STYLE = (
    ".lzt{font:11px ui-sans-serif,system-ui,sans-serif;--q:#5f6b7a;--g:#dfe3e9;"
    "--m0:#1f4e9c;--m1:#c2456b;--m2:#7b4fb0;--m3:#b3541e;--m4:#444c58}"
    "@media(prefers-color-scheme:dark){.lzt{--q:#a7b1bf;--g:#3a4250;"
    "--m0:#9dbdf2;--m1:#ef7fa2;--m2:#c3a3ea;--m3:#f0a070;--m4:#c3cad4}}"
    ".lzt .l,.lzt .k{fill:var(--q)}.lzt .t{fill:#14202e;pointer-events:none}"
    ".lzt .i{fill:#fff}.lzt .a{stroke:var(--g)}.lzt .p{stroke:var(--q);fill:none}"
)


_FLOOR = _AXIS + len(_ROWS) * (_ROW + _GAP) + 8


def _pieces_text(axis: _Axis) -> str:
    """Return where each cell stands and how long it took, for a page that zooms."""
    return ";".join(
        f"{x:.3f},{width:.3f},{end - start}" for start, end, x, width in axis.pieces
    )


def _scale(axis: _Axis) -> list[str]:
    parts = []
    for number, (start, end, x, width) in enumerate(axis.pieces):
        if number:
            middle = x - _BREAK / 2
            parts.append(
                f'<path class="p" data-x="{middle:.1f}" '
                f'd="M{middle - 4:.1f} {_AXIS + 14}l4 -10m1 10l4 -10">'
                "<title>time between cells, not to scale</title></path>"
            )
        for offset, label in _ticks(end - start, width):
            at = x + offset
            parts.append(
                f'<path class="a" d="M{at:.1f} {_AXIS - 4}V{_FLOOR}"/>'
                f'<text class="k" data-tick="" x="{at + 2:.1f}" y="10">{label}</text>'
            )
    return parts


def _ticks(span_ns: int, width: float) -> list[tuple[float, str]]:
    """Return offset and label of round times, far enough from each other to be read."""
    if width < 60 or span_ns <= 0:  # noqa: PLR2004
        return []
    step = 1
    while width * step / span_ns < 70:  # noqa: PLR2004
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return [
        (width * ns / span_ns, text.duration(ns) if ns else "0")
        for ns in range(0, span_ns, step)
        if width * ns / span_ns < width - 30
    ]


def _cells(view: TimelineView, axis: _Axis) -> list[_Shape]:
    shapes = []
    for cell, (_, _, x, width) in zip(view.cells, axis.pieces, strict=True):
        parts = ", ".join(f"{k} {text.duration(ns)}" for k, ns in cell.parts.items())
        title = f"{_cell_name(cell)}: {text.duration(cell.end_ns - cell.start_ns)} = {parts}"
        shapes.append(_Shape(x, width, "cell", _cell_name(cell), title))
    return shapes


def _cell_name(cell: CellTime) -> str:
    return f"cell {cell.number}" if cell.number is not None else "a cell"


def _tracing(axis: _Axis) -> list[_Shape]:
    """Return the ground of the host's row: what nothing else has claimed was tracing."""
    return [
        _Shape(x, width, "trace", "", "trace: recording ops")
        for _, _, x, width in axis.pieces
    ]


def _side_by_side(spans: Sequence[Span]) -> list[Span]:
    """Return compiles from where their lowering ended, which they enclose, so both are seen."""
    ends = [span.end_ns for span in spans if span.kind == "lower"]
    return [
        span._replace(
            start_ns=max(
                [end for end in ends if span.start_ns < end < span.end_ns],
                default=span.start_ns,
            )
        )
        if span.kind == "compile"
        else span
        for span in spans
    ]


def _shapes(spans: Iterable[Span], axis: _Axis, grain: float) -> list[_Shape]:
    """Return what is drawn: wide spans each, narrow ones together by place and kind."""
    wide: list[_Shape] = []
    narrow: dict[int, Counter[str]] = {}
    counts: Counter[int] = Counter()
    runs = 0
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        x, end = axis(span.start_ns), axis(span.end_ns)
        kind = span.kind
        if kind == "run":
            runs += 1
            kind = "run" if runs % 2 else "run2"
        if end - x >= grain:
            wide.append(_Shape(x, end - x, kind, span.name, span_title(span)))
        else:
            column = int(x / grain)
            narrow.setdefault(column, Counter())[kind] += max(span.duration_ns, 1)
            counts[column] += 1
    # Small ones go last, or wide ones that began later would hide them.
    return wide + _merged(narrow, counts, grain)


def _merged(
    narrow: dict[int, Counter[str]], counts: Counter[int], grain: float
) -> list[_Shape]:
    shapes: list[_Shape] = []
    run: list[int] = []

    def close() -> None:
        if not run:
            return
        kinds: Counter[str] = Counter()
        for column in run:
            kinds += narrow[column]
        each = ", ".join(
            f"{_plain(kind)} {text.duration(ns)}" for kind, ns in kinds.most_common(4)
        )
        number = sum(counts[column] for column in run)
        title = f"{text.plural(number, 'short span')}: {each}"
        width = (run[-1] - run[0] + 1) * grain
        kind = kinds.most_common(1)[0][0]
        shapes.append(_Shape(run[0] * grain, width, kind, "", title))
        run.clear()

    for column in sorted(narrow):
        lead = narrow[column].most_common(1)[0][0]
        if run and (
            column != run[-1] + 1 or narrow[run[-1]].most_common(1)[0][0] != lead
        ):
            close()
        run.append(column)
    close()
    return shapes


def _plain(kind: str) -> str:
    return "run" if kind == "run2" else kind.replace("_", " ")


def span_title(span: Span) -> str:
    """Return all that is known of a span, in one line."""
    took = f" · {text.duration(span.duration_ns)}" if span.duration_ns else ""
    where = f" · {span.site}" if span.site else ""
    detail = f" · {clip(span.detail, 300)}" if span.detail else ""
    return f"{clip(span.name, 120)}{took}{where}{detail}"


def _rect(shape: _Shape, y: float, row: str, grain: float) -> str:
    digits, least = (1, 0.8) if grain >= 1 else (3, 0.001)
    colour = _colour(shape.kind, row)
    thin = shape.kind in {"scope", "block"}
    top, height = (y - 3, 4) if thin else (y, _ROW - (2 if row == "step" else 0))
    rect = (
        f'<rect x="{shape.x:.{digits}f}" y="{top:.0f}" '
        f'width="{max(shape.width, least):.{digits}f}" '
        f'height="{height}" fill="{colour}"><title>{markup(shape.title)}</title></rect>'
    )
    room = int((shape.width - 6) / _CHAR)
    if thin or room < 3 or not shape.label:  # noqa: PLR2004
        return rect
    label = markup(clip(shape.label, room))
    light = " i" if colour in _DARK else ""
    return (
        rect
        + f'<text class="t{light}" x="{shape.x + 3:.1f}" y="{y + 12.5:.1f}">{label}</text>'
    )


def _colour(kind: str, row: str) -> str:
    if row == "device":
        return _OTHERS.get(kind, _DEVICE_OTHER)
    return COLOURS.get(kind) or _OTHERS.get(kind, "#c3cad4")


def _drawn_marks(
    marks: Iterable[Span], axis: _Axis, y: float, grain: float
) -> list[str]:
    groups: dict[tuple[int, str], list[Span]] = {}
    for mark in marks:
        groups.setdefault((int(axis(mark.end_ns) / grain), mark.kind), []).append(mark)
    parts = []
    for (_, kind), members in groups.items():
        x = axis(members[-1].end_ns)
        title = span_title(members[-1])
        if len(members) > 1:
            title = f"{len(members):,} × here, the last: {title}"
        parts.append(
            f'<path data-x="{x:.3f}" d="{_glyph(kind, x, y)}" {_paint(kind)}>'
            f"<title>{markup(title)}</title></path>"
        )
    return parts


def _paint(kind: str) -> str:
    colour = _MARK_COLOURS[kind]
    if kind == "barrier":
        return f'fill="{colour}"'
    # The faint ground is what a pointer finds.
    return f'fill="#fff" fill-opacity=".01" stroke="{colour}" stroke-width="1.6"'


def _glyph(kind: str, x: float, y: float) -> str:
    """Return the outline of a mark; the forms differ, not only the colours."""
    if kind == "barrier":
        return f"M{x - 4:.1f} {y + 1:.0f}h8l-4 8z"
    if kind == "implicit barrier":
        return f"M{x:.1f} {y:.0f}l4 5l-4 5l-4 -5z"
    if kind == "look":
        return f"M{x - 3.5:.1f} {y + 5:.0f}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z"
    if kind == "fallback":
        return f"M{x - 3.5:.1f} {y + 1.5:.1f}l7 7m0 -7l-7 7"
    return f"M{x - 4:.1f} {y + 5:.0f}h8"


def _legend_kinds(
    view: TimelineView, rows: dict[str, list[Span]], marks: Sequence[Span]
) -> list[tuple[str, str]]:
    """Return (colour, name) of what the picture has; marks have a sign in their name."""
    phases = {name for cell in view.cells for name in cell.parts} | {
        span.kind for span in rows["host"]
    }
    found = [(COLOURS[name], name) for name in PHASES if name in phases]
    for row in ("step", "compile", "transfer"):
        kinds = dict.fromkeys(span.kind for span in rows[row])
        found += [
            (_colour(kind, row), _plain(kind).replace("run", "step"))
            for kind in kinds
            if kind not in COLOURS
        ]
    kinds = dict.fromkeys(span.kind for span in rows["device"])
    found += [(_colour(kind, "device"), f"device: {kind}") for kind in kinds]
    present = {mark.kind for mark in marks}
    found += [
        (_MARK_COLOURS[kind], _MARK_NAMES[kind]) for kind in _MARKS if kind in present
    ]
    return list(dict.fromkeys(found))


def _legend(kinds: Sequence[tuple[str, str]]) -> tuple[Any, int]:
    """Return what draws the legend at a height, and how high it is."""
    rows: list[list[tuple[float, str, str]]] = [[]]
    x = float(_LABELS)
    for colour, name in kinds:
        width = 22 + len(name) * _CHAR
        if x + width > _WIDTH:
            rows.append([])
            x = float(_LABELS)
        rows[-1].append((x, colour, name))
        x += width

    def draw(y: float) -> list[str]:
        parts = []
        for number, row in enumerate(rows):
            top = y + number * 16
            for x, colour, name in row:
                sign, rest = name[0], name[1:].strip()
                if name[:2].strip() == sign and not sign.isalnum():
                    parts.append(
                        f'<text x="{x:.0f}" y="{top + 10:.0f}" fill="{colour}">{sign}</text>'
                    )
                else:
                    rest = name
                    parts.append(
                        f'<rect x="{x:.0f}" y="{top + 1:.0f}" width="9" height="9" '
                        f'rx="2" fill="{colour}"/>'
                    )
                parts.append(
                    f'<text class="k" x="{x + 13:.0f}" y="{top + 10:.0f}">'
                    f"{markup(rest)}</text>"
                )
        return parts

    return draw, len(rows) * 16 + 8


def _summary(view: TimelineView) -> str:
    wall = sum(cell.end_ns - cell.start_ns for cell in view.cells)
    runs = sum(span.kind == "run" for span in view.spans)
    return (
        f"timeline of {text.plural(len(view.cells), 'cell')}, {text.duration(wall)}, "
        f"{text.plural(runs, 'step')}"
    )


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
        (site, f"{share:.0%}".replace("%", " %"), clip(source, 60))
        for site, source, share in lines
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
