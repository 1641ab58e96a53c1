"""`%lazy status`, `metrics`, `live`, `step`, `why`, `cache` and others: what a session did and holds."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from lazyviz import session as sessions
from lazyviz import views
from lazyviz.doc import Doc, Drawn, Part, Sentence
from lazyviz.foreign.metrics_parse import parse_report
from lazyviz.inspection import executables, live, tables
from lazyviz.inspection.cuts import cut_of
from lazyviz.render import text
from lazyviz.render.cuts import cut_html, cut_text
from lazyviz.shell.expressions import names_hint
from lazyviz.views import (
    CHANGES,
    PASSED_ON,
    PENDING,
    RESOURCES,
    Command,
    ReportPart,
    view,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazyviz.views import Typed

_EXPORT = "--export"
_METRICS_OPTIONS = ("--legacy", "--raw")
_REPORT_OPTIONS = ("--force", "--no-source")
_KIB = 2**10


@view(
    "status",
    help={"%lazy, %lazy status": "what is pending, what ran so far, and the settings"},
    topic=PENDING,
)
def _status(asked: Command) -> Doc:
    asked.refuse_rest()
    return tables.status(sessions.runtime(), asked.session)


@view(
    "reuse",
    magic="EXPR",
    help="what looking at a pending tensor costs, as a peek and with materialise(EXPR, "
    "reuse=True); runs nothing",
    topic=PENDING,
    offers=views.tensors,
)
def _reuse(asked: Command) -> Doc:
    if not asked.rest:
        raise UsageError(
            "%lazy reuse takes a pending tensor, such as %lazy reuse loss, to tell what "
            "looking at it costs." + names_hint(asked.shell.user_ns)
        )
    tensors = asked.tensors(asked.rest)
    if len(tensors) != 1 or not asked.runtime.is_pending(tensors[0]):
        raise UsageError(
            f"%lazy reuse takes one pending tensor; {asked.rest} is "
            f"{'computed already' if len(tensors) == 1 else 'several tensors'}."
        )
    return Doc([Sentence(str(asked.runtime.reuse_choice(tensors[0])))])


@view("step", magic="[N]", help="the last N steps: what ended each, what it cost")
def _step(asked: Command) -> Doc:
    rest = asked.rest
    if rest and not (rest.isdecimal() and int(rest)):
        name = f" {rest}" if rest.isidentifier() else ""
        raise UsageError(
            f"%lazy step {rest}: {rest!r} is not a number of steps. To run a cell as "
            f"a step, start it with %%lazy step{name}."
        )
    return tables.steps(asked.session.steps[-int(rest or 10) :])


@view(
    "why",
    magic="[STEP]",
    help="why a step was compiled, the latest one by default",
)
def _why(asked: Command) -> Part:
    step = asked.step("alone, it explains the latest compile.")
    with views.refused():
        found = asked.runtime.explain(step)
    if found is None:
        return tables.why(None, None)
    graph, cut = (
        asked.runtime.graph_of_step(found.step),
        cut_of(asked.runtime, found.step),
    )
    parts: list[Part] = [tables.why(found, graph)]
    if cut is not None:
        parts.append(Drawn(cut_text(cut), lambda: cut_html(cut, is_open=True)))
    return Doc(parts)


@view("graphs", help="every compiled graph: size, runs, compile time, cause")
def _graphs(asked: Command) -> Doc:
    asked.refuse_rest()
    return tables.graphs(asked.runtime.compiled_graphs())


@view(
    "timeline",
    magic="[N]",
    help=f"where the time of the last N cells went; {_EXPORT} FILE.json writes the session for "
    "Perfetto",
    topic=RESOURCES,
    offers=lambda at: views.options(_EXPORT)(at) if not at.given else (),
)
def _timeline(asked: Command) -> Doc | None:
    from lazyviz.timing import timeline as timelines

    with views.refused():
        shown = timelines.run_magic(asked.session, asked.rest)
    if isinstance(shown, timelines.TimelineShown):
        shown.show(asked.shell)
        return None
    return Doc([Sentence(f"Written to {shown}. https://ui.perfetto.dev opens it.")])


@view(
    "compile",
    magic="[STEP]",
    help="what compiling takes, or will take, and for which blocks",
    topic=RESOURCES,
)
def _compile(asked: Command) -> Doc:
    from lazyviz.timing import compile_share

    step = asked.step("alone, it tells of what is pending, or of the latest compile.")
    graph = asked.runtime.pending_graph() if step is None else None
    with views.refused():
        if graph is not None and graph.nodes:
            expected = asked.session.expectations
            shares = compile_share.of_pending(asked.runtime, graph, expected)
        else:
            shares = compile_share.of_step(asked.runtime, step)
    return shares.doc()


@view(
    "metrics",
    help="counts and times of the whole session, and what stands out; --raw and --legacy print "
    "torch_xla's format",
    topic=RESOURCES,
    offers=_METRICS_OPTIONS,
    report=ReportPart("Metrics", 512 * _KIB),
)
def _metrics(asked: Command) -> Doc:
    if not asked.rest:
        return parse_report(asked.runtime.metrics_report("dict")).doc()
    if asked.rest not in _METRICS_OPTIONS:
        raise UsageError(
            f"%lazy metrics {asked.rest}: the only options are --raw (the report in torch_xla's "
            "format) and --legacy (the same with the original's rounding)."
        )
    is_legacy = asked.rest == "--legacy"
    return Doc([Sentence(asked.runtime.metrics_report(legacy=is_legacy))])


@view(
    "live",
    help="tensors on the device: size, age, line, who holds them, what grows; --sort COLUMN, "
    "--reverse, --above N pending ops",
    topic=RESOURCES,
    offers=live.offered,
    report=ReportPart("Live tensors", 256 * _KIB),
)
def _live(asked: Command) -> Doc:
    runtime, shell = asked.runtime, asked.shell
    with views.refused():
        chosen = live.options(asked.rest)
    found = live.report(runtime, shell, chosen)

    def widget() -> Any:
        from lazyviz.widgets.live_view import LiveView

        return LiveView(runtime, shell, chosen, "lzl-twin")

    shown = Drawn(found.to_text(), found.to_html)
    return Doc([shown], css_class="lzl-twin", live=widget if found.rows else None)


def _cache_words(at: Typed) -> Iterable[str]:
    match at.given:
        case []:
            return ("--sort", "drop")
        case ["--sort"]:
            return executables.ORDERS
        case ["drop"]:
            return ("all", "older")
    return ()


@view(
    "cache",
    help="executables in memory and on disk: age, size, line, hits; --sort COLUMN; cache drop "
    "KEY, drop all, drop older 7d",
    topic=RESOURCES,
    offers=_cache_words,
    report=ReportPart("Executables", 256 * _KIB),
)
def _cache(asked: Command) -> Doc:
    runtime = asked.runtime
    command, *words = asked.rest.split() or [""]
    with views.refused():
        if command == "drop":
            return Doc([Sentence(executables.drop(runtime, words))])
        if command == "--sort" and len(words) == 1:
            found = executables.ordered(runtime.cached_executables(), words[0])
            return executables.doc(found)
    if command:
        raise UsageError(executables.unknown(asked.rest))
    entries = runtime.cached_executables()

    def widget() -> Any:
        from lazyviz.widgets.cache_view import CacheView

        return CacheView(runtime, "lzx-twin")

    shown = executables.doc(entries)
    return Doc([shown], css_class="lzx-twin", live=widget if entries else None)


def _droppable(at: Typed) -> Iterable[str]:
    results = (f"Out[{k}]" for k in at.namespace.get("Out", ()))
    return () if at.given else (*at.tensors, live.TRACEBACK, *results)


@view(
    "drop",
    help="drop the pending ops, unrun; drop NAME, drop Out[4], drop traceback let go of tensors "
    "and say what still holds them",
    topic=CHANGES,
    offers=_droppable,
)
def _drop(asked: Command) -> Doc:
    if asked.rest:
        with views.refused():
            return Doc([Sentence(live.drop(asked.runtime, asked.shell, asked.rest))])
    dropped = asked.runtime.discard_pending()
    ops = text.plural(dropped, "pending op")
    said = (
        f"Dropped {ops}. Tensors that only they would have made are lost; others keep the data "
        "that they had."
    )
    return Doc([Sentence(said if dropped else "Nothing is pending.")])


@view(
    "eager",
    magic="on|off",
    help="compile and run each op by itself from now on, or record again; alone, say which mode "
    "holds, and every setting with its origin",
    topic=CHANGES,
    offers=("off", "on"),
)
def _eager(asked: Command) -> Doc:
    runtime, rest = asked.runtime, asked.rest
    if rest in {"on", "off"}:
        origin = f"%lazy eager {rest}"
        if asked.session.cell_number is not None:
            origin += f" in cell {asked.session.cell_number}"
        runtime.config.set("eager", value=rest == "on", origin=origin)
    elif rest:
        raise UsageError(
            f"%lazy eager {rest}: {rest!r} is neither on nor off, so the mode stays "
            f"{runtime.mode()}. Alone, %lazy eager says who set it."
        )
    mode = runtime.mode()
    line = f"mode: {mode}, set by {mode.scope}"
    return Doc([Sentence(line)]) if rest else tables.settings(line, runtime.config)


@view(
    "on",
    help={"%lazy on, %lazy off": "show a strip after each cell, or none"},
    topic=CHANGES,
)
def _on(asked: Command) -> None:
    asked.refuse_rest()
    asked.session.strips = True


@view("off", help={}, topic=CHANGES)
def _off(asked: Command) -> None:
    asked.refuse_rest()
    asked.session.strips = False


@view(
    "report",
    magic="FILE",
    help="the session as one web page for a bug report, FILE.html; --no-source leaves the "
    "cells' source out, --force replaces any file",
    topic=PASSED_ON,
    offers=views.options(*_REPORT_OPTIONS),
)
def _report(asked: Command) -> Doc:
    from lazyviz.documents import session_report

    with views.refused(f"%lazy report {asked.rest}: "):
        words = shlex.split(asked.rest)
    names = [word for word in words if not word.startswith("--")]
    unknown = [word for word in words if word.startswith("--")]
    flags = set(_REPORT_OPTIONS) & set(unknown)
    if len(names) != 1 or set(unknown) != flags:
        raise UsageError(
            f"%lazy report takes one file, such as report.html, and knows the options "
            f"--no-source and --force; it got {asked.rest!r}."
        )
    with views.refused("%lazy report: ", session_report.ReportError):
        written = session_report.write(
            names[0], source="--no-source" not in flags, force="--force" in flags
        )
    return Doc([Sentence(str(written))])


@view(
    "help",
    magic="[NAME]",
    help="this text, or what it says of one subcommand",
    topic=PASSED_ON,
    offers=lambda at: () if at.given else sorted({*views.VIEWS, *views.CELL_USAGE}),
)
def _help(asked: Command) -> Doc:
    if asked.rest and asked.rest not in {*views.VIEWS, *views.CELL_USAGE}:
        raise UsageError(views.unknown(asked.rest))
    return views.help_page(asked.rest)
