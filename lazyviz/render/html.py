"""Text made safe for HTML, SVG and DOT, control characters and broken Unicode included."""

from __future__ import annotations

import html
import re
from base64 import b64encode
from hashlib import sha256
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import graphviz

from lazygraph import readable
from lazygraph.readable import duration_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


TIMELINE_CLASS = "lazyviz-timeline-static"
FONT = "font-size:12px;line-height:1.5"
_ADVICE = (
    "font-size:13px;line-height:1.5;margin:3px 0;padding:1px 0 1px 9px;"
    "border-left:3px solid #2a9d8f;overflow-wrap:anywhere"
)
_CODE = re.compile(r"`([^`\n]+)`")
_SVG_WIDTH = re.compile(r'<svg [^>]*?\bwidth="(\d+)')
# Longer words of a table may end a line where a part of them ends.
_LONG_WORD = 12
_LONG = re.compile(rf"[\w:.]{{{_LONG_WORD},}}")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=::)|(?<=[A-Za-z][_.])(?=[A-Za-z])(?!py\b)")
# A duration of `15m55.564619s`, as torch_xla writes them, may stand in two lines.
UNIT_END = re.compile(r"(?<=\d[smh])(?=\d)|(?<=\dms)(?=\d)")
_QUANTITY_START = re.compile(r"\d+(ms|[smh])\d")
_LOCK = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "img-src data:; style-src 'unsafe-inline'{scripts}\">\n"
)

printable, one_line = readable.printable, readable.one_line

_LINES_AROUND = 2  # lines before and after one that costs something
_MAX_SOURCE_LINES = 80
_DEVICE, _WAIT = "91,134,214", "209,127,98"
_SOURCE_CELL = "padding:0 .6em;text-align:right;white-space:nowrap"
_SOURCE_TEXT = "padding:0 .6em;text-align:left;white-space:pre"


def markup(text: str) -> str:
    """Return text for HTML or SVG, as content or as a quoted attribute."""
    return html.escape(printable(text), quote=True)


def dot(text: str) -> str:
    """Return text as a DOT label that reads as it stands."""
    escaped: str = graphviz.escape(printable(text))  # a str that is never read as HTML
    return escaped


class Fragment(str):
    """Text that is HTML already."""

    __slots__ = ()


def image(picture: str, what: str, max_width: str = "") -> str:
    """Return a drawing as an image in a line of text.

    One with letters that is to fit its place is shrunk by a quarter at most: smaller ones cannot be read.
    """
    data = b64encode(picture.encode()).decode()
    style = "display:inline;margin:0;vertical-align:middle"
    if max_width:
        style += f";max-width:{max_width}"
    width = _SVG_WIDTH.search(picture) if "<text" in picture else None
    if max_width == "100%" and width is not None:
        style += f";min-width:{int(width[1]) * 3 // 4}px"
    return (
        f'<img alt="{markup(what)}" style="{style}" '
        f'src="data:image/svg+xml;base64,{data}">'
    )


def picture(svg_text: str, what: str, css_class: str = "") -> str:
    """Return a drawing as an image, as wide as the page at most, which finds it by its class."""
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
    return _coded(markup(words))


def _coded(escaped: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escaped)


# Of "AdamW: `exp_avg` of 2 parameters" the class is no subject.
_SUBJECT_END = re.compile(r": (?!`\w+` of )")


def sentences(lines: Sequence[str]) -> str:
    """Return some sentences as a list; what each is about, up to its colon, stands out."""
    parts = (_SUBJECT_END.split(line, 1) for line in lines)
    items = "".join(
        f"<li><b>{prose(head)}:</b> {prose(rest[0])}</li>"
        if rest
        else f"<li>{prose(head)}</li>"
        for head, *rest in parts
    )
    style = (
        f"{FONT};margin:4px 0;padding-left:20px;max-width:100em;overflow-wrap:anywhere"
    )
    return f'<ul style="{style}">{items}</ul>' if items else ""


def advice(label: str, words: str) -> str:
    """Return what to do, beside a bar that finds the eye."""
    return f'<div style="{_ADVICE}"><b>{markup(label)}:</b> {prose(words)}</div>'


def muted(line: str) -> str:
    """Return one quiet line, with what stands in backticks as code."""
    return f'<div style="{FONT};opacity:.75">{prose(line)}</div>'


def pre(listing: str) -> str:
    """Return text as it is, in a box that scrolls."""
    style = "font-size:12px;line-height:1.4;max-height:480px;overflow:auto;margin:4px 0"
    return f'<pre style="{style}">{markup(listing)}</pre>'


def wrapped(words: str) -> str:
    """Return text with its own line ends; longer lines end between words, backticks are code."""
    style = f"{FONT};margin:4px 0;white-space:pre-wrap;word-break:normal;overflow-wrap:break-word"
    return f'<div style="{style}">{prose(words)}</div>'


