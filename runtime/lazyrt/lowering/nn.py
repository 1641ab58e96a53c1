"""Rules of neural network ops: activations, softmax, normalisation, losses."""

# A rule's signature is its op's schema.
# ruff: noqa: ARG001, FBT001

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from lazyrt.lowering.dtypes import Array, cast, opmath_dtype, to_torch_dtype
from lazyrt.lowering.registry import lowers
from lazyrt.lowering.shaping import (
    axis,
    broadcast,
    expand,
    iota_along,
    keep_dims,
    scalar_like,
    zeros_like,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazyrt.lowering.context import OpContext

_MEAN, _SUM = 1, 2


# Activations.


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


@lowers("aten.softshrink_backward.default")
def softshrink_backward(ctx: OpContext, grad: Array, x: Array, lambd: Any) -> Array:
    grad, x = ctx.cast(grad, x)
    return jnp.where((x >= -lambd) & (x <= lambd), zeros_like(grad), grad)


@lowers("aten.hardshrink_backward.default")
def hardshrink_backward(ctx: OpContext, grad: Array, x: Array, lambd: Any) -> Array:
    return softshrink_backward(ctx, grad, x, lambd)


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


# Normalisation.


def _normalised(
    x: Array, dims: Sequence[int], eps: float
) -> tuple[Array, Array, Array]:
    """Return x normalised over dimensions, and the mean and 1/std, dimensions kept."""
    count = math.prod(x.shape[d] for d in dims)
    mean = lax.reduce_sum(x, tuple(dims))
    mean = lax.expand_dims(lax.div(mean, scalar_like(mean, count)), dims)
    centred = lax.sub(x, expand(mean, x.shape))
    var = lax.reduce_sum(lax.mul(centred, centred), tuple(dims))
    var = lax.expand_dims(lax.div(var, scalar_like(var, count)), dims)
    rstd = lax.rsqrt(lax.add(var, scalar_like(var, eps)))
    return lax.mul(centred, expand(rstd, x.shape)), mean, rstd


def _affine(x: Array, weight: Array | None, bias: Array | None) -> Array:
    if weight is not None:
        x = lax.mul(x, expand(weight, x.shape))
    return x if bias is None else lax.add(x, expand(bias, x.shape))


def _optional(ctx: OpContext, *values: Any) -> list[Array | None]:
    return [None if value is None else cast(value, ctx.compute) for value in values]


@lowers("aten.native_layer_norm.default")
def native_layer_norm(
    ctx: OpContext,
    x: Array,
    normalized_shape: Sequence[int],
    weight: Array | None,
    bias: Array | None,
    eps: float,
) -> tuple[Array, Array, Array]:
    (x,) = ctx.cast(x)
    dims = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    normal, mean, rstd = _normalised(x, dims, eps)
    return _affine(normal, *_optional(ctx, weight, bias)), mean, rstd


@lowers("aten.layer_norm.default")
def layer_norm(
    ctx: OpContext,
    x: Array,
    normalized_shape: Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Array:
    return native_layer_norm(ctx, x, normalized_shape, weight, bias, eps)[0]


@lowers("aten.native_layer_norm_backward.default")
def native_layer_norm_backward(
    ctx: OpContext,
    grad: Array,
    x: Array,
    normalized_shape: Sequence[int],
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    grad, x, mean, rstd = ctx.cast(grad, x, mean, rstd)
    first = x.ndim - len(normalized_shape)
    inner, outer = tuple(range(first, x.ndim)), tuple(range(first))
    rstd = expand(rstd, x.shape)
    normal = lax.mul(lax.sub(x, expand(mean, x.shape)), rstd)
    d_weight = lax.reduce_sum(lax.mul(grad, normal), outer) if output_mask[1] else None
    d_bias = lax.reduce_sum(grad, outer) if output_mask[2] else None
    if not output_mask[0]:
        return None, d_weight, d_bias
    scaled = grad if weight is None else _affine(grad, *_optional(ctx, weight, None))
    return _normal_gradient(scaled, normal, rstd, inner), d_weight, d_bias


def _normal_gradient(
    grad: Array, normal: Array, rstd: Array, dims: Sequence[int]
) -> Array:
    """Return the gradient through a normalisation over dimensions."""
    count = math.prod(grad.shape[d] for d in dims)

    def mean(x: Array) -> Array:
        total = lax.expand_dims(lax.reduce_sum(x, tuple(dims)), dims)
        return expand(lax.div(total, scalar_like(total, max(count, 1))), x.shape)

    along = lax.mul(normal, mean(lax.mul(grad, normal)))
    return lax.mul(rstd, lax.sub(lax.sub(grad, mean(grad)), along))


@lowers("aten.native_group_norm.default")
def native_group_norm(
    ctx: OpContext,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    eps: float,
) -> tuple[Array, Array, Array]:
    (flat,) = ctx.cast(lax.reshape(x, (n, group, c // group * hxw)))
    normal, mean, rstd = _normalised(flat, (2,), eps)
    channels = [_channels(v, x.ndim) for v in _optional(ctx, weight, bias)]
    result = _affine(lax.reshape(normal, x.shape), *channels)
    return result, lax.reshape(mean, (n, group)), lax.reshape(rstd, (n, group))


def _channels(x: Array | None, rank: int) -> Array | None:
    """Return a vector of channels shaped to go with [batch, channel, ...]."""
    return None if x is None else lax.reshape(x, (x.size, *(1,) * (rank - 2)))


@lowers("aten.native_group_norm_backward.default")
def native_group_norm_backward(
    ctx: OpContext,
    grad: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    grad, x, mean, rstd = ctx.cast(grad, x, mean, rstd)
    shape = (n, group, c // group * hxw)
    rstd = expand(lax.reshape(rstd, (n, group, 1)), shape)
    centred = lax.sub(
        lax.reshape(x, shape), expand(lax.reshape(mean, (n, group, 1)), shape)
    )
    normal = lax.mul(centred, rstd)
    by_channel = lax.reshape(normal, (n, c, hxw)), lax.reshape(grad, (n, c, hxw))
    d_weight = lax.reduce_sum(lax.mul(*by_channel), (0, 2)) if output_mask[1] else None
    d_bias = lax.reduce_sum(by_channel[1], (0, 2)) if output_mask[2] else None
    if not output_mask[0]:
        return None, d_weight, d_bias
    (scale,) = _optional(ctx, weight)
    scaled = _affine(grad, _channels(scale, grad.ndim), None)
    d_x = _normal_gradient(lax.reshape(scaled, shape), normal, rstd, (2,))
    return lax.reshape(d_x, x.shape), d_weight, d_bias


def _batch_norm(
    ctx: OpContext,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: Any,
    eps: float,
) -> tuple[Array, Array, Array, Any, Any]:
    """Return result, saved mean, saved 1/std, new running mean, new running variance."""
    (x,) = ctx.cast(x)
    weight, bias = (_channels(v, x.ndim) for v in _optional(ctx, weight, bias))
    if not training:
        mean, var = ctx.cast(running_mean, running_var)
        rstd = lax.rsqrt(lax.add(var, scalar_like(var, eps)))
        shaped = [expand(lax.reshape(v, (v.size, *(1,) * (x.ndim - 2))), x.shape)
                  for v in (mean, rstd)]  # fmt: skip
        normal = lax.mul(lax.sub(x, shaped[0]), shaped[1])
        empty = jnp.zeros((0,), x.dtype)
        return _affine(normal, weight, bias), empty, empty, running_mean, running_var
    dims = (0, *range(2, x.ndim))
    normal, mean, rstd = _normalised(x, dims, eps)
    result = _affine(normal, weight, bias)
    mean, rstd = (lax.reshape(v, (x.shape[1],)) for v in (mean, rstd))
    count = x.size // max(x.shape[1], 1)
    var = lax.sub(
        lax.div(scalar_like(rstd, 1), lax.mul(rstd, rstd)), scalar_like(rstd, eps)
    )
    unbiased = lax.mul(var, scalar_like(var, count / max(count - 1, 1)))
    new_mean = _moving(running_mean, mean, momentum)
    return result, mean, rstd, new_mean, _moving(running_var, unbiased, momentum)


def _moving(old: Array | None, new: Array, momentum: Any) -> Array | None:
    if old is None:
        return None
    dtype = to_torch_dtype(old.dtype)
    factor = expand(cast(momentum, opmath_dtype(dtype)), old.shape)
    wide, new = cast(old, opmath_dtype(dtype)), cast(new, opmath_dtype(dtype))
    keep = lax.sub(scalar_like(factor, 1), factor)
    return cast(lax.add(lax.mul(keep, wide), lax.mul(factor, new)), dtype)


@lowers("aten._native_batch_norm_legit_functional.default")
def batch_norm_functional(
    ctx: OpContext,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    *rest: Any,
) -> tuple[Any, ...]:
    return _batch_norm(ctx, x, weight, bias, running_mean, running_var, *rest)


@lowers("aten._batch_norm_with_update_functional.default")
def batch_norm_with_update(
    ctx: OpContext,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: Any,
    eps: float,
) -> tuple[Any, ...]:
    rest = (running_mean, running_var, True, momentum, eps)
    *results, new_mean, new_var = _batch_norm(ctx, x, weight, bias, *rest)
    return *results, jnp.zeros((0,), np.uint8), new_mean, new_var


@lowers("aten._native_batch_norm_legit_no_training.default")
def batch_norm_no_training(
    ctx: OpContext,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: Any,
    eps: float,
) -> tuple[Any, ...]:
    rest = (False, momentum, eps)
    found = _batch_norm(ctx, x, weight, bias, running_mean, running_var, *rest)[:3]
    # In evaluation nobody reads the saved statistics; torch's types differ by device.
    return tuple(
        jnp.zeros(out.shape, value.dtype) if out and value.shape != out.shape else value
        for value, out in zip(found, ctx.outs, strict=True)
    )


@lowers("aten._native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    ctx: OpContext,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    *rest: Any,
) -> tuple[Any, ...]:
    return _batch_norm(ctx, x, weight, bias, None, None, *rest)[:3]


@lowers("aten.native_batch_norm.default", "aten._native_batch_norm_legit.default",
        "aten.cudnn_batch_norm.default")  # fmt: skip
def native_batch_norm(
    ctx: OpContext,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    *rest: Any,
) -> tuple[Any, ...]:
    """Lower batch norm without the update of the running statistics.

    The schema of the op updates them in place; a front end that keeps them up to date
    records the functional form.
    """
    found = _batch_norm(ctx, x, weight, bias, running_mean, running_var, *rest)[:3]
    # In evaluation nobody reads the saved statistics; torch's types differ by device.
    return tuple(
        jnp.zeros(out.shape, value.dtype) if out and value.shape != out.shape else value
        for value, out in zip(found, ctx.outs, strict=True)
    )


@lowers("aten.native_batch_norm_backward.default")
def native_batch_norm_backward(
    ctx: OpContext,
    grad: Array,
    x: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_invstd: Array | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    compute = opmath_dtype(to_torch_dtype(x.dtype))
    grad, x = cast(grad, compute), cast(x, compute)
    if train:
        mean, rstd = cast(save_mean, compute), cast(save_invstd, compute)
    else:
        mean, var = cast(running_mean, compute), cast(running_var, compute)
        rstd = lax.rsqrt(lax.add(var, scalar_like(var, eps)))
    mean, rstd = (expand(lax.reshape(v, (v.size, *(1,) * (x.ndim - 2))), x.shape)
                  for v in (mean, rstd))  # fmt: skip
    normal = lax.mul(lax.sub(x, mean), rstd)
    dims = (0, *range(2, x.ndim))
    d_weight = lax.reduce_sum(lax.mul(grad, normal), dims) if output_mask[1] else None
    d_bias = lax.reduce_sum(grad, dims) if output_mask[2] else None
    if not output_mask[0]:
        return None, d_weight, d_bias
    scale = None if weight is None else _channels(cast(weight, compute), x.ndim)
    scaled = _affine(grad, scale, None)
    d_x = (
        _normal_gradient(scaled, normal, rstd, dims) if train else lax.mul(scaled, rstd)
    )
    return d_x, d_weight, d_bias


@lowers("aten._fused_rms_norm.default")
def fused_rms_norm(
    ctx: OpContext,
    x: Array,
    normalized_shape: Sequence[int],
    weight: Array | None,
    eps: Any,
) -> tuple[Array, Array]:
    eps = torch.finfo(ctx.out.dtype).eps if eps is None else eps
    (x,) = ctx.cast(x)
    dims = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    count = math.prod(x.shape[d] for d in dims)
    squares = lax.reduce_sum(lax.mul(x, x), dims)
    squares = keep_dims(lax.div(squares, scalar_like(squares, count)), dims, x.ndim)
    rstd = lax.rsqrt(lax.add(squares, scalar_like(squares, eps)))
    normal = lax.mul(x, expand(rstd, x.shape))
    return _affine(normal, *_optional(ctx, weight, None)), rstd


# Losses. A reduction is 0 for none, 1 for the mean, 2 for the sum.


def _reduced(x: Array, reduction: int) -> Array:
    if reduction == 0:
        return x
    total = lax.reduce_sum(x, tuple(range(x.ndim)))
    if reduction == _SUM:
        return total
    size = np.float64(x.size)
    return lax.div(total, scalar_like(total, size))


def _spread(grad: Array, shape: Sequence[int], reduction: int) -> Array:
    """Return the gradient that each element of an unreduced loss gets."""
    grad = expand(grad, shape)
    if reduction != _MEAN:
        return grad
    return lax.div(grad, scalar_like(grad, math.prod(shape)))


@lowers("aten.mse_loss.default")
def mse_loss(ctx: OpContext, x: Array, target: Array, reduction: int = 1) -> Array:
    difference = lax.sub(*broadcast(*ctx.cast(x, target)))
    return _reduced(lax.mul(difference, difference), reduction)


@lowers("aten.mse_loss_backward.default")
def mse_loss_backward(
    ctx: OpContext, grad: Array, x: Array, target: Array, reduction: int
) -> Array:
    grad, x, target = ctx.cast(grad, x, target)
    difference = lax.sub(*broadcast(x, target))
    spread = _spread(grad, difference.shape, reduction)
    return lax.mul(lax.mul(scalar_like(difference, 2), difference), spread)


@lowers("aten.l1_loss.default")
def l1_loss(ctx: OpContext, x: Array, target: Array, reduction: int = 1) -> Array:
    return _reduced(lax.abs(lax.sub(*broadcast(*ctx.cast(x, target)))), reduction)


@lowers("aten.smooth_l1_loss.default")
def smooth_l1_loss(
    ctx: OpContext, x: Array, target: Array, reduction: int = 1, beta: float = 1.0
) -> Array:
    size = lax.abs(lax.sub(*broadcast(*ctx.cast(x, target))))
    if beta == 0:
        return _reduced(size, reduction)
    loss = jnp.where(size < beta, 0.5 * size * size / beta, size - 0.5 * beta)
    return _reduced(loss, reduction)


@lowers("aten.smooth_l1_loss_backward.default")
def smooth_l1_loss_backward(
    ctx: OpContext, grad: Array, x: Array, target: Array, reduction: int, beta: float
) -> Array:
    grad, x, target = ctx.cast(grad, x, target)
    difference = lax.sub(*broadcast(x, target))
    spread = _spread(grad, difference.shape, reduction)
    inside = lax.abs(difference) < beta
    slope = jnp.where(
        inside, difference / beta if beta else difference, lax.sign(difference)
    )
    return lax.mul(slope, spread)


@lowers("aten.huber_loss.default")
def huber_loss(
    ctx: OpContext, x: Array, target: Array, reduction: int = 1, delta: float = 1.0
) -> Array:
    size = lax.abs(lax.sub(*broadcast(*ctx.cast(x, target))))
    loss = jnp.where(size < delta, 0.5 * size * size, delta * (size - 0.5 * delta))
    return _reduced(loss, reduction)


@lowers("aten.binary_cross_entropy.default")
def binary_cross_entropy(
    ctx: OpContext,
    x: Array,
    target: Array,
    weight: Array | None = None,
    reduction: int = 1,
) -> Array:
    x, target = ctx.cast(x, target)
    floor = scalar_like(x, -100)
    yes = lax.max(lax.log(x), floor)
    no = lax.max(lax.log1p(-x), floor)
    loss = (target - 1) * no - target * yes
    return _reduced(_weighed(loss, *_optional(ctx, weight)), reduction)


def _weighed(loss: Array, weight: Array | None) -> Array:
    return loss if weight is None else lax.mul(*broadcast(loss, weight))


@lowers("aten.binary_cross_entropy_backward.default")
def binary_cross_entropy_backward(
    ctx: OpContext,
    grad: Array,
    x: Array,
    target: Array,
    weight: Array | None = None,
    reduction: int = 1,
) -> Array:
    grad, x, target = ctx.cast(grad, x, target)
    spread = _spread(grad, x.shape, reduction)
    slope = (x - target) / lax.max((1 - x) * x, scalar_like(x, 1e-12))
    return _weighed(spread * slope, *_optional(ctx, weight))


@lowers("aten.binary_cross_entropy_with_logits.default")
def bce_with_logits(
    ctx: OpContext,
    x: Array,
    target: Array,
    weight: Array | None = None,
    pos_weight: Array | None = None,
    reduction: int = 1,
) -> Array:
    x, target = broadcast(*ctx.cast(x, target))
    weight, pos_weight = _optional(ctx, weight, pos_weight)
    log_sigmoid = lax.min(x, zeros_like(x)) - lax.log1p(lax.exp(-lax.abs(x)))
    if pos_weight is None:
        loss = (1 - target) * x - log_sigmoid
    else:
        factor = (pos_weight - 1) * target + 1
        loss = (1 - target) * x - factor * log_sigmoid
    return _reduced(_weighed(loss, weight), reduction)


def _class_weights(x: Array, target: Array, weight: Array | None, ignore: int) -> Array:
    """Return the weight of each target: that of its class, zero if it is ignored."""
    valid = lax.ne(target, scalar_like(target, ignore))
    if weight is None:
        return lax.convert_element_type(valid, x.dtype)
    chosen = weight.at[target].get(mode="clip")
    return lax.select(valid, chosen, zeros_like(chosen))


def _class_axis(x: Array) -> int:
    return 0 if x.ndim == 1 else 1


@lowers("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def nll_loss_forward(
    ctx: OpContext,
    x: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore: int,
) -> tuple[Array, Array]:
    (x,) = ctx.cast(x)
    (weight,) = _optional(ctx, weight)
    c = _class_axis(x)
    if x.ndim == 1:
        target = lax.reshape(target, ())
    weights = _class_weights(x, target, weight, ignore)
    inside = lax.clamp(
        scalar_like(target, 0), target, scalar_like(target, x.shape[c] - 1)
    )
    picked = jnp.take_along_axis(x, lax.expand_dims(inside, (c,)), c, mode="clip")
    losses = lax.neg(lax.mul(lax.reshape(picked, weights.shape), weights))
    losses = jnp.where(weights == 0, zeros_like(losses), losses)
    everything = tuple(range(losses.ndim))
    total_weight = lax.reduce_sum(weights, everything)
    if reduction == 0:
        out = ctx.outs[0]
        shape = losses.shape if out is None else out.shape
        spare = total_weight if x.ndim == 1 else jnp.zeros((), x.dtype)
        return lax.reshape(losses, shape), spare
    total = lax.reduce_sum(losses, everything)
    return (lax.div(total, total_weight) if reduction == _MEAN else total), total_weight


@lowers("aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default")
def nll_loss_backward(
    ctx: OpContext,
    grad: Array,
    x: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore: int,
    total_weight: Array,
) -> Array:
    grad, x, total_weight = ctx.cast(grad, x, total_weight)
    (weight,) = _optional(ctx, weight)
    c = _class_axis(x)
    if x.ndim == 1:
        target, grad = lax.reshape(target, ()), lax.reshape(grad, ())
    weights = _class_weights(x, target, weight, ignore)
    spread = expand(grad, weights.shape)
    if reduction == _MEAN:
        spread = lax.div(spread, expand(total_weight, weights.shape))
    spread = lax.expand_dims(lax.neg(lax.mul(spread, weights)), (c,))
    classes = iota_along(x.shape, c, target.dtype)
    hit = lax.eq(classes, expand(lax.expand_dims(target, (c,)), x.shape))
    return lax.select(hit, expand(spread, x.shape), zeros_like(x))


def _label_places(target: Array) -> tuple[Array, Array]:
    """Return labels and which of them count: those in front of the first negative one."""
    kept = jnp.cumprod(target >= 0, axis=-1) > 0
    return jnp.where(kept, target, 0), kept


@lowers("aten.multi_margin_loss_backward.default")
def multi_margin_loss_backward(
    ctx: OpContext,
    grad: Array,
    x: Array,
    target: Array,
    p: Any,
    margin: Any,
    weight: Array | None = None,
    reduction: int = 1,
) -> Array:
    grad, x = ctx.cast(grad, x)
    rows, labels = jnp.atleast_2d(x), jnp.atleast_1d(target)
    is_target = labels[:, None] == jnp.arange(rows.shape[1])
    scores = jnp.take_along_axis(rows, labels[:, None], axis=1)
    gap = margin - scores + rows
    push = jnp.where((gap > 0) & ~is_target, 1 if p == 1 else 2 * gap, 0)
    if weight is not None:
        push = push * cast(weight, ctx.compute)[labels][:, None]
    pull = jnp.sum(push, axis=1, keepdims=True)
    slope = jnp.where(is_target, -pull, push) / rows.shape[1]
    spread = _spread(grad, (rows.shape[0],), reduction)
    return lax.reshape(spread[:, None] * slope, x.shape)


@lowers("aten.multilabel_margin_loss_forward.default")
def multilabel_margin_loss(
    ctx: OpContext, x: Array, target: Array, reduction: int
) -> tuple[Array, Array]:
    (x,) = ctx.cast(x)
    rows, labels = jnp.atleast_2d(x), jnp.atleast_2d(target)
    places, kept = _label_places(labels)
    hits = (places[:, :, None] == jnp.arange(rows.shape[1])) & kept[:, :, None]
    is_target = jnp.any(hits, axis=1)
    scores = jnp.take_along_axis(rows, places, axis=1)
    margins = jnp.maximum(1 - (scores[:, :, None] - rows[:, None, :]), 0)
    counted = kept[:, :, None] & ~is_target[:, None, :]
    losses = jnp.sum(jnp.where(counted, margins, 0), axis=(1, 2)) / rows.shape[1]
    result = _reduced(losses, reduction)
    marks = lax.convert_element_type(is_target, x.dtype)
    return lax.reshape(result, ctx.out.shape), lax.reshape(marks, target.shape)


@lowers("aten.multilabel_margin_loss_backward.default")
def multilabel_margin_loss_backward(
    ctx: OpContext,
    grad: Array,
    x: Array,
    target: Array,
    reduction: int,
    is_target: Array,
) -> Array:
    grad, x = ctx.cast(grad, x)
    marks = jnp.atleast_2d(is_target) > 0
    rows, labels = jnp.atleast_2d(x), jnp.atleast_2d(target)
    places, kept = _label_places(labels)
    scores = jnp.take_along_axis(rows, places, axis=1)
    active = 1 - (scores[:, :, None] - rows[:, None, :]) > 0
    active = active & kept[:, :, None] & ~marks[:, None, :]
    push = lax.convert_element_type(active, x.dtype) / rows.shape[1]
    hits = (places[:, :, None] == jnp.arange(rows.shape[1])) & kept[:, :, None]
    pull = jnp.sum(push, axis=2)[:, :, None] * hits
    slope = jnp.sum(push, axis=1) - jnp.sum(pull, axis=1)
    spread = _spread(grad, (rows.shape[0],), reduction)
    return lax.reshape(spread[:, None] * slope, x.shape)
