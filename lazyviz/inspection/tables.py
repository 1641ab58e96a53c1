"""The tables that `%lazy` prints: status, steps, graphs, executables."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from lazyviz.command_line import __version__
from lazyviz.doc import (
    Advice,
    Doc,
    Drawn,
    Facts,
    Line,
    Note,
    Part,
    Points,
    Sentence,
    Table,
)
from lazyviz.draw.palette import PHASE_MEANINGS, PHASES
from lazyviz.foreign.metrics_report import FIRST, most_frequent
from lazyviz.inspection import protocol
from lazyviz.render import notes, text
from lazyviz.render.html import markup, one_line
from lazyviz.render.strip import last_barrier_text, now_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import ModuleType

    from lazyviz.render.timeline_text import Span
    from lazyviz.session import Session
    from lazyviz.timing.history import StepRow

_REASONS = 8  # of collectives, the largest first
_COUNTERS = (
    ("compiles", "compile", "compiles"),
    ("executions", "execution", "executions"),
    ("cache_hits", "cache hit", "cache hits"),
    ("peek_executions", "peek", "peeks"),
    ("cpu_fallbacks", "CPU fallback", "CPU fallbacks"),
)
_CODE_COUNTERS = (
    ("frames_compiled", "function compiled", "functions compiled"),
    ("frames_recompiled", "of them again", "of them again"),
    ("frames_uncompiled", "function left uncompiled", "functions left uncompiled"),
    ("graph_breaks_compiled", "graph break", "graph breaks"),
    ("graph_breaks_reached", "run into one", "runs into one"),
)
_MAX_WAITS = 4
# Modes that run ops one by one, and what compiling one took in each.
_OP_MODES = ("eager", "op_by_op", "background")
_OP_COMPILES = (
    "EagerOpCompileTime",
    "lazyrt::OpByOpCompileTime",
    "lazyrt::BackgroundCompileTime",
    "lazyrt::OpCompileTime",
)

_NONE = "No executable is in memory or on disk."
_MAX_ROWS = 40
_MAX_LIVE_ROWS = 300
_KEY_DIGITS = 8
_KEY = re.compile("[0-9a-f]{32}")
_MINUTE_S = 60
_DAY_S = 86_400
_UNITS_S = {"m": 60, "h": 3_600, "d": _DAY_S, "w": 7 * _DAY_S}
_USAGE = (
    "%lazy cache lists the executables, %lazy cache --sort size the largest first; "
    "%lazy cache drop KEY drops one, %lazy cache drop all "
    "drops all, and %lazy cache drop older 7d those unused for 7 days (m, h, d, w)."
)
_COLUMNS = (
    "key", "holds", "ops", "tier", "last op", "size", "compile", "hits", "where", "age",
    "unused for",
)  # fmt: skip
_ALIKE = re.compile(r"([^\s,(]+\[[^\]]*\])(?:, \1)+")
_NUMBERS = frozenset(("ops", "size", "compile", "hits", "age", "unused for"))
# What `%lazy cache --sort` takes: columns, of which two have a shorter name.
ORDERS = ("ops", "size", "compile", "hits", "age", "unused", "holds", "line")
_SHORT = {"unused": "unused for", "line": "last op"}


def status(runtime: ModuleType | None, session: Session) -> Doc:
    """Return what is pending, what ran so far, and the settings, each under its name."""
    strips = "on" if session.strips else "off"
    about = Line(f"lazyviz {__version__}, strips {strips}")
    if runtime is None:
        missing = "lazyrt is not imported: there is no lazy device yet"
        return Doc([about, Line(missing)])
    now = runtime.status()
    flying = runtime.in_flight()
    way = f" · {text.plural(flying, 'execution')} under way" if flying else ""
    served = op_cache(runtime.metrics_report("dict"))
    budget = text.size(runtime.config.keep_values_bytes)
    setting = f"keep_values={runtime.config.keep_values!r}"
    by = "stop_at_nan" if runtime.config.keep_values in {"off", 0} else setting
    kept = f"{now.kept} ({by}, at most {budget})"
    rows = [
        ("now", now_text(now, str(runtime.mode())) + way),
        (
            "so far",
            " · ".join(_counted(runtime.counters(), _COUNTERS)) or "nothing has run",
        ),
        *([("op cache", served)] if served else []),
        (
            "last barrier",
            last_barrier_text(now.last_barrier) if now.last_barrier else "none so far",
        ),
        *([("kept", kept)] if str(now.kept) else []),
        ("settings", _settings(runtime.config)),
    ]
    return Doc([about, Facts(("what", "state"), rows)])


def collectives(found: Sequence[Any], name: str) -> Doc:
    """Return the collectives of a program, the largest first, with their sum."""
    if not found:
        return Doc(
            [Line(f"{name}: no collectives. Nothing is exchanged between devices.")]
        )
    rows = [
        [
            each.kind,
            each.type,
            text.size(each.nbytes),
            str(each.devices or ""),
            each.line,
            each.scope,
        ]
        for each in sorted(found, key=lambda each: -each.nbytes)
    ]
    total = text.size(sum(each.nbytes for each in found))
    said: dict[tuple[str, ...], list[Any]] = {}
    for each in sorted(found, key=lambda each: -each.nbytes):
        if each.why:
            key = each.source, each.line, each.why, each.fix
            said.setdefault(key, []).append(each)
    reasons: list[Part] = []
    for (source, line, why, fix), those in list(said.items())[:_REASONS]:
        kinds = " and ".join(dict.fromkeys(each.kind for each in those))
        size = text.size(sum(each.nbytes for each in those))
        where = f" for `{source}`" if source else ""
        where += f" at {line.rpartition('/')[2]}" if line else ""
        reasons.append(Line(f"{kinds} of {size}{where}: {why}"))
        reasons += [Advice("mend", fix)] if fix else []
    return Doc(
        [
            Line(
                f"{name}: {text.plural(len(found), 'collective')}, {total} on each device"
            ),
            Table(["kind", "type", "size", "devices", "at", "scope"], rows),
            *reasons,
        ]
    )


def settings(line: str, config: Any) -> Doc:
    """Return a line and, below it, every setting with its value and origin."""
    return Doc(
        [Line(line), Table(("setting", "value", "set by"), config.rows())], gap="\n\n"
    )


def op_cache(report: Mapping[str, Any]) -> str:
    """Return which share of the ops that ran one by one found their executable in memory; else empty.

    Saved is the number of these hits times the mean compile time of one op in this session, in
    any mode; without a compiled op to measure by, it is left out.

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


