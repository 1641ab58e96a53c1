"""Looking into the graph of a step, pending or finished, node by node, while it stays as it is.

An `Inspection` holds the graph, which is IR alone, and weak references to the buffers that hold
its values: it keeps no tensor and no device data alive. While the step is pending a node's value
is a peek; so it is once the step has run, if its inputs are kept (`execution.kept_steps`). Else
what some tensor still holds is read from there.
"""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lazygraph.readable import Readable, plural
from lazygraph.snapshot import AUTOGRAD, Name
from lazyrt import jax_compat
from lazyrt.errors import LostValueError, OutOfMemoryError, UsageError
from lazyrt.execution import (
    copy_on_donate,
    cost_model,
    kept_steps,
    preview,
    transfer,
)
from lazyrt.execution.graph import Graph
from lazyrt.execution.graph_registry import CompiledGraph, Run, graph_registry
from lazyrt.execution.input_provenance import Holding, holdings
from lazyrt.execution.op_by_op import Values, cone_of, read, run_cone
from lazyrt.execution.peek import (
    Forecast,
    compiled_ns,
    forecast_of,
    op_forecast,
    peek_value,
    remember,
    run_parts,
    tell,
)
from lazyrt.ir.live import (
    Buffer,
    Lost,
    StepInputs,
    lock,
    made_in,
    pending,
    ready_buffers,
)
from lazyrt.ir.node import Leaf, Node, Value, iter_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lazyrt.execution.preview import Look, Summary
    from lazyrt.ir.fingerprint import Canonical
    from lazyrt.jax_compat import Array
    from lazyrt.observe.events import SourceLocation


# ------------------------------------------------------------------- NaN and infinities
# The graph runs op by op, as a peek does, so nothing of the user's step changes. What an op alone
# computes may differ from what XLA's optimised executable gives; see `execution.node_values`.


_MAX_ORIGINS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """What an op got where its result stopped being finite.

    Attributes:
        value: The operand.
        summary: Its statistics.
        element: The number that the first such element was made of; None where the op is not
            one of elements, or the number is complex.
    """

    value: Value
    summary: Summary
    element: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """An op where NaN begins, or where infinities do.

    Attributes:
        node: The op.
        value: Which of its results.
        counts: How many elements of it are not finite.
        first: Index of the first NaN, or else of the first infinity.
        operands: Its operands that are floating-point numbers, or tensors of them.
    """

    node: Node
    value: Value
    counts: preview.NonFinite
    first: tuple[int, ...]
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFinite:
    """What a search for NaN and infinities found.

    Attributes:
        checked: How many values were computed and checked.
        reached: Results of the graph that are not finite, each with how many elements are.
        inputs: Inputs of the graph that are not finite and lead to such a result, likewise.
        origins: Ops that lead to such a result, in the order of the program, the first twenty:
            those whose result has NaN and whose operands have none, and those whose result has
            infinities and whose operands are finite.
        more: How many more such ops there are.
    """

    checked: int
    reached: dict[Value, preview.NonFinite]
    inputs: dict[Leaf, preview.NonFinite]
    origins: tuple[Origin, ...]
    more: int


def find_not_finite(graph: Graph, step: StepInputs = pending) -> NotFinite:
    """Run a step's graph op by op and find where NaN and infinities begin.

    Values are let go after their last use. The caller holds the lock.
    """
    bad = _bad_inputs(graph.parameters, step)
    begun: list[Origin] = []
    checked = 0
    values: Values = {}
    listed = {node: node for node in graph.nodes}
    for node, results in run_cone(graph.roots, values=values, step=step):
        operands = list(dict.fromkeys(iter_values(node.args)))
        before = [bad[operand] for operand in operands if operand in bad]
        for value, data in results:
            checked += 1
            counts = preview.not_finite(data, value.dtype)
            if not any(counts):
                continue
            bad[value] = counts
            if not before or (counts.nan and not any(each.nan for each in before)):
                of = [(each, read(each, values, step)) for each in operands]
                begun.append(_origin(listed[node], value, data, bad[value], of))
    reached = {root: bad[root] for root in graph.roots if root in bad}
    leading = _leading(reached, bad)
    origins = [origin for origin in begun if origin.value in leading]
    return NotFinite(
        checked=checked,
        reached=reached,
        inputs={
            leaf: counts
            for leaf, counts in bad.items()
            if isinstance(leaf, Leaf) and leaf in leading
        },
        origins=tuple(origins[:_MAX_ORIGINS]),
        more=len(origins[_MAX_ORIGINS:]),
    )


