"""Rules of convolutions and Fourier transforms."""

# A rule's signature is its op's schema.
# ruff: noqa: ARG001, FBT001

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lazyrt import jax_compat
from lazyrt.lowering.arrays import Array, expand, pair
from lazyrt.lowering.registry import OpContext, lowers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


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
    result = convolve(x, *_normalised(weight, *geometry))
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
        d_x = input_gradient(grad, x, kernel, geometry)
    if output_mask[1]:
        _, pull = jax.vjp(lambda value: _normalised(value, *settings)[0], weight)
        (d_weight,) = pull(kernel_gradient(grad, x, kernel, geometry))
    if output_mask[2]:
        d_bias = lax.reduce_sum(grad, (0, *range(2, grad.ndim)))
    return d_x, d_weight, d_bias


# XLA's CPU backend runs a convolution with groups by nested loops: 60 ms for a depthwise layer of 64
# channels, 2.9 s for the weight's gradient of 32 groups of 4. So there, and nowhere else, a depthwise
# convolution is the sum over its kernel's taps of the shifted input times the tap's weights, which
# XLA fuses into one loop (0.7 ms); its gradients are such sums, too. The weight's gradient of other
# groups is that of one plain convolution for each (18 ms). Other convolutions would take longer to
# compile that way.

# The text grows with the taps; 11 by 11 is the largest that was measured.
_MOST_TAPS = 128


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a kernel `[out, in/groups, *window]` moves over an input `[N, in, *space]`.

    Attributes:
        stride: Steps of the window.
        edges: What is padded before and after the spread input; less than 0 crops.
        spread: Distance of the input's elements: the stride of a transposed convolution.
        dilation: Distance of the window's elements.
        groups: Channels are split into so many groups.
    """

    stride: Sequence[int]
    edges: Sequence[tuple[int, int]]
    spread: Sequence[int]
    dilation: Sequence[int]
    groups: int


def _is_depthwise(kernel: Array, geometry: Geometry) -> bool:
    """Return whether a convolution is to be a sum over its taps."""
    is_one_each = geometry.groups > 1 and kernel.shape[1] == 1
    few = math.prod(kernel.shape[2:]) <= _MOST_TAPS
    return is_one_each and few and _is_on_cpu()


def convolve(x: Array, kernel: Array, geometry: Geometry) -> Array:
    """Return a convolution of any number of groups."""
    convolution = _sum_of_taps if _is_depthwise(kernel, geometry) else _by_xla
    return convolution(x, kernel, geometry)


def _is_on_cpu() -> bool:
    return bool(jax_compat.device().platform == "cpu")


def _by_xla(x: Array, kernel: Array, geometry: Geometry) -> Array:
    spatial = "DHW"[-(x.ndim - 2) :]
    return lax.conv_general_dilated(
        x,
        kernel,
        window_strides=geometry.stride,
        padding=geometry.edges,
        lhs_dilation=geometry.spread,
        rhs_dilation=geometry.dilation,
        dimension_numbers=(f"NC{spatial}", f"OI{spatial}", f"NC{spatial}"),
        feature_group_count=geometry.groups,
        precision=lax.Precision.HIGHEST,
    )


def _sum_of_taps(x: Array, kernel: Array, geometry: Geometry) -> Array:
    channels = x.shape[1]
    shape = (1, channels, kernel.shape[0] // channels, *(1,) * (x.ndim - 2))
    terms = (
        seen[:, :, None] * lax.reshape(kernel[(slice(None), 0, *tap)], shape)
        for tap, seen in _taps(x, kernel.shape[2:], geometry)
    )
    result = functools.reduce(lax.add, terms)
    return lax.reshape(result, (x.shape[0], kernel.shape[0], *result.shape[3:]))


def _taps(
    x: Array, window: Sequence[int], geometry: Geometry
) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Yield each position in a window with what the result's elements see through it."""
    zero = np.zeros((), x.dtype)
    edges = [
        (low, high, apart - 1)
        for (low, high), apart in zip(geometry.edges, geometry.spread, strict=True)
    ]
    x = lax.pad(x, zero, [(0, 0, 0), (0, 0, 0), *edges])
    reach = _reach(window, geometry)
    count = [
        (size - far - 1) // step + 1
        for size, far, step in zip(x.shape[2:], reach, geometry.stride, strict=True)
    ]
    for tap in itertools.product(*map(range, window)):
        first = [k * apart for k, apart in zip(tap, geometry.dilation, strict=True)]
        last = [
            start + (n - 1) * step + 1
            for start, n, step in zip(first, count, geometry.stride, strict=True)
        ]
        yield (
            tap,
            lax.slice(
                x, (0, 0, *first), (*x.shape[:2], *last), (1, 1, *geometry.stride)
            ),
        )