def steps(rows: Sequence[StepRow], spans: Sequence[Span] | None = None) -> Doc:
    """Return some steps: what ended each, what it ran, what it cost.

    With the session's timeline, a paragraph says it all first.
    """
    if not rows:
        said = (
            "No step has run yet: nothing asked for a value, and no step() has ended."
        )
        return Doc([Sentence(said)])
    told = [] if spans is None else [Sentence(step_paragraph(rows, spans))]
    return Doc([*told, step_table(rows), Points(step_notes(rows))])


def step_paragraph(rows: Sequence[StepRow], spans: Sequence[Span]) -> str:
    """Return what some steps did, what they waited for, and the change that would help most."""
    waits = _waits(rows, spans)
    device = sum(row.execute_ns or 0 for row in rows)
    ends = Counter((row.cause, row.tensor, row.site) for row in rows)
    (cause, tensor, site), times = ends.most_common(1)[0]
    barrier = notes.Barrier(cause=cause, site=site, nodes=0, tensor=tensor).origin
    of = "Its barrier"
    if len(rows) > 1:
        which = "each" if times == len(rows) else f"{times} of these {len(rows)} steps"
        of = f"The barrier of {which}"
    ran = text.plural(sum(row.nodes for row in rows), "op")
    first, last = rows[0].step, rows[-1].step
    which = f"Step {first}" if len(rows) == 1 else f"Steps {first} to {last}"
    words = [f"{which} ran {ran}. {of}: {barrier}."]
    if waits:
        spent = ", ".join(
            f"{PHASE_MEANINGS[phase]} {text.duration(ns)}"
            for phase, ns in waits.most_common(_MAX_WAITS)
        )
        took = text.duration(sum(waits.values()))
        words.append(
            f"The host took {took}: {spent}. The device worked {text.duration(device)}."
        )
    return " ".join([*words, f"What would help most: {_change(rows, waits, device)}"])


