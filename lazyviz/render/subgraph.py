"""Parts of a drawing: the neighbourhood of a box, the inside of a folded one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from lazyviz.render.model import DrawGraph


def restrict(graph: DrawGraph, keep: Collection[int]) -> DrawGraph:
    """Return the boxes at the positions `keep`, in order, and the edges among them."""
    kept = sorted(keep)
    position = {old: new for new, old in enumerate(kept)}
    edges = [
        (position[start], position[end])
        for start, end in graph.edges
        if start in position and end in position
    ]
    boxes = [graph.boxes[old] for old in kept]
    part = graph.rewired(boxes, edges, position)
    return replace(part, nodes=sum(bool(box.members) for box in boxes))


def neighbourhood(graph: DrawGraph, centre: Iterable[int], hops: int) -> set[int]:
    """Return the positions within so many edges of `centre`, in either direction."""
    beside: dict[int, set[int]] = defaultdict(set)
    for start, end in graph.edges:
        beside[start].add(end)
        beside[end].add(start)
    found = set(centre)
    border = set(found)
    for _ in range(hops):
        border = {other for box in border for other in beside[box]} - found
        found |= border
    return found


def inside(graph: DrawGraph, members: Collection[int]) -> DrawGraph:
    """Return the boxes of some nodes and, dimmed, what they read and what reads them.

    Args:
        graph: The drawing with nothing folded.
        members: Node ids.
    """
    wanted = set(members)
    within = {
        i for i, box in enumerate(graph.boxes) if wanted.intersection(box.members)
    }
    around = neighbourhood(graph, within, 1)
    # Two neighbours of the part need no edge of their own: the part is what is shown.
    edges = tuple(
        (start, end) for start, end in graph.edges if start in within or end in within
    )
    boxes = tuple(
        box if i in within else replace(box, is_new=False)
        for i, box in enumerate(graph.boxes)
    )
    part = replace(graph, boxes=boxes, edges=edges, dimmed="outside this part")
    return restrict(part, around)
