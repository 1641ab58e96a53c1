"""The snapshot of a graph: what explanations, dumps and other processes keep of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazygraph.snapshot import OPERAND, Name, Origin, Snapshot, Vertex
from lazyrt.ir.node import Leaf, Node, Value, iter_values, type_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lazyrt.ir.fingerprint import Canonical


def snapshot_of(
    graph: Canonical,
    names: Mapping[Value, Name] | None = None,
    origins: Mapping[Value, Origin] | None = None,
    modules: frozenset[str] = frozenset(),
) -> Snapshot:
    """Return the snapshot of a graph.

    Args:
        graph: The graph.
        names: What the user calls its leaves and roots. A buffer that the step overwrites is
            both, as a parameter is.
        origins: Where the data of its leaves came from.
        modules: Names of all parameters and buffers of modules.
    """
    names, origins = names or {}, origins or {}
    leaves = (*graph.data, *graph.floats, *graph.ints, *graph.rng)
    numbers: dict[Any, int] = {leaf: number for number, leaf in enumerate(leaves)}
    vertices = [_leaf(leaf) for leaf in leaves]
    for node in graph.nodes:
        numbers[node] = len(vertices)
        vertices.append(_node(node, numbers))
    roots = tuple(_reference(root, numbers) for root in graph.roots)
    return Snapshot(
        graph.fingerprint,
        tuple(vertices),
        roots,
        {numbers[leaf]: names[leaf] for leaf in graph.data if leaf in names},
        {k: names[root] for k, root in enumerate(graph.roots) if root in names},
        {numbers[leaf]: origins[leaf] for leaf in graph.data if leaf in origins},
        frozenset(node.op.name for node in graph.nodes if node.op.is_random),
        modules,
    )


def _reference(value: Value, numbers: Mapping[Any, int]) -> tuple[int, int]:
    if value.node is None:
        return (numbers[value], 0)
    return (numbers[value.node], value.index)


def _leaf(leaf: Leaf) -> Vertex:
    return Vertex(leaf.kind, (), (type_text(leaf.shape, leaf.dtype),), ())


def _node(node: Node, numbers: Mapping[Any, int]) -> Vertex:
    origin = node.provenance
    return Vertex(
        node.op.name,
        tuple(map(_text, node.args)),
        tuple(
            "none" if value is None else type_text(value.shape, value.dtype)
            for value in node.outputs
        ),
        tuple(_reference(value, numbers) for value in iter_values(node.args)),
        origin.site,
        origin.module,
        origin.backward is not None,
        next((site.cell for site in origin.stack if site.cell is not None), None),
    )


def _text(arg: Any) -> str:
    if isinstance(arg, Value):
        return OPERAND
    if arg.__class__ is tuple:
        if len(arg) == 2 and arg[0] in {float, bool, complex}:  # noqa: PLR2004
            return str(arg[1]).strip("'")
        return f"[{', '.join(map(_text, arg))}]"
    return str(arg)
