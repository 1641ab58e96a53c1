"""Graphs whose data is split over a mesh: the op that states a sharding, and what the devices exchange.

A program of one device ignores the op: it computes nothing. In the program of a mesh it is a sharding
constraint, and the sharding of each input is an attribute of the argument; XLA's partitioner
decides the rest. What it decided is read from the optimised HLO.
"""

# A rule's parameters are those of the op's schema.
# ruff: noqa: ARG001, ARG005

from __future__ import annotations

import ast
import linecache
import math
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lazygraph.normalize import with_all_places
from lazygraph.read.hlo import modules
from lazygraph.read.open import graph_of
from lazygraph.readable import Readable, size_text
from lazygraph.types import type_bytes
from lazyrt.errors import ShardingWarning, UsageError
from lazyrt.ir.node import Node, Value, type_text
from lazyrt.ir.sharding import Axes, Sharding, placement
from lazyrt.lowering.registry import OpContext, lowers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lazygraph.graph import Node as Instruction
    from lazygraph.read.hlo_module import Computation
    from lazyrt.ir.fingerprint import Canonical
    from lazyrt.jax_compat import Placements


_NAME = "lazyrt.shard.default"
_NOTHING: Mapping[Value, Sharding | None] = {}

_library = torch.library.Library("lazyrt", "FRAGMENT")
_library.define("shard(Tensor self, str[] axes, int[] sizes, str[] split) -> Tensor")
_types = torch.library.Library("lazyrt", "IMPL", "Meta")
_types.impl(
    "shard",
    lambda self, axes, sizes, split: self.new_empty_strided(self.shape, self.stride()),
)

shard = torch.ops.lazyrt.shard.default


@lowers(_NAME)
def _lower_shard(
    ctx: OpContext,
    self: Any,
    axes: Sequence[str],
    sizes: Sequence[int],
    split: Sequence[str],
) -> Any:
    return self


def arguments(sharding: Sharding) -> tuple[list[str], list[int], list[str]]:
    """Return the op's arguments that state a sharding."""
    split = ["+".join(names) for names in sharding.split]
    return [*sharding.mesh.names], [*sharding.mesh.sizes], split


def stated(node: Node) -> Sharding | None:
    """Return the sharding that a node states; None for nodes that state none."""
    if node.op.name != _NAME:
        return None
    _, names, sizes, split = node.args
    parts = tuple(tuple(part.split("+")) if part else () for part in split)
    return Sharding(Axes(names, sizes), parts)


def mesh_of(graph: Canonical) -> Axes | None:
    """Return the mesh that a graph runs on; None for one device."""
    meshes: dict[Axes, Any] = {}
    for leaf in graph.data:
        if leaf.sharding is not None:
            meshes.setdefault(leaf.sharding.mesh, "an input")
    for node in graph.nodes:
        found = stated(node)
        if found is not None:
            meshes.setdefault(found.mesh, node.provenance.site or "an unknown line")
    if len(meshes) > 1:
        (first, one), (second, other) = list(meshes.items())[:2]
        raise UsageError(
            f"a step has data of several meshes: {first} (at {one}) and {second} (at {other}). One "
            "program runs on one mesh. Shard all with one mesh, or end the step between them with "
            "lazyrt.mark_step()."
        )
    if meshes and any(node.spec.processes for node in graph.nodes):
        raise UsageError(
            f"a step has data split over a mesh ({next(iter(meshes))}) and collectives of several "
            "processes. One program runs on the devices of one process or on one device of each. "
            "Use a mesh in one process, or torch.distributed in several."
        )
    return next(iter(meshes), None)


def attribute(sharding: Sharding) -> str:
    """Return a sharding as the attribute of an argument."""
    return (
        f" {{sdy.sharding = #sdy.sharding<{_mesh(sharding.mesh)}, {_dims(sharding)}>}}"
    )


