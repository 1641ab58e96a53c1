"""Drawings as SVG: compact, escaped, usable by keyboard, light and dark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazyviz.draw import model
from lazyviz.draw.fold import DEFAULT_BUDGET, fold_earlier, overview
from lazyviz.draw.layout import Layout, draws_frames, lay_out
from lazyviz.draw.palette import CHANGES, FOLLOWS, KINDS, LEVELS, stylesheet
from lazyviz.render import html, text
from lazyviz.render.html import markup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lazyviz.draw.layout import Point

STRIP_BUDGET = 60
MAX_EMBEDDED_BYTES = 65_536

_MOST_SHRUNK = 1_500  # pixels; about 1,050 are there
_LEGEND_HEIGHT, _LEGEND_ROW = 26, 14
_LEGEND_COLUMN = 440  # pixels: half of a notebook's page
_OWNED = frozenset({"parameter", "buffer", "optimizer state"})
_TAKEN = frozenset({"donated", "overwritten"})
_MAX_ARCS = 6  # curves to overwritten inputs; more are said in words alone


def graph_html(
    graph: model.DrawGraph,
    *,
    budget: int = STRIP_BUDGET,
    hint: str = "",
) -> str:
    """Return a graph's drawing as an image that scrolls, folded until it is small enough."""
    drawing = draw(graph, budget=budget, hint=hint)
    while len(drawing.svg) > MAX_EMBEDDED_BYTES and budget > 4:  # noqa: PLR2004
        budget //= 2
        drawing = draw(graph, budget=budget, hint=hint)
    what = f"{graph.kind}, {text.plural(graph.nodes, 'op')}"
    # A little too wide is made to fit; what would be too small to read scrolls.
    limit = "100%" if drawing.width <= _MOST_SHRUNK else "none"
    picture = html.image(drawing.svg, what, max_width=limit)
    notes = "".join(html.muted(f"layout: {note}") for note in drawing.notes)
    return (
        f'<div style="max-height:480px;overflow:auto;margin-top:4px">{picture}</div>'
        f"{notes}"
    )


def legend_svg(graph: model.DrawGraph) -> str:
    """Return the legend of an inline drawing by itself; empty if nothing needs explaining."""
    rows: list[list[tuple[str, str]]] = [[]]
    for item in _legend_items(graph):
        if rows[-1] and _legend_width([*rows[-1], item]) > _LEGEND_COLUMN:
            rows.append([])
        rows[-1].append(item)
    if not rows[0]:
        return ""
    width = round(max(map(_legend_width, rows)))
    height = _LEGEND_ROW * len(rows)
    shapes = [
        shape
        for number, row in enumerate(rows)
        for shape in _legend_shapes(row, _LEGEND_ROW * number)
    ]
    classes = "lzv lzd" if graph.is_diff else "lzv"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{classes}" width="{width}" height="{height}" '
        f'viewBox="0 8 {width} {height}" role="img" aria-label="legend">{"".join(shapes)}</svg>'
    )


def _legend_items(graph: model.DrawGraph) -> list[tuple[str, str]]:
    """Return class and name of what needs explaining: nothing when all is alike.

    A class of lines begins with `e`, that of a folded repetition with `n`; an empty one has
    words alone.
    """
    changes = {box.change for box in graph.boxes if not box.follows}
    told = [
        (style, words if change == "same" else f"{model.MARKS[change]} {words}")
        for change, (style, words) in CHANGES.items()
        if change in changes
    ]
    if any(box.follows for box in graph.boxes):
        told.append(FOLLOWS)
    items = [*(graph.legend or told or _box_items(graph))]
    if graph.aliases:
        items.append(("e al", "view: shares memory"))
    if 0 < len(graph.updates) <= _MAX_ARCS:
        items.append(("e up", "overwrites"))
    return items if told or len(items) > 1 else []


def _box_items(graph: model.DrawGraph) -> list[tuple[str, str]]:
    boxes = graph.boxes
    present = {box.kind for box in boxes}
    marks = {mark for box in boxes for mark in box.marks}
    items = [KINDS[kind] for kind in KINDS if kind in present]
    if any(map(_is_backward_group, boxes)):
        items.append(("g gb", "folded, backward"))
    if any(box.count > 1 for box in boxes):
        items.append(("n o", "×n: repeats n times"))
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
    return items


