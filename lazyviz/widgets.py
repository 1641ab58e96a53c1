"""Views that answer clicks; each has a static twin for notebooks without a kernel.

A page is one module without any import, and nothing is fetched. What the browser sends is
checked before it is answered; what it is sent is escaped HTML and SVG.
"""

from __future__ import annotations

import _thread
import logging
import signal
import threading
import weakref
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from lazyviz.draw import panel
from lazyviz.inspection.protocol import RequestError, answer, panel_reply
from lazyviz.render.html import script, static

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lazyviz.inspection.protocol import PageTable, Walk
    from lazyviz.timing.compile_time import Wait


_log = logging.getLogger(__name__)

_views: weakref.WeakSet[TableView] = weakref.WeakSet()
# A table that takes longer is not made anew after each cell without being asked for.
_MAX_AUTOMATIC_NS = 100_000_000


class Widget(anywidget.AnyWidget):
    """Has the same text in each run, so that notebooks compare: what saved ones show in its place."""

    _name: str

    def __repr__(self) -> str:
        return (
            f"<{self._name}: the live view needs a kernel; its copy above needs none>"
        )


class Page(Widget):
    """Answers what its page asks, and always says when it is done.

    Attributes:
        twin: CSS class of the static copies that the page hides while it is live.
    """

    twin = traitlets.Unicode().tag(sync=True)

    def __init__(self, asked: Walk[Any] | PageTable, **traits: Any) -> None:
        super().__init__(**traits)
        self._asked = asked
        self.on_msg(self._received)

    def _apply(self, reply: Mapping[str, Any]) -> None:
        """Keep the state that a page opened later needs, and tell the open ones."""
        self.send(dict(reply))

    def _refused(self, why: str) -> None:
        """Show why a request was not done."""
        raise NotImplementedError

    def _received(self, _widget: object, content: object, _buffers: object) -> None:
        try:
            for reply in self._asked.handle(content):
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
        super().__init__(
            explorer,
            title=explorer.title,
            svg=explorer.drawing(),
            legend=explorer.legend(),
            crumbs=explorer.crumbs,
            panel=explorer.overview(),
            controls=explorer.controls,
            twin=twin,
        )

    @property
    def _name(self) -> str:  # type: ignore[override]
        return self.title

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


class TableView(Page):
    """A table that its page works with, as HTML, such as that of the live tensors.

    One of a shell's program is made anew after each cell, or stale: of a moment before it.
    """

    _esm = script("live_view")
    _css = static("live_view.css")

    title = traitlets.Unicode().tag(sync=True)
    table = traitlets.Unicode().tag(sync=True)
    note = traitlets.Unicode().tag(sync=True)
    stale = traitlets.Bool().tag(sync=True)
    what = traitlets.Unicode().tag(sync=True)

    def __init__(self, table: PageTable, twin: str = "", shell: Any = None) -> None:
        self._table = table
        self._shell = None if shell is None else weakref.ref(shell)
        self._visible = False
        first = table.table()
        title, body = first["title"], first["html"]
        self._name = table.what
        super().__init__(table, title=title, table=body, twin=twin, what=table.what)
        _views.add(self)

    def cell_ended(self, shell: Any) -> None:
        """Make the table anew after a cell of its shell, if somebody sees it and it is cheap."""
        if self._shell is None or self._shell() is not shell:
            return
        self._renew(stale=True)

    def _received(self, _widget: object, content: object, _buffers: object) -> None:
        if isinstance(content, dict) and content.get("kind") == "visible":
            self._visible = content.get("visible") is True
            self._renew(stale=self.stale)
            return
        super()._received(_widget, content, _buffers)

    def _refused(self, why: str) -> None:
        self.note = answer(why, failed=True)

    def _renew(self, *, stale: bool) -> None:
        """Make a stale table anew if it is seen, and that is cheap."""
        if stale and self._visible and self._table.took_ns < _MAX_AUTOMATIC_NS:
            self._apply(self._table.table())
        else:
            self.stale = stale

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


class TimelineView(Widget):
    """A timeline as it was when it was shown."""

    _name = "timeline"
    _esm = script("timeline_view", "timeline")
    _css = static("timeline_view.css")

    svg = traitlets.Unicode().tag(sync=True)
    twin = traitlets.Unicode().tag(sync=True)


class StripPage(Widget):
    """Listens in the page, and profiles the next step when it is asked to; holds nothing of it.

    `capture` profiles that step; it returns how many steps that were, and HTML.
    """

    _name = "page of strips"
    _esm = script("strip_page")

    def __init__(self, capture: Callable[[], tuple[int, str]]) -> None:
        super().__init__()
        self._next_step = capture
        self.on_msg(self._received)
        self._capturing = threading.RLock()

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


_VIEW = "application/vnd.jupyter.widget-view+json"


class WaitView(Widget):
    """A long wait with a button that ends it: one widget for all of a session, one after the other.

    The kernel's main thread is the one that waits, so the page counts the seconds by itself and the
    button asks the front end to interrupt the kernel, as its own stop button does. Where a page
    cannot, it sends a message, which is served once a thread of the kernel is free to.

    Attributes:
        number: Of the wait that is shown; a click that comes after its end says an old one.
    """

    _name = "wait"
    _esm = script("wait_view")
    _css = static("wait_view.css")

    number = traitlets.Int().tag(sync=True)
    active = traitlets.Bool().tag(sync=True)
    what = traitlets.Unicode().tag(sync=True)
    phase = traitlets.Unicode().tag(sync=True)
    where = traitlets.Unicode().tag(sync=True)
    elapsed_ms = traitlets.Float().tag(sync=True)
    expected_ms = traitlets.Float().tag(sync=True)
    expected = traitlets.Unicode().tag(sync=True)

    def __init__(self) -> None:
        super().__init__()
        self.on_msg(self._received)

    @property
    def view_data(self) -> dict[str, Any]:
        """What makes a page show the widget in place of an output."""
        return {
            _VIEW: {
                "version_major": 2,
                "version_minor": 0,
                "model_id": self.model_id,
            }
        }

    def show(self, wait: Wait) -> None:
        """Show how a wait stands."""
        with self.hold_sync():
            if not self.active:
                self.number += 1
                self.active = True
            self.what = wait.what
            self.phase = wait.phase
            barrier = " at ".join(filter(None, (wait.cause, wait.site)))
            self.where = " · ".join(filter(None, (wait.done, barrier)))
            self.elapsed_ms = wait.elapsed_ns / 1e6
            self.expected_ms = (wait.expected.ns or 0) / 1e6
            self.expected = str(wait.expected)

    def end(self) -> None:
        """Say that the wait is over."""
        self.active = False

    def _received(self, _widget: object, content: object, _buffers: object) -> None:
        wanted = {"kind": "cancel", "wait": self.number}
        if self.active and content == wanted:
            interrupt()


def interrupt() -> None:
    """Do what Ctrl-C does: raise KeyboardInterrupt in the main thread, waking it from a wait."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()
