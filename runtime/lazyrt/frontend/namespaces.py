"""The variables of frames, asked for without keeping them.

CPython keeps a frame's dict of locals, with everything in it, once somebody has asked for it:
a dead tensor would be a root of the next step. So it is copied and emptied.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

from lazyrt.frontend.provenance import is_library, is_packages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

# References to a frame's dict: of the frame, of a variable here, and of the call that counts.
_UNKEPT = 3
_SHELLS = ("/IPython/", "/ipykernel/", "/traitlets/")


def namespaces(depth: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield copies of the locals and globals of the user's frames, innermost first.

    Each comes with the name of its function, empty for globals.
    """
    frame: FrameType | None = sys._getframe(depth)
    seen: set[int] = set()
    while frame is not None:
        if not is_library(frame.f_code):
            is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
            if is_function:
                yield locals_of(frame), frame.f_code.co_qualname
            for namespace in (None if is_function else frame.f_locals, frame.f_globals):
                if namespace is not None and id(namespace) not in seen:
                    seen.add(id(namespace))
                    yield dict(namespace), ""
        frame = frame.f_back


def library_namespaces(depth: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield copies of the locals of packages that the user's line has called, innermost first.

    A loop of a library, such as one that generates text, holds what the user has no name for.
    """
    frame: FrameType | None = sys._getframe(depth)
    called: list[FrameType] = []
    while frame is not None and is_library(frame.f_code):
        if is_packages(frame.f_code.co_filename) and not _is_shell(frame):
            called.append(frame)
        frame = frame.f_back
    for each in called if frame is not None else ():
        yield locals_of(each), each.f_code.co_qualname


def _is_shell(frame: FrameType) -> bool:
    """Return whether a frame is the shell's, which shows a value under a name of its own."""
    return any(part in frame.f_code.co_filename for part in _SHELLS)


def locals_of(frame: FrameType) -> dict[str, Any]:
    """Return a copy of a function's locals, and leave none in the frame.

    Where the function keeps what `locals()` gave it, that is the frame's own dict: it stays.
    """
    if frame.f_trace is not None:  # a debugger keeps the user's edits in that dict
        return {}
    found = frame.f_locals
    copied = dict(found)
    if type(found) is dict and sys.getrefcount(found) <= _UNKEPT:
        found.clear()
    return copied
