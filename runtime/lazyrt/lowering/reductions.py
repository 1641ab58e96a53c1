"""Rules of the ops that reduce, scan or sort along dimensions, into bins, and by runs of elements."""

# A rule's signature is its op's schema; numbers are those of its formula.
# ruff: noqa: A002, ARG001, FBT001, FBT002, PLR2004

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from lazyrt.lowering.arrays import (
    Array,
    axes,
    axis,
    cast,
    expand,
    iota_along,
    is_integral,
    isnan,
    keep_dims,
    opmath_dtype,
    scalar_like,
    to_jax_dtype,
    to_torch_dtype,
)
from lazyrt.lowering.registry import OpContext, lowers, overloads

_Reduce = Callable[[Array, Sequence[int]], Array]


def reduce_sum(x: Array, dims: Sequence[int]) -> Array:
    """Sum over dimensions, in the array's own dtype."""
    return lax.reduce_sum(x, tuple(dims)) if dims else x


def _finish(ctx: OpContext, x: Array) -> Array:
    """Give a reduced array the result's shape: size-1 dimensions where they are kept."""
    return lax.reshape(x, ctx.out.shape)


def mean_of(x: Array, dims: Sequence[int]) -> Array:
    """Return the mean over dimensions, in the array's own dtype."""
    count = math.prod(x.shape[d] for d in dims)
    total = reduce_sum(x, dims)
    return lax.div(total, scalar_like(total, count))


def _product(x: Array, dims: Sequence[int]) -> Array:
    return lax.reduce_and(x, dims) if x.dtype == bool else lax.reduce_prod(x, dims)


_REDUCTIONS: dict[str, _Reduce] = {
    "sum": reduce_sum, "mean": mean_of, "prod": _product,
    "any": lambda x, dims: lax.reduce_or(cast(x, torch.bool), dims),
    "all": lambda x, dims: lax.reduce_and(cast(x, torch.bool), dims),
}  # fmt: skip


def _reduction(name: str, reduce: _Reduce) -> None:
    @lowers(*overloads(name, "default", "dim", "dims", "dim_IntList", "dim_int"))
    def rule(ctx: OpContext, x: Array, *args: Any) -> Array:
        dims = axes(ctx.named([x, *args]).get("dim"), x.ndim)
        x = cast(x, ctx.compute) if name in {"sum", "mean", "prod"} else x
        return _finish(ctx, reduce(x, dims))


for _name, _function in _REDUCTIONS.items():
    _reduction(_name, _function)


@lowers("aten.hash_tensor.default")
def hash_tensor(ctx: OpContext, x: Array, dim: Any = (), *_: Any) -> Array:
    """Combine the elements by exclusive or: floats by the bits of their float64 value."""
    wide = torch.int64 if is_integral(to_torch_dtype(x.dtype)) else torch.float64
    words = lax.bitcast_convert_type(cast(x, wide), np.uint64)
    zero = np.zeros((), np.uint64)
    return _finish(ctx, lax.reduce(words, zero, lax.bitwise_xor, axes(dim, x.ndim)))


_Pick = Callable[[Array, int, Any], Array]


def _extreme(name: str, reduce: _Reduce, pick: _Pick) -> None:
    """Register the rules of `max` or `min`: over dimensions, along one, and its position."""

    def position(x: Array, dim: int) -> Array:
        x = lax.convert_element_type(x, np.int32) if x.dtype == bool else x
        return pick(x, dim, np.int64)

    @lowers(f"aten.a{name}.default", f"aten.{name}.default")
    def over(ctx: OpContext, x: Array, dim: Any = (), *_: Any) -> Array:
        return _finish(ctx, reduce(x, axes(dim, x.ndim)))

    @lowers(f"aten.{name}.dim")
    def along(ctx: OpContext, x: Array, dim: int, *_: Any) -> tuple[Array, Array]:
        if x.ndim == 0:
            return x, jnp.zeros((), np.int64)
        d = axis(dim, x.ndim)
        return _finish(ctx, reduce(x, (d,))), _finish(ctx, position(x, d))

    @lowers(f"aten.arg{name}.default")
    def where(ctx: OpContext, x: Array, dim: int | None = None, *_: Any) -> Array:
        return _finish(ctx, position(*_flat_or_along(x, dim)))


