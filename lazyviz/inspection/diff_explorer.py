"""Walking through the difference of two programs: what is drawn, and what a click answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazygraph.errors import HloError
from lazygraph.trace import trace_value
from lazyviz.draw import diff_html as diff_panel
from lazyviz.draw.diff import Union, change
from lazyviz.inspection.protocol import (
    RequestError,
    number,
    panel_reply,
    search_text,
)
from lazyviz.inspection.walk import MAX_FOUND, MAX_HOPS, View, Walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lazygraph.diff import GraphDiff
    from lazygraph.graph import Graph
    from lazyviz.draw.diff import Spot
    from lazyviz.inspection.protocol import Reply

_BUDGET = 60
_MOST_BOXES = 150


class DiffExplorer(Walk[Union]):
    """A difference drawn in parts, with both sides of each node.

    Args:
        found: The difference.
        budget: About so many boxes are drawn at once.
    """

    _what = "view of a diff"

    def __init__(self, found: GraphDiff, budget: int = _BUDGET) -> None:
        self._budget = min(budget, _MOST_BOXES)
        union = Union(found)
        graph = union.overview(self._budget)
        super().__init__(View(title="all places", program=union, graph=graph))

    @property
    def title(self) -> str:
        """One line about what is compared."""
        found = self._program.found
        return f"{found.a.name} → {found.b.name}"

    @property
    def controls(self) -> dict[str, Any]:
        """What the reader can choose: nothing but what buttons ask for."""
        return {}

    def overview(self) -> str:
        """Return what the diff comes to, for a panel that shows nothing else yet, as HTML."""
        program = self._program
        title = self.crumbs[-1] if len(self._views) > 1 else self.title
        return diff_panel.overview_html(
            title, program.found, program.places, self.shown.left_out
        )

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

    # --- selecting

    def _select(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        index = number(request, "box", len(self.shown.boxes))
        yield self._told(self._spot_at(index), index)

    def _node(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        spot = self._spot(request)
        index = self._index(spot)
        if index is None:
            yield from self._near(spot, 1)
            return
        yield self._told(spot, index)

    def _told(self, spot: Spot, index: int | None) -> Reply:
        union = self._program
        inner = [name for name, _ in union.inner(spot)]
        what = union.changes.get(spot, "same")
        before, after = union.sides(spot)
        changed = ""
        if what == "changed" and before and after:
            changed = change(union.found, before.node, after.node)
        told = diff_panel.node_html(what, before, after, inner, changed)
        return panel_reply(told, index)

    def _follow(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        """Tell where a value comes from and goes, through tuples, calls and fusions."""
        program, spot = self._program, self._spot(request)
        side, node = spot
        graph = program.side(side)
        try:
            way = trace_value(graph, graph.names[node])
        except HloError as error:
            raise RequestError(str(error)) from None

        names = {name.lstrip("%"): k for k, name in enumerate(graph.names)}

        def number_of(name: str) -> int | None:
            found = names.get(name.lstrip("%"))
            return program.number(side, found) if found is not None else None

        body = diff_panel.way_html(way, number_of, program.number(side, node))
        yield panel_reply(body, self._index(spot))

    def _index(self, spot: Spot) -> int | None:
        return self._drawn_at(self._program.number(*spot))

    def _spot_at(self, index: int) -> Spot:
        return self._program.spot(self.shown.boxes[index].members[0])

    # --- moving

    def _focus(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        hops = number(request, "hops", MAX_HOPS + 1)
        yield from self._near(self._spot(request), hops)

    def _near(self, spot: Spot, hops: int) -> Iterator[Reply]:
        program = self._program
        side, node = spot
        graph = program.near(spot, hops, self._budget)
        yield self._show(f"{program.side(side).names[node]} ±{hops}", program, graph)
        yield self._told(spot, self._index(spot))

    def _place(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        program = self._program
        level = number(request, "level", len(program.places))
        group = program.places[level]
        graph = program.place(group, self._budget)
        where = group.exemplar.scope or group.exemplar.site or f"place {level + 1}"
        yield self._show(where, program, graph)
        first = next(k for k, box in enumerate(graph.boxes) if box.change != "same")
        yield self._told(self._spot_at(first), first)

    def _open(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        spot = self._spot_at(number(request, "box", len(self.shown.boxes)))
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
        union = Union(found)
        yield self._show(name, union, union.overview(self._budget))
        yield panel_reply(self.overview(), None)

    # --- finding

    def _search(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        wanted = search_text(request)
        program, words = self._program, wanted.lower().split()
        spots: list[Spot] = [("b", node) for node in range(len(program.found.b))]
        spots += [("a", node) for node in program.found.removed]
        found = [s for s in spots if words and _has(program.side(s[0]), s[1], words)]
        found.sort(key=lambda spot: spot not in program.changes)  # stable
        drawn = {program.number(*spot) for spot in found}
        rows = [
            (program.changes.get(spot), side)
            for spot in found[:MAX_FOUND]
            for side in [program.sides(spot)[spot[0] == "b"]]
            if side is not None
        ]
        boxes = self.shown.boxes
        hits = [k for k, box in enumerate(boxes) if drawn.intersection(box.members)]
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
