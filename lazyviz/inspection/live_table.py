"""The table of live tensors that a page sorts, refreshes and lets go of tensors by.

A `LiveTable` knows no browser. It takes requests, plain dicts such as
`{"kind": "sort", "column": "age"}`, checks them, and returns replies. It keeps numbers and
names between two requests, and no tensor.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from lazyviz import session
from lazyviz.inspection import live
from lazyviz.inspection.protocol import RequestError, answered, quoted
from lazyviz.render import live as drawing
from lazyviz.render import text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

    from lazyviz.inspection.protocol import Reply

# A table that takes longer is not made anew after each cell without being asked for.
MAX_AUTOMATIC_NS = 100_000_000
_MAX_NAME = 200


class LiveTable:
    """The live tensors of a shell's program, in the order that a page asked for.

    Attributes:
        took_ns: How long the latest table took to make.
    """

    def __init__(
        self, runtime: ModuleType, shell: Any, chosen: live.Options | None = None
    ) -> None:
        self._runtime = runtime
        self._shell = shell
        self._chosen = chosen or live.Options()
        self.took_ns = 0

    def handle(self, request: object) -> Iterator[Reply]:
        """Answer a request; each reply is ready as soon as it is yielded.

        Raises:
            RequestError: It is none of ours, or cannot be done.
        """
        answers = {
            "sort": self._sort,
            "refresh": self._refresh,
            "drop": self._drop,
            "keep": _keep,
        }
        yield from answered(request, answers, "live table")

    def table(self) -> Reply:
        """Return the table as it is now."""
        start = time.perf_counter_ns()
        chosen = self._chosen
        report = live.report(self._runtime, self._shell, chosen)
        targets = {
            row.id: live.targets(row, self._shell.user_ns) for row in report.rows
        }
        body = drawing.live_table(report, targets, chosen.sort, reverse=chosen.reverse)
        self.took_ns = time.perf_counter_ns() - start
        return {"kind": "table", "html": body, "title": report.summary}

    # --- answers

    def _sort(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        """Sort by a column; asked for the same one again, turn the order round."""
        from lazyrt.tools import LIVE_COLUMNS

        column, chosen = request.get("column"), self._chosen
        if column not in LIVE_COLUMNS:
            raise RequestError(
                f"{quoted(column)} is no column of the live table. It has {', '.join(LIVE_COLUMNS)}."
            )
        reverse = column == chosen.sort and not chosen.reverse
        self._chosen = live.Options(above=chosen.above, sort=column, reverse=reverse)
        yield self.table()

    def _refresh(self, _request: Mapping[str, Any]) -> Iterator[Reply]:
        yield self.table()
        yield _note("")

    def _drop(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        name = request.get("name")
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
            raise RequestError(
                f"{quoted(name)} is no name that can be let go of. Refresh the table and take one "
                "of its buttons."
            )
        found = live.report(self._runtime, self._shell)
        offered = {
            target.name: target
            for row in found.rows
            for target in live.targets(row, self._shell.user_ns)
        }
        if name not in offered:
            raise RequestError(
                f"{name!r} leads to no live tensor by now, so nothing was dropped. Refresh the "
                "table."
            )
        if offered[name].asks:
            self._check_idle(name)
            if request.get("confirmed") is not True:
                led = [row for row in found.rows if live.leads(row, name)]
                size = text.size(sum(row.nbytes for row in led))
                yield _note(drawing.question(name, len(led), size))
                return
        try:
            said = live.drop(self._runtime, self._shell, name)
        except ValueError as error:
            raise RequestError(str(error)) from None
        yield self.table()
        yield _note(drawing.answer(said))

    def _check_idle(self, name: str) -> None:
        """Refuse to delete a variable under a running cell."""
        current = session.current(self._shell)
        if current is not None and current.cell_number is not None:
            raise RequestError(
                f"cell {current.cell_number} is running and may use {name}, so it was not "
                "deleted. Click again when the cell has ended."
            )


def _keep(_request: Mapping[str, Any]) -> Iterator[Reply]:
    yield _note("")


def _note(body: str) -> Reply:
    return {"kind": "note", "html": body}