_extreme("max", lax.reduce_max, lax.argmax)
_extreme("min", lax.reduce_min, lax.argmin)


def _flat_or_along(x: Array, dim: int | None) -> tuple[Array, int]:
    if dim is None or x.ndim == 0:
        return lax.reshape(x, (x.size,)), 0
    return x, axis(dim, x.ndim)


def moments(x: Array, dims: Sequence[int], correction: Any) -> tuple[Array, Array]:
    """Return variance and mean over dimensions, both with the dimensions taken away."""
    count = math.prod(x.shape[d] for d in dims)
    mean_ = mean_of(x, dims)
    centred = lax.sub(x, expand(keep_dims(mean_, dims, x.ndim), x.shape))
    if jnp.iscomplexobj(x):
        squares = lax.square(lax.real(centred)) + lax.square(lax.imag(centred))
    else:
        squares = lax.mul(centred, centred)
    total = reduce_sum(squares, dims)
    divisor = max(count - (1 if correction is None else correction), 0)
    return lax.div(total, scalar_like(total, divisor)), mean_


def _in_float(x: Array) -> Array:
    return cast(x, opmath_dtype(to_torch_dtype(x.dtype)))


@lowers("aten.var.correction", "aten.std.correction", "aten.var_mean.correction")
def var(
    ctx: OpContext, x: Array, dim: Any = None, correction: Any = None, *_: Any
) -> list[Array]:
    found = moments(_in_float(x), axes(dim, x.ndim), correction)
    variance, mean_ = (_finish(ctx, part) for part in found)
    first = lax.sqrt(variance) if "std" in ctx.name else variance
    return [first, mean_][: len(ctx.outs)]


@lowers("aten.logsumexp.default")
def logsumexp(ctx: OpContext, x: Array, dim: Any, *_: Any) -> Array:
    (x,) = ctx.cast(x)
    return _finish(ctx, jax.nn.logsumexp(x, axes(dim, x.ndim)))


@lowers("aten.linalg_vector_norm.default")
def vector_norm(
    ctx: OpContext, x: Array, ord: Any = 2, dim: Any = None, *_: Any
) -> Array:
    sizes = cast(lax.abs(x), ctx.compute)
    return _finish(ctx, norm_of(sizes, axes(dim, x.ndim), ord))


def norm_of(sizes: Array, dims: Sequence[int], order: Any) -> Array:
    """Return the vector norm over dimensions of an array of magnitudes."""
    if order == 2:
        return lax.sqrt(reduce_sum(lax.mul(sizes, sizes), dims))
    if order == 1:
        return reduce_sum(sizes, dims)
    if order == math.inf:
        return lax.reduce_max(sizes, tuple(dims))
    if order == -math.inf:
        return lax.reduce_min(sizes, tuple(dims))
    if order == 0:
        return reduce_sum(cast(sizes != 0, to_torch_dtype(sizes.dtype)), dims)
    total = reduce_sum(lax.pow(sizes, scalar_like(sizes, order)), dims)
    return lax.pow(total, scalar_like(total, 1 / order))


# Scans.


def _scan(name: str, scan: Callable[[Array, int], Array]) -> None:
    @lowers(name)
    def rule(ctx: OpContext, x: Array, dim: int, *_: Any) -> Array:
        (x,) = ctx.cast(x)
        return scan(x, axis(dim, x.ndim)) if x.ndim else x


_scan("aten.cumsum.default", lax.cumsum)
_scan("aten.cumprod.default", lax.cumprod)
_scan("aten.logcumsumexp.default", lax.cumlogsumexp)


def _running_extreme(name: str, beats: Callable[[Array, Array], Array]) -> None:
    def better(left: Any, right: Any) -> Any:
        wins = beats(right[0], left[0]) | isnan(right[0])
        wins = wins & (~isnan(left[0]) | isnan(right[0]))
        return lax.select(wins, right[0], left[0]), lax.select(wins, right[1], left[1])

    @lowers(name)
    def rule(ctx: OpContext, x: Array, dim: int) -> tuple[Array, Array]:
        if x.ndim == 0:
            return x, jnp.zeros((), np.int64)
        d = axis(dim, x.ndim)
        found: tuple[Array, Array] = lax.associative_scan(
            better, (x, iota_along(x.shape, d)), axis=d
        )
        return found


