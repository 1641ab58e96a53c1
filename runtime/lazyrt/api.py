"""The functions of the public surface; `lazyrt` re-exports them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from lazyrt.control import (
    dynamo,
    finite_check,
    flight_recorder,
    marks,
    modes,
    process_group,
)
from lazyrt.control import live_tensors as live
from lazyrt.control import mesh as _mesh
from lazyrt.control import step as _step
from lazyrt.control.closures import waiting_arguments
from lazyrt.errors import LostValueError, UsageError, whole_number
from lazyrt.execution import (
    cache,
    cache_miss,
    compiler,
    completion,
    deferred_asserts,
    executables,
    executor,
    op_by_op,
    process,
)
from lazyrt.execution.executables import FORMS, CachedExecutable, DumpForm, dump
from lazyrt.execution.executor import clear_plans, pending_roots
from lazyrt.execution.graph import Graph
from lazyrt.execution.graph_registry import CompiledGraph, graph_registry
from lazyrt.execution.input_provenance import (
    InputOrigin,
    InputOrigins,
    made_by,
    pending_origins,
)
from lazyrt.execution.inspection import Inspection, inspect_finished, results_of
from lazyrt.execution.peek import NodeValues, forget_slices
from lazyrt.execution.peek import node_values as run_nodes
from lazyrt.frontend import device as _device
from lazyrt.frontend import names, reads, record, reuse
from lazyrt.frontend.buffers import state_of
from lazyrt.frontend.callsite import user_call
from lazyrt.frontend.names import (
    all_names,
    names_of_buffers,
    saved_for_backward,
)
from lazyrt.frontend.provenance import running_cell, user_site
from lazyrt.frontend.torch_compat import DEVICE_TYPE, is_lazy
from lazyrt.ir.live import lock, pending
from lazyrt.observe import events
from lazyrt.observe.metrics import COUNTED, Counters, metrics
from lazyrt.observe.report import PERCENTILES, Report

if TYPE_CHECKING:
    from pathlib import Path

    from lazygraph.explain.model import Explanation
    from lazyrt.execution.preview import Look
    from lazyrt.frontend.reuse import ReuseChoice
    from lazyrt.ir.node import Node

events.subscribe(metrics, *COUNTED, exact=False)
_mesh.use_device_count()
_device.register()
_step.install()
modes.install()
dynamo.install()
process_group.register()
finite_check.install()
process.adapt_collector()
cache_miss.hooks.names = lambda: (
    {key: [name] for key, name in saved_for_backward().items()} | all_names()
)
names.elsewhere = waiting_arguments
cache_miss.hooks.cell = running_cell
flight_recorder.begin_from_environment()

mark_step = marks.mark_step
sync = marks.mark_step
wait = deferred_asserts.wait
in_flight = completion.in_flight
live_tensors = live.live_tensors
live_tensors_report = live.live_tensors_report
activity = record.activity
snapshot = reads.snapshot
on_barrier = executor.on_barrier
record_steps = flight_recorder.record_steps
stand_in = reads.stand_in
mode = modes.mode
eager_mode = modes.eager_mode
eager_module = modes.eager_module
enable_eager_execution = modes.enable_eager_execution
op_by_op_mode = modes.op_by_op_mode
background_flush = modes.background_flush


def device(index: int = 0) -> torch.device:
    """Return the lazy torch device.

    Args:
        index: 0, the only one so far.

    Raises:
        UsageError: Another index.
    """
    if index != 0:
        raise UsageError(
            f"device() got index={index!r}; there is one lazy device, and its index is 0. Leave "
            "the index out."
        )
    return torch.device(DEVICE_TYPE, 0)


@overload
def materialise(tensor: torch.Tensor, *, reuse: bool = False) -> torch.Tensor: ...
@overload
def materialise(
    tensor: torch.Tensor,
    another: torch.Tensor,
    /,
    *more: torch.Tensor,
    reuse: bool = False,
) -> tuple[torch.Tensor, ...]: ...
def materialise(
    tensor: torch.Tensor, *more: torch.Tensor, reuse: bool = False
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Return a lazy tensor's value as a new CPU tensor of its shape and dtype, by a peek.

    Computes the tensor's cone only. The pending graph, its fingerprint, the random numbers and
    the number of step compiles stay what they would have been without the call. Several tensors
    are computed by one execution, where one call for each would be as many.

    Example:
        >>> import lazyrt, torch
        >>> x = torch.arange(3.0).to("lazyrt")
        >>> low, high = lazyrt.materialise(x.min(), x.max())
        >>> float(low), float(high)
        (0.0, 2.0)

    Args:
        tensor: A lazy tensor.
        more: Others.
        reuse: Run what each needs as a part of the step instead: it does not run again, and
            the rest of the step becomes another graph. `reuse_choice` tells what either costs.

    Raises:
        UsageError: One of them is not on the lazy device.
        LostValueError: A value can no longer be computed.
    """
    for each in (tensor, *more):
        reads.require_lazy(each, "materialise()")
    for each in (tensor, *more) if reuse else ():
        reads.run_ahead(each, user_site(2))
    if not more:
        return reads.peek(tensor, user_site(2))
    return tuple(reads.peek_all((tensor, *more), user_site(2)))


