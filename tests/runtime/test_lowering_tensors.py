"""The lowerings of reductions, shape ops, indexing, creation and linear algebra, against torch."""

from __future__ import annotations

import math

import pytest
import torch

from tests.runtime.oracle import Weak, check, lowered, together

pytestmark = pytest.mark.slow

aten = torch.ops.aten


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return reproducible normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X = numbers(2, 3, 4)
N = torch.arange(24).reshape(2, 3, 4) % 7 - 3
B = N > 0
NAN = torch.tensor([1.0, math.nan, -2.0, 4.0])

REDUCTIONS = [
    (aten.sum.default, (X,)),
    (aten.sum.default, (N.int(),)),
    (aten.sum.dim_IntList, (X.bfloat16(), [0, 2], True)),
    (aten.sum.dim_IntList, (B, [1])),
    (aten.sum.dim_IntList, (X, [])),
    (aten.mean.default, (X,)),
    (aten.mean.dim, (X, [-1], True)),
    (aten.prod.default, (N,)),
    (aten.prod.dim_int, (X, 1)),
    (aten.amax.default, (X, [0, 1])),
    (aten.amin.default, (N, [], True)),
    (aten.max.default, (NAN,)),
    (aten.max.dim, (X, 1)),
    (aten.min.dim, (N, -1, True)),
    (aten.argmax.default, (X,)),
    (aten.argmax.default, (NAN,)),
    (aten.argmin.default, (X, 1, True)),
    (aten.any.dim, (N, 1)),
    (aten.all.default, (B,)),
    (aten.var.correction, (X, [1]), {"correction": 1}),
    (aten.std.correction, (X.bfloat16(), None), {"correction": 0}),
    (aten.var_mean.correction, (X, [0, 2]), {"correction": 1, "keepdim": True}),
    (aten.logsumexp.default, (X, [1])),
    (aten.linalg_vector_norm.default, (X, 2)),
    (aten.linalg_vector_norm.default, (X, math.inf, [1], True)),
    (aten.linalg_vector_norm.default, (X, 3.0, [0, 1])),
    (aten.norm.ScalarOpt_dim, (X, 1, [2])),
    (aten.cumsum.default, (X, 1)),
    (aten.cumsum.default, (B, -1)),
    (aten.cumprod.default, (X, 0)),
    (aten.cummax.default, (NAN, 0)),
    (aten.count_nonzero.dim_IntList, (N, [1])),
    (aten.median.dim, (X[:, :, :3], -1)),
    (aten.nanmedian.default, (NAN,)),
    (aten.sort.stable, (N,), {"stable": True, "dim": 1, "descending": True}),
    (aten.sort.default, (NAN,)),
    (aten.topk.default, (X, 2, 1)),
    (aten.topk.default, (X, 2, -1, False)),
    (aten.bucketize.Tensor, (X, torch.tensor([-1.0, 0.0, 1.0]))),
]

