"""Whether two programs are one that only shares its values otherwise."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lazygraph.graph import Graph, Label


def is_same_up_to_sharing(a: Graph, b: Graph) -> bool:
    """Return whether both give the same outputs for the same inputs, in their order.

    What one of them computes twice and the other once makes no difference; what the text
    of neither tells, such as the value of a constant in torch_xla's IR, does not either.
    """
    known: dict[tuple[Label, object], int] = {}
    return _outputs(a, known) == _outputs(b, known)


def _outputs(graph: Graph, known: dict[tuple[Label, object], int]) -> list[int]:
    """Return for each output a number that stands for the whole expression."""
    place = count()
    inputs = {node: graph.numbers.get(node, next(place)) for node in graph.inputs}
    numbers: list[int] = []
    for node, operands in enumerate(graph.operands):
        reads: object = inputs.get(node)
        if reads is None:
            reads = tuple(numbers[operand] for operand in operands)
        numbers.append(known.setdefault((graph.label(node), reads), len(known)))
    return [numbers[node] for node in graph.outputs]