def constraint(sharding: Sharding, operand: str, type_: str) -> str:
    """Return the operation that states a sharding of a value."""
    mesh, dims = _mesh(sharding.mesh), _dims(sharding)
    return f"sdy.sharding_constraint {operand} <{mesh}, {dims}> : {type_}"


def _mesh(mesh: Axes) -> str:
    pairs = zip(mesh.names, mesh.sizes, strict=True)
    axes = ", ".join(f'"{name}"={size}' for name, size in pairs)
    return f"mesh<[{axes}]>"


def _dims(sharding: Sharding) -> str:
    dims = (", ".join(f'"{name}"' for name in names) for names in sharding.split)
    return "[" + ", ".join(f"{{{each}}}" for each in dims) + "]"


def placements_of(
    graph: Canonical, kept: Mapping[Value, Sharding | None] = _NOTHING
) -> Placements | None:
    """Return where arguments and results are if a graph runs on a mesh, None for one device.

    XLA chooses where results are that overwrite nothing and that state no sharding. `kept` are the
    shardings of the tensors that results overwrite.
    """
    mesh = mesh_of(graph)
    if mesh is None:
        return None
    everywhere = placement(mesh, None)
    packed = sum(map(bool, (graph.floats, graph.ints, graph.rng)))
    arguments = [placement(mesh, leaf.sharding) for leaf in graph.data]
    results = []
    for root in graph.roots:
        said = stated(root.node) if root.node is not None else None
        is_known = root in kept or said is not None
        where = kept.get(root, said)
        results.append(placement(mesh, where) if is_known else None)
    return [*arguments, *[everywhere] * packed], [*results, everywhere]


# ----------------------------------------------------------- what the devices exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(Readable):
    """One exchange of data between devices.

    Attributes:
        kind: Such as `all-reduce`.
        type: What each device gets.
        nbytes: Its size.
        devices: How many exchange with each other; 0 where the program does not say.
        line: The user's line that it comes from; empty where unknown.
        source: The expression on that line; empty where unknown.
        scope: The module that recorded it.
        tensor: The operand of the expression that it moves, or the input of the program that alone
            leads to what it moves; empty where several do.
        kept: How many of the bytes a device keeps if it needs its own part alone; else 0.
        why: Why data moves; empty where the program itself asks for it.
        fix: What to do about it; empty where it is what the shardings cost.
    """

    kind: str
    type: str
    nbytes: int
    devices: int
    line: str
    scope: str
    source: str = ""
    tensor: str = ""
    kept: int = 0
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


def collectives_in(text: str, graph: Canonical) -> tuple[Collective, ...]:
    """Return what the devices exchange in a program, in its order."""
    program = graph_of(text)
    inputs = {
        name: (int(number), called)
        for name, number, called in _INPUT.findall(text[text.rfind("\nENTRY ") :])
    }
    kept = _kept_parts(text)
    sources: list[frozenset[tuple[int, str]]] = []  # inputs that each value comes from
    found = []
    for node in program:
        if node.op == "parameter":
            sources.append(frozenset({inputs.get(node.name, (-1, ""))}))
        else:
            sources.append(frozenset().union(*(sources[k] for k in node.operands)))
        kind = node.op.removesuffix("-start")
        if kind in _COLLECTIVES:
            part = kept.get(node.name.lstrip("%"), 0)
            used = _expression(node.site)
            tensor, why, fix = _reason(node, sources[-1], graph, used, part)
            found.append(
                Collective(
                    kind=kind,
                    type=node.type,
                    nbytes=type_bytes(node.type),
                    devices=_group_size(node.attrs),
                    line=node.site,
                    scope=node.scope,
                    source=used.text,
                    tensor=tensor,
                    kept=part,
                    why=why,
                    fix=fix,
                )
            )
    return tuple(found)


