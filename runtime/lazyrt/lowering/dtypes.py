"""The dtypes of torch and of jax, and how a value gets from one to another."""

# ruff: noqa: S101

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """Return the NumPy dtype with which jax stores a torch dtype.

    Raises:
        TypeError: XLA has no such type.
    """
    try:
        return _TO_JAX[dtype]
    except KeyError:
        raise TypeError(f"XLA has no counterpart of {dtype}") from None


def to_torch_dtype(dtype: Any) -> torch.dtype:
    """Return the torch dtype of a jax or NumPy dtype.

    Raises:
        TypeError: torch has no such type.
    """
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
