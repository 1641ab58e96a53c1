"""The smallest part of a program that still shows something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazygraph.errors import HloError
from lazygraph.graph import PARAMETER, Graph, GraphBuilder
from lazygraph.read.open import graph_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def minimise(program: Any, shows: Callable[[Graph], bool]) -> Graph:
    """Return a smallest cut of a program that a predicate still holds for.

    What is cut off above becomes an input of its type; what nothing in the cut reads becomes
    an output. No single node of the answer can be left out. Nodes are left out in halves
    first, then in ever smaller pieces: the predicate is asked some k log n times for k
    nodes that matter of n, and at worst n² times.

    Args:
        program: Anything that `graph_of` takes.
        shows: Whether a graph still shows what is looked for, such as
            `lambda part: diff(part, other).cost > 0`.

    Raises:
        HloError: `program` holds no graph, or does not show it itself.
    """
    if not callable(shows):
        raise HloError(
            f"minimise() got {shows!r:.60} as what to look for, which is {type(shows).__name__} and "
            "cannot be called. Give a function that takes a graph and returns whether it shows it."
        )
    graph = graph_of(program)
    kept = [node for node in range(len(graph)) if graph.ops[node] != PARAMETER]
    if not shows(cut(graph, kept)):
        raise HloError(
            f"{graph.name} with its {len(kept)} nodes does not show what is looked for: the "
            "predicate is false for all of it, so no part can be searched. Check the predicate."
        )
    pieces = 2
    while len(kept) > 1:
        size = -(-len(kept) // pieces)
        for start in range(0, len(kept), size):
            rest = kept[:start] + kept[start + size :]
            if rest and shows(cut(graph, rest)):
                kept, pieces = rest, max(pieces - 1, 2)
                break
        else:
            if size == 1:
                break
            pieces = min(2 * pieces, len(kept))
    return cut(graph, kept)


def cut(graph: Graph, kept: Iterable[int]) -> Graph:
    """Return the part of a graph that computes some nodes, inputs for what they read else."""
    wanted = set(kept)
    builder = GraphBuilder(graph.name, read_origin=graph.origin)
    ids: dict[int, int] = {}

    def add(node: int) -> int:
        label = graph.label(node)
        inside = node in wanted
        kind = builder.label(*label) if inside else builder.label(PARAMETER, label.type)
        operands = [ids[k] for k in graph.operands[node]] if inside else []
        return builder.add(kind, operands, name=graph.names[node], origin=node)

    for node in sorted(wanted):
        for operand in graph.operands[node]:
            if operand not in ids:
                ids[operand] = add(operand)
        ids[node] = add(node)
    read = {operand for node in wanted for operand in graph.operands[node]}
    outputs = set(graph.outputs)
    return builder.finish(
        [ids[k] for k in sorted(wanted) if k not in read or k in outputs]
    )
