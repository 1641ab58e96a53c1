"""The graph that can be walked through: an anywidget around `lazyviz.inspection.explorer`.

The page is one module without any import, and nothing is fetched. What the browser sends is
checked by the explorer; what it is sent is escaped HTML and SVG.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import traitlets

from lazyviz.draw import panel
from lazyviz.widgets import page
from lazyviz.widgets.page import Page

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lazyviz.inspection.protocol import Reply
    from lazyviz.inspection.walk import Walk


class GraphView(Page):
    """A program with pan, zoom, search and a panel that shows what is clicked.

    It holds IR and texts and no tensor, so it changes neither what is pending nor what is
    kept in memory.

    Attributes:
        controls: What the reader can choose, and what is chosen; see `Walk.controls`.
    """

    _esm = page.script("graph_view")
    _css = page.style("graph_view")

    title = traitlets.Unicode().tag(sync=True)
    svg = traitlets.Unicode().tag(sync=True)
    legend = traitlets.Unicode().tag(sync=True)
    crumbs = traitlets.List(traitlets.Unicode()).tag(sync=True)
    panel = traitlets.Unicode().tag(sync=True)
    controls = traitlets.Dict().tag(sync=True)

    def __init__(self, explorer: Walk[Any], twin: str = "") -> None:
        self._explorer = explorer
        super().__init__(
            title=explorer.title,
            svg=explorer.drawing(),
            legend=explorer.legend(),
            crumbs=explorer.crumbs,
            panel=explorer.overview(),
            controls=explorer.controls,
            twin=twin,
        )

    def __repr__(self) -> str:
        """Return the same text in each run, so that notebooks compare."""
        return page.fallback(self.title)

    def _replies(self, request: object) -> Iterable[Reply]:
        return self._explorer.handle(request)

    def _refused(self, why: str) -> None:
        self._apply({"kind": "panel", "html": panel.refusal_html(why), "box": None})

    def _apply(self, reply: Mapping[str, Any]) -> None:
        """Keep the state that a page opened later needs, and tell the open ones."""
        if reply["kind"] == "drawing":
            with self.hold_sync():  # one message, so that a page never shows a mixture
                self.title = reply["title"]
                self.crumbs = reply["crumbs"]
                self.legend = reply["legend"]
                self.svg = reply["svg"]
                self.controls = reply["controls"]
        elif reply["kind"] == "state":
            # What the page has chosen may be what is chosen already: tell it in any case.
            self.send({"kind": "state"})
        elif reply["kind"] == "panel":
            self.panel = reply["html"]
            self.send({"kind": "panel", "box": reply["box"]})
        else:
            super()._apply(reply)
