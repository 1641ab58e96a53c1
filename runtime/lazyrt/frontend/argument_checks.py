"""Checks of arguments that torch's meta kernels leave to the CPU's own kernels.

Each takes what the op takes, with meta tensors, and raises the type of error that the CPU
raises. They run with the inference of a result's type: once for each kind of call.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch import Tensor

    from lazyrt.ir.node import Value


# --------------------------------------------------------------------- the CPU's errors
# torch's meta kernels refuse what the CPU refuses, often in words of their own ("Invalid channel
# dimensions"). So a call that was refused is made once more, on the CPU, with blank tensors of
# the same types; its message is raised instead. Nothing of it happens in a call that is right.


# A call on more is not made again: should the CPU accept it, it would take long.
_MOST_BYTES = 2**28
# What a kernel raises for a wrong call; others, such as NotImplementedError, mean something else.
PLAIN = (RuntimeError, IndexError, ValueError, TypeError)


def refusal(call: Callable[[], Any], *also: type[Exception]) -> Exception | None:
    """Return the error of a call on the CPU if it is of the kind that tells a user what is wrong.

    Args:
        call: Makes the call.
        also: Other kinds that do.
    """
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

    Raises:
        MemoryError: It is too large.
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
# ruff: noqa: ARG001


def _require(condition: bool, message: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not condition:
        raise RuntimeError(message)


def _uniform(x: Tensor, low: float = 0.0, high: float = 1.0, **_: object) -> None:
    _require(
        low <= high,
        f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}. Pass "
        "bounds in rising order.",
    )
    if x.is_floating_point():
        most = torch.finfo(x.dtype).max
        _require(
            high - low <= most,
            f"uniform_ expects to-from <= {most:g}, the largest number of {x.dtype}, but got "
            f"from={low:g} and to={high:g}. Draw from a narrower range.",
        )


def _bernoulli(_x: Tensor, p: float, **_: object) -> None:
    _require(
        0 <= p <= 1,
        f"bernoulli_ expects p to be in [0, 1], but got p={p:g}. It is a probability. Pass one.",
    )


def _index_put(
    x: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    *_: object,
    **__: object,
) -> None:
    masks = {torch.bool, torch.uint8}
    fills = values.numel() == 1 and all(i is None or i.dtype in masks for i in indices)
    _require(
        x.dtype is values.dtype or fills,
        "Index put requires the source and destination dtypes match, got "
        f"{_NAMES.get(x.dtype, x.dtype)} for the destination and "
        f"{_NAMES.get(values.dtype, values.dtype)} for the source. Convert the source with "
        "`.to()`.",
    )


def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> None:
    _require(
        mask.dtype is torch.bool,
        f"masked_scatter_ got a mask of {mask.dtype}. A mask tells which elements to write. "
        "Make it boolean: `mask.bool()`.",
    )


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Any,
    stride: Any,
    padding: Sequence[int],
    *_: object,
) -> None:
    _require(
        min(padding, default=0) >= 0,
        f"negative padding is not supported: a convolution got {list(padding)}. Padding adds "
        "zeros around its input. Slice the input to make it smaller.",
    )
    _require(
        x.dtype is weight.dtype,
        f"Input type ({x.dtype}) and weight type ({weight.dtype}) should be the same. A "
        "convolution converts nothing. Convert one with `.to()`, or run it under torch.autocast.",
    )


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


def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, **_: object) -> None:
    rank = max(x.dim(), 1)
    if x.dim() == 0 or not -rank <= dim < rank:
        return  # the meta kernel knows
    rest = [size for k, size in enumerate(x.shape) if k != dim % rank]
    same = source.dim() == x.dim() and rest == [
        size for k, size in enumerate(source.shape) if k != dim % rank
    ]
    _require(
        same,
        f"index_add_ got a source of shape {list(source.shape)} for a tensor of shape "
        f"{list(x.shape)}. They may differ in dimension {dim} only. Reshape or expand the source.",
    )


_MOST_CATEGORIES = 2**24


def _multinomial(
    weights: Tensor, count: int, replacement: bool = False, **_: object  # noqa: FBT001, FBT002
) -> None:  # fmt: skip
    _require(
        weights.is_floating_point(),
        f"multinomial got weights of {weights.dtype}. It takes floating-point ones. Convert "
        "them with `.float()`.",
    )
    _require(
        weights.dim() in {1, 2},
        f"multinomial got weights of {weights.dim()} dimensions. It takes one distribution or a "
        "batch of them: 1 or 2 dimensions. Reshape the weights.",
    )
    _require(
        count > 0,
        f"multinomial cannot draw {count} samples. It draws one or more. Pass a positive number.",
    )
    _require(
        replacement or count <= weights.shape[-1],
        f"multinomial cannot draw {count} samples of {weights.shape[-1]} categories without "
        "replacement. Each can be drawn once. Pass replacement=True.",
    )
    _require(
        weights.shape[-1] <= _MOST_CATEGORIES,
        f"multinomial got {weights.shape[-1]} categories, more than 2**24. The CPU draws from no "
        "more. Split them into groups.",
    )


# The longest permutations that the CPU draws, by dtype.
_LONGEST = {
    torch.uint8: 2**8, torch.int8: 2**7, torch.int16: 2**15, torch.int32: 2**31,
    torch.int64: 2**63, torch.bfloat16: 2**63, torch.float16: 2**11 + 1,
    torch.float32: 2**24 + 1, torch.float64: 2**53 + 1,
}  # fmt: skip


def _randperm(n: int, *_: object, dtype: object = None, **__: object) -> None:
    """Leave to the CPU what it refuses; the schema's default dtype is a number for int64."""
    given = dtype if isinstance(dtype, torch.dtype) else torch.int64
    if n > _LONGEST.get(given, -1):
        raise NotImplementedError(f"the CPU permutes fewer than {n} numbers of {dtype}")