def look(tensor: torch.Tensor, axes: Sequence[int] = ()) -> Look:
    """Return statistics of a lazy tensor and a copy of it, of a large one in part, by a peek.

    What is not shown stays on the device; see `materialise` for what stays as it was.

    Args:
        tensor: A lazy tensor.
        axes: Axes of a picture, rows and columns last; none for no picture.

    Raises:
        UsageError: It is not on the lazy device, or the axes are not two or more of its own.
        LostValueError: Its value can no longer be computed.
    """
    reads.require_lazy(tensor, "look()")
    return reads.look(tensor, axes, user_site(2))


def reuse_choice(tensor: torch.Tensor) -> ReuseChoice:
    """Return what looking at a pending tensor costs, by a peek and with `reuse=True`.

    Computes nothing and changes nothing.

    Raises:
        UsageError: `tensor` is not on the lazy device, or is computed already.
    """
    reads.require_lazy(tensor, "reuse_choice()")
    with lock:
        value = reuse.value_in_step(state_of(tensor))
        if value is None or value.node is None:
            raise UsageError(
                "reuse_choice() got a tensor that is computed already, so looking at it runs "
                "nothing. Call it before the barrier, on a pending tensor."
            )
        return reuse.choice(value, user_call().tensor)


def is_pending(tensor: torch.Tensor) -> bool:
    """Return whether a lazy tensor has yet to be computed; False for other devices' tensors.

    Raises:
        UsageError: It is no tensor.
    """
    given: object = tensor
    if not isinstance(given, torch.Tensor):
        reads.require_lazy(tensor, "is_pending()")
    if not is_lazy(tensor):
        return False
    with lock:
        return state_of(tensor).is_pending


def pending_graph(*tensors: torch.Tensor) -> Graph:
    """Return the graph of the pending ops that `tensors` need, or all live tensors.

    Looking changes nothing: no input is numbered, no root is added, nothing is kept alive.

    Args:
        tensors: Lazy tensors; ready ones contribute nothing. None given means all live ones.

    Raises:
        UsageError: One of them is not on the lazy device.
    """
    return _pending_graph(tensors, "pending_graph()")


def _pending_graph(tensors: tuple[torch.Tensor, ...], asked: str) -> Graph:
    for tensor in tensors:
        reads.require_lazy(tensor, asked)
    with lock:
        if not tensors:
            return Graph(pending_roots())
        states = [state_of(tensor) for tensor in tensors]
        values = [state.value for state in states if state.is_pending]
        return Graph(
            value for value in values if value is not None and value.node is not None
        )


def node_values(*tensors: torch.Tensor, mode: Literal["eager", "lazy"]) -> NodeValues:
    """Return the value of every node that pending tensors need; their step stays as it is.

    Args:
        tensors: Lazy tensors; none given means all live ones.
        mode: `eager` runs each op alone, `lazy` one optimised executable.

    Raises:
        UsageError: Nothing is pending for them, or there is no such mode.
    """
    return run_nodes(_pending_graph(tensors, "node_values()"), mode)


def times_run(graph: Graph) -> dict[Node, int]:
    """Return how often op-by-op mode has run each node of a graph since the last barrier.

    Raises:
        UsageError: `graph` is no graph.
    """
    given: object = graph
    if not isinstance(given, Graph):
        raise UsageError(
            f"times_run() got {given!r:.60}, which is {type(given).__name__}, not a graph, so it "
            "has no nodes. Pass what `lazyrt.pending_graph()` gives."
        )
    with lock:
        return {node: pending.runs.get(node, 0) for node in graph.nodes}


