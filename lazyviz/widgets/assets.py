"""The files of the widgets' pages, as text."""

from __future__ import annotations

from importlib import resources


def page(name: str, *parts: str) -> str:
    """Return a widget's JavaScript module, with what all pages share in front.

    Args:
        name: Of the module.
        parts: Further files that it shares with others, in between.
    """
    return "\n".join(_read(f"{each}.js") for each in ("common", *parts, name))


def style(name: str) -> str:
    """Return a widget's CSS."""
    return _read(f"{name}.css")


def _read(name: str) -> str:
    return resources.files("lazyviz").joinpath(f"static/{name}").read_text("utf-8")
