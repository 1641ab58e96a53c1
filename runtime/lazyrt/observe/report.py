"""The metrics report: in torch_xla's format, as plain data, as JSON, as HTML.

`TotalSamples` and `Accumulator` are over everything since the last reset; `Mean`, `StdDev`,
`Rate` and the percentiles are over a window of the latest 1,024 samples, as in the original.
"""

from __future__ import annotations

import html
import json
import math
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lazygraph.readable import bytes_text, time_text, value_text
from lazyrt.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lazyrt.observe.events import SourceLocation


# --------------------------------------------------------------------------- one metric


Unit = Literal["ns", "bytes", "count"]

WINDOW = 1024
PERCENTILES = (0.25, 0.5, 0.8, 0.9, 0.95, 0.99)
SHOWN_SAMPLES = 5


@dataclass(slots=True)
class Sample:
    """One measured value.

    Attributes:
        time_ns: When it was taken, by `time.perf_counter_ns`.
        value: Nanoseconds, bytes or a count.
        graph: Fingerprint of the graph that it belongs to, or an empty text.
        reason: Why it happened, in words, or an empty text.
        site: The user's line that caused it, None when it is not known (yet).
        step: The runtime's number of the step that it belongs to, None for none.
    """

    time_ns: int
    value: int
    graph: str = ""
    reason: str = ""
    site: SourceLocation | None = None
    step: int | None = None


