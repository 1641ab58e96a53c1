"""The live tensors as a table whose headers sort it and whose buttons let go of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazyviz.render.escape import markup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lazyrt import LiveReport
_MAX_ROWS = 300
_NUMBERS = frozenset(("id", "size", "ops", "age"))
_SAYS = {True: "descending", False: "ascending"}
_ARROWS = {"descending": "▼", "ascending": "▲"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Something that can be let go of.

    Attributes:
        name: As `%lazy drop` takes it: a variable, `Out[4]` or `traceback`.
        asks: Whether a click should ask first: a variable is the user's own.
    """

    name: str
    asks: bool


def live_table(
    report: LiveReport,
    targets: Mapping[int, Sequence[Target]],
    sort: str,
    *,
    reverse: bool,
) -> str:
    """Return the live tensors as HTML for the widget; all text is escaped.

    Args:
        report: Its rows in the order in which they are shown.
        targets: By the number of a row, what can be let go of to free it.
        sort: The column that the rows are in the order of.
        reverse: Whether that order is turned round.
    """
    notes = "".join(f"<li>{markup(note)}</li>" for note in report.notes)
    found = f'<ul class="lzl-notes">{notes}</ul>' if notes else ""
    if not report.rows:
        return f"<p>{markup(report.to_text())}</p>"
    return found + _table(report, targets, sort, reverse=reverse)


def _table(
    report: LiveReport,
    targets: Mapping[int, Sequence[Target]],
    sort: str,
    *,
    reverse: bool,
) -> str:
    header, rows = report.table()
    direction = _SAYS[(sort in _NUMBERS) is not reverse]
    heads = "".join(
        _head(title, direction if title == sort else "none") for title in header
    )
    body = "".join(
        f"<tr{_GROWS if row.growth else ''}>"
        f"{''.join(_cell(t, c) for t, c in zip(header, cells, strict=True))}"
        f"<td>{' '.join(button(t.name, t.name) for t in targets.get(row.id, ()))}</td></tr>"
        for row, cells in zip(report.rows[:_MAX_ROWS], rows[:_MAX_ROWS], strict=True)
    )
    more = len(rows) - _MAX_ROWS
    rest = f"<p>… and {more:,} more; sort them to see others</p>" if more > 0 else ""
    return (
        '<div class="lzl-scroll"><table><thead><tr>'
        f'{heads}<th scope="col">let go</th></tr></thead><tbody>{body}</tbody></table></div>{rest}'
    )


_GROWS = ' class="lzl-grows" title="one of a collection that grows with each step"'


_MEANS = {
    "id": "the order in which they were made",
    "ops": "pending ops that it waits for",
    "age": "how many steps ago it was made",
    "made at": "the line that made it",
    "held by": "what keeps it alive",
}


def _head(title: str, direction: str) -> str:
    arrow = f" {_ARROWS[direction]}" if direction in _ARROWS else ""
    side = ' class="lzl-number"' if title in _NUMBERS else ""
    return (
        f'<th scope="col" title="{_MEANS.get(title, "sort by this")}" aria-sort="{direction}"{side}><button type="button" '
        f'data-kind="sort" data-column="{markup(title)}">{markup(title)}{arrow}</button></th>'
    )


def _cell(title: str, cell: Any) -> str:
    shown = f"{cell:,}" if type(cell) is int else str(cell)
    side = ' class="lzl-number"' if title in _NUMBERS else ""
    return f"<td{side}>{markup(shown)}</td>"


def button(name: str, label: str, *, confirmed: bool = False) -> str:
    """Return a button that lets go of what a name stands for."""
    sure = ' data-confirmed="1"' if confirmed else ""
    return (
        f'<button type="button" class="lzl-drop" data-kind="drop" data-name="{markup(name)}"'
        f'{sure} aria-label="{markup(f"let go of {name}")}">{markup(label)}</button>'
    )


def question(name: str, count: int, size: str) -> str:
    """Return what a click on a variable's button asks first."""
    tensors = "1 tensor" if count == 1 else f"{count:,} tensors"
    return (
        f"Delete your variable <code>{markup(name)}</code>? It leads to {tensors}, "
        f"{markup(size)}. {button(name, f'delete {name}', confirmed=True)} "
        '<button type="button" data-kind="keep">keep it</button>'
    )


def answer(text: str, *, failed: bool = False) -> str:
    """Return what came of a request, with its lines kept."""
    role = ' class="lzl-said lzx" role="alert"' if failed else ' class="lzl-said"'
    return f"<span{role}>{markup(text)}</span>"
