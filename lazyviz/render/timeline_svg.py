"""The colours and signs of a timeline, and the legend that names them."""

from __future__ import annotations

import base64
import functools
import itertools
import json
import math
import zlib
from collections import Counter
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from lazyviz.draw.model import clip
from lazyviz.draw.palette import PHASE_COLOURS, PHASES
from lazyviz.render import text
from lazyviz.render.html import markup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lazyviz.render.timeline_text import CellTime, Span, TimelineView


WIDTH = 940
LABELS = 74
CHARACTER = 6.0
MARKS = ("barrier", "implicit barrier", "look", "fallback", "dropped", "cut")
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
    "to_device": "#75bdb1",
    "to_host": "#b5ded8",
    "step": "#5b86d6",
    "peek": "#dc9aea",
    "memory": "#a9c4a4",
    "peak": "#e8a33d",
}
_DEVICE_OTHER = "#8fa9d8"
DARK = frozenset((PHASE_COLOURS["dispatch"],))  # labels on these are white
# A graph break is a barrier by itself, with a form of its own.
_MARK_COLOURS = {kind: f"var(--m{k})" for k, kind in enumerate(MARKS[:-1])} | {
    "cut": "var(--m1)"
}
_MARK_NAMES = {
    "barrier": "▼ barrier you wrote",
    "implicit barrier": "◇ barrier by itself",
    "look": "○ look",
    "fallback": "✕ CPU fallback",
    "dropped": "– dropped",
    "cut": "┃ graph break",
}

MAX_SVG_BYTES = 60_000
_LEVEL = 4  # of compression: a third of the time that 6 takes, for 8 % more bytes
_ROW = 18
_MARKED = 14  # how much higher steps are, for the marks under them
_THIN = frozenset(("scope", "block"))
_GAP = 6
_BREAK = 14  # width of a pause between cells
_AXIS = 22
_ROW_NAMES = {
    "cell": "cells",
    "step": "steps",
    "host": "host",
    "compile": "compiles",
    "transfer": "transfers",
    "device": "device",
}
_STYLE = (
    ".lzt{font:11px ui-sans-serif,system-ui,sans-serif;--q:#5f6b7a;--g:#dfe3e9;"
    "--m0:#1f4e9c;--m1:#c2456b;--m2:#7b4fb0;--m3:#b3541e;--m4:#444c58}"
    "@media(prefers-color-scheme:dark){.lzt{--q:#a7b1bf;--g:#3a4250;"
    "--m0:#9dbdf2;--m1:#ef7fa2;--m2:#c3a3ea;--m3:#f0a070;--m4:#c3cad4}}"
    ".lzt .l,.lzt .k{fill:var(--q)}.lzt .t{fill:#14202e;pointer-events:none}"
    "@media(max-width:800px){.lzt{font-size:13px}}"  # of the image that it is shown as
    ".lzt .i{fill:#fff}.lzt .a{stroke:var(--g)}.lzt .p{stroke:var(--q);fill:none}"
)
_FINEST = 1.5  # pixels: spans that are narrower share columns of this width, or of a power of 2 more
_LABEL = 46  # how wide a time such as `300 ms` is


def _row_of(lane: str) -> str:
    """Return what kind of row a lane is: `device` for `device 1` and for `before: device 1`."""
    return lane.rpartition(": ")[2].partition(" ")[0]


def _height_of(lane: str) -> int:
    return (2 if _row_of(lane) == "memory" else 1) * _ROW


def colour_of(kind: str, row: str) -> str:
    """Return the colour of a span of a kind in a row."""
    if row == "device":
        return _OTHERS.get(kind, _DEVICE_OTHER)
    return PHASE_COLOURS.get(kind) or _OTHERS.get(kind, "#c3cad4")


def plain(kind: str) -> str:
    """Return a kind in words."""
    return "run" if kind == "run2" else kind.replace("_", " ")


def glyph(kind: str, x: float, y: float) -> str:
    """Return the outline of a mark; the forms differ, not only the colours."""
    if kind == "barrier":
        return f"M{x - 4:.1f} {y + 1:.0f}h8l-4 8z"
    if kind == "implicit barrier":
        return f"M{x:.1f} {y:.0f}l4 5l-4 5l-4 -5z"
    if kind == "cut":  # across the bars that it splits
        return f"M{x - 1.5:.1f} {y - _ROW - 5:.0f}h3v{_ROW + 15}h-3z"
    if kind == "look":
        return f"M{x - 3.5:.1f} {y + 5:.0f}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z"
    if kind == "fallback":
        return f"M{x - 3.5:.1f} {y + 1.5:.1f}l7 7m0 -7l-7 7"
    return f"M{x - 4:.1f} {y + 5:.0f}h8"


