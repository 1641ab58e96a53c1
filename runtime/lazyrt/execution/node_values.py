"""The value of every node of a pending graph, run op by op or as one optimised executable.

Both are peeks: nothing becomes a root of the user's step, which stays as it is. The optimised
values come from the graph with every node as a root. That may change what XLA fuses, so the
graph as it is runs too, and its roots are compared: `drift` names those that differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from lazyrt import jax_compat
from lazyrt.errors import UsageError
from lazyrt.execution import compiler, transfer
from lazyrt.execution.executor import pack_arguments, plan_of
from lazyrt.execution.op_by_op import last_uses, run_node
from lazyrt.ir.fingerprint import canonicalise
from lazyrt.ir.live import lock, pending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazyrt.execution.op_by_op import Values
    from lazyrt.ir.graph import Graph
    from lazyrt.ir.node import Value

Way = Literal["eager", "lazy"]


@dataclass(frozen=True, slots=True, eq=False)
class NodeValues:
    """What the nodes of one graph computed.

    Attributes:
        mode: `eager` (each op alone) or `lazy` (XLA's optimised executable).
        graph: The graph; a node's results are the keys of `values`.
        values: Each result as a CPU tensor.
        peak_bytes: Device memory at the worst moment: for `eager` inputs and live results,
            each freed after its last use; for `lazy` what XLA plans for arguments, results
            and temporaries of the graph as it is.
        hlo: The optimised HLO of the graph as it is; empty for `eager`.
        drift: Roots that came out otherwise because every node was kept.
    """

    mode: Way
    graph: Graph
    values: dict[Value, torch.Tensor] = field(repr=False)
    peak_bytes: int
    hlo: str = field(default="", repr=False)
    drift: tuple[Value, ...] = ()


def node_values(graph: Graph, mode: Way) -> NodeValues:
    """Run a pending graph and return the values of all its nodes.

    Args:
        graph: A graph of the step that is pending now.
        mode: Whether each op runs alone, or the graph as one optimised executable.

    Raises:
        UsageError: There is no such mode, or nothing is pending.
    """
    if mode not in {"eager", "lazy"}:
        raise UsageError(
            f"node_values(mode={mode!r}): a graph runs 'eager', each op alone, or 'lazy', as "
            "one optimised executable. Pass one of these."
        )
    if not graph.nodes:
        raise UsageError(
            "node_values() got tensors that are all computed, so there is no graph whose nodes "
            "could be run. Call it before the barrier that runs them."
        )
    with lock:
        return _eager(graph) if mode == "eager" else _lazy(graph)


def _input_bytes(graph: Graph) -> int:
    positions = {leaf.position for leaf in graph.parameters if leaf.kind == "data"}
    return sum(pending.inputs[position].nbytes for position in positions)


def _eager(graph: Graph) -> NodeValues:
    roots = set(graph.roots)
    uses = last_uses(list(graph.nodes), roots)
    found: Values = {}
    host: dict[Value, torch.Tensor] = {}
    live = peak = _input_bytes(graph)
    with jax_compat.scope():
        for number, node in enumerate(graph.nodes):
            results = run_node(node, found)
            live += sum(result.nbytes for result in results)
            peak = max(peak, live)
            for output in node.outputs:
                if output is not None:
                    host[output] = transfer.to_host(found[output], output.dtype)
            for value in uses.get(number, ()):
                live -= found.pop(value).nbytes
    return NodeValues("eager", graph, host, peak)


def _lazy(graph: Graph) -> NodeValues:
    everything = [
        output for node in graph.nodes for output in node.outputs if output is not None
    ]
    kept, _ = _run(everything)
    roots = [root for root in graph.roots if root.node is not None]
    plain, executable = _run(roots)
    values = dict(zip(everything, kept, strict=True))
    drift = [
        root
        for root, data in zip(roots, plain, strict=True)
        if not torch.equal(_bits(data), _bits(values[root]))
    ]
    return NodeValues(
        "lazy",
        graph,
        values,
        _planned_bytes(executable),
        str(executable.as_text()),
        tuple(drift),
    )


def _run(roots: Sequence[Value]) -> tuple[list[torch.Tensor], Any]:
    """Run the graph under some roots with XLA's full optimisation."""
    graph = canonicalise(roots)
    executable = compiler.compile_graph(graph, (), fast=False, purpose="peek")
    plan = plan_of(graph, executable, roots)
    with jax_compat.scope():
        *results, _ = jax_compat.dispatcher(executable)(*pack_arguments(plan))
    host = [
        transfer.to_host(results[rank], root.dtype)
        for rank, root in zip(plan.order, roots, strict=True)
    ]
    return host, executable


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes, so that NaN equals itself."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _planned_bytes(executable: Any) -> int:
    plan = executable.memory_analysis()
    return int(
        plan.argument_size_in_bytes
        + plan.output_size_in_bytes
        + plan.temp_size_in_bytes
        - plan.alias_size_in_bytes
    )
