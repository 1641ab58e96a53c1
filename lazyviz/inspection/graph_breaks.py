"""Graph breaks: the graphs of neighbouring steps put side by side, on their source.

A program with a graph break is two graphs; a break that moves makes two more. The sentences say
so, and here is what is drawn: the parts in a row, before and now, and a line across the source.
Everything comes from the records of compiled graphs: no tensor is asked.
"""

from __future__ import annotations

import linecache
from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from lazyviz.doc import Code, Doc, Drawn, Fold, Part, Picture, Showable
from lazyviz.render import text
from lazyviz.render.html import markup, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import ModuleType

    from lazyrt import Inspection


_WIDTH, _ROW, _LABEL = 420, 34, 56
_MIN_PART = 46
_RULE = "─" * 12
_OLD_RULE = "┄" * 12
_STYLE = (
    "text{font:11px sans-serif;fill:#555}rect{fill:#dbeafe;stroke:#2563eb}"
    ".break{stroke:#d14d72;stroke-width:2.5}.old{stroke-dasharray:4 3}"
    "@media(prefers-color-scheme:dark){text{fill:#bbb}rect{fill:#1e3a5f}}"
)

# Boundaries between two graphs at which nothing of the program ends by itself.
_MARK = "mark_step()"
_MOVED = "graph_break"  # the kind of cause that says so
_INNER = ("read", "more than", "CPU fallback")
_BREAKING = (_MARK, *_INNER)
_OWNERS = frozenset({"module", "buffer", "optimizer", "gradient"})
_MAX_PARTS = 6
_AROUND = 1
_MAX_LINES = 60
_MAX_SOURCE = 120
_MAX_ALIGNED = 2_000


@dataclass(frozen=True, slots=True)
class Piece:
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
        parts: At least one; between two of them lies a break.
    """

    when: str
    parts: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """A line across the source: behind it another execution begins.

    Attributes:
        when: `before` or `now`.
        ops: Operations that ran together there, those since the break above it.
        ended: What broke the graph, in words.
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
        rules: Breaks after it.
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
        lines: Those around ops and breaks.
    """

    place: str
    lines: tuple[SourceLine, ...]


@dataclass(frozen=True, slots=True, repr=False)
class GraphBreak(Showable):
    """Where a program breaks into graphs, and where it did before.

    Attributes:
        title: One line.
        rows: The program before, if the break has moved, and now.
        listings: The source on which the breaks lie; none where there is no source.
    """

    title: str
    rows: tuple[Row, ...]
    listings: tuple[Listing, ...] = ()

    def doc(self, *, is_open: bool = False) -> Doc:
        """Return a row of the parts and the source with the breaks; a page draws and folds it."""
        width = max(len(row.when) for row in self.rows)
        rows = [f"{row.when:<{width}}  {_row_text(row)}" for row in self.rows]
        words = "\n".join(map(one_line, [self.title, *rows, *_listing(self)]))
        parts: list[Part] = [Picture(_svg(self), _alt(self))]
        if self.listings:
            parts.append(Code("\n".join(map(one_line, _listing(self)))))
        return Doc([Drawn(words, Fold(self.title, parts, is_open=is_open).to_html)])

    def panel(self) -> str:
        """Return it as HTML for the panel beside a graph, whose page has the colours."""
        source = "\n".join(map(one_line, _listing(self)))
        listing = f"<pre>{markup(source)}</pre>" if source else ""
        return f"<h4>{markup(self.title)}</h4>{_svg(self, inline=True)}{listing}"


def _alt(drawn: GraphBreak) -> str:
    return "; ".join(f"{row.when}: {_row_text(row)}" for row in drawn.rows)


def _row_text(row: Row) -> str:
    return " │ ".join(_part_text(part) for part in row.parts)


def _part_text(part: Piece) -> str:
    where = f" ({part.lines})" if part.lines else ""
    return f"{text.plural(part.ops, 'op')}{where}"


def _listing(drawn: GraphBreak) -> list[str]:
    """Return the source with the number of ops of each line and a line for each break."""
    return [line for listing in drawn.listings for line in _listing_lines(listing)]


def _listing_lines(listing: Listing) -> list[str]:
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
    when = "earlier graph break" if rule.when == "before" else "graph break"
    return f"├{dash} {when} after {text.plural(rule.ops, 'op')}: {rule.ended}"


def _svg(drawn: GraphBreak, *, inline: bool = False) -> str:
    """Return one bar for each row, parts as long as they have ops, breaks as lines.

    Args:
        drawn: What is drawn.
        inline: Whether it becomes a part of a page that has its style.
    """
    total = max(sum(part.ops for part in row.parts) for row in drawn.rows) or 1
    shapes = []
    for number, row in enumerate(drawn.rows):
        y = number * _ROW
        shapes.append(f'<text x="0" y="{y + 19}">{markup(row.when)}</text>')
        shapes += _bar(row, y, total)
    width, height = _LABEL + _WIDTH + 4, len(drawn.rows) * _ROW
    if inline:
        return (
            f'<svg class="lzg-break" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{markup(_alt(drawn))}">{"".join(shapes)}</svg>'
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
                f'<line class="break{old}" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 30}"/>'
            )
    return shapes


def breaks_of(runtime: ModuleType, steps: Sequence[int]) -> tuple[GraphBreak, ...]:
    """Return where the steps that compiled a graph break, or break at another line.

    Args:
        runtime: The module `lazyrt`.
        steps: Numbers of the steps that found no executable, in order.
    """
    found = []
    done: set[int] = set()
    for step in steps:
        record = runtime.graph_of_step(step)
        if record is None or record.first_step != step or step in done:
            continue
        parts = _row(runtime, record)
        done.update(range(step, step + len(parts)))
        before = _before(runtime, record)
        if max(len(parts), len(before)) > 1:  # else nothing breaks: an evaluation, say
            found.append(_drawn(parts, before))
    return tuple(found)


def break_of(runtime: ModuleType, step: int) -> GraphBreak | None:
    """Return where the program around a compiled step breaks; None if it is in one piece."""
    return next(iter(breaks_of(runtime, [_beginning(runtime, step)])), None)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A recorded op, as far as its line counts."""

    site: Any
    is_leaf: bool = False


