"""Rules of matrix products and of linear algebra."""

# A rule's signature is its op's schema; numbers are those of its formula.
# ruff: noqa: ARG001, FBT001, FBT002, PLR2004

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lazyrt.lowering.arrays import (
    Array,
    Unsupported,
    broadcast,
    cast,
    expand,
    scalar_like,
    to_jax_dtype,
)
from lazyrt.lowering.reductions import norm_of
from lazyrt.lowering.registry import OpContext, lowers

if TYPE_CHECKING:
    from collections.abc import Sequence


def contract(ctx: OpContext, a: Array, b: Array, batch: int = 0) -> Array:
    """Contract the last dimension of `a` with the first after the batch ones of `b`.

    Half types are multiplied as they are and summed up in float32.
    """
    leading = tuple(range(batch))
    numbers = (((a.ndim - 1,), (batch,)), (leading, leading))
    if a.dtype == bool:
        a, b = (lax.convert_element_type(x, np.int32) for x in (a, b))
        return lax.dot_general(a, b, numbers) != 0
    return lax.dot_general(
        a,
        b,
        numbers,
        precision=lax.Precision.HIGHEST,
        preferred_element_type=to_jax_dtype(ctx.compute),
    )


@lowers("aten.mm.default", "aten.mv.default", "aten.dot.default")
def mm(ctx: OpContext, a: Array, b: Array) -> Array:
    return contract(ctx, a, b)


@lowers("aten._int_mm.default")
def int_mm(ctx: OpContext, a: Array, b: Array) -> Array:
    return lax.dot(*(lax.convert_element_type(x, np.int32) for x in (a, b)))


@lowers("aten.bmm.default")
def bmm(ctx: OpContext, a: Array, b: Array) -> Array:
    return contract(ctx, a, b, batch=1)


@lowers("aten._grouped_mm.default")
def grouped_mm(
    ctx: OpContext, a: Array, b: Array, offs: Array | None = None, *_: Any
) -> Array:
    """Multiply each group of rows, columns or summands with a matrix of its own.

    `offs` are the groups' ends. What lies behind the last end is zero; torch leaves it open.
    """
    if offs is None:
        return contract(ctx, a, b, batch=1)
    length = a.shape[0] if b.ndim == 3 else b.shape[1] if a.ndim == 3 else a.shape[1]
    place = lax.broadcasted_iota(offs.dtype, (offs.shape[0], length), 1)
    ends = offs[:, None]
    starts = jnp.concatenate([jnp.zeros_like(ends[:1]), ends[:-1]])
    mine = ((place >= starts) & (place < ends)).astype(a.dtype)  # [group, place]
    if b.ndim == 3:
        return jnp.sum(contract(ctx, a[None] * mine[:, :, None], b, batch=1), axis=0)
    if a.ndim == 3:
        return jnp.sum(contract(ctx, a, b[None] * mine[:, None, :], batch=1), axis=0)
    whole = jnp.broadcast_to(b, (offs.shape[0], *b.shape))
    return contract(ctx, a[None] * mine[:, None, :], whole, batch=1)


@lowers("aten.mm.dtype", "aten.bmm.dtype")
def mm_dtype(ctx: OpContext, a: Array, b: Array, *_: Any) -> Array:
    return contract(ctx, a, b, batch=a.ndim - 2)


def _combine(ctx: OpContext, x: Array, product: Array, beta: Any, alpha: Any) -> Array:
    """Return beta * x + alpha * product; where beta is zero, x does not count, NaN or not."""
    product = cast(product, ctx.compute)
    if not isinstance(alpha, (int, float)) or alpha != 1:
        product = lax.mul(product, expand(cast(alpha, ctx.compute), product.shape))
    if isinstance(beta, (int, float)) and beta == 0:
        return expand(product, ctx.out.shape)
    x = cast(x, ctx.compute)
    if not isinstance(beta, (int, float)) or beta != 1:
        scaled = lax.mul(x, expand(cast(beta, ctx.compute), x.shape))
        if not isinstance(beta, (int, float)):
            is_zero = expand(lax.eq(beta, lax.full_like(beta, 0)), x.shape)
            scaled = lax.select(is_zero, scalar_like(x, 0), scaled)
        x = scaled
    x, product = broadcast(x, product)
    return lax.bitwise_or(x, product) if x.dtype == bool else lax.add(x, product)


