"""What a cause tells to do is true. Each fix is applied, and the compile is gone.

A case runs a program that compiles once too often, and its mended forms. `what` is how the program
is mended, with `planted` for not at all; `part` is 0 for the first half, which may compile, and 1
for the second half, which must compile nothing once the program is mended.
"""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import lazyrt
from tests.harness import DEVICE

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold_and_fast"),
]
held: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_kept():
    yield
    held.clear()


def ones(*shape, dtype=torch.float32):
    found = torch.ones(*shape, dtype=dtype).to(DEVICE)
    lazyrt.mark_step()
    return found


def incomplete_batch(what, part):
    data = torch.ones(4 - part, 3)
    if what == "pad it":
        data = F.pad(data, (0, 0, 0, part))
    if what == "drop the last incomplete one" and part:
        return
    batch = data.to(DEVICE)
    with lazyrt.step():
        held[:] = [batch.exp().sum()]


def data_dtype(what, part):
    data = torch.ones(4, dtype=torch.float64 if part else torch.float32)
    if what == "convert the data once":
        data = data.float()
    batch = data.to(DEVICE)
    with lazyrt.step():
        held[:] = [batch.exp().sum()]


def model_dtype(what, part):
    if not part:
        held[:] = [nn.Linear(3, 2).to(DEVICE), None]
    dtype = torch.float64 if what != "planted" or part else torch.float32
    model = held[0].to(dtype)
    batch = ones(2, 3, dtype=dtype)
    with lazyrt.step():
        held[1] = model(batch).sum()


def number(what, part):
    x, slope = ones(4), 0.5 + part / 4
    if what == "keep to one value":
        slope = 0.5
    with lazyrt.step():
        held[:] = [F.leaky_relu(x * 3, slope).sum()]


def logged_norm(what, part):
    """Logging after the step makes its graph another one."""
    x = ones(4)
    lazyrt.mark_step()
    log: list[Any] = []
    with lazyrt.step():
        y = x.exp()
        norm = y.norm()
        if part and what == "planted":
            log.append(norm)
        if what == "step closure in every step":
            lazyrt.add_step_closure(log.append, (norm,))
        if part and what == "materialise":
            log.append(lazyrt.materialise(norm).item())
        out = y.sum()
        del y, norm
    held[:] = [log, out]


def dropped_result(what, part):
    x = ones(4)
    with lazyrt.step():
        kept = x.exp()
        total = kept.sum()
        if part and what == "planted":
            del kept
    del total


def rounds(what, part):
    y, count = ones(4), 2 + part
    if what == "run the loop a fixed number of times":
        count = 3
    if what == "put each round in a step of its own":
        for _ in range(count):
            with lazyrt.step():
                y = y.sin() * 2
    else:
        with lazyrt.step():
            for _ in range(count):
                y = y.sin() * 2
    held[:] = [y]


def forgotten_boundary(what, part):
    def work(state):
        if what == "planted":
            return state.sin() * state.cos()
        with lazyrt.step():
            return state.sin() * state.cos()

    state = work(ones(4))
    if part:
        state = work(state)
        lazyrt.mark_step()
    lazyrt.mark_step()
    held[:] = [state]


def noise(what, part):
    x = ones(4)
    amount = torch.tensor(float(part)).to(DEVICE)
    lazyrt.mark_step()
    with lazyrt.step():
        y = x.exp() * 2
        if what == "draw in every step":
            y = y + torch.rand(4, device=DEVICE) * amount
        elif part:
            y = y + torch.rand(4, device=DEVICE)
        total = y.sum()
    held[:] = [y, total]


def branch(what, part):
    x = ones(4)
    flag = torch.tensor(bool(part)).to(DEVICE)
    lazyrt.mark_step()
    with lazyrt.step():
        y = x.exp()
        if what == "torch.where":
            y = torch.where(flag, y.cumsum(0), y)
        elif part:
            y = y.cumsum(0)
        total = y.sum()
    held[:] = [total]


