"""Causes in training steps as people write them: dropout, clipped gradients, updates with state."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional

import lazyrt
from tests.harness import DEVICE
from tests.runtime.causes import kinds

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold_and_fast"),
]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.blocks = nn.ModuleList([nn.Linear(6, 6)])
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(6, 2)
        self.does = set()

    def forward(self, x):
        h = torch.relu(self.first(x))
        for block in self.blocks:
            h = torch.relu(block(h))
        if "squash" in self.does:
            h = torch.tanh(h)
        if "noise" in self.does:
            h = h + 0.1 * torch.randn_like(h)
        for _ in range(3 if "loop" in self.does else 2):
            h = torch.sin(h) + h
        h = h.roll(2 if "roll" in self.does else 1, 0)
        return self.last(self.drop(h))


class Training:
    """A loop whose steps end where the optimizer's do; `does` says what is new in them."""

    def __init__(self, *, has_two_marks=False):
        self.net = Net().to(DEVICE)
        self.optimizer = torch.optim.Adam(self.net.parameters(), 0.01)
        self.does = self.net.does
        self.has_two_marks = has_two_marks
        self.kept = {}
        lazyrt.mark_step()

    def step(self):
        size = 5 if "shape" in self.does else 8
        x, y = torch.ones(size, 4).to(DEVICE), torch.ones(size, 2).to(DEVICE)
        is_eager = "eager" in self.does
        self.optimizer.zero_grad()
        with lazyrt.eager_mode() if is_eager else contextlib.nullcontext():
            out = self.net(x)
            loss = functional.mse_loss(out, y)
        if "read" in self.does:
            float(out.detach().sum())
        if "cut after forward" in self.does:
            lazyrt.mark_step()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        if self.has_two_marks:
            lazyrt.mark_step()
        if "clip" in self.does:
            nn.utils.clip_grad_value_(self.net.parameters(), 0.5)
        if "copy" in self.does:
            self.kept = {k: v.clone() for k, v in self.net.state_dict().items()}
        if "keep" in self.does:
            self.kept["norm"] = out.detach().norm()
        if "cut before update" in self.does:
            lazyrt.mark_step()
        self.optimizer.step()
        lazyrt.mark_step()

    def layer(self):
        return nn.Linear(6, 6).to(DEVICE)

    def add(self):
        self.net.blocks.append(self.layer())
        self._train(self.net.blocks[-1])

    def remake(self):
        self.net.blocks[0] = self.layer()
        self._train(self.net.blocks[0])

    def remove(self):
        del self.net.blocks[0]

    def freeze(self):
        self.net.blocks[0].requires_grad_(requires_grad=False)

    def _train(self, module):
        self.optimizer.param_groups[0]["params"] += list(module.parameters())


def told_after(training, *changes):
    """Return the explanations of the graphs that are new once some things have changed."""
    for _ in range(3):
        training.step()
    known = len(lazyrt.compiled_graphs())
    for change in changes:
        if hasattr(training, change):
            getattr(training, change)()
        else:
            training.does.add(change)
    for _ in range(3):
        training.step()
    found = [r.explanation for r in lazyrt.compiled_graphs()[known:] if r.explanation]
    assert not any(each.unexplained for each in found)
    return found


ADDED = ["state_became_input"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["cut after forward"], [["step_cut"], ["step_cut"]]),
        (["cut before update"], [["step_cut"], ["step_cut"]]),
        (["eager"], [["mode"]]),
        (["clip"], [["code_path"]]),
        (["copy"], [["live_tensor"]]),
        (["freeze"], [["update"]]),
        (["remove"], [["module_removed"]]),
        (["add"], [["module_added"], ADDED]),
        (["remake"], [["module_recreated"], ADDED]),
        (["shape", "roll"], [["input_shape", "baked_constant"]]),
        (["remove", "noise"], [["module_removed", "rng"]]),
        (["add", "noise"], [["module_added", "rng"], ADDED]),
        (["add", "squash"], [["module_added", "code_path"], ADDED]),
        (["add", "loop"], [["module_added", "loop_count"], ADDED]),
        (["add", "clip"], [["module_added", "code_path"], ADDED]),
        (["remake", "shape"], [["module_recreated", "input_shape"], ADDED]),
    ],
)
def test_each_change_of_a_step_is_told_and_nothing_that_follows_from_it(
    changes, expected
):
    found = told_after(Training(), *changes)

    assert [kinds(each) for each in found] == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["freeze"], [["update"], ["update"]]),
        (["remove"], [["module_removed"], ["update"]]),
        (["keep"], [["live_tensor"]]),
        (["clip"], [["code_path"]]),
    ],
)
def test_an_update_in_a_step_of_its_own_has_the_cause_of_its_gradients(
    changes, expected
):
    found = told_after(Training(has_two_marks=True), *changes)

    assert [kinds(each) for each in found] == expected


