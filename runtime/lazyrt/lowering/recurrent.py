"""Rules of the fused recurrent cells, and of the losses that walk along a sequence."""

# A rule's signature is its op's schema; numbers are those of its formula.
# ruff: noqa: ARG001, FBT001, FBT002, PLR2004

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from lazyrt.lowering.arrays import (
    Array,
    Unsupported,
    cast,
    expand,
    opmath_dtype,
    to_torch_dtype,
)
from lazyrt.lowering.registry import lowers

if TYPE_CHECKING:
    from lazyrt.lowering.registry import OpContext


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
