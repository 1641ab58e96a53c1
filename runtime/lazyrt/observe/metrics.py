"""Counters and timings of the runtime: a listener like any other."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

from lazyrt.observe import events

NAMES = (
    "compiles", "executions", "cache_hits", "disk_hits", "cpu_fallbacks", "peek_compiles",
    "peek_executions", "op_compiles", "transfers_to_device", "transfers_to_host",
    "bytes_to_device", "bytes_to_host", "barriers", "empty_barriers", "steps",
)  # fmt: skip


class Counters(Mapping[str, int]):
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


class Timing:
    """Number, sum and extremes of the durations of one phase, in nanoseconds."""

    def __init__(self) -> None:
        self.count = 0
        self.total_ns = 0
        self.max_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count one duration."""
        self.count += 1
        self.total_ns += duration_ns
        self.max_ns = max(self.max_ns, duration_ns)


class Metrics:
    """Listens to every event and counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Start again from zero."""
        with self._lock:
            self.counts = dict.fromkeys(NAMES, 0)
            self.timings: dict[str, Timing] = {}
            self.fallback_ops: dict[str, int] = {}

    def __call__(self, event: events.Event) -> None:
        """Count one event."""
        with self._lock:
            self._count(event)

    def _count(self, event: events.Event) -> None:
        counts = self.counts
        match event:
            case events.CompileFinished():
                self._count_compile(event)
            case events.ExecuteStarted(purpose=purpose):
                counts["executions" if purpose == "step" else "peek_executions"] += 1
            case events.ExecuteFinished(
                purpose=purpose, duration_ns=duration, exact=exact
            ):
                name = "execute" if purpose == "step" else "peek execute"
                self._time(name if exact else f"{name}, at most", duration)
            case events.CacheHit():
                counts["cache_hits"] += 1
            case events.FallbackUsed(op=op):
                counts["cpu_fallbacks"] += 1
                self.fallback_ops[op] = self.fallback_ops.get(op, 0) + 1
            case events.TransferFinished(
                direction=direction, nbytes=size, duration_ns=duration
            ):
                counts[f"transfers_{direction}"] += 1
                counts[f"bytes_{direction}"] += size
                self._time(f"transfer {direction.replace('_', ' ')}", duration)
            case events.BarrierFinished(executed=executed):
                counts["barriers" if executed else "empty_barriers"] += 1
            case events.StepFinished(duration_ns=duration):
                counts["steps"] += 1
                self._time("step", duration)
            case events.LoweringFinished(duration_ns=duration):
                self._time("lowering", duration)
            case events.TensorMaterialised(duration_ns=duration):
                self._time("peek", duration)

    def _count_compile(self, event: events.CompileFinished) -> None:
        if event.source == "disk":
            self.counts["disk_hits"] += 1
            self._time("load from disk", event.duration_ns)
            return
        name = {"step": "compiles", "peek": "peek_compiles", "op": "op_compiles"}[
            event.purpose
        ]
        self.counts[name] += 1
        if event.purpose == "op":
            self.counts["peek_compiles"] += 1
        self._time(
            "compile" if event.purpose == "step" else "peek compile", event.duration_ns
        )

    def _time(self, name: str, duration_ns: int) -> None:
        timing = self.timings.get(name)
        if timing is None:
            timing = self.timings[name] = Timing()
        timing.add(duration_ns)

    def counters(self) -> Counters:
        """Return the counts as they are now."""
        with self._lock:
            return Counters(self.counts)

    def report(self) -> str:
        """Return counters and timings as a text table."""
        with self._lock:
            lines = ["lazyrt metrics", "", f"{'counter':<24}{'value':>12}"]
            lines += [f"{name:<24}{count:>12,}" for name, count in self.counts.items()]
            lines += [
                "",
                f"{'phase':<24}{'count':>8}{'total ms':>12}{'mean ms':>10}{'max ms':>10}",
            ]
            for name, timing in sorted(self.timings.items()):
                total = timing.total_ns / 1e6
                lines.append(
                    f"{name:<24}{timing.count:>8,}{total:>12,.1f}"
                    f"{total / timing.count:>10,.2f}{timing.max_ns / 1e6:>10,.1f}"
                )
            if self.fallback_ops:
                lines += ["", f"{'op run on the CPU':<40}{'times':>8}"]
                ranked = sorted(self.fallback_ops.items(), key=lambda item: -item[1])
                lines += [f"{name:<40}{count:>8,}" for name, count in ranked]
            return "\n".join(lines)


metrics = Metrics()
