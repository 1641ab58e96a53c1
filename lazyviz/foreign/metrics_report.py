"""Metrics reports: their text, old or new, as data; their tables; what changed between two."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from lazyviz.doc import (
    Doc,
    Drawn,
    Fold,
    Heading,
    Note,
    Part,
    Points,
    Sentence,
    Showable,
    Table,
)
from lazyviz.foreign import Evidence, EvidenceError, plain, shorten
from lazyviz.render import html, text
from lazyviz.render.html import Fragment, markup
from lazyviz.render.text import duration, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# The numbers of a metrics report: quantities, metrics, counters, and what stands out among them.
#
# torch_xla prints durations wrongly: it rounds each part to the nearest whole number and goes
# on with what the part's floor leaves, so a part whose remainder is a half or more shows one
# too many. The remainder is printed too, hence the measured value can be had back exactly.
#
# The thresholds are torch_xla's own: more than one compile in two steps after ten steps of
# warming up, more than one read in two steps, a compile of five minutes, an execution of
# thirty seconds, any op that ran on the CPU.

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
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(B|KB|MB|GB|TB|PB)")
_SUFFIXES = ("B", "KB", "MB", "GB", "TB", "PB")
_PLAIN = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")

FIRST = "the first graph"  # every program has one
_MAX_RATIO = 0.5
_WARM_UP_STEPS = 10
_SLOW_COMPILE_NS = 300e9
_SLOW_EXECUTION_NS = 30e9
_NUMBER = re.compile(r"(?P<line>cell \d+ line \d+|[\w./-]+:\d+)|\d[\d.,]*")
_CLAUSE_END = re.compile(r"; (?=[^`]*(?:`[^`]*`[^`]*)*$)")  # not within a quoted line
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
    """

    unit: Unit
    value: float
    printed: str = ""
    shown: float = 0.0
    others: tuple[float, ...] = ()

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
    # A text that the faulty printer cannot show is taken at its word.
    found = _measured(counts, rest) if rounding == "legacy" else []
    value, *others = found or [shown]
    return Quantity("ns", value, text, shown, tuple(others))


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
    reason = most_frequent(metric.reasons)
    if reason:
        message += f", most often for this cause: {reason}"
    yield Finding(symptom, message, _top(metric.sites), fix)


def most_frequent(reasons: Mapping[str, int]) -> str | None:
    """Return the cause that came most often, in its first words; None if none came twice.

    A loop over sizes gives each graph another sentence. Those whose first clauses differ in numbers
    alone, the line's not among them, are one cause.
    """
    counts: dict[str, int] = {}
    first: dict[str, str] = {}
    for reason, count in reasons.items():
        if reason and not reason.startswith(FIRST):
            clause = _CLAUSE_END.split(reason, maxsplit=1)[0]
            cause = _NUMBER.sub(lambda found: found["line"] or "#", clause)
            counts[cause] = counts.get(cause, 0) + count
            first.setdefault(cause, clause)
    top = _top(counts)
    if top is None or (counts[top] == 1 and len(counts) > 1):
        return None
    return f"{first[top]} ({plural(counts[top], 'time')})"


def _too_slow(
    section: Section, name: str, symptom: Symptom, threshold: float, fix: str
) -> Iterator[Finding]:
    metric = section.get(name)
    if metric is None or metric.largest.value <= threshold:
        return
    bound = "at most " if metric.upper_bounds else ""
    longest = bound + duration(metric.largest.value)
    yield Finding(
        symptom,
        f"{name} too slow: the longest of {plural(metric.total_samples, 'sample')} took {longest}",
        _top(metric.sites),
        fix,
    )


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


