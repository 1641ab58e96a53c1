"""A graph: the pending nodes under chosen roots, as an immutable value; and what it lowers to."""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from lazygraph.normalize import with_all_places
from lazygraph.read.lazy_ir import leaf_name
from lazyrt import jax_compat
from lazyrt.errors import UsageError
from lazyrt.execution import compiler, cost_model
from lazyrt.ir import node as ir
from lazyrt.ir.fingerprint import Canonical, canonicalise
from lazyrt.ir.node import Leaf, Node, Provenance, Value, type_text, walk
from lazyrt.lowering.emit import (
    argument_types,
    emit_text,
    function_places,
    result_types,
)
from lazyrt.lowering.partitioning import (
    Collective,
    collectives_in,
    mesh_of,
    placements_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


Dialect = Literal["stablehlo", "hlo_before", "hlo"]


def compiled_text(executable: Any) -> str:
    """Return the text of what XLA made, each instruction with a place."""
    return with_all_places(jax_compat.optimised_text(executable))


class Graph:
    """The nodes that `roots` need, in topological order.

    A graph holds IR only: keeping one keeps no tensor and no device data alive, and makes
    nothing a root.

    Attributes:
        roots: Values to compute, in the order given, each once.
        nodes: Every node under the roots, operands first.
        parameters: The leaves that the nodes read: device data, lifted Python numbers and
            RNG states, in order of first use.

    Args:
        roots: Values.
        lines: Provenances of its nodes by their ids, which they keep; by default those of now.
    """

    def __init__(
        self, roots: Iterable[Value], lines: Mapping[int, Provenance] | None = None
    ) -> None:
        self.roots: tuple[Value, ...] = tuple(dict.fromkeys(roots))
        nodes, self.parameters = walk(self.roots)
        self.nodes = ir.listed(nodes, lines)
        self._canonical: Canonical | None = None

    @property
    def canonical(self) -> Canonical:
        """The graph up to names, creation order and dead code; computed once."""
        if self._canonical is None:
            self._canonical = canonicalise(self.roots, ir.lines_of(self.nodes))
        return self._canonical

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits; equal for graphs that compute the same thing the same way.

        Operand wiring, shapes, dtypes and constants count; the order in which tensors were
        created, their names and dead code do not.
        """
        return self.canonical.fingerprint

    @property
    def known_fingerprint(self) -> str:
        """The fingerprint if somebody has asked for it before, else an empty string."""
        return self._canonical.fingerprint if self._canonical is not None else ""

    def to_text(self, called: Mapping[int, str] | None = None) -> str:
        """Return one line for each node: id, op, operands, type, and where it came from.

        Args:
            called: What the user calls inputs that are data, by their rank among those.
        """
        names = {leaf: leaf_name(leaf) for leaf in self.parameters}
        ranks = itertools.count()
        lines = []
        for leaf in self.parameters:
            name = (called or {}).get(next(ranks)) if leaf.kind == "data" else None
            comment = f"  # {name}" if name else ""
            kind = type_text(leaf.shape, leaf.dtype)
            lines.append(f"{names[leaf]} : {kind}{comment}")
        lines += [_node_line(node, names) for node in self.nodes]
        lines.append(
            "return " + ", ".join(_reference(root, names) for root in self.roots)
        )
        return "\n".join(lines)

    def lower(self, called: Mapping[int, str] | None = None) -> Computation:
        """Return the StableHLO computation of this graph; nothing is compiled yet.

        Args:
            called: What the user calls arguments, by their position.
        """
        return Computation(self, called)

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return (
            f"<Graph {self.fingerprint[:12]}: {len(self.nodes)} nodes, "
            f"{len(self.parameters)} parameters, {len(self.roots)} roots>"
        )


class Computation:
    """The StableHLO module of a graph.

    Looking at it neither touches the step's executable cache nor counts as one of its
    compiles: `as_text("hlo")` compiles a copy for the eye.
    """

    def __init__(self, graph: Graph, called: Mapping[int, str] | None = None) -> None:
        self._graph = graph
        self._called = called

    @property
    def fingerprint(self) -> str:
        """The graph's fingerprint."""
        return self._graph.fingerprint

    @property
    def graph(self) -> Graph:
        """The graph that was lowered."""
        return self._graph

    def as_text(self, dialect: Dialect = "stablehlo") -> str:
        """Return the module as text.

        Args:
            dialect: `stablehlo`, before XLA; `hlo_before`, the same as HLO, before XLA's
                optimisation; or `hlo`, as XLA optimised it, with each instruction's op name
                and source line as metadata. Only `hlo` compiles.
        """
        if dialect == "stablehlo":
            return self._stablehlo
        if dialect == "hlo_before":
            graph = self._graph.canonical
            return with_all_places(
                jax_compat.hlo_text(self._stablehlo, function_places(graph))
            )
        if dialect == "hlo":
            return compiled_text(self._executable)
        raise UsageError(
            f"as_text({dialect!r}): there is no such dialect. It takes 'stablehlo' (what "
            "lazyrt lowers to), 'hlo_before' or 'hlo' (what XLA made of it)."
        )

    def known_hlo(self, key: str = "") -> str | None:
        """Return the optimised HLO of the executable that steps run; None without one.

        Compiles nothing. It may differ from `as_text("hlo")` in which inputs are donated.

        Args:
            key: Of the executable; by default of the one that ran last.
        """
        executable = compiler.executable_of(key or self.fingerprint)
        return None if executable is None else compiled_text(executable)

    def collectives(self) -> tuple[Collective, ...]:
        """Return what the devices of a mesh, or the ranks, exchange, in the program's order.

        Of the executable that steps run, else of a copy that is compiled for the eye.
        """
        text = self.known_hlo() or self.as_text("hlo")
        return collectives_in(text, self._graph.canonical)

    def estimate_compile_ns(self) -> int:
        """Return how long XLA takes for it, from what compiles took here so far."""
        parts = cost_model.step_compile(self._graph.nodes, fast=False)
        return cost_model.expected(parts).ns

    @cached_property
    def _stablehlo(self) -> str:
        graph = self._graph.canonical
        is_split = mesh_of(graph) is not None
        return emit_text(graph, self._called, partitioned=is_split)

    @cached_property
    def _executable(self) -> Any:
        graph = self._graph.canonical
        return compiler.compile_uncounted(
            self._stablehlo,
            argument_types(graph),
            result_types(graph),
            self._called,
            placements_of(graph),
        )

    def __repr__(self) -> str:
        return (
            f"<Computation {self.fingerprint[:12]} of {len(self._graph.nodes)} nodes>"
        )


def _reference(value: Value, names: dict[Leaf, str]) -> str:
    if value.node is None:
        return names.get(value) or leaf_name(value)  # type: ignore[call-overload]
    suffix = f".{value.index}" if len(value.node.outputs) > 1 else ""
    return f"%{value.node.id}{suffix}"


def _node_line(node: Node, names: dict[Leaf, str]) -> str:
    shown = ", ".join(
        ir.arg_text(arg, lambda value: _reference(value, names)) for arg in node.args
    )
    types = ", ".join(
        type_text(v.shape, v.dtype) if v is not None else "none" for v in node.outputs
    )
    where = [
        part for part in (node.provenance.path, str(node.provenance.site or "")) if part
    ]
    comment = f"  # {', '.join(where)}" if where else ""
    return f"%{node.id} = {node.op.name}({shown}) : {types}{comment}"
