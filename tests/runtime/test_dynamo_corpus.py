"""Compiled programs of many kinds, each called three times: the values of the CPU."""

import contextlib
import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lazyrt
from benchmarks.family_table import FAMILIES
from tests.harness import DEVICE, assert_same, thinned

F = nn.functional


@pytest.fixture(autouse=True)
def _no_graphs_of_others():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def write_input(x, y):
    x.add_(y)
    return x * 2


def write_view(x, y):
    x[0].mul_(2)
    return x + y


def write_twice(x, y):
    x.add_(1)
    y.copy_(x)
    return x - y


def aliases(x, y):
    z = x * y
    return z, z.t(), z[1:], x.view(-1), x


def with_print(x, y):
    z = x + y
    print(end="")  # noqa: T201
    return z * 2


def branch_on_value(x, y):
    return x * 2 if x.sum() > y.sum() else x - y


def item(x, y):
    return y * x.sum().item()


def mask(x, y):
    return x[x > 1] + y.sum()


def where(x, y):
    return torch.where(x > y, x, y)


def loop(x, y):
    for k in range(3):
        x = x * k + y
    return x


def closure(x, y):
    def inner(z):
        return z + y

    return inner(x).relu()


def autocast(x, y):
    with torch.autocast(DEVICE if x.device.type == DEVICE else "cpu", torch.bfloat16):
        return (x.t() @ y).float()


def func_grad(x, y):
    return torch.func.grad(lambda z: (z * y).sum().sin())(x)


def func_vmap(x, y):
    return torch.func.vmap(torch.dot)(x, y)


def caught(x, y):
    try:
        raise ValueError  # noqa: TRY301
    except ValueError:
        return x - y


@torch.compiler.disable
def not_compiled(x):
    return x.cumsum(0)


def calls_disabled(x, y):
    return not_compiled(x) + y


def no_grad(x, y):
    with torch.no_grad():
        z = x * 2
    return z + y


def numbers(x, y):
    return x * 2.5 + 3, x.shape[0], y.dim()


def dictionary(x, y):
    return {"sum": x + y}["sum"]


def factories(x, y):
    return (
        torch.zeros_like(x) + torch.arange(3.0, device=x.device) + torch.full((), 2.0)
    )


def of_constant(x, y):
    return x + torch.tensor([1.0, 2.0, 3.0], device=x.device)


def slices(x, y):
    return torch.cat([x[:1], y[1:]]), x.chunk(3, 1)[1], x.unbind()[0]


def layer_norm(x, y):
    return F.layer_norm(x, (3,)) + F.softmax(y, -1)


def sort(x, y):
    return x.sort(1).values, y.argmax(0), x.topk(2).indices


def attention(x, y):
    return F.scaled_dot_product_attention(x[None], y[None], x[None])


def foreach(x, y):
    return torch._foreach_add([x, y], 2.0)[1]


def complex_numbers(x, y):
    return torch.complex(x, y).abs()


def checkpointed(x, y):
    return torch.utils.checkpoint.checkpoint(lambda z: (z * y).tanh(), x, use_reentrant=False)  # fmt: skip


def turn_in_place(x, y):
    z = x * y
    z.transpose_(0, 1)
    return z + 1


def reshape_in_place(x, y):
    z = x * y
    z.unsqueeze_(0).squeeze_(0).t_()
    z[0, 0] = 5
    return z


def restride_in_place(x, y):
    z = x.view(-1)
    z.as_strided_((2, 2), (1, 2))
    z.add_(1)
    return x * y


def turn_input(x, y):
    x.t_()
    return x + y.t()


def pool(x, y):
    return F.adaptive_avg_pool1d((x * y)[None], 2)


@dataclasses.dataclass
class Pair:
    whole: torch.Tensor
    part: torch.Tensor


def data_class(x, y):
    pair = Pair(x + y, x[0])
    return pair.whole * pair.part


def generator(x, y):
    return sum(x * k for k in range(3)) + sum(row for row in y)


def context_managers(x, y):
    try:
        with contextlib.suppress(KeyError), torch.enable_grad():
            z = x * y
    finally:
        y = y - 1
    return z + y


def branch_in_graph(x, y):
    return torch.cond(x.sum() > 3, torch.add, torch.mul, (x, y))


