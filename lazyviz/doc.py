"""What a view shows, as data, and its two writers: text and HTML.

A view returns a `Doc` of parts. `to_text` writes it for a terminal, `to_html` for a page without
scripts. All text is escaped where it enters HTML.
"""

from __future__ import annotations

import re
import textwrap
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from lazygraph.readable import text_table
from lazyviz.render import html
from lazyviz.render.html import Fragment, markup, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_NARROW = 60  # characters of a line that fit into a narrow page
_TALL = 60  # lines; a longer listing scrolls
_HELP_WIDTH = 100
_MARK = ' style="color:var(--jp-error-color1,#d14d72);font-weight:bold"'
# Columns whose cells stay in one line, so that no page ends `cell 3 line 2` after `cell`.
_WHOLE = frozenset(
    (
        *("at", "compile", "where", "age", "unused for", "line", "took", "time"),
        *("ended at", "in / out", "command"),
    )
)
# `12`, `4.1 MiB`, `about 1 min 3 s`, `97 %`, `15m55.564619s`, as text.py and torch_xla write them.
_QUANTITY = re.compile(
    r"(about |<)?[-+−]?\d[\d,.]*"
    r"( ?(%|[kMGTP]?FLOPs|ns|[µu]s|ms|s|min|h|days?|bytes?|[KMGTP]i?B)){0,1}( \d+ (min|s|ms|h))*"
    r"|(\d[\d.]*([mu]s|[hms]))+"
)


class Part:
    """Something that a view shows; one without words shows nothing."""

    __slots__ = ()

    def to_text(self) -> str:
        """Return it for a terminal; empty if a terminal does not show it."""
        return _text(self)

    def to_html(self) -> str:
        """Return it for a page without scripts."""
        return _html(self)


@dataclass(frozen=True, slots=True)
class Heading(Part):
    """The title of what follows; its anchor is where links of a page lead."""

    words: str
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Line(Part):
    """One line that stands out; what is in backticks is code."""

    words: str


@dataclass(frozen=True, slots=True)
class Note(Part):
    """One quiet line; one about what a page folds is for pages alone."""

    words: str
    _: KW_ONLY
    page_only: bool = False


@dataclass(frozen=True, slots=True)
class Sentence(Part):
    """Text with its own line ends; longer lines end between words."""

    words: str


@dataclass(frozen=True, slots=True)
class Points(Part):
    """Some sentences, each a point of a list; what each is about, up to its colon, stands out."""

    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Advice(Part):
    """What to do, behind a label."""

    label: str
    words: str


@dataclass(frozen=True, slots=True)
class Code(Part):
    """Text as it is: source, a listing of ops."""

    listing: str


@dataclass(frozen=True, slots=True)
class Table(Part):
    """A table; columns of numbers and quantities stand to the right, and None is an empty cell.

    Attributes:
        marked: The row that stands out on a page.

    Example:
        >>> print(Table(["step", "cause"], [[1, "user"], [12, "read"]]).to_text())
        step  cause
        ----  -----
           1  user
          12  read
    """

    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    marked: int | None = None

    def filled(self) -> Table:
        """Return it without the columns that say nothing in any row."""
        keep = [
            k
            for k in range(len(self.header))
            if any(row[k] not in ("", None) for row in self.rows)
        ]
        rows = [[row[k] for k in keep] for row in self.rows]
        return Table([self.header[k] for k in keep], rows)


@dataclass(frozen=True, slots=True)
class Facts(Part):
    """Names and what is said of each: lines in a terminal, a table on a page.

    Attributes:
        width: Where the words begin in a terminal, which then wrap; 0 puts a colon between.
    """

    header: tuple[str, str]
    rows: Sequence[tuple[str, str]]
    width: int = 0


@dataclass(frozen=True, slots=True)
class Fold(Part):
    """Parts under a line that folds them.

    Attributes:
        in_text: Whether a terminal shows them, too, without the line.
    """

    summary: str
    parts: Sequence[Part]
    _: KW_ONLY
    is_open: bool = False
    in_text: bool = False


@dataclass(frozen=True, slots=True)
class Picture(Part):
    """A drawing, for pages alone.

    Attributes:
        what: What it shows, for those who do not see it.
    """

    svg: str
    what: str
    css_class: str = ""


@dataclass(frozen=True, slots=True)
class Drawn(Part):
    """What has writers of its own, such as a graph, a diff or a timeline."""

    text: str
    html: Callable[[], str]


@dataclass(frozen=True, slots=True, repr=False)
class Doc(Part):
    """What a view returns: parts, one below the other.

    Attributes:
        css_class: By which a page finds it.
        gap: What stands between parts in a terminal.
        live: Returns a live form of it, which hides the static one by `css_class`.
    """

    parts: Sequence[Part]
    _: KW_ONLY
    css_class: str = ""
    gap: str = "\n"
    live: Callable[[], object] | None = None

    @property
    def needs_html(self) -> bool:
        """Whether its text alone would read badly on a page."""
        return any(map(_needs_html, self.parts))

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return self.to_html()


