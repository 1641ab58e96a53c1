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


def fallback(title: str) -> str:
    """Return what stands in the place of a live view in a saved or converted notebook.

    Args:
        title: What it shows: the same text in each run, so that notebooks compare.
    """
    return f"<{title}: the live view needs a kernel; its copy above needs none>"


def _read(name: str) -> str:
    return resources.files("lazyviz").joinpath(f"static/{name}").read_text("utf-8")
