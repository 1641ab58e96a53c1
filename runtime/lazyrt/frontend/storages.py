"""What a storage tells about itself, its bytes, and tensors that are set to show it.

torch's storages of this device are empty: data lives in XLA's memory and may not exist yet.
Libraries ask storages whether tensors share memory (safetensors, transformers, FSDP), so all
tensors on one buffer give its size and one made-up address, and a view's address lies as far
behind it as on the CPU. Bytes are read by a copy on the CPU; only tensors can be written.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from lazyrt.errors import NoLoweringError, UsageError
from lazyrt.execution.transfer import to_device
from lazyrt.frontend import provenance, reads
from lazyrt.frontend import torch_compat as compat
from lazyrt.frontend.buffers import State, View, current_value, state_of, wrap
from lazyrt.frontend.record import functional
from lazyrt.frontend.torch_compat import DEVICE_TYPE, aten, create_empty_tensor
from lazyrt.frontend.views import check_bounds, make_view, root_as
from lazyrt.ir.live import Buffer, Lost, lock, pending
from lazyrt.ir.node import Value, strides_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# No address of user memory begins there on the supported machines.
_FIRST_ADDRESS = 1 << 60
_ALIGNMENT = 64
_RELEASED = "its storage was resized to 0 bytes, which frees it. Resize it back and write it first."

_next_address = _FIRST_ADDRESS


def install() -> None:
    """Route the questions about lazy storages to this module."""
    compat.patch_tensor_method("data_ptr", _tensor_address)
    for name, answer in (
        ("nbytes", size_bytes), ("size", size_bytes), ("__len__", size_bytes),
        ("data_ptr", address), ("cpu", host_storage), ("tolist", lambda storage: host_storage(storage).tolist()),
        ("__iter__", lambda storage: iter(host_storage(storage))), ("__repr__", _text),
        ("__getitem__", lambda storage, index: host_storage(storage)[index]),
        ("__deepcopy__", _deep_copy_storage), ("resize_", _resize), ("copy_", _copy),
        ("__setitem__", _refuse), ("fill_", _refuse), ("new", _refuse), ("_byteswap", _refuse),
    ):  # fmt: skip
        compat.patch_storage_method(name, answer)
    compat.patch_storage_constructor(_refuse)


def _refuse(*_: object, **__: object) -> NoReturn:
    """Refuse to make a storage, or to write to one by itself."""
    raise NoLoweringError(
        f"the bytes of a storage were to be written on {DEVICE_TYPE}, which keeps none: tensors share "
        "values there, no raw memory. Write to a tensor that shows the storage, or copy a CPU tensor."
    )


def size_bytes(storage: torch.UntypedStorage) -> int:
    """Return how many bytes a lazy storage stands for; a view's are those of its base."""
    state = _state(storage)
    if state is None:
        return 0
    if isinstance(state, HostBytes):
        return state.storage.nbytes()
    if _is_released(state.base):
        return 0
    shape, dtype, _ = state.base.type
    return math.prod(shape) * dtype.itemsize


def address(storage: torch.UntypedStorage) -> int:
    """Return the made-up address of a lazy storage, 0 for one without bytes."""
    size, state = size_bytes(storage), _state(storage)
    if size == 0 or state is None:
        return 0
    return _address_of(state if isinstance(state, HostBytes) else state.base, size)


