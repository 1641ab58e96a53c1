"""Walking through a pending graph: what is drawn, and what a click on it answers.

An `Explorer` knows nothing of browsers. It takes requests, plain dicts such as
`{"kind": "select", "box": 3}`, checks them, and returns replies, plain dicts as well, one for each
thing that changes on the screen. `lazyviz.widgets.graph_view` carries both.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazyviz import formatters
from lazyviz.render import panel, svg, text
from lazyviz.render.collapse import collapse
from lazyviz.render.layout import lay_out
from lazyviz.render.model import DrawGraph, draw_graph, path_text
from lazyviz.render.subgraph import inside, neighbourhood, restrict
from lazyviz.render.values import value_view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lazyrt import Inspection
    from lazyviz.render.model import Box

Reply = dict[str, Any]

_ASK_ABOVE_NS = 1_000_000_000  # a longer wait is the reader's own decision
_BUDGET = 150  # boxes; a reader takes fewer than an engine can place
_MAX_FOUND = 50
_MAX_SEARCH = 200
_MAX_HOPS = 20
_WHOLE = "whole graph"


class RequestError(ValueError):
    """A request that no page of ours sends, or that no longer fits what is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """One drawing on the way from the whole graph to a part of it."""

    title: str
    graph: DrawGraph  # with nothing folded


