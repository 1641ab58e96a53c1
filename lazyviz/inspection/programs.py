"""What can be explored, in each of its forms: IR, StableHLO, HLO, optimised HLO.

Each form of what the user gave is a `Program`: a drawing with nothing folded and what is known of
its nodes. `subjects` says what was given, and makes its forms when somebody asks for them.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from lazygraph.graph import CONSTANT
from lazygraph.types import BYTES_PER_NS, FLOPS_PER_NS, type_bytes
from lazyviz import session
from lazyviz.draw import boxes
from lazyviz.draw.diff_text import listing
from lazyviz.draw.model import BACKWARD, FROM_CPU, DrawGraph
from lazyviz.draw.palette import Amounts, Findings, count_words
from lazyviz.inspection.protocol import FORM_NAMES
from lazyviz.render import text
from lazyviz.render.text import python_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lazygraph import Graph
    from lazyrt import Graph as IrGraph
    from lazyrt import Inspection
    from lazyrt.tools import Holding, NonFinite, Value
    from lazyviz.draw.palette import Overlay
    from lazyviz.inspection.protocol import Form

_MAX_LISTED = 60
_MAX_ATTRIBUTES = 400


class Program:
    """One form of what is explored: a drawing with nothing folded, and where each node is."""

    form: Form = "ir"
    overlays: tuple[str, ...] = ("time", "bytes", "flops")

    def __init__(self, name: str, graph: Graph, drawing: DrawGraph) -> None:
        self.name = name
        self.graph = graph
        self.drawing = replace(drawing, classes=session.module_classes())
        self.place = {
            box.members[0]: i for i, box in enumerate(drawing.boxes) if box.members
        }

    @property
    def title(self) -> str:
        """One line about it."""
        what = "op" if self.form == "ir" else "instruction"
        return (
            f"{self.name} · {text.plural(self.drawing.nodes, what)} · "
            f"{text.plural(self.inputs, 'input')} · {text.plural(self.outputs, 'output')}"
        )

    @property
    def inputs(self) -> int:
        """How many inputs it has."""
        return len(self.graph.inputs)

    @property
    def outputs(self) -> int:
        """How many outputs it has, of which one op may give several: what autograd saves is none."""
        return len(self.graph.held_outputs)

    def listing(self) -> str:
        """Return it as text."""
        raise NotImplementedError

    def facts(self, node: int) -> list[tuple[str, str]]:
        """Return names and texts of what is known of a node besides its box."""
        raise NotImplementedError

    def python(self, node: int) -> str:  # noqa: ARG002 - what most forms have not
        """Return Python lines that run the node's op by itself; empty if there are none."""
        return ""

    def inside(self, node: int) -> list[tuple[str, Program]]:  # noqa: ARG002
        """Return what a node calls: names and programs."""
        return []

    def origins(self, node: int) -> set[tuple[str, str, str]]:
        """Return scope, op and line of the IR ops that a node came from."""
        raise NotImplementedError

    def overlay(self, name: str) -> Overlay:
        """Return an overlay of the program by itself, without values."""
        graph, nbytes = self.graph, boxes.bytes_of(self.graph)
        if name == "bytes":
            return Amounts(
                title="bytes of results",
                nodes=self._by_member(nbytes),
                inputs={
                    graph.names[k]: float(type_bytes(graph.types[k]))
                    for k in graph.inputs
                    if graph.attrs[k] not in boxes.NUMBERS
                },
            )
        work = boxes.flops_of(graph)
        if name == "flops":
            return Amounts(
                title="FLOPs, counted from shapes",
                nodes=self._by_member(work),
                words=count_words,
            )
        times = {k: max(work[k] / FLOPS_PER_NS, nbytes[k] / BYTES_PER_NS) for k in work}
        return _shares(self._by_member(times))

    def _by_member(self, amounts: Mapping[int, float]) -> dict[int, float]:
        """Return amounts of nodes by what boxes call these."""
        drawn = self.drawing.boxes
        members = {box.listed: box.members[0] for box in drawn if box.members}
        return {members[self.graph.names[k]]: each for k, each in amounts.items()}


