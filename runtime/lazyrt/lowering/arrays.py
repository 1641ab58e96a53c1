"""Arrays and their types: dtypes of torch and of jax, promotion, casts, broadcasting: what all rules share."""

# ruff: noqa: S101

from __future__ import annotations

import contextlib
import math
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from lazyrt.ir.node import type_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


Array = jax.Array

_NAMES = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16",
    "bfloat16", "float32", "float64", "complex64", "complex128", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
)  # fmt: skip
_TO_JAX: dict[torch.dtype, Any] = {
    getattr(torch, name): jnp.dtype(name) for name in _NAMES
}
_TO_TORCH: dict[Any, torch.dtype] = {jax_: torch_ for torch_, jax_ in _TO_JAX.items()}

_OPMATH = {
    dtype: torch.float32
    for dtype in _TO_JAX
    if dtype.is_floating_point and dtype.itemsize < torch.float32.itemsize
}

_E4M3_MAX = torch.finfo(torch.float8_e4m3fn).max

_REAL_OF = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_COMPLEX_OF = {
    torch.float16: torch.complex64,  # complex32 has no counterpart in XLA
    torch.bfloat16: torch.complex64,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}


def to_jax_dtype(dtype: torch.dtype) -> Any:
    """Return the NumPy dtype with which jax stores a torch dtype."""
    try:
        return _TO_JAX[dtype]
    except KeyError:
        raise TypeError(f"XLA has no counterpart of {dtype}") from None


def to_torch_dtype(dtype: Any) -> torch.dtype:
    """Return the torch dtype of a jax or NumPy dtype."""
    try:
        return _TO_TORCH[np.dtype(dtype)]
    except KeyError:
        raise TypeError(f"torch has no counterpart of {dtype}") from None


def has_jax_dtype(dtype: torch.dtype) -> bool:
    """Return whether XLA can store a torch dtype."""
    return dtype in _TO_JAX


def opmath_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which torch computes on `dtype`: float32 for the half types."""
    return _OPMATH.get(dtype, dtype)


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the parts of a complex number; other dtypes unchanged."""
    return _REAL_OF.get(dtype, dtype)


def complex_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the complex dtype whose parts have `dtype`; complex ones unchanged."""
    return _COMPLEX_OF.get(dtype, dtype)


def is_integral(dtype: torch.dtype) -> bool:
    """Return whether a dtype holds integers or booleans."""
    return not (dtype.is_floating_point or dtype.is_complex)


def cast(value: Any, dtype: torch.dtype) -> Array:
    """Return a number or array as an array of `dtype`, converted as torch does."""
    target = to_jax_dtype(dtype)
    if not isinstance(value, (jax.Array, np.ndarray)):
        return _constant(value, dtype, target)
    array = jnp.asarray(value)
    if array.dtype == target:
        return array
    if jnp.issubdtype(array.dtype, jnp.complexfloating) and not dtype.is_complex:
        if dtype is torch.bool:
            return lax.ne(array, lax.full_like(array, 0))
        array = lax.real(array)
    if dtype is torch.uint8 and jnp.issubdtype(array.dtype, jnp.floating):
        # torch goes through int64 and wraps around; XLA would clamp at zero.
        array = lax.convert_element_type(array, np.int64)
    if dtype is torch.float8_e4m3fn:
        # It has no infinity: torch stays at its largest number, XLA would give NaN.
        array = jnp.clip(_as_float(array), -_E4M3_MAX, _E4M3_MAX)
    return lax.convert_element_type(array, target)


def _as_float(array: Array) -> Array:
    if jnp.issubdtype(array.dtype, jnp.floating):
        return array
    return lax.convert_element_type(array, np.float32)


def _constant(value: Any, dtype: torch.dtype, target: Any) -> Array:
    """Return a Python number as a scalar, wrapping integers around as torch does."""
    if dtype is torch.bool:
        value = bool(value)
    elif is_integral(dtype):
        info = torch.iinfo(dtype)
        span = info.max - info.min + 1
        value = (int(value.real) - info.min) % span + info.min
    elif not dtype.is_complex:
        value = float(value.real)
    with np.errstate(over="ignore", invalid="ignore"):
        return jnp.asarray(np.asarray(value).astype(target))


def promote(category: list[torch.dtype | None]) -> torch.dtype:
    """Combine dtypes of tensors, 0-d tensors and numbers, strongest first, as torch does."""
    result: torch.dtype | None = None
    for lower in reversed(category):
        result = _combine(lower, result)
    assert result is not None, "nothing to promote"
    return result


def _combine(
    higher: torch.dtype | None, lower: torch.dtype | None
) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher or lower
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return complex_dtype(higher) if lower.is_complex else higher
    if higher is torch.bool or not is_integral(lower):
        return torch.promote_types(higher, lower)
    return higher


def number_dtype(value: Any) -> torch.dtype:
    """Return the dtype that a Python number takes in promotion."""
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, int):
        return torch.int64
    if isinstance(value, complex):
        return complex_dtype(default_dtype())
    return default_dtype()


def default_dtype() -> torch.dtype:
    """Return torch's default dtype, for an op that is lowered that of when it was recorded."""
    return _recorded_under.get() or torch.get_default_dtype()


