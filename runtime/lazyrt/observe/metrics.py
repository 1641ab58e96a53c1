"""Counters and samples of the runtime: a listener like any other.

Metrics that torch_xla has carry its names (`CompileTime`, `MarkStep`), the others the prefix
`lazyrt::`. Each sample keeps its graph and, once the barrier or the read that caused it has
told, the user's line.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lazygraph.readable import Readable
from lazyrt.observe import events
from lazyrt.observe.report import (
    ALIASES,
    PERCENTILES,
    Report,
    Sample,
    Series,
    Unit,
    summarise,
)

if TYPE_CHECKING:
    from lazyrt.observe.events import Purpose, SourceLocation

NAMES = (
    "compiles", "executions", "cache_hits", "disk_hits", "cpu_fallbacks", "peek_compiles",
    "peek_executions", "op_compiles", "transfers_to_device", "transfers_to_host",
    "bytes_to_device", "bytes_to_host", "barriers", "empty_barriers", "steps",
    "eager_compiles", "eager_executions", "eager_cache_hits", "op_by_op_compiles",
    "op_by_op_executions", "op_by_op_cache_hits", "op_by_op_repeats", "background_compiles",
    "background_executions", "background_cache_hits", "evictions", "frames_compiled",
    "frames_recompiled", "frames_uncompiled", "graph_breaks_compiled", "graph_breaks_reached",
    "tier_up_compiles",
)  # fmt: skip

_ORIGINAL = {
    "compiles": "UncachedCompile",
    "cache_hits": "CachedCompile",
    "executions": "ExecuteComputation",
}
# The report has these as metrics, or as one counter for each op.
_NOT_REPEATED = frozenset(
    ("transfers_to_device", "transfers_to_host", "bytes_to_device", "bytes_to_host",
     "cpu_fallbacks")
)  # fmt: skip
_COMPILE_NAMES: dict[Purpose, str] = {
    "step": "CompileTime",
    "peek": "lazyrt::PeekCompileTime",
    "op": "lazyrt::OpCompileTime",
    "eager": "EagerOpCompileTime",
    "op by op": "lazyrt::OpByOpCompileTime",
    "background": "lazyrt::BackgroundCompileTime",
    "tier up": "lazyrt::TierUpCompileTime",
}
_EXECUTE_NAMES: dict[Purpose, str] = {
    "step": "ExecuteTime",
    "peek": "lazyrt::PeekExecuteTime",
    "op": "lazyrt::OpExecuteTime",
    "eager": "EagerOpExecuteTime",
    "op by op": "lazyrt::OpByOpExecuteTime",
    "background": "lazyrt::BackgroundExecuteTime",
}
_TRANSFER_NAMES = {
    "to_device": ("TransferToDeviceTime", "OutboundData"),
    "to_host": ("TransferFromDeviceTime", "InboundData"),
}
# Barriers that nobody marked: the program read a value, or the runtime needed one.
_UNMARKED = ("read by ", "CPU fallback of ", "more than ")
_MAX_STEPS = 1024
_MAX_GRAPHS = 1024
_MOST_WAITING = 256


class Counters(Readable, Mapping[str, int]):
    """Counts since the last reset, as they were at one moment."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = dict(counts)

    def __getitem__(self, name: str) -> int:
        return self._counts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def __sub__(self, earlier: Mapping[str, int]) -> Counters:
        """Return what was counted since `earlier`."""
        return Counters(
            {name: count - earlier.get(name, 0) for name, count in self.items()}
        )

    def __repr__(self) -> str:
        return f"Counters({self._counts})"

    def __str__(self) -> str:
        """Return what was counted, one to a line; what is 0 is left out."""
        counted = {name: count for name, count in self._counts.items() if count}
        width = max(map(len, counted), default=0)
        lines = [f"{name:<{width}}  {count:,}" for name, count in counted.items()]
        zeros = len(self._counts) - len(counted)
        return "\n".join([*lines, *([f"{zeros} others are 0"] if zeros else [])])


