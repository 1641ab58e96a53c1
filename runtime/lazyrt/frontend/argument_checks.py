"""Checks of arguments, and warnings, that torch's meta kernels leave to the CPU's own kernels.

Each takes what the op takes, with meta tensors, and raises the type of error that the CPU
raises. They run with the inference of a result's type: once for each kind of call.
"""

from __future__ import annotations

import functools
import math
import sys
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from lazyrt.errors import DeviceError
from lazyrt.frontend.provenance import is_own
from lazyrt.frontend.torch_compat import (
    DEVICE_TYPE,
    aten,
    find_overload,
    plain_dispatch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from types import FrameType

    from lazyrt.ir.node import Value


# --------------------------------------------------------------------- the CPU's errors
# torch's meta kernels refuse what the CPU refuses, often in words of their own ("Invalid channel
# dimensions"). So a call that was refused is made once more, on the CPU, with blank tensors of
# the same types; its message is raised instead. Nothing of it happens in a call that is right.


# A call on more is not made again: should the CPU accept it, it would take long.
_MOST_BYTES = 2**28
# Nor is one that a meta kernel takes, beyond so many elements.
_MOST_ELEMENTS = 2**20
# What a kernel raises for a wrong call; others, such as NotImplementedError, mean something else.
PLAIN = (RuntimeError, IndexError, ValueError, TypeError)


def refusal(call: Callable[[], Any], *also: type[Exception]) -> Exception | None:
    """Return the error of a call on the CPU if it is of the kind that tells a user what is wrong."""
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            call()
    except Exception as said:  # noqa: BLE001 - any other kind is no answer
        is_of_memory = isinstance(said, MemoryError) or "allocat" in str(said)
        return said if type(said) in (*PLAIN, *also) and not is_of_memory else None
    return None


def blank(value: Value) -> torch.Tensor:
    """Return a CPU tensor of a value's type: zeros, as a number may be a position.

    Complex numbers are 1j, which fits no real dtype.
    """
    strides = value.strides
    reach = math.prod(value.shape)
    if strides is not None and reach:
        pairs = zip(value.shape, strides, strict=True)
        reach = 1 + sum((size - 1) * stride for size, stride in pairs)
    if reach * value.dtype.itemsize > _MOST_BYTES:
        raise MemoryError
    fill = 1j if value.dtype.is_complex else 0
    flat = torch.full((reach,), fill, dtype=value.dtype, device="cpu")
    return (
        flat.view(value.shape)
        if strides is None
        else flat.as_strided(value.shape, strides)
    )


# A check's signature is its op's schema.


def _like_the_cpu(run: Callable[..., object]) -> Callable[..., None]:
    """Return a check that makes a call on the CPU and raises what that raises."""

    def checked(*args: Any, **keywords: Any) -> None:
        try:
            blanks = [_on_the_cpu(arg) for arg in args]
        except MemoryError:
            return
        with plain_dispatch():
            said = refusal(lambda: run(*blanks, **keywords))
        if said is not None:
            raise said

    return checked


def _on_the_cpu(arg: Any) -> Any:
    """Return an argument with blank CPU tensors for meta tensors: ones, or the position zero."""
    if isinstance(arg, (list, tuple)):
        return [_on_the_cpu(part) for part in arg]
    if not isinstance(arg, torch.Tensor):
        return arg
    if arg.numel() > _MOST_ELEMENTS:
        raise MemoryError
    fill = arg.dtype.is_floating_point or arg.dtype.is_complex
    return torch.full(arg.shape, fill, dtype=arg.dtype, device="cpu")


def _has_kernel(
    x: Tensor, *_: object, also: Collection[torch.dtype] = (), **__: object
) -> None:
    """Leave a dtype to the CPU that it has no kernel for: it says so."""
    if not x.is_floating_point() and x.dtype not in also:
        raise NotImplementedError(f"the CPU has no kernel for {x.dtype}")


_COMPLEX = (torch.complex64, torch.complex128)
_of_bytes = functools.partial(_has_kernel, also=(torch.uint8,))
_of_complex = functools.partial(_has_kernel, also=_COMPLEX)
_of_images = functools.partial(_has_kernel, also=(torch.uint8, *_COMPLEX))


def _name(dtype: torch.dtype) -> str:
    """Return what torch's errors call a dtype, such as `Float`."""
    return torch.empty(0, dtype=dtype, device="cpu").type()[
        len("torch.") : -len("Tensor")
    ]


def check_overwrite(
    dtype: torch.dtype,
    shape: tuple[int, ...],
    old_dtype: torch.dtype,
    old_shape: tuple[int, ...],
) -> None:
    """Check that an in-place op can write what it has computed over its operand."""
    if not torch.can_cast(dtype, old_dtype):
        raise RuntimeError(
            f"result type {_name(dtype)} can't be cast to the desired output type "
            f"{_name(old_dtype)}: an in-place op keeps its operand's dtype. Write the op without "
            "the underscore, or convert the operand first."
        )
    if shape != old_shape:
        raise RuntimeError(
            f"output with shape {list(old_shape)} doesn't match the broadcast shape {list(shape)}: "
            "an in-place op keeps its operand's shape. Write the op without the underscore."
        )


_CHECKS: dict[str, Callable[..., None]] = {
    "aten.uniform.default": _like_the_cpu(
        lambda x, low=0.0, high=1.0, **_: x.new_empty(0, device="cpu").uniform_(low, high)
    ),
    "aten.bernoulli.p": _like_the_cpu(
        lambda x, p, **_: x.new_empty(0, device="cpu").bernoulli_(p)
    ),
    **{
        f"aten.{exact}{n}d.default": _of_bytes
        for exact in ("upsample_nearest", "_upsample_nearest_exact")
        for n in (1, 2, 3)
    },
    "aten.upsample_linear1d.default": _of_complex,
    "aten.upsample_trilinear3d.default": _of_complex,
    "aten.upsample_bilinear2d.default": _of_images,
    "aten.upsample_bicubic2d.default": _of_images,
    "aten._upsample_bilinear2d_aa.default": _of_bytes,
    "aten._upsample_bicubic2d_aa.default": _of_bytes,
    "aten._adaptive_avg_pool2d.default": _has_kernel,
    "aten._adaptive_avg_pool3d.default": _has_kernel,
    **{
        str(func): _like_the_cpu(func)
        for func in (
            aten.max.default, aten.min.default, aten.median.dim, aten.nanmedian.dim,
            aten.amax.default, aten.amin.default, aten.aminmax.default,
            aten.masked_scatter.default, aten.index_add.default, aten.multinomial.default,
            aten._histogramdd_bin_edges.default, aten._histogramdd_from_bin_cts.default,
            aten._histogramdd_from_bin_tensors.default, aten.bucketize.Tensor,
            aten.bucketize.Scalar, aten.narrow_copy.default, aten.as_strided_scatter.default,
            aten.fractional_max_pool3d.default,
        )
    },
}  # fmt: skip


# Ops that complex numbers, which have no order, are left to the CPU for: it says so.
_ORDERED = {
    str(func) for func in (
        aten.max.default, aten.max.dim, aten.min.default, aten.min.dim, aten.amax.default,
        aten.amin.default, aten.aminmax.default, aten.argmax.default, aten.argmin.default,
        aten.sort.default, aten.sort.stable, aten.topk.default, aten.kthvalue.default,
        aten.mode.default, aten.median.default, aten.median.dim, aten.nanmedian.default,
        aten.nanmedian.dim, aten.nansum.default,
    )
}  # fmt: skip


# Calls that a meta kernel takes and the CPU may refuse: they are made once more there, too.


def _is_mixed(*operands: object, **_: object) -> bool:
    return len({each.dtype for each in operands if isinstance(each, Tensor)}) > 1


def _is_unfit(
    x: Tensor, weight: Tensor, _bias: object, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, extra: Sequence[int], *_: object,  # noqa: FBT001
) -> bool:  # fmt: skip
    """Return whether a convolution has two dtypes, or paddings without room."""
    rooms = map(max, stride, dilation)
    has_room = all(0 <= more < room for more, room in zip(extra, rooms, strict=False))
    is_negative = min(padding, default=0) < 0
    return x.dtype is not weight.dtype or is_negative or (transposed and not has_room)


_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot")
_SUSPECTS: dict[str, Callable[..., bool]] = {
    **{f"aten.{name}.default": _is_mixed for name in _PRODUCTS},
    "aten.cat.default": lambda tensors, *_: any(each.dim() == 0 for each in tensors),
    "aten.convolution.default": _is_unfit,
    "aten.embedding.default": lambda weight, *_, **__: weight.dim() != 2,  # noqa: PLR2004
    "aten.index_put.default": lambda x, _, values, *__: x.dtype is not values.dtype,
    "aten.index_select.default": lambda _x, _dim, index: index.dim() > 1,
}


def is_suspect(
    name: str, positional: Sequence[object], keywords: dict[str, object]
) -> bool:
    """Return whether the CPU may refuse a call of the op `name` that its meta kernel takes."""
    suspects = _SUSPECTS.get(name)
    return suspects is not None and suspects(*positional, **keywords)


def check(name: str, positional: Sequence[Any], keywords: dict[str, Any]) -> None:
    """Raise what the CPU raises for a wrong call of the op `name`."""
    if name in _ORDERED and positional[0].is_complex():
        raise NotImplementedError(f"numbers of {positional[0].dtype} have no order")
    checked = _CHECKS.get(name)
    if checked is not None:
        checked(*positional, **keywords)


# ----------------------------------------------------------------------------- warnings
# torch's own, reported at the line that torch names: the innermost one that is not ours.


_said: set[str] = set()

_DISCARDS = "Casting complex values to real discards the imaginary part"


def warn(text: str) -> None:
    """Warn at the caller's line, as often as Python's filters let it through."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_own(frame.f_code):
        frame = frame.f_back
    if frame is None:
        warnings.warn(text, UserWarning, stacklevel=2)
        return
    names = frame.f_globals
    warnings.warn_explicit(
        text,
        UserWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=names.get("__name__"),
        registry=names.setdefault("__warningregistry__", {}),
    )


def warn_once(text: str) -> None:
    """Warn for the first time in a process, as torch does with most of what it warns of."""
    if text in _said and not torch.is_warn_always_enabled():
        return
    _said.add(text)
    warn(text)


def warn_of_resize(held: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Warn that an op gives its `out=` another shape; one without elements gets it silently."""
    if 0 in held:
        return
    warn(
        "An output with one or more elements was resized since it had shape "
        f"{list(held)}, which does not match the required output shape {list(wanted)}. This "
        "behavior is deprecated, and in a future PyTorch release outputs will not be resized "
        "unless they have zero elements. You can explicitly reuse an out tensor t by resizing "
        "it, inplace, to zero elements with t.resize_(0)."
    )


def warn_of_cast(source: torch.Tensor, target: torch.dtype) -> None:
    """Warn if a conversion keeps the real parts of complex numbers alone."""
    if not source.is_complex() or target.is_complex or target is torch.bool:
        return
    if source.numel():
        warn_once(_DISCARDS)


def warns_of(name: str) -> bool:
    """Return whether `warn_of_op` may warn of an op."""
    return name in _SPREADS


def warn_of_op(name: str, positional: Sequence[Any], keywords: dict[str, Any]) -> None:
    """Warn of a functional op that torch warns of for its arguments."""
    if name in _SPREADS:
        _of_freedom(_SPREADS[name], *positional, **keywords)


def _of_freedom(
    name: str, x: torch.Tensor, dim: Any = None, *, correction: Any = None, **_: Any
) -> None:
    """Warn that no number is left after the correction, so that a variance is NaN or infinite."""
    dims = range(x.dim()) if dim is None or len(dim) == 0 else dim
    if not all(-x.dim() <= d < x.dim() for d in dims):
        return  # the op refuses them
    count = math.prod(x.shape[d] for d in dims)
    if (count if x.numel() else 0) <= (1 if correction is None else correction):
        warn(
            f"{name}(): degrees of freedom is <= 0. Correction should be strictly less than the "
            "reduction factor (input numel divided by output numel)."
        )


_SPREADS = {
    f"aten.{name}.correction": name for name in ("std", "var", "std_mean", "var_mean")
}


# -------------------------------------------------------------- layouts without arrays
# The device has no arrays for sparse, quantised, nested and mkldnn tensors. torch would answer with
# "Could not run ... from the 'SparseCsrlazyrt' backend", or make a tensor that fails later. These
# kernels refuse at the call, and say what to do.


_SPARSE = (
    "Convert it with `.to_dense()` before it goes to the device, or keep this part of the "
    "program on the CPU."
)
_GRADIENT = "For an embedding, leave out sparse=True."
_QUANTISED = (
    "Convert it with `.dequantize()` before it goes to the device, or use fake_quantize, which "
    "works on floating-point numbers."
)
_NESTED = (
    "Pad it (`torch.nn.utils.rnn.pad_sequence`, `nested.to_padded_tensor(0.0)`) and "
    "pass a mask, or keep this part of the program on the CPU."
)
_MKLDNN = "Leave `.to_mkldnn()` out: XLA chooses layouts by itself when it compiles."
_ADVICE = {
    "sparse": f"{_SPARSE} {_GRADIENT}",
    "quantised": _QUANTISED,
    "nested": _NESTED,
    "mkldnn": _MKLDNN,
}

# Dispatch keys that such tensors of the device, or together with lazy ones, would have.
_LAYOUT_KEYS = {
    "SparsePrivateUse1": "sparse",
    "SparseCsrPrivateUse1": "sparse",
    "QuantizedPrivateUse1": "quantised",
    "NestedTensorPrivateUse1": "nested",
}

# Ops on dense lazy tensors that would make such a tensor without one of these keys.
_LAYOUT_MAKERS = {
    "sparse": (
        "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc",
        "_sparse_compressed_tensor_unsafe", "sparse_compressed_tensor.comp_plain_value_size",
        "sparse_compressed_tensor.comp_plain_value",
    ),
    "nested": (
        "_nested_tensor_from_tensor_list", "_nested_tensor_from_mask",
        "_nested_from_padded", "_nested_view_from_buffer", "_nested_view_from_jagged",
    ),
    "mkldnn": ("to_mkldnn", "mkldnn_reorder_conv2d_weight", "mkldnn_reorder_conv3d_weight"),
}  # fmt: skip


def check_layout(tensor: torch.Tensor) -> None:
    """Check a tensor that is to be copied to the device."""
    if tensor.is_quantized:
        raise _layout_error(".to()", "quantised")
    if tensor.layout is not torch.strided:
        kind = "mkldnn" if tensor.is_mkldnn else "sparse"
        raise _layout_error(".to()", kind)


def check_index(device: torch.device | None) -> None:
    """Check the device that an op was asked to put its result on."""
    if device is not None and device.type == DEVICE_TYPE and device.index:
        raise DeviceError(
            f"{device} was asked for, and there is no such device: one process has one lazy "
            f"device, with index 0. Write {DEVICE_TYPE!r}."
        )


def layout_makers() -> dict[str, Callable[..., NoReturn]]:
    """Return the refusing kernel of each op that would make such a tensor, by op name."""
    return {
        name: _refusing(kind, f"aten.{name}")
        for kind, names in _LAYOUT_MAKERS.items()
        for name in names
        if find_overload(name) is not None
    }


def register_layouts() -> list[torch.library.Library]:
    """Register the refusing fallbacks; return the libraries, which must stay alive."""
    libraries = []
    for key, kind in _LAYOUT_KEYS.items():
        library = torch.library.Library("_", "IMPL")
        library.fallback(_refusing(kind), key)
        libraries.append(library)
    return libraries


def _refusing(kind: str, name: str = "") -> Callable[..., NoReturn]:
    """Return the kernel of an op of a name, or the fallback, which gets the op in front."""

    def kernel(*args: Any, **_kwargs: Any) -> NoReturn:
        raise _layout_error(name or str(args[0]), kind)

    return kernel


def _layout_error(op: str, kind: str) -> DeviceError:
    return DeviceError(
        f"{op} was called for a {kind} tensor on {DEVICE_TYPE}. The device computes with "
        f"dense arrays and has no {kind} ones. {_ADVICE[kind]}"
    )
