"""Graph breaks: the graphs of neighbouring steps put side by side, on their source.

The parts of the program in a row, before and now, and a line across the source. Everything comes
from the records of compiled graphs: no tensor is asked.
"""

from __future__ import annotations

import linecache
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazyviz.doc import Code, Doc, Drawn, Fold, Showable
from lazyviz.render import text
from lazyviz.render.html import lines_near, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import ModuleType


_RULE = "─" * 12, "graph break"
_OLD_RULE = "┄" * 12, "earlier graph break"

# Boundaries between two graphs at which nothing of the program ends by itself.
_MARK = "mark_step()"
_MOVED = "graph_break"  # the kind of cause that says so
_INNER = ("read", "more than", "CPU fallback")
_BREAKING = (_MARK, *_INNER)
_MAX_PARTS = 6
_AROUND = 1
_MAX_SOURCE = 120


@dataclass(frozen=True, slots=True, repr=False)
class GraphBreak(Showable):
    """Where a program breaks into graphs, and where it did before, with the source if there is any.

    Attributes:
        title: What happened.
        rows: `before` or `now`, and the parts of the program then in order.
        source: Lines of the source with the breaks across.
    """

    title: str
    rows: tuple[tuple[str, str], ...]
    source: tuple[str, ...] = ()

    def doc(self, *, is_open: bool = False) -> Doc:
        """Return the parts in a row, and the source with the breaks; a page folds both."""
        width = max(len(when) for when, _ in self.rows)
        rows = [f"{when:<{width}}  {parts}" for when, parts in self.rows]
        lines = list(map(one_line, [*rows, *self.source]))
        page = Fold(self.title, [Code("\n".join(lines))], is_open=is_open)
        return Doc([Drawn("\n".join([one_line(self.title), *lines]), page.to_html)])


def breaks_of(runtime: ModuleType, steps: Sequence[int]) -> tuple[GraphBreak, ...]:
    """Return where the steps that compiled a graph break, or break at another line."""
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


def _beginning(runtime: ModuleType, step: int) -> int:
    """Return the step that ran the first part of the program that a step is a part of."""
    for _ in range(_MAX_PARTS):
        record, earlier = runtime.graph_of_step(step), runtime.graph_of_step(step - 1)
        if record is None or earlier is None or not _goes_on(earlier, record):
            break
        step -= 1
    return step


def _row(runtime: ModuleType, first: Any, step: int | None = None) -> list[Any]:
    """Return the graphs that ran one after the other, up to a boundary that breaks nothing.

    `step` ran the first of them; by default it is the first that did.
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
        rows=tuple((when, " │ ".join(map(_part, records))) for when, records in rows),
        source=tuple(_source(rows)),
    )


def _title(now: Sequence[Any], before: Sequence[Any]) -> str:
    if before:
        causes = now[0].explanation.causes
        moved = next(cause.text for cause in causes if cause.kind == _MOVED)
        return str(moved)
    sizes = " and ".join(f"{record.nodes:,}" for record in now)
    return f"where the graph breaks: {len(now)} graphs of {sizes} ops"


def _part(record: Any) -> str:
    where = _lines(*record.lines)
    return text.plural(record.nodes, "op") + (f" ({where})" if where else "")


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


def _source(rows: Sequence[tuple[str, Sequence[Any]]]) -> Iterator[str]:
    """Yield the lines of the files on which the breaks lie, the latest program's first.

    A line has its number, its text and how many ops it recorded; below it stand its breaks.
    """
    rules: dict[str, dict[int, list[str]]] = {}
    names: dict[str, str] = {}
    for when, records in reversed(rows):
        for record in records[:-1] or records:
            last = record.lines[1]
            if last is None or not linecache.getlines(last.file):
                continue
            rule = _rule(when, record)
            rules.setdefault(last.file, {}).setdefault(last.line, []).append(rule)
            name = last.file.rsplit("/", maxsplit=1)[-1]
            names[last.file] = name if last.cell is None else f"cell {last.cell}"
    for file, of_file in rules.items():
        # Where both lie on one file, the counts are those of the program as it is now.
        records = next(r for _, r in reversed(rows) if file in _files(r))
        yield names[file]
        yield from _lines_of(file, _ops_by_line(records, file), of_file)


def _rule(when: str, record: Any) -> str:
    """Return the line across the source behind which another execution began."""
    dash, what = _OLD_RULE if when == "before" else _RULE
    return (
        f"├{dash} {what} after {text.plural(record.nodes, 'op')}: {_boundary(record)}"
    )


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


def _lines_of(
    file: str, ops: Counter[int], rules: dict[int, list[str]]
) -> Iterator[str]:
    lines = linecache.getlines(file)
    digits = len(str(min(len(lines), max(ops, default=0) + _AROUND)))
    for number in lines_near((*ops, *rules), len(lines), _AROUND):
        if not number:
            yield f"{'⋮':>{digits}}"
            continue
        count = f"   ← {text.plural(ops[number], 'op')}" if ops[number] else ""
        source = lines[number - 1].rstrip()[:_MAX_SOURCE]
        yield f"{number:>{digits}} │ {source}{count}".rstrip()
        yield from (f"{'':>{digits}} {rule}" for rule in rules.get(number, ()))
