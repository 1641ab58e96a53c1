"""Graphs that torch_xla wrote to XLA_SAVE_TENSORS_FILE: as text, DOT, HLO or StableHLO."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from lazyviz.foreign.evidence import Evidence, EvidenceError, user_frame
from lazyviz.foreign.ir_text import ir_text, parse_dot, parse_ir

if TYPE_CHECKING:
    from lazyviz.foreign.evidence import Frame
    from lazyviz.foreign.ir_text import IrNode
    from lazyviz.hlo import Graph, GraphDiff

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
        """The graph in normal form, for `lazyviz.hlo`.

        Raises:
            HloError: The text does not follow its format.
        """
        from lazyviz.hlo import parse

        text = ir_text(self.nodes) if self.format == "dot" else self.body
        return parse(text, source=f"the graph at line {self.line}")

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
        from lazyviz import hlo

        for position in (first, second):
            if not 0 < position <= len(self.graphs):
                raise EvidenceError(
                    f"there is no graph {position}: the dump has {len(self.graphs)}, counted "
                    "from 1. `print(dump)` lists them."
                )
        return hlo.diff(self.graphs[first - 1].graph, self.graphs[second - 1].graph)

    def text(self) -> str:
        """Return a table of the graphs, and what makes those of the same line differ."""
        from lazyviz.foreign.tensors_dump_view import dump_text

        return dump_text(self)

    def to_html(self) -> str:
        """Return the table, and each graph folded."""
        from lazyviz.foreign.tensors_dump_view import dump_html

        return dump_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        from lazyviz.foreign.tensors_dump_view import dump_dict

        return dump_dict(self)

    def ops(self) -> Counter[str]:
        """Return how often each op stands in the graphs that differ."""
        firsts = [self.graphs[positions[0] - 1] for positions in self.distinct.values()]
        return Counter(node.op for graph in firsts for node in graph.nodes)