class Metrics:
    """Listens to every event and counts, many at once or when somebody reads.

    Between two barriers a program pushes the code and the data of counting out of the processor's
    caches, so that counting each of a barrier's five events at once would be slow.
    """

    def __init__(self) -> None:
        # An event while one is counted: a finaliser's, which a garbage collection may run.
        self._lock = threading.RLock()
        self._new: deque[tuple[int, events.Event]] = deque()
        self._is_counting = False
        self._now = 0
        self.reset()

    def reset(self) -> None:
        """Start again from zero."""
        with self._lock:
            self._new.clear()
            self.counts = dict.fromkeys(NAMES, 0)
            self._series: dict[str, Series] = {}
            self._marks = 0
            self._read_barriers: Counter[str] = Counter()
            self._fallbacks: dict[str, Counter[str]] = {}
            self._sites: dict[int, SourceLocation | None] = {}
            self._waiting: dict[int, list[Sample]] = {}
            self._in_barrier: list[Sample] = []
            self._peeked: list[Sample] = []
            self._single: list[Sample] = []
            self._ops: Counter[str] = Counter()
            self._runs: dict[str, int] = {}
            self._ops_of: dict[str, events.OpCounts] = {}

    def __call__(self, event: events.Event) -> None:
        """Take one event in, with its time."""
        new = self._new
        new.append((time.perf_counter_ns(), event))
        if len(new) >= _MOST_WAITING:
            with self._lock:
                self._catch_up()

    def _catch_up(self) -> None:
        """Count the events that came since the last time, those that come meanwhile included."""
        if self._is_counting:
            return
        self._is_counting = True
        try:
            while self._new:
                self._now, event = self._new.popleft()
                count = COUNTED.get(type(event))
                if count is not None:
                    count(self, event)
        finally:
            self._is_counting = False

    def _count_dispatch(self, event: events.ExecuteStarted) -> None:
        step = event.purpose == "step"
        self.counts["executions" if step else "peek_executions"] += 1
        sample = self._add("lazyrt::DispatchTime", event.dispatch_ns, event.fingerprint)
        (self._in_barrier if step else self._peeked).append(sample)

    def _count_eviction(self, _: events.CacheEvicted) -> None:
        self.counts["evictions"] += 1

    def _count_hit(self, _: events.CacheHit) -> None:
        self.counts["cache_hits"] += 1

    def _count_fallback(self, event: events.FallbackUsed) -> None:
        self.counts["cpu_fallbacks"] += 1
        sites = self._fallbacks.setdefault(event.op, Counter())
        sites[str(event.site or "")] += 1

    def _count_transfer(self, event: events.TransferFinished) -> None:
        self.counts[f"transfers_{event.direction}"] += 1
        self.counts[f"bytes_{event.direction}"] += event.nbytes
        if event.is_look:  # tells nothing of the program
            return
        time_name, data_name = _TRANSFER_NAMES[event.direction]
        self._add(time_name, event.duration_ns, site=event.site)
        self._add(data_name, event.nbytes, unit="bytes", site=event.site)

    def _count_capture(self, event: events.GraphCaptured) -> None:
        graph = event.fingerprint
        self._in_barrier.clear()  # of a barrier that failed
        self._in_barrier += [
            self._add("TensorsGraphSize", event.nodes, graph, unit="count"),
            self._add("lazyrt::GraphCaptureTime", event.duration_ns, graph),
        ]
        if graph in self._runs:
            self._runs[graph] += 1
            return
        if len(self._runs) >= _MAX_GRAPHS:
            self._fold_runs()
        self._runs[graph] = 1
        self._ops_of[graph] = event.ops

    def _count_tracing(self, event: events.OpTraced) -> None:
        self._add("LazyTracing", event.duration_ns)

    def _count_step(self, event: events.StepFinished) -> None:
        self.counts["steps"] += 1
        self._add("lazyrt::StepTime", event.duration_ns).step = event.step

    def _count_lowering(self, event: events.LoweringFinished) -> None:
        sample = self._add("lazyrt::LoweringTime", event.duration_ns, event.fingerprint)
        if event.purpose == "step":
            self._in_barrier.append(sample)

    def _count_peek(self, event: events.TensorMaterialised) -> None:
        self._add("lazyrt::PeekTime", event.duration_ns, site=event.site)
        for sample in self._peeked:
            sample.site = event.site
        self._peeked.clear()

    def _count_op(self, event: events.OpExecuted) -> None:
        mode = event.mode.replace(" ", "_")
        self.counts[f"{mode}_executions"] += 1
        self.counts[f"{mode}_cache_hits"] += event.cache_hit
        self._ops[events.base_name(event.op)] += mode != "background"
        for sample in self._single:
            sample.site = event.site
        self._single.clear()
        if event.times > 1:
            self.counts["op_by_op_repeats"] += 1

    def _count_frame(self, event: events.FrameCompiled) -> None:
        self.counts["frames_compiled"] += event.failed is None and not event.backward
        self.counts["frames_recompiled"] += event.guard is not None
        self.counts["frames_uncompiled"] += event.failed is not None
        self.counts["graph_breaks_compiled"] += event.graph_break is not None
        for name, spent in (
            ("Dynamo", event.dynamo_ns),
            ("AOTAutograd", event.aot_ns),
            ("Guard", event.guards_ns),
        ):
            if spent:
                self._add(f"lazyrt::{name}Time", spent, site=event.site)

    def _count_break(self, _: events.GraphBreakReached) -> None:
        self.counts["graph_breaks_reached"] += 1

    def _count_call(self, event: events.CompiledCallTraced) -> None:
        self._add("lazyrt::CompiledCallTime", event.duration_ns)

    def _fold_runs(self) -> None:
        """Add up the ops of the graphs that barriers ran."""
        for graph, runs in self._runs.items():
            self._ops.update({op: n * runs for op, n in self._ops_of[graph]})
        self._runs.clear()
        self._ops_of.clear()

    def _count_compile(self, event: events.CompileFinished) -> None:
        purpose, ns, graph = event.purpose, event.duration_ns, event.fingerprint
        if event.source == "disk":
            self.counts["disk_hits"] += 1
            name = "lazyrt::LoadFromDiskTime"
        else:
            self.counts[
                "compiles"
                if purpose == "step"
                else f"{purpose.replace(' ', '_')}_compiles"
            ] += 1
            if purpose == "op":
                self.counts["peek_compiles"] += 1
            name = _COMPILE_NAMES[purpose]
        sample = self._add(name, ns, graph, reason=event.reason)
        if purpose == "step":
            self._in_barrier.append(sample)
        elif purpose != "tier up":  # which nobody waits for
            (self._peeked if purpose in {"peek", "op"} else self._single).append(sample)

    def _count_execution(self, event: events.ExecuteFinished) -> None:
        name, step = _EXECUTE_NAMES[event.purpose], event.step
        site = event.site if event.site is not None else self._sites.get(step)
        sample = self._add(name, event.duration_ns, event.fingerprint, site=site)
        self._series[name].upper_bounds += not event.exact
        if event.purpose != "step":
            return
        sample.step = step
        if step not in self._sites:
            self._waiting.setdefault(step, []).append(sample)

    def _count_barrier(self, event: events.BarrierFinished) -> None:
        self.counts["barriers" if event.executed else "empty_barriers"] += 1
        if not event.cause.startswith(_UNMARKED):
            self._marks += 1
        elif event.executed and event.cause.startswith(_UNMARKED[0]):
            self._read_barriers[str(event.site or "")] += 1
        if not event.executed:
            return
        whole = self._add("lazyrt::BarrierTime", event.duration_ns)
        self._in_barrier.append(whole)
        for sample in (*self._in_barrier, *self._waiting.pop(event.step, ())):
            sample.site, sample.step = event.site, event.step
        self._in_barrier.clear()
        self._sites[event.step] = event.site
        if len(self._sites) > _MAX_STEPS:
            del self._sites[next(iter(self._sites))]
        if len(self._waiting) > _MAX_STEPS:
            self._waiting.clear()

    def _add(
        self, name: str, value: int, graph: str = "", *, unit: Unit = "ns",
        reason: str = "", site: SourceLocation | None = None,
    ) -> Sample:  # fmt: skip
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = Series(unit)
        sample = Sample(self._now, value, graph, reason, site)
        series.add(sample)
        return sample

    def counters(self) -> Counters:
        """Return the counts as they are now."""
        with self._lock:
            self._catch_up()
            return Counters(self.counts)

    def report(self, percentiles: Sequence[float] = PERCENTILES) -> Report:
        """Return every metric and counter as they are now."""
        with self._lock:
            self._catch_up()
            return Report(
                {
                    name: summarise(series, percentiles)
                    for name, series in sorted(self._series.items())
                },
                dict(sorted(self._report_counters())),
                {
                    op: dict(sites.most_common())
                    for op, sites in self._fallbacks.items()
                },
                dict(self._read_barriers.most_common()),
            )

    def samples(self, name: str) -> tuple[int, int, tuple[Sample, ...]] | None:
        """Return a metric's number and sum of all samples, and the latest ones; None if empty."""
        with self._lock:
            self._catch_up()
            series = self._series.get(ALIASES.get(name, name))
            if series is None:
                return None
            return series.count, series.total, tuple(series.window)

    def clear_samples(self) -> None:
        """Forget the samples of all metrics; counters stay."""
        with self._lock:
            self._catch_up()
            self._series.clear()

    def clear_counters(self) -> None:
        """Set all counters to zero; the samples stay."""
        with self._lock:
            self._catch_up()
            self.counts = dict.fromkeys(NAMES, 0)
            self._marks = 0
            self._read_barriers.clear()
            self._fallbacks.clear()
            self._ops.clear()
            self._runs.clear()
            self._ops_of.clear()

    def _report_counters(self) -> Iterator[tuple[str, int]]:
        for name, count in self.counts.items():
            if count and name not in _NOT_REPEATED:
                yield _ORIGINAL.get(name, f"lazyrt::{name}"), count
        if self._marks:
            yield "MarkStep", self._marks
        if self._read_barriers:
            yield "lazyrt::barriers_by_read", self._read_barriers.total()
        executed = self._series.get("ExecuteTime")
        if executed is not None and executed.upper_bounds:
            yield "lazyrt::execute_time_upper_bounds", executed.upper_bounds
        for op, sites in self._fallbacks.items():
            yield f"aten::{events.base_name(op)}", sites.total()
        self._fold_runs()
        for op, count in self._ops.items():
            yield f"xla::{op}", count


