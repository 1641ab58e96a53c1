"""Rules of the ops that put elements into bins, and of those that reduce runs of them."""

# A rule's signature is its op's schema; numbers are those of its formula.
# ruff: noqa: ARG001, FBT001, FBT002

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from lazyrt.lowering.arrays import Array, cast, expand, scalar_like, to_jax_dtype
from lazyrt.lowering.registry import lowers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lazyrt.lowering.registry import OpContext


def _bins_of(points: Array, edges: Sequence[Array]) -> tuple[Array, Array]:
    """Return the flat bin of each row of `points`, and which rows lie in a bin at all.

    A bin holds its left edge; the last one of a dimension holds its right edge, too.
    """
    flat = jnp.zeros(points.shape[0], np.int64)
    inside = jnp.ones(points.shape[0], bool)
    for k, edge in enumerate(edges):
        values, last = points[:, k], edge.shape[0] - 1
        inside &= (values >= edge[0]) & (values <= edge[-1])
        bins = jnp.searchsorted(edge, values, side="right").astype(np.int64) - 1
        flat = flat * last + jnp.clip(bins, 0, last - 1)
    return flat, inside


def _histogram(
    points: Array, edges: Sequence[Array], weight: Array | None, *, density: bool
) -> Array:
    """Return the [bins, ...] sums of weights, or their density, of points [count, dims]."""
    sizes = [edge.shape[0] - 1 for edge in edges]
    flat, inside = _bins_of(points, edges)
    weights = (
        jnp.ones(points.shape[0], points.dtype)
        if weight is None
        else jnp.reshape(weight, (-1,)).astype(points.dtype)
    )
    counts = jnp.zeros(math.prod(sizes), points.dtype)
    counts = counts.at[flat].add(jnp.where(inside, weights, 0)).reshape(sizes)
    if not density:
        return counts
    counts = counts / jnp.sum(counts)
    for k, edge in enumerate(edges):
        widths = jnp.diff(edge)
        counts = counts / jnp.expand_dims(
            widths, [d for d in range(len(sizes)) if d != k]
        )
    return counts


