"""The live tensors: what holds them, what grows, and how to let go of them.

`LiveTable` is the table that a page sorts, refreshes and lets go of tensors by. It knows no
browser: it takes requests, plain dicts such as `{"kind": "sort", "column": "age"}`, checks them,
and returns replies. It keeps numbers and names between two requests, and no tensor.
"""

from __future__ import annotations

import gc
import re
import sys
from typing import TYPE_CHECKING, Any

from lazyviz import session
from lazyviz.doc import Doc, Drawn, Fold, Note, Points, Table
from lazyviz.inspection import protocol
from lazyviz.render import text
from lazyviz.render.html import markup
from lazyviz.shell.lazytensors import is_lazy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import ModuleType

    from lazyrt import LiveReport
    from lazyrt.tools import LiveRow, Name
    from lazyviz.doc import Part


_MAX_ROWS = 300
# A model's parameters, gradients and moments are hundreds: what is large is seen, the rest unfolds.
_UNFOLDED, _FOLDS_FROM = 20, 26
_NUMBERS = frozenset(("id", "size", "ops", "age"))

_GROWS = ' class="lzl-grows" title="one of a collection that grows with each step"'
_MEANS = {
    "id": "the order in which they were made",
    "ops": "pending ops that it waits for",
    "age": "how many steps ago it was made",
    "made at": "the line that made it",
    "held by": "what keeps it alive",
}
TRACEBACK = "traceback"
_RESULT = re.compile(r"(?:Out\[(\d+)\]|_(\d+)|(_{1,3}))")
_LAST_ERROR = ("last_exc", "last_value", "last_type", "last_traceback")
_OF_USER = frozenset(("variable", "list", "dict", "tuple", "set", "deque"))
_MAX_STILL = 3
_UNDERSCORES = ("_", "__", "___")
_USAGE = (
    "%lazy drop alone drops the pending ops; %lazy drop NAME, %lazy drop Out[4] and "
    "%lazy drop traceback let go of tensors. %lazy live says who holds which."
)


def live_doc(found: LiveReport) -> Doc:
    """Return the live tensors as text, and for a page without scripts: the largest, the rest folded."""
    header, rows = found.table()
    cells = [[c if type(c) is int else str(c) for c in row] for row in rows[:_MAX_ROWS]]
    unfolded = len(cells) if len(cells) < _FOLDS_FROM else _UNFOLDED
    shown = found.summary if rows else found.to_text()
    parts: list[Part] = [Note(shown), Points(found.notes)]
    if rows:
        parts.append(Table(header, cells[:unfolded]))
    if unfolded < len(cells):
        rest = found.rows[unfolded : len(cells)]
        size = sum(row.nbytes for row in rest if not row.same_memory_as)
        more = map(Note, text.more(len(rows) - len(cells)))
        title = f"{len(rest):,} more, {text.size(size)}"
        parts.append(Fold(title, [Table(header, cells[unfolded:]), *more]))
    return Doc([Drawn(found.to_text(), Doc(parts).to_html)])


def live_table(
    report: LiveReport,
    targets: Mapping[int, Iterable[str]],
    sort: str,
    *,
    reverse: bool,
) -> str:
    """Return the live tensors as HTML for the widget; all text is escaped.

    `targets` has, by the number of a row, what can be let go of to free it.
    """
    if not report.rows:
        return f"<p>{markup(report.to_text())}</p>"
    listed = "".join(f"<li>{markup(note)}</li>" for note in report.notes)
    notes = f'<ul class="lzl-notes">{listed}</ul>' if listed else ""
    header, rows = report.table()
    groups: dict[str, list[str]] = {kind: [] for kind in report.totals}
    for row, cells in zip(report.rows[:_MAX_ROWS], rows[:_MAX_ROWS], strict=True):
        groups[row.kind].append(
            f"<tr{_GROWS if row.growth else ''}>"
            f"{''.join(protocol.cell_html(t, c, _NUMBERS) for t, c in zip(header, cells, strict=True))}"
            f"<td>{' '.join(protocol.drop_button(name, name) for name in targets.get(row.id, ()))}</td></tr>"
        )
    body = "".join(
        _group(kind, report, len(header) + 1) + "".join(listed)
        for kind, listed in groups.items()
        if listed
    )
    more = len(rows) - _MAX_ROWS
    rest = f"<p>… and {more:,} more; sort them to see others</p>" if more > 0 else ""
    columns = {title: _MEANS.get(title, "sort by this") for title in header}
    table = protocol.sortable_html(
        columns, body, "let go", _NUMBERS, sort=sort, reverse=reverse
    )
    return f"{notes}{table}{rest}"