class Showable(ABC):
    """Shows itself as a document: in a terminal, in a notebook."""

    __slots__ = ()

    @abstractmethod
    def doc(self) -> Doc:
        """Return what it shows."""

    def to_text(self) -> str:
        """Return it for a terminal."""
        return self.doc().to_text()

    def to_html(self) -> str:
        """Return it for a notebook."""
        return self.doc().to_html()

    text = to_text

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.doc().to_html()


# --- the writers


def _text(part: Part) -> str:
    match part:
        case Note(page_only=True):
            return ""
        case Heading(words) | Line(words) | Note(words) | Sentence(words):
            return words
        case Advice(label, words):
            return f"{label}: {words}"
        case Points(lines):
            return "\n".join(lines)
        case Code(words) | Drawn(words):
            return words
        case Table():
            return _table_text(part)
        case Facts(_, rows, 0):
            return "\n".join(f"{name}: {words}" for name, words in rows)
        case Facts(_, rows, width):
            return "\n".join(_wrapped(*row, width) for row in rows)
        case Fold(in_text=True):
            return _joined(part.parts, "\n")
        case Doc():
            return printable(_joined(part.parts, part.gap))
    return ""


def _html(part: Part) -> str:
    match part:
        case Heading(words, anchor):
            name = f' id="{markup(anchor)}"' if anchor else ""
            return f"<h3{name}>{markup(words)}</h3>"
        case Line(words):
            return html.line(words)
        case Note(words):
            return html.muted(words)
        case Sentence(words):
            return html.wrapped(words)
        case Points(lines):
            return html.sentences(lines)
        case Advice(label, words):
            return html.advice(label, words)
        case Code(words):
            return html.pre(words)
        case Table():
            return _table_html(part)
        case Facts(header, rows):
            return _table_html(Table(header, rows)) if rows else ""
        case Fold(summary, parts):
            return html.folded(summary, _all_html(parts), is_open=part.is_open)
        case Picture(svg, what, css_class):
            return html.picture(svg, what, css_class) if svg else ""
        case Drawn():
            return part.html()
        case Doc(parts, css_class=str(css_class)) if css_class:
            return f'<div class="{markup(css_class)}">{_all_html(parts)}</div>'
        case Doc(parts):
            return _all_html(parts)
    return ""


def _needs_html(part: Part) -> bool:
    match part:
        case Sentence(words):
            return any(len(line) > _NARROW for line in words.splitlines())
        case Code(listing):
            return listing.count("\n") > _TALL
        case Doc():
            return part.needs_html
    return True


def _joined(parts: Iterable[Part], gap: str) -> str:
    return gap.join(filter(None, map(_text, parts)))


def _all_html(parts: Iterable[Part]) -> str:
    return "".join(map(_html, parts))


def _wrapped(name: str, words: str, width: int) -> str:
    return textwrap.fill(
        words,
        _HELP_WIDTH,
        initial_indent=f"{name:<{width - 2}}  ",
        subsequent_indent=" " * width,
        break_on_hyphens=False,
    )


def _table_text(table: Table) -> str:
    columns = range(len(table.header))
    right = [
        bool(table.rows) and all(isinstance(row[k], int | float) for row in table.rows)
        for k in columns
    ]
    rows = [["" if cell is None else cell for cell in row] for row in table.rows]
    return text_table(table.header, rows, right)


def _table_html(table: Table) -> str:
    right = [
        _is_measured([row[k] for row in table.rows if k < len(row)])
        for k in range(len(table.header))
    ]
    head = "".join(
        f'<th scope="col" style="text-align:{"right" if is_right else "left"}">'
        f"{markup(title)}</th>"
        for title, is_right in zip(table.header, right, strict=True)
    )
    body = "".join(
        f"<tr{_MARK if k == table.marked else ''}>"
        f"{''.join(map(_cell_html, row, table.header, right))}</tr>"
        for k, row in enumerate(table.rows)
    )
    return (
        f'<table style="{html.FONT}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _is_measured(column: Sequence[object]) -> bool:
    """Return whether all that a column says, in first lines, is numbers, sizes or durations."""
    said = [value for value in column if value not in ("", None)]
    return bool(said) and all(
        _QUANTITY.fullmatch(_first_line(value)) is not None
        for value in said
        if not isinstance(value, int) or isinstance(value, bool)
    )


def _first_line(value: object) -> str:
    return str(value).partition("<br/>")[0].replace("<wbr/>", "")


def _cell_html(value: object, title: str, is_right: bool) -> str:  # noqa: FBT001
    is_number = isinstance(value, int) and not isinstance(value, bool)
    is_long = is_right and html.UNIT_END.search(_first_line(value)) is not None
    is_whole = (title in _WHOLE or is_right) and not is_long
    whole = ";white-space:nowrap" if is_whole else ""
    side = "right;font-variant-numeric:tabular-nums" if is_right else "left"
    if is_number:
        shown = f"{value:,}"
    elif isinstance(value, Fragment):
        shown = value
    else:
        shown = "" if value is None else html.breakable(str(value))
    return f'<td style="text-align:{side}{whole}">{shown}</td>'
