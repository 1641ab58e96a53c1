"""Rules of the convolutions."""

# A rule's signature is its op's schema.
# ruff: noqa: ARG001, FBT001

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from lazyrt.lowering import grouped
from lazyrt.lowering.grouped import Geometry
from lazyrt.lowering.registry import lowers
from lazyrt.lowering.shaping import expand, pair

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazyrt.lowering.context import OpContext
    from lazyrt.lowering.dtypes import Array


def _normalised(
    weight: Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> tuple[Array, Geometry]:
    """Return the kernel and geometry of the equal convolution that is not transposed."""
    rank = weight.ndim - 2
    stride, padding, dilation = (pair(v, rank) for v in (stride, padding, dilation))
    edges = [(p, p) for p in padding]
    spread: Sequence[int] = [1] * rank
    if transposed:
        weight = _transposed_kernel(weight, groups)
        extra = pair(output_padding, rank)
        reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        edges = [
            (r - p, r - p + e) for r, p, e in zip(reach, padding, extra, strict=True)
        ]
        stride, spread = spread, stride
    return weight, Geometry(stride, edges, spread, dilation, groups)


def _transposed_kernel(weight: Array, groups: int) -> Array:
    """Turn [in, out/groups, ...] into the kernel of the equal plain convolution."""
    inputs, outputs, *window = weight.shape
    weight = lax.reshape(weight, (groups, inputs // groups, outputs, *window))
    weight = jnp.swapaxes(weight, 1, 2)
    weight = lax.reshape(weight, (groups * outputs, inputs // groups, *window))
    return lax.rev(weight, range(2, weight.ndim))


@lowers("aten.convolution.default")
def convolution(
    ctx: OpContext, x: Array, weight: Array, bias: Array | None, *geometry: Any
) -> Array:
    x, weight = ctx.cast(x, weight)
    unbatched = x.ndim == weight.ndim - 1
    x = lax.expand_dims(x, (0,)) if unbatched else x
    result = grouped.convolve(x, *_normalised(weight, *geometry))
    if bias is not None:
        (bias,) = ctx.cast(bias)
        shaped = lax.reshape(bias, (bias.size, *(1,) * (result.ndim - 2)))
        result = lax.add(result, expand(shaped, result.shape))
    return lax.squeeze(result, (0,)) if unbatched else result


@lowers("aten._convolution.default")
def convolution_with_flags(
    ctx: OpContext, x: Array, weight: Array, bias: Array | None, *geometry: Any
) -> Array:
    return convolution(ctx, x, weight, bias, *geometry[:6])


@lowers("aten.convolution_backward.default")
def convolution_backward(
    ctx: OpContext,
    grad: Array,
    x: Array,
    weight: Array,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    grad, x, weight = ctx.cast(grad, x, weight)
    settings = (stride, padding, dilation, transposed, output_padding, groups)
    kernel, geometry = _normalised(weight, *settings)
    d_x = d_weight = d_bias = None
    if output_mask[0]:
        d_x = grouped.input_gradient(grad, x, kernel, geometry)
    if output_mask[1]:
        _, pull = jax.vjp(lambda value: _normalised(value, *settings)[0], weight)
        (d_weight,) = pull(grouped.kernel_gradient(grad, x, kernel, geometry))
    if output_mask[2]:
        d_bias = lax.reduce_sum(grad, (0, *range(2, grad.ndim)))
    return d_x, d_weight, d_bias
