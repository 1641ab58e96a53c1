"""The live tensors as a widget around `lazyviz.inspection.live_table`: sort, refresh, let go.

The page is one module without any import. After each cell the table is made anew if a page
shows it and that is cheap; otherwise it says that it is of an earlier moment.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import traitlets

from lazyviz.inspection.live_table import MAX_AUTOMATIC_NS, LiveTable
from lazyviz.render import live as drawing
from lazyviz.widgets import page
from lazyviz.widgets.page import Page

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType

    from lazyviz.inspection.live import Options
    from lazyviz.inspection.protocol import Reply

_views: weakref.WeakSet[LiveView] = weakref.WeakSet()


class LiveView(Page):
    """A table of the live tensors; it holds names and numbers, and no tensor.

    Attributes:
        title: One line of totals.
        table: The table, as HTML.
        note: What came of the latest request, as HTML.
        stale: Whether the table is of a moment before the latest cell.
    """

    _esm = page.script("live_view")
    _css = page.style("live_view")

    title = traitlets.Unicode().tag(sync=True)
    table = traitlets.Unicode().tag(sync=True)
    note = traitlets.Unicode().tag(sync=True)
    stale = traitlets.Bool().tag(sync=True)

    def __init__(
        self,
        runtime: ModuleType,
        shell: Any,
        chosen: Options | None = None,
        twin: str = "",
    ) -> None:
        self._live = LiveTable(runtime, shell, chosen)
        self._shell = weakref.ref(shell)
        self._visible = False
        first = self._live.table()
        super().__init__(title=first["title"], table=first["html"], twin=twin)
        _views.add(self)

    def __repr__(self) -> str:
        """Return the same text in each run, so that notebooks compare."""
        return page.fallback("live tensors")

    def cell_ended(self, shell: Any) -> None:
        """Make the table anew after a cell of its shell, if somebody sees it and it is cheap."""
        if self._shell() is not shell:
            return
        if self._visible and self._live.took_ns < MAX_AUTOMATIC_NS:
            self._apply(self._live.table())
        else:
            self.stale = True

    def _received(self, _widget: object, content: object, _buffers: object) -> None:
        if isinstance(content, dict) and content.get("kind") == "visible":
            self._seen(is_visible=content.get("visible") is True)
            return
        super()._received(_widget, content, _buffers)

    def _replies(self, request: object) -> Iterable[Reply]:
        return self._live.handle(request)

    def _refused(self, why: str) -> None:
        self.note = drawing.answer(why, failed=True)

    def _seen(self, *, is_visible: bool) -> None:
        self._visible = is_visible
        if is_visible and self.stale and self._live.took_ns < MAX_AUTOMATIC_NS:
            self._apply(self._live.table())

    def _apply(self, reply: Mapping[str, Any]) -> None:
        """Keep the state that a page opened later needs, and tell the open ones."""
        if reply["kind"] == "table":
            with self.hold_sync():
                self.title, self.table = reply["title"], reply["html"]
                self.stale = False
        elif reply["kind"] == "note":
            self.note = reply["html"]
        else:
            super()._apply(reply)


def cell_ended(shell: Any) -> None:
    """Tell the tables of a shell that a cell has ended."""
    for view in list(_views):
        view.cell_ended(shell)
