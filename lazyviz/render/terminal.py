"""Colours of a terminal, for the texts that mark their lines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lazyviz.render.diff_text import ADDED, CHANGED, REMOVED, REWIRED

if TYPE_CHECKING:
    from typing import TextIO

_END = "\x1b[0m"
# As of `git diff`; the signs say the same to who sees no colours.
_STYLES = {
    f"{ADDED} ": "\x1b[32m", f"{REMOVED} ": "\x1b[31m", f"{CHANGED} ": "\x1b[33m",
    f"{REWIRED} ": "\x1b[36m", "was ": "\x1b[2m", "@@ ": "\x1b[1m",
}  # fmt: skip


def takes_colour(out: TextIO) -> bool:
    """Return whether a stream is a terminal whose user has not asked for plain text."""
    return (
        out.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def coloured(text: str) -> str:
    """Return the text of a diff with each line in the colour of its mark."""
    return "\n".join(map(_line, text.split("\n")))


def _line(line: str) -> str:
    body = line.lstrip(" ")
    for mark, style in _STYLES.items():
        if body.startswith(mark):
            indent = line[: len(line) - len(body)]
            return f"{indent}{style}{body}{_END}"
    return line
