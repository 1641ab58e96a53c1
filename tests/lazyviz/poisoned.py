"""Every view that is no part of a widget, with one text in all places where a program's text stands."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat

import lazyviz
from lazyrt.execution.executables import CachedExecutable
from lazyrt.execution.peek import Lifetime
from lazyviz.documents import tour
from lazyviz.draw.palette import PHASES
from lazyviz.foreign.metrics_report import Behind, Call
from lazyviz.inspection import tables
from lazyviz.inspection.graph_breaks import GraphBreak
from lazyviz.inspection.numerics import Comparison, NodeDifference, Timeline
from lazyviz.render.timeline_text import CellTime, Span, TimelineView
from lazyviz.timing.timeline import TimelineShown

DATA = Path(__file__).parent.parent / "data"
# What these fields hold is one of our own words, and is looked up.
OURS = frozenset(
    (
        "kind",
        "unit",
        "rounding",
        "format",
        "lane",
        "phase",
        "severity",
        "run",
        "by",
        "body",
    )
)


def poisoned(value, text):
    """Return plain data with `text` in the place of every text that comes from outside."""
    match value:
        case str():
            return text
        case list() | tuple() if not hasattr(value, "_fields"):
            return type(value)(poisoned(each, text) for each in value)
        case Mapping():
            return {
                f"{text}{k}" if isinstance(key, str) else key: poisoned(each, text)
                for k, (key, each) in enumerate(value.items())
            }
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(
            value,
            **{
                each.name: poisoned(getattr(value, each.name), text)
                for each in dataclasses.fields(value)
                if each.init and each.name not in OURS
            },
        )
    return value


@functools.cache
def evidence(name):
    """Return what is read from a sample."""
    return lazyviz.read(DATA / name)


def views(text):
    """Yield each view's name and its HTML."""
    for name in ("report_2022.txt", "pt_xla_debug.log"):
        yield name, poisoned(evidence(name), text).to_html()
    yield "dump of tensors", dump(text).to_html()
    yield "metrics of a session", poisoned(session_metrics(), text).to_html()
    yield "two reports", poisoned(two_reports(), text).to_html()
    yield "executables", tables.doc(executable_rows(text)).to_html()
    runtime: Any = SimpleNamespace(cached_executables=lambda: executable_rows(text))
    yield "executables, live", tables.CacheTable(runtime).table()["html"]
    yield "graph breaks", graph_break(text).to_html()
    yield "comparison", comparison(text)._repr_html_()
    for is_detailed in (False, True):
        yield f"timeline {is_detailed}", shown_timeline(text, is_detailed=is_detailed)
    for kind, parts in (
        ("stream", {"name": "stdout", "text": text}),
        ("error", {"ename": text, "evalue": text, "traceback": [text]}),
    ):
        output = nbformat.v4.new_output(kind, **parts)
        yield f"tour {kind}", tour._output_html(output)


HLO = """HloModule m

ENTRY main {
  p = f32[4] parameter(0)
  a = f32[4] add(p, p)
  ROOT n = f32[4] negate(a)
}
"""


def dump(text):
    """Return a dump whose nodes have the text, too; they are read when somebody asks."""
    whole = evidence("save_tensors.text")
    found = poisoned(whole, text)
    for graph, plain in zip(found.graphs, whole.graphs, strict=True):
        vars(graph)["nodes"] = poisoned(plain.nodes, text)
    return found


@functools.cache
def session_metrics():
    """Return a report with all that only a session knows: lines, graphs, reasons, fallbacks."""
    report = evidence("report_2022.txt")
    section = report.sections[0]
    metric = next(each for each in section.metrics if each.percentiles)
    call = Call("site", "graph", "reason", 3)
    rich = dataclasses.replace(
        metric,
        calls=dict.fromkeys(metric.percentiles, call),
        behind={
            percent: Behind(2, ((quantity, call),))
            for percent, quantity in metric.percentiles.items()
        },
        sites={"site": 2},
        reasons={"reason": 2},
        upper_bounds=1,
    )
    one = dataclasses.replace(
        section, metrics=(rich,), fallbacks={"aten::foo": {"line": 3}}
    )
    return dataclasses.replace(report, sections=(one,))


@functools.cache
def two_reports():
    """Return what differs between two reports."""
    return lazyviz.compare_reports(*evidence("report_2022.txt").sections[:2])


def executable_rows(text):
    """Return executables of each place."""
    return [
        CachedExecutable(
            key=text,
            holds=text,
            tier=text,
            line=text,
            in_memory=k > 0,
            on_disk=k < 2,
            is_usable=k != 1,
            nodes=3,
            nbytes=9,
            age_s=5.0,
            unused_s=4.0,
        )
        for k in range(3)
    ]


def graph_break(text):
    """Return a step that was cut, with its lines."""
    return GraphBreak(title=text, rows=((text, text),), source=(text, text))


def comparison(text):
    """Return two runs that differ."""
    row = NodeDifference(
        node_id=1,
        op=text,
        type=text,
        where=text,
        max_abs=1.0,
        max_ulp=9.0,
        over=True,
        made_ulp=4.0,
        fusion=text,
    )
    lives = Lifetime(name=text, type=text, nbytes=8, born=0, dies=2)
    times = tuple(Timeline(run, (lives, lives)) for run in ("eager", "lazy"))
    return Comparison((row, row), 1, (3, 4), cause=row, timelines=times)


def shown_timeline(text, *, is_detailed):
    """Return a timeline as a cell's result."""
    shown = object.__new__(TimelineShown)
    view = timeline_of(text)
    shown.view = dataclasses.replace(view, lines=[(text, text, 1.0)])
    return shown.doc(is_detailed=is_detailed).to_html()


def timeline_of(text):
    """Return a timeline with a span of each kind, each long enough for a label."""
    second = 10**9
    kinds = [("host", kind) for kind in PHASES]
    kinds += [
        ("step", k)
        for k in (
            "run",
            "block",
            "scope",
            "closure",
            "barrier",
            "implicit barrier",
            "cut",
            "look",
            "fallback",
            "dropped",
        )
    ]
    kinds += [
        ("compile", "lower"),
        ("compile", "load"),
        ("transfer", "to_device"),
        ("transfer", "to_host"),
        ("device", "step"),
        ("device", "peek"),
        ("device", "eager"),
    ]
    spans = [
        Span(lane, kind, f"{kind} {text}", k * second, (k + 1) * second, 3, text, text)
        for k, (lane, kind) in enumerate(kinds)
    ]  # fmt: skip
    end = len(kinds) * second
    cell = CellTime(number=3, start_ns=0, end_ns=end, parts={"trace": end}, device_ns=0)
    return TimelineView(cells=[cell], spans=tuple(spans))
