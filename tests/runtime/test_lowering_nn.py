"""The lowerings of neural network ops, forward and backward, against torch."""

# ruff: noqa: FBT003 - positional booleans are how aten ops are called

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.runtime.oracle import check, lowered, together

pytestmark = pytest.mark.slow

aten = torch.ops.aten


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return reproducible normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X, G = numbers(4, 6), numbers(4, 6, seed=1)
IMAGE, FILTERS = numbers(2, 4, 7, 7), numbers(6, 2, 3, 3)
LABELS = torch.tensor([0, 5, 2, -100])
YES = torch.tensor([0.0, 1.0, 1.0, 0.0]).reshape(4, 1).expand(4, 6).contiguous()
WEIGHT, BIAS = numbers(6, seed=2), numbers(6, seed=3)
_, MEAN, RSTD = aten.native_layer_norm.default(X, [6], WEIGHT, BIAS, 1e-5)
_, GROUP_MEAN, GROUP_RSTD = aten.native_group_norm.default(
    IMAGE, WEIGHT[:4], BIAS[:4], 2, 4, 49, 2, 1e-5
)
_, SAVED_MEAN, SAVED_RSTD = aten.native_batch_norm.default(
    IMAGE, WEIGHT[:4], BIAS[:4], None, None, True, 0.1, 1e-5
)
RUNNING = (torch.zeros(4), torch.ones(4))
PLANE = ([2, 1], [1, 0], [1, 1], False, [0, 0], 2)
TURNED = ([2, 2], [1, 1], [1, 1], True, [1, 0], 1)
POOLED, PLACES = aten.max_pool2d_with_indices.default(
    IMAGE, [3, 2], [2, 2], [1, 1], 1, True
)

