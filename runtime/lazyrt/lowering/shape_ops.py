"""Rules of the ops that make tensors, change shapes or move elements around."""

# A rule's signature is its op's schema.
# ruff: noqa: ARG001

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from lazyrt.ir.node import contiguous_strides
from lazyrt.lowering.arrays import (
    Array,
    axes,
    axis,
    cast,
    expand,
    is_integral,
    to_jax_dtype,
)
from lazyrt.lowering.registry import OpContext, lowers

if TYPE_CHECKING:
    from collections.abc import Sequence


@lowers("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default",
        "aten._reshape_alias.default", "aten.squeeze.default", "aten.squeeze.dim",
        "aten.squeeze.dims", "aten.unsqueeze.default", "aten.view_copy.default",
        "aten.squeeze_copy.default", "aten.squeeze_copy.dim", "aten.squeeze_copy.dims",
        "aten.unsqueeze_copy.default", "aten._reshape_copy.default",
        "aten._reshape_alias_copy.default")  # fmt: skip
def reshape(ctx: OpContext, x: Array, *_: Any) -> Array:
    return lax.reshape(x, ctx.out.shape)


@lowers("aten.view.dtype", "aten.view_copy.dtype")
def view_dtype(ctx: OpContext, x: Array, *_: Any) -> Array:
    """Reinterpret the elements' bytes, which lie in the last dimension.

    XLA casts between numbers of one part; a complex number is two, a truth value is a byte.
    """
    shape = ctx.out.shape
    if x.dtype == bool:
        x = lax.convert_element_type(x, np.uint8)
    elif jnp.iscomplexobj(x):
        rows = (*x.shape[:-1], 2 * x.shape[-1]) if x.ndim else (2,)
        x = lax.reshape(jnp.stack([lax.real(x), lax.imag(x)], axis=-1), rows)
    if ctx.out.dtype is torch.bool:
        return _cast_bits(x, np.uint8, shape) != 0
    if ctx.out.dtype.is_complex:
        part = to_jax_dtype(ctx.out.dtype.to_real())
        pairs = _cast_bits(x, part, (*shape, 2))
        return lax.complex(pairs[..., 0], pairs[..., 1])
    return _cast_bits(x, ctx.dtype, shape)


