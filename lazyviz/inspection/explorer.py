"""`lazyviz.explore`: walking through a program, what is drawn, and what a click on it answers."""

from __future__ import annotations

import re
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lazygraph.graph import gc_paused
from lazyviz.doc import Code, Doc, Drawn, Fold, Part
from lazyviz.draw import model, panel, svg
from lazyviz.draw.fold import FOLDINGS, READ_WHOLE, Folding, fold_by, unfold
from lazyviz.draw.layout import draws_frames
from lazyviz.inspection.protocol import (
    MAX_FOUND,
    MAX_HOPS,
    RequestError,
    View,
    Walk,
    busy,
    choice,
    has_words,
    is_whole,
    number,
    panel_reply,
    position,
    quoted,
    why_not,
)
from lazyviz.inspection.subjects import how_to_keep, subject_of
from lazyviz.render import text
from lazyviz.render.html import page_html
from lazyviz.render.values import look_view, picture_axes
from lazyviz.shell.displayed import Displayed, facts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lazyrt import Inspection
    from lazyviz.inspection.programs import IrProgram, Program
    from lazyviz.inspection.protocol import Reply, Subject
    from lazyviz.widgets import GraphView

_ASK_ABOVE_NS = 1_000_000_000  # a longer wait is the reader's own decision
_BUDGET = 150  # boxes; a reader takes fewer than an engine can place
MOST_BOXES = 300
_MAX_FALLBACKS = 50
_WHOLE = "whole graph"
_NOT_KEPT = "This step has run, and its inputs are not kept: a click shows what tensors still hold."
_FOLDING_NAMES: dict[Folding, str] = {
    "auto": "to an overview",
    "module": "by module",
    "cell": "by cell",
    "line": "by line",
    "none": "as little as possible",
}
_OVERLAY_NAMES = {
    "": "none",
    "time": "time",
    "bytes": "bytes",
    "flops": "FLOPs",
    "nan": "NaN and Inf",
    "fallback": "CPU fallback",
}