CASES: list[Any] = [
    *((getattr(aten, name).default, (X,)) for name in (
        "relu", "gelu", "silu", "elu", "leaky_relu", "hardtanh", "softplus", "mish",
        "hardswish", "hardsigmoid")),
    (aten.gelu.default, (X.bfloat16(),)),
    (aten.gelu.default, (X,), {"approximate": "tanh"}),
    (aten.gelu_backward.default, (G, X)),
    (aten.gelu_backward.default, (G, X), {"approximate": "tanh"}),
    (aten.silu_backward.default, (G, X)),
    (aten.threshold_backward.default, (G, X, 0)),
    (aten.leaky_relu_backward.default, (G, X, 0.1, False)),
    (aten.elu_backward.default, (G, 1.0, 1, 1, False, X)),
    (aten.softplus_backward.default, (G, X, 1, 20)),
    (aten.hardtanh_backward.default, (G, X, -1, 1)),
    (aten.sigmoid_backward.default, (G, X.sigmoid())),
    (aten.tanh_backward.default, (G, X.tanh())),
    (aten.log_sigmoid_forward.default, (X,)),
    (aten._softmax.default, (X, -1, False)),
    (aten._softmax.default, (X.bfloat16(), 0, False)),
    (aten._log_softmax.default, (X, 1, False)),
    (aten._softmax_backward_data.default, (G, X.softmax(1), 1, torch.float32)),
    (aten._log_softmax_backward_data.default, (G, X.log_softmax(1), 1, torch.float32)),
    (aten.native_layer_norm.default, (X, [6], WEIGHT, BIAS, 1e-5)),
    (aten.native_layer_norm.default, (X.bfloat16(), [4, 6], None, None, 1e-5)),
    (aten.native_layer_norm_backward.default,
     (G, X, [6], MEAN, RSTD, WEIGHT, BIAS, [True, True, True])),
    (aten.native_group_norm.default, (IMAGE, WEIGHT[:4], BIAS[:4], 2, 4, 49, 2, 1e-5)),
    (aten.native_group_norm_backward.default,
     (IMAGE * 2, IMAGE, GROUP_MEAN, GROUP_RSTD, WEIGHT[:4], 2, 4, 49, 2, [True, True, True])),
    (aten._native_batch_norm_legit_functional.default,
     (IMAGE, WEIGHT[:4], BIAS[:4], *RUNNING, True, 0.1, 1e-5)),
    (aten._native_batch_norm_legit_functional.default,
     (IMAGE, WEIGHT[:4], BIAS[:4], *RUNNING, False, 0.1, 1e-5)),
    (aten.native_batch_norm_backward.default,
     (IMAGE * 2, IMAGE, WEIGHT[:4], None, None, SAVED_MEAN, SAVED_RSTD, True, 1e-5,
      [True, True, True])),
    (aten.native_batch_norm_backward.default,
     (IMAGE * 2, IMAGE, WEIGHT[:4], *RUNNING, None, None, False, 1e-5, [True, True, True])),
    (aten._fused_rms_norm.default, (X, [6], WEIGHT, 1e-6)),
    *((getattr(aten, name).default, (X, G, reduction))
      for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
      for reduction in (0, 1, 2)),
    (aten.mse_loss_backward.default, (torch.tensor(2.0), X, G, 1)),
    (aten.smooth_l1_loss_backward.default, (torch.tensor(2.0), X, G, 1, 0.5)),
    (aten.binary_cross_entropy.default, (X.sigmoid(), YES, None, 1)),
    (aten.binary_cross_entropy_backward.default,
     (torch.tensor(2.0), X.sigmoid(), YES, None, 1)),
    (aten.binary_cross_entropy_with_logits.default, (X, YES, None, WEIGHT.abs(), 1)),
    (aten.nll_loss_forward.default, (X, LABELS, None, 1, -100)),
    (aten.nll_loss_forward.default, (X, LABELS, WEIGHT.abs(), 0, -100)),
    (aten.nll_loss_backward.default,
     (torch.tensor(2.0), X, LABELS, WEIGHT.abs(), 1, -100, torch.tensor(1.7))),
    (aten.nll_loss2d_forward.default,
     (numbers(2, 3, 2, 2), torch.tensor([[[0, 1], [2, 0]]] * 2), None, 1, -100)),
    (aten.nll_loss2d_backward.default,
     (torch.tensor(1.0), numbers(2, 3, 2, 2), torch.tensor([[[0, 1], [2, 0]]] * 2), None, 1,
      -100, torch.tensor(8.0))),
    (aten.convolution.default, (IMAGE, FILTERS, WEIGHT, *PLANE)),
    (aten.convolution.default, (IMAGE, FILTERS.reshape(4, 3, 3, 3), None, *TURNED)),
    (aten.convolution.default,
     (X[None], numbers(3, 4, 2), None, [1], [0], [2], False, [0], 1)),
    (aten.convolution_backward.default,
     (numbers(2, 6, 4, 5), IMAGE, FILTERS, [6], *PLANE, [True, True, True])),
    (aten.convolution_backward.default,
     (numbers(2, 3, 14, 13), IMAGE, FILTERS.reshape(4, 3, 3, 3), [3], *TURNED,
      [True, True, False])),
    (aten.max_pool2d_with_indices.default, (IMAGE, [3, 2], [2, 2], [1, 1], 1, True)),
    (aten.max_pool2d_with_indices_backward.default,
     (POOLED, IMAGE, [3, 2], [2, 2], [1, 1], [1, 1], True, PLACES)),
    (aten.avg_pool2d.default, (IMAGE, [3, 3], [2, 2], [1, 1], True, False)),
    (aten.avg_pool2d.default, (IMAGE, [3, 3], [2, 2], [1, 1], True)),
    (aten.avg_pool2d_backward.default,
     (numbers(2, 4, 4, 4), IMAGE, [3, 3], [2, 2], [1, 1], False, True, None)),
    (aten._adaptive_avg_pool2d.default, (IMAGE, [3, 1])),
    (aten._adaptive_avg_pool2d_backward.default, (numbers(2, 4, 3, 1), IMAGE)),
    (aten.adaptive_max_pool2d.default, (IMAGE, [3, 2])),
    (aten.upsample_nearest2d.default, (IMAGE, [10, 14])),
    (aten.upsample_bilinear2d.default, (IMAGE, [10, 14], False)),
    (aten.upsample_bilinear2d_backward.default,
     (numbers(2, 4, 10, 14), [10, 14], [2, 4, 7, 7], False)),
    (aten.reflection_pad2d.default, (IMAGE, [1, 2, 0, 1])),
    (aten.replication_pad2d_backward.default, (numbers(2, 4, 8, 10), IMAGE, [1, 2, 0, 1])),
    (aten.im2col.default, (IMAGE, [2, 2], [1, 1], [0, 0], [1, 1])),
    (aten._weight_norm_interface.default, (X, numbers(4, 1))),
]  # fmt: skip


@pytest.mark.parametrize("part", range(3))
def test_lowerings_agree_with_torch(part):
    with together():
        for func, args, *named in CASES[part::3]:
            is_half = getattr(args[0], "dtype", None) is torch.bfloat16
            rtol, atol = (2e-2, 2e-2) if is_half else (1e-4, 1e-5)
            check(func, *args, rtol=rtol, atol=atol, **(named[0] if named else {}))