_SPREAD = "std dev"
_RATE = "per second"
_HEADER = ["metric", "samples", "total", "printed as", "mean", _SPREAD, _RATE, "50 %", "99 %"]  # fmt: skip
# What a page shows of these; the rest is folded, and what was printed stands below the total.
_NARROW = ("samples", "total", "mean", "50 %", "99 %")
_MEDIAN, _TAIL = 50.0, 99.0
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=::)")
_WINDOW_NOTE = (
    "samples and total are over everything, the rest over the latest 1,024 samples"
)
_GRAPH_DIGITS = 12
_MINUTE_NS = 60_000_000_000
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MetricsReport(Evidence):
    """What `lazyviz.parse_report` returns.

    Attributes:
        sections: One for each report in the text.
        rounding: Whether its durations are printed exactly or as wrongly as torch_xla does.
        evidence: How that was found out.
    """

    sections: tuple[Section, ...]
    rounding: Rounding
    evidence: str

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics of all sections."""
        return tuple(metric for section in self.sections for metric in section.metrics)

    @property
    def counters(self) -> dict[str, int]:
        """The counters of all sections; equal names are added up."""
        found: dict[str, int] = {}
        for section in self.sections:
            for name, value in section.counters.items():
                found[name] = found.get(name, 0) + value
        return found

    def __getitem__(self, name: str) -> Metric:
        """Return a metric by its name.

        Raises:
            KeyError: There is none of this name, or there is one in several sections.
        """
        found = [
            (s.title, m) for s in self.sections for m in s.metrics if m.name == name
        ]
        if len(found) == 1:
            return found[0][1]
        if found:
            titles = ", ".join(repr(title) for title, _ in found)
            raise KeyError(
                f"{name} is in {len(found)} sections: {titles}. Take it from one of "
                "`report.sections`, with `section.get(name)`."
            )
        names = ", ".join(dict.fromkeys(metric.name for metric in self.metrics))
        raise KeyError(f"the report has no metric {name}. It has {names or 'none'}.")

    def findings(self) -> list[Finding]:
        """Return what stands out: what is too frequent, too slow, or ran on the CPU."""
        return [finding for section in self.sections for finding in find(section)]

    def doc(self) -> Doc:
        """Return tables with measured values, and on a page with printed ones; then what stands out."""
        findings = [str(finding) for finding in self.findings()]
        return Doc(
            [
                *map(_section, self.sections),
                *([Points(findings)] if findings else []),
                Doc([Note(f"{_WINDOW_NOTE}."), *map(Note, _notes(self))]),
            ],
            css_class="lazyviz-metrics",
            gap="\n\n",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data, and what stands out."""
        findings = [str(finding) for finding in self.findings()]
        return {**plain(self), "findings": findings}


def from_live(data: Mapping[str, Any]) -> MetricsReport:
    """Return the report of `lazyrt.metrics_report("dict")`."""
    try:
        metrics = tuple(_live_metric(n, m) for n, m in data["metrics"].items())
        counters, fallbacks = dict(data["counters"]), dict(data["fallbacks"])
    except (KeyError, TypeError, AttributeError) as error:
        raise EvidenceError(
            f"this mapping is no metrics report: {type(error).__name__} {error}. Give the "
            'result of lazyrt.metrics_report("dict"), its JSON, or the text of a report.'
        ) from None
    section = Section(title="", metrics=metrics, counters=counters, fallbacks=fallbacks)
    return MetricsReport(
        sections=(section,), rounding="exact", evidence="numbers of a running lazyrt"
    )


def _live_metric(name: str, data: Mapping[str, Any]) -> Metric:
    unit, everything, window = data["unit"], data["all"], data["window"]
    return Metric(
        name=name,
        total_samples=everything["samples"],
        accumulator=Quantity(unit, everything["accumulator"]),
        mean=Quantity(unit, window["mean"]),
        std_dev=Quantity(unit, window["std_dev"]),
        rate=window["rate"],
        percentiles={
            float(share.rstrip("%")): Quantity(unit, value)
            for share, value in window["percentiles"].items()
        },
        calls={
            float(share.rstrip("%")): _call(call)
            for share, call in window["calls"].items()
        },
        behind={
            float(share.rstrip("%")): Behind(
                each["samples"],
                tuple((Quantity(unit, s["value"]), _call(s)) for s in each["largest"]),
            )
            for share, each in window.get("behind", {}).items()
        },
        sites=window["sites"],
        reasons=window["reasons"],
        upper_bounds=everything["upper_bounds"],
    )


def _call(sample: Mapping[str, Any]) -> Call:
    return Call(
        sample["site"] or "", sample["graph"], sample["reason"], sample.get("step")
    )


