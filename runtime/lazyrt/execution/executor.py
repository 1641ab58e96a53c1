"""The barrier: everything pending runs as one executable.

Transactional: until results are there nothing changes, so a failure or an interrupt leaves
every tensor as it was, pending and usable. Only buffers that something still references are
computed. The look-up costs O(outputs): the values under the live buffers are interned, so the
tuple of them is the graph. Only when it is new are nodes walked, put into canonical order and
looked up by fingerprint.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import operator
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from lazyrt import jax_compat
from lazyrt.config import config, make_room
from lazyrt.errors import LoweringError, OutOfMemoryError, UsageError
from lazyrt.execution import (
    cache,
    cache_miss,
    compiler,
    completion,
    copy_on_donate,
    cost_model,
    deferred_asserts,
    kept_steps,
    memory,
    op_by_op,
    process,
    replicas,
    transfer,
)
from lazyrt.execution.graph import Graph
from lazyrt.execution.graph_registry import CompiledGraph, Run, graph_registry
from lazyrt.execution.process import deferred_interrupt
from lazyrt.ir import active, sharding
from lazyrt.ir.fingerprint import Canonical, canonicalise, merge_equal
from lazyrt.ir.live import (
    Buffer,
    Inputs,
    RanAlone,
    StepInputs,
    Type,
    drop_stand_ins,
    forget_places,
    lock,
    pending,
    ran_alone,
)
from lazyrt.ir.node import Leaf, Node, Value
from lazyrt.lowering import partitioning, registry
from lazyrt.observe import events
from lazyrt.observe.events import BarrierStarted, Closing, OpCounts, SourceLocation

if TYPE_CHECKING:
    from lazyrt.ir.active import ActiveStep
    from lazyrt.ir.sharding import Sharding


# ----------------------------------------------- functions that run before each barrier


_log = logging.getLogger(__name__)
_hooks: tuple[BarrierHook, ...] = ()
_running = False


class BarrierHook(Closing):
    """A function's registration; close it, or use it in `with`."""

    def __init__(self, function: Callable[[BarrierStarted], object]) -> None:
        self.function = function

    def close(self) -> None:
        """Call the function no more; closing twice is harmless."""
        global _hooks
        _hooks = tuple(hook for hook in _hooks if hook is not self)


def on_barrier(function: Callable[[BarrierStarted], object]) -> BarrierHook:
    """Call a function before each barrier, while everything is still pending.

    The function may look at anything: `pending_graph()`, `live_tensors()` and a print change
    nothing. A read in it (`.item()`) is a barrier of its own, before the one that called. A
    function that raises is logged, and the barrier goes on.

    Args:
        function: Takes a `BarrierStarted`.

    Raises:
        UsageError: `function` cannot be called.
    """
    global _hooks
    if not callable(function):
        raise UsageError(
            f"on_barrier() got {function!r:.60}, which cannot be called, so nothing would run "
            "before a barrier. Pass a function that takes a BarrierStarted."
        )
    hook = BarrierHook(function)
    _hooks = (*_hooks, hook)
    return hook


def hooks_are_running() -> bool:
    """Return whether a barrier is calling the registered functions."""
    return _running


def run_hooks(cause: str, site: SourceLocation | None) -> None:
    """Call the registered functions, unless one of them asked for this very barrier."""
    global _running
    if not _hooks or _running:
        return
    event = BarrierStarted(
        step=pending.number, cause=cause, site=site, time_ns=time.perf_counter_ns()
    )
    _running = True
    try:
        for hook in _hooks:
            try:
                hook.function(event)
            except Exception:  # noqa: BLE001 - the barrier goes on
                _log.exception("a function given to on_barrier() failed")
    finally:
        _running = False


# References to an input's data that are the runtime's own: the list of inputs, the buffer, a
# local variable and getrefcount's argument.
_OWN_REFERENCES = 4