@dataclass(frozen=True, slots=True)
class _Vertices:
    vertices: tuple[_Recorded, ...]


@dataclass(frozen=True, slots=True)
class _Rest:
    """A pending graph in place of the record that its step will leave."""

    nodes: int
    lines: tuple[Any, Any]
    snapshot: _Vertices


def break_before(runtime: ModuleType, inspection: Inspection) -> GraphBreak | None:
    """Return the break after which a pending graph continues; None if it begins something new.

    It goes on if a read, a limit or a fallback ended the step before it, and it computes with
    what that step left, or stands behind it in the same cell or file. Behind a `mark_step()`
    both must hold: the mark at the end of a loop's round breaks nothing.
    """
    earlier = runtime.graph_of_step(inspection.step - 1)
    if earlier is None or not inspection.graph.nodes or not inspection.is_current:
        return None
    cause, site = earlier.key.ended_by
    if site is None or not cause.startswith(_BREAKING):
        return None
    sites = [node.provenance.site for node in inspection.graph.nodes]
    behind = [each is not None and _is_behind(each, site) for each in sites]
    reads = _reads_results(inspection)
    is_broken = any(behind) or reads
    if cause.startswith(_MARK):
        is_broken = all(behind) and reads
    if not is_broken:
        return None
    start = _beginning(runtime, inspection.step - 1)
    parts = [runtime.graph_of_step(k) for k in range(start, inspection.step)]
    known = [each for each in sites if each is not None]
    lines = (known[0], known[-1]) if known else (None, None)
    rest = _Rest(len(sites), lines, _Vertices(tuple(map(_Recorded, sites))))
    row = (*map(_part, parts), Piece(rest.nodes, _lines(*lines), "pending"))
    return GraphBreak(
        title=f"this graph continues after a graph break: {cause} at {site}",
        rows=(Row("now", row),),
        listings=tuple(_listings([("now", [*parts, rest])])),
    )


def _is_behind(site: Any, end: Any) -> bool:
    place = (site.file, site.cell) == (end.file, end.cell)
    return place and bool(site.line >= end.line)


