"""The numbers of a metrics report: quantities, metrics, counters, and what stands out among them.

torch_xla prints durations wrongly: it rounds each part to the nearest whole number and goes
on with what the part's floor leaves, so a part whose remainder is a half or more shows one
too many. The remainder is printed too, hence the measured value can be had back exactly.

The thresholds are torch_xla's own: more than one compile in two steps after ten steps of
warming up, more than one read in two steps, a compile of five minutes, an execution of
thirty seconds, any op that ran on the CPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from lazyviz.foreign.evidence import EvidenceError, shorten
from lazyviz.render.text import duration, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


Rounding = Literal["legacy", "exact"]
Unit = Literal["ns", "bytes", "count"]

_TIME = re.compile(
    r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+)s)?(?:(\d+)ms)?(\d+)\.(\d{3})us"
)
_SCALES = (
    86_400_000_000_000,
    3_600_000_000_000,
    60_000_000_000,
    1_000_000_000,
    1_000_000,
)
_RANGES = (None, 24, 60, 60, 1000)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(B|KB|MB|GB|TB|PB)")
_SUFFIXES = ("B", "KB", "MB", "GB", "TB", "PB")
_PLAIN = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")

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
WINDOW = 1024
Symptom = Literal[
    "compiles too often", "reads too often", "compile too slow", "execution too slow",
    "ran on the CPU",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of a report.

    Attributes:
        unit: `ns`, `bytes` or `count`.
        value: What had been measured: whole nanoseconds for durations; for the others as
            much as the text shows.
        printed: The number as the text shows it, empty when there was no text.
        shown: What the text says when it is taken at its word.
        others: Further values that would have been printed the same, a few at most.
        possible: Whether the assumed printer can print this text at all.
    """

    unit: Unit
    value: float
    printed: str = ""
    shown: float = 0.0
    others: tuple[float, ...] = ()
    possible: bool = True

    @property
    def error(self) -> float:
        """How much more the text shows than had been measured."""
        return self.shown - self.value if self.printed else 0.0


def parse_quantity(text: str, rounding: Rounding = "legacy") -> Quantity:
    """Return the number that a report shows as `text`.

    Args:
        text: A duration like `28s857ms591.389us`, a size like `2.60MB`, or a number.
        rounding: Who printed it: `legacy` for torch_xla, `exact` for lazyrt.

    Raises:
        EvidenceError: It is none of the three.

    Example:
        >>> parse_quantity("28s857ms591.389us").value
        27856591389
        >>> parse_quantity("2.60MB").value
        2726297.6
    """
    found = _TIME.fullmatch(text)
    if found is not None:
        *parts, us, thousandths = found.groups()
        counts = [None if part is None else int(part) for part in parts]
        return _duration(text, counts, int(us) * 1000 + int(thousandths), rounding)
    found = _SIZE.fullmatch(text)
    if found is not None:
        size = float(found[1]) * 1024.0 ** _SUFFIXES.index(found[2])
        return Quantity("bytes", size, text, size)
    if _PLAIN.fullmatch(text) is not None:
        return Quantity("count", float(text), text, float(text))
    raise EvidenceError(
        f"{shorten(text)} is no number of a metrics report. Expected a duration such as "
        "28s857ms591.389us, a size such as 2.60MB, or a plain number."
    )


def _duration(
    text: str, counts: list[int | None], rest: int, rounding: Rounding
) -> Quantity:
    shown = rest + sum(
        count * scale for count, scale in zip(counts, _SCALES, strict=True) if count
    )
    if rounding == "exact":
        possible = _is_normal(counts, rest)
        return Quantity("ns", shown, text, shown, possible=possible)
    found = _measured(counts, rest)
    if not found:
        return Quantity("ns", shown, text, shown, possible=False)
    return Quantity("ns", found[0], text, shown, tuple(found[1:]))


