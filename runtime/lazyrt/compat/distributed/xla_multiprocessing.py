"""`torch_xla.distributed.xla_multiprocessing` over lazyrt: the function runs in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazyrt.compat.common import (
    NO_REPLICAS,
    of_replicas,
    only_one,
    ordinal,
    refuse,
    world_size,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["spawn"]

REFUSED = {"MpModelWrapper": NO_REPLICAS, "MpSerialExecutor": NO_REPLICAS}
__getattr__ = refuse("torch_xla.distributed.xla_multiprocessing", REFUSED)


@of_replicas
def spawn(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> None:
    """Call `fn(ordinal, *args)` in this process; a launcher starts the others."""
    only_one("spawn()", "nprocs", nprocs, allowed=world_size())
    fn(ordinal(), *args)
