"""Replicas side by side: the table, the first difference, and who is late."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from lazygraph import HloError
from lazyviz.command_line import output_file
from lazyviz.divergence.alignment import Aligned, Row, Track, align, called
from lazyviz.divergence.finding import Difference, first_difference
from lazyviz.divergence.sources import tracks_of
from lazyviz.doc import Advice, Code, Doc, Drawn, Fold, Line, Note, Part, Table
from lazyviz.draw.model import clip
from lazyviz.foreign import Evidence, EvidenceError
from lazyviz.render import text
from lazyviz.render.html import one_line, page_html

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lazyviz.divergence.alignment import Barrier

_MAX_COLUMNS = 8
_MAX_ALONE = 4  # of more replicas, those that are alike share a column
_BEFORE, _AFTER = 3, 12
_DIGITS = 8
_MAX_CELL = 90
_TERMINAL, _LEAST_CELL = 180, 36
_MARK = "▶ "
_GAP = "—"
_MAX_DIFF = 60_000
_CAPTION = (
    "This compares what was recorded; it neither notices a difference while the program runs "
    "nor prevents that replicas wait for each other."
)

# A replica that has been on one line for less is not called late.
_LATE_S = 5.0
_MAX_LATE = 8


@dataclass(frozen=True, repr=False)
class Replicas(Evidence):
    """What several replicas of a program ran, side by side.

    Attributes:
        tracks: What is known of each replica.
        aligned: Their barriers, row by row.
        now: When they were read, in seconds since 1970.
    """

    tracks: tuple[Track, ...]
    aligned: Aligned
    now: float

    @cached_property
    def first_difference(self) -> Difference | None:
        """Where replicas part first; None where they do not."""
        return first_difference(self.tracks, self.aligned)

    @cached_property
    def late(self) -> tuple[str, ...]:
        """A sentence for each replica that stands still, has ended early or left no record."""
        return tuple(_late(self))

    @property
    def sentence(self) -> str:
        """What differs, or that nothing does, with counts."""
        found = self.first_difference
        if found is not None:
            return found.sentence
        return "; ".join([_no_difference(self), *self.late[:1]])

    @property
    def fix(self) -> str:
        """What mends it; empty if nothing is to be mended."""
        return self.first_difference.fix if self.first_difference is not None else ""

    @property
    def table(self) -> tuple[tuple[str, ...], ...]:
        """The heading and the rows around the first difference, as texts."""
        return (header(self), *rows(self))

    def doc(self) -> Doc:
        """Return the sentence, the repair and the table; the graphs' difference is folded."""
        first, *others = _sentences(self)
        said = (each.partition(": ") for each in others)
        advice = (Advice(label, words) for label, _, words in said)
        parts: list[Part] = [Doc([Line(first), *advice])]
        shown = rows(self)
        if shown:
            width = max(_LEAST_CELL, _TERMINAL // (len(shown[0]) - 1))
            cells = [
                (row[0], *(clip(cell, width) for cell in row[1:])) for row in shown
            ]
            table = Table(header(self), shown)
            scrolls = f'<div style="overflow:auto;margin:4px 0">{table.to_html()}</div>'
            parts.append(Drawn(Table(header(self), cells).to_text(), lambda: scrolls))
        difference = self.first_difference
        if difference is not None and difference.diff is not None:
            from lazyviz.draw.diff_text import diff_text

            told = clip(diff_text(difference.diff), _MAX_DIFF)
            parts.append(Fold("the difference of the graphs", [Code(told)]))
        parts += map(Note, _notes(self))
        return Doc(parts, css_class="lazyviz-replicas", gap="\n\n")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        found = self.first_difference
        return {
            "sentence": self.sentence,
            "fix": self.fix,
            "late": list(self.late),
            "first_difference": None if found is None else {
                "row": found.row,
                "kind": found.kind,
                "causes": list(found.causes),
                "sides": [
                    {"replicas": list(side.names), "barrier": str(side.barrier or "")}
                    for side in found.sides
                ],
            },
            "replicas": [
                {
                    "name": track.name,
                    "barriers": len(track.barriers),
                    "state": track.state,
                    "last_line": str(track.last_lines[0]) if track.last_lines else "",
                    "last_time": track.last_time,
                }
                for track in self.tracks
            ],
            "table": [list(row) for row in self.table],
        }  # fmt: skip


def replicas(
    source: str | Path | Iterable[str | Path], *, now: float | None = None
) -> Replicas:
    """Return what several replicas of a program ran side by side, and where they part first.

    Reads what the processes have written; nothing is noticed while they run, and no wait is
    prevented.

    Args:
        source: A folder that processes recorded into (`lazyrt.record_steps`, or LAZYRT_RECORD);
            a folder or list of the files that XLA_SAVE_TENSORS_FILE writes for each ordinal; or
            one file of HLO, StableHLO or IR for each replica.
        now: The present time in seconds; by default the clock's.

    Raises:
        EvidenceError: A file is none of these, or is damaged; or there is only one replica.
    """
    now = time.time() if now is None else now
    tracks = tracks_of(source, now)
    return Replicas(tuple(tracks), align(tracks), now)


def _no_difference(found: Replicas) -> str:
    counts = [len(track.barriers) for track in found.tracks]
    graphs = {b.graph for track in found.tracks for b in track.barriers} - {""}
    same = len(set(counts)) == 1 and not any(
        row.kind == "cut" for row in found.aligned.rows
    )
    barriers = f"the same {text.plural(counts[0], 'barrier')}" if same else (
        f"the same barriers as far as they are known ({min(counts):,} to {max(counts):,})"
    )  # fmt: skip
    what = "programs" if all(t.state == "dump" for t in found.tracks) else "graphs"
    return (
        f"no difference: {called([t.name for t in found.tracks])} ran {barriers} and "
        f"{len(graphs):,} {what if len(graphs) != 1 else what[:-1]}"
    )


def _late(found: Replicas) -> list[str]:
    said = [*_absent(found.tracks)]
    most = max(len(track.barriers) for track in found.tracks)
    for track in found.tracks:
        sentence = _last_sign(track, found.now, most)
        if sentence:
            said.append(sentence)
    if len(said) > _MAX_LATE:
        said[_MAX_LATE:] = [
            f"{len(said) - _MAX_LATE:,} more replicas have not ended well"
        ]
    return said


def _absent(tracks: Sequence[Track]) -> list[str]:
    of = max((track.of or 0 for track in tracks), default=0)
    here = {track.name for track in tracks}
    gone = [str(k) for k in range(of) if str(k) not in here]
    if not gone or not all(name.isdecimal() for name in here):
        return []
    have = "has" if len(gone) == 1 else "have"
    return [
        f"{called(gone)} of {of} {have} left no record: it never came so far, or records elsewhere"
    ]


def _last_sign(track: Track, now: float, most: int) -> str:
    who, done = called([track.name]), len(track.barriers)
    where = _where(track)
    since = text.duration(max(0.0, now - track.last_time) * 1e9)
    ahead = f", while others have {most:,}" if most > done else ""
    count = f"after {text.plural(done, 'barrier')}{ahead}"
    if track.state == "failed":
        return f"{who} was ended by {track.failure} {where}, {count}"
    if track.state == "full":
        return f"{who}'s record is full and was not continued, {count}"
    if track.state == "silent":
        last = dt.datetime.fromtimestamp(track.last_time).astimezone()
        return (
            f"{who} gives no sign of life since {last:%H:%M:%S}, {since} ago, and has not "
            f"ended: it was {where}, {count}; it was killed, or its machine is gone"
        )
    if track.state != "running":
        return ""
    stands = now - _moved(track)
    if stands < _LATE_S:
        return ""
    return f"{who} has been {where} for {text.duration(stands * 1e9)}, {count}"


def _moved(track: Track) -> float:
    """Return when a replica last came to a barrier or left one."""
    if track.entered is not None:
        return track.entered.time
    return track.barriers[-1].time if track.barriers else track.started


def _where(track: Track) -> str:
    line = str(track.last_lines[0]) if track.last_lines else "an unknown line"
    if track.entered is not None:
        return f"inside a barrier, {track.entered.cause}, at {line}"
    return f"at {line}"


def main(arguments: Sequence[str], out: TextIO | None = None) -> int:
    """Run `python -m lazyviz replicas`; return 0 without a difference, 1 with one, 2 for an error."""
    out = out or sys.stdout
    parser = argparse.ArgumentParser(
        prog="python -m lazyviz replicas",
        description="Compare what several replicas of a program ran: records of "
        "lazyrt.record_steps (LAZYRT_RECORD), the files that XLA_SAVE_TENSORS_FILE writes for "
        "each ordinal, or one program for each replica.",
    )
    parser.add_argument(
        "paths", type=Path, nargs="+", metavar="PATH", help="a folder, or the files"
    )
    parser.add_argument(
        "--html", type=output_file, metavar="FILE", help="also write a web page"
    )
    parser.add_argument("--json", action="store_true", help="print plain data")
    options = parser.parse_args(arguments)
    try:
        found = replicas(options.paths)
        shown = json.dumps(found.to_dict(), indent=2) if options.json else found.text()
        if options.html is not None:
            page = [("", found.to_html())]
            shown_page = page_html("Replicas side by side", page, is_locked=True)
            options.html.write_text(shown_page, encoding="utf-8")
    except (EvidenceError, HloError, OSError) as error:
        sys.stderr.write(f"lazyviz replicas: {noted(error)}\n")
        return 2
    out.write(f"{shown}\n")
    if options.html is not None and not options.json:
        out.write(f"The page: {options.html.absolute()}\n")
    return 1 if found.first_difference is not None or found.late else 0


def noted(error: Exception) -> str:
    """Return what an error says, with its notes."""
    notes = getattr(error, "__notes__", [])
    return " ".join([str(error), *(f"({note})" for note in notes)])


def _sentences(found: Replicas) -> list[str]:
    difference = found.first_difference
    first = found.sentence
    said = [f"{first[0].upper()}{first[1:]}."]
    if difference is not None:
        said += [f"mend: {difference.fix}"] if difference.fix else []
        said += [f"cause: {each}" for each in difference.causes if each not in first]
    late = found.late if difference is not None else found.late[1:]
    return [one_line(each) for each in (*said, *(f"late: {each}" for each in late))]


def _notes(found: Replicas) -> list[str]:
    notes = [
        f"{called([track.name])}: {note}"
        for track in found.tracks
        for note in track.notes
    ]
    listed = len(_listed(found))
    total = len(found.aligned.rows) + found.aligned.common
    if listed < total:
        notes.append(
            f"{listed:,} of {text.plural(total, 'row')} shown; {found.aligned.common:,} at the start are equal"
        )
    if any(found.aligned.left):
        notes.append(
            f"up to {text.plural(max(found.aligned.left), 'later barrier')} of a replica were not compared"
        )
    starts = [track.started for track in found.tracks if track.started]
    if starts and max(starts) - min(starts) > 600:  # noqa: PLR2004 - ten minutes: another run
        apart = text.duration((max(starts) - min(starts)) * 1e9)
        notes.append(
            f"the records were begun {apart} apart: they may be of different runs"
        )
    if sum(map(len, _columns(found))) < len(found.tracks):
        notes.append(
            "replicas that ran the same stand in one column; only the first columns are shown"
        )
    if found.first_difference is not None or found.late:
        notes.append(_CAPTION)
    return notes


def _columns(found: Replicas) -> list[list[int]]:
    """Return which replicas stand in each column: each in its own, or those that are alike."""
    if len(found.tracks) <= _MAX_ALONE:
        return [[k] for k in range(len(found.tracks))]
    groups: dict[object, list[int]] = {}
    for k, track in enumerate(found.tracks):
        key = tuple(b.what for b in track.barriers), track.state
        groups.setdefault(key, []).append(k)
    return sorted(groups.values(), key=lambda g: (-len(g), g))[:_MAX_COLUMNS]


def header(found: Replicas) -> tuple[str, ...]:
    """Return the headings."""
    names = [
        called([found.tracks[k].name for k in column]) for column in _columns(found)
    ]
    return ("row", *names)


def rows(found: Replicas) -> tuple[tuple[str, ...], ...]:
    """Return the rows around the first difference as texts; the first differing one is marked."""
    columns = _columns(found)
    marked = found.first_difference.row if found.first_difference is not None else 0
    made = []
    for number, row in _listed(found):
        mark = (
            f"{_MARK}{number:,} first difference" if number == marked else f"{number:,}"
        )
        made.append((mark, *(_cell(found, row, column[0]) for column in columns)))
    made += _last_row(found, columns)
    return tuple(made)


def _listed(found: Replicas) -> list[tuple[int, Row]]:
    """Return the rows that are shown, with their numbers."""
    common, later = found.aligned.common, found.aligned.rows
    count = len(found.tracks)
    marked = found.first_difference.row if found.first_difference is not None else None
    at = (
        marked
        or common + next((k for k, r in enumerate(later, 1) if r.kind != "equal"), 0)
    ) - 1
    start, end = max(0, at - _BEFORE), at + 1 + _AFTER
    return [
        (k + 1, Row((k,) * count, "equal") if k < common else later[k - common])
        for k in range(start, min(end, common + len(later)))
    ]


def _cell(found: Replicas, row: Row, replica: int) -> str:
    cell = row.cells[replica]
    if cell is not None:
        return clip(_told(found.tracks[replica].barriers[cell]), _MAX_CELL)
    return "(ended)" if row.kind == "cut" else _GAP


def _told(barrier: Barrier) -> str:
    if not barrier.ran:
        return f"{barrier} · nothing pending"
    graph = f" · {barrier.graph[:_DIGITS]}" if barrier.graph else ""
    step = f" · {barrier.step}" if barrier.step else ""
    ops = f" · {text.plural(barrier.ops, 'op')}" if barrier.word == "barrier" else ""
    return f"{barrier}{ops}{graph}{step}"


def _last_row(found: Replicas, columns: list[list[int]]) -> list[tuple[str, ...]]:
    """Return how each replica ended, if one of them did not end well."""
    states = [found.tracks[column[0]] for column in columns]
    if not found.late or all(track.state in {"ended", "dump"} for track in states):
        return []
    words = {
        "ended": "ended", "dump": "", "full": "record full", "running": "goes on",
        "silent": "no sign of life", "failed": "ended by ",
    }  # fmt: skip
    cells = []
    for track in states:
        line = f" at {track.last_lines[0]}" if track.last_lines and track.is_cut else ""
        cells.append(clip(f"{words[track.state]}{track.failure}{line}", _MAX_CELL))
    return [("last", *cells)]