def _group(kind: str, report: LiveReport, columns: int) -> str:
    """Return the line above the rows of a kind, with their total; empty if there is one kind."""
    if len(report.totals) == 1:
        return ""
    count, nbytes = report.totals[kind]
    total = f"{text.plural(count, 'tensor')}, {text.size(nbytes)}"
    return (
        f'<tr class="lzl-group"><th scope="rowgroup" colspan="{columns}">{markup(kind)}'
        f"<small> {markup(total)}</small></th></tr>"
    )


def variable_question(name: str, count: int, size: str) -> str:
    """Return what a click on a variable's button asks first."""
    asked = (
        f"Delete your variable <code>{markup(name)}</code>? It leads to "
        f"{text.plural(count, 'tensor')}, {markup(size)}."
    )
    return protocol.question(asked, name, f"delete {name}")


def report(
    runtime: ModuleType,
    shell: Any,
    *,
    above: int = 0,
    sort: str = "size",
    reverse: bool = False,
) -> LiveReport:
    """Return the live tensors, with a shell's variables, if any, among the places to look."""
    found: LiveReport = runtime.live_tensors_report(
        above, namespace=None if shell is None else shell.user_ns
    )
    return found.sorted(sort, reverse=reverse)


# --- letting go


def targets(row: LiveRow, namespace: Mapping[str, Any]) -> dict[str, bool]:
    """Return what `%lazy drop` can let go of among the holders of a tensor.

    For a variable, the user's own, a click asks first.
    """
    found: dict[str, bool] = {}
    for holder in row.holders:
        result = _RESULT.match(holder.text)
        root = re.match(r"\w+", holder.text)
        if holder.holder.startswith(TRACEBACK):
            name = TRACEBACK if "sys.last_value" in str(holder) else ""
        elif result is not None:
            number = result[1] or result[2]
            name = f"Out[{number}]" if number else result[3]
        elif root is not None and _is_of_user(holder, namespace.get(root[0])):
            name = root[0]
        else:
            name = ""
        if name:
            found.setdefault(name, name != TRACEBACK and result is None)
    return found


def _is_of_user(holder: Name, root: object) -> bool:
    """Return whether letting go of a variable is a way to free what it leads to.

    A tensor's gradient goes with the tensor; nobody deletes a model to free a gradient.
    """
    if holder.holder == "gradient":
        return is_lazy(root)
    return root is not None and holder.holder in _OF_USER


def drop(runtime: ModuleType, shell: Any, name: str) -> str:
    """Let go of what a name stands for; return what that freed, and what still holds the rest.

    The name is that of a variable, `Out[4]`, `_`, or `traceback`.

    Raises:
        ValueError: The name stands for nothing that can be let go of.
    """
    name = name.strip()
    before = report(runtime, shell)
    ops = len(runtime.pending_graph().nodes)
    result = _RESULT.fullmatch(name)
    if name == TRACEBACK:
        _drop_traceback(shell)
    elif result is not None:
        _drop_result(shell, name, result[1] or result[2])
    else:
        _drop_variable(shell, name, before)
    gc.collect()
    after = report(runtime, shell)
    return _outcome(name, before, after, ops - len(runtime.pending_graph().nodes))


def _outcome(name: str, before: LiveReport, after: LiveReport, fewer: int) -> str:
    from lazyrt.tools import held_by

    alive = {row.id: row for row in after.rows}
    freed = [row for row in before.rows if row.id not in alive]
    held = [
        alive[row.id] for row in before.rows if row.id in alive and leads(row, name)
    ]
    count = text.plural(len(freed), "tensor")
    nbytes = before.nbytes + before.step_bytes - after.nbytes - after.step_bytes
    got = f"{text.size(nbytes)}, freed." if nbytes > 0 else "whose memory stays in use."
    lines = [
        f"Dropped {name}: " + (f"{count}, {got}" if freed else "nothing was freed.")
    ]
    shared = sorted({row.same_memory_as for row in freed} - {""})
    if shared:
        lines[0] += f" {', '.join(shared)} had the same memory."
    more = after.step_bytes - before.step_bytes
    if more > 0:
        lines[0] += (
            f" The pending step reads {text.size(more)} of it, until it has run."
        )
    if fewer > 0:
        lines[0] += f" The next step runs {text.plural(fewer, 'op')} fewer."
    lines += [
        f"  {row.type}, {text.size(row.nbytes)}, is still held by {held_by(row)}"
        for row in held[:_MAX_STILL]
    ]
    if len(held) > _MAX_STILL:
        lines.append(f"  and {len(held) - _MAX_STILL:,} more; %lazy live lists them")
    return "\n".join(lines)


def leads(row: LiveRow, name: str) -> bool:
    """Return whether a name led to a tensor."""
    if name == TRACEBACK:
        return any(holder.holder.startswith(TRACEBACK) for holder in row.holders)
    inside = re.compile(rf"{re.escape(name)}(?!\w)")
    return any(inside.match(holder.text) for holder in row.holders)


