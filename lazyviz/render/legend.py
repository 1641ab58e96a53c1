"""The legend of a drawing: each kind of box, mark and line in it, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyviz.render.escape import markup
from lazyviz.render.measure import DETAIL_CHAR
from lazyviz.render.model import BACKWARD
from lazyviz.render.palette import CHANGES, KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lazyviz.render.model import Box, DrawGraph

LEGEND_HEIGHT = 26
OWNED = frozenset({"parameter", "buffer", "optimizer state"})
TAKEN = frozenset({"donated", "overwritten"})
MAX_ARCS = 6  # curves to overwritten inputs; more are said in words alone


def legend_svg(graph: DrawGraph) -> str:
    """Return the legend of an inline drawing by itself; empty if nothing needs explaining."""
    items = legend_items(graph)
    if not items:
        return ""
    width = round(legend_width(items))
    classes = "lzv lzd" if graph.is_diff else "lzv"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{classes}" width="{width}" height="14" '
        f'viewBox="0 8 {width} 14" role="img" aria-label="legend">'
        f"{''.join(legend_shapes(graph, 0))}</svg>"
    )


def legend_items(graph: DrawGraph) -> list[tuple[str, str]]:
    """Return class and name of what needs explaining: nothing when all is alike.

    A class of lines begins with `e`, that of a folded repetition with `n`; an empty one has
    words alone.
    """
    changes = {box.change for box in graph.boxes}
    told = [CHANGES[change] for change in CHANGES if change in changes]
    items = [*(graph.legend or told or _box_items(graph)), *_line_items(graph)]
    return items if told or len(items) > 1 else []


def _box_items(graph: DrawGraph) -> list[tuple[str, str]]:
    boxes = graph.boxes
    present = {box.kind for box in boxes}
    marks = {mark for box in boxes for mark in box.marks}
    items = [KINDS[kind] for kind in KINDS if kind in present]
    if any(map(is_backward_group, boxes)):
        items.append(("g gb", "folded, backward"))
    if any(box.count > 1 for box in boxes):
        items.append(("n o", "×n: repeats n times"))
    if marks & OWNED:
        items.append(("p w", "parameter or state"))
    if marks & TAKEN:
        items.append(("p x", "overwritten"))
    if any(box.is_root for box in boxes) and len(boxes) > 1:
        items.append(("o q", "output"))
    if any(not box.is_new for box in boxes):
        items.append(("o old", graph.dimmed))
    if any(box.runs > 1 for box in boxes):
        items.append(("o again", "executed again"))
    return items


def _line_items(graph: DrawGraph) -> list[tuple[str, str]]:
    items = []
    if graph.aliases:
        items.append(("e al", "view: shares memory"))
    if 0 < len(graph.updates) <= MAX_ARCS:
        items.append(("e up", "overwrites"))
    return items


def legend_width(items: Sequence[tuple[str, str]]) -> float:
    """Return how wide a legend is in pixels."""
    return sum(_item_width(*item) for item in items)


def _item_width(classes: str, name: str) -> float:
    return 14 + len(name) * DETAIL_CHAR + (_sample_width(classes) if classes else 0)


def _sample_width(classes: str) -> int:
    return 24 if classes.startswith("e ") else 17


def legend_shapes(graph: DrawGraph, height: float) -> Iterable[str]:
    """Yield samples and words of a legend below a drawing of some height in pixels."""
    x, y = 0.0, height + LEGEND_HEIGHT - 8
    for classes, name in legend_items(graph):
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


def is_backward_group(box: Box) -> bool:
    """Return whether a box stands for operations of the backward pass."""
    return box.kind == "group" and box.path[:1] == (BACKWARD,)
