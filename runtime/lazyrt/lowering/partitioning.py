"""Graphs whose data is split over a mesh: the op that states a sharding, and how XLA gets it.

A program of one device ignores the op: it computes nothing. In the program of a mesh it is a sharding
constraint, and the sharding of each input is an attribute of the argument; XLA's partitioner
decides the rest.
"""

# A rule's parameters are those of the op's schema.
# ruff: noqa: ARG001, ARG005

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import torch

from lazyrt.errors import UsageError
from lazyrt.ir.sharding import Axes, Sharding, placement
from lazyrt.lowering.registry import lowers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lazyrt.ir.fingerprint import Canonical
    from lazyrt.ir.node import Node, Value
    from lazyrt.jax_compat import Placements
    from lazyrt.lowering.registry import OpContext

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
    """Return the mesh that a graph runs on; None for one device.

    Raises:
        UsageError: The graph has data of several meshes, or collectives of processes.
    """
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
    """Return the operation that states a sharding of a value.

    Args:
        sharding: The sharding.
        operand: The value's name.
        type_: The value's type.
    """
    mesh, dims = _mesh(sharding.mesh), _dims(sharding)
    return f"sdy.sharding_constraint {operand} <{mesh}, {dims}> : {type_}"


def _mesh(mesh: Axes) -> str:
    pairs = zip(mesh.names, mesh.sizes, strict=True)
    axes = ", ".join(f'"{name}"={size}' for name, size in pairs)
    return f"mesh<[{axes}]>"


def _dims(sharding: Sharding) -> str:
    dims = (", ".join(f'"{name}"' for name in names) for names in sharding.split)
    return "[" + ", ".join(f"{{{each}}}" for each in dims) + "]"


def constrained(node: Node, results: list[Any]) -> list[Any]:
    """Return a node's results, traced by jax, with the sharding that it states."""
    sharding = stated(node)
    if sharding is None:
        return results
    where = placement(sharding.mesh, sharding)
    return [jax.lax.with_sharding_constraint(each, where) for each in results]


def placements_of(
    graph: Canonical, kept: Mapping[Value, Sharding | None] = _NOTHING
) -> Placements | None:
    """Return where arguments and results are if a graph runs on a mesh, None for one device.

    XLA chooses where results are that overwrite nothing and that state no sharding.

    Args:
        graph: The graph.
        kept: The shardings of the tensors that results overwrite.
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
