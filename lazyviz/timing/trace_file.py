"""A session's timeline as a trace-event file, which Perfetto and chrome://tracing open, and back.

The format is a list of events with microseconds: `X` for what takes time, `i` for a moment,
`s` and `f` for the arrow from a dispatch to its execution, `M` for names. Each event's `args`
keep all that we know of it, so that a file can be reported on elsewhere. Loads neither torch
nor jax.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lazyviz.command_line import __version__, path_of, whole_number
from lazyviz.doc import Doc, Part, Sentence, Table
from lazyviz.foreign import EvidenceError
from lazyviz.foreign.xplane import trace_profile
from lazyviz.render import text
from lazyviz.render.html import printable
from lazyviz.render.timeline_text import (
    CellTime,
    Span,
    TimelineView,
    gaps,
    timeline_tables,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PID = 1
_PRODUCER = "lazyviz"
_HEAD_BYTES = 200
_GZIP = b"\x1f\x8b"
_UNREADABLE = (OSError, EOFError, zlib.error)
_MAX_ROWS = 20
# Tracks from top to bottom: what they hold, by lane and kind.
_TRACKS = (
    ("cells", "cell", ()),
    ("host: phases of the cell's thread", "host", ()),
    ("steps, from barrier to barrier", "step", ("run",)),
    ("step() blocks", "step", ("block",)),
    ("scopes", "step", ("scope",)),
    ("closures", "step", ("closure", "asynchronous closure")),
    ("barriers, looks, fallbacks", "step", ()),
    ("compile", "compile", ()),
    ("transfers", "transfer", ()),
    ("device", "device", ()),
)


class TraceError(ValueError):
    """A file that is no trace, or a path that must not be written to."""


def write(
    path: str | Path,
    cells: Sequence[CellTime],
    spans: Sequence[Span],
    *,
    lines: Sequence[tuple[str, str, float]] = (),
    dropped: int = 0,
) -> Path:
    """Write a trace and return its path; a `.gz` at its end compresses it.

    Raises:
        TraceError: The path has a file that is no trace of ours, or cannot be written.
    """
    target = path_of(path, "export_trace()", TraceError).expanduser()
    _check_target(target)
    data = json.dumps(document(cells, spans, lines=lines, dropped=dropped))
    raw = data.encode()
    try:
        target.write_bytes(gzip.compress(raw) if target.suffix == ".gz" else raw)
    except OSError as error:
        raise TraceError(
            f"cannot write the trace to {target}: {error.strerror or error}. Give a path in a "
            "folder that exists and that you may write to."
        ) from None
    return target


def _check_target(target: Path) -> None:
    if not target.exists():
        return
    if target.is_file() and f'"producer": "{_PRODUCER}'.encode() in _head(target):
        return
    raise TraceError(
        f"{target} exists and is no trace of lazyviz, so it is not overwritten. Give another "
        "path, or remove it first."
    )


def _head(target: Path) -> bytes:
    """Return how a file begins, unpacked; empty if it cannot be read."""
    opened = gzip.open if target.suffix == ".gz" else open
    with contextlib.suppress(*_UNREADABLE), opened(target, "rb") as file:
        return file.read(_HEAD_BYTES)
    return b""


def document(
    cells: Sequence[CellTime],
    spans: Sequence[Span],
    *,
    lines: Sequence[tuple[str, str, float]] = (),
    dropped: int = 0,
) -> dict[str, Any]:
    """Return the trace as plain data, its events in order of time."""
    everything = [*map(_cell_span, cells), *spans]
    zero = min((span.start_ns for span in everything), default=0)
    placed = list(_placed(everything))
    used = dict.fromkeys(track for track, _ in placed)
    numbers = {track: number for number, track in enumerate(sorted(used), start=1)}
    found = [_event(span, numbers[track], zero) for track, span in placed]
    found += _flows(placed, numbers, zero)
    names = [_fact("process_name", 0, name="lazyviz session")]
    for track, number in numbers.items():
        names.append(_fact("thread_name", number, name=_track_name(track)))
        names.append(_fact("thread_sort_index", number, sort_index=number))
    return {
        "otherData": {
            "producer": f"{_PRODUCER} {__version__}",
            "dropped": dropped,
            "lines": [
                {"at": at, "source": source, "share": share}
                for at, source, share in lines
            ],
            "cells": [_cell_data(cell, zero) for cell in cells],
        },
        "displayTimeUnit": "ms",
        "traceEvents": [*names, *sorted(found, key=lambda event: event["ts"])],
    }


def _cell_span(cell: CellTime) -> Span:
    name = f"cell {cell.number}" if cell.number is not None else "a cell"
    return Span("cell", "cell", name, cell.start_ns, cell.end_ns, cell.number)


def _cell_data(cell: CellTime, zero: int) -> dict[str, Any]:
    times = {"start_ns": cell.start_ns - zero, "end_ns": cell.end_ns - zero}
    rest = {"parts": cell.parts, "device_ns": cell.device_ns}
    return {"number": cell.number, **times, **rest}


def _placed(spans: Sequence[Span]) -> Iterator[tuple[tuple[int, int], Span]]:
    """Yield each span with its track; what overlaps without nesting gets one more."""
    open_ends: dict[tuple[int, int], list[int]] = {}
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        base = _track_of(span)
        part = 0
        while not _fits(open_ends.setdefault((base, part), []), span):
            part += 1
        yield (base, part), span


def _fits(ends: list[int], span: Span) -> bool:
    while ends and ends[-1] <= span.start_ns:
        ends.pop()
    if ends and ends[-1] < span.end_ns:
        return False
    if span.duration_ns:
        ends.append(span.end_ns)
    return True


def _track_of(span: Span) -> int:
    found = 0
    for number, (_, lane, kinds) in enumerate(_TRACKS):
        if lane == span.lane and span.kind in kinds:
            return number
        if lane == span.lane and not kinds:
            found = number
    return found


def _track_name(track: tuple[int, int]) -> str:
    name = _TRACKS[track[0]][0]
    return f"{name} ({track[1] + 1})" if track[1] else name


def _fact(what: str, thread: int, **facts: object) -> dict[str, Any]:
    where = {"ph": "M", "ts": 0, "pid": _PID, "tid": thread}
    return {"name": what, **where, "args": facts}


def _event(span: Span, thread: int, zero: int) -> dict[str, Any]:
    args = {
        "lane": span.lane,
        "kind": span.kind,
        "cell": span.cell,
        "line": printable(span.site),
        "detail": printable(span.detail),
    }
    event: dict[str, Any] = {
        "name": printable(span.name),
        "cat": f"{span.lane},{span.kind}".replace(" ", "_"),
        "pid": _PID,
        "tid": thread,
        "ts": (span.start_ns - zero) / 1000,
        "args": {
            name: value for name, value in args.items() if value not in {None, ""}
        },
    }
    if span.duration_ns:
        return event | {"ph": "X", "dur": span.duration_ns / 1000}
    return event | {"ph": "i", "s": "t"}


def _flows(
    placed: Sequence[tuple[tuple[int, int], Span]],
    numbers: dict[tuple[int, int], int],
    zero: int,
) -> list[dict[str, Any]]:
    """Return the arrows from dispatches to executions, where both ends are kept."""
    starts: dict[int, tuple[tuple[int, int], Span]] = {}
    ends: dict[int, tuple[tuple[int, int], Span]] = {}
    for track, span in placed:
        if span.flow:
            (starts if span.lane == "host" else ends)[span.flow] = (track, span)
    arrows = []
    for flow in starts.keys() & ends.keys():
        for phase, (track, span) in (("s", starts[flow]), ("f", ends[flow])):
            arrow: dict[str, Any] = {
                "name": "dispatch to execution",
                "cat": "flow",
                "ph": phase,
                "id": flow,
                "pid": _PID,
                "tid": numbers[track],
                "ts": (span.start_ns - zero) / 1000,
            }
            arrows.append(arrow | ({"bp": "e"} if phase == "f" else {}))
    return arrows


def load(path: str | Path) -> dict[str, Any]:
    """Return a trace file's data.

    Raises:
        TraceError: It cannot be read, or is no trace-event file.
    """
    source = Path(path)
    try:
        raw = source.read_bytes()
        data = json.loads(gzip.decompress(raw) if raw.startswith(_GZIP) else raw)
    except (*_UNREADABLE, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise TraceError(
            f"{source} cannot be read as a trace: {why}. It must be a trace-event file, as "
            "%lazy timeline --export writes it."
        ) from error
    if isinstance(data, list):
        data = {"traceEvents": data}
    found = data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise TraceError(
            f"{source} has no list `traceEvents`, so it is no trace-event file. "
            "%lazy timeline --export FILE.json writes one."
        )
    return data  # type: ignore[no-any-return]


def report(data: dict[str, Any], cells: int = _MAX_ROWS) -> str:
    """Return a summary of a trace: ours with cells, phases, steps, causes; others as profiles.

    Raises:
        EvidenceError: No event of it took time.
    """
    other = data.get("otherData")
    if not isinstance(other, dict) or not str(other.get("producer", "")).startswith(
        _PRODUCER
    ):
        return trace_profile(data["traceEvents"]).text()
    every, spans = _restored(data)
    chosen = every[-cells:]
    since = min((span.start_ns for span in spans), default=0)
    lines = [(one["at"], one["source"], one["share"]) for one in other["lines"]]
    view = TimelineView(
        cells=chosen,
        spans=spans,
        dropped=other["dropped"],
        gaps=gaps(chosen, spans, since if other["dropped"] else 0),
        lines=lines,
        earlier=len(every) - len(chosen),
    )
    tables = timeline_tables(view, rows=0)
    parts = [Sentence(other["producer"]), tables, *_counts(spans)]
    return Doc(parts, gap="\n\n").to_text()


def _restored(data: dict[str, Any]) -> tuple[list[CellTime], list[Span]]:
    cells = [CellTime(**cell) for cell in data["otherData"]["cells"]]
    spans = []
    for event in data["traceEvents"]:
        args = event.get("args", {})
        if event.get("ph") not in {"X", "i"} or args.get("lane") in {None, "cell"}:
            continue
        start = round(event["ts"] * 1000)
        end = start + round(event.get("dur", 0) * 1000)
        what = args["lane"], args["kind"], event["name"]
        where = args.get("cell"), args.get("line", ""), args.get("detail", "")
        spans.append(Span(*what, start, end, *where))
    return cells, sorted(spans, key=lambda span: span.end_ns)


def _counts(spans: Sequence[Span]) -> Iterator[Part]:
    """Yield what made barriers, what was compiled and why, and what ran on the CPU."""
    spans = [s for s in spans if s.lane != "host"]  # that waits for the others
    barriers = Counter(
        (s.kind, s.name, s.site)
        for s in spans
        if s.kind.endswith("barrier") or s.kind == "cut"
    )
    if barriers:
        rows = [(times, *what) for what, times in barriers.most_common(_MAX_ROWS)]
        yield Table(["times", "what", "cause", "line"], rows)
    compiles = [s for s in spans if s.kind == "compile"]
    if compiles:
        total = text.duration(sum(s.duration_ns for s in compiles))
        longest = sorted(compiles, key=lambda s: -s.duration_ns)[:_MAX_ROWS]
        took = [(text.duration(s.duration_ns), s.name, s.detail) for s in longest]
        head = Sentence(f"{text.plural(len(compiles), 'compile')}, {total} in all:")
        yield Doc([head, Table(["took", "what", "why"], took)])
    fallbacks = Counter((s.name, s.site) for s in spans if s.kind == "fallback")
    if fallbacks:
        ran = [(times, *what) for what, times in fallbacks.most_common(_MAX_ROWS)]
        yield Table(["times", "fallback", "line"], ran)


def main(arguments: Sequence[str]) -> int:
    """Run `python -m lazyviz report`; return 0, or 2 for a file that is no trace or bad words."""
    options = _parser().parse_args(arguments)
    try:
        summary = report(load(options.file), options.cells)
    except (TraceError, EvidenceError, KeyError, TypeError, AttributeError) as error:
        broken = isinstance(error, TraceError | EvidenceError)
        message = str(error) if broken else f"{options.file} is damaged: {error!r}"
        sys.stderr.write(f"lazyviz report: {message}\n")
        return 2
    sys.stdout.write(f"{summary}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lazyviz report",
        description="Summarise a trace that %lazy timeline --export or "
        "lazyviz.export_trace() wrote, or another trace-event file (plain or gzip): where the "
        "time went, by cell, phase and line.",
    )
    parser.add_argument("file", type=Path, help="the trace")
    parser.add_argument(
        "--cells",
        type=whole_number,
        default=_MAX_ROWS,
        metavar="N",
        help=f"the last N cells; by default {_MAX_ROWS}",
    )
    return parser
