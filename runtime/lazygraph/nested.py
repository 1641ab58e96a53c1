"""What differs inside of what a changed pair calls: fusions, loops, functions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lazygraph.difference import diff
from lazygraph.graph import GraphBuilder
from lazygraph.mlir import MlirModule
from lazygraph.module import HloModule
from lazygraph.normal import called, graph_of_module

if TYPE_CHECKING:
    from lazygraph.difference import GraphDiff
    from lazygraph.graph import Graph


def callees(graph: Graph, node: int) -> list[tuple[str, str]]:
    """Return what a node calls: pairs of an attribute and a computation's name."""
    source = graph.source
    if isinstance(source, MlirModule):
        return source.callees(graph, node)
    if not isinstance(source, HloModule):
        return []
    computation = source.computations[graph.part]
    position = computation.index.get(graph.names[node].removeprefix("%"))
    return [] if position is None else called(computation.row(position), source)


def callee_graph(graph: Graph, name: str) -> Graph | None:
    """Return the graph of a computation that a graph's node calls."""
    source = graph.source
    if isinstance(source, MlirModule):
        return source.graph(name)
    if isinstance(source, HloModule):
        return graph_of_module(source, name)
    return None


def nested_diffs(found: GraphDiff, a: int, b: int) -> list[tuple[str, GraphDiff]]:
    """Return the differences within what a pair calls, with the names of the callees.

    Args:
        found: The diff that the pair is part of.
        a: A node of the first graph.
        b: Its partner.
    """
    theirs = _nth(callees(found.b, b))
    diffs = []
    for (key, nth), name in _nth(callees(found.a, a)).items():
        other = theirs.get((key, nth))
        if other is None:
            continue
        inner_a, inner_b = callee_graph(found.a, name), callee_graph(found.b, other)
        if inner_a is None or inner_b is None:
            continue
        inner = diff(inner_a, inner_b)
        if inner.is_empty:  # what differs is which input or result is which
            inner = diff(_numbered(inner_a), _numbered(inner_b))
        if not inner.is_empty:
            diffs.append((f"{key}: %{name} → %{other}", inner))
    return diffs


def _nth(called: list[tuple[str, str]]) -> dict[tuple[str, int], str]:
    """Return names by attribute and position in it: branches are several of one attribute."""
    counts: Counter[str] = Counter()
    found = {}
    for key, name in called:
        found[key, counts[key]] = name
        counts[key] += 1
    return found


def _numbered(graph: Graph) -> Graph:
    """Return a graph in which the places of inputs and results make a difference."""
    builder = GraphBuilder(graph.name)
    for node, operands in enumerate(graph.operands):
        label = graph.label(node)
        if node in graph.numbers:
            label = label._replace(literal=str(graph.numbers[node]))
        builder.add(
            builder.label(*label),
            operands,
            name=graph.names[node],
            origin=graph.origin(node),
            number=graph.numbers.get(node),
            group=graph.groups.get(node),
        )
    results = builder.add(builder.label("return", "()"), graph.outputs, name="%results")
    return builder.finish([results], source=graph.source, part=graph.part)
