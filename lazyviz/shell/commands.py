"""The views of `%lazy`: what is pending, what ran and why it was compiled, programs, time and memory."""

from __future__ import annotations

import inspect
import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from lazygraph.graph import HloError
from lazygraph.read.hlo import with_lines, with_named_files
from lazyviz import session as sessions
from lazyviz import views
from lazyviz.doc import Code, Doc, Line, Part, Sentence
from lazyviz.foreign.metrics_report import parse_report
from lazyviz.inspection import live, tables
from lazyviz.inspection.graph_breaks import break_of
from lazyviz.inspection.programs import file_text
from lazyviz.inspection.subjects import LAST, NothingToShow, Target
from lazyviz.render import text
from lazyviz.shell.displayed import graph_doc

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lazyrt import Computation
    from lazyviz.inspection.curves import Curves
    from lazyviz.inspection.protocol import Form


_EXPORT = "--export"
_KIB = 2**10
_NOTHING_TO_DROP = (
    "Nothing is pending, so nothing was dropped. %lazy drop NAME lets go of a tensor; "
    "%lazy live lists them."
)

_STABLEHLO = "--stablehlo"
_MAX_LISTED = 400_000  # characters; what a notebook still opens quickly with


@views.view(
    "status",
    help={"%lazy, %lazy status": "what is pending, what ran so far, and the settings"},
    topic=views.PENDING,
)
def _status(asked: views.Command) -> Doc:
    return tables.status(sessions.runtime(), asked.session)


@views.view(
    "reuse",
    magic="EXPR",
    help="what looking at a pending tensor costs, as a peek and with materialise(EXPR, "
    "reuse=True); runs nothing",
    topic=views.PENDING,
    offers=views.tensors,
)
def _reuse(asked: views.Command) -> Doc:
    if not asked.rest:
        raise UsageError(
            "%lazy reuse takes a pending tensor, such as %lazy reuse loss, to tell what "
            "looking at it costs." + views.names_hint(asked.shell.user_ns)
        )
    tensors = asked.tensors(asked.rest)
    if len(tensors) != 1 or not asked.runtime.is_pending(tensors[0]):
        raise UsageError(
            f"%lazy reuse takes one pending tensor; {asked.rest} is "
            f"{'computed already: printing it runs nothing' if len(tensors) == 1 else 'several tensors'}."
        )
    return Doc([Sentence(str(asked.runtime.reuse_choice(tensors[0])))])


@views.view(
    "step",
    magic="[N]",
    help="the last N steps: what ended each, what it cost; with N, or `last`, in words, too",
)
def _step(asked: views.Command) -> Doc:
    rest = "1" if asked.rest == LAST else asked.rest
    if rest and not (rest.isdecimal() and int(rest)):
        name = f" {rest}" if rest.isidentifier() else ""
        raise UsageError(
            f"%lazy step {rest}: {rest!r} is not a number of steps. To run a cell as "
            f"a step, start it with %%lazy step{name}."
        )
    timeline = asked.session.timeline
    spans = timeline.spans if rest and timeline is not None else None
    return tables.steps(asked.session.steps[-int(rest or 10) :], spans)


@views.view(
    "why",
    magic="[STEP]",
    help="why a step was compiled, the latest one that was by default",
    offers=views.graphs,
)
def _why(asked: views.Command) -> Part:
    target = asked.target(asked.rest) if asked.rest else None
    if target is not None and target.step is None:
        raise NothingToShow(
            f"{asked.rest} is pending: no step has computed it yet. %lazy compile {asked.rest} "
            "says what compiling it will take."
        )
    step = None if target is None else target.step
    with views.refused():
        found = asked.runtime.explain(step)
    if found is None:
        return tables.why(None, None)
    graph = asked.runtime.graph_of_step(found.step)
    drawn = break_of(asked.runtime, found.step)
    parts: list[Part] = [tables.why(found, graph)]
    if drawn is not None:
        parts.append(drawn.doc(is_open=True))
    return Doc(parts)