def _waits(rows: Sequence[StepRow], spans: Sequence[Span]) -> Counter[str]:
    """Return the host's time in some steps by phase; empty where the timeline forgot them.

    Recording needs the processor: what a step took beyond that is the program's own time.
    """
    found: Counter[str] = Counter()
    worked = {str(row.step): row.worked_ns for row in rows}
    host = [span for span in spans if span.lane == "host" and span.kind in PHASES]
    for step in spans:
        number = step.name.removeprefix("step ").partition(":")[0]
        if (step.lane, step.kind) != ("step", "run") or number not in worked:
            continue
        known = 0
        for span in host:
            inside = min(span.end_ns, step.end_ns) - max(span.start_ns, step.start_ns)
            if inside > 0:
                found[span.kind] += inside
                known += inside
        rest, most = max(0, step.duration_ns - known), worked[number]
        recording = rest if most is None else min(rest, most)
        found["trace"] += recording
        found["python"] += rest - recording
    return found


def _change(rows: Sequence[StepRow], waits: Mapping[str, int], device_ns: int) -> str:
    """Return the one change that would save most time, by what was measured."""
    again = [row for row in rows if row.reason and not row.reason.startswith(FIRST)]
    broken = [row for row in rows if row.cut is not None]
    repeats = [repeat for row in rows for repeat in row.repeats]
    reads = [row for row in rows if row.cause.startswith("read")]
    saved = {
        "compile": sum(row.compile_ns + row.lowering_ns for row in again),
        "break": sum(row.barrier_ns for row in broken),
        "repeat": sum(repeat.duration_ns for repeat in repeats),
        "read": waits.get("execute", 0) if reads else 0,
        "python": waits.get("python", 0),
        "trace": waits.get("trace", 0),
    }
    most = max(saved, key=lambda name: saved[name])
    if not saved[most] or device_ns > saved[most]:
        return (
            "less work on the device, which is the longest part. lazyviz.profile() tells which "
            "lines it works for."
        )
    time = text.duration(saved[most])
    if most == "compile":
        kind = most_frequent(Counter(row.reason for row in again))
        return (
            f"the same graph in each step, which saves {time} of compiling. "
            f"{kind or again[-1].reason}"
        )
    if most == "break":
        return f"to read after the step's block, which saves {time}."
    if most == "repeat":
        return (
            f"to show values with materialise(t, reuse=True): the step need not run again what took "
            f"{time} for them."
        )
    if most == "read":
        return (
            f"to read less often than at {reads[-1].site}, or a step later: {time} were spent "
            "waiting for the device."
        )
    if most == "python":
        behind = "behind the barrier or " * bool(waits.get("execute"))
        return (
            f"to move {time} of the program's own time {behind}to another thread. "
            "lazyviz.profile() tells its lines."
        )
    return (
        f"torch.compile, which records a function as one call: recording took {time}."
    )


def step_table(rows: Sequence[StepRow]) -> Table:
    """Return a table of steps; columns that would be empty are left out."""
    header = ["step", "cell", "ended by", "at", "ops", "compile", "execute"]
    cells = [
        [
            row.step,
            row.cell,
            row.cause,
            row.site,
            row.nodes,
            _compile_text(row),
            "running" if row.execute_ns is None else text.duration(row.execute_ns),
        ]
        for row in rows
    ]
    return Table(header, cells).filled()


def step_notes(rows: Sequence[StepRow]) -> list[str]:
    """Return why steps were compiled, then what they did that they need not have done."""
    reasons = [
        f"step {row.step} was compiled: {row.reason}" for row in rows if row.reason
    ]
    return list(map(one_line, [*reasons, *_compiled_code(rows), *_notes(rows)]))