@lowers("aten.addmm.default", "aten.addmv.default")
def addmm(
    ctx: OpContext, x: Array, a: Array, b: Array, beta: Any = 1, alpha: Any = 1
) -> Array:
    return _combine(ctx, x, contract(ctx, a, b), beta, alpha)


@lowers("aten.addbmm.default")
def addbmm(
    ctx: OpContext, x: Array, a: Array, b: Array, beta: Any = 1, alpha: Any = 1
) -> Array:
    product = lax.reduce_sum(contract(ctx, a, b, batch=1), (0,))
    return _combine(ctx, x, product, beta, alpha)


@lowers("aten.addr.default")
def addr(
    ctx: OpContext, x: Array, a: Array, b: Array, beta: Any = 1, alpha: Any = 1
) -> Array:
    a, b = ctx.cast(a, b)
    outer = lax.expand_dims(a, (1,)), lax.expand_dims(b, (0,))
    left, right = broadcast(*outer)
    product = left & right if left.dtype == bool else lax.mul(left, right)
    return _combine(ctx, x, product, beta, alpha)


# Factorisations. LAPACK runs on whole batches.


def adjoint(x: Array) -> Array:
    """Return the conjugate transpose of a batch of matrices."""
    x = jnp.swapaxes(x, -1, -2)
    return lax.conj(x) if jnp.iscomplexobj(x) else x


def _first(failed: Array) -> Array:
    """Return LAPACK's `info`: the number of the first failure, counted from 1, 0 for none."""
    if not failed.shape[-1]:
        return jnp.zeros(failed.shape[:-1], np.int32)
    number = lax.argmax(failed, failed.ndim - 1, np.int32) + np.int32(1)
    return jnp.where(jnp.any(failed, axis=-1), number, np.int32(0))


def _lu_info(packed: Array) -> Array:
    """Return the first zero pivot: with it the matrix is singular."""
    return _first(jnp.diagonal(packed, axis1=-2, axis2=-1) == 0)


