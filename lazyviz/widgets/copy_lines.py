"""The buttons of strips that copy lines: one undisplayed anywidget for a session wakes them.

A strip is static, so that it persists; its button is empty and hidden. The page of this widget,
which no output shows, gives it its words and copies the lines beside it when it is pressed.
"""

from __future__ import annotations

import anywidget

from lazyviz.widgets import page


class CopyLines(anywidget.AnyWidget):
    """Listens in the page; holds nothing of the program."""

    _esm = page.script("copy_lines")

    def __repr__(self) -> str:
        """Return the same text in each run, so that notebooks compare."""
        return "<buttons that copy lines>"
