"""Rules of backward ops, as the transpose of their forward op's lowering."""

# A rule's signature is its op's schema.
# ruff: noqa: ARG001, FBT001

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from lazyrt.lowering.avals import Aval
from lazyrt.lowering.dtypes import (
    Array,
    cast,
    opmath_dtype,
    to_jax_dtype,
    to_torch_dtype,
)
from lazyrt.lowering.registry import lowers
from lazyrt.lowering.shaping import broadcast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lazyrt.lowering.context import OpContext

aten = torch.ops.aten


def _aval(x: Array) -> Aval:
    return Aval(tuple(x.shape), to_torch_dtype(x.dtype))


def _upsample_backward(ctx: OpContext, grad: Array, *rest: Any) -> Array:
    """Transpose an upsampling, which is linear in its input."""
    name = ctx.name.split(".")[1].removesuffix("_backward")
    forward = getattr(aten, name).default
    size, shape, *options = rest
    (grad,) = ctx.cast(grad)
    source = Aval(tuple(shape), ctx.compute)

    def run(x: Array) -> Array:
        args, types = [x, size, *options], [source, size, *options]
        result: Array = ctx.call(forward, args, types, _aval(grad))[0]
        return result

    return _transposed(run, jnp.zeros(shape, to_jax_dtype(ctx.compute)), grad)


def _transposed(run: Callable[[Array], Array], x: Array, grad: Array) -> Array:
    """Return what a linear function passes back; of `x` only the type matters."""
    gradient: Array = jax.linear_transpose(run, x)(grad)[0]
    return gradient


for _kind in ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d",
              "trilinear3d", "_nearest_exact1d", "_nearest_exact2d", "_nearest_exact3d",
              "_bilinear2d_aa", "_bicubic2d_aa"):  # fmt: skip
    _op = f"_upsample{_kind}" if _kind.startswith("_") else f"upsample_{_kind}"
    lowers(f"aten.{_op}_backward.default")(_upsample_backward)


def _pad_backward(
    ctx: OpContext, grad: Array, x: Array, padding: Sequence[int]
) -> Array:
    """Transpose a padding that repeats elements of its input."""
    name = ctx.name.split(".")[1].removesuffix("_backward")
    forward = getattr(aten, name).default
    grad, x = ctx.cast(grad, x)

    def run(value: Array) -> Array:
        result: Array = ctx.call(
            forward, [value, padding], [_aval(x), padding], _aval(grad)
        )[0]
        return result

    return _transposed(run, x, grad)


for _rank in (1, 2, 3):
    for _kind in ("replication", "reflection"):
        lowers(f"aten.{_kind}_pad{_rank}d_backward.default")(_pad_backward)


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
    name = ctx.name.split(".")[1].removesuffix("_backward")
    forward = getattr(aten, name).default
    options = [interpolation, padding, align_corners]

    def run(value: Array, where: Array) -> Array:
        result: Array = ctx.call(
            forward,
            [value, where, *options],
            [_aval(x), _aval(grid), *options],
            _aval(grad),
        )[0]
        return result

    _, pull = jax.vjp(run, x, grid)
    return _mask(pull(grad), output_mask)


@lowers("aten._weight_norm_interface_backward.default")
def weight_norm_backward(
    ctx: OpContext, grad: Array, v: Array, g: Array, norms: Array, dim: int
) -> tuple[Array, Array]:
    compute = opmath_dtype(to_torch_dtype(v.dtype))
    grad, v, g, norms = (cast(x, compute) for x in (grad, v, g, norms))
    dims = tuple(k for k in range(v.ndim) if k != dim % v.ndim)
    along = lax.expand_dims(lax.reduce_sum(lax.mul(grad, v), dims), dims)
    along = lax.reshape(along, norms.shape)
    ratio = lax.div(g, norms)
    shrink = lax.mul(ratio, lax.div(along, lax.mul(norms, norms)))
    d_v = lax.sub(lax.mul(*broadcast(ratio, grad)), lax.mul(*broadcast(shrink, v)))
    return d_v, lax.reshape(lax.div(along, norms), g.shape)


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