def watch_executions() -> events.Subscription:
    """Notice the ends of executions at once from now on, so that `ExecuteTime` is exact.

    Without it, and without another listener that needs to know, an end is noticed at the next
    dispatch or wait, and the sample is an upper bound. Takes a thread that waits.

    Returns:
        Close it, or use it in `with`, to stop.
    """
    return events.subscribe(lambda _event: None, events.ExecuteFinished)


COUNTED: dict[type[events.Event], Callable[[Metrics, Any], None]] = {
    events.CompileFinished: Metrics._count_compile,
    events.ExecuteStarted: Metrics._count_dispatch,
    events.ExecuteFinished: Metrics._count_execution,
    events.OpExecuted: Metrics._count_op,
    events.CacheEvicted: Metrics._count_eviction,
    events.CacheHit: Metrics._count_hit,
    events.FallbackUsed: Metrics._count_fallback,
    events.TransferFinished: Metrics._count_transfer,
    events.OpTraced: Metrics._count_tracing,
    events.GraphCaptured: Metrics._count_capture,
    events.BarrierFinished: Metrics._count_barrier,
    events.StepFinished: Metrics._count_step,
    events.LoweringFinished: Metrics._count_lowering,
    events.TensorMaterialised: Metrics._count_peek,
    events.FrameCompiled: Metrics._count_frame,
    events.GraphBreakReached: Metrics._count_break,
    events.CompiledCallTraced: Metrics._count_call,
}

metrics = Metrics()
