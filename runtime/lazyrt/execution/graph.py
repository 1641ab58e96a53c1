"""A graph: the pending nodes under chosen roots, as an immutable value; and what it lowers to."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from lazygraph.read.open import graph_of
from lazygraph.readable import Readable
from lazygraph.types import type_bytes
from lazyrt import jax_compat
from lazyrt.errors import UsageError
from lazyrt.execution import compiler
from lazyrt.ir.fingerprint import Canonical, canonicalise
from lazyrt.ir.node import Leaf, Node, Value, map_values, type_text, walk
from lazyrt.lowering.emit import (
    argument_types,
    emit_text,
    function_places,
    result_types,
)
from lazyrt.lowering.hlo_places import compiled_text, with_all_places
from lazyrt.lowering.partitioning import mesh_of, placements_of

if TYPE_CHECKING:
    from collections.abc import Iterable

Dialect = Literal["stablehlo", "hlo_before", "hlo"]


class Graph:
    """The nodes that `roots` need, in topological order.

    A graph holds IR only: keeping one keeps no tensor and no device data alive, and makes
    nothing a root.

    Attributes:
        roots: Values to compute, in the order given, each once.
        nodes: Every node under the roots, operands first.
        parameters: The leaves that the nodes read: device data, lifted Python numbers and
            RNG states, in order of first use.
    """

    def __init__(self, roots: Iterable[Value]) -> None:
        self.roots: tuple[Value, ...] = tuple(dict.fromkeys(roots))
        self.nodes, self.parameters = walk(self.roots)
        self._canonical: Canonical | None = None

    @property
    def canonical(self) -> Canonical:
        """The graph up to names, creation order and dead code; computed once."""
        if self._canonical is None:
            self._canonical = canonicalise(self.roots)
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

    def to_text(self) -> str:
        """Return one line for each node: id, op, operands, type, and where it came from."""
        names = {leaf: _leaf_name(leaf) for leaf in self.parameters}
        lines = [
            f"{names[leaf]} : {type_text(leaf.shape, leaf.dtype)}"
            for leaf in self.parameters
        ]
        lines += [_node_line(node, names) for node in self.nodes]
        lines.append(
            "return " + ", ".join(_reference(root, names) for root in self.roots)
        )
        return "\n".join(lines)

    def lower(self) -> Computation:
        """Return the StableHLO computation of this graph; nothing is compiled yet."""
        return Computation(self)

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return (
            f"<Graph {self.fingerprint[:12]}: {len(self.nodes)} nodes, "
            f"{len(self.parameters)} parameters, {len(self.roots)} roots>"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(Readable):
    """One exchange of data between devices.

    Attributes:
        kind: Such as `all-reduce`.
        type: What each device gets.
        nbytes: Its size.
        devices: How many exchange with each other; 0 where the program does not say.
        line: The user's line that it comes from; empty where unknown.
        scope: The module that recorded it.
        tensor: The input of the program that it moves, or that alone leads to what it moves; empty
            where several do.
        why: Why data moves; empty where the program itself asks for it.
        fix: What to do about it; empty where it is what the shardings cost.
    """

    kind: str
    type: str
    nbytes: int
    devices: int
    line: str
    scope: str
    tensor: str = ""
    why: str = ""
    fix: str = ""


_COLLECTIVES = frozenset((
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
    "collective-broadcast", "ragged-all-to-all",
))  # fmt: skip
_MOVES = _COLLECTIVES - {"all-reduce", "reduce-scatter"}
_INPUT = re.compile(
    r"(%[\w.-]+) = \S+ parameter\((\d+)\)(?:[^\n]*?op_name=\"([^\"]*)\")?"
)
_GROUPS = re.compile(r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\])")
_MESH = re.compile(r"replica_groups=mesh\[([^]]*)\]")
_NAMED = re.compile(r"\{((?:'\w+'(?:, ?)?)+)\}")


def _group_size(attributes: str) -> int:
    """Return how many devices a collective's groups have; XLA writes them in three ways."""
    mesh, named = _MESH.search(attributes), _NAMED.search(attributes)
    if mesh is not None and named is not None:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        names = re.findall(r"'(\w+)'", named[1])
        return math.prod(int(sizes[name]) for name in names)
    found = _GROUPS.search(attributes)
    if found is None:
        return 0
    return int(found[2]) if found[2] else found[1].count(",") + 1


