"""A diff as text: what a terminal shows, coloured or not, and the lines of a side-by-side view."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING

from lazygraph.diff import callees, group_hunks, nested_diffs
from lazygraph.explain.hlo_causes import called, sentences, unseen
from lazygraph.graph import PARAMETER
from lazyviz.draw.diff import CALLED
from lazyviz.draw.model import ADDED, CHANGED, REMOVED, REWIRED, clip
from lazyviz.render.text import more, plural, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from lazygraph.diff import GraphDiff, Hunk, HunkGroup
    from lazygraph.graph import DeadNode, Graph, Label

_END = "\x1b[0m"
# As of `git diff`; the signs say the same to who sees no colours.
_STYLES = {
    f"{ADDED} ": "\x1b[32m", f"{REMOVED} ": "\x1b[31m", f"{CHANGED} ": "\x1b[33m",
    f"{REWIRED} ": "\x1b[36m", "was ": "\x1b[2m", "@@ ": "\x1b[1m",
}  # fmt: skip
_MAX_GROUPS = 12
_MAX_LINES = 8
_MAX_FOLLOWING = 3
_MAX_OPERANDS = 6
_MAX_ATTRS = 48
_MAX_INNER = 6
_MAX_NESTING = 3
_PLACE = re.compile(r"(?<![\w%'])%(?![\w%'])")


@dataclass(frozen=True, slots=True)
class HunkLine:
    """One line of a hunk.

    Attributes:
        mark: `+`, `−`, `~` or `⇄`.
        a, b: The instruction on either side; empty on a side that lacks it.
        node_a, node_b: Its ids, -1 on a side that lacks it.
    """

    mark: str
    a: str
    b: str
    node_a: int
    node_b: int


def summary(found: GraphDiff) -> list[str]:
    """Return what a diff comes to, in one line and some remarks."""
    sizes = f"{len(found.a):,} → {len(found.b):,} instructions"
    if found.cost == 0:
        first = f"{sizes}: no difference"
    else:
        places = found.hunks()
        kinds = len(group_hunks(places))
        alike = f", {plural(kinds, 'kind')} of change" if kinds < len(places) else ""
        parts = [sizes, *_counts(found), plural(len(places), "place") + alike]
        first = "; ".join(part for part in parts if part)
    return [first, *_notations(found), *sentences(found), *_remarks(found)]


def _counts(found: GraphDiff) -> Iterator[str]:
    """Yield how much differs, each count with the mark that its lines have."""
    outputs = found.outputs
    marked = [
        (ADDED, len(found.added), "added"),
        (REMOVED, len(found.removed), "removed"),
        (CHANGED, len(found.changed), "changed"),
        (REWIRED, len(found.rewired), "with other operands"),
    ]
    yield ", ".join(f"{mark}{count:,} {word}" for mark, count, word in marked if count)
    of_outputs = [(ADDED, len(outputs.added)), (REMOVED, len(outputs.removed))]
    shown = " ".join(f"{mark}{count:,}" for mark, count in of_outputs if count)
    yield f"outputs {shown}" if shown else ""


def _remarks(found: GraphDiff) -> Iterator[str]:
    moved = len(found.moved_parameters)
    is_known = _numbers_by_use(found) or _keeps_order(found)
    if moved and found.cost == 0 and not is_known:
        yield f"equal up to another order of {plural(moved, 'parameter')}"
    if found.reordered:
        ops = plural(found.reordered, "op has its list", "ops have their lists")
        yield f"{ops} of tensors, such as an optimizer's parameters, in another order"
    regrouped = found.regrouped
    if regrouped.pairs:
        sizes = [
            ",".join(map(str, each)) or "none"
            for each in (regrouped.sizes_a, regrouped.sizes_b)
        ]
        yield (
            f"also: {plural(len(regrouped.pairs), 'operand')} of coalesced collectives in other "
            f"groups, of {sizes[0]} → {sizes[1]}"
        )
    yield from unseen(found)
    dead_a, dead_b = (dead_text(dead) for dead in found.dead)
    if dead_a and dead_a == dead_b:
        yield f"dead code on both sides, no effect on results: {dead_a}"
    elif dead_a or dead_b:
        yield f"dead code, no effect on results: {dead_a or 'none'} → {dead_b or 'none'}"


def _notations(found: GraphDiff) -> Iterator[str]:
    """Yield that the sides are written in two ways; what follows is mostly due to that."""
    before, after = _notation(found.a), _notation(found.b)
    if found.cost and before != after:
        yield (
            f"the first is {before} and the second {after}, which call operations and their "
            "attributes otherwise: much of this is notation. Compare dumps of one kind"
        )


def _notation(graph: Graph) -> str:
    if graph.source is not None:
        return "HLO" if type(graph.source).__name__ == "HloModule" else "StableHLO"
    ops = {op for op in graph.ops if op != PARAMETER}
    return "torch_xla's IR" if any("::" in op for op in ops) else "lazyrt's IR"


def _numbers_by_use(found: GraphDiff) -> bool:
    """Return whether the inputs of both sides have the order in which ops first read them."""
    return found.a.source is None and found.b.source is None


def _keeps_order(found: GraphDiff) -> bool:
    """Return whether inputs have other numbers only because some came or went before them."""
    a, b, partner = found.a.numbers, found.b.numbers, found.partner_a
    paired = sorted((a[x], b[partner[x]]) for x in a if b.get(partner[x]) is not None)
    return all(one[1] < other[1] for one, other in pairwise(paired))


def dead_text(dead: Sequence[DeadNode]) -> str:
    """Return dead nodes by kind: `12 constant(9) s32[] of aten__sum (48 B)`."""
    kinds = Counter(
        (
            node.label.op, node.label.literal, node.label.type, node.origin.op_name,
            node.origin.site,
        )
        for node in dead
    )  # fmt: skip
    parts = []
    for (op, literal, type_text, op_name, site), count in kinds.most_common(3):
        shown = f"{op}({clip(literal, 20)})" if literal else op
        by = f" of {op_name}" if op_name not in {"", op} else ""
        by += f" at {site}" if site else ""
        parts.append(f"{count:,} {shown} {type_text}{by}")
    if len(kinds) > len(parts):
        parts.append("others")
    return f"{', '.join(parts)} ({wasted(dead)})" if parts else ""


def wasted(dead: Sequence[DeadNode]) -> str:
    """Return what dead nodes would cost: `48.0 KiB, 12,288 FLOP`."""
    work = sum(node.flops for node in dead)
    return size(sum(node.bytes for node in dead)) + (f", {work:,} FLOP" if work else "")


def diff_text(
    found: GraphDiff, *, groups: int = _MAX_GROUPS, lines: int = _MAX_LINES
) -> str:
    """Return a diff for a terminal: at most so many kinds of place, and so many lines of each."""
    shown = [f"{found.a.name} → {found.b.name}", *summary(found)]
    alike = group_hunks(found.hunks())
    for group in alike[:groups]:
        shown.append(heading(group))
        rows = list(hunk_lines(found, group.exemplar))
        room = min(lines, _MAX_FOLLOWING) if group.follows else lines
        for row in rows[:room]:
            shown += [_one_line(row), *_within(found, row, _MAX_NESTING)]
        if len(rows) > room:
            shown.append(f"   … {len(rows) - room:,} more")
    if len(alike) > groups:
        rest = sum(len(group.hunks) for group in alike[groups:])
        shown.append(f"… and {plural(rest, 'smaller place')}")
    shown += output_lines(found)
    return "\n".join(shown)


def _within(found: GraphDiff, row: HunkLine, depth: int) -> Iterator[str]:
    """Yield what differs in what a changed instruction calls, indented."""
    if row.mark != CHANGED or not depth:
        return
    for name, inner in nested_diffs(found, row.node_a, row.node_b):
        yield f"   within {name}:"
        rows = [each for hunk in inner.hunks() for each in hunk_lines(inner, hunk)]
        for each in rows[:_MAX_INNER]:
            lines = [_one_line(each), *_within(inner, each, depth - 1)]
            yield from (f"    {line}" for text in lines for line in text.split("\n"))
        if len(rows) > _MAX_INNER:
            yield f"       … {len(rows) - _MAX_INNER:,} more"


def heading(group: HunkGroup) -> str:
    """Return the line above a kind of place: `@@ encoder.1  train.py:7  (8 instructions)`."""
    hunk = group.exemplar
    where = "  ".join(part for part in (hunk.scope or "(no scope)", hunk.site) if part)
    alike = f", ×{group.places} places alike" if group.places > 1 else ""
    return f"@@ {where}  ({plural(len(hunk), 'instruction')}{alike})"


def graph_lines(graph: Graph, most: int | None = None) -> list[str]:
    """Return a graph line by line, each with its module and source line; the first of many."""
    outputs = set(graph.outputs)
    return [
        f" {'→' if node in outputs else ' '} {instruction(graph, node)}{_where(graph, node)}"
        for node in range(len(graph))[:most]
    ]


def listing(graph: Graph, most: int) -> str:
    """Return the first lines of a graph, and how many there are more."""
    lines = graph_lines(graph, most)
    return "\n".join([*lines, *more(len(graph) - len(lines))])


def output_lines(found: GraphDiff) -> list[str]:
    """Return a line for each output that only one side has, the first few.

    State of several parameters is one line.
    """
    shown: list[str] = []
    for mark, graph, outputs in (
        (ADDED, found.b, found.outputs.added),
        (REMOVED, found.a, found.outputs.removed),
    ):
        if len(outputs) > 1 and all(map(graph.holders.get, outputs)):
            words = called(graph, outputs, _MAX_LINES)
            shown += [f" {mark} output {each}" for each in words]
            continue
        shown += [
            f" {mark} output {instruction(graph, node)}{_where(graph, node)}"
            for node in outputs[:_MAX_LINES]
        ]
        if len(outputs) > _MAX_LINES:
            shown.append(f"   … {len(outputs) - _MAX_LINES:,} more outputs")
    return shown


def _where(graph: Graph, node: int) -> str:
    origin = graph.origin(node)
    parts = [part for part in (origin.scope, origin.site) if part]
    return f"  # {', '.join(parts)}" if parts else ""


def hunk_lines(found: GraphDiff, hunk: Hunk) -> Iterator[HunkLine]:
    """Yield the lines of a hunk in the order of the second graph."""
    changed = {y: x for x, y in hunk.changed}
    rewired = {each.b: each.a for each in hunk.rewired}
    rows: list[tuple[float, str, int, int]] = [
        (_reading_place(found.b, y), ADDED, -1, y) for y in hunk.added
    ]
    rows += [(y, CHANGED, x, y) for y, x in changed.items()]
    rows += [(y, REWIRED, x, y) for y, x in rewired.items() if y not in changed]
    shift = len(found.b) - len(found.a)
    for x in hunk.removed:
        place = _reading_place(found.a, x) + (shift if x > len(found.a) // 2 else 0)
        rows.append((place, REMOVED, x, -1))
    rows.sort(key=lambda row: row[0])
    for _, mark, x, y in rows:
        was = found.a.label(x) if x >= 0 else None
        now = found.b.label(y) if y >= 0 else None
        before = instruction(found.a, x, now) if x >= 0 else ""
        after = instruction(found.b, y, was) if y >= 0 else ""
        yield HunkLine(mark, before, after, x, y)


def _reading_place(graph: Graph, node: int) -> float:
    """Return where a reader expects a node: inputs and constants before their first use."""
    if graph.operands[node] or not graph.users[node]:
        return node
    return min(user for user, _ in graph.users[node]) - 0.5


def _one_line(row: HunkLine) -> str:
    if row.mark in {ADDED, REMOVED}:
        return f" {row.mark} {row.a or row.b}"
    return f" {row.mark} {row.b}\n   was {row.a}"


def instruction(graph: Graph, node: int, other: Label | None = None) -> str:
    """Return a node as one line: `%add.3 = f32[4] add(%x, %y)`.

    Of long texts the part that differs from the other side's label is shown.
    """
    label = graph.label(node)
    other = other or label
    operands = [graph.names[operand] for operand in graph.operands[node]]
    if len(operands) > _MAX_OPERANDS:
        hidden = len(operands) - _MAX_OPERANDS
        operands = [*operands[:_MAX_OPERANDS], f"… {hidden} more"]
    literal = _clip_to_change(label.literal, other.literal)
    inside = literal if label.literal else ", ".join(operands)
    number = graph.numbers.get(node)
    if number is not None:
        inside = str(number)
    attrs = with_callees(label.attrs, graph, node)
    is_named = attrs != label.attrs
    attrs = clip(attrs, _MAX_ATTRS) if is_named else _clip_to_change(attrs, other.attrs)
    attrs = f", {attrs}" if attrs else ""
    if label.attrs and not inside and "=" not in label.attrs:
        inside, attrs = attrs.removeprefix(", "), ""
    filled = _fill_in(label.attrs, [graph.names[each] for each in graph.operands[node]])
    if filled:
        inside, attrs = filled, ""
    name = graph.origin(node).op_name
    shown = f"{label.op}" if label.op != "call" or not name else name
    return f"{graph.names[node]} = {label.type} {shown}({inside}){attrs}"


def with_callees(attrs: str, graph: Graph, node: int) -> str:
    """Return a node's attributes with the names of what it calls, not its fingerprints."""
    if "=#" not in attrs:
        return attrs
    names = dict(callees(graph, node))

    def named(found: re.Match[str]) -> str:
        name = names.get(found[1])
        return f"{found[1]}=%{name}" if name else found[0]

    return CALLED.sub(named, attrs)


