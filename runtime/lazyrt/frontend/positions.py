"""Slice positions that vary: from constants of the graph to inputs, line by line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lazyrt.frontend import provenance, scalars
from lazyrt.frontend.torch_compat import aten
from lazyrt.ir.live import int_leaf
from lazyrt.ir.node import Op, Value
from lazyrt.lowering import dynamic

_Rewrite = tuple[torch._ops.OpOverload, tuple[Any, ...]]
_Rewriter = Callable[
    [tuple[Any, ...]], "tuple[int, tuple[int, int], Callable[[Value], _Rewrite]] | None"
]


def rewritten(op: Op, args: tuple[Any, ...], depth: int) -> _Rewrite | None:
    """Return the op and arguments that take a slice's position as an input, if they should.

    Args:
        op: The op being recorded.
        args: Its arguments.
        depth: Frames between the caller and the user's code, at least.
    """
    rewriter = _REWRITERS.get(op.func)
    if rewriter is None:
        return None
    found = rewriter(args)
    if found is None:
        return None
    start, extent, build = found
    types = tuple((a.shape, a.dtype) for a in args if isinstance(a, Value))
    where = (op, provenance.call_site(depth), types, extent)
    if not scalars.should_lift(op.cache, args, (start,), where):
        return None
    return build(int_leaf(start))


def _bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Return slice bounds as torch clamps them."""
    first, last, _ = slice(start, end).indices(size)
    return first, max(last, first)


def _part(
    value: Value, dim: int, start: int | None, end: int | None, step: int
) -> tuple[int, int] | None:
    """Return start and size of a slice that has a position: neither empty nor all, step 1."""
    if step != 1 or not value.shape:
        return None
    first, last = _bounds(value.shape[dim], start, end)
    size = last - first
    return None if size in {0, value.shape[dim]} else (first, size)


def _slice(args: tuple[Any, ...]) -> Any:
    value, dim, *rest = args
    part = _part(value, dim, *rest)
    if part is None:
        return None
    first, size = part
    return first, (dim, size), lambda at: (dynamic.slice_at, (value, dim, at, size))


def _select(args: tuple[Any, ...]) -> Any:
    value, dim, index = args
    size = value.shape[dim]
    if not -size <= index < size:
        return None
    return index % size, (dim, 1), lambda at: (dynamic.select_at, (value, dim, at))


def _slice_scatter(args: tuple[Any, ...]) -> Any:
    value, src, dim, *rest = args
    part = _part(value, dim, *rest)
    if part is None:
        return None
    first, size = part
    return (
        first,
        (dim, size),
        lambda at: (dynamic.slice_scatter_at, (value, src, dim, at)),
    )


def _select_scatter(args: tuple[Any, ...]) -> Any:
    value, src, dim, index = args
    at_index = index % value.shape[dim]
    return (
        at_index,
        (dim, 1),
        lambda at: (dynamic.select_scatter_at, (value, src, dim, at)),
    )


_REWRITERS: dict[torch._ops.OpOverload, _Rewriter] = {
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.slice_scatter.default: _slice_scatter,
    aten.select_scatter.default: _select_scatter,
}