def loop_on_value(x, y):
    count = 0
    while y.sum() < 10:
        y = y * 2 + 1
        count += 1
    return x + y, count


def side_effects(x, y):
    SEEN.append(x * y)
    return SEEN.pop().sum(), len(SEEN)


SEEN: list[torch.Tensor] = []


def out_arguments(x, y):
    z = torch.add(x, y, out=torch.empty_like(x))
    torch.mul(z, y, out=x)
    return z


def detached(x, y):
    z = x * y
    z.data.add_(1)
    z.detach().mul_(2)
    return z


def fourier(x, y):
    return torch.fft.rfft(x).abs(), torch.fft.irfft(torch.fft.rfft(y), n=3)


def numpy_numbers(x, y):
    return x * float(np.sin(2.0)) + np.arange(3).sum() + y


def hessian(x, y):
    return torch.func.hessian(lambda z: (z * y).sin().sum())(x)


def forward_derivative(x, y):
    return torch.func.jvp(torch.tanh, (x,), (y,))


def jacobian(x, y):
    return torch.func.jacrev(lambda z: z @ y.t())(x)


def scatter_in_place(x, y):
    index = torch.tensor([[0, 0, 1], [2, 2, 0]], device=x.device)
    x.scatter_add_(1, index, y)
    x.index_put_((index[0], index[1]), y[0], accumulate=True)
    return x.cumsum(1)


@torch.library.custom_op("lazyrt_tests::count_up", mutates_args=("x",))
def count_up(x: torch.Tensor) -> None:
    x.add_(1)


def mutating_custom_op(x, y):
    torch.ops.lazyrt_tests.count_up(x)
    return x * y


def explicit_break(x, y):
    z = x + y
    torch._dynamo.graph_break()
    return z * 2 if torch.compiler.is_compiling() else z + z


def of_data_size(x, y):
    return x.nonzero().float().sum() + y, y[y > 0].numel()


def without_a_meta_kernel(x, y):
    fake = torch.fake_quantize_per_tensor_affine(x, 0.5, 0, -8, 7)
    return fake, *torch.histogram(y, 3), *torch.geqrf(x + y)


PROGRAMS = [
    without_a_meta_kernel, data_class, generator, context_managers, branch_in_graph, loop_on_value, side_effects,
    out_arguments, detached, fourier, numpy_numbers, hessian, forward_derivative, jacobian,
    scatter_in_place, mutating_custom_op, explicit_break, of_data_size,
    turn_in_place, reshape_in_place, restride_in_place, turn_input, pool, write_input, write_view, write_twice, aliases, with_print, branch_on_value, item, mask,
    where, loop, closure, autocast, func_grad, func_vmap, caught, calls_disabled, no_grad,
    numbers, dictionary, factories, of_constant, slices, layer_norm, sort, attention, foreach,
    complex_numbers, checkpointed,
]  # fmt: skip


def flat(results):
    return list(results) if isinstance(results, (list, tuple)) else [results]


@pytest.mark.parametrize(
    "program", thinned(PROGRAMS, 4), ids=lambda program: program.__name__
)
def test_a_compiled_function_gives_the_values_of_the_cpu_at_each_call(program):
    compiled = torch.compile(program, backend="lazyrt")
    for _ in range(3):
        args = [torch.arange(6.0).view(2, 3), torch.linspace(-1, 2, 6).view(2, 3)]
        ours = [arg.to(DEVICE) for arg in args]
        found, expected = flat(compiled(*ours)), flat(program(*args))
        pairs: list[Any] = [
            *zip(found, expected, strict=True),
            *zip(ours, args, strict=True),
        ]
        for one, other in pairs:
            if isinstance(other, torch.Tensor):
                assert_same(one, other, 1e-2 if program is autocast else 1e-5)
            else:
                assert one == other


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 + 0 * x


class Clipped(torch.autograd.Function):
    """Has an output that is not differentiated, and a setting that is no tensor."""

    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        y = x.clamp(max=limit)
        ctx.mark_non_differentiable(count := (x > limit).sum())
        ctx.save_for_backward(x)
        return y, count

    @staticmethod
    def backward(ctx, grad, _):
        (x,) = ctx.saved_tensors
        return grad * (x <= ctx.limit), None