def _histogramdd(x: Tensor, bins: Sequence[Any], **_: object) -> None:
    _require(
        x.dim() >= 2 and len(bins) == x.shape[-1],  # noqa: PLR2004
        f"histogramdd got bins for {len(bins)} dimensions and an input of shape "
        f"{list(x.shape)}. There is one entry for each element of its last dimension. Pass as "
        "many.",
    )


def _bucketize(x: Any, boundaries: Tensor, **_: object) -> None:
    _require(
        boundaries.dim() == 1,
        f"bucketize got boundaries of {boundaries.dim()} dimensions. One sequence serves all "
        "elements. Pass a tensor of 1 dimension, or use searchsorted.",
    )


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> None:
    for position, tensor in enumerate(tensors):
        _require(
            tensor.dim() > 0,
            f"zero-dimensional tensor (at position {position}) cannot be concatenated: it has no "
            "dimension to join along. Use stack(), or `.reshape(1)`.",
        )


def _extremes(x: Tensor, dim: Any = (), *_: object, **__: object) -> None:
    dims = [] if dim is None else [dim] if isinstance(dim, int) else dim
    for d in dims:
        if -x.dim() <= d < x.dim() and x.shape[d] == 0:
            raise IndexError(
                f"an extreme over dimension {d} of shape {list(x.shape)} has no value: nothing is "
                "there to choose from. Expected reduction dims to have non-zero size."
            )


def _has_elements(name: str, x: Tensor) -> None:
    _require(
        bool(x.numel()),
        f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the "
        "reduction dim with the 'dim' argument.",
    )


def _median(x: Tensor, dim: int, *_: object) -> None:
    if -x.dim() <= dim < x.dim() and x.shape[dim] == 0:
        raise IndexError(
            f"median(): Expected reduction dim {dim % x.dim()} to have non-zero size."
        )


def _embedding(weight: Tensor, *_: object, **__: object) -> None:
    _require(
        weight.dim() == 2,  # noqa: PLR2004
        f"'weight' must be 2-D: embedding got one of {weight.dim()} dimensions. Its rows are the "
        "vectors. Reshape it to [count, size].",
    )


def _as_strided_scatter(
    x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int],
    offset: int | None = None,
) -> None:  # fmt: skip
    reach = sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    count = 0 if 0 in size else (offset or 0) + reach + 1
    _require(
        count <= math.prod(x.shape),
        f"as_strided_scatter reaches element {count} of a storage of {math.prod(x.shape)}: sizes "
        f"{list(size)}, strides {list(stride)}. Its target must hold them all. Pass smaller ones.",
    )


def _narrow_copy(x: Tensor, dim: int, *_: object) -> None:
    _require(  # one too far below zero is an IndexError, as of other ops
        dim < max(x.dim(), 1),
        f"narrow_copy got dimension {dim} of a tensor with {x.dim()} dimensions. They count from 0, "
        "or from -1 backwards. Pass one that is there.",
    )


