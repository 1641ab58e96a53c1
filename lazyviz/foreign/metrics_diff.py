"""What changed between two metrics reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazyviz.doc import Doc, Part, Sentence, Showable, Table
from lazyviz.foreign.evidence import EvidenceError
from lazyviz.foreign.metrics import Section
from lazyviz.foreign.metrics_parse import parse_report
from lazyviz.foreign.metrics_report import MetricsReport, number
from lazyviz.render import text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lazyviz.foreign.metrics import Metric
    from lazyviz.foreign.quantities import Quantity

    Comparable = str | Mapping[str, Any] | MetricsReport | Section

_HEADER = ["metric", "samples", "then", "total", "then", "×", "mean", "then", "×"]
_COUNTER_HEADER = ["counter", "value", "then", "difference"]


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
            parts.append(Table(_HEADER, self._metric_rows()))
        if self.changed_counters:
            parts.append(Table(_COUNTER_HEADER, self._counter_rows()))
        notes = map(Sentence, self._notes())
        return Doc([*parts, *notes], css_class="lazyviz-metrics", gap="\n\n")

    def _metric_rows(self) -> list[list[object]]:
        return [_row(name, *pair) for name, pair in self.metrics.items()]

    def _counter_rows(self) -> list[list[object]]:
        return [
            [name, before, after, f"{after - before:+,}"]
            for name, (before, after) in self.changed_counters.items()
        ]

    def _notes(self) -> list[str]:
        notes = []
        same = len(self.counters) - len(self.changed_counters)
        if same:
            notes.append(f"{text.plural(same, 'counter')} without a change.")
        if self.new_fallbacks:
            notes.append(f"New on the CPU: {', '.join(self.new_fallbacks)}.")
        return notes


def compare_reports(before: Comparable, after: Comparable) -> ReportDiff:
    """Return what changed from one metrics report to another.

    Args:
        before: A report as text, JSON, plain data, what `parse_report` returned, or one of
            its sections.
        after: Likewise.

    Raises:
        EvidenceError: One of them is no report, or a text with several.
    """
    first, second = _section(before, "first"), _section(after, "second")
    names = dict.fromkeys(m.name for m in (*first.metrics, *second.metrics))
    counters = dict.fromkeys((*first.counters, *second.counters))
    return ReportDiff(
        {name: (first.get(name), second.get(name)) for name in names},
        {
            name: (first.counters.get(name, 0), second.counters.get(name, 0))
            for name in counters
        },
    )


def _section(report: Comparable, which: str) -> Section:
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


def _row(name: str, before: Metric | None, after: Metric | None) -> list[object]:
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