MOVES = [
    (aten.view.default, (X, [6, 4])),
    (aten._unsafe_view.default, (X, [-1])),
    (aten.view.dtype, (X, torch.int32)),
    (aten.view.dtype, (X, torch.int16)),
    (aten.view.dtype, (X, torch.complex64)),
    (aten.view.dtype, (torch.arange(16, dtype=torch.uint8), torch.complex128)),
    (aten.view.dtype, (torch.complex(X, X), torch.float64)),
    (aten.view.dtype, (torch.complex(X, X), torch.uint8)),
    (aten.view.dtype, (torch.tensor(1 + 2j), torch.int64)),
    (aten.view.dtype, ((X > 0).view(torch.int16), torch.bool)),
    (aten.unfold.default, (torch.tensor(0.5), 0, 0, 2)),
    (aten.unfold.default, (torch.tensor(0.5), 0, 1, 2)),
    (aten.expand.default, (X[:, :1], [5, 2, 3, 4])),
    (aten.expand.default, (torch.tensor(2.0), [2, 2])),
    (aten.permute.default, (X, [2, 0, -2])),
    (aten.t.default, (X[0],)),
    (aten.transpose.int, (X, 0, -1)),
    (aten.squeeze.dims, (X[:1, :, :1], [0, 2])),
    (aten.unsqueeze.default, (X, -1)),
    (aten.slice.Tensor, (X, 2, 1, 9223372036854775807, 2)),
    (aten.slice.Tensor, (X, 1, -2, None)),
    (aten.select.int, (X, 1, -1)),
    (aten.cat.default, ([X, N, X[:1]],)),
    (aten.cat.default, ([torch.zeros(0), X[0]], 1)),
    (aten.stack.default, ([X, X], -1)),
    (aten.split.Tensor, (X, 3, 2)),
    (aten.split_with_sizes.default, (X, [1, 3], 2)),
    (aten.unbind.int, (X, 1)),
    (aten.repeat.default, (X, [2, 1, 1, 3])),
    (aten.flip.default, (X, [0, -1])),
    (aten.roll.default, (X, [1, -1], [0, 2])),
    (aten.roll.default, (X, [5])),
    (aten.diagonal.default, (X, 1, 1, 2)),
    (aten.diag_embed.default, (X[0], -1)),
    (aten.tril.default, (X, -1)),
    (aten.triu.default, (N, 1)),
    (aten.slice_scatter.default, (X, N[:, :, :2], 2, 0, 4, 2)),
    (aten.slice_scatter.default, (X, N[:, :, :2], 2, 1, 3)),
    (aten.select_scatter.default, (X, X[0] * 2, 0, -1)),
    (aten.diagonal_scatter.default, (X[0], X[0, :, 0], 1)),
    (aten.as_strided.default, (X, [2, 2], [1, 3], 4)),
    (aten.as_strided.default, (X, [4, 3], [3, 1], 12)),
    (aten.as_strided_scatter.default, (X, torch.ones(2, 2), [2, 2], [1, 3], 4)),
    (aten.unfold.default, (X, 2, 2, 1)),
    (aten.constant_pad_nd.default, (X, [1, -1, 0, 2], 0.5)),
    (aten.clone.default, (X,)),
    (aten.pixel_shuffle.default, (numbers(1, 8, 2, 3), 2)),
]

INDEX = torch.tensor([[0, 2, 1, 0], [1, 1, 0, 2]])
ROWS = torch.tensor([2, 0, 2])
MASK = torch.tensor([[True, False, True], [False, True, False]])
READS_AND_WRITES = [
    (aten.index.Tensor, (X, [ROWS % 2, None, ROWS])),
    (aten.index.Tensor, (X, [None, torch.tensor([-1, 0])])),
    (aten.index_put.default, (X, [None, ROWS[:2]], torch.tensor(7.0))),
    (aten.index_put.default, (X, [None, ROWS], numbers(3, 4), True)),
    (aten.index_put.default, (X, [MASK], torch.tensor(1.0))),
    (aten.index_select.default, (X, 1, ROWS)),
    (aten.index_add.default, (X, 1, ROWS, numbers(2, 3, 4)), {"alpha": 2}),
    (aten.index_copy.default, (X, 1, ROWS[:2], numbers(2, 2, 4))),
    (aten.index_fill.int_Scalar, (X, 1, ROWS, Weak(0.5))),
    (aten.gather.default, (X[0], 0, INDEX[:, :3])),
    (aten.scatter.src, (X[0], 0, INDEX[:1], numbers(3, 4))),
    (aten.scatter.value, (X[0], 0, INDEX, 3)),
    (aten.scatter_add.default, (X[0], 0, INDEX, numbers(2, 4))),
    (aten.scatter_reduce.two, (X[0], 0, INDEX, numbers(2, 4), "mean")),
    (
        aten.scatter_reduce.two,
        (X[0], 0, INDEX, numbers(2, 4), "amax"),
        {"include_self": False},
    ),
    (aten.masked_scatter.default, (X[0, :2, :3], MASK, numbers(8))),
    (aten.take.default, (X, INDEX - 2)),
    (aten.embedding.default, (numbers(5, 3), INDEX, 1)),
    (aten.embedding_dense_backward.default, (numbers(2, 4, 3), INDEX, 5, 0, False)),
    (aten.embedding_dense_backward.default, (numbers(2, 4, 3), INDEX, 5, -1, True)),
]