class IrProgram(Program):
    """A graph of the runtime."""

    overlays: tuple[str, ...] = ("time", "bytes", "flops", "nan", "fallback")

    def __init__(
        self,
        ir: IrGraph,
        inspection: Inspection | None = None,
        names: Mapping[Any, str] | None = None,
        held: Mapping[Any, Holding] | None = None,
        name: str = "",
    ) -> None:
        if inspection is not None:
            held = inspection.holdings
        graph = boxes.columns_of(ir, names or {}, held or {})
        drawing = boxes.draw_graph(ir, holdings=held, columns=graph)
        super().__init__(name or f"IR graph {ir.fingerprint[:8]}", graph, drawing)
        self._ir = ir
        self.inspection = inspection
        self.measured: dict[int, int] = {}
        self.checked: dict[Value, NonFinite] = {}
        self._nodes = {node.id: node for node in ir.nodes}

    def listing(self) -> str:
        """Return one line for each op."""
        return text.listing(self._ir, _MAX_LISTED)

    def facts(self, node: int) -> list[tuple[str, str]]:
        """Return the text of its line, the version and what is overwritten."""
        held = self.inspection.holdings if self.inspection is not None else {}
        provenance = self._nodes[node].provenance
        line = provenance.library or provenance.site
        source = linecache.getline(line.file, line.line) if line is not None else ""
        rows = [("source", source.strip())]
        for value in self._nodes[node].outputs:
            holding = held.get(value) if value is not None else None
            if holding is None:
                continue
            version = ("version", f"{holding.version} of its storage")
            # The results of an op begin alike.
            if version not in rows and holding.version is not None:
                rows.append(version)
            if holding.overwrites is not None:
                taken = held[holding.overwrites]
                is_reused = taken.is_donated
                how = "reusing its memory (donated)" if is_reused else "in new memory"
                what = taken.name or f"%p{holding.overwrites.position}"
                rows.append(("overwrites", f"{what}, {how}"))
        return rows

    def python(self, node: int) -> str:
        """Return the op's call on inputs of its types."""
        return python_call(self._nodes[node])

    def origins(self, node: int) -> set[tuple[str, str, str]]:
        """Return its own."""
        return {_origin(self._nodes[node])}

    @cached_property
    def by_origin(self) -> dict[tuple[str, str, str], list[int]]:
        """Nodes by scope, op and line, as lowered programs name them."""
        found: dict[tuple[str, str, str], list[int]] = {}
        for node in self._ir.nodes:
            found.setdefault(_origin(node), []).append(node.id)
        return found

    def overlay(self, name: str) -> Overlay:
        """Return an overlay; that of NaN tells of values that are computed already."""
        if name == "nan":
            return self._findings()
        if name == "fallback":
            return Findings(
                title="ops that ran on the CPU",
                nodes=dict.fromkeys(self._nodes, ""),
                good="on the device",
                bad=FROM_CPU,
                inputs={
                    box.op: FROM_CPU
                    for box in self.drawing.boxes
                    if FROM_CPU in box.marks
                },
            )
        return self._times() if name == "time" else super().overlay(name)

    def _times(self) -> Overlay:
        if self.measured:
            return Amounts(
                title="time, measured: each op alone",
                nodes=self.measured,
                words=text.duration,
            )
        from lazyrt import tools  # only a graph of the runtime needs it

        return _shares({node.id: tools.run_ns(node) for node in self._ir.nodes})

    def _findings(self) -> Overlay:
        known = dict(self.checked)
        if self.inspection is not None:
            known.update(self.inspection.not_finite())
        nodes: dict[int, str] = {}
        inputs: dict[str, str] = {}
        for value, counts in known.items():
            words = str(counts)
            if value.node is None:
                inputs[text.leaf_name(value)] = words
            else:
                before = nodes.get(value.node.id, "")
                nodes[value.node.id] = before or words
        return Findings(title="computed values", nodes=nodes, inputs=inputs)


@dataclass(frozen=True, slots=True)
class LoweredFrom:
    """The pending graph that a program was lowered from, for what only its IR knows.

    Attributes:
        ir: Its IR, with what is known of its values.
        leaves: The name in the IR of each of the program's inputs; empty for a part of it.
    """

    ir: Callable[[], IrProgram]
    leaves: tuple[str, ...] = ()