def legend_kinds(
    view: TimelineView, rows: Sequence[_Row], marks: Sequence[Span]
) -> list[tuple[str, str]]:
    """Return (colour, name) of what the picture has; marks have a sign in their name."""
    kinds = {
        row: dict.fromkeys(
            placed.span.kind
            for each in rows
            if _row_of(each.lane) == row
            for placed in each.spans
        )
        for row in ("host", "step", "compile", "transfer", "memory", "device")
    }
    phases = {name for cell in view.cells for name in cell.parts} | {*kinds["host"]}
    found = [(PHASE_COLOURS[name], name) for name in PHASES if name in phases]
    for row in ("step", "compile", "transfer", "memory"):
        found += [
            (colour_of(kind, row), plain(kind).replace("run", "step"))
            for kind in kinds[row]
            if kind not in PHASE_COLOURS
        ]
    found += [
        (colour_of(kind, "device"), f"device: {kind}") for kind in kinds["device"]
    ]
    present = {mark.kind for mark in marks}
    found += [
        (_MARK_COLOURS[kind], _MARK_NAMES[kind]) for kind in MARKS if kind in present
    ]
    return list(dict.fromkeys(found))


def legend(kinds: Sequence[tuple[str, str]], y: float) -> tuple[list[str], int]:
    """Return the legend from a height on, and how high it is."""
    parts, row, x = [], 0, float(LABELS)
    for colour, name in kinds:
        width = 26 + len(name) * CHARACTER
        if x + width > WIDTH:
            row, x = row + 1, float(LABELS)
        top = y + row * 16
        sign, rest = name[0], name[1:].strip()
        if name[:2].strip() == sign and not sign.isalnum():
            parts.append(
                f'<text x="{x:.0f}" y="{top + 10:.0f}" fill="{colour}">{sign}</text>'
            )
        else:
            rest = name
            parts.append(
                f'<rect x="{x:.0f}" y="{top + 1:.0f}" width="9" height="9" rx="2" '
                f'fill="{colour}"/>'
            )
        label = (
            f'<text class="k" x="{x + 13:.0f}" y="{top + 10:.0f}">{markup(rest)}</text>'
        )
        parts.append(label)
        x += width
    return parts, row * 16 + 24


class _Axis:
    """Where a moment stands: cells to scale, what lies between them as a mark."""

    def __init__(self, cells: Sequence[CellTime]) -> None:
        self.pieces: list[tuple[int, int, float, float]] = []
        total = sum(cell.end_ns - cell.start_ns for cell in cells) or 1
        room = WIDTH - LABELS - _BREAK * (len(cells) - 1)
        x = float(LABELS)
        for cell in cells:
            width = room * (cell.end_ns - cell.start_ns) / total
            self.pieces.append((cell.start_ns, cell.end_ns, x, width))
            x += width + _BREAK

    def __call__(self, ns: int) -> float:
        for start, end, x, width in self.pieces:
            if ns < start:
                return x
            if ns <= end:
                return x + width * (ns - start) / max(end - start, 1)
        return self.pieces[-1][2] + self.pieces[-1][3]


class _Shape(NamedTuple):
    x: float
    width: float
    kind: str
    label: str
    title: str
    level: float = 1.0


def timeline_svg(view: TimelineView, *, is_detailed: bool = False) -> str:
    """Return the picture, of `MAX_SVG_BYTES` at most; empty without cells.

    Args:
        view: What it shows.
        is_detailed: Whether it is for a page that zooms: it has all spans as data, too.
    """
    if not view.cells:
        return ""
    axis, grain = _Axis(view.cells), _FINEST
    rows, marks = _rows(view, axis)
    kinds = legend_kinds(view, rows, marks)
    while True:
        picture = _draw(view, axis, rows, marks, kinds, grain)
        if len(picture) <= MAX_SVG_BYTES or grain > WIDTH:
            break
        # A grain that is twice as large leaves half of it at least.
        grain *= 2 ** max(int(math.log2(len(picture) / MAX_SVG_BYTES)), 1)
    if is_detailed:
        packed = _packed(view, axis, rows, marks)
        picture = picture.replace("<svg ", f'<svg data-spans="{packed}" ', 1)
    return picture


class _Placed(NamedTuple):
    """A span, where it begins and ends in the picture, and its kind: steps have two in turn."""

    x: float
    end: float
    kind: str
    span: Span


