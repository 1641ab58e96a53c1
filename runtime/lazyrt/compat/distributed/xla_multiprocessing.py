"""`torch_xla.distributed.xla_multiprocessing` over lazyrt: one replica, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazyrt.compat.common import ONE_DEVICE, one_replica, only_one, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["spawn"]

REFUSED = {"MpModelWrapper": ONE_DEVICE, "MpSerialExecutor": ONE_DEVICE}
__getattr__ = refuse("torch_xla.distributed.xla_multiprocessing", REFUSED)


@one_replica
def spawn(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> None:
    """Call `fn(0, *args)` in this process: there is one replica."""
    only_one("spawn()", "nprocs", nprocs, allowed=1)
    fn(0, *args)
