"""Graphs that torch_xla wrote to XLA_SAVE_TENSORS_FILE: as text, DOT, HLO or StableHLO."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from lazygraph.diff import is_same_up_to_sharing
from lazygraph.read.torch_ir import ir_text
from lazyviz.doc import Code, Doc, Fold, Note, Sentence, Table
from lazyviz.foreign.evidence import (
    Evidence,
    EvidenceError,
    Frame,
    parse_frame,
    plain,
    ranked,
    shorten,
    user_frame,
)
from lazyviz.foreign.program_dumps import parse_dot, parse_ir
from lazyviz.render import text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazygraph import Graph, GraphDiff
    from lazygraph.read.torch_ir import IrNode


BEGIN, END = "## BEGIN_GRAPH", "## END_GRAPH"
_EVENT = re.compile(r"\[(\w+)\]\s*")
_ROOTS = re.compile(r"(?:Root )?Hashes: \(([0-9a-f, ]*)\)\s*")
_GRAPH_HASH = re.compile(r"Graph Hash: ([0-9a-f]+)\s*")
_STARTS: tuple[tuple[str, Format], ...] = (
    ("IR {", "text"),
    ("digraph ", "dot"),
    ("HloModule ", "hlo"),
    ("module ", "stablehlo"),
)

_HEADER = ["graph", "hash", "format", "size", "roots", "event", "in", "same as"]
_HASH_DIGITS = 8
_MAX_OPS = 12
_MAX_CHARACTERS = 200_000
_MAX_COMPARED = 8
# Beyond so many characters equal hashes are taken at their word.
_MAX_CHECKED = 8_000_000
# Columns that say the same of every graph stand in the line above the table.
_COMMON = ("format", "event")

Format = Literal["text", "dot", "hlo", "stablehlo"]


@dataclass(frozen=True, kw_only=True)
class DumpedGraph:
    """One graph of a dump.

    Attributes:
        event: What torch_xla was doing, such as `ScheduleSyncTensorsGraph`.
        frames: The Python stack, innermost first.
        roots: Hashes of the roots.
        graph_hash: Hash of the whole graph; empty where the dump has none.
        format: How the graph is written.
        body: The graph as it is written.
        line: Number of the line of the dump where the body begins.
    """

    event: str
    frames: tuple[Frame, ...]
    roots: tuple[str, ...]
    graph_hash: str
    format: Format
    body: str
    line: int

    @cached_property
    def nodes(self) -> tuple[IrNode, ...]:
        """The IR nodes, operands first; none for HLO and StableHLO.

        Raises:
            EvidenceError: The text does not follow its format.
        """
        if self.format == "text":
            return parse_ir(self.body, self.line)
        return parse_dot(self.body, self.line) if self.format == "dot" else ()

    @cached_property
    def graph(self) -> Graph:
        """The graph in normal form, for `lazygraph`.

        Raises:
            HloError: The text does not follow its format.
        """
        from lazygraph import parse

        text = ir_text(self.nodes) if self.format == "dot" else self.body
        return parse(text, source=f"the graph at line {self.line}")

    def __lazygraph__(self) -> Graph:
        return self.graph

    @property
    def identity(self) -> str:
        """A text that equals for equal graphs of one process."""
        return self.graph_hash or ",".join(self.roots)

    @property
    def user_frame(self) -> Frame | None:
        """The user's line that asked for it."""
        return user_frame(self.frames)

    @property
    def size(self) -> int:
        """Number of nodes, or of instructions."""
        if self.format in {"text", "dot"}:
            return len(self.nodes)
        return sum(" = " in line for line in self.body.splitlines())