Picker = Callable[[Inputs], Sequence[Any]]
_Packer = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run one graph: the executable, and where its arguments and results belong.

    Attributes:
        launch: Runs the executable on its arguments.
        take: Picks the arguments that are data from `PendingStep.inputs`.
        floats, ints, rng: Likewise for packed numbers; None when there are none.
        order: For each wanted value, its position among the results.
        arrange: Puts results into that order.
        donated: How many arguments give up their memory.
        record: What the census knows of the graph; None for a peek's.
        ops: How often each op stands in the graph; empty for a peek's.
        nbytes: How much memory it allocates.
        placements: Where its arguments are, for a program on several devices.
        watched: Which results `config.stop_at_nan` asks of, with their positions: losses, the
            smallest weight, gradients, all of them; empty until it does.
    """

    executable: Any
    launch: jax_compat.Launcher
    graph: Canonical
    take: Picker
    floats: _Packer | None
    ints: _Packer | None
    rng: _Packer | None
    order: tuple[int, ...]
    arrange: Picker
    donated: int
    record: CompiledGraph | None = None
    ops: OpCounts = ()
    nbytes: int = 0
    placements: Sequence[Any] | None = None
    watched: list[dict[Value, int]] = field(default_factory=list)

    def nodes(self) -> Sequence[Node]:
        """Return the graph's nodes with the lines of the call site that runs it now."""
        return Graph(self.graph.roots).nodes

    def make_sure_it_fits(self, more: int = 0) -> None:
        """Raise OutOfMemoryError if the device has no room for it, and some more bytes."""
        what = memory.what_runs(len(self.graph.nodes))
        memory.make_sure(self.nbytes + more, what, self.nodes)


_plans: dict[Any, Plan] = {}
# Fast executables, each with the optimised one that a background thread has made since.
_tiered_up: list[tuple[Any, Any]] = []


def barrier(
    cause: str,
    site: SourceLocation | None = None,
    tensor: str = "",
    caller: SourceLocation | None = None,
    ended: ActiveStep | None = None,
) -> bool:
    """Run everything that is pending; return whether there was anything to run.

    Args:
        cause: Why, for events: `mark_step()`, `end of step`, `read by .item()`, ...
        site: Where in the user's code.
        tensor: What was read, as the user's source names it.
        caller: The library's line that called the user's, for a callback.
        ended: The step that this barrier ends.
    """
    process.check_not_forked()
    deferred_asserts.raise_failed()
    with lock:
        if events.op_listeners:
            events.end_pause(time.perf_counter_ns())
        run_hooks(cause, site)
        replicas.note_boundary(cause, site)
        start = time.perf_counter_ns()
        number, step = pending.number, active.innermost()
        boundary, ends = (cause, site), ended or step
        try:
            ran = _run_pending(start, boundary, ends)
        except LoweringError:
            # Without an op to take out, the one that failed may have died since, in a cycle.
            op_by_op.repair(pending_roots())
            ran = _run_pending(start, boundary, ends)
        deferred_asserts.note_barrier()
        cache_miss.note_barrier(cause, site)
        executed = ran.roots > 0
        pending.activity += executed
        events.emit(
            events.BarrierFinished(
                step=number,
                cause=cause,
                site=site,
                nodes=ran.nodes,
                roots=ran.roots,
                executed=executed,
                duration_ns=time.perf_counter_ns() - start,
                eager=pending.eager,
                tensor=tensor,
                cut=(step.name or "") if step is not None and executed else None,
                caller=caller,
                repeats=ran.repeats,
            )
        )
        if events.op_listeners:
            events.op_clock[0] = time.perf_counter_ns()
    if executed:
        deferred_asserts.raise_failed(through=number - 1, only_watched=True)
    return executed


class _Ran(NamedTuple):
    """How much a barrier ran, and what of it peeks had computed already."""

    roots: int = 0
    nodes: int = 0
    repeats: tuple[events.Repeat, ...] = ()


def _run_pending(
    start: int, boundary: cache_miss.Boundary, step: ActiveStep | None
) -> _Ran:
    """Run everything that is pending, and end the step."""
    live, wanted, kept = _collect()
    if not wanted:
        _commit(live, wanted, (), None)
        return _Ran()
    try:
        if config.op_by_op_barriers:
            return _Ran(len(wanted), _run_each(live, wanted))
        donated = _donated(kept)
        plan = _plan(wanted, donated, start, boundary)
        repeats = _repeats(plan)
        _run_whole(plan, donated, live, wanted, step)
        return _Ran(len(wanted), len(plan.graph.nodes), repeats)
    except BaseException:
        live.clear()  # a traceback keeps this frame; what died must be no root
        raise


