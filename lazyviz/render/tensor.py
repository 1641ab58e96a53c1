"""A tensor as a cell's result: one line of statistics; values, picture and plan folded.

Static HTML that a saved, untrusted or converted notebook keeps: pictures are `<img>`, folding is
`<details>`, all text is escaped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazyviz.render import html
from lazyviz.render.values import bars_svg, drawn_picture, marked, picture_axes

if TYPE_CHECKING:
    from lazyrt.tools import Look

MAX_TEXT = 40_000
_OPEN_BELOW = 65  # elements: so few are read at a glance
_MIN_PICTURED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a tensor's display says.

    Attributes:
        facts: Type, statistics, device and autograd, joined by ` · `.
        text: The values, as torch prints them.
        look: What was seen of it.
        plan: One line about the op that makes it, or made it.
        listing: The pending ops that it needs, as text; empty for data.
    """

    facts: str
    text: str
    look: Look
    plan: str
    listing: str = ""


def tensor_html(shown: Shown) -> str:
    """Return the display of a tensor."""
    is_small = shown.look.summary.elements < _OPEN_BELOW
    values = _fold(marked(shown.facts), html.pre(_cut(shown.text)), is_open=is_small)
    pictures = _pictures(shown.look)
    picture = html.folded("histogram and picture", pictures) if pictures else ""
    plan = (
        html.folded(shown.plan, html.pre(_cut(shown.listing)))
        if shown.listing
        else html.muted(shown.plan)
    )
    return f'<div class="lazyviz-tensor">{values}{picture}{plan}</div>'


def _fold(summary: str, body: str, *, is_open: bool) -> str:
    """Return HTML under a line of HTML that folds it."""
    opened = " open" if is_open else ""
    return (
        f'<details style="font-size:12px;line-height:1.5"{opened}>'
        f'<summary style="cursor:pointer">{summary}</summary>{body}</details>'
    )


def _pictures(look: Look) -> str:
    """Return a histogram, and a picture of the last axes where there are two."""
    summary = look.summary
    if summary.elements < _MIN_PICTURED:
        return ""
    parts = []
    if any(summary.counts):
        bars = bars_svg(summary.counts, summary.low, summary.high)
        # Inside an image no style of the page holds: a grey that both themes show.
        bars = bars.replace("<text ", '<text fill="#7e8a9a" font-size="10" ')
        parts.append(html.picture(bars, "histogram"))
    axes = picture_axes(summary.shape)
    if look.picture is not None and axes:
        sizes = summary.shape[axes[-2]], summary.shape[axes[-1]]
        parts.append(drawn_picture(look.picture.numpy(), sizes))
    return f"<div>{' '.join(parts)}</div>" if parts else ""


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} …"
