"""The graph that can be walked through: an anywidget around `lazyviz.explorer`.

The page is one module without any import, and nothing is fetched. What the browser sends is
checked by the explorer; what it is sent is escaped HTML and SVG.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from lazyviz.explorer import RequestError
from lazyviz.render import panel
from lazyviz.widgets import assets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lazyviz.explorer import Explorer

_log = logging.getLogger(__name__)


class GraphView(anywidget.AnyWidget):
    """A program with pan, zoom, search and a panel that shows what is clicked.

    It holds IR and texts and no tensor, so it changes neither what is pending nor what is
    kept in memory.

    Attributes:
        controls: What the reader can choose, and what is chosen; see `Explorer.controls`.
        twin: CSS class of the static copies that the page hides while it is live.
    """

    _esm = assets.page("graph_view")
    _css = assets.style("graph_view")

    title = traitlets.Unicode().tag(sync=True)
    svg = traitlets.Unicode().tag(sync=True)
    legend = traitlets.Unicode().tag(sync=True)
    crumbs = traitlets.List(traitlets.Unicode()).tag(sync=True)
    panel = traitlets.Unicode().tag(sync=True)
    controls = traitlets.Dict().tag(sync=True)
    twin = traitlets.Unicode().tag(sync=True)

    def __init__(self, explorer: Explorer, twin: str = "") -> None:
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
        self.on_msg(self._received)

    def __repr__(self) -> str:
        """Return the same text in each run, so that notebooks compare."""
        return f"<{self.title}>"

    def _received(self, _widget: object, content: object, _buffers: object) -> None:
        try:
            for reply in self._explorer.handle(content):
                self._apply(reply)
        except RequestError as error:
            self._apply({"kind": "panel", "html": panel.error_html(error), "box": None})
        except Exception as error:  # noqa: BLE001 - the page says it
            _log.exception("a request of the graph view failed")
            self._apply({"kind": "panel", "html": panel.error_html(error), "box": None})
        finally:
            assets.acknowledge(self, content)

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
            self.send(dict(reply))
