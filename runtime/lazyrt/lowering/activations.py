"""Rules of activation functions and softmax, and of their gradients."""

# A rule's signature is its op's schema.
# ruff: noqa: ARG001, FBT001

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from lazyrt.lowering.dtypes import Array, cast, to_torch_dtype
from lazyrt.lowering.registry import lowers
from lazyrt.lowering.shaping import (
    axis,
    broadcast,
    expand,
    scalar_like,
    zeros_like,
)

if TYPE_CHECKING:
    from lazyrt.lowering.context import OpContext


@lowers("aten.relu.default")
def relu(ctx: OpContext, x: Array) -> Array:
    return lax.max(x, zeros_like(x))


@lowers("aten.relu6.default")
def relu6(ctx: OpContext, x: Array) -> Array:
    return lax.clamp(zeros_like(x), x, scalar_like(x, 6))


@lowers("aten.threshold.default")
def threshold(ctx: OpContext, x: Array, limit: Any, value: Any) -> Array:
    limit, fill = (expand(cast(v, ctx.out.dtype), x.shape) for v in (limit, value))
    return lax.select(lax.le(x, limit), fill, x)


@lowers("aten.threshold_backward.default")
def threshold_backward(ctx: OpContext, grad: Array, x: Array, limit: Any) -> Array:
    grad, x = broadcast(cast(grad, ctx.out.dtype), x)
    limit = expand(cast(limit, to_torch_dtype(x.dtype)), x.shape)
    return lax.select(lax.le(x, limit), zeros_like(grad), grad)


def _normal_cdf(x: Array) -> Array:
    half = scalar_like(x, 0.5)
    root = scalar_like(x, math.sqrt(0.5))
    return lax.mul(half, lax.add(scalar_like(x, 1), lax.erf(lax.mul(x, root))))


_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBE = 0.044715


@lowers("aten.gelu.default")
def gelu(ctx: OpContext, x: Array, approximate: str = "none") -> Array:
    (x,) = ctx.cast(x)
    if approximate == "none":
        return lax.mul(x, _normal_cdf(x))
    cube = lax.mul(x, lax.mul(x, x))
    inner = lax.add(x, lax.mul(scalar_like(x, _TANH_CUBE), cube))
    tanh = lax.tanh(lax.mul(scalar_like(x, _TANH_SCALE), inner))
    return lax.mul(lax.mul(scalar_like(x, 0.5), x), lax.add(scalar_like(x, 1), tanh))


@lowers("aten.gelu_backward.default")
def gelu_backward(
    ctx: OpContext, grad: Array, x: Array, approximate: str = "none"
) -> Array:
    grad, x = ctx.cast(grad, x)
    if approximate == "none":
        density = lax.exp(lax.mul(scalar_like(x, -0.5), lax.mul(x, x)))
        density = lax.mul(density, scalar_like(x, 1 / math.sqrt(2 * math.pi)))
        return lax.mul(grad, lax.add(_normal_cdf(x), lax.mul(x, density)))
    square = lax.mul(x, x)
    inner = _TANH_SCALE * (x + _TANH_CUBE * x * square)
    tanh = lax.tanh(inner)
    slope = _TANH_SCALE * (1 + 3 * _TANH_CUBE * square)
    return grad * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * slope)


@lowers("aten.silu.default")
def silu(ctx: OpContext, x: Array) -> Array:
    (x,) = ctx.cast(x)
    return lax.mul(x, lax.logistic(x))


@lowers("aten.silu_backward.default")
def silu_backward(ctx: OpContext, grad: Array, x: Array) -> Array:
    grad, x = ctx.cast(grad, x)
    gate = lax.logistic(x)
    return grad * gate * (1 + x * (1 - gate))


@lowers("aten.mish.default")
def mish(ctx: OpContext, x: Array) -> Array:
    (x,) = ctx.cast(x)
    return x * lax.tanh(jax.nn.softplus(x))


