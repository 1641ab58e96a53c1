"""Replicas side by side, for a terminal and for a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyviz.divergence.alignment import Row
from lazyviz.divergence.tracks import called
from lazyviz.render import html, text
from lazyviz.render.escape import one_line
from lazyviz.render.measure import clip
from lazyviz.render.page import page_html

if TYPE_CHECKING:
    from lazyviz.divergence.report import Replicas
    from lazyviz.divergence.tracks import Barrier

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


def replicas_text(found: Replicas) -> str:
    """Return the sentence, the repair, the late ones and the table."""
    parts = ["\n".join(_sentences(found))]
    shown = rows(found)
    if shown:
        width = max(_LEAST_CELL, _TERMINAL // (len(shown[0]) - 1))
        cells = [(row[0], *(clip(cell, width) for cell in row[1:])) for row in shown]
        parts.append(text.table(header(found), cells))
    parts += _notes(found)
    return "\n\n".join(parts)


def replicas_html(found: Replicas) -> str:
    """Return the same for a notebook, with the difference of the graphs folded."""
    first, *others = _sentences(found)
    parts = [html.line(first), *map(_said_html, others)]
    shown = rows(found)
    if shown:
        made = html.table(header(found), shown)
        parts.append(f'<div style="overflow:auto;margin:4px 0">{made}</div>')
    difference = found.first_difference
    if difference is not None and difference.diff is not None:
        from lazyviz.render.diff_text import diff_text

        told = clip(diff_text(difference.diff), _MAX_DIFF)
        parts.append(html.folded("the difference of the graphs", html.pre(told)))
    parts += map(html.muted, _notes(found))
    return f'<div class="lazyviz-replicas">{"".join(parts)}</div>'


def replicas_page(found: Replicas) -> str:
    """Return a page that needs no other file."""
    return page_html(
        "Replicas side by side", [("", replicas_html(found))], is_locked=True
    )


def _sentences(found: Replicas) -> list[str]:
    difference = found.first_difference
    first = found.sentence
    said = [f"{first[0].upper()}{first[1:]}."]
    if difference is not None:
        said += [f"mend: {difference.fix}"] if difference.fix else []
        said += [f"cause: {each}" for each in difference.causes if each not in first]
    late = found.late if difference is not None else found.late[1:]
    return [one_line(each) for each in (*said, *(f"late: {each}" for each in late))]


def _said_html(said: str) -> str:
    label, _, words = said.partition(": ")
    return html.advice(label, words)


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
    return f"{barrier} · {text.plural(barrier.ops, 'op')}{graph}{step}"


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
