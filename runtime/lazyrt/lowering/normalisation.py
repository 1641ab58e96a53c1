"""Rules of layer, group, batch and weight norm, and of their gradients."""

# A rule's signature is its op's schema.
# ruff: noqa: ARG001, FBT001

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from lazyrt.lowering.arrays import (
    Array,
    cast,
    expand,
    opmath_dtype,
    scalar_like,
    to_torch_dtype,
)
from lazyrt.lowering.registry import OpContext, lowers

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    return _affine(normal, *ctx.cast_optional(weight, bias)), mean, rstd


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
) -> tuple[Array, Array, Array]:
    grad, x, mean, rstd = ctx.cast(grad, x, mean, rstd)
    first = x.ndim - len(normalized_shape)
    inner, outer = tuple(range(first, x.ndim)), tuple(range(first))
    rstd = expand(rstd, x.shape)
    normal = lax.mul(lax.sub(x, expand(mean, x.shape)), rstd)
    scaled = _affine(grad, *ctx.cast_optional(weight, None))
    d_x = _normal_gradient(scaled, normal, rstd, inner)
    return d_x, *_affine_gradients(grad, normal, outer)


def _affine_gradients(
    grad: Array, normal: Array, dims: Sequence[int]
) -> tuple[Array, Array]:
    """Return the gradients of weight and bias; those that nobody asked for are dropped."""
    return lax.reduce_sum(lax.mul(grad, normal), dims), lax.reduce_sum(grad, dims)


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
    channels = [_channels(v, x.ndim) for v in ctx.cast_optional(weight, bias)]
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
) -> tuple[Array, Array, Array]:
    grad, x, mean, rstd = ctx.cast(grad, x, mean, rstd)
    shape = (n, group, c // group * hxw)
    rstd = expand(lax.reshape(rstd, (n, group, 1)), shape)
    centred = lax.sub(
        lax.reshape(x, shape), expand(lax.reshape(mean, (n, group, 1)), shape)
    )
    normal = lax.mul(centred, rstd)
    channels = (n, c, hxw)
    (scale,) = ctx.cast_optional(weight)
    scaled = _affine(grad, _channels(scale, grad.ndim), None)
    d_x = _normal_gradient(lax.reshape(scaled, shape), normal, rstd, (2,))
    by_channel = lax.reshape(grad, channels), lax.reshape(normal, channels)
    return lax.reshape(d_x, x.shape), *_affine_gradients(*by_channel, (0, 2))


def _spread(x: Array, like: Array) -> Array:
    """Return a vector of channels as an array of another's shape."""
    return expand(lax.reshape(x, (x.size, *(1,) * (like.ndim - 2))), like.shape)


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
    weight, bias = (_channels(v, x.ndim) for v in ctx.cast_optional(weight, bias))
    if not training:
        mean, var = ctx.cast(running_mean, running_var)
        rstd = lax.rsqrt(lax.add(var, scalar_like(var, eps)))
        shaped = [_spread(v, x) for v in (mean, rstd)]
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


def _typed_statistics(ctx: OpContext, found: Sequence[Any]) -> tuple[Any, ...]:
    """Return results whose saved statistics have torch's shapes, which differ by device.

    In evaluation nobody reads them.
    """
    return tuple(
        jnp.zeros(out.shape, value.dtype) if out and value.shape != out.shape else value
        for value, out in zip(found, ctx.outs, strict=True)
    )


@lowers("aten._native_batch_norm_legit_functional.default",
        "aten._batch_norm_with_update_functional.default",
        "aten._native_batch_norm_legit_no_training.default",
        "aten.native_batch_norm.default", "aten._native_batch_norm_legit.default")  # fmt: skip
def batch_norm(ctx: OpContext, *args: Any) -> tuple[Any, ...]:
    """Lower batch norm, of whose forms the functional ones give new running statistics.

    Those of the others are updated in place by their schema; a front end that keeps them up to
    date records a functional form.
    """
    given = ctx.named(args)
    training = given.pop("training", "no_training" not in ctx.name)
    *operands, momentum, eps = given.values()
    rest: list[Any] = [training, momentum, eps]
    found = _batch_norm(ctx, *operands, *rest)
    if "functional" not in ctx.name:
        return _typed_statistics(ctx, found[:3])
    reserve = [jnp.zeros((0,), np.uint8)] * ("with_update" in ctx.name)
    return *found[:3], *reserve, *found[3:]


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
) -> tuple[Array, Array, Array]:
    compute = opmath_dtype(to_torch_dtype(x.dtype))
    grad, x = cast(grad, compute), cast(x, compute)
    if train:
        mean, rstd = cast(save_mean, compute), cast(save_invstd, compute)
    else:
        mean, var = cast(running_mean, compute), cast(running_var, compute)
        rstd = lax.rsqrt(lax.add(var, scalar_like(var, eps)))
    mean, rstd = (_spread(v, x) for v in (mean, rstd))
    normal = lax.mul(lax.sub(x, mean), rstd)
    dims = (0, *range(2, x.ndim))
    scale = None if weight is None else _channels(cast(weight, compute), x.ndim)
    scaled = _affine(grad, scale, None)
    d_x = lax.mul(scaled, rstd)
    if train:
        d_x = _normal_gradient(scaled, normal, rstd, dims)
    return d_x, *_affine_gradients(grad, normal, dims)


@lowers("aten._weight_norm_interface_backward.default")
def weight_norm_backward(
    ctx: OpContext, grad: Array, v: Array, g: Array, norms: Array, dim: int
) -> tuple[Array, Array]:
    grad, v, g = ctx.cast(grad, v, g)
    first, second = ctx.pulled_back(
        grad, [v, g], [dim], "_weight_norm_interface", ctx.args[3]
    )
    return first, second
