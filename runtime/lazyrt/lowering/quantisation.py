"""Rules of fake quantisation, which rounds floats to the values of an integer type."""

# A rule's signature is its op's schema.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax

from lazyrt.lowering.dtypes import Array, cast
from lazyrt.lowering.registry import lowers
from lazyrt.lowering.shaping import expand, scalar_like

if TYPE_CHECKING:
    from lazyrt.lowering.context import OpContext


@lowers("aten.fake_quantize_per_tensor_affine_cachemask.default")
def fake_quantize(
    ctx: OpContext, x: Array, scale: Any, zero_point: Any, low: int, high: int
) -> tuple[Array, Array]:
    return _rounded(ctx, x, scale, zero_point, low, high)


@lowers("aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def fake_quantize_where_enabled(
    ctx: OpContext,
    x: Array,
    scale: Array,
    zero_point: Array,
    enabled: Array,
    low: int,
    high: int,
) -> tuple[Array, Array]:
    is_on = lax.reshape(enabled, ()) != 0
    scale, zero_point = (lax.reshape(part, ()) for part in (scale, zero_point))
    rounded, kept = _rounded(ctx, x, scale, zero_point, low, high)
    return jnp.where(is_on, rounded, cast(x, ctx.compute)), kept | ~is_on


@lowers("aten.fake_quantize_per_channel_affine_cachemask.default")
def fake_quantize_channels(
    ctx: OpContext,
    x: Array,
    scale: Array,
    zero_point: Array,
    axis: int,
    low: int,
    high: int,
) -> tuple[Array, Array]:
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    scale, zero_point = (
        expand(lax.reshape(part, shape), x.shape) for part in (scale, zero_point)
    )
    return _rounded(ctx, x, scale, zero_point, low, high)


def _rounded(
    ctx: OpContext, x: Array, scale: Any, zero_point: Any, low: int, high: int
) -> tuple[Array, Array]:
    """Return the nearest value of the type that has one, and which elements were in its range."""
    x = cast(x, ctx.compute)
    scale, zero_point = (
        cast(part, ctx.compute) if isinstance(part, Array) else scalar_like(x, part)
        for part in (scale, zero_point)
    )
    steps = lax.round(x * (1 / scale), lax.RoundingMethod.TO_NEAREST_EVEN) + zero_point
    kept = (steps >= low) & (steps <= high)
    return (jnp.clip(steps, low, high) - zero_point) * scale, kept
