"""Copies of lazy tensors that later steps cannot change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.dlpack import DLDeviceType

from lazyrt import jax_compat
from lazyrt.frontend import reads
from lazyrt.frontend import torch_compat as compat
from lazyrt.frontend.buffers import state_of, wrap
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


# ------------------------------------------------------------------------------- DLPack
# torch itself would hand out a capsule with a null address, because a lazy tensor's data may not
# exist yet and lies in XLA's memory when it does. An export is a read, like `.numpy()`.
#
# `torch.from_dlpack` of a lazy tensor needs no capsule: it gives a tensor of the device that shares
# the storage, as it does on other devices. A capsule cannot say which lazy tensor it came from, so a
# capsule that is imported again is the copy.


def install_dlpack() -> None:
    """Route DLPack exports of lazy tensors to this module."""
    compat.patch_tensor_method("__dlpack_device__", _device)
    compat.patch_tensor_method("__dlpack__", _export)
    compat.patch_to_dlpack(lambda tensor: reads.read(tensor, "to_dlpack()"))
    compat.patch_from_dlpack(_share)


def _share(tensor: torch.Tensor, copy: bool | None) -> torch.Tensor:  # noqa: FBT001
    _check_history(tensor)
    return tensor.clone() if copy else tensor.detach()


def _check_history(tensor: torch.Tensor) -> None:
    if tensor.requires_grad:
        raise BufferError(
            "Can't export tensors that require gradient, use tensor.detach()"
        )


def _device(_original: Any, _self: torch.Tensor) -> tuple[Any, int]:
    return (DLDeviceType.kDLCPU, 0)


def _export(
    _original: Any,
    self: torch.Tensor,
    *,
    stream: Any = None,  # noqa: ARG001 - part of the protocol; the CPU has none
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[Any, int] | None = None,
    copy: bool | None = None,
) -> Any:
    _check_history(self)
    if copy is False:
        raise BufferError(
            f"__dlpack__(copy=False) of a lazy tensor of shape {tuple(self.shape)} is impossible: "
            "its data is in XLA's memory, and what leaves the device is a copy. Leave `copy` out."
        )
    host = reads.read(self, "__dlpack__()")
    return host.__dlpack__(max_version=max_version, dl_device=dl_device)