def _collectives_in(text: str, graph: Canonical) -> tuple[Collective, ...]:
    program = graph_of(text)
    inputs = {
        name: (int(number), called)
        for name, number, called in _INPUT.findall(text[text.rfind("\nENTRY ") :])
    }
    sources: list[frozenset[tuple[int, str]]] = []  # inputs that each value comes from
    found = []
    for node in program:
        if node.op == "parameter":
            sources.append(frozenset({inputs.get(node.name, (-1, ""))}))
        else:
            sources.append(frozenset().union(*(sources[k] for k in node.operands)))
        kind = node.op.removesuffix("-start")
        if kind in _COLLECTIVES:
            tensor, why, fix = _reason(kind, sources[-1], graph)
            found.append(
                Collective(
                    kind=kind,
                    type=node.type,
                    nbytes=type_bytes(node.type),
                    devices=_group_size(node.attrs),
                    line=node.site,
                    scope=node.scope,
                    tensor=tensor,
                    why=why,
                    fix=fix,
                )
            )
    return tuple(found)


def _reason(
    kind: str, sources: frozenset[tuple[int, str]], graph: Canonical
) -> tuple[str, str, str]:
    """Return the input that a collective moves, why it does, and what to do about it."""
    if mesh_of(graph) is None:  # the program has called it
        return "", "", ""
    if kind not in _MOVES:
        return "", "each device has added up its own part: the sum is over all", ""
    number, called = next(iter(sources)) if len(sources) == 1 else (-1, "")
    leaf = graph.data[number] if 0 <= number < len(graph.data) else None
    sharding = None if leaf is None else leaf.sharding
    if leaf is None or sharding is None:
        why = "a result is split otherwise than what reads it needs"
        return (
            "",
            why,
            "say how it is to be split: lazyrt.shard(t, mesh, spec) behind its line",
        )
    is_named = called and not called.startswith("args[")
    name = (
        called if is_named else f"input {number} ({type_text(leaf.shape, leaf.dtype)})"
    )
    need = "whole" if kind == "all-gather" else "in other parts"
    why = f"`{name}` is split {sharding}, and what reads it needs it {need}"
    fix = "split it as its readers do, by another dimension or axis"
    if is_named:
        fix += f"; or leave it whole: lazyrt.shard({name}, mesh, ())"
    return name, why, fix


class Computation:
    """The StableHLO module of a graph.

    Looking at it neither touches the step's executable cache nor counts as one of its
    compiles: `as_text("hlo")` compiles a copy for the eye.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

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

    def known_hlo(self) -> str | None:
        """Return the optimised HLO of the executable that steps run; None without one.

        Compiles nothing. It may differ from `as_text("hlo")` in which inputs are donated.
        """
        executable = compiler.executable_of(self.fingerprint)
        return None if executable is None else compiled_text(executable)

    def collectives(self) -> tuple[Collective, ...]:
        """Return what the devices of a mesh, or the ranks, exchange, in the program's order.

        Of the executable that steps run, else of a copy that is compiled for the eye.
        """
        text = self.known_hlo() or self.as_text("hlo")
        return _collectives_in(text, self._graph.canonical)

    def estimate_compile_ns(self) -> int:
        """Return how long XLA takes for it, from the compiles of this process so far."""
        return compiler.estimate_ns(len(self._graph.nodes))

    @cached_property
    def _stablehlo(self) -> str:
        graph = self._graph.canonical
        return emit_text(graph, partitioned=mesh_of(graph) is not None)

    @cached_property
    def _executable(self) -> Any:
        graph = self._graph.canonical
        return compiler.compile_uncounted(
            self._stablehlo,
            argument_types(graph),
            result_types(graph),
            placements=placements_of(graph),
        )

    def __repr__(self) -> str:
        return (
            f"<Computation {self.fingerprint[:12]} of {len(self._graph.nodes)} nodes>"
        )


def _leaf_name(leaf: Leaf) -> str:
    prefix = {"data": "p", "float": "f", "int": "i", "rng": "rng"}[leaf.kind]
    return f"%{prefix}{leaf.position}"


def _reference(value: Value, names: dict[Leaf, str]) -> str:
    if value.node is None:
        return names.get(value) or _leaf_name(value)  # type: ignore[call-overload, arg-type]
    suffix = f".{value.index}" if len(value.node.outputs) > 1 else ""
    return f"%{value.node.id}{suffix}"


def _node_line(node: Node, names: dict[Leaf, str]) -> str:
    args = map_values(node.args, lambda value: _Text(_reference(value, names)))
    shown = ", ".join(_arg_text(arg) for arg in args)
    types = ", ".join(
        type_text(v.shape, v.dtype) if v is not None else "none" for v in node.outputs
    )
    where = [
        part for part in (node.provenance.path, str(node.provenance.site or "")) if part
    ]
    comment = f"  # {', '.join(where)}" if where else ""
    return f"%{node.id} = {node.op.name}({shown}) : {types}{comment}"


class _Text(str):
    __slots__ = ()


def _arg_text(arg: object) -> str:
    if isinstance(arg, _Text):
        return str(arg)
    if isinstance(arg, tuple):
        if len(arg) == 2 and arg[0] in {float, bool, complex}:  # noqa: PLR2004
            return str(arg[1])
        return "[" + ", ".join(_arg_text(part) for part in arg) + "]"
    return str(arg)