def _even_edges(values: Array, count: int, limits: Sequence[float] | None) -> Array:
    """Return `count + 1` edges between the limits, those of the data if none are given."""
    if limits is not None:
        low, high = (jnp.asarray(v, values.dtype) for v in limits)
    elif values.size:
        low, high = jnp.min(values), jnp.max(values)
    else:
        low, high = jnp.zeros((), values.dtype), jnp.ones((), values.dtype)
    half = jnp.where(low == high, jnp.asarray(0.5, values.dtype), 0)
    low, high = low - half, high + half
    steps = lax.iota(np.int64, count + 1).astype(values.dtype)
    width = (high - low) / count
    # Counted from both ends, as linspace does, so that both are met exactly.
    up, down = low + width * steps, high - width * (count - steps)
    return jnp.where(steps < (count + 1) // 2, up, down)


@lowers("aten.histogram.bin_ct")
def histogram_of_count(
    ctx: OpContext,
    x: Array,
    bins: int = 100,
    range: Sequence[float] | None = None,  # noqa: A002 - the schema's name
    weight: Array | None = None,
    density: bool = False,
) -> tuple[Array, Array]:
    points = jnp.reshape(x, (-1, 1))
    edges = _even_edges(points, bins, range)
    return _histogram(points, [edges], weight, density=density), edges


@lowers("aten.histogram.bins_tensor")
def histogram_of_edges(
    ctx: OpContext,
    x: Array,
    bins: Array,
    weight: Array | None = None,
    density: bool = False,
) -> tuple[Array, Array]:
    points = jnp.reshape(x, (-1, 1))
    return _histogram(points, [bins], weight, density=density), bins


def _edges_dd(
    points: Array, bins: Sequence[int], limits: Sequence[float] | None
) -> list[Array]:
    return [
        _even_edges(
            points[:, k], count, None if limits is None else limits[2 * k : 2 * k + 2]
        )
        for k, count in enumerate(bins)
    ]


def _rows(x: Array) -> Array:
    return jnp.reshape(x, (-1, x.shape[-1]))


@lowers("aten._histogramdd_bin_edges.default")
def histogramdd_edges(
    ctx: OpContext,
    x: Array,
    bins: Sequence[int],
    range: Sequence[float] | None = None,  # noqa: A002
    *_: Any,
) -> list[Array]:
    return _edges_dd(_rows(x), bins, range)


@lowers("aten._histogramdd_from_bin_cts.default")
def histogramdd_of_counts(
    ctx: OpContext,
    x: Array,
    bins: Sequence[int],
    range: Sequence[float] | None = None,  # noqa: A002
    weight: Array | None = None,
    density: bool = False,
) -> Array:
    points = _rows(x)
    edges = _edges_dd(points, bins, range)
    return _histogram(points, edges, weight, density=density)


@lowers("aten._histogramdd_from_bin_tensors.default")
def histogramdd_of_edges(
    ctx: OpContext,
    x: Array,
    bins: Sequence[Array],
    weight: Array | None = None,
    density: bool = False,
) -> Array:
    return _histogram(_rows(x), bins, weight, density=density)


@lowers("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def searchsorted(
    ctx: OpContext,
    sorted_sequence: Array,
    x: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> Array:
    dtype = ctx.promoted(0, 1)
    x = expand(cast(x, dtype), ctx.out.shape)
    edges = cast(sorted_sequence, dtype)
    if sorter is not None:
        edges = jnp.take_along_axis(edges, sorter, -1)
    beyond = lax.gt if right or side == "right" else lax.ge
    if edges.ndim > 1:
        return _search(edges, x, beyond)
    return lax.reshape(_search(edges, lax.reshape(x, (x.size,)), beyond), x.shape)


def _search(
    edges: Array, values: Array, beyond: Callable[[Array, Array], Array]
) -> Array:
    """Return where each value belongs along the last dimension, by bisection.

    Halved as torch halves it, so that NaN and unsorted edges give what they give there.
    """
    count = edges.shape[-1]
    low = jnp.zeros(values.shape, np.int64)
    if not count:
        return low

    def halve(_: Any, limits: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = limits
        middle = lax.div(low + high, np.int64(2))
        edge = jnp.take_along_axis(edges, middle, -1, mode="clip")
        is_open, is_beyond = low < high, beyond(edge, values)
        up, down = is_open & ~is_beyond, is_open & is_beyond
        return jnp.where(up, middle + 1, low), jnp.where(down, middle, high)

    start = low, jnp.full_like(low, count)
    result: Array = lax.fori_loop(0, count.bit_length(), halve, start)[0]
    return result


@lowers("aten.bucketize.Tensor", "aten.bucketize.Scalar")
def bucketize(
    ctx: OpContext,
    x: Any,
    boundaries: Array,
    out_int32: bool = False,
    right: bool = False,
) -> Array:
    return searchsorted(ctx, boundaries, x, out_int32, right)


@lowers("aten.histc.default")
def histc(
    ctx: OpContext, x: Array, bins: int = 100, low: Any = 0, high: Any = 0
) -> Array:
    (x,) = ctx.cast(lax.reshape(x, (x.size,)))
    bottom, top = (
        scalar_like(jnp.zeros((), x.dtype), low),
        scalar_like(jnp.zeros((), x.dtype), high),
    )
    if low == high and x.size:
        bottom, top = lax.reduce_min(x, (0,)), lax.reduce_max(x, (0,))
        equal = bottom == top
        bottom, top = (
            jnp.where(equal, bottom - 1, bottom),
            jnp.where(equal, top + 1, top),
        )
    place = jnp.floor((x - bottom) / (top - bottom) * bins).astype(np.int64)
    place = jnp.where(x == top, bins - 1, place)
    inside = (x >= bottom) & (x <= top)
    weight = lax.convert_element_type(inside, to_jax_dtype(ctx.compute))
    return jnp.zeros((bins,), x.dtype).at[jnp.clip(place, 0, bins - 1)].add(weight)


# Runs: consecutive elements along one dimension, given by lengths or by offsets.


def _runs(lengths: Array | None, offsets: Array | None) -> list[Array]:
    """Return starts and ends of the runs of each batch entry: [batch, runs] each."""
    if offsets is None:
        assert lengths is not None  # noqa: S101 - the op takes one of the two
        ends = jnp.cumsum(lengths, axis=-1)
        starts = ends - lengths
    else:
        starts, ends = offsets[..., :-1], offsets[..., 1:]
    return [jnp.reshape(v, (-1, v.shape[-1])) for v in (starts, ends)]


def _membership(data: Array, starts: Array, ends: Array) -> Array:
    """Return which elements belong to which run: [batch, runs, size, 1]."""
    steps = lax.iota(np.int64, data.shape[1])
    belongs = (steps >= starts[..., None]) & (steps < ends[..., None])
    return belongs[..., None]


_NEUTRAL = {"sum": 0.0, "mean": 0.0, "max": -math.inf, "min": math.inf, "prod": 1.0}
_REDUCE: dict[str, Callable[..., Array]] = {
    "sum": jnp.sum,
    "mean": jnp.sum,
    "max": jnp.max,
    "min": jnp.min,
    "prod": jnp.prod,
}


@lowers("aten.segment_reduce.default")
def segment_reduce(
    ctx: OpContext,
    data: Array,
    reduce: str,
    lengths: Array | None = None,
    indices: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Array:
    flat = _batched(data, axis)
    starts, ends = _runs(lengths, offsets)
    belongs = _membership(flat, starts, ends)
    start = _NEUTRAL[reduce] if initial is None else initial
    spread = jnp.where(belongs, flat[:, None], _NEUTRAL[reduce])
    found = _REDUCE[reduce](spread, axis=2, initial=start)
    if reduce == "mean":
        count = jnp.sum(belongs, axis=2)
        empty = jnp.nan if initial is None else start
        found = jnp.where(count == 0, empty, found / jnp.maximum(count, 1))
    return jnp.reshape(found, ctx.out.shape)


def _batched(data: Array, axis: int) -> Array:
    """Return data as [batch, size, rest]."""
    batch, rest = data.shape[:axis], data.shape[axis + 1 :]
    return jnp.reshape(data, (math.prod(batch), data.shape[axis], math.prod(rest)))


@lowers("aten._segment_reduce_backward.default")
def segment_reduce_backward(
    ctx: OpContext,
    grad: Array,
    output: Array,
    data: Array,
    reduce: str,
    lengths: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    initial: Any = None,
) -> Array:
    flat = _batched(data, axis)
    grad, output = (_batched(v, axis)[:, :, None] for v in (grad, output))
    starts, ends = _runs(lengths, offsets)
    belongs = _membership(flat, starts, ends)
    values = flat[:, None]
    if reduce == "sum":
        slope = jnp.ones_like(values)
    elif reduce == "mean":
        slope = 1 / jnp.maximum(ends - starts, 1)[..., None, None].astype(flat.dtype)
    elif reduce == "prod":
        slope = _product_slope(values, belongs, 1.0 if initial is None else initial)
    else:
        hit = belongs & ((values == output) | (jnp.isnan(values) & jnp.isnan(output)))
        slope = hit / jnp.maximum(jnp.sum(hit, axis=2, keepdims=True), 1)
    gradient = jnp.sum(jnp.where(belongs, grad * slope, 0), axis=1)
    return jnp.reshape(gradient, data.shape)


def _product_slope(values: Array, belongs: Array, initial: Any) -> Array:
    """Return the product of the other elements of each run, zeros among them or not."""
    is_zero = belongs & (values == 0)
    zeros = jnp.sum(is_zero, axis=2, keepdims=True)
    others = jnp.where(belongs & ~is_zero, values, 1)
    product = jnp.prod(others, axis=2, keepdims=True) * initial
    without_zero = jnp.where(is_zero, 0, product / jnp.where(is_zero, 1, values))
    only_zero = jnp.where(is_zero, product, 0)
    return jnp.where(zeros == 0, without_zero, jnp.where(zeros == 1, only_zero, 0))