class _Row(NamedTuple):
    """One row of the picture, and what stands in it.

    Attributes:
        lane: Its lane.
        y: Where it begins.
        spans: All of its spans in order, each part of what a graph break has split by itself.
        wide: Those that are no narrower than the finest column.
        columns: The others, by column.
    """

    lane: str
    y: float
    spans: list[_Placed]
    wide: list[_Placed]
    columns: dict[int, _Column]


@dataclass(slots=True)
class _Column:
    """Narrow spans that share a place: the first, how many, and how long those of each kind took."""

    first: Span
    count: int = 0
    times: Counter[str] = field(default_factory=Counter)

    def add(self, other: _Column) -> None:
        """Take in the spans of another."""
        self.count += other.count
        self.times.update(other.times)


def _fold(
    spans: Iterable[_Placed], columns: dict[int, _Column], grain: float
) -> list[_Placed]:
    """Put spans that are narrower than a column into theirs; return the others."""
    wide = []
    for placed in spans:
        x, end, kind, span = placed
        if end - x >= grain:
            wide.append(placed)
            continue
        column = columns.get(int(x / grain))
        if column is None:
            column = columns[int(x / grain)] = _Column(span)
        column.count += 1
        column.times[kind] += max(span.duration_ns, 1)
    return wide


def _rows(view: TimelineView, axis: _Axis) -> tuple[list[_Row], list[Span]]:
    """Return the rows from the top, and the marks under the steps."""
    found: dict[str, list[Span]] = {lane: [] for lane in view.lanes}
    marks: list[Span] = []
    for span in view.spans:
        if span.lane == "step" and span.kind in MARKS:
            marks.append(span)
        elif span.lane in found and span.kind != "handover":
            found[span.lane].append(span)
    cuts = sorted(mark.end_ns for mark in marks if mark.kind == "cut")
    if marks:
        found["step"] = [part for span in found["step"] for part in _parts(span, cuts)]
    rows, y = [], float(_AXIS)
    for lane, spans in found.items():
        row = _row_of(lane)
        shown = _side_by_side(spans) if row == "compile" else spans
        placed, columns = _placed(shown, axis), dict[int, _Column]()
        wide = [] if row == "memory" else _fold(placed, columns, _FINEST)
        rows.append(_Row(lane, y, placed, wide, columns))
        y += _height_of(lane) + _GAP + (_MARKED if lane == "step" else 0)
    return rows, marks


def _placed(spans: Iterable[Span], axis: _Axis) -> list[_Placed]:
    runs, found = 0, []
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        runs += span.kind == "run"
        kind = "run2" if span.kind == "run" and not runs % 2 else span.kind
        found.append(_Placed(axis(span.start_ns), axis(span.end_ns), kind, span))
    return found


def _draw(
    view: TimelineView,
    axis: _Axis,
    rows: Sequence[_Row],
    marks: Sequence[Span],
    kinds: Sequence[tuple[str, str]],
    grain: float,
) -> str:
    floor = rows[-1].y + _height_of(rows[-1].lane) + _GAP
    floor += _MARKED * (rows[-1].lane == "step")
    explained, legend_height = legend(kinds, floor + 4)
    height = floor + legend_height
    wall = text.duration(sum(cell.end_ns - cell.start_ns for cell in view.cells))
    runs = text.plural(sum(span.kind == "run" for span in view.spans), "step")
    what = view.whole or text.plural(len(view.cells), "cell")
    summary = f"timeline of {what}, {wall}, {runs}"
    # Where each cell stands and how long it took, for a page that zooms.
    cells = ";".join(
        f"{x:.3f},{w:.3f},{end - begin}" for begin, end, x, w in axis.pieces
    )
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="lzt" width="{WIDTH}" '
        f'height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{markup(summary)}" data-left="{LABELS}" '
        f'data-floor="{floor - 6:.0f}" data-cells="{cells}"><style>{_STYLE}</style>'
    )
    parts = [start]
    parts += _scale(axis, round(floor) - 6)
    for each in rows:
        lane, y = each.lane, each.y
        row, name = _row_of(lane), _ROW_NAMES.get(lane, lane)
        title = view.whole if view.whole and row == "cell" else name
        parts.append(f'<text class="l" x="0" y="{y + 12:.0f}">{markup(title)}</text>')
        parts.append(f'<g data-row="{markup(name)}">')
        if row == "memory":
            shapes = _levels(each.spans, grain)
        else:
            shapes = [*_ground(view, lane, axis), *_shapes(each, grain)]
        parts += [_rect(shape, y, row) for shape in shapes]
        parts.append("</g>")
        if lane == "step":
            parts += _drawn_marks(marks, axis, y + _ROW, 5.0)
    return "".join([*parts, *explained, "</svg>"])