def _fill_in(attrs: str, operands: Sequence[str]) -> str:
    """Return arguments in their order, where attributes mark the places of the operands.

    Empty where they mark none or others, and where they are too long to be shown whole.

    Example:
        >>> _fill_in("[%, %], 1", ["%3", "%4"])
        '[%3, %4], 1'
    """
    if len(attrs) > _MAX_ATTRS or len(operands) > _MAX_OPERANDS:
        return ""
    between = _PLACE.split(attrs)
    if len(between) != len(operands) + 1 or len(between) == 1:
        return ""
    return "".join(map("".join, zip_longest(between, operands, fillvalue="")))


def _clip_to_change(text: str, other: str) -> str:
    """Return the part of a long text in which it differs from another one."""
    if len(text) <= _MAX_ATTRS or text == other:
        return clip(text, _MAX_ATTRS)
    both = zip(text, other, strict=False)
    same = next(
        (k for k, (one, two) in enumerate(both) if one != two),
        min(len(text), len(other)),
    )
    start = max(0, same - _MAX_ATTRS // 2)
    start = min(start, len(text) - _MAX_ATTRS)
    head = "…" if start else ""
    return head + clip(text[start:], _MAX_ATTRS)


def takes_colour(out: TextIO) -> bool:
    """Return whether a stream is a terminal whose user has not asked for plain text."""
    return (
        out.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def coloured(text: str) -> str:
    """Return the text of a diff with each line in the colour of its mark."""
    return "\n".join(map(_line, text.split("\n")))


def _line(line: str) -> str:
    body = line.lstrip(" ")
    for mark, style in _STYLES.items():
        if body.startswith(mark):
            indent = line[: len(line) - len(body)]
            return f"{indent}{style}{body}{_END}"
    return line


def pairing_lines(found: GraphDiff) -> list[str]:
    """Return a line for each pair of inputs that were moved or changed.

    The runtime numbers the inputs of a step by first use, so there another place alone is none.

    Example: `%p827.1 (0) → %p852.7 (3): same shape, same reader %dot.4`; the numbers are
    the inputs' places.
    """
    changed = [
        (x, y)
        for x, y in found.changed
        if found.a.label(x).op == PARAMETER == found.b.label(y).op
    ]
    moved = () if _numbers_by_use(found) else found.moved_parameters
    return [
        f"{_named(found.a, x)} → {_named(found.b, y)}: {', '.join(_reasons(found, x, y))}"
        for x, y in sorted({*moved, *changed})
    ]


def _named(graph: Graph, node: int) -> str:
    return f"{graph.names[node]} ({graph.numbers.get(node, '?')})"


def _reasons(found: GraphDiff, x: int, y: int) -> Iterator[str]:
    a, b = found.a, found.b
    types = a.label(x).type, b.label(y).type
    yield "same shape" if types[0] == types[1] else f"{types[0]} → {types[1]}"
    if a.origin(x).op_name and a.origin(x).op_name == b.origin(y).op_name:
        yield f"same name {a.origin(x).op_name}"
    theirs = set(b.users[y])
    for reader, slot in a.users[x]:
        partner = found.partner_a[reader]
        if (partner, slot) in theirs:
            yield f"same reader {b.names[partner]} ({b.label(partner).op})"
            return
    if set(a.outputs) & {x} and set(b.outputs) & {y}:
        yield "both are results"
