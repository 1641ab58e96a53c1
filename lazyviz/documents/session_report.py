"""`%lazy report FILE.html` and `lazyviz.report(path)`: the session as one file for a bug report.

The page needs no script, no other file and no network. A browser is told to allow none but the
one script of ours that makes the timeline zoom, by its hash.
It holds no tensor's value. Nothing is computed, compiled or recorded for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import logging
import os
import platform
import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from lazyviz import session
from lazyviz.command_line import path_of
from lazyviz.doc import Code, Doc, Drawn, Fold, Heading, Note, Part, Points, Table
from lazyviz.documents import redaction
from lazyviz.foreign.metrics_report import parse_report
from lazyviz.inspection import doctor, tables
from lazyviz.inspection.tables import why_doc
from lazyviz.render import html, text
from lazyviz.render.html import Fragment, Section, markup, page_html
from lazyviz.render.strip import state_text, strip_notes
from lazyviz.views import VIEWS, Command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import ModuleType

    from lazyviz.doc import Part
    from lazyviz.session import CellRecord, Session
    from lazyviz.timing.history import StepRow
    from lazyviz.views import ReportPart, View

# What a session's report is about: collected once, before any part is made.

_KIB, _MIB = 2**10, 2**20
_MAX_CELLS = 500
_MAX_SOURCE = 20_000  # characters of one cell
_MAX_STEPS = 300
_MAX_GRAPHS = 100
_MAX_LISTED_OPS = 400
_MAX_DIFFS = 8
_MAX_DIFF_NODES = 20_000
_MAX_CAUSES = 5
_MAX_FALLBACKS = 100
_TIMELINE_CELLS = 60
# Settings of ours and of the compiler; nothing else of the environment is told.
_VARIABLES = ("XLA_FLAGS", "JAX_PLATFORMS", "OMP_NUM_THREADS")
_PREFIXES = ("LAZYRT_", "LAZYVIZ_")
_NO_RUNTIME = Note("lazyrt is not imported: there is no lazy device yet.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a report is about: plain data, and the runtime to ask.

    Attributes:
        runtime: The module `lazyrt`, None if the program has not imported it.
        cells: (number, source, record) of each cell; the record is None for one that did not
            touch the device, the source is empty where it is not to be told.
        steps: The steps of the session.
        graphs: The compiled graphs of the process.
        source: Whether sources are told.
        session: The session, None outside of one.
        written: When, in words.
    """

    runtime: ModuleType | None
    cells: tuple[tuple[int | None, str, CellRecord | None], ...] = ()
    steps: tuple[StepRow, ...] = ()
    graphs: tuple[Any, ...] = ()
    source: bool = True
    session: Session | None = None
    written: str = ""


def collect(
    runtime: ModuleType | None, current: Session | None, *, source: bool
) -> Facts:
    """Return what is known of a session; outside of one, what the runtime knows."""
    steps = current.steps if current is not None else ()
    tell = tell_of(source=source)
    now = dt.datetime.now(tz=dt.UTC)
    return Facts(
        runtime=runtime,
        cells=_cells_of(current, source=source) if current is not None else (),
        steps=tuple(redaction.step(row, tell) for row in steps),
        graphs=tuple(runtime.compiled_graphs()) if runtime is not None else (),
        source=source,
        session=current,
        written=now.strftime("%Y-%m-%d %H:%M UTC"),
    )


def tell_of(*, source: bool) -> Callable[[str], str]:
    """Return how expressions of the user's source are told."""
    return redaction.masked if source else redaction.name_only


def _cells_of(
    current: Session, *, source: bool
) -> tuple[tuple[int | None, str, CellRecord | None], ...]:
    tell = tell_of(source=source)
    records = [redaction.cell(record, tell) for record in current.cells]
    sources = _sources(current.shell) if source else {}
    # Front ends that run cells without a history give several the same number.
    last = {record.number: record for record in records}
    found: list[tuple[int | None, str, CellRecord | None]] = [
        (number, shown, None) for number, shown in sources.items() if number not in last
    ]
    for record in records:
        number = record.number
        is_last = number is not None and last[number] is record
        found.append((number, sources.get(number or 0, "") if is_last else "", record))
    return tuple(sorted(found, key=lambda cell: -1 if cell[0] is None else cell[0]))


