"""Rules of the resampling ops that are a matrix product along each dimension."""

# A rule's signature is its op's schema; numbers are those of its formula.
# ruff: noqa: ARG001, FBT001, PLR2004

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from lazyrt.lowering.registry import lowers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lazyrt.lowering.context import OpContext
    from lazyrt.lowering.dtypes import Array

_Matrix = np.ndarray[Any, Any]


def _triangle(x: _Matrix) -> _Matrix:
    result: _Matrix = np.maximum(1 - np.abs(x), 0)
    return result


def _cubic(x: _Matrix) -> _Matrix:
    """Return Keys' cubic kernel with a = -0.5, as torch takes for antialiasing."""
    x, a = np.abs(x), np.float64(-0.5)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    result: _Matrix = np.where(x < 1, near, np.where(x < 2, far, 0))
    return result


def _scale(size: int, count: int, align_corners: bool, given: float | None) -> float:
    if align_corners:
        return (size - 1) / (count - 1) if count > 1 else 0.0
    return 1 / given if given else size / count


def _weights(
    size: int,
    count: int,
    scale: float,
    kernel: Callable[[_Matrix], _Matrix],
    reach: int,
) -> _Matrix:
    """Return the [count, size] matrix of an antialiased interpolation."""
    width = max(scale, 1.0)
    centre = scale * (np.arange(count)[:, None] + 0.5)
    low = np.maximum((centre - reach * width + 0.5).astype(np.int64), 0)
    high = np.minimum((centre + reach * width + 0.5).astype(np.int64), size)
    place = np.arange(size)[None]
    matrix = kernel((place - centre + 0.5) / width)
    matrix = np.where((place >= low) & (place < high), matrix, 0)
    total = matrix.sum(1, keepdims=True)
    result: _Matrix = matrix / np.where(total == 0, 1, total)
    return result


def _antialiased(name: str, kernel: Callable[[_Matrix], _Matrix], reach: int) -> None:
    @lowers(f"aten.{name}.default")
    def rule(
        ctx: OpContext,
        x: Array,
        size: Sequence[int],
        align_corners: bool,
        *scales: float | None,
    ) -> Array:
        (x,) = ctx.cast(x)
        resample = _rounded_product if x.dtype == jnp.uint8 else _product
        for dim, given in ((3, scales[1]), (2, scales[0])):
            count = ctx.out.shape[dim]
            if count == x.shape[dim] and x.dtype == jnp.uint8:
                continue
            scale = _scale(x.shape[dim], count, align_corners, given)
            matrix = _weights(x.shape[dim], count, scale, kernel, reach)
            x = resample(x, matrix, dim)
        return x


def _product(x: Array, matrix: _Matrix, dim: int) -> Array:
    """Return the product with a matrix along one dimension."""
    factor = jnp.asarray(matrix.astype(x.dtype))
    numbers = (((dim,), (1,)), ((), ()))
    exact = lax.Precision.HIGHEST
    return jnp.moveaxis(lax.dot_general(x, factor, numbers, precision=exact), -1, dim)


_WEIGHT_BITS = 15  # of a weight's magnitude, as torch and Pillow take them for bytes


def _rounded_product(x: Array, matrix: _Matrix, dim: int) -> Array:
    """Return the product of bytes with a matrix of fixed-point weights, rounded to bytes.

    The CPU computes in this way: the weights have as many fraction bits as leave the largest
    of them below 2**15, and each dimension's result is rounded to a byte.
    """
    bits = 0
    while np.floor(0.5 + matrix.max() * 2 ** (bits + 1)) < 2**_WEIGHT_BITS:
        bits += 1
    fixed = np.trunc(matrix * 2**bits + np.copysign(0.5, matrix)).astype(np.int32)
    total = _product(x.astype(jnp.int32), fixed, dim)
    rounded = (total + (1 << bits - 1)) >> bits
    return jnp.clip(rounded, 0, 255).astype(x.dtype)


_antialiased("_upsample_bilinear2d_aa", _triangle, 1)
_antialiased("_upsample_bicubic2d_aa", _cubic, 2)
