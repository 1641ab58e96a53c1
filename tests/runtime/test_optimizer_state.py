"""State that an optimizer's first step creates is an input from the start: one program a loop."""

import copy
from typing import Any

import pytest
import torch
from torch import nn, optim

import lazyrt
from lazyrt.frontend import optimizer_state
from lazyrt.observe import events
from tests.harness import DEVICE, cold_start

pytestmark = [
    pytest.mark.lazy_only("counts compiles of the device"),
    pytest.mark.usefixtures("cold"),
]

FOREACH, SINGLE, FUSED = {"foreach": True}, {"foreach": False}, {"fused": True}
CAPTURABLE = {"capturable": True}
MOMENTUM: dict[str, Any] = {"lr": 0.1, "momentum": 0.9}
CENTERED = {"momentum": 0.9, "centered": True}
STARTED = {"initial_accumulator_value": 0.1}
CASES: list[tuple[Any, dict[str, Any], tuple[dict[str, Any], ...]]] = [
    (optim.SGD, {"lr": 0.1}, (FOREACH, SINGLE, FUSED)),
    (optim.SGD, MOMENTUM, (FOREACH, SINGLE, FUSED)),
    (optim.SGD, MOMENTUM | {"nesterov": True, "weight_decay": 0.1}, (FOREACH, FUSED)),
    (optim.SGD, MOMENTUM | {"maximize": True}, (SINGLE,)),
    (optim.Adam, {}, (FOREACH, SINGLE, FUSED, CAPTURABLE)),
    (optim.Adam, {"amsgrad": True}, (FOREACH, SINGLE, FUSED)),
    (optim.AdamW, {}, (FOREACH, SINGLE, FUSED, CAPTURABLE)),
    (optim.RMSprop, {}, (FOREACH, SINGLE, CAPTURABLE)),
    (optim.RMSprop, CENTERED, (FOREACH, SINGLE)),
    (optim.Adagrad, STARTED, (FOREACH, SINGLE, FUSED)),
    (optim.NAdam, {}, (FOREACH, SINGLE, CAPTURABLE)),
    (optim.RAdam, {}, (FOREACH, CAPTURABLE)),
    (optim.Adamax, {}, (FOREACH, SINGLE, CAPTURABLE)),
    (optim.Adadelta, {}, (FOREACH, SINGLE, CAPTURABLE)),
    (optim.Rprop, {}, (FOREACH, SINGLE, CAPTURABLE)),
    (optim.Muon, {}, ({},)),
]
TABLE = [
    pytest.param(
        kind,
        {**options, **mode},
        id="-".join([kind.__name__, *options, *mode]),
        marks=() if mode is modes[0] else pytest.mark.slow,
    )
    for kind, options, modes in CASES
    for mode in modes
]


def weights(device=DEVICE):
    numbers = torch.Generator().manual_seed(0)
    shapes = ((3, 4), (2, 5))
    return [
        nn.Parameter(torch.randn(shape, generator=numbers).to(device))
        for shape in shapes
    ]


def backward(parameters):
    sum(p.cos().square().sum() for p in parameters).backward()


def trained(make, steps, device=DEVICE):
    """Return the parameters after each step, and the optimizer's state after the last."""
    parameters = weights(device)
    optimizer, history = make(parameters), []
    for _ in range(steps):
        optimizer.zero_grad()
        backward(parameters)
        optimizer.step()
        lazyrt.mark_step()
        history.append([p.detach().cpu().clone() for p in parameters])
    return history, [dict(optimizer.state[p]) for p in parameters]


def compiles_of(make, steps=10):
    before = lazyrt.counters()["compiles"]
    trained(make, steps)
    return lazyrt.counters()["compiles"] - before


def without_mechanism(monkeypatch):
    """Leave fills and numbers of updates constants, as they are elsewhere."""
    monkeypatch.setattr(optimizer_state, "begin", lambda _: None)
    monkeypatch.setattr(optimizer_state, "create_momentum", lambda *_, **__: None)