class Explorer(Walk["Program"]):
    """A program drawn in parts, in any of its forms, with its nodes' values while they exist."""

    _what = "graph view"

    def __init__(self, subject: Subject[Program], budget: int = _BUDGET) -> None:
        self._budget = min(budget, MOST_BOXES)
        self._chosen_overlay = ""
        self._tells_overlay = False  # whether the panel is about what was coloured
        super().__init__(subject, subject.first)

    @property
    def title(self) -> str:
        """One line about the form that is shown."""
        return self._subject.program(self._chosen_form).title

    @property
    def controls(self) -> dict[str, Any]:
        """What the reader can choose, as pairs of a value and a name, and what is chosen."""
        overlays = ("", *self._program.overlays)
        found = super().controls
        view = {"fold": self._view.folding, "overlay": self._chosen_overlay}
        return {
            "form": found["form"],
            "fold": [list(pair) for pair in _FOLDING_NAMES.items()],
            "overlay": [[name, _OVERLAY_NAMES[name]] for name in overlays],
            "chosen": found["chosen"] | view,
        }

    @property
    def unfolded(self) -> model.DrawGraph:
        """What is drawn now, with nothing folded, of any size."""
        return self._view.graph

    @property
    def copied(self) -> model.DrawGraph:
        """What a static copy draws: the overview if one is shown, else all, of any size."""
        is_overview = (
            self._view.folding == "auto" and len(self._plain.boxes) <= READ_WHOLE
        )
        return self._plain if is_overview else self._view.graph

    def listing(self) -> str:
        """Return the form that is shown as text."""
        return self._subject.program(self._chosen_form).listing()

    def overview(self) -> str:
        """Return what is drawn in words, for a panel that shows nothing else yet, as HTML."""
        view = self._view
        boxes = view.graph.boxes
        words = panel.overview_html(
            view.title,
            [box for box in boxes if box.members],
            [box for box in boxes if not box.members],
            has_values=self._inspection is not None and self._inspection.is_current,
        )
        if self._inspection is not None and not self._inspection.is_current:
            words += panel.note_html(f"{_NOT_KEPT} {how_to_keep()}")
        return words

    def handle(self, request: object) -> Iterator[Reply]:
        """Answer a request; each reply is ready as soon as it is yielded.

        Once a page is open, what the first click would have to wait for is done ahead.
        """
        for reply in super().handle(request):
            if reply["kind"] == "panel":
                self._tells_overlay = False
            yield reply
            if reply["kind"] == "ready" and self._inspection is not None:
                self._inspection.get_ready()

    @property
    def _inspection(self) -> Inspection | None:
        """The inspection that values come from; None where there are no values."""
        return self._subject.inspection if self._program.form == "ir" else None

    def _whole(self, program: Program) -> View[Program]:
        if self._chosen_overlay not in program.overlays:
            self._chosen_overlay = ""
        return View(title=_WHOLE, program=program, graph=program.drawing)

    # --- selecting

    def _on_select(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        index = number(request, "box", len(self._shown.boxes))
        box = self._shown.boxes[index]
        if not box.members:
            yield from self._input(box, index, ())
        elif len(box.members) > 1:
            yield from self._group(box, index, is_brief=request.get("brief") is True)
        else:
            yield from self._node(box.members[0], index)

    def _on_node(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        node = self._node_number(request)
        index = self._drawn_at(node)
        if index is None:
            yield from self._on_focus({"node": node, "hops": 2})
            return
        yield from self._node(node, index)

    def _on_input(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        box = self._input_box(request)
        boxes = enumerate(self._shown.boxes)
        found = (k for k, each in boxes if not each.members and each.op == box.op)
        yield from self._input(box, next(found, None), position(request))

    def _group(self, box: model.Box, index: int, *, is_brief: bool) -> Iterator[Reply]:
        """Tell what a folded box holds and gives, then the value of the last it gives.

        A brief answer leaves the value for the page to ask for: the click may be the first of the two
        that open the box.
        """
        results = self._results_of(box)
        body = panel.group_panel(box, index, self._ops_in(box), results)
        inspection = self._inspection
        if inspection is None or not results:
            yield panel_reply(body, box=index)
            return
        if is_brief:
            yield panel_reply(body, index, then={"kind": "select", "box": index})
            return
        body += panel.heading_html(panel.title_of(results[-1]))
        yield from self._valued(body, results[-1].members[0], index, inspection)

    def _results_of(self, box: model.Box) -> list[model.Box]:
        """Return the ops of a folded box that something outside of it reads, or that are outputs."""
        drawing, place = self._program.drawing, self._program.place
        within = {place[node] for node in box.members}
        leave = {start for start, end in drawing.edges if end not in within}
        return [
            drawing.boxes[k]
            for k in sorted(within)
            if k in leave or drawing.boxes[k].is_root
        ]

    def _node(self, node: int, index: int | None) -> Iterator[Reply]:
        """Tell the facts and the cost first, then the value, unless it would take long."""
        facts = self._facts(node)
        inspection = self._inspection
        if inspection is None:
            yield panel_reply(facts + self._no_value(node), box=index)
        else:
            yield from self._valued(facts, node, index, inspection)

    def _valued(
        self, body: str, node: int, index: int | None, inspection: Inspection
    ) -> Iterator[Reply]:
        cost = inspection.cost(node)
        asks = cost.estimate_ns + cost.look_ns > _ASK_ABOVE_NS
        yield panel_reply(body + panel.cost_html(cost, node, asks=asks), box=index)
        if not asks:
            yield panel_reply(body + self._value(node, 0, ()), box=index)

    def _on_value(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        node = self._node_number(request)
        inspection = self._require_values()
        outputs = len(inspection.node(node).outputs)
        output = number(request, "output", outputs) if "output" in request else 0
        body = self._facts(node) + self._value(node, output, position(request))
        yield panel_reply(body, box=self._drawn_at(node))

    def _input(
        self, box: model.Box, index: int | None, at: tuple[int, ...]
    ) -> Iterator[Reply]:
        known = panel.input_facts(box, self._input_rows(box), self._neighbours(box)[1])
        inspection = self._inspection
        leaf = self._leaf(box)
        if inspection is None or leaf is None or leaf.kind != "data":
            yield panel_reply(known, box=index)
            return
        try:
            look = inspection.look_at_input(leaf, at, picture_axes(leaf.shape))
        except RuntimeError as error:
            yield panel_reply(known + why_not(error), box=index)
            return
        chooser = panel.slice_chooser(look, kind="input", name=box.op)
        value = look_view(look, facts(look), chooser, at)
        yield panel_reply(
            f'{known}<div data-value="{leaf.position}">{value}</div>', box=index
        )

    def _ops_in(self, box: model.Box) -> list[model.Box]:
        program = self._program
        return [program.drawing.boxes[program.place[node]] for node in box.members]

    # --- computing on request

    def _on_check(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        """Search an op and its ancestors for NaN and infinities, and show them on the drawing."""
        node = self._node_number(request)
        inspection = self._require_values()
        index = self._drawn_at(node)
        yield busy("computing the ancestors, op by op …")
        try:
            found = inspection.check_cone(node)
        except RuntimeError as error:
            yield panel_reply(self._facts(node) + why_not(error), box=index)
            return
        program = cast("IrProgram", self._program)
        program.checked.update(found)
        bad = [v.node.id for v, counts in found.items() if any(counts) and v.node]
        boxes = [program.drawing.boxes[program.place[k]] for k in dict.fromkeys(bad)]
        self._chosen_overlay = "nan"
        yield self._drawn()
        told = self._facts(node) + panel.checked_html(boxes, len(found))
        yield panel_reply(told, box=self._drawn_at(node))

    def _on_measure(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        """Offer to run each op alone and time it; do so once the reader agrees."""
        inspection = self._require_values()
        if request.get("go") is not True:
            yield panel_reply(panel.measure_offer(inspection.cost_of_all()))
            return
        yield busy("running each op alone …")
        try:
            took = inspection.measure()
        except RuntimeError as error:
            yield panel_reply(why_not(error))
            return
        cast("IrProgram", self._program).measured = took
        self._chosen_overlay = "time"
        yield self._drawn()
        slowest = sorted(took, key=lambda node: -took[node])[:MAX_FOUND]
        boxes = [self._program.drawing.boxes[self._program.place[k]] for k in slowest]
        yield panel_reply(panel.measured_html(boxes, took))

    # --- moving

    def _on_open(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        box = self._shown.boxes[number(request, "box", len(self._shown.boxes))]
        if box.kind != "group" and len(box.members) <= 1:
            yield from self._open_call(box)
            return
        view = self._view
        view.opened.append(box.members)
        yield self._drawn()
        if len(self._shown.boxes) > MOST_BOXES:  # there is no room for it here
            view.opened.pop()
            self._shown = self._folded()
            yield from self._on_alone(request)
            return
        wanted = set(box.members)
        opened = [
            k for k, each in enumerate(self._shown.boxes) if wanted & set(each.members)
        ]
        title = model.path_text(box.path) or box.label
        level = len(view.opened) - 1
        body = panel.opened_panel(title, self._ops_in(box), level)
        yield panel_reply(body, box=opened[0], seen=opened)

    def _on_close(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        """Fold again what was opened in place, the latest unless a level is named."""
        opened = self._view.opened
        if not opened:
            raise RequestError(
                "nothing is open in this drawing. Open a folded box first."
            )
        last = len(opened) - 1
        level = number(request, "level", last + 1) if "level" in request else last
        members = set(opened[level])
        opened[:] = [each for each in opened if not members.issuperset(each)]
        del self._view.folded[level + 1 :]
        yield self._drawn()
        boxes = self._shown.boxes
        index = next(k for k, box in enumerate(boxes) if members & set(box.members))
        box = boxes[index]
        body = panel.group_panel(box, index, self._ops_in(box), self._results_of(box))
        yield panel_reply(body, box=index)

    def _on_alone(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        """Show what a folded box holds in a drawing of its own."""
        box = self._shown.boxes[number(request, "box", len(self._shown.boxes))]
        if len(box.members) <= 1:
            raise RequestError(
                f"box {box.label!r} holds nothing more. Choose a folded one."
            )
        title = model.path_text(box.path) or box.label
        part = model.inside(self._program.drawing, box.members)
        yield self._show(title, self._program, part)
        yield panel_reply(self.overview())

    def _open_call(self, box: model.Box) -> Iterator[Reply]:
        if not box.members or not self._program.inside(box.members[0]):
            raise RequestError(
                f"box {box.label!r} holds nothing more. Open a folded one, a call or a fusion."
            )
        yield from self._on_inside({"node": box.members[0], "call": 0})

    def _on_inside(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        """Show the function, the fusion or the loop body that a node calls."""
        node = self._node_number(request)
        found = self._program.inside(node)
        if not found:
            raise RequestError(
                f"node %{node} calls nothing. Choose a call or a fusion."
            )
        _, program = found[number(request, "call", len(found))]
        yield self._show(program.name, program, program.drawing)
        yield panel_reply(self.overview())

    def _on_focus(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        node = self._node_number(request)
        hops = number(request, "hops", MAX_HOPS + 1)
        program = self._program
        centre = program.place[node]
        near = model.neighbourhood(program.drawing, [centre], hops)
        label = program.drawing.boxes[centre].label
        yield self._show(
            f"{label} ±{hops}", program, model.restrict(program.drawing, near)
        )
        yield from self._node(node, self._drawn_at(node))

    # --- what is known of a node

    def _no_value(self, node: int) -> str:
        """Say where values are, with buttons for the IR ops that a node came from."""
        if self._subject.inspection is None:
            return panel.note_html(self._subject.no_values)
        ir = cast("IrProgram", self._subject.program("ir"))
        ids = [
            node_id
            for origin in self._program.origins(node)
            for node_id in ir.by_origin.get(origin, ())
        ]
        boxes = [ir.drawing.boxes[ir.place[node_id]] for node_id in sorted(ids)]
        return panel.ir_html(boxes)

    def _value(self, node: int, output: int, at: tuple[int, ...]) -> str:
        """Return a result of a node with its statistics, computed if need be; it has values."""
        inspection = cast("Inspection", self._inspection)
        start = time.perf_counter_ns()
        try:
            shape = inspection.value(node, output).shape
            look = inspection.look(node, output, at, picture_axes(shape))
        except RuntimeError as error:  # the runtime's own, and XLA's
            return why_not(error)
        took = text.duration(time.perf_counter_ns() - start)
        outputs = inspection.node(node).outputs
        chooser = panel.slice_chooser(look, kind="value", node=node, output=output)
        return panel.value_html(
            look_view(look, facts(look), chooser, at),
            took,
            node,
            [k for k, each in enumerate(outputs) if each is not None],
            output,
        )

    def _leaf(self, box: model.Box) -> Any:
        """Return the leaf of a pending graph that an input's box stands for, None if there is none."""
        inspection = self._inspection
        if inspection is None:
            return None
        leaves = inspection.graph.parameters
        return next((p for p in leaves if text.leaf_name(p) == box.op), None)

    def _input_rows(self, box: model.Box) -> list[tuple[str, str]]:
        """Return what stands behind an input of a pending graph."""
        leaf, inspection = self._leaf(box), self._inspection
        held = inspection.holdings.get(leaf) if inspection is not None else None
        if held is None:
            return []
        rows = []
        if held.version is not None:
            rows.append(("version", f"{held.version} of its storage"))
        if held.origin is not None:
            rows.append(("came from", str(held.origin).partition(": ")[2]))
        taker = held.overwritten_by
        if taker is not None and taker.node is not None:
            how = (
                "its memory is reused (donated)" if held.is_donated else "in new memory"
            )
            rows.append(
                ("overwritten by", f"%{taker.node.id} {taker.node.op.name}, {how}")
            )
        return rows

    def _facts(self, node: int) -> str:
        """Return what is known of a node without computing anything."""
        program = self._program
        box = program.drawing.boxes[program.place[node]]
        upstream, downstream = self._neighbours(box)
        return panel.node_facts(
            box,
            upstream=upstream,
            downstream=downstream,
            rows=program.facts(node),
            python=program.python(node),
            inside=[name for name, _ in program.inside(node)],
            has_values=self._inspection is not None and self._inspection.is_current,
        )

    def _neighbours(self, box: model.Box) -> tuple[list[model.Box], list[model.Box]]:
        """Return what a box reads, and what reads it, with nothing folded."""
        drawing = self._program.drawing
        boxes = drawing.boxes
        if box.members:
            place = self._program.place[box.members[0]]
        else:
            place = next(i for i, each in enumerate(boxes) if each.op == box.op)
        return (
            [boxes[start] for start, end in drawing.edges if end == place],
            [boxes[end] for start, end in drawing.edges if start == place],
        )

    def _fallbacks(self) -> list[tuple[model.Box, str]]:
        """Return the inputs that the CPU computed, with the op and its line."""
        known = self._program.overlay("fallback").inputs
        found = [box for box in self._program.drawing.boxes if box.op in known]
        return [
            (box, dict(self._input_rows(box)).get("came from", ""))
            for box in found[:_MAX_FALLBACKS]
        ]

    # --- choosing

    def _on_fold(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        view = self._view
        view.folding = choice(request, "by", FOLDINGS)
        view.opened.clear()
        view.folded.clear()
        yield self._drawn()

    def _on_overlay(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        name = choice(request, "name", ("", *self._program.overlays))
        self._chosen_overlay = name
        yield self._drawn()
        told = self._told_of(name)
        if told:
            yield panel_reply(told)
            self._tells_overlay = True
        elif self._tells_overlay:  # what was said of another is not true of this one
            yield panel_reply(self.overview())

    def _told_of(self, overlay: str) -> str:
        """Return what a reader has to know of an overlay, or can ask for; empty if nothing."""
        inspection = self._inspection
        if overlay == "nan":
            can_check = inspection is not None and inspection.is_current
            return panel.nan_help(is_ir=self._program.form == "ir", can_check=can_check)
        if overlay == "fallback":
            return panel.fallbacks_html(self._fallbacks())
        if overlay != "time" or inspection is None or not inspection.is_current:
            return ""
        is_measured = bool(cast("IrProgram", self._program).measured)
        return "" if is_measured else panel.measure_offer(inspection.cost_of_all())

    def _folded(self) -> model.DrawGraph:
        view = self._view
        made = view.folded
        if not made:
            made.append(fold_by(view.graph, view.folding, self._budget))
        del made[len(view.opened) + 1 :]
        for members in view.opened[len(made) - 1 :]:
            graph = made[-1]
            found = (k for k, box in enumerate(graph.boxes) if box.members == members)
            index = next(found)
            made.append(unfold(view.graph, graph, index, self._budget))
        graph = made[-1]
        self._plain = graph
        if draws_frames():
            graph = model.named_in_frames(graph)
        name = self._chosen_overlay
        return view.program.overlay(name).paint(graph) if name else graph

    # --- finding

    def _find(self, wanted: str) -> tuple[list[int], int, str]:
        drawing = self._program.drawing
        found = [
            box for box in drawing.boxes if has_words(wanted, _texts(drawing, box))
        ]
        nodes = {box.members[0] for box in found if box.members}
        inputs = {box.op for box in found if not box.members}
        marked = [
            i
            for i, box in enumerate(self._shown.boxes)
            if nodes & set(box.members) or (not box.members and box.op in inputs)
        ]
        shown = found[:MAX_FOUND]
        return marked, len(found), panel.found_html(wanted, shown, len(found))

    # --- checking requests

    def _require_values(self) -> Inspection:
        inspection = self._inspection
        if inspection is None:
            raise RequestError(
                "this form has no values. Choose IR, and a graph that is pending or of a step "
                "whose inputs are kept."
            )
        return inspection

    def _node_number(self, request: Mapping[str, Any]) -> int:
        node = request.get("node")
        if not is_whole(node) or node not in self._program.place:
            raise RequestError(
                f"the graph has no node {quoted(node)}. Reload the page: it may show another graph."
            )
        return node

    def _input_box(self, request: Mapping[str, Any]) -> model.Box:
        name = request.get("name")
        for box in self._program.drawing.boxes:
            if not box.members and box.op == name:
                return box
        raise RequestError(
            f"the graph has no input {quoted(name)}. Reload the page: it may show another graph."
        )


def _texts(drawing: model.DrawGraph, box: model.Box) -> tuple[str, ...]:
    named = box.op, box.listed, box.label, box.detail, box.name, box.site, box.library
    return (*named, model.title_within(drawing, box.path), *box.marks)


# `lazyviz.explore` and `%lazy explore`: a program to walk through, live or as a static copy.

_UNSAFE = re.compile(r"[^0-9A-Za-z_-]+")


class ExploreView(Displayed):
    """A program to walk through.

    A front end with widgets shows it live, above a static copy for later readers; other shells
    show the copy, terminals a listing.
    """

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer

    @cached_property
    def widget(self) -> GraphView:
        """The live view, made when somebody asks for it."""
        from lazyviz.widgets import GraphView

        return GraphView(self.explorer, self._twin)

    @property
    def _twin(self) -> str:
        return f"lzt-{_UNSAFE.sub('-', self.explorer.title)[:40]}"

    def doc(self) -> Doc:
        """Return a line about the program and its listing; on a page a folded picture."""
        title = self.explorer.title
        copy = Fold(f"{title}, static copy", [self._drawn(title)], in_text=True)
        return Doc([copy], css_class=self._twin, live=lambda: self.widget)

    def _drawn(self, title: str) -> Part:
        words = f"{title}\n{self.explorer.listing()}"
        return Drawn(words, lambda: svg.graph_html(self.explorer.copied))

    def to_svg(self) -> str:
        """Return the picture of what is shown, with all that it needs."""
        return svg.draw(self.explorer.unfolded, budget=svg.STRIP_BUDGET).svg

    def save(self, path: str | Path, title: str = "") -> None:
        """Write the static copy as a page that needs no other file."""
        body = Doc([self._drawn(""), Code(self.explorer.listing())]).to_html()
        page = page_html(title or self.explorer.title, [("", body)])
        Path(path).write_text(page, encoding="utf-8")

    def __repr__(self) -> str:
        """Return the same text in each run, so that notebooks compare."""
        return f"<{self.explorer.title}>"


@gc_paused
def explore(*things: Any, **options: Any) -> ExploreView:
    """Return a view to walk through a program; a notebook shows it live, with a static copy.

    A click on an op of a pending graph, or of a finished step whose inputs are kept
    (`config.keep_values`), shows its value; the step stays as it is. Of a module
    with inputs the graph of that one call is shown: it is recorded and taken back, so nothing of
    it runs, no random number is drawn, and what was pending stays as it was, as do the attributes
    of modules, gradients and optimizers. What the call does to other Python objects, such as a
    list that it appends to, stays.

    Args:
        things: Nothing for all that is pending, else the last step; lazy tensors; a graph; a
            computation; HLO or StableHLO as text or a path; a step of this session: its number,
            `"last"`, or its graph's name, such as `"graph.3"`; a module, for
            what is pending of its parameters, buffers and gradients; or a module or a function
            and what to call it with.
        options: Arguments of that call by name.

    Raises:
        HloError: There is no such step or file, it is no program, or nothing of the module is
            pending.
        UsageError: A tensor is not on the lazy device, or the call gives no pending one.
        StepSyncError: The call needs a value, which only running a part of it would give.
    """
    return ExploreView(Explorer(subject_of(*things, options=options)))
