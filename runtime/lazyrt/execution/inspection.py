"""Looking into a pending graph, node by node, while it stays as it is.

An `Inspection` holds the graph, which is IR alone, and weak references to the buffers that hold
its values: it keeps no tensor and no device data alive. While the step is pending a node's value
is a peek. Once the step has run, inputs are other data and a node of that step can no longer be
computed; what some tensor still holds is read from there.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazyrt.errors import LostValueError, UsageError
from lazyrt.execution import transfer
from lazyrt.execution.op_by_op import cone_of
from lazyrt.execution.peek import estimate_ns, peek_value
from lazyrt.ir.live import Buffer, Lost, lock, pending

if TYPE_CHECKING:
    import torch

    from lazyrt.ir.graph import Graph
    from lazyrt.ir.node import Leaf, Node, Value
    from lazyrt.observe.events import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What it takes to know one value.

    Attributes:
        nodes: Ops to run; 0 when the value is known.
        reused: Values computed by earlier peeks that save the rest of the cone.
        estimate_ns: Expected nanoseconds, compiling included; see `execution.peek`.
    """

    nodes: int
    reused: int
    estimate_ns: int


class Inspection:
    """A pending graph that can be looked into.

    Attributes:
        graph: The graph, as it was when the inspection was made.
        step: Number of the step that it belongs to.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        with lock:
            self.step = pending.number
            self._holders = _holders(graph)
        self._nodes = {node.id: node for node in graph.nodes}

    @property
    def is_current(self) -> bool:
        """Whether the step is still pending, so that each node can be computed."""
        return pending.number == self.step

    def node(self, node_id: int) -> Node:
        """Return a node of the graph.

        Raises:
            UsageError: The graph has no node of that number.
        """
        found = self._nodes.get(node_id)
        if found is None:
            raise UsageError(
                f"the graph has no node %{node_id!r}; its {len(self._nodes)} nodes are numbered as "
                "`graph.to_text()` lists them. Take a number from there."
            )
        return found

    def value(self, node_id: int, output: int = 0) -> Value:
        """Return one result of a node as IR.

        Raises:
            UsageError: There is no such node, or it has no such result.
        """
        node = self.node(node_id)
        found = node.outputs[output] if output in range(len(node.outputs)) else None
        if found is None:
            raise UsageError(
                f"node %{node_id} ({node.op.name}) has no result {output!r}: it has "
                f"{len(node.outputs)}, counted from 0, and those that nobody asked for are left "
                "out. Ask for another one."
            )
        return found

    def cost(self, node_id: int, output: int = 0) -> Cost:
        """Return what `materialise` would take now; computes nothing."""
        value = self.value(node_id, output)
        with lock:
            if not self.is_current or value in pending.memo:
                return Cost(nodes=0, reused=0, estimate_ns=0)
            cone, known = cone_of((value,), pending.memo)
            return Cost(
                nodes=len(cone), reused=len(known), estimate_ns=estimate_ns(cone)
            )

    def materialise(
        self, node_id: int, output: int = 0, site: Site | None = None
    ) -> torch.Tensor:
        """Return a node's result as a new CPU tensor of its shape and dtype.

        Only its cone runs, as a peek; a step that has run is not run again.

        Raises:
            UsageError: There is no such node or result.
            LostValueError: The step has run, and no tensor holds this value any more.
        """
        value = self.value(node_id, output)
        with lock:
            data = (
                peek_value(value, site)
                if self.is_current
                else self._held(value, node_id)
            )
        return transfer.to_host(data, value.dtype, site)

    def parameter(self, leaf: Leaf, site: Site | None = None) -> torch.Tensor:
        """Return an input of the graph as a new CPU tensor.

        Raises:
            LostValueError: The step has run, and its inputs are gone.
            UsageError: The leaf is a lifted number, not data.
        """
        if leaf.kind != "data":
            raise UsageError(
                f"{leaf!r} is a number that the program passed, not a tensor. Its line shows it."
            )
        with lock:
            if not self.is_current:
                raise LostValueError(_ran(self.step, f"input {leaf.position}"))
            data = peek_value(leaf, site)
        return transfer.to_host(data, leaf.dtype, site)

    def _held(self, value: Value, node_id: int) -> Any:
        """Return the data of a value that this step computed, if a tensor still holds it."""
        for reference, version in self._holders.get(value, ()):
            buffer = reference()
            if buffer is None or buffer.is_pending or buffer.version != version + 1:
                continue
            if buffer.data is not None and buffer.data.__class__ is not Lost:
                return buffer.data
        raise LostValueError(_ran(self.step, f"%{node_id}"))


def _ran(step: int, what: str) -> str:
    return (
        f"the value of {what} is gone: step {step}, which computed it, has run, and no tensor "
        "holds it any more. Run the cell again and look before its barrier, or keep the tensor "
        "in a variable."
    )


def _holders(graph: Graph) -> dict[Value, list[tuple[weakref.ref[Buffer], int]]]:
    """Return, for each value of the graph, the live buffers whose next contents it is."""
    wanted = {v for node in graph.nodes for v in node.outputs if v is not None}
    found: dict[Value, list[tuple[weakref.ref[Buffer], int]]] = {}
    for buffer in pending.live():
        value = buffer.value
        if value is not None and value in wanted:
            found.setdefault(value, []).append((weakref.ref(buffer), buffer.version))
    return found