def _legend_width(items: Sequence[tuple[str, str]]) -> float:
    """Return how wide a legend is in pixels."""
    return sum(_item_width(*item) for item in items)


def _item_width(classes: str, name: str) -> float:
    return (
        14 + len(name) * model.DETAIL_CHAR + (_sample_width(classes) if classes else 0)
    )


def _sample_width(classes: str) -> int:
    return 24 if classes.startswith("e ") else 17


def _legend_shapes(items: Sequence[tuple[str, str]], height: float) -> Iterable[str]:
    """Yield samples and words of a legend below a drawing of some height in pixels."""
    x, y = 0.0, height + _LEGEND_HEIGHT - 8
    for classes, name in items:
        left = x
        if classes:
            yield _sample(classes, x, y)
            left += _sample_width(classes)
        yield f'<text class="h" x="{left:.0f}" y="{y:.0f}">{markup(name)}</text>'
        x += _item_width(classes, name)


def _sample(classes: str, x: float, y: float) -> str:
    if classes.startswith("e "):
        return f'<path class="{classes}" d="M{x:.0f} {y - 3.5:.1f}h19"/>'
    kind, _, rest = classes.partition(" ")
    shifts = (2, 0) if kind == "n" else (0,)
    rects = "".join(
        f'<rect x="{x + shift:.0f}" y="{y - 8 - shift:.0f}" width="12" height="9" rx="2.5"/>'
        for shift in shifts
    )
    return f'<g class="{rest if kind == "n" else classes}">{rects}</g>'


def _is_backward_group(box: model.Box) -> bool:
    """Return whether a box stands for operations of the backward pass."""
    return box.kind == "group" and box.path[:1] == (model.BACKWARD,)


