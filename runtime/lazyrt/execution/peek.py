"""Reading one tensor without disturbing the step.

A peek computes the cone of nodes under one value. It adds no root, numbers no input, draws no
random number and shares no executable with the step, so the step's graph, key and compile
count are what they would have been. Values it computed are remembered until the next barrier.

The cone runs op by op, with one cached executable for each kind of op, or as one slice in the
fast compile tier, whichever is estimated to be cheaper.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import torch

from lazyrt import jax_compat
from lazyrt.config import config, make_room
from lazyrt.errors import LoweringError, UsageError
from lazyrt.execution import (
    compiler,
    completion,
    cost_model,
    memory,
    process,
    replicas,
    transfer,
)
from lazyrt.execution.executor import Plan, pack_arguments, plan_of, run_plan
from lazyrt.execution.op_by_op import Tally, Values, cone_of, last_uses, run_node
from lazyrt.ir.fingerprint import Canonical, canonicalise
from lazyrt.ir.live import StepInputs, lock, pending
from lazyrt.ir.node import Leaf, Node, Value, iter_values, type_text
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lazyrt.execution.cost_model import Part
    from lazyrt.execution.graph import Graph
    from lazyrt.lowering.spec import Spec
    from lazyrt.observe.events import SourceLocation, Strategy


T = TypeVar("T")

_slices: dict[tuple[Value, ...], Plan] = {}
_AHEAD = 3  # executables that are begun before their op's turn
_compiled_ns = 0  # that peeks have waited for compiles and loads


def peek_value(
    value: Value,
    site: SourceLocation | None = None,
    tensor: str = "",
    step: StepInputs = pending,
) -> Any:
    """Return the device array of a value of the pending step, or of one whose inputs are kept."""
    process.check_not_forked()
    with lock:
        start = time.perf_counter_ns()
        if isinstance(value, Leaf):
            return step.inputs[value.position]
        known = step.memo.get(value)
        if known is not None:
            tell(value, "memo", 0, 1, start, site, tensor)
            return known
        return _compute((value,), start, site, tensor, step)[0]


def peek_together(
    values: Iterable[Value], site: SourceLocation | None, tensor: str
) -> list[Any]:
    """Return the device arrays of some values; what is not known yet is one execution."""
    process.check_not_forked()
    wanted = list(values)
    with lock:
        start = time.perf_counter_ns()
        missing = tuple(
            value
            for value in dict.fromkeys(wanted)
            if not isinstance(value, Leaf) and value not in pending.memo
        )
        computed = _compute(missing, start, site, tensor) if missing else []
        found = dict(zip(missing, computed, strict=True))
        return [
            found[value] if value in found else peek_value(value, site, tensor)
            for value in wanted
        ]


def _compute(
    values: tuple[Value, ...],
    start: int,
    site: SourceLocation | None,
    tensor: str,
    step: StepInputs = pending,
) -> list[Any]:
    """Run the cones of some values that are not known, and tell listeners."""
    cone, known_operands = cone_of(values, step.memo)
    replicas.check_alone(cone)
    reused = len(known_operands)
    plan = _slices.get(values)
    strategy: Strategy = "slice"
    found = None
    if _is_slice(plan, cone, reused=bool(reused)):
        # An op that XLA refuses runs on the CPU, if it runs alone.
        with contextlib.suppress(LoweringError):
            found = _run_slice(values, cone, plan, step)
    if found is None:
        strategy = "op by op"
        found = _run_op_by_op(values, cone, step)
    pending.activity += 1
    if step is pending:
        pending.note_peek(cone, tensor, site, time.perf_counter_ns() - start)
    tell(values[0], strategy, len(cone), reused, start, site, tensor)
    return found


def forget_slices() -> None:
    """Forget which executable belongs to which value's cone."""
    _slices.clear()


def compiled_ns() -> int:
    """Return how long this process's peeks have waited for compiles and loads."""
    return _compiled_ns


def _is_slice(plan: Plan | None, cone: list[Node], *, reused: bool) -> bool:
    if plan is not None:
        return not config.op_by_op_reads
    return cost_model.runs_as_slice(cone, reused=reused)


class Forecast(NamedTuple):
    """What a peek will do.

    `gets` are compiles and loads, `runs` what runs then.
    """

    gets: list[Part]
    runs: list[Part]
    compiles: int
    loads: int


