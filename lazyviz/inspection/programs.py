"""What can be explored, in each of its forms: IR, StableHLO, HLO, optimised HLO.

A `Subject` is what the user gave. Each form of it is a `Program`: a drawing with nothing folded
and what is known of its nodes. Forms are made when somebody asks for them, and kept.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from lazyviz import session
from lazyviz.hlo import Graph as HloGraph
from lazyviz.hlo import HloError, graph_of
from lazyviz.hlo.graph import CONSTANT
from lazyviz.inspection.cuts import cut_before, cut_of, moved_ops
from lazyviz.render import ir_costs, text
from lazyviz.render.hlo_model import (
    HloCosts,
    draw_hlo,
    inside_of,
    origins_of,
    unwrapped,
)
from lazyviz.render.model import BACKWARD, FROM_CPU, DrawGraph, draw_graph
from lazyviz.render.overlay import Amounts, Findings, count_words, not_finite_words
from lazyviz.render.python import python_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from lazyrt import Graph, Inspection
    from lazyrt.execution.holdings import Holding
    from lazyrt.lowering.computation import Computation
    from lazyviz.render.cuts import Cut
    from lazyviz.render.overlay import Overlay

Form = Literal["ir", "stablehlo", "hlo", "optimised"]
FORMS: tuple[Form, ...] = get_args(Form)
FORM_NAMES: dict[Form, str] = {
    "ir": "IR",
    "stablehlo": "StableHLO",
    "hlo": "HLO",
    "optimised": "optimised HLO",
}
_MAX_LISTED = 60
_MAX_ATTRIBUTES = 400
_NO_VALUES = (
    "No values: the step of this program has run, or it was never recorded here."
)
# What a rough machine does in a nanosecond, for shares of an estimate.
_FLOPS_PER_NS = 10.0
_BYTES_PER_NS = 10.0


class Program:
    """One form of what is explored.

    Attributes:
        form: Which one.
        name: What it is called in titles.
        drawing: The drawing with nothing folded.
        place: Position in the drawing of each node.
        overlays: Names of the overlays that it has.
    """

    form: Form = "ir"
    overlays: tuple[str, ...] = ("time", "bytes", "flops")

    def __init__(self, name: str, drawing: DrawGraph) -> None:
        self.name = name
        self.drawing = drawing
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
        return sum(not box.members for box in self.drawing.boxes)

    @property
    def outputs(self) -> int:
        """How many of its boxes are outputs."""
        return sum(box.is_root for box in self.drawing.boxes)

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
        raise NotImplementedError


class IrProgram(Program):
    """A graph of the runtime."""

    overlays = ("time", "bytes", "flops", "nan", "fallback")

    def __init__(
        self,
        graph: Graph,
        inspection: Inspection | None = None,
        names: Mapping[Any, str] | None = None,
        held: Mapping[Any, Holding] | None = None,
    ) -> None:
        if inspection is not None:
            held = inspection.holdings
        drawing = draw_graph(graph, names=names, holdings=held)
        super().__init__(f"IR graph {graph.fingerprint[:8]}", drawing)
        self.graph = graph
        self.inspection = inspection
        self.measured: dict[int, int] = {}
        self.checked: dict[Any, tuple[int, int]] = {}
        self._nodes = {node.id: node for node in graph.nodes}

    def listing(self) -> str:
        """Return one line for each op."""
        return text.listing(self.graph, _MAX_LISTED)

    def facts(self, node: int) -> list[tuple[str, str]]:
        """Return the version and what is overwritten."""
        held = self.inspection.holdings if self.inspection is not None else {}
        rows = []
        for value in self._nodes[node].outputs:
            holding = held.get(value) if value is not None else None
            if holding is None:
                continue
            version = ("version", f"{holding.version} of its storage")
            if version not in rows:  # the results of an op begin alike
                rows.append(version)
            if holding.overwrites is not None:
                taken = held[holding.overwrites]
                how = (
                    "reusing its memory (donated)"
                    if taken.is_donated
                    else "in new memory"
                )
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
        for node in self.graph.nodes:
            found.setdefault(_origin(node), []).append(node.id)
        return found

    def overlay(self, name: str) -> Overlay:
        """Return an overlay; that of NaN tells of values that are computed already."""
        nodes = self.graph.nodes
        if name == "bytes":
            return Amounts(
                title="bytes of results",
                nodes={node.id: ir_costs.result_bytes(node) for node in nodes},
                inputs=self._input_bytes(),
            )
        if name == "flops":
            return Amounts(
                title="FLOPs, counted from shapes",
                nodes={node.id: ir_costs.flops(node) for node in nodes},
                words=count_words,
            )
        if name == "nan":
            return self._findings()
        if name == "fallback":
            return Findings(
                title="ops that ran on the CPU",
                nodes=dict.fromkeys(self._nodes, ""),
                good="on the device",
                bad=FROM_CPU,
                marks=frozenset({FROM_CPU}),
            )
        return self._times()

    def _times(self) -> Overlay:
        if self.measured:
            return Amounts(
                title="time, measured: each op alone",
                nodes=self.measured,
                words=text.duration,
            )
        estimates = {
            node.id: _estimated(ir_costs.flops(node), ir_costs.moved_bytes(node))
            for node in self.graph.nodes
        }
        return _shares(estimates)

    def _input_bytes(self) -> dict[str, float]:
        return {
            leaf_name(leaf): float(_nbytes(leaf))
            for leaf in self.graph.parameters
            if leaf.kind == "data"
        }

    def _findings(self) -> Overlay:
        known = dict(self.checked)
        if self.inspection is not None:
            known.update(self.inspection.not_finite())
        nodes: dict[int, str] = {}
        inputs: dict[str, str] = {}
        for value, counts in known.items():
            words = not_finite_words(*counts)
            if value.node is None:
                inputs[leaf_name(value)] = words
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
        graph: HloGraph,
        form: Form,
        name: str = "",
        inputs: Mapping[int, str] | None = None,
        outputs: Mapping[int, str] | None = None,
        source: LoweredFrom | None = None,
        moved: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        self._source = source
        self._moved = moved or {}
        if moved:
            self.overlays = (*self.overlays, "cut")
        if source is not None:
            self.overlays = (*self.overlays, "nan", "fallback")
        kind = FORM_NAMES[form]
        super().__init__(
            name or kind, draw_hlo(graph, kind, inputs, outputs, _site_text)
        )
        self.form = form
        self.graph = graph

    def listing(self) -> str:
        """Return one line for each instruction."""
        shown = [
            f"{node.name} = {node.op}({', '.join(self.graph.names[o] for o in node.operands)})"
            f" : {node.type}"
            for node in list(self.graph)[:_MAX_LISTED]
        ]
        if len(self.graph) > _MAX_LISTED:
            shown.append(f"... {len(self.graph) - _MAX_LISTED:,} more")
        return "\n".join(shown)

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

    @property
    def inputs(self) -> int:
        """How many parameters it has."""
        return len(self.graph.inputs)

    def inside(self, node: int) -> list[tuple[str, Program]]:
        """Return the functions, fused computations or loop bodies that a node calls."""
        if "#" not in self.graph.attrs[node]:
            return []
        source = self._source and replace(self._source, leaves=())
        return [
            (name, HloProgram(inner, self.form, f"%{name}", source=source))
            for name, inner in inside_of(self.graph, node)
        ]

    def origins(self, node: int) -> set[tuple[str, str, str]]:
        """Return those that metadata names, of a fusion all that it holds."""
        return origins_of(self.graph, node)

    @cached_property
    def _costs(self) -> HloCosts:
        return HloCosts(self.graph)

    def overlay(self, name: str) -> Overlay:
        """Return an overlay from the types in the text, or from the IR that it came from."""
        if self._source is not None and name in {"nan", "fallback"}:
            return self._from_ir(self._source, name)
        if name == "cut":
            return self._moved_ops()
        if name == "bytes":
            return Amounts(title="bytes of results", nodes=self._costs.bytes())
        flops = self._costs.flops()
        if name == "flops":
            return Amounts(
                title="FLOPs, counted from types", nodes=flops, words=count_words
            )
        nbytes = self._costs.bytes()
        return _shares({k: _estimated(flops[k], nbytes[k]) for k in flops})

    def _moved_ops(self) -> Findings:
        """Return which ops were in another part of the program before its cut was moved."""
        graph = self.graph
        return Findings(
            title="where ops were before the cut was moved",
            nodes={
                node: self._moved.get((graph.site(node), graph.ops[node]), "")
                for node in self.place
            },
            good="in this part",
            bad="in another part",
        )

    def _from_ir(self, source: LoweredFrom, name: str) -> Findings:
        """Return what is known of the IR ops and inputs that stand behind the program's."""
        ir = source.ir()
        found = cast("Findings", ir.overlay(name))
        marked = {box.op for box in ir.drawing.boxes if FROM_CPU in box.marks}
        leaves = dict.fromkeys(marked, FROM_CPU) if name == "fallback" else found.inputs
        inputs = {
            self.graph.names[node]: leaves[source.leaves[number]]
            for node, number in self.graph.numbers.items()
            if number < len(source.leaves) and source.leaves[number] in leaves
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


def _site_text(site: str) -> str:
    """Return a line of a lowered program as the IR names it: `cell 3 line 2`, `train.py:41`."""
    file, colon, line = site.rpartition(":")
    current = session.current() if colon else None
    cell = current.cell_of_file(file) if current is not None else None
    return f"cell {cell} line {line}" if cell is not None else site.rsplit("/", 1)[-1]


def _estimated(flops: float, nbytes: float) -> float:
    return max(flops / _FLOPS_PER_NS, nbytes / _BYTES_PER_NS)


def _shares(estimates: dict[int, float]) -> Amounts:
    total = sum(estimates.values()) or 1.0
    return Amounts(
        title="time, estimated from FLOPs and bytes, not measured",
        nodes=estimates,
        words=lambda amount: f"{amount / total:.1%} of all",
    )


def leaf_name(leaf: Any) -> str:
    """Return an input's name in listings."""
    prefix = {"data": "p", "float": "f", "int": "i", "rng": "rng"}[leaf.kind]
    return f"%{prefix}{leaf.position}"


def _nbytes(leaf: Any) -> int:
    return int(leaf.dtype.itemsize * _elements(leaf.shape))


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _origin(node: Any) -> tuple[str, str, str]:
    provenance = node.provenance
    op = node.op.name
    if provenance.backward is not None:
        op = f"{op} {BACKWARD}"
    site = provenance.site
    return provenance.module, op, f"{site.file}:{site.line}" if site is not None else ""


class Subject:
    """What the user wants to explore.

    Attributes:
        forms: The forms that it has.
        first: The one to begin with.
        inspection: Of a graph that is pending; values come from it.
        no_values: Why there are none without an inspection.
        names: What its values and inputs are called.
        cut: Where the program is cut that the graph is a part of, and was cut before.
    """

    def __init__(
        self,
        makers: Mapping[Form, Callable[[], Program]],
        first: Form,
        inspection: Inspection | None = None,
        computation: Computation | None = None,
        no_values: str = "",
        names: Mapping[Any, str] | None = None,
        cut: Cut | None = None,
    ) -> None:
        self.names = names or {}
        self.cut = cut
        self.no_values = no_values or _NO_VALUES
        self.forms = tuple(form for form in FORMS if form in makers)
        self.first = first
        self.inspection = inspection
        self._makers = makers
        self._computation = computation
        self._made: dict[Form, Program] = {}

    def program(self, form: Form) -> Program:
        """Return one form, made now if nobody has asked for it yet."""
        found = self._made.get(form)
        if found is None:
            found = self._made[form] = self._makers[form]()
        return found

    def price(self, form: Form) -> str:
        """Return what making a form costs that has to be compiled for it; else empty."""
        if form != "optimised" or form in self._made or self._computation is None:
            return ""
        if self._computation.known_hlo() is not None:
            return ""
        nodes = text.plural(len(self._computation.graph.nodes), "op")
        about = text.duration(self._computation.estimate_compile_ns())
        return (
            f"XLA compiles a copy of {nodes} for the eye, about {about}. The step's own "
            "executable, its key and its counts stay as they are."
        )


def subject_of(
    *things: Any,
    runtime: ModuleType | None = None,
    options: Mapping[str, Any] | None = None,
) -> Subject:
    """Return what is to be explored.

    Args:
        things: Nothing for all that is pending; lazy tensors; a graph; a computation; HLO or
            StableHLO as text or a path; the number of a step that has run; a module, or a module
            or a function and what to call it with.
        runtime: The module `lazyrt`; by default the imported one.
        options: Arguments of that call by name.

    Raises:
        HloError: There is no such step, or it is nothing of the above.
    """
    runtime = runtime or session.runtime()
    if things and _is_call(things, options):
        return _call_subject(things[0], things[1:], options or {}, runtime)
    if len(things) == 1 and not _is_tensor(things[0]):
        return _subject_of_one(things[0], runtime)
    if runtime is None:
        raise HloError(
            "lazyrt is not imported, so nothing is pending. Import it and make tensors with "
            "device='lazyrt', or give a text, a path or a graph."
        )
    inspection = runtime.inspect(*things)
    subject = pending_subject(inspection)
    subject.cut = cut_before(runtime, inspection)
    return subject


def _subject_of_one(thing: Any, runtime: ModuleType | None) -> Subject:
    if isinstance(thing, (list, tuple)) and all(map(_is_tensor, thing)):
        return subject_of(*thing, runtime=runtime)
    if isinstance(thing, int) and not isinstance(thing, bool):
        return _step_subject(thing, runtime)
    if hasattr(thing, "graph") and hasattr(thing, "holdings"):
        return pending_subject(thing)
    if hasattr(thing, "known_hlo"):
        return _graph_subject(thing.graph, runtime, first="stablehlo")
    if hasattr(thing, "nodes") and hasattr(thing, "lower"):
        return _graph_subject(thing, runtime)
    return _text_subject(graph_of(thing))


def _is_call(things: tuple[Any, ...], options: Mapping[str, Any] | None) -> bool:
    """Return whether a module is given, or something else to call with arguments."""
    torch = sys.modules.get("torch")
    first = things[0]
    if torch is not None and isinstance(first, torch.nn.Module):
        return True
    is_program = isinstance(first, str) or _is_tensor(first)
    return callable(first) and not is_program and bool(things[1:] or options)


def _call_subject(
    function: Any,
    arguments: tuple[Any, ...],
    options: Mapping[str, Any],
    runtime: ModuleType | None,
) -> Subject:
    """Return the graph of a call, of which nothing runs, or what a module's tensors wait for."""
    name = getattr(function, "__qualname__", type(function).__name__)
    if runtime is None:
        raise HloError(
            f"lazyrt is not imported, so {name} has no graph. Import it, and move the module and "
            "its inputs with .to('lazyrt')."
        )
    if not arguments and not options:
        return _module_subject(function, name, runtime)
    from lazyrt.control.rehearsal import rehearse

    session.be_library(runtime)  # the names are those of the caller's frame
    found = rehearse(function, *arguments, **options)
    held = {value: each.name for value, each in found.holdings.items()}
    names = {**held, **found.outputs}
    return _lowered(
        found.graph,
        lambda: IrProgram(found.graph, names=names, held=found.holdings),
        "ir",
        names,
        None,
        f"No values: this call of {name} was recorded to be seen, and nothing of it has run. Call "
        "it, and explore what is pending then.",
    )


def _module_subject(module: Any, name: str, runtime: ModuleType) -> Subject:
    """Return what is pending of a module's parameters, buffers and gradients."""
    named = [*module.named_parameters(), *module.named_buffers()]
    named += [(f"{path}.grad", t.grad) for path, t in named if t.grad is not None]
    waiting = {path: t for path, t in named if runtime.is_pending(t)}
    if not waiting:
        raise HloError(
            f"no parameter, buffer or gradient of {name} is pending, so it has no graph of its "
            "own now. Give what it is to be called with, `lazyviz.explore(module, input)`, to "
            "see the graph of that call; nothing of it runs."
        )
    names = {
        root: path
        for path, tensor in waiting.items()
        for root in runtime.pending_graph(tensor).roots
    }
    return pending_subject(runtime.inspect(*waiting.values()), names)


def _is_tensor(thing: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.Tensor)


def pending_subject(
    inspection: Inspection, names: Mapping[Any, str] | None = None, first: Form = "ir"
) -> Subject:
    """Return a pending graph, whose values can be looked at."""
    graph = inspection.graph
    if not graph.nodes:
        return Subject(
            {"ir": lambda: IrProgram(graph, inspection, names)}, "ir", inspection
        )
    held = {value: each.name for value, each in inspection.holdings.items()}
    called = {**held, **(names or {})}
    return _lowered(
        graph, lambda: IrProgram(graph, inspection, names), first, called, inspection
    )


def _graph_subject(
    graph: Graph, runtime: ModuleType | None, first: Form = "ir"
) -> Subject:
    """Return a graph, with its values as long as its step is pending."""
    if runtime is not None:
        from lazyrt.errors import LostValueError

        # Once its step has run, what it is can be seen, its values cannot.
        with contextlib.suppress(LostValueError):
            return pending_subject(runtime.inspect(graph), first=first)
    return _lowered(graph, lambda: IrProgram(graph), first, {}, None)


def _lowered(
    graph: Graph,
    ir: Callable[[], Program],
    first: Form,
    names: Mapping[Any, str],
    inspection: Inspection | None,
    no_values: str = "",
) -> Subject:
    computation = graph.lower()

    def lowered(form: Form, text_of: Callable[[], str]) -> Callable[[], Program]:
        def make() -> Program:
            canonical = graph.canonical
            inputs = {k: names.get(leaf, "") for k, leaf in enumerate(canonical.data)}
            outputs = {k: names.get(root, "") for k, root in enumerate(canonical.roots)}
            if form == "optimised":
                outputs[len(canonical.roots)] = "ready"  # by which the runtime waits
            found = unwrapped(graph_of(text_of()))
            title = f"{FORM_NAMES[form]} {graph.fingerprint[:8]}"
            return HloProgram(found, form, title, inputs, outputs, source())

        return make

    def source() -> LoweredFrom | None:
        if inspection is None:
            return None
        leaves = tuple(leaf_name(leaf) for leaf in graph.canonical.data)
        return LoweredFrom(lambda: cast("IrProgram", subject.program("ir")), leaves)

    makers: dict[Form, Callable[[], Program]] = {
        "ir": ir,
        "stablehlo": lowered("stablehlo", lambda: computation.as_text("stablehlo")),
        "hlo": lowered("hlo", lambda: computation.as_text("hlo_before")),
        "optimised": lowered(
            "optimised", lambda: computation.known_hlo() or computation.as_text("hlo")
        ),
    }
    subject = Subject(makers, first, inspection, computation, no_values, names)
    return subject


def _step_subject(step: int, runtime: ModuleType | None) -> Subject:
    from lazyviz.inspection.comparison import graph_of_step

    if runtime is None:
        raise HloError(
            f"there is no step {step}: lazyrt is not imported. Give a text, a path or a graph."
        )
    snapshot = graph_of_step(runtime, step)
    graph = runtime.graph_of_step(step).graph

    def ir() -> Program:
        moved = moved_ops(runtime, step)
        return HloProgram(snapshot, "ir", f"IR of {snapshot.name}", moved=moved)

    if graph is None:
        subject = Subject({"ir": ir}, "ir")
    else:
        subject = _lowered(graph, ir, "ir", {}, None)
    subject.cut = cut_of(runtime, step)
    return subject


def _text_subject(graph: HloGraph) -> Subject:
    shown = unwrapped(graph)
    form: Form = "stablehlo" if type(graph.source).__name__ == "MlirModule" else "hlo"
    if any(op.startswith("aten.") for op in shown.ops):
        form = "ir"
    name = f"{FORM_NAMES[form]} {graph.name}"
    return Subject({form: lambda: HloProgram(shown, form, name)}, form)