def _reason(
    node: Instruction,
    sources: frozenset[tuple[int, str]],
    graph: Canonical,
    used: _Expression,
    kept: int,
) -> tuple[str, str, str]:
    """Return the tensor that a collective moves, why it does, and what to do about it."""
    kind = node.op.removesuffix("-start")
    if mesh_of(graph) is None:  # the program has called it
        return "", "", ""
    if kind not in _MOVES:
        return "", "each device has added up its own part: the sum is over all", ""
    number, called = next(iter(sources)) if len(sources) == 1 else (-1, "")
    leaf = graph.data[number] if 0 <= number < len(graph.data) else None
    sharding = None if leaf is None else leaf.sharding
    is_named = called and not called.startswith("args[")
    name = ""
    if leaf is not None and sharding is not None:
        name = (
            called
            if is_named
            else f"input {number} ({type_text(leaf.shape, leaf.dtype)})"
        )
    if kept:
        why = (
            f"no device needs it whole, each keeps {size_text(kept)} of it: XLA finds no direct way "
            "from how it is split to how it is needed"
        )
        return (
            name,
            why,
            (
                "change one axis at a time, with a lazyrt.shard() for each; or split it from the start as "
                "what reads it needs"
            ),
        )
    split = _split_operand(node, graph, used) if kind == "all-gather" else None
    if split is not None:
        return split
    if leaf is None or sharding is None:
        why = "a result is split otherwise than what reads it needs"
        return (
            "",
            why,
            "say how it is to be split: lazyrt.shard(t, mesh, spec) behind its line",
        )
    need = "whole" if kind == "all-gather" else "in other parts"
    why = f"`{name}` is split {sharding}, and what reads it needs it {need}"
    fix = "split it as its readers do, by another dimension or axis"
    if is_named:
        fix += f"; or leave it whole: lazyrt.shard({name}, mesh, ())"
    return name, why, fix


class _Expression(NamedTuple):
    """What stands on a line of the program.

    `operands` are the two sides of the line's only product of matrices; empty where there is none.
    """

    text: str = ""
    operands: tuple[str, ...] = ()


_PRODUCTS = frozenset(("aten.mm.default", "aten.bmm.default"))
_MAX_TEXT = 60


def _expression(site: str) -> _Expression:
    file, _, line = site.rpartition(":")
    text = linecache.getline(file, int(line)).strip() if line.isdecimal() else ""
    try:
        nodes = [*ast.walk(ast.parse(text))]
    except SyntaxError:  # a part of a statement
        nodes = []
    products = [
        node
        for node in nodes
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
    ]
    if len(products) == 1:
        sides = products[0].left, products[0].right
        return _Expression(ast.unparse(products[0]), tuple(map(ast.unparse, sides)))
    return _Expression(
        text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."
    )


def _split_operand(
    node: Instruction, graph: Canonical, used: _Expression
) -> tuple[str, str, str] | None:
    """Return the operand of the line's product that a gather completes, why, and what to do.

    None where the line has no or several products, or both operands may be meant.
    """
    here = [
        each
        for each in graph.nodes
        if each.op.name in _PRODUCTS
        and (at := each.provenance.site) is not None
        and f"{at.file}:{at.line}" == node.site
    ]
    dims = _GATHERED.search(node.attrs)
    if len(here) != 1 or not used.operands or dims is None:
        return None
    dim, whole = (
        int(dims[1]),
        node.type.partition("[")[2].rstrip("]").split(",")[int(dims[1])],
    )
    shapes = [value.shape for value in here[0].args]
    fits = [
        k
        for k, shape in enumerate(shapes)
        if dim < len(shape) == node.type.count(",") + 1 and str(shape[dim]) == whole
    ]
    if len(fits) != 1:
        return None
    name, other = used.operands[fits[0]], used.operands[1 - fits[0]]
    why = f"`{name}` is split on dim {dim}, and the product needs it whole"
    summed = len(shapes[0]) - 1, len(shapes[0]) - 2
    # An all-reduce sends each byte twice: to where it is added up, and back.
    result = here[0].outputs[0]
    takes = 2 * type_bytes(type_text(result.shape, result.dtype)) if result else 0
    if dim != summed[fits[0]]:
        fix = f"leave `{other}` whole on the axis that splits `{name}`, or split `{name}` by another"
    elif takes <= type_bytes(node.type):
        fix = (
            f"shard `{other}` on dim {summed[1 - fits[0]]} over the same axis: then each device "
            "multiplies its part, and an all-reduce adds them up"
        )
    else:
        why += "; an all-reduce of the result would move more"
        fix = ""
    return name, why, fix


