"""Kernels that are not generated: creation, copies, reads, metadata ops, and `out=`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from lazyrt.errors import DeviceError
from lazyrt.execution.transfer import to_device
from lazyrt.frontend import (
    argument_checks,
    generators,
    linear,
    provenance,
    reads,
    storages,
)
from lazyrt.frontend.buffers import component, emit, state_of, value_of, wrap
from lazyrt.frontend.fallback import run_on_cpu
from lazyrt.frontend.kernels import Kernel, functional_kernel, view_kernel, write
from lazyrt.frontend.record import FallbackNeeded, functional, operation
from lazyrt.frontend.torch_compat import (
    DEVICE_TYPE,
    TorchGenerator,
    aten,
    restride_stand_in,
)
from lazyrt.frontend.views import (
    as_strided,
    as_strided_copy,
    as_strided_scatter,
    make_view,
    resize,
)
from lazyrt.ir.live import (
    Buffer,
    Generator,
    leaf_of,
    lock,
    pending,
    random_leaf,
    undo_random,
)
from lazyrt.ir.node import Value, contiguous_strides, strides_of
from lazyrt.lowering import indexing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def _zeros(
    size: Sequence[int], dtype: torch.dtype | None, strides: Sequence[int] | None = None
) -> Any:
    """New storage is zero: reading memory that was never written would not be reproducible."""
    dtype = dtype or torch.get_default_dtype()
    is_whole = not (dtype.is_floating_point or dtype.is_complex)
    fill = component(False if dtype is torch.bool else 0 if is_whole else 0.0)
    value = functional(operation(aten.full.default), (tuple(size), fill, dtype))
    if strides is None:
        return value
    return functional(operation(indexing.restride), (value, tuple(strides)))


def empty(
    size: Sequence[int], dtype: torch.dtype | None = None, layout: Any = None,
    device: Any = None, pin_memory: Any = None, memory_format: Any = None,
) -> torch.Tensor:  # fmt: skip
    """`aten.empty.memory_format`."""
    argument_checks.check_index(device)
    strides = None
    if memory_format in {torch.channels_last, torch.channels_last_3d}:
        strides = torch.empty(size, device="meta", memory_format=memory_format).stride()
    with lock:
        return emit(_zeros(size, dtype, strides))  # type: ignore[no-any-return]


def empty_strided(
    size: Sequence[int], stride: Sequence[int], dtype: torch.dtype | None = None,
    layout: Any = None, device: Any = None, pin_memory: Any = None,
) -> torch.Tensor:  # fmt: skip
    """`aten.empty_strided`; strides with gaps or overlaps make a view of flat storage."""
    argument_checks.check_index(device)
    like = torch.empty_strided(size, stride, device="meta")
    with lock:
        if strides_of(like) is None:
            return emit(_zeros(size, dtype))  # type: ignore[no-any-return]
        if like.untyped_storage().nbytes() == like.nbytes:
            return emit(_zeros(size, dtype, stride))  # type: ignore[no-any-return]
        count = like.untyped_storage().nbytes() // like.itemsize
        flat = emit(_zeros((count,), dtype))
        args = (tuple(size), tuple(stride), 0)
        return make_view(flat, aten.as_strided.default, args)


def new_zeros_like_tangent(
    self: torch.Tensor, other: torch.Tensor, *, self_num_batch_dims: int = 0
) -> torch.Tensor:
    """`aten._new_zeros_with_same_feature_meta`: zeros for the tangent of `other`.

    They lie in a storage as `other` lies in its own, since views of both must do so. torch's own
    kernel goes by the bytes of the storage, of which the device has none. Its first dimensions may
    be a batch of tangents.
    """
    batch = tuple(self.shape[:self_num_batch_dims])
    if other.is_contiguous() and not other.storage_offset():
        return self.new_zeros((*batch, *other.shape), dtype=other.dtype)
    count = other.untyped_storage().nbytes() // other.itemsize
    steps = [count * step for step in contiguous_strides(batch)]
    flat = self.new_zeros(math.prod(batch) * count, dtype=other.dtype)
    places = ((*batch, *other.shape), (*steps, *other.stride()))
    return flat.as_strided(*places, other.storage_offset())


def factory_out(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return the kernel of a factory's out= form, such as `aten.linspace.out`.

    A flat result keeps the shape of an `out` with as many elements, as on the CPU.
    """

    def kernel(*args: Any, out: torch.Tensor) -> torch.Tensor:
        made = factory(*args, dtype=out.dtype, device=out.device)
        if made.dim() > 1 or made.numel() != out.numel():
            resize_(out, made.shape)
        return copy_(out, made.view(out.shape))

    return kernel


