"""Rules of the ops that read or write where an index says."""

# A rule's signature is its op's schema; numbers are those of its formula.
# A rule's parameters are those of the op's schema.
# ruff: noqa: ARG001, ARG005, FBT001, FBT002, PLR2004, S101

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from lazyrt.ir.node import Leaf, Node, Op, Value
from lazyrt.lowering.arrays import (
    Array,
    Unsupported,
    axis,
    cast,
    expand,
    iota_along,
    scalar_like,
    to_jax_dtype,
    to_torch_dtype,
    zeros_like,
)
from lazyrt.lowering.reductions import norm_of
from lazyrt.lowering.registry import OpContext, lowers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# torch raises for an index out of range. A compiled program cannot: reads stay inside the
# tensor, writes outside of it are dropped.
_READ = "clip"


def _refuse_masks(indices: Sequence[Array | None]) -> None:
    if any(
        index is not None and index.dtype.name in {"bool", "uint8"} for index in indices
    ):
        raise Unsupported("how many elements a mask picks depends on data")


def _add(place: Any, values: Array, *, wrap: bool = False) -> Array:
    """Add values at places of an array; for booleans a sum is an or.

    With `wrap`, negative indices count from the end.
    """
    add = place.max if values.dtype == bool else place.add
    result: Array = add(values, wrap_negative_indices=wrap)
    return result


def _where(indices: Sequence[Array | None]) -> tuple[Any, ...]:
    return tuple(slice(None) if index is None else index for index in indices)