def read(what, part):
    x = ones(4)
    y = x.exp()
    if part and what == "planted":
        float(y.sum())
    if part and what == "print them":
        print(y.sum())  # noqa: T201
    z = (y * 2).tanh().cumsum(0)
    lazyrt.mark_step()
    if part and what == "read values after the step has ended":
        y.tolist()
    held[:] = [y, z]


def mark(what, part):
    x = ones(4)
    y = (x.exp() + 1).cos()
    if part and what == "planted":
        lazyrt.mark_step()
    z = (y * 2).tanh().cumsum(0)
    if not part or what == "end the step at the same place":
        lazyrt.mark_step()
    lazyrt.mark_step()
    held[:] = [y, z]


def new_layer(what, part):
    x = ones(2, 3)
    if not part or what == "planted":
        held[:1] = [nn.Linear(3, 3, device=DEVICE)]
    if what == "end the step after building it":
        held[:1] = [nn.Linear(3, 3, device=DEVICE)]
        lazyrt.mark_step()
    if not part:
        lazyrt.mark_step()
    with lazyrt.step():
        held[1:] = [held[0](x).sum()]


def grown_model(what, part):
    if not part:
        held[:] = [nn.Sequential(nn.Linear(3, 3)).to(DEVICE)]
    if bool(part) == (what == "planted"):
        held[0].append(nn.Linear(3, 3).to(DEVICE))
    lazyrt.mark_step()
    x = ones(2, 3)
    with lazyrt.step():
        held[1:] = [held[0](x).sum()]


def state_of_cell(what, part):
    if not part:
        state = torch.zeros(4, device=DEVICE)
        if what == "end the step after making the first one":
            lazyrt.mark_step()
    else:
        state = held[0]
    held[:] = [(state + 1).cos()]
    lazyrt.mark_step()


def held_copy(what, part):
    """A checkpoint that is loaded shares its memory with what it was loaded into."""
    if not part:
        held[:] = [ones(4), None]
    held[1] = held[0].clone()
    lazyrt.mark_step()
    if part:
        held[0].copy_(held[1])
    if what == "drop the other reference" or not part:
        held[1] = None
        lazyrt.mark_step()
    with lazyrt.step():
        held[0].add_(1)


def one_tensor_twice(what, part):
    x, y = ones(3), ones(3).clone()
    if part:
        y = x.clone() if what == "y.clone()" else x
    lazyrt.mark_step()
    with lazyrt.step():
        held[:] = [(x * 2 + y).exp()]


def accumulated(what, part):
    if not part:
        held[:] = [nn.Linear(3, 2).to(DEVICE)]
        held.append(torch.optim.SGD(held[0].parameters(), lr=0.1))
        if what == "zero_grad(set_to_none=False)":
            held[0](ones(2, 3)).sum().backward()
            lazyrt.mark_step()
            held[1].zero_grad(set_to_none=False)
            lazyrt.mark_step()
    x = ones(2, 3)
    held[0](x).pow(2).mean().backward()
    lazyrt.mark_step()


def options(what, part):
    if not part:
        weight = nn.Linear(3, 2).to(DEVICE)
        decay = 0.1 if what == "set them before the loop" else 0.0
        sgd = torch.optim.SGD(weight.parameters(), lr=0.1, weight_decay=decay)
        held[:] = [weight, sgd]
    elif what == "planted":
        held[1].param_groups[0]["weight_decay"] = 0.1
    x = ones(2, 3)
    held[1].zero_grad()
    held[0](x).pow(2).mean().backward()
    held[1].step()
    lazyrt.mark_step()


def odd_op(what, part):
    x = ones(4)
    y = x.exp() * 2
    if part and what == "planted":
        y = y + torch.nonzero(y).sum()
    z = y.tanh().cumsum(0)
    lazyrt.mark_step()
    held[:] = [y, z]