class Series:
    """The samples of one metric.

    Attributes:
        unit: What the values are.
        count: Number of all samples.
        total: Sum of all samples.
        upper_bounds: How many of all samples may be larger than what they measure.
        window: The latest samples, at most `WINDOW`.
    """

    def __init__(self, unit: Unit) -> None:
        self.unit: Unit = unit
        self.count = 0
        self.total = 0
        self.upper_bounds = 0
        self.window: deque[Sample] = deque(maxlen=WINDOW)

    def add(self, sample: Sample) -> None:
        """Take one sample in."""
        self.count += 1
        self.total += sample.value
        self.window.append(sample)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a report says of one metric.

    Attributes:
        unit: `ns`, `bytes` or `count`.
        total_samples: Number of all samples.
        accumulator: Sum of all samples.
        upper_bounds: How many samples may be larger than what they measure.
        window: Number of samples that the attributes below describe.
        mean: Arithmetic mean.
        std_dev: Standard deviation of the population.
        rate: Samples a second from the first to the last; None when they are one moment.
        percentiles: For each share, the sample at `int(share * window)` in order of size.
        behind: For each share, the samples up to that one and above the share before, the
            largest first, at most five of them; and how many there are.
        largest: The largest sample.
        sites: The lines that caused samples, with how many, the most frequent first.
        reasons: The reasons given, with how many.
    """

    unit: Unit
    total_samples: int
    accumulator: int
    upper_bounds: int
    window: int
    mean: float
    std_dev: float
    rate: float | None
    percentiles: dict[float, Sample]
    behind: dict[float, tuple[int, tuple[Sample, ...]]]
    largest: Sample
    sites: dict[str, int]
    reasons: dict[str, int]


def summarise(series: Series, percentiles: Iterable[float] = PERCENTILES) -> Summary:
    """Return the summary of a series that is not empty."""
    samples, shares = list(series.window), tuple(percentiles)
    count = len(samples)
    ordered = sorted(samples, key=lambda sample: sample.value)
    mean = sum(sample.value for sample in samples) / count
    spread = math.fsum((sample.value - mean) ** 2 for sample in samples) / count
    elapsed = samples[-1].time_ns - samples[0].time_ns
    return Summary(
        unit=series.unit,
        total_samples=series.count,
        accumulator=series.total,
        upper_bounds=series.upper_bounds,
        window=count,
        mean=mean,
        std_dev=math.sqrt(spread),
        rate=count / elapsed * 1e9 if elapsed > 0 else None,
        percentiles={share: ordered[int(share * count)] for share in shares},
        behind=_behind(ordered, shares),
        largest=ordered[-1],
        sites=_ranked(str(sample.site) for sample in samples if sample.site),
        reasons=_ranked(sample.reason for sample in samples if sample.reason),
    )


def _behind(
    ordered: list[Sample], shares: Iterable[float]
) -> dict[float, tuple[int, tuple[Sample, ...]]]:
    """Return for each share the samples from the share below up to its own, largest first."""
    found, low = {}, 0
    for share in sorted(shares):
        rank = int(share * len(ordered))
        part = ordered[min(low, rank) : rank + 1]
        found[share] = (len(part), tuple(part[: -SHOWN_SAMPLES - 1 : -1]))
        low = rank + 1
    return found


def _ranked(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


FORMS = ("text", "dict", "json", "html")
# Names of the original's old server, and those of today.
ALIASES = {"XrtCompile": "CompileTime", "XrtExecute": "ExecuteTime"}
EXACT_MARK = "lazyrt::exact_durations"
SHORT_COUNTERS = ("CachedCompile", "MarkStep")
SHORT_METRICS = (
    "CompileTime", "ExecuteTime", "ExecuteReplicatedTime", "TransferToDeviceTime",
    "TransferFromDeviceTime",
)  # fmt: skip
_GRAPH_DIGITS = 8
_FALLBACK_PREFIX = "aten::"
_HEADER = (
    "metric", "samples", "total", "of the last", "mean", "std dev", "a second",
    "percentiles",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Report:
    """All metrics and counters at one moment.

    Attributes:
        metrics: Summaries by name, in alphabetical order.
        counters: Counts by name, those at zero left out.
        fallbacks: For each op that ran on the CPU, the lines that called it, with counts.
        read_barriers: The lines whose reads ran everything that was pending, with counts.
    """

    metrics: Mapping[str, Summary]
    counters: Mapping[str, int]
    fallbacks: Mapping[str, Mapping[str, int]]
    read_barriers: Mapping[str, int]

    def text(self, *, legacy: bool = False) -> str:
        """Return the report in the original's format.

        Args:
            legacy: Whether to print durations as wrongly as the original does, for
                comparing with its reports. Without it, a counter marks them as exact.
        """
        counters = dict(self.counters)
        if not legacy:
            counters[EXACT_MARK] = 1
        lines: list[str] = []
        for name, summary in self.metrics.items():
            lines += _metric_lines(name, summary, legacy=legacy)
        for name, value in sorted(counters.items()):
            lines += [f"Counter: {name}", f"  Value: {value}"]
        return "\n".join(lines) + "\n"

    def short(
        self,
        counter_names: Iterable[str] | None = None,
        metric_names: Iterable[str] | None = None,
    ) -> Report:
        """Return a report of a few names, and of the ops that ran on the CPU.

        Args:
            counter_names: None for `CachedCompile` and `MarkStep`.
            metric_names: None for the times of compiles, executions and transfers.
        """
        wanted = list(counter_names or SHORT_COUNTERS)
        wanted += [name for name in self.counters if name.startswith(_FALLBACK_PREFIX)]
        names = [ALIASES.get(name, name) for name in metric_names or SHORT_METRICS]
        return Report(
            {name: self.metrics[name] for name in names if name in self.metrics},
            {name: self.counters[name] for name in wanted if name in self.counters},
            self.fallbacks,
            self.read_barriers,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data: times in ns, sizes in bytes, shares in percent."""
        return {
            "metrics": {name: _as_dict(s) for name, s in self.metrics.items()},
            "counters": dict(self.counters),
            "fallbacks": {op: dict(sites) for op, sites in self.fallbacks.items()},
            "read_barriers": dict(self.read_barriers),
        }

    def to_html(self) -> str:
        """Return two tables that need no style sheet and no script."""
        rows = [_html_row(name, summary) for name, summary in self.metrics.items()]
        counts = [
            f"<tr>{_cell(n)}{_cell(f'{v:,}')}</tr>" for n, v in self.counters.items()
        ]
        return (
            f'<div class="lazyrt-metrics">{_table(_HEADER, rows)}'
            f"{_table(('counter', 'value'), counts)}</div>"
        )

    def as_form(self, form: str, *, legacy: bool = False) -> str | dict[str, Any]:
        """Return the report in one of the forms `text`, `dict`, `json`, `html`.

        Raises:
            UsageError: There is no such form, or `legacy` is asked of another one than text.
        """
        if form not in FORMS:
            raise UsageError(
                f"metrics_report() got form={form!r}. It knows "
                f"{', '.join(map(repr, FORMS))}; leave it out for text."
            )
        if legacy and form != "text":
            raise UsageError(
                f"metrics_report() got legacy=True with form={form!r}. Only the text rounds "
                "durations as the original does; the other forms have numbers. Leave out one "
                "of the two."
            )
        if form == "text":
            return self.text(legacy=legacy)
        if form == "html":
            return self.to_html()
        plain = self.to_dict()
        return plain if form == "dict" else json.dumps(plain, indent=2)


def number_text(value: float, unit: Unit, *, legacy: bool = False) -> str:
    """Return a sample's value, or a mean of some, as the report prints it."""
    if unit == "ns":
        return time_text(value, legacy=legacy)
    return bytes_text(value) if unit == "bytes" else value_text(value)