@lowers("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index_tensor(ctx: OpContext, x: Array, indices: Sequence[Array | None]) -> Array:
    _refuse_masks(indices)
    return x.at[_where(indices)].get(mode=_READ, wrap_negative_indices=True)


@lowers("aten.index_put.default", "aten._unsafe_index_put.default",
        "aten._index_put_impl.default")  # fmt: skip
def index_put(
    ctx: OpContext,
    x: Array,
    indices: Sequence[Array | None],
    values: Array,
    accumulate: bool = False,
    *_: Any,
) -> Array:
    values = cast(values, ctx.out.dtype)
    masks = [index for index in indices if index is not None]
    if len(masks) == 1 and masks[0].dtype == bool:
        if values.size == 1:
            return _put_masked(x, indices, values, accumulate=accumulate)
        # Autograd alone calls this op, with as many values as the mask has places. Of other
        # callers nobody knows; they run on the CPU, which checks.
        by_rows = indices[0] is not None and values.ndim == x.ndim - masks[0].ndim + 1
        if ctx.name == "aten._index_put_impl.default" and by_rows:
            return _put_rows(x, masks[0], values, accumulate=accumulate)
    _refuse_masks(indices)
    place = x.at[_where(indices)]
    return _add(place, values, wrap=True) if accumulate else place.set(values)


def _put_masked(
    x: Array, indices: Sequence[Array | None], value: Array, *, accumulate: bool
) -> Array:
    """Write one value wherever a mask over some dimensions is true."""
    before = next(k for k, index in enumerate(indices) if index is not None)
    mask = indices[before]
    assert mask is not None
    after = x.ndim - before - mask.ndim
    mask = lax.reshape(mask, (*(1,) * before, *mask.shape, *(1,) * after))
    value = expand(lax.reshape(value, ()), x.shape)
    return lax.select(expand(mask, x.shape), x + value if accumulate else value, x)


def _put_rows(x: Array, mask: Array, values: Array, *, accumulate: bool) -> Array:
    """Write the k-th row of `values` at the k-th place where a mask of leading dims is true."""
    if not values.size:
        return x
    rest = x.shape[mask.ndim :]
    flat = lax.reshape(mask, (mask.size,))
    rank = lax.cumsum(flat.astype(np.int64)) - 1
    rows = jnp.take(values, rank, axis=0, mode="clip").reshape(x.shape)
    chosen = expand(lax.reshape(mask, (*mask.shape, *(1,) * len(rest))), x.shape)
    return lax.select(chosen, x + rows if accumulate else rows, x)


@lowers("aten.index_select.default")
def index_select(ctx: OpContext, x: Array, dim: int, index: Array) -> Array:
    if x.ndim == 0:
        return expand(x, ctx.out.shape)
    index = lax.reshape(index, (index.size,))
    return jnp.take(x, index, axis=axis(dim, x.ndim), mode=_READ)


def _rows(x: Array, dim: int, index: Array) -> tuple[Any, ...]:
    return (*(slice(None),) * axis(dim, x.ndim), lax.reshape(index, (index.size,)))


@lowers("aten.index_reduce.default")
def index_reduce(
    ctx: OpContext,
    x: Array,
    dim: int,
    index: Array,
    source: Array,
    reduce: str,
    include_self: bool = True,
) -> Array:
    where = _rows(x, dim, index) if x.ndim else ()
    source = source if x.ndim else lax.reshape(source, ())
    return _reduce_into(x, where, source, reduce, include_self=include_self)


def _elements(x: Array, dim: int, index: Array) -> tuple[Any, ...]:
    """Return the full index of the elements that gather and scatter mean."""
    d = axis(dim, x.ndim)
    return tuple(
        index if k == d else iota_along(index.shape, k, index.dtype)
        for k in range(x.ndim)
    )


@lowers("aten.gather.default")
def gather(ctx: OpContext, x: Array, dim: int, index: Array, *_: Any) -> Array:
    if x.ndim == 0 or index.ndim == 0:
        flat = lax.reshape(x, (x.size,))
        return lax.reshape(flat.at[lax.reshape(index, (index.size,))].get(mode=_READ),
                           ctx.out.shape)  # fmt: skip
    return x.at[_elements(x, dim, index)].get(mode=_READ, wrap_negative_indices=False)


@lowers("aten.take.default")
def take(ctx: OpContext, x: Array, index: Array) -> Array:
    return (
        lax.reshape(x, (x.size,)).at[index].get(mode=_READ, wrap_negative_indices=True)
    )


@lowers("aten.put.default")
def put(
    ctx: OpContext, x: Array, index: Array, source: Array, accumulate: bool = False
) -> Array:
    place = lax.reshape(x, (x.size,)).at[lax.reshape(index, (index.size,))]
    source = lax.reshape(cast(source, ctx.out.dtype), (source.size,))
    return lax.reshape(
        _add(place, source, wrap=True) if accumulate else place.set(source), x.shape
    )


def _scattered(x: Array, source: Array, index: Array) -> Array:
    """Return the part of the source that the index covers."""
    if source.ndim == 0 or source.shape == index.shape:
        return source
    return lax.slice(source, [0] * source.ndim, index.shape)


@lowers("aten.scatter.src", "aten.scatter.value")
def scatter(ctx: OpContext, x: Array, dim: int, index: Array, source: Any) -> Array:
    source = cast(source, ctx.out.dtype)
    if x.ndim == 0:
        return lax.reshape(source, ()) if index.size else x
    place = x.at[_elements(x, dim, index)]
    return place.set(_scattered(x, source, index), wrap_negative_indices=False)


@lowers("aten.scatter_reduce.two")
def scatter_reduce(
    ctx: OpContext,
    x: Array,
    dim: int,
    index: Array,
    source: Array,
    reduce: str,
    include_self: bool = True,
) -> Array:
    source = cast(source, ctx.out.dtype)
    if x.ndim == 0:
        return _reduce_into(
            x, (), lax.reshape(source, ()), reduce, include_self=include_self
        )
    source = _scattered(x, source, index)
    where = _elements(x, dim, index)
    return _reduce_into(x, where, source, reduce, include_self=include_self)


@lowers("aten.scatter_add.default")
def scatter_add(
    ctx: OpContext, x: Array, dim: int, index: Array, source: Array
) -> Array:
    return scatter_reduce(ctx, x, dim, index, source, "sum")


@lowers("aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter_reduce_old(
    ctx: OpContext, x: Array, dim: int, index: Array, source: Any, reduce: str
) -> Array:
    source = cast(source, ctx.out.dtype)
    source = source if source.ndim else expand(source, index.shape)
    return scatter_reduce(ctx, x, dim, index, source, reduce)


def _reduce_into(
    x: Array, where: tuple[Any, ...], source: Array, reduce: str, *, include_self: bool
) -> Array:
    """Combine a source into the places of `x`, whose own values count if included."""
    start = x
    if not include_self:
        start = x.at[where].set(_neutral(x, reduce))
    place = start.at[where]
    if reduce in {"sum", "add"}:
        return _add(place, source)
    if reduce in {"prod", "multiply"}:
        return place.min(source) if x.dtype == bool else place.multiply(source)
    if reduce == "amax":
        return place.max(source)
    if reduce == "amin":
        return place.min(source)
    counts = jnp.ones(x.shape, x.dtype) if include_self else zeros_like(x)
    counts = counts.at[where].add(jnp.ones((), x.dtype))
    counts = lax.max(counts, scalar_like(counts, 1))
    total = place.add(source)
    return (
        total // counts
        if jnp.issubdtype(x.dtype, jnp.integer)
        else lax.div(total, counts)
    )


def _neutral(x: Array, reduce: str) -> Array:
    dtype = to_torch_dtype(x.dtype)
    if reduce in {"prod", "multiply"}:
        return cast(1, dtype)
    if reduce in {"amax", "amin"}:
        if dtype.is_floating_point:
            return cast(-np.inf if reduce == "amax" else np.inf, dtype)
        if dtype is torch.bool:
            return cast(reduce == "amin", dtype)
        info = torch.iinfo(dtype)
        return cast(info.min if reduce == "amax" else info.max, dtype)
    return cast(0, dtype)


@lowers("aten.masked_scatter.default")
def masked_scatter(ctx: OpContext, x: Array, mask: Array, source: Array) -> Array:
    mask = expand(cast(mask, torch.bool), ctx.out.shape)
    values = cast(lax.reshape(source, (source.size,)), ctx.out.dtype)
    return _put_rows(expand(x, ctx.out.shape), mask, values, accumulate=False)


@lowers("aten.masked_scatter_backward.default")
def masked_scatter_backward(
    ctx: OpContext, grad: Array, mask: Array, sizes: Sequence[int]
) -> Array:
    flat = lax.reshape(expand(mask, grad.shape), (grad.size,))
    count = math.prod(ctx.out.shape)
    place = lax.cumsum(lax.convert_element_type(flat, np.int64), 0) - 1
    place = jnp.where(flat, place, count)  # dropped: out of range
    result = (
        jnp.zeros((count,), grad.dtype).at[place].set(lax.reshape(grad, (grad.size,)))
    )
    return lax.reshape(result, ctx.out.shape)


# Embeddings.


@lowers("aten.embedding.default")
def embedding(ctx: OpContext, weight: Array, indices: Array, *_: Any) -> Array:
    return weight.at[indices].get(mode=_READ, wrap_negative_indices=False)


@lowers("aten.embedding_renorm.default")
def embedding_renorm(
    ctx: OpContext, weight: Array, indices: Array, limit: Any, order: Any
) -> Array:
    rows = cast(weight, ctx.compute)
    norms = lax.expand_dims(norm_of(lax.abs(rows), (1,), order), (1,))
    used = jnp.zeros((rows.shape[0], 1), bool).at[indices.reshape(-1)].set(True)
    scale = jnp.where(used & (norms > limit), limit / (norms + 1e-7), 1)
    return rows * scale


@lowers("aten.embedding_dense_backward.default")
def embedding_dense_backward(
    ctx: OpContext,
    grad: Array,
    indices: Array,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Array:
    grad = cast(grad, ctx.compute)
    rows = lax.reshape(indices, (indices.size,))
    grad = lax.reshape(grad, (rows.size, grad.shape[-1]))
    if padding_idx >= 0:
        rows = jnp.where(
            rows == padding_idx, num_weights, rows
        )  # dropped: out of range
    if scale_grad_by_freq:
        counts = jnp.zeros((num_weights,), grad.dtype).at[rows].add(1)
        grad = grad / jnp.expand_dims(counts.at[rows].get(mode="fill", fill_value=1), 1)
    table = jnp.zeros((num_weights, grad.shape[-1]), to_jax_dtype(ctx.compute))
    return _add(table.at[rows], grad)


# A mode of embedding_bag: 0 sum, 1 mean, 2 max.


@lowers("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def embedding_bag(
    ctx: OpContext,
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Array, ...]:
    bags, width = ctx.out.shape
    rows = cast(weight.at[indices].get(mode=_READ), ctx.compute)
    if per_sample_weights is not None:
        rows = rows * jnp.expand_dims(cast(per_sample_weights, ctx.compute), 1)
    starts = offsets[:bags] if include_last_offset else offsets
    bag = _bags(starts, indices.size)
    kept = indices != padding_idx if padding_idx >= 0 else jnp.ones(indices.shape, bool)
    place = jnp.where(kept, bag, bags)  # beyond the last bag: dropped
    sizes = jnp.zeros((bags,), np.int64).at[place].add(1)
    result = jnp.zeros((bags, width), rows.dtype)
    largest = jnp.zeros((bags, width), np.int64)
    if mode == 2:
        top = jnp.full_like(result, -np.inf).at[place].max(rows)
        result = jnp.where(sizes[:, None] > 0, top, 0)
        hit = rows == result.at[bag].get(mode=_READ)
        last = np.iinfo(np.int64).max
        order = jnp.where(
            hit, jnp.expand_dims(lax.iota(np.int64, indices.size), 1), last
        )
        first = jnp.full((bags, width), last).at[place].min(order)
        largest = jnp.where(first == last, -1, indices.at[first].get(mode=_READ))
    else:
        result = result.at[place].add(rows)
        if mode == 1:
            result = result / jnp.maximum(sizes, 1)[:, None]
    spare = (bag, sizes, largest)
    return (
        result,
        *(_shaped(x, out) for x, out in zip(spare, ctx.outs[1:], strict=True)),
    )


def _bags(offsets: Array, count: int) -> Array:
    """Return the bag of each of `count` indices."""
    index = lax.iota(offsets.dtype, count)
    return jnp.searchsorted(offsets, index, side="right") - 1


def _shaped(x: Array, out: Any) -> Array:
    """Return bookkeeping of embedding_bag, of which torch keeps what the mode needs."""
    if out is None or x.shape == out.shape:
        return x
    return jnp.zeros(out.shape, x.dtype)


@lowers("aten._embedding_bag_dense_backward.default")
def embedding_bag_dense_backward(
    ctx: OpContext,
    grad: Array,
    indices: Array,
    bag: Array,
    sizes: Array,
    largest: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
) -> Array:
    grad = cast(grad, ctx.compute)
    table = jnp.zeros((num_weights, grad.shape[-1]), grad.dtype)
    if mode == 2:
        columns = lax.broadcasted_iota(np.int64, largest.shape, 1)
        return table.at[jnp.where(largest < 0, num_weights, largest), columns].add(grad)
    rows = grad.at[bag].get(mode=_READ)
    if mode == 1:
        rows = rows / jnp.maximum(sizes, 1).at[bag].get(mode=_READ)[:, None]
    if per_sample_weights is not None:
        rows = rows * jnp.expand_dims(cast(per_sample_weights, ctx.compute), 1)
    if scale_grad_by_freq:
        counts = jnp.zeros((num_weights,), grad.dtype).at[indices].add(1)
        rows = rows / counts.at[indices].get(mode=_READ)[:, None]
    if padding_idx >= 0:
        indices = jnp.where(indices == padding_idx, num_weights, indices)
    return table.at[indices].add(rows)


@lowers("aten._embedding_bag_backward.default")
def embedding_bag_backward(
    ctx: OpContext,
    grad: Array,
    indices: Array,
    offsets: Array,
    bag: Array,
    sizes: Array,
    largest: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
) -> Array:
    if sparse:
        raise Unsupported("its gradient is sparse")
    if bag.size != indices.size:  # torch leaves it out where the kernel needs none
        bag = _bags(offsets, indices.size)
    return embedding_bag_dense_backward(
        ctx, grad, indices, bag, sizes, largest, num_weights, scale_grad_by_freq, mode,
        per_sample_weights, padding_idx,
    )  # fmt: skip


@lowers("aten._embedding_bag_per_sample_weights_backward.default")
def embedding_bag_weights_backward(
    ctx: OpContext,
    grad: Array,
    weight: Array,
    indices: Array,
    offsets: Array,
    bag: Array,
    mode: int,
    padding_idx: int = -1,
) -> Array:
    if bag.size != indices.size:
        bag = _bags(offsets, indices.size)
    grad, weight = ctx.cast(grad, weight)
    rows = grad.at[bag].get(mode=_READ) * weight.at[indices].get(mode=_READ)
    total = lax.reduce_sum(rows, (1,))
    return jnp.where(indices == padding_idx, 0, total) if padding_idx >= 0 else total


# Ops whose result size is given although it follows from data.


@lowers("aten.nonzero_static.default")
def nonzero_static(ctx: OpContext, x: Array, size: int, fill_value: int = -1) -> Array:
    found = jnp.nonzero(jnp.atleast_1d(x), size=size, fill_value=fill_value)
    return lax.reshape(jnp.stack(found, axis=-1)[:, : x.ndim], ctx.out.shape)


@lowers("aten.repeat_interleave.Tensor")
def repeat_interleave(
    ctx: OpContext, repeats: Array, output_size: int | None = None
) -> Array:
    if output_size is None:
        raise Unsupported("how long its result is depends on data; give output_size")
    ends = lax.cumsum(lax.convert_element_type(repeats, np.int64), 0)
    return jnp.searchsorted(ends, lax.iota(np.int64, ctx.out.shape[0]), side="right")


@lowers("aten._linalg_check_errors.default", "aten._assert_async.default",
        "aten._assert_async.msg", "aten._assert_tensor_metadata.default")  # fmt: skip
def assertion(ctx: OpContext, *_: Any) -> list[Array]:
    # A compiled program has no way to raise; the results show what went wrong.
    return []


# Our own ops: slices whose position is an input of the graph, which `data[i : i + 64]` becomes once a
# line slices at a second position in a later step; and `restride`, which gives a value that is
# written into a tensor that tensor's strides, and on the device is the identity.

_SCHEMAS = (
    "slice_at(Tensor self, int dim, Scalar start, int size) -> Tensor",
    "select_at(Tensor self, int dim, Scalar index) -> Tensor",
    "slice_scatter_at(Tensor self, Tensor src, int dim, Scalar start) -> Tensor",
    "select_scatter_at(Tensor self, Tensor src, int dim, Scalar index) -> Tensor",
    "restride(Tensor self, int[] stride) -> Tensor",
)

_library = torch.library.Library("lazyrt", "DEF")
for _schema in _SCHEMAS:
    _library.define(_schema)

_types = torch.library.Library("lazyrt", "IMPL", "Meta")
_types.impl("slice_at", lambda self, dim, start, size: self.narrow(dim, 0, size))
_types.impl("select_at", lambda self, dim, index: self.select(dim, 0))
_types.impl("slice_scatter_at", lambda self, src, dim, start: torch.empty_like(self))
_types.impl("select_scatter_at", lambda self, src, dim, index: torch.empty_like(self))
_types.impl("restride", lambda self, stride: torch.empty_strided(
    self.shape, stride, dtype=self.dtype, device="meta"))  # fmt: skip

slice_at = torch.ops.lazyrt.slice_at.default
select_at = torch.ops.lazyrt.select_at.default
slice_scatter_at = torch.ops.lazyrt.slice_scatter_at.default
select_scatter_at = torch.ops.lazyrt.select_scatter_at.default
restride = torch.ops.lazyrt.restride.default


@lowers("lazyrt.slice_at.default")
def _slice_at(ctx: OpContext, self: Any, dim: int, start: Any, size: int) -> Any:
    return lax.dynamic_slice_in_dim(self, start, size, dim)


@lowers("lazyrt.select_at.default")
def _select_at(ctx: OpContext, self: Any, dim: int, index: Any) -> Any:
    return lax.dynamic_index_in_dim(self, index, dim, keepdims=False)


@lowers("lazyrt.slice_scatter_at.default")
def _slice_scatter_at(ctx: OpContext, self: Any, src: Any, dim: int, start: Any) -> Any:
    return lax.dynamic_update_slice_in_dim(self, src.astype(self.dtype), start, dim)


@lowers("lazyrt.select_scatter_at.default")
def _select_scatter_at(
    ctx: OpContext, self: Any, src: Any, dim: int, index: Any
) -> Any:
    update = jnp.expand_dims(src.astype(self.dtype), dim)
    return lax.dynamic_update_slice_in_dim(self, update, index, dim)


@lowers("lazyrt.restride.default")
def _restride(ctx: OpContext, self: Any, stride: Any) -> Any:
    return self


# What a slice at a constant is lowered by: one function for all positions of a size.

_Parts = tuple[Op, tuple[Any, ...], int]


def _select_of(value: Value, dim: int, index: int, _: Value) -> _Parts | None:
    return _SELECT, (value, dim), index % value.shape[dim]


def _slice_of(
    value: Value, dim: int, start: int | None, end: int | None, step: int, out: Value
) -> _Parts | None:
    if step != 1 or not out.shape[dim]:
        return None
    first = slice(start, end).indices(value.shape[dim])[0]
    return _SLICE, (value, dim, None, out.shape[dim]), first


_SELECT, _SLICE = Op(select_at), Op(slice_at)
_BY_POSITION: dict[str, Callable[..., _Parts | None]] = {
    "aten.select.int": _select_of,
    "aten.slice.Tensor": _slice_of,
}


def by_position(node: Node) -> tuple[Node, int] | None:
    """Return the slice at an input that a slice at a constant is a case of, and the constant.

    The rows of a tensor, taken one by one, are so many constants. XLA turns a slice at an input
    that is a constant back into a plain one.
    """
    find = _BY_POSITION.get(node.op.name)
    (out,) = node.outputs if find is not None else (None,)
    if find is None or out is None:
        return None
    found = find(*node.args, out)
    if found is None:
        return None
    op, args, position = found
    leaf = Leaf("int", 0, (), torch.int64)
    filled = (*args[:2], leaf, *args[3:])
    made = Node(node.id, op, filled, node.provenance)
    made.outputs = (Value(made, 0, out.shape, out.dtype, None),)
    return made, position
