"""How many nodes each of some values needs, without walking the graph once for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyrt.ir.node import iter_values, walk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazyrt.ir.node import Node, Value

# Nodes counted in one pass. Their sets are integers of so many bits: 512 bytes for each node.
_BLOCK = 4_096


def cone_sizes(values: Iterable[Value]) -> dict[Value, int]:
    """Return for each value the number of nodes that it needs; 0 for a leaf.

    Takes one pass over the graph for every 4,096 nodes of it.
    """
    wanted = dict.fromkeys(values)
    nodes, _ = walk(wanted)
    numbers = {node: number for number, node in enumerate(nodes)}
    operands = [
        tuple({numbers[v.node] for v in iter_values(node.args) if v.node is not None})
        for node in nodes
    ]
    sizes = dict.fromkeys(wanted, 0)
    for start in range(0, len(nodes), _BLOCK):
        needed = _needed(operands, start)
        for value in sizes:
            if value.node is not None:
                sizes[value] += needed[numbers[value.node]].bit_count()
    return sizes


def _needed(operands: list[tuple[int, ...]], start: int) -> list[int]:
    """Return for each node which of the block's nodes it needs, itself included, as bits."""
    needed: list[int] = []
    for number, reads in enumerate(operands):
        bits = 1 << (number - start) if start <= number < start + _BLOCK else 0
        for operand in reads:
            bits |= needed[operand]
        needed.append(bits)
    return needed


def nodes_under(values: Iterable[Value]) -> set[Node]:
    """Return the nodes that some values need, together."""
    return set(walk(values)[0])
