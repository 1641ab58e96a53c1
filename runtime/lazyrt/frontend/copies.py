"""Copies of lazy tensors that later steps cannot change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazyrt import jax_compat
from lazyrt.frontend import reads
from lazyrt.frontend.buffers import state_of
from lazyrt.frontend.kernels import wrap
from lazyrt.frontend.torch_compat import is_lazy
from lazyrt.ir.live import Buffer, Lost, lock
from lazyrt.ir.node import Value

if TYPE_CHECKING:
    import torch


def copied(thing: Any) -> Any:
    """Return `thing` with the lazy tensors in it, and in its lists, tuples and dicts, copied.

    The copy of a computed tensor is made by the device, so nobody waits.
    """
    if is_lazy(thing):
        return _copy(thing)
    if type(thing) in {list, tuple}:
        return type(thing)([copied(part) for part in thing])
    if type(thing) is dict:
        return {key: copied(part) for key, part in thing.items()}
    return thing


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    with lock:
        state = state_of(tensor)
        meta = state.meta if isinstance(state, Buffer) else None
        if (
            state.is_pending
            or meta is None
            or isinstance(state.data, Lost)
            or meta[0] != tuple(tensor.shape)
        ):
            return reads.snapshot(tensor)
        own = Buffer(None)
        own.store(jax_compat.copy(state.data), meta)
        return wrap(own, Value(None, 0, *meta))