def _compiled_code(rows: Sequence[StepRow]) -> Iterator[str]:
    """Yield what `torch.compile` compiled for each step, by phase, and its graph breaks."""
    reached: dict[tuple[str, str], list[StepRow]] = {}
    for row in rows:
        for frame in row.frames:
            yield f"step {row.step}: {notes.frame_text(frame)}"
        if row.frames:
            parts = notes.phases(*row.frames)
            if row.compile_ns and not row.from_disk:
                parts.append(f"lowering {text.duration(row.lowering_ns)}")
                parts.append(f"XLA {text.duration(row.compile_ns)}")
            guards_ns = sum(frame.guards_ns for frame in row.frames)
            # torch measures with cold caches.
            most = text.duration(guards_ns)
            guards = f"; guards of a call at most {most}" if guards_ns else ""
            yield f"step {row.step} in all: {', '.join(parts)}{guards}"
        for event in row.code_breaks:
            key = event.reason, str(event.site or "")
            reached.setdefault(key, []).append(row)
    for (reason, site), those in reached.items():
        broken = notes.CompiledBreak(reason=reason, site=site, times=len(those))
        steps = list({row.step: row for row in those}.values())
        yield f"{_numbers(steps)}: {broken}"


def why(explanation: Any, graph: Any) -> Doc:
    """Return why a step was compiled, with the lines of both sides and what to do."""
    if explanation is None:
        return Doc([Sentence("No step was compiled yet.")])
    note = ""
    if graph is not None and graph.first_step != explanation.step:
        note = f"({graph.name} was compiled in step {graph.first_step})"
    return why_doc(explanation, note)


def why_doc(explanation: Any, note: str = "") -> Doc:
    """Return the causes in their order, each with its details and its fix."""
    first, *lines = str(explanation).splitlines()
    head, _, rest = first.partition(", ")
    parts: list[Part] = [Line(head), *([Note(rest)] if rest else [])]
    for cause in explanation.causes:
        details = str(cause).removeprefix(cause.text).strip()
        parts.append(Points([cause.text]))
        if details:
            parts.append(Note(details.removeprefix("(").removesuffix(")")))
        if cause.fix:
            parts.append(Advice("fix", cause.fix))
    of_causes = sum(2 if cause.fix else 1 for cause in explanation.causes)
    parts += [Note(line.strip()) for line in [*lines[of_causes:], note] if line]
    words = "\n".join([first, *lines, *([f"  {note}"] if note else [])])
    return Doc([Drawn(words, Doc(parts).to_html)])


def graphs(records: Sequence[Any], counters: Mapping[str, int]) -> Doc:
    """Return every compiled graph: its size, runs and cost, why, and the nearest other."""
    if not records:
        return Doc([Sentence("No step graph was compiled yet.")])
    total = text.duration(sum(record.compile_ns for record in records))
    reasons = [f"{record.name}: {record.cause}" for record in records]
    reasons += [
        f"{record.name}: torch.compile compiled {guard.function} again: {guard.text}"
        for record in records
        for guard in record.key.guards
        if guard.text not in record.cause
    ]
    reasons.append(f"{text.plural(len(records), 'graph')}, compiled in {total}")
    counted = _counted(counters, _CODE_COUNTERS)
    if counted:
        reasons.append(f"torch.compile: {', '.join(counted)}")
    return Doc([graph_table(records), Points(reasons)])


