"""A layered layout in pure Python, so that a machine without Graphviz draws too.

Layers of limited width, filled from the outputs up; orders by medians with the fewest
crossings kept; then every box as near to its neighbours as its layer allows. Made for up to
some 300 boxes.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Point = tuple[float, float]

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
    out as if it were turned round. Loops are allowed.
    """
    if not sizes:
        return [], []
    forward = list(
        dict.fromkeys((min(edge), max(edge)) for edge in edges if edge[0] != edge[1])
    )
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


@dataclass(frozen=True, slots=True)
class _Block:
    """Neighbours that stand as close as they may."""

    position: float
    weight: float
    items: int

    def joined(self, other: _Block) -> _Block:
        weight = self.weight + other.weight
        moment = self.position * self.weight + other.position * other.weight
        return _Block(moment / weight, weight, self.items + other.items)


def _settle(
    layers: _Layers,
    row: list[int],
    wanted: list[float],
    weights: list[float],
    xs: list[float],
) -> None:
    """Move a layer's items as near to `wanted` as order and gaps allow (least squares)."""
    offset = 0.0
    offsets: list[float] = []
    blocks: list[_Block] = []
    for i, item in enumerate(row):
        if i:
            offset += layers.distance(row[i - 1], item)
        offsets.append(offset)
        blocks.append(_Block(wanted[i] - offset, weights[i], 1))
        while len(blocks) > 1 and blocks[-2].position > blocks[-1].position:
            blocks[-2:] = [blocks[-2].joined(blocks[-1])]
    start = 0
    for block in blocks:
        for i in range(start, start + block.items):
            xs[row[i]] = block.position + offsets[i]
        start += block.items


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
        if start == end:
            routes.append(_loop(xs[start], ys[ranks[start]], sizes[start]))
            continue
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


def _loop(x: float, y: float, size: tuple[float, float]) -> list[Point]:
    right, quarter = x + size[0] / 2, size[1] / 4
    return [
        (right, y - quarter),
        (right + 18, y - quarter),
        (right + 18, y + quarter),
        (right, y + quarter),
    ]