def inspect(*tensors: torch.Tensor | Graph | int) -> Inspection:
    """Return the graph of `pending_graph(*tensors)` with a way to look into its nodes.

    Nothing is computed until a node is asked for; then only that node's cone runs, as a peek.
    Inputs and outputs carry what the user calls them.

    Args:
        tensors: Lazy tensors, none for all live ones; or one graph, taken earlier in this step.
            Tensors of which none is pending show what the latest step that made one ran for them;
            a number shows the step of that number. Of a finished step nodes can be computed if
            its inputs are kept (`config.keep_values`).

    Raises:
        UsageError: One of them is not on the lazy device, or no step of that number ran.
        LostValueError: The step of the graph has run, and its nodes stand for other data now.
    """
    with lock:
        if len(tensors) == 1 and not isinstance(tensors[0], (torch.Tensor, Graph)):
            number = whole_number(tensors[0], "inspect()", "a step")
            step = inspect_finished(number)
            if step is None:
                raise UsageError(
                    f"inspect({number}): the graph of step {number} is not kept, or it ran "
                    "none. `lazyrt.compiled_graphs()` lists the steps whose graphs are known."
                )
            return step
        if len(tensors) == 1 and isinstance(tensors[0], Graph):
            graph = tensors[0]
            if not set(pending_graph().nodes).issuperset(graph.nodes):
                raise LostValueError(
                    f"{graph!r} is no longer pending: the step that it was part of has run, so "
                    "its values cannot be computed. Take `lazyrt.pending_graph()` before the "
                    "barrier."
                )
        else:
            graph = _pending_graph(tensors, "inspect()")  # type: ignore[arg-type]
            if tensors and not graph.nodes:
                made = results_of(state_of(tensor).base for tensor in tensors)  # type: ignore[arg-type]
                finished = inspect_finished(*made) if made is not None else None
                if finished is not None:
                    return finished
        return Inspection(graph, saved_for_backward(2) | names_of_buffers(2))


def plan(tensor: torch.Tensor) -> str:
    """Return one line that says what a lazy tensor is, and computes nothing; O(1)."""
    reads.require_lazy(tensor, "plan()")
    return reads.describe(tensor)


def counters() -> Counters:
    """Return the counts since the last reset."""
    return metrics.counters()


def reset_counters() -> None:
    """Start all counts and timings again from zero; caches stay."""
    metrics.reset()


def begin_cell() -> None:
    """Let ops recorded from now on show the lines that record them.

    Equal ops of steps that begin at one place are one node, which keeps the line that recorded it
    first. An interactive shell calls this before each cell, so that a cell never shows the line of
    another one. Each op then looks for its line once; fingerprints and executables stay, those of
    a step of several cells too, whose equal ops are one again before it runs.
    """
    record.begin_run()
    op_by_op.begin_step(pending_roots)


def clear_caches(*, memory: bool = True, disk: bool = False) -> None:
    """Forget executables: the next step compiles again, or reads from disk.

    Args:
        memory: Those that this process holds.
        disk: Those in `config.cache_dir`, for every process of this user.
    """
    with lock:
        if memory:
            compiler.drop_oldest(kept=0)
            clear_plans()
            forget_slices()
        if disk:
            cache.clear()
            cache.forget_answers()


def cached_executables(limit: int | None = None) -> tuple[CachedExecutable, ...]:
    """Return the executables in memory and in `config.cache_dir`, the latest used first.

    Reads the folder's index; nothing is loaded, and no file counts as used by it.

    Args:
        limit: How many at most; None for all.

    Raises:
        UsageError: The limit is no count.
    """
    if limit is not None and (type(limit) is not int or limit < 0):
        raise UsageError(
            f"cached_executables() got limit={limit!r}, which is no number of executables. Give "
            "a whole number, or None for all of them."
        )
    with lock:
        return executables.list_executables(limit)


def drop_executables(
    key: str | None = None, *, unused_s: float | None = None
) -> tuple[CachedExecutable, ...]:
    """Drop executables from memory and from disk, and return which; without arguments, all.

    What is pending stays as it is. An executable that is needed again is compiled again. Of
    the disk only this user's own files in `config.cache_dir` are touched.

    Args:
        key: The first digits of one executable's key.
        unused_s: Instead, those neither read nor compiled for so many seconds.

    Raises:
        UsageError: No executable or several have such a key, or both arguments are given.
    """
    if key is not None and unused_s is not None:
        raise UsageError(
            f"drop_executables() got key={key!r} and unused_s={unused_s!r}, which choose in two "
            "ways, so nothing was dropped. Give one of them."
        )
    with lock:
        entries = executables.chosen(key, unused_s)
        if entries:
            executables.drop(entries)
            clear_plans()
            forget_slices()
        return entries


def compiled_graphs() -> tuple[CompiledGraph, ...]:
    """Return a record of each step graph that this process compiled, the earliest first."""
    with lock:
        return tuple(graph_registry)


def graph_of_step(step: int) -> CompiledGraph | None:
    """Return the graph that a step ran; None beyond the last thousand steps.

    Args:
        step: The runtime's number of the step, as events and `%lazy step` give it.

    Raises:
        UsageError: It is no number.
    """
    with lock:
        return graph_registry.of_step(whole_number(step, "graph_of_step()", "a step"))


