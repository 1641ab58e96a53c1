"""On which of the user's lines a thread is, asked from another thread, at no cost to it.

Python's own fault handler writes the lines of all threads from the interpreter's stack. Asking for
frame objects instead would keep the locals of a function that returns meanwhile, and so tensors,
for a moment in which a barrier could take them for roots.
"""

from __future__ import annotations

import contextlib
import faulthandler
import re
import tempfile
from typing import TYPE_CHECKING

from lazyrt.frontend.provenance import is_library_file, site_in

if TYPE_CHECKING:
    from typing import BinaryIO, Self

    from lazyrt.observe.events import Site

_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_MAX_BYTES = 200_000


class ThreadLocation:
    """Says where a thread is; holds one file without a name until it is closed."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        with contextlib.suppress(OSError):  # no folder takes files: nothing is known
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()

    def of(self, thread: int) -> tuple[Site, ...]:
        """Return the user's lines that a thread is in, the innermost first; none if not known.

        Args:
            thread: Its identity, as of `threading.get_ident()`.
        """
        file = self._file
        if file is None:
            return ()
        try:
            file.seek(0)
            file.truncate()
            faulthandler.dump_traceback(file)
            file.seek(0)
            written = file.read(_MAX_BYTES)
        except OSError:
            return ()
        return lines_of(written.decode("utf-8", "replace"), thread)


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
            found.append(site_in(frame[1], int(frame[2]), frame[3]))
    return tuple(found)