def as_cpu(found):
    return torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, found)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(optim.SGD, MOMENTUM), (optim.Adam, FUSED), (optim.RAdam, FOREACH)],
)
def test_ten_steps_compile_once(kind, options):
    assert compiles_of(lambda p: kind(p, **options)) == 1


def same_bits(found, expected):
    found, expected = (
        torch.utils._pytree.tree_leaves(each) for each in (found, expected)
    )
    return len(found) == len(expected) and all(
        a.dtype == b.dtype and a.cpu().numpy().tobytes() == b.cpu().numpy().tobytes()
        for a, b in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize(("kind", "options"), TABLE)
def test_steps_compile_once_and_leave_the_bits_that_two_programs_leave(
    kind, options, monkeypatch
):
    def make(parameters):
        return kind(parameters, **options)

    with monkeypatch.context() as patch:
        without_mechanism(patch)
        expected = trained(make, 3)
    cold_start()
    lazyrt.reset_counters()

    assert same_bits(trained(make, 3), expected)
    assert lazyrt.counters()["compiles"] == 1


def test_radams_two_formulas_are_two_programs():
    """It leaves the rectification out until its sixth step, by an `if` on the host."""
    assert compiles_of(lambda p: optim.RAdam(p, foreach=False)) == 2


def test_dampening_makes_the_first_step_another_program():
    """It copies the gradient, which later steps dampen."""
    assert compiles_of(lambda p: optim.SGD(p, **MOMENTUM, dampening=0.1)) == 2


class Rising(optim.Optimizer):
    """An optimizer of somebody's own, with state, a number that varies, and a temporary fill."""

    def __init__(self, parameters, *, state=True):
        super().__init__(parameters, {"lr": 0.1, "keep": state})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in filter(lambda p: p.grad is not None, group["params"]):
                change = torch.zeros_like(p)
                change.add_(p.grad)
                if group["keep"]:
                    state = self.state[p]
                    if not state:
                        state["mean"] = torch.ones_like(p)
                        state["unwritten"] = torch.full_like(p, 2.5)
                        state["step"] = 0
                    state["step"] += 1
                    change.add_(state["mean"] / (1 - 0.9 ** state["step"]))
                    state["mean"].lerp_(p.grad, 0.1)
                    change.mul_(state["unwritten"])
                p.sub_(change, alpha=group["lr"])
        return loss


@pytest.mark.parametrize("state", [True, False])
def test_an_optimizer_of_ones_own_compiles_once_and_gives_the_cpus_numbers(state):
    def make(parameters):
        return Rising(parameters, state=state)

    assert compiles_of(make) == 1
    expected = trained(make, 4, "cpu")
    torch.testing.assert_close(trained(make, 4), expected, check_device=False)


def test_a_fill_that_no_one_keeps_is_a_constant_of_the_first_step_too(monkeypatch):
    """The first step's graph has the same inputs with it as one without the mechanism."""

    def graph():
        parameters = weights()
        optimizer = Rising(parameters, state=False)
        backward(parameters)
        with lazyrt.config.scoped(barrier_after_optimizer=False):
            optimizer.step()
        return lazyrt.pending_graph()

    found = graph()
    lazyrt.mark_step()
    without_mechanism(monkeypatch)

    assert found.fingerprint == graph().fingerprint


def test_a_closure_fills_constants():
    """What it makes is no state, though the optimizer calls it."""
    parameters = weights()
    optimizer = Rising(parameters)
    made = []

    def closure():
        optimizer.zero_grad()
        with torch.no_grad():
            made.append(torch.zeros(3, device=DEVICE))
        made.append(torch.zeros(4, device=DEVICE))
        backward(parameters)
        return made[-1].sum()

    with lazyrt.config.scoped(barrier_after_optimizer=False):
        optimizer.step(closure)

    assert lazyrt.is_pending(made[1])
    assert made[0].tolist() == [0.0] * 3


def test_after_an_exception_in_a_step_fills_are_constants_again():
    parameters = weights()
    optimizer = Rising(parameters)

    def closure():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        optimizer.step(closure)
    with torch.no_grad():
        made = torch.zeros(3, device=DEVICE)

    assert lazyrt.is_pending(made)
    assert not optimizer_state.steps


def test_state_made_with_the_optimizer_is_an_input_of_its_first_step():
    """Adagrad makes it at once, and the first step follows without a barrier."""
    parameters = weights()
    optimizer = optim.Adagrad(parameters)

    assert lazyrt.is_pending(optimizer.state[parameters[0]]["sum"])
    backward(parameters)
    optimizer.step()
    before = lazyrt.counters()["compiles"]
    optimizer.zero_grad()
    backward(parameters)
    optimizer.step()

    assert lazyrt.counters()["compiles"] == before


def test_an_optimizers_state_holds_what_it_would_create_itself():
    """None before the first step, and none for a parameter without a gradient."""
    used, unused = weights()
    optimizer = optim.SGD([used, unused], **MOMENTUM)

    assert optimizer.state_dict()["state"] == {}
    assert copy.deepcopy(optimizer).state == {}
    used.sum().backward()
    optimizer.step()

    assert list(optimizer.state_dict()["state"]) == [0]
    assert list(optimizer.state[used]) == ["momentum_buffer"]
    assert optimizer.state[used]["momentum_buffer"].equal(used.grad)


def test_groups_differ_in_what_they_create():
    first, second = weights()
    groups: list[dict[str, Any]] = [
        {"params": [first]},
        {"params": [second], "dampening": 0.5},
    ]
    on_cpu = weights("cpu")
    expected = optim.SGD([groups[0] | {"params": [on_cpu[0]]},
                          groups[1] | {"params": [on_cpu[1]]}], **MOMENTUM)  # fmt: skip
    optimizer = optim.SGD(groups, **MOMENTUM)
    for parameters, each in ((on_cpu, expected), ([first, second], optimizer)):
        for _ in range(3):
            each.zero_grad()
            backward(parameters)
            each.step()

    torch.testing.assert_close([first, second], on_cpu, check_device=False)


def test_loaded_state_goes_on_where_it_was():
    on_cpu, on_device = weights("cpu"), weights()
    saved, loaded = optim.AdamW(on_cpu), optim.AdamW(on_device)
    backward(on_cpu)
    saved.step()
    with torch.no_grad():
        for target, source in zip(on_device, on_cpu, strict=True):
            target.copy_(source)
    loaded.load_state_dict(copy.deepcopy(saved.state_dict()))
    before = lazyrt.counters()["compiles"]
    for parameters, each in ((on_cpu, saved), (on_device, loaded)):
        for _ in range(3):
            each.zero_grad()
            backward(parameters)
            each.step()

    assert lazyrt.counters()["compiles"] - before == 1
    torch.testing.assert_close(on_device, on_cpu, check_device=False)


def test_a_look_at_the_state_changes_no_program():
    parameters = weights()
    optimizer = optim.Adam(parameters)
    texts = []
    for _ in range(3):
        optimizer.zero_grad()
        backward(parameters)
        with lazyrt.config.scoped(barrier_after_optimizer=False):
            optimizer.step()
        texts.append(str(optimizer.state[parameters[0]]["exp_avg"]))
        lazyrt.mark_step()

    assert lazyrt.counters()["compiles"] == 1
    assert len(set(texts)) == 3


@pytest.mark.parametrize("mode", ["eager", "op_by_op_barriers"])
def test_the_other_modes_give_the_same_results(mode):
    expected = trained(optim.Adam, 3, "cpu")

    with lazyrt.config.scoped(**{mode: True}):
        found = trained(optim.Adam, 3)

    torch.testing.assert_close(found, expected, check_device=False)


def test_the_state_of_the_first_step_gives_its_memory_to_the_results():
    parameters = weights()
    optimizer = optim.Adam(parameters)
    seen: list[Any] = []
    with lazyrt.subscribe(seen.append, events.ExecuteStarted):
        for _ in range(2):
            optimizer.zero_grad()
            backward(parameters)
            optimizer.step()

    found = [event.donated for event in seen]
    assert found[0] == found[1] >= 6
