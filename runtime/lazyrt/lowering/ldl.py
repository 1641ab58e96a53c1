"""Rules of the pivoted LDLᵀ factorisation of symmetric matrices.

XLA has none, so Bunch and Kaufman's algorithm runs as a loop on whole matrices, in the packed
form that LAPACK's `sytrf` leaves: the unit lower factor without its diagonal, the blocks of D,
and pivots counted from 1, negative in pairs where a block of D is 2 by 2.
"""

# A rule's signature is its op's schema; numbers are those of its formula.
# ruff: noqa: ARG001, FBT001, FBT002

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lazyrt.lowering.avals import Unsupported
from lazyrt.lowering.registry import lowers
from lazyrt.lowering.shaping import expand

if TYPE_CHECKING:
    from lazyrt.lowering.context import OpContext
    from lazyrt.lowering.dtypes import Array

_State = tuple[Any, Any, Any, Any]
_ALPHA = (1 + math.sqrt(17)) / 8  # bounds the growth of elements


def _swap(a: Array, i: Any, j: Any) -> Array:
    """Return the array with rows `i` and `j` exchanged."""
    return a.at[i].set(a[j]).at[j].set(a[i])


def _choose(a: Array, k: Any) -> tuple[Array, Array]:
    """Return which row becomes the pivot of step `k`, and whether its block is 2 by 2."""
    rows = jnp.arange(a.shape[0])
    below = jnp.where(rows > k, jnp.abs(a[:, k]), -1)
    largest = jnp.argmax(below)
    column, diagonal = jnp.maximum(below[largest], 0), jnp.abs(a[k, k])
    others = jnp.where((rows >= k) & (rows != largest), jnp.abs(a[largest]), 0)
    row = jnp.max(others)
    keep = (diagonal >= _ALPHA * column) | (diagonal * row >= _ALPHA * column * column)
    moves = jnp.abs(a[largest, largest]) >= _ALPHA * row
    return jnp.where(keep, k, largest), ~keep & ~moves


def _eliminate(a: Array, k: Any, is_pair: Array) -> Array:
    """Return the matrix after step `k`: the columns of L, and what is left below."""
    rows = jnp.arange(a.shape[0])
    after = k + 1 + is_pair
    is_left = rows >= after
    first = jnp.where(is_left, a[:, k], 0)
    second = jnp.where(is_left & is_pair, a[:, k + 1], 0)
    d00, d10 = a[k, k], jnp.where(is_pair, a[k + 1, k], 0)
    d11 = jnp.where(is_pair, a[k + 1, k + 1], 1)
    scale = d00 * d11 - d10 * d10
    scale = jnp.where(scale == 0, 1, scale)
    l0, l1 = (first * d11 - second * d10) / scale, (second * d00 - first * d10) / scale
    a = a - jnp.outer(l0, first) - jnp.outer(l1, second)
    a = a.at[:, k].set(jnp.where(is_left, l0, a[:, k]))
    second_column = jnp.where(is_left & is_pair, l1, a[:, k + 1])
    return a.at[:, k + 1].set(second_column)


def _factor(a: Array) -> tuple[Array, Array, Array]:
    """Factor one matrix: packed factors, pivots, and the first zero pivot from 1."""
    n = a.shape[0]
    # One row and column more, so that `k + 1` is always there.
    a = jnp.pad(jnp.tril(a) + jnp.tril(a, -1).T, (0, 1))
    rows = jnp.arange(n + 1)

    def step(state: _State) -> _State:
        a, pivots, k, info = state
        is_zero = jnp.all(jnp.where(rows >= k, a[:, k], 0) == 0)
        chosen, is_pair = _choose(a, k)
        chosen, is_pair = jnp.where(is_zero, k, chosen), is_pair & ~is_zero
        place = k + is_pair
        # Rows and columns of what is left change places; finished columns of L stay.
        order = _swap(rows, place, chosen)
        moved = a[order][:, order]
        left = (rows[:, None] >= k) & (rows >= k)
        a = jnp.where(left, moved, a)
        a = jnp.where(is_zero, a, _eliminate(a, k, is_pair))
        number = (chosen + 1).astype(np.int32)
        pivots = pivots.at[k].set(jnp.where(is_pair, -number, number))
        paired = jnp.where(is_pair, -number, pivots[k + 1])
        pivots = pivots.at[k + 1].set(paired)
        info = jnp.where(is_zero & (info == 0), (k + 1).astype(np.int32), info)
        return a, pivots, k + 1 + is_pair, info

    zero = jnp.zeros((), np.int64)
    start = (a, jnp.zeros(n + 1, np.int32), zero, jnp.zeros((), np.int32))
    a, pivots, _, info = lax.while_loop(lambda state: state[2] < n, step, start)
    return jnp.tril(a[:n, :n]), pivots[:n], info