def clipped(x, y):
    clamped, count = Clipped.apply(x * y, 2.0)
    return clamped + count


def tensor_hook(x, y):
    z = x * y
    z.register_hook(lambda grad: grad * 3)
    return z.sin()


@torch.compiler.nested_compile_region
def region(x, y):
    return (x * y).tanh()


def nested_region(x, y):
    return region(x, y) + region(y, x)


class DoubledInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@torch.library.custom_op("lazyrt_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_fake(torch.empty_like)
twice.register_autograd(lambda _context, grad: grad * 2)


def saved_tensor_hooks(x, y):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t * 1):
        return (x * y).sin()


def gradient_inside(x, y):
    (grad,) = torch.autograd.grad((x * y).sin().sum(), x)
    return grad * y + x


DIFFERENTIATED = {
    "custom in place": lambda x, y: DoubledInPlace.apply(x * y).sin(),
    "custom op": lambda x, y: torch.ops.lazyrt_tests.twice(x).sin() * y,
    "saved tensor hooks": saved_tensor_hooks,
    "gradient inside": gradient_inside,
    "custom with two outputs": clipped,
    "tensor hook": tensor_hook,
    "nested region": nested_region,
    "matmul": lambda x, y: (x @ y.t()).tanh(),
    "views": lambda x, y: x.t().reshape(-1) * y.view(-1),
    "custom": lambda x, y: Doubled.apply(x) * y,
    "checkpoint": checkpointed,
    "break": with_print,
    "aliases": lambda x, y: (x * y).t()[1:],
    "hook": lambda x, y: x * y + (x * 1).clamp(min=0),
    "index": lambda x, y: x[[1, 0]] * y,
}


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # TorchDynamo's own
@pytest.mark.parametrize("name", thinned(DIFFERENTIATED, 4))
def test_gradients_through_a_compiled_function_are_those_of_the_cpu(name):
    program = DIFFERENTIATED[name]
    compiled = torch.compile(program, backend="lazyrt")
    x, y = torch.arange(6.0).view(2, 3), torch.linspace(-1, 2, 6).view(2, 3)
    for _ in range(3):
        cpu = [t.clone().requires_grad_() for t in (x, y)]
        ours = [t.to(DEVICE).requires_grad_() for t in (x, y)]
        program(*cpu).square().sum().backward()
        compiled(*ours).square().sum().backward()
        for one, other in zip(ours, cpu, strict=True):
            assert_same(one.grad, other.grad, 1e-4)


class LastState(nn.Module):
    """Ends each graph of TorchDynamo's: it does not trace recurrent layers."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 2, num_layers=2)

    def forward(self, x):
        return self.lstm(x * 2)[0][-1] + 1


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.last = nn.GRUCell(1, 2), nn.Linear(2, 1)

    def forward(self, x):
        state = x.new_zeros(x.shape[0], 2)
        for k in range(x.shape[1]):
            state = self.cell(x[:, k : k + 1], state)
        return self.last(state)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(3, 4)
        self.weight = nn.Parameter(torch.linspace(-1, 1, 24).view(4, 3, 2))

    def forward(self, x):
        shares, chosen = self.router(x).softmax(-1).topk(2)
        made = torch.einsum("bd,edh->beh", x, self.weight)
        picked = made.gather(1, chosen[..., None].expand(-1, -1, 2))
        return (picked * shares[..., None]).sum(1)


class Scan(nn.Module):
    def __init__(self):
        super().__init__()
        self.decay = nn.Parameter(torch.tensor(-0.5))

    def forward(self, x):
        state, found = torch.zeros_like(x[:, 0]), []
        for k in range(x.shape[1]):
            state = state * self.decay.exp() + x[:, k]
            found.append(state)
        return torch.stack(found, 1)


class Cache(nn.Module):
    """Writes its input to the next row of a buffer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.rows: torch.Tensor
        self.count: torch.Tensor
        self.register_buffer("rows", torch.zeros(4, 3))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.rows.index_copy_(0, self.count[None], x[:1])
        self.count += 1
        is_full = torch.arange(4, device=x.device) < self.count
        found = (self.rows @ x.t()).masked_fill(~is_full[:, None], -1e9).softmax(0)
        return found.t() @ self.rows * self.scale


