"""Where a step is cut: a row of its parts, and lines across the source; pure data to text."""

from __future__ import annotations

from dataclasses import dataclass

from lazyviz.render import html, text
from lazyviz.render.html import markup, one_line

_WIDTH, _ROW, _LABEL = 420, 34, 56
_MIN_PART = 46
_RULE = "─" * 12
_OLD_RULE = "┄" * 12
_STYLE = (
    "text{font:11px sans-serif;fill:#555}rect{fill:#dbeafe;stroke:#2563eb}"
    ".cut{stroke:#d14d72;stroke-width:2.5}.old{stroke-dasharray:4 3}"
    "@media(prefers-color-scheme:dark){text{fill:#bbb}rect{fill:#1e3a5f}}"
)


@dataclass(frozen=True, slots=True)
class Part:
    """What one execution ran.

    Attributes:
        ops: How many operations.
        lines: Where they were recorded, such as `lines 7 to 9`; empty where it is not known.
        ended: What ended it, in words.
    """

    ops: int
    lines: str
    ended: str


@dataclass(frozen=True, slots=True)
class Row:
    """The parts of a program in order.

    Attributes:
        when: `before` or `now`.
        parts: At least one; between two of them lies a cut.
    """

    when: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """A line across the source: behind it another execution begins.

    Attributes:
        when: `before` or `now`.
        ops: Operations that ran together there, those since the cut above it.
        ended: What cut, in words.
    """

    when: str
    ops: int
    ended: str


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of source.

    Attributes:
        number: Counted from 1; 0 stands for lines that are left out.
        source: Its text, without the end of the line.
        ops: How many of the operations it recorded.
        rules: Cuts behind it.
    """

    number: int
    source: str = ""
    ops: int = 0
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """A part of the source of one cell or file.

    Attributes:
        place: `cell 3`, or the name of a file.
        lines: Those around ops and cuts.
    """

    place: str
    lines: tuple[SourceLine, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A drawing of where a program is cut, and where it was before.

    Attributes:
        title: One line.
        rows: The program before, if the cut has moved, and now.
        listings: The source on which the cuts lie; none where there is no source.
    """

    title: str
    rows: tuple[Row, ...]
    listings: tuple[Listing, ...] = ()


def cut_text(cut: Cut) -> str:
    """Return the drawing for a terminal."""
    width = max(len(row.when) for row in cut.rows)
    lines = [f"{row.when:<{width}}  {_row_text(row)}" for row in cut.rows]
    return "\n".join(map(one_line, [cut.title, *lines, *_listed(cut)]))


def cut_html(cut: Cut, *, is_open: bool = False) -> str:
    """Return the drawing as HTML that needs no script: a picture, and the source below it."""
    source = html.pre("\n".join(map(one_line, _listed(cut)))) if cut.listings else ""
    shown = html.picture(_svg(cut), _alt(cut)) + source
    return html.folded(cut.title, shown, is_open=is_open)


def cut_panel(cut: Cut) -> str:
    """Return the drawing as HTML for the panel beside a graph, whose page has the colours."""
    source = "\n".join(map(one_line, _listed(cut)))
    listing = f"<pre>{markup(source)}</pre>" if source else ""
    return f"<h4>{markup(cut.title)}</h4>{_svg(cut, inline=True)}{listing}"


def _alt(cut: Cut) -> str:
    return "; ".join(f"{row.when}: {_row_text(row)}" for row in cut.rows)


def _row_text(row: Row) -> str:
    return " │ ".join(_part_text(part) for part in row.parts)


def _part_text(part: Part) -> str:
    where = f" ({part.lines})" if part.lines else ""
    return f"{text.plural(part.ops, 'op')}{where}"


def _listed(cut: Cut) -> list[str]:
    """Return the source with the number of ops of each line and a line for each cut."""
    return [line for listing in cut.listings for line in _lines(listing)]


def _lines(listing: Listing) -> list[str]:
    digits = max((len(str(line.number)) for line in listing.lines), default=1)
    lines = [listing.place]
    for line in listing.lines:
        if not line.number:
            lines.append(f"{'⋮':>{digits}}")
            continue
        ops = f"   ← {text.plural(line.ops, 'op')}" if line.ops else ""
        lines.append(f"{line.number:>{digits}} │ {line.source}{ops}".rstrip())
        lines += [f"{'':>{digits}} {_rule_text(rule)}" for rule in line.rules]
    return lines


def _rule_text(rule: Rule) -> str:
    dash = _OLD_RULE if rule.when == "before" else _RULE
    when = "cut before, after" if rule.when == "before" else "cut after"
    return f"├{dash} {when} {text.plural(rule.ops, 'op')}: {rule.ended}"


def _svg(cut: Cut, *, inline: bool = False) -> str:
    """Return one bar for each row, parts as long as they have ops, cuts as lines.

    Args:
        cut: What is drawn.
        inline: Whether it becomes a part of a page that has its style.
    """
    total = max(sum(part.ops for part in row.parts) for row in cut.rows) or 1
    shapes = []
    for number, row in enumerate(cut.rows):
        y = number * _ROW
        shapes.append(f'<text x="0" y="{y + 19}">{markup(row.when)}</text>')
        shapes += _bar(row, y, total)
    width, height = _LABEL + _WIDTH + 4, len(cut.rows) * _ROW
    if inline:
        return (
            f'<svg class="lzg-cut" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{markup(_alt(cut))}">{"".join(shapes)}</svg>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
        f'height="{height}"><style>{_STYLE}</style>{"".join(shapes)}</svg>'
    )


def _bar(row: Row, y: int, total: int) -> list[str]:
    shapes, x = [], float(_LABEL)
    for number, part in enumerate(row.parts):
        width = part.ops / total * _WIDTH
        shapes.append(
            f'<rect x="{x:.1f}" y="{y + 5}" width="{width:.1f}" height="20">'
            f"<title>{markup(_part_text(part))}, {markup(part.ended)}</title></rect>"
        )
        if width >= _MIN_PART:
            words = text.plural(part.ops, "op")
            shapes.append(f'<text x="{x + 6:.1f}" y="{y + 19}">{markup(words)}</text>')
        x += width
        if number + 1 < len(row.parts):
            old = " old" if row.when == "before" else ""
            shapes.append(
                f'<line class="cut{old}" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 30}"/>'
            )
    return shapes
