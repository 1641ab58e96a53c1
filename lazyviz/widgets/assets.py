"""The files of the widgets' pages, as text."""

from __future__ import annotations

from importlib import resources


def page(name: str) -> str:
    """Return a widget's JavaScript module, with what all pages share in front."""
    return f"{_read('common.js')}\n{_read(f'{name}.js')}"


def style(name: str) -> str:
    """Return a widget's CSS."""
    return _read(f"{name}.css")


def _read(name: str) -> str:
    return resources.files("lazyviz").joinpath(f"static/{name}").read_text("utf-8")
