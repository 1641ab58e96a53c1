"""Drawings as SVG: compact, escaped, usable by keyboard, light and dark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazyviz.render import text
from lazyviz.render.collapse import DEFAULT_BUDGET, collapse, fold_earlier
from lazyviz.render.escape import markup
from lazyviz.render.layout import Layout, lay_out
from lazyviz.render.measure import (
    DETAIL_CHAR,
    LINE,
    box_size,
    clip,
    detail_text,
    label_text,
)
from lazyviz.render.model import path_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lazyviz.render.layered import Point
    from lazyviz.render.model import Box, DrawGraph, Kind

_MARGIN = 10
_LEGEND_HEIGHT = 26
_MIN_WIDTH = 120
_ARROW_LENGTH = 6.0
_ARROW_WIDTH = 2.8
_SHEET = 3  # how far the sheets under a folded box stick out

_KINDS: dict[Kind, tuple[str, str]] = {
    "parameter": ("p", "input"),
    "constant": ("c", "number"),
    "random": ("r", "random"),
    "op": ("o", "op"),
    "backward": ("b", "backward"),
    "group": ("g", "folded"),
}
# Fill, line and text of each kind.
_LIGHT = {
    "o": ("#edf3fc", "#88a5d1", "#1d3557"),
    "b": ("#e8f6ee", "#7fbd9f", "#174a33"),
    "r": ("#f4edfb", "#b294d6", "#43276b"),
    "p": ("#fdf4e1", "#d8b468", "#5a4108"),
    "c": ("#f3f4f6", "#b4bac4", "#444c58"),
    "g": ("#dce7f8", "#6487c0", "#142c50"),
}
_DARK = {
    "o": ("#1f2b40", "#56759f", "#d8e4f7"),
    "b": ("#17352a", "#4a8f72", "#cdeedd"),
    "r": ("#2f2342", "#8465ae", "#e6d9f8"),
    "p": ("#3a2e14", "#a0813a", "#f6e4b8"),
    "c": ("#2a2e35", "#6b7380", "#d6dae1"),
    "g": ("#283b5b", "#7d9dd0", "#e6eefb"),
}
_ROOT = ("#c2456b", "#ef7fa2")  # light, dark


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A finished drawing.

    Attributes:
        svg: The picture, one element.
        width: Its size in pixels.
        graph: What it shows, after folding.
        engine: The layout engine that placed the boxes.
        notes: Why it was not an engine that comes earlier.
    """

    svg: str
    width: int
    height: int
    graph: DrawGraph
    engine: str
    notes: tuple[str, ...] = ()


def draw(
    graph: DrawGraph,
    *,
    budget: int = DEFAULT_BUDGET,
    engine: str | None = None,
    inline: bool = False,
) -> Drawing:
    """Fold, lay out and draw a graph.

    Args:
        graph: What to draw, of any size.
        budget: At most so many boxes.
        engine: Layout engine to try first.
        inline: Whether the picture will be part of a page, whose theme it then follows; as
            an image of its own it follows the system's.
    """
    folded = collapse(fold_earlier(graph), budget)
    layout = lay_out(folded, engine)
    width, height = _size(folded, layout)
    return Drawing(
        svg=emit(folded, layout, inline=inline),
        width=width,
        height=height,
        graph=folded,
        engine=layout.engine,
        notes=layout.notes,
    )


def emit(graph: DrawGraph, layout: Layout, *, inline: bool = False) -> str:
    """Return the SVG of a drawing whose boxes have been placed."""
    width, height = _size(graph, layout)
    label = f"IR graph, {text.plural(graph.nodes, 'op')}"
    if graph.nodes != len(graph.boxes):
        label += f" in {text.plural(len(graph.boxes), 'box', 'boxes')}"
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="lzv" width="{width}" '
        f'height="{height}" viewBox="{-_MARGIN} {-_MARGIN} {width} {height}" '
        f'role="group" aria-label="{label}">'
    )
    parts = [
        start,
        f"<style>{stylesheet(inline=inline)}</style>",
        *_frames(layout),
        _edges(layout.routes),
        *_boxes(graph.boxes, layout.centres, numbered=inline),
        *_legend(graph.boxes, layout.height),
        "</svg>",
    ]
    return "".join(parts)


