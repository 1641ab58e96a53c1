"""Where boxes go: by Graphviz where it is there, else by our own layered layout.

Ours draws on a machine without Graphviz, too: layers of limited width, filled from the outputs up;
orders by medians with the fewest crossings kept; then every box as near to its neighbours as its
layer allows. It is made for up to some 300 boxes.
"""

from __future__ import annotations

import bisect
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, get_args

import graphviz

from lazyviz.draw import model
from lazyviz.draw.palette import CHANGES, CHANGES_LIGHT, FOLLOWS, KINDS, LIGHT
from lazyviz.render import html

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


Point = tuple[float, float]

_POINTS = 72


def to_dot(graph: model.DrawGraph, *, labels: bool = True) -> str:
    """Return DOT source for a drawing.

    Boxes are called `n0`, `n1`, ... after their positions, whatever their labels say, and
    have fixed sizes; modules are clusters. A layout needs no labels.
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


def _children(
    graph: model.DrawGraph,
) -> dict[tuple[str, ...], list[int | tuple[str, ...]]]:
    """Return for each frame its boxes and inner frames, in the order of the boxes."""
    frames = set(model.frame_paths(graph))
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
    graph: model.DrawGraph,
    frame: tuple[str, ...],
    children: dict[tuple[str, ...], list[int | tuple[str, ...]]],
    *,
    labels: bool,
) -> None:
    """Add what a frame holds; frames nest a few levels deep at most."""
    numbers = {path: number for number, path in enumerate(model.frame_paths(graph))}
    for child in children[frame]:
        if isinstance(child, int):
            _add_box(source, child, graph.boxes[child], labels=labels)
            continue
        with source.subgraph(name=f"cluster_{numbers[child]}") as inner:
            title = model.title_within(graph, child, numbers)
            # Without a label a cluster has no room for the title that we draw ourselves.
            inner.attr(margin="8", label=html.dot(title) if labels else " ")
            inner.attr(labeljust="l", color="#9aa5b4", style="rounded")
            _add_frame(inner, graph, child, children, labels=labels)


def _add_box(
    source: graphviz.Digraph, position: int, box: model.Box, *, labels: bool
) -> None:
    width, height = model.box_size(box)
    attributes = {
        "width": f"{width / _POINTS:.3f}",
        "height": f"{height / _POINTS:.3f}",
    }
    if labels:
        text = "\n".join(
            part for part in (model.label_text(box), model.detail_text(box)) if part
        )
        attributes["label"] = html.dot(text)
        attributes["fillcolor"] = LIGHT[KINDS[box.kind][0]][0]
        if box.is_root:
            attributes["penwidth"] = "2"
        if box.change is not None:
            attributes |= _CHANGE_STYLES["follows" if box.follows else box.change]
            attributes["peripheries"] = "2" if box.is_root else "1"
            facts = (box.detail, model.path_text(box.path), box.site)
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


def _edge_style(graph: model.DrawGraph, edge: tuple[int, int]) -> dict[str, str]:
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
    return _tried(engine, [])[0] != "layered"


def lay_out(
    graph: model.DrawGraph, engine: str | None = None, timeout_s: float = TIMEOUT_S
) -> Layout:
    """Return positions for a drawing by the first engine that manages it, each within a time.

    `engine` is tried first, or what the environment variable LAZYVIZ_LAYOUT names: `dot`,
    `pygraphviz` or `layered`.

    Raises:
        ValueError: There is no such engine.
    """
    notes: list[str] = []
    for name in _tried(engine, notes):
        try:
            ours = name == "layered"
            found = _by_ourselves(graph) if ours else _run(name, graph, timeout_s)
        except LayoutError as error:
            notes.append(f"{name}: {error}")
            continue
        return replace(found, engine=name, notes=tuple(notes))
    raise AssertionError("the layered layout cannot fail")


def _tried(engine: str | None, notes: list[str]) -> list[Engine]:
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


def _by_ourselves(graph: model.DrawGraph) -> Layout:
    sizes = [model.box_size(box) for box in graph.boxes]
    centres, routes = place(sizes, graph.edges)
    rights = [x + w / 2 for (x, _), (w, _) in zip(centres, sizes, strict=True)]
    bottoms = [y + h / 2 for (_, y), (_, h) in zip(centres, sizes, strict=True)]
    points = [point for route in routes for point in route]
    return Layout(
        width=max([0.0, *rights, *(x for x, _ in points)]),
        height=max([0.0, *bottoms, *(y for _, y in points)]),
        centres=tuple(centres),
        routes=tuple(map(tuple, routes)),
    )


def _run(engine: Engine, graph: model.DrawGraph, timeout_s: float) -> Layout:
    """Run Graphviz on the drawing's DOT source and return the layout that it prints."""
    command = [sys.executable, "-P", "-c", _PYGRAPHVIZ]
    if engine == "dot":
        command = [shutil.which("dot") or "dot", "-Tjson0"]
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


