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
from lazyrt.execution import compiler, forks, memory, watcher
from lazyrt.execution.host_kernel import HostKernel
from lazyrt.ir.live import pending
from lazyrt.ir.node import Leaf, Node, Value, iter_values, visit
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    from lazyrt.observe.events import Purpose, SingleOps

Values = dict[Value, Any]

_PAUSE_NS = 500_000_000  # between two notes of progress
_check: Callable[[Node, Values], None] | None = None
# The step in which each mode last ran a single op.
_last_step: dict[SingleOps, int] = {}


def cone_of(
    roots: Iterable[Value], known: Container[Value]
) -> tuple[list[Node], set[Value]]:
    """Return the nodes to run for some values, operands first, and which known ones they read.

    Args:
        roots: Values of nodes; they are run even if they are known.
        known: Values that need not be computed.
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


def set_check(check: Callable[[Node, Values], None]) -> None:
    """Tell what refuses a node for what its operands hold, before a mode of single ops runs it."""
    global _check
    _check = check


def check_values(node: Node, values: Values) -> None:
    """Raise what the CPU raises for a node's op on operands that hold what these do."""
    if _check is not None:
        _check(node, values)


class Ran(NamedTuple):
    """What running a node gave: its results, and what is ready when they are; None for none."""

    results: list[Any]
    token: Any


def run_node(node: Node, values: Values, purpose: Purpose = "op") -> Ran:
    """Run one node, add its results to `values` and return them.

    To be called in `jax_compat.scope()`, for the width of 64-bit types.
    """
    forks.check()
    executable = compiler.compile_spec(node.spec, purpose, node)
    memory.make_sure(memory.results_of(node), node.op.name, (node,))
    operands = [read(operand, values) for operand in iter_values(node.args)]
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
    """Tells listeners how far a run of single ops is, once it has taken a while.

    Args:
        nodes: How many there are to run.
        purpose: Who runs them.
    """

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


def read(value: Value, values: Values) -> Any:
    """Return what an executable gets for a value: device data, or the number of a leaf."""
    if not isinstance(value, Leaf):
        return values[value]
    if value.kind == "data":
        return pending.inputs[value.position]
    if value.kind == "float":
        return np.float64(pending.floats[value.position])
    if value.kind == "int":
        return np.int64(pending.ints[value.position])
    return np.array(pending.rng[value.position], np.uint64)


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
) -> Iterator[tuple[Node, list[tuple[Value, Any]]]]:
    """Run what some pending values need, node by node, and yield each node's results.

    Nothing is remembered; a value is let go after its last use.

    Args:
        roots: Values of the pending step.
        took: Where given, gets each node's nanoseconds, the better of two runs.
        values: Where given, has a node's operands while the node is yielded; see `read`.
    """
    wanted = list(roots)
    cone, _ = cone_of(wanted, ())
    uses = last_uses(cone, wanted)
    values = {} if values is None else values
    for number, node in enumerate(cone):
        with jax_compat.scope():
            run_node(node, values)
            if took is not None:
                took[node.id] = min(_timed(node, values), _timed(node, values))
        yield node, [(v, values[v]) for v in node.outputs if v is not None]
        for value in uses.get(number, ()):
            del values[value]


def _timed(node: Node, values: Values) -> int:
    """Return the nanoseconds that a node takes whose executable is there."""
    for operand in iter_values(node.args):
        if not isinstance(operand, Leaf):
            jax_compat.block(values[operand])
    start = time.perf_counter_ns()
    for result in run_node(node, values).results:
        jax_compat.block(result)
    return time.perf_counter_ns() - start


def run_and_tell(
    node: Node, values: Values, mode: SingleOps, *, times: int = 1
) -> None:
    """Run one node as `run_node` does, and tell listeners."""
    _last_step[mode] = pending.number
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
        watcher.watch(
            token, fingerprint=node.spec.symbol, purpose=mode, step=pending.number,
            started_ns=start, site=node.provenance.site,
        )  # fmt: skip


def has_run(mode: SingleOps) -> bool:
    """Return whether a mode ran a single op since the last barrier."""
    return _last_step.get(mode) == pending.number


def compute(
    roots: Iterable[Value], refused: Callable[[Node], None] | None = None
) -> tuple[Values, int]:
    """Run the cone of some pending values in op-by-op mode, whatever ran before.

    Args:
        roots: The values.
        refused: Called with a node that is refused for what its operands hold.

    Returns:
        The data of each root, and how many nodes were run.

    Raises:
        RuntimeError: A node is refused; another plain error where the CPU raises that.
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
                check_values(node, values)
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