def _run_each(live: list[Buffer], wanted: dict[Value, int]) -> int:
    """Run what is wanted node by node, and end the step; return how many nodes that were."""

    def refused(node: Node) -> None:
        op_by_op.drop(node, list(wanted), f"{node.op.name} was refused")

    values, nodes = op_by_op.compute(wanted, refused)
    with deferred_interrupt():
        results = [values[value] for value in wanted]
        _commit(live, wanted, results, ran_alone(op_by_op.HOW["op by op"], *wanted))
    return nodes


def _run_whole(
    plan: Plan,
    donated: tuple[int, ...],
    live: list[Buffer],
    wanted: dict[Value, int],
    step: ActiveStep | None,
) -> None:
    """Run a plan, and end the step."""
    again = functools.partial(run_plan, plan, "peek")
    kept = kept_steps.keep(plan.graph, plan.record, plan.order, donated, again)
    try:
        _make_sure_it_fits(plan, donated)
        with deferred_interrupt():
            copy_on_donate.separate(donated, at_once=kept_steps.are_whole())
            if plan.placements is not None:
                _spread(plan)
            results = run_plan(plan)
            _commit(live, wanted, results, _note_run(plan, step))
    except BaseException:
        if kept is not None:
            kept_steps.drop(kept)
        raise
    if watch_results is not None:
        watch_results(plan, results, live, kept)


def _spread(plan: Plan) -> None:
    """Let inputs that a program needs whole on all devices stay there, for the steps to come.

    Small ones are as quick to send again, and what is known of their contents goes by the array.
    """
    assert plan.placements is not None
    made: dict[int, Any] = {}
    inputs = pending.inputs
    for leaf, where in zip(plan.graph.data, plan.placements, strict=False):
        data = inputs[leaf.position]
        if leaf.sharding is None and transfer.sent(data) is None:
            found = made.get(id(data))
            if found is None:
                (found,) = sharding.laid_out([data], [where])
                made[id(data)] = found
            inputs[leaf.position] = found
            owner = pending.owners[leaf.position]()
            if owner is not None and owner.data is data:
                owner.data = found


ResultWatch = Callable[
    [Plan, Sequence[Any], Sequence[Buffer], kept_steps.KeptStep | None], object
]
# Gets each step's plan, results, buffers and kept inputs; the step has been dispatched, and may still run.
watch_results: ResultWatch | None = None


def _make_sure_it_fits(plan: Plan, donated: tuple[int, ...]) -> None:
    """Raise OutOfMemoryError if there is no room; what is kept of other steps gives way."""
    try:
        plan.make_sure_it_fits(copy_on_donate.to_copy(donated))
    except OutOfMemoryError:
        if not kept_steps.release_all():
            raise
        plan.make_sure_it_fits(copy_on_donate.to_copy(donated))


def _repeats(plan: Plan) -> tuple[events.Repeat, ...]:
    """Return what of a plan the peeks since the last barrier have computed already."""
    if not pending.peeks:
        return ()
    peeked = {node.id: number for node, number in pending.peeked.items()}
    found = (peeked.get(node.id) for node in plan.graph.nodes)
    counts = Counter(number for number in found if number is not None)
    return tuple(
        events.Repeat(
            tensor=tensor, site=site, nodes=counts[number], duration_ns=duration
        )
        for number, (tensor, site, duration) in enumerate(pending.peeks)
        if counts[number]
    )


def pending_roots() -> list[Value]:
    """Return the values that a barrier would compute now, in order of their creation."""
    with lock:
        return list(_collect()[1])


def donated_inputs() -> frozenset[int]:
    """Return the positions of the inputs whose memory a barrier would hand on now."""
    with lock:
        return frozenset(_donated(_collect()[2]))


def clear_plans() -> None:
    """Forget which executable belongs to which values: the next step is found by fingerprint."""
    _plans.clear()


registry.on_change.append(clear_plans)