def _parse(answer: Any, graph: model.DrawGraph) -> Layout:
    """Return the layout in Graphviz's JSON, whose y axis points upwards."""
    left, bottom, right, top = map(float, answer["bb"].split(","))

    def point(text: str) -> Point:
        x, y = text.split(",")
        return float(x) - left, top - float(y)

    paths = model.frame_paths(graph)
    centres: dict[int, Point] = {}
    frames: list[tuple[tuple[str, ...], Frame]] = []
    names: list[str] = []
    for item in answer.get("objects", ()):
        names.append(item["name"])
        if item["name"].startswith("cluster_"):
            path = paths[int(item["name"].removeprefix("cluster_"))]
            title = model.title_within(graph, path, paths)
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


# --- the layered layout

_GAP_X = 16.0
_GAP_Y = 30.0
_GAP_DUMMIES = 4.0
_DUMMY_WIDTH = 6.0
_SWEEPS = 10
_PLACEMENTS = 12
_MIN_LAYER_WIDTH = 8
_PORT_SHARE = 0.7


@dataclass(slots=True)
class _Layers:
    """Boxes and, where an edge passes a layer, dummies, by layer from the top."""

    rows: list[list[int]]
    widths: list[float]
    above: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    below: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    chains: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    boxes: int = 0

    def is_dummy(self, item: int) -> bool:
        return item >= self.boxes

    def distance(self, left: int, right: int) -> float:
        """Return how far apart the centres of two neighbours are at least."""
        both = self.is_dummy(left) and self.is_dummy(right)
        gap = _GAP_DUMMIES if both else _GAP_X
        return (self.widths[left] + self.widths[right]) / 2 + gap


def place(
    sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]
) -> tuple[list[Point], list[list[Point]]]:
    """Return the centre of each box and the Bézier points of each edge, y downwards.

    Edges are pairs of positions in `sizes`, which are in topological order: one against it is laid
    out as if it were turned round. None is a loop.
    """
    if not sizes:
        return [], []
    forward = list(dict.fromkeys((min(edge), max(edge)) for edge in edges))
    ranks = _ranks(len(sizes), forward)
    layers = _layers(sizes, forward, ranks)
    _order(layers)
    xs = _columns(layers)
    ys = _rows(layers, sizes)
    centres = [(xs[box], ys[ranks[box]]) for box in range(len(sizes))]
    return centres, _routes(sizes, edges, layers, ranks, xs, ys)