def _section(section: Section) -> Doc:
    """Return the tables of a section; on a page percentiles and counters are folded."""
    tables: list[Part] = []
    if section.metrics:
        wide = Table(_HEADER, list(map(_row, section.metrics))).filled()
        tables.append(Drawn(wide.to_text(), lambda: _narrow(wide).to_html()))
        tables.append(Fold(f"percentiles, {_RATE}", _percentiles(section)))
    if section.counters:
        title = text.plural(len(section.counters), "counter")
        counters = Table(["counter", "value"], sorted(section.counters.items()))
        tables.append(Fold(title, [counters], in_text=True))
    head = [Heading(section.title)] if section.title else []
    return Doc([*head, Doc(tables or [Note("nothing counted yet")], gap="\n\n")])


def span(ns: float) -> str:
    """Return a duration with all that is known of it.

    Example:
        >>> span(955_564_618_863), span(27_856_591_389), span(78_811_708), span(193_963)
        ('15m55.564619s', '27.856591s', '78.812ms', '193.963us')
    """
    if ns >= _MINUTE_NS:
        minutes, rest = divmod(round(ns / 1000), _MINUTE_NS // 1000)
        return f"{minutes}m{rest / 1e6:09.6f}s"
    if ns >= _SECOND_NS:
        return f"{ns / 1e9:.6f}s"
    return f"{ns / 1e6:.3f}ms" if ns >= 1e6 else f"{ns / 1e3:.3f}us"  # noqa: PLR2004


def number(quantity: Quantity | None) -> str:
    """Return a quantity for a table, empty for None.

    A duration that somebody printed has all digits that are known, to be held against it; one
    of this session has those that every other view shows.
    """
    if quantity is None:
        return ""
    if quantity.unit == "ns":
        return (span if quantity.printed else text.duration)(quantity.value)
    if quantity.unit == "bytes":
        return text.size(quantity.value)
    value = float(quantity.value)
    return f"{value:,.0f}" if value.is_integer() else f"{value:,.4g}"


def _row(metric: Metric) -> list[object]:
    total = metric.accumulator
    bound = "≤ " if metric.upper_bounds else ""
    return [
        metric.name,
        metric.total_samples,
        bound + number(total),
        total.printed if total.error else "",
        number(metric.mean),
        number(metric.std_dev),
        _rate(metric),
        number(metric.percentiles.get(_MEDIAN)),
        number(metric.percentiles.get(_TAIL)),
    ]


def _rate(metric: Metric) -> str:
    if metric.rate is None:
        return ""
    return f"{metric.rate:,.2g}" if metric.rate < 1 else f"{metric.rate:,.1f}"


def _narrow(wide: Table) -> Table:
    """Return a table that fits a narrow notebook: long names may break."""
    header, rows = wide.header, wide.rows
    keep = [k for k, title in enumerate(header) if title in _NARROW]
    names = [Fragment(_HUMP.sub("<wbr/>", markup(str(row[0])))) for row in rows]
    cells = [
        [name, *(row[k] for k in keep)] for name, row in zip(names, rows, strict=True)
    ]
    if "printed as" in header:
        total, printed = header.index("total"), header.index("printed as")
        at = keep.index(total) + 1
        for cell, row in zip(cells, rows, strict=True):
            if row[printed]:
                measured, shown = map(
                    html.breakable, (str(row[total]), str(row[printed]))
                )
                cell[at] = Fragment(f"{measured}<br/><small>printed as {shown}</small>")
    return Table([header[0], *(header[k] for k in keep)], cells)


def _percentiles(section: Section) -> list[Part]:
    shares = sorted({share for m in section.metrics for share in m.percentiles})
    header = ["metric", *(f"{share:g} %" for share in shares), _SPREAD, _RATE]
    rows = [
        [
            m.name,
            *(number(m.percentiles.get(share)) for share in shares),
            number(m.std_dev),
            _rate(m),
        ]
        for m in section.metrics
    ]
    calls = (Fold(m.name, [_calls(m)]) for m in section.metrics if m.calls)
    return [Table(header, rows).filled(), *calls]


def _calls(metric: Metric) -> Table:
    """Return which call each percentile is; a click on one shows the samples behind it."""
    rows = [
        [_percentile(metric, share), *_sample(quantity, call)]
        for share, quantity in metric.percentiles.items()
        if (call := metric.calls.get(share)) is not None
    ]
    return Table(["percentile", *_SAMPLE], rows)


_SAMPLE = ("value", "step", "at", "graph", "because")


def _sample(quantity: Quantity, call: Call) -> list[object]:
    graph = call.graph[:_GRAPH_DIGITS]
    return [number(quantity), call.step, call.site, graph, call.reason]


def _percentile(metric: Metric, share: float) -> str:
    """Return `95 %`, folding the samples above the percentile below and up to this one."""
    title, behind = f"{share:g} %", metric.behind.get(share)
    if behind is None or behind.count < 2:  # noqa: PLR2004 - the row is the only one
        return title
    left = behind.count - len(behind.largest)
    more = [Note(f"and {left:,} smaller ones")] if left else []
    rows = Table(_SAMPLE, [_sample(*each) for each in behind.largest])
    many = text.plural(behind.count, "sample")
    return Fragment(Fold(f"{title}, {many}", [rows, *more]).to_html())


def _notes(report: MetricsReport) -> Iterable[str]:
    times = [q for m in report.metrics for q in m.quantities() if q.unit == "ns"]
    printed = [q for q in times if q.printed]
    wrong = [q for q in printed if q.error]
    if wrong:
        worst = max(q.error for q in wrong)
        yield (
            f"{len(wrong)} of {text.plural(len(printed), 'duration')} "
            f"{'was' if len(wrong) == 1 else 'were'} printed too large, "
            f"by up to {span(worst)}: the printer rounds each part, then goes on with what its "
            f"floor leaves. The tables show what had been measured ({report.evidence})."
        )
    doubtful = sum(bool(q.others) for q in times)
    if doubtful:
        yield (
            f"{text.plural(doubtful, 'duration')} can stand for two values, since a part "
            "ends exactly on a half; the smaller rounding error is shown."
        )


# ------------------------------------------------------------------------- from text to data

_EXACT_MARK = "lazyrt::exact_durations"
_BLOCK = re.compile(r"\s*(Metric|Counter): (\S+)\s*")
_FIELDS = "TotalSamples|Accumulator|Mean|StdDev|ValueRate|Rate|Percentiles|Value"
_FIELD = re.compile(rf"\s*({_FIELDS}): (.*?)\s*")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%=(\S+)")

_CHANGE_HEADER = ["metric", "samples", "then", "total", "then", "×", "mean", "then", "×"]  # fmt: skip
_COUNTER_HEADER = ["counter", "value", "then", "difference"]


def parse_report(report: str | Mapping[str, Any]) -> MetricsReport:
    """Read a metrics report: torch_xla's, lazyrt's, or several with text in between.

    torch_xla prints most durations too large, by up to a minute; the result has the measured
    values, which can be had back exactly, and keeps what was printed. lazyrt prints exactly, and marks
    its reports by a counter.

    Args:
        report: The text, the JSON, or the plain data of a report.

    Raises:
        EvidenceError: There is no report in the text, or one that breaks off.
    """
    if isinstance(report, Mapping):
        return from_live(report)
    if not isinstance(report, str):
        raise EvidenceError(
            f"parse_report() got {type(report).__name__}, which is no report. Give its text, its "
            'JSON, or the result of lazyrt.metrics_report("dict").'
        )
    if report.lstrip().startswith("{"):
        return from_live(_json(report))
    blocks = list(_blocks(report.splitlines()))
    if not blocks:
        raise EvidenceError(
            f"there is no metrics report in the text that starts with {shorten(report)}. A "
            "report has lines like 'Metric: CompileTime' and 'Counter: MarkStep', each with "
            "its fields in the lines below. Paste it whole."
        )
    if any(block.name == _EXACT_MARK for block in blocks):
        return _assemble(blocks, "exact", f"the counter {_EXACT_MARK}")
    return _assemble(blocks, "legacy", f"without the counter {_EXACT_MARK}")


@dataclass(slots=True)
class _Block:
    """The lines of one metric or counter, and the headings above them."""

    kind: str
    name: str
    line: int
    headings: list[str]
    fields: dict[str, tuple[int, str]] = field(default_factory=dict)

    def get(self, name: str) -> str:
        if name not in self.fields:
            raise EvidenceError(
                f"{self.kind} {self.name} has no {name}: the report breaks off or was cut. "
                "Paste it whole.",
                self.line,
            )
        return self.fields[name][1]


def _blocks(lines: list[str]) -> Iterator[_Block]:
    headings: list[str] = []
    block: _Block | None = None
    for at, line in enumerate(lines, 1):
        if start := _BLOCK.fullmatch(line):
            if block is not None:
                yield block
            block = _Block(start[1], start[2], at, headings)
            headings = []
            continue
        found = _FIELD.fullmatch(line)
        if found is not None and block is not None and found[1] not in block.fields:
            block.fields[found[1]] = (at, found[2])
        elif line.strip():
            headings.append(line.strip())
    if block is not None:
        yield block


def _assemble(blocks: list[_Block], rounding: Rounding, evidence: str) -> MetricsReport:
    _check_whole(blocks)
    sections: list[Section] = []
    outer = ""
    for block in blocks:
        titles = [line for line in block.headings if line.endswith(":")][-2:]
        if not sections or titles or _has(sections[-1], block):
            if len(titles) > 1 or not sections:
                outer = titles[0] if len(titles) > 1 else ""
            parts = [part for part in (outer, *titles[-1:]) if part]
            title = " ".join(f"{part.rstrip(':')}:" for part in parts)
            title = title.removesuffix(":")
            sections.append(Section(title=title, metrics=(), counters={}))
        last = sections[-1]
        if block.kind == "Metric":
            metrics = (*last.metrics, _parsed_metric(block, rounding))
            sections[-1] = replace(last, metrics=metrics)
        elif block.name != _EXACT_MARK:
            counters = {**last.counters, block.name: _whole(block, "Value")}
            sections[-1] = replace(last, counters=counters)
    return MetricsReport(sections=tuple(sections), rounding=rounding, evidence=evidence)


def _has(section: Section, block: _Block) -> bool:
    if block.kind == "Counter":
        return block.name in section.counters
    return section.get(block.name) is not None


def _check_whole(blocks: list[_Block]) -> None:
    """Refuse a text whose last metric lacks the percentiles that the others have."""
    metrics = [block for block in blocks if block.kind == "Metric"]
    if len(metrics) > 1 and metrics[-1] is blocks[-1]:
        had = all("Percentiles" in block.fields for block in metrics[:-1])
        if had and metrics[-1].fields:
            metrics[-1].get("Percentiles")


def _parsed_metric(block: _Block, rounding: Rounding) -> Metric:
    def quantity(name: str) -> Quantity | None:
        if name not in block.fields:
            return None
        line, text = block.fields[name]
        try:
            return parse_quantity(text.removesuffix(" / second"), rounding)
        except EvidenceError as error:
            raise EvidenceError(f"{name} of {block.name}: {error}", line) from None

    total = _whole(block, "TotalSamples")
    block.get("Accumulator")
    accumulator, mean = quantity("Accumulator"), quantity("Mean")
    assert accumulator is not None  # noqa: S101 - `get` has raised otherwise
    value_rate, rate = quantity("ValueRate"), quantity("Rate")
    if mean is None and value_rate is not None and rate is not None and rate.value:
        mean = Quantity(accumulator.unit, value_rate.value / rate.value)
    return Metric(
        name=block.name,
        total_samples=total,
        accumulator=accumulator,
        mean=mean,
        std_dev=quantity("StdDev"),
        value_rate=value_rate,
        rate=None if rate is None else rate.value,
        percentiles=_parsed_percentiles(block, rounding),
        line=block.line,
    )


def _parsed_percentiles(block: _Block, rounding: Rounding) -> dict[float, Quantity]:
    if "Percentiles" not in block.fields:
        return {}
    line, text = block.fields["Percentiles"]
    found: dict[float, Quantity] = {}
    for part in text.split(";"):
        share = _SHARE.fullmatch(part.strip())
        if share is None:
            raise EvidenceError(
                f"Percentiles of {block.name}: {shorten(part.strip())} is no percentile. "
                "Expected parts like 50%=029ms283.217us with ; in between; the line may "
                "have been cut.",
                line,
            )
        try:
            found[float(share[1])] = parse_quantity(share[2], rounding)
        except EvidenceError as error:
            raise EvidenceError(f"Percentiles of {block.name}: {error}", line) from None
    return found


def _whole(block: _Block, name: str) -> int:
    text = block.get(name)
    if not text.isdecimal():
        raise EvidenceError(
            f"{name} of {block.name} is {shorten(text)}, which is no whole number. The text "
            "is not what the report had.",
            block.fields[name][0],
        )
    return int(text)


def _json(text: str) -> Mapping[str, Any]:
    try:
        plain = json.loads(text)
    except json.JSONDecodeError as error:
        raise EvidenceError(
            f"the text starts like JSON and is none: {error.msg} (column {error.colno}).",
            error.lineno,
        ) from None
    return plain  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, repr=False)