def forecast_of(cone: list[Node], value: Value, *, reused: bool) -> Forecast:
    """Return what a peek of a value with this cone will do; computes nothing."""
    plan = _slices.get((value,))
    if not _is_slice(plan, cone, reused=reused):
        return op_forecast(cone)
    made = plan is not None
    place = "memory" if made else compiler.place_of_peek(canonicalise((value,)))
    return Forecast(
        cost_model.slice_compile(cone, place),
        cost_model.slice_runs(cone),
        int(place == "nowhere"),
        int(place == "disk"),
    )


def op_forecast(cone: list[Node]) -> Forecast:
    """Return what running a cone op by op will do."""
    gets = cost_model.op_compiles(cone)
    kinds = [part.kind.partition(" ")[0] for part in gets]
    return Forecast(
        gets,
        cost_model.runs(cone),
        kinds.count("compile"),
        kinds.count("load"),
    )


def run_parts(cone: list[Node], value: Value, *, reused: bool) -> list[Part]:
    """Return what runs in a peek once its executables are there."""
    if _is_slice(_slices.get((value,)), cone, reused=reused):
        return cost_model.slice_runs(cone)
    return cost_model.runs(cone)


def _timed(parts: list[Part], get: Callable[[], T]) -> T:
    """Get an executable, and learn how long that took."""
    global _compiled_ns
    start = cost_model.now()
    found = get()
    took = cost_model.now() - start
    _compiled_ns += took
    cost_model.learn(parts, took)
    return found


def _run_slice(
    values: tuple[Value, ...], cone: list[Node], plan: Plan | None, step: StepInputs
) -> list[Any]:
    if plan is None:
        graph = canonicalise(values)
        place = compiler.place_of_peek(graph)
        parts = cost_model.slice_compile(cone, place)
        cost_model.begin_compile(graph.fingerprint, parts)
        executable = _timed(
            parts,
            lambda: compiler.compile_graph(graph, {}, fast=True, purpose="peek"),
        )
        make_room("slices", _slices, "max_slices")
        plan = _slices[values] = plan_of(graph, executable, values)
    plan.make_sure_it_fits()
    found = [*run_plan(plan, "peek", step)]
    for value, data in zip(values, found, strict=True):
        remember(value, data, step)
    return found


def _run_op_by_op(
    wanted: tuple[Value, ...], cone: list[Node], step: StepInputs
) -> list[Any]:
    values = dict(step.memo)
    last_use = last_uses(cone, wanted)
    token: Any = None
    started = time.perf_counter_ns()
    tally = Tally(len(cone), "peek")
    executables = _Executables(cone)
    with jax_compat.scope():
        for number, node in enumerate(cone):
            tally.note(number)
            executables.get(node)
            token = run_node(node, values, step=step).token
            for operand in last_use.get(number, ()):
                if not remember(operand, values[operand], step):
                    del values[operand]
    executables.learn()
    found = [values[value] for value in wanted]
    for value, data in zip(wanted, found, strict=True):
        remember(value, data, step)
    events.emit(
        events.ExecuteStarted(
            fingerprint="op by op",
            purpose="peek",
            step=pending.number,
            nodes=len(cone),
            inputs=len(cone),
            outputs=1,
            donated=0,
            time_ns=started,
            dispatch_ns=time.perf_counter_ns() - started,
        )
    )
    completion.watch(
        token, fingerprint="op by op", purpose="peek", step=pending.number, started_ns=started,
    )  # fmt: skip
    return found


class _Executables:
    """Compiles or loads the ops of a cone that have no executable, a few ahead of their turn.

    XLA works on some while Python traces the next. What all of them took is learned together,
    since they took it side by side.
    """

    def __init__(self, cone: list[Node]) -> None:
        unknown: dict[Spec, Node] = {}
        for node in cone:
            if node.spec.executable is None:
                unknown.setdefault(node.spec, node)
        self._waiting = [*unknown.values()][::-1]  # the first is last
        self._begun: deque[Callable[[], None]] = deque()
        self._parts: list[Part] = []
        self._took_ns = 0

    def get(self, node: Node) -> None:
        """Give a node's op its executable."""
        while node.spec.executable is None and (self._waiting or self._begun):
            start = cost_model.now()
            self._look_ahead()
            self._begun.popleft()()
            self._took_ns += cost_model.now() - start

    def _look_ahead(self) -> None:
        while self._waiting and len(self._begun) <= _AHEAD:
            node = self._waiting.pop()
            place = compiler.place_of_op(node.spec)
            self._parts += cost_model.op_part(node.spec, place)
            self._begun.append(compiler.begin_spec(node.spec, node=node))

    def learn(self) -> None:
        """Remember how long it took."""
        global _compiled_ns
        _compiled_ns += self._took_ns
        cost_model.learn(self._parts, self._took_ns)


