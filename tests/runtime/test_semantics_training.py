"""What training loops use, next to the CPU: optimizers, autocast, hooks, torch.nn.utils."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune, rnn
from torch.optim import swa_utils
from torch.utils.checkpoint import (
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import lazyrt
from lazyrt.observe import events
from tests.harness import DEVICE, assert_same, lazy, recorded
from tests.runtime.semantics import grid, on_both

GENERATOR = torch.Generator().manual_seed(1)


def randn(*shape):
    return torch.randn(*shape, generator=GENERATOR)


X = randn(5, 4)


def filled(module, device):
    """Give a module's parameters the same numbers on every device."""
    generator = torch.Generator().manual_seed(2)
    for parameter in module.parameters():
        drawn = torch.randn(parameter.shape, generator=generator) * 0.3
        parameter.data.copy_(drawn)
    return module.to(device)


def network(device):
    return filled(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), device)


def values(parameters):
    return [parameter.detach() for parameter in parameters]


# ---------------------------------------------------------------- optimizers

OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "Adam": {"lr": 0.1, "amsgrad": True, "weight_decay": 0.01},
    "AdamW": {"lr": 0.1},
    "Adagrad": {"lr": 0.1, "lr_decay": 0.1},
}


def trained(device, x, name, **options):
    model = network(device)
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)
    for _ in range(3):
        optimizer.zero_grad()
        (model(x) ** 2).mean().backward()
        optimizer.step()
    states = [
        {name: state for name, state in entry.items() if torch.is_tensor(state)}
        for entry in optimizer.state.values()
    ]
    return values(model.parameters()), states


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("foreach", [False, True])
def test_plain_and_foreach_optimizers_match_the_cpu(name, foreach):
    def program(d, x):
        return trained(d, x, name, foreach=foreach, **OPTIMIZERS[name])

    on_both(program, X, tolerance=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "Adafactor"],
)
def test_other_optimizers_match_the_cpu(name):
    on_both(lambda d, x: trained(d, x, name)[0], X, tolerance=1e-3, fallbacks=None)


@pytest.mark.slow
def test_an_optimizer_with_a_closure_matches_the_cpu():
    def program(d, x):
        model = network(d)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

        def closure():
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            return loss

        return [optimizer.step(closure), optimizer.step(closure)], values(
            model.parameters()
        )

    on_both(program, X, tolerance=1e-3)


def test_foreach_ops_on_aliased_lists_match_the_cpu():
    def program(d, x, y):
        torch._foreach_add_([x, y, x], [y, x, x])
        torch._foreach_mul_([x, x], 2.0)
        torch._foreach_copy_([x], [y])
        torch._foreach_addcmul_([x, y], [y, x], [x, y])
        torch._foreach_add_([x[:1], x[1:2]], [x[1:2], x[:1]])

    on_both(program, grid(3), grid(3) / 3)


@pytest.mark.slow
def test_foreach_ops_match_the_cpu():
    def program(d, x, y):
        pair = [x, y]
        return (
            torch._foreach_add(pair, 1.0), torch._foreach_norm(pair), torch._foreach_sign(pair),
            torch._foreach_sqrt(torch._foreach_abs(pair)), torch._foreach_maximum(pair, 0.0),
            torch._foreach_lerp(pair, [y.sum() * x, y], 0.3), torch._foreach_div(pair, [2.0, 3.0]),
            torch._foreach_pow(pair, 2), torch._foreach_max(pair), torch._foreach_clamp_min(pair, 0.0),
        )  # fmt: skip

    on_both(program, randn(3), randn(2, 2))


@pytest.mark.slow
def test_every_way_of_clipping_gradients_matches_the_cpu():
    def program(d, x, y):
        parameters = [nn.Parameter(x), nn.Parameter(y)]
        for parameter in parameters:
            parameter.grad = parameter.detach() * 2
        norms = [
            nn.utils.clip_grad_norm_(parameters, 1.0, norm_type=kind)
            for kind in (1.0, 2.0, float("inf"))
        ]
        nn.utils.clip_grads_with_norm_(parameters, 0.1, norms[0])
        nn.utils.clip_grad_value_(parameters, 0.01)
        return norms, [parameter.grad for parameter in parameters]

    on_both(program, randn(3), randn(2, 2))


@pytest.mark.slow
def test_schedulers_averages_and_vectors_match_the_cpu():
    def program(d, x):
        model = network(d)
        average = swa_utils.AveragedModel(
            model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5)
        for _ in range(3):
            optimizer.zero_grad()
            (model(x) ** 2).mean().backward()
            optimizer.step()
            scheduler.step()
            average.update_parameters(model)
        vector = nn.utils.parameters_to_vector(model.parameters()).detach()
        nn.utils.vector_to_parameters(vector * 2, model.parameters())
        return vector, values(model.parameters()), values(average.module.parameters())

    on_both(program, X, tolerance=1e-4)


