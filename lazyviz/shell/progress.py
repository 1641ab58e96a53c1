"""A long compile or execution while it goes on: how far it is, and how long it will take.

In a notebook this is one display without data, which an update fills with a widget and a last
update empties: whatever the machine's speed, nothing of it shows in the saved cell and nbval
finds the same outputs. In a terminal it is one line of stderr. What stays is a line in the
cell's strip.
"""

from __future__ import annotations

import logging
import sys
import threading
import uuid
from typing import TYPE_CHECKING, Any, TextIO

from lazyviz.render import text
from lazyviz.shell.tracebacks import note
from lazyviz.timing.compile_time import VERBS, Expectations, Expected, Wait

if TYPE_CHECKING:
    from types import ModuleType

    from IPython.core.interactiveshell import InteractiveShell

    from lazyrt.observe import events
    from lazyviz.widgets import WaitView

_log = logging.getLogger(__name__)

_ERASE_LINE = "\r\x1b[2K"
_NOTED_NS = 1_000_000_000
_MAX_WAITS = 20
_MAX_UNDER_WAY = 32
_WAITED = {"compile": "a compile", "execute": "an execution"}
_SHOWN = frozenset(("CompileProgress", "TransferProgress"))
_PHASES = frozenset(("CompileStarted", "LoweringFinished", "CompileFinished"))
# What single ops tell while they run one by one.
_OF_ONE_OP = frozenset(
    ("WaitFinished", "OpExecuted", "CompileStarted", "CompileFinished")
)
_FOLLOWED = _SHOWN | {"WaitFinished", "BarrierFinished", "TensorMaterialised"}
_COPIES = {"to_device": "to the device", "to_host": "to the host"}