def _sources(shell: Any) -> dict[int, str]:
    """Return the source of each cell as it was written; without a history, as it ran."""
    raw = getattr(shell.history_manager, "input_hist_raw", ())
    inputs = list(raw if any(raw) else shell.user_ns.get("In", ()))
    return {
        number: each
        for number, each in enumerate(inputs)
        if isinstance(each, str) and each
    }


class ReportSection(NamedTuple):
    """One part of the page.

    Attributes:
        anchor: By which links find it.
        make: Returns what it shows.
        nbytes: What its HTML may take.
    """

    title: str
    anchor: str
    make: Callable[[Facts], Part]
    nbytes: int


# --- the parts, in the page's order


def _findings(facts: Facts) -> Part:
    runtime = facts.runtime
    if runtime is None:
        return _NO_RUNTIME
    found = [str(f) for f in parse_report(runtime.metrics_report("dict")).findings()]
    found += [
        f"{graph.name}, first run by step {graph.first_step}, was compiled anew: {graph.cause}"
        for graph in facts.graphs
        if graph.explanation is not None and graph.explanation.against
    ][:_MAX_CAUSES]
    for number, _, record in facts.cells:
        if record is None:
            continue
        strip = record.strip
        if strip.interrupted:
            found.append(f"cell {number} was interrupted")
        elif strip.error is not None:
            found.append(f"cell {number} stopped by {_headline(facts, record)}")
        found += [
            f"cell {number}: {note}"
            for note in strip_notes(strip)
            if note.startswith("graph break")
        ]
    space = facts.session.shell.user_ns if facts.session is not None else None
    found += map(str, runtime.live_tensors_report(namespace=space).growth)
    counts = runtime.counters()
    now = redaction.state(runtime.status(), tell_of(source=facts.source))
    counted = ", ".join(
        f"{name.replace('_', ' ')} {counts[name]:,}" for name in counts if counts[name]
    )
    return Doc(
        [
            Points(found) if found else Note("Nothing stands out."),
            Note(state_text(now, str(runtime.mode()))),
            Note(counted or "Nothing has run."),
        ]
    )


def _headline(facts: Facts, record: CellRecord) -> str:
    """Return which exception ended a cell, in one line."""
    if record.failure is None or not facts.source:
        return record.strip.error or ""
    return _clip_text(redaction.masked(record.failure.headline))


def _environment(facts: Facts) -> Part:
    shell = facts.session.shell if facts.session is not None else None
    rows = [(each.name, each.found) for each in doctor.checks(facts.runtime, shell)]
    rows.append(("platform", platform.platform()))
    rows += [
        (name, redaction.masked(value))
        for name, value in sorted(os.environ.items())
        if name in _VARIABLES or name.startswith(_PREFIXES)
    ]
    shown = Table(["what", "version or value"], [(n, _clip(v)) for n, v in rows])
    if facts.runtime is None:
        return shown
    settings = Table(["setting", "value", "set by"], facts.runtime.config.rows())
    return Doc([shown, Heading("Settings"), settings])


def _cells(facts: Facts) -> Part:
    if not facts.cells:
        return Note("No cell was recorded.")
    kept = facts.cells[-_MAX_CELLS:]
    last = {cell[0]: place for place, cell in enumerate(kept)}
    newest = (
        _cell(
            kept[place],
            linked=last[kept[place][0]] == place,
            source=facts.source,
        )
        for place in reversed(range(len(kept)))
    )
    return _latest(newest, len(facts.cells), 2 * _MIB, "earlier cell")


def _cell(
    cell: tuple[int | None, str, CellRecord | None], *, linked: bool, source: bool
) -> Doc:
    number, written, record = cell
    title = "outside the count" if number is None else f"In [{number}]"
    anchor = f"cell-{number}" if linked and number is not None else ""
    parts: list[Part] = [Heading(title, anchor=anchor)]
    if written:
        shown = redaction.masked(written[:_MAX_SOURCE].rstrip())
        left = text.more(len(written) - _MAX_SOURCE, "character")
        code = markup("\n".join([shown, *left]))
        parts.append(_html(f'<pre class="code"><code>{code}</code></pre>'))
    if record is not None:
        failure = record.failure
        if failure is not None:  # its message is the user's, too
            told = failure if source else dataclasses.replace(failure, message="")
            words = markup(redaction.masked(str(told)))
            parts.append(_html(f'<pre class="error">{words}</pre>'))
        parts.append(record.strip.doc())
    return Doc(parts)