# ---------------------------------------------------------------- autocast


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_scaled_training_loop_matches_the_cpu_without_a_cut_of_its_own(dtype):
    def program(d, x):
        model = network(d)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(d, init_scale=256.0, growth_interval=2)
        scales = []
        for step in range(4):
            optimizer.zero_grad()
            with torch.autocast(d, dtype=dtype):
                loss = functional.mse_loss(
                    model(x).float(), torch.zeros(5, 2, device=d)
                )
            if step == 2:
                loss = loss * float(
                    "inf"
                )  # this step must be skipped and the scale halved
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return values(model.parameters()), scales, scaler.state_dict()

    on_both(program, X, tolerance=3e-2)


SCALER = "read by .item() in torch/amp/grad_scaler.py"


@pytest.mark.lazy_only("counts barriers of steps")
@pytest.mark.parametrize(("fused", "cuts"), [(False, [SCALER]), (True, [])])
def test_a_gradient_scaler_cuts_a_step_at_most_once_and_says_where(fused, cuts):
    """torch reads on every device whether a step overflowed, unless the optimizer is fused."""
    layers = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(6)]
    model = nn.Sequential(*layers, nn.Linear(4, 1)).to(
        DEVICE
    )  # more than a small check
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler, x = torch.amp.GradScaler(DEVICE), lazy(X)
    lazyrt.mark_step()

    with (
        lazyrt.config.scoped(compile_tier="fast"),
        recorded(events.BarrierFinished, events.FallbackUsed) as found,
    ):
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()

    causes = [re.sub(r":\d+$", "", event.cause) for event in found]
    assert causes == [*cuts, "optimizer.step()"] * 2
    assert {Path(event.site.file).name for event in found} == {Path(__file__).name}


def under_autocast(d, x, image, dtype):
    square = x[:4]
    heads = square[None, None]
    with torch.autocast(d, dtype=dtype):
        return [
            square @ square, functional.linear(square, square), torch.bmm(square[None], square[None]),
            functional.conv2d(image, torch.ones(2, 3, 3, 3, device=d)), torch.addmm(square, square, square),
            functional.conv_transpose2d(image, torch.ones(3, 2, 3, 3, device=d)),
            functional.scaled_dot_product_attention(heads, heads, heads),
            torch.einsum("ij,jk", square, square), torch.matmul(square, square[0]),
            square + square.to(dtype), torch.cat([square, square.to(dtype)]), square.relu(),
        ]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_products_the_low_dtype_as_on_the_cpu(dtype):
    def program(d, x, image):
        results = under_autocast(d, x, image, dtype)
        return [(str(result.dtype), tuple(result.shape)) for result in results]

    on_both(program, X, randn(1, 3, 8, 8))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_under_autocast_have_the_values_of_the_cpu(dtype):
    program = partial(under_autocast, dtype=dtype)

    on_both(program, X / 2, randn(1, 3, 8, 8) / 2, tolerance=2e-2)


def test_nested_autocast_regions_end_where_they_should():
    x, layer = torch.ones(2, 4, device=DEVICE), network(DEVICE)[0]
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        outer = layer(x)
        with torch.autocast(DEVICE, enabled=False):
            off = layer(x)
        with torch.autocast(DEVICE, dtype=torch.float16):
            inner = layer(x)
        again = layer(x)

    kinds = [outer.dtype, off.dtype, inner.dtype, again.dtype, layer(x).dtype]
    assert kinds == [
        torch.bfloat16, torch.float32, torch.float16, torch.bfloat16, torch.float32,
    ]  # fmt: skip
    assert not torch.is_autocast_enabled(DEVICE)


def test_an_lstm_gives_the_low_dtype_under_autocast():
    """On the CPU it does, too, but some processors have no kernel for it: the oracle is float32."""
    dtypes = {"cpu": torch.float32, DEVICE: torch.bfloat16}

    def program(d, x):
        torch.manual_seed(0)
        layer = nn.LSTM(3, 4, 2).to(d)
        with torch.autocast(d, dtype=torch.bfloat16, enabled=d == DEVICE):
            results, _state = layer(x)
        assert results.dtype is dtypes[d]
        results.float().sum().backward()
        return results.float(), layer.weight_ih_l0.grad

    on_both(program, randn(5, 2, 3), tolerance=2e-2)


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRU, nn.GRUCell])
def test_recurrent_cells_give_the_low_dtype_under_autocast_as_on_a_gpu(cell):
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        results = cell(3, 4).to(DEVICE)(torch.ones(2, 3, device=DEVICE))

    assert {result.dtype for result in results} == {torch.bfloat16}