def _ground(view: TimelineView, lane: str, axis: _Axis) -> list[_Shape]:
    """Return what stands behind the spans of a row."""
    if lane == "cell":
        return _cells(view, axis)
    if lane != "host" or view.whole:
        return []
    # What nothing else has claimed was tracing.
    title = "trace: recording ops"
    return [_Shape(x, width, "trace", "", title) for _, _, x, width in axis.pieces]


def _packed(
    view: TimelineView, axis: _Axis, rows: Sequence[_Row], marks: Sequence[Span]
) -> str:
    """Return all spans and marks as columns, compressed: what a page draws from as it zooms."""
    titles: dict[str, int] = {}
    columns = []
    for each in rows:
        row, ground = _row_of(each.lane), _ground(view, each.lane, axis)
        shapes = [
            *((s.x, s.width, s.kind, s.title, s.level) for s in ground),
            *((x, end - x, kind, span_title(span), span.level)
              for x, end, kind, span in each.spans),
        ]  # fmt: skip
        shapes.sort(key=itemgetter(0))
        boxes = [_box(kind, level, each.y, row) for _, _, kind, _, level in shapes]
        fills = {kind: colour_of(kind, row) for kind in {shape[2] for shape in shapes}}
        columns.append(
            {
                "x": [round(shape[0], 6) for shape in shapes],
                "w": [round(shape[1], 6) for shape in shapes],
                "y": [top for top, _ in boxes],
                "h": [height for _, height in boxes],
                "fill": [fills[shape[2]] for shape in shapes],
                "title": [titles.setdefault(s[3], len(titles)) for s in shapes],
            }
        )
    packed = {
        "titles": [*titles],
        "rows": columns,
        "marks": [[round(axis(m.end_ns), 6), m.kind, span_title(m)] for m in marks],
    }
    data = json.dumps(packed, separators=(",", ":")).encode()
    data = zlib.compress(data, _LEVEL)
    return base64.b64encode(data).decode()


def _scale(axis: _Axis, floor: int) -> list[str]:
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
                f'<path class="a" d="M{at:.1f} {_AXIS - 4}V{floor}"/>'
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
        if width * ns / span_ns < width - _LABEL
    ]


def _cells(view: TimelineView, axis: _Axis) -> list[_Shape]:
    shapes = []
    for cell, (_, _, x, width) in zip(view.cells, axis.pieces, strict=True):
        parts = ", ".join(f"{k} {text.duration(ns)}" for k, ns in cell.parts.items())
        number = "a cell" if cell.number is None else f"cell {cell.number}"
        name = view.whole or number
        title = f"{name}: {text.duration(cell.end_ns - cell.start_ns)}"
        shapes.append(
            _Shape(x, width, "cell", name, f"{title} = {parts}" if parts else title)
        )
    return shapes


def _side_by_side(spans: Sequence[Span]) -> list[Span]:
    """Return compiles from where their lowering ended, which they enclose, so both are seen."""
    ends = [span.end_ns for span in spans if span.kind == "lower"]
    found = []
    for span in spans:
        within = [end for end in ends if span.start_ns < end < span.end_ns]
        is_cut = span.kind == "compile" and within
        found.append(span._replace(start_ns=max(within)) if is_cut else span)
    return found


def _parts(span: Span, cuts: Sequence[int]) -> list[Span]:
    """Return the parts of a block or a scope that graph breaks have split; another span whole."""
    inside = [cut for cut in cuts if span.start_ns < cut < span.end_ns]
    if span.kind not in {"block", "scope"} or not inside:
        return [span]
    ends = [*inside, span.end_ns]
    starts = [span.start_ns, *inside]
    return [
        span._replace(
            name=f"{span.name}, part {k} of {len(ends)}", start_ns=start, end_ns=end
        )
        for k, (start, end) in enumerate(zip(starts, ends, strict=True), start=1)
    ]


def _shapes(row: _Row, grain: float) -> list[_Shape]:
    """Return what is drawn: wide spans each, narrow ones together by place and kind."""
    columns: dict[int, _Column] = {}
    for number, column in row.columns.items():
        place = int(number * _FINEST / grain)
        columns.setdefault(place, _Column(column.first)).add(column)
    wide = [
        _Shape(x, end - x, kind, span.name, span_title(span))
        for x, end, kind, span in _fold(row.wide, columns, grain)
    ]
    # Small ones go last, or wide ones that began later would hide them.
    return wide + _merged(columns, grain)