CELL = [numbers(3, 8, seed=4), numbers(3, 8, seed=5), numbers(3, 2, seed=6)]
CELL_BIASES = [numbers(8, seed=7), numbers(8, seed=8)]


def test_the_fused_lstm_cell_computes_its_formula_and_its_gradient():
    """Torch has this op for accelerators only, so the oracle is its formula."""
    inputs, hidden, cell = (x.clone().requires_grad_() for x in CELL)
    gates = inputs + hidden + sum(CELL_BIASES)
    i, f, g, o = gates.chunk(4, 1)
    new_cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    new_hidden = o.sigmoid() * new_cell.tanh()
    grads = [numbers(3, 2, seed=9), numbers(3, 2, seed=10)]
    d_gates, d_cell = torch.autograd.grad([new_hidden, new_cell], [inputs, cell], grads)

    found = lowered(
        aten._thnn_fused_lstm_cell.default, [*CELL, *CELL_BIASES],
        outs=[CELL[2], CELL[2], CELL[0]],
    )  # fmt: skip
    backward = lowered(
        aten._thnn_fused_lstm_cell_backward_impl.default,
        [*grads, CELL[2], found[1], found[2], True],
        outs=[CELL[0], CELL[2], CELL[0][0]],
    )

    expected = [new_hidden.detach(), new_cell.detach(), d_gates, d_cell, d_gates.sum(0)]
    for have, want in zip([*found[:2], *backward], expected, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-5)


def test_the_fused_gru_cell_computes_its_formula_and_its_gradient():
    given = [numbers(3, 6, seed=4), numbers(3, 6, seed=5), numbers(3, 2, seed=6)]
    inputs, hidden, state = (x.clone().requires_grad_() for x in given)
    i_r, i_z, i_n = inputs.chunk(3, 1)
    h_r, h_z, h_n = hidden.chunk(3, 1)
    reset, update = (i_r + h_r).sigmoid(), (i_z + h_z).sigmoid()
    new = (i_n + reset * h_n).tanh()
    result = new + update * (state - new)
    grad = numbers(3, 2, seed=9)
    wanted = torch.autograd.grad(result, [inputs, hidden, state], grad)

    found = lowered(
        aten._thnn_fused_gru_cell.default, given, outs=[given[2], torch.zeros(3, 10)]
    )
    backward = lowered(
        aten._thnn_fused_gru_cell_backward.default, [grad, found[1], False],
        outs=[given[0], given[1], given[2], None, None],
    )  # fmt: skip

    for have, want in zip(
        [found[0], *backward[:3]], [result.detach(), *wanted], strict=True
    ):
        torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_an_embedding_bag_and_its_gradient_agree_with_torch(mode):
    weight, indices = numbers(10, 4), torch.tensor([1, 9, 3, 3, 0, 1, 7])
    offsets = torch.tensor([0, 3, 3])
    args = [weight, indices, offsets, False, mode]
    expected = aten._embedding_bag.default(*args)

    found = lowered(aten._embedding_bag.default, args, outs=expected)
    torch.testing.assert_close(found[0], expected[0])

    leaf = weight.clone().requires_grad_()
    aten.embedding_bag.default(leaf, indices, offsets, False, mode)[0].sum().backward()
    rest = [indices, offsets, *found[1:], 10, False, mode, False, None]
    (gradient,) = lowered(
        aten._embedding_bag_backward.default, [torch.ones(3, 4), *rest], outs=[weight]
    )
    torch.testing.assert_close(gradient, leaf.grad)


def test_ctc_loss_and_its_gradient_agree_with_torch():
    scores = numbers(12, 3, 6).log_softmax(2)
    labels = torch.tensor([[1, 2, 2, 5], [3, 4, 1, 0], [2, 3, 0, 0]])
    args = [scores, labels, [12, 10, 9], [4, 3, 2]]
    losses, prefixes = aten._ctc_loss.default(*args)
    backward = [torch.ones(3), *args, losses, prefixes, 0]
    gradient = aten._ctc_loss_backward.default(*backward)

    found = lowered(aten._ctc_loss.default, args, outs=[losses, prefixes])
    (d_scores,) = lowered(aten._ctc_loss_backward.default, backward, outs=[gradient])

    torch.testing.assert_close(found[0], losses)
    torch.testing.assert_close(d_scores, gradient, rtol=1e-4, atol=1e-5)