def test_custom_functions_choose_their_dtype_under_autocast():
    def program(d, x):
        class Double(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type=d, cast_inputs=torch.float32)
            def forward(ctx, a):
                return a * 2

            @staticmethod
            @torch.amp.custom_bwd(device_type=d)
            def backward(ctx, grad):
                return grad * 2

        x.requires_grad_()
        with torch.autocast(d, dtype=torch.bfloat16):
            y = Double.apply(x.bfloat16())
        y.sum().backward()
        return y

    on_both(program, grid(3))


# ---------------------------------------------------------------- checkpoints and hooks


@pytest.mark.slow
def test_every_kind_of_checkpoint_matches_the_cpu():
    def program(d, x):
        model = filled(nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)]), d)
        plain = checkpoint(lambda t: torch.sin(t) @ t, x, use_reentrant=False).sum()
        parts = checkpoint_sequential(model, 2, x, use_reentrant=False).sum()
        keep = partial(
            create_selective_checkpoint_contexts, [torch.ops.aten.mm.default]
        )
        chosen = checkpoint(
            lambda t: torch.sin(t @ t).cos(), x, use_reentrant=False, context_fn=keep
        ).sum()
        again = checkpoint(lambda t: t.cos() * t, x, use_reentrant=True).sum()
        (plain + parts + chosen + again).backward()
        return (
            plain,
            parts,
            chosen,
            again,
            [parameter.grad for parameter in model.parameters()],
        )

    on_both(program, X[:4].clone().requires_grad_())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.utils.checkpoint")
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_draws_the_same_numbers_when_it_runs_again(reentrant):
    x = torch.ones(64, device=DEVICE, requires_grad=True)
    torch.manual_seed(0)
    run = partial(functional.dropout, p=0.5, training=True)

    y = checkpoint(run, x, use_reentrant=reentrant)
    after = torch.rand(3, device=DEVICE)
    y.sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == y.tolist()
    assert set(y.tolist()) == {0.0, 2.0}
    torch.manual_seed(0)
    run(x)
    assert torch.rand(3, device=DEVICE).tolist() == after.tolist()


def test_hooks_of_tensors_and_nodes_match_the_cpu():
    def program(d, x):
        log: list[Any] = []
        y = x * 2
        y.register_hook(lambda grad: grad * 3)
        y.retain_grad()
        handle = x.register_hook(lambda grad: log.append(tuple(grad.shape)))
        x.register_post_accumulate_grad_hook(lambda t: log.append(float(t.grad.sum())))
        (y * y).sum().backward()
        handle.remove()
        z = x * x
        z.grad_fn.register_hook(lambda given, taken: log.append(len(given)))
        z.grad_fn.register_prehook(lambda taken: None)
        z.sum().backward()
        return log, y.grad

    on_both(program, grid(3).requires_grad_())


