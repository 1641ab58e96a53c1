"""A long wait as a widget: phase, elapsed and expected time, and a button that ends it.

The kernel's main thread is the one that waits, so the page counts the seconds by itself and the
button asks the front end to interrupt the kernel, as its own stop button does. Where a page
cannot, it sends a message, which is served once a thread of the kernel is free to.
"""

from __future__ import annotations

import _thread
import signal
import threading
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from lazyviz.render.html import script, static

if TYPE_CHECKING:
    from lazyviz.timing.compile_time import Wait

_VIEW = "application/vnd.jupyter.widget-view+json"


class WaitView(anywidget.AnyWidget):
    """One widget for all waits of a session, one after the other.

    Attributes:
        number: Of the wait that is shown; a click that comes after its end says an old one.
    """

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

    def __repr__(self) -> str:
        """Return the same text in each run, so that notebooks compare."""
        return "<wait>"

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