def inclusive_range(*args: Any, device: Any, **kind: Any) -> torch.Tensor:
    """Return what `torch.range` gives, which torch itself makes by its out= form."""
    made: torch.Tensor = aten.range.step(*args, device="cpu", **kind)
    return made.to(device)


def randperm_out(
    n: int, *, generator: torch.Generator | None = None, out: torch.Tensor
) -> torch.Tensor:
    """`aten.randperm.generator_out`, which draws as `torch.randperm` does."""
    made = torch.randperm(n, generator=generator, dtype=out.dtype, device=out.device)
    return copy_(resize_(out, made.shape), made)


def lazy_clone(self: torch.Tensor) -> torch.Tensor:
    """`aten._lazy_clone`: a clone; arrays are copied when they are written to in any case."""
    return self.clone()


def copy_(
    dst: torch.Tensor, src: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    """`aten.copy_`, in all directions."""
    if dst.device.type != DEVICE_TYPE:
        host = reads.read(src, "copy_ to another device")
        dst.copy_(_converted(host, dst.dtype))
        return dst
    if src.device.type == DEVICE_TYPE:
        argument_checks.warn_of_cast(src, dst.dtype)
        with lock:
            write(dst, value_of(src))
        return dst
    host = _converted(src, dst.dtype)
    with lock:
        state = state_of(dst)
        shape = tuple(dst.shape)
        if isinstance(state, Buffer) and host.shape == dst.shape:
            state.store(to_device(host), (shape, dst.dtype, strides_of(dst)))
            state.made_at = state.made_at or provenance.user_site(2)
            pending.activity += 1
            return dst
        source = Buffer(None)
        source.store(to_device(host), (tuple(host.shape), host.dtype, None))
        pending.transient.append(source)
        write(dst, leaf_of(source))
    return dst


def _converted(host: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of another device in a dtype, itself where it has it already."""
    argument_checks.warn_of_cast(host, dtype)
    if host.is_complex() and not dtype.is_complex and dtype is not torch.bool:
        host = host.real  # torch would warn again, of a line of ours
    return host.to(dtype)


def copy_from(
    src: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    """`aten._copy_from`: copy_ with its arguments the other way round."""
    return copy_(dst, src, non_blocking)


def copy_from_and_resize(src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    """`aten._copy_from_and_resize`."""
    if dst.shape != src.shape:
        dst.resize_(src.shape)
    return copy_(dst, src)


def to_copy(
    self: torch.Tensor, *, dtype: torch.dtype | None = None, layout: Any = None,
    device: torch.device | None = None, pin_memory: Any = None, non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:  # fmt: skip
    """`aten._to_copy`: a conversion on the device, or a transfer to or from it."""
    argument_checks.check_index(device)
    if self.device.type != DEVICE_TYPE:
        return _upload(self, dtype or self.dtype, memory_format)
    if device is not None and device.type != DEVICE_TYPE:
        host = reads.read(self, ".cpu()")
        if device.type != "cpu" or (dtype is not None and dtype is not host.dtype):
            return _converted(host, dtype or host.dtype).to(device)
        return host
    argument_checks.warn_of_cast(self, dtype or self.dtype)
    with lock:
        key = (
            value_of(self), dtype or self.dtype, None, None, None, False, memory_format,
        )  # fmt: skip
        return emit(functional(operation(aten._to_copy.default), key))  # type: ignore[no-any-return]


def _upload(
    source: torch.Tensor, dtype: torch.dtype, memory_format: torch.memory_format | None
) -> torch.Tensor:
    """Copy a tensor of another device into new storage."""
    argument_checks.check_layout(source)
    keep = torch.preserve_format if memory_format is None else memory_format
    host = _converted(source.detach().cpu(), dtype)
    like = torch.empty_like(host, device="meta", memory_format=keep)
    buffer = Buffer(None)
    with lock:
        buffer.store(to_device(host), (tuple(host.shape), dtype, strides_of(like)))
        buffer.made_at = provenance.user_site(2)
        pending.activity += 1
    return wrap(buffer, Value(None, 0, tuple(host.shape), dtype, strides_of(like)))


def item(self: torch.Tensor) -> Any:
    """`aten._local_scalar_dense`: `.item()`, `float(t)`, `bool(t)`."""
    if self.numel() != 1:
        raise RuntimeError(
            f"a Tensor with {self.numel()} elements cannot be converted to Scalar"
        )
    return reads.read(self, ".item()").item()


def is_nonzero(self: torch.Tensor) -> bool:
    """`aten.is_nonzero`: `bool(t)`, `if t:`."""
    if self.numel() != 1:
        many = "more than one value" if self.numel() else "no values"
        raise RuntimeError(f"Boolean value of Tensor with {many} is ambiguous")
    return bool(reads.read(self, "bool()").item())


def equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    """`aten.equal`: `torch.equal(a, b)`."""
    if self.shape != other.shape:
        return False
    return bool(reads.read((self == other).all(), "torch.equal()").item())


def unfold(self: torch.Tensor, dimension: int, size: int, step: int) -> torch.Tensor:
    """`aten.unfold`, as a strided view where the tensor's own layout allows it."""
    rank = self.dim()
    is_strided = (
        -rank <= dimension < rank
        and 0 <= size <= self.shape[dimension]
        and step > 0
        and self.is_contiguous()
        and state_of(self).base.type[2] is None
    )
    if not is_strided:  # a wrong call is refused there, in torch's words
        with lock:
            return make_view(self, aten.unfold.default, (dimension, size, step))
    dim = dimension % rank
    shape, strides = list(self.shape), list(self.stride())
    count = (shape[dim] - size) // step + 1
    return as_strided(
        self,
        [*shape[:dim], count, *shape[dim + 1 :], size],
        [*strides[:dim], strides[dim] * step, *strides[dim + 1 :], strides[dim]],
    )


def split_with_sizes(
    self: torch.Tensor, sizes: Sequence[int], dim: int = 0
) -> list[torch.Tensor]:
    """`aten.split_with_sizes`: slices, each a view."""
    if sum(sizes) != self.shape[dim]:
        raise RuntimeError(
            "split_with_sizes expects split_sizes to sum exactly to "
            f"{self.shape[dim]} (input tensor's size at dimension {dim}), but got {list(sizes)}"
        )
    parts, at = [], 0
    for size in sizes:
        parts.append(_slice(self, dim, at, at + size))
        at += size
    return parts


def _slice(self: torch.Tensor, dim: int, start: int, end: int) -> torch.Tensor:
    with lock:
        return make_view(self, aten.slice.Tensor, (dim, start, end, 1))


def resize_(
    self: torch.Tensor, size: Sequence[int], *, memory_format: Any = None
) -> torch.Tensor:
    """`aten.resize_`."""
    shape, strides = tuple(size), None
    if memory_format is not None:
        like = torch.empty(shape, device="meta", memory_format=memory_format)
        strides = tuple(like.stride())
    if tuple(self.shape) != shape or strides not in {None, tuple(self.stride())}:
        with lock:
            resize(self, shape, strides)
    return self


def set_tensor_(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """`aten.set_.source_Tensor`."""
    self.data = source
    return self


_plain_batch_norm = functional_kernel(aten.native_batch_norm.default)


def native_batch_norm(
    input: torch.Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any,  # noqa: A002
    training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    """`aten.native_batch_norm`, which updates the running statistics without its schema's word."""
    args = (input, weight, bias, running_mean, running_var, training, momentum, eps)
    if not training or running_mean is None or running_var is None:
        return _plain_batch_norm(*args)
    with lock:
        key = tuple([component(arg) for arg in args])
        legit = operation(aten._native_batch_norm_legit_functional.default)
        *results, mean, variance = functional(legit, key)
        write(running_mean, mean)
        write(running_var, variance)
        return emit(tuple(results))


def in_place_view(name: str) -> Callable[..., torch.Tensor]:
    """Return the kernel of `transpose_` and its like: the tensor becomes a view of itself."""
    func = IN_PLACE_VIEWS[name]
    view = as_strided if func is aten.as_strided.default else view_kernel(func)

    def kernel(self: torch.Tensor, *args: Any) -> torch.Tensor:
        if not hasattr(self.untyped_storage(), "_lazyrt"):
            # AOTAutograd's stand-in for a tensor: its sizes and strides alone change.
            restride_stand_in(name, self, *args)
            return self
        self.data = view(self, *args)
        return self

    return kernel


IN_PLACE_VIEWS: dict[str, torch._ops.OpOverload] = {
    "transpose_": aten.transpose.int,
    "t_": aten.t.default,
    "unsqueeze_": aten.unsqueeze.default,
    "squeeze_": aten.squeeze.default,
    "squeeze_.dim": aten.squeeze.dim,
    "squeeze_.dims": aten.squeeze.dims,
    "as_strided_": aten.as_strided.default,
}

SPECIAL: dict[str, Callable[..., Any]] = {
    "arange.start_out": factory_out(torch.arange),
    "eye.out": factory_out(torch.eye),
    "eye.m_out": factory_out(torch.eye),
    "linspace.out": factory_out(torch.linspace),
    "logspace.out": factory_out(torch.logspace),
    "range.out": factory_out(inclusive_range),
    "randperm.out": randperm_out,
    "randperm.generator_out": randperm_out,
    "_lazy_clone": lazy_clone,
    "empty.memory_format": empty,
    "empty_strided": empty_strided,
    "_new_zeros_with_same_feature_meta": new_zeros_like_tangent,
    "copy_": copy_,
    "_copy_from": copy_from,
    "_copy_from_and_resize": copy_from_and_resize,
    "_to_copy": to_copy,
    "_local_scalar_dense": item,
    "is_nonzero": is_nonzero,
    "equal": equal,
    "is_set_to": storages.is_set_to,
    "linear": linear.linear_kernel,
    "linear_backward": linear.linear_backward,
    "native_batch_norm": native_batch_norm,
    "as_strided": as_strided,
    "as_strided_copy": as_strided_copy,
    "as_strided_scatter": as_strided_scatter,
    "unfold": unfold,
    "split_with_sizes": split_with_sizes,
    "resize_": resize_,
    "set_.source_Tensor": set_tensor_,
    "set_.source_Storage": storages.set_whole_storage_,
    "set_.source_Storage_storage_offset": storages.set_storage_,
}


# -------------------------------------------------------------------------------- out=
# Kernels that write what an op has computed to tensors that they are given.


def out_kernel(func: torch._ops.OpOverload, pure: torch._ops.OpOverload) -> Kernel:
    """Return the kernel of `foo.out(..., out=t)`: t is resized where it must be, and written."""
    arguments = func._schema.arguments
    first_out = next(k for k, argument in enumerate(arguments) if argument.is_out)
    op = operation(pure)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        full = [
            *args,
            *(kwargs.get(a.name, a.default_value) for a in arguments[len(args) :]),
        ]
        given, targets = full[:first_out], full[first_out:]
        with lock:
            parts = tuple([component(arg) for arg in given])
            source = _source_among(full)
            key = (random_leaf(source), *parts) if op.is_random else parts
            try:
                result = functional(op, key)
                check_outs(func, targets, _matched(result, targets))
            except FallbackNeeded as needed:
                if op.is_random:
                    undo_random(source)
                pure_args = dict(zip((a.name for a in arguments), given, strict=False))
                made = run_on_cpu(pure, [], pure_args, str(needed))
                made = made if isinstance(made, (tuple, list)) else [made]
                result = [value_of(tensor) for tensor in made]
                check_outs(func, targets, _matched(result, targets))
            except BaseException:
                if op.is_random:
                    undo_random(source)
                raise
            for target, value in zip(targets, _matched(result, targets), strict=True):
                write_out(target, value)
        if not func._schema.returns:
            return None
        return targets[0] if len(targets) == 1 else tuple(targets)

    return kernel


def _matched(result: Any, targets: list[Any]) -> list[Any]:
    """Return what belongs to each `out=`: one value, or a list of them for a list."""
    is_one = result.__class__ not in (tuple, list) or _is_list(targets[0])
    return [result] if is_one else list(result)


def _is_list(arg: Any) -> bool:
    return arg.__class__ in (list, tuple)


def _source_among(args: list[Any]) -> Generator:
    """Return what an op with these arguments draws from."""
    given = [arg for arg in args if isinstance(arg, TorchGenerator)]
    return generators.source(given[0] if given else None)


def check_outs(
    func: torch._ops.OpOverload, targets: Sequence[Any], values: Sequence[Any]
) -> None:
    """Check that what an op has computed can be written to each `out=`, before any is written.

    It must not repeat elements, and must hold the result's kind of number, on this device.
    """
    for target, value in _pairs(targets, values):
        _check_out(func, target, value)


def _pairs(
    targets: Sequence[Any], values: Sequence[Any]
) -> Iterator[tuple[torch.Tensor, Value]]:
    for target, value in zip(targets, values, strict=True):
        if _is_list(target):
            yield from _pairs(target, value)
        else:
            yield target, value


def _check_out(func: torch._ops.OpOverload, target: torch.Tensor, value: Value) -> None:
    if target.device.type != DEVICE_TYPE:
        raise DeviceError(
            f"Expected all tensors to be on the same device, but out= is on {target.device}. An "
            f"op on {DEVICE_TYPE} writes there only. Leave out= away and copy the result."
        )
    if any(
        stride == 0 and size > 1
        for stride, size in zip(target.stride(), target.shape, strict=True)
    ):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            f"single memory location: out= of {func} has strides {tuple(target.stride())}. "
            "Please clone() the tensor before performing the operation."
        )
    if not torch.can_cast(value.dtype, target.dtype):
        raise RuntimeError(
            f"result type {value.dtype} can't be cast to the desired output type {target.dtype}"
        )


def write_out(target: Any, value: Any) -> None:
    """Write what an op has computed to its `out=`, which is resized where it must be."""
    for tensor, part in _pairs([target], [value]):
        if tuple(tensor.shape) != part.shape:
            argument_checks.warn_of_resize(tuple(tensor.shape), part.shape)
            resize(tensor, part.shape, part.strides)
        write(tensor, part)