def _steps(facts: Facts) -> Part:
    rows = facts.steps[-_MAX_STEPS:]
    if not rows:
        return Note("No step has run.")
    table = tables.step_table(rows)
    header, cells = table.header, [list(row) for row in table.rows]
    at = header.index("cell") if "cell" in header else -1
    shown_cells = {cell[0] for cell in facts.cells[-_MAX_CELLS:]}
    for row in cells:
        row[0] = Fragment(f'<span id="step-{row[0]}">{row[0]}</span>')
        if at >= 0 and row[at] in shown_cells:
            row[at] = Fragment(f'<a href="#cell-{row[at]}">{row[at]}</a>')
    earlier = len(facts.steps) - len(rows)
    left = [Note(f"{text.plural(earlier, 'earlier step')} left out")] if earlier else []
    shown = Table(header, [[_clip(each) for each in row] for row in cells])
    notes = Points(list(map(_clip_text, tables.step_notes(rows))))
    return Doc([*left, shown, notes])


def _compiles(facts: Facts) -> Part:
    if not facts.graphs:
        return Note("No step graph was compiled.")
    pieces = (
        Doc(
            [
                Heading(graph.name, anchor=f"why-{graph.name}"),
                why_doc(graph.explanation) if graph.explanation else Note("not known"),
            ]
        )
        for graph in reversed(facts.graphs[-_MAX_GRAPHS:])
    )
    return _latest(pieces, len(facts.graphs), _MIB, "earlier graph")


def _graphs(facts: Facts) -> Part:
    if not facts.graphs:
        return Note("No step graph was compiled.")
    latest = facts.graphs[-_MAX_GRAPHS:]
    table = tables.graph_table(latest)
    rows = [list(row) for row in table.rows]
    steps = {row.step for row in facts.steps[-_MAX_STEPS:]}
    for row in rows:
        name = markup(str(row[0]))
        row[0] = Fragment(f'<a href="#why-{name}">{name}</a>')
        if row[4] in steps:  # earlier ones ran before the session began
            row[4] = Fragment(f'<a href="#step-{row[4]}">{row[4]}</a>')
    shown = Table(table.header, rows)
    room = _MIB - len(shown.to_html())
    ops = "earlier graph's ops", "earlier graphs' ops"
    listings = (_listing(graph) for graph in reversed(latest))
    return Doc([shown, _latest(listings, len(facts.graphs), room, *ops)])


def _listing(record: Any) -> Part:
    from lazygraph import graph_of
    from lazyviz.draw.diff_text import listing

    title = f"{record.name}: {text.plural(record.nodes, 'op')}"
    if record.snapshot is None:
        return Note(f"{title}, no longer kept")
    return Fold(title, [Code(listing(graph_of(record), _MAX_LISTED_OPS))])


def _differences(facts: Facts) -> Part:
    from lazyviz.inspection import comparison

    named = {graph.name: graph for graph in facts.graphs}
    pairs = [
        (named[graph.explanation.against], graph)
        for graph in facts.graphs
        if graph.explanation is not None and graph.explanation.against in named
    ]
    kept = [
        (a, b)
        for a, b in pairs
        if a.snapshot is not None
        and b.snapshot is not None
        and a.nodes + b.nodes <= _MAX_DIFF_NODES
    ]
    if not kept:
        return Note("No step was compiled anew for a graph like an earlier one.")
    # A heading names what is compared; the fragment's anchors would clash between pairs.
    pieces = (
        Doc(
            [
                Heading(f"{a.name} → {b.name}"),
                _html(_without_ids(comparison.diff(a, b).doc().to_html())),
            ]
        )
        for a, b in reversed(kept[-_MAX_DIFFS:])
    )
    return _latest(pieces, len(pairs), 1_536 * _KIB, "other difference")


def _pending(facts: Facts) -> Part:
    from lazyviz.shell.displayed import graph_doc

    if facts.runtime is None:
        return _NO_RUNTIME
    shown = graph_doc(facts.runtime.pending_graph())
    return Doc([shown, Fold("as text", [Code(shown.to_text())])])


