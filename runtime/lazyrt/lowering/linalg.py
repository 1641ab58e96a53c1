"""Rules of matrix products and of linear algebra."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from lazyrt.lowering.context import OpContext
from lazyrt.lowering.dtypes import Array, cast, opmath_dtype, to_jax_dtype
from lazyrt.lowering.registry import lowers
from lazyrt.lowering.shaping import broadcast, expand, scalar_like


def contract(ctx: OpContext, a: Array, b: Array, batch: int = 0) -> Array:
    """Contract the last dimension of `a` with the first after the batch ones of `b`.

    Half types are multiplied as they are and summed up in float32.
    """
    leading = tuple(range(batch))
    numbers = (((a.ndim - 1,), (batch,)), (leading, leading))
    if a.dtype == bool:
        a, b = (lax.convert_element_type(x, np.int32) for x in (a, b))
        return lax.dot_general(a, b, numbers) != 0
    return lax.dot_general(
        a,
        b,
        numbers,
        precision=lax.Precision.HIGHEST,
        preferred_element_type=to_jax_dtype(ctx.compute),
    )


@lowers("aten.mm.default", "aten.mv.default", "aten.dot.default")
def mm(ctx: OpContext, a: Array, b: Array) -> Array:
    return contract(ctx, a, b)


@lowers("aten.vdot.default")
def vdot(ctx: OpContext, a: Array, b: Array) -> Array:
    return contract(ctx, lax.conj(a) if jnp.iscomplexobj(a) else a, b)


@lowers("aten.bmm.default")
def bmm(ctx: OpContext, a: Array, b: Array) -> Array:
    return contract(ctx, a, b, batch=1)


@lowers("aten.mm.dtype", "aten.bmm.dtype")
def mm_dtype(ctx: OpContext, a: Array, b: Array, *_: Any) -> Array:
    return contract(ctx, a, b, batch=a.ndim - 2)


def _combine(ctx: OpContext, x: Array, product: Array, beta: Any, alpha: Any) -> Array:
    """Return beta * x + alpha * product; where beta is zero, x does not count, NaN or not."""
    product = cast(product, ctx.compute)
    if not isinstance(alpha, (int, float)) or alpha != 1:
        product = lax.mul(product, expand(cast(alpha, ctx.compute), product.shape))
    if isinstance(beta, (int, float)) and beta == 0:
        return expand(product, ctx.out.shape)
    x = cast(x, ctx.compute)
    if not isinstance(beta, (int, float)) or beta != 1:
        scaled = lax.mul(x, expand(cast(beta, ctx.compute), x.shape))
        if not isinstance(beta, (int, float)):
            is_zero = expand(lax.eq(beta, lax.full_like(beta, 0)), x.shape)
            scaled = lax.select(is_zero, scalar_like(x, 0), scaled)
        x = scaled
    x, product = broadcast(x, product)
    return lax.bitwise_or(x, product) if x.dtype == bool else lax.add(x, product)


@lowers("aten.addmm.default", "aten.addmv.default")
def addmm(
    ctx: OpContext, x: Array, a: Array, b: Array, beta: Any = 1, alpha: Any = 1
) -> Array:
    return _combine(ctx, x, contract(ctx, a, b), beta, alpha)


@lowers("aten.baddbmm.default")
def baddbmm(
    ctx: OpContext, x: Array, a: Array, b: Array, beta: Any = 1, alpha: Any = 1
) -> Array:
    return _combine(ctx, x, contract(ctx, a, b, batch=1), beta, alpha)


@lowers("aten.addbmm.default")
def addbmm(
    ctx: OpContext, x: Array, a: Array, b: Array, beta: Any = 1, alpha: Any = 1
) -> Array:
    product = lax.reduce_sum(contract(ctx, a, b, batch=1), (0,))
    return _combine(ctx, x, product, beta, alpha)


@lowers("aten.addr.default")
def addr(
    ctx: OpContext, x: Array, a: Array, b: Array, beta: Any = 1, alpha: Any = 1
) -> Array:
    a, b = ctx.cast(a, b)
    outer = lax.expand_dims(a, (1,)), lax.expand_dims(b, (0,))
    product = lax.mul(*broadcast(*outer)) if a.dtype != bool else outer[0] & outer[1]
    return _combine(ctx, x, product, beta, alpha)


@lowers("aten.matmul.default")
def matmul(ctx: OpContext, a: Array, b: Array) -> Array:
    if a.ndim <= 2 and b.ndim <= 2:  # noqa: PLR2004
        return contract(ctx, a, b)
    return jnp.matmul(
        a,
        b,
        precision=lax.Precision.HIGHEST,
        preferred_element_type=to_jax_dtype(ctx.compute),
    )


@lowers("aten.linear.default")
def linear(ctx: OpContext, x: Array, weight: Array, bias: Array | None = None) -> Array:
    product = lax.dot_general(
        x,
        weight,
        (((x.ndim - 1,), (weight.ndim - 1,)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=to_jax_dtype(ctx.compute),
    )
    return product if bias is None else lax.add(*broadcast(product, cast(bias, ctx.compute)))


@lowers("aten.outer.default", "aten.ger.default")
def outer(ctx: OpContext, a: Array, b: Array) -> Array:
    a, b = ctx.cast(a, b)
    return lax.mul(*broadcast(lax.expand_dims(a, (1,)), lax.expand_dims(b, (0,))))


def _wide(x: Array) -> Array:
    return cast(x, opmath_dtype(torch.float32)) if x.dtype.itemsize < 4 else x  # noqa: PLR2004


@lowers("aten.cholesky.default")
def cholesky(ctx: OpContext, x: Array, upper: bool = False) -> Array:  # noqa: ARG001, FBT001, FBT002
    factor = jnp.linalg.cholesky(_adjoint(x) if upper else x)
    return _adjoint(factor) if upper else factor


@lowers("aten.linalg_cholesky_ex.default")
def cholesky_ex(
    ctx: OpContext, x: Array, upper: bool = False, *_: Any  # noqa: FBT001, FBT002
) -> tuple[Array, Array]:
    factor = cholesky(ctx, x, upper)
    failed = jnp.isnan(jnp.sum(jnp.abs(factor), axis=(-2, -1)))
    return factor, lax.convert_element_type(failed, np.int32)


def _adjoint(x: Array) -> Array:
    x = jnp.swapaxes(x, -1, -2)
    return lax.conj(x) if jnp.iscomplexobj(x) else x