def stylesheet(*, inline: bool = False) -> str:
    """Return the CSS of drawings; `inline` ones follow Jupyter's and VS Code's theme too."""
    light, dark = _variables(_LIGHT, _ROOT[0]), _variables(_DARK, _ROOT[1])
    themes = f".lzv{{{light}}}@media(prefers-color-scheme:dark){{.lzv{{{dark}}}}}"
    if inline:
        themes += (
            f"[data-jp-theme-light=true] .lzv,.vscode-light .lzv{{{light}}}"
            f"[data-jp-theme-light=false] .lzv,.vscode-dark .lzv{{{dark}}}"
        )
    kinds = "".join(
        f".lzv .{key}{{--f:var(--{key}f);--s:var(--{key}s);--t:var(--{key}t)}}"
        for key in _LIGHT
    )
    return themes + kinds + _RULES


_RULES = (
    ".lzv{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',"
    "monospace;max-width:none}"
    ".lzv rect{fill:var(--f);stroke:var(--s)}"
    ".lzv text{fill:var(--t);text-anchor:middle}"
    ".lzv .l{font-weight:600}"
    ".lzv .d{font-size:10px;opacity:.8}"
    ".lzv .q>rect{stroke:var(--root);stroke-width:2.2}"
    ".lzv .old{opacity:.55}"
    ".lzv .again>rect{stroke:#d14d72;stroke-width:2.2}"
    ".lzv .e{fill:none;stroke:#8b97a8;stroke-width:1.1}"
    ".lzv .a{fill:#8b97a8;stroke:none}"
    ".lzv .m{fill:#8b97a8;fill-opacity:.07;stroke:#8b97a8;stroke-opacity:.45}"
    ".lzv .h{fill:#7e8a9a;font-size:10px;text-anchor:start}"
    ".lzv g[tabindex]{cursor:pointer;outline:none}"
    ".lzv g[tabindex]:hover>rect,.lzv g[tabindex]:focus>rect,.lzv .sel>rect"
    "{stroke:var(--root);stroke-width:2.4}"
)


def _variables(colours: dict[str, tuple[str, str, str]], root: str) -> str:
    each = (
        f"--{key}f:{fill};--{key}s:{line};--{key}t:{ink};"
        for key, (fill, line, ink) in colours.items()
    )
    return "".join(each) + f"--root:{root}"


def _size(graph: DrawGraph, layout: Layout) -> tuple[int, int]:
    legend = _legend_items(graph.boxes)
    width = max(layout.width, _MIN_WIDTH, _legend_width(legend))
    height = layout.height + (_LEGEND_HEIGHT if legend else 0)
    return round(width + 2 * _MARGIN), round(height + 2 * _MARGIN)


def _frames(layout: Layout) -> Iterable[str]:
    for frame in layout.frames:
        room = max(4, int((frame.width - 14) / DETAIL_CHAR))
        title = markup(clip(frame.title, room))
        yield (
            f'<rect class="m" x="{frame.x:.0f}" y="{frame.y:.0f}" '
            f'width="{frame.width:.0f}" height="{frame.height:.0f}" rx="9"/>'
            f'<text class="h" x="{frame.x + 8:.0f}" y="{frame.y + 13:.0f}">{title}</text>'
        )


def _edges(routes: Sequence[tuple[Point, ...]]) -> str:
    """Return all edges as one path and all arrow heads as another."""
    lines, heads = [], []
    for route in routes:
        points = [f"{x:.0f} {y:.0f}" for x, y in route]
        lines.append(f"M{points[0]}C{' '.join(points[1:])}")
        heads.append(_arrow(route))
    if not lines:
        return ""
    return (
        f'<path class="e" d="{"".join(lines)}"/><path class="a" d="{"".join(heads)}"/>'
    )


def _arrow(route: tuple[Point, ...]) -> str:
    tip_x, tip_y = route[-1]
    back_x, back_y = next(
        (p for p in reversed(route) if abs(p[0] - tip_x) + abs(p[1] - tip_y) > 1),
        (tip_x, tip_y - 1),
    )
    length = ((tip_x - back_x) ** 2 + (tip_y - back_y) ** 2) ** 0.5
    ux, uy = (tip_x - back_x) / length, (tip_y - back_y) / length
    base_x, base_y = tip_x - ux * _ARROW_LENGTH, tip_y - uy * _ARROW_LENGTH
    side_x, side_y = -uy * _ARROW_WIDTH, ux * _ARROW_WIDTH
    return (
        f"M{tip_x:.1f} {tip_y:.1f}L{base_x + side_x:.1f} {base_y + side_y:.1f}"
        f"L{base_x - side_x:.1f} {base_y - side_y:.1f}z"
    )


