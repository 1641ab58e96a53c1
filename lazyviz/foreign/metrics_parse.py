"""The text of a metrics report, old or new, to a `MetricsReport`."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

from lazyviz.foreign.evidence import EvidenceError, shorten
from lazyviz.foreign.metrics import WINDOW, Metric, MetricsReport, Section, from_live
from lazyviz.foreign.quantities import Quantity, Rounding, parse_quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_EXACT_MARK = "lazyrt::exact_durations"
_OURS = "lazyrt::"
_BLOCK = re.compile(r"\s*(Metric|Counter): (\S+)\s*")
_FIELD = re.compile(
    r"\s*(TotalSamples|Accumulator|Mean|StdDev|ValueRate|Rate|Percentiles|Value): (.*?)\s*"
)
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%=(\S+)")
# Printed to a nanosecond each; a rate has six digits.
_MEAN_TOLERANCE = 1_000.0
_RATE_TOLERANCE = 1e-4


def parse_report(
    report: str | Mapping[str, Any], *, rounding: Rounding | None = None
) -> MetricsReport:
    """Read a metrics report: torch_xla's, lazyrt's, or several with text in between.

    torch_xla prints most durations too large, by up to a minute; the result has the measured
    values, which can be had back exactly, and keeps what was printed.

    Args:
        report: The text, the JSON, or the plain data of a report.
        rounding: Who printed it: `legacy` for torch_xla, `exact` for lazyrt. By default it is
            found out from marks and contradictions in the text.

    Raises:
        EvidenceError: There is no report in the text, or one that breaks off.
    """
    if not isinstance(report, str):
        return from_live(report)
    if report.lstrip().startswith("{"):
        return from_live(_json(report))
    blocks = list(_blocks(report.splitlines()))
    if not blocks:
        raise EvidenceError(
            f"there is no metrics report in the text that starts with {shorten(report)}. A "
            "report has lines like 'Metric: CompileTime' and 'Counter: MarkStep', each with "
            "its fields in the lines below. Paste it whole."
        )
    if rounding is not None:
        if rounding not in get_args(Rounding):
            raise EvidenceError(
                f"rounding is {rounding!r}, and nobody prints so. It is one of "
                f"{', '.join(map(repr, get_args(Rounding)))}; without it that is found out."
            )
        return _assemble(blocks, rounding, "as the caller says")
    return _decide(blocks)


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
    for number, line in enumerate(lines, 1):
        start = _BLOCK.fullmatch(line)
        if start is not None:
            if block is not None:
                yield block
            block = _Block(start[1], start[2], number, headings)
            headings = []
            continue
        found = _FIELD.fullmatch(line)
        if found is not None and block is not None and found[1] not in block.fields:
            block.fields[found[1]] = (number, found[2])
        elif line.strip():
            headings.append(line.strip())
    if block is not None:
        yield block


def _decide(blocks: list[_Block]) -> MetricsReport:
    if any(block.name == _EXACT_MARK for block in blocks):
        return _assemble(blocks, "exact", f"the counter {_EXACT_MARK}")
    legacy = _assemble(blocks, "legacy", "")
    exact = _assemble(blocks, "exact", "")
    against_legacy, against_exact = _contradictions(legacy), _contradictions(exact)
    if against_legacy > against_exact:
        return replace(
            exact,
            evidence=f"read as torch_xla prints it would contradict itself {against_legacy} times",
        )
    if against_exact > against_legacy:
        return replace(
            legacy,
            evidence=f"taken at its word it contradicts itself {against_exact} times",
        )
    if any(block.name.startswith(_OURS) for block in blocks):
        return replace(
            legacy, evidence="a report of lazyrt without the mark of exact ones"
        )
    return replace(legacy, evidence="assumed: nothing in it tells who printed it")


def _contradictions(report: MetricsReport) -> int:
    """Return how often a report's numbers contradict each other."""
    return sum(
        (not all(q.possible for q in metric.quantities()))
        + (not _is_sorted(metric.percentiles))
        + (not _mean_fits(metric))
        for metric in report.metrics
    )


def _is_sorted(percentiles: Mapping[float, Quantity]) -> bool:
    values = [percentiles[share].value for share in sorted(percentiles)]
    return all(low <= high for low, high in pairwise(values))


def _mean_fits(metric: Metric) -> bool:
    """Return whether sum and mean agree, where both are over the same samples."""
    if metric.mean is None or metric.total_samples > WINDOW:
        return True
    whole = metric.mean.value * metric.total_samples
    tolerance = _MEAN_TOLERANCE * metric.total_samples
    if not metric.mean.printed:
        tolerance += _RATE_TOLERANCE * metric.accumulator.value
    return math.isclose(whole, metric.accumulator.value, rel_tol=0.01 if metric.unit != "ns"
                        else 0, abs_tol=tolerance)  # fmt: skip


def _assemble(
    blocks: Iterable[_Block], rounding: Rounding, evidence: str
) -> MetricsReport:
    sections: list[_SectionDraft] = []
    outer = ""
    for block in blocks:
        titles = [line for line in block.headings if line.endswith(":")][-2:]
        if not sections or titles or sections[-1].has(block):
            if len(titles) > 1 or not sections:
                outer = titles[0] if len(titles) > 1 else ""
            parts = [part for part in (outer, *titles[-1:]) if part]
            sections.append(_SectionDraft(" ".join(p.rstrip(":") + ":" for p in parts)))
        if block.kind == "Metric":
            sections[-1].metrics.append(_metric(block, rounding))
        else:
            sections[-1].counters[block.name] = _whole(block, "Value")
    return MetricsReport(
        sections=tuple(draft.finish() for draft in sections),
        rounding=rounding,
        evidence=evidence,
    )


@dataclass(slots=True)
class _SectionDraft:
    title: str
    metrics: list[Metric] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)

    def has(self, block: _Block) -> bool:
        if block.kind == "Counter":
            return block.name in self.counters
        return any(metric.name == block.name for metric in self.metrics)

    def finish(self) -> Section:
        counters = {n: v for n, v in self.counters.items() if n != _EXACT_MARK}
        return Section(
            title=self.title.removesuffix(":"),
            metrics=tuple(self.metrics),
            counters=counters,
        )


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
