"""`%lazy help`: the magic's docstring, whole or of one subcommand, as text and as tables."""

from __future__ import annotations

import re

from lazyviz.render import html

_ENTRY = re.compile(r"(%%?lazy\b.*?) {2,}(\S.*)")
_SENTENCE = ". "
_CONTINUED = re.compile(r" {5,}(\S.*)")


def entries_of(page: str, name: str) -> str:
    """Return the entries of one subcommand: their lines, and those below that are indented."""
    entry = re.compile(rf"^.*%lazy {name}\b.*(\n {{5,}}.*)*", re.MULTILINE)
    return "\n".join(found[0] for found in entry.finditer(page))


def to_html(page: str) -> str:
    """Return the same as tables with a line above each; their words wrap where a page is narrow."""
    parts: list[str] = []
    rows: list[list[str]] = []
    for line in [*page.splitlines(), ""]:
        entry, more = _ENTRY.fullmatch(line), _CONTINUED.fullmatch(line)
        if entry is not None:
            rows.append([entry[1], entry[2]])
        elif more is not None:
            rows[-1][1] += f" {more[1]}"
        elif rows:
            parts.append(html.table(("command", "what it does"), rows))
            rows = []
        if line and entry is None and more is None:
            is_heading = not line.endswith(".") and _SENTENCE not in line
            parts.append(html.line(line) if is_heading else html.muted(line))
    return "".join(parts)
