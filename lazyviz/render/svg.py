"""Drawings as SVG: compact, escaped, usable by keyboard, light and dark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazyviz.render import text
from lazyviz.render.collapse import DEFAULT_BUDGET, fold_earlier, overview
from lazyviz.render.escape import markup
from lazyviz.render.layout import Layout, draws_frames, lay_out
from lazyviz.render.measure import (
    DETAIL_CHAR,
    LINE,
    box_size,
    clip,
    detail_text,
    label_text,
    named_in_frames,
)
from lazyviz.render.model import BACKWARD, path_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lazyviz.render.layered import Point
    from lazyviz.render.model import Box, DrawGraph, Kind

_MARGIN = 10
_LEGEND_HEIGHT = 26
_HINT_HEIGHT = 18
_MIN_WIDTH = 120
_ARROW_LENGTH = 6.0
_ARROW_WIDTH = 2.8
LEVELS = 5  # shades of an overlay
_OWNED = frozenset({"parameter", "buffer", "optimizer state"})
_TAKEN = frozenset({"donated", "overwritten"})
_MEANINGS = {
    "donated": "overwritten by this step, which reuses its memory (donated)",
    "overwritten": "overwritten by this step",
    "in place": "overwrites an input",
    "view": "view: shares memory with what it reads",
    "from the CPU": "computed on the CPU by a fallback",
}
_MAX_ARCS = 6  # curves to overwritten inputs; more are said in words alone
_ARC_ROOM = 30
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
    "gb": ("#d3ecdd", "#5fa583", "#10382a"),
}
_DARK = {
    "o": ("#1f2b40", "#56759f", "#d8e4f7"),
    "b": ("#17352a", "#4a8f72", "#cdeedd"),
    "r": ("#2f2342", "#8465ae", "#e6d9f8"),
    "p": ("#3a2e14", "#a0813a", "#f6e4b8"),
    "c": ("#2a2e35", "#6b7380", "#d6dae1"),
    "g": ("#283b5b", "#7d9dd0", "#e6eefb"),
    "gb": ("#1f4636", "#6bb391", "#dcf5e8"),
}
_ROOT = ("#c2456b", "#ef7fa2")  # light, dark
_SELECTED = ("#0b5fd0", "#7cc0ff")
_QUIET = ("#5f6b7a", "#9aa5b4")
# Shades of an overlay, little to most, then what it says nothing of: one hue, from light to
# dark (dark to light on dark paper), which every kind of sight can order.
_SHADES_LIGHT = {
    "k0": ("#f1f6fb", "#a9bfd6", "#1d3557"),
    "k1": ("#cfe1f2", "#8fb0d0", "#1d3557"),
    "k2": ("#93bfe3", "#5c92c2", "#10263f"),
    "k3": ("#2c69a6", "#1d4f82", "#ffffff"),
    "k4": ("#0f4377", "#0a2f55", "#ffffff"),
    "kn": ("#f5f6f7", "#c6cbd2", "#4a525d"),
}
_SHADES_DARK = {
    "k0": ("#1b2530", "#3d5268", "#d3e2f1"),
    "k1": ("#1f3c57", "#416c92", "#dcebf9"),
    "k2": ("#28608f", "#4f8dc0", "#ffffff"),
    "k3": ("#5fa6da", "#8cc2ea", "#06131f"),
    "k4": ("#c3e2fa", "#e6f4ff", "#06131f"),
    "kn": ("#24282e", "#4d545e", "#a6aeb9"),
}


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
    hint: str = "",
) -> Drawing:
    """Fold, lay out and draw a graph.

    Args:
        graph: What to draw, of any size.
        budget: At most so many boxes.
        engine: Layout engine to try first.
        inline: Whether the picture will be part of a page, whose theme it then follows; as
            an image of its own it follows the system's.
        hint: A line below the legend.
    """
    folded = overview(fold_earlier(graph), budget)
    if draws_frames(engine):
        folded = named_in_frames(folded)
    layout = lay_out(folded, engine)
    width, height = _size(folded, layout, legend=True, hint=hint)
    return Drawing(
        svg=emit(folded, layout, inline=inline, hint=hint),
        width=width,
        height=height,
        graph=folded,
        engine=layout.engine,
        notes=layout.notes,
    )


def emit(
    graph: DrawGraph,
    layout: Layout,
    *,
    inline: bool = False,
    legend: bool = True,
    hint: str = "",
) -> str:
    """Return the SVG of a drawing whose boxes have been placed.

    Args:
        graph: The drawing.
        layout: Where its boxes are.
        inline: See `draw`.
        legend: Whether the legend stands below; see `legend_svg`.
        hint: A line below the legend.
    """
    width, height = _size(graph, layout, legend=legend, hint=hint)
    label = f"{markup(graph.kind)}, {text.plural(graph.nodes, 'op')}"
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
        _edges(_routes(graph, layout, aliases=False), ""),
        _edges(_routes(graph, layout, aliases=True), " al"),
        _arcs(graph, layout),
        *_boxes(graph, layout.centres, numbered=inline),
        *(_legend(graph, layout.height) if legend else ()),
        _hint(hint, height),
        "</svg>",
    ]
    return "".join(parts)


def legend_svg(graph: DrawGraph) -> str:
    """Return the legend of an inline drawing by itself; empty if nothing needs explaining."""
    items = _legend_items(graph)
    if not items:
        return ""
    width = round(_legend_width(items))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="lzv" width="{width}" height="14" '
        f'viewBox="0 8 {width} 14" role="img" aria-label="legend">'
        f"{''.join(_legend(graph, 0))}</svg>"
    )


def stylesheet(*, inline: bool = False) -> str:
    """Return the CSS of drawings; `inline` ones follow Jupyter's and VS Code's theme too."""
    light = _variables(_LIGHT | _SHADES_LIGHT, 0)
    dark = _variables(_DARK | _SHADES_DARK, 1)
    themes = f".lzv{{{light}}}@media(prefers-color-scheme:dark){{.lzv{{{dark}}}}}"
    if inline:
        themes += (
            f"[data-jp-theme-light=true] .lzv,.vscode-light .lzv{{{light}}}"
            f"[data-jp-theme-light=false] .lzv,.vscode-dark .lzv{{{dark}}}"
        )
    kinds = "".join(
        f".lzv .{key}{{--f:var(--{key}f);--s:var(--{key}s);--t:var(--{key}t)}}"
        for key in _LIGHT | _SHADES_LIGHT
    )
    return themes + kinds + _RULES


_RULES = (
    ".lzv{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',"
    "monospace;max-width:none}"
    ".lzv rect{fill:var(--f);stroke:var(--s)}"
    ".lzv text{fill:var(--t);text-anchor:middle}"
    ".lzv .l{font-weight:500}"
    ".lzv .q .l{font-weight:800}"
    ".lzv .d{font-size:10px;opacity:.85}"
    ".lzv .q>rect{stroke:var(--root);stroke-width:2.2}"
    ".lzv .old{opacity:.8}.lzv .old .d{opacity:1}"
    ".lzv .again>rect{stroke:#d14d72;stroke-width:2.2}"
    ".lzv .e{fill:none;stroke:#8b97a8;stroke-width:1.1}"
    ".lzv .a{fill:#8b97a8;stroke:none}"
    ".lzv .e.al{stroke-dasharray:5 3;stroke-width:1.5}"
    ".lzv .e.up{stroke:var(--root);stroke-dasharray:2 3;stroke-width:1.3}"
    ".lzv .a.up{fill:var(--root)}"
    ".lzv .w>rect{stroke-width:1.9}"
    ".lzv .x>rect{stroke-dasharray:6 3;stroke-width:1.9}"
    ".lzv rect.u{fill:var(--t);stroke:none;opacity:.75}"
    ".lzv .mate>rect{stroke:var(--root);stroke-width:2;stroke-dasharray:3 2}"
    ".lzv .m{fill:#8b97a8;fill-opacity:.07;stroke:#8b97a8;stroke-opacity:.45}"
    ".lzv .h{fill:var(--quiet);font-size:10px;text-anchor:start}"
    ".lzv g[tabindex]{cursor:pointer;outline:none}"
    ".lzv g[tabindex]:hover>rect,.lzv g[tabindex]:focus>rect,.lzv .sel>rect"
    "{stroke:var(--root);stroke-width:2.4}"
    ".lzv g.sel[tabindex]>rect{stroke:var(--sel);stroke-width:3}"
    ".lzv g[tabindex]:focus-visible>rect{stroke:var(--sel);stroke-width:3}"
)


def _variables(colours: dict[str, tuple[str, str, str]], theme: int) -> str:
    each = (
        f"--{key}f:{fill};--{key}s:{line};--{key}t:{ink};"
        for key, (fill, line, ink) in colours.items()
    )
    others = {"root": _ROOT, "sel": _SELECTED, "quiet": _QUIET}
    return "".join(each) + ";".join(f"--{k}:{v[theme]}" for k, v in others.items())


def _hint(hint: str, height: int) -> str:
    if not hint:
        return ""
    y = height - _MARGIN - 6
    return f'<text class="h" x="0" y="{y}">{markup(hint)}</text>'


def _size(
    graph: DrawGraph, layout: Layout, *, legend: bool, hint: str
) -> tuple[int, int]:
    items = _legend_items(graph) if legend else []
    room = _ARC_ROOM if 0 < len(graph.updates) <= _MAX_ARCS else 0
    width = max(layout.width + room, _MIN_WIDTH, _legend_width(items))
    width = max(width, len(hint) * DETAIL_CHAR)
    height = layout.height + (_LEGEND_HEIGHT if items else 0)
    height += _HINT_HEIGHT if hint else 0
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


def _routes(
    graph: DrawGraph, layout: Layout, *, aliases: bool
) -> list[tuple[Point, ...]]:
    return [
        route
        for edge, route in zip(graph.edges, layout.routes, strict=True)
        if (edge in graph.aliases) is aliases
    ]


def _arcs(graph: DrawGraph, layout: Layout) -> str:
    """Return curves from outputs to the inputs that they overwrite, where they are few."""
    if not 0 < len(graph.updates) <= _MAX_ARCS:
        return ""
    routes = []
    for output, taken in graph.updates:
        (x0, y0), (x1, y1) = layout.centres[output], layout.centres[taken]
        start = x0 + box_size(graph.boxes[output])[0] / 2, y0
        tip = x1 + box_size(graph.boxes[taken])[0] / 2, y1
        out = max(start[0], tip[0]) + 26
        routes.append((start, (out, y0), (out, y1), tip))
    return _edges(routes, " up")


def _edges(routes: Sequence[tuple[Point, ...]], kind: str) -> str:
    """Return all edges as one path and all arrow heads as another."""
    lines, heads = [], []
    for route in routes:
        points = [f"{x:.0f} {y:.0f}" for x, y in route]
        lines.append(f"M{points[0]}C{' '.join(points[1:])}")
        heads.append(_arrow(route))
    if not lines:
        return ""
    return (
        f'<path class="e{kind}" d="{"".join(lines)}"/>'
        f'<path class="a{kind}" d="{"".join(heads)}"/>'
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
    graph: DrawGraph, centres: Sequence[Point], *, numbered: bool
) -> Iterable[str]:
    mates = _mates(graph) if numbered else {}
    for number, (box, (x, y)) in enumerate(zip(graph.boxes, centres, strict=True)):
        attributes = f' data-b="{number}"' if numbered else ""
        if number in mates:
            attributes += f' data-u="{" ".join(map(str, mates[number]))}"'
        yield _box(box, x, y, attributes, shaded=bool(graph.legend))


def _mates(graph: DrawGraph) -> dict[int, list[int]]:
    """Return for each box those that its memory goes to or comes from."""
    found: dict[int, list[int]] = {}
    for output, taken in graph.updates:
        found.setdefault(output, []).append(taken)
        found.setdefault(taken, []).append(output)
    return found


def _box(box: Box, x: float, y: float, attributes: str, *, shaded: bool) -> str:
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
    if box.level is not None:
        lines += _gauge(box.level, left + corner, top + height - 4, width - 2 * corner)
    return (
        f'<g class="{_classes(box, shaded=shaded)}"{_data(box)}{attributes} tabindex="0" '
        f'role="button" aria-label="{markup(", ".join(_facts(box)))}">'
        f"<title>{markup(chr(10).join(_facts(box)))}</title>{sheets}"
        f'<rect x="{left:.0f}" y="{top:.0f}" {rect}/>{lines}</g>'
    )


def _gauge(level: int, x: float, y: float, width: float) -> str:
    """Return a bar as long as an overlay's shade is dark, for those who see no shades."""
    length = width * (level + 1) / LEVELS
    return f'<rect class="u" x="{x:.0f}" y="{y:.0f}" width="{length:.0f}" height="2"/>'


