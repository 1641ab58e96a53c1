"""The executables as a table to sort and to evict from: an anywidget around `executables`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import traitlets

from lazyviz.inspection import executables
from lazyviz.inspection.protocol import RequestError, answered, quoted
from lazyviz.widgets import page
from lazyviz.widgets.page import Page

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import ModuleType

    from lazyviz.inspection.protocol import Reply

_KEY = re.compile("[0-9a-f]{32}")


class CacheView(Page):
    """A table of `lazyrt.cached_executables()`; holds texts, and no executable.

    Attributes:
        table: The table, as HTML.
        note: What the last request did.
    """

    _esm = page.script("cache_view")
    _css = page.style("cache_view")

    table = traitlets.Unicode().tag(sync=True)
    note = traitlets.Unicode().tag(sync=True)

    def __init__(self, runtime: ModuleType, twin: str = "") -> None:
        self._runtime = runtime
        super().__init__(twin=twin, table=self._table())

    def __repr__(self) -> str:
        """Return the same text in each run, so that notebooks compare."""
        return page.fallback("executables")

    def _table(self) -> str:
        return executables.live_html(self._runtime.cached_executables())

    def _replies(self, request: object) -> Iterable[Reply]:
        answers = {"refresh": self._refresh, "evict": self._evict}
        return answered(request, answers, "table of executables")

    def _apply(self, reply: Mapping[str, Any]) -> None:
        if reply["kind"] == "table":
            with self.hold_sync():
                self.note, self.table = reply["note"], self._table()
        else:
            super()._apply(reply)

    def _refused(self, why: str) -> None:
        self.note = why

    def _refresh(self, _request: Mapping[str, Any]) -> Iterator[Reply]:
        yield {"kind": "table", "note": ""}

    def _evict(self, request: Mapping[str, Any]) -> Iterator[Reply]:
        key = request.get("key")
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise RequestError(
                f"{quoted(key)} is no key of an executable. Refresh the table and take one of its "
                "buttons."
            )
        present = {entry.key for entry in self._runtime.cached_executables()}
        if key in present:
            note = executables.drop(self._runtime, [key])
        else:
            note = f"{key[:8]} is gone already; nothing was dropped."
        yield {"kind": "table", "note": note}