def _leading(
    reached: Mapping[Value, preview.NonFinite], bad: Mapping[Value, preview.NonFinite]
) -> set[Value]:
    """Return the values from which a chain of such that are not finite leads to a result.

    A NaN comes from an operand with NaN, and only where no operand has any from infinities: a
    mask of -inf that another operand's NaN passes by has no part in it.
    """
    leading: set[tuple[Value, bool]] = set()
    stack = [(value, True) for value, counts in reached.items() if counts.nan]
    stack += [(v, False) for v, counts in reached.items() if any(counts[1:])]
    while stack:
        value, is_nan = step = stack.pop()
        if step in leading:
            continue
        leading.add(step)
        if value.node is None:
            continue
        operands = [operand for operand in value.node.operands if operand in bad]
        with_nan = [operand for operand in operands if bad[operand].nan]
        if is_nan and with_nan:
            stack += [(operand, True) for operand in with_nan]
        else:
            stack += [(each, False) for each in operands if any(bad[each][1:])]
    return {value for value, _ in leading}


def _bad_inputs(
    leaves: Iterable[Leaf], step: StepInputs
) -> dict[Value, preview.NonFinite]:
    found: dict[Value, preview.NonFinite] = {}
    for leaf in leaves:
        if leaf.kind == "data":
            data = step.inputs[leaf.position]
            counts = preview.not_finite(data, leaf.dtype)
            if any(counts):
                found[leaf] = counts
    return found


def _origin(
    node: Node,
    value: Value,
    data: Any,
    counts: preview.NonFinite,
    operands: Iterable[tuple[Value, Any]],
) -> Origin:
    with jax_compat.scope():
        xp, array = preview.place(data)
        flat = array.reshape(-1)
        position = int(xp.argmax(xp.isnan(flat) if counts.nan else xp.isinf(flat)))
    first = tuple(int(k) for k in np.unravel_index(position, value.shape))
    is_pointwise = torch.Tag.pointwise in getattr(node.op.func, "tags", ())
    return Origin(
        node=node,
        value=value,
        counts=counts,
        first=first,
        operands=tuple(
            _operand(operand, got, first if is_pointwise else None)
            for operand, got in operands
            if operand.dtype.is_floating_point or operand.dtype.is_complex
            if not isinstance(operand, Leaf) or operand.kind in {"data", "float"}
        ),
    )