def _reach(window: Sequence[int], geometry: Geometry) -> list[int]:
    """Return how far the last element of a window is from its first."""
    return [d * (k - 1) for d, k in zip(geometry.dilation, window, strict=True)]


def input_gradient(grad: Array, x: Array, kernel: Array, geometry: Geometry) -> Array:
    """Return what a convolution passes back to its input."""
    if _is_depthwise(kernel, geometry):
        return _taps_to_input(grad, kernel, geometry, x.shape)
    _, pull = jax.vjp(lambda value: _by_xla(value, kernel, geometry), x)
    found: Array = pull(grad)[0]
    return found


def kernel_gradient(grad: Array, x: Array, kernel: Array, geometry: Geometry) -> Array:
    """Return what a convolution passes back to its kernel."""
    if _is_depthwise(kernel, geometry):
        return _taps_to_kernel(grad, x, kernel.shape[2:], geometry)
    groups = geometry.groups if _is_on_cpu() else 1
    geometry = replace(geometry, groups=geometry.groups // groups)
    found = []
    for g, v, k in zip(
        *(jnp.split(part, groups, d) for part, d in ((grad, 1), (x, 1), (kernel, 0))),
        strict=True,
    ):
        _, pull = jax.vjp(lambda value, v=v: _by_xla(v, value, geometry), k)
        found += pull(g)
    return lax.concatenate(found, 0)


def _taps_to_input(
    grad: Array, kernel: Array, geometry: Geometry, shape: Sequence[int]
) -> Array:
    """Return what a depthwise convolution passes back to an input of a shape.

    It is a depthwise convolution of the spread gradient with the kernel turned round.
    """
    edges = []
    for size, out, far, (low, _), step, apart in zip(
        shape[2:], grad.shape[2:], _reach(kernel.shape[2:], geometry), geometry.edges,
        geometry.stride, geometry.spread, strict=True,
    ):  # fmt: skip
        spread = (
            (size - 1) * apart + far + 1
        )  # the windows of all elements of the input
        before = far - low
        edges.append((before, spread - before - ((out - 1) * step + 1)))
    outputs = kernel.shape[0]
    back = replace(
        geometry,
        stride=geometry.spread,
        spread=geometry.stride,
        edges=edges,
        groups=outputs,
    )
    found = _sum_of_taps(grad, lax.rev(kernel, range(2, kernel.ndim)), back)
    if outputs == shape[1]:
        return found
    return jnp.sum(lax.reshape(found, (*shape[:2], outputs // shape[1], *shape[2:])), 2)


def _taps_to_kernel(
    grad: Array, x: Array, window: Sequence[int], geometry: Geometry
) -> Array:
    """Return what a depthwise convolution passes back to its kernel.

    The last dimension is summed up in the end, so that the pass over the data adds whole rows.
    """
    batch, channels = x.shape[:2]
    outputs = grad.shape[1]
    grad = lax.reshape(grad, (batch, channels, outputs // channels, *grad.shape[2:]))
    terms = [seen[:, :, None] * grad for _, seen in _taps(x, window, geometry)]
    zeros = (np.zeros((), grad.dtype),) * len(terms)
    rows = lax.reduce(
        tuple(terms),
        zeros,
        lambda a, b: tuple(lax.add(p, q) for p, q in zip(a, b, strict=True)),
        (0, *range(3, grad.ndim - 1)),
    )
    return lax.reshape(jnp.sum(jnp.stack(rows, -1), -2), (outputs, 1, *window))


# Fourier transforms.


# By torch's number of a normalisation: sums as they are, divided by a root, or by their count.
_FORWARD = ("backward", "ortho", "forward")
_INVERSE = ("forward", "ortho", "backward")


@lowers("aten._fft_c2c.default")
def fft_c2c(
    ctx: OpContext, x: Array, dim: Sequence[int], normalization: int, forward: bool
) -> Array:
    if forward:
        return jnp.fft.fftn(x, axes=dim, norm=_FORWARD[normalization])
    return jnp.fft.ifftn(x, axes=dim, norm=_INVERSE[normalization])


@lowers("aten._fft_r2c.default")
def fft_r2c(
    ctx: OpContext, x: Array, dim: Sequence[int], normalization: int, onesided: bool
) -> Array:
    transform = jnp.fft.rfftn if onesided else jnp.fft.fftn
    return transform(x, axes=dim, norm=_FORWARD[normalization])


@lowers("aten._fft_c2r.default")
def fft_c2r(
    ctx: OpContext, x: Array, dim: Sequence[int], normalization: int, last_dim_size: int
) -> Array:
    sizes = [ctx.out.shape[d] for d in dim]
    return jnp.fft.irfftn(x, sizes, dim, _INVERSE[normalization])