def _drop_traceback(shell: Any) -> None:
    if not any(hasattr(sys, name) for name in _LAST_ERROR):
        raise ValueError(
            "%lazy drop traceback: no exception was shown since the last drop, so there is no "
            "traceback to let go of. " + _USAGE
        )
    for name in _LAST_ERROR:
        vars(sys).pop(name, None)
    current = session.current(shell)
    if current is not None:
        current.last_error = None
    last = shell.last_execution_result
    if last is not None:
        last.error_in_exec = last.error_before_exec = None
    for printer in (shell.InteractiveTB, shell.SyntaxTB):
        for name in ("tb", "etype", "value", "evalue", "last_syntax_error"):
            if getattr(printer, name, None) is not None:
                setattr(printer, name, None)


def _drop_result(shell: Any, name: str, number: str | None) -> None:
    """Let go of a result under all of IPython's names for it."""
    space, results = shell.user_ns, shell.user_ns.get("Out", {})
    known = int(number) in results if number else name in space
    if not known:
        have = ", ".join(f"Out[{each}]" for each in list(results)[-6:]) or "none"
        raise ValueError(
            f"%lazy drop {name}: there is no such result. IPython keeps {have}. {_USAGE}"
        )
    kept = results[int(number)] if number else space[name]
    if not is_lazy(kept) and (kept is None or kept == ""):
        raise ValueError(f"%lazy drop {name}: it holds nothing. {_USAGE}")
    spaces = (space, shell.user_ns_hidden)
    for each in [each for each, value in results.items() if value is kept]:
        del results[each]
        for names in spaces:
            names.pop(f"_{each}", None)
    for underscores in _UNDERSCORES:
        # IPython shifts these only while all places agree.
        for names in (*spaces, vars(shell.displayhook)):
            if names.get(underscores) is kept:
                names[underscores] = ""
    last = shell.last_execution_result
    if last is not None and last.result is kept:
        last.result = None


def _drop_variable(shell: Any, name: str, live: LiveReport) -> None:
    space = shell.user_ns
    if name not in space:
        root = re.match(r"\w+", name)
        if root is not None and root[0] in space:
            raise ValueError(
                f"%lazy drop {name}: only whole variables are dropped, and this is a part of "
                f"{root[0]}. Run `del {name}`, or %lazy drop {root[0]}."
            )
        raise ValueError(
            f"%lazy drop {name}: there is no variable of this name. {_USAGE}"
        )
    if not any(leads(row, name) for row in live.rows):
        raise ValueError(
            f"%lazy drop {name}: it leads to no tensor on the lazy device, so dropping it would "
            f"free nothing there. Run `del {name}` to delete it all the same."
        )
    del space[name]


class LiveTable(protocol.PageTable):
    """The live tensors of a shell's program, in the order that a page asked for; it keeps no tensor."""

    what = "live tensors"
    _what = f"table of {what}"

    def __init__(
        self,
        runtime: ModuleType,
        shell: Any,
        *,
        above: int = 0,
        sort: str = "size",
        reverse: bool = False,
    ) -> None:
        self._runtime = runtime
        self._shell = shell
        self._above = above
        super().__init__(sort, reverse=reverse)

    @property
    def columns(self) -> Sequence[str]:
        """The columns of a report."""
        from lazyrt.tools import LIVE_COLUMNS

        return LIVE_COLUMNS

    def _made(self) -> tuple[str, str]:
        chosen: Any = {"sort": self._sort, "reverse": self._reverse}
        found = report(self._runtime, self._shell, above=self._above, **chosen)
        leads_to = {row.id: targets(row, self._shell.user_ns) for row in found.rows}
        body = live_table(found, leads_to, **chosen)
        return found.summary, body

    def _question(self, name: str) -> str:
        found = report(self._runtime, self._shell)
        offered: dict[str, bool] = {}
        for row in found.rows:
            offered |= targets(row, self._shell.user_ns)
        if name not in offered:
            raise protocol.RequestError(
                f"{name!r} leads to no live tensor by now, so nothing was dropped. Refresh the "
                "table."
            )
        if not offered[name]:
            return ""
        current = session.current(self._shell)
        if current is not None and current.cell_number is not None:
            raise protocol.RequestError(
                f"cell {current.cell_number} is running and may use {name}, so it was not "
                "deleted. Click again when the cell has ended."
            )
        led = [row for row in found.rows if leads(row, name)]
        size = text.size(sum(row.nbytes for row in led))
        return variable_question(name, len(led), size)

    def _dropped(self, name: str) -> str:
        return drop(self._runtime, self._shell, name)
