"""Rules of activations, losses and fused recurrent cells, and of their gradients."""

# A rule's signature is its op's schema; numbers are those of its formula.
# ruff: noqa: ARG001, FBT001, FBT002, PLR2004

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from lazyrt.lowering.arrays import (
    Array,
    Unsupported,
    axis,
    broadcast,
    cast,
    expand,
    iota_along,
    opmath_dtype,
    scalar_like,
    to_torch_dtype,
    zeros_like,
)
from lazyrt.lowering.registry import OpContext, lowers


@lowers("aten.relu.default")
def relu(ctx: OpContext, x: Array) -> Array:
    return lax.max(x, zeros_like(x))


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


@lowers("aten.silu.default")
def silu(ctx: OpContext, x: Array) -> Array:
    (x,) = ctx.cast(x)
    return lax.mul(x, lax.logistic(x))


@lowers("aten.sigmoid_backward.default", "aten.tanh_backward.default")
def sigmoid_backward(ctx: OpContext, grad: Array, y: Array) -> Array:
    grad, y = broadcast(*ctx.cast(grad, y))
    one = scalar_like(y, 1)
    slope = lax.mul(y, lax.sub(one, y))
    if "tanh" in ctx.name:
        slope = lax.sub(one, lax.mul(y, y))
    return lax.mul(grad, lax.conj(slope) if jnp.iscomplexobj(y) else slope)


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


@lowers("aten._softmax.default")
def softmax(ctx: OpContext, x: Array, dim: int, *_: Any) -> Array:
    return _softmax(cast(x, ctx.compute), dim)


@lowers("aten._safe_softmax.default")
def safe_softmax(ctx: OpContext, x: Array, dim: int, *_: Any) -> Array:
    (x,) = ctx.cast(x)
    masked = jnp.all(x == -math.inf, axis=dim, keepdims=True)
    return jnp.where(masked, zeros_like(x), _softmax(x, dim))


@lowers("aten._log_softmax.default")
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


# Losses. A reduction is 0 for none, 1 for the mean, 2 for the sum.


_MEAN, _SUM = 1, 2


def _reduced(x: Array, reduction: int) -> Array:
    if reduction == 0:
        return x
    return jnp.sum(x) if reduction == _SUM else jnp.mean(x)


@lowers("aten.mse_loss.default")
def mse_loss(ctx: OpContext, x: Array, target: Array, reduction: int = 1) -> Array:
    difference = lax.sub(*broadcast(*ctx.cast(x, target)))
    return _reduced(lax.mul(difference, difference), reduction)


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
    factor = 1 if pos_weight is None else (pos_weight - 1) * target + 1
    loss = (1 - target) * x - factor * jax.nn.log_sigmoid(x)
    loss = loss if weight is None else loss * weight
    return _reduced(loss, reduction)


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


def _multilabel_margins(x: Array, target: Array, reduction: int) -> tuple[Array, Array]:
    """Return the loss, and which classes are targets: those before the first negative label."""
    rows, labels = jnp.atleast_2d(x), jnp.atleast_2d(target)
    kept = jnp.cumprod(labels >= 0, axis=-1) > 0
    places = jnp.where(kept, labels, 0)
    hits = (places[:, :, None] == jnp.arange(rows.shape[1])) & kept[:, :, None]
    is_target = jnp.any(hits, axis=1)
    scores = jnp.take_along_axis(rows, places, axis=1)
    margins = 1 - (scores[:, :, None] - rows[:, None, :])
    counted = (margins > 0) & kept[:, :, None] & ~is_target[:, None, :]
    losses = jnp.sum(jnp.where(counted, margins, 0), axis=(1, 2)) / rows.shape[1]
    return _reduced(losses, reduction), is_target


@lowers("aten.multilabel_margin_loss_forward.default")
def multilabel_margin_loss(
    ctx: OpContext, x: Array, target: Array, reduction: int
) -> tuple[Array, Array]:
    (x,) = ctx.cast(x)
    loss, is_target = _multilabel_margins(x, target, reduction)
    marks = lax.convert_element_type(is_target, x.dtype)
    return lax.reshape(loss, ctx.out.shape), lax.reshape(marks, target.shape)


@lowers("aten.multilabel_margin_loss_backward.default")
def multilabel_margin_loss_backward(
    ctx: OpContext, grad: Array, x: Array, target: Array, reduction: int, *_: Any
) -> Array:
    grad, x = ctx.cast(grad, x)
    loss, pull = jax.vjp(lambda v: _multilabel_margins(v, target, reduction)[0], x)
    gradient: Array = pull(lax.reshape(grad, loss.shape))[0]
    return gradient


# ----------------------------------------------------------------- along a sequence
# The fused recurrent cells, and the losses that walk along a sequence.


