"""A notebook's markdown as HTML: headings, paragraphs, lists, code, tables, links.

Only what our own notebooks use, so that a report needs no further package. Everything is
escaped first; raw HTML in the text shows as text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lazyviz.render.escape import markup

if TYPE_CHECKING:
    from collections.abc import Callable

_FENCE = re.compile(r"^```")
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*$")
_BULLET = re.compile(r"^\s*[-*+]\s+(.*)$")
_NUMBERED = re.compile(r"^\s*\d+[.)]\s+(.*)$")
_QUOTE = re.compile(r"^>\s?(.*)$")
_TABLE_RULE = re.compile(r"^\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?$")
_CODE_SPAN = re.compile(r"(`+)(.+?)\1")
_MARK = "\ue000"  # of private use, so that no text means anything by it
_KEPT = re.compile(rf"{_MARK}(\d+){_MARK}")
_LINK = re.compile(rf"\[([^\]]+)\]\((https?://[^\s(){_MARK}]+|[^\s():{_MARK}]+)\)")
_BOLD = re.compile(r"\*\*(.+?)\*\*|__(.+?)__")
_ITALIC = re.compile(r"(?<![\w*])[*_](?!\s)(.+?)(?<!\s)[*_](?![\w*])")


def last_heading(text: str) -> str | None:
    """Return the last heading in a markdown text, without its marks, or None."""
    fenced = False
    heading = None
    for line in text.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced and (match := _HEADING.match(line)):
            heading = re.sub(r"[`*]", "", match[2])
    return heading


def to_html(text: str) -> str:
    """Return a markdown text as HTML."""
    lines = text.splitlines()
    parts: list[str] = []
    position = 0
    while position < len(lines):
        block, position = _block(lines, position)
        if block:
            parts.append(block)
    return "\n".join(parts)


def inline(text: str) -> str:
    """Return one line's markdown as HTML: code, bold, italic, links."""
    kept: list[str] = []

    def keep(piece: str) -> str:
        """Put a mark in place of what no later rule may touch: code, and where a link leads."""
        kept.append(piece)
        return f"{_MARK}{len(kept) - 1}{_MARK}"

    text = text.replace(_MARK, "\ufffd")
    text = _CODE_SPAN.sub(
        lambda found: keep(f"<code>{markup(found[2].strip())}</code>"), text
    )
    text = _LINK.sub(
        lambda found: keep(f'<a href="{found[2]}">') + found[1] + keep("</a>"),
        markup(text),
    )
    text = _BOLD.sub(lambda found: f"<strong>{found[1] or found[2]}</strong>", text)
    text = _ITALIC.sub(r"<em>\1</em>", text)
    return _KEPT.sub(lambda found: kept[int(found[1])], text)


def _block(lines: list[str], start: int) -> tuple[str, int]:
    line = lines[start]
    if not line.strip():
        return "", start + 1
    if _FENCE.match(line):
        return _fenced(lines, start + 1)
    if heading := _HEADING.match(line):
        level = len(heading[1])
        return f"<h{level}>{inline(heading[2])}</h{level}>", start + 1
    if (
        start + 1 < len(lines)
        and "|" in line
        and _TABLE_RULE.match(lines[start + 1].strip())
    ):
        return _table(lines, start)
    for pattern, wrap in (
        (_BULLET, _list_of("ul")),
        (_NUMBERED, _list_of("ol")),
        (_QUOTE, _quote),
    ):
        if pattern.match(line):
            return _run(lines, start, pattern, wrap)
    return _paragraph(lines, start)


def _fenced(lines: list[str], start: int) -> tuple[str, int]:
    end = start
    while end < len(lines) and not _FENCE.match(lines[end]):
        end += 1
    code = markup("\n".join(lines[start:end]))
    return f"<pre><code>{code}</code></pre>", end + 1


def _table(lines: list[str], start: int) -> tuple[str, int]:
    end = start + 2
    while end < len(lines) and "|" in lines[end]:
        end += 1
    head = "".join(f"<th>{inline(cell)}</th>" for cell in _cells(lines[start]))
    rows = "".join(
        "<tr>" + "".join(f"<td>{inline(cell)}</td>" for cell in _cells(row)) + "</tr>"
        for row in lines[start + 2 : end]
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>", end


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def _run(
    lines: list[str],
    start: int,
    pattern: re.Pattern[str],
    wrap: Callable[[list[str]], str],
) -> tuple[str, int]:
    items: list[str] = []
    position = start
    while position < len(lines) and lines[position].strip():
        match = pattern.match(lines[position])
        if match:
            items.append(match[1])
        elif lines[position].startswith(" "):
            items[-1] += " " + lines[position].strip()
        else:
            break
        position += 1
    return wrap(items), position


def _list_of(tag: str) -> Callable[[list[str]], str]:
    def wrap(items: list[str]) -> str:
        inside = "".join(f"<li>{inline(item)}</li>" for item in items)
        return f"<{tag}>{inside}</{tag}>"

    return wrap


def _quote(items: list[str]) -> str:
    return f"<blockquote>{inline(' '.join(items))}</blockquote>"


def _paragraph(lines: list[str], start: int) -> tuple[str, int]:
    end = start
    while end < len(lines) and lines[end].strip():
        starts_block = any(
            p.match(lines[end]) for p in (_FENCE, _HEADING, _BULLET, _NUMBERED)
        )
        if end > start and starts_block:
            break
        end += 1
    return f"<p>{inline(' '.join(line.strip() for line in lines[start:end]))}</p>", end
