"""Reading one tensor without disturbing the step.

A peek computes the cone of nodes under one value. It adds no root, numbers no input, draws no
random number and shares no executable with the step, so the step's graph, key and compile
count are what they would have been. Values it computed are remembered until the next barrier.

The cone runs op by op, with one cached executable for each kind of op, or as one slice in the
fast compile tier, whichever is estimated to be cheaper.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from lazyrt import jax_compat
from lazyrt.config import config
from lazyrt.execution import compiler, forks, memory, pace, watcher
from lazyrt.execution.executor import Plan, pack_arguments, plan_of
from lazyrt.execution.op_by_op import Tally, cone_of, last_uses, run_node
from lazyrt.ir import costs
from lazyrt.ir.budgets import make_room
from lazyrt.ir.fingerprint import canonicalise
from lazyrt.ir.live import lock, pending
from lazyrt.ir.node import Leaf, Node, Value
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazyrt.observe.events import Site, Strategy

# Measured with `python -m benchmarks prints` on two cores: fast-tier compile of one op, the
# same for each node of a slice, the fixed cost of a slice, and running one cached op.
_COMPILE_OP_NS = 20_000_000
_COMPILE_SLICE_NODE_NS = 2_500_000
_COMPILE_SLICE_NS = 40_000_000
_RUN_OP_NS = 60_000

_slices: dict[Value | tuple[Value, ...], Plan] = {}


def peek_value(value: Value, site: Site | None = None, tensor: str = "") -> Any:
    """Return the device array of a value of the pending step.

    Args:
        value: A pending value, or a leaf of kind `data`.
        site: Who asked, for events.
        tensor: What the user's source calls it, for events.
    """
    forks.check()
    with lock:
        start = time.perf_counter_ns()
        if isinstance(value, Leaf):
            return pending.inputs[value.position]
        known = pending.memo.get(value)
        if known is not None:
            tell(value, "memo", 0, 1, start, site, tensor)
            return known
        return _compute((value,), start, site, tensor)[0]


def peek_together(values: Iterable[Value], site: Site | None, tensor: str) -> list[Any]:
    """Return the device arrays of some values; what is not known yet is one execution."""
    forks.check()
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
    values: tuple[Value, ...], start: int, site: Site | None, tensor: str
) -> list[Any]:
    """Run the cones of some values that are not known, and tell listeners."""
    cone, known_operands = cone_of(values, pending.memo)
    reused = len(known_operands)
    plan = _slices.get(_key(values))
    strategy: Strategy = "slice"
    by_op = config.op_by_op_reads
    if not by_op and (plan is not None or (not reused and _slice_is_cheaper(cone))):
        guessed = 0 if plan is not None else _slice_compile_ns(cone)
        found = _run_slice(values, cone, plan)
    else:
        strategy = "op by op"
        guessed = _op_compiles_ns(cone)
        found = _run_op_by_op(values, cone)
    pace.learn("compile", guessed, time.perf_counter_ns() - start)
    pending.activity += 1
    pending.note_peek(cone, tensor, site, time.perf_counter_ns() - start)
    tell(values[0], strategy, len(cone), reused, start, site, tensor)
    return found


def _key(values: tuple[Value, ...]) -> Value | tuple[Value, ...]:
    return values[0] if len(values) == 1 else values


def forget_slices() -> None:
    """Forget which executable belongs to which value's cone."""
    _slices.clear()


def estimate_ns(cone: list[Node], value: Value) -> int:
    """Return how many nanoseconds a peek of a value with this cone takes, compiling included."""
    run = run_ns(cone)
    if value in _slices:
        return pace.expected_ns(0, run)
    slice_ns = _slice_compile_ns(cone)
    compiles = slice_ns if _slice_is_cheaper(cone) else _op_compiles_ns(cone)
    return pace.expected_ns(compiles, run)


