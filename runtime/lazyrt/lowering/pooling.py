"""Rules of the ops that move a window or a grid: pooling, resampling, padding, sampling."""

# A rule's signature is its op's schema; numbers are those of its formula.
# ruff: noqa: ARG001, FBT001, FBT002, PLR2004

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from lazyrt.lowering.arrays import (
    Array,
    cast,
    expand,
    iota_along,
    isnan,
    pair,
    scalar_like,
    to_jax_dtype,
)
from lazyrt.lowering.registry import OpContext, lowers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def _pool_geometry(
    kernel: Any, stride: Any, padding: Any, rank: int
) -> tuple[list[int], list[int], list[int]]:
    kernel = pair(kernel, rank)
    return kernel, pair(stride, rank) if stride else kernel, pair(padding, rank)


def _pool_edges(
    size: Sequence[int],
    count: Sequence[int],
    reach: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> list[tuple[int, int]]:
    """Return the padding with which a window op gives `count` results per dimension."""
    return [
        (p, max((n - 1) * s + r - length - p, -length))
        for length, n, r, s, p in zip(size, count, reach, stride, padding, strict=True)
    ]


@lowers("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def max_pool(
    ctx: OpContext,
    x: Array,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    *_: Any,
) -> tuple[Array, Array]:
    rank = _rank_of(ctx)
    kernel, stride, padding = _pool_geometry(kernel, stride, padding, rank)
    dilation = pair(dilation, rank)
    lead, size, count = x.shape[:-rank], x.shape[-rank:], ctx.out.shape[-rank:]
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    edges = _pool_edges(size, count, reach, stride, padding)
    where = jnp.reshape(lax.iota(np.int64, math.prod(size)), size)
    where = expand(where, x.shape)
    ones = (1,) * len(lead)
    lowest = _lowest_value(x)

    def better(left: Any, right: Any) -> Any:
        (a, i), (b, j) = left, right
        wins = (
            (b > a)
            | (isnan(b)) & (~isnan(a))
            | ((b == a) | (isnan(b)) & (isnan(a))) & (j < i)
        )
        return lax.select(wins, b, a), lax.select(wins, j, i)

    found: tuple[Array, Array] = lax.reduce_window(
        (x, where),
        (lowest, jnp.asarray(np.iinfo(np.int64).max)),
        better,
        window_dimensions=(*ones, *kernel),
        window_strides=(*ones, *stride),
        padding=(*((0, 0),) * len(lead), *edges),
        window_dilation=(*ones, *dilation),
    )
    return found


def _lowest_value(x: Array) -> Array:
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.asarray(-np.inf, x.dtype)
    return jnp.asarray(np.iinfo(x.dtype).min, x.dtype)


@lowers(
    *(f"aten.{kind}max_pool{n}d{made}_backward.default"
      for kind, made in (("", "_with_indices"), ("adaptive_", ""), ("fractional_", ""))
      for n in (2, 3))
)  # fmt: skip
def _unpool(ctx: OpContext, grad: Array, x: Array, *rest: Any) -> Array:
    """Add each gradient to the element that it came from."""
    rank, where = _rank_of(ctx), rest[-1]
    lead = math.prod(x.shape[:-rank])
    area = math.prod(x.shape[-rank:])
    count = math.prod(grad.shape[-rank:])
    rows = iota_along((lead, count), 0)
    result = jnp.zeros((lead, area), grad.dtype)
    place = rows, lax.reshape(where, (lead, count))
    result = result.at[place].add(lax.reshape(grad, (lead, count)))
    return lax.reshape(result, x.shape)


@lowers("aten.avg_pool2d.default", "aten.avg_pool3d.default")
def avg_pool(
    ctx: OpContext,
    x: Array,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Array:
    (x,) = ctx.cast(x)
    rank = _rank_of(ctx)
    kernel, stride, padding = _pool_geometry(kernel, stride, padding, rank)
    size, count = x.shape[-rank:], ctx.out.shape[-rank:]
    edges = _pool_edges(size, count, kernel, stride, padding)

    def window_sum(values: Array, low_high: Sequence[tuple[int, int]]) -> Array:
        before = (1,) * (values.ndim - rank)
        total: Array = lax.reduce_window(
            values,
            np.zeros((), values.dtype),
            lax.add,
            window_dimensions=(*before, *kernel),
            window_strides=(*before, *stride),
            padding=(*((0, 0),) * len(before), *low_high),
        )
        return total

    total = window_sum(x, edges)
    if divisor is not None:
        return lax.div(total, scalar_like(total, divisor))
    if count_include_pad:
        padded = [length + 2 * p for length, p in zip(size, padding, strict=True)]
        beyond = [(0, high - p) for (_, high), p in zip(edges, padding, strict=True)]
        counts = window_sum(jnp.ones(padded, x.dtype), beyond)
    else:
        counts = window_sum(jnp.ones(size, x.dtype), edges)
    return lax.div(total, expand(counts, total.shape))


def _rank_of(ctx: OpContext) -> int:
    return 3 if "3d" in ctx.name else 2


def _adaptive_matrix(size: int, count: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Return the [count, size] matrix that averages each adaptive window."""
    matrix = np.zeros((count, size), dtype)
    for row in range(count):
        low, high = row * size // count, -(-(row + 1) * size // count)
        matrix[row, low:high] = 1 / (high - low)
    return matrix


@lowers("aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default")
def adaptive_avg_pool(ctx: OpContext, x: Array, size: Any) -> Array:
    (x,) = ctx.cast(x)
    for dim in range(x.ndim - len(size), x.ndim):
        wanted = ctx.out.shape[dim]
        if x.shape[dim] == wanted:
            continue
        if x.shape[dim] % wanted == 0:
            window = x.shape[dim] // wanted
            x = lax.reshape(x, (*x.shape[:dim], wanted, window, *x.shape[dim + 1 :]))
            total = lax.reduce_sum(x, (dim + 1,))
            x = lax.div(total, scalar_like(total, window))
            continue
        x = _product(x, _adaptive_matrix(x.shape[dim], wanted, x.dtype), dim)
    return x


@lowers("aten._adaptive_avg_pool2d_backward.default",
        "aten._adaptive_avg_pool3d_backward.default")  # fmt: skip
def adaptive_avg_pool_backward(ctx: OpContext, grad: Array, x: Array) -> Array:
    return _pulled_back(ctx, grad, x, grad.shape[-_rank_of(ctx) :])


def _adaptive_windows(size: int, count: int) -> tuple[Array, Array]:
    """Return the elements of each adaptive window, and which of them count."""
    rows = np.arange(count)
    low, high = rows * size // count, -(-(rows + 1) * size // count)
    reach = int((high - low).max(initial=1))
    index = low[:, None] + np.arange(reach)[None]
    return jnp.asarray(np.minimum(index, size - 1)), jnp.asarray(index < high[:, None])


@lowers("aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default")
def adaptive_max_pool(ctx: OpContext, x: Array, size: Any) -> tuple[Array, Array]:
    rank = _rank_of(ctx)
    counts = ctx.out.shape[-rank:]
    if 0 in ctx.out.shape:
        return jnp.zeros(ctx.out.shape, x.dtype), jnp.zeros(ctx.out.shape, np.int64)
    lead, area = x.shape[:-rank], x.shape[-rank:]
    where = expand(jnp.reshape(lax.iota(np.int64, math.prod(area)), area), x.shape)
    for k, count in enumerate(counts):
        dim = len(lead) + k
        index, inside = _adaptive_windows(x.shape[dim], count)
        x, where = (jnp.take(v, index, axis=dim) for v in (x, where))
        shape = [1] * x.ndim
        shape[dim : dim + 2] = inside.shape
        x = jnp.where(jnp.reshape(inside, shape), x, _lowest_value(x))
        best = jnp.expand_dims(lax.argmax(x, dim + 1, np.int64), dim + 1)
        x, where = (
            lax.squeeze(jnp.take_along_axis(v, best, dim + 1), (dim + 1,))
            for v in (x, where)
        )
    return x, where


def _fractional_starts(samples: Array, size: int, count: int, kernel: int) -> Array:
    """Return where the windows of one dimension begin; the last one ends at the edge."""
    steps = lax.iota(np.int64, count)
    if count == 1:
        return jnp.full((*samples.shape, 1), size - kernel)
    alpha = jnp.asarray((size - kernel) / (count - 1), samples.dtype)
    offset = jnp.expand_dims(samples, -1)
    moved = (steps.astype(samples.dtype) + offset) * alpha
    starts = moved.astype(np.int64) - (offset * alpha).astype(np.int64)
    return jnp.where(steps == count - 1, size - kernel, starts)


@lowers("aten.fractional_max_pool2d.default", "aten.fractional_max_pool3d.default")
def fractional_max_pool(
    ctx: OpContext, x: Array, kernel: Any, size: Any, samples: Array
) -> tuple[Array, Array]:
    rank = _rank_of(ctx)
    lead, area = x.shape[:-rank], x.shape[-rank:]
    kernel, counts = pair(kernel, rank), ctx.out.shape[-rank:]
    batched = jnp.reshape(x, (-1, math.prod(area)))
    # samples: [batch, channel, dimension], the last spatial dimension first in 2-d and 3-d
    picks = jnp.reshape(samples, (-1, rank))
    picks = picks[:, ::-1] if rank == 2 else picks
    flat = jnp.zeros((batched.shape[0], *(1,) * (2 * rank)), np.int64)
    for k in range(rank):
        starts = _fractional_starts(picks[:, k], area[k], counts[k], kernel[k])
        index = starts[:, :, None] + jnp.arange(kernel[k], dtype=np.int64)
        shape = [batched.shape[0], *(1,) * (2 * rank)]
        shape[1 + k], shape[1 + rank + k] = counts[k], kernel[k]
        flat = flat * area[k] + jnp.reshape(index, shape)
    flat = jnp.reshape(flat, (batched.shape[0], math.prod(counts), math.prod(kernel)))
    values = jnp.take_along_axis(batched[:, None, :], flat, axis=2)
    best = jnp.expand_dims(lax.argmax(values, 2, np.int64), 2)
    found = (jnp.take_along_axis(v, best, 2) for v in (values, flat))
    values, flat = (lax.reshape(v, (*lead, *counts)) for v in found)
    return values, flat


# Rules of the resampling ops that are a matrix product along each dimension.


_Matrix = np.ndarray[Any, Any]


def _cubic(x: _Matrix) -> _Matrix:
    """Return Keys' cubic kernel with a = -0.5, as torch takes for antialiasing."""
    x, a = np.abs(x), np.float64(-0.5)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    result: _Matrix = np.where(x < 1, near, np.where(x < 2, far, 0))
    return result


def _scale(size: int, count: int, align_corners: bool, given: float | None) -> float:
    if align_corners:
        return (size - 1) / (count - 1) if count > 1 else 0.0
    return 1 / given if given else size / count


def _weights(
    size: int,
    count: int,
    scale: float,
    kernel: Callable[[_Matrix], _Matrix],
    reach: int,
    shift: float,
    width: float,
) -> _Matrix:
    """Return the [count, size] matrix of an interpolation; corners align for a shift of 0.5."""
    centre = scale * (np.arange(count)[:, None] + 0.5 - shift) + shift
    low = np.maximum((centre - reach * width + 0.5).astype(np.int64), 0)
    high = np.minimum((centre + reach * width + 0.5).astype(np.int64), size)
    place = np.arange(size)[None]
    matrix = kernel((place - centre + 0.5) / width)
    matrix = np.where((place >= low) & (place < high), matrix, 0)
    total = matrix.sum(1, keepdims=True)
    result: _Matrix = matrix / np.where(total == 0, 1, total)
    return result


def _resampled(name: str, kernel: Callable[[_Matrix], _Matrix], reach: int) -> None:
    @lowers(f"aten.{name}.default")
    def rule(
        ctx: OpContext,
        x: Array,
        size: Sequence[int],
        align_corners: bool,
        *scales: float | None,
    ) -> Any:
        (x,) = ctx.cast(x)
        smooths = name.endswith("_aa")
        if not smooths and x.dtype != np.uint8:
            return NotImplemented
        product = _byte_product if x.dtype == np.uint8 else _product
        for dim, given in ((3, scales[1]), (2, scales[0])):
            sizes = x.shape[dim], ctx.out.shape[dim]
            scale = _scale(*sizes, align_corners, given)
            shift = 0.5 if align_corners and not smooths else 0.0
            width = max(scale, 1.0) if smooths else 1.0
            x = product(x, _weights(*sizes, scale, kernel, reach, shift, width), dim)
        return x


def _product(x: Array, matrix: _Matrix, dim: int) -> Array:
    """Return the product with a matrix along one dimension."""
    factor = jnp.asarray(matrix.astype(x.dtype))
    numbers = (((dim,), (1,)), ((), ()))
    exact = lax.Precision.HIGHEST
    return jnp.moveaxis(lax.dot_general(x, factor, numbers, precision=exact), -1, dim)


def _byte_product(x: Array, matrix: _Matrix, dim: int) -> Array:
    """Return the product of bytes as the CPU computes it: with weights of 16 bits, rounded."""
    peak = matrix.max(initial=0.0)
    bits = next((p for p in range(22) if 0.5 + peak * 2 ** (p + 1) >= 2**15), 22)
    whole = jnp.asarray(np.trunc(matrix * 2**bits + np.copysign(0.5, matrix)), np.int32)
    total = lax.dot_general(x.astype(np.int32), whole, (((dim,), (1,)), ((), ())))
    rounded = jnp.clip((total + (1 << (bits - 1))) >> bits, 0, 255).astype(np.uint8)
    return jnp.moveaxis(rounded, -1, dim)


for _name in ("upsample_bilinear2d", "_upsample_bilinear2d_aa"):
    _resampled(_name, lambda x: np.maximum(1 - np.abs(x), 0), 1)
_resampled("_upsample_bicubic2d_aa", _cubic, 2)


# Backward ops, by their forward op's lowering; sampling at the places of a grid.


def _upsample_backward(
    ctx: OpContext, grad: Array, size: Any, shape: Sequence[int], *options: Any
) -> Array:
    (grad,) = ctx.cast(grad)
    x = jnp.zeros(shape, to_jax_dtype(ctx.compute))  # it is linear in its input
    return ctx.pulled_back(grad, [x], [size, *options])[0]


for _kind in ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d",
              "trilinear3d", "_nearest_exact1d", "_nearest_exact2d", "_nearest_exact3d",
              "_bilinear2d_aa", "_bicubic2d_aa"):  # fmt: skip
    _op = f"_upsample{_kind}" if _kind.startswith("_") else f"upsample_{_kind}"
    lowers(f"aten.{_op}_backward.default")(_upsample_backward)


@lowers(
    *(f"aten.{kind}_pad{n}d_backward.default" for n in (1, 2, 3)
      for kind in ("replication", "reflection")),
    "aten.avg_pool2d_backward.default", "aten.avg_pool3d_backward.default",
    "aten.multi_margin_loss_backward.default", "aten.mse_loss_backward.default",
    "aten.gelu_backward.default",
)  # fmt: skip
def _pulled_back(ctx: OpContext, grad: Array, x: Array, *rest: Any) -> Array:
    grad, x = ctx.cast(grad, x)
    return ctx.pulled_back(grad, [x], rest)[0]


def _mask(gradients: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
    pairs = zip(gradients, wanted, strict=True)
    return [gradient if is_wanted else None for gradient, is_wanted in pairs]


@lowers(
    "aten.grid_sampler_2d_backward.default", "aten.grid_sampler_3d_backward.default"
)
def grid_sampler_backward(
    ctx: OpContext,
    grad: Array,
    x: Array,
    grid: Array,
    interpolation: int,
    padding: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> list[Any]:
    options = [interpolation, padding, align_corners]
    return _mask(ctx.pulled_back(grad, [x, grid], options), output_mask)


_ZEROS, _BORDER = 0, 1  # padding modes of grid_sample; 2 reflects
_NEAREST = 1  # interpolation mode; 0 is bilinear


def _source_index(x: Array, size: int, padding: int, align_corners: bool) -> Array:
    """Return where a coordinate in [-1, 1] falls among `size` elements."""
    x = (x + 1) / 2 * (size - 1) if align_corners else ((x + 1) * size - 1) / 2
    if padding == _ZEROS:
        return x
    if padding != _BORDER:
        low, high = (0, 2 * (size - 1)) if align_corners else (-1, 2 * size - 1)
        span, start = (high - low) / 2, low / 2
        if span == 0:
            return jnp.zeros_like(x)
        away = lax.abs(x - start)
        extra = away - span * jnp.floor(away / span)
        turns = jnp.floor(away / span) % 2
        x = jnp.where(turns == 0, extra + start, span - extra + start)
    return jnp.clip(x, 0, size - 1)


@lowers("aten.grid_sampler_3d.default")
def grid_sampler_3d(
    ctx: OpContext,
    x: Array,
    grid: Array,
    interpolation: int,
    padding: int,
    align_corners: bool,
) -> Array:
    sizes = x.shape[2:][::-1]  # the grid's coordinates are x, y, z
    grid = cast(grid, ctx.compute)
    places = [
        _source_index(grid[..., k], size, padding, align_corners)
        for k, size in enumerate(sizes)
    ]
    corners = _nearest(places) if interpolation == _NEAREST else _corners(places)
    result = jnp.zeros(ctx.out.shape, to_jax_dtype(ctx.compute))
    for corner, weight in corners:
        inside = jnp.ones(grid.shape[:-1], bool)
        index = []
        for place, size in zip(corner, sizes, strict=True):
            inside = inside & (place >= 0) & (place <= size - 1)
            index.append(jnp.clip(place, 0, size - 1).astype(jnp.int64))
        batch = jnp.arange(x.shape[0]).reshape(-1, 1, 1, 1)
        picked = x[batch, :, index[2], index[1], index[0]]
        factor = jnp.where(inside, weight, 0)
        result = result + jnp.moveaxis(picked * factor[..., None], -1, 1)
    return result


def _nearest(places: Sequence[Array]) -> Iterator[tuple[list[Array], Array]]:
    """Yield the element closest to a point, with its whole weight."""
    yield [jnp.round(place) for place in places], jnp.ones_like(places[0])


def _corners(places: Sequence[Array]) -> Iterator[tuple[list[Array], Array]]:
    """Yield the eight elements around a point, and the share of each."""
    for bits in itertools.product((0, 1), repeat=3):
        corner = [
            jnp.floor(place) + bit for place, bit in zip(places, bits, strict=True)
        ]
        shares = [1 - lax.abs(p - c) for p, c in zip(places, corner, strict=True)]
        yield corner, shares[0] * shares[1] * shares[2]