@views.view("graphs", help="every compiled graph: size, runs, compile time, cause")
def _graphs(asked: views.Command) -> Doc:
    runtime = asked.runtime
    return tables.graphs(runtime.compiled_graphs(), runtime.counters())


@views.view(
    "buckets",
    help="to which sizes inputs that vary should be padded, so that compiling and running take "
    "the least time together",
    topic=views.RESOURCES,
)
def _buckets(asked: views.Command) -> Doc:
    from lazyviz.timing import buckets

    runtime = asked.runtime
    times = buckets.measured(runtime, asked.session.steps)
    graphs, executables = runtime.compiled_graphs(), runtime.cached_executables()
    return buckets.doc(buckets.families(graphs, times, executables))


@views.view(
    "timeline",
    magic="[N]",
    help=f"where the time of the last N cells went; {_EXPORT} FILE.json writes the session for "
    "Perfetto",
    topic=views.RESOURCES,
    options=(views.Option(_EXPORT, "FILE.json"),),
)
def _timeline(asked: views.Command) -> Doc:
    from lazyviz.timing import timeline as timelines

    with views.refused():
        shown = timelines.run_magic(asked.session, asked.rest)
    if isinstance(shown, timelines.TimelineShown):
        return shown.doc()
    return Doc([Sentence(f"Written to {shown}. https://ui.perfetto.dev opens it.")])


@views.view(
    "curves",
    help="what `lazyviz.track(loss=loss)` has taken over the steps, with step time, memory and "
    "compiles",
    topic=views.RESOURCES,
)
def _curves(asked: views.Command) -> Doc:
    curves: Curves = asked.session.curves
    shown = curves.shown(asked.session.steps)
    if shown is None:
        raise NothingToShow(
            "Nothing was tracked yet. Call lazyviz.track(loss=loss) in the loop: it reads the "
            "loss without a graph break."
        )
    return shown.doc()


@views.view(
    "profile",
    help={
        "[S]": "the last profile: the lines that waited, the device's time by line, the steps; of "
        "the last S seconds, if they are kept",
        "on [S]": "keep the last S seconds, by default 30; %lazy profile off ends that",
    },
    topic=views.RESOURCES,
    offers=("off", "on"),
)
def _profile(asked: views.Command) -> Doc:
    from lazyviz.timing import capture

    _ = asked.runtime
    with views.refused():
        found = capture.run_magic(asked.rest)
    return Doc([Sentence(found)]) if isinstance(found, str) else capture.doc(found)


@views.view(
    "compile",
    magic="[STEP]",
    help="what compiling takes, or will take, and for which blocks",
    topic=views.RESOURCES,
    offers=views.graphs,
)
def _compile(asked: views.Command) -> Doc:
    from lazyviz.timing import compile_time

    target = asked.target(asked.rest)
    with views.refused():
        if target.step is None:
            expected = asked.session.expectations
            return compile_time.of_pending(asked.runtime, target.graph, expected)
        return compile_time.of_step(asked.runtime, target.step)


@views.view(
    "metrics",
    help="counts and times of the whole session, and what stands out; --raw and --legacy print "
    "torch_xla's format",
    topic=views.RESOURCES,
    options=(views.Option("--legacy"), views.Option("--raw")),
    report=views.ReportPart("Metrics", 512 * _KIB),
)
def _metrics(asked: views.Command) -> Doc:
    rest, options = asked.read()
    asked.refuse(rest)
    if not options:
        return parse_report(asked.runtime.metrics_report("dict")).doc()
    is_legacy = "--legacy" in options
    return Doc([Sentence(asked.runtime.metrics_report(legacy=is_legacy))])


def _live_columns() -> Sequence[str]:
    from lazyrt.tools import LIVE_COLUMNS

    return LIVE_COLUMNS