@lowers("aten.linalg_ldl_factor_ex.default")
def ldl_factor_ex(
    ctx: OpContext, a: Array, hermitian: bool = False, *_: Any
) -> tuple[Array, Array, Array]:
    if jnp.iscomplexobj(a):
        raise Unsupported("it covers real matrices only")
    batch, n = a.shape[:-2], a.shape[-1]
    if a.size == 0:
        return a, jnp.zeros((*batch, n), np.int32), jnp.zeros(batch, np.int32)
    packed, pivots, info = jax.vmap(_factor)(jnp.reshape(a, (-1, n, n)))
    shapes = a.shape, (*batch, n), batch
    return tuple(map(jnp.reshape, (packed, pivots, info), shapes))  # type: ignore[return-value]


def _solve(packed: Array, pivots: Array, b: Array) -> Array:
    """Solve for one matrix: forward through L and D, then back through Lᵀ."""
    n = packed.shape[0]
    packed, b = jnp.pad(packed, (0, 1)), jnp.pad(b, ((0, 1), (0, 0)))
    pivots = jnp.pad(pivots.astype(np.int64), (0, 1))
    rows = jnp.arange(n + 1)[:, None]

    def forward(state: tuple[Array, Array]) -> tuple[Array, Array]:
        b, k = state
        is_pair = pivots[k] < 0
        b = _swap(b, k + is_pair, jnp.abs(pivots[k]) - 1)
        is_left = rows > k + is_pair
        first, second = packed[:, k, None], packed[:, k + 1, None]
        b = b - jnp.where(is_left, first * b[k], 0)
        b = b - jnp.where(is_left & is_pair, second * b[k + 1], 0)
        d00, d10 = packed[k, k], jnp.where(is_pair, packed[k + 1, k], 0)
        d11 = jnp.where(is_pair, packed[k + 1, k + 1], 1)
        scale = d00 * d11 - d10 * d10
        x0 = (d11 * b[k] - d10 * b[k + 1]) / scale
        x1 = (d00 * b[k + 1] - d10 * b[k]) / scale
        b = b.at[k].set(x0)
        return b.at[k + 1].set(jnp.where(is_pair, x1, b[k + 1])), k + 1 + is_pair

    def back(state: tuple[Array, Array]) -> tuple[Array, Array]:
        b, k = state
        is_pair = pivots[k] < 0
        below = jnp.where(rows > k, b, 0)
        before = jnp.maximum(k - 1, 0)
        x0, x1 = packed[:, k] @ below, packed[:, before] @ below
        b = b.at[k].add(-x0).at[before].add(jnp.where(is_pair, -x1, 0))
        return _swap(b, k, jnp.abs(pivots[k]) - 1), k - 1 - is_pair

    zero = jnp.zeros((), np.int64)
    b, _ = lax.while_loop(lambda state: state[1] < n, forward, (b, zero))
    b, _ = lax.while_loop(lambda state: state[1] >= 0, back, (b, zero + n - 1))
    return b[:n]


@lowers("aten.linalg_ldl_solve.default")
def ldl_solve(
    ctx: OpContext, packed: Array, pivots: Array, b: Array, hermitian: bool = False
) -> Array:
    if jnp.iscomplexobj(packed):
        raise Unsupported("it covers real matrices only")
    if 0 in ctx.out.shape:
        return jnp.zeros(ctx.out.shape, b.dtype)
    *batch, n, columns = ctx.out.shape
    packed = jnp.reshape(expand(packed, (*batch, n, n)), (-1, n, n))
    pivots = jnp.reshape(expand(pivots, (*batch, n)), (-1, n))
    b = jnp.reshape(expand(b, ctx.out.shape), (-1, n, columns))
    return jnp.reshape(jax.vmap(_solve)(packed, pivots, b), ctx.out.shape)
