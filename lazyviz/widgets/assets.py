"""What all widgets share: the files of their pages as text, and the end of an answer."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import anywidget


def page(name: str) -> str:
    """Return a widget's JavaScript module, with what all pages share in front."""
    return f"{_read('common.js')}\n{_read(f'{name}.js')}"


def style(name: str) -> str:
    """Return a widget's CSS."""
    return _read(f"{name}.css")


def _read(name: str) -> str:
    return resources.files("lazyviz").joinpath(f"static/{name}").read_text("utf-8")


def acknowledge(widget: anywidget.AnyWidget, request: object) -> None:
    """Tell the page that its request is dealt with; without, it says that nobody answers."""
    if not (isinstance(request, dict) and request.get("kind") == "hello"):
        widget.send({"kind": "done"})
