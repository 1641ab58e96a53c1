"""Rules of the ops that make tensors from nothing, or of the type of another."""

# A rule's signature is its op's schema.
# ruff: noqa: ARG001

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from lazyrt.lowering.dtypes import Array, cast, is_integral, to_jax_dtype
from lazyrt.lowering.registry import lowers
from lazyrt.lowering.shaping import expand

if TYPE_CHECKING:
    from lazyrt.lowering.context import OpContext


def _filled(ctx: OpContext, value: Any) -> Array:
    return expand(cast(value, ctx.out.dtype), ctx.out.shape)


@lowers("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default",
        "aten.empty.memory_format", "aten.empty_like.default", "aten.new_empty.default",
        "aten.empty_strided.default", "aten.new_empty_strided.default",
        "aten.empty_permuted.default", "aten._efficientzerotensor.default")  # fmt: skip
def zeros(ctx: OpContext, *_: Any) -> Array:
    # What torch leaves uninitialised is zero here, so that a run can be repeated.
    return _filled(ctx, 0)


@lowers("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(ctx: OpContext, *_: Any) -> Array:
    return _filled(ctx, 1)


@lowers("aten.full.default", "aten.full_like.default")
def full(ctx: OpContext, like: Any, value: Any, *_: Any) -> Array:
    return _filled(ctx, value)


@lowers("aten.new_full.default")
def new_full(ctx: OpContext, x: Array, size: Any, value: Any, *_: Any) -> Array:
    return _filled(ctx, value)


@lowers("aten.scalar_tensor.default")
def scalar_tensor(ctx: OpContext, value: Any, *_: Any) -> Array:
    return _filled(ctx, value)


@lowers("aten.arange.default")
def arange_end(ctx: OpContext, end: Any, *_: Any) -> Array:
    return _arange(ctx, 0, 1)


@lowers("aten.arange.start")
def arange_start(ctx: OpContext, start: Any, end: Any, *_: Any) -> Array:
    return _arange(ctx, start, 1)


@lowers("aten.arange.start_step")
def arange_step(ctx: OpContext, start: Any, end: Any, step: Any = 1, *_: Any) -> Array:
    return _arange(ctx, start, step)


def _arange(ctx: OpContext, start: Any, step: Any) -> Array:
    dtype = torch.int64 if is_integral(ctx.out.dtype) else torch.float64
    steps = lax.iota(to_jax_dtype(dtype), ctx.out.shape[0])
    if step != 1:
        steps = lax.mul(steps, expand(cast(step, dtype), steps.shape))
    if start != 0:
        steps = lax.add(steps, expand(cast(start, dtype), steps.shape))
    return steps


@lowers("aten.linspace.default")
def linspace(ctx: OpContext, start: Any, end: Any, *_: Any) -> Array:
    return _linspace(ctx, start, end)


def _linspace(ctx: OpContext, start: Any, end: Any) -> Array:
    """Count from both ends, as torch does, so that both are met exactly."""
    count = ctx.out.shape[0]
    dtype = torch.float64 if is_integral(ctx.out.dtype) else ctx.compute
    first, last = (cast(cast(v, ctx.out.dtype), dtype) for v in (start, end))
    if count <= 1:
        return expand(first, ctx.out.shape)
    width = lax.div(lax.sub(last, first), cast(count - 1, dtype))
    index = lax.iota(np.int64, count)
    up = lax.add(
        expand(first, (count,)), lax.mul(cast(index, dtype), expand(width, (count,)))
    )
    back = cast(lax.sub(lax.full((count,), np.int64(count - 1)), index), dtype)
    down = lax.sub(expand(last, (count,)), lax.mul(back, expand(width, (count,))))
    return lax.select(lax.lt(index, lax.full((count,), np.int64(count // 2))), up, down)


@lowers("aten.logspace.default")
def logspace(
    ctx: OpContext, start: Any, end: Any, steps: int, base: float = 10.0, *_: Any
) -> Array:
    exponents = _linspace(ctx, start, end)
    return lax.pow(lax.full_like(exponents, base), exponents)


@lowers("aten.eye.default", "aten.eye.m")
def eye(ctx: OpContext, *_: Any) -> Array:
    shape = ctx.out.shape
    rows = lax.broadcasted_iota(np.int32, shape, 0)
    return cast(lax.eq(rows, lax.broadcasted_iota(np.int32, shape, 1)), ctx.out.dtype)


def _triangle_index(
    ctx: OpContext, row: int, col: int, offset: int, *, lower: bool
) -> Array:
    pick = np.tril_indices if lower else np.triu_indices
    rows, columns = pick(row, offset, col)
    return jnp.asarray(np.stack([rows, columns])).astype(ctx.dtype)


@lowers("aten.tril_indices.default")
def tril_indices(ctx: OpContext, row: int, col: int, offset: int = 0, *_: Any) -> Array:
    return _triangle_index(ctx, row, col, offset, lower=True)


@lowers("aten.triu_indices.default")
def triu_indices(ctx: OpContext, row: int, col: int, offset: int = 0, *_: Any) -> Array:
    return _triangle_index(ctx, row, col, offset, lower=False)