def _ranks(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return each box's layer from the top, at most so many boxes in one.

    Filling from the bottom puts inputs right above what reads them first.
    """
    after: list[list[int]] = [[] for _ in range(count)]
    for start, end in edges:
        after[start].append(end)
    limit = max(_MIN_LAYER_WIDTH, int(1.3 * count**0.5))
    height = [0] * count
    filled: dict[int, int] = defaultdict(int)
    for box in reversed(range(count)):
        level = max((height[child] + 1 for child in after[box]), default=0)
        while filled[level] >= limit:
            level += 1
        height[box] = level
        filled[level] += 1
    top = max(height)
    return [top - level for level in height]


def _layers(
    sizes: Sequence[tuple[float, float]],
    edges: Sequence[tuple[int, int]],
    ranks: Sequence[int],
) -> _Layers:
    layers = _Layers(
        rows=[[] for _ in range(max(ranks) + 1)],
        widths=[width for width, _ in sizes],
        boxes=len(sizes),
    )
    for box, rank in enumerate(ranks):
        layers.rows[rank].append(box)
    dummies: dict[tuple[int, int], int] = {}
    for start, end in edges:
        # Edges to the same box share their way, so that a wide fan takes little room.
        chain = []
        for rank in range(ranks[start] + 1, ranks[end]):
            if (end, rank) not in dummies:
                dummies[end, rank] = len(layers.widths)
                layers.widths.append(_DUMMY_WIDTH)
                layers.rows[rank].append(dummies[end, rank])
            chain.append(dummies[end, rank])
        layers.chains[start, end] = chain
        for upper, lower in itertools.pairwise([start, *chain, end]):
            if lower not in layers.below[upper]:
                layers.below[upper].append(lower)
                layers.above[lower].append(upper)
    for row in layers.rows:  # passing edges in the middle, so that a fan is symmetric
        boxes = [item for item in row if not layers.is_dummy(item)]
        half = len(boxes) // 2
        row[:] = [*boxes[:half], *row[len(boxes) :], *boxes[half:]]
    return layers


def _order(layers: _Layers) -> None:
    """Sort each layer by the medians of its neighbours; keep the order that crosses least."""
    best, fewest = [list(row) for row in layers.rows], _crossings(layers)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        downwards = sweep % 2 == 0
        neighbours = layers.above if downwards else layers.below
        rows = layers.rows if downwards else layers.rows[::-1]
        for fixed, free in itertools.pairwise(rows):
            where = {item: index for index, item in enumerate(fixed)}
            key = {
                item: median([where[n] for n in neighbours[item] if n in where] or [k])
                for k, item in enumerate(free)
            }
            free.sort(key=key.__getitem__)  # stable
        crossings = _crossings(layers)
        if crossings < fewest:
            best, fewest = [list(row) for row in layers.rows], crossings
    layers.rows[:] = best


def _crossings(layers: _Layers) -> int:
    """Return how often edges between neighbouring layers cross."""
    total = 0
    for upper, lower in itertools.pairwise(layers.rows):
        where = {item: index for index, item in enumerate(lower)}
        seen: list[int] = []
        for item in upper:
            for end in sorted(where[below] for below in layers.below[item]):
                total += len(seen) - bisect.bisect_right(seen, end)
                bisect.insort(seen, end)
    return total


def _columns(layers: _Layers) -> list[float]:
    """Return each item's x: every layer in turn as near to its neighbours as it can be."""
    widths = layers.widths
    xs = [0.0] * len(widths)
    for row in layers.rows:
        for left, right in itertools.pairwise(row):
            xs[right] = xs[left] + layers.distance(left, right)
        middle = xs[row[-1]] / 2 if row else 0.0
        for item in row:
            xs[item] -= middle
    for sweep in range(_PLACEMENTS):
        downwards = sweep % 2 == 0
        rows = layers.rows[1:] if downwards else layers.rows[-2::-1]
        neighbours = layers.above if downwards else layers.below
        for row in rows:
            wanted = [
                median([xs[n] for n in neighbours[item]] or [xs[item]]) for item in row
            ]
            weights = [4.0 if layers.is_dummy(item) else 1.0 for item in row]
            _settle(layers, row, wanted, weights, xs)
    margin = min(xs[item] - widths[item] / 2 for row in layers.rows for item in row)
    return [x - margin for x in xs]


def _settle(
    layers: _Layers,
    row: list[int],
    wanted: list[float],
    weights: list[float],
    xs: list[float],
) -> None:
    """Move a layer's items as near to `wanted` as order and gaps allow (least squares)."""
    apart = itertools.starmap(layers.distance, itertools.pairwise(row))
    offsets = list(itertools.accumulate(apart, initial=0.0))
    # Neighbours that stand as close as they may: position, weight, how many.
    blocks: list[tuple[float, float, int]] = []
    for place, offset, weight in zip(wanted, offsets, weights, strict=False):
        x, heavy, count = place - offset, weight, 1
        while blocks and blocks[-1][0] > x:
            left, other, more = blocks.pop()
            x = (left * other + x * heavy) / (other + heavy)
            heavy, count = heavy + other, count + more
        blocks.append((x, heavy, count))
    places = (x for x, _, count in blocks for _ in range(count))
    for item, place, offset in zip(row, places, offsets, strict=False):
        xs[item] = place + offset


def _rows(layers: _Layers, sizes: Sequence[tuple[float, float]]) -> list[float]:
    ys = []
    top = 0.0
    for row in layers.rows:
        height = max((sizes[item][1] for item in row if item < len(sizes)), default=0)
        ys.append(top + height / 2)
        top += height + _GAP_Y
    return ys


def _routes(
    sizes: Sequence[tuple[float, float]],
    edges: Sequence[tuple[int, int]],
    layers: _Layers,
    ranks: Sequence[int],
    xs: Sequence[float],
    ys: Sequence[float],
) -> list[list[Point]]:
    ports = _ports(sizes, layers, xs)
    routes = []
    for start, end in edges:
        turned = start > end
        upper, lower = sorted((start, end))
        points = [(xs[upper], ys[ranks[upper]] + sizes[upper][1] / 2)]
        rank = ranks[upper]
        for dummy in layers.chains[upper, lower]:
            rank += 1
            half = (max(sizes[b][1] for b in layers.rows[rank] if b < len(sizes))) / 2
            points += [(xs[dummy], ys[rank] - half), (xs[dummy], ys[rank] + half)]
        points.append((ports[upper, lower], ys[ranks[lower]] - sizes[lower][1] / 2))
        curve = _curve(points)
        routes.append(curve[::-1] if turned else curve)
    return routes


def _ports(
    sizes: Sequence[tuple[float, float]],
    layers: _Layers,
    xs: Sequence[float],
) -> dict[tuple[int, int], float]:
    """Return where each edge meets the top of its lower box: side by side, not crossing."""
    arriving: dict[int, set[int]] = defaultdict(set)
    last = {
        edge: chain[-1] if chain else edge[0] for edge, chain in layers.chains.items()
    }
    for edge, item in last.items():
        arriving[edge[1]].add(item)
    ports = {}
    for edge, item in last.items():
        box = edge[1]
        order = sorted(arriving[box], key=lambda other: (xs[other], other))
        share = (order.index(item) + 1) / (len(order) + 1) - 0.5
        ports[edge] = xs[box] + share * sizes[box][0] * _PORT_SHARE
    return ports


def _curve(points: list[Point]) -> list[Point]:
    """Return Bézier points through `points` that leave and arrive vertically."""
    curve = [points[0]]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        middle = (y0 + y1) / 2
        curve += [(x0, middle), (x1, middle), (x1, y1)]
    return curve
