"""Sentences about a metrics report: what stands out, where, and what to do.

The thresholds are torch_xla's own: more than one compile in two steps after ten steps of
warming up, more than one read in two steps, a compile of five minutes, an execution of
thirty seconds, any op that ran on the CPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lazyviz.render.text import duration, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lazyviz.foreign.metrics import Metric, Section
    from lazyviz.foreign.quantities import Quantity

Symptom = Literal[
    "compiles too often", "reads too often", "compile too slow", "execution too slow",
    "ran on the CPU",
]  # fmt: skip

_FIRST = "the first graph"  # every program has one
_MAX_RATIO = 0.5
_WARM_UP_STEPS = 10
_SLOW_COMPILE_NS = 300e9
_SLOW_EXECUTION_NS = 30e9
_NUMBER = re.compile(r"(?P<line>cell \d+ line \d+|[\w./-]+:\d+)|\d[\d.,]*")
_FALLBACK = "aten::"
_READ_OF_SCALAR = "aten::_local_scalar_dense"
_FIX_COMPILE = (
    "Keep what varies out of the graph: pad inputs to a few sizes, end the step at the same "
    "line each time, keep control flow off the values. `%lazy why` names what differed."
)
_FIX_READ = "Read once in many steps, or hand the read to a step closure, which runs after the step."
_FIX_SLOW_COMPILE = (
    "Split the step with a barrier, or let repeated layers share one compile by a loop over "
    "stacked weights; a persistent compilation cache saves it from the second run on."
)
_FIX_SLOW_EXECUTION = "Look for the ops that take it with a profile of one step."
_FIX_FALLBACK = (
    "Write a lowering with @lowers, replace the op by one that has a lowering, or move the "
    "line out of the step."
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that stands out.

    Attributes:
        symptom: Which kind.
        message: What was counted or measured.
        site: The line that caused most of it; None when the report does not know lines.
        fix: What to do.
    """

    symptom: Symptom
    message: str
    site: str | None
    fix: str

    def __str__(self) -> str:
        where = f" Mostly at {self.site}." if self.site else ""
        return f"{self.message}.{where} {self.fix}"


def find(section: Section) -> list[Finding]:
    """Return what stands out in one report, the gravest kinds first."""
    return [
        *_too_often(section, "CompileTime", "compiles too often", _FIX_COMPILE,
                    after=_WARM_UP_STEPS),
        *_too_often(section, "TransferFromDeviceTime", "reads too often", _FIX_READ),
        *_too_slow(section, "CompileTime", "compile too slow", _SLOW_COMPILE_NS,
                   _FIX_SLOW_COMPILE),
        *_too_slow(section, "ExecuteTime", "execution too slow", _SLOW_EXECUTION_NS,
                   _FIX_SLOW_EXECUTION),
        *_on_the_cpu(section),
    ]  # fmt: skip


def _too_often(
    section: Section, name: str, symptom: Symptom, fix: str, *, after: int = 0
) -> Iterator[Finding]:
    metric, steps = section.get(name), section.counters.get("MarkStep", 0)
    if metric is None or steps <= after or metric.total_samples / steps <= _MAX_RATIO:
        return
    message = (
        f"{name} too frequent: {metric.total_samples:,} counts during {steps:,} steps"
    )
    reason = _most_frequent(metric.reasons)
    if reason:
        message += f", most often for this cause: {reason}"
    yield Finding(symptom, message, _top(metric.sites), fix)


def _most_frequent(reasons: Mapping[str, int]) -> str | None:
    """Return the cause that came most often, in its first words; None if none came twice.

    A loop over sizes gives each graph another sentence. Those that differ in numbers alone, the
    line's not among them, are one cause.
    """
    counts: dict[str, int] = {}
    first: dict[str, str] = {}
    for reason, count in reasons.items():
        if reason and not reason.startswith(_FIRST):
            cause = _NUMBER.sub(_without_number, reason)
            counts[cause] = counts.get(cause, 0) + count
            first.setdefault(cause, reason)
    top = _top(counts)
    if top is None or (counts[top] == 1 and len(counts) > 1):
        return None
    return f"{first[top]} ({plural(counts[top], 'time')})"


def _without_number(found: re.Match[str]) -> str:
    return found[0] if found["line"] else "#"


def _too_slow(
    section: Section, name: str, symptom: Symptom, threshold: float, fix: str
) -> Iterator[Finding]:
    metric = section.get(name)
    if metric is None or metric.largest.value <= threshold:
        return
    longest = _span_text(metric, metric.largest)
    yield Finding(
        symptom,
        f"{name} too slow: the longest of {plural(metric.total_samples, 'sample')} took {longest}",
        _top(metric.sites),
        fix,
    )


def _span_text(metric: Metric, quantity: Quantity) -> str:
    bound = "at most " if metric.upper_bounds else ""
    return bound + duration(quantity.value)


def _on_the_cpu(section: Section) -> Iterator[Finding]:
    counts = {
        name: count
        for name, count in section.counters.items()
        if name.startswith(_FALLBACK) and name != _READ_OF_SCALAR
    }
    if not counts:
        return
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    ops = ", ".join(f"{name} ({plural(count, 'time')})" for name, count in ranked)
    sites: dict[str, int] = {}
    for lines in section.fallbacks.values():
        for line, count in lines.items():
            sites[line] = sites.get(line, 0) + count
    yield Finding(
        "ran on the CPU", f"Ops not lowered: {ops}", _top(sites), _FIX_FALLBACK
    )


def _top(counts: Mapping[str, int]) -> str | None:
    named = {name: count for name, count in counts.items() if name}
    return max(named, key=lambda name: named[name]) if named else None