_running_extreme("aten.cummax.default", lax.ge)
_running_extreme("aten.cummin.default", lax.le)


# Sorting.


def sort_along(x: Array, dim: int, *, descending: bool) -> tuple[Array, Array]:
    """Sort stably; return the values and where they were."""
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    index = iota_along(x.shape, dim)
    if descending:
        x, index = lax.rev(x, (dim,)), lax.rev(index, (dim,))
    values, where = lax.sort((x, index), dimension=dim, is_stable=True, num_keys=1)
    if descending:
        values, where = lax.rev(values, (dim,)), lax.rev(where, (dim,))
    return values, where


@lowers("aten.sort.default", "aten.sort.stable")
def sort(ctx: OpContext, x: Array, *args: Any) -> tuple[Array, Array]:
    given = ctx.named([x, *args])
    return sort_along(x, axis(given["dim"], x.ndim), descending=given["descending"])


@lowers("aten.topk.default")
def topk(
    ctx: OpContext,
    x: Array,
    k: int,
    dim: int = -1,
    largest: bool = True,
    *_: Any,
) -> tuple[Array, Array]:
    if x.ndim == 0:
        return lax.reshape(x, ctx.out.shape), jnp.zeros(ctx.out.shape, np.int64)
    d = axis(dim, x.ndim)
    values, where = sort_along(x, d, descending=largest)
    return lax.slice_in_dim(values, 0, k, axis=d), lax.slice_in_dim(where, 0, k, axis=d)


