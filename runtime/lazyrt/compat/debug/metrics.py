"""`torch_xla.debug.metrics` over lazyrt."""

from __future__ import annotations

import lazyrt
from lazyrt.compat.common import refuse
from lazyrt.observe.metrics import metrics as _metrics

__all__ = [
    "clear_all", "clear_counters", "clear_metrics", "counter_names", "counter_value",
    "executed_fallback_ops", "metric_data", "metric_names", "metrics_report",
    "short_metrics_report",
]  # fmt: skip

REFUSED: dict[str, str] = {}
__getattr__ = refuse("torch_xla.debug.metrics", REFUSED)


def counter_names() -> list[str]:
    """Return the names of the counters that are not zero."""
    return list(_metrics.report().counters)


def counter_value(name: str) -> int | None:
    """Return a counter's value, None if it is zero."""
    return _metrics.report().counters.get(name)


def metric_names() -> list[str]:
    """Return the names of the metrics that have samples."""
    lazyrt.in_flight()  # counts the executions that have ended by now
    return list(_metrics.report().metrics)


def metric_data(name: str) -> tuple[int, float, list[tuple[float, float]]] | None:
    """Return number and sum of all samples, and (time, value) of the latest; None if empty.

    Times are seconds of a monotonic clock, values nanoseconds, bytes or counts.

    Args:
        name: A metric's name, or one of the original's old names such as `XrtCompile`.
    """
    lazyrt.in_flight()
    found = _metrics.samples(name)
    if found is None:
        return None
    count, total, samples = found
    pairs = [(sample.time_ns / 1e9, float(sample.value)) for sample in samples]
    return count, float(total), pairs


def executed_fallback_ops() -> list[str]:
    """Return the counters of the ops that ran on the CPU, such as `aten::nonzero`."""
    return [name for name in counter_names() if name.startswith("aten::")]


# Equal by another name, or by the same.
clear_counters = _metrics.clear_counters
clear_metrics = _metrics.clear_samples
clear_all = lazyrt.reset_counters
metrics_report = lazyrt.metrics_report
short_metrics_report = lazyrt.short_metrics_report
