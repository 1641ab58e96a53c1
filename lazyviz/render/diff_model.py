"""The union of two graphs where they differ, with some context, small enough to draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazygraph.diff import group_hunks
from lazyviz.render.diff_change import change
from lazyviz.render.diff_text import ADDED, CHANGED, REMOVED, REWIRED, SAME
from lazyviz.render.model import short_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazygraph.diff import GraphDiff, Hunk, HunkGroup
    from lazygraph.graph import Graph

DEFAULT_BUDGET = 120
_MAX_NEIGHBOURS = 6

# A node of the union: of b, or of a if b has no such node.
Spot = tuple[str, int]


@dataclass(frozen=True, slots=True)
class UnionNode:
    """One node of the drawing.

    Attributes:
        spot: Which node it is.
        mark: `+`, `−`, `~`, `⇄`, or `=` for context.
        label: First line: the mark and the operation.
        detail: Second line: the type, with the former one where it changed.
        scope: Module path, in parts.
        site: Source line, may be empty.
        hidden: How many of its neighbours are not drawn; of what was not chosen itself.
        places: How many places look like the one it is part of.
        is_output: Whether it is an output.
        is_first: Whether it is of the place that is told first, on which a view opens.
    """

    spot: Spot
    mark: str
    label: str
    detail: str
    scope: tuple[str, ...]
    site: str
    hidden: int
    places: int
    is_output: bool
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class UnionGraph:
    """What to draw of a diff.

    Attributes:
        nodes: In an order in which operands come first, as far as the union has one.
        edges: Start and end as positions in `nodes`, and `=`, `+` or `−`.
        left_out: How many edited nodes are not drawn.
    """

    nodes: tuple[UnionNode, ...]
    edges: tuple[tuple[int, int, str], ...]
    left_out: int


def union_graph(found: GraphDiff, budget: int = DEFAULT_BUDGET) -> UnionGraph:
    """Return the changed nodes of a diff with one hop of context.

    Of places that look alike one is drawn.

    Args:
        found: The diff.
        budget: About so many nodes at most.
    """
    return _Union(found).select(budget)


def union_near(found: GraphDiff, spot: Spot, hops: int, budget: int) -> UnionGraph:
    """Return what is near a node of a diff, on both sides; the nearest if it is too much.

    Args:
        found: The diff.
        spot: The node in the middle.
        hops: How many edges away something may be.
        budget: At most so many nodes.
    """
    return _Union(found).near(spot, hops, budget)


def union_of(found: GraphDiff, group: HunkGroup, budget: int) -> UnionGraph:
    """Return one place of those that look alike, with its surroundings."""
    return _Union(found).place(group, budget)


class _Union:
    def __init__(self, found: GraphDiff) -> None:
        self._found = found
        self._marks: dict[Spot, str] = {("b", y): ADDED for y in found.added}
        self._marks.update({("a", x): REMOVED for x in found.removed})
        self._marks.update({("b", each.b): REWIRED for each in found.rewired})
        self._marks.update({("b", y): CHANGED for _, y in found.changed})
        self._places: dict[Spot, int] = {}
        self._first: set[Spot] = set()

    def select(self, budget: int) -> UnionGraph:
        chosen: dict[Spot, None] = {}
        for group in group_hunks(self._found.hunks()):
            spots = self._connected(group.exemplar, max(4, budget // 3))
            # Of what only follows from another change some is enough.
            room = budget // 4 if group.follows else budget
            if chosen and len(chosen) + len(spots) > room:
                continue
            self._first = self._first or set(spots)
            for spot in spots:
                chosen[spot] = None
                self._places[spot] = group.places
        return self._with_context(chosen, budget)

    def place(self, group: HunkGroup, budget: int) -> UnionGraph:
        spots = self._connected(group.exemplar, budget)
        self._places = dict.fromkeys(spots, group.places)
        self._first = set(spots)
        return self._with_context(dict.fromkeys(spots), budget)

    def near(self, spot: Spot, hops: int, budget: int) -> UnionGraph:
        found, edge = {spot: None}, [spot]
        for _ in range(hops):
            edge = [
                near
                for each in edge
                for near in self._neighbours(each)
                if near not in found
            ]
            for each in edge[: budget - len(found)]:
                found[each] = None
        return self._graph(list(found))

    def _with_context(self, chosen: dict[Spot, None], budget: int) -> UnionGraph:
        context: dict[Spot, None] = {}
        for spot in chosen:
            for near in self._neighbours(spot)[:_MAX_NEIGHBOURS]:
                if near not in chosen and len(chosen) + len(context) < 2 * budget:
                    context[near] = None
        return self._graph([*chosen, *context])

    def _graph(self, spots: list[Spot]) -> UnionGraph:
        spots.sort(key=self._height)
        position = {spot: k for k, spot in enumerate(spots)}
        edges = {
            (position[start], position[end], mark)
            for end in spots
            for start, mark in self._incoming(end)
            if start in position
        }
        drawn = sum(1 for spot in spots if spot in self._marks)
        return UnionGraph(
            tuple(self._node(spot, position) for spot in spots),
            tuple(sorted(edges)),
            len(self._marks) - drawn,
        )

    def _height(self, spot: Spot) -> tuple[float, str]:
        """Return how far into the program a node is, on a scale that both sides share."""
        side, node = spot
        return node / max(1, len(self._side(side))), side

    def _side(self, side: str) -> Graph:
        return self._found.a if side == "a" else self._found.b

    def _spots(self, hunk: Hunk) -> list[Spot]:
        found: dict[Spot, None] = {("b", y): None for y in hunk.added}
        found.update({("a", x): None for x in hunk.removed})
        found.update({("b", y): None for _, y in hunk.changed})
        found.update({("b", each.b): None for each in hunk.rewired})
        return sorted(found, key=self._height)

    def _connected(self, hunk: Hunk, limit: int) -> list[Spot]:
        """Return the nodes of a place that lead to its last one, the nearest first."""
        spots = self._spots(hunk)
        inside, found = set(spots), dict.fromkeys(spots[-1:])
        queue = list(found)
        for spot in queue:
            near = [
                each
                for each, _ in self._incoming(spot)
                if each in inside and each not in found
            ]
            queue += dict.fromkeys(near)
            found.update(dict.fromkeys(near))
            if len(found) >= limit:
                break
        for spot in reversed(spots):
            if len(found) >= limit:
                break
            found[spot] = None
        return list(found)[:limit]

    def _of_a(self, node: int) -> Spot:
        partner = self._found.partner_a[node]
        return ("b", partner) if partner >= 0 else ("a", node)

    def _incoming(self, spot: Spot) -> Iterable[tuple[Spot, str]]:
        """Yield the operands of a node on both sides, with whether both have the edge."""
        found = self._found
        side, node = spot
        old = node if side == "a" else found.partner_b[node]
        before = (
            {self._of_a(each) for each in found.a.operands[old]} if old >= 0 else set()
        )
        after = (
            {("b", each) for each in found.b.operands[node]} if side == "b" else set()
        )
        for start in before | after:
            if start in before and start in after:
                yield start, SAME
            else:
                yield start, ADDED if start in after else REMOVED

    def _neighbours(self, spot: Spot) -> list[Spot]:
        found = self._found
        side, node = spot
        near: dict[Spot, None] = {start: None for start, _ in self._incoming(spot)}
        if side == "b":
            near.update({("b", user): None for user, _ in found.b.users[node]})
            node = found.partner_b[node]
        if node >= 0:
            near.update({self._of_a(user): None for user, _ in found.a.users[node]})
        return list(near)

    def _node(self, spot: Spot, position: dict[Spot, int]) -> UnionNode:
        side, node = spot
        graph = self._side(side)
        label, origin = graph.label(node), graph.origin(node)
        mark = self._marks.get(spot, SAME)
        shown = short_name(label.op)
        if label.op in {"call", "custom-call"} and origin.op_name:
            shown = short_name(origin.op_name)
        detail = label.type
        old = self._found.partner_b[node] if side == "b" else -1
        if mark == CHANGED and old >= 0:
            detail = change(self._found, old, node)
        hidden = 0
        if spot not in self._places:
            hidden = sum(1 for near in self._neighbours(spot) if near not in position)
        return UnionNode(
            spot=spot,
            mark=mark,
            label=shown if mark == SAME else f"{mark} {shown}",
            detail=detail,
            scope=tuple(
                part for part in origin.scope.replace("/", ".").split(".") if part
            ),
            site=origin.site,
            hidden=hidden,
            places=self._places.get(spot, 1),
            is_output=node in graph.outputs,
            is_first=spot in self._first,
        )