def _timeline(facts: Facts) -> Part:
    from lazyviz.timing.timeline import TimelineShown

    if facts.session is None:
        return Note("There is no session, so no cell was timed.")
    shown = TimelineShown(facts.session, _TIMELINE_CELLS)
    tell = tell_of(source=facts.source)
    spans = [redaction.span(each, tell) for each in shown.view.spans]
    # The lines that recorded most are quoted.
    lines = [(at, tell(line), share) for at, line, share in shown.view.lines]
    if not facts.source:
        spans, lines = [each._replace(detail="") for each in spans], []
    shown.view = dataclasses.replace(shown.view, lines=lines, spans=spans)
    return shown.doc(is_detailed=True)


def _fallbacks(facts: Facts) -> Part:
    counts: dict[tuple[str, str], int] = {}
    for _, _, record in facts.cells:
        for each in record.strip.fallbacks if record is not None else ():
            key = each.op, each.site
            counts[key] = counts.get(key, 0) + each.times
    if not counts:
        return Note("Every op of the recorded cells had a lowering.")
    largest = sorted(counts.items(), key=lambda item: -item[1])
    rows = [(op, site, times) for (op, site), times in largest[:_MAX_FALLBACKS]]
    left = map(Note, text.more(len(largest) - len(rows)))
    return Doc([Table(["op", "at", "times"], rows), *left])


def _of_view(found: View, report: ReportPart) -> ReportSection:
    """Return the part that a view says it has."""

    def make(facts: Facts) -> Part:
        if facts.runtime is None:
            return _NO_RUNTIME
        shell = facts.session.shell if facts.session is not None else None
        return found.make(Command(found.name, "", shell, facts.session)) or Doc([])

    return ReportSection(report.title, found.name, make, report.nbytes)


def report_sections() -> list[ReportSection]:
    """Return the parts of a report: those of a session, then those of views."""
    views = (_of_view(v, v.report) for v in VIEWS.values() if v.report is not None)
    return [*map(ReportSection._make, _SECTIONS), *views]


_SECTIONS: tuple[tuple[str, str, Callable[[Facts], Part], int], ...] = (
    ("What stands out", "findings", _findings, 256 * _KIB),
    ("Environment", "environment", _environment, 128 * _KIB),
    ("Cells", "cells", _cells, 2 * _MIB),
    ("Steps", "steps", _steps, _MIB),
    ("Why graphs were compiled", "why", _compiles, _MIB),
    ("Compiled graphs", "graphs", _graphs, _MIB),
    ("Differences", "differences", _differences, 1_536 * _KIB),
    ("Pending graph", "pending", _pending, 256 * _KIB),
    ("Timeline", "timeline", _timeline, _MIB),
    ("Ops on the CPU", "fallbacks", _fallbacks, 128 * _KIB),
)


# --- bounds


def _latest(
    newest_first: Iterable[Part],
    total: int,
    nbytes: int,
    one: str,
    many: str | None = None,
) -> Doc:
    """Return the newest pieces in their own order, and how many of `total` did not fit."""
    kept: list[Part] = []
    room = nbytes - _KIB
    for piece in newest_first:
        shown = piece.to_html()
        room -= len(shown.encode("utf-8", "replace"))
        if room < 0:
            break
        kept.append(_html(shown))
    hidden = total - len(kept)
    left = [Note(f"{text.plural(hidden, one, many)} left out")] if hidden else []
    return Doc([*left, *reversed(kept)])


def _html(shown: str) -> Drawn:
    return Drawn("", lambda: shown)


def _clip(value: object) -> object:
    if isinstance(value, int | Fragment):
        return value
    return _clip_text(str(value))


def _clip_text(line: str) -> str:
    return line if len(line) <= 500 else f"{line[:499]}…"  # noqa: PLR2004


def _without_ids(fragment: str) -> str:
    fragment = re.sub(r' id="[ab]\d+"', "", fragment)
    return re.sub(r'<a href="#[ab]\d+"[^>]*>(.*?)</a>', r"\1", fragment)


GENERATOR = "lazyviz session report"
# What the page holds at most: the parts' own bounds, and its frame.
MAX_BYTES = 10 * 2**20

_SUFFIXES = (".html", ".htm")
_HEAD_BYTES = 1_024
_log = logging.getLogger(__name__)


class ReportError(ValueError):
    """A file that a report cannot or must not be written to."""


