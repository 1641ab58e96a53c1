"""`torch_xla.experimental.spmd_fully_sharded_data_parallel` over `lazyrt.shard`: FSDPv2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lazyrt.compat.common import refuse
from lazyrt.compat.distributed.spmd import Mesh, mark_sharding, require_global_mesh

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SpmdFullyShardedDataParallel"]

REFUSED: dict[str, str] = {}
__getattr__ = refuse("torch_xla.experimental.spmd_fully_sharded_data_parallel", REFUSED)

_AXIS = "fsdp"


class SpmdFullyShardedDataParallel(nn.Module):
    """A module whose parameters are split over the axis `fsdp` of a mesh.

    Each parameter is split along its first dimension that divides, and stays whole where none does.

    Args:
        module: The module, on the device.
        mesh: A mesh with an axis `fsdp`; by default the global one.
        shard_output: Splits what the module returns, given it and the mesh; by default the first
            dimension of a tensor, of the first of several, or of `logits`.
        kwargs: Further arguments of the original, which have no meaning here.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        mesh: Mesh | None = None,
        shard_output: Callable[[Any, Mesh], None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self._orig_module = module
        self._mesh = mesh or require_global_mesh("SpmdFullyShardedDataParallel()")
        self._shard_output = shard_output or _shard_rows
        for parameter in module.parameters():
            _shard_first(parameter, self._mesh)

    @property
    def module(self) -> nn.Module:
        """The module."""
        return self._orig_module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module and split what it returns."""
        output = self._orig_module(*args, **kwargs)
        self._shard_output(output, self._mesh)
        return output

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "_orig_module":
                raise
            return getattr(self._orig_module, name)


def _shard_first(tensor: torch.Tensor, mesh: Mesh) -> None:
    """Split a tensor along its first dimension that divides."""
    parts = mesh.shape()[_AXIS]
    for dim, size in enumerate(tensor.shape):
        if size % parts == 0:
            mark_sharding(tensor, mesh, (*[None] * dim, _AXIS))
            return


def _shard_rows(output: Any, mesh: Mesh) -> None:
    if isinstance(output, tuple):
        output = output[0]
    output = getattr(output, "logits", output)
    parts = mesh.shape()[_AXIS]
    if isinstance(output, torch.Tensor) and output.ndim and len(output) % parts == 0:
        mark_sharding(output, mesh, (_AXIS,))
