"""What the panel beside a drawing says of one node, one input, and the values behind them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from lazyviz import formatters
from lazyviz.draw import panel
from lazyviz.draw.model import FROM_CPU, DrawGraph
from lazyviz.inspection import programs
from lazyviz.render import text
from lazyviz.render.values import look_view, picture_axes

if TYPE_CHECKING:
    from lazyrt import Inspection
    from lazyviz.draw.model import Box
    from lazyviz.inspection.programs import IrProgram, Program
    from lazyviz.inspection.subjects import Subject

_MAX_FALLBACKS = 50


@dataclass(frozen=True, slots=True)
class Details:
    """A program, told node by node."""

    subject: Subject
    program: Program

    @property
    def inspection(self) -> Inspection | None:
        """The inspection that values come from; None where there are no values."""
        return self.subject.inspection if self.program.form == "ir" else None

    def no_value(self, node: int) -> str:
        """Say where values are, with buttons for the IR ops that a node came from."""
        if self.subject.inspection is None:
            return panel.note_html(self.subject.no_values)
        ir = cast("IrProgram", self.subject.program("ir"))
        ids = [
            node_id
            for origin in self.program.origins(node)
            for node_id in ir.by_origin.get(origin, ())
        ]
        boxes = [ir.drawing.boxes[ir.place[node_id]] for node_id in sorted(ids)]
        return panel.ir_html(boxes)

    def value(self, node: int, output: int, at: tuple[int, ...]) -> str:
        """Return a result of a node with its statistics, computed if need be; it has values."""
        inspection = cast("Inspection", self.inspection)
        start = time.perf_counter_ns()
        try:
            shape = inspection.value(node, output).shape
            look = inspection.look(node, output, at, picture_axes(shape))
        except RuntimeError as error:  # the runtime's own, and XLA's
            return panel.error_html(error)
        took = text.duration(time.perf_counter_ns() - start)
        outputs = inspection.node(node).outputs
        chooser = panel.slice_chooser(look, kind="value", node=node, output=output)
        return panel.value_html(
            look_view(look, formatters.facts(look), chooser, at),
            took,
            node,
            [k for k, each in enumerate(outputs) if each is not None],
            output,
        )

    def leaf(self, box: Box) -> Any:
        """Return the leaf of a pending graph that an input's box stands for, None if there is none."""
        inspection = self.inspection
        if inspection is None:
            return None
        leaves = inspection.graph.parameters
        return next((p for p in leaves if programs.leaf_name(p) == box.op), None)

    def input_rows(self, box: Box) -> list[tuple[str, str]]:
        """Return what stands behind an input of a pending graph."""
        leaf, inspection = self.leaf(box), self.inspection
        held = inspection.holdings.get(leaf) if inspection is not None else None
        if held is None:
            return []
        rows = [("version", f"{held.version} of its storage")]
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

    def facts(self, node: int) -> str:
        """Return what is known of a node without computing anything."""
        program = self.program
        box = program.drawing.boxes[program.place[node]]
        upstream, downstream = self.neighbours(box)
        return panel.node_facts(
            box,
            upstream=upstream,
            downstream=downstream,
            rows=program.facts(node),
            python=program.python(node),
            inside=[name for name, _ in program.inside(node)],
            has_values=self.inspection is not None,
        )

    def neighbours(self, box: Box) -> tuple[list[Box], list[Box]]:
        """Return what a box reads, and what reads it, with nothing folded."""
        drawing = self.program.drawing
        boxes = drawing.boxes
        if box.members:
            place = self.program.place[box.members[0]]
        else:
            place = next(i for i, each in enumerate(boxes) if each.op == box.op)
        return (
            [boxes[start] for start, end in drawing.edges if end == place],
            [boxes[end] for start, end in drawing.edges if start == place],
        )

    def fallbacks(self) -> list[tuple[Box, str]]:
        """Return the inputs that the CPU computed, with the op and its line."""
        boxes = [box for box in self.program.drawing.boxes if not box.members]
        painted = self.program.overlay("fallback").paint(
            DrawGraph(boxes=tuple(boxes), edges=())
        )
        found = []
        for box, shade in zip(boxes, painted.boxes, strict=True):
            if shade.note == FROM_CPU:
                held = dict(self.input_rows(box))
                found.append((box, held.get("came from", "")))
        return found[:_MAX_FALLBACKS]
