"""Where NaN and infinities begin in a pending graph: the ops that make them of finite operands.

The graph runs op by op, as a peek does, so nothing of the user's step changes. What an op alone
computes may differ from what XLA's optimised executable gives; see `execution.node_values`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lazyrt import jax_compat
from lazyrt.execution import summaries
from lazyrt.execution.op_by_op import read, run_cone
from lazyrt.ir.live import pending
from lazyrt.ir.node import Leaf, iter_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lazyrt.execution.graph import Graph
    from lazyrt.execution.op_by_op import Values
    from lazyrt.execution.summaries import Summary
    from lazyrt.ir.node import Node, Value

_MAX_ORIGINS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """What an op got where its result stopped being finite.

    Attributes:
        value: The operand.
        summary: Its statistics.
        element: The number that the first such element was made of; None where the op is not
            one of elements, or the number is complex.
    """

    value: Value
    summary: Summary
    element: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """An op where NaN begins, or where infinities do.

    Attributes:
        node: The op.
        value: Which of its results.
        nan, infinite: How many elements of it are NaN, and how many infinite.
        first: Index of the first NaN, or else of the first infinity.
        operands: Its operands that are tensors of floating-point numbers.
    """

    node: Node
    value: Value
    nan: int
    infinite: int
    first: tuple[int, ...]
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFinite:
    """What a search for NaN and infinities found.

    Attributes:
        checked: How many values were computed and checked.
        reached: Results of the graph that are not finite, each with its NaN and infinities.
        inputs: Inputs of the graph that are not finite and lead to such a result, likewise.
        origins: Ops that lead to such a result, in the order of the program, the first twenty:
            those whose result has NaN and whose operands have none, and those whose result has
            infinities and whose operands are finite.
        more: How many more such ops there are.
    """

    checked: int
    reached: dict[Value, tuple[int, int]]
    inputs: dict[Leaf, tuple[int, int]]
    origins: tuple[Origin, ...]
    more: int


def search(graph: Graph) -> NotFinite:
    """Run a pending graph op by op and find where NaN and infinities begin.

    Values are let go after their last use. The caller holds the lock.
    """
    bad = _bad_inputs(graph.parameters)
    begun: list[Origin] = []
    checked = 0
    values: Values = {}
    for node, results in run_cone(graph.roots, values=values):
        operands = list(dict.fromkeys(iter_values(node.args)))
        before = [bad[operand] for operand in operands if operand in bad]
        for value, data in results:
            checked += 1
            nan, infinite = summaries.not_finite(data, value.dtype)
            if not nan and not infinite:
                continue
            bad[value] = nan, infinite
            if not before or (nan and not any(nans for nans, _ in before)):
                begun.append(_origin(node, value, data, bad[value], operands, values))
    reached = {root: bad[root] for root in graph.roots if root in bad}
    leading = _leading(reached, bad)
    origins = [origin for origin in begun if origin.value in leading]
    return NotFinite(
        checked=checked,
        reached=reached,
        inputs={
            leaf: counts
            for leaf, counts in bad.items()
            if isinstance(leaf, Leaf) and leaf in leading
        },
        origins=tuple(origins[:_MAX_ORIGINS]),
        more=len(origins[_MAX_ORIGINS:]),
    )


def _leading(
    reached: Iterable[Value], bad: Mapping[Value, tuple[int, int]]
) -> set[Value]:
    """Return the values from which a chain of such that are not finite leads to a result."""
    leading: set[Value] = set()
    stack = list(reached)
    while stack:
        value = stack.pop()
        if value in leading:
            continue
        leading.add(value)
        if value.node is not None:
            stack += [operand for operand in value.node.operands if operand in bad]
    return leading


def _bad_inputs(leaves: Iterable[Leaf]) -> dict[Value, tuple[int, int]]:
    found: dict[Value, tuple[int, int]] = {}
    for leaf in leaves:
        if leaf.kind == "data":
            data = pending.inputs[leaf.position]
            counts = summaries.not_finite(data, leaf.dtype)
            if any(counts):
                found[leaf] = counts
    return found


def _origin(
    node: Node,
    value: Value,
    data: Any,
    counts: tuple[int, int],
    operands: list[Value],
    values: Values,
) -> Origin:
    with jax_compat.scope():
        xp, array = summaries.place(data)
        flat = array.reshape(-1)
        position = int(xp.argmax(xp.isnan(flat) if counts[0] else xp.isinf(flat)))
    first = tuple(int(k) for k in np.unravel_index(position, value.shape))
    is_pointwise = torch.Tag.pointwise in getattr(node.op.func, "tags", ())
    return Origin(
        node=node,
        value=value,
        nan=counts[0],
        infinite=counts[1],
        first=first,
        operands=tuple(
            _operand(operand, read(operand, values), first if is_pointwise else None)
            for operand in operands
            if operand.dtype.is_floating_point or operand.dtype.is_complex
            if not isinstance(operand, Leaf) or operand.kind == "data"
        ),
    )


def _operand(value: Value, data: Any, at: tuple[int, ...] | None) -> Operand:
    element = None
    if at is not None and not value.dtype.is_complex and len(value.shape) <= len(at):
        tail = at[len(at) - len(value.shape) :]
        index = tuple(
            0 if size == 1 else k for size, k in zip(value.shape, tail, strict=True)
        )
        with jax_compat.scope():
            _, array = summaries.place(data)
            element = float(array[index])
    return Operand(
        value=value, summary=summaries.summarise(data, value.dtype), element=element
    )
