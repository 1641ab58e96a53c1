"""Static HTML that lives on in a saved, converted or untrusted notebook.

A notebook that is not trusted loses styles, scripts, inline SVG and `data-` attributes. So
pictures are `<img>` with the SVG inside, folding is `<details>`, and whatever a viewer may
drop (inline styles) only costs looks. All text is escaped.
"""

from __future__ import annotations

import re
from base64 import b64encode
from typing import TYPE_CHECKING

from lazyviz.draw import svg
from lazyviz.render import text
from lazyviz.render.escape import markup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazyviz.draw.model import DrawGraph

STRIP_BUDGET = 60
MAX_EMBEDDED_BYTES = 65_536
TIMELINE_CLASS = "lazyviz-timeline-static"

_MOST_SHRUNK = 1_500  # pixels; about 1,050 are there
FONT = "font-size:12px;line-height:1.5"
_ADVICE = (
    "font-size:13px;line-height:1.5;margin:3px 0;padding:1px 0 1px 9px;"
    "border-left:3px solid #2a9d8f;overflow-wrap:anywhere"
)
_CODE = re.compile(r"`([^`\n]+)`")
# Longer words of a table may end a line where a part of them ends.
_LONG_WORD = 12
_LONG = re.compile(rf"[\w:.]{{{_LONG_WORD},}}")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=::)|(?<=[A-Za-z][_.])(?=[A-Za-z])(?!py\b)")
# A duration of `15m55.564619s`, as torch_xla writes them, may stand in two lines.
UNIT_END = re.compile(r"(?<=\d[smh])(?=\d)|(?<=\dms)(?=\d)")
_QUANTITY_START = re.compile(r"\d+(ms|[smh])\d")


class Fragment(str):
    """Text that is HTML already."""

    __slots__ = ()


def graph_svg(graph: DrawGraph, budget: int = STRIP_BUDGET) -> str:
    """Return a graph's drawing as an image of its own."""
    return svg.draw(graph, budget=budget).svg


def graph_html(
    graph: DrawGraph,
    *,
    budget: int = STRIP_BUDGET,
    engine: str | None = None,
    css_class: str = "",
    hint: str = "",
) -> str:
    """Return a graph's drawing as an image that scrolls, folded until it is small enough.

    Args:
        graph: What to draw.
        budget: At most so many boxes.
        engine: Layout engine to try first.
        css_class: By which a page's script finds the image.
        hint: A line below the drawing, in the image.
    """
    drawing = svg.draw(graph, budget=budget, engine=engine, hint=hint)
    while len(drawing.svg) > MAX_EMBEDDED_BYTES and budget > 4:  # noqa: PLR2004
        budget //= 2
        drawing = svg.draw(graph, budget=budget, engine=engine, hint=hint)
    what = f"{graph.kind}, {text.plural(graph.nodes, 'op')}"
    # A little too wide is made to fit; what would be too small to read scrolls.
    limit = "100%" if drawing.width <= _MOST_SHRUNK else "none"
    picture = image(drawing.svg, what, css_class=css_class, max_width=limit)
    notes = "".join(muted(f"layout: {note}") for note in drawing.notes)
    return (
        f'<div style="max-height:480px;overflow:auto;margin-top:4px">{picture}</div>'
        f"{notes}"
    )


def image(picture: str, what: str, css_class: str = "", max_width: str = "") -> str:
    """Return a drawing as an image in a line of text."""
    data = b64encode(picture.encode()).decode()
    classes = f' class="{markup(css_class)}"' if css_class else ""
    style = "display:inline;margin:0;vertical-align:middle"
    if max_width:
        style += f";max-width:{max_width}"
    return (
        f'<img{classes} alt="{markup(what)}" style="{style}" '
        f'src="data:image/svg+xml;base64,{data}">'
    )


def picture(svg_text: str, what: str, css_class: str = "") -> str:
    """Return a drawing as an image that is never wider than the page.

    Args:
        svg_text: The drawing.
        what: What it shows, for those who do not see it.
        css_class: By which a page finds it, to put a live one in its place.
    """
    shown = image(svg_text, what, max_width="100%")
    name = f' class="{css_class}"' if css_class else ""
    return f'<div{name} style="overflow:auto;margin-top:4px">{shown}</div>'


def line(words: str) -> str:
    """Return one line that stands out, with what stands in backticks as code."""
    return f'<div style="{FONT}"><b>{prose(words)}</b></div>'


def prose(words: str) -> str:
    """Return a sentence with what stands in backticks as code.

    Example:
        >>> prose("`x < 1` is another number")
        '<code>x &lt; 1</code> is another number'
    """
    return _CODE.sub(r"<code>\1</code>", markup(words))


def sentences(lines: Sequence[str]) -> str:
    """Return some sentences as a list; what each is about, up to its colon, stands out."""
    parts = (line.partition(": ") for line in lines)
    items = "".join(
        f"<li><b>{markup(head)}:</b> {prose(rest)}</li>"
        if colon
        else f"<li>{prose(head)}</li>"
        for head, colon, rest in parts
    )
    style = (
        f"{FONT};margin:4px 0;padding-left:20px;max-width:100em;overflow-wrap:anywhere"
    )
    return f'<ul style="{style}">{items}</ul>' if items else ""


def advice(label: str, words: str) -> str:
    """Return what to do, beside a bar that finds the eye."""
    return f'<div style="{_ADVICE}"><b>{markup(label)}:</b> {prose(words)}</div>'


def muted(line: str) -> str:
    """Return one quiet line."""
    return f'<div style="{FONT};opacity:.75">{markup(line)}</div>'


def pre(listing: str) -> str:
    """Return text as it is, in a box that scrolls."""
    style = "font-size:12px;line-height:1.4;max-height:480px;overflow:auto;margin:4px 0"
    return f'<pre style="{style}">{markup(listing)}</pre>'


def wrapped(words: str) -> str:
    """Return text with its own line ends; longer lines end between words."""
    style = (
        "font-size:12px;line-height:1.4;margin:4px 0;"
        "white-space:pre-wrap;word-break:normal;overflow-wrap:break-word"
    )
    return f'<pre style="{style}">{markup(words)}</pre>'


def folded(
    summary: str, body: str, *, is_open: bool = False, css_class: str = ""
) -> str:
    """Return HTML under a line of text that folds it.

    Args:
        summary: Text; it is escaped.
        body: HTML; it is not.
        is_open: Whether it starts unfolded.
        css_class: By which a page's script finds it.
    """
    attribute = " open" if is_open else ""
    if css_class:
        attribute += f' class="{markup(css_class)}"'
    return (
        f'<details style="{FONT}"{attribute}>'
        f'<summary style="cursor:pointer">{markup(summary)}</summary>{body}</details>'
    )


def breakable(words: str) -> str:
    """Return escaped text whose long words may end a line where a part of them ends.

    Example:
        >>> breakable("15m55.564619s"), breakable("model.head.weight")
        ('15m<wbr/>55.564619s', 'model.<wbr/>head.<wbr/>weight')
    """
    if (
        "/" in words
    ):  # a path stays whole, so that a report finds the home directory in it
        return markup(words)
    text, end = "", 0
    for found in _LONG.finditer(words):
        ends = UNIT_END if _QUANTITY_START.match(found[0]) else _HUMP
        parts = map(markup, ends.split(found[0]))
        text += markup(words[end : found.start()]) + "<wbr/>".join(parts)
        end = found.end()
    return text + markup(words[end:])
