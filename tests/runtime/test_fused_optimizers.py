"""Fused optimizers and the gradient scaler run with the step and give the CPU's numbers."""

import pytest
import torch
from torch import optim

import lazyrt

OPTIMIZERS = {
    "adam": lambda p: optim.Adam(p, lr=0.1, fused=True),
    "amsgrad": lambda p: optim.Adam(
        p, lr=0.1, amsgrad=True, weight_decay=0.1, maximize=True, fused=True
    ),
    "adamw": lambda p: optim.AdamW(p, lr=0.1, weight_decay=0.1, fused=True),
    "adamw-tensor": lambda p: optim.AdamW(p, lr=torch.tensor(0.1), fused=True),
    "sgd": lambda p: optim.SGD(p, lr=0.1, fused=True),
    "nesterov": lambda p: optim.SGD(
        p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1, fused=True
    ),
    "dampening": lambda p: optim.SGD(
        p, lr=0.1, momentum=0.9, dampening=0.5, maximize=True, fused=True
    ),
    "adagrad": lambda p: optim.Adagrad(
        p, lr=0.1, lr_decay=0.1, weight_decay=0.1, fused=True
    ),
}


def train(device, make, *, scaled, scheduled, dtype=torch.float32):
    """Run five steps; with a scaler the second one overflows. Return all that changed."""
    torch.manual_seed(0)
    numbers = torch.Generator().manual_seed(1)
    parameters = [
        torch.nn.Parameter(torch.randn(shape, generator=numbers).to(device, dtype))
        for shape in ((3, 4), (5,))
    ]
    optimizer = make(parameters)
    scaler = torch.amp.GradScaler(
        device, init_scale=8.0, growth_interval=2, enabled=scaled
    )
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    scale = scaler.scale(torch.ones((), device=device))
    for step in range(5):
        for parameter in parameters:
            grad = torch.randn(parameter.shape, generator=numbers).to(device, dtype)
            if scaled and step == 1:
                grad.view(-1)[0] = float("inf")
            parameter.grad = grad * (scale.to(dtype) if scaled else 1)
        scaler.step(optimizer)
        scaler.update()
        if scheduled:
            scheduler.step()
    states = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    found = [tensor.detach().cpu() for tensor in (*parameters, *states)]
    return [*found, torch.tensor(scaler.get_scale())]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(OPTIMIZERS))
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
def test_a_fused_optimizer_gives_the_numbers_of_the_cpu(name, scaled):
    make = OPTIMIZERS[name]
    expected = train("cpu", make, scaled=scaled, scheduled=False)
    lazyrt.reset_counters()

    found = train("lazyrt", make, scaled=scaled, scheduled=False)

    assert lazyrt.counters()["cpu_fallbacks"] == 0
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "nesterov"])
def test_half_precision_parameters_are_updated_as_on_the_cpu(name):
    kind = {"scaled": False, "scheduled": False, "dtype": torch.bfloat16}

    expected = train("cpu", OPTIMIZERS[name], **kind)
    found = train("lazyrt", OPTIMIZERS[name], **kind)

    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-2)


def test_a_scheduled_learning_rate_is_an_input_of_the_step():
    train("lazyrt", OPTIMIZERS["adam"], scaled=False, scheduled=False)
    lazyrt.reset_counters()

    found = train("lazyrt", OPTIMIZERS["adam"], scaled=False, scheduled=True)

    assert lazyrt.counters()["compiles"] == 0
    expected = train("cpu", OPTIMIZERS["adam"], scaled=False, scheduled=True)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_that_overlap_are_updated_in_order(name):
    found = []
    for device in ("cpu", "lazyrt"):
        storage = (torch.arange(6.0) + 1).to(device)
        optimizer = OPTIMIZERS[name]([storage[:4], storage[2:]])
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.linspace(-1, 1, 4).to(device)
        for _ in range(2):
            optimizer.step()
        found.append(storage.cpu())

    torch.testing.assert_close(*found)