def _reads_results(inspection: Inspection) -> bool:
    """Return whether an input is what the step before computed, and no state of the model's."""
    return any(
        held.origin is not None
        and held.origin.step == inspection.step - 1
        and held.holder not in _OWNERS
        for held in inspection.holdings.values()
    )


def _beginning(runtime: ModuleType, step: int) -> int:
    """Return the step that ran the first part of the program that a step is a part of."""
    for _ in range(_MAX_PARTS):
        record, earlier = runtime.graph_of_step(step), runtime.graph_of_step(step - 1)
        if record is None or earlier is None or not _goes_on(earlier, record):
            break
        step -= 1
    return step


def moved_ops(runtime: ModuleType, step: int) -> dict[tuple[str, str], str]:
    """Return the ops of a step that ran in another part before the break moved.

    Both programs are laid side by side in the order of their lines: cells have other files when
    they run again, so lines alone do not tell which op is which.

    Returns:
        Words by line and op, for the lines of which some did. Empty if no break moved.
    """
    record = runtime.graph_of_step(step)
    first = runtime.graph_of_step(_beginning(runtime, step))
    parts = _row(runtime, first) if first is not None else []
    before = _before(runtime, first) if first is not None else []
    number = next((k for k, each in enumerate(parts) if each is record), None)
    now, then = _in_order(parts), _in_order(before)
    if number is None or not then or max(len(now), len(then)) > _MAX_ALIGNED:
        return {}
    matcher = SequenceMatcher(None, _labels(now), _labels(then), autojunk=False)
    places: dict[tuple[str, str], list[int | None]] = {}
    other = {
        start + k: then[old + k][0]
        for start, old, size in matcher.get_matching_blocks()
        for k in range(size)
    }
    for k, (part, vertex) in enumerate(now):
        if part == number:
            places.setdefault(_key(vertex), []).append(other.get(k))
    return {key: words for key, old in places.items() if (words := _came(old, number))}


def _in_order(records: Sequence[Any]) -> list[tuple[int, Any]]:
    """Return the ops of a row of graphs in the order of their lines, with their parts' numbers."""
    return [
        (number, vertex)
        for number, record in enumerate(records)
        if record.snapshot is not None
        for vertex in sorted(
            (v for v in record.snapshot.vertices if not v.is_leaf and v.site), key=_line
        )
    ]


def _labels(row: Sequence[tuple[int, Any]]) -> list[Any]:
    return [vertex.label for _, vertex in row]


def _line(vertex: Any) -> int:
    return int(vertex.site.line)


def _key(vertex: Any) -> tuple[str, str]:
    return str(vertex.site), vertex.op


def _came(old: Sequence[int | None], number: int) -> str:
    """Say in which part the ops of one line and kind were; empty if in this one."""
    elsewhere = [part for part in old if part is not None and part != number]
    if not elsewhere:
        return ""
    share = "" if len(elsewhere) == len(old) else f"{len(elsewhere)} of {len(old)} "
    return f"{share}in part {elsewhere[0] + 1} before"


def _row(runtime: ModuleType, first: Any, step: int | None = None) -> list[Any]:
    """Return the graphs that ran one after the other, up to a boundary that breaks nothing.

    Args:
        runtime: The module `lazyrt`.
        first: The graph to begin with.
        step: The step that ran it; by default the first one that did.
    """
    row, step = [first], first.first_step if step is None else step
    places = {_place(first.key.ended_by)}
    while len(row) < _MAX_PARTS:
        step += 1
        following = runtime.graph_of_step(step)
        if following is None or not _goes_on(row[-1], following):
            break
        place = _place(following.key.ended_by)
        if place in places:
            break  # the next round of a loop: its end is no break
        places.add(place)
        row.append(following)
    return row


def _goes_on(record: Any, following: Any) -> bool:
    """Return whether a graph goes on with the piece of program that another one began."""
    (cause, site), (next_cause, end) = record.key.ended_by, following.key.ended_by
    if site is None or end is None or not cause.startswith(_BREAKING):
        return False
    if cause.startswith(_MARK) and not next_cause.startswith(_MARK):
        return False  # what is in front of a `with step():`, or of the optimizer
    is_round = _place(record.key.ended_by) == _place(following.key.ended_by)
    return not is_round and (site.file, site.cell) == (end.file, end.cell)


