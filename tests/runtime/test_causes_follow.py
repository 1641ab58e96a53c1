"""What follows from a cause is no cause beside it, and a loop is no missing boundary."""

import pytest
import torch
from torch import nn

import lazyrt
from tests.harness import DEVICE

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold_and_fast"),
]


class Trainer:
    def __init__(self):
        layers = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
        self.net = layers.to(DEVICE)
        self.restart()

    def restart(self):
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def fit(self, rows=4):
        batch = torch.ones(rows, 6).to(DEVICE)
        target = torch.zeros(rows, 3).to(DEVICE)
        with lazyrt.step():
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.net(batch), target)
            loss.backward()
            self.optimizer.step()
        return loss

    def append(self):
        self.net.append(nn.Linear(3, 3).to(DEVICE))
        self.restart()


def last_causes():
    explanation = lazyrt.compiled_graphs()[-1].explanation
    assert explanation is not None
    return explanation.causes


def test_results_and_updates_of_an_added_module_are_part_of_it():
    trainer = Trainer()
    trainer.fit()

    trainer.append()
    trainer.fit()

    (cause,) = last_causes()
    assert cause.kind == "module_added"
    assert cause.variable == "self.net.3"


def test_sizes_that_follow_from_an_input_are_its_own_beside_a_new_module():
    trainer = Trainer()
    trainer.fit()

    trainer.append()
    trainer.fit(rows=9)

    kinds = [cause.kind for cause in last_causes()]
    assert kinds[:2] == ["module_added", "input_shape"]
    assert not {"shape", "live_tensor"} & set(kinds)


def test_frozen_parameters_are_named_without_an_optimizer_that_has_state():
    trainer = Trainer()
    trainer.fit()

    for parameter in trainer.net[0].parameters():
        parameter.requires_grad = False
    trainer.fit()

    cause, *others = last_causes()
    assert cause.kind == "update"
    assert "fewer" in cause.text
    assert cause.variable.startswith("self.net.0.")
    assert "trained before the loop" in cause.fix
    assert not others


def test_conversions_under_autocast_are_no_other_path():
    trainer = Trainer()
    trainer.fit()

    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        trainer.fit()

    cause, *others = last_causes()
    assert cause.kind == "dtype"
    assert "code_path" not in {other.kind for other in others}
    assert "bf16 where it computed in f32" in cause.text
    assert "as under autocast" in cause.text


def test_a_tensor_that_another_path_leaves_alive_is_no_cause_of_its_own():
    net = nn.Conv2d(1, 2, 3).to(DEVICE)
    image = torch.ones(2, 1, 6, 6).to(DEVICE)
    lazyrt.mark_step()

    def run(*, clips):
        with lazyrt.step():
            y = net(image)
            if clips:
                y = y.clamp(-1, 1)
            return y.mean()

    run(clips=False)
    run(clips=True)

    (cause,) = last_causes()
    assert cause.kind == "code_path"
    assert "1 more aten.clamp.default" in cause.text


def test_a_line_that_records_an_op_twice_a_round_is_a_loop_and_no_missing_boundary():
    x = torch.full((3,), 9.0).to(DEVICE)
    lazyrt.mark_step()

    def root(rounds):
        guess = x / 2
        with lazyrt.step():
            for _ in range(rounds):
                guess = (guess + x / guess) / 2
        return guess

    root(3)
    root(6)

    (cause,) = last_causes()
    assert cause.kind == "loop_count"
    assert "came 6 times instead of 3" in cause.text


class Cut(nn.Module):
    """A model of equal layers whose forward pass reads a value between them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.more, self.head = None, nn.Linear(8, 4)

    def forward(self, x, *, reads=False):
        h = torch.relu(self.first(x))
        if reads:
            float(h.detach().sum())
        h = torch.relu(self.second(h))
        return self.head(h if self.more is None else self.more(h))


@pytest.mark.parametrize("adds", [False, True])
def test_the_rest_of_a_cut_step_of_another_size_is_no_other_path(adds):
    net = Cut().to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def fit(rows, *, reads):
        x, y = torch.ones(rows, 8).to(DEVICE), torch.ones(rows, 4).to(DEVICE)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x, reads=reads), y)
        loss.backward()
        optimizer.step()
        lazyrt.mark_step()

    lazyrt.mark_step()
    fit(16, reads=False)
    known = len(lazyrt.compiled_graphs())
    added = set()
    if adds:
        net.more = nn.Linear(8, 8).to(DEVICE)
        optimizer.add_param_group({"params": net.more.parameters()})
        added = {"module_added"}

    fit(12, reads=True)

    found = [record.explanation for record in lazyrt.compiled_graphs()[known:]]
    kinds = [{c.kind for c in each.causes} for each in found if each is not None]
    both = {"step_cut", "input_shape"}
    assert kinds == [both, both | added]