class Explorer:
    """The pending graph of an inspection, drawn in parts, with its nodes' values.

    Args:
        inspection: What `lazyrt.inspect()` gave.
        names: Variable names of the graph's roots.
        budget: At most so many boxes are drawn at once.
    """

    def __init__(
        self,
        inspection: Inspection,
        names: Mapping[Any, str] | None = None,
        budget: int = _BUDGET,
    ) -> None:
        self._inspection = inspection
        self._whole = draw_graph(inspection.graph, names=names)
        self._budget = budget
        self._views = [_View(title=_WHOLE, graph=self._whole)]
        self._shown = collapse(self._whole, budget)
        self._place = {
            box.members[0]: i for i, box in enumerate(self._whole.boxes) if box.members
        }
        self._leaves = {
            f"%{_prefix(p)}{p.position}": p for p in inspection.graph.parameters
        }

    @property
    def title(self) -> str:
        """One line about the whole graph."""
        graph = self._inspection.graph
        return (
            f"IR graph {graph.fingerprint[:8]} · {text.plural(len(graph.nodes), 'op')} · "
            f"{text.plural(len(graph.parameters), 'input')} · "
            f"{text.plural(len(graph.roots), 'output')}"
        )

    @property
    def crumbs(self) -> list[str]:
        """The titles of the drawings from the whole graph to what is shown."""
        return [view.title for view in self._views]

    @property
    def shown(self) -> DrawGraph:
        """What is drawn now, folded."""
        return self._shown

    def drawing(self) -> str:
        """Return the picture of what is shown, as inline SVG."""
        return svg.emit(self._shown, lay_out(self._shown), inline=True)

    def handle(self, request: object) -> Iterator[Reply]:
        """Answer a request; each reply is ready as soon as it is yielded.

        Raises:
            RequestError: It is none of ours.
        """
        kind = request.get("kind") if isinstance(request, dict) else None
        answer = self._answers().get(kind) if isinstance(kind, str) else None
        if answer is None:
            raise RequestError(
                f"{request!r:.80} is no request that the graph view knows. Reload the page: it "
                "may be of another version."
            )
        yield from answer(request)

    def _answers(self) -> dict[str, Callable[[Any], Iterator[Reply]]]:
        return {
            "hello": _hello,
            "select": self._select_box,
            "node": self._select_node,
            "value": self._value_asked,
            "open": self._open,
            "focus": self._focus,
            "back": self._back,
            "search": self._search,
        }

    # --- selecting

    def _select_box(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        index = _number(request, "box", len(self._shown.boxes))
        box = self._shown.boxes[index]
        if not box.members:
            yield from self._input(box, index)
        elif len(box.members) > 1:
            body = panel.group_panel(box, index, self._ops_in(box))
            yield _panel(body, box=index)
        else:
            yield from self._node(box.members[0], index)

    def _select_node(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        node = self._node_number(request)
        index = self._drawn_at(node)
        if index is None:
            yield from self._focus({"node": node, "hops": 2})
            return
        yield from self._node(node, index)

    def _node(self, node: int, index: int | None) -> Iterator[Reply]:
        """Tell the facts and the cost first, then the value, unless it would take long."""
        cost = self._inspection.cost(node)
        facts = self._facts(node)
        asks = cost.estimate_ns > _ASK_ABOVE_NS
        yield _panel(facts + panel.cost_html(cost, node, asks=asks), box=index)
        if not asks:
            yield _panel(facts + self._value(node, 0), box=index)

    def _value_asked(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        node = self._node_number(request)
        outputs = len(self._inspection.node(node).outputs)
        output = _number(request, "output", outputs) if "output" in request else 0
        yield _panel(
            self._facts(node) + self._value(node, output), box=self._drawn_at(node)
        )

    def _value(self, node: int, output: int) -> str:
        start = time.perf_counter_ns()
        try:
            value = self._inspection.materialise(node, output)
        except RuntimeError as error:  # the runtime's own, and XLA's
            return panel.error_html(error)
        took = text.duration(time.perf_counter_ns() - start)
        outputs = self._inspection.node(node).outputs
        return panel.value_html(
            value_view(value, formatters.statistics(value)),
            took,
            node,
            [k for k, each in enumerate(outputs) if each is not None],
            output,
        )

    def _input(self, box: Box, index: int) -> Iterator[Reply]:
        facts = panel.input_facts(box)
        leaf = self._leaves.get(box.op)  # none for inputs that are folded
        if leaf is None or leaf.kind != "data":
            yield _panel(facts, box=index)
            return
        try:
            value = self._inspection.parameter(leaf)
        except RuntimeError as error:
            yield _panel(facts + panel.error_html(error), box=index)
            return
        yield _panel(facts + value_view(value, formatters.statistics(value)), box=index)

    def _facts(self, node: int) -> str:
        place = self._place[node]
        boxes = self._whole.boxes
        edges = self._whole.edges
        return panel.node_facts(
            boxes[place],
            upstream=[boxes[start] for start, end in edges if end == place],
            downstream=[boxes[end] for start, end in edges if start == place],
        )

    def _ops_in(self, box: Box) -> list[Box]:
        return [self._whole.boxes[self._place[node]] for node in box.members]

    def _drawn_at(self, node: int) -> int | None:
        """Return the box of what is drawn that stands for a node alone."""
        for index, box in enumerate(self._shown.boxes):
            if box.members == (node,):
                return index
        return None

    # --- moving

    def _open(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        box = self._shown.boxes[_number(request, "box", len(self._shown.boxes))]
        if len(box.members) < 2:  # noqa: PLR2004
            raise RequestError(
                f"box {box.label!r} holds nothing more. Open a folded one."
            )
        title = path_text(box.path) or box.label
        yield from self._show(title, inside(self._whole, box.members))

    def _focus(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        node = self._node_number(request)
        hops = _number(request, "hops", _MAX_HOPS + 1)
        centre = self._place[node]
        around = restrict(self._whole, neighbourhood(self._whole, [centre], hops))
        label = self._whole.boxes[centre].label
        yield from self._show(f"{label} ±{hops}", around)
        yield from self._node(node, self._drawn_at(node))

    def _back(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        level = _number(request, "level", len(self._views))
        del self._views[level + 1 :]
        yield self._drawn()

    def _show(self, title: str, graph: DrawGraph) -> Iterator[Reply]:
        self._views.append(_View(title=title, graph=graph))
        yield self._drawn()

    def _drawn(self) -> Reply:
        self._shown = collapse(self._views[-1].graph, self._budget)
        return {"kind": "drawing", "svg": self.drawing(), "crumbs": self.crumbs}

    # --- finding

    def _search(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        wanted = request.get("text")
        if not isinstance(wanted, str) or len(wanted) > _MAX_SEARCH:
            raise RequestError(
                f"a search takes a text of at most {_MAX_SEARCH} characters, not {wanted!r:.60}."
            )
        words = wanted.lower().split()
        found = [
            box
            for box in self._whole.boxes
            if words and box.members and all(word in _haystack(box) for word in words)
        ]
        nodes = {box.members[0] for box in found}
        marked = [
            i for i, box in enumerate(self._shown.boxes) if nodes & set(box.members)
        ]
        body = panel.found_html(wanted, found[:_MAX_FOUND], len(found))
        yield {"kind": "found", "boxes": marked, "count": len(found)}
        yield _panel(body, box=None)

    def _node_number(self, request: Mapping[str, Any]) -> int:
        node = request.get("node")
        if not isinstance(node, int) or node not in self._place:
            raise RequestError(
                f"the graph has no node {node!r:.40}. Reload the page: it may show another graph."
            )
        return node


def _hello(_request: Mapping[str, Any]) -> Iterator[Reply]:
    """Tell a page whether it is answered while a cell runs; it asks until it is.

    ipykernel 7.4 sends a page's messages to the thread that last answered it, the main one at
    first. Once the answer to a message that came by way of a subshell has gone out, later ones
    are taken on the subshell's thread.
    """
    concurrent = threading.current_thread() is not threading.main_thread()
    yield {"kind": "ready", "concurrent": concurrent}


def _panel(body: str, *, box: int | None) -> Reply:
    return {"kind": "panel", "html": body, "box": box}


def _number(request: Mapping[str, Any], name: str, count: int) -> int:
    number = request.get(name)
    if (
        not isinstance(number, int)
        or isinstance(number, bool)
        or not 0 <= number < count
    ):
        raise RequestError(
            f"{name} is {number!r:.40}, which is not a number from 0 to {count - 1}. Reload the "
            "page: it may show another graph."
        )
    return number


def _haystack(box: Box) -> str:
    parts = (box.op, box.label, box.detail, box.name, box.site, path_text(box.path))
    return " ".join(parts).lower()


def _prefix(leaf: Any) -> str:
    return {"data": "p", "float": "f", "int": "i", "rng": "rng"}[leaf.kind]
