"""Views that answer clicks; each has a static twin for notebooks without a kernel.

A page is one module without any import, and nothing is fetched. What the browser sends is
checked before it is answered; what it is sent is escaped HTML and SVG.
"""

from __future__ import annotations

import logging
import re
import threading
import weakref
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from lazyviz.draw import panel
from lazyviz.inspection import live as drawing
from lazyviz.inspection import tables
from lazyviz.inspection.live import MAX_AUTOMATIC_NS, LiveTable
from lazyviz.inspection.protocol import (
    RequestError,
    answered,
    panel_reply,
    quoted,
)
from lazyviz.render.html import script, static

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import ModuleType

    from lazyviz.inspection.live import Options
    from lazyviz.inspection.protocol import Reply, Walk


_log = logging.getLogger(__name__)

_views: weakref.WeakSet[LiveView] = weakref.WeakSet()
_KEY = re.compile("[0-9a-f]{32}")


class Page(anywidget.AnyWidget):
    """Answers what its page asks, and always says when it is done.

    Attributes:
        twin: CSS class of the static copies that the page hides while it is live.
    """

    twin = traitlets.Unicode().tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        self.on_msg(self._received)

    def _replies(self, request: object) -> Iterable[Reply]:
        """Return the replies to a request."""
        raise NotImplementedError

    def _apply(self, reply: Mapping[str, Any]) -> None:
        """Keep the state that a page opened later needs, and tell the open ones."""
        self.send(dict(reply))

    def _refused(self, why: str) -> None:
        """Show why a request was not done."""
        raise NotImplementedError

    def _received(self, _widget: object, content: object, _buffers: object) -> None:
        try:
            for reply in self._replies(content):
                self._apply(reply)
        except RequestError as error:
            self._refused(str(error))
        except Exception as error:  # noqa: BLE001 - the page says it
            _log.exception("a request to %r failed", self)
            self._refused(f"{type(error).__name__}: {error}")
        finally:
            # Without, the page says that nobody answers.
            if not (isinstance(content, dict) and content.get("kind") == "hello"):
                self.send({"kind": "done"})


def fallback(title: str) -> str:
    """Return what stands in the place of a live view in a saved or converted notebook.

    Args:
        title: What it shows: the same text in each run, so that notebooks compare.
    """
    return f"<{title}: the live view needs a kernel; its copy above needs none>"


class GraphView(Page):
    """A program with pan, zoom, search and a panel that shows what is clicked.

    It holds IR and texts and no tensor, so it changes neither what is pending nor what is
    kept in memory.

    Attributes:
        controls: What the reader can choose, and what is chosen; see `Walk.controls`.
    """

    _esm = script("graph_view")
    _css = static("graph_view.css")

    title = traitlets.Unicode().tag(sync=True)
    svg = traitlets.Unicode().tag(sync=True)
    legend = traitlets.Unicode().tag(sync=True)
    crumbs = traitlets.List(traitlets.Unicode()).tag(sync=True)
    panel = traitlets.Unicode().tag(sync=True)
    controls = traitlets.Dict().tag(sync=True)

    def __init__(self, explorer: Walk[Any], twin: str = "") -> None:
        self._explorer = explorer
        super().__init__(
            title=explorer.title,
            svg=explorer.drawing(),
            legend=explorer.legend(),
            crumbs=explorer.crumbs,
            panel=explorer.overview(),
            controls=explorer.controls,
            twin=twin,
        )

    def __repr__(self) -> str:
        """Return the same text in each run, so that notebooks compare."""
        return fallback(self.title)

    def _replies(self, request: object) -> Iterable[Reply]:
        return self._explorer.handle(request)

    def _refused(self, why: str) -> None:
        self._apply(panel_reply(panel.refusal_html(why)))

    def _apply(self, reply: Mapping[str, Any]) -> None:
        """Keep the state that a page opened later needs, and tell the open ones."""
        if reply["kind"] == "drawing":
            with self.hold_sync():  # one message, so that a page never shows a mixture
                for name in ("title", "crumbs", "legend", "svg", "controls"):
                    setattr(self, name, reply[name])
        elif reply["kind"] == "state":
            # What the page has chosen may be what is chosen already: tell it in any case.
            self.send({"kind": "state"})
        elif reply["kind"] == "panel":
            self.panel = reply["html"]
            self.send({key: reply[key] for key in reply.keys() - {"html"}})
        else:
            super()._apply(reply)


class LiveView(Page):
    """A table of the live tensors; it holds names and numbers, and no tensor.

    Attributes:
        title: One line of totals.
        table: The table, as HTML.
        note: What came of the latest request, as HTML.
        stale: Whether the table is of a moment before the latest cell.
    """

    _esm = script("live_view")
    _css = static("live_view.css")

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
        return fallback("live tensors")

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


class CacheView(Page):
    """A table of `lazyrt.cached_executables()`; holds texts, and no executable.

    Attributes:
        table: The table, as HTML.
        note: What the last request did.
    """

    _esm = script("cache_view")
    _css = static("cache_view.css")

    table = traitlets.Unicode().tag(sync=True)
    note = traitlets.Unicode().tag(sync=True)

    def __init__(self, runtime: ModuleType, twin: str = "") -> None:
        self._runtime = runtime
        super().__init__(twin=twin, table=self._table())

    def __repr__(self) -> str:
        """Return the same text in each run, so that notebooks compare."""
        return fallback("executables")

    def _table(self) -> str:
        return tables.live_html(self._runtime.cached_executables())

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
            note = tables.drop(self._runtime, [key])
        else:
            note = f"{key[:8]} is gone already; nothing was dropped."
        yield {"kind": "table", "note": note}


class TimelineView(anywidget.AnyWidget):
    """A timeline as it was when it was shown.

    Attributes:
        svg: The detailed picture.
        twin: CSS class of the static picture that the page hides while it is live.
    """

    _esm = script("timeline_view", "timeline")
    _css = static("timeline_view.css")

    svg = traitlets.Unicode().tag(sync=True)
    twin = traitlets.Unicode().tag(sync=True)

    def __repr__(self) -> str:
        """Return the same text in each run, so that notebooks compare."""
        return fallback("timeline")


class CopyLines(anywidget.AnyWidget):
    """Listens in the page, and profiles the next step when it is asked to; holds nothing of it.

    Args:
        capture: Profiles up to the end of the next step; returns how many steps that were, and HTML.
    """

    _esm = script("copy_lines")

    def __init__(self, capture: Callable[[], tuple[int, str]]) -> None:
        super().__init__()
        self._next_step = capture
        self.on_msg(self._received)
        self._capturing = threading.RLock()

    def __repr__(self) -> str:
        """Return the same text in each run, so that notebooks compare."""
        return "<buttons that copy lines>"

    def _received(self, _widget: object, content: object, _buffers: object) -> None:
        if content == {"kind": "capture"}:
            threading.Thread(
                target=self._capture, name="lazyviz capture", daemon=True
            ).start()

    def _capture(self) -> None:
        """Profile up to the end of the next step, and show it."""
        with self._capturing:
            try:
                steps, shown = self._next_step()
            except Exception as error:  # noqa: BLE001 - the page says it
                _log.exception("a capture failed")
                steps, shown = 0, panel.refusal_html(f"{type(error).__name__}: {error}")
        self.send({"kind": "captured", "steps": steps, "html": shown})
