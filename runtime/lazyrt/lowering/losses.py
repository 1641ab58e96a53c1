"""Rules of losses and of their gradients. A reduction is 0 for none, 1 for the mean, 2 for the sum."""

# A rule's signature is its op's schema.

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from lazyrt.lowering.dtypes import Array, cast
from lazyrt.lowering.registry import lowers
from lazyrt.lowering.shaping import (
    broadcast,
    expand,
    iota_along,
    scalar_like,
    zeros_like,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazyrt.lowering.context import OpContext


_MEAN, _SUM = 1, 2


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
    return _reduced(_weighed(loss, *ctx.cast_optional(weight)), reduction)


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
    return _weighed(spread * slope, *ctx.cast_optional(weight))


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
    weight, pos_weight = ctx.cast_optional(weight, pos_weight)
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
    (weight,) = ctx.cast_optional(weight)
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
    (weight,) = ctx.cast_optional(weight)
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


@lowers("aten.multi_margin_loss.default")
def multi_margin_loss(
    ctx: OpContext,
    x: Array,
    target: Array,
    p: Any = 1,
    margin: Any = 1,
    weight: Array | None = None,
    reduction: int = 1,
) -> Array:
    (x,) = ctx.cast(x)
    gap, counted, _ = _margins(x, target, margin)
    costs = jnp.where(counted, gap if p == 1 else gap * gap, 0)
    costs = _by_label(ctx, costs, weight, target)
    losses = jnp.sum(costs, axis=1) / gap.shape[1]
    return lax.reshape(_reduced(losses, reduction), ctx.out.shape)


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
    gap, counted, is_target = _margins(x, target, margin)
    push = jnp.where(counted, 1 if p == 1 else 2 * gap, 0)
    push = _by_label(ctx, push, weight, target)
    pull = jnp.sum(push, axis=1, keepdims=True)
    slope = jnp.where(is_target, -pull, push) / gap.shape[1]
    spread = _spread(grad, (gap.shape[0],), reduction)
    return lax.reshape(spread[:, None] * slope, x.shape)


def _margins(x: Array, target: Array, margin: Any) -> tuple[Array, Array, Array]:
    """Return how far each class is within the margin, which count, and which is the target."""
    rows, labels = jnp.atleast_2d(x), jnp.atleast_1d(target)
    is_target = labels[:, None] == jnp.arange(rows.shape[1])
    scores = jnp.take_along_axis(rows, labels[:, None], axis=1)
    gap = margin - scores + rows
    return gap, (gap > 0) & ~is_target, is_target


def _by_label(
    ctx: OpContext, rows: Array, weight: Array | None, target: Array
) -> Array:
    """Return rows times the weights of their labels."""
    if weight is None:
        return rows
    return rows * cast(weight, ctx.compute)[jnp.atleast_1d(target)][:, None]


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