def _tensor_address(_original: Any, tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    offset = int(tensor.storage_offset()) * tensor.itemsize
    return address(tensor.untyped_storage()) + offset


def host_storage(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return a CPU storage with the bytes of a lazy one: a program's read."""
    return _on_host(storage, lambda whole: reads.read(whole, "UntypedStorage.cpu()"))


def _on_host(
    storage: torch.UntypedStorage, fetch: Callable[[torch.Tensor], torch.Tensor]
) -> torch.UntypedStorage:
    state = _state(storage)
    if state is None:
        return torch.UntypedStorage(0)
    if isinstance(state, HostBytes):
        found: torch.UntypedStorage = state.storage.clone()
        return found
    return fetch(_whole(state.base)).untyped_storage()


def _whole(base: Buffer) -> torch.Tensor:
    """Return a tensor that shows all of a buffer."""
    with lock:
        return wrap(base, Value(None, 0, *base.type))


def deep_copy(tensor: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
    """Return a tensor that shows a copy of a lazy tensor's storage as the tensor shows its own.

    Storages and tensors on one buffer share one copy of it.
    """
    state = _copied(state_of(tensor), memo)
    return wrap(state, current_value(state))


def _deep_copy_storage(
    storage: torch.UntypedStorage, memo: dict[Any, Any]
) -> torch.UntypedStorage:
    state = _state(storage)
    if state is None or isinstance(state, HostBytes):
        if storage not in memo:
            memo[storage] = storage.clone()
        made: torch.UntypedStorage = memo[storage]
        return made
    with torch.no_grad():
        return _whole(_copied(state.base, memo).base).untyped_storage()


def _copied(state: State, memo: dict[Any, Any]) -> State:
    """Return the copy of a buffer, or the same view of it."""
    if isinstance(state, Buffer):
        if state not in memo:
            memo[state] = state_of(_whole(state).clone())
        found: Buffer = memo[state]
        return found
    parent = _copied(state.parent, memo)
    with lock:
        value = functional(state.op, (current_value(parent), *state.args))
        view = View(parent, state.op, state.args, value)
    view.offset = state.offset
    return view


def _text(storage: torch.UntypedStorage) -> str:
    """Return what the CPU prints, by a peek."""
    host = _on_host(storage, lambda whole: reads.peek(whole, provenance.user_site(2)))
    return repr(host).replace("(device=cpu)", f"(device={storage.device})")


def _copy(
    storage: torch.UntypedStorage, source: torch.UntypedStorage, *_: object
) -> torch.UntypedStorage:
    """Copy the bytes of a lazy storage to one of the CPU."""
    if storage.device.type == DEVICE_TYPE:
        _refuse()
    return storage.copy_(host_storage(source))


def _resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
    """Free a storage's memory, as FSDP does between uses, or give it back; its values are lost."""
    state, now = _state(storage), size_bytes(storage)
    if size == now or not isinstance(state, (Buffer, View)):
        return storage
    base = state.base
    whole = math.prod(base.type[0]) * base.type[1].itemsize
    if size == 0:
        _release(base)
    elif now == 0 and size == whole:
        shape, dtype, _ = base.type
        fresh = torch.empty(shape, dtype=dtype, device=DEVICE_TYPE)
        with lock:
            base.data = base.meta = None
            base.write(current_value(state_of(fresh)))
    else:
        raise UsageError(
            f"UntypedStorage.resize_({size}) of a storage of {now} bytes on the device lazyrt: "
            "tensors share values here, no memory that could grow. 0 frees it, and "
            f"{whole} gives it back; for another size call `t.resize_(shape)`."
        )
    return storage


def _release(base: Buffer) -> None:
    """Let a buffer hold nothing, neither data nor what a step would compute for it."""
    with lock:
        base.meta = base.type
        base.value = None
        base.data = Lost(_RELEASED)
        base.version += 1
        pending.buffers.pop(base, None)
        pending.parked.pop(base, None)


def _is_released(base: Buffer) -> bool:
    return (
        base.value is None
        and isinstance(base.data, Lost)
        and base.data.reason is _RELEASED
    )


def _state(storage: torch.UntypedStorage) -> State | HostBytes | None:
    found: State | HostBytes | None = getattr(storage, "_lazyrt", None)
    return found


def _address_of(base: Buffer | HostBytes, size: int) -> int:
    global _next_address
    with lock:
        try:
            return base.address
        except AttributeError:
            base.address = _next_address
            _next_address += (size // _ALIGNMENT + 2) * _ALIGNMENT
            return base.address


def set_storage_(
    self: torch.Tensor, source: Any, offset: int = 0, size: Sequence[int] = (),
    stride: Sequence[int] = (),
) -> torch.Tensor:  # fmt: skip
    """`aten.set_.source_Storage_storage_offset`, for storages of this device."""
    storage = source.untyped() if hasattr(source, "untyped") else source
    state = getattr(storage, "_lazyrt", None)
    if isinstance(state, HostBytes):
        self.data = state.tensor(self.dtype, offset, tuple(size), tuple(stride))
        return self
    if state is None:
        raise NoLoweringError(
            "set_() got a storage that lazyrt did not make. The device keeps no raw bytes. "
            "Copy a CPU tensor to the device instead."
        )
    shape, dtype, strides = state.type
    is_whole = tuple(size) == shape and strides is None and offset == 0
    if is_whole and self.dtype is dtype:
        self.data = wrap(state, current_value(state))
    else:
        root = root_as(state.base, self.dtype)
        args = (tuple(size), tuple(stride), offset)
        check_bounds(root, args)
        self.data = make_view(self, aten.as_strided.default, args, root)
    return self


class HostBytes:
    """A storage that was read from a checkpoint and belongs to the device.

    The device keeps no raw bytes, so the CPU storage waits for the tensors that checkpoints
    build on it; equal ones share one buffer, as tied weights must.

    Attributes:
        storage: The bytes.
        address: Where it pretends to lie, once somebody has asked.
    """

    address: int

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self._buffers: dict[Any, Buffer] = {}

    def tensor(
        self,
        dtype: torch.dtype,
        offset: int,
        size: tuple[int, ...],
        stride: tuple[int, ...],
    ) -> torch.Tensor:
        """Return the lazy tensor that shows a part of the storage."""
        host = torch.empty(0, dtype=dtype).set_(self.storage, offset, size, stride)
        buffer = self._buffers.get((dtype, offset, size, stride))
        kind = (size, dtype, strides_of(host))
        if buffer is None:
            buffer = self._buffers[dtype, offset, size, stride] = Buffer(None)
            with lock:
                buffer.store(to_device(host), kind)
                buffer.made_at = provenance.user_site(2)
        return wrap(buffer, Value(None, 0, *kind))


def storage_to_device(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return a storage of the device that stands for a CPU storage's bytes."""
    holder = create_empty_tensor((0,), torch.uint8).untyped_storage()
    holder._lazyrt = HostBytes(storage)  # type: ignore[attr-defined]
    return holder


def set_whole_storage_(self: torch.Tensor, source: Any) -> torch.Tensor:
    """`aten.set_.source_Storage`: the tensor shows all of a storage, flat."""
    storage = source.untyped() if hasattr(source, "untyped") else source
    count = storage.nbytes() // self.itemsize
    return set_storage_(self, storage, 0, (count,), (1,))


def is_set_to(self: torch.Tensor, other: torch.Tensor) -> bool:
    """`aten.is_set_to`: whether two tensors show the same storage the same way."""
    return (
        state_of(self) is state_of(other)
        and self.shape == other.shape
        and self.stride() == other.stride()
    )
