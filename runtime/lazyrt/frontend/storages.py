"""What a storage tells about itself: size, address, bytes.

torch's storages of this device are empty, because data lives in XLA's memory and may not exist
yet. Libraries ask storages whether tensors share memory (safetensors, transformers, FSDP), so
their answers must be right: all tensors on one buffer give its size and one address, and a
view's address lies as far behind its base's as on the CPU. The addresses are made up. They are
no memory, and a program that follows one fails as it does with a CUDA tensor's address.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from lazyrt.frontend import reads
from lazyrt.frontend import torch_compat as compat
from lazyrt.frontend.kernels import wrap
from lazyrt.ir.live import Buffer, lock
from lazyrt.ir.node import Value

if TYPE_CHECKING:
    from lazyrt.frontend.buffers import State

# No address of user memory begins there on the supported machines.
_FIRST_ADDRESS = 1 << 60
_ALIGNMENT = 64

_next_address = _FIRST_ADDRESS


def install() -> None:
    """Route the questions about lazy storages to this module."""
    compat.patch_tensor_method("data_ptr", _tensor_address)
    for name, answer in (
        ("nbytes", size_bytes), ("size", size_bytes), ("__len__", size_bytes),
        ("data_ptr", address), ("cpu", host_storage), ("tolist", _bytes_list),
    ):  # fmt: skip
        compat.patch_storage_method(name, answer)


def size_bytes(storage: torch.UntypedStorage) -> int:
    """Return how many bytes a lazy storage stands for; a view's are those of its base."""
    base = _base(storage)
    if base is None:
        return 0
    shape, dtype, _ = base.type
    return math.prod(shape) * dtype.itemsize


def address(storage: torch.UntypedStorage) -> int:
    """Return the made-up address of a lazy storage, 0 for one without bytes."""
    size = size_bytes(storage)
    if size == 0:
        return 0
    base = _base(storage)
    assert base is not None
    return _address_of(base, size)


def _tensor_address(_original: Any, tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    offset = int(tensor.storage_offset()) * tensor.itemsize
    return address(tensor.untyped_storage()) + offset


def host_storage(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return a CPU storage with the bytes of a lazy one: a program's read."""
    base = _base(storage)
    if base is None:
        return torch.UntypedStorage(0)
    with lock:
        shape, dtype, strides = base.type
        whole = wrap(base, Value(None, 0, shape, dtype, strides))
    host = reads.read(whole, "UntypedStorage.cpu()")
    return host.untyped_storage()


def _bytes_list(storage: torch.UntypedStorage) -> list[int]:
    found: list[int] = host_storage(storage).tolist()
    return found


def _base(storage: torch.UntypedStorage) -> Buffer | None:
    state: State | None = getattr(storage, "_lazyrt", None)
    # A checkpoint's storage waits for the tensors that will be made of it.
    return getattr(state, "base", None)


def _address_of(base: Buffer, size: int) -> int:
    global _next_address
    with lock:
        try:
            return base.address
        except AttributeError:
            base.address = _next_address
            _next_address += (size // _ALIGNMENT + 2) * _ALIGNMENT
            return base.address
