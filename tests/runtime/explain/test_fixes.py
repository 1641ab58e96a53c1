"""A fix that is applied leaves nothing to compile.

Each program runs twice, `part` 0 and 1. Planted, its second half compiles; mended as the fix of
its cause says, it compiles nothing.
"""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import lazyrt
from tests.harness import DEVICE
from tests.runtime.explain.shared import compiles_of, ones

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold"),
]
held: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_kept():
    yield
    held.clear()


def run(function, *inputs):
    with lazyrt.step():
        held[1:] = [function(*inputs)]


def incomplete_batch(part, *, mended):
    data = torch.ones(4 - part, 3)
    data = functional.pad(data, (0, 0, 0, part)) if mended else data
    run(torch.exp, data.to(DEVICE))


def data_dtype(part, *, mended):
    data = torch.ones(4, dtype=torch.float64 if part else torch.float32)
    run(torch.exp, (data.float() if mended else data).to(DEVICE))


def grown_model(part, *, mended):
    if not part:
        held[:] = [nn.Sequential(nn.Linear(3, 3)).to(DEVICE)]
    if bool(part) != mended:
        held[0].append(nn.Linear(3, 3).to(DEVICE))
    run(held[0], ones(2, 3))


def one_tensor_twice(part, *, mended):
    x = ones(3)
    y = x if part and not mended else x.clone()
    lazyrt.mark_step()
    run(lambda a, b: (a * 2 + b).exp(), x, y)


def accumulated(part, *, mended):
    if not part:
        held[:] = [nn.Linear(3, 2).to(DEVICE)]
        if mended:
            held[0](ones(2, 3)).square().mean().backward()
            held[0].zero_grad(set_to_none=False)
            lazyrt.mark_step()
    held[0](ones(2, 3)).square().mean().backward()
    lazyrt.mark_step()


def option(part, *, mended):
    if not part:
        model = nn.Linear(3, 2).to(DEVICE)
        decay = 0.1 if mended else 0.0
        held[:] = [
            (model, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=decay))
        ]
    model, sgd = held[0]
    sgd.param_groups[0]["weight_decay"] = 0.1 if part or mended else 0.0
    sgd.zero_grad()
    model(ones(2, 3)).square().mean().backward()
    sgd.step()
    lazyrt.mark_step()


def handed_state(part, *, mended):
    if not part:
        held[:] = [torch.zeros(4, device=DEVICE)]
        if mended:
            lazyrt.mark_step()
    held[0] = (held[0] + 1).cos()
    lazyrt.mark_step()


def list_of_results(part, *, mended):
    x = ones(3)
    if not part:
        held[:] = [[], None]
    for _ in range(part + 1):
        loss = (x * 2).sum()
        lazyrt.mark_step()
        held[0].append(loss.item() if mended else loss)
    total = sum(held[0]) * 2
    lazyrt.mark_step()
    held[1:] = [total]


def held_copy(part, *, mended):
    """A checkpoint that is loaded shares its memory with what it was loaded into."""
    if not part:
        held[:] = [ones(4), None]
    saved = held[0].clone()
    lazyrt.mark_step()
    if part:
        held[0].copy_(saved)
    if mended or not part:
        del saved
        lazyrt.mark_step()
    with lazyrt.step():
        held[0].add_(1)


def mode(part, *, mended):
    if not part:
        held[:] = [nn.Sequential(nn.Linear(3, 3), nn.Tanh()).to(DEVICE), None]
    x = ones(2, 3)
    if part and not mended:
        with lazyrt.eager_module(held[0][0]):
            run(lambda x: held[0](x).exp(), x)
    else:
        run(lambda x: held[0](x).exp(), x)


# The kind of the planted cause, and what its fix says that the mended form does.
CASES: dict[Any, tuple[str, str]] = {
    incomplete_batch: ("input_shape", "pad it"),
    data_dtype: ("input_dtype", "convert the data once"),
    grown_model: ("module_added", "build the model before the loop"),
    one_tensor_twice: ("same_input", "y.clone()"),
    accumulated: ("carried_over", "zero_grad(set_to_none=False)"),
    option: ("update", "set their options before the loop"),
    handed_state: ("state_became_input", "create it before the first step"),
    list_of_results: ("carried_over", "loss.item()"),
    held_copy: ("donation", "drop the other reference"),
    mode: ("mode", "leave the mode as it is"),
}


@pytest.mark.parametrize("program", CASES)
def test_a_fix_that_is_applied_leaves_nothing_to_compile(program):
    program(0, mended=True)

    assert compiles_of(program, 1, mended=True) == 0


@pytest.mark.parametrize("program", CASES)
def test_without_the_fix_the_cause_is_named_and_tells_of_it(program):
    kind, told = CASES[program]
    program(0, mended=False)

    assert compiles_of(program, 1, mended=False) >= 1

    found: list[Any] = [record.explanation for record in lazyrt.compiled_graphs()]
    fixes = [c.fix for each in found for c in each.causes if c.kind == kind]
    assert fixes, [str(each) for each in found]
    assert any(told in fix for fix in fixes), fixes