@dataclass(frozen=True, slots=True)
class Written:
    """A report that was written."""

    path: Path
    nbytes: int
    summary: str

    def __str__(self) -> str:
        return f"Wrote {self.path}: {self.summary}. Read it before you pass it on."


def write(path: str | Path, *, source: bool = True, force: bool = False) -> Written:
    """Write a page about the session; see `lazyviz.report`."""
    target = _target(path, force=force)
    facts = collect(session.runtime(), session.current(), source=source)
    page = page_of(facts)
    _replace(target, page)
    return Written(target, len(page.encode()), summary(facts))


def page_of(facts: Facts) -> str:
    """Return the page: nothing in it names the home directory, and its size is bounded."""
    sections = [
        Section(
            title=part.title,
            body=_body(part.make, facts, part.nbytes),
            anchor=part.anchor,
        )
        for part in report_sections()
    ]
    page = page_html(
        "Report of a lazyviz session",
        [Section(title="", body=_introduction(facts)), *sections],
        generator=GENERATOR,
        is_locked=True,
    )
    guards = {guard.text for graph in facts.graphs for guard in graph.key.guards}
    page = redaction.without_strings(page, guards)
    if not facts.source:
        found = (graph.explanation for graph in facts.graphs)
        quotes = [q for each in found if each for q in each.quotes]
        page = redaction.unquoted(page, quotes + redaction.expressions(guards))
    return redaction.shortened(page)


def summary(facts: Facts) -> str:
    """Return what a report holds, in a few words."""
    parts = [
        text.plural(len(facts.cells), "cell"),
        text.plural(len(facts.steps), "step"),
        text.plural(len(facts.graphs), "compiled graph"),
    ]
    parts[0] += " with source" if facts.source else " without source"
    return f"{', '.join(parts)}, no tensor's value"


def _introduction(facts: Facts) -> str:
    return html.muted(
        f"{summary(facts)[0].upper()}{summary(facts)[1:]}. Written {facts.written}."
    ) + html.muted(
        "The home directory is written as ~. What looks like a password or a token in the "
        "source or in what an exception said is masked, which is a best effort: read the page "
        "before you pass it on."
    )


def _body(make: Callable[[Facts], Part], facts: Facts, limit: int) -> str:
    """Return one part; a report is about trouble, so one that fails leaves the others."""
    try:
        body = make(facts).to_html()
    except Exception as error:  # noqa: BLE001
        _log.exception("a part of the report failed")
        said = redaction.masked(f": {error}") if facts.source else ""
        return html.muted(f"This part failed: {type(error).__name__}{said}"[:500])
    nbytes = len(body.encode("utf-8", "replace"))
    if nbytes <= limit:
        return body
    return html.muted(
        f"Left out: {text.size(nbytes)}, and this part may take {text.size(limit)}."
    )


def _target(path: str | Path, *, force: bool) -> Path:
    """Return where a report may be written to: to no folder, and over no file that is none of ours."""
    named = path_of(path, "report()", ReportError)
    shown = redaction.shortened(str(named))
    if named.suffix.lower() not in _SUFFIXES:
        raise ReportError(
            f"the report is a web page, and {shown!r} does not end in .html, so nothing was "
            "written. Give it such a name."
        )
    try:
        target = named.expanduser()
        target.parent.stat()  # is there
        is_free = force or not target.exists() or _is_ours(target)
    except (OSError, RuntimeError, ValueError) as error:
        raise _unwritable(named, error) from None
    if not is_free:
        raise ReportError(
            f"{shown} exists and is no report of lazyviz, so it was left as it is. Choose "
            "another name, or replace it: --force, in Python force=True."
        )
    return target


def _unwritable(target: Path, error: Exception) -> ReportError:
    why = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
    return ReportError(
        f"{redaction.shortened(str(target))!r:.200} cannot be written: {why}. Nothing was written; choose "
        "a folder that you may write to, with room."
    )


def _is_ours(target: Path) -> bool:
    with target.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return f'<meta name="generator" content="{GENERATOR}">'.encode() in head


def _replace(target: Path, page: str) -> None:
    """Write the whole file or none of it."""
    part = target.with_name(f".{uuid.uuid4().hex}.part")
    try:
        with part.open("x", encoding="utf-8", errors="replace") as file:
            file.write(page)
        part.replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, (OSError, ValueError)):
            raise _unwritable(target, error) from None
        raise
