"""A metrics report that was read, and its tables: for a terminal, for a notebook, as plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lazyviz.doc import Doc, Drawn, Fold, Heading, Note, Part, Points, Table
from lazyviz.foreign.evidence import Evidence, EvidenceError
from lazyviz.foreign.metrics import (
    Behind,
    Call,
    Finding,
    Metric,
    Quantity,
    Section,
    find,
)
from lazyviz.render import html, text
from lazyviz.render.html import Fragment, markup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lazyviz.foreign.metrics import Rounding

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
        """Return measured values as plain data, with what was printed where that differs."""
        return {
            "rounding": self.rounding,
            "evidence": self.evidence,
            "sections": [
                {
                    "title": section.title,
                    "metrics": {m.name: _metric_dict(m) for m in section.metrics},
                    "counters": dict(section.counters),
                }
                for section in self.sections
            ],
            "findings": [str(finding) for finding in self.findings()],
        }


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
                cell[at] = _with_printed(str(row[total]), str(row[printed]))
    return Table([header[0], *(header[k] for k in keep)], cells)


def _with_printed(total: str, printed: str) -> Fragment:
    """Return what was measured, and below it what had been printed of it."""
    return Fragment(
        f"{html.breakable(total)}<br/><small>printed as {html.breakable(printed)}</small>"
    )


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
    step = "" if call.step is None else call.step
    graph = call.graph[:_GRAPH_DIGITS]
    return [number(quantity), step, call.site, graph, call.reason]


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


def _metric_dict(metric: Metric) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "unit": metric.unit,
        "total_samples": metric.total_samples,
        "accumulator": metric.accumulator.value,
        "mean": None if metric.mean is None else metric.mean.value,
        "std_dev": None if metric.std_dev is None else metric.std_dev.value,
        "rate": metric.rate,
        "percentiles": {f"{p:g}%": q.value for p, q in metric.percentiles.items()},
    }
    printed = {
        name: quantity.printed
        for name, quantity in (
            ("accumulator", metric.accumulator),
            ("mean", metric.mean),
            ("std_dev", metric.std_dev),
            *((f"{p:g}%", q) for p, q in metric.percentiles.items()),
        )
        if quantity is not None and quantity.error
    }
    return {**plain, "printed": printed} if printed else plain