# ------------------------------------------------------------------- gathered for nothing

_GATHERED = re.compile(r"\bdimensions=\{(\d+)\}")
_CALLED = re.compile(r"\bcalls=%?([\w.-]+)")
_SAME = frozenset((
    "all-gather", "all-gather-done", "bitcast", "copy", "copy-done", "copy-start", "reshape",
    "transpose",
))  # fmt: skip
# What every device has alike.
_EQUAL = frozenset(("all-reduce", "all-gather"))
_warned: set[tuple[str, str]] = set()


def _kept_parts(text: str) -> dict[str, int]:
    """Return the gathers of which each device keeps its own part alone, with the part's bytes.

    Each use of such a value, also within fusions, is a slice at a place that depends on the device.
    """
    if " all-gather" not in text or " partition-id(" not in text:
        return {}
    module = modules(text)[0]
    entry = module.computations[module.entry]
    own = _own_values(entry, frozenset())
    found = {}
    for position, row in enumerate(entry.instructions):
        if row.op in {"all-gather", "all-gather-start"}:
            kept = _part_of(module.computations, entry, position, own)
            if 0 < kept < type_bytes(row.type):
                found[row.name] = kept
    return found


def _own_values(computation: Computation, given: frozenset[int]) -> frozenset[int]:
    """Return the positions of values that depend on the device."""
    found = set[int]()
    for position, row in enumerate(computation.instructions):
        if (
            row.op == "partition-id"
            or (row.op == "parameter" and int(row.literal) in given)
            or (row.op not in _EQUAL and not found.isdisjoint(row.operands))
        ):
            found.add(position)
    return frozenset(found)


def _part_of(
    computations: Mapping[str, Computation],
    entry: Computation,
    position: int,
    own: frozenset[int],
) -> int:
    """Return how many bytes of a value a device keeps as slices of its own; 0 if it reads more."""
    kept = 0
    waiting: list[Any] = [(entry, position, own, None)]
    while waiting:
        where, at, own, around = waiting.pop()
        if at == where.root:
            if around is None:
                return 0
            waiting.append(around)
            continue
        for user, row in enumerate(where.instructions):
            if at not in row.operands:
                continue
            if row.op in _SAME:
                waiting.append((where, user, own, around))
            elif row.op == "dynamic-slice" and not own.isdisjoint(row.operands[1:]):
                kept += type_bytes(row.type)
            elif row.op == "fusion" and (called := _CALLED.search(row.attrs)):
                body = computations[called[1]]
                taken = [k for k, each in enumerate(row.operands) if each == at]
                given = frozenset(
                    k for k, each in enumerate(row.operands) if each in own
                )
                inside = _own_values(body, given), (where, user, own, around)
                waiting += [
                    (body, k, *inside)
                    for k, each in enumerate(body.instructions)
                    if each.op == "parameter" and int(each.literal) in taken
                ]
            else:
                return 0
    return kept


def warn_of_gathers(executable: Any, graph: Canonical) -> None:
    """Warn, once for a line and type, of values that are gathered though no device needs them whole.

    XLA calls it an involuntary full rematerialisation.
    """
    text = executable.as_text()
    if not _kept_parts(text):
        return
    for each in collectives_in(with_all_places(text), graph):
        key = each.line, each.type
        if not each.kept or key in _warned:
            continue
        _warned.add(key)
        file, _, line = each.line.rpartition(":")
        warnings.warn_explicit(
            f"each device gathers {size_text(each.nbytes)} ({each.type})"
            f"{f' for `{each.source}`' if each.source else ''}: {each.why}. Mend: {each.fix}.",
            ShardingWarning,
            file or "<unknown>",
            int(line or 0),
        )
