"""`torch_xla.core.xla_model` over lazyrt: devices, barriers, closures, saving."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import torch

import lazyrt
from lazyrt.compat import common
from lazyrt.compat.common import (
    INTERNAL,
    ONE_DEVICE,
    one_replica,
    only_one,
    refuse,
)
from lazyrt.config import config
from lazyrt.control.loader import to_device
from lazyrt.frontend.torch_compat import is_lazy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = [
    "REDUCE_AND", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_MUL", "REDUCE_OR", "REDUCE_SUM",
    "RateTracker", "add_step_closure", "all_reduce", "broadcast_master_param",
    "do_on_ordinals", "enable_eager_execution", "fork_rng", "get_local_ordinal",
    "get_memory_info", "get_ordinal", "get_rng_state", "get_stablehlo",
    "get_xla_supported_devices", "is_master_ordinal", "is_xla_tensor", "mark_step",
    "master_print", "mesh_reduce", "optimizer_step", "reduce_gradients", "rendezvous", "save",
    "send_cpu_data_to_device", "set_rng_state", "unlazy", "wait_device_ops", "xla_device",
    "xla_device_hw", "xla_real_devices", "xrt_world_size",
]  # fmt: skip

REDUCE_SUM, REDUCE_MUL = "sum", "mul"
REDUCE_AND, REDUCE_OR = "and", "or"
REDUCE_MIN, REDUCE_MAX = "min", "max"

REFUSED = {
    **dict.fromkeys(
        ("all_gather", "all_to_all", "collective_broadcast", "collective_permute",
         "reduce_scatter", "reduce_scatter_bucketized", "all_gather_bucketized",
         "all_reduce_bucketized_gradients", "set_replication", "xla_replication_devices",
         "xla_rendezvous"),
        ONE_DEVICE,
    ),
    **dict.fromkeys(
        ("ToXlaTensorArena", "DeviceContext", "XLA_LIB", "check_view_sharing",
         "parse_xla_device"),
        INTERNAL,
    ),
    "get_stablehlo_bytecode": "use get_stablehlo(), which gives the text",
    "optimization_barrier_": (
        "XLA decides itself what to compute twice. Leave the call out"
    ),
}  # fmt: skip
__getattr__ = refuse("torch_xla.core.xla_model", REFUSED)


@one_replica
def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """Return the lazy device; `n` is None or 0."""
    only_one("xla_device()", "n", n, allowed=0)
    common.take_switches()
    return lazyrt.device()


@one_replica
def get_xla_supported_devices(
    devkind: str | None = None, max_devices: int | None = None
) -> list[str]:
    """Return the one device's name in a list."""
    return [str(lazyrt.device())]


def xla_real_devices(devices: Sequence[Any] | None = None) -> list[str]:
    """Return what the lazy device is in truth, such as `CPU:0`."""
    return [f"{xla_device_hw()}:0"]


def xla_device_hw(device: Any = None) -> str:
    """Return the kind of hardware under the lazy device, such as `CPU`."""
    import jax

    return jax.default_backend().upper()


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is on the lazy device."""
    return is_lazy(tensor)


@one_replica
def xrt_world_size(defval: int = 1) -> int:
    """Return 1, the number of replicas."""
    return 1


@one_replica
def get_ordinal(defval: int = 0) -> int:
    """Return 0, the number of this replica."""
    return 0


@one_replica
def get_local_ordinal(defval: int = 0) -> int:
    """Return 0, the number of this replica on this host."""
    return 0


@one_replica
def is_master_ordinal(local: bool = True) -> bool:
    """Return True: the only replica is the master."""
    return True


@one_replica
def master_print(
    *args: Any, fd: Any = None, local: bool = False, flush: bool = False
) -> None:
    """Print; the only replica is the master."""
    print(*args, file=fd or sys.stdout, flush=flush)


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """Run everything pending, then the step closures.

    Args:
        wait: Whether to return only when the device is idle.
        reset_scope: Whether an open `xp.Trace` is an error, as in the original; False lets
            it go on after the barrier.
    """
    with contextlib.ExitStack() as stack:
        if not reset_scope:
            stack.enter_context(config.scoped(scope_policy="split"))
        lazyrt.mark_step()
    if wait:
        lazyrt.wait()


def add_step_closure(
    closure: Callable[..., Any], args: Sequence[Any] = (), run_async: bool = False
) -> None:
    """Call `closure(*args)` at the end of the step, when its values are there."""
    lazyrt.add_step_closure(closure, args, run_async=run_async)


@one_replica
def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: dict[str, Any] | None = None,
    groups: Any = None,
    pin_layout: bool = True,
) -> Any:
    """Call `optimizer.step()`, with a barrier after it if asked; there is nothing to reduce."""
    return lazyrt.optimizer_step(optimizer, barrier=barrier, **(optimizer_args or {}))


@one_replica
def reduce_gradients(
    optimizer: torch.optim.Optimizer, groups: Any = None, pin_layout: bool = True
) -> None:
    """Do nothing: one replica's gradients are the sum."""


