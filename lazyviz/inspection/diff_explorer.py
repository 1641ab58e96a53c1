"""Walking through the difference of two programs: what is drawn, and what a click on it answers.

A `DiffExplorer` stands where an `Explorer` stands for one program: `lazyviz.widgets.graph_view`
carries either. Nodes have one number for both graphs: those of the second come after the first's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lazygraph.diff import group_hunks, nested_diffs
from lazygraph.errors import HloError
from lazygraph.trace import trace_value
from lazyviz.inspection.protocol import (
    RequestError,
    answered,
    number,
    panel_reply,
    search_text,
)
from lazyviz.render import diff_panel
from lazyviz.render.diff_change import change
from lazyviz.render.diff_model import UnionGraph, union_graph, union_near, union_of
from lazyviz.render.diff_panel import Side
from lazyviz.render.diff_svg import diff_legend, diff_svg
from lazyviz.render.diff_text import ADDED, CHANGED, REMOVED, REWIRED, SAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lazygraph.diff import GraphDiff, HunkGroup
    from lazygraph.graph import Graph
    from lazyviz.inspection.protocol import Reply
    from lazyviz.render.diff_model import Spot

_BUDGET = 60
_MOST_BOXES = 150
_MAX_FOUND = 50
_MAX_HOPS = 20
_WHOLE = "all places"


class _Program:
    """A diff with what is looked up in it: of the whole programs, or within what a pair calls."""

    def __init__(self, found: GraphDiff) -> None:
        self.found = found

    @cached_property
    def places(self) -> list[HunkGroup]:
        """The kinds of place in which the sides differ."""
        return group_hunks(self.found.hunks())

    @cached_property
    def marks(self) -> dict[Spot, str]:
        """What has happened to the nodes that are not the same."""
        found = self.found
        marks: dict[Spot, str] = {("b", y): ADDED for y in found.added}
        marks |= {("a", x): REMOVED for x in found.removed}
        marks |= {("b", each.b): REWIRED for each in found.rewired}
        return marks | {("b", y): CHANGED for _, y in found.changed}

    @cached_property
    def names(self) -> dict[str, dict[str, int]]:
        """The nodes of each side by name."""
        return {
            side: {name.lstrip("%"): k for k, name in enumerate(self.side(side).names)}
            for side in "ab"
        }

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return len(self.found.a) + len(self.found.b)

    def side(self, name: str) -> Graph:
        """Return one of the two graphs."""
        return self.found.a if name == "a" else self.found.b

    def number(self, side: str, node: int) -> int:
        """Return the number of a node."""
        return node if side == "a" else len(self.found.a) + node

    def spot(self, asked: int) -> Spot:
        """Return the node of a number: that of the second graph, if a pair has it."""
        of_a = len(self.found.a)
        if asked >= of_a:
            return "b", asked - of_a
        partner = self.found.partner_a[asked]
        return ("b", partner) if partner >= 0 else ("a", asked)

    def sides(self, spot: Spot) -> tuple[Side | None, Side | None]:
        """Return a node in the first graph and in the second, None where it is not."""
        side, node = spot
        a = node if side == "a" else self.found.partner_b[node]
        b = node if side == "b" else -1
        return (
            Side(self.found.a, a, lambda k: self.number("a", k)) if a >= 0 else None,
            Side(self.found.b, b, lambda k: self.number("b", k)) if b >= 0 else None,
        )

    def inner(self, spot: Spot) -> list[tuple[str, GraphDiff]]:
        """Return what differs within what a changed pair calls."""
        side, node = spot
        if side != "b" or self.marks.get(spot) != CHANGED:
            return []
        return nested_diffs(self.found, self.found.partner_b[node], node)


@dataclass(slots=True, kw_only=True)
class _View:
    """One drawing on the way from all places to a part of them."""

    title: str
    program: _Program
    union: UnionGraph


class DiffExplorer:
    """A difference drawn in parts, with both sides of each node.

    Args:
        found: The difference.
        budget: About so many boxes are drawn at once.
    """

    def __init__(self, found: GraphDiff, budget: int = _BUDGET) -> None:
        self._budget = min(budget, _MOST_BOXES)
        self._views = [self._whole(_WHOLE, _Program(found))]

    @property
    def title(self) -> str:
        """One line about what is compared."""
        found = self._program.found
        return f"{found.a.name} → {found.b.name}"

    @property
    def crumbs(self) -> list[str]:
        """The titles of the drawings from all places to what is shown."""
        return [view.title for view in self._views]

    @property
    def shown(self) -> UnionGraph:
        """What is drawn now."""
        return self._views[-1].union

    @property
    def controls(self) -> dict[str, Any]:
        """What the reader can choose: nothing but what buttons ask for."""
        return {}

    def drawing(self) -> str:
        """Return the picture of what is shown, as inline SVG."""
        program = self._program
        return diff_svg(self.shown, live=lambda spot: program.number(*spot))

    def legend(self) -> str:
        """Return what the colours mean, as inline SVG."""
        return diff_legend(self.shown)

    def overview(self) -> str:
        """Return what the diff comes to, for a panel that shows nothing else yet, as HTML."""
        program = self._program
        title = self.crumbs[-1] if len(self._views) > 1 else self.title
        return diff_panel.overview_html(
            title, program.found, program.places, self.shown.left_out
        )

    def handle(self, request: object) -> Iterator[Reply]:
        """Answer a request; each reply is ready as soon as it is yielded.

        Raises:
            RequestError: It is none of ours.
        """
        yield from answered(request, self._answers(), "view of a diff")

    def _answers(self) -> dict[str, Callable[[Any], Iterator[Reply]]]:
        return {
            "select": self._select,
            "node": self._node,
            "follow": self._follow,
            "focus": self._focus,
            "place": self._place,
            "open": self._open,
            "inside": self._inside,
            "back": self._back,
            "search": self._search,
        }

    @property
    def _program(self) -> _Program:
        return self._views[-1].program

    def _whole(self, title: str, program: _Program) -> _View:
        union = union_graph(program.found, self._budget)
        return _View(title=title, program=program, union=union)

    # --- selecting

    def _select(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        index = number(request, "box", len(self.shown.nodes))
        yield self._told(self.shown.nodes[index].spot, index)

    def _node(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        spot = self._spot(request)
        index = self._drawn_at(spot)
        if index is None:
            yield from self._near(spot, 1)
            return
        yield self._told(spot, index)

    def _told(self, spot: Spot, index: int | None) -> Reply:
        program = self._program
        inner = [name for name, _ in program.inner(spot)]
        mark = program.marks.get(spot, SAME)
        before, after = program.sides(spot)
        changed = ""
        if mark == CHANGED and before and after:
            changed = change(program.found, before.node, after.node)
        return panel_reply(
            diff_panel.node_html(mark, before, after, inner, changed), index
        )

    def _follow(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        """Tell where a value comes from and goes, through tuples, calls and fusions."""
        program, spot = self._program, self._spot(request)
        side, node = spot
        graph = program.side(side)
        try:
            way = trace_value(graph, graph.names[node])
        except HloError as error:
            raise RequestError(str(error)) from None

        def number_of(name: str) -> int | None:
            found = program.names[side].get(name.lstrip("%"))
            return program.number(side, found) if found is not None else None

        body = diff_panel.way_html(way, number_of, program.number(side, node))
        yield panel_reply(body, self._drawn_at(spot))

    def _drawn_at(self, spot: Spot) -> int | None:
        spots = (node.spot for node in self.shown.nodes)
        return next((k for k, each in enumerate(spots) if each == spot), None)

    # --- moving

    def _focus(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        hops = number(request, "hops", _MAX_HOPS + 1)
        yield from self._near(self._spot(request), hops)

    def _near(self, spot: Spot, hops: int) -> Iterator[Reply]:
        program = self._program
        side, node = spot
        union = union_near(program.found, spot, hops, self._budget)
        yield self._show(f"{program.side(side).names[node]} ±{hops}", program, union)
        yield self._told(spot, self._drawn_at(spot))

    def _place(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        program = self._program
        level = number(request, "level", len(program.places))
        group = program.places[level]
        union = union_of(program.found, group, self._budget)
        where = group.exemplar.scope or group.exemplar.site or f"place {level + 1}"
        yield self._show(where, program, union)
        first = next(k for k, node in enumerate(union.nodes) if node.mark != SAME)
        yield self._told(union.nodes[first].spot, first)

    def _open(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        index = number(request, "box", len(self.shown.nodes))
        spot = self.shown.nodes[index].spot
        if not self._program.inner(spot):
            raise RequestError(
                "nothing differs within this box. Open a changed call or fusion; its panel names "
                "what differs within."
            )
        yield from self._inside({"node": self._program.number(*spot), "call": 0})

    def _inside(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        """Show what differs within the function, the fusion or the loop body that a pair calls."""
        inner = self._program.inner(self._spot(request))
        if not inner:
            raise RequestError(
                "nothing differs within this node. Choose a changed call or fusion."
            )
        name, found = inner[number(request, "call", len(inner))]
        view = self._whole(name, _Program(found))
        yield self._show(view.title, view.program, view.union)
        yield panel_reply(self.overview(), None)

    def _back(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        level = number(request, "level", len(self._views))
        del self._views[level + 1 :]
        yield self._drawn()
        yield panel_reply(self.overview(), None)

    def _show(self, title: str, program: _Program, union: UnionGraph) -> Reply:
        self._views.append(_View(title=title, program=program, union=union))
        return self._drawn()

    def _drawn(self) -> Reply:
        return {
            "kind": "drawing",
            "svg": self.drawing(),
            "legend": self.legend(),
            "crumbs": self.crumbs,
            "controls": self.controls,
            "title": self.title,
        }

    # --- finding

    def _search(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        wanted = search_text(request)
        program, words = self._program, wanted.lower().split()
        spots: list[Spot] = [("b", node) for node in range(len(program.found.b))]
        spots += [("a", node) for node in program.found.removed]
        found = [s for s in spots if words and _has(program.side(s[0]), s[1], words)]
        found.sort(key=lambda spot: spot not in program.marks)  # stable
        drawn = set(found)
        rows = [
            (program.marks.get(spot, ""), side)
            for spot in found[:_MAX_FOUND]
            for side in [program.sides(spot)[spot[0] == "b"]]
            if side is not None
        ]
        hits = [k for k, node in enumerate(self.shown.nodes) if node.spot in drawn]
        yield {"kind": "found", "boxes": hits, "count": len(found)}
        yield panel_reply(
            diff_panel.found_html(wanted, rows, len(found), len(spots)), None
        )

    def _spot(self, request: Mapping[str, Any]) -> Spot:
        return self._program.spot(number(request, "node", self._program.count))


def _has(graph: Graph, node: int, words: list[str]) -> bool:
    origin = graph.origin(node)
    parts = (*graph.label(node), graph.names[node], *origin)
    text = " ".join(parts).lower()
    return all(word in text for word in words)