def graph_table(records: Sequence[Any]) -> Table:
    """Return the table of compiled graphs."""
    header = ["graph", "key", "ops", "in / out", "first step", "runs", "compile", "nearest"]  # fmt: skip
    rows = [
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
    return Table(header, rows)


def _nearest(explanation: Any) -> str:
    if explanation is None or not explanation.against:
        return ""
    return f"{explanation.against} ({explanation.alike})"


def _compile_text(row: StepRow) -> str:
    if not row.compile_ns:
        return "cached"
    took = text.duration(row.compile_ns)
    return f"disk, {took}" if row.from_disk else took


def _counted(
    counters: Mapping[str, int], names: Iterable[tuple[str, str, str]]
) -> list[str]:
    """Return the counts that are not 0, in words."""
    return [text.plural(counters[k], *words) for k, *words in names if counters.get(k)]


def _notes(rows: Sequence[StepRow]) -> Iterator[str]:
    """Yield what steps did that they need not have done, once for all that did the same."""
    called: dict[str, list[StepRow]] = {}
    cuts: dict[tuple[str, str, str, str], list[StepRow]] = {}
    looks: dict[tuple[str, str], tuple[list[StepRow], notes.Looked | None]] = {}
    for row in rows:
        if row.caller:
            text_of = f"{row.cause} at {row.site} was called back by {row.caller}"
            called.setdefault(text_of, []).append(row)
        if row.cut is not None:
            cut = row.cause, row.site, row.tensor, row.cut
            cuts.setdefault(cut, []).append(row)
        for repeat in row.repeats:
            look = repeat.tensor, str(repeat.site or "")
            those, before = looks.get(look, ([], None))
            looks[look] = [*those, row], notes.looked_again(repeat, before)
    for note, those in called.items():
        yield f"{_numbers(those)}: {note}"
    for (cause, site, tensor, cut_step), those in cuts.items():
        barrier = notes.Barrier(
            cause=cause,
            site=site,
            nodes=sum(row.nodes for row in those),
            times=len(those),
            tensor=tensor,
            cut=cut_step,
            duration_ns=sum(row.barrier_ns for row in those),
        )
        yield f"{_numbers(those)}: {barrier}"
    for those, together in looks.values():
        yield f"{_numbers(those)}: {together}"


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
    names = ("read_policy", "barrier_after_optimizer", "max_pending_nodes")
    return ", ".join(f"{name}={getattr(config, name, '?')}" for name in names)


def doc(entries: Sequence[Any]) -> Doc:
    """Return the executables, as `lazyrt.cached_executables()` gives them, as a table."""
    if not entries:
        return Doc([Sentence(_NONE)])
    rows = [[shown for shown, _ in _cells(entry)] for entry in entries[:_MAX_ROWS]]
    more = text.more(len(entries) - _MAX_ROWS)
    return Doc([Table(_COLUMNS, rows), *map(Note, [*more, summary(entries)])])


def _alike_once(holds: str) -> str:
    """Return what an executable holds with operands of one type once.

    Example:
        >>> _alike_once("aten.stack.default(f32[2,3], f32[2,3], i64[])")
        'aten.stack.default(f32[2,3] ×2, i64[])'
    """
    return _ALIKE.sub(lambda m: f"{m[1]} ×{(len(m[0]) + 2) // (len(m[1]) + 2)}", holds)


def _cells(entry: Any) -> list[tuple[str | int, str | float]]:
    """Return what each column shows of an executable, and what it is sorted by."""
    place = _place(entry)
    size = text.size(entry.nbytes) if entry.nbytes else ""
    took = text.duration(entry.compile_ns) if entry.compile_ns else ""
    return [
        (entry.key[:_KEY_DIGITS], entry.key),
        (_alike_once(entry.holds) or "not recorded", entry.holds),
        (entry.nodes or "", entry.nodes),
        (entry.tier, entry.tier),
        (entry.line, entry.line),
        (size, entry.nbytes),
        (took, entry.compile_ns),
        (entry.hits, entry.hits),
        (place, place),
        (span(entry.age_s), entry.age_s),
        (span(entry.unused_s), entry.unused_s),
    ]


def ordered(entries: Sequence[Any], order: str) -> list[Any]:
    """Return the executables in one of `ORDERS`."""
    return _by_column(entries, _SHORT.get(order, order))


def _by_column(
    entries: Sequence[Any], column: str, *, reverse: bool = False
) -> list[Any]:
    """Return the executables by what a column is sorted by; the largest number comes first."""
    at, is_number = _COLUMNS.index(column), column in _NUMBERS
    return sorted(
        entries,
        key=lambda each: _cells(each)[at][1],
        reverse=is_number is not reverse,
    )


def summary(entries: Sequence[Any]) -> str:
    """Return how many executables there are, and where."""
    in_memory = sum(entry.in_memory for entry in entries)
    on_disk = sum(entry.on_disk for entry in entries)
    nbytes = text.size(sum(entry.nbytes for entry in entries))
    where = f"{in_memory:,} in memory, {on_disk:,} on disk"
    return f"{text.plural(len(entries), 'executable')}: {where}" + (
        f" ({nbytes})" if on_disk else ""
    )


def drop(runtime: ModuleType, words: Sequence[str]) -> str:
    """Drop the executables that the words behind `drop` name; return what was dropped, or refuse."""
    match list(words):
        case ["all"]:
            dropped = runtime.drop_executables()
        case ["older", span_text]:
            dropped = runtime.drop_executables(unused_s=seconds(span_text))
        case [key] if key != "older":
            dropped = runtime.drop_executables(key)
        case _:
            given = " ".join(["drop", *words])
            raise ValueError(f"%lazy cache {given} names no executable. {_USAGE}")
    if not dropped:
        return "No executable was dropped: none is that old, or there is none."
    return f"Dropped {summary(dropped)}. What is needed again is compiled again."


class CacheTable(protocol.PageTable):
    """The executables in a page; it holds texts, and no executable."""

    what = "executables"
    _what = f"table of {what}"
    columns = _COLUMNS

    def __init__(self, runtime: ModuleType) -> None:
        self._runtime = runtime
        super().__init__("unused for", reverse=True)  # as a session lists them

    def _made(self) -> tuple[str, str]:
        entries = self._runtime.cached_executables()
        if not entries:
            return _NONE, ""
        shown = _by_column(entries, self._sort, reverse=self._reverse)[:_MAX_LIVE_ROWS]
        body = protocol.sortable_html(
            dict.fromkeys(_COLUMNS, "sort by this"),
            "".join(map(_page_row, shown)),
            "drop",
            _NUMBERS,
            sort=self._sort,
            reverse=self._reverse,
        )
        more = text.more(len(entries) - len(shown))
        return summary(entries), body + "".join(f"<p>{markup(m)}</p>" for m in more)

    def _question(self, name: str) -> str:
        if not _KEY.fullmatch(name):
            raise protocol.RequestError(
                f"{protocol.quoted(name)} is no key of an executable. Refresh the table and take one of its "
                "buttons."
            )
        for found in self._of_key(name):
            holds = markup(found.holds or name[:_KEY_DIGITS])
            took = markup(text.duration(found.compile_ns))
            asked = (
                f"Drop <code>{holds}</code>? To compile it again takes about {took}."
            )
            return protocol.question(asked, name, "drop it")
        return ""

    def _dropped(self, name: str) -> str:
        if self._of_key(name):
            return drop(self._runtime, [name])
        return f"{name[:_KEY_DIGITS]} is gone already; nothing was dropped."

    def _of_key(self, key: str) -> list[Any]:
        return [e for e in self._runtime.cached_executables() if e.key == key]


def _page_row(entry: Any) -> str:
    cells = zip(_COLUMNS, _cells(entry), strict=True)
    shown = "".join(
        protocol.cell_html(name, cell, _NUMBERS) for name, (cell, _) in cells
    )
    return f"<tr>{shown}<td>{protocol.drop_button(entry.key, 'drop')}</td></tr>"


def unknown(rest: str) -> str:
    """Return what to say of a subcommand that is none."""
    return f"%lazy cache has no subcommand {rest!r}. {_USAGE}"


def seconds(span_text: str) -> float:
    """Return the seconds of `30m`, `12h`, `7d` or `2w`.

    Example:
        >>> seconds("2h"), seconds("7d")
        (7200, 604800)
    """
    found = re.fullmatch(r"(\d+)([mhdw])", span_text)
    if found is None:
        raise ValueError(
            f"{span_text!r} is no span of time, so nothing was dropped. {_USAGE}"
        )
    return int(found[1]) * _UNITS_S[found[2]]


def span(seconds: float) -> str:
    """Return an age.

    Example:
        >>> span(0.2), span(42), span(3 * 86_400)
        ('0 s', '42 s', '3 days')
    """
    if seconds >= 2 * _DAY_S:
        return text.plural(int(seconds // _DAY_S), "day")
    whole = int(seconds)
    return f"{whole} s" if whole < _MINUTE_S else text.duration(whole * 1e9)


def _place(entry: Any) -> str:
    if not entry.is_usable:
        return "disk, other version"
    places = [
        name
        for name, here in (("memory", entry.in_memory), ("disk", entry.on_disk))
        if here
    ]
    return ", ".join(places)