def percent(share: float) -> str:
    """Return `25%` for 0.25."""
    return f"{share * 100:g}%"


def _metric_lines(name: str, summary: Summary, *, legacy: bool) -> list[str]:
    def shown(value: float) -> str:
        return number_text(value, summary.unit, legacy=legacy)

    percentiles = "; ".join(
        f"{percent(share)}={shown(sample.value)}"
        for share, sample in summary.percentiles.items()
    )
    lines = [
        f"Metric: {name}",
        f"  TotalSamples: {summary.total_samples}",
        f"  Accumulator: {shown(summary.accumulator)}",
        f"  Mean: {shown(summary.mean)}",
        f"  StdDev: {shown(summary.std_dev)}",
    ]
    if summary.rate is not None:
        lines.append(f"  Rate: {summary.rate:g} / second")
    return [*lines, f"  Percentiles: {percentiles}"]


def _as_dict(summary: Summary) -> dict[str, Any]:
    return {
        "unit": summary.unit,
        "all": {
            "samples": summary.total_samples,
            "accumulator": summary.accumulator,
            "upper_bounds": summary.upper_bounds,
        },
        "window": {
            "samples": summary.window,
            "mean": summary.mean,
            "std_dev": summary.std_dev,
            "rate": summary.rate,
            "percentiles": {
                percent(p): s.value for p, s in summary.percentiles.items()
            },
            "calls": {
                percent(p): _sample_dict(s) for p, s in summary.percentiles.items()
            },
            "behind": {
                percent(p): {"samples": n, "largest": list(map(_sample_dict, some))}
                for p, (n, some) in summary.behind.items()
            },
            "largest": _sample_dict(summary.largest),
            "sites": summary.sites,
            "reasons": summary.reasons,
        },
    }


def _sample_dict(sample: Sample) -> dict[str, Any]:
    return {
        "value": sample.value,
        "graph": sample.graph,
        "reason": sample.reason,
        "step": sample.step,
        "site": str(sample.site) if sample.site else None,
    }


def _html_row(name: str, summary: Summary) -> str:
    bound = "≤ " if summary.upper_bounds else ""
    rate = "" if summary.rate is None else f"{summary.rate:,.3g}"
    cells = (
        name, f"{summary.total_samples:,}",
        bound + number_text(summary.accumulator, summary.unit), f"{summary.window:,}",
        number_text(summary.mean, summary.unit),
        number_text(summary.std_dev, summary.unit), rate,
    )  # fmt: skip
    return f"<tr>{''.join(map(_cell, cells))}<td>{_percentiles(summary)}</td></tr>"


def _percentiles(summary: Summary) -> str:
    """Return the percentiles, each leading to the samples behind it, under the largest sample."""
    items = "".join(
        f"<li>{_percentile(share, summary)}</li>" for share in summary.percentiles
    )
    largest = html.escape(f"at most {_call(summary.largest, summary.unit)}")
    return f"<details><summary>{largest}</summary><ul>{items}</ul></details>"


def _percentile(share: float, summary: Summary) -> str:
    """Return one percentile's call; a click on it shows the samples up to it."""
    sample = summary.percentiles[share]
    title = html.escape(f"{percent(share)} {_call(sample, summary.unit)}")
    count, some = summary.behind[share]
    if count < 2:  # noqa: PLR2004 - the title is the only one
        return title
    items = "".join(
        f"<li>{html.escape(_call(each, summary.unit))}</li>" for each in some
    )
    more = (
        f"<li>and {count - len(some):,} smaller ones</li>" if count > len(some) else ""
    )
    return f"<details><summary>{title}</summary><ul>{items}{more}</ul></details>"


def _call(sample: Sample, unit: Unit) -> str:
    """Return `27ms160.091us in step 3 at train.py:41, graph fce78766, the first of this process`."""
    parts = [number_text(sample.value, unit)]
    if sample.step is not None:
        parts[0] += f" in step {sample.step}"
    if sample.site is not None:
        parts[0] += f" at {sample.site}"
    if sample.graph:
        parts.append(f"graph {sample.graph[:_GRAPH_DIGITS]}")
    if sample.reason:
        parts.append(sample.reason)
    return ", ".join(parts)


def _cell(text: str) -> str:
    return f'<td style="text-align:left">{html.escape(text)}</td>'


def _table(header: Iterable[str], rows: Iterable[str]) -> str:
    titles = "".join(f"<th>{html.escape(title)}</th>" for title in header)
    return (
        f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )
