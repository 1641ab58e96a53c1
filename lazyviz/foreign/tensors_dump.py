"""Pending graphs that torch_xla wrote: those of XLA_SAVE_TENSORS_FILE, and its report of tensors.

A dump has graphs as text, DOT, HLO or StableHLO. `torch_xla._XLAC._xla_tensors_report(threshold,
device)` gives each pending tensor with its IR.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from lazygraph.graph import HloSyntaxError
from lazygraph.read.torch_ir import ir_text, parse_dot, parse_ir
from lazygraph.types import type_bytes
from lazyviz.doc import Code, Doc, Fold, Note, Sentence, Table
from lazyviz.draw.diff_text import summary
from lazyviz.foreign import (
    Evidence,
    EvidenceError,
    Frame,
    parse_frame,
    plain,
    ranked,
    shorten,
    user_frame,
)
from lazyviz.render import text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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

REPORT = re.compile(r"^Tensor: id=\d+, ", re.MULTILINE)
_TENSOR = re.compile(
    r"Tensor: id=(?P<id>\d+), shape=(?P<type>.+), device=(?P<device>\S+), "
    r"ir_nodes=(?P<nodes>\d+)\s*"
)
_LAYOUT = re.compile(r"\{[\d,]*\}$")
_TENSOR_HEADER = ["id", "type", "size", "device", "nodes", "made by", "in"]
_MAX_SHOWN = 200

Format = Literal["text", "dot", "hlo", "stablehlo"]


_PARSERS = {"text": parse_ir, "dot": parse_dot}


def _nodes(
    parse: Callable[[str, int], tuple[IrNode, ...]], text: str, line: int
) -> tuple[IrNode, ...]:
    try:
        return parse(text, line)
    except HloSyntaxError as error:
        raise EvidenceError(error.message, error.line) from None


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
        """The IR nodes, operands first; none for HLO and StableHLO."""
        if self.format not in _PARSERS:
            return ()
        return _nodes(_PARSERS[self.format], self.body, self.line)

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
        folds = []
        for positions in self.distinct.values():
            graph = self.graphs[positions[0] - 1]
            left = text.more(len(graph.body) - _MAX_CHARACTERS, "character")
            body = "\n".join([graph.body[:_MAX_CHARACTERS], *left])
            folds.append(Fold(_title(graph, positions), [Code(body)]))
        many = text.plural(len(self.graphs), "graph")
        summary = Note(f"{many}, {len(self.distinct):,} of them different")
        found = (
            [Sentence("\n".join(each))] if (each := list(_differences(self))) else []
        )
        ops = self.ops()
        most = [Note(f"ops: {ranked(ops, _MAX_OPS)}")] if ops else []
        parts = [summary, _table(self), *found, *folds, *most]
        return Doc(parts, css_class="lazyviz-dump", gap="\n\n")

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


def _table(dump: TensorsDump) -> Table:
    first = {k: positions[0] for positions in dump.distinct.values() for k in positions}
    rows = [
        _row(position, graph, first[position])
        for position, graph in enumerate(dump.graphs, 1)
    ]
    return Table(_HEADER, rows).filled()


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
    """Say what makes the graphs of a line differ."""
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
        said = "; ".join(summary(dump.diff(first[where], position)))
        yield f"graph {position} is another one than graph {first[where]} of the same line: {said}."


def parse_tensors_dump(dump: str) -> TensorsDump:
    """Read the graphs that torch_xla appended to XLA_SAVE_TENSORS_FILE."""
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


@dataclass(frozen=True, kw_only=True)
class ListedTensor:
    """One tensor of a report.

    Attributes:
        id: torch_xla's number of it.
        type: Shape and layout, such as `f32[2,3]{1,0}`.
        device: Such as `TPU:0`.
        ir_nodes: How many IR nodes its value needs.
        frames: The Python stack of its op, innermost first, where XLA_IR_DEBUG was set.
        nodes: Its IR, operands first.
    """

    id: int
    type: str
    device: str
    ir_nodes: int
    frames: tuple[Frame, ...]
    nodes: tuple[IrNode, ...]

    @property
    def nbytes(self) -> int:
        """Size of its value."""
        return type_bytes(_LAYOUT.sub("", self.type))

    @property
    def op(self) -> str:
        """The op that makes it, such as `aten::addmm`."""
        roots = [node for node in self.nodes if node.root is not None]
        return (roots or self.nodes[-1:])[0].op if self.nodes else ""

    @property
    def site(self) -> str:
        """The line that recorded its op; empty where the report does not say."""
        frame = user_frame(self.frames)
        locations = [node.location for node in reversed(self.nodes) if node.location]
        return str(frame) if frame else locations[0] if locations else ""

    @cached_property
    def graph(self) -> Graph:
        """Its IR in normal form, for `lazygraph`."""
        from lazygraph import parse

        return parse(ir_text(self.nodes), source=f"tensor {self.id}")

    def __lazygraph__(self) -> Graph:
        return self.graph


@dataclass(frozen=True, slots=True, repr=False)
class TensorsReport(Evidence):
    """The tensors of a report, in its order."""

    tensors: tuple[ListedTensor, ...]

    def doc(self) -> Doc:
        """Return a table of the tensors; each one's IR is folded."""
        folds = [
            Fold(f"tensor {tensor.id}: {tensor.op}", [Code(ir_text(tensor.nodes))])
            for tensor in self.tensors
            if len(tensor.nodes) > 1
        ]
        more = [
            Note(f"{line}; `report.tensors` has all", page_only=True)
            for line in text.more(len(folds) - _MAX_SHOWN, "tensor")
        ]
        total = text.size(sum(tensor.nbytes for tensor in self.tensors))
        summary = Note(f"{text.plural(len(self.tensors), 'tensor')}, {total}")
        parts = [self._table(), summary, *folds[:_MAX_SHOWN], *more]
        return Doc(parts, css_class="lazyviz-tensors")

    def _table(self) -> Table:
        rows: list[list[object]] = [
            [
                tensor.id,
                _LAYOUT.sub("", tensor.type),
                text.size(tensor.nbytes),
                tensor.device,
                tensor.ir_nodes,
                tensor.op,
                tensor.site,
            ]
            for tensor in self.tensors
        ]
        return Table(_TENSOR_HEADER, rows).filled()


