"""Transforms, subclasses, modes and threads, next to the CPU."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    functionalize,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset
from torch.utils.flop_counter import FlopCounterMode

import lazyrt
from tests.harness import DEVICE, lazy
from tests.runtime.semantics import grid, on_both, slow_but
from tests.runtime.test_semantics_training import X, filled, network, randn

V, B = randn(3), randn(4, 3)


# ---------------------------------------------------------------- torch.func


def derivatives(d, x, b):
    def f(t):
        return (t.sin() * t).sum()

    return (
        grad(f)(x), vmap(grad(f))(b), jacrev(torch.square)(x), jacfwd(torch.exp)(x), hessian(f)(x),
        vjp(lambda t: t * 2, x)[1](x), jvp(torch.sin, (x,), (x,)), grad(lambda t: grad(lambda u: u[0] ** 3)(t)[0])(x),
        jacrev(jacfwd(lambda t: t.prod()))(x), linearize(torch.sin, x)[1](x),
    )  # fmt: skip


def batched_maps(d, x, b):
    return (
        vmap(lambda a: a @ x, in_dims=1)(b.t()), vmap(torch.outer, (0, None))(b, x),
        vmap(lambda t: t.index_select(0, torch.tensor([0, 2], device=d)))(b),
        vmap(lambda t: torch.where(t > 0, t, -t).cumsum(0))(b), vmap(vmap(lambda s: s * 2))(b),
        vmap(lambda t: t.softmax(0), chunk_size=2)(b), vmap(lambda t: t.clone().add_(1))(b),
        vmap(functional.layer_norm, (0, None))(b, (3,)), vmap(torch.dot, (0, None))(b, x),
        functionalize(lambda t: t.clone().add_(1))(x), vmap(lambda t: t.sum(), out_dims=0)(b),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr")
@pytest.mark.parametrize(
    "program", [derivatives, batched_maps], ids=lambda p: p.__name__
)
def test_transforms_match_the_cpu(program):
    on_both(program, V, B)


def test_random_numbers_under_vmap_differ_or_agree_as_asked():
    b = lazy(B)

    different = vmap(lambda t: t + torch.rand_like(t), randomness="different")(b) - b
    same = vmap(lambda t: torch.rand(3, device=DEVICE) + 0 * t, randomness="same")(b)

    assert not torch.equal(different[0].cpu(), different[1].cpu())
    assert torch.equal(same[0].cpu(), same[1].cpu())
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(lambda t: torch.rand_like(t))(b)  # noqa: PLW0108 - torch's stub


@pytest.mark.slow
def test_functional_calls_and_ensembles_match_the_cpu():
    def program(d, x):
        model = network(d)
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        models = [filled(nn.Linear(4, 3), d), filled(nn.Linear(4, 3), d)]
        stacked, buffers = stack_module_state(models)

        def loss(parameters, sample):
            return functional_call(model, parameters, (sample[None],)).sum()

        ensemble = vmap(lambda p, b: functional_call(models[0], (p, b), (x,)))
        per_sample = vmap(grad(loss), (None, 0))(parameters, x)
        doubled = {name: p * 2 for name, p in parameters.items()}
        return (
            functional_call(model, doubled, (x,)),
            per_sample,
            ensemble(stacked, buffers),
        )

    on_both(program, X)


@pytest.mark.slow
def test_forward_mode_derivatives_match_the_cpu():
    def program(d, x, tangent):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, tangent)
            changed = dual.clone()
            changed[1:] *= 2
            layer = filled(nn.Linear(3, 2), d)
            results = (
                (dual.sin() * dual).cumsum(0),
                changed,
                layer(dual).tanh(),
                dual[1:].exp(),
            )
            pairs = [forward_ad.unpack_dual(result) for result in results]
            return [(pair.primal.detach(), pair.tangent.detach()) for pair in pairs]

    on_both(program, V, B[0])


@pytest.mark.parametrize("mode", slow_but([jvp, hessian], {jvp}))
def test_forward_derivatives_go_through_views_of_views(mode):
    def program(d, x):
        def derived(f, primal):
            if mode is hessian:
                return hessian(f)(primal)
            return jvp(f, (primal,), (torch.ones_like(primal),))

        return (
            derived(lambda t: (t[1:] ** 3).sum(), x[2]),
            derived(lambda t: (t.reshape(-1) ** 3).sum(), x[1:].t()),
            derived(lambda t: (t.view(2, 2)[1] * t[:2]).sum(), x[1]),
        )

    on_both(program, grid(3, 4))


@pytest.mark.slow
def test_functions_of_autograd_match_the_cpu():
    def program(d, x):
        a = torch.autograd.functional
        y = x.detach().requires_grad_()
        (first,) = torch.autograd.grad((y**3).sum(), y, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), y)
        unused = torch.ones(1, device=d, requires_grad=True)
        nothing = torch.autograd.grad((y * 2).sum(), [y, unused], allow_unused=True)[1]
        (rows,) = torch.autograd.grad(
            y * y, y, torch.eye(3, device=d), is_grads_batched=True
        )
        return (
            a.jacobian(torch.square, x), a.hessian(lambda t: (t**3).sum(), x), a.vjp(torch.square, x, x),
            a.jvp(torch.square, x, x), a.hvp(lambda t: (t**3).sum(), x, x), second, nothing, rows,
        )  # fmt: skip

    on_both(program, V)


@pytest.mark.slow
def test_numerical_derivatives_agree_on_the_device():
    x = lazy(V.double()).requires_grad_()

    assert torch.autograd.gradcheck(lambda t: t.sin() * t.exp(), (x,))
    assert torch.autograd.gradgradcheck(lambda t: t**3, (x,))


def test_custom_functions_work_under_transforms():
    class Cube(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(a):
            return a**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])
            ctx.save_for_forward(inputs[0])

        @staticmethod
        def backward(ctx, g):
            (a,) = ctx.saved_tensors
            return 3 * a**2 * g

        @staticmethod
        def jvp(ctx, t):
            (a,) = ctx.saved_tensors
            return 3 * a**2 * t

    def program(d, x):
        return (
            grad(lambda t: Cube.apply(t).sum())(x), vmap(Cube.apply)(x), jacrev(Cube.apply)(x),
            jvp(Cube.apply, (x,), (x,)),
        )  # fmt: skip

    on_both(program, V)


# ---------------------------------------------------------------- subclasses and modes


class Logged(torch.Tensor):
    calls: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_torch_function_subclass_keeps_its_type_and_sees_each_call():
    def program(d, x):
        Logged.calls.clear()
        y = x.as_subclass(Logged)
        results = [(y + 1).sum(), torch.mean(y), y[1:], nn.Parameter(y)]
        (results[3] * 2).sum().backward()
        kinds = [type(result).__name__ for result in results]
        return (
            kinds,
            [r.detach().as_subclass(torch.Tensor) for r in results],
            Logged.calls[:3],
        )

    on_both(program, V)


def test_a_wrapper_subclass_dispatches_to_lazy_tensors():
    def program(d, x):
        log = []

        class Wrapper(torch.Tensor):
            @staticmethod
            def __new__(cls, inner):
                return torch.Tensor._make_wrapper_subclass(
                    cls, inner.shape, dtype=inner.dtype, device=inner.device
                )

            def __init__(self, inner):
                self.held = inner

            @classmethod
            def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
                log.append(str(func))
                plain = tree_map(lambda a: a.held if isinstance(a, cls) else a, args)
                result = func(*plain, **(kwargs or {}))
                return tree_map(
                    lambda r: cls(r) if isinstance(r, torch.Tensor) else r, result
                )

        total: Any = (Wrapper(x) * 2 + 1).sum()
        return total.held, log

    on_both(program, V)


def test_modes_see_functions_and_ops():
    class Functions(TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.seen.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    class Ops(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def program(d, x):
        with Functions() as functions:
            y = torch.sin(x).add(1)
        with Ops() as ops, FlopCounterMode(display=False) as flops:
            z = (x[None] @ x[:, None] * y.sum()).sum()
            z.backward()
        return y, z, functions.seen, ops.seen, flops.get_total_flops()

    on_both(program, V.clone().requires_grad_())


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected")
@pytest.mark.slow
def test_anomaly_mode_finds_the_backward_op_that_made_nan():
    def program(d, x):
        found = []
        with torch.autograd.detect_anomaly():
            (x * 2).sum().backward()
            try:
                torch.sqrt(-x.abs() - 1).sum().backward()
            except RuntimeError as error:
                found.append("SqrtBackward0" in str(error) and "nan" in str(error))
        with torch.autograd.set_detect_anomaly(mode=True, check_nan=False):
            torch.sqrt(-x.abs() - 1).sum().backward()
        return found

    on_both(program, V.clone().requires_grad_())


def test_nested_gradient_modes_match_the_cpu():
    def program(d, x):
        with torch.no_grad():
            a = x * 2
            with torch.enable_grad():
                b = x * 3
            with torch.inference_mode():
                c = x * 4
                with torch.inference_mode(mode=False):
                    e = x * 5
        with torch.set_grad_enabled(mode=False):
            f = x * 1
        with torch.inference_mode():
            made = torch.ones(3, device=d)
            view = x[1:]
            made.add_(1)
            refused = False
            kinds = made.is_inference(), view.is_inference(), made[1:].is_inference()
        try:
            (made * x).sum().backward()
        except RuntimeError as error:
            refused = "nference" in str(error)
        return a, b, c.clone(), e, f, kinds, refused

    on_both(program, V.clone().requires_grad_())


# ---------------------------------------------------------------- threads and workers


@pytest.mark.slow
def test_threads_train_at_the_same_time_as_one_by_one():
    def train(seed):
        layer = filled(nn.Linear(3, 2), DEVICE)
        x = lazy(B + seed)
        for _ in range(5):
            layer.zero_grad()
            layer(x).pow(2).sum().backward()
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter.sub_(0.01 * parameter.grad)
        return [parameter.detach().cpu() for parameter in layer.parameters()]

    expected = [train(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        actual = list(pool.map(train, range(4)))

    for mine, theirs in zip(actual, expected, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_other_threads_record_while_a_read_waits_for_the_device(monkeypatch):
    from lazyrt.execution import completion

    waiting, go_on = threading.Event(), threading.Event()
    wait_for = completion.wait_for

    def slow_device(data):
        waiting.set()
        assert go_on.wait(60), "nobody recorded while the read was waiting"
        wait_for(data)

    monkeypatch.setattr(completion, "wait_for", slow_device)
    x = torch.ones(3, device=DEVICE) * 2
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(x.tolist)
        assert waiting.wait(60)
        recorder = ThreadPoolExecutor(1)
        other = recorder.submit(lambda: (torch.ones(3, device=DEVICE) + 5).add_(1))
        recorded = other.result(timeout=60)
        go_on.set()
        assert read.result(timeout=60) == [2.0, 2.0, 2.0]
        recorder.shutdown()
    assert recorded.tolist() == [7.0, 7.0, 7.0]


def test_data_waited_for_is_not_donated_by_another_threads_barrier(monkeypatch):
    from lazyrt.execution import completion

    x = torch.ones(3, device=DEVICE)
    lazyrt.mark_step()
    wait_for = completion.wait_for

    def overwrite():
        x.add_(1)
        lazyrt.mark_step()

    def overwritten_meanwhile(data):
        monkeypatch.setattr(completion, "wait_for", wait_for)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(overwrite).result(timeout=60)
        wait_for(data)

    monkeypatch.setattr(completion, "wait_for", overwritten_meanwhile)

    assert x.tolist() == [1.0, 1.0, 1.0]
    assert x.tolist() == [2.0, 2.0, 2.0]


class Squares(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.tensor([float(index)]), index**2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:os.fork")
def test_loader_workers_feed_lazy_models():
    loader = DataLoader(Squares(), batch_size=2, num_workers=2)
    layer = filled(nn.Linear(1, 1), DEVICE)

    total = torch.zeros((), device=DEVICE)
    for features, target in loader:
        total += layer(features.to(DEVICE)).sum().detach() * 0 + target.to(DEVICE).sum()

    assert total.item() == sum(k**2 for k in range(6))


class OnTheDevice(Dataset[float]):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return (torch.ones(2, device=DEVICE) * index).sum().item()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_forked_worker_that_uses_the_device_is_refused_with_advice():
    torch.ones(2, device=DEVICE).tolist()
    loader = DataLoader(OnTheDevice(), num_workers=1, timeout=60)

    with pytest.raises(Exception, match=r"forked process.*spawn"):
        list(loader)