def _operand(value: Value, data: Any, at: tuple[int, ...] | None) -> Operand:
    element = None
    if at is not None and not value.dtype.is_complex and len(value.shape) <= len(at):
        tail = at[len(at) - len(value.shape) :]
        index = tuple(
            0 if size == 1 else k for size, k in zip(value.shape, tail, strict=True)
        )
        with jax_compat.scope():
            _, array = preview.place(data)
            element = float(array[index])
    return Operand(
        value=value, summary=preview.summarise(data, value.dtype), element=element
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What it takes to know one value.

    Attributes:
        nodes: Ops to run; 0 when the value is known.
        reused: Values computed by earlier peeks that save the rest of the cone.
        estimate_ns: Expected nanoseconds, compiling included; see `execution.cost_model`.
        compiles: Executables to compile first; 0 when all are in memory or on disk.
        loads: Executables to read from disk first.
        look_ns: Expected nanoseconds for the statistics of the value.
        low_ns, high_ns: Between what both together are expected to lie: apart where work of
            its kind and size has not been timed yet, at most by a factor of four.
    """

    nodes: int
    reused: int
    estimate_ns: int
    compiles: int = 0
    loads: int = 0
    look_ns: int = 0
    low_ns: int = 0
    high_ns: int = 0


def _cost(
    plan: Forecast, nodes: int, reused: int = 0, looks: Sequence[cost_model.Part] = ()
) -> Cost:
    work = cost_model.expected([*plan.gets, *plan.runs])
    look = cost_model.expected(looks)
    return Cost(
        nodes=nodes,
        reused=reused,
        estimate_ns=work.ns,
        compiles=plan.compiles,
        loads=plan.loads,
        look_ns=look.ns,
        low_ns=work.low_ns + look.low_ns,
        high_ns=work.high_ns + look.high_ns,
    )


class Inspection(Readable):
    """The graph of a step, pending or finished, that can be looked into.

    Attributes:
        graph: The graph, as it was when the inspection was made.
        step: Number of the step that it belongs to.
        holdings: What stands behind its inputs and outputs: names, versions, donations.

    Args:
        graph: A graph of the pending step, or of the finished one.
        names: The user's names of buffers, by their identity.
        finished: The step that ran it; by default it is pending.
    """

    def __init__(
        self,
        graph: Graph,
        names: Mapping[int, Name] | None = None,
        finished: Finished | None = None,
    ) -> None:
        self.graph = graph
        self._inputs: StepInputs = pending
        self._kept = finished.kept if finished is not None else None
        with lock:
            if finished is None:
                self.step = pending.number
                self._holders = _holders(graph)
                self.holdings = holdings(graph, names or {})
            else:
                self.step = finished.number
                self._inputs = finished.kept or StepInputs(-1)
                self._holders = finished.holders()
                self.holdings = finished.holdings(graph)
        self._nodes = {node.id: node for node in graph.nodes}

    def __str__(self) -> str:
        """Return the size of the graph and whether it can still be looked into."""
        sizes = ", ".join(
            plural(len(things), noun)
            for things, noun in (
                (self.graph.nodes, "op"),
                (self.graph.parameters, "input"),
                (self.graph.roots, "output"),
            )
        )
        state = "pending" if self.is_pending else "its step has run"
        if self.is_current and not self.is_pending:
            state += " and its inputs are kept"
        return (
            f"inspection of step {self.step}: {sizes}; {state}. `.graph` lists the ops, "
            "`.materialise(number)` computes one, lazyviz.explore(...) shows it"
        )

    @property
    def is_current(self) -> bool:
        """Whether each node can be computed: the step is pending, or its inputs are kept."""
        return self._inputs.number == self.step

    @property
    def is_pending(self) -> bool:
        """Whether the step has yet to run."""
        return self._inputs is pending and self.is_current

    def node(self, node_id: int) -> Node:
        """Return a node of the graph.

        Raises:
            UsageError: The graph has no node of that number.
        """
        found = self._nodes.get(node_id)
        if found is None:
            raise UsageError(
                f"the graph has no node %{node_id!r}; its {len(self._nodes)} nodes are numbered as "
                "`graph.to_text()` lists them. Take a number from there."
            )
        return found

    def value(self, node_id: int, output: int = 0) -> Value:
        """Return one result of a node as IR.

        Raises:
            UsageError: There is no such node, or it has no such result.
        """
        node = self.node(node_id)
        found = node.outputs[output] if output in range(len(node.outputs)) else None
        if found is None:
            raise UsageError(
                f"node %{node_id} ({node.op.name}) has no result {output!r}: it has "
                f"{len(node.outputs)}, counted from 0, and those that nobody asked for are left "
                "out. Ask for another one."
            )
        return found

    def get_ready(self) -> None:
        """Time this machine, unless that was done, so that the first `cost` need not."""
        if self.is_current:
            cost_model.calibrate()

    def cost(self, node_id: int, output: int = 0) -> Cost:
        """Return what `materialise` would take now; computes nothing."""
        value = self.value(node_id, output)
        cost_model.calibrate()
        with lock:
            inputs, again = self._ways(value)
            is_known = value in inputs.memo or self._held(value) is not None
            if not self.is_current or is_known:
                return Cost(nodes=0, reused=0, estimate_ns=0)
            cone, known = cone_of((value,), self._inputs.memo)
            plan = forecast_of(cone, value, reused=bool(known))
            if again:
                cone, known = again, set()
                runs = cost_model.slice_runs(again)
                plan = Forecast([], runs, 0, 0)
            return _cost(plan, len(cone), len(known), cost_model.looks(value))

    def cost_of_all(self) -> Cost:
        """Return what running each node of the graph alone would take; computes nothing."""
        nodes = list(self.graph.nodes)
        cost_model.calibrate()
        with lock:
            return _cost(op_forecast(nodes), len(nodes))

    def materialise(
        self, node_id: int, output: int = 0, site: SourceLocation | None = None
    ) -> torch.Tensor:
        """Return a node's result as a new CPU tensor of its shape and dtype.

        Only its cone runs, as a peek; a step that has run is not run again.

        Raises:
            UsageError: There is no such node or result.
            LostValueError: The step has run, and no tensor holds this value any more.
        """
        value = self.value(node_id, output)
        with copy_on_donate.reading() as reading:
            self._compute(reading, value, node_id, site)
            return transfer.to_host(reading.found, value.dtype, site, is_look=True)

    def look(
        self,
        node_id: int,
        output: int = 0,
        at: Sequence[int] = (),
        axes: Sequence[int] = (),
        site: SourceLocation | None = None,
    ) -> Look:
        """Return statistics of a node's result and a copy of it, of a large one in part.

        What is not shown stays on the device; see `execution.preview`.

        Args:
            node_id: The node.
            output: Which of its results.
            at: Index along each axis from which on a large result is copied.
            axes: Axes of a picture, rows and columns last; none for no picture.
            site: Who asked, for events.

        Raises:
            UsageError: There is no such node or result.
            LostValueError: The step has run, and no tensor holds this value any more.
        """
        value = self.value(node_id, output)
        with copy_on_donate.reading() as reading:
            self._compute(reading, value, node_id, site)
            start = cost_model.now()
            found = preview.look(reading.found, value.dtype, at, axes, site)
        cost_model.learn(cost_model.looks(value), cost_model.now() - start)
        return found

    def look_at_input(
        self,
        leaf: Leaf,
        at: Sequence[int] = (),
        axes: Sequence[int] = (),
    ) -> Look:
        """Return the same of an input; see `parameter` and `look`."""
        with copy_on_donate.reading() as reading:
            self._get_input(reading, leaf, None)
            return preview.look(reading.found, leaf.dtype, at, axes)

    def not_finite(self) -> dict[Value, preview.NonFinite]:
        """Return how many NaN and infinities the values hold that are computed already.

        Those are the graph's inputs and what was looked at since the last barrier. Nothing is
        run for it; values that nobody computed are left out.
        """
        with lock:
            if not self.is_current:
                return {}
            known: dict[Value, Any] = {
                leaf: self._inputs.inputs[leaf.position]
                for leaf in self.graph.parameters
                if leaf.kind == "data"
            }
            wanted = {v for n in self.graph.nodes for v in n.outputs if v is not None}
            results = self._kept.results.memo if self._kept is not None else {}
            memo = {**self._inputs.memo, **results}
            known.update((v, data) for v, data in memo.items() if v in wanted)
            return {
                value: preview.not_finite(data, value.dtype)
                for value, data in known.items()
            }

    def check_cone(self, node_id: int) -> dict[Value, preview.NonFinite]:
        """Compute all that a node needs, op by op, and count NaN and infinities in each value.

        A peek: the step stays as it is. Values are let go after their last use.

        Raises:
            UsageError: There is no such node.
            LostValueError: The step has run.
        """
        node = self.node(node_id)
        with lock:
            self._require_current(f"the cone of %{node_id}")
            wanted = [value for value in node.outputs if value is not None]
            found: dict[Value, preview.NonFinite] = {}
            start = time.perf_counter_ns()
            ran = []
            for each, results in run_cone(wanted, step=self._inputs):
                ran.append(each)
                for value, data in results:
                    found[value] = preview.not_finite(data, value.dtype)
            self._note(ran, wanted[0], start)
            return found

    def find_not_finite(self) -> NotFinite:
        """Compute the graph op by op and return where NaN and infinities begin.

        A peek: the step stays as it is. Values are let go after their last use.

        Raises:
            LostValueError: The step has run.
        """
        with lock:
            self._require_current("the step's ops")
            start = time.perf_counter_ns()
            found = find_not_finite(self.graph, self._inputs)
            if self.graph.nodes:
                self._note(list(self.graph.nodes), self.graph.roots[-1], start)
            return found

    def measure(self) -> dict[int, int]:
        """Run every node alone and return its nanoseconds, the better of two runs.

        A peek: the step stays as it is. Compiling is not counted.

        Raises:
            LostValueError: The step has run.
        """
        with lock:
            self._require_current("the step's ops")
            roots = [root for root in self.graph.roots if root.node is not None]
            if not roots:
                return {}
            took: dict[int, int] = {}
            start = time.perf_counter_ns()
            ran = [node for node, _ in run_cone(roots, took, step=self._inputs)]
            self._note(ran, roots[0], start)
            return took

    def _require_current(self, what: str) -> None:
        if not self.is_current:
            raise LostValueError(_ran(self.step, what))

    def _compute(
        self,
        reading: copy_on_donate.reading,
        value: Value,
        node_id: int,
        site: SourceLocation | None,
    ) -> None:
        """Find a value's data, once it is there; how long that took sets later estimates."""
        with lock:
            reading.found = self._held(value)
            if reading.found is not None:
                return
            self._require_current(f"%{node_id}")
            inputs, again = self._ways(value)
            if value in inputs.memo:
                reading.found = peek_value(value, site, step=inputs)
                return
            cone, known = cone_of((value,), self._inputs.memo)
            parts = run_parts(cone, value, reused=bool(known))
            start, compiled = cost_model.now(), compiled_ns()
            if self._kept is not None and again:
                parts = cost_model.slice_runs(again)
                reading.found = self._run_again(self._kept, value, site)
            if reading.found is None:
                reading.found = peek_value(value, site, step=self._inputs)
            compiled = compiled_ns() - compiled
        jax_compat.block(reading.found)
        cost_model.learn(parts, cost_model.now() - start - compiled)

    def _ways(self, value: Value) -> tuple[StepInputs, list[Node]]:
        """Return where a value is remembered, and what runs again for it; nothing where a peek does."""
        again = self._kept.nodes_for(value) if self._kept is not None else []
        return (self._kept.results if self._kept and again else self._inputs), again

    def _run_again(
        self, kept: kept_steps.KeptStep, value: Value, site: SourceLocation | None
    ) -> Array | None:
        """Return a result by the step's own executable; None where there is no room for it.

        The bits are those of then; a program of its ancestors alone may round in another way.
        """
        start = time.perf_counter_ns()
        try:
            data = kept.result(value)
        except OutOfMemoryError:
            return None
        remember(value, data, kept.results)
        tell(value, "slice", len(kept.nodes_for(value)), 0, start, site, "")
        return data

    def parameter(self, leaf: Leaf, site: SourceLocation | None = None) -> torch.Tensor:
        """Return an input of the graph as a new CPU tensor.

        Raises:
            LostValueError: The step has run, and its inputs are gone.
            UsageError: The leaf is a lifted number, not data.
        """
        with copy_on_donate.reading() as reading:
            self._get_input(reading, leaf, site)
            return transfer.to_host(reading.found, leaf.dtype, site, is_look=True)

    def _get_input(
        self, reading: copy_on_donate.reading, leaf: Leaf, site: SourceLocation | None
    ) -> None:
        if leaf.kind != "data":
            raise UsageError(
                f"{leaf!r} is a number that the program passed, not a tensor. Its line shows it."
            )
        with lock:
            self._require_current(f"input {leaf.position}")
            reading.found = peek_value(leaf, site, step=self._inputs)

    def _held(self, value: Value) -> Any:
        """Return the data of a value that this step computed, if a tensor still holds it."""
        if self.is_pending:
            return None
        for reference, mark in self._holders.get(value, ()):
            buffer = reference()
            if buffer is None or buffer.is_pending:
                continue
            is_same = (
                buffer.version == mark + 1
                if isinstance(mark, int)
                else made_in(buffer)[0] is mark
            )
            if is_same and not (buffer.data is None or isinstance(buffer.data, Lost)):
                return buffer.data
        return None

    def _note(self, ran: list[Node], value: Value, start: int) -> None:
        """Count nodes that ran one by one as one peek."""
        pending.activity += 1
        if self.is_pending:
            pending.note_peek(ran, "", None, time.perf_counter_ns() - start)
        tell(value, "op by op", len(ran), 0, start, None, "")


def _ran(step: int, what: str) -> str:
    back = max(
        pending.number - step, 1
    )  # which of the finished steps it is, from the last
    return (
        f"the value of {what} is gone: step {step}, which computed it, has run, and no tensor "
        f"holds it any more. Its inputs are not kept: set lazyrt.config.keep_values = {back} and "
        "run the step once more, or look before its barrier."
    )


# For a value the buffers that may hold it, each with its version before the step has run, or
# with the execution that made its data.
_Holders = dict["Value", list[tuple[weakref.ref[Buffer], "int | Run"]]]


def _holders(graph: Graph) -> _Holders:
    """Return, for each value of the graph, the live buffers whose next contents it is."""
    wanted = {v for node in graph.nodes for v in node.outputs if v is not None}
    found: _Holders = {}
    for buffer in pending.live():
        value = buffer.value
        if value is not None and value in wanted:
            found.setdefault(value, []).append((weakref.ref(buffer), buffer.version))
    return found


# ------------------------------------------------------------------------ finished steps


@dataclass(frozen=True, slots=True)
class Finished:
    """A step that has run.

    Attributes:
        number: The runtime's number of the step.
        canonical: What it ran.
        record: What is known of its executable.
        kept: Its inputs, if they are kept.
    """

    number: int
    canonical: Canonical
    record: CompiledGraph
    kept: kept_steps.KeptStep | None

    def holders(self) -> _Holders:
        """Return for each result the buffers that still hold it."""
        found: _Holders = {}
        for buffer in ready_buffers():
            run, slot = made_in(buffer)
            if isinstance(run, Run) and run.step == self.number:
                value = self.canonical.roots[run.order[slot]]
                found.setdefault(value, []).append((weakref.ref(buffer), run))
        return found

    def holdings(self, graph: Graph) -> dict[Value, Holding]:
        """Return what the user called the graph's inputs and results then, of which it may have a part."""
        snapshot = self.record.snapshot
        if snapshot is None:
            return {}
        there = {*graph.parameters, *(v for node in graph.nodes for v in node.outputs)}
        data, donated = self.canonical.data, set(self.record.key.donated)
        roots = {k: v for k, v in enumerate(self.canonical.roots) if v in there}
        by_autograd = Holding(holder=AUTOGRAD, version=None)
        found = {roots[k]: by_autograd for k in snapshot.saved if k in roots}
        results = {x: roots[k] for k, x in snapshot.root_names.items() if k in roots}
        inputs = {
            name: (data[k], k in donated)
            for k, name in snapshot.leaf_names.items()
            if k < len(data) and data[k] in there
        }
        for name, (leaf, is_donated) in inputs.items():
            found[leaf] = Holding(
                name=name.text,
                holder=name.holder,
                version=None,
                overwritten_by=results.get(name),
                is_donated=is_donated,
            )
        for name, root in results.items():
            over = inputs[name][0] if name in inputs else None
            found[root] = Holding(
                name=name.text, holder=name.holder, version=None, overwrites=over
            )
        return found


def inspect_finished(number: int, results: Iterable[int] = ()) -> Inspection | None:
    """Return a step that has run, to be looked into; None if its graph is not kept as IR.

    The caller holds the lock. `results` are positions in canonical order; none for all.
    """
    record = graph_registry.of_step(number)
    kept = kept_steps.find(number)
    if record is None:
        return None
    canonical = kept.canonical if kept is not None else record.canonical
    if canonical is None:
        return None
    roots = [canonical.roots[k] for k in results] or list(canonical.roots)
    roots.sort(key=lambda root: (root.node.id if root.node else -1, root.index))
    finished = Finished(number, canonical, record, kept)
    lines = record.ran_at if kept is None else kept.lines
    return Inspection(Graph(roots, lines), finished=finished)


def results_of(buffers: Iterable[Buffer]) -> tuple[int, list[int]] | None:
    """Return the latest step that made the data of some buffers, and its results among them."""
    found: dict[int, list[int]] = {}
    for buffer in buffers:
        run, slot = made_in(buffer)
        if isinstance(run, Run) and not buffer.is_pending:
            found.setdefault(run.step, []).append(run.order[slot])
    return max(found.items()) if found else None
