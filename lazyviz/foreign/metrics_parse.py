"""The text of a metrics report, old or new, to a `MetricsReport`; what changed between two."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lazyviz.doc import Doc, Part, Sentence, Showable, Table
from lazyviz.foreign import EvidenceError, shorten
from lazyviz.foreign.metrics_report import (
    Metric,
    MetricsReport,
    Quantity,
    Rounding,
    Section,
    from_live,
    number,
    parse_quantity,
)
from lazyviz.render import text

if TYPE_CHECKING:
    from collections.abc import Iterator

    Comparable = str | Mapping[str, Any] | MetricsReport | Section

_EXACT_MARK = "lazyrt::exact_durations"
_BLOCK = re.compile(r"\s*(Metric|Counter): (\S+)\s*")
_FIELDS = "TotalSamples|Accumulator|Mean|StdDev|ValueRate|Rate|Percentiles|Value"
_FIELD = re.compile(rf"\s*({_FIELDS}): (.*?)\s*")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%=(\S+)")

_HEADER = ["metric", "samples", "then", "total", "then", "×", "mean", "then", "×"]
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
            metrics = (*last.metrics, _metric(block, rounding))
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


def _metric(block: _Block, rounding: Rounding) -> Metric:
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
        percentiles=_percentiles(block, rounding),
        line=block.line,
    )


def _percentiles(block: _Block, rounding: Rounding) -> dict[float, Quantity]:
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
            rows = [_row(name, *pair) for name, pair in self.metrics.items()]
            parts.append(Table(_HEADER, rows))
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