class Read(nn.Module):
    """A model that a read may cut in its middle, with a layer that may be added."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)
        self.more = None

    def forward(self, x, *, is_read):
        h = torch.relu(self.first(x))
        if is_read:
            float(h.detach().sum())
        if self.more is not None:
            h = self.more(h)
        return self.last(h)


def test_what_was_read_at_a_cut_that_is_gone_has_no_cause_of_its_own():
    def train(*, is_read, has_more, size):
        net = Read().to(DEVICE)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        lazyrt.mark_step()
        for rows, reads in ((16, False), (16, False), (size, is_read)):
            if rows != 16 or reads:
                net.more = nn.Linear(8, 8).to(DEVICE) if has_more else None
            optimizer.zero_grad()
            x, y = torch.ones(rows, 8).to(DEVICE), torch.ones(rows, 4).to(DEVICE)
            functional.mse_loss(net(x, is_read=reads), y).backward()
            optimizer.step()

    train(is_read=True, has_more=False, size=16)
    train(is_read=True, has_more=True, size=16)
    train(is_read=True, has_more=True, size=12)
    train(is_read=False, has_more=True, size=12)

    explanation = lazyrt.explain()
    assert explanation is not None
    assert kinds(explanation) == ["step_cut"]
    assert explanation.text.startswith("the step ended later: optimizer.step() at ")


def test_frozen_filters_beside_another_batch_size_are_two_causes():
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(8, 2)
    )
    net.to(DEVICE)
    optimizer = torch.optim.Adam(net.parameters())
    lazyrt.mark_step()

    for size in (4, 4, 3):
        net[1].requires_grad_(requires_grad=size == 4)
        x = torch.ones(size, 1, 6, 6).to(DEVICE)
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    explanation = lazyrt.explain()
    assert explanation is not None
    assert kinds(explanation) == ["update", "input_shape"]


def test_the_parameters_that_are_frozen_or_made_again_are_named():
    frozen = told_after(Training(), "freeze")[0].top
    remade = told_after(Training(), "remake")[0].top

    assert "2 parameters fewer are updated at " in frozen.text
    assert "`self.net.blocks.0.weight`" in frozen.text
    assert remade.text.startswith("module `self.net.blocks.0` was made again: ")
    assert remade.variable == "self.net.blocks.0"
    assert remade.now is not None
    assert remade.before is not None


def test_a_batch_of_another_dtype_in_one_of_two_rounds_is_no_shorter_loop():
    net = Net().to(DEVICE)
    lazyrt.mark_step()

    def step(dtype):
        for _ in range(2):
            x = torch.ones(8, 4).to(dtype).to(DEVICE)
            with torch.autocast("lazyrt", dtype=torch.bfloat16):
                net(x).float().sum().backward()
        lazyrt.mark_step()

    for dtype in (torch.float32, torch.float32, torch.bfloat16):
        net.zero_grad()
        step(dtype)

    explanation = lazyrt.explain()
    assert explanation is not None
    assert kinds(explanation) == ["input_dtype"]
    assert explanation.top.variable == "x"


def test_two_networks_that_train_in_turn_are_two_steps_and_no_change_of_mode():
    noise = torch.ones(8, 4).to(DEVICE)
    maker, judge = Net().to(DEVICE), nn.Linear(2, 1).to(DEVICE)
    optimizers = [torch.optim.Adam(each.parameters()) for each in (judge, maker)]
    lazyrt.mark_step()

    made = maker(noise)
    (judge(made.detach()).square().mean()).backward()
    optimizers[0].step()
    judge(made).square().mean().backward()
    optimizers[1].step()

    explanation = lazyrt.explain()
    assert explanation is not None
    assert "train_eval" not in kinds(explanation)
