"""Shape helpers that several rule modules share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import lax

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazyrt.lowering.dtypes import Array


def expand(x: Array, shape: Sequence[int]) -> Array:
    """Broadcast an array to a shape; a size of -1 keeps the array's own."""
    offset = len(shape) - x.ndim
    sizes = tuple(
        x.shape[k - offset] if size == -1 else size for k, size in enumerate(shape)
    )
    if sizes == x.shape:
        return x
    if x.size == 1 and x.ndim and math.prod(sizes) != 1:
        x, offset = lax.reshape(x, ()), len(sizes)
    if 1 in x.shape and any(x.shape[k] != sizes[k + offset] for k in range(x.ndim)):
        kept = [k for k in range(x.ndim) if x.shape[k] == sizes[k + offset]]
        x = lax.reshape(x, [x.shape[k] for k in kept])
        return lax.broadcast_in_dim(x, sizes, [k + offset for k in kept])
    return lax.broadcast_in_dim(x, sizes, range(offset, len(sizes)))


def broadcast(*arrays: Array) -> list[Array]:
    """Broadcast arrays to their common shape."""
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    return [expand(array, shape) for array in arrays]


def axis(dim: int, rank: int) -> int:
    """Return a dimension counted from the front; 0-d tensors count as 1-d."""
    rank = max(rank, 1)
    if not -rank <= dim < rank:
        raise IndexError(f"dimension {dim} of a tensor with {rank} dimensions")
    return dim % rank


def axes(dim: Any, rank: int) -> tuple[int, ...]:
    """Return the dimensions that a reduction's `dim` means: None and [] mean all."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(rank))
    dims = dim if isinstance(dim, (list, tuple)) else [dim]
    return tuple(sorted({axis(d, rank) for d in dims})) if rank else ()


def keep_dims(x: Array, dims: Sequence[int], rank: int) -> Array:
    """Put size-1 dimensions back where a reduction took them away."""
    return lax.expand_dims(x, dims) if rank else x


def zeros_like(x: Array) -> Array:
    """Return zeros of an array's shape and dtype."""
    return lax.full_like(x, 0)


def isnan(x: Array) -> Array:
    """Return where an array is not a number; nowhere for integers."""
    return lax.ne(x, x)


def scalar_like(x: Array, value: Any) -> Array:
    """Return a number as an array of the shape and dtype of `x`."""
    return lax.full_like(x, value)


def pair(value: Any, count: int = 2) -> list[int]:
    """Return an int[] argument at its full length: one number stands for all."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * count if len(values) == 1 else values


def iota_along(shape: Sequence[int], dim: int, dtype: Any = np.int64) -> Array:
    """Return an array whose elements are their own index along a dimension."""
    return lax.broadcasted_iota(dtype, tuple(shape), dim)