@views.view(
    "live",
    help="tensors on the device: size, age, line, who holds them, what grows; --sort COLUMN, "
    "--reverse, --above N pending ops",
    topic=views.RESOURCES,
    options=(
        views.Option("--above", "a number of pending ops"),
        views.Option("--reverse"),
        views.Option("--sort", "a column", _live_columns),
    ),
    report=views.ReportPart("Live tensors", 256 * _KIB),
)
def _live(asked: views.Command) -> Doc:
    runtime, shell = asked.runtime, asked.shell
    rest, options = asked.read()
    asked.refuse(rest)
    above = options.get("--above", "0")
    if not above.isdecimal():
        raise UsageError(
            f"%lazy live --above: {above!r} is no number of pending ops. Give a whole number, as 20."
        )
    chosen: dict[str, Any] = {
        "above": int(above),
        "sort": options.get("--sort", "size"),
        "reverse": "--reverse" in options,
    }
    found = live.report(runtime, shell, **chosen)

    def widget() -> Any:
        from lazyviz.widgets import TableView

        return TableView(live.LiveTable(runtime, shell, **chosen), "lzl-twin", shell)

    shown = live.live_doc(found)
    return Doc([shown], css_class="lzl-twin", live=widget if found.rows else None)


@views.view(
    "cache",
    help="executables in memory and on disk: age, size, line, hits; --sort COLUMN; cache drop "
    "KEY, drop all, drop older 7d",
    topic=views.RESOURCES,
    offers=lambda at: {(): ("drop",), ("drop",): ("all", "older")}.get(
        (*at.given,), ()
    ),
    options=(views.Option("--sort", "an order", lambda: tables.ORDERS),),
    report=views.ReportPart("Executables", 256 * _KIB),
)
def _cache(asked: views.Command) -> Doc:
    runtime = asked.runtime
    words, options = asked.read()
    if words[:1] == ["drop"]:
        with views.refused():
            return Doc([Sentence(tables.drop(runtime, words[1:]))])
    if words:
        raise UsageError(tables.unknown(asked.rest))
    if options:
        found = tables.ordered(runtime.cached_executables(), options["--sort"])
        return tables.doc(found)
    entries = runtime.cached_executables()

    def widget() -> Any:
        from lazyviz.widgets import TableView

        return TableView(tables.CacheTable(runtime), "lzx-twin")

    shown = tables.doc(entries)
    return Doc([shown], css_class="lzx-twin", live=widget if entries else None)


def _droppable(at: views.Typed) -> Iterable[str]:
    results = (f"Out[{k}]" for k in at.namespace.get("Out", ()))
    return () if at.given else (*at.tensors, live.TRACEBACK, *results)


@views.view(
    "drop",
    help="drop the pending ops, unrun; drop NAME, drop Out[4], drop traceback let go of tensors "
    "and say what still holds them",
    topic=views.CHANGES,
    offers=_droppable,
)
def _drop(asked: views.Command) -> Doc:
    if asked.rest:
        with views.refused():
            return Doc([Sentence(live.drop(asked.runtime, asked.shell, asked.rest))])
    dropped = asked.runtime.discard_pending()
    ops = text.plural(dropped, "pending op")
    said = (
        f"Dropped {ops}. Tensors that only they would have made are lost; others keep the data "
        "that they had."
    )
    return Doc([Sentence(said if dropped else _NOTHING_TO_DROP)])


@views.view(
    "eager",
    magic="on|off",
    help="compile and run each op by itself from now on, or record again; alone, say which mode "
    "holds, and every setting with its origin",
    topic=views.CHANGES,
    offers=("off", "on"),
)
def _eager(asked: views.Command) -> Doc:
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


@views.view(
    "on",
    help={"%lazy on, %lazy off": "show a strip after each cell, or none"},
    topic=views.CHANGES,
)
def _on(asked: views.Command) -> None:
    asked.session.strips = True


@views.view("off", help={}, topic=views.CHANGES)
def _off(asked: views.Command) -> None:
    asked.session.strips = False