class ReportDiff(Showable):
    """Two reports side by side, by name.

    Attributes:
        metrics: For each metric of either report, in the order of the first, both sides.
        counters: Likewise for counters; one that a report does not have is 0 there.
    """

    metrics: Mapping[str, tuple[Metric | None, Metric | None]]
    counters: Mapping[str, tuple[int, int]]

    @property
    def changed_counters(self) -> dict[str, tuple[int, int]]:
        """The counters that differ."""
        return {
            name: pair for name, pair in self.counters.items() if pair[0] != pair[1]
        }

    @property
    def new_fallbacks(self) -> list[str]:
        """Ops that ran on the CPU in the second report only."""
        return [
            name
            for name, (before, after) in self.counters.items()
            if name.startswith("aten::") and not before and after
        ]

    def doc(self) -> Doc:
        """Return tables of what differs."""
        parts: list[Part] = []
        if self.metrics:
            rows = [_change_row(name, *pair) for name, pair in self.metrics.items()]
            parts.append(Table(_CHANGE_HEADER, rows))
        if self.changed_counters:
            changed = [
                (name, before, after, f"{after - before:+,}")
                for name, (before, after) in self.changed_counters.items()
            ]
            parts.append(Table(_COUNTER_HEADER, changed))
        notes = map(Sentence, self._notes())
        return Doc([*parts, *notes], css_class="lazyviz-metrics", gap="\n\n")

    def _notes(self) -> list[str]:
        notes = []
        same = len(self.counters) - len(self.changed_counters)
        if same:
            notes.append(f"{text.plural(same, 'counter')} without a change.")
        if self.new_fallbacks:
            notes.append(f"New on the CPU: {', '.join(self.new_fallbacks)}.")
        return notes


