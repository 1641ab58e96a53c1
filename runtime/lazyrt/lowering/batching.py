"""Equal elementwise ops on all rows of a tensor, computed at once.

XLA compiles a kernel for each row in `torch.stack([f(row) for row in x])`. For an elementwise `f`
the stack is `f(x)`, so XLA gets that. The graph, its fingerprint and its names stay as recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lazyrt.errors import LoweringError
from lazyrt.ir.node import Node, Op, Value, map_values
from lazyrt.lowering.registry import times_given
from lazyrt.lowering.spec import SpecFailure, spec_of

if TYPE_CHECKING:
    from lazyrt.ir.fingerprint import Canonical

_SELECT = Op(torch.ops.aten.select.int)
_PERMUTE = Op(torch.ops.aten.permute.default)
_STACK = "aten.stack.default"


@dataclass(slots=True, eq=False)
class _Kind:
    """What one op computes of each row.

    Attributes:
        first: Its first node.
        count: How many rows there are.
        whole: Its values of all rows, along a dimension in front; None until it is needed.
    """

    first: Node
    count: int
    whole: Value | None = None


_Rows = dict[Value | None, tuple[_Kind, int]]


def batched(graph: Canonical) -> list[tuple[int, Node]]:
    """Return the nodes that XLA gets for a graph, each with the number of one that it stands for.

    Results of the graph keep their values.
    """
    plain = list(enumerate(graph.nodes))
    if not any(node.op.name == _STACK for node in graph.nodes):
        return plain
    rows = _rows_of(graph)
    stacks = {node: kind for node in graph.nodes if (kind := _stacked(node, rows))}
    needed, waiting = set(stacks.values()), list(stacks.values())
    while waiting:
        operands = waiting.pop().first.operands
        more = {rows[value][0] for value in operands if value in rows} - needed
        needed |= more
        waiting += more
    made: list[tuple[int, Node]] = []
    try:
        for number, node in plain if needed else ():
            kind, index = rows.get(node.outputs[0], (None, 0))
            if kind in needed and kind.first is node:
                made += [(number, new) for new in _all_rows(kind, rows)]
            if kind in needed and node.op.name != _SELECT.name:
                node = _instead(node, _SELECT, (kind.whole, 0, index))  # noqa: PLW2901
            elif node in stacks:
                rank = len(_type(node)[0])
                order = list(range(1, rank))
                order.insert(node.args[1] % rank, 0)
                args = (stacks[node].whole, tuple(order))
                node = _instead(node, _PERMUTE, args)  # noqa: PLW2901
            made.append((number, node))
    except (SpecFailure, LoweringError):  # one row at a time has a lowering
        return plain
    read, kept = set(graph.roots), []
    for number, node in reversed(made):
        if not read.isdisjoint(node.outputs):
            read.update(node.operands)
            kept.append((number, node))
    return kept[::-1] if needed else plain


def _rows_of(graph: Canonical) -> _Rows:
    """Return the values of a graph that are computed of one row: their kind, and which row."""
    rows: _Rows = {}
    kinds: dict[Any, _Kind] = {}
    for node in graph.nodes:
        if node.op.name == _SELECT.name:
            source, dim, index = node.args
            dim, count = dim % len(source.shape), source.shape[dim]
            key: Any = (source, dim)
        else:
            found = {rows[value] for value in node.operands if value in rows}
            places = {(kind.count, place) for kind, place in found}
            if len(places) != 1 or not _is_elementwise(node, rows):
                continue
            ((count, index),) = places
            args = map_values(node.args, lambda v: rows[v][0] if v in rows else v)
            key = (node.op, args, _type(node))
        kind = kinds.setdefault(key, _Kind(node, count))
        rows[node.outputs[0]] = (kind, index % count)
    return rows


def _type(node: Node) -> tuple[tuple[int, ...], torch.dtype]:
    return node.outputs[0].shape, node.outputs[0].dtype  # type: ignore[union-attr]


def _is_elementwise(node: Node, rows: _Rows) -> bool:
    """Return whether an op computes of more rows what it computes of each."""
    is_pointwise = torch.Tag.pointwise in node.op.func.tags and len(node.outputs) == 1
    if not is_pointwise or node.op.is_random or times_given(node.op.name):
        return False
    rank = len(_type(node)[0])
    # Tensors without dimensions give way to others when a result's dtype is found.
    alike = rank > 0 or len({value.dtype for value in node.operands}) == 1
    return alike and all(len(v.shape) == rank for v in node.operands if v in rows)


def _stacked(node: Node, rows: _Rows) -> _Kind | None:
    """Return the kind whose values a node stacks: of all rows, in order, and computed."""
    found = [rows.get(value) for value in node.operands]
    if node.op.name != _STACK or found[0] is None:
        return None
    kind = found[0][0]
    is_whole = found == [(kind, index) for index in range(kind.count)]
    return kind if is_whole and kind.first.op.name != _SELECT.name else None


def _all_rows(kind: _Kind, rows: _Rows) -> list[Node]:
    """Set a kind's `whole`, and return the nodes that compute it."""
    node, args = kind.first, kind.first.args
    if node.op.name != _SELECT.name:
        made = _instead(
            node,
            node.op,
            map_values(args, lambda v: rows[v][0].whole if v in rows else v),
            kind.count,
        )
    else:
        kind.whole, dim, rank = args[0], args[1], len(args[0].shape)
        order = sorted(range(rank), key=lambda each: each != dim % rank)
        if not order[0]:
            return []
        made = _instead(node, _PERMUTE, (args[0], tuple(order)), kind.count)
    kind.whole = made.outputs[0]
    return [made]


def _instead(
    node: Node, op: Op, args: tuple[Any, ...], count: int | None = None
) -> Node:
    """Return a node that computes what another one does, or does for `count` rows."""
    made = Node(node.id, op, args, node.provenance)
    made.outputs = node.outputs
    if count is not None:
        shape, dtype = _type(node)
        made.outputs = (Value(made, 0, (count, *shape), dtype, None),)
    made.spec = spec_of(made)
    if made.spec.default_dtype is not node.spec.default_dtype:
        raise SpecFailure("torch's default dtype has changed since it was recorded")
    made.spec.check()
    made.spec.called.text  # noqa: B018 - refused by MLIR here, or never
    return made