@views.view(
    "report",
    magic="FILE",
    help="the session as one web page for a bug report, FILE.html; --no-source leaves the "
    "cells' source out, --force replaces any file",
    topic=views.PASSED_ON,
    options=(views.Option("--force"), views.Option("--no-source")),
)
def _report(asked: views.Command) -> Doc:
    from lazyviz.documents import session_report

    names, options = asked.read()
    if len(names) != 1:
        raise UsageError(
            f"%lazy report takes one file, such as report.html; it got {asked.rest!r}."
        )
    with views.refused("%lazy report: ", session_report.ReportError):
        written = session_report.write(
            names[0].strip("'\""),
            source="--no-source" not in options,
            force="--force" in options,
        )
    return Doc([Sentence(str(written))])


@views.view(
    "doctor",
    help="check versions, device, cache folder, processors, memory and settings; say what to do",
    topic=views.RESOURCES,
)
def _doctor(asked: views.Command) -> Doc:
    from lazyviz.inspection import doctor

    return doctor.doc(doctor.checks(sessions.runtime(), asked.shell))


@views.view(
    "help",
    magic="[NAME]",
    help="this text, or what it says of one subcommand",
    topic=views.PASSED_ON,
    offers=lambda at: () if at.given else sorted({*views.VIEWS, *views.CELL_USAGE}),
)
def _help(asked: views.Command) -> Doc:
    if asked.rest and asked.rest not in {*views.VIEWS, *views.CELL_USAGE}:
        raise UsageError(views.unknown(asked.rest))
    return views.help_page(asked.rest)


@views.view(
    "graph",
    magic="[EXPR]",
    help="draw the pending graph, else the last step's; EXPR: a tensor, a step's number, `last` "
    "or a graph's name",
    topic=views.PENDING,
    offers=views.graphs,
)
def _graph(asked: views.Command) -> Doc:
    target = asked.target(asked.rest)
    named = asked.rest or ("" if target.step is None else str(target.step))
    hint = f"%lazy explore {named}".strip() + ": click an op to see its value"
    if target.inspection is None:  # only plain data is left of its graph
        return exploring_of(asked, named)
    drawn = graph_doc(target.inspection, hint)
    return drawn if target.step is None else Doc([Line(target.name), drawn])


@views.view(
    "explore",
    magic="[EXPR]",
    help="the same to walk through: click an op to see its value; EXPR may also be a graph, "
    "HLO text or a path in quotes",
    topic=views.PENDING,
    offers=views.graphs,
)
def _explore(asked: views.Command) -> Doc:
    return exploring_of(asked, asked.rest)


def exploring_of(asked: views.Command, expression: str) -> Doc:
    """Return what an expression names, to walk through."""
    from lazyviz.inspection import explorer

    things: list[Any] = []
    if expression:
        value = asked.thing(expression)
        is_program = isinstance(value, (int, str, PurePath)) or any(
            hasattr(value, name) for name in ("lower", "known_hlo", "holdings")
        )
        things = [value] if is_program else asked.tensors_of(expression, value)
    else:
        _ = asked.runtime
    with views.refused(f"%lazy {asked.name} {expression}: ", HloError):
        return explorer.explore(*things).doc()


@views.view(
    "ir",
    magic="[EXPR]",
    help="list its ops as text, each with the line it came from",
    topic=views.PENDING,
    offers=views.graphs,
)
def _ir(asked: views.Command) -> Doc:
    target = asked.target(asked.rest)
    graph, inspection = target.graph, target.inspection
    if graph is None or inspection is None:
        return exploring_of(asked, str(target.step))
    held = inspection.holdings.items()
    names = {value: each.name for value, each in held if value.node is None}
    lines = [text.listing(graph, names=names), *text.number_lines(graph)]
    return _listed("\n".join(lines), f"print({_call(target)}.to_text())", target)


