"""Programs that stand in a text: HLO, StableHLO, torch_xla's IR, as graphs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from lazygraph.types import type_bytes
from lazyviz.doc import Code, Doc, Fold, Note, Table
from lazyviz.foreign.evidence import Evidence, EvidenceError, ranked
from lazyviz.render import text

if TYPE_CHECKING:
    from lazygraph import Graph

_HEADER = ["program", "name", "nodes", "inputs", "input size", "outputs", "dead"]
_MAX_OPS = 12
_MAX_NODES = 2_000
_MAX_PLACES = 8


@dataclass(frozen=True, slots=True, repr=False)
class Programs(Evidence):
    """The programs of a text, in its order.

    Attributes:
        graphs: Their graphs in normal form, for `lazygraph`.
    """

    graphs: tuple[Graph, ...]

    def doc(self) -> Doc:
        """Return a table of the programs, their most frequent ops and places; nodes are folded."""
        folds = (
            Fold(
                f"program {number} {graph.name}: {text.plural(len(graph), 'node')}",
                [Code(_listing(graph))],
            )
            for number, graph in enumerate(self.graphs, 1)
        )
        table, notes = Table(_HEADER, self._rows()), map(Note, self._notes())
        return Doc([table, *notes, *folds], css_class="lazyviz-programs", gap="\n\n")

    def to_dict(self) -> dict[str, Any]:
        """Return the nodes as plain data."""
        return {
            "programs": [
                {
                    "name": graph.name,
                    "nodes": [node._asdict() for node in graph],
                    "outputs": list(graph.outputs),
                    "dead": [dead._asdict() for dead in graph.dead],
                }
                for graph in self.graphs
            ]
        }

    def _rows(self) -> list[list[object]]:
        return [
            [
                number,
                graph.name,
                len(graph),
                len(graph.inputs),
                text.size(sum(type_bytes(graph.types[node]) for node in graph.inputs)),
                len(graph.outputs),
                len(graph.dead),
            ]
            for number, graph in enumerate(self.graphs, 1)
        ]

    def _notes(self) -> list[str]:
        ops = Counter(op for graph in self.graphs for op in graph.ops)
        places = Counter(
            graph.site(node) for graph in self.graphs for node in range(len(graph))
        )
        places.pop("", None)
        notes = ["ops: " + ranked(ops, _MAX_OPS)]
        return [*notes, "lines: " + ranked(places, _MAX_PLACES)] if places else notes


def parse_programs(source: str | bytes) -> Programs:
    """Read every program of a text, or of a serialised HLO proto.

    Raises:
        EvidenceError: It holds none, or one that does not follow its format.
    """
    import lazygraph as hlo

    try:
        if isinstance(source, bytes):
            return Programs((hlo.parse(source),))
        return Programs(tuple(hlo.parse_all(source)))
    except hlo.HloError as error:
        raise EvidenceError(str(error)) from None


def _listing(graph: Graph) -> str:
    lines = []
    for node in islice(graph, _MAX_NODES):
        operands = ", ".join(
            graph.names[operand] or f"#{operand}" for operand in node.operands
        )
        place = f"  # {node.site}" if node.site else ""
        name = node.name or f"#{node.id}"
        lines.append(f"{name} = {node.type} {node.op}({operands}){place}")
    return "\n".join([*lines, *text.more(len(graph) - _MAX_NODES, "node")])
