"""`torch_xla.core.xla_model` over lazyrt: devices, barriers, closures, saving."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

import lazyrt
from lazyrt.compat import common
from lazyrt.compat.common import (
    INTERNAL,
    NO_REPLICAS,
    of_replicas,
    only_one,
    refuse,
)
from lazyrt.config import config
from lazyrt.control.loader import to_device
from lazyrt.errors import NoEquivalentError
from lazyrt.frontend.torch_compat import is_lazy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = [
    "REDUCE_AND", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_MUL", "REDUCE_OR", "REDUCE_SUM",
    "RateTracker", "add_step_closure", "all_gather", "all_reduce", "all_to_all",
    "broadcast_master_param", "collective_broadcast", "do_on_ordinals", "enable_eager_execution", "fork_rng", "get_local_ordinal",
    "get_memory_info", "get_ordinal", "get_rng_state", "get_stablehlo",
    "get_xla_supported_devices", "is_master_ordinal", "is_xla_tensor", "mark_step",
    "master_print", "mesh_reduce", "optimizer_step", "reduce_gradients", "reduce_scatter",
    "rendezvous", "save",
    "send_cpu_data_to_device", "set_rng_state", "unlazy", "wait_device_ops", "xla_device",
    "xla_device_hw", "xla_real_devices", "xrt_world_size",
]  # fmt: skip

REDUCE_SUM, REDUCE_MUL = "sum", "mul"
REDUCE_AND, REDUCE_OR = "and", "or"
REDUCE_MIN, REDUCE_MAX = "min", "max"

REFUSED = {
    **dict.fromkeys(
        ("set_replication", "xla_replication_devices", "xla_rendezvous"), NO_REPLICAS
    ),
    **dict.fromkeys(
        ("reduce_scatter_bucketized", "all_gather_bucketized",
         "all_reduce_bucketized_gradients"),
        "buckets are DistributedDataParallel's and fully_shard's affair. Use the name without "
        "`bucketized`",
    ),
    "collective_permute": "all ranks run one program. Use all_to_all() or all_gather()",
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


@of_replicas
def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """Return the lazy device; `n` is None or 0."""
    only_one("xla_device()", "n", n, allowed=0)
    common.take_switches()
    return lazyrt.device()


@of_replicas
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


@of_replicas
def xrt_world_size(defval: int = 1) -> int:
    """Return how many processes the process group has; 1 without one."""
    return common.world_size()


@of_replicas
def get_ordinal(defval: int = 0) -> int:
    """Return the number of this process."""
    return common.ordinal()


@of_replicas
def get_local_ordinal(defval: int = 0) -> int:
    """Return the number of this process on this machine."""
    return common.local("LOCAL_RANK", common.ordinal())


@of_replicas
def is_master_ordinal(local: bool = True) -> bool:
    """Return whether this process is the first one, of its machine or of all."""
    return (get_local_ordinal() if local else common.ordinal()) == 0


@of_replicas
def master_print(
    *args: Any, fd: Any = None, local: bool = False, flush: bool = False
) -> None:
    """Print in the first process."""
    if is_master_ordinal(local):
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


@of_replicas
def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: dict[str, Any] | None = None,
    groups: Any = None,
    pin_layout: bool = True,
) -> Any:
    """Average gradients over the processes and call `optimizer.step()`; a barrier if asked."""
    reduce_gradients(optimizer, groups)
    return lazyrt.optimizer_step(optimizer, barrier=barrier, **(optimizer_args or {}))


# ---------------------------------------------------------------------------- collectives
# Of the process group `lazyrt`; without one this process is the only replica.

_KINDS = {
    REDUCE_SUM: "SUM", REDUCE_MUL: "PRODUCT", REDUCE_AND: "BAND", REDUCE_OR: "BOR",
    REDUCE_MIN: "MIN", REDUCE_MAX: "MAX",
}  # fmt: skip
_made: dict[tuple[int, ...], Any] = {}


def _kind(reduce_type: str) -> Any:
    if reduce_type not in _KINDS:
        raise NoEquivalentError(
            f"the reduction {reduce_type!r} has no equivalent in lazyrt. Use one of "
            f"{', '.join(map(repr, _KINDS))}."
        )
    return getattr(dist.ReduceOp, _KINDS[reduce_type])


def _group(groups: Any) -> Any:
    """Return the process group of this replica; all make all groups, as torch wants it."""
    for ranks in map(tuple, groups or ()):
        if ranks not in _made:
            _made[ranks] = dist.new_group([*ranks])
    own = [ranks for ranks in map(tuple, groups or ()) if common.ordinal() in ranks]
    return _made[own[0]] if own else None


def _run_pending_of_all() -> None:
    """Run what is pending before one process reads alone, since the others take part in it."""
    if not _is_alone():
        mark_step()


def _is_alone() -> bool:
    return common.world_size() == 1


@of_replicas
def reduce_gradients(
    optimizer: torch.optim.Optimizer, groups: Any = None, pin_layout: bool = True
) -> None:
    """Average the gradients of an optimizer's parameters over the processes."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad for p in parameters if p.grad is not None]
    count = len(groups[0]) if groups else common.world_size()
    all_reduce(REDUCE_SUM, gradients, scale=1.0 / count, groups=groups)