@views.view(
    "hlo",
    magic="[EXPR]",
    help=f"its HLO as XLA optimised it; {_STABLEHLO}: as lowered",
    topic=views.PENDING,
    offers=lambda at: (LAST, *at.tensors),
    options=(views.Option(_STABLEHLO),),
)
def _hlo(asked: views.Command) -> Doc:
    words, options = asked.read()
    is_lowered = bool(options)
    target = asked.target(" ".join(words))
    computation = _computation(asked, target)
    if is_lowered:
        listing = with_named_files(computation.as_text("stablehlo"), file_text)
    else:  # a finished step shows the executable that ran it
        ran = computation.known_hlo() if target.step is not None else None
        listing = with_lines(ran or computation.as_text("hlo"), file_text)
    dialect = "stablehlo" if is_lowered else "hlo"
    call = f"print({_call(target)}.lower().as_text({dialect!r}))"
    return _listed(listing, call, target)


@views.view(
    "collectives",
    magic="[EXPR]",
    help="what the devices of a mesh, or the ranks, exchange: kind, size and line of each collective",
    topic=views.RESOURCES,
    offers=lambda at: (LAST, *at.tensors),
)
def _collectives(asked: views.Command) -> Doc:
    target = asked.target(asked.rest)
    return tables.collectives(_computation(asked, target).collectives(), target.name)


def _computation(asked: views.Command, target: Target) -> Computation:
    if target.graph is None:
        raise UsageError(
            f"%lazy {asked.name} {asked.rest}: the ops of {target.name} are forgotten, to bound "
            "memory. Name a later step; %lazy step lists them."
        )
    return target.graph.lower()


def _call(target: Target) -> str:
    """Return the expression that gives a target's graph."""
    if target.step is None:
        return "lazyrt.pending_graph()"
    return f"lazyrt.inspect({target.step}).graph"


def _listed(listing: str, whole: str, target: Target) -> Doc:
    """Return a listing; no more of it than a notebook takes, and what gives the whole."""
    if len(listing) > _MAX_LISTED:
        end = listing.rfind("\n", 0, _MAX_LISTED)
        more = text.plural(listing.count("\n", end + 1) + 1, "line")
        listing = f"{listing[:end]}\n... {more} more; {whole} gives all of them"
    above = [Line(target.name)] if target.step is not None else []
    return Doc([*above, Code(listing)])


@views.view(
    "nan",
    help={
        "[EXPR]": "the ops where NaN and infinities begin, with the numbers that they were made "
        "of: in what is pending, or in a finished step whose inputs are kept",
        "on|off": "end a loop at the first step whose loss or weights are not finite",
    },
    topic=views.PENDING,
    offers=lambda at: () if at.given else (*views.graphs(at), "off", "on"),
)
def _nan(asked: views.Command) -> Doc:
    from lazyviz.inspection import numerics

    if asked.rest in {"on", "off"}:
        config, is_on = asked.runtime.config, asked.rest == "on"
        config.set("stop_at_nan", value=is_on, origin=f"%lazy nan {asked.rest}")
        what = "the first step whose loss or weights are not finite"
        said = f"A loop ends at {what}." if is_on else f"Loops go on after {what}."
        return Doc([Sentence(said)])
    return numerics.of_target(
        asked.target(asked.rest or numerics.kept_step(asked.runtime))
    )


_DIFF_FORMS: dict[str, Form] = {_STABLEHLO: "stablehlo", "--hlo": "optimised"}


def _two_programs(at: views.Typed) -> Iterable[str]:
    return (LAST, *at.tensors) if len(at.given) < 2 else ()  # noqa: PLR2004


