"""`torch_xla.distributed.parallel_loader` over `lazyrt.DeviceLoader`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lazyrt
from lazyrt.compat.common import INTERNAL, only_one, refuse
from lazyrt.compat.distributed.spmd import ShardingSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["MpDeviceLoader", "ParallelLoader"]

REFUSED = {
    "PerDeviceLoader": "ParallelLoader(...).per_device_loader(device) returns one",
    "PerDeviceQueue": INTERNAL,
}
__getattr__ = refuse("torch_xla.distributed.parallel_loader", REFUSED)

_PREFETCH = 4


class MpDeviceLoader:
    """Batches on the lazy device, moved there ahead, with a barrier before each.

    Args:
        loader: What gives the batches.
        device: The lazy device.
        loader_prefetch_size: Has no meaning here: one thread loads and moves.
        device_prefetch_size: How many batches are moved ahead.
        batches_per_execution: How many batches share one execution.
        input_sharding: A `ShardingSpec` that splits each batch, or None.
        kwargs: Further arguments of the original, which have no meaning here.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: Any,
        *,
        loader_prefetch_size: int | None = None,
        device_prefetch_size: int = _PREFETCH,
        batches_per_execution: int = 1,
        input_sharding: Any = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(input_sharding, ShardingSpec):
            only_one("MpDeviceLoader()", "input_sharding", input_sharding, allowed=None)
        self._sharding: ShardingSpec | None = input_sharding
        self._loader: Any = lazyrt.DeviceLoader(
            loader,
            device,
            prefetch=device_prefetch_size,
            batches_per_execution=batches_per_execution,
        )

    def __iter__(self) -> Iterator[Any]:
        split = self._sharding
        return map(split.apply, self._loader) if split else iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)


class ParallelLoader:
    """Batches for one device.

    Args:
        loader: What gives the batches.
        devices: The lazy device in a list.
        kwargs: As for `MpDeviceLoader`.
    """

    def __init__(
        self, loader: Iterable[Any], devices: Sequence[Any], **kwargs: Any
    ) -> None:
        only_one("ParallelLoader()", "len(devices)", len(devices), allowed=1)
        self._loader = MpDeviceLoader(loader, devices[0], **kwargs)

    def per_device_loader(self, device: Any) -> MpDeviceLoader:
        """Return the batches of the device."""
        return self._loader

    def per_device_samples(self) -> int:
        """Return how many batches there are."""
        return len(self._loader)

    def close(self) -> None:
        """Do nothing: the thread ends with the iteration."""