def folded(summary: str, body: str, *, is_open: bool = False) -> str:
    """Return HTML under a line that folds it; the line is escaped unless it is a `Fragment`."""
    shown = summary if isinstance(summary, Fragment) else markup(summary)
    attribute = " open" if is_open else ""
    return (
        f'<details style="{FONT}"{attribute}>'
        f'<summary style="cursor:pointer">{shown}</summary>{body}</details>'
    )


def breakable(words: str) -> str:
    """Return `prose` whose long words may end a line where a part of them ends.

    Example:
        >>> breakable("15m55.564619s"), breakable("model.head.weight")
        ('15m<wbr/>55.564619s', 'model.<wbr/>head.<wbr/>weight')
    """
    # A path stays whole, so that a report finds the home directory in it.
    if "/" in words:
        return prose(words)
    text, end = "", 0
    for found in _LONG.finditer(words):
        ends = UNIT_END if _QUANTITY_START.match(found[0]) else _HUMP
        parts = map(markup, ends.split(found[0]))
        text += markup(words[end : found.start()]) + "<wbr/>".join(parts)
        end = found.end()
    return _coded(text + markup(words[end:]))


def source_map(
    name: str,
    lines: Sequence[str],
    worked: Mapping[int, int],
    waited: Mapping[int, int],
) -> str:
    """Return the lines of a file that cost something, with a colour by how much; empty for none.

    Those around them are shown, too. Costs are nanoseconds by line number.
    """
    rows = []
    for k in lines_near((*worked, *waited), len(lines), _LINES_AROUND):
        if not k:
            rows.append('<tr><td colspan="4">\u22ee</td></tr>')
            continue
        rows.append(
            f'<tr><td style="{_SOURCE_CELL};opacity:.7">{k}</td>'
            f"{_shaded(worked.get(k, 0), worked, _DEVICE)}"
            f"{_shaded(waited.get(k, 0), waited, _WAIT)}"
            f'<td style="{_SOURCE_TEXT}">{markup(lines[k - 1].rstrip())}</td></tr>'
        )
    if not rows:
        return ""
    return (
        f'<table style="font-family:monospace;font-size:12px;border-collapse:collapse">'
        f"<caption>{markup(name.rsplit('/', 1)[-1])}</caption>"
        '<tr><th scope="col">line</th><th scope="col">device</th><th scope="col">waits</th>'
        f'<th scope="col" style="text-align:left">source</th></tr>{"".join(rows)}</table>'
    )


def lines_near(numbers: Iterable[int], count: int, around: int) -> Iterator[int]:
    """Yield numbers of lines, from 1, and of those around in order, 0 where some are left out."""
    near = {k for n in numbers for k in range(n - around, n + around + 1)}
    wanted = sorted(k for k in near if 1 <= k <= count)[:_MAX_SOURCE_LINES]
    for before, number in pairwise([number - 1 for number in wanted[:1]] + wanted):
        if number > before + 1:
            yield 0
        yield number


def _shaded(ns: int, of: Mapping[int, int], colour: str) -> str:
    if not ns:
        return f'<td style="{_SOURCE_CELL}"></td>'
    strength = 0.1 + 0.5 * ns / max(of.values())
    return (
        f'<td style="{_SOURCE_CELL};background:rgba({colour},{strength:.2f})">'
        f"{markup(duration_text(ns))}</td>"
    )


class Section(NamedTuple):
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
    style = static("page.css")
    made = [Section(*part) for part in sections]
    parts = "\n".join([*_contents(made), *map(_section, made)])
    script = ""
    if TIMELINE_CLASS in parts:
        script = timeline_script()
        style += static("timeline_view.css")
    heading = markup(title)
    head = (
        f'<meta name="generator" content="{markup(generator)}">\n' if generator else ""
    )
    if is_locked:  # exactly this script of ours may run
        digest = b64encode(sha256(script.encode()).digest()).decode("ascii")
        allowed = f"; script-src 'sha256-{digest}'" if script else ""
        head += _LOCK.format(scripts=allowed)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{head}'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{heading}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<main>\n<h1>{heading}</h1>\n{parts}\n</main>\n"
        + (f"<script>{script}</script>\n" if script else "")
        + "</body>\n</html>\n"
    )


def timeline_script() -> str:
    """Return what makes static timelines zoom; where no script runs they stay as they are."""
    return "(() => {\n" + script("timeline_page", "timeline") + "})();"


def script(name: str, *parts: str) -> str:
    """Return a widget's JavaScript module, with what all pages and some `parts` share in front."""
    return "\n".join(static(f"{each}.js") for each in ("common", *parts, name))


def static(name: str) -> str:
    """Return a file of CSS or JavaScript."""
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