@views.view(
    "diff",
    help={
        "A B": "what differs between two steps, tensors, or programs; `last` is the last step",
        "last": "the same for the latest new graph and the nearest one before it; "
        f"{_STABLEHLO} and --hlo compare what they became, {_EXPORT} FILE writes a page, a .svg "
        "or a .dot",
    },
    offers=_two_programs,
    options=(*map(views.Option, _DIFF_FORMS), views.Option(_EXPORT, "FILE")),
)
def _diff(asked: views.Command) -> Doc:
    from lazyviz.inspection import comparison

    runtime = asked.runtime
    words, options = asked.read()
    form: Form = next((_DIFF_FORMS[o] for o in options if o in _DIFF_FORMS), "ir")
    target = options.get(_EXPORT)
    if words == [LAST]:
        steps = comparison.last_two(runtime)
        if steps is None:
            raise UsageError(
                "%lazy diff last needs two steps with different graphs, and this session "
                "has none. Run the training cell once more, or name two steps."
            )
        words = [str(step) for step in steps]
    if len(words) != 2:  # noqa: PLR2004
        raise UsageError(
            f"%lazy diff takes `last`, or two programs, such as %lazy diff 11 12: steps, "
            f"variables, or paths in quotes; it got {asked.rest!r}. %lazy step lists the steps."
        )
    a, b = (asked.thing(word) for word in words)
    with views.refused(f"%lazy diff {asked.rest}: ", HloError):
        found = comparison.diff(a, b, form)
    if target:
        with views.refused(f"%lazy diff {asked.rest}: ", OSError):
            found.save(target)
        return Doc([Sentence(f"Written to {target}.")])
    return found.doc()


def _part_of_a_program(at: views.Typed) -> Iterable[str]:
    if len(at.given) > 1:
        return ()
    functions = (k for k, v in at.namespace.items() if inspect.isfunction(v))
    return (*at.tensors, *functions) if at.given else at.tensors


@views.view(
    "minimise",
    magic="A B",
    help="the smallest part of program A that B lacks, or, where B is a function of a graph, the "
    "smallest for which it is true",
    offers=_part_of_a_program,
)
def _minimise(asked: views.Command) -> Doc:
    from lazyviz.inspection import comparison

    _ = asked.runtime
    words, _ = asked.read()
    if len(words) != 2:  # noqa: PLR2004
        raise UsageError(
            f"%lazy minimise takes a program and what to look for, such as %lazy minimise "
            f"12 11 (what step 12 has and step 11 lacks) or %lazy minimise 12 shows (a "
            f"function of a graph); it got {asked.rest!r}. %lazy step lists the steps."
        )
    program, wanted = (asked.thing(word) for word in words)
    find = comparison.minimise if callable(wanted) else comparison.minimise_lacked
    with views.refused(f"%lazy minimise {asked.rest}: ", HloError):
        found = find(program, wanted)
    return found.doc()


@views.view(
    "replicas",
    magic="FOLDER",
    help="which of several replicas went another way, from what each has recorded "
    "(LAZYRT_RECORD=folder) or torch_xla has dumped",
)
def _replicas(asked: views.Command) -> Doc:
    from lazyviz.divergence.report import replicas

    with views.refused(f"%lazy replicas {asked.rest}: "):
        paths = shlex.split(asked.rest)
        if not paths:
            raise UsageError(
                "%lazy replicas takes a folder that processes recorded into, or a file of each; "
                "it got nothing. Run the program with LAZYRT_RECORD=steps, then %lazy replicas "
                "steps."
            )
        return replicas(paths).doc()


@views.view(
    "launch",
    magic="[-n COUNT] SCRIPT [ARGS]",
    help="run a script in several processes, and show each one's step, line, phase and lag",
    topic=views.CHANGES,
)
def _launch(asked: views.Command) -> Doc:
    from lazyviz.divergence.launch import launch

    words = shlex.split(asked.rest)
    count = 2
    if words[:1] == ["-n"]:
        if not "".join(words[1:2]).isdecimal():
            raise UsageError(
                f"%lazy launch -n takes a number of processes; it got {words[1:2]}. As in "
                "%lazy launch -n 4 train.py."
            )
        count, words = int(words[1]), words[2:]
    if not words:
        raise UsageError(
            "%lazy launch takes a script and its arguments, as in %lazy launch -n 4 train.py; it "
            "got none. lazyviz.launch(function, processes=4) runs a function of the notebook."
        )
    return launch(*words, processes=count).doc()
