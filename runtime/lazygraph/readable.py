"""What a cell or a prompt shows of a result: sentences in place of code, lines, tables of text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

# What XML 1.0 does not allow in a document, lone halves of surrogate pairs, and what makes a
# line read in another order than it is written in.
_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
    "|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def printable(text: str) -> str:
    r"""Return text with what no document may hold replaced by the replacement character.

    Example:
        >>> printable("a\x00b"), printable("µ×")
        ('a�b', 'µ×')
    """
    return _UNPRINTABLE.sub("\ufffd", text)


def one_line(text: str) -> str:
    r"""Return text for a line of its own: nothing in it ends the line or steers a terminal.

    Example:
        >>> one_line("first\nsecond"), one_line("\x1b[2J")
        ('first second', '�[2J')
    """
    return printable(" ".join(text.splitlines()))


def text_table(
    header: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[bool]
) -> str:
    """Return a table as text; for each column `right` says whether it stands to the right."""
    lines = [
        [f"{cell:,}" if type(cell) is int else one_line(str(cell)) for cell in row]
        for row in [header, *rows]
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    sides = [">" if each else "<" for each in right]
    return "\n".join(
        "  ".join(
            f"{cell:{side}{width}}"
            for cell, side, width in zip(line, sides, widths, strict=True)
        ).rstrip()
        for line in lines
    )


class _Printer(Protocol):
    """What IPython hands to an object that shows itself."""

    def text(self, text: str) -> None:
        """Show some text."""


def _show(self: object, printer: _Printer, cycle: bool) -> None:  # noqa: ARG001, FBT001
    printer.text(str(self))


class Readable:
    """Is shown in IPython as `str` tells it; `repr` remains one line of code.

    Example:
        >>> from IPython.lib.pretty import pretty
        >>> class Weather(Readable):
        ...     def __str__(self): return "rain"
        ...     def __repr__(self): return "Weather()"
        >>> pretty(Weather())
        'rain'
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Give each class the method itself: IPython takes a class's `repr` before a base's."""
        super().__init_subclass__(**options)
        cls._repr_pretty_ = _show  # type: ignore[attr-defined]