MODELS = {
    "cells": Cells,
    "experts": Experts,
    "scan": Scan,
    "cache": Cache,
    "parametrised": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)),
    "recurrent": LastState,
    "conv": lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU(), nn.Flatten(0)),
    "batch norm": lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)),
    "layer norm": lambda: nn.Sequential(nn.LayerNorm(3), nn.GELU()),
    "instance norm": lambda: nn.InstanceNorm1d(2, affine=True),
    "tied": lambda: nn.Sequential(layer := nn.Linear(3, 3), layer),
    "encoder": lambda: nn.TransformerEncoderLayer(3, 1, 4, 0.0, batch_first=True),
    "frozen": lambda: nn.Sequential(nn.Linear(3, 3).requires_grad_(requires_grad=False), nn.Linear(3, 1)),
    "eval": lambda: nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3)).eval(),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("name", thinned(MODELS, 4))
def test_a_compiled_model_gives_values_gradients_and_buffers_of_the_cpu(name):
    torch.manual_seed(1)
    cpu = MODELS[name]()
    model = MODELS[name]()
    model.load_state_dict(cpu.state_dict())
    model = model.to(DEVICE).train(cpu.training)
    compiled = torch.compile(model, backend="lazyrt")
    for k in range(3):
        x = torch.linspace(-1, 2, 6).view(2, 3) * (k + 1)
        ours, theirs = compiled(x.to(DEVICE)), cpu(x)
        assert_same(ours, theirs, 1e-4)
        ours.square().sum().backward()
        theirs.square().sum().backward()
    pairs = zip(model.parameters(), cpu.parameters(), strict=True)
    for one, other in pairs:
        assert (one.grad is None) is (other.grad is None)
        if other.grad is not None:
            assert_same(one.grad, other.grad, 1e-3)
    for own, its in zip(model.buffers(), cpu.buffers(), strict=True):
        assert_same(own, its, 1e-4)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_compiled_function_of_several_shapes_gives_the_values_of_the_cpu(dynamic):
    def program(x):
        return x.reshape(-1) * x.shape[0] + x.sum(), torch.arange(
            x.shape[1], device=x.device
        )

    compiled = torch.compile(program, backend="lazyrt", dynamic=dynamic)
    for rows in (2, 3, 5, 3):
        x = torch.arange(rows * 2.0).view(rows, 2)
        for one, other in zip(compiled(x.to(DEVICE)), program(x), strict=True):
            assert_same(one, other)


def test_a_number_that_changes_from_call_to_call_gives_the_values_of_the_cpu():
    compiled = torch.compile(lambda x, k: x * k + k, backend="lazyrt")
    x = torch.arange(4.0)
    for number in (0.5, 0.25, 3, 4, 0.125):
        assert_same(compiled(x.to(DEVICE), number), x * number + number)


def test_a_program_that_fullgraph_refuses_is_refused_as_on_the_cpu():
    for device, backend in (("cpu", "aot_eager"), (DEVICE, "lazyrt")):
        x = torch.ones(2, 3).to(device)
        with pytest.raises(torch._dynamo.exc.Unsupported):
            torch.compile(with_print, backend=backend, fullgraph=True)(x, x)


def test_an_exception_of_a_compiled_function_reaches_its_caller():
    def program(x, fail):
        y = x + 1
        if fail:
            raise ValueError("asked for")
        return y

    compiled = torch.compile(program, backend="lazyrt")
    x = torch.ones(2).to(DEVICE)
    with pytest.raises(ValueError, match="asked for"):
        compiled(x, fail=True)
    assert compiled(x, fail=False).tolist() == [2.0, 2.0]


def with_module_hooks():
    model: Any = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    model[0].register_forward_pre_hook(lambda _module, args: (args[0] + 1,))
    model[0].register_forward_hook(lambda _module, _args, result: result * 2)
    model[1].register_full_backward_hook(
        lambda _module, grads, _outs: (grads[0] * 0.5,)
    )
    return model


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_hooks_of_modules_act_in_a_compiled_model_as_on_the_cpu():
    cpu, model = with_module_hooks(), with_module_hooks()
    model.load_state_dict(cpu.state_dict())
    model = model.to(DEVICE)
    compiled = torch.compile(model, backend="lazyrt")
    x = torch.linspace(-1, 2, 6).view(2, 3)
    for _ in range(2):
        ours, theirs = compiled(x.to(DEVICE)), cpu(x)
        assert_same(ours, theirs, 1e-5)
        ours.sum().backward()
        theirs.sum().backward()
    for one, other in zip(model.parameters(), cpu.parameters(), strict=True):
        assert_same(one.grad, other.grad, 1e-4)


