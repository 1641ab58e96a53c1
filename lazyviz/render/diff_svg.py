"""The union graph of a diff as SVG; each box links to the instruction's entry on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyviz.render.diff_dot import STYLES
from lazyviz.render.diff_text import ADDED, CHANGED, REMOVED, REWIRED, SAME
from lazyviz.render.escape import markup
from lazyviz.render.layout import lay_out
from lazyviz.render.measure import (
    DETAIL_CHAR,
    LINE,
    box_size,
    clip,
    detail_text,
    label_text,
)
from lazyviz.render.model import Box, DrawGraph
from lazyviz.render.text import plural

if TYPE_CHECKING:
    from collections.abc import Callable

    from lazyviz.render.diff_model import Spot, UnionGraph, UnionNode
    from lazyviz.render.layered import Point
    from lazyviz.render.layout import Layout

_MAX_FACT = 300  # characters of one fact in a tooltip
_MARGIN = 10
_ARROW = 5.0
_CLASSES = {ADDED: "add", REMOVED: "rem", CHANGED: "chg", REWIRED: "rew", SAME: "same"}
_LEGEND = {
    ADDED: "added", REMOVED: "removed", CHANGED: "changed", REWIRED: "reads another",
    SAME: "the same",
}  # fmt: skip
_LEGEND_HEIGHT = 24
_STYLE = (
    ".lzd{font:11px ui-monospace,Menlo,Consolas,monospace;max-width:none}"
    ".lzd text{text-anchor:middle;fill:#111}"
    ".lzd .d{font-size:10px}.lzd .h{fill:#7e8a9a;text-anchor:start;font-size:10px}"
    ".lzd .m{fill:none;stroke:#9a9a9a;stroke-opacity:.6}"
    ".lzd .e{fill:none}"
    ".lzd a:hover rect,.lzd a:focus rect{stroke-width:3.5}"
)


_LIVE = (
    ".lzd .h{fill:var(--lz-quiet)}.lzd .same rect,.lzd .rew rect{fill:#fff}"
    ".lzd [data-b]{cursor:pointer}.lzd [data-b]:focus{outline:none}"
    ".lzd .sel rect,.lzd [data-b]:focus-visible rect{stroke:var(--lz-accent);stroke-width:4}"
    ".lzd .mate rect{stroke-width:3}"
)


def _themed(rules: dict[str, str]) -> str:
    """Return CSS for the dark themes of front ends."""
    return "".join(
        ",".join(
            f"{theme} .lzd {each}"
            for theme in ("[data-jp-theme-light=false]", ".vscode-dark")
            for each in selector.split(",")
        )
        + f"{{{style}}}"
        for selector, style in rules.items()
    )


# White paper would shine, and dark lines would not be seen.
_LIVE += _themed(
    {
        ".same rect,.rew rect,rect[fill='#FFFFFF']": "fill:#23282f",
        ".same text,.rew text": "fill:#e3e7ee",
        ".rew rect,.chg rect,rect[stroke='#222222'],path[stroke='#222222']": "stroke:#e3e7ee",
        "path[fill='#222222']": "fill:#e3e7ee",
        "path[stroke='#0072B2']": "stroke:#56b4e9",
        "path[fill='#0072B2']": "fill:#56b4e9",
    }
)


def draw_graph_of(union: UnionGraph) -> DrawGraph:
    """Return a union graph as a drawing of boxes."""
    boxes = tuple(
        Box(
            label=node.label,
            detail=node.detail,
            marks=(f"… {node.hidden}",) if node.hidden else (),
            path=node.scope,
            site=node.site,
            is_root=node.is_output,
            count=node.places,
        )
        for node in union.nodes
    )
    edges = tuple(sorted({(start, end) for start, end, _ in union.edges}))
    return DrawGraph(boxes=boxes, edges=edges, nodes=len(boxes))


def diff_svg(
    union: UnionGraph,
    *,
    engine: str | None = None,
    links: bool = True,
    live: Callable[[Spot], int] | None = None,
) -> str:
    """Return the picture of a union graph, one element; see `diff_picture`."""
    return diff_picture(union, engine=engine, links=links, live=live)[0]


def diff_picture(
    union: UnionGraph,
    *,
    engine: str | None = None,
    links: bool = True,
    live: Callable[[Spot], int] | None = None,
) -> tuple[str, Point]:
    """Return the picture of a union graph, one element, and where what it is about begins.

    Args:
        union: What to draw.
        engine: Layout engine to try first.
        links: Whether boxes link to `#b12` or `#a12`, the entry of the node.
        live: For a page that answers, the number by which it asks for a node. Boxes are
            buttons then, the page's theme colours what stands between them, and the legend is
            left to `diff_legend`.
    """
    drawing = draw_graph_of(union)
    layout = lay_out(drawing, engine)
    legend = [] if live else _marks(union)
    width = max(layout.width, _legend_width(legend)) + 2 * _MARGIN
    height = layout.height + (0 if live else _LEGEND_HEIGHT) + 2 * _MARGIN
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="lzd" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="{-_MARGIN} {-_MARGIN} {width:.0f} {height:.0f}" '
        f'role="group" aria-label="difference of two graphs, '
        f'{plural(len(union.nodes), "node")}"><style>{_STYLE}{_LIVE if live else ""}</style>'
    )
    parts = [
        start,
        *_frames(layout),
        *_edges(union, drawing, layout),
    ]
    mates = _mates(union) if live else []
    for k, (node, box, centre) in enumerate(
        zip(union.nodes, drawing.boxes, layout.centres, strict=True)
    ):
        button = _button(k, live(node.spot), node, box, mates[k]) if live else ""
        parts.append(_box(node, box, centre, button, links=links and not live))
    parts.append(_legend(legend, layout.height))
    return "".join([*parts, "</svg>"]), _start(union, drawing, layout)


def _start(union: UnionGraph, drawing: DrawGraph, layout: Layout) -> Point:
    """Return the corner of the topmost box of the place that is told first, in pixels."""
    corners = [
        (node.is_first, cy - box_size(box)[1] / 2, cx - box_size(box)[0] / 2)
        for node, box, (cx, cy) in zip(
            union.nodes, drawing.boxes, layout.centres, strict=True
        )
        if node.mark != SAME
    ]
    told = [corner for corner in corners if corner[0]] or corners
    _, y, x = min(told, default=(False, 0.0, 0.0))
    return x + _MARGIN, y + _MARGIN


def _frames(layout: Layout) -> list[str]:
    return [
        f'<rect class="m" x="{frame.x:.0f}" y="{frame.y:.0f}" width="{frame.width:.0f}" '
        f'height="{frame.height:.0f}" rx="9"/><text class="h" x="{frame.x + 8:.0f}" '
        f'y="{frame.y + 13:.0f}">'
        f"{markup(clip(frame.title, max(4, int((frame.width - 14) / DETAIL_CHAR))))}</text>"
        for frame in layout.frames
    ]


def _edges(union: UnionGraph, drawing: DrawGraph, layout: Layout) -> list[str]:
    marks = {(start, end): mark for start, end, mark in union.edges}
    parts = []
    for edge, route in zip(drawing.edges, layout.routes, strict=True):
        mark = marks[edge]
        colour = STYLES[mark][1]
        points = [f"{x:.0f} {y:.0f}" for x, y in route]
        dash = ' stroke-dasharray="5 3"' if mark == REMOVED else ""
        width = "1" if mark == SAME else "2"
        parts.append(
            f'<path class="e" stroke="{colour}" stroke-width="{width}"{dash} '
            f'd="M{points[0]}C{" ".join(points[1:])}"/>{_head(route, colour)}'
        )
    return parts


def _head(route: tuple[Point, ...], colour: str) -> str:
    x, y = route[-1]
    bx, by = next(
        (p for p in reversed(route) if abs(p[0] - x) + abs(p[1] - y) > 1), (x, y - 1)
    )
    length = ((x - bx) ** 2 + (y - by) ** 2) ** 0.5
    ux, uy = (x - bx) / length, (y - by) / length
    px, py = x - ux * _ARROW, y - uy * _ARROW
    return (
        f'<path fill="{colour}" d="M{x:.1f} {y:.1f}L{px - uy * 2.5:.1f} '
        f'{py + ux * 2.5:.1f}L{px + uy * 2.5:.1f} {py - ux * 2.5:.1f}z"/>'
    )


def diff_legend(union: UnionGraph) -> str:
    """Return what the colours of a union graph mean, as inline SVG."""
    marks = _marks(union)
    width = _legend_width(marks)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="lzd" width="{width:.0f}" height="18" '
        f'viewBox="0 0 {width:.0f} 18"><style>{_STYLE}{_LIVE}</style>'
        f"{_legend(marks, -5)}</svg>"
    )


def _marks(union: UnionGraph) -> list[str]:
    return [mark for mark in STYLES if any(n.mark == mark for n in union.nodes)]


def _mates(union: UnionGraph) -> list[list[int]]:
    """Return for each node those that it reads or that read it."""
    mates: list[list[int]] = [[] for _ in union.nodes]
    for start, end, _ in union.edges:
        mates[start].append(end)
        mates[end].append(start)
    return mates


def _button(
    index: int, number: int, node: UnionNode, box: Box, mates: list[int]
) -> str:
    """Return the attributes of a box that answers; see `static/graph_view.js`."""
    parts = (_LEGEND[node.mark], box.label, box.detail, _unseen(node))
    said = " ".join(part for part in parts if part)
    near = " ".join(map(str, mates))
    first = ' data-first="1"' if node.is_first else ""
    return (
        f'{first} data-b="{index}" data-n="{number}" data-u="{near}" tabindex="0" role="button" '
        f'aria-label="{markup(said)}"'
    )


def _unseen(node: UnionNode) -> str:
    return f"… {plural(node.hidden, 'neighbour')} not drawn" if node.hidden else ""


def _box(node: UnionNode, box: Box, centre: Point, button: str, *, links: bool) -> str:
    (x, y), (width, height) = centre, box_size(box)
    fill, line, style, thick = STYLES[node.mark]
    dash = ' stroke-dasharray="5 3"' if "dashed" in style else ""
    facts = [
        _LEGEND[node.mark],
        box.label,
        box.detail,
        ".".join(node.scope),
        node.site,
        "an output" if node.is_output else "",
        f"{node.places} places alike" if node.places > 1 else "",
        _unseen(node),
    ]
    title = markup("\n".join(clip(fact, _MAX_FACT) for fact in facts if fact))
    detail = detail_text(box)
    first = y - 2 if detail else y + 4
    shape = (
        f'<g class="{_CLASSES[node.mark]}"{button}><title>{title}</title><rect x="{x - width / 2:.0f}" '
        f'y="{y - height / 2:.0f}" width="{width:.0f}" height="{height:.0f}" rx="6" '
        f'fill="{fill}" stroke="{line}" stroke-width="{thick}"{dash}/>'
        f'<text x="{x:.0f}" y="{first:.0f}">{markup(label_text(box))}</text>'
    )
    if detail:
        shape += f'<text class="d" x="{x:.0f}" y="{y + LINE - 2:.0f}">{markup(detail)}</text>'
    shape += "</g>"
    side, number = node.spot
    return f'<a href="#{side}{number}">{shape}</a>' if links else shape


def _legend_width(marks: list[str]) -> float:
    return sum(map(_legend_step, marks))


def _legend_step(mark: str) -> float:
    return 40 + (len(_LEGEND[mark]) + 2 * (mark != SAME)) * DETAIL_CHAR


def _legend(marks: list[str], height: float) -> str:
    x, y = 0.0, height + _LEGEND_HEIGHT - 6
    parts = []
    for mark in marks:
        fill, line, style, _ = STYLES[mark]
        dash = ' stroke-dasharray="3 2"' if "dashed" in style else ""
        parts.append(
            f'<rect x="{x:.0f}" y="{y - 9:.0f}" width="14" height="10" rx="2" fill="{fill}" '
            f'stroke="{line}"{dash}/><text class="h" x="{x + 19:.0f}" y="{y:.0f}">'
            f"{mark if mark != SAME else ''} {_LEGEND[mark]}</text>"
        )
        x += _legend_step(mark)
    return "".join(parts)
