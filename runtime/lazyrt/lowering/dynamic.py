"""Our own ops: slices whose position is an input of the graph, and declared strides.

`data[i : i + 64]` in a loop would be another graph at each `i`. Once a line of code slices at
a second position in a later step, the recorder replaces its op by one of these, whose position
is an input and whose size stays a constant. They are ATen's slices otherwise.

`restride` gives a value that is written into a tensor that tensor's own strides, on which later
views depend; on the device, where arrays have no strides, it is the identity.
"""

# A rule's parameters are those of the op's schema.
# ruff: noqa: ARG001, ARG005

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import torch
from jax import lax

from lazyrt.ir.node import Leaf, Node, Op, Value
from lazyrt.lowering.registry import lowers

if TYPE_CHECKING:
    from collections.abc import Callable

    from lazyrt.lowering.context import OpContext

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

    Args:
        node: With its outputs. Any op that is no slice, or skips elements, has no such form.
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
