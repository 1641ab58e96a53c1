"""Progress of a long compile or execution, shown while it goes on and gone afterwards.

In a notebook this is one display without data, which an update fills and a last update
empties: whatever the machine's speed, nothing of it shows in the saved cell and nbval
finds the same outputs. In a terminal it is one line of stderr.
"""

from __future__ import annotations

import sys
import threading
import uuid
from typing import TYPE_CHECKING, Any, TextIO

from lazyviz.render import text

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from lazyrt.observe.events import CompileProgress, Event

_ERASE_LINE = "\r\x1b[2K"


class Progress:
    """Shows `CompileProgress` events of the main thread until any other event follows."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell: Any = shell
        self._display_id: str | None = None
        self._stream: TextIO | None = None
        self._filled = False

    def take(self, event: Event) -> bool:
        """Show a progress event; return whether it was one."""
        if type(event).__name__ == "CompileProgress":
            if _on_main_thread():
                self._show(event)  # type: ignore[arg-type]
            return True
        if self.shown and _on_main_thread():
            self.clear()
        return False

    @property
    def shown(self) -> bool:
        """Whether anything is shown now."""
        return self._stream is not None or self._filled

    def clear(self) -> None:
        """Take away what is shown."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.write(_ERASE_LINE)
            stream.flush()
        if self._filled:
            self._filled = False
            self._publish({}, update=True)

    def end_cell(self) -> None:
        """Take away what is shown; the next cell gets a display of its own."""
        self.clear()
        self._display_id = None

    def _show(self, event: CompileProgress) -> None:
        line = _line(event)
        if _is_notebook(self._shell):
            self._show_in_notebook(line)
        elif sys.stderr.isatty() or self._stream is not None:
            self._stream = sys.stderr
            self._stream.write(_ERASE_LINE + line)
            self._stream.flush()

    def _show_in_notebook(self, line: str) -> None:
        if self._display_id is None:
            self._display_id = f"lazyviz-{uuid.uuid4().hex}"
            self._publish({}, update=False)
        self._filled = True
        self._publish({"text/plain": line}, update=True)

    def _publish(self, data: dict[str, str], *, update: bool) -> None:
        transient = {"display_id": self._display_id}
        self._shell.display_pub.publish(
            data, metadata={}, transient=transient, update=update
        )


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _is_notebook(shell: InteractiveShell) -> bool:
    return getattr(shell, "kernel", None) is not None


def _line(event: CompileProgress) -> str:
    verb = {"compile": "compiling", "execute": "running"}[event.phase]
    ops = f" {text.plural(event.nodes, 'op')}" if event.nodes else ""
    purpose = " to show a value" if event.purpose == "peek" else ""
    return f"{verb}{ops}{purpose} · {text.duration(event.elapsed_ns)}"