@of_replicas
def all_reduce(
    reduce_type: str,
    inputs: Any,
    scale: float = 1.0,
    groups: Any = None,
    pin_layout: bool = True,
) -> Any:
    """Reduce over the processes: a tensor gives a new one, a list is changed in place.

    One replica returns its inputs, as the original does.
    """
    is_one = isinstance(inputs, torch.Tensor)
    if _is_alone():
        return inputs.clone() if is_one else inputs
    with torch.no_grad():
        tensors = [inputs.detach().clone()] if is_one else inputs
        for tensor in tensors:
            dist.all_reduce(tensor, _kind(reduce_type), group=_group(groups))
            if scale != 1.0:
                tensor.mul_(scale)
    return tensors[0] if is_one else inputs


@of_replicas
def all_gather(
    value: torch.Tensor,
    dim: int = 0,
    groups: Any = None,
    output: torch.Tensor | None = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Return the tensors of all processes, joined along a dimension."""
    with torch.no_grad():
        rows = (value if value.dim() else value[None]).movedim(dim, 0).contiguous()
        count = 1 if _is_alone() else dist.get_world_size(_group(groups))
        whole = rows.new_empty((count * len(rows), *rows.shape[1:]))
        if _is_alone():
            whole.copy_(rows)
        else:
            dist.all_gather_single(whole, rows, group=_group(groups))
        found = whole.movedim(0, dim)
        return found if output is None else output.copy_(found)


@of_replicas
def reduce_scatter(
    reduce_type: str,
    input: torch.Tensor,  # noqa: A002 - the original's name
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Any = None,
    output: torch.Tensor | None = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Reduce over the processes, and return this one's part along a dimension."""
    with torch.no_grad():
        rows = input.movedim(scatter_dim, 0).contiguous()
        part = rows.clone() if _is_alone() else rows[: len(rows) // shard_count].clone()
        if not _is_alone():
            group = _group(groups)
            dist.reduce_scatter_single(part, rows, _kind(reduce_type), group=group)
        found = part.mul(scale).movedim(0, scatter_dim)
        return found if output is None else output.copy_(found)


@of_replicas
def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Any = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Give each process one part of the tensor, and join what they give."""
    if _is_alone():
        return value.clone()
    with torch.no_grad():
        parts = torch.stack(value.chunk(split_count, split_dimension))
        found = torch.empty_like(parts)
        dist.all_to_all_single(found, parts, group=_group(groups))
        return torch.cat([*found], concat_dimension)


@of_replicas
def collective_broadcast(
    tensors: Sequence[torch.Tensor],
    root_ordinal: int = 0,
    groups: Any = None,
    pin_layout: bool = True,
) -> None:
    """Give all processes the tensors of one, in place."""
    with torch.no_grad():
        for tensor in () if _is_alone() else tensors:
            dist.broadcast(tensor, root_ordinal, group=_group(groups))


@of_replicas
def broadcast_master_param(model: torch.nn.Module) -> None:
    """Give all processes the parameters and buffers of the first, and run what is pending."""
    collective_broadcast([*model.parameters(), *model.buffers()])
    mark_step()


@of_replicas
def rendezvous(
    tag: str, payload: bytes = b"", replicas: Iterable[int] = ()
) -> list[bytes]:
    """Run what is pending, wait for the other processes and return all payloads."""
    mark_step()
    return _of_all(payload, [[*replicas]] if replicas else None)


def _of_all(thing: Any, groups: Any = None) -> list[Any]:
    if _is_alone():
        return [thing]
    group = _group(groups)
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, thing, group=group)
    return found


@of_replicas
def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """Return `reduce_fn` of the data of all processes, moved to the CPU."""
    _run_pending_of_all()
    return reduce_fn(_of_all(_to_cpu(data)))


@of_replicas
def do_on_ordinals(
    target: Callable[..., Any],
    data: Sequence[Any] = (),
    ordinals: Iterable[int] = (0,),
) -> Any:
    """Return `target` of the data on the CPU in some processes, None in others; all meet."""
    _run_pending_of_all()
    found = target(*_to_cpu(data)) if common.ordinal() in ordinals else None
    _of_all(None)
    return found


def save(
    data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False
) -> None:
    """Move all tensors in `data` to the CPU and call `torch.save`; all processes call it.

    Args:
        data: What to save.
        file_or_path: Where.
        master_only: Whether only the first process writes, and the others wait for it.
        global_master: Whether that is the first of all, not of each machine.
    """
    _run_pending_of_all()
    if not master_only or is_master_ordinal(local=not global_master):
        torch.save(_to_cpu(data), file_or_path)
    _of_all(None)


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


enable_eager_execution = lazyrt.enable_eager_execution


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
