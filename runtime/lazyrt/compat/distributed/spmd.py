"""`torch_xla.distributed.spmd` over `lazyrt.mesh` and `lazyrt.shard`."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lazyrt
from lazyrt.compat.common import INTERNAL, refuse
from lazyrt.errors import NoEquivalentError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = [
    "Mesh", "ShardingSpec", "clear_sharding", "get_1d_mesh", "get_global_mesh", "mark_sharding",
    "mark_sharding_with_gradients", "set_global_mesh",
]  # fmt: skip

REFUSED = {
    "HybridMesh": "a mesh has the devices of one process. Use Mesh",
    "XLAShardedTensor": "a sharded tensor is a plain one. Use lazyrt.sharding_of()",
    "enable_manual_sharding": "XLA's partitioner splits the program. Use torch.distributed for parts "
    "that ranks compute by hand",
    "disable_manual_sharding": "there is no manual sharding to end. Leave it out",
    "apply_xla_patch_to_nn_linear": "nn.Linear needs no patch: it keeps its dimensions. Leave it out",
    "wrap_if_sharded": INTERNAL,
    "unwrap_sharded_tensor": INTERNAL,
}
__getattr__ = refuse("torch_xla.distributed.spmd", REFUSED)

_global: list[Mesh] = []
_latest: list[Mesh] = []


class Mesh:
    """Devices in rows.

    Args:
        device_ids: The numbers of the first devices, in order.
        mesh_shape: How many there are along each axis.
        axis_names: The axes' names; without them specifications have numbers.

    Raises:
        NoEquivalentError: The devices come in another order.
    """

    def __init__(
        self,
        device_ids: Any,
        mesh_shape: Sequence[int],
        axis_names: Sequence[str] | None = None,
    ) -> None:
        self.mesh_shape = tuple(map(int, mesh_shape))
        names = axis_names or [f"axis{k}" for k in range(len(self.mesh_shape))]
        self.axis_names = tuple(names)
        self.mesh = lazyrt.mesh(
            dict(zip(self.axis_names, self.mesh_shape, strict=True))
        )
        ids = [int(number) for number in device_ids]
        if ids != list(range(self.mesh.size)):
            raise NoEquivalentError(
                f"Mesh() got device_ids={ids!r:.60}: lazyrt's mesh has the first "
                f"{self.mesh.size} devices in order. Pass range({self.mesh.size})."
            )

    def size(self) -> int:
        """Return how many devices there are."""
        return self.mesh.size

    def shape(self) -> OrderedDict[str, int]:
        """Return how many devices there are along each axis."""
        return OrderedDict(self.mesh.axes)

    def spec(self, partition_spec: Sequence[Any]) -> tuple[Any, ...]:
        """Return a specification with names in place of numbers of axes."""
        return tuple(self._named(entry) for entry in partition_spec)

    def _named(self, entry: Any) -> Any:
        if isinstance(entry, int):
            return self.axis_names[entry]
        return tuple(map(self._named, entry)) if isinstance(entry, tuple) else entry


@dataclass(frozen=True, slots=True)
class ShardingSpec:
    """How a loader splits each batch: tensors of as many dimensions as the specification has."""

    mesh: Mesh
    partition_spec: Sequence[Any]

    def apply(self, batch: Any) -> Any:
        """Split the tensors of a batch."""
        if isinstance(batch, dict):
            for each in batch.values():
                self.apply(each)
        elif isinstance(batch, (list, tuple)):
            for each in batch:
                self.apply(each)
        elif getattr(batch, "ndim", None) == len(self.partition_spec):
            mark_sharding(batch, self.mesh, self.partition_spec)
        return batch


def mark_sharding(
    t: torch.Tensor, mesh: Mesh, partition_spec: Sequence[Any]
) -> torch.Tensor:
    """Split a tensor in place; see `lazyrt.shard`."""
    _latest[:] = [mesh]
    return lazyrt.shard(t, mesh.mesh, mesh.spec(partition_spec))


mark_sharding_with_gradients = mark_sharding


def clear_sharding(t: torch.Tensor) -> torch.Tensor:
    """Let a tensor be whole on each device again."""
    return lazyrt.shard(t, _latest[0].mesh, ()) if _latest else t


def get_1d_mesh(axis_name: str | None = None, num_devices: int | None = None) -> Mesh:
    """Return a mesh of all devices, or of some, in one row."""
    from lazyrt.compat.runtime import global_runtime_device_count

    count = num_devices or global_runtime_device_count()
    return Mesh(range(count), (count,), (axis_name,) if axis_name else None)


def set_global_mesh(mesh: Mesh) -> None:
    """Make a mesh what `get_global_mesh` returns."""
    _global[:] = [mesh]


def get_global_mesh() -> Mesh | None:
    """Return the mesh of `set_global_mesh`."""
    return _global[0] if _global else None


def require_global_mesh(caller: str) -> Mesh:
    """Return the mesh of `set_global_mesh`.

    Raises:
        UsageError: There is none.
    """
    if not _global:
        raise UsageError(
            f"{caller} got no mesh, and there is no global one. Pass mesh=, or call "
            "set_global_mesh() first."
        )
    return _global[0]
