"""Where boxes go: by Graphviz where it is there, else by our own layered layout."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import graphviz

from lazyviz.draw import layered
from lazyviz.draw.model import (
    box_size,
    detail_text,
    frame_paths,
    label_text,
    path_text,
    title_within,
)
from lazyviz.draw.palette import CHANGES, CHANGES_LIGHT, FOLLOWS, KINDS, LIGHT
from lazyviz.render import html

if TYPE_CHECKING:
    from collections.abc import Callable

    from lazyviz.draw.layered import Point
    from lazyviz.draw.model import Box, DrawGraph

_POINTS = 72


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
            title = title_within(graph, child, numbers)
            # Without a label a cluster has no room for the title that we draw ourselves.
            inner.attr(margin="8", label=html.dot(title) if labels else " ")
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
        attributes["label"] = html.dot(text)
        attributes["fillcolor"] = LIGHT[KINDS[box.kind][0]][0]
        if box.is_root:
            attributes["penwidth"] = "2"
        if box.change is not None:
            attributes |= _CHANGE_STYLES["follows" if box.follows else box.change]
            attributes["peripheries"] = "2" if box.is_root else "1"
            facts = (box.detail, path_text(box.path), box.site)
            attributes["tooltip"] = html.dot(" ".join(fact for fact in facts if fact))
    source.node(f"n{position}", **attributes)


_CHANGE_STYLES = {
    change: {
        "fillcolor": fill,
        "color": line,
        "style": "rounded,filled,dashed" if change == "removed" else "rounded,filled",
        "penwidth": "1" if change == "same" else "2",
    }
    for change, (key, _) in [*CHANGES.items(), ("follows", FOLLOWS)]
    for fill, line, _ in [CHANGES_LIGHT[key]]
}


def _edge_style(graph: DrawGraph, edge: tuple[int, int]) -> dict[str, str]:
    if edge in graph.removed:
        colour = _CHANGE_STYLES["removed"]["color"]
        return {"color": colour, "penwidth": "2", "style": "dashed"}
    if edge in graph.added:
        return {"color": _CHANGE_STYLES["added"]["color"], "penwidth": "2"}
    return {}


Engine = Literal["dot", "pygraphviz", "layered"]

ENGINES: tuple[Engine, ...] = get_args(Engine)
TIMEOUT_S = 5.0

_VARIABLE = "LAZYVIZ_LAYOUT"
# In a process of its own, for it holds the GIL, writes to stderr and cannot be stopped.
_PYGRAPHVIZ = """
import sys, pygraphviz
graph = pygraphviz.AGraph(sys.stdin.read())
sys.stdout.buffer.write(graph.draw(format="json0", prog="dot"))
"""


@dataclass(frozen=True, slots=True)
class Frame:
    """The rectangle round the boxes of one module."""

    title: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Positions of a drawing, in pixels, y downwards.

    Attributes:
        centres: Centre of each box.
        routes: For each edge Bézier points: a start, then three for each curve; the arrow's
            tip is the last.
        frames: Rectangles round modules, outer ones first.
        engine: Who computed it.
        notes: Why it was not an engine that comes earlier, one line for each.
    """

    width: float
    height: float
    centres: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]
    frames: tuple[Frame, ...] = ()
    engine: Engine = "layered"
    notes: tuple[str, ...] = ()


class LayoutError(RuntimeError):
    """A layout engine failed; the message is one line."""


def engines() -> tuple[Engine, ...]:
    """Return the layout engines of this machine, in the order in which they are tried."""
    found: list[Engine] = []
    if shutil.which("dot"):
        found.append("dot")
    if importlib.util.find_spec("pygraphviz") is not None:
        found.append("pygraphviz")
    return (*found, "layered")


def draws_frames(engine: str | None = None) -> bool:
    """Return whether the engine that is tried first draws modules as frames."""
    return _order(engine, [])[0] != "layered"


def lay_out(
    graph: DrawGraph, engine: str | None = None, timeout_s: float = TIMEOUT_S
) -> Layout:
    """Return positions for a drawing by the first engine that manages it.

    Args:
        graph: What to lay out; fold a large one first.
        engine: `dot`, `pygraphviz` or `layered` to try first; without it the environment
            variable LAZYVIZ_LAYOUT names one.
        timeout_s: How long an engine may take before the next is tried.

    Raises:
        ValueError: There is no such engine.
    """
    notes: list[str] = []
    for name in _order(engine, notes):
        try:
            found = _RUNNERS[name](graph, timeout_s)
        except LayoutError as error:
            notes.append(f"{name}: {error}")
            continue
        return replace(found, engine=name, notes=tuple(notes))
    raise AssertionError("the layered layout cannot fail")