@dataclass(frozen=True, slots=True, repr=False)
class TensorsDump(Evidence):
    """The graphs of a dump, in the order in which they were written."""

    graphs: tuple[DumpedGraph, ...]

    @property
    def distinct(self) -> dict[str, list[int]]:
        """For each graph that differs, the positions where it stands, from 1."""
        found: dict[str, list[int]] = {}
        for position, graph in enumerate(self.graphs, 1):
            found.setdefault(graph.identity, []).append(position)
        return found

    def diff(self, first: int, second: int) -> GraphDiff:
        """Return what makes one graph different from another.

        Args:
            first: Position of a graph, from 1.
            second: Position of another one.

        Raises:
            EvidenceError: There is no graph at one of the positions.
            HloError: The text of one of them does not follow its format.
        """
        import lazygraph as hlo

        for position in (first, second):
            if not 0 < position <= len(self.graphs):
                raise EvidenceError(
                    f"there is no graph {position}: the dump has {len(self.graphs)}, counted "
                    "from 1. `print(dump)` lists them."
                )
        return hlo.diff(self.graphs[first - 1].graph, self.graphs[second - 1].graph)

    def doc(self) -> Doc:
        """Return a table of the graphs and the most frequent ops; graphs are folded."""
        return _doc(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the graphs as plain data, IR nodes included."""
        return {
            "graphs": [
                {
                    **plain(graph),
                    "nodes": plain(graph.nodes),
                    "body": None if graph.nodes else graph.body,
                }
                for graph in self.graphs
            ]
        }

    def ops(self) -> Counter[str]:
        """Return how often each op stands in the graphs that differ."""
        firsts = [self.graphs[positions[0] - 1] for positions in self.distinct.values()]
        return Counter(node.op for graph in firsts for node in graph.nodes)


def _doc(dump: TensorsDump) -> Doc:
    folds = []
    for positions in dump.distinct.values():
        graph = dump.graphs[positions[0] - 1]
        left = text.more(len(graph.body) - _MAX_CHARACTERS, "character")
        body = "\n".join([graph.body[:_MAX_CHARACTERS], *left])
        folds.append(Fold(_title(graph, positions), [Code(body)]))
    found = [Sentence("\n".join(each))] if (each := list(_differences(dump))) else []
    ops = [Note(_ops(dump))] if _ops(dump) else []
    parts = [Note(_summary(dump)), _table(dump), *found, *folds, *ops]
    return Doc(parts, css_class="lazyviz-dump", gap="\n\n")


def _summary(dump: TensorsDump) -> str:
    facts = "".join(f", {title} {value}" for title, value in _common(dump).items())
    return (
        f"{text.plural(len(dump.graphs), 'graph')}, {len(dump.distinct):,} of them "
        f"different{facts}"
    )


def _common(dump: TensorsDump) -> dict[str, str]:
    """Return what is true of all graphs, by the title of its column."""
    found = {title: {getattr(g, title) for g in dump.graphs} for title in _COMMON}
    return {
        title: value
        for title, (value, *others) in found.items()
        if value and not others
    }


def _table(dump: TensorsDump) -> Table:
    first = {k: positions[0] for positions in dump.distinct.values() for k in positions}
    rows = [
        _row(position, graph, first[position])
        for position, graph in enumerate(dump.graphs, 1)
    ]
    common = _common(dump)
    keep = [k for k, title in enumerate(_HEADER) if title not in common]
    cells = [[row[k] for k in keep] for row in rows]
    return Table([_HEADER[k] for k in keep], cells).filled()


def _row(position: int, graph: DumpedGraph, first: int) -> list[object]:
    noun = "node" if graph.nodes else "instruction"
    frame = graph.user_frame
    return [
        position,
        graph.graph_hash[:_HASH_DIGITS],
        graph.format,
        text.plural(graph.size, noun),
        len(graph.roots),
        graph.event,
        str(frame or ""),
        first if first != position else "",
    ]


def _title(graph: DumpedGraph, positions: list[int]) -> str:
    where = f", {graph.user_frame}" if graph.user_frame else ""
    times = f", {len(positions)} times" if len(positions) > 1 else ""
    return f"graph {positions[0]}{times}: {graph.size:,} in {graph.format}{where}"


def _differences(dump: TensorsDump) -> Iterator[str]:
    """Say which hashes stand for more than one program, and what makes those of a line differ."""
    yield from _shared_hashes(dump)
    first: dict[str, int] = {}
    compared = 0
    for positions in dump.distinct.values():
        position = positions[0]
        where = str(dump.graphs[position - 1].user_frame or "")
        if where not in first:
            first[where] = position
            continue
        if compared == _MAX_COMPARED:
            yield "... and further graphs; `dump.diff(1, 2)` compares two of them."
            return
        compared += 1
        found = dump.diff(first[where], position)
        yield (
            f"graph {position} is another one than graph {first[where]} of the same line: "
            f"{_what(found) or 'nothing that its text shows'}."
        )


def _shared_hashes(dump: TensorsDump) -> Iterator[str]:
    """Say of graphs with an earlier one's hash how they differ from it."""
    size = sum(len(graph.body) for graph in dump.graphs)
    for positions in dump.distinct.values() if size <= _MAX_CHECKED else ():
        first = positions[0]
        alike: dict[tuple[str, bool], list[int]] = {}
        for position in positions[1:]:
            found = dump.diff(first, position)
            if what := _what(found):
                same = is_same_up_to_sharing(found.a, found.b)
                alike.setdefault((what, same), []).append(position)
        for (what, same), others in alike.items():
            yield _shared_hash(first, others, what, same=same)


def _shared_hash(first: int, others: list[int], what: str, *, same: bool) -> str:
    *rest, last = map(str, others)
    subject = (
        f"graphs {', '.join(rest)} and {last} have" if rest else f"graph {last} has"
    )
    if same:
        return (
            f"{subject} the hash of graph {first}, and the same results: values are shared "
            f"otherwise, {what}."
        )
    return (
        f"{subject} the hash of graph {first}, but not its program: {what}. torch_xla runs "
        "one executable for both, so results may be wrong (pytorch/xla#8353)."
    )


def _what(found: GraphDiff) -> str:
    counts = [
        (len(found.added), "more", "node"),
        (len(found.removed), "fewer", "node"),
    ]
    parts = [text.plural(n, f"{how} {noun}") for n, how, noun in counts if n]
    if found.changed:
        before, after = found.changed[0]
        old, new = found.a[before], found.b[after]
        parts.append(
            f"{text.plural(len(found.changed), 'changed node')}, the first {old.op} "
            f"{old.type} → {new.op} {new.type}"
        )
    if found.rewired:
        parts.append(text.plural(len(found.rewired), "operand") + " from elsewhere")
    if found.outputs.added or found.outputs.removed:
        parts.append("other outputs")
    return "; ".join(parts)


def _ops(dump: TensorsDump) -> str:
    ops = ranked(dump.ops(), _MAX_OPS)
    return f"ops: {ops}" if ops else ""


def parse_tensors_dump(dump: str) -> TensorsDump:
    """Read the graphs that torch_xla appended to XLA_SAVE_TENSORS_FILE.

    Raises:
        EvidenceError: There is no graph in it, one has no end, or none of the formats.
    """
    event, frames, roots = "", list[Frame](), tuple[str, ...]()
    graphs: list[DumpedGraph] = []
    lines = dump.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        named, rooted = _EVENT.fullmatch(line), _ROOTS.fullmatch(line)
        frame = parse_frame(line)
        if line.strip() == BEGIN:
            end = _end(lines, number)
            graphs.append(_graph(event, frames, roots, lines[number:end], number + 1))
            number = end + 1
            event, frames, roots = "", [], ()
        elif named is not None:
            event, frames = named[1], []
        elif rooted is not None:
            roots = tuple(filter(None, re.split(r",\s*", rooted[1])))
        elif frame is not None:
            frames.append(frame)
    if not graphs:
        raise EvidenceError(
            f"there is no graph in the text that starts with {shorten(dump)}. A dump has "
            f"graphs between lines '{BEGIN}' and '{END}'; set XLA_SAVE_TENSORS_FILE and run "
            "the program again."
        )
    return TensorsDump(tuple(graphs))


def _end(lines: list[str], begin: int) -> int:
    for number in range(begin, len(lines)):
        if lines[number].strip() == END:
            return number
        if lines[number].strip() == BEGIN:
            break
    raise EvidenceError(
        f"the graph that begins here has no '{END}': the dump was cut, or the program ended "
        "while it wrote. Leave this graph out, or run the program again.",
        begin,
    )


def _graph(
    event: str,
    frames: list[Frame],
    roots: tuple[str, ...],
    lines: list[str],
    number: int,
) -> DumpedGraph:
    found = [_GRAPH_HASH.fullmatch(line) for line in lines]  # the last line of a body
    hashes = [match[1] for match in found if match]
    body = "\n".join(
        line for line, match in zip(lines, found, strict=True) if match is None
    ).strip("\n")
    known = next(
        (kind for start, kind in _STARTS if body.lstrip().startswith(start)), None
    )
    if known is None:
        raise EvidenceError(
            f"the graph starts with {shorten(body)}, which is none of the formats of "
            "XLA_SAVE_TENSORS_FMT: text, dot, hlo, stablehlo.",
            number,
        )
    return DumpedGraph(
        event=event,
        frames=tuple(frames),
        roots=roots,
        graph_hash=hashes[-1] if hashes else "",
        format=known,
        body=body,
        line=number + next((k for k, line in enumerate(lines) if line.strip()), 0),
    )
