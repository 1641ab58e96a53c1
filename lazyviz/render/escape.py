"""Text made safe for HTML, SVG and DOT, control characters and broken Unicode included."""

from __future__ import annotations

import html
import re

import graphviz

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


def markup(text: str) -> str:
    """Return text for HTML or SVG, as content or as a quoted attribute."""
    return html.escape(printable(text), quote=True)


def dot(text: str) -> str:
    """Return text as a DOT label that reads as it stands."""
    escaped: str = graphviz.escape(printable(text))  # a str that is never read as HTML
    return escaped