@lowers("aten.kthvalue.default")
def kthvalue(
    ctx: OpContext, x: Array, k: int, dim: int = -1, *_: Any
) -> tuple[Array, Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    d = axis(dim, x.ndim)
    values, where = sort_along(x, d, descending=False)
    return (
        _finish(ctx, lax.slice_in_dim(values, k - 1, k, axis=d)),
        _finish(ctx, lax.slice_in_dim(where, k - 1, k, axis=d)),
    )


def _median(x: Array, dim: int, *, skip_nan: bool) -> tuple[Array, Array]:
    """Return the lower median; a NaN is the median unless NaNs are skipped."""
    size = x.shape[dim]
    values, where = sort_along(x, dim, descending=False)
    isnan = lax.ne(values, values)
    count = reduce_sum(lax.convert_element_type(~isnan, np.int64), (dim,))
    middle = lax.max(lax.div(count - 1, np.int64(2)), np.int64(0))
    if not skip_nan:
        middle = jnp.where(count < size, count, middle)
    middle = jnp.expand_dims(middle, dim)
    return (
        jnp.take_along_axis(values, middle, dim, mode="clip"),
        jnp.take_along_axis(where, middle, dim, mode="clip"),
    )


@lowers("aten.median.default", "aten.nanmedian.default")
def median(ctx: OpContext, x: Array) -> Array:
    if not x.size:  # NaN, converted as the CPU does
        wide = jnp.issubdtype(x.dtype, np.signedinteger) and x.dtype.itemsize >= 4
        nothing = np.iinfo(x.dtype).min if wide else np.nan
        is_number = jnp.issubdtype(x.dtype, np.inexact)
        return jnp.full((), nothing if wide or is_number else 0, x.dtype)
    flat = lax.reshape(x, (x.size,))
    values, _where = _median(flat, 0, skip_nan="nan" in ctx.name)
    return _finish(ctx, values)


@lowers("aten.median.dim", "aten.nanmedian.dim")
def median_dim(ctx: OpContext, x: Array, dim: int, *_: Any) -> tuple[Array, Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    values, where = _median(x, axis(dim, x.ndim), skip_nan="nan" in ctx.name)
    return _finish(ctx, values), _finish(ctx, where)


@lowers("aten.mode.default")
def mode(ctx: OpContext, x: Array, dim: int = -1, *_: Any) -> tuple[Array, Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    d = axis(dim, x.ndim)
    values, _where = sort_along(x, d, descending=False)
    runs = jnp.expand_dims(values, d) == jnp.expand_dims(values, d + 1)
    counts = reduce_sum(lax.convert_element_type(runs, np.int64), (d + 1,))
    best = jnp.expand_dims(lax.argmax(counts, d, np.int64), d)
    value = jnp.take_along_axis(values, best, d)
    hits = jnp.where(x == value, iota_along(x.shape, d), np.int64(0))  # NaN: the first
    return _finish(ctx, value), _finish(ctx, lax.reduce_max(hits, (d,)))


# ----------------------------------------------------------------------- bins and runs


def _histogram(
    points: Array, edges: Sequence[Array], weight: Array | None, *, density: bool
) -> Array:
    """Return the [bins, ...] sums of weights, or their density, of points [count, dims]."""
    first, last = (jnp.stack([edge[k] for edge in edges]) for k in (0, -1))
    inside = jnp.all(
        (points >= first) & (points <= last), axis=1
    )  # edges may be unsorted
    counted = jnp.where(inside, 1 if weight is None else jnp.reshape(weight, (-1,)), 0)
    return jnp.histogramdd(points, [*edges], weights=counted, density=density)[0]


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


def _edges(
    points: Array, bins: Sequence[Any], limits: Sequence[float] | None
) -> list[Array]:
    """Return the edges along each dimension, of which `bins` has the count or the edges."""
    return [
        each
        if isinstance(each, jax.Array)
        else _even_edges(points[:, k], each, limits and limits[2 * k : 2 * k + 2])
        for k, each in enumerate(bins)
    ]


@lowers("aten.histogram.bin_ct", "aten.histogram.bins_tensor")
def histogram(ctx: OpContext, x: Array, bins: Any, *args: Any) -> tuple[Array, Array]:
    given = ctx.named([x, bins, *args])
    points = jnp.reshape(x, (-1, 1))
    edges = _edges(points, [bins], given.get("range"))
    counts = _histogram(points, edges, given["weight"], density=given["density"])
    return counts, edges[0]


@lowers("aten._histogramdd_from_bin_cts.default",
        "aten._histogramdd_from_bin_tensors.default")  # fmt: skip
def histogramdd(ctx: OpContext, x: Array, bins: Sequence[Any], *args: Any) -> Array:
    given = ctx.named([x, bins, *args])
    points = jnp.reshape(x, (-1, x.shape[-1]))
    edges = _edges(points, bins, given.get("range"))
    return _histogram(points, edges, given["weight"], density=given["density"])


@lowers("aten._histogramdd_bin_edges.default")
def histogramdd_edges(
    ctx: OpContext, x: Array, bins: Sequence[int], limits: Any = None, *_: Any
) -> list[Array]:
    return _edges(jnp.reshape(x, (-1, x.shape[-1])), bins, limits)


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
    return _of_runs(data, reduce, lengths, offsets, axis, initial, ctx.out.shape)


def _of_runs(
    data: Array,
    reduce: str,
    lengths: Array | None,
    offsets: Array | None,
    axis: int,
    initial: Any,
    shape: Sequence[int],
) -> Array:
    batch, rest = data.shape[:axis], data.shape[axis + 1 :]
    sizes = math.prod(batch), data.shape[axis], math.prod(rest)
    flat = jnp.reshape(data, sizes)
    belongs = _membership(flat, *_runs(lengths, offsets))
    start = _NEUTRAL[reduce] if initial is None else initial
    spread = jnp.where(belongs, flat[:, None], _NEUTRAL[reduce])
    found = _REDUCE[reduce](spread, axis=2, initial=start)
    if reduce == "mean":
        count = jnp.sum(belongs, axis=2)
        empty = jnp.nan if initial is None else start
        found = jnp.where(count == 0, empty, found / jnp.maximum(count, 1))
    return jnp.reshape(found, shape)


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
    options = (reduce, lengths, offsets, axis, initial, grad.shape)
    gradient: Array = jax.vjp(lambda x: _of_runs(x, *options), data)[1](grad)[0]
    return gradient
