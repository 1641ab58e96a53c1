"""Running nodes one by one, each with an executable of its own.

Peeks, eager debug mode, op-by-op mode and background flushes all run single ops through here
and share their executables, which are cached by op, operand types and constants.

In op-by-op mode nothing is remembered between two reads, so what both need runs twice: that
is what the mode is there to show. `pending.runs` counts it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lazyrt import jax_compat
from lazyrt.config import config
from lazyrt.errors import LoweringError
from lazyrt.execution import compiler, completion, memory, process
from lazyrt.execution.graph import Graph
from lazyrt.execution.process import deferred_interrupt
from lazyrt.execution.transfer import HostKernel
from lazyrt.ir import sharding
from lazyrt.ir.fingerprint import note_emptied, rebuilt
from lazyrt.ir.live import Buffer, FromCpu, StepInputs, leaf_of, let_go, pending
from lazyrt.ir.node import Leaf, Node, Value, iter_values, visit
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence

    from lazyrt.observe.events import Purpose, SingleOps


Values = dict[Value, Any]

_PAUSE_NS = 500_000_000  # between two notes of progress
# What refuses a node for what its operands hold, before it runs in op-by-op mode.
checks: list[Callable[[Node, Values], None]] = []
# The step in which each mode last ran a single op, and those that did since it began.
_last_step: dict[SingleOps, int] = {}
_since_begin: set[SingleOps] = set()
HOW: dict[SingleOps, str] = {
    "eager": "in eager debug mode",
    "op by op": "in op-by-op mode",
}
"""How the origin of an input says that a mode made it."""


def cone_of(
    roots: Iterable[Value], known: Container[Value]
) -> tuple[list[Node], set[Value]]:
    """Return the nodes to run for some values, operands first, and which known ones they read.

    Roots are run even if they are known.
    """
    done: dict[Node, None] = {}
    reused: set[Value] = set()

    def needs(node: Node) -> list[Node]:
        waiting = []
        for operand in iter_values(node.args):
            if operand.node is None or operand.node in done:
                continue
            if operand in known:
                reused.add(operand)
            else:
                waiting.append(operand.node)
        return waiting

    for root in roots:
        if root.node is not None:
            visit(root.node, done, needs)
    return list(done), reused


class Ran(NamedTuple):
    """What running a node gave: its results, and what is ready when they are; None for none."""

    results: list[Any]
    token: Any


def run_node(
    node: Node, values: Values, purpose: Purpose = "op", step: StepInputs = pending
) -> Ran:
    """Run one node of a step, add its results to `values` and return them.

    To be called in `jax_compat.scope()`, for the width of 64-bit types.
    """
    process.check_not_forked()
    executable = compiler.compile_spec(node.spec, purpose, node)
    memory.make_sure(memory.results_of(node), node.op.name, lambda: (node,))
    operands = [read(operand, values, step) for operand in iter_values(node.args)]
    if isinstance(executable, HostKernel):
        results = _run_on_host(executable, node, operands)
    else:
        with memory.explained(node.op.name):
            results = jax_compat.dispatcher(executable)(*operands)
    token = results.pop() if node.spec.is_large else next(iter(results), None)
    found = iter(results)
    for output in node.outputs:
        if output is not None:
            values[output] = next(found)
    return Ran(results, token)


def _run_on_host(kernel: HostKernel, node: Node, operands: list[Any]) -> list[Any]:
    """Run a node that XLA refuses on the CPU, and tell listeners."""
    op, site = node.op.name, node.provenance.site
    events.emit(events.FallbackUsed(op=op, reason=kernel.reason, site=site))
    start = time.perf_counter_ns()
    try:
        results = kernel(*operands)
    except LoweringError as error:
        error.add_note(f"recorded at {site or 'an unknown line'}")
        raise
    took = time.perf_counter_ns() - start
    events.emit(events.FallbackFinished(op=op, site=site, duration_ns=took))
    return results


class Tally:
    """Tells listeners how far a run of single ops is, once it has taken a while."""

    def __init__(self, nodes: int, purpose: Purpose) -> None:
        self._nodes = nodes
        self._purpose = purpose
        self._start = time.perf_counter_ns()
        self._due = self._start + int(config.progress_after_s * 1e9)

    def note(self, done: int) -> None:
        """Say that so many have run, if it is time."""
        now = time.perf_counter_ns()
        if now < self._due:
            return
        self._due = now + _PAUSE_NS
        events.emit(
            events.CompileProgress(
                fingerprint="op by op",
                purpose=self._purpose,
                phase="execute",
                nodes=self._nodes,
                elapsed_ns=now - self._start,
                done=done,
            )
        )


def read(value: Value, values: Values, step: StepInputs = pending) -> Any:
    """Return what an executable gets for a value: device data, or the number of a leaf."""
    if not isinstance(value, Leaf):
        return values[value]
    if value.kind == "data":
        return _whole(value, values, step)
    if value.kind == "float":
        return np.float64(step.floats[value.position])
    if value.kind == "int":
        return np.int64(step.ints[value.position])
    return np.array(step.rng[value.position], np.uint64)


def _whole(leaf: Leaf, values: Values, step: StepInputs) -> Any:
    """Return an input on one device, where single ops run."""
    if not sharding.in_use:
        return step.inputs[leaf.position]
    found = values.get(leaf)
    if found is None:
        found = values[leaf] = jax_compat.whole(step.inputs[leaf.position])
    return found


def last_uses(cone: list[Node], wanted: Container[Value]) -> dict[int, list[Value]]:
    """Return, for each position in the cone, the values that nothing after it reads."""
    last: dict[Value, int] = {}
    for number, node in enumerate(cone):
        for output in node.outputs:
            if output is not None:
                last[output] = number
        for operand in iter_values(node.args):
            if operand in last:
                last[operand] = number
    uses: dict[int, list[Value]] = {}
    for operand, number in last.items():
        if operand not in wanted:
            uses.setdefault(number, []).append(operand)
    return uses


def run_cone(
    roots: Iterable[Value],
    took: dict[int, int] | None = None,
    values: Values | None = None,
    step: StepInputs = pending,
) -> Iterator[tuple[Node, list[tuple[Value, Any]]]]:
    """Run what some values of a step need, node by node, and yield each node's results.

    Nothing is remembered; a value is let go after its last use. `took` gets each node's
    nanoseconds, the better of two runs; `values` has a node's operands while the node is yielded,
    see `read`.
    """
    wanted = list(roots)
    cone, _ = cone_of(wanted, ())
    uses = last_uses(cone, wanted)
    values = {} if values is None else values
    for number, node in enumerate(cone):
        with jax_compat.scope():
            run_node(node, values, step=step)
            if took is not None:
                took[node.id] = min(_timed(node, values, step) for _ in range(2))
        yield node, [(v, values[v]) for v in node.outputs if v is not None]
        for value in uses.get(number, ()):
            del values[value]


def _timed(node: Node, values: Values, step: StepInputs) -> int:
    """Return the nanoseconds that a node takes whose executable is there."""
    for operand in iter_values(node.args):
        if not isinstance(operand, Leaf):
            jax_compat.block(values[operand])
    start = time.perf_counter_ns()
    for result in run_node(node, values, step=step).results:
        jax_compat.block(result)
    return time.perf_counter_ns() - start


def run_and_tell(
    node: Node, values: Values, mode: SingleOps, *, times: int = 1
) -> None:
    """Run one node as `run_node` does, and tell listeners."""
    _last_step[mode] = pending.number
    _since_begin.add(mode)
    hit = compiler.is_compiled(node.spec)
    compiler.compile_spec(node.spec, mode, node)
    start = time.perf_counter_ns()
    results, token = run_node(node, values, mode)
    events.emit(
        events.OpExecuted(
            node_id=node.id,
            op=node.op.name,
            mode=mode,
            cache_hit=hit,
            times=times,
            nbytes=sum(result.nbytes for result in results),
            dispatch_ns=time.perf_counter_ns() - start,
            site=node.provenance.site,
        )
    )
    if token is not None:
        completion.watch(
            token, fingerprint=node.spec.symbol, purpose=mode, step=pending.number,
            started_ns=start, site=node.provenance.site,
        )  # fmt: skip


def begin_step(roots: Callable[[], Sequence[Value]]) -> None:
    """Take what ran until now for no part of the pending step, unless some of that is there already."""
    if _since_begin and not roots():
        _since_begin.clear()


def has_run(mode: SingleOps, made: Container[str]) -> bool:
    """Return whether a mode ran a part of the pending step, or made an input of it since the last barrier.

    `made` says how its inputs were made.
    """
    is_part = mode in _since_begin or HOW[mode] in made
    return is_part and _last_step.get(mode) == pending.number


def compute(
    roots: Iterable[Value], refused: Callable[[Node], None] | None = None
) -> tuple[Values, int]:
    """Run the cone of some pending values in op-by-op mode, whatever ran before.

    Returns the data of each root, and how many nodes were run. `refused` is called with a node that
    is refused for what its operands hold; otherwise that is a plain error, as on the CPU.
    """
    wanted = set(roots)
    cone, _ = cone_of(wanted, ())
    uses = last_uses(cone, wanted)
    values: Values = {}
    tally = Tally(len(cone), "op by op")
    with jax_compat.scope():
        for number, node in enumerate(cone):
            tally.note(number)
            try:
                for check in checks:
                    check(node, values)
            except Exception:
                values.clear()  # a traceback keeps them
                if refused is not None:
                    refused(node)
                raise
            times = pending.runs[node] = pending.runs.get(node, 0) + 1
            run_and_tell(node, values, "op by op", times=times)
            for value in uses.get(number, ()):
                del values[value]
    return values, len(cone)


# -------------------------------------------- graphs with an op that cannot be compiled
# Recording checks an op's rule abstractly. A mistake that shows later, in MLIR's verifier or in XLA,
# would fail every barrier for as long as anything holds the op. So the pending graph is repaired:
# the op runs alone, by torch on the CPU (`HostKernel`), and whatever reads it reads the result
# as an input of the step. An op that the CPU refuses, too, is dropped with all that depends on it.


def repair(roots: Sequence[Value]) -> None:
    """Take the ops that cannot be compiled out of the pending graph.

    An op that the CPU refuses, too, is dropped and raised as a LoweringError; the rest stays pending.
    """
    while (node := _first_unlowerable(roots)) is not None:
        new = _replace(node, roots)
        roots = [new.get(root, root) for root in roots]


def _first_unlowerable(roots: Sequence[Value]) -> Node | None:
    nodes = Graph(roots).nodes
    for node in nodes:
        try:
            if not node.spec.text:
                return node
        except LoweringError:
            return node
    compiled = ((node, compiler.compile_spec(node.spec)) for node in nodes)
    return next((node for node, made in compiled if isinstance(made, HostKernel)), None)


def _replace(node: Node, roots: Sequence[Value]) -> dict[Value, Value]:
    """Compute a node alone; return what stands for each value that changes by it."""
    kernel = compiler.compile_spec(node.spec)
    node.spec.refuse(kernel.reason)
    # Equal ops fall back when they are recorded from now on.
    node.op.forget()
    note_emptied()
    outputs = [output for output in node.outputs if output is not None]
    values: dict[Value, Any] = {}
    try:
        for _ in run_cone(outputs, values=values):
            pass
    except LoweringError as error:
        dropped = drop(node, roots, f"{node.op.name} could not be computed")
        error.add_note(
            f"It was dropped with the {dropped:,} tensors that depend on it; everything else is "
            "pending as it was."
        )
        raise
    with deferred_interrupt():
        leaves: dict[Value, Value] = {}
        for output in outputs:
            owner = Buffer(None)
            owner.store(values[output], (output.shape, output.dtype, output.strides))
            owner.run = FromCpu(node.op.name, node.provenance.site)
            leaves[output] = leaf_of(owner)
        new = rebuilt(Graph(roots).nodes, leaves)
        for buffer in pending.live():
            if buffer.value in new:
                buffer.value = new[buffer.value]
                buffer.version += 1
    return new


def drop(node: Node, roots: Sequence[Value], reason: str) -> int:
    """Drop a node and what depends on it; return how many tensors lose their value by that."""
    reached = {node}
    for each in Graph(roots).nodes:
        if any(operand.node in reached for operand in iter_values(each.args)):
            reached.add(each)
    dropped = 0
    with deferred_interrupt():
        for buffer in pending.live():
            if buffer.value is not None and buffer.value.node in reached:
                let_go(buffer, reason)
                buffer.version += 1
                pending.buffers.pop(buffer, None)
                pending.parked.pop(buffer, None)
                dropped += 1
    return dropped