def parse_tensors_report(source: str) -> TensorsReport:
    """Read a report of live tensors."""
    lines = source.splitlines()
    starts = [n for n, line in enumerate(lines) if line.startswith("Tensor: id=")]
    if not starts:
        raise EvidenceError(
            f"there is no tensor in the text that starts with {shorten(source)}. A report "
            "of live tensors has lines such as 'Tensor: id=1, shape=f32[2]{0}, "
            "device=CPU:0, ir_nodes=4'."
        )
    parts = pairwise([*starts, len(lines)])
    return TensorsReport(tuple(_tensor(lines[a:b], a + 1) for a, b in parts))


def _tensor(lines: list[str], number: int) -> ListedTensor:
    found = _TENSOR.fullmatch(lines[0])
    if found is None:
        raise EvidenceError(
            f"{shorten(lines[0])} does not say which tensor it is. Expected a line such as "
            "'Tensor: id=1, shape=f32[2]{0}, device=CPU:0, ir_nodes=4'.",
            number,
        )
    begin = next((k for k, line in enumerate(lines) if line.strip() == "IR {"), None)
    end = next((k for k, line in enumerate(lines) if line.strip() == "}"), None)
    if begin is None or end is None:
        raise EvidenceError(
            f"tensor {found['id']} breaks off: its IR is missing or has no end. Give the "
            "report whole.",
            number,
        )
    return ListedTensor(
        id=int(found["id"]),
        type=found["type"],
        device=found["device"],
        ir_nodes=int(found["nodes"]),
        frames=tuple(filter(None, map(parse_frame, lines[1:begin]))),
        nodes=_nodes(parse_ir, "\n".join(lines[begin : end + 1]), number + begin),
    )
