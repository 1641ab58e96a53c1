"""Graphs with an op that cannot be compiled: the op runs on the CPU, and the rest goes on.

Recording checks an op's rule abstractly. A mistake that shows later, in MLIR's verifier or in XLA,
would fail every barrier for as long as anything holds the op. So the pending graph is repaired:
the op runs alone, by torch on the CPU (`host_kernel`), and whatever reads it reads the result
as an input of the step. An op that the CPU refuses, too, is dropped with all that depends on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazyrt.errors import LoweringError
from lazyrt.execution import compiler
from lazyrt.execution.graph import Graph
from lazyrt.execution.host_kernel import HostKernel
from lazyrt.execution.interrupts import deferred_interrupt
from lazyrt.execution.op_by_op import run_cone
from lazyrt.ir import merging
from lazyrt.ir.live import Buffer, FromCpu, leaf_of, let_go, pending
from lazyrt.ir.node import iter_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazyrt.ir.node import Node, Value
    from lazyrt.lowering.spec import Spec


def repair(roots: Sequence[Value]) -> bool:
    """Take the ops that cannot be compiled out of the pending graph; return whether there were any.

    Args:
        roots: The pending values of all live buffers.

    Raises:
        LoweringError: The CPU refuses an op, too. It was dropped; the rest is pending.
    """
    repaired = False
    while (node := _first_unlowerable(roots)) is not None:
        new = _replace(node, roots)
        roots = [new.get(root, root) for root in roots]
        repaired = True
    return repaired


def _first_unlowerable(roots: Sequence[Value]) -> Node | None:
    nodes = Graph(roots).nodes
    for fails in (_fails_to_lower, _fails_to_compile):
        for node in nodes:
            if fails(node.spec):
                return node
    return None


def _fails_to_lower(spec: Spec) -> bool:
    try:
        return not spec.text
    except LoweringError:
        return True


def _fails_to_compile(spec: Spec) -> bool:
    return isinstance(compiler.compile_spec(spec), HostKernel)


def _replace(node: Node, roots: Sequence[Value]) -> dict[Value, Value]:
    """Compute a node alone; return what stands for each value that changes by it."""
    kernel = compiler.compile_spec(node.spec)
    node.spec.refuse(kernel.reason)
    node.op.cache.clear()  # equal ops fall back when they are recorded from now on
    merging.note_emptied()
    outputs = [output for output in node.outputs if output is not None]
    values: dict[Value, Any] = {}
    try:
        for _ in run_cone(outputs, values=values):
            pass
    except LoweringError as error:
        dropped = drop(node, roots, f"{node.op.name} could not be computed")
        error.add_note(
            f"It was dropped with the {dropped:,} tensors that depend on it; everything else is "
            "pending as it was."
        )
        raise
    with deferred_interrupt():
        leaves: dict[Value, Value] = {}
        for output in outputs:
            owner = Buffer(None)
            owner.store(values[output], (output.shape, output.dtype, output.strides))
            owner.run = FromCpu(node.op.name, node.provenance.site)
            leaves[output] = leaf_of(owner)
        new = merging.rebuilt(Graph(roots).nodes, leaves)
        for buffer in pending.live():
            if buffer.value in new:
                buffer.value = new[buffer.value]
                buffer.version += 1
    return new


def drop(node: Node, roots: Sequence[Value], reason: str) -> int:
    """Drop a node and what depends on it; return how many tensors lose their value by that."""
    reached = {node}
    for each in Graph(roots).nodes:
        if any(operand.node in reached for operand in iter_values(each.args)):
            reached.add(each)
    dropped = 0
    with deferred_interrupt():
        for buffer in pending.live():
            if buffer.value is not None and buffer.value.node in reached:
                let_go(buffer, reason)
                buffer.version += 1
                pending.buffers.pop(buffer, None)
                pending.parked.pop(buffer, None)
                dropped += 1
    return dropped