def remember(value: Value, data: Any, step: StepInputs = pending) -> bool:
    """Keep a computed value for later peeks, within the stated budget."""
    if value in step.memo:
        return True
    if step.memo_bytes + data.nbytes > config.peek_memo_bytes:
        return False
    step.memo[value] = data
    step.memo_bytes += data.nbytes
    return True


def tell(
    value: Value,
    strategy: Strategy,
    nodes: int,
    reused: int,
    start: int,
    site: SourceLocation | None,
    tensor: str,
) -> None:
    """Tell listeners of a peek that began at `start`."""
    events.emit(
        events.TensorMaterialised(
            node_id=value.node.id if value.node is not None else None,
            strategy=strategy,
            nodes=nodes,
            reused=reused,
            duration_ns=time.perf_counter_ns() - start,
            site=site,
            tensor=tensor,
        )
    )


# ---------------------------------------------------------------- the value of every node
# Of a pending graph, run op by op or as one optimised executable. Both are peeks: nothing becomes a
# root of the user's step, which stays as it is. The optimised values come from the graph with every
# node as a root. That may change what XLA fuses, so the graph as it is runs too, and its roots are
# compared: `drift` names those that differ.


Way = Literal["eager", "lazy"]


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long one tensor's memory is taken, in positions of a schedule.

    Attributes:
        name: What it is: `%12 aten.exp.default`, `%p0`, or an instruction's name.
        type: Such as `f32[2,3]`.
        born: Position of the op that makes it; 0 for inputs.
        dies: Position of the op after which nothing reads it; that of the last op for results.
    """

    name: str
    type: str
    nbytes: int
    born: int
    dies: int


@dataclass(frozen=True, slots=True, eq=False)
class NodeValues:
    """What the nodes of one graph computed.

    Attributes:
        mode: `eager` (each op alone) or `lazy` (XLA's optimised executable).
        graph: The graph; a node's results are the keys of `values`.
        values: Each result as a CPU tensor.
        peak_bytes: Device memory at the worst moment: for `eager` inputs and live results,
            each freed after its last use; for `lazy` what XLA plans for arguments, results
            and temporaries of the graph as it is.
        hlo: The optimised HLO of the graph as it is; empty for `eager`.
        kept_hlo: That of the graph with every node kept, which computed `values`; labels end in
            the node's position in `kept_nodes`.
        kept_nodes: The nodes in that graph's order.
        alone: What each op gives by itself on the operands that this run computed, so that
            what differs from `values` arose in this very op; empty for `eager`.
        lifetimes: When each tensor's memory is taken; empty for `lazy`, whose schedule is
            that of `hlo`.
        drift: Roots that came out otherwise because every node was kept.
    """

    mode: Way
    graph: Graph
    values: dict[Value, torch.Tensor] = field(repr=False)
    peak_bytes: int
    hlo: str = field(default="", repr=False)
    drift: tuple[Value, ...] = ()
    kept_hlo: str = field(default="", repr=False)
    kept_nodes: tuple[Node, ...] = field(default=(), repr=False)
    alone: dict[Value, torch.Tensor] = field(default_factory=dict, repr=False)
    lifetimes: tuple[Lifetime, ...] = field(default=(), repr=False)


def node_values(graph: Graph, mode: Way) -> NodeValues:
    """Run a pending graph and return the values of all its nodes.

    Args:
        graph: A graph of the step that is pending now.
        mode: Whether each op runs alone, or the graph as one optimised executable.

    Raises:
        UsageError: There is no such mode, or nothing is pending.
    """
    if mode not in {"eager", "lazy"}:
        raise UsageError(
            f"node_values(mode={mode!r}): a graph runs 'eager', each op alone, or 'lazy', as "
            "one optimised executable. Pass one of these."
        )
    if not graph.nodes:
        raise UsageError(
            "node_values() got tensors that are all computed, so there is no graph whose nodes "
            "could be run. Call it before the barrier that runs them."
        )
    with lock:
        return _eager(graph) if mode == "eager" else _lazy(graph)


def _inputs(graph: Graph) -> list[tuple[Leaf, int]]:
    """Return the inputs that are device data, each with its size in bytes."""
    leaves = {leaf.position: leaf for leaf in graph.parameters if leaf.kind == "data"}
    return [(leaf, pending.inputs[k].nbytes) for k, leaf in leaves.items()]


def _eager(graph: Graph) -> NodeValues:
    roots = set(graph.roots)
    uses = last_uses(list(graph.nodes), roots)
    found: Values = {}
    host: dict[Value, torch.Tensor] = {}
    live = peak = sum(nbytes for _, nbytes in _inputs(graph))
    last = len(graph.nodes) - 1
    lives = [
        Lifetime(f"%p{k}", type_text(leaf.shape, leaf.dtype), nbytes, 0, last)
        for k, (leaf, nbytes) in enumerate(_inputs(graph))
    ]
    born: dict[Value, tuple[int, int]] = {}
    with jax_compat.scope():
        for number, node in enumerate(graph.nodes):
            results, _ = run_node(node, found)
            live += sum(result.nbytes for result in results)
            peak = max(peak, live)
            for output in node.outputs:
                if output is not None:
                    host[output] = transfer.to_host(found[output], output.dtype)
                    born[output] = number, found[output].nbytes
            for value in uses.get(number, ()):
                live -= found.pop(value).nbytes
                lives.append(_lifetime(value, *born.pop(value), dies=number))
    lives += [_lifetime(value, *facts, dies=last) for value, facts in born.items()]
    return NodeValues("eager", graph, host, peak, lifetimes=tuple(lives))


def _lifetime(value: Value, born: int, nbytes: int, *, dies: int) -> Lifetime:
    name = f"%{value.node.id} {value.node.op.name}" if value.node is not None else ""
    type_ = type_text(value.shape, value.dtype)
    return Lifetime(name, type_, nbytes, born, dies)


def _lazy(graph: Graph) -> NodeValues:
    everything = [
        output for node in graph.nodes for output in node.outputs if output is not None
    ]
    full = canonicalise(everything)
    device, kept_executable = _run(full, everything, numbered=True)
    roots = [root for root in graph.roots if root.node is not None]
    plain, executable = _run(canonicalise(roots), roots)
    values = _on_host(device)
    drift = [
        root
        for root, data in _on_host(plain).items()
        if not torch.equal(_bits(data), _bits(values[root]))
    ]
    return NodeValues(
        "lazy",
        graph,
        values,
        jax_compat.memory_plan(executable).arguments + memory.planned(executable),
        jax_compat.optimised_text(executable),
        tuple(drift),
        jax_compat.optimised_text(kept_executable),
        full.nodes,
        _alone(full, device),
    )


def _run(
    graph: Canonical, roots: Sequence[Value], *, numbered: bool = False
) -> tuple[Values, Any]:
    """Run a graph with XLA's full optimisation; return its roots' data and the executable."""
    executable = compiler.compile_graph(
        graph, {}, fast=False, purpose="peek", numbered=numbered
    )
    plan = plan_of(graph, executable, roots)
    plan.make_sure_it_fits()
    with jax_compat.scope():
        results = plan.launch(pack_arguments(plan))
    return {
        root: results[rank] for rank, root in zip(plan.order, roots, strict=True)
    }, executable


def _alone(graph: Canonical, values: Values) -> dict[Value, torch.Tensor]:
    """Return what each op gives by itself on the operands that an optimised run computed."""
    found: Values = {}
    with jax_compat.scope():
        for node in graph.nodes:
            own = {v: values[v] for v in iter_values(node.args) if v.node is not None}
            run_node(node, own)
            found |= {out: own[out] for out in node.outputs if out is not None}
    return _on_host(found)


def _on_host(values: Values) -> dict[Value, torch.Tensor]:
    return {
        value: transfer.to_host(data, value.dtype) for value, data in values.items()
    }


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes, so that NaN equals itself."""
    if not tensor.numel():
        return tensor.new_empty(0, dtype=torch.uint8)
    return tensor.contiguous().reshape(-1).view(torch.uint8)