class Progress:
    """Shows events of progress on the main thread until any other event follows.

    Attributes:
        expectations: What compiles and executions took so far.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self.expectations = Expectations()
        self._shell: Any = shell
        self._runtime: ModuleType | None = None
        self._display_id: str | None = None
        self._stream: TextIO | None = None
        self._filled = False
        self._barrier: events.BarrierStarted | None = None
        self._phases: dict[str, str] = {}
        self._loaded: dict[str, None] = {}
        self._waits: list[str] = []
        self._now: Wait | None = None
        self._widget: WaitView | None = None

    @property
    def waits(self) -> tuple[str, ...]:
        """The long waits of the cell, a line for each."""
        return tuple(self._waits)

    def attach(self, runtime: ModuleType) -> None:
        """Ask this runtime what its cache on disk remembers, once that is needed."""
        self._runtime = runtime

    def barrier(self, event: events.BarrierStarted) -> None:
        """Note what the next wait is for; a function for `on_barrier`."""
        self._barrier = event

    def take(self, event: events.Event) -> bool:
        """Show a progress event; return whether it was one."""
        kind = type(event).__name__
        if kind in _PHASES:
            self._note_phase(kind, event)
        is_main = threading.current_thread() is threading.main_thread()
        if not (kind in _FOLLOWED or self.shown) or not is_main:
            return kind in _SHOWN
        if kind in _SHOWN:
            is_copy = kind == "TransferProgress"
            self._show(_transfer(event) if is_copy else self._wait(event))  # type: ignore[arg-type]
            return True
        if kind == "WaitFinished":
            self._note_wait(event)  # type: ignore[arg-type]
        elif kind in {"BarrierFinished", "TensorMaterialised"}:
            self._barrier = None
        goes_on = self._now is not None and self._now.one_by_one
        if self.shown and not (goes_on and kind in _OF_ONE_OP):
            self.clear()
        return False

    @property
    def shown(self) -> bool:
        """Whether anything is shown now."""
        return self._stream is not None or self._filled

    def clear(self) -> None:
        """Take away what is shown."""
        self._now = None
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.write(_ERASE_LINE)
            stream.flush()
        if self._filled:
            self._filled = False
            self._publish({}, update=True)
        if self._widget is not None:
            self._widget.end()

    def end_cell(self) -> None:
        """Take away what is shown; the next cell gets a display of its own."""
        self.clear()
        self._display_id = None
        self._barrier = None

    def begin_cell(self) -> None:
        """Forget the waits of the cell before."""
        self._waits.clear()

    def close(self) -> None:
        """Take away everything, the widget too."""
        self.end_cell()
        widget, self._widget = self._widget, None
        if widget is not None:
            widget.close()

    def _note_phase(self, kind: str, event: Any) -> None:
        """Follow how far the workers are with each graph; called on their threads."""
        if kind == "CompileStarted":
            self._phases[event.fingerprint] = "lower"
            if len(self._phases) > _MAX_UNDER_WAY:
                self._phases.pop(next(iter(self._phases)))
        elif kind == "LoweringFinished" and event.fingerprint in self._phases:
            self._phases[event.fingerprint] = "compile"
        elif kind == "CompileFinished":
            self._phases.pop(event.fingerprint, None)
            if event.source == "disk":
                self._loaded[event.fingerprint] = None
                if len(self._loaded) > _MAX_UNDER_WAY:
                    self._loaded.pop(next(iter(self._loaded)))

    def _wait(self, event: events.CompileProgress) -> Wait:
        look = event.purpose == "peek"
        if event.done is not None:
            return _one_by_one(event, look=look)
        barrier = None if look else self._barrier
        nodes = event.nodes or self.expectations.nodes(event.fingerprint)
        if event.phase == "execute":
            phase = "execute"
            expected = self.expectations.run(event.fingerprint)
        else:
            phase = self._phases.get(event.fingerprint, "load")
            expected = self.expectations.compile(event.fingerprint, self._runtime)
        return Wait(
            phase=phase,
            nodes=nodes,
            look=look,
            elapsed_ns=event.elapsed_ns,
            expected=expected,
            cause=barrier.cause if barrier is not None else "",
            site=str(barrier.site or "") if barrier is not None else "",
        )

    def _note_wait(self, event: events.WaitFinished) -> None:
        """Keep a line about a wait that was long."""
        loaded = event.phase == "compile" and event.fingerprint in self._loaded
        self._loaded.pop(event.fingerprint, None)
        if event.interrupted:
            self._interrupted(event)
        if event.duration_ns < _NOTED_NS or len(self._waits) >= _MAX_WAITS:
            return
        now = self._now
        nodes = now.nodes if now is not None else 0
        ops = f" of {text.plural(nodes, 'op')}" if nodes else ""
        what = "an executable" if loaded else _WAITED[event.phase]
        line = f"waited {text.duration(event.duration_ns)} for {what}{ops}"
        line += ", loaded from the disk cache" * loaded
        if now is not None and now.site:
            line += f": {now.cause} at {now.site}"
        if now is not None and now.expected.ns is not None and not loaded:
            line += f", expected {now.expected}"
        if event.interrupted:
            line += "; interrupted, and it goes on in the background"
        self._waits.append(line)

    def _interrupted(self, event: events.WaitFinished) -> None:
        """Let the KeyboardInterrupt that ended a wait say what for; called while it rises."""
        error = sys.exception()
        if isinstance(error, KeyboardInterrupt):
            what = self._now.what if self._now is not None else VERBS[event.phase]
            runtime = self._runtime
            pending = runtime.status().pending_ops if runtime is not None else 0
            error.add_note(note(what, pending))

    def _show(self, wait: Wait) -> None:
        self._now = wait
        if getattr(self._shell, "kernel", None) is not None:
            self._show_in_notebook(wait)
        elif sys.stderr.isatty() or self._stream is not None:
            self._stream = sys.stderr
            self._stream.write(_ERASE_LINE + wait.line)
            self._stream.flush()

    def _show_in_notebook(self, wait: Wait) -> None:
        if self._display_id is None:
            self._display_id = f"lazyviz-{uuid.uuid4().hex}"
            self._publish({}, update=False)
        widget = self._live()
        if widget is not None:
            widget.show(wait)
        if widget is not None and self._filled:
            return  # the page follows the widget's state
        self._filled = True
        data: dict[str, Any] = {"text/plain": wait.line}
        if widget is not None:
            data |= widget.view_data
        self._publish(data, update=True)

    def _live(self) -> WaitView | None:
        """Return the widget, None in a shell that has no page."""
        if self._widget is None and hasattr(self._shell.kernel, "comm_manager"):
            try:
                from lazyviz.widgets import WaitView

                self._widget = WaitView()
            except Exception:  # noqa: BLE001 - the line of text does without
                _log.debug("no widget for a long wait", exc_info=True)
        return self._widget

    def _publish(self, data: dict[str, Any], *, update: bool) -> None:
        transient = {"display_id": self._display_id}
        self._shell.display_pub.publish(
            data, metadata={}, transient=transient, update=update
        )


def _one_by_one(event: events.CompileProgress, *, look: bool) -> Wait:
    """Return how far a run of single ops is: most of it is compiling kinds of op that are new."""
    done = event.done or 0
    whole = event.elapsed_ns * event.nodes // max(done, 1)
    return Wait(
        phase="execute",
        nodes=event.nodes,
        look=look,
        elapsed_ns=event.elapsed_ns,
        expected=Expected(whole, "at its speed so far") if done else Expected(),
        done=f"{done:,} done",
        one_by_one=True,
    )


def _transfer(event: events.TransferProgress) -> Wait:
    """Return how far a copy is; its own speed tells how long it will take."""
    whole = event.elapsed_ns * event.nbytes // max(event.done, 1)
    size = text.size(event.nbytes)
    return Wait(
        phase="transfer",
        nodes=0,
        look=False,
        elapsed_ns=event.elapsed_ns,
        expected=Expected(whole, "at its speed so far"),
        site=str(event.site or ""),
        copy=f"{size} {_COPIES[event.direction]}",
        done=f"{text.size(event.done)} done",
    )
