"""Copies of lazy tensors that later steps cannot change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazyrt import jax_compat
from lazyrt.frontend import reads
from lazyrt.frontend.buffers import state_of
from lazyrt.frontend.tensors import wrap
from lazyrt.frontend.torch_compat import is_lazy
from lazyrt.ir.live import Buffer, Lost, lock, made_in
from lazyrt.ir.node import Value

if TYPE_CHECKING:
    import torch


def copied(thing: Any) -> Any:
    """Return `thing` with the lazy tensors in it, and in its lists, tuples and dicts, copied.

    The copy of a computed tensor is made by the device, so nobody waits. A container without
    lazy tensors stays the same object: a program may collect results in it.
    """
    if is_lazy(thing):
        return _copy(thing)
    kind = type(thing)
    if kind not in {list, tuple, dict}:
        return thing
    old = list(thing.values()) if kind is dict else list(thing)
    new = [copied(part) for part in old]
    if all(after is before for after, before in zip(new, old, strict=True)):
        return thing
    return dict(zip(thing, new, strict=True)) if kind is dict else kind(new)


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
        own.run, own.slot = made_in(state.base)
        return wrap(own, Value(None, 0, *meta))