def _classes(box: Box, *, shaded: bool) -> str:
    names = [_KINDS[box.kind][0]]
    if _is_backward_group(box):
        names.append("gb")
    if shaded:
        names.append("kn" if box.level is None else f"k{box.level}")
    if _OWNED.intersection(box.marks):
        names.append("w")
    if _TAKEN.intersection(box.marks):
        names.append("x")
    if box.is_root:
        names.append("q")
    if not box.is_new:
        names.append("old")
    if box.runs > 1:
        names.append("again")
    return " ".join(names)


def _is_backward_group(box: Box) -> bool:
    return box.kind == "group" and box.path[:1] == (BACKWARD,)


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
    facts += [_MEANINGS.get(mark, mark) for mark in box.marks]
    if box.note:
        facts.append(box.note)
    if box.is_root:
        facts.append("output: a live tensor")
    return [" ".join(fact.split()) for fact in facts if fact]


def _legend_items(graph: DrawGraph) -> list[tuple[str, str]]:
    """Return class and name of what needs explaining: nothing when all boxes are alike."""
    if graph.legend:
        return list(graph.legend)
    boxes = graph.boxes
    present = {box.kind for box in boxes}
    marks = {mark for box in boxes for mark in box.marks}
    items = [_KINDS[kind] for kind in _KINDS if kind in present]
    if any(map(_is_backward_group, boxes)):
        items.append(("g gb", "folded, backward"))
    if marks & _OWNED:
        items.append(("p w", "parameter or state"))
    if marks & _TAKEN:
        items.append(("p x", "overwritten"))
    if any(box.is_root for box in boxes) and len(boxes) > 1:
        items.append(("o q", "output"))
    if any(not box.is_new for box in boxes):
        items.append(("o old", graph.dimmed))
    if any(box.runs > 1 for box in boxes):
        items.append(("o again", "executed again"))
    return items if len(items) > 1 else []


def _legend_width(items: Sequence[tuple[str, str]]) -> float:
    return sum(
        (30 if classes else 14) + len(name) * DETAIL_CHAR for classes, name in items
    )


def _legend(graph: DrawGraph, height: float) -> Iterable[str]:
    x, y = 0.0, height + _LEGEND_HEIGHT - 8
    for classes, name in _legend_items(graph):
        if not classes:  # words alone
            yield f'<text class="h" x="{x:.0f}" y="{y:.0f}">{markup(name)}</text>'
            x += 14 + len(name) * DETAIL_CHAR
            continue
        yield (
            f'<g class="{classes}"><rect x="{x:.0f}" y="{y - 8:.0f}" width="12" '
            f'height="9" rx="2.5"/></g>'
            f'<text class="h" x="{x + 17:.0f}" y="{y:.0f}">{markup(name)}</text>'
        )
        x += 30 + len(name) * DETAIL_CHAR