def _levels(spans: Iterable[_Placed], grain: float) -> list[_Shape]:
    """Return a curve as bars: of spans in a column that is too narrow for them, the highest."""
    highest: dict[int, Span] = {}
    for x, end, _, span in spans:
        first, last = x / grain, end / grain
        for column in range(int(first), max(int(last), int(first) + 1)):
            if column not in highest or highest[column].level < span.level:
                highest[column] = span
    shapes: list[_Shape] = []
    for column in sorted(highest):
        span, left = highest[column], column * grain
        before = shapes[-1] if shapes else None
        title = span_title(span)
        if (
            before
            and before.title == title
            and left <= before.x + before.width + grain / 2
        ):
            shapes[-1] = before._replace(width=left + grain - before.x)
        else:
            shapes.append(_Shape(left, grain, span.kind, "", title, span.level))
    return shapes


def _merged(columns: dict[int, _Column], grain: float) -> list[_Shape]:
    """Return columns of narrow spans; those side by side that are mostly of one kind are one."""
    shapes = []
    main = {
        k: max(each.times, key=each.times.__getitem__) for k, each in columns.items()
    }
    runs = itertools.groupby(
        enumerate(sorted(columns)), lambda p: (p[1] - p[0], main[p[1]])
    )
    for _, members in runs:
        run = [column for _, column in members]
        whole = _Column(columns[run[0]].first)
        for column in run:
            whole.add(columns[column])
        times = whole.times.most_common()
        each = ", ".join(f"{plain(k)} {text.duration(ns)}" for k, ns in times[:4])
        title = f"{text.plural(whole.count, 'short span')}: {each}"
        if whole.count == 1:
            title = span_title(whole.first)
        width = (run[-1] - run[0] + 1) * grain
        shapes.append(_Shape(run[0] * grain, width, times[0][0], "", title))
    return shapes


def span_title(span: Span) -> str:
    """Return all that is known of a span, in one line."""
    took = f" · {text.duration(span.duration_ns)}" if span.duration_ns else ""
    where = f" · {span.site}" if span.site else ""
    detail = f" · {clip(span.detail, 300)}" if span.detail else ""
    return f"{clip(span.name, 120)}{took}{where}{detail}"


@functools.lru_cache(maxsize=4096)
def _box(kind: str, level: float, y: float, row: str) -> tuple[int, int]:
    """Return where a shape of a row begins, and how high it is."""
    if row == "memory":
        height = max(round(level * _height_of(row)), 1)
        return round(y) + _height_of(row) - height, height
    if kind in _THIN:
        return round(y) - 3, 4
    return round(y), _ROW - (2 if row == "step" else 0)


def _rect(shape: _Shape, y: float, row: str) -> str:
    colour, thin = colour_of(shape.kind, row), shape.kind in _THIN
    top, height = _box(shape.kind, shape.level, y, row)
    rect = (
        f'<rect x="{shape.x:.1f}" y="{top}" width="{max(shape.width, 0.8):.1f}" '
        f'height="{height}" fill="{colour}"><title>{markup(shape.title)}</title></rect>'
    )
    room = int((shape.width - 6) / CHARACTER)
    if thin or room < 3 or not shape.label:  # noqa: PLR2004
        return rect
    label = markup(clip(shape.label, room))
    light = " i" if colour in DARK else ""
    return (
        rect
        + f'<text class="t{light}" x="{shape.x + 3:.1f}" y="{y + 12.5:.1f}">{label}</text>'
    )


def _drawn_marks(
    marks: Iterable[Span], axis: _Axis, y: float, grain: float
) -> list[str]:
    groups: dict[tuple[int, str], list[Span]] = {}
    for mark in marks:
        groups.setdefault((int(axis(mark.end_ns) / grain), mark.kind), []).append(mark)
    parts = []
    for (_, kind), members in groups.items():
        colour = _MARK_COLOURS[kind]
        # The faint ground is what a pointer finds.
        paint = f'fill="#fff" fill-opacity=".01" stroke="{colour}" stroke-width="1.6"'
        if kind in {"barrier", "cut"}:
            paint = f'fill="{colour}"'
        x = axis(members[-1].end_ns)
        title = span_title(members[-1])
        if len(members) > 1:
            title = f"{len(members):,} × here, the last: {title}"
        parts.append(
            f'<path data-x="{x:.3f}" data-kind="{kind}" d="{glyph(kind, x, y)}" {paint}>'
            f"<title>{markup(title)}</title></path>"
        )
    return parts
