"""Pages that need no other file: what `--html`, tours and reports write."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from importlib import resources
from typing import TYPE_CHECKING

from lazyviz.render.escape import markup
from lazyviz.render.html import TIMELINE_CLASS

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of a page: a heading, which may be empty, and its HTML.

    Attributes:
        anchor: Its id, by which the page's table of contents finds it; empty for none.
    """

    title: str
    body: str
    anchor: str = ""


def page_html(
    title: str,
    sections: Sequence[Section | tuple[str, str]],
    *,
    generator: str = "",
    is_locked: bool = False,
) -> str:
    """Return a page that needs no other file and follows the system's light or dark theme.

    Args:
        title: Text of the heading.
        sections: Heading and HTML of each part; the headings are escaped. Those with an anchor
            are listed in a table of contents.
        generator: What made the page, so that it can be told from other files.
        is_locked: Whether a browser is to run no script in it but our own, which makes timelines
            zoom, and to fetch nothing for it.
    """
    style = _static("page.css")
    made = [
        part if isinstance(part, Section) else Section(title=part[0], body=part[1])
        for part in sections
    ]
    parts = "\n".join([*_contents(made), *map(_section, made)])
    script = ""
    if TIMELINE_CLASS in parts:
        script = timeline_script()
        style += _static("timeline_view.css")
    heading = markup(title)
    head = (
        f'<meta name="generator" content="{markup(generator)}">\n' if generator else ""
    )
    if is_locked:
        head += _LOCK.format(scripts=_allowed(script))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{head}'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{heading}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<main>\n<h1>{heading}</h1>\n{parts}\n</main>\n"
        + (f"<script>{script}</script>\n" if script else "")
        + "</body>\n</html>\n"
    )


_LOCK = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "img-src data:; style-src 'unsafe-inline'{scripts}\">\n"
)


def _allowed(script: str) -> str:
    """Return what lets a browser run exactly this script of ours in a locked page."""
    if not script:
        return ""
    digest = b64encode(sha256(script.encode()).digest()).decode("ascii")
    return f"; script-src 'sha256-{digest}'"


def timeline_script() -> str:
    """Return what makes static timelines zoom; where no script runs they stay as they are."""
    parts = map(_static, ("common.js", "timeline.js", "timeline_page.js"))
    return "(() => {\n" + "\n".join(parts) + "})();"


def _static(name: str) -> str:
    return resources.files("lazyviz").joinpath(f"static/{name}").read_text("utf-8")


def _contents(sections: Sequence[Section]) -> list[str]:
    items = [
        f'<li><a href="#{markup(part.anchor)}">{markup(part.title)}</a></li>'
        for part in sections
        if part.anchor
    ]
    if not items:
        return []
    return [f'<nav aria-label="contents"><ul>{"".join(items)}</ul></nav>']


def _section(section: Section) -> str:
    anchor = f' id="{markup(section.anchor)}"' if section.anchor else ""
    heading = f"<h2>{markup(section.title)}</h2>\n" if section.title else ""
    return f"<section{anchor}>\n{heading}{section.body}\n</section>"