_MARGIN = 10
_MAX_FACT = 300  # characters of one fact in a tooltip
_HINT_HEIGHT = 18
_MIN_WIDTH = 120
_ARROW_LENGTH = 6.0
_ARROW_WIDTH = 2.8
_MEANINGS = {
    "donated": "overwritten by this step, which reuses its memory (donated)",
    "overwritten": "overwritten by this step",
    "in place": "overwrites an input",
    "view": "view: shares memory with what it reads",
    "from the CPU": "computed on the CPU by a fallback",
    model.SAVED: "held by no variable: autograd saves what its backward needs",
}
_ARC_ROOM = 30
_SHEET = 3  # how far the sheets under a folded box stick out


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A finished drawing, its width in pixels, and why no earlier engine made it."""

    svg: str
    width: int
    notes: tuple[str, ...] = ()


def draw(
    graph: model.DrawGraph,
    *,
    budget: int = DEFAULT_BUDGET,
    engine: str | None = None,
    hint: str = "",
) -> Drawing:
    """Fold, lay out and draw a graph of any size as an image of its own."""
    folded = overview(fold_earlier(graph), budget)
    if draws_frames(engine):
        folded = model.named_in_frames(folded)
    layout = lay_out(folded, engine)
    width, _ = _size(folded, layout, legend=True, hint=hint)
    picture = emit(folded, layout, hint=hint)
    return Drawing(svg=picture, width=width, notes=layout.notes)


def emit(
    graph: model.DrawGraph,
    layout: Layout,
    *,
    inline: bool = False,
    legend: bool = True,
    hint: str = "",
    links: bool = False,
) -> str:
    """Return the SVG of a drawing whose boxes have been placed.

    Inline, it follows the theme of the page; as an image of its own, the system's. The hint is a line
    below the legend. With links, boxes lead to their entries on the page; see `Box.anchor`.
    """
    width, height = _size(graph, layout, legend=legend, hint=hint)
    label = f"{markup(graph.kind)}, {text.plural(graph.nodes, 'op')}"
    if graph.nodes != len(graph.boxes):
        label += f" in {text.plural(len(graph.boxes), 'box', 'boxes')}"
    classes = "lzv lzd" if graph.is_diff else "lzv"
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{classes}" width="{width}" '
        f'height="{height}" viewBox="{-_MARGIN} {-_MARGIN} {width} {height}" '
        f'role="group" aria-label="{label}">'
    )
    parts = [
        start,
        f"<style>{stylesheet(inline=inline, diff=graph.is_diff)}</style>",
        *_frames(layout),
        *(_edges(routes, kind) for kind, routes in _routes(graph, layout).items()),
        _arcs(graph, layout),
        *_boxes(graph, layout.centres, numbered=inline, links=links),
        *(_legend_shapes(_legend_items(graph), layout.height) if legend else ()),
        f'<text class="h" x="0" y="{height - _MARGIN - 6}">{markup(hint)}</text>'
        if hint
        else "",
        "</svg>",
    ]
    return "".join(parts)


def _size(
    graph: model.DrawGraph, layout: Layout, *, legend: bool, hint: str
) -> tuple[int, int]:
    items = _legend_items(graph) if legend else []
    room = _ARC_ROOM if 0 < len(graph.updates) <= _MAX_ARCS else 0
    width = max(layout.width + room, _MIN_WIDTH, _legend_width(items))
    width = max(width, len(hint) * model.DETAIL_CHAR)
    height = layout.height + (_LEGEND_HEIGHT if items else 0)
    height += _HINT_HEIGHT if hint else 0
    return round(width + 2 * _MARGIN), round(height + 2 * _MARGIN)


def _frames(layout: Layout) -> Iterable[str]:
    for frame in layout.frames:
        room = max(4, int((frame.width - 14) / model.DETAIL_CHAR))
        title = markup(model.clip(frame.title, room))
        yield (
            f'<rect class="m" x="{frame.x:.0f}" y="{frame.y:.0f}" '
            f'width="{frame.width:.0f}" height="{frame.height:.0f}" rx="9"/>'
            f'<text class="h" x="{frame.x + 8:.0f}" y="{frame.y + 13:.0f}">{title}</text>'
        )


def _routes(
    graph: model.DrawGraph, layout: Layout
) -> dict[str, list[tuple[Point, ...]]]:
    """Return the curves of each class of edge."""
    classes = {
        " al": graph.aliases,
        f" {CHANGES['removed'][0]}": graph.removed,
        f" {CHANGES['added'][0]}": graph.added,
    }
    routes: dict[str, list[tuple[Point, ...]]] = {"": [], **{c: [] for c in classes}}
    for edge, route in zip(graph.edges, layout.routes, strict=True):
        kind = next((c for c, edges in classes.items() if edge in edges), "")
        routes[kind].append(route)
    return routes


def _arcs(graph: model.DrawGraph, layout: Layout) -> str:
    """Return curves from outputs to the inputs that they overwrite, where they are few."""
    if not 0 < len(graph.updates) <= _MAX_ARCS:
        return ""
    routes = []
    for output, taken in graph.updates:
        (x0, y0), (x1, y1) = layout.centres[output], layout.centres[taken]
        start = x0 + model.box_size(graph.boxes[output])[0] / 2, y0
        tip = x1 + model.box_size(graph.boxes[taken])[0] / 2, y1
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
    graph: model.DrawGraph, centres: Sequence[Point], *, numbered: bool, links: bool
) -> Iterable[str]:
    mates = _mates(graph) if numbered else {}
    for number, (box, (x, y)) in enumerate(zip(graph.boxes, centres, strict=True)):
        is_link = links and bool(box.anchor)
        attributes = f' data-b="{number}"' if numbered else ""
        if numbered and box.is_first:
            attributes += ' data-first="1"'
        if number in mates:
            attributes += f' data-u="{" ".join(map(str, mates[number]))}"'
        if not is_link:
            attributes += ' tabindex="0" role="button"'
        shape = _box(box, x, y, attributes, shaded=bool(graph.legend))
        yield f'<a href="#{box.anchor}">{shape}</a>' if is_link else shape


def _mates(graph: model.DrawGraph) -> dict[int, list[int]]:
    """Return for each box those that its memory goes to or comes from.

    In a diff, those that it reads or that read it.
    """
    found: dict[int, list[int]] = {}
    for output, taken in graph.edges if graph.is_diff else graph.updates:
        found.setdefault(output, []).append(taken)
        found.setdefault(taken, []).append(output)
    return found


def _box(box: model.Box, x: float, y: float, attributes: str, *, shaded: bool) -> str:
    width, height = model.box_size(box)
    left, top = x - width / 2, y - height / 2
    corner = height / 2 if box.kind in {"constant", "parameter"} else 6
    rect = f'width="{width:.0f}" height="{height:.0f}" rx="{corner:.0f}"'
    sheets = "".join(
        f'<rect x="{left + shift:.0f}" y="{top + shift:.0f}" {rect}/>'
        for shift in ((2 * _SHEET, _SHEET) if box.count > 1 else ())
    )
    detail = model.detail_text(box)
    first = y - 2 if detail else y + 4
    lines = f'<text class="l" x="{x:.0f}" y="{first:.0f}">{markup(model.label_text(box))}</text>'
    if detail:
        lines += f'<text class="d" x="{x:.0f}" y="{y + model.LINE - 2:.0f}">{markup(detail)}</text>'
    if box.level is not None:
        # A bar as long as the shade is dark, for those who see no shades.
        length = (width - 2 * corner) * (box.level + 1) / LEVELS
        lines += (
            f'<rect class="u" x="{left + corner:.0f}" y="{top + height - 4:.0f}" '
            f'width="{length:.0f}" height="2"/>'
        )
    node = f' data-n="{box.members[-1]}"' if box.members else ""
    return (
        f'<g class="{_classes(box, shaded=shaded)}"{node}{attributes} '
        f'aria-label="{markup(", ".join(_facts(box)))}">'
        f"<title>{markup(chr(10).join(_facts(box)))}</title>{sheets}"
        f'<rect x="{left:.0f}" y="{top:.0f}" {rect}/>{lines}</g>'
    )


def _classes(box: model.Box, *, shaded: bool) -> str:
    if box.change is not None:
        style = FOLLOWS[0] if box.follows else CHANGES[box.change][0]
        return f"{style} g" if box.kind == "group" else style
    names = [KINDS[box.kind][0]]
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


def _facts(box: model.Box) -> list[str]:
    """Return what a tooltip and a screen reader say of a box."""
    facts = [box.op or model.label_text(box), box.detail]
    if box.change is not None:
        words = FOLLOWS[1] if box.follows else CHANGES[box.change][1]
        facts[:1] = [words, model.label_text(box), f"{box.op} {box.listed}".strip()]
    elif box.name and box.op:
        facts.insert(0, box.name)
    if len(box.members) > 1 and box.kind != "group":
        facts.append(f"{text.plural(len(box.members), 'node')}, drawn once")
    elif box.members and box.kind != "group" and box.change is None:
        facts.append(f"node {box.listed}")
    facts.append(model.path_text(box.path))
    facts += [box.library, box.site]
    if box.runs > 1:
        facts.append(f"executed {box.runs} times since the last barrier")
    facts += [_MEANINGS.get(mark, mark) for mark in box.marks]
    if box.note:
        facts.append(box.note)
    if box.is_root:
        facts.append("output: a live tensor" if box.change is None else "output")
    if box.change is not None and box.count > 1:
        facts.append(f"{box.count} places alike")
    if box.hidden:
        facts.append(f"… {text.plural(box.hidden, 'neighbour')} not drawn")
    return [model.clip(fact, _MAX_FACT) for fact in facts if fact]


def start_of(graph: model.DrawGraph, layout: Layout) -> Point:
    """Return where a view of a diff opens: a corner of what is told first, in pixels."""
    corners = [
        (not box.is_first, y - height / 2 + _MARGIN, x - width / 2 + _MARGIN)
        for box, (x, y) in zip(graph.boxes, layout.centres, strict=True)
        for width, height in [model.box_size(box)]
        if box.change != "same"
    ]
    _, y, x = min(corners, default=(False, 0.0, 0.0))
    return x, y