@lowers("aten.hardswish.default")
def hardswish(ctx: OpContext, x: Array) -> Array:
    (x,) = ctx.cast(x)
    return x * lax.clamp(zeros_like(x), x + 3, scalar_like(x, 6)) / 6


@lowers("aten.hardsigmoid.default")
def hardsigmoid(ctx: OpContext, x: Array) -> Array:
    (x,) = ctx.cast(x)
    return lax.clamp(zeros_like(x), x + 3, scalar_like(x, 6)) / 6


@lowers("aten.hardtanh.default")
def hardtanh(ctx: OpContext, x: Array, low: Any = -1, high: Any = 1) -> Array:
    low, high = (expand(cast(v, ctx.out.dtype), x.shape) for v in (low, high))
    return lax.min(lax.max(x, low), high)


@lowers("aten.hardtanh_backward.default")
def hardtanh_backward(
    ctx: OpContext, grad: Array, x: Array, low: Any, high: Any
) -> Array:
    grad, x = ctx.cast(grad, x)
    low, high = (expand(v, x.shape) for v in ctx.cast(low, high))
    outside = lax.bitwise_or(lax.le(x, low), lax.ge(x, high))
    return lax.select(outside, zeros_like(grad), grad)


@lowers("aten.leaky_relu.default")
def leaky_relu(ctx: OpContext, x: Array, slope: Any = 0.01) -> Array:
    (x,) = ctx.cast(x)
    (slope,) = ctx.cast(slope)
    return lax.select(lax.gt(x, zeros_like(x)), x, lax.mul(x, expand(slope, x.shape)))


@lowers("aten.leaky_relu_backward.default")
def leaky_relu_backward(
    ctx: OpContext, grad: Array, x: Array, slope: Any, is_result: bool
) -> Array:
    grad, x = ctx.cast(grad, x)
    (slope,) = ctx.cast(slope)
    return lax.select(
        lax.gt(x, zeros_like(x)), grad, lax.mul(grad, expand(slope, x.shape))
    )


@lowers("aten.elu.default")
def elu(
    ctx: OpContext, x: Array, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1
) -> Array:
    (x,) = ctx.cast(x)
    low = lax.expm1(x * input_scale) * (alpha * scale)
    return lax.select(lax.gt(x, zeros_like(x)), x * scale, low)


@lowers("aten.elu_backward.default")
def elu_backward(
    ctx: OpContext,
    grad: Array,
    alpha: Any,
    scale: Any,
    input_scale: Any,
    is_result: bool,
    x: Array,
) -> Array:
    grad, x = ctx.cast(grad, x)
    if is_result:
        low = grad * input_scale * (x + alpha * scale)
    else:
        low = grad * lax.exp(x * input_scale) * (input_scale * alpha * scale)
    return lax.select(lax.le(x, zeros_like(x)), low, grad * scale)


@lowers("aten.softplus.default")
def softplus(ctx: OpContext, x: Array, beta: Any = 1, limit: Any = 20) -> Array:
    (x,) = ctx.cast(x)
    scaled = x * beta
    return jnp.where(scaled > limit, x, lax.log1p(lax.exp(scaled)) / beta)


@lowers("aten.softplus_backward.default")
def softplus_backward(
    ctx: OpContext, grad: Array, x: Array, beta: Any, limit: Any
) -> Array:
    grad, x = ctx.cast(grad, x)
    scaled = x * beta
    return jnp.where(scaled > limit, grad, grad * lax.logistic(scaled))


@lowers("aten.sigmoid_backward.default")
def sigmoid_backward(ctx: OpContext, grad: Array, y: Array) -> Array:
    grad, y = broadcast(*ctx.cast(grad, y))
    rest = lax.sub(scalar_like(y, 1), y)
    product = lax.mul(y, rest)
    return lax.mul(grad, lax.conj(product) if jnp.iscomplexobj(y) else product)