def _cast_bits(x: Array, target: Any, shape: tuple[int, ...]) -> Array:
    """Return numbers of one part as numbers of another width, in the given shape."""
    factor = np.dtype(target).itemsize // x.dtype.itemsize
    if factor > 1:
        x = lax.reshape(x, (*x.shape[:-1], x.shape[-1] // factor, factor))
    return lax.reshape(lax.bitcast_convert_type(x, target), shape)


@lowers("aten.expand.default", "aten.expand_copy.default")
def expand_to(ctx: OpContext, x: Array, *_: Any) -> Array:
    return expand(x, ctx.out.shape)


@lowers("aten.permute.default", "aten.permute_copy.default")
def permute(ctx: OpContext, x: Array, dims: Sequence[int]) -> Array:
    return lax.transpose(x, [axis(d, x.ndim) for d in dims])


@lowers("aten.t.default", "aten.t_copy.default")
def t(ctx: OpContext, x: Array) -> Array:
    return lax.transpose(x, range(x.ndim)[::-1])


@lowers("aten.transpose.int", "aten.transpose_copy.int")
def transpose(ctx: OpContext, x: Array, dim0: int, dim1: int) -> Array:
    if x.ndim == 0:
        return x
    order = list(range(x.ndim))
    first, second = axis(dim0, x.ndim), axis(dim1, x.ndim)
    order[first], order[second] = order[second], order[first]
    return lax.transpose(x, order)


def slice_bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Return a slice's limits as torch clamps them."""
    first, last, _ = slice(start, end).indices(size)
    return first, max(last, first)


@lowers("aten.slice.Tensor", "aten.slice_copy.Tensor")
def slice_(
    ctx: OpContext,
    x: Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Array:
    d = axis(dim, x.ndim)
    low, high = slice_bounds(x.shape[d], start, end)
    return lax.slice_in_dim(x, low, high, step, axis=d)


@lowers("aten.select.int", "aten.select_copy.int")
def select(ctx: OpContext, x: Array, dim: int, index: int) -> Array:
    d = axis(dim, x.ndim)
    return lax.index_in_dim(x, index % x.shape[d], d, keepdims=False)


@lowers("aten.slice_scatter.default")
def slice_scatter(
    ctx: OpContext,
    x: Array,
    source: Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Array:
    d = axis(dim, x.ndim)
    low, high = slice_bounds(x.shape[d], start, end)
    source = cast(source, ctx.out.dtype)
    if (low, high, step) == (0, x.shape[d], 1):
        return expand(source, x.shape)
    count = len(range(low, high, step))
    if not count:
        return x
    source = expand(source, (*x.shape[:d], count, *x.shape[d + 1 :]))
    if step == 1:
        return lax.dynamic_update_slice_in_dim(x, source, np.int64(low), d)
    where = (slice(None),) * d + (slice(low, high, step),)
    return x.at[where].set(source)


@lowers("aten.select_scatter.default")
def select_scatter(
    ctx: OpContext, x: Array, source: Array, dim: int, index: int
) -> Array:
    d = axis(dim, x.ndim)
    source = lax.expand_dims(cast(source, ctx.out.dtype), (d,))
    return lax.dynamic_update_slice_in_dim(x, source, np.int64(index % x.shape[d]), d)


@lowers("aten.cat.default")
def cat(ctx: OpContext, tensors: Sequence[Array], dim: int = 0) -> Array:
    # A legacy of torch: an empty 1-d tensor goes with tensors of any rank.
    rank = len(ctx.out.shape)
    parts = [cast(x, ctx.out.dtype) for x in tensors if x.ndim == rank]
    if not parts:
        return jnp.zeros(ctx.out.shape, ctx.dtype)
    return lax.concatenate(parts, axis(dim, rank))


@lowers("aten.stack.default")
def stack(ctx: OpContext, tensors: Sequence[Array], dim: int = 0) -> Array:
    d = axis(dim, len(ctx.out.shape))
    return lax.concatenate(
        [lax.expand_dims(cast(x, ctx.out.dtype), (d,)) for x in tensors], d
    )


def _split_at(x: Array, dim: int, sizes: Sequence[int]) -> list[Array]:
    edges = itertools.accumulate(sizes, initial=0)
    return [
        lax.slice_in_dim(x, low, high, axis=dim)
        for low, high in itertools.pairwise(edges)
    ]


@lowers("aten.split.Tensor", "aten.split_with_sizes.default", "aten.split_copy.Tensor",
        "aten.split_with_sizes_copy.default", "aten.unsafe_split.Tensor",
        "aten.unsafe_split_with_sizes.default")  # fmt: skip
def split(ctx: OpContext, x: Array, size: Any, dim: int = 0) -> list[Array]:
    d = axis(dim, x.ndim)
    return _split_at(x, d, [out.shape[d] for out in ctx.outs if out is not None])


@lowers("aten.unbind.int", "aten.unbind_copy.int")
def unbind(ctx: OpContext, x: Array, dim: int = 0) -> list[Array]:
    d = axis(dim, x.ndim)
    return [lax.index_in_dim(x, k, d, keepdims=False) for k in range(x.shape[d])]


@lowers("aten.repeat.default")
def repeat(ctx: OpContext, x: Array, repeats: Sequence[int]) -> Array:
    return jnp.tile(x, repeats)


@lowers("aten.flip.default")
def flip(ctx: OpContext, x: Array, dims: Sequence[int]) -> Array:
    return lax.rev(x, axes(dims, x.ndim) if dims else ())


@lowers("aten.roll.default")
def roll(ctx: OpContext, x: Array, shifts: Any, dims: Any = ()) -> Array:
    return jnp.roll(x, tuple(shifts), tuple(dims) or None) if x.ndim else x


def _diagonal_index(shape: Sequence[int], offset: int) -> tuple[Array, Array]:
    rows, columns = shape
    length = max(
        min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0
    )
    steps = lax.iota(np.int64, length)
    return steps + max(-offset, 0), steps + max(offset, 0)


@lowers("aten.diagonal.default", "aten.diagonal_copy.default")
def diagonal(
    ctx: OpContext, x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Array:
    found: Array = jnp.diagonal(x, offset, dim1, dim2)
    return found


@lowers("aten.diagonal_scatter.default")
def diagonal_scatter(
    ctx: OpContext,
    x: Array,
    source: Array,
    offset: int = 0,
    dim1: int = 0,
    dim2: int = 1,
) -> Array:
    d1, d2 = axis(dim1, x.ndim), axis(dim2, x.ndim)
    moved = jnp.moveaxis(x, (d1, d2), (-2, -1))
    rows, columns = _diagonal_index(moved.shape[-2:], offset)
    moved = moved.at[..., rows, columns].set(cast(source, ctx.out.dtype))
    return jnp.moveaxis(moved, (-2, -1), (d1, d2))


@lowers("aten.tril.default")
def tril(ctx: OpContext, x: Array, diagonal: int = 0) -> Array:
    return jnp.tril(x, diagonal)


@lowers("aten.triu.default")
def triu(ctx: OpContext, x: Array, diagonal: int = 0) -> Array:
    return jnp.triu(x, diagonal)


# Strided views of a contiguous base.


def _strided_index(
    size: Sequence[int], stride: Sequence[int], offset: int
) -> tuple[Array, bool]:
    """Return the flat index of each element, and whether two elements share one."""
    index = lax.full(size, np.int64(offset))
    for dim, step in enumerate(stride):
        if step and size[dim] > 1:
            steps = lax.broadcasted_iota(np.int64, tuple(size), dim)
            index = lax.add(index, lax.mul(steps, lax.full(size, np.int64(step))))
    spans = sorted((abs(s), n) for s, n in zip(stride, size, strict=True) if n > 1)
    reach, overlaps = 0, False
    for step, count in spans:
        overlaps |= step <= reach
        reach += step * (count - 1)
    return index, overlaps


def _is_contiguous(size: Sequence[int], stride: Sequence[int]) -> bool:
    natural = contiguous_strides(size)
    return all(n == 1 or s == c for n, s, c in zip(size, stride, natural, strict=True))


@lowers("aten.as_strided.default", "aten.as_strided_copy.default")
def as_strided(
    ctx: OpContext,
    x: Array,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Array:
    flat = lax.reshape(x, (x.size,))
    offset = storage_offset or 0
    count = math.prod(size)
    if _is_contiguous(size, stride) and offset + count <= x.size:
        return lax.reshape(lax.slice_in_dim(flat, offset, offset + count), size)
    index, _ = _strided_index(size, stride, offset)
    return flat.at[index].get(mode="clip")


@lowers("aten.as_strided_scatter.default")
def as_strided_scatter(
    ctx: OpContext,
    x: Array,
    source: Array,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Array:
    flat = lax.reshape(x, (x.size,))
    source = cast(source, ctx.out.dtype)
    offset = storage_offset or 0
    if _is_contiguous(size, stride):
        source = lax.reshape(source, (source.size,))
        flat = lax.dynamic_update_slice_in_dim(flat, source, np.int64(offset), 0)
    else:
        index, overlaps = _strided_index(size, stride, offset)
        flat = flat.at[index].set(source, unique_indices=not overlaps)
    return lax.reshape(flat, x.shape)


# Padding.


def padding_of(pad: Sequence[int], rank: int) -> list[tuple[int, int]]:
    """Return torch's flat padding, last dimension first, as (low, high) per dimension."""
    pairs = [(pad[k], pad[k + 1]) for k in range(0, len(pad), 2)]
    return [(0, 0)] * (rank - len(pairs)) + pairs[::-1]


@lowers("aten.constant_pad_nd.default")
def constant_pad(ctx: OpContext, x: Array, pad: Sequence[int], value: Any = 0) -> Array:
    low_high = [(low, high, 0) for low, high in padding_of(pad, x.ndim)]
    return lax.pad(x, cast(value, ctx.out.dtype), low_high)


# Making tensors from nothing, or of the type of another.


def _filled(ctx: OpContext, value: Any) -> Array:
    return expand(cast(value, ctx.out.dtype), ctx.out.shape)


@lowers("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default",
        "aten.empty.memory_format", "aten.empty_like.default", "aten.new_empty.default",
        "aten.empty_strided.default", "aten.new_empty_strided.default",
        "aten.empty_permuted.default", "aten._efficientzerotensor.default",
        "aten.zero.default")  # fmt: skip
def zeros(ctx: OpContext, *_: Any) -> Array:
    # What torch leaves uninitialised is zero here, so that a run can be repeated.
    return _filled(ctx, 0)


@lowers("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(ctx: OpContext, *_: Any) -> Array:
    return _filled(ctx, 1)


@lowers("aten.full.default", "aten.full_like.default", "aten.new_full.default",
        "aten.scalar_tensor.default")  # fmt: skip
def full(ctx: OpContext, *args: Any) -> Array:
    given = ctx.named(args)
    return _filled(ctx, given["fill_value" if "fill_value" in given else "s"])


@lowers("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def arange(ctx: OpContext, *args: Any) -> Array:
    given = ctx.named(args)
    start, step = given.get("start", 0), given.get("step", 1)
    dtype = torch.int64 if is_integral(ctx.out.dtype) else torch.float64
    steps = lax.iota(to_jax_dtype(dtype), ctx.out.shape[0])
    if step != 1:
        steps = lax.mul(steps, expand(cast(step, dtype), steps.shape))
    if start != 0:
        steps = lax.add(steps, expand(cast(start, dtype), steps.shape))
    return steps


@lowers("aten.linspace.default")
def linspace(ctx: OpContext, start: Any, end: Any, *_: Any) -> Array:
    """Count from both ends, as torch does, so that both are met exactly."""
    count = ctx.out.shape[0]
    dtype = torch.float64 if is_integral(ctx.out.dtype) else ctx.compute
    first, last = (cast(cast(v, ctx.out.dtype), dtype) for v in (start, end))
    if count <= 1:
        return expand(first, ctx.out.shape)
    width = lax.div(lax.sub(last, first), cast(count - 1, dtype))
    index = lax.iota(np.int64, count)
    up = lax.add(
        expand(first, (count,)), lax.mul(cast(index, dtype), expand(width, (count,)))
    )
    back = cast(lax.sub(lax.full((count,), np.int64(count - 1)), index), dtype)
    down = lax.sub(expand(last, (count,)), lax.mul(back, expand(width, (count,))))
    return lax.select(lax.lt(index, lax.full((count,), np.int64(count // 2))), up, down)


@lowers("aten.eye.default", "aten.eye.m")
def eye(ctx: OpContext, *_: Any) -> Array:
    rows, columns = ctx.out.shape
    return jnp.eye(rows, columns, dtype=ctx.dtype)


@lowers("aten.tril_indices.default", "aten.triu_indices.default")
def triangle_indices(
    ctx: OpContext, row: int, col: int, offset: int = 0, *_: Any
) -> Array:
    pick = np.tril_indices if "tril" in ctx.name else np.triu_indices
    return jnp.asarray(np.stack(pick(row, offset, col))).astype(ctx.dtype)
