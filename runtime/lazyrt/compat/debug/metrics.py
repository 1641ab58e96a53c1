"""`torch_xla.debug.metrics` over lazyrt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lazyrt
from lazyrt.compat.common import refuse
from lazyrt.observe.metrics import metrics as _metrics

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def clear_counters() -> None:
    """Set all counters to zero."""
    _metrics.clear_counters()


def clear_metrics() -> None:
    """Forget all samples."""
    _metrics.clear_samples()


def clear_all() -> None:
    """Forget all samples and set all counters to zero."""
    lazyrt.reset_counters()


def executed_fallback_ops() -> list[str]:
    """Return the counters of the ops that ran on the CPU, such as `aten::nonzero`."""
    return [name for name in counter_names() if name.startswith("aten::")]


def metrics_report(*, legacy: bool = False) -> str:
    """Return the report in the original's format.

    Args:
        legacy: Whether to print durations as wrongly as the original does.
    """
    return lazyrt.metrics_report(legacy=legacy)


def short_metrics_report(
    counter_names: Iterable[str] | None = None,
    metric_names: Iterable[str] | None = None,
    *,
    legacy: bool = False,
) -> str:
    """Return a report of a few names and of the ops that ran on the CPU."""
    return lazyrt.short_metrics_report(counter_names, metric_names, legacy=legacy)