@lowers("aten.tanh_backward.default")
def tanh_backward(ctx: OpContext, grad: Array, y: Array) -> Array:
    grad, y = broadcast(*ctx.cast(grad, y))
    slope = lax.sub(scalar_like(y, 1), lax.mul(y, y))
    return lax.mul(grad, lax.conj(slope) if jnp.iscomplexobj(y) else slope)


@lowers("aten.log_sigmoid_forward.default")
def log_sigmoid_forward(ctx: OpContext, x: Array) -> tuple[Array, Array]:
    (x,) = ctx.cast(x)
    power = lax.exp(lax.neg(lax.abs(x)))
    buffer = ctx.outs[1]
    is_kept = buffer is not None and buffer.shape == x.shape
    result = lax.sub(lax.min(x, zeros_like(x)), lax.log1p(power))
    return result, power if is_kept else jnp.zeros((0,), x.dtype)


@lowers("aten.log_sigmoid_backward.default")
def log_sigmoid_backward(ctx: OpContext, grad: Array, x: Array, buffer: Array) -> Array:
    grad, x = ctx.cast(grad, x)
    return grad * lax.logistic(-x)


@lowers("aten.softshrink_backward.default", "aten.hardshrink_backward.default")
def shrink_backward(ctx: OpContext, grad: Array, x: Array, lambd: Any) -> Array:
    grad, x = ctx.cast(grad, x)
    return jnp.where((x >= -lambd) & (x <= lambd), zeros_like(grad), grad)


# Softmax.


def _softmax(x: Array, dim: int) -> Array:
    if x.ndim == 0:
        return jnp.ones_like(x)
    d = (axis(dim, x.ndim),)
    top = lax.expand_dims(lax.reduce_max(x, d), d)
    powers = lax.exp(lax.sub(x, expand(top, x.shape)))
    total = lax.expand_dims(lax.reduce_sum(powers, d), d)
    return lax.div(powers, expand(total, x.shape))


def _log_softmax(x: Array, dim: int) -> Array:
    if x.ndim == 0:
        return zeros_like(x)
    d = (axis(dim, x.ndim),)
    top = lax.expand_dims(lax.reduce_max(x, d), d)
    shifted = lax.sub(x, expand(top, x.shape))
    total = lax.expand_dims(lax.reduce_sum(lax.exp(shifted), d), d)
    return lax.sub(shifted, expand(lax.log(total), x.shape))


@lowers("aten._softmax.default", "aten.softmax.int")
def softmax(ctx: OpContext, x: Array, dim: int, *_: Any) -> Array:
    return _softmax(cast(x, ctx.compute), dim)


@lowers("aten._safe_softmax.default")
def safe_softmax(ctx: OpContext, x: Array, dim: int, *_: Any) -> Array:
    (x,) = ctx.cast(x)
    masked = jnp.all(x == -math.inf, axis=dim, keepdims=True)
    return jnp.where(masked, zeros_like(x), _softmax(x, dim))


@lowers("aten._log_softmax.default", "aten.log_softmax.int")
def log_softmax(ctx: OpContext, x: Array, dim: int, *_: Any) -> Array:
    return _log_softmax(cast(x, ctx.compute), dim)


def _sum_kept(x: Array, dim: int) -> Array:
    d = (axis(dim, x.ndim),)
    return expand(lax.expand_dims(lax.reduce_sum(x, d), d), x.shape)


@lowers("aten._softmax_backward_data.default")
def softmax_backward(ctx: OpContext, grad: Array, y: Array, dim: int, *_: Any) -> Array:
    grad, y = ctx.cast(grad, y)
    if y.ndim == 0:
        return zeros_like(y)
    product = lax.mul(grad, y)
    return lax.sub(product, lax.mul(y, _sum_kept(product, dim)))


@lowers("aten._log_softmax_backward_data.default")
def log_softmax_backward(
    ctx: OpContext, grad: Array, y: Array, dim: int, *_: Any
) -> Array:
    grad, y = ctx.cast(grad, y)
    if y.ndim == 0:
        return zeros_like(y)
    return lax.sub(grad, lax.mul(lax.exp(y), _sum_kept(grad, dim)))
