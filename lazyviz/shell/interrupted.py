"""The KeyboardInterrupt that ends a wait for the device: what it says, and how it is shown.

A dozen of the runtime's frames between the user's line and the wait tell nobody anything, and
IPython takes half a second to draw them: longer than the interrupt itself.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

_ROOT = str(Path(__file__).parent.parent) + "/"
_KERNEL = "<lazyrt kernel "
_STILL = (
    "interrupted while {what}; that goes on in the background, and every tensor is as it was. "
    "Run the cell again to take it up."
)


def shorten(error: BaseException, shell: Any, what: str) -> None:
    """Make an exception that rises through the runtime show the user's own lines alone.

    Args:
        error: It is being raised; it gets a note.
        shell: The shell that will show it.
        what: What was waited for, such as `compiling 214 ops`.
    """
    error.add_note(_STILL.format(what=what))

    def render() -> list[str]:
        # Asked for by name: an exception that led to itself would live until a collection.
        shown = sys.exception() or sys.last_value
        if shown is None:
            return []
        cut(shown.__traceback__)
        lines: list[str] = shell.InteractiveTB.structured_traceback(
            type(shown), shown, shown.__traceback__
        )
        return lines

    error._render_traceback_ = render  # type: ignore[attr-defined]  # IPython asks for it


def cut(traceback: TracebackType | None) -> None:
    """Take the runtime's innermost frames off a traceback: those that no user's code follows."""
    provenance = sys.modules.get("lazyrt.frontend.provenance")
    last: TracebackType | None = None
    inside = False
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if is_ours(name):
            inside = True
        elif not (provenance and provenance.is_library_file(name)):
            inside = False
        if not inside:
            last = traceback
        traceback = traceback.tb_next
    if last is not None:
        last.tb_next = None


def is_ours(file: str) -> bool:
    """Return whether a frame with this file is one of lazyviz, the runtime or its kernels."""
    provenance = sys.modules.get("lazyrt.frontend.provenance")
    is_own = provenance is not None and provenance.is_own_file(file)
    return is_own or file.startswith((_ROOT, _KERNEL))
