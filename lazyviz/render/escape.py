"""Text made safe for HTML, SVG and DOT, control characters and broken Unicode included."""

from __future__ import annotations

import html
import re

import graphviz

# What XML 1.0 does not allow in a document, and lone halves of surrogate pairs.
_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)


def printable(text: str) -> str:
    r"""Return text with what no document may hold replaced by the replacement character.

    Example:
        >>> printable("a\x00b"), printable("µ×")
        ('a�b', 'µ×')
    """
    return _UNPRINTABLE.sub("\ufffd", text)


def markup(text: str) -> str:
    """Return text for HTML or SVG, as content or as a quoted attribute."""
    return html.escape(printable(text), quote=True)


def dot(text: str) -> str:
    """Return text as a DOT label that reads as it stands."""
    escaped: str = graphviz.escape(printable(text))  # a str that is never read as HTML
    return escaped