CREATIONS = [
    (aten.arange.default, (5,)),
    (aten.arange.start_step, (1, 2, 0.25)),
    (aten.linspace.default, (-1, 1, 7)),
    (aten.full.default, ([2, 3], 0.5)),
    (aten.full.default, ([2], True)),
    (aten.full_like.default, (N, 2.7)),
    (aten.scalar_tensor.default, (3,)),
    (aten.eye.m, (2, 3)),
    (aten.zeros.default, ([2, 0],)),
    (aten.ones_like.default, (B,)),
    (aten.tril_indices.default, (3, 3)),
]

A, S = numbers(3, 4), numbers(4, 4)
SYMMETRIC = S @ S.T + torch.eye(4)
PRODUCTS = [
    (aten.mm.default, (A, S)),
    (aten.mm.default, (A.bfloat16(), S.bfloat16())),
    (aten.mm.default, (N[0], N[0].T.contiguous())),
    (aten.mv.default, (A, S[0])),
    (aten.dot.default, (S[0], S[1])),
    (aten.bmm.default, (X, numbers(2, 4, 5))),
    (aten.addmm.default, (A[:, 0], A, S[:, :3])),
    (aten.addmm.default, (torch.full((3, 4), math.nan), A, S), {"beta": 0, "alpha": 2}),
    (aten.addmm.default, (A, A, S), {"beta": Weak(0.5), "alpha": Weak(2)}),
    (aten.baddbmm.default, (X[:, :, :2], X, numbers(2, 4, 2)), {"beta": 0.5}),
    (aten.addmv.default, (A[:, 0], A, S[0])),
    (aten.linalg_cholesky_ex.default, (SYMMETRIC,)),
    (aten._linalg_solve_ex.default, (SYMMETRIC, S)),
    (aten.linalg_inv_ex.default, (SYMMETRIC,)),
    (aten._linalg_slogdet.default, (SYMMETRIC,)),
    (aten.linalg_solve_triangular.default, (SYMMETRIC, S), {"upper": True}),
    (aten._linalg_svd.default, (S, False, False)),
    (aten._cdist_forward.default, (A, S, 2.0, None)),
    (aten._fft_r2c.default, (X, [1, 2], 0, True)),
    (aten._fft_c2r.default, (torch.complex(X, X), [1, 2], 2, 6)),
]


@pytest.mark.parametrize(
    "cases", [REDUCTIONS, MOVES, READS_AND_WRITES, CREATIONS, PRODUCTS]
)
def test_lowerings_agree_with_torch(cases):
    tolerances = {"rtol": 1e-4, "atol": 1e-5} if cases is PRODUCTS else {}
    with together():
        for func, args, *named in cases:
            check(func, *args, **tolerances, **(named[0] if named else {}))


@together()
def test_scalars_behave_in_reductions_and_shape_ops():
    x = torch.tensor(2.0)

    check(aten.sum.dim_IntList, x, [0])
    check(aten.max.dim, x, 0)
    check(aten.cumsum.default, x, 0)
    check(aten.sort.default, x)
    check(aten.topk.default, x, 1)
    check(aten.index_select.default, x, 0, torch.tensor([0]))
    check(aten.gather.default, x, 0, torch.tensor([0, 0]))


@together()
def test_empty_tensors_behave():
    x = torch.zeros(0, 3)

    check(aten.sum.default, x)
    check(aten.mean.default, x)
    check(aten.cat.default, [x, x])
    check(aten.mm.default, x, torch.ones(3, 2))
    check(aten.embedding.default, torch.ones(2, 2), torch.zeros(0, dtype=torch.int64))


def test_an_orthogonal_factor_rebuilds_its_matrix():
    q, r = lowered(aten.linalg_qr.default, [S], outs=[S, S])
    values, vectors = lowered(aten._linalg_eigh.default, [SYMMETRIC], outs=[S[0], S])

    torch.testing.assert_close(q @ r, S, rtol=1e-4, atol=1e-5)
    rebuilt = vectors @ torch.diag(values) @ vectors.T
    torch.testing.assert_close(rebuilt, SYMMETRIC, rtol=1e-4, atol=1e-4)