def _order(engine: str | None, notes: list[str]) -> list[Engine]:
    present = engines()
    wanted = engine if engine is not None else os.environ.get(_VARIABLE, "").strip()
    if not wanted:
        return list(present)
    if wanted not in ENGINES:
        message = (
            f"there is no layout engine {wanted!r}. "
            f"The engines are {', '.join(ENGINES)}; here are {', '.join(present)}."
        )
        if engine is not None:
            raise ValueError(message)
        notes.append(f"{_VARIABLE}: {message}")
        return list(present)
    if wanted not in present:
        notes.append(f"{wanted}: not installed here")
    return [
        *(name for name in present if name == wanted),
        *(name for name in present if name != wanted),
    ]


def _by_dot(graph: DrawGraph, timeout_s: float) -> Layout:
    executable = shutil.which("dot")
    if executable is None:
        raise LayoutError("not installed here")
    return _run([executable, "-Tjson0"], graph, timeout_s)


def _by_pygraphviz(graph: DrawGraph, timeout_s: float) -> Layout:
    command = [sys.executable, "-P", "-c", _PYGRAPHVIZ]
    return _run(command, graph, timeout_s)


def _by_ourselves(graph: DrawGraph, timeout_s: float) -> Layout:  # noqa: ARG001
    sizes = [box_size(box) for box in graph.boxes]
    centres, routes = layered.place(sizes, graph.edges)
    rights = [x + w / 2 for (x, _), (w, _) in zip(centres, sizes, strict=True)]
    bottoms = [y + h / 2 for (_, y), (_, h) in zip(centres, sizes, strict=True)]
    points = [point for route in routes for point in route]
    return Layout(
        width=max([0.0, *rights, *(x for x, _ in points)]),
        height=max([0.0, *bottoms, *(y for _, y in points)]),
        centres=tuple(centres),
        routes=tuple(map(tuple, routes)),
    )


_RUNNERS: dict[Engine, Callable[[DrawGraph, float], Layout]] = {
    "dot": _by_dot,
    "pygraphviz": _by_pygraphviz,
    "layered": _by_ourselves,
}


def _run(command: list[str], graph: DrawGraph, timeout_s: float) -> Layout:
    """Run an engine on the drawing's DOT source and return the layout that it prints."""
    try:
        done = subprocess.run(  # noqa: S603
            command,
            input=to_dot(graph, labels=False).encode(),
            capture_output=True,  # its complaints about fonts stay out of the notebook
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LayoutError(f"no layout after {timeout_s:g} s") from None
    except OSError as error:
        raise LayoutError(f"cannot be run: {error.strerror}") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else "no message"
        raise LayoutError(f"ended with status {done.returncode}: {reason}")
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise LayoutError("printed no layout") from None
    try:
        return _parse(answer, graph)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise LayoutError("printed a layout that does not fit the drawing") from None


def _parse(answer: Any, graph: DrawGraph) -> Layout:
    """Return the layout in Graphviz's JSON, whose y axis points upwards."""
    left, bottom, right, top = map(float, answer["bb"].split(","))

    def point(text: str) -> Point:
        x, y = text.split(",")
        return float(x) - left, top - float(y)

    paths = frame_paths(graph)
    centres: dict[int, Point] = {}
    frames: list[tuple[tuple[str, ...], Frame]] = []
    names: list[str] = []
    for item in answer.get("objects", ()):
        names.append(item["name"])
        if item["name"].startswith("cluster_"):
            path = paths[int(item["name"].removeprefix("cluster_"))]
            title = title_within(graph, path, paths)
            x0, y0, x1, y1 = map(float, item["bb"].split(","))
            frame = Frame(title, x0 - left, top - y1, x1 - x0, y1 - y0)
            frames.append((path, frame))
        else:
            centres[int(item["name"][1:])] = point(item["pos"])
    routes = {
        (int(names[edge["tail"]][1:]), int(names[edge["head"]][1:])): _route(
            edge["pos"], point
        )
        for edge in answer.get("edges", ())
    }
    return Layout(
        width=right - left,
        height=top - bottom,
        centres=tuple(centres[i] for i in range(len(graph.boxes))),
        routes=tuple(routes[edge] for edge in graph.edges),
        frames=tuple(frame for _, frame in sorted(frames, key=lambda f: len(f[0]))),
    )


def _route(spline: str, point: Callable[[str], Point]) -> tuple[Point, ...]:
    parts = spline.split()
    tips = [point(part[2:]) for part in parts if part.startswith("e,")]
    points = [point(part) for part in parts if part[0] not in "es"]
    if tips:  # a straight end from the curve to the arrow's tip, as one more curve
        points += [points[-1], tips[0], tips[0]]
    return tuple(points)