def test_overlapping_and_equal_arguments_of_a_compiled_function_are_written_as_on_the_cpu():
    compiled = torch.compile(lambda a, b: a.mul_(2) + b, backend="lazyrt")
    cpu = torch.arange(6.0)
    ours = cpu.to(DEVICE)
    for one, other in ((slice(4), slice(2, 6)), (slice(3), slice(3)), (slice(2), slice(4, 6))):  # fmt: skip
        expected = cpu[one].mul_(2) + cpu[other]
        assert_same(compiled(ours[one], ours[other]), expected)
    assert_same(ours, cpu)


def test_a_compiled_function_follows_the_mode_of_gradients():
    compiled = torch.compile(lambda x, y: x.add_(y).tanh(), backend="lazyrt")
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        x, y = torch.ones(3).to(DEVICE), torch.ones(3).to(DEVICE)
        with mode():
            found = compiled(x * 1, y.requires_grad_(mode is torch.enable_grad))
        assert found.is_inference() == (mode is torch.inference_mode)
        assert found.requires_grad == (mode is torch.enable_grad)
        assert_same(found.detach().clone(), torch.full((3,), 2.0).tanh(), 1e-6)


def test_several_threads_call_one_compiled_function():
    compiled = torch.compile(lambda x: (x * 2).sin().sum(0), backend="lazyrt")
    inputs = [torch.linspace(0, k + 1, 6).view(2, 3) for k in range(4)]
    compiled(inputs[0].to(DEVICE))
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda x: compiled(x.to(DEVICE)), inputs * 2))
    for one, x in zip(found, inputs * 2, strict=True):
        assert_same(one, (x * 2).sin().sum(0), 1e-5)


def test_an_exported_module_runs_and_compiles():
    model = nn.Sequential(nn.Linear(3, 2), nn.GELU())
    x = torch.linspace(-1, 2, 6).view(2, 3)
    ours = nn.Sequential(nn.Linear(3, 2), nn.GELU())
    ours.load_state_dict(model.state_dict())
    exported: Any = torch.export.export(ours.to(DEVICE), (x.to(DEVICE),)).module()

    assert_same(exported(x.to(DEVICE)), model(x), 1e-5)
    compiled = torch.compile(exported, backend="lazyrt")
    for _ in range(2):
        assert_same(compiled(x.to(DEVICE)), model(x), 1e-5)


@pytest.mark.parametrize(
    "mark", [torch._dynamo.mark_dynamic, torch._dynamo.decorators.mark_unbacked]
)
def test_a_size_that_is_marked_is_captured_once(mark):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return lazyrt.dynamo_backend(graph, inputs)

    compiled = torch.compile(lambda x: x * 2 + x.sum(1, keepdim=True), backend=backend)
    for rows in (2, 3, 5):
        x = torch.arange(rows * 2.0).view(rows, 2)
        ours = x.to(DEVICE)
        mark(ours, 0)
        assert_same(compiled(ours), x * 2 + x.sum(1, keepdim=True))
    assert len(graphs) == 1


class Refused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("no gradient")


def wrong_shapes(x):
    return (x @ x).sum()


def missing_attribute(x):
    return x.no_such_method()


def wrong_index(x):
    return x[:, 7].sum()


@pytest.mark.parametrize("program", [wrong_shapes, missing_attribute, wrong_index])
def test_a_program_that_fails_fails_as_when_compiled_for_the_cpu(program):
    kinds = []
    for device, backend in (("cpu", "aot_eager"), (DEVICE, "lazyrt")):
        x = torch.ones(2, 3).to(device)
        with pytest.raises(Exception) as raised:  # noqa: PT011 - compared below
            torch.compile(program, backend=backend)(x)
        kinds.append(raised.type)
    assert kinds[0] is kinds[1]