Comparable = str | Mapping[str, Any] | MetricsReport | Section


def compare_reports(before: Comparable, after: Comparable) -> ReportDiff:
    """Return what changed from one metrics report to another.

    Args:
        before: A report as text, JSON, plain data, what `parse_report` returned, or one of
            its sections.
        after: Likewise.

    Raises:
        EvidenceError: One of them is no report, or a text with several.
    """
    first, second = _only_section(before, "first"), _only_section(after, "second")
    names = dict.fromkeys(m.name for m in (*first.metrics, *second.metrics))
    counters = dict.fromkeys((*first.counters, *second.counters))
    return ReportDiff(
        {name: (first.get(name), second.get(name)) for name in names},
        {
            name: (first.counters.get(name, 0), second.counters.get(name, 0))
            for name in counters
        },
    )


def _only_section(report: Comparable, which: str) -> Section:
    if isinstance(report, Section):
        return report
    if not isinstance(report, MetricsReport):
        report = parse_report(report)
    if len(report.sections) != 1:
        titles = ", ".join(repr(section.title) for section in report.sections)
        raise EvidenceError(
            f"the {which} text holds {len(report.sections)} reports: {titles}. Pass one of "
            "them: parse_report(text).sections[0]."
        )
    return report.sections[0]


def _change_row(name: str, before: Metric | None, after: Metric | None) -> list[object]:
    totals = [m.accumulator if m else None for m in (before, after)]
    means = [m.mean if m else None for m in (before, after)]
    return [
        name,
        before.total_samples if before else "",
        after.total_samples if after else "",
        *map(number, totals),
        _ratio(*totals),
        *map(number, means),
        _ratio(*means),
    ]


def _ratio(before: Quantity | None, after: Quantity | None) -> str:
    if before is None or after is None or not before.value:
        return ""
    return f"{after.value / before.value:.3g}"
