"""Views made by hand: by a view op, or of a storage as flat memory, and other sizes of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from lazyrt.errors import NoLoweringError
from lazyrt.frontend import buffers, record
from lazyrt.frontend.buffers import State, View, current_value, operand, state_of, wrap
from lazyrt.frontend.infer import infer
from lazyrt.frontend.record import functional, operation
from lazyrt.frontend.torch_compat import aten, plain_dispatch
from lazyrt.ir.live import Buffer, lock, pending
from lazyrt.ir.node import Value, contiguous_strides

if TYPE_CHECKING:
    from collections.abc import Sequence


def wrap_view(view: View, value: Value, viewed: torch.Tensor) -> torch.Tensor:
    """Return a view's tensor; that of a normal tensor is a normal one in inference mode, too."""
    if not torch.is_inference_mode_enabled() or viewed.is_inference():
        return wrap(view, value)
    with torch.inference_mode(mode=False):
        return wrap(view, value)


def check_start(tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Check that the elements of a larger dtype may begin where a view begins in its storage."""
    start = int(tensor.storage_offset())
    if start * tensor.itemsize % dtype.itemsize:
        whole = torch.empty(0, dtype=tensor.dtype, device="meta")
        with plain_dispatch():
            whole.as_strided(tensor.shape, tensor.stride(), start).view(dtype)


def track_offset(view: View, key: tuple[Any, ...]) -> None:
    """Note where in its base's storage a view begins, in elements of the view's own dtype."""
    before, result = key[0].dtype.itemsize, infer(view.op, key)
    start = view.parent.offset * before // result.dtype.itemsize
    view.offset = start + result.offset


def view_state(
    state: State, func: torch._ops.OpOverload, args: tuple[Any, ...]
) -> View:
    """Return a view of a storage, by recording the view op."""
    op = operation(func)
    key = record.complete(op, (current_value(state), *args))
    view = View(state, op, key[1:], functional(op, key))
    track_offset(view, key)
    return view


def make_view(
    viewed: torch.Tensor,
    func: torch._ops.OpOverload,
    args: tuple[Any, ...],
    state: State | None = None,
) -> torch.Tensor:
    """Return a view of a tensor, or of another state of its storage, by recording the view op."""
    view = view_state(state if state is not None else state_of(viewed), func, args)
    return wrap_view(view, view.value, viewed)


def as_strided(
    self: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None = None,
) -> torch.Tensor:
    """`aten.as_strided`: a view of the storage at the root, whatever `self` shows of it."""
    with lock:
        state = state_of(self)
        start = state.offset if offset is None else offset
        root = root_as(state, self.dtype)
        args = (tuple(size), tuple(stride), start)
        check_bounds(root, args)
        return make_view(self, aten.as_strided.default, args, root)


def check_bounds(root: State, places: tuple[Any, ...]) -> None:
    """Refuse places beyond the end of a storage, as the CPU does."""
    size, stride, offset = places
    shape, dtype, _ = root.type
    if 0 in size or len(size) != len(stride):
        return  # the second torch refuses in words of its own
    reach = offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if reach > math.prod(shape):
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, and "
            f"itemsize {dtype.itemsize} requiring a storage size of {reach * dtype.itemsize} are out "
            f"of bounds for storage of size {math.prod(shape) * dtype.itemsize}. The storage ends "
            f"before the last element. Pass smaller sizes or strides, or make a larger tensor."
        )


def as_strided_copy(
    self: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None = None,
) -> torch.Tensor:
    """`aten.as_strided_copy`: a copy of what the storage at the root shows in these places."""
    return as_strided(self, size, stride, offset).contiguous().clone()


def as_strided_scatter(
    self: torch.Tensor,
    source: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None = None,
) -> torch.Tensor:
    """`aten.as_strided_scatter`: a copy of the storage with `source` written to some places.

    The result shows of it what `self` shows of its own. Of an expanded tensor the copy is plain,
    as on the CPU.
    """
    if 0 in self.stride() and shows_twice(self):
        place = self.contiguous().clone()
    else:
        storage = flat_storage(self).clone()
        place = storage.as_strided(self.shape, self.stride(), self.storage_offset())
    target = place.as_strided(size, stride, offset)
    if target.shape != source.shape:
        raise RuntimeError(
            f"expected src to have a size equal to the slice of self: the slice has the shape "
            f"{tuple(target.shape)}, src {tuple(source.shape)}. Reshape src to that."
        )
    target.copy_(source)
    return place


def shows_twice(tensor: torch.Tensor) -> bool:
    """Return whether a lazy tensor may show an element of its storage more than once."""
    if isinstance(state_of(tensor), Buffer):
        return False
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def flat_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Return all elements of a lazy tensor's storage, flat: a view of it."""
    count = tensor.untyped_storage().nbytes() // tensor.itemsize
    return tensor.as_strided((count,), (1,), 0)


def root_as(state: State, dtype: torch.dtype) -> State:
    """Return the storage under a tensor as elements of the tensor's own dtype."""
    link = state
    while isinstance(link, buffers.View):  # eager debug mode gives `View` another class
        if link.op.func in {aten._conj.default, aten._neg_view.default}:
            raise NoLoweringError(
                f"as_strided on a view made by {link.op.name} has no lowering. The storage holds "
                "other numbers than the view shows. Call `.clone()` first."
            )
        link = link.parent
    root = _in_memory_order(state.base)
    if state.base.type[1] is dtype:
        return root
    shape, before, _ = root.type
    if before.is_complex and not dtype.is_complex:
        root = view_state(root, aten.view_as_real.default, ())
        shape = root.type[0]
    flat = view_state(root, aten.view.default, ((math.prod(shape),),))
    if flat.type[1] is dtype:
        return flat
    return view_state(flat, aten.view.dtype, (dtype,))


def _in_memory_order(base: Buffer) -> State:
    """Return a storage, or the permuted view of it that lists elements as strides place them."""
    shape, _, strides = base.type
    if strides is None or 0 in shape:
        return base
    order = tuple(sorted(range(len(shape)), key=lambda dim: -strides[dim]))
    value = functional(operation(aten.permute.default), (current_value(base), order))
    if value.strides is not None:
        raise NoLoweringError(
            f"as_strided on storage of shape {shape} with strides {strides} has no lowering: "
            "it has gaps or overlaps, and the device keeps no raw memory. Call "
            "`.contiguous()` first."
        )
    return View(base, operation(aten.permute.default), (order,), value)


def resize(
    tensor: torch.Tensor,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
) -> None:
    """Give a lazy tensor another shape: a part of its storage, where that is large enough.

    Else the tensor gets new storage with the elements of the old one from its own first on, then
    zeros; views of the old storage stay behind, unlike on the CPU.
    """
    state = state_of(tensor)
    held, dtype, _ = state.base.type
    if tensor.dtype is dtype and state.offset + math.prod(shape) <= math.prod(held):
        strides = strides or contiguous_strides(shape)
        tensor.data = as_strided(tensor, shape, strides, state.offset)
        return
    if tensor.dtype is dtype and (isinstance(state, View) or state.type[2] is not None):
        places = (math.prod(held) - state.offset,), (1,), state.offset
        old, count = operand(as_strided(tensor, *places)), places[0][0]
    else:
        old, count = operand(tensor), tensor.numel()
    wanted = math.prod(shape)
    flat = functional(operation(aten.reshape.default), (old, (count,)))
    if wanted < count:
        flat = functional(operation(aten.slice.Tensor), (flat, 0, 0, wanted))
    elif wanted > count:
        kind = ((wanted - count,), 0, old.dtype)
        rest = functional(operation(aten.full.default), kind)
        flat = functional(operation(aten.cat.default), ((flat, rest),))
    value = functional(operation(aten.reshape.default), (flat, shape))
    buffer = Buffer(value)
    pending.buffers[buffer] = None
    tensor.data = wrap(buffer, value)
    if strides is not None:
        tensor.data = as_strided(tensor, shape, strides, 0)