def mode(what, part):
    model = held[0] if part else nn.Sequential(nn.Linear(3, 3), nn.Tanh()).to(DEVICE)
    held[:] = [model, None]
    x = ones(2, 3)

    def run():
        with lazyrt.step():
            held[1] = model(x).exp().sum()

    if part and what == "planted":
        with lazyrt.eager_module(model[0]):
            run()
    else:
        run()


# The program, the cause that it plants, and its mended forms: each stands in the fix's words.
CASES: dict[Any, tuple[str, list[str]]] = {
    incomplete_batch: ("input_shape", ["pad it", "drop the last incomplete one"]),
    data_dtype: ("input_dtype", ["convert the data once"]),
    model_dtype: ("input_dtype", ["convert the model once"]),
    number: ("baked_constant", ["keep to one value"]),
    logged_norm: ("live_tensor", ["materialise", "step closure in every step"]),
    dropped_result: ("live_tensor_gone", ["keep the same tensors alive"]),
    rounds: (
        "loop_count",
        ["run the loop a fixed number of times", "put each round in a step of its own"],
    ),
    forgotten_boundary: ("missing_boundary", ["with lazyrt.step():"]),
    noise: ("rng", ["draw in every step"]),
    branch: ("code_path", ["torch.where"]),
    read: ("step_cut", ["read values after the step has ended", "print them"]),
    mark: ("step_cut", ["end the step at the same place"]),
    new_layer: ("module_recreated", ["build the model once", "end the step after building it"]),
    grown_model: ("module_added", ["build the model before the loop"]),
    state_of_cell: ("state_became_input", ["end the step after making the first one"]),
    held_copy: ("donation", ["drop the other reference"]),
    one_tensor_twice: ("same_input", ["y.clone()"]),
    accumulated: ("carried_over", ["zero_grad(set_to_none=False)"]),
    options: ("update", ["set them before the loop"]),
    odd_op: ("fallback", ["move the op out of the step"]),
    mode: ("mode", ["leave the mode as it is"]),
}  # fmt: skip
MENDED = [(program, fix) for program, (_, fixes) in CASES.items() for fix in fixes]


def compiles_of(program, what):
    """Return how many graphs the second half of a program compiled."""
    program(what, 0)
    known = lazyrt.counters()["compiles"]
    program(what, 1)
    return lazyrt.counters()["compiles"] - known


@pytest.mark.parametrize(("program", "fix"), MENDED)
def test_a_fix_that_is_applied_leaves_nothing_to_compile(program, fix):
    assert compiles_of(program, fix) == 0


@pytest.mark.parametrize("program", CASES)
def test_without_the_fix_the_cause_is_named_and_tells_of_it(program):
    kind, fixes = CASES[program]

    assert compiles_of(program, "planted") >= 1

    found: list[Any] = [r.explanation for r in lazyrt.compiled_graphs()]
    causes = [cause for each in found for cause in each.causes if cause.kind == kind]
    assert causes, [str(each) for each in found]
    told = " ".join(cause.fix for cause in causes)
    for fix in fixes:
        assert fix in told, told


def test_a_log_within_the_step_is_named_with_its_line_and_the_closure_to_write():
    """The extra root's line is that of the op, its name the log's, and the patch runs as it is."""
    x, logs = ones(4), []

    def train(*, logs_now):
        with lazyrt.step():
            y = x.exp()
            if logs_now:
                logs.append(y.max())
            return y.sum()

    train(logs_now=False)
    train(logs_now=True)

    found = lazyrt.explain()
    assert found is not None
    (cause,) = found.causes
    assert cause.kind == "live_tensor"
    assert cause.variable == "logs[0]"
    assert cause.now is not None
    assert cause.now.line == train.__code__.co_firstlineno + 4
    assert "`lazyrt.add_step_closure(logs.append, (t,))`" in cause.fix
