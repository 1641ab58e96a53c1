"""A lazy tensor runtime for PyTorch: torch ops become a graph, which XLA runs.

Importing this package registers the torch device `lazyrt`. Ops on its tensors are recorded;
a barrier (`mark_step()`, the end of a `step()`, a read) runs them as one executable. A peek
(`materialise`, `print`) reads one tensor and leaves what is pending exactly as it was.

Example:
    >>> import torch, lazyrt
    >>> x = torch.ones(2, 3, device="lazyrt")
    >>> y = (x * 2).sum()
    >>> lazyrt.is_pending(y)
    True
    >>> lazyrt.materialise(y)
    tensor(12.)
    >>> lazyrt.is_pending(y)
    True
    >>> lazyrt.mark_step()
    >>> lazyrt.is_pending(y)
    False
"""

from __future__ import annotations

import gc
import sys

# What importing makes stays. Looking through it for garbage would take as long as making it, so it
# counts as old from the start.
_collects = gc.isenabled()
gc.disable()
try:
    from lazygraph import on_runtime as _on_runtime
    from lazyrt import errors, testing
    from lazyrt.api import (
        activity,
        background_flush,
        begin_cell,
        cached_executables,
        clear_caches,
        compiled_graphs,
        counters,
        device,
        drop_executables,
        dump_graphs,
        eager_mode,
        eager_module,
        enable_eager_execution,
        explain,
        fallback,
        graph_of_step,
        in_flight,
        input_origins,
        inspect,
        is_pending,
        live_tensors,
        live_tensors_report,
        look,
        mark_step,
        materialise,
        metrics_report,
        mode,
        node_values,
        on_barrier,
        op_by_op_mode,
        origin,
        pending_graph,
        plan,
        record_steps,
        reset_counters,
        reuse_choice,
        short_metrics_report,
        snapshot,
        stand_in,
        sync,
        times_run,
        wait,
    )
    from lazyrt.config import config
    from lazyrt.control import dynamo
    from lazyrt.control.capture import ProfilerServer
    from lazyrt.control.closures import add_step_closure, wait_for_closures
    from lazyrt.control.dynamo import dynamo_backend
    from lazyrt.control.live_tensors import LiveReport, LiveTensor
    from lazyrt.control.loader import DeviceLoader
    from lazyrt.control.marks import scope
    from lazyrt.control.mesh import Mesh, mesh, shard, sharding_of, shards_of
    from lazyrt.control.modes import status
    from lazyrt.control.rollback import discard_pending, discarded_graph
    from lazyrt.control.step import optimizer_step, step
    from lazyrt.errors import LazyRuntimeError
    from lazyrt.execution.cache_miss import frozen
    from lazyrt.execution.graph import Computation, Graph
    from lazyrt.execution.inspection import Inspection
    from lazyrt.frontend.tracing import watch_pauses, watch_tracing
    from lazyrt.lowering.registry import lowers
    from lazyrt.observe.events import subscribe
    from lazyrt.observe.metrics import watch_executions
finally:
    if _collects:
        gc.enable()
    if not gc.get_freeze_count():  # what a program has frozen stays so
        gc.freeze()
        gc.unfreeze()  # to the oldest generation, which nothing else enters unsearched

__all__ = [
    "Computation", "DeviceLoader", "Graph", "Inspection", "LazyRuntimeError", "LiveReport", "LiveTensor", "Mesh", "ProfilerServer", "activity", "add_step_closure",
    "background_flush", "begin_cell", "cached_executables", "clear_caches", "compiled_graphs", "config", "counters",
    "device", "discard_pending", "discarded_graph", "drop_executables", "dump_graphs", "dynamo", "dynamo_backend", "eager_mode", "eager_module",
    "enable_eager_execution", "errors", "explain", "fallback", "frozen", "graph_of_step",
    "in_flight", "input_origins", "inspect", "is_pending", "live_tensors", "live_tensors_report", "look", "lowers",
    "mark_step",
    "materialise", "mesh", "metrics_report", "mode", "node_values", "on_barrier", "op_by_op_mode",
    "optimizer_step", "origin", "pending_graph", "plan", "record_steps", "reset_counters", "reuse_choice", "scope",
    "shard", "sharding_of", "shards_of", "short_metrics_report", "snapshot", "stand_in", "status", "step", "subscribe", "sync",
    "testing",
    "times_run", "wait", "wait_for_closures", "watch_executions", "watch_pauses", "watch_tracing",
]  # fmt: skip

for _tell in tuple(_on_runtime):
    _tell(sys.modules[__name__])
