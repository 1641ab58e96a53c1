"""A metrics report that was read: sections, metrics, counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lazyviz.foreign.evidence import Evidence, EvidenceError
from lazyviz.foreign.quantities import Quantity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lazyviz.foreign.findings import Finding
    from lazyviz.foreign.quantities import Rounding, Unit

WINDOW = 1024


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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MetricsReport(Evidence):
    """What `lazyviz.parse_report` returns.

    Attributes:
        sections: One for each report in the text.
        rounding: Whether its durations are printed exactly or as wrongly as torch_xla does;
            `mixed` for a text with reports of both kinds, each read as it was printed.
        evidence: How that was found out.
    """

    sections: tuple[Section, ...]
    rounding: Rounding | Literal["mixed"]
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
        from lazyviz.foreign.findings import find

        return [finding for section in self.sections for finding in find(section)]

    def text(self) -> str:
        """Return tables for a terminal, with the measured values."""
        from lazyviz.foreign.metrics_view import report_text

        return report_text(self)

    def to_html(self) -> str:
        """Return tables for a notebook, with measured and printed values."""
        from lazyviz.foreign.metrics_view import report_html

        return report_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the measured values as plain data."""
        from lazyviz.foreign.metrics_view import report_dict

        return report_dict(self)


def from_live(plain: Mapping[str, Any]) -> MetricsReport:
    """Return the report of `lazyrt.metrics_report("dict")`.

    Raises:
        EvidenceError: The mapping is something else.
    """
    try:
        metrics = tuple(_live_metric(n, m) for n, m in plain["metrics"].items())
        counters, fallbacks = dict(plain["counters"]), dict(plain["fallbacks"])
    except (KeyError, TypeError, AttributeError) as error:
        raise EvidenceError(
            f"this mapping is no metrics report: {type(error).__name__} {error}. Give the "
            'result of lazyrt.metrics_report("dict"), its JSON, or the text of a report.'
        ) from None
    section = Section(title="", metrics=metrics, counters=counters, fallbacks=fallbacks)
    return MetricsReport(
        sections=(section,), rounding="exact", evidence="numbers of a running lazyrt"
    )


def _live_metric(name: str, plain: Mapping[str, Any]) -> Metric:
    unit, everything, window = plain["unit"], plain["all"], plain["window"]
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