def _collect() -> tuple[list[Buffer], dict[Value, int], set[int]]:
    """Return the live buffers, their pending values numbered, and the inputs that become data.

    A buffer whose value is another one's input takes that data as its own.
    """
    if not (pending.buffers or pending.parked):
        return [], {}, set()
    live = [buffer for buffer in pending.live() if buffer.value is not None]
    merge_equal(live)
    values: list[Any] = [buffer.value for buffer in live]
    roots = dict.fromkeys([value for value in values if value.node is not None])
    wanted = dict(zip(roots, itertools.count()))
    kept = {value.position for value in values if value.node is None}
    return live, wanted, kept


def _donated(kept: set[int]) -> tuple[int, ...]:
    """Return the inputs whose memory the results may take.

    Those are the inputs whose buffer this step overwrites, when nobody else holds the data but
    buffers that share it, which then get a copy, and reads that copy it at present.
    """
    # Before references are counted: a read may end meanwhile.
    read = copy_on_donate.being_read()
    count = sys.getrefcount
    inputs = pending.inputs
    found = []
    for position, owner in pending.owners.items():
        buffer = owner()
        if buffer is None:
            continue
        if buffer.value is None or buffer.value.node is None or position in kept:
            continue
        data = inputs[position]
        if buffer.data is not data:
            continue
        others = count(data) - _OWN_REFERENCES
        if (
            others <= 0
            or others <= copy_on_donate.references(position)
            or (id(data) in read and copy_on_donate.is_only_read(position))
        ):
            found.append(position)
    return tuple(found)


def _plan(
    wanted: dict[Value, int],
    donated: tuple[int, ...],
    start: int,
    boundary: cache_miss.Boundary,
) -> Plan:
    if _tiered_up:
        _take_optimised_builds()
    key = (tuple(wanted), donated, config.compile_tier, config.share_layers)
    plan = _plans.get(key)
    if plan is not None:
        graph = plan.graph
        _tell_captured(graph, len(wanted), start, plan.ops, hit=True)
        events.emit(events.CacheHit(fingerprint=graph.fingerprint, step=pending.number))
        return plan
    make_room("plans", _plans, "max_plans")
    plan = _plans[key] = _make_plan(wanted, donated, start, boundary)
    return plan


def _tell_captured(
    graph: Canonical, roots: int, start: int, ops: OpCounts, *, hit: bool
) -> None:
    events.emit(
        events.GraphCaptured(
            step=pending.number,
            fingerprint=graph.fingerprint,
            nodes=len(graph.nodes),
            parameters=len(graph.data),
            roots=roots,
            cache_hit=hit,
            duration_ns=time.perf_counter_ns() - start,
            ops=ops,
        )
    )


def _make_plan(
    wanted: dict[Value, int],
    donated: tuple[int, ...],
    start: int,
    boundary: cache_miss.Boundary,
) -> Plan:
    graph = canonicalise(wanted)
    donated_args = _takers(graph, frozenset(donated))
    fast = config.compile_tier == "fast"
    key = compiler.graph_key(graph, donated_args, fast=fast)
    placements = partitioning.placements_of(graph, _kept_shardings())
    known = compiler.lookup(key)
    first = key  # of the build that runs first
    in_two_tiers = False
    if known is None and config.compile_tier == "tiered":
        fast_key = compiler.graph_key(graph, donated_args, fast=True)
        in_two_tiers = compiler.saves_time_in_two_tiers(graph, key, fast_key)
        if in_two_tiers:  # the optimised build may be under way
            first, known = fast_key, compiler.lookup(fast_key)
    counts = Counter(events.base_name(node.op.name) for node in graph.nodes)
    ops = tuple(sorted(counts.items()))
    _tell_captured(graph, len(wanted), start, ops, hit=known is not None)
    record = graph_registry.find(key)
    if known is not None:
        if config.check_hits and record is not None:
            cache_miss.check_hit(graph, record)
        executable = known
        events.emit(events.CacheHit(fingerprint=graph.fingerprint, step=pending.number))
        if record is None:  # an interrupted wait left its compile to go on alone
            record = cache_miss.describe(
                graph, list(donated_args), None, boundary, fast=fast
            )
            graph_registry.admit(key, record)
    else:
        with compiler.reading_ahead(first):
            record = cache_miss.describe(
                graph, list(donated_args), record, boundary, fast=fast
            )
            cache_miss.check_frozen(len(graph.nodes), record.cause)
            parts = cost_model.step_compile(graph.nodes, fast=fast or in_two_tiers)
            cost_model.begin_compile(graph.fingerprint, parts)
            spent_ns = record.compile_ns
            with graph_registry.compiling(key, record):
                executable = compiler.compile_graph(
                    graph,
                    donated_args,
                    fast=fast or in_two_tiers,
                    purpose="step",
                    reason=record.cause,
                    names=record.input_names,
                    placements=placements,
                )
            cost_model.learn(parts, record.compile_ns - spent_ns)
    cache.store_answers()
    if in_two_tiers:
        compiler.tier_up(
            graph,
            donated_args,
            record.input_names,
            lambda made: _tiered_up.append((executable, made)),
        )
    return plan_of(
        graph,
        executable,
        wanted,
        donated=len(donated_args),
        record=record,
        ops=ops,
        placements=placements[0] if placements is not None else None,
    )


def _take_optimised_builds() -> None:
    """Let plans run the builds that were made in the background; inside `frozen()`, later."""
    if cache_miss.is_frozen():
        return
    while _tiered_up:
        fast, made = _tiered_up.pop()
        found: Plan | None = None
        for key, plan in _plans.items():
            if plan.executable is fast:
                found = _plans[key] = dataclasses.replace(
                    plan,
                    executable=made,
                    launch=jax_compat.launcher(made),
                    nbytes=memory.planned(made),
                )
        if found is not None:
            events.emit(
                events.BuildSwapped(
                    fingerprint=found.graph.fingerprint,
                    nodes=len(found.graph.nodes),
                    step=pending.number,
                )
            )


def _kept_shardings() -> dict[Value, Sharding | None]:
    """Return the shardings of the tensors that the pending step overwrites, by the new values."""
    if not sharding.in_use:
        return {}
    return {
        buffer.value: sharding.sharding_of(buffer.meta)
        for buffer in pending.live()
        if buffer.meta is not None and buffer.value is not None
    }


def _takers(graph: Canonical, donated: frozenset[int]) -> dict[int, int | None]:
    """Return which of a graph's arguments are donated, and the root that overwrites each."""
    rank: dict[Value | None, int] = {root: k for k, root in enumerate(graph.roots)}
    takers: dict[int, int | None] = {}
    for argument, leaf in enumerate(graph.data):
        if leaf.position in donated:
            owner = pending.owners[leaf.position]()
            takers[argument] = None if owner is None else rank.get(owner.value)
    return takers


def plan_of(
    graph: Canonical,
    executable: Any,
    wanted: Iterable[Value],
    *,
    donated: int = 0,
    record: CompiledGraph | None = None,
    ops: OpCounts = (),
    placements: Sequence[Any] | None = None,
) -> Plan:
    """Return how to run a graph's executable for the values `wanted`, roots of the graph."""
    rank = {root: k for k, root in enumerate(graph.roots)}
    order = tuple(rank[value] for value in wanted)
    return Plan(
        executable=executable,
        launch=jax_compat.launcher(executable),
        graph=graph,
        take=picker([leaf.position for leaf in graph.data]),
        floats=_packer(graph.floats, np.float64),
        ints=_packer(graph.ints, np.int64),
        rng=_packer(graph.rng, np.uint64),
        order=order,
        arrange=picker(order),
        donated=donated,
        record=record,
        ops=ops,
        nbytes=memory.planned(executable),
        placements=placements,
    )


def picker(positions: Iterable[int]) -> Picker:
    """Return a function that picks the items at some positions, without Python code for each."""
    wanted = list(positions)
    if len(wanted) > 1:
        return operator.itemgetter(*wanted)
    return lambda items: [items[position] for position in wanted]


def _packer(leaves: tuple[Leaf, ...], dtype: Any) -> _Packer | None:
    """Return a function that puts some of the pending numbers into one device array."""
    if not leaves:
        return None
    positions = np.array([leaf.position for leaf in leaves])
    give = jax_compat.giver(len(leaves), *leaves[0].shape, dtype=dtype)
    are_all = np.array_equal(positions, np.arange(len(leaves)))

    def pack(numbers: Sequence[Any]) -> Any:
        packed = np.array(numbers, dtype)
        is_whole = are_all and len(numbers) == len(leaves)
        return give(packed if is_whole else packed[positions])

    return pack


def pack_arguments(plan: Plan, step: StepInputs = pending) -> list[Any]:
    """Return the executable's arguments from a step's inputs; within `scope()`."""
    args = [*plan.take(step.inputs)]
    if plan.floats is not None:
        args.append(plan.floats(step.floats))
    if plan.ints is not None:
        args.append(plan.ints(step.ints))
    if plan.rng is not None:
        args.append(plan.rng(step.rng))
    if sharding.in_use:
        args = sharding.laid_out(args, plan.placements)
    return args


def run_plan(
    plan: Plan,
    purpose: Literal["step", "peek"] = "step",
    step: StepInputs = pending,
) -> Sequence[Any]:
    """Hand a plan to the device; return the data of the wanted values, in their order."""
    graph = plan.graph
    args: list[Any] = []
    what = memory.what_runs(len(graph.nodes))
    with memory.explained(what, args), jax_compat.scope():
        args += pack_arguments(plan, step)
        if step is not pending and plan.record is not None:
            for taken in plan.record.key.donated:
                args[taken] = jax_compat.copy(args[taken])
        started = time.perf_counter_ns()
        results = plan.launch(args)
    token = results.pop()
    events.emit(
        events.ExecuteStarted(
            fingerprint=graph.fingerprint,
            purpose=purpose,
            step=pending.number,
            nodes=len(graph.nodes),
            inputs=len(args),
            outputs=len(results),
            donated=plan.donated,
            time_ns=started,
            dispatch_ns=time.perf_counter_ns() - started,
            programs=getattr(plan.executable, "launch_count", 1),
        )
    )
    completion.watch(
        token, fingerprint=graph.fingerprint, purpose=purpose, step=pending.number, started_ns=started,
    )  # fmt: skip
    return plan.arrange(results)


def _note_run(plan: Plan, step: ActiveStep | None) -> Run | None:
    """Count an execution of a plan; return what its results will remember of it."""
    record = plan.record
    if record is None:
        return None
    graph_registry.ran(record, pending.number)
    block = step.label if step is not None else None
    return Run(pending.number, record, plan.order, block)


def _commit(
    live: list[Buffer],
    wanted: dict[Value, int],
    results: Sequence[Any],
    run: Run | RanAlone | None,
) -> None:
    """Give every live buffer its data, and end the step."""
    inputs = pending.inputs
    for buffer in live:
        value: Value = buffer.value  # type: ignore[assignment]
        if value.node is not None:
            slot = wanted[value]
            data = results[slot]
            if buffer.meta is None:
                buffer.store(data, _type(buffer, value))
            else:  # what `store` does, for the parameters and states of every step
                buffer.version += 1
                buffer.data = data
                buffer.value = None
            buffer.run = run
            buffer.slot = slot
        elif isinstance(value, Leaf):
            if buffer.data is inputs[value.position]:  # a copy of what it held already
                buffer.value = None
                buffer.version += 1
                continue
            buffer.store(inputs[value.position], _type(buffer, value))
            buffer.run, buffer.slot = pending.sources[value.position]
    if sharding.in_use:  # what a step has overwritten keeps its sharding
        for buffer in live:
            kept = sharding.sharding_of(buffer.meta)
            buffer.data = sharding.arranged(buffer.data, kept)
    drop_stand_ins(
        "only a traceback held this tensor when its step was executed, so its value was not "
        "computed. Read it before the next barrier, or keep it in a variable."
    )
    for owner in pending.owners.values():
        owned = owner()
        if owned is not None and owned.value is not None:
            owned.value = None
            owned.version += 1
    pending.clear()
    pending.number += 1
    _forget_if_crowded()


def _type(buffer: Buffer, value: Value) -> Type:
    return buffer.meta or (value.shape, value.dtype, value.strides)


# What empties crowded tables of nodes, with nothing pending, and returns whether it did.
on_crowded: list[Callable[[], bool]] = []


def _forget_if_crowded() -> None:
    for forget in on_crowded:
        if forget():
            clear_plans()
            forget_places()
