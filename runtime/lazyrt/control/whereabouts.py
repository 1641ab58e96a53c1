"""On which of the user's lines a thread is, asked from another thread, at no cost to it.

Python's own fault handler writes the lines of all threads from the interpreter's stack. Asking for
frame objects instead would keep the locals of a function that returns meanwhile, and so tensors,
for a moment in which a barrier could take them for roots.
"""

from __future__ import annotations

import faulthandler
import re
import tempfile
from typing import TYPE_CHECKING

from lazyrt.frontend.provenance import is_library_file
from lazyrt.observe.events import Site

if TYPE_CHECKING:
    from typing import BinaryIO, Self

_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_MAX_BYTES = 200_000


class Whereabouts:
    """Says where a thread is; holds one file without a name until it is closed."""

    def __init__(self) -> None:
        self._file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the file back."""
        self._file.close()

    def of(self, thread: int) -> tuple[Site, ...]:
        """Return the user's lines that a thread is in, the innermost first.

        Args:
            thread: Its identity, as of `threading.get_ident()`.
        """
        self._file.seek(0)
        self._file.truncate()
        faulthandler.dump_traceback(self._file)
        self._file.seek(0)
        return lines_of(self._file.read(_MAX_BYTES).decode("utf-8", "replace"), thread)


def lines_of(dump: str, thread: int) -> tuple[Site, ...]:
    """Return the user's lines of one thread in what the fault handler wrote, innermost first."""
    mark = f"hread 0x{thread:016x} "
    found: list[Site] = []
    inside = False
    for line in dump.splitlines():
        frame = _FRAME.fullmatch(line)
        if frame is None:
            inside = mark in line
        elif inside and not is_library_file(frame[1]):
            found.append(Site(frame[1], int(frame[2]), frame[3]))
    return tuple(found)