def _measured(counts: list[int | None], rest: int) -> list[int]:
    """Return the durations that the faulty printer shows like this, the likeliest first.

    From the smallest part up: a part shows one too many if what it leaves is at least half.
    Exactly at the half both are possible, since the last part was rounded as well.
    """
    leading = next((k for k, count in enumerate(counts) if count is not None), None)
    found = [rest]
    for k in reversed(range(len(counts))):
        count, scale = counts[k], _SCALES[k]
        if count is None:
            break
        least = 1 if k == leading else 0
        found = [
            whole * scale + low
            for low in found
            for whole in (count, count - 1)
            if whole >= least and low <= scale and _rounds(low, scale, up=whole < count)
        ]
    return found


def _rounds(low: int, scale: int, *, up: bool) -> bool:
    half = scale // 2
    return low >= half if up else low <= half


def _is_normal(counts: list[int | None], rest: int) -> bool:
    """Return whether no part shows as much as one of the next larger unit."""
    given = [count for count in counts if count is not None]
    if given and (rest >= _SCALES[-1] or given[0] == 0):
        return False
    return all(
        limit is None or count is None or count < limit
        for count, limit in zip(counts, _RANGES, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Call:
    """What one sample belongs to; empty texts for what is not known.

    Attributes:
        site: The user's line that caused it.
        graph: Fingerprint of its graph.
        reason: Why it happened, in words.
        step: Number of its step; None where it is not known.
    """

    site: str
    graph: str
    reason: str
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Behind:
    """The samples behind a percentile: above the percentile below it, and up to its own.

    Attributes:
        count: How many there are.
        largest: The largest of them, each with the call that it belongs to.
    """

    count: int
    largest: tuple[tuple[Quantity, Call], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric of a report.

    `total_samples` and `accumulator` are over all samples, the rest over the latest ones, at
    most 1,024.

    Attributes:
        name: As the report has it, such as `CompileTime`.
        total_samples: Number of all samples.
        accumulator: Their sum.
        mean: Of the window; worked out where the report does not have it.
        std_dev: Of the window; None where the report does not have it.
        value_rate: Sum of the window's samples a second, None where it is not given.
        rate: Samples a second, None where it is not given.
        percentiles: Samples by percent.
        calls: For each percentile the line, graph and reason of that very sample; only from a
            live report.
        behind: For each percentile the samples that lead to it; only from a live report.
        sites: Lines that caused samples, with how many; only from a live report.
        reasons: Reasons given for samples, likewise.
        upper_bounds: How many samples may be larger than what they measure, likewise.
        line: Number of the line where it begins, 0 for a live report.
    """

    name: str
    total_samples: int
    accumulator: Quantity
    mean: Quantity | None = None
    std_dev: Quantity | None = None
    value_rate: Quantity | None = None
    rate: float | None = None
    percentiles: Mapping[float, Quantity] = field(default_factory=dict)
    calls: Mapping[float, Call] = field(default_factory=dict)
    behind: Mapping[float, Behind] = field(default_factory=dict)
    sites: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    upper_bounds: int = 0
    line: int = 0

    @property
    def window(self) -> int:
        """How many samples mean, deviation, rate and percentiles describe, as far as is known."""
        return min(self.total_samples, WINDOW)

    @property
    def unit(self) -> Unit:
        """What the values are."""
        return self.accumulator.unit

    @property
    def largest(self) -> Quantity:
        """The largest sample that the report shows."""
        known = list(self.percentiles.values())
        return max(known, key=lambda q: q.value) if known else self.accumulator

    def quantities(self) -> Iterator[Quantity]:
        """Yield every number that has a unit."""
        yield self.accumulator
        for quantity in (self.mean, self.std_dev, self.value_rate):
            if quantity is not None and quantity.printed:
                yield quantity
        yield from self.percentiles.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One report among several in a text.

    Attributes:
        title: The headings above it, empty if there are none.
        metrics: In the order of the text.
        counters: By name.
        fallbacks: Lines that called each op which ran on the CPU; only from a live report.
    """

    title: str
    metrics: tuple[Metric, ...]
    counters: Mapping[str, int]
    fallbacks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def get(self, name: str) -> Metric | None:
        """Return a metric by its name, None if there is none."""
        return next((m for m in self.metrics if m.name == name), None)


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