@one_replica
def all_reduce(
    reduce_type: str,
    inputs: Any,
    scale: float = 1.0,
    groups: Any = None,
    pin_layout: bool = True,
) -> Any:
    """Return the inputs, as the original does with one replica: a tensor is copied."""
    return inputs.clone() if isinstance(inputs, torch.Tensor) else inputs


@one_replica
def broadcast_master_param(model: torch.nn.Module) -> None:
    """Run what is pending; one replica's parameters are the master's."""
    mark_step()


@one_replica
def rendezvous(
    tag: str, payload: bytes = b"", replicas: Iterable[int] = ()
) -> list[bytes]:
    """Run what is pending and return the payload in a list: nobody else comes."""
    mark_step()
    return [payload]


@one_replica
def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """Return `reduce_fn` of one replica's data, moved to the CPU."""
    return reduce_fn([_to_cpu(data)])


@one_replica
def do_on_ordinals(
    target: Callable[..., Any],
    data: Sequence[Any] = (),
    ordinals: Iterable[int] = (0,),
) -> Any:
    """Return `target` of the data on the CPU if replica 0 is asked, else None."""
    return target(*_to_cpu(data)) if 0 in ordinals else None


def save(
    data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False
) -> None:
    """Move all tensors in `data` to the CPU and call `torch.save`."""
    torch.save(_to_cpu(data), file_or_path)


def send_cpu_data_to_device(datas: Any, device: Any, input_sharding: Any = None) -> Any:
    """Return `datas` with its tensors on the device; a single tensor gives a list.

    Lists, tuples, dicts and dataclasses may be nested; what has a method `to` moves itself.
    """
    only_one(
        "send_cpu_data_to_device()", "input_sharding", input_sharding, allowed=None
    )
    if isinstance(datas, torch.Tensor):
        datas = [datas]
    return to_device(datas, torch.device(device))


def wait_device_ops(devices: Sequence[Any] = ()) -> None:
    """Wait until the device is idle."""
    lazyrt.wait()


def unlazy(tensors: Sequence[torch.Tensor]) -> None:
    """Run everything pending, more than these tensors, and wait."""
    lazyrt.mark_step()
    lazyrt.wait()


def set_rng_state(seed: int, device: Any = None) -> None:
    """Seed torch's generators, that of the lazy device included."""
    torch.manual_seed(seed)


def get_rng_state(device: Any = None) -> torch.Tensor:
    """Return the lazy device's random state; `set_rng_state` takes seeds, `fork_rng` states."""
    state: torch.Tensor = _rng().get_rng_state(lazyrt.device())
    return state


@contextlib.contextmanager
def fork_rng(device: Any = None, enabled: bool = True) -> Iterator[None]:
    """Give the lazy device its random state back at the end of the block."""
    if not enabled:
        yield
        return
    state = get_rng_state()
    try:
        yield
    finally:
        _rng().set_rng_state(state, lazyrt.device())


def get_memory_info(device: Any = None) -> dict[str, int]:
    """Return the bytes of live tensors, and those of the host's memory as the limit."""
    used = sum(tensor.nbytes for tensor in lazyrt.live_tensors() if not tensor.pending)
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"bytes_used": used, "bytes_limit": limit}


def get_stablehlo(tensors: Sequence[torch.Tensor] | None = None) -> str:
    """Return the StableHLO of what is pending, or of what some tensors need."""
    return lazyrt.pending_graph(*(tensors or ())).lower().as_text("stablehlo")


def enable_eager_execution() -> None:
    """Compile and run each op by itself from now on; legal at any time."""
    lazyrt.enable_eager_execution()


class RateTracker:
    """Counts things and says how many came a second, lately and overall.

    Args:
        smooth_factor: Share of the rate before in the next one, by default 0.4.
    """

    def __init__(self, smooth_factor: float | None = None) -> None:
        self._smoothing = 0.4 if smooth_factor is None else smooth_factor
        self._started = self._last = time.monotonic()
        self._new = self._all = 0.0
        self._rate: float | None = None

    def add(self, count: float) -> None:
        """Count something."""
        self._new += count
        self._all += count

    def rate(self) -> float:
        """Return the smoothed rate since the call before."""
        now = time.monotonic()
        elapsed = now - self._last
        if elapsed <= 0:
            return self._rate or 0.0
        rate = self._new / elapsed
        if self._rate is not None:
            rate = (1 - self._smoothing) * rate + self._smoothing * self._rate
        self._last, self._new, self._rate = now, 0.0, rate
        return rate

    def global_rate(self) -> float:
        """Return the rate since the tracker was made."""
        elapsed = time.monotonic() - self._started
        return self._all / elapsed if elapsed > 0 else 0.0


def _to_cpu(data: Any) -> Any:
    from torch.utils._pytree import tree_map_only

    return tree_map_only(
        torch.Tensor, lambda t: t.detach().cpu() if is_lazy(t) else t, data
    )


def _rng() -> Any:
    return torch.get_device_module(lazyrt.device())