def _boxes(
    boxes: Sequence[Box], centres: Sequence[Point], *, numbered: bool
) -> Iterable[str]:
    for number, (box, (x, y)) in enumerate(zip(boxes, centres, strict=True)):
        yield _box(box, x, y, f' data-b="{number}"' if numbered else "")


def _box(box: Box, x: float, y: float, attributes: str) -> str:
    width, height = box_size(box)
    left, top = x - width / 2, y - height / 2
    corner = height / 2 if box.kind in {"constant", "parameter"} else 6
    rect = f'width="{width:.0f}" height="{height:.0f}" rx="{corner:.0f}"'
    sheets = "".join(
        f'<rect x="{left + shift:.0f}" y="{top + shift:.0f}" {rect}/>'
        for shift in ((2 * _SHEET, _SHEET) if box.count > 1 else ())
    )
    detail = detail_text(box)
    first = y - 2 if detail else y + 4
    lines = (
        f'<text class="l" x="{x:.0f}" y="{first:.0f}">{markup(label_text(box))}</text>'
    )
    if detail:
        lines += f'<text class="d" x="{x:.0f}" y="{y + LINE - 2:.0f}">{markup(detail)}</text>'
    return (
        f'<g class="{_classes(box)}"{_data(box)}{attributes} tabindex="0" role="button" '
        f'aria-label="{markup(", ".join(_facts(box)))}">'
        f"<title>{markup(chr(10).join(_facts(box)))}</title>{sheets}"
        f'<rect x="{left:.0f}" y="{top:.0f}" {rect}/>{lines}</g>'
    )


def _classes(box: Box) -> str:
    names = [_KINDS[box.kind][0]]
    if box.is_root:
        names.append("q")
    if not box.is_new:
        names.append("old")
    if box.runs > 1:
        names.append("again")
    return " ".join(names)


def _data(box: Box) -> str:
    if not box.members:
        return ""
    return f' data-n="{box.members[-1]}"'


def _facts(box: Box) -> list[str]:
    """Return what a tooltip and a screen reader say of a box."""
    facts = [box.op or label_text(box), box.detail]
    if box.name and box.op:
        facts.insert(0, box.name)
    if len(box.members) > 1 and box.kind != "group":
        facts.append(f"{text.plural(len(box.members), 'node')}, drawn once")
    elif box.members and box.kind != "group":
        facts.append(f"node %{box.members[0]}")
    facts.append(path_text(box.path))
    facts.append(box.site)
    if box.runs > 1:
        facts.append(f"executed {box.runs} times since the last barrier")
    if box.is_root:
        facts.append("output: a live tensor")
    return [" ".join(fact.split()) for fact in facts if fact]


def _legend_items(boxes: Sequence[Box]) -> list[tuple[str, str]]:
    """Return class and name of what needs explaining: nothing when all boxes are alike."""
    present = {box.kind for box in boxes}
    items = [_KINDS[kind] for kind in _KINDS if kind in present]
    if any(box.is_root for box in boxes) and len(boxes) > 1:
        items.append(("o q", "output"))
    if any(not box.is_new for box in boxes):
        items.append(("o old", "earlier cell"))
    if any(box.runs > 1 for box in boxes):
        items.append(("o again", "executed again"))
    return items if len(items) > 1 else []


def _legend_width(items: Sequence[tuple[str, str]]) -> float:
    return sum(30 + len(name) * DETAIL_CHAR for _, name in items)


def _legend(boxes: Sequence[Box], height: float) -> Iterable[str]:
    x, y = 0.0, height + _LEGEND_HEIGHT - 8
    for classes, name in _legend_items(boxes):
        yield (
            f'<g class="{classes}"><rect x="{x:.0f}" y="{y - 8:.0f}" width="12" '
            f'height="9" rx="2.5"/></g>'
            f'<text class="h" x="{x + 17:.0f}" y="{y:.0f}">{name}</text>'
        )
        x += 30 + len(name) * DETAIL_CHAR
