"""A widget with a page that asks: what all of them share."""

from __future__ import annotations

import logging
from importlib import resources
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from lazyviz.inspection.protocol import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lazyviz.inspection.protocol import Reply


_log = logging.getLogger(__name__)


class Page(anywidget.AnyWidget):
    """Answers what its page asks, and always says when it is done.

    Attributes:
        twin: CSS class of the static copies that the page hides while it is live.
    """

    twin = traitlets.Unicode().tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        self.on_msg(self._received)

    def _replies(self, request: object) -> Iterable[Reply]:
        """Return the replies to a request."""
        raise NotImplementedError

    def _apply(self, reply: Mapping[str, Any]) -> None:
        """Keep the state that a page opened later needs, and tell the open ones."""
        self.send(dict(reply))

    def _refused(self, why: str) -> None:
        """Show why a request was not done."""
        raise NotImplementedError

    def _received(self, _widget: object, content: object, _buffers: object) -> None:
        try:
            for reply in self._replies(content):
                self._apply(reply)
        except RequestError as error:
            self._refused(str(error))
        except Exception as error:  # noqa: BLE001 - the page says it
            _log.exception("a request to %r failed", self)
            self._refused(f"{type(error).__name__}: {error}")
        finally:
            # Without, the page says that nobody answers.
            if not (isinstance(content, dict) and content.get("kind") == "hello"):
                self.send({"kind": "done"})


def script(name: str, *parts: str) -> str:
    """Return a widget's JavaScript module, with what all pages share in front.

    Args:
        name: Of the module.
        parts: Further files that it shares with others, in between.
    """
    return "\n".join(_read(f"{each}.js") for each in ("common", *parts, name))


def style(name: str) -> str:
    """Return a widget's CSS."""
    return _read(f"{name}.css")


def fallback(title: str) -> str:
    """Return what stands in the place of a live view in a saved or converted notebook.

    Args:
        title: What it shows: the same text in each run, so that notebooks compare.
    """
    return f"<{title}: the live view needs a kernel; its copy above needs none>"


def _read(name: str) -> str:
    return resources.files("lazyviz").joinpath(f"static/{name}").read_text("utf-8")