@pytest.mark.slow
def test_hooks_of_modules_match_the_cpu():
    def program(d, x):
        model, log = network(d), []
        model[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        model[0].register_forward_hook(lambda module, args, result: result + 1)
        model[1].register_full_backward_hook(
            lambda module, given, taken: (given[0] * 2,)
        )
        model.register_full_backward_pre_hook(
            lambda module, taken: log.append(tuple(taken[0].shape))
        )
        model(x).sum().backward()
        return log, [parameter.grad for parameter in model.parameters()]

    on_both(program, X.clone().requires_grad_())


def test_saved_tensors_pass_through_hooks():
    def program(d, x):
        packed = []

        def pack(tensor):
            packed.append(tuple(tensor.shape))
            return tensor.cpu()

        with torch.autograd.graph.saved_tensors_hooks(
            pack, lambda tensor: tensor.to(d)
        ):
            y = (x.exp() * x).sum()
        with torch.autograd.graph.save_on_cpu():
            z = (x.sin() * x).sum()
        (y + z).backward()
        return packed, y

    on_both(program, grid(3).requires_grad_())


def test_custom_functions_match_the_cpu_in_their_corners():
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b, factor):
            ctx.save_for_backward(a, b)
            ctx.factor = factor
            larger = a > b
            ctx.mark_non_differentiable(larger)
            ctx.set_materialize_grads(False)
            return a * b * factor, larger

        @staticmethod
        def backward(ctx, grad, unused):
            a, b = ctx.saved_tensors
            assert unused is None
            return grad * b * ctx.factor, grad * a * ctx.factor, None

    class InPlace(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.mark_dirty(a)
            return a.mul_(2)

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    def program(d, x, y):
        product, larger = Product.apply(x, y, 3.0)
        doubled = InPlace.apply(product * 1)
        doubled.sum().backward()
        return product, larger, doubled

    on_both(program, grid(3).requires_grad_(), (grid(3) - 2).requires_grad_())


# ---------------------------------------------------------------- torch.nn.utils


@pytest.mark.slow
def test_parametrised_modules_match_the_cpu():
    class Symmetric(nn.Module):
        def forward(self, weight):
            return weight.triu() + weight.triu(1).mT

    def program(d, x):
        symmetric, normed = (filled(nn.Linear(4, 4), d) for _ in range(2))
        parametrize.register_parametrization(symmetric, "weight", Symmetric())
        parametrizations.weight_norm(normed)
        y = normed(symmetric(x))
        y.sum().backward()
        assert parametrize.is_parametrized(symmetric)
        gradients = [p.grad for m in (symmetric, normed) for p in m.parameters()]
        parametrize.remove_parametrizations(normed, "weight")
        return y, gradients, normed.weight.detach()

    on_both(program, X)


@pytest.mark.slow
def test_orthogonal_and_spectral_parametrisations_hold_on_the_device():
    square = filled(nn.Linear(4, 4), DEVICE)
    parametrizations.orthogonal(square)
    normed = filled(nn.Linear(4, 4), DEVICE)
    parametrizations.spectral_norm(normed, n_power_iterations=30)

    weight = square.weight.detach().cpu()
    torch.testing.assert_close(weight @ weight.mT, torch.eye(4), atol=1e-5, rtol=0)
    largest = torch.linalg.matrix_norm(normed.weight.detach().cpu(), 2)
    assert abs(largest.item() - 1) < 1e-2


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.slow
def test_old_weight_norm_and_pruning_match_the_cpu():
    def program(d, x):
        layer = filled(nn.Linear(4, 3), d)
        nn.utils.weight_norm(layer)
        y = layer(x)
        y.sum().backward()
        gradient = layer.weight_g.grad
        nn.utils.remove_weight_norm(layer)
        pruned = filled(nn.Linear(4, 3), d)
        prune.l1_unstructured(pruned, "weight", amount=4)
        return y, gradient, layer.weight.detach(), pruned(x), pruned.weight_mask

    on_both(program, X, fallbacks=None)


@pytest.mark.slow
def test_packed_sequences_match_the_cpu():
    def program(d, x):
        model = filled(nn.LSTM(4, 3, batch_first=True), d)
        ordered = rnn.pack_padded_sequence(x, torch.tensor([5, 3, 2]), batch_first=True)
        result, (h, c) = model(ordered)
        padded, lengths = rnn.pad_packed_sequence(result, batch_first=True)
        padded.sum().backward()
        mixed = rnn.pack_padded_sequence(
            x, torch.tensor([2, 5, 3]), batch_first=True, enforce_sorted=False
        )
        back, _ = rnn.pad_packed_sequence(model(mixed)[0], batch_first=True)
        joined = rnn.pad_sequence([x[0, :2], x[1]], batch_first=True)
        gradients = [parameter.grad for parameter in model.parameters()]
        return padded, lengths, h, c, gradients, back, joined, ordered.batch_sizes

    on_both(program, randn(3, 5, 4), tolerance=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN])
def test_recurrent_modules_match_the_cpu(kind):
    def program(d, x):
        model = filled(kind(4, 3, num_layers=2, bidirectional=True), d)
        y, h = model(x)
        y.sum().backward()
        return y, h, [parameter.grad for parameter in model.parameters()]

    on_both(program, randn(5, 2, 4), tolerance=1e-4)


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_a_fused_step_is_one_execution():
    model = network(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    x = X.to(DEVICE)
    before = lazyrt.counters()["executions"]

    (model(x) ** 2).mean().backward()
    optimizer.step()
    lazyrt.mark_step()

    assert lazyrt.counters()["executions"] - before == 1


def test_weighted_smoothed_labels_take_no_mask():
    """torch selects the weights of labels that are not ignored by a mask, a cut."""
    labels, weight = torch.tensor([1, -100, 3, 0, 2]), torch.tensor([0.5, 2, 1, 3])

    def program(_, x):
        given = labels.to(x.device), weight.to(x.device)
        chosen = functional.cross_entropy(x, *given, label_smoothing=0.2)
        plane = functional.cross_entropy(
            x.T[None], given[0][None] % 4, given[1], label_smoothing=0.1
        )
        (chosen + plane).backward()
        return chosen, plane

    on_both(program, X.clone().requires_grad_())


@pytest.mark.lazy_only("is about what runs on the CPU")
def test_a_batch_norm_whose_input_needs_no_gradient_stays_on_the_device():
    model = nn.BatchNorm1d(3)
    model(torch.arange(6.0).view(2, 3)).square().sum().backward()
    ours = nn.BatchNorm1d(3).to(DEVICE)
    ours(torch.arange(6.0).view(2, 3).to(DEVICE)).square().sum().backward()

    assert_same(ours.weight.grad, model.weight.grad, 1e-4)
    assert lazyrt.counters()["cpu_fallbacks"] == 0