@contextlib.contextmanager
def recorded_under(dtype: torch.dtype) -> Iterator[None]:
    """Lower an op that was recorded while torch's default dtype was this one."""
    before = _recorded_under.set(dtype)
    try:
        yield
    finally:
        _recorded_under.reset(before)


_recorded_under: ContextVar[torch.dtype | None] = ContextVar(
    "lazyrt_recorded_under", default=None
)


# -------------------------------------------------------------------- types of tensors


class Unsupported(Exception):  # noqa: N818 - a rule declines
    """A rule does not cover these types or constants; says why."""


@dataclass(frozen=True, slots=True)
class Aval:
    """The type of a tensor.

    Attributes:
        shape: Sizes.
        dtype: torch dtype.
        weak: A Python number that is an input of the graph: a 0-d f64 or i64 array that
            takes part in dtype promotion as the number would.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    weak: bool = False

    def __str__(self) -> str:
        return type_text(self.shape, self.dtype)


def result_type(args: Iterable[Any]) -> torch.dtype:
    """Return torch's result type of tensors' types and Python numbers.

    Tensors with dimensions weigh more than 0-d tensors, these more than Python numbers.
    """
    found: list[torch.dtype | None] = [None, None, None]
    for arg in _operands(args):
        if not isinstance(arg, Aval):
            rank, dtype = 2, number_dtype(arg)
        elif arg.weak:
            is_float = arg.dtype.is_floating_point
            rank, dtype = 2, default_dtype() if is_float else torch.int64
        else:
            rank, dtype = (0 if arg.shape else 1), arg.dtype
        so_far = found[rank]
        found[rank] = dtype if so_far is None else torch.promote_types(so_far, dtype)
    return promote(found)


def _operands(args: Iterable[Any]) -> Iterator[Any]:
    for arg in args:
        if isinstance(arg, (list, tuple)):
            yield from _operands(arg)
        elif isinstance(arg, (Aval, bool, int, float, complex)):
            yield arg


def describe_types(args: Iterable[Any]) -> str:
    """Return the types of an op's tensors for a message: `f32[2,3], i64[2]`."""
    tensors = [str(arg) for arg in _operands(args) if isinstance(arg, Aval)]
    return ", ".join(tensors) or "no tensors"


# ------------------------------------------------------------------------------ shapes


def expand(x: Array, shape: Sequence[int]) -> Array:
    """Broadcast an array to a shape; a size of -1 keeps the array's own."""
    offset = len(shape) - x.ndim
    sizes = tuple(
        x.shape[k - offset] if size == -1 else size for k, size in enumerate(shape)
    )
    if sizes == x.shape:
        return x
    if x.size == 1 and x.ndim and math.prod(sizes) != 1:
        x, offset = lax.reshape(x, ()), len(sizes)
    if 1 in x.shape and any(x.shape[k] != sizes[k + offset] for k in range(x.ndim)):
        kept = [k for k in range(x.ndim) if x.shape[k] == sizes[k + offset]]
        x = lax.reshape(x, [x.shape[k] for k in kept])
        return lax.broadcast_in_dim(x, sizes, [k + offset for k in kept])
    return lax.broadcast_in_dim(x, sizes, range(offset, len(sizes)))


def broadcast(*arrays: Array) -> list[Array]:
    """Broadcast arrays to their common shape."""
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    return [expand(array, shape) for array in arrays]


def axis(dim: int, rank: int) -> int:
    """Return a dimension counted from the front; 0-d tensors count as 1-d."""
    rank = max(rank, 1)
    if not -rank <= dim < rank:
        raise IndexError(f"dimension {dim} of a tensor with {rank} dimensions")
    return dim % rank


def axes(dim: Any, rank: int) -> tuple[int, ...]:
    """Return the dimensions that a reduction's `dim` means: None and [] mean all."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(rank))
    dims = dim if isinstance(dim, (list, tuple)) else [dim]
    return tuple(sorted({axis(d, rank) for d in dims})) if rank else ()


def keep_dims(x: Array, dims: Sequence[int], rank: int) -> Array:
    """Put size-1 dimensions back where a reduction took them away."""
    return lax.expand_dims(x, dims) if rank else x


def zeros_like(x: Array) -> Array:
    """Return zeros of an array's shape and dtype."""
    return lax.full_like(x, 0)


def isnan(x: Array) -> Array:
    """Return where an array is not a number; nowhere for integers."""
    return lax.ne(x, x)


def scalar_like(x: Array, value: Any) -> Array:
    """Return a number as an array of the shape and dtype of `x`."""
    return lax.full_like(x, value)


def pair(value: Any, count: int = 2) -> list[int]:
    """Return an int[] argument at its full length: one number stands for all."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * count if len(values) == 1 else values


def iota_along(shape: Sequence[int], dim: int, dtype: Any = np.int64) -> Array:
    """Return an array whose elements are their own index along a dimension."""
    return lax.broadcasted_iota(dtype, tuple(shape), dim)
