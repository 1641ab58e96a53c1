"""The tables that `%lazy` prints: status, steps, graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazyviz.doc import Table
from lazyviz.render import html, state, strip, text
from lazyviz.render.escape import one_line
from lazyviz.render.state import now_text
from lazyviz.render.strip import Barrier
from lazyviz.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import ModuleType

    from lazyrt.observe import events
    from lazyviz.session import Session
    from lazyviz.timing.steplog import StepRow


_CARD = (
    "font-size:13px;line-height:1.5;max-width:72em;margin:4px 0;overflow-wrap:anywhere"
)
_LIST = "margin:6px 0;padding-left:1.8em"

_COUNTERS = (
    ("compiles", "compile", "compiles"),
    ("executions", "execution", "executions"),
    ("cache_hits", "cache hit", "cache hits"),
    ("peek_executions", "peek", "peeks"),
    ("cpu_fallbacks", "CPU fallback", "CPU fallbacks"),
)
# Modes that run ops one by one, and what compiling one took in each.
_OP_MODES = ("eager", "op_by_op", "background")
_OP_COMPILES = (
    "EagerOpCompileTime",
    "lazyrt::OpByOpCompileTime",
    "lazyrt::BackgroundCompileTime",
    "lazyrt::OpCompileTime",
)


def status_rows(runtime: ModuleType | None, session: Session) -> list[tuple[str, str]]:
    """Return what is pending, what ran so far, and the settings, each under its name.

    The first row, which has no name, tells of lazyviz itself.
    """
    strips = "on" if session.strips else "off"
    rows = [("", f"lazyviz {__version__}, strips {strips}")]
    if runtime is None:
        return [*rows, ("", "lazyrt is not imported: there is no lazy device yet")]
    now = state.state_of(runtime)
    flying = runtime.in_flight()
    way = f" · {text.plural(flying, 'execution')} under way" if flying else ""
    served = op_cache(runtime.metrics_report("dict"))
    return [
        *rows,
        ("now", now_text(now) + way),
        ("so far", _counts(runtime.counters())),
        *([("op cache", served)] if served else []),
        ("last barrier", str(now.last_barrier or "none so far")),
        ("settings", _settings(runtime.config)),
    ]


def status(rows: Sequence[tuple[str, str]]) -> str:
    """Return what `status_rows` gives as text."""
    return "\n".join(f"{name}: {said}" if name else said for name, said in rows)


def status_html(rows: Sequence[tuple[str, str]]) -> str:
    """Return the same as a table under a line, a name to a row."""
    head = "".join(html.line(said) for name, said in rows if not name)
    named = [row for row in rows if row[0]]
    return head + (Table(("what", "state"), named).to_html() if named else "")


def settings_html(line: str, config: Any) -> str:
    """Return a line and, below it, every setting with its value and origin."""
    return (
        html.line(line) + Table(("setting", "value", "set by"), config.rows()).to_html()
    )


def op_cache(report: Mapping[str, Any]) -> str:
    """Return which share of the ops that ran one by one found their executable in memory.

    Saved is the number of these hits times the mean compile time of one op in this session, in
    any mode; without a compiled op to measure by, it is left out.

    Args:
        report: What `lazyrt.metrics_report("dict")` returns.

    Returns:
        The sentence; empty if no op ran by itself.

    Example:
        >>> compiled = {"all": {"samples": 4, "accumulator": 200_000_000}}
        >>> op_cache({"metrics": {"EagerOpCompileTime": compiled}, "counters": {
        ...     "lazyrt::eager_executions": 16, "lazyrt::eager_cache_hits": 12}})
        '75 % of 16 ops served by the op cache, saved 600 ms'
    """
    counters = report["counters"]
    ran = sum(counters.get(f"lazyrt::{mode}_executions", 0) for mode in _OP_MODES)
    hits = sum(counters.get(f"lazyrt::{mode}_cache_hits", 0) for mode in _OP_MODES)
    if not ran:
        return ""
    measured = [
        report["metrics"][name]["all"]
        for name in _OP_COMPILES
        if name in report["metrics"]
    ]
    share = f"{100 * hits // ran} % of {text.plural(ran, 'op')} served by the op cache"
    compiles = sum(each["samples"] for each in measured)
    if not compiles:
        return share
    saved = hits * sum(each["accumulator"] for each in measured) / compiles
    return f"{share}, saved {text.duration(saved)}"


def steps(rows: Sequence[StepRow], limit: int) -> str:
    """Return the last steps: what ended each, what it ran, what it cost."""
    if not rows:
        return (
            "No step has run yet: nothing asked for a value, and no step() has ended."
        )
    header, cells = step_table(rows[-limit:])
    lines = [Table(header, cells).to_text()]
    lines += step_notes(rows[-limit:])
    return "\n".join(lines)


def steps_html(rows: Sequence[StepRow], limit: int) -> str:
    """Return the same as HTML; it is text alone where no step has run."""
    if not rows:
        return html.wrapped(steps(rows, limit))
    notes = step_notes(rows[-limit:])
    return Table(*step_table(rows[-limit:])).to_html() + html.sentences(notes)


def step_table(rows: Sequence[StepRow]) -> tuple[list[str], list[list[object]]]:
    """Return header and cells of a table of steps; columns that would be empty are left out."""
    header = ["step", "cell", "ended by", "at", "ops", "compile", "execute"]
    cells: list[list[object]] = [
        [
            row.step,
            "" if row.cell is None else row.cell,
            row.cause,
            row.site,
            row.nodes,
            _compile_text(row),
            "running" if row.execute_ns is None else text.duration(row.execute_ns),
        ]
        for row in rows
    ]
    keep = [i for i in range(len(header)) if any(str(row[i]) for row in cells)]
    return [header[i] for i in keep], [[row[i] for i in keep] for row in cells]


def step_notes(rows: Sequence[StepRow]) -> list[str]:
    """Return why steps were compiled, then what they did that they need not have done."""
    reasons = [
        f"step {row.step} was compiled: {row.reason}" for row in rows if row.reason
    ]
    return list(map(one_line, [*reasons, *_notes(rows)]))


def why(explanation: Any, graph: Any) -> str:
    """Return why a step was compiled, with the lines of both sides and what to do.

    Args:
        explanation: What `lazyrt.explain()` returned, None if nothing was compiled.
        graph: The record of the graph that the step ran, None if it is not known any more.
    """
    if explanation is None:
        return _NO_COMPILE
    notes = (f"  {note}" for note in _compiled_before(explanation, graph))
    return "\n".join([str(explanation), *notes])


def why_card(explanation: Any, graph: Any) -> str:
    """Return the same as HTML."""
    if explanation is None:
        return html.wrapped(_NO_COMPILE)
    return why_html(explanation, _compiled_before(explanation, graph))


_NO_COMPILE = "No step was compiled yet."


def _compiled_before(explanation: Any, graph: Any) -> tuple[str, ...]:
    if graph is None or graph.first_step == explanation.step:
        return ()
    return (f"({graph.name} was compiled in step {graph.first_step})",)


def graphs(records: Sequence[Any]) -> str:
    """Return every compiled graph: its size, runs and cost, why, and the nearest other."""
    if not records:
        return "No step graph was compiled yet."
    return "\n".join([Table(*graph_table(records)).to_text(), *_reasons(records)])


def graphs_html(records: Sequence[Any]) -> str:
    """Return the same as HTML; it is text alone where no graph was compiled."""
    if not records:
        return html.wrapped(graphs(records))
    return Table(*graph_table(records)).to_html() + html.sentences(_reasons(records))


def _reasons(records: Sequence[Any]) -> list[str]:
    total = text.duration(sum(record.compile_ns for record in records))
    return [
        *(f"{record.name}: {record.cause}" for record in records),
        f"{text.plural(len(records), 'graph')}, compiled in {total}",
    ]


def graph_table(records: Sequence[Any]) -> tuple[list[str], list[list[object]]]:
    """Return header and cells of the table of compiled graphs."""
    header = [
        "graph",
        "key",
        "ops",
        "in / out",
        "first step",
        "runs",
        "compile",
        "nearest",
    ]
    return header, [
        [
            record.name,
            record.fingerprint[:8],
            record.nodes,
            f"{record.inputs} / {record.outputs}",
            record.first_step,
            record.runs,
            "disk" if record.from_disk else text.duration(record.compile_ns),
            _nearest(record.explanation),
        ]
        for record in records
    ]


def _nearest(explanation: Any) -> str:
    if explanation is None or not explanation.against:
        return ""
    return f"{explanation.against} ({explanation.alike})"


def _compile_text(row: StepRow) -> str:
    if not row.compile_ns:
        return "cached"
    took = text.duration(row.compile_ns)
    return f"disk, {took}" if row.from_disk else took


def _counts(counters: Mapping[str, int]) -> str:
    parts = [
        text.plural(counters[key], one, many)
        for key, one, many in _COUNTERS
        if counters.get(key)
    ]
    return " · ".join(parts) or "nothing has run"


def _notes(rows: Sequence[StepRow]) -> Iterator[str]:
    """Yield what steps did that they need not have done, once for all that did the same."""
    called: dict[str, list[StepRow]] = {}
    cuts: dict[tuple[str, str, str, str], list[StepRow]] = {}
    looks: dict[tuple[str, str], list[tuple[StepRow, events.Repeat]]] = {}
    for row in rows:
        if row.caller:
            text_of = f"{row.cause} at {row.site} was called back by {row.caller}"
            called.setdefault(text_of, []).append(row)
        if row.cut is not None:
            cut = row.cause, row.site, row.tensor, row.cut
            cuts.setdefault(cut, []).append(row)
        for repeat in row.repeats:
            look = repeat.tensor, str(repeat.site or "")
            looks.setdefault(look, []).append((row, repeat))
    for note, those in called.items():
        yield f"{_numbers(those)}: {note}"
    for (cause, site, tensor, cut_step), those in cuts.items():
        barrier = Barrier(
            cause=cause,
            site=site,
            nodes=sum(row.nodes for row in those),
            times=len(those),
            tensor=tensor,
            cut=cut_step,
            duration_ns=sum(row.barrier_ns for row in those),
        )
        yield f"{_numbers(those)}: {strip.cut_text(barrier)}"
    for (tensor, site), found in looks.items():
        together = state.Repeat(
            tensor=tensor,
            site=site,
            nodes=sum(repeat.nodes for _, repeat in found),
            of_nodes=sum(row.nodes for row, _ in found),
            duration_ns=sum(repeat.duration_ns for _, repeat in found),
            times=len(found),
        )
        yield f"{_numbers([row for row, _ in found])}: {state.repeat_text(together)}"


def _numbers(rows: Sequence[StepRow]) -> str:
    """Return the numbers of steps in words: `step 4`, `steps 28 to 32, 34`."""
    runs: list[list[int]] = []
    for row in rows:
        if runs and row.step <= runs[-1][-1] + 1:
            runs[-1][1:] = [row.step]
        else:
            runs.append([row.step])
    named = ", ".join(" to ".join(map(str, dict.fromkeys(run))) for run in runs)
    return f"{'steps' if len({row.step for row in rows}) > 1 else 'step'} {named}"


def _settings(config: Any) -> str:
    names: Iterable[str] = (
        "read_policy",
        "barrier_after_optimizer",
        "max_pending_nodes",
    )
    return ", ".join(f"{name}={getattr(config, name, '?')}" for name in names)


def why_html(explanation: Any, notes: tuple[str, ...] = ()) -> str:
    """Return a card with the causes in their order.

    Args:
        explanation: What `lazyrt.explain()` returns.
        notes: Lines below the causes.
    """
    first, *lines = str(explanation).splitlines()
    head, _, rest = first.partition(", ")
    told = sum(2 if cause.fix else 1 for cause in explanation.causes)
    below = "".join(html.muted(line.strip()) for line in [*lines[told:], *notes])
    causes = "".join(
        f'<li style="margin:5px 0">{"".join(_cause(cause))}</li>'
        for cause in explanation.causes
    )
    return (
        f'<div style="{_CARD}"><b>{html.prose(head)}</b>'
        f"{html.muted(rest) if rest else ''}"
        f'<ol style="{_LIST}">{causes}</ol>{below}</div>'
    )


def _cause(cause: Any) -> Iterator[str]:
    yield f"<div>{html.prose(cause.text)}</div>"
    details = str(cause).removeprefix(cause.text).strip()
    if details:
        yield html.muted(details.removeprefix("(").removesuffix(")"))
    if cause.fix:
        yield html.advice("fix", cause.fix)