class HloProgram(Program):
    """StableHLO, HLO, or the graph of a step that has run."""

    def __init__(
        self,
        graph: Graph,
        form: Form,
        name: str = "",
        outputs: Mapping[int, str] | None = None,
        source: LoweredFrom | None = None,
    ) -> None:
        self._source = source
        if source is not None:
            self.overlays = (*self.overlays, "nan", "fallback")
        kind = FORM_NAMES[form]
        drawing = boxes.draw_program(graph, kind, outputs, site_text)
        super().__init__(name or kind, graph, drawing)
        self.form = form

    def listing(self) -> str:
        """Return one line for each instruction."""
        return listing(self.graph.with_sites(site_text), _MAX_LISTED)

    def facts(self, node: int) -> list[tuple[str, str]]:
        """Return attributes and what the framework calls it."""
        graph = self.graph
        constants = [
            graph.label(operand).literal or graph.types[operand]
            for operand in graph.operands[node]
            if graph.ops[operand] == CONSTANT
        ]
        return [
            ("attributes", graph.attrs[node][:_MAX_ATTRIBUTES]),
            ("constants", ", ".join(dict.fromkeys(constants))),
            ("came from", graph.origin(node).op_name),
        ]

    def inside(self, node: int) -> list[tuple[str, Program]]:
        """Return the functions, fused computations or loop bodies that a node calls."""
        if "#" not in self.graph.attrs[node]:
            return []
        source = self._source and replace(self._source, leaves=())
        return [
            (name, HloProgram(inner, self.form, f"%{name}", source=source))
            for name, inner in boxes.inside_of(self.graph, node)
        ]

    def origins(self, node: int) -> set[tuple[str, str, str]]:
        """Return those that metadata names, of a fusion all that it holds."""
        return boxes.origins_of(self.graph, node)

    def overlay(self, name: str) -> Overlay:
        """Return an overlay from the types in the text, or from the IR that it came from."""
        if self._source is not None and name in {"nan", "fallback"}:
            return self._from_ir(self._source, name)
        return super().overlay(name)

    def _from_ir(self, source: LoweredFrom, name: str) -> Findings:
        """Return what is known of the IR ops and inputs that stand behind the program's."""
        ir = source.ir()
        found = cast("Findings", ir.overlay(name))
        inputs = {
            self.graph.names[node]: found.inputs[source.leaves[number]]
            for node, number in self.graph.numbers.items()
            if number < len(source.leaves) and source.leaves[number] in found.inputs
        }
        nodes = {}
        for node in self.place:
            ids = {i for o in self.origins(node) for i in ir.by_origin.get(o, ())}
            known = [found.nodes[i] for i in sorted(ids) if i in found.nodes]
            if known:
                nodes[node] = next(filter(None, known), "")
        return Findings(
            title=f"{found.title}, of the IR ops behind an instruction",
            nodes=nodes,
            inputs=inputs,
            good=found.good,
            bad=found.bad,
        )


def site_text(site: str) -> str:
    """Return a line of a lowered program as the IR names it: `cell 3 line 2`, `train.py:41`."""
    return cell_text(site).rsplit("/", 1)[-1]


def cell_text(site: str) -> str:
    """Return a line of a notebook's cell as `cell 3 line 2`, any other as it is."""
    file, _, line = site.rpartition(":")
    cell = file_text(file)
    return site if cell == file else f"{cell} line {line}"


def file_text(file: str) -> str:
    """Return what the reader knows a file as: `cell 3`, else its path."""
    current = session.current()
    cell = current.cell_of_file(file) if current is not None else None
    return file if cell is None else f"cell {cell}"


def _shares(estimates: dict[int, float]) -> Amounts:
    total = sum(estimates.values()) or 1.0
    return Amounts(
        title="time, estimated from FLOPs and bytes, not measured",
        nodes=estimates,
        words=lambda amount: f"{text.share(amount, total)} of all",
    )


def _origin(node: Any) -> tuple[str, str, str]:
    provenance = node.provenance
    op = node.op.name
    if provenance.backward is not None:
        op = f"{op} {BACKWARD}"
    site = provenance.site
    return provenance.module, op, f"{site.file}:{site.line}" if site is not None else ""
