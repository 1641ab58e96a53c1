"""The live tensors as a table: sorted, as text, as HTML, as plain data."""

from __future__ import annotations

import dataclasses
import html
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazygraph.numbers import plural, size_text
from lazyrt.control.live_rows import held_by
from lazyrt.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lazyrt.control.live_rows import Growth, LiveRow, Waiting

_MAX_TEXT_ROWS = 40
_MAX_HTML_ROWS = 400
# A model's parameters, gradients and moments are hundreds: what is large is seen, the rest unfolds.
_UNFOLDED_ROWS = 20
# On a narrow page a long name may end a line where a part of it ends.
_LONG = frozenset(("name", "held by"))
_PART = re.compile(r"([A-Za-z\d][._])(?=[A-Za-z])")
_FOLDS_FROM = 26


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LiveReport:
    """All live tensors at one moment, without a reference to any of them.

    Attributes:
        rows: One for each storage, the largest first.
        step: Number of the step that was pending.
        threshold: Tensors that need no more pending nodes than this are left out, unless 0.
        left_out: How many those are, with `left_out_bytes`.
        growth: Places that collect tensors step after step.
        waiting: Earlier cells' pending tensors that nothing reads.
        step_bytes: Size of data that only the pending step reads, of tensors that are gone.
    """

    rows: tuple[LiveRow, ...]
    step: int
    threshold: int = 0
    left_out: int = 0
    left_out_bytes: int = 0
    growth: tuple[Growth, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    step_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """Size of the listed tensors together, in bytes; memory that two have counts once."""
        return sum(row.nbytes for row in self.rows if not row.same_memory_as)

    @property
    def summary(self) -> str:
        """One line of totals."""
        waiting = [row for row in self.rows if row.is_pending]
        parts = [f"{plural(len(self.rows), 'live tensor')}, {size_text(self.nbytes)}"]
        if waiting:
            nbytes = size_text(sum(row.nbytes for row in waiting))
            parts.append(f"{len(waiting):,} pending, {nbytes}")
        if self.left_out:
            parts.append(
                f"{self.left_out:,} more that need at most {plural(self.threshold, 'pending op')} "
                f"left out, {size_text(self.left_out_bytes)}"
            )
        if self.step_bytes:
            parts.append(
                f"{size_text(self.step_bytes)} more that only the pending step reads"
            )
        return " · ".join(parts)

    @property
    def notes(self) -> list[str]:
        """What a reader may want to act on, one sentence each."""
        return [*map(str, self.growth), *map(str, self.waiting)]

    def sorted(self, column: str = "size", *, reverse: bool = False) -> LiveReport:
        """Return the report with its rows in another order.

        Args:
            column: `id`, `name`, `type`, `size`, `ops`, `age`, `made at` or `held by`; numbers
                from the largest down, words from A to Z.
            reverse: Whether to turn that round.

        Raises:
            UsageError: There is no such column.
        """
        key = _sort_keys.get(column)
        if key is None:
            raise UsageError(
                f"the live tensors have no column {column!r}, so they cannot be sorted by it. "
                f"Take one of {', '.join(COLUMNS)}."
            )
        down = (column in _NUMBERS) is not reverse
        rows = tuple(sorted(self.rows, key=key, reverse=down))
        return dataclasses.replace(self, rows=rows)

    def table(self) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Return the columns' titles and each row's cells; empty columns are left out."""
        cells = [_cells(row) for row in self.rows]
        keep = [
            k
            for k in range(len(COLUMNS))
            if k == 0 or any(row[k] != "" for row in cells)
        ]
        header = tuple(COLUMNS[k] for k in keep)
        return header, [tuple(row[k] for k in keep) for row in cells]

    def to_text(self, limit: int = _MAX_TEXT_ROWS) -> str:
        """Return a table, the totals and the notes as plain text."""
        if not self.rows:
            some = self.left_out or self.step_bytes
            return self.summary if some else "No tensor lives on the lazy device."
        header, rows = self.table()
        lines = _text_table(header, rows[:limit])
        if len(rows) > limit:
            rest = sum(row.nbytes for row in self.rows[limit:])
            lines.append(f"... and {len(rows) - limit:,} more, {size_text(rest)}")
        return "\n".join([*lines, self.summary, *map(plain, self.notes)])

    def to_html(self, limit: int = _MAX_HTML_ROWS) -> str:
        """Return the same as HTML that needs no script; all text is escaped."""
        notes = "".join(f"<li>{html.escape(plain(note))}</li>" for note in self.notes)
        summary = (
            f"<p>{html.escape(self.to_text(0) if not self.rows else self.summary)}</p>"
        )
        body = f'<ul class="lzl-notes">{notes}</ul>' if notes else ""
        if self.rows:
            body += self._html_table(limit)
        return f'<div class="lazyviz-live">{summary}{body}</div>'

    def _html_table(self, limit: int) -> str:
        header, rows = self.table()
        shown = rows[:limit]
        more = f"<p>… and {len(rows) - limit:,} more</p>" if len(rows) > limit else ""
        if len(shown) < _FOLDS_FROM:
            return _html_rows(header, shown) + more
        rest = self.rows[_UNFOLDED_ROWS : len(shown)]
        size = size_text(sum(row.nbytes for row in rest if not row.same_memory_as))
        return (
            f"{_html_rows(header, shown[:_UNFOLDED_ROWS])}"
            f"<details><summary>{len(rest):,} more, {size}</summary>"
            f"{_html_rows(header, shown[_UNFOLDED_ROWS:])}{more}</details>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, as JSON takes it."""
        return {
            "step": self.step,
            "threshold": self.threshold,
            "left_out": self.left_out,
            "bytes": self.nbytes,
            "step_bytes": self.step_bytes,
            "rows": [row.to_dict() for row in self.rows],
            "growth": [str(each) for each in self.growth],
            "waiting": [str(each) for each in self.waiting],
        }

    def __repr__(self) -> str:
        return self.to_text()

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return self.to_html()


def _cells(row: LiveRow) -> tuple[Any, ...]:
    mark = f"{row.name} ↑" if row.growth else row.name
    made = str(row.site or "")
    nodes = row.ir_nodes if row.is_pending else ""
    return (
        row.id, mark, row.type, Size(row.nbytes), nodes, row.age, made, held_by(row)
    )  # fmt: skip


class Size(int):
    """A number of bytes that shows with its unit."""

    def __str__(self) -> str:
        return size_text(self)


_sort_keys: dict[str, Callable[[LiveRow], Any]] = {
    "id": lambda row: row.id,
    "name": lambda row: (not row.name, row.name),
    "type": lambda row: row.type,
    "size": lambda row: (row.nbytes, -row.id),
    "ops": lambda row: (row.ir_nodes, -row.id),
    "age": lambda row: (row.age, -row.id),
    "made at": lambda row: (
        (row.site.cell or 0, row.site.file, row.site.line) if row.site else (0, "", 0)
    ),
    "held by": lambda row: (not row.holders, held_by(row)),
}
COLUMNS = tuple(_sort_keys)
# Control characters, marks that make text read in another order, halves of surrogate pairs.
_STEERING = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_NUMBERS = frozenset(("id", "size", "ops", "age"))
# A front end's own style sets words to the right, too.
_STYLES = {
    title: ("text-align:right" if title in _NUMBERS else "text-align:left")
    + (";white-space:nowrap" if title in {*_NUMBERS, "type"} else "")
    for title in COLUMNS
}


def _text_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    texts = [[_text_cell(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *texts, strict=True)]
    sides = [">" if title in _NUMBERS else "<" for title in header]
    return [
        "  ".join(
            f"{cell:{side}{width}}"
            for cell, side, width in zip(line, sides, widths, strict=True)
        ).rstrip()
        for line in [header, ["-" * width for width in widths], *texts]
    ]


def _text_cell(cell: object) -> str:
    if type(cell) is int:
        return f"{cell:,}"
    return plain(str(cell))


def plain(text: str) -> str:
    """Return text for one line, without what would steer a terminal or turn the line round."""
    return _STEERING.sub("\ufffd", " ".join(text.split()))


def _html_rows(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(
        f'<th style="{_STYLES[title]}">{html.escape(title)}</th>' for title in header
    )
    body = "".join(f"<tr>{''.join(map(_html_cell, header, row))}</tr>" for row in rows)
    return (
        f'<table style="font-size:12px">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _html_cell(title: str, cell: object) -> str:
    words = html.escape(_text_cell(cell))
    if title in _LONG and "/" not in words:  # a path stays whole, to be found
        words = _PART.sub(r"\1<wbr/>", words)
    return f'<td style="{_STYLES[title]}">{words}</td>'