def _gates(ctx: OpContext, parts: list[Array | None], count: int) -> list[Array]:
    """Return the sum of inputs and biases, split into equal gates."""
    present = [cast(part, ctx.compute) for part in parts if part is not None]
    total = present[0]
    for part in present[1:]:
        total = lax.add(total, expand(part, total.shape))
    return jnp.split(total, count, axis=-1)


@lowers("aten._thnn_fused_lstm_cell.default")
def lstm_cell(
    ctx: OpContext,
    inputs: Array,
    hidden: Array,
    cell: Array,
    input_bias: Array | None = None,
    hidden_bias: Array | None = None,
) -> tuple[Array, Array, Array]:
    i, f, g, o = _gates(ctx, [inputs, hidden, input_bias, hidden_bias], 4)
    i, f, g, o = lax.logistic(i), lax.logistic(f), lax.tanh(g), lax.logistic(o)
    new = f * cast(cell, ctx.compute) + i * g
    return o * lax.tanh(new), new, jnp.concatenate([i, f, g, o], axis=-1)


@lowers("aten._thnn_fused_lstm_cell_backward_impl.default")
def lstm_cell_backward(
    ctx: OpContext,
    grad_hidden: Array | None,
    grad_cell: Array | None,
    cell: Array,
    new_cell: Array,
    workspace: Array,
    has_bias: bool,
) -> tuple[Any, ...]:
    compute = opmath_dtype(to_torch_dtype(workspace.dtype))
    cell, new_cell, workspace = (cast(x, compute) for x in (cell, new_cell, workspace))
    i, f, g, o = jnp.split(workspace, 4, axis=-1)
    zero = jnp.zeros_like(new_cell)
    d_hidden = zero if grad_hidden is None else cast(grad_hidden, compute)
    d_new = zero if grad_cell is None else cast(grad_cell, compute)
    tanh = lax.tanh(new_cell)
    d_new = d_new + d_hidden * o * (1 - tanh * tanh)
    gates = jnp.concatenate(
        [
            d_new * g * i * (1 - i),
            d_new * cell * f * (1 - f),
            d_new * i * (1 - g * g),
            d_hidden * tanh * o * (1 - o),
        ],
        axis=-1,
    )
    return gates, d_new * f, lax.reduce_sum(gates, (0,)) if has_bias else None


# torch has shape functions for the fused LSTM cell and none for the fused GRU cell.
_library: Any = torch.library  # untyped
_types = _library.Library("aten", "IMPL", "Meta")


def _gru_cell_types(inputs: Any, hidden: Any, state: Any, *_: Any) -> Any:
    batch, width = state.shape
    return torch.empty_like(state), state.new_empty((batch, 5 * width))


def _gru_cell_backward_types(grad: Any, workspace: Any, has_bias: bool) -> Any:
    batch, width = grad.shape
    gates = [grad.new_empty((batch, 3 * width)) for _ in range(2)]
    biases = [grad.new_empty((3 * width,)) if has_bias else None for _ in range(2)]
    return *gates, torch.empty_like(grad), *biases


_types.impl("_thnn_fused_gru_cell", _gru_cell_types)
_types.impl("_thnn_fused_gru_cell_backward", _gru_cell_backward_types)


@lowers("aten._thnn_fused_gru_cell.default")
def gru_cell(
    ctx: OpContext,
    inputs: Array,
    hidden: Array,
    state: Array,
    input_bias: Array | None = None,
    hidden_bias: Array | None = None,
) -> tuple[Array, Array]:
    i_reset, i_update, i_new = _gates(ctx, [inputs, input_bias], 3)
    h_reset, h_update, h_new = _gates(ctx, [hidden, hidden_bias], 3)
    state = cast(state, ctx.compute)
    reset, update = lax.logistic(i_reset + h_reset), lax.logistic(i_update + h_update)
    new = lax.tanh(i_new + reset * h_new)
    workspace = jnp.concatenate([reset, update, new, state, h_new], axis=-1)
    return new + update * (state - new), workspace


@lowers("aten._thnn_fused_gru_cell_backward.default")
def gru_cell_backward(
    ctx: OpContext, grad: Array, workspace: Array, has_bias: bool
) -> tuple[Any, ...]:
    compute = opmath_dtype(to_torch_dtype(workspace.dtype))
    reset, update, new, state, h_new = jnp.split(cast(workspace, compute), 5, axis=-1)
    grad = cast(grad, compute)
    d_update = grad * (state - new) * update * (1 - update)
    d_new = grad * (1 - update) * (1 - new * new)
    d_reset = d_new * h_new * reset * (1 - reset)
    inputs = jnp.concatenate([d_reset, d_update, d_new], axis=-1)
    hidden = jnp.concatenate([d_reset, d_update, d_new * reset], axis=-1)
    biases = [lax.reduce_sum(x, (0,)) if has_bias else None for x in (inputs, hidden)]
    return inputs, hidden, grad * update, *biases