def _before(runtime: ModuleType, record: Any) -> list[Any]:
    """Return the graphs of the program before its break moved; empty if none did."""
    explanation = record.explanation
    causes = explanation.causes if explanation is not None else ()
    if not any(cause.kind == _MOVED for cause in causes):
        return []
    named = {each.name: each for each in runtime.compiled_graphs()}
    nearest = named.get(explanation.against)
    if nearest is None or _place(nearest.key.ended_by) == _place(record.key.ended_by):
        return []
    ran = nearest.last_step
    if ran >= record.first_step:  # it has run again since
        ran = nearest.first_step
    return [
        each
        for each in _row(runtime, nearest, ran)
        if each.first_step < record.first_step
    ]


def _place(boundary: tuple[str, Any]) -> tuple[str, str]:
    cause, site = boundary
    return cause, str(site or "")


def _drawn(now: Sequence[Any], before: Sequence[Any]) -> GraphBreak:
    rows = [("before", before), ("now", now)] if before else [("now", now)]
    return GraphBreak(
        title=_title(now, before),
        rows=tuple(Row(when, tuple(map(_part, records))) for when, records in rows),
        listings=tuple(_listings(rows)),
    )


def _title(now: Sequence[Any], before: Sequence[Any]) -> str:
    if before:
        causes = now[0].explanation.causes
        moved = next(cause.text for cause in causes if cause.kind == _MOVED)
        return str(moved)
    sizes = " and ".join(f"{record.nodes:,}" for record in now)
    return f"where the graph breaks: {len(now)} graphs of {sizes} ops"


def _part(record: Any) -> Piece:
    first, last = record.lines
    return Piece(record.nodes, _lines(first, last), _boundary(record))


def _lines(first: Any, last: Any) -> str:
    if first is None or last is None:
        return ""
    if (first.file, first.line) == (last.file, last.line):
        return f"line {first.line}"
    if first.file != last.file:
        return f"{first} to {last}"
    low, high = sorted((first.line, last.line))
    return f"lines {low} to {high}"


def _boundary(record: Any) -> str:
    cause, site = record.key.ended_by
    return f"{cause} at {site}" if site is not None else str(cause)


def _listings(rows: Sequence[tuple[str, Sequence[Any]]]) -> Iterator[Listing]:
    """Yield the files on which the breaks lie, the latest program's first."""
    rules: dict[str, dict[int, list[Rule]]] = {}
    places: dict[str, str] = {}
    for when, records in reversed(rows):
        for record in records[:-1] or records:
            last = record.lines[1]
            if last is None or not linecache.getlines(last.file):
                continue
            rule = Rule(when, record.nodes, _boundary(record))
            rules.setdefault(last.file, {}).setdefault(last.line, []).append(rule)
            name = last.file.rsplit("/", maxsplit=1)[-1]
            places[last.file] = name if last.cell is None else f"cell {last.cell}"
    for file, of_file in rules.items():
        # Where both lie on one file, the counts are those of the program as it is now.
        records = next(r for _, r in reversed(rows) if file in _files(r))
        ops = _ops_by_line(records, file)
        yield Listing(places[file], tuple(_source(file, ops, of_file)))


def _files(records: Iterable[Any]) -> set[str]:
    return {each.lines[1].file for each in records if each.lines[1] is not None}


def _ops_by_line(records: Iterable[Any], file: str) -> Counter[int]:
    return Counter(
        vertex.site.line
        for record in records
        if record.snapshot is not None
        for vertex in record.snapshot.vertices
        if not vertex.is_leaf and vertex.site is not None and vertex.site.file == file
    )


def _source(
    file: str, ops: Counter[int], rules: dict[int, list[Rule]]
) -> Iterable[SourceLine]:
    text = linecache.getlines(file)
    wanted = sorted(
        {
            near
            for number in (*ops, *rules)
            for near in range(number - _AROUND, number + _AROUND + 1)
            if 1 <= near <= len(text)
        }
    )[:_MAX_LINES]
    previous = wanted[0] - 1 if wanted else 0
    for number in wanted:
        if number > previous + 1:
            yield SourceLine(0)
        previous = number
        yield SourceLine(
            number,
            text[number - 1].rstrip()[:_MAX_SOURCE],
            ops[number],
            tuple(rules.get(number, ())),
        )
