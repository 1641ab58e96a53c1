"""The timeline as a widget: zoom, pan, and each span's details by pointer or keyboard.

It carries a detailed picture and asks the kernel for nothing, so it works while a cell runs.
"""

from __future__ import annotations

import anywidget
import traitlets

from lazyviz.widgets import page


class TimelineView(anywidget.AnyWidget):
    """A timeline as it was when it was shown.

    Attributes:
        svg: The detailed picture.
        twin: CSS class of the static picture that the page hides while it is live.
    """

    _esm = page.script("timeline_view", "timeline")
    _css = page.style("timeline_view")

    svg = traitlets.Unicode().tag(sync=True)
    twin = traitlets.Unicode().tag(sync=True)

    def __repr__(self) -> str:
        """Return the same text in each run, so that notebooks compare."""
        return page.fallback("timeline")