def run_ns(cone: list[Node]) -> float:
    """Return a guess of how many nanoseconds a cone runs once it is compiled."""
    return len(cone) * _RUN_OP_NS + sum(map(costs.run_ns, cone))


def _slice_is_cheaper(cone: list[Node]) -> bool:
    by_op = _op_compiles_ns(cone) + len(cone) * _RUN_OP_NS
    return by_op > _slice_compile_ns(cone)


def compiles_of(cone: list[Node], value: Value) -> int:
    """Return how many executables a peek of a value with this cone compiles, at most."""
    if value in _slices:
        return 0
    unknown = {node.spec for node in cone if not compiler.is_compiled(node.spec)}
    if not config.op_by_op_reads and _slice_is_cheaper(cone):
        return min(1, len(cone))
    return len(unknown)


def by_op_ns(cone: list[Node]) -> int:
    """Return how many nanoseconds running a cone op by op is expected to take."""
    return pace.expected_ns(_op_compiles_ns(cone), run_ns(cone))


def _op_compiles_ns(cone: list[Node]) -> int:
    unknown = len({node.spec for node in cone if node.spec.executable is None})
    return unknown * _COMPILE_OP_NS


def _slice_compile_ns(cone: list[Node]) -> int:
    return _COMPILE_SLICE_NS + len(cone) * _COMPILE_SLICE_NODE_NS


def _run_slice(
    values: tuple[Value, ...], cone: list[Node], plan: Plan | None
) -> list[Any]:
    if plan is None:
        graph = canonicalise(values)
        executable = compiler.compile_graph(graph, {}, fast=True, purpose="peek")
        make_room("slices", _slices, "max_slices")
        plan = _slices[_key(values)] = plan_of(graph, executable, values)
    plan.make_sure_it_fits()
    with memory.explained(memory.what_runs(len(cone))), jax_compat.scope():
        args = pack_arguments(plan)
        started = time.perf_counter_ns()
        results = plan.launch(args)
    token = results.pop()
    _tell_execution(plan.graph.fingerprint, len(cone), len(args), token, started)
    found = [*plan.arrange(results)]
    for value, data in zip(values, found, strict=True):
        remember(value, data)
    return found


def _run_op_by_op(wanted: tuple[Value, ...], cone: list[Node]) -> list[Any]:
    values = dict(pending.memo)
    last_use = last_uses(cone, wanted)
    token: Any = None
    started = time.perf_counter_ns()
    tally = Tally(len(cone), "peek")
    with jax_compat.scope():
        for number, node in enumerate(cone):
            tally.note(number)
            token = run_node(node, values).token
            for operand in last_use.get(number, ()):
                if not remember(operand, values[operand]):
                    del values[operand]
    found = [values[value] for value in wanted]
    for value, data in zip(wanted, found, strict=True):
        remember(value, data)
    _tell_execution("op by op", len(cone), len(cone), token, started)
    return found


def remember(value: Value, data: Any) -> bool:
    """Keep a computed value for later peeks, within the stated budget."""
    if value in pending.memo:
        return True
    if pending.memo_bytes + data.nbytes > config.peek_memo_bytes:
        return False
    pending.memo[value] = data
    pending.memo_bytes += data.nbytes
    return True


def _tell_execution(
    fingerprint: str, nodes: int, inputs: int, token: Any, started: int
) -> None:
    events.emit(
        events.ExecuteStarted(
            fingerprint=fingerprint,
            purpose="peek",
            step=pending.number,
            nodes=nodes,
            inputs=inputs,
            outputs=1,
            donated=0,
            time_ns=started,
            dispatch_ns=time.perf_counter_ns() - started,
        )
    )
    watcher.watch(
        token, fingerprint=fingerprint, purpose="peek", step=pending.number,
        started_ns=started,
    )  # fmt: skip


def tell(
    value: Value,
    strategy: Strategy,
    nodes: int,
    reused: int,
    start: int,
    site: Site | None,
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
