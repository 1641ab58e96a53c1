"""Rules of the Fourier transforms."""

# A rule's signature is its op's schema.
# ruff: noqa: ARG001, FBT001

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import lax

from lazyrt.lowering.dtypes import Array, complex_dtype, to_jax_dtype, to_torch_dtype
from lazyrt.lowering.registry import lowers
from lazyrt.lowering.shaping import axis, scalar_like

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazyrt.lowering.context import OpContext

_ROOT, _FULL = 1, 2  # torch's normalisation modes; 0 leaves the sums as they are


def _scaled(x: Array, normalization: int, count: int) -> Array:
    """Return sums of `count` terms divided by nothing, sqrt(count) or count."""
    if normalization == _ROOT:
        return lax.div(x, scalar_like(x, math.sqrt(count)))
    return lax.div(x, scalar_like(x, count)) if normalization == _FULL else x


def _transform(x: Array, dims: Sequence[int], *, forward: bool) -> Array:
    """Return the unscaled complex transform along dimensions, one at a time."""
    for dim in dims:
        d = axis(dim, x.ndim)
        moved = jnp.moveaxis(x, d, -1)
        kind = lax.FftType.FFT if forward else lax.FftType.IFFT
        size = moved.shape[-1]
        moved = lax.fft(moved, kind, (size,))
        moved = moved if forward else moved * size
        x = jnp.moveaxis(moved, -1, d)
    return x


def _as_complex(x: Array) -> Array:
    dtype = complex_dtype(to_torch_dtype(x.dtype))
    return lax.convert_element_type(x, to_jax_dtype(dtype))


@lowers("aten._fft_c2c.default")
def fft_c2c(
    ctx: OpContext, x: Array, dim: Sequence[int], normalization: int, forward: bool
) -> Array:
    count = math.prod(x.shape[d] for d in dim)
    return _scaled(_transform(x, dim, forward=forward), normalization, count)


@lowers("aten._fft_r2c.default")
def fft_r2c(
    ctx: OpContext, x: Array, dim: Sequence[int], normalization: int, onesided: bool
) -> Array:
    count = math.prod(x.shape[d] for d in dim)
    result = _transform(_as_complex(x), dim, forward=True)
    if onesided:
        last = axis(dim[-1], x.ndim)
        result = lax.slice_in_dim(result, 0, ctx.out.shape[last], axis=last)
    return _scaled(result, normalization, count)


@lowers("aten._fft_c2r.default")
def fft_c2r(
    ctx: OpContext, x: Array, dim: Sequence[int], normalization: int, last_dim_size: int
) -> Array:
    last = axis(dim[-1], x.ndim)
    x = _transform(x, dim[:-1], forward=False)
    moved = jnp.moveaxis(x, last, -1)
    real = lax.fft(moved, lax.FftType.IRFFT, (last_dim_size,)) * last_dim_size
    count = math.prod(ctx.out.shape[d] for d in dim)
    return _scaled(jnp.moveaxis(real, -1, last), normalization, count)