_NEVER = -1e30  # finite, so that gradients are; given to torch as infinity


def _lengths(value: Any, batch: int) -> Array:
    return jnp.broadcast_to(jnp.asarray(value, np.int64), (batch,))


def _ctc_alpha(
    log_probs: Array,
    targets: Array,
    input_lengths: Array,
    target_lengths: Array,
    blank: int,
) -> tuple[Array, Array]:
    """Return the losses and the log probabilities of all prefixes, [batch, time, state]."""
    steps, batch, _classes = log_probs.shape
    width = targets.shape[1]
    states = 2 * width + 1
    labels = jnp.full((batch, states), blank, np.int64).at[:, 1::2].set(targets)
    skips = jnp.zeros((batch, states), bool)
    if width > 1:
        skips = skips.at[:, 3::2].set(targets[:, 1:] != targets[:, :-1])
    emitted = jnp.take_along_axis(
        log_probs,
        jnp.broadcast_to(labels[None], (steps, batch, states)),
        axis=2,
        mode="clip",
    )
    index = lax.iota(np.int64, states)
    inside = index[None] <= 2 * target_lengths[:, None]
    first = jnp.where((index < 2)[None] & inside, emitted[0], _NEVER)

    def step(alpha: Array, row: Array) -> tuple[Array, Array]:
        one = jnp.pad(alpha, ((0, 0), (1, 0)), constant_values=_NEVER)[:, :-1]
        two = jnp.pad(alpha, ((0, 0), (2, 0)), constant_values=_NEVER)[:, :-2]
        two = jnp.where(skips, two, _NEVER)
        total = jnp.logaddexp(jnp.logaddexp(alpha, one), two) + row
        total = jnp.where(inside, total, _NEVER)
        return total, total

    _, rest = lax.scan(step, first, emitted[1:])
    alphas = jnp.concatenate([first[None], rest])
    last = jnp.take_along_axis(
        alphas, jnp.maximum(input_lengths - 1, 0)[None, :, None], axis=0, mode="clip"
    )[0]
    end = 2 * target_lengths[:, None]
    final = jnp.take_along_axis(last, end, axis=1)
    before = jnp.where(
        end > 0, jnp.take_along_axis(last, jnp.maximum(end - 1, 0), axis=1), _NEVER
    )
    losses = -jnp.logaddexp(final, before)[:, 0]
    return losses, jnp.moveaxis(alphas, 0, 1)


def _padded_targets(targets: Array, lengths: Array, width: int) -> Array:
    """Return targets as [batch, width], also where they come one after the other."""
    if targets.ndim == 2:
        return targets[:, :width]
    starts = lax.cumsum(lengths, 0) - lengths
    index = starts[:, None] + lax.iota(np.int64, width)[None]
    return targets.at[index].get(mode="clip")


@lowers("aten._ctc_loss.default", "aten._ctc_loss.Tensor")
def ctc_loss(
    ctx: OpContext,
    log_probs: Array,
    targets: Array,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Array, Array]:
    alphas = ctx.outs[1]
    if log_probs.ndim != 3 or alphas is None:
        raise Unsupported("log probabilities without a batch")
    width = (alphas.shape[2] - 1) // 2
    batch = log_probs.shape[1]
    lengths = _lengths(target_lengths, batch)
    padded = _padded_targets(targets, lengths, width)
    inputs = _lengths(input_lengths, batch)
    losses, found = _ctc_alpha(log_probs, padded, inputs, lengths, blank)
    return (
        jnp.where(losses > -_NEVER / 2, jnp.inf, losses),
        jnp.where(found < _NEVER / 2, -jnp.inf, found),
    )


@lowers("aten._ctc_loss_backward.default", "aten._ctc_loss_backward.Tensor")
def ctc_loss_backward(
    ctx: OpContext,
    grad: Array,
    log_probs: Array,
    targets: Array,
    input_lengths: Any,
    target_lengths: Any,
    losses: Array,
    alphas: Array,
    blank: int,
    zero_infinity: bool = False,
) -> Array:
    batch = log_probs.shape[1]
    lengths, inputs = _lengths(target_lengths, batch), _lengths(input_lengths, batch)
    padded = _padded_targets(targets, lengths, (alphas.shape[2] - 1) // 2)

    def run(values: Array) -> Array:
        return _ctc_alpha(values, padded, inputs, lengths, blank)[0]

    _, pull = jax.vjp(run, log_probs)
    (slope,) = pull(grad)
    # torch's gradient is that of a softmax in front: it adds the probabilities themselves.
    steps = lax.iota(np.int64, log_probs.shape[0])[:, None, None]
    inside = steps < inputs[None, :, None]
    slope = jnp.where(inside, lax.exp(log_probs) * grad[None, :, None] + slope, 0)
    if zero_infinity:
        slope = jnp.where(jnp.isinf(losses)[None, :, None], 0, slope)
    return slope