def explain(step: int | None = None) -> Explanation | None:
    """Return why a step was compiled, or the latest one that was; None if none was.

    Args:
        step: The runtime's number of the step; None for the latest compiled one.

    Raises:
        UsageError: The step ran nothing, or is older than the last thousand.
    """
    with lock:
        if step is None:
            found = [
                record.explanation for record in graph_registry if record.explanation
            ]
            return max(found, key=lambda each: each.step, default=None)
        record = graph_registry.of_step(whole_number(step, "explain()", "a step"))
        if record is None:
            known = graph_registry.steps()
            have = f"they are {known[0]} to {known[-1]}" if known else "none ran yet"
            raise UsageError(
                f"explain({step}): no step of that number ran a graph; of the last thousand "
                f"that did, {have}. Leave the number out for the latest compile."
            )
        return record.explanation


def input_origins(*tensors: torch.Tensor) -> InputOrigins:
    """Return where each input of the pending graph comes from: execution, output and line.

    Args:
        tensors: Lazy tensors whose inputs to tell; none given means all live ones.

    Raises:
        UsageError: One of them is not on the lazy device.
    """
    graph = _pending_graph(tensors, "input_origins()")
    with lock:
        return pending_origins(graph.roots, names_of_buffers())


def origin(tensor: torch.Tensor) -> InputOrigin | None:
    """Return which execution made a tensor's data: step, graph, output, op and line.

    Args:
        tensor: A lazy tensor.

    Returns:
        None while it is pending; `plan()` then says which op will make it, and where.

    Raises:
        UsageError: It is not on the lazy device.
        LostValueError: It has no data, and nothing will make it.
    """
    reads.require_lazy(tensor, "origin()")
    with lock:
        state = state_of(tensor)
        if state.is_pending:
            return None
        base = state.base
        reads.require_data(base)
        name = names_of_buffers().get(id(base))
        return made_by(base, name.text if name is not None else "")


def dump_graphs(folder: str | Path, forms: Iterable[DumpForm] = FORMS) -> list[Path]:
    """Write the compiled graphs to a folder and return the files.

    Each is named by its graph, such as `graph.3.stablehlo.mlir`. Counts as no compile.

    Args:
        folder: Made if it is not there.
        forms: Of `ir`, `stablehlo`, `hlo_before`, `hlo_after` (optimisation) and `dot`.

    Raises:
        UsageError: There is no such form, or no graph in memory.
    """
    with lock:
        return dump(graph_registry, folder, forms)


def fallback(name: str | torch._ops.OpOverload) -> None:
    """Run an op on the CPU from now on, for comparison or to get around its lowering.

    Args:
        name: Qualified name of the functional overload, such as `aten.gelu.default`, or the
            overload itself.

    Raises:
        UsageError: There is no such op.
    """
    record.force_fallback(name)


@overload
def metrics_report(
    form: Literal["text", "json", "html"] = "text",
    *,
    legacy: bool = False,
    percentiles: Iterable[float] = PERCENTILES,
) -> str: ...
@overload
def metrics_report(
    form: Literal["dict"],
    *,
    legacy: bool = False,
    percentiles: Iterable[float] = PERCENTILES,
) -> dict[str, Any]: ...
def metrics_report(
    form: str = "text",
    *,
    legacy: bool = False,
    percentiles: Iterable[float] = PERCENTILES,
) -> str | dict[str, Any]:
    """Return all metrics and counters since the last reset.

    The text has the format of torch_xla's report, with correct durations; see `numbers`.
    `TotalSamples` and `Accumulator` are over everything, the rest over the latest 1,024
    samples. `lazyviz.parse_report` reads it, and old reports, back.

    Args:
        form: `text`, `dict` (plain data with the line and the graph of the largest sample),
            `json` (the same) or `html` (two tables).
        legacy: Whether to round durations as wrongly as the original does; text only.
        percentiles: Shares between 0 and 1.

    Raises:
        UsageError: There is no such form, or a share is not between 0 and 1.
    """
    return _report(percentiles).as_form(form, legacy=legacy)


def short_metrics_report(
    counter_names: Iterable[str] | None = None,
    metric_names: Iterable[str] | None = None,
    *,
    legacy: bool = False,
) -> str:
    """Return a report of a few names, and of every op that ran on the CPU.

    Args:
        counter_names: None for `CachedCompile` and `MarkStep`.
        metric_names: None for the times of compiles, executions and transfers.
        legacy: Whether to round durations as wrongly as torch_xla does.
    """
    return _report(PERCENTILES).short(counter_names, metric_names).text(legacy=legacy)


def _report(percentiles: object) -> Report:
    shares: tuple[Any, ...] = (
        tuple(percentiles) if isinstance(percentiles, Iterable) else (percentiles,)
    )
    for share in shares:
        if not isinstance(share, (int, float)) or not 0 < share < 1:
            raise UsageError(
                f"metrics_report() got the percentile {share!r}, which is not between 0 and 1. "
                "Give shares in a list: [0.95] for the 95th percentile."
            )
    in_flight()  # counts the executions that have ended by now
    return metrics.report(shares)