def refused(x):
    return Refused.apply(x).sum()


def twice_differentiated(x):
    """Fails: AOTAutograd has no derivative of a backward graph."""
    return torch.autograd.grad(x.sin().sum(), x, create_graph=True)[0].sum()


@pytest.mark.parametrize("program", [refused, twice_differentiated])
def test_an_exception_in_backward_comes_as_when_compiled_for_the_cpu(program):
    kinds = []
    for device, backend in (("cpu", "aot_eager"), (DEVICE, "lazyrt")):
        x = torch.ones(2, 3).to(device).requires_grad_()
        compiled = torch.compile(program, backend=backend)
        with pytest.raises(Exception) as raised:  # noqa: PT011 - compared below
            compiled(x).backward()
        kinds.append(raised.type)
    assert kinds[0] is kinds[1]


def test_a_batch_norm_without_a_gradient_of_its_input_is_compiled():
    cpu, ours = nn.BatchNorm1d(3), nn.BatchNorm1d(3).to(DEVICE)
    x = torch.linspace(-1, 2, 6).view(2, 3)
    cpu(x).square().sum().backward()
    torch.compile(ours, backend="lazyrt")(x.to(DEVICE)).square().sum().backward()
    assert_same(ours.weight.grad, cpu.weight.grad, 1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore"
)  # TorchDynamo hides its own, unless they are errors
@pytest.mark.lazy_only("counts executions of steps")
@pytest.mark.parametrize("name", ["wav2vec2", "mixtral"])
def test_a_compiled_model_of_transformers_runs_each_step_in_one_execution(name):
    (family,) = [family for family in FAMILIES if family.name == name]

    def train(device):
        torch.manual_seed(0)
        model = family.build().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        called = torch.compile(model, backend="lazyrt") if device == DEVICE else model
        losses, executions = [], []
        for _ in range(2):
            before = lazyrt.counters()["executions"]
            optimizer.zero_grad()
            batch = {
                key: value.to(device) if isinstance(value, torch.Tensor) else value
                for key, value in family.batch(0).items()
            }
            loss = family.loss(called, batch)  # type: ignore[arg-type]
            loss.backward()
            optimizer.step()
            executions.append(lazyrt.counters()["executions"] - before)
            losses.append(loss.item())
        return losses, executions

    expected, _ = train("cpu")
    peeks = lazyrt.counters()["peek_executions"]
    found, executions = train(DEVICE)

    assert executions == [1, 1]
    # Where groups end is data of the step; `ctc_loss` reads what a mask says.
    reads = 2 if name == "wav2vec2" else 0
    assert lazyrt.counters()["peek_executions"] - peeks == reads
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_torch_compile_fails_on_fails_as_on_the_cpu():
    (family,) = [family for family in FAMILIES if family.name == "deepseek-v3"]
    kinds = []
    for device, backend in (("cpu", "aot_eager"), (DEVICE, "lazyrt")):
        model = torch.compile(family.build().to(device), backend=backend)
        batch = {name: value.to(device) for name, value in family.batch(0).items()}
        with pytest.raises(RuntimeError) as raised:
            family.loss(model, batch)  # type: ignore[arg-type]
        kinds.append(raised.type)
    assert kinds[0] is kinds[1]


# The rest are traced as these are; their numbers are those of test_other_optimizers_match_the_cpu.
OPTIMIZERS = ["SGD", "Adam", "NAdam", "RAdam", "Rprop", "Adafactor", "Muon"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compiled_training_step_trains_as_on_the_cpu(name):
    def train(device, compiler):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)
        trained = list(model.parameters())
        if name == "Muon":  # of matrices alone
            trained = [parameter for parameter in trained if parameter.dim() == 2]
        optimizer = getattr(torch.optim, name)(trained, lr=0.01)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        call = compiler(step)
        for k in range(4):
            call(torch.full((2, 3), 1.0 + k).to(device))
        return list(model.parameters())

    expected = train("cpu", lambda step: step)
    found = train(DEVICE, lambda step: torch.compile(step, backend="lazyrt"))
    for one, other in zip(found, expected, strict=True):
        assert_same(one.detach(), other.detach(), 1e-4)