def _cholesky_info(lower: Array, factor: Array) -> Array:
    """Return the order of the first leading minor that is not positive."""

    def find(a: Array) -> Array:
        rows = lax.iota(np.int32, a.shape[-1])

        def eliminate(k: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
            a, failed = state
            column = jnp.where(rows >= k, a[..., k], 0)
            pivot = jnp.real(a[..., k, k])
            update = column[..., :, None] * jnp.conj(column)[..., None, :]
            a = a - update / pivot[..., None, None].astype(a.dtype)
            return a, failed.at[..., k].set(~(pivot > 0))

        failed = jnp.zeros(a.shape[:-1], bool)
        state = lax.fori_loop(0, a.shape[-1], eliminate, (a, failed))
        return _first(state[1])

    def succeed(a: Array) -> Array:
        return jnp.zeros(a.shape[:-2], np.int32)

    if not factor.size:
        return succeed(factor)
    whole = lower + adjoint(jnp.tril(lower, -1))
    has_failed = jnp.any(jnp.isnan(jnp.abs(factor)))
    info: Array = lax.cond(has_failed, find, succeed, whole)
    return info


@lowers("aten.linalg_cholesky_ex.default")
def cholesky_ex(
    ctx: OpContext, x: Array, upper: bool = False, *_: Any
) -> tuple[Array, Array]:
    lower = adjoint(jnp.triu(x)) if upper else jnp.tril(x)
    factor = lax.linalg.cholesky(lower, symmetrize_input=False)
    factor = jnp.tril(factor)
    return adjoint(factor) if upper else factor, _cholesky_info(lower, factor)


@lowers("aten.cholesky.default")
def cholesky(ctx: OpContext, x: Array, upper: bool = False) -> Array:
    return cholesky_ex(ctx, x, upper)[0]


def _triangular(
    a: Array,
    b: Array,
    *,
    left: bool = True,
    lower: bool,
    adjoint_a: bool = False,
    unit: bool = False,
) -> Array:
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = expand(a, (*batch, *a.shape[-2:])), expand(b, (*batch, *b.shape[-2:]))
    return lax.linalg.triangular_solve(
        a, b, left_side=left, lower=lower, transpose_a=adjoint_a, conjugate_a=adjoint_a,
        unit_diagonal=unit,
    )  # fmt: skip


@lowers("aten.linalg_solve_triangular.default")
def solve_triangular(
    ctx: OpContext,
    a: Array,
    b: Array,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Array:
    return _triangular(a, b, left=left, lower=not upper, unit=unitriangular)


@lowers("aten.triangular_solve.default")
def triangular_solve(
    ctx: OpContext,
    b: Array,
    a: Array,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[Array, Array]:
    a_turned = jnp.swapaxes(a, -1, -2) if transpose else a
    lower = upper if transpose else not upper
    copy = ctx.outs[1]
    return (
        _triangular(a_turned, b, lower=lower, unit=unitriangular),
        a if copy is None else expand(a, copy.shape),
    )


@lowers("aten.cholesky_solve.default")
def cholesky_solve(ctx: OpContext, b: Array, a: Array, upper: bool = False) -> Array:
    half = _triangular(a, b, lower=not upper, adjoint_a=upper)
    return _triangular(a, half, lower=not upper, adjoint_a=not upper)


@lowers("aten.cholesky_inverse.default")
def cholesky_inverse(ctx: OpContext, a: Array, upper: bool = False) -> Array:
    return cholesky_solve(ctx, _eye(a.shape, a.dtype), a, upper)


def _lu(a: Array) -> tuple[Array, Array, Array]:
    """Return packed factors, pivots as torch counts them (from 1) and the permutation."""
    if a.size == 0:
        rank = min(a.shape[-2:])
        rows = expand(lax.iota(np.int32, a.shape[-2]), a.shape[:-1])
        return a, jnp.ones((*a.shape[:-2], rank), np.int32), rows
    packed, pivots, permutation = lax.linalg.lu(a)
    return packed, pivots + np.int32(1), permutation


@lowers("aten.linalg_lu_factor_ex.default")
def lu_factor_ex(
    ctx: OpContext, a: Array, pivot: bool = True, *_: Any
) -> tuple[Array, Array, Array]:
    if not pivot:
        raise Unsupported("XLA factors with pivots only")
    packed, pivots, _permutation = _lu(a)
    return packed, pivots, _lu_info(packed)


def _unpack(packed: Array) -> tuple[Array, Array]:
    rank = min(packed.shape[-2:])
    lower = jnp.tril(packed[..., :, :rank], -1)
    lower = lower + jnp.eye(packed.shape[-2], rank, dtype=packed.dtype)
    return lower, jnp.triu(packed[..., :rank, :])


def _permutation_matrix(permutation: Array, dtype: Any) -> Array:
    """Return P with A = P L U."""
    size = permutation.shape[-1]
    hit = lax.iota(permutation.dtype, size)[:, None] == permutation[..., None, :]
    return lax.convert_element_type(hit, dtype)


@lowers("aten.linalg_lu.default")
def lu(ctx: OpContext, a: Array, pivot: bool = True) -> tuple[Array, Array, Array]:
    if not pivot:
        raise Unsupported("XLA factors with pivots only")
    packed, _pivots, permutation = _lu(a)
    return _permutation_matrix(permutation, a.dtype), *_unpack(packed)


def _pivots_to_permutation(pivots: Array, size: int) -> Array:
    pivots = lax.convert_element_type(pivots, np.int32) - 1
    if pivots.size == 0:
        return expand(lax.iota(np.int32, size), (*pivots.shape[:-1], size))
    return lax.linalg.lu_pivots_to_permutation(pivots, size)


@lowers("aten.lu_unpack.default")
def lu_unpack(
    ctx: OpContext,
    packed: Array,
    pivots: Array,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
) -> tuple[Array, Array, Array]:
    none = jnp.zeros((0,), packed.dtype)
    lower, upper = _unpack(packed) if unpack_data else (none, none)
    if not unpack_pivots:
        return none, lower, upper
    permutation = _pivots_to_permutation(pivots, packed.shape[-2])
    return _permutation_matrix(permutation, ctx.dtype), lower, upper


@lowers("aten.linalg_lu_solve.default")
def lu_solve(
    ctx: OpContext,
    packed: Array,
    pivots: Array,
    b: Array,
    left: bool = True,
    adjoint: bool = False,
) -> Array:
    return _lu_solve(packed, pivots, b, left=left, adjoint_a=adjoint)


def _lu_solve(
    packed: Array, pivots: Array, b: Array, *, left: bool, adjoint_a: bool
) -> Array:
    if not left:  # X A = B is A^H X^H = B^H
        solution = _lu_solve(
            packed, pivots, adjoint(b), left=True, adjoint_a=not adjoint_a
        )
        return adjoint(solution)
    batch = np.broadcast_shapes(packed.shape[:-2], b.shape[:-2])
    b = expand(b, (*batch, *b.shape[-2:]))
    if 0 in b.shape:
        return b
    factors = expand(packed, (*batch, *packed.shape[-2:])), pivots - 1
    found: Array = jax.scipy.linalg.lu_solve(factors, b, trans=2 if adjoint_a else 0)
    return found


@lowers("aten._linalg_solve_ex.default")
def solve_ex(
    ctx: OpContext, a: Array, b: Array, left: bool = True, *_: Any
) -> tuple[Array, Array, Array, Array]:
    is_vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    matrix = lax.expand_dims(b, (b.ndim,)) if is_vector else b
    packed, pivots, _permutation = _lu(a)
    solution = _lu_solve(packed, pivots, matrix, left=left, adjoint_a=False)
    solution = lax.reshape(solution, ctx.out.shape)
    return solution, packed, pivots, _lu_info(packed)


@lowers("aten.linalg_inv_ex.default")
def inv_ex(ctx: OpContext, a: Array, *_: Any) -> tuple[Array, Array]:
    packed, pivots, _permutation = _lu(a)
    inverse = _lu_solve(
        packed, pivots, _eye(a.shape, a.dtype), left=True, adjoint_a=False
    )
    return inverse, _lu_info(packed)


def _pivot_sign(pivots: Array, dtype: Any) -> Array:
    swaps = pivots != lax.broadcasted_iota(np.int32, pivots.shape, pivots.ndim - 1) + 1
    odd = jnp.sum(swaps, axis=-1) % 2
    return lax.convert_element_type(1 - 2 * odd, dtype)


@lowers("aten._linalg_det.default")
def det(ctx: OpContext, a: Array) -> tuple[Array, Array, Array]:
    packed, pivots, _permutation = _lu(a)
    diagonal = jnp.diagonal(packed, axis1=-2, axis2=-1)
    return jnp.prod(diagonal, -1) * _pivot_sign(pivots, a.dtype), packed, pivots


@lowers("aten._linalg_slogdet.default")
def slogdet(ctx: OpContext, a: Array) -> tuple[Array, Array, Array, Array]:
    packed, pivots, _permutation = _lu(a)
    diagonal = jnp.diagonal(packed, axis1=-2, axis2=-1)
    sign = jnp.prod(lax.sign(diagonal), -1) * _pivot_sign(pivots, a.dtype)
    return sign, jnp.sum(lax.log(lax.abs(diagonal)), -1), packed, pivots


@lowers("aten.linalg_qr.default")
def qr(ctx: OpContext, a: Array, mode: str = "reduced") -> tuple[Array, Array]:
    if a.size == 0:
        first, second = (() if out is None else out.shape for out in ctx.outs)
        return _eye(first, a.dtype), jnp.zeros(second, a.dtype)
    if mode == "r":
        return jnp.zeros((0,), a.dtype), lax.linalg.qr(a, full_matrices=False)[1]
    q, r = lax.linalg.qr(a, full_matrices=mode == "complete")
    return q, r


@lowers("aten.geqrf.default")
def geqrf(ctx: OpContext, a: Array) -> tuple[Array, Array]:
    if a.size == 0:
        reflectors = ctx.outs[1]
        return a, jnp.zeros(reflectors.shape if reflectors else (0,), a.dtype)
    packed, scales = jnp.linalg.qr(a, mode="raw")
    return jnp.swapaxes(packed, -1, -2), scales


@lowers("aten._linalg_eigh.default")
def eigh(
    ctx: OpContext, a: Array, uplo: str = "L", compute_v: bool = True
) -> tuple[Array, Array]:
    if a.size == 0:
        values = jnp.zeros(ctx.out.shape, ctx.dtype)
        return values, a if compute_v else jnp.zeros((0,), a.dtype)
    half = jnp.tril(a) if uplo.upper() == "L" else adjoint(jnp.triu(a))
    vectors, values = lax.linalg.eigh(half, lower=True, symmetrize_input=False)
    return values, vectors if compute_v else jnp.zeros((0,), a.dtype)


@lowers("aten.linalg_eig.default")
def eig(ctx: OpContext, a: Array) -> tuple[Array, Array]:
    if a.size == 0:
        return jnp.zeros(ctx.out.shape, ctx.dtype), cast(a, ctx.out.dtype)
    values, vectors = lax.linalg.eig(a, compute_left_eigenvectors=False)
    return values, vectors


@lowers("aten._linalg_eigvals.default")
def eigvals(ctx: OpContext, a: Array) -> Array:
    return eig(ctx, a)[0]


@lowers("aten._linalg_svd.default")
def svd(
    ctx: OpContext,
    a: Array,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *_: Any,
) -> tuple[Array, Array, Array]:
    if a.size == 0:
        left, middle, right = ((0,) if out is None else out.shape for out in ctx.outs)
        return _eye(left, a.dtype), jnp.zeros(middle, a.dtype), _eye(right, a.dtype)
    if not compute_uv:
        values = lax.linalg.svd(a, compute_uv=False)
        return jnp.zeros((0,), a.dtype), values, jnp.zeros((0,), a.dtype)
    u, s, v = lax.linalg.svd(a, full_matrices=full_matrices)
    return u, s, v


def _eye(shape: tuple[int, ...], dtype: Any) -> Array:
    if len(shape) < 2:
        return jnp.zeros(shape, dtype)
    return expand(jnp.eye(shape[-2], shape[-1], dtype=dtype), shape)


@lowers("aten.linalg_pinv.atol_rtol_tensor")
def pinv(
    ctx: OpContext,
    a: Array,
    atol: Any = None,
    rtol: Any = None,
    hermitian: bool = False,
) -> Array:
    if a.size == 0:
        return jnp.zeros(ctx.out.shape, a.dtype)
    if hermitian:
        vectors, values = lax.linalg.eigh(
            jnp.tril(a), lower=True, symmetrize_input=False
        )
        s, vh = lax.abs(values), adjoint(vectors)
        u = vectors * lax.convert_element_type(lax.sign(values), a.dtype)[..., None, :]
    else:
        u, s, vh = lax.linalg.svd(a, full_matrices=False)
    absolute = (
        jnp.zeros((), s.dtype) if atol is None else jnp.asarray(atol).astype(s.dtype)
    )
    default = np.finfo(s.dtype).eps * max(a.shape[-2:]) if atol is None else 0.0
    relative = (
        jnp.asarray(default, s.dtype)
        if rtol is None
        else jnp.asarray(rtol).astype(s.dtype)
    )
    limit = jnp.maximum(absolute, relative * jnp.max(s, -1))[..., None]
    inverted = jnp.where(s > limit, 1 / s, 0).astype(a.dtype)
    scaled = adjoint(vh) * inverted[..., None, :]
    return jnp.matmul(scaled, adjoint(u), precision=lax.Precision.HIGHEST)


@lowers("aten.linalg_householder_product.default")
def householder_product(ctx: OpContext, a: Array, tau: Array) -> Array:
    if a.size == 0 or tau.shape[-1] == 0:
        return _eye(ctx.out.shape, a.dtype)
    return lax.linalg.householder_product(a, tau)


@lowers("aten.ormqr.default")
def ormqr(
    ctx: OpContext,
    a: Array,
    tau: Array,
    other: Array,
    left: bool = True,
    transpose: bool = False,
) -> Array:
    if 0 in a.shape or 0 in tau.shape or 0 in other.shape:
        return lax.reshape(other, ctx.out.shape)
    return lax.linalg.ormqr(a, tau, other, left=left, transpose=transpose)


@lowers("aten.linalg_matrix_exp.default")
def matrix_exp(ctx: OpContext, a: Array) -> Array:
    if a.size == 0:
        return a
    # The squarings multiply errors: float32 ends with three times those of torch's method.
    wide = jnp.complex128 if jnp.iscomplexobj(a) else jnp.float64
    flat = jnp.reshape(a.astype(wide), (-1, *a.shape[-2:]))
    found = jnp.stack(
        [jax.scipy.linalg.expm(matrix, max_squarings=64) for matrix in flat]
    )
    return lax.reshape(found, a.shape)


@lowers("aten._trilinear.default")
def trilinear(
    ctx: OpContext,
    a: Array,
    b: Array,
    c: Array,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    *_: Any,
) -> Array:
    parts = [
        jnp.expand_dims(x, tuple(dims)) if dims else x
        for x, dims in ((a, expand1), (b, expand2), (c, expand3))
    ]
    x, y, z = broadcast(*parts)
    product = lax.mul(lax.mul(x, y), z)
    return lax.reduce_sum(product, tuple(d % product.ndim for d in sumdim))


def _distances(x: Array, y: Array, p: float) -> Array:
    gap = lax.abs(jnp.expand_dims(x, -2) - jnp.expand_dims(y, -3))
    return norm_of(gap, (gap.ndim - 1,), p)


@lowers("aten._cdist_forward.default")
def cdist(ctx: OpContext, x: Array, y: Array, p: float, *_: Any) -> Array:
    if x.shape[-1] == 0:
        return jnp.zeros(ctx.out.shape, x.dtype)
    return _distances(x, y, p)


@lowers("aten._pdist_forward.default")
def pdist(ctx: OpContext, x: Array, p: float = 2.0) -> Array:
    if 0 in x.shape or not ctx.out.shape[0]:
        return jnp.zeros(ctx.out.shape, x.dtype)
    rows, columns = np.triu_indices(x.shape[0], 1)
    return norm_of(lax.abs(x[rows] - x[columns]), (1,), p)


@lowers("aten._cdist_backward.default")
def cdist_backward(
    ctx: OpContext, grad: Array, x: Array, y: Array, p: float, distance: Array
) -> Array:
    gap = jnp.expand_dims(x, -2) - jnp.expand_dims(y, -3)
    slope = _norm_slope(gap, jnp.expand_dims(distance, -1), p)
    return lax.reduce_sum(jnp.expand_dims(grad, -1) * slope, (gap.ndim - 2,))


@lowers("aten._pdist_backward.default")
def pdist_backward(
    ctx: OpContext, grad: Array, x: Array, p: float, distance: Array
) -> Array:
    rows, columns = np.triu_indices(x.shape[0], 1)
    gap = x[rows] - x[columns]
    slope = jnp.expand_dims(grad, -1) * _norm_slope(
        gap, jnp.expand_dims(distance, -1), p
    )
    return jnp.zeros_like(x).at[rows].add(slope).at[columns].add(-slope)


def _norm_slope(gap: Array, distance: Array, p: float) -> Array:
    """Return the derivative of a p-norm, zero where the norm is zero."""
    sign, size = lax.sign(gap), lax.abs(gap)
    if p == 0:
        return jnp.zeros_like(gap)
    if p == 1:
        return sign
    if p == np.inf:
        return sign * (size == distance)
    safe = jnp.where(distance == 0, 1, distance)
    return jnp.where(distance == 0, 0, sign * (size / safe) ** (p - 1))


# Rules of the pivoted LDLᵀ factorisation of symmetric matrices.
#
# XLA has none, so Bunch and Kaufman's algorithm runs as a loop on whole matrices, in the packed
# form that LAPACK's `sytrf` leaves: the unit lower factor without its diagonal, the blocks of D,
# and pivots counted from 1, negative in pairs where a block of D is 2 by 2.

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
