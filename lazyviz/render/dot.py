"""Drawings in the DOT language."""

from __future__ import annotations

from typing import TYPE_CHECKING

import graphviz

from lazyviz.render import escape
from lazyviz.render.measure import (
    box_size,
    detail_text,
    frame_paths,
    label_text,
    title_within,
)
from lazyviz.render.model import path_text
from lazyviz.render.palette import CHANGES, CHANGES_LIGHT

if TYPE_CHECKING:
    from lazyviz.render.model import Box, DrawGraph

_POINTS = 72
_FILL = {
    "op": "#edf3fc",
    "backward": "#e8f5ee",
    "random": "#f4edfb",
    "parameter": "#fdf4e1",
    "constant": "#f3f4f6",
    "group": "#dfe9f9",
}


def to_dot(graph: DrawGraph, *, labels: bool = True) -> str:
    """Return DOT source for a drawing.

    Boxes are called `n0`, `n1`, ... after their positions, whatever their labels say, and
    have fixed sizes; modules are clusters.

    Args:
        graph: What to draw.
        labels: Whether boxes and clusters carry their texts; a layout needs none.
    """
    source = graphviz.Digraph(
        name="lazyviz",
        graph_attr={"nodesep": "0.18", "ranksep": "0.32", "newrank": "true"},
        node_attr={"shape": "box", "fixedsize": "true", "label": ""},
        edge_attr={"arrowsize": "0.6"},
    )
    if labels:
        source.attr("node", style="rounded,filled", fontname="monospace", fontsize="9")
        source.attr("graph", fontname="monospace", fontsize="9")
    _add_frame(source, graph, (), _children(graph), labels=labels)
    for edge in graph.edges:
        source.edge(*(f"n{end}" for end in edge), **_edge_style(graph, edge))
    return str(source.source)


def _children(graph: DrawGraph) -> dict[tuple[str, ...], list[int | tuple[str, ...]]]:
    """Return for each frame its boxes and inner frames, in the order of the boxes."""
    frames = set(frame_paths(graph))
    children: dict[tuple[str, ...], list[int | tuple[str, ...]]] = {(): []}
    for position, box in enumerate(graph.boxes):
        inside: list[tuple[str, ...]] = [
            box.path[:depth]
            for depth in range(1, len(box.path) + 1)
            if box.path[:depth] in frames
        ]
        outer: tuple[str, ...] = ()
        for frame in inside:
            if frame not in children:
                children[frame] = []
                children[outer].append(frame)
            outer = frame
        children[outer].append(position)
    return children


def _add_frame(
    source: graphviz.Digraph,
    graph: DrawGraph,
    frame: tuple[str, ...],
    children: dict[tuple[str, ...], list[int | tuple[str, ...]]],
    *,
    labels: bool,
) -> None:
    """Add what a frame holds; frames nest a few levels deep at most."""
    numbers = {path: number for number, path in enumerate(frame_paths(graph))}
    for child in children[frame]:
        if isinstance(child, int):
            _add_box(source, child, graph.boxes[child], labels=labels)
            continue
        with source.subgraph(name=f"cluster_{numbers[child]}") as inner:
            title = title_within(child, numbers)
            # Without a label a cluster has no room for the title that we draw ourselves.
            inner.attr(margin="8", label=escape.dot(title) if labels else " ")
            inner.attr(labeljust="l", color="#9aa5b4", style="rounded")
            _add_frame(inner, graph, child, children, labels=labels)


def _add_box(
    source: graphviz.Digraph, position: int, box: Box, *, labels: bool
) -> None:
    width, height = box_size(box)
    attributes = {
        "width": f"{width / _POINTS:.3f}",
        "height": f"{height / _POINTS:.3f}",
    }
    if labels:
        text = "\n".join(part for part in (label_text(box), detail_text(box)) if part)
        attributes["label"] = escape.dot(text)
        attributes["fillcolor"] = _FILL[box.kind]
        if box.is_root:
            attributes["penwidth"] = "2"
        if box.change is not None:
            attributes |= _CHANGE_STYLES[box.change]
            attributes["peripheries"] = "2" if box.is_root else "1"
            facts = (box.detail, path_text(box.path), box.site)
            attributes["tooltip"] = escape.dot(" ".join(fact for fact in facts if fact))
    source.node(f"n{position}", **attributes)


_CHANGE_STYLES = {
    change: {
        "fillcolor": fill,
        "color": line,
        "style": "rounded,filled,dashed" if change == "removed" else "rounded,filled",
        "penwidth": "1" if change == "same" else "2",
    }
    for change, (key, _) in CHANGES.items()
    for fill, line, _ in [CHANGES_LIGHT[key]]
}


def _edge_style(graph: DrawGraph, edge: tuple[int, int]) -> dict[str, str]:
    if edge in graph.removed:
        colour = _CHANGE_STYLES["removed"]["color"]
        return {"color": colour, "penwidth": "2", "style": "dashed"}
    if edge in graph.added:
        return {"color": _CHANGE_STYLES["added"]["color"], "penwidth": "2"}
    return {}
