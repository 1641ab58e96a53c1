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
from lazyrt.ir.fingerprint import Canonical, canonicalise
from lazyrt.ir.live import lock, pending
from lazyrt.ir.node import Leaf, Node, iter_values, type_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazyrt.execution.graph import Graph
    from lazyrt.execution.op_by_op import Values
    from lazyrt.ir.node import Value

Way = Literal["eager", "lazy"]


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long one tensor's memory is taken, in positions of a schedule.

    Attributes:
        name: What it is: `%12 aten.exp.default`, `%p0`, or an instruction's name.
        type: Such as `f32[2,3]`.
        born: Position of the op that makes it; 0 for inputs.
        dies: Position of the op after which nothing reads it; that of the last op for results.
    """

    name: str
    type: str
    nbytes: int
    born: int
    dies: int


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
        kept_hlo: That of the graph with every node kept, which computed `values`; labels end in
            the node's position in `kept_nodes`.
        kept_nodes: The nodes in that graph's order.
        alone: What each op gives by itself on the operands that this run computed, so that
            what differs from `values` arose in this very op; empty for `eager`.
        lifetimes: When each tensor's memory is taken; empty for `lazy`, whose schedule is
            that of `hlo`.
        drift: Roots that came out otherwise because every node was kept.
    """

    mode: Way
    graph: Graph
    values: dict[Value, torch.Tensor] = field(repr=False)
    peak_bytes: int
    hlo: str = field(default="", repr=False)
    drift: tuple[Value, ...] = ()
    kept_hlo: str = field(default="", repr=False)
    kept_nodes: tuple[Node, ...] = field(default=(), repr=False)
    alone: dict[Value, torch.Tensor] = field(default_factory=dict, repr=False)
    lifetimes: tuple[Lifetime, ...] = field(default=(), repr=False)


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


def _inputs(graph: Graph) -> list[tuple[Leaf, int]]:
    """Return the inputs that are device data, each with its size in bytes."""
    leaves = {leaf.position: leaf for leaf in graph.parameters if leaf.kind == "data"}
    return [(leaf, pending.inputs[k].nbytes) for k, leaf in leaves.items()]


def _eager(graph: Graph) -> NodeValues:
    roots = set(graph.roots)
    uses = last_uses(list(graph.nodes), roots)
    found: Values = {}
    host: dict[Value, torch.Tensor] = {}
    live = peak = sum(nbytes for _, nbytes in _inputs(graph))
    last = len(graph.nodes) - 1
    lives = [
        Lifetime(f"%p{k}", type_text(leaf.shape, leaf.dtype), nbytes, 0, last)
        for k, (leaf, nbytes) in enumerate(_inputs(graph))
    ]
    born: dict[Value, tuple[int, int]] = {}
    with jax_compat.scope():
        for number, node in enumerate(graph.nodes):
            results, _ = run_node(node, found)
            live += sum(result.nbytes for result in results)
            peak = max(peak, live)
            for output in node.outputs:
                if output is not None:
                    host[output] = transfer.to_host(found[output], output.dtype)
                    born[output] = number, found[output].nbytes
            for value in uses.get(number, ()):
                live -= found.pop(value).nbytes
                lives.append(_lifetime(value, *born.pop(value), dies=number))
    lives += [_lifetime(value, *facts, dies=last) for value, facts in born.items()]
    return NodeValues("eager", graph, host, peak, lifetimes=tuple(lives))


def _lifetime(value: Value, born: int, nbytes: int, *, dies: int) -> Lifetime:
    name = f"%{value.node.id} {value.node.op.name}" if value.node is not None else ""
    type_ = type_text(value.shape, value.dtype)
    return Lifetime(name, type_, nbytes, born, dies)


def _lazy(graph: Graph) -> NodeValues:
    everything = [
        output for node in graph.nodes for output in node.outputs if output is not None
    ]
    full = canonicalise(everything)
    device, kept_executable = _run(full, everything, numbered=True)
    roots = [root for root in graph.roots if root.node is not None]
    plain, executable = _run(canonicalise(roots), roots)
    values = _on_host(device)
    drift = [
        root
        for root, data in _on_host(plain).items()
        if not torch.equal(_bits(data), _bits(values[root]))
    ]
    return NodeValues(
        "lazy",
        graph,
        values,
        _planned_bytes(executable),
        jax_compat.optimised_text(executable),
        tuple(drift),
        jax_compat.optimised_text(kept_executable),
        full.nodes,
        _alone(full, device),
    )


def _run(
    graph: Canonical, roots: Sequence[Value], *, numbered: bool = False
) -> tuple[Values, Any]:
    """Run a graph with XLA's full optimisation; return its roots' data and the executable."""
    executable = compiler.compile_graph(
        graph, {}, fast=False, purpose="peek", numbered=numbered
    )
    plan = plan_of(graph, executable, roots)
    plan.make_sure_it_fits()
    with jax_compat.scope():
        results = plan.launch(pack_arguments(plan))
    return {
        root: results[rank] for rank, root in zip(plan.order, roots, strict=True)
    }, executable


def _alone(graph: Canonical, values: Values) -> dict[Value, torch.Tensor]:
    """Return what each op gives by itself on the operands that an optimised run computed."""
    found: Values = {}
    with jax_compat.scope():
        for node in graph.nodes:
            own = {v: values[v] for v in iter_values(node.args) if v.node is not None}
            run_node(node, own)
            found |= {out: own[out] for out in node.outputs if out is not None}
    return _on_host(found)


def _on_host(values: Values) -> dict[Value, torch.Tensor]:
    return {
        value: transfer.to_host(data, value.dtype) for value, data in values.items()
    }


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes, so that NaN equals itself."""
    if not tensor.numel():
        return tensor.new_empty(0, dtype=torch.uint8)
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _planned_bytes(executable: Any) -> int:
    plan = jax_compat.memory_plan(executable)
    return plan.arguments + plan.results + plan.temporary - plan.aliased