def _fractional(x: Tensor, _kernel: Any, _size: Any, samples: Tensor) -> None:
    _require(
        samples.dtype is x.dtype,
        "Expect _random_samples to have the same dtype as input: fractional pooling of "
        f"{x.dtype} got samples of {samples.dtype}. Convert them with `.to(x.dtype)`.",
    )


def _product(*operands: Any, **_: object) -> None:
    kinds = [operand.dtype for operand in operands if isinstance(operand, torch.Tensor)]
    _require(
        all(kind is kinds[0] for kind in kinds),
        "expected m1 and m2 to have the same dtype, but got: "
        f"{' != '.join(str(kind).removeprefix('torch.') for kind in kinds)}. A matrix product "
        "converts nothing. Convert one operand with `.to()`, or run it under torch.autocast.",
    )


def _index_select(x: Tensor, dim: int, index: Tensor) -> None:
    if index.dim() > 1:
        raise IndexError(
            "index_select(): Index is supposed to be a vector, and it got one of shape "
            f"{list(index.shape)}. It chooses whole slices. Flatten it, or index with `x[index]`."
        )


# What the CPU calls the dtypes.
_NAMES = {
    torch.bool: "Bool", torch.uint8: "Byte", torch.int8: "Char", torch.int16: "Short",
    torch.int32: "Int", torch.int64: "Long", torch.float16: "Half", torch.bfloat16: "BFloat16",
    torch.float32: "Float", torch.float64: "Double", torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}  # fmt: skip


def check_overwrite(
    dtype: torch.dtype,
    shape: tuple[int, ...],
    old_dtype: torch.dtype,
    old_shape: tuple[int, ...],
) -> None:
    """Check that an in-place op can write what it has computed over its operand.

    Raises:
        RuntimeError: The operand's dtype cannot hold the result's kind of number, or the result
            has another shape.
    """
    _require(
        torch.can_cast(dtype, old_dtype),
        f"result type {_NAMES.get(dtype, dtype)} can't be cast to the desired output type "
        f"{_NAMES.get(old_dtype, old_dtype)}: an in-place op keeps its operand's dtype. Write the "
        "op without the underscore, or convert the operand first.",
    )
    _require(
        shape == old_shape,
        f"output with shape {list(old_shape)} doesn't match the broadcast shape {list(shape)}: an "
        "in-place op keeps its operand's shape. Write the op without the underscore.",
    )


_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot")
_CHECKS: dict[str, Callable[..., None]] = {
    **{f"aten.{name}.default": _product for name in _PRODUCTS},
    "aten.index_select.default": _index_select,
    "aten.max.default": functools.partial(_has_elements, "max"),
    "aten.min.default": functools.partial(_has_elements, "min"),
    "aten.median.dim": _median,
    "aten.nanmedian.dim": _median,
    "aten.amax.default": _extremes,
    "aten.amin.default": _extremes,
    "aten.aminmax.default": _extremes,
    "aten.uniform.default": _uniform,
    "aten.bernoulli.p": _bernoulli,
    "aten.index_put.default": _index_put,
    "aten.masked_scatter.default": _masked_scatter,
    "aten.convolution.default": _convolution,
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
    "aten.index_add.default": _index_add,
    "aten.multinomial.default": _multinomial,
    "aten.randperm.default": _randperm,
    "aten.randperm.generator": _randperm,
    "aten._histogramdd_bin_edges.default": _histogramdd,
    "aten._histogramdd_from_bin_cts.default": _histogramdd,
    "aten._histogramdd_from_bin_tensors.default": _histogramdd,
    "aten.bucketize.Tensor": _bucketize,
    "aten.bucketize.Scalar": _bucketize,
    "aten.cat.default": _cat,
    "aten.embedding.default": _embedding,
    "aten.fractional_max_pool3d.default": _fractional,
    "aten.narrow_copy.default": _narrow_copy,
    "aten.as_strided_scatter.default": _as_strided_scatter,
}


def check(name: str, positional: Sequence[Any], keywords: dict[str, Any]) -> None:
    """Raise what the CPU raises for a wrong call of the op `name`.

    Raises:
        RuntimeError: The call is wrong; says why.
    """
    checked = _CHECKS.get(name)
    if checked is not None:
        checked(*positional, **keywords)
