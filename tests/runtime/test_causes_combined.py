"""Of two causes at once both are named, each with its variable and line, whatever they are."""

import itertools
from typing import Any

import pytest
import torch
from torch import nn

import lazyrt
from tests.harness import DEVICE, cold_start
from tests.runtime.test_causes_table import kept, on_device, step, tokens

pytestmark = pytest.mark.lazy_only("is about compiled steps")


@pytest.fixture(autouse=True)
def _cold():
    cold_start()
    kept.clear()
    lazyrt.config.compile_tier = "fast"
    yield
    kept.clear()
    lazyrt.config.compile_tier = "optimised"


# What is planted in `step` of the table, the cause, and the variable that it names.
PLANTED: dict[str, tuple[dict[str, Any], str, str]] = {
    "shape": ({"rows": 5}, "input_shape", "x"),
    "dtype": ({"dtype": torch.float64}, "input_dtype", "x"),
    "number": ({"slope": 0.75}, "baked_constant", "slope"),
    "rounds": ({"rounds": 3}, "loop_count", ""),
    "branch": ({"branch": True}, "code_path", ""),
    "noise": ({"noise": True}, "rng", ""),
    "kept": ({"keep": True}, "live_tensor", "kept[0]"),
    "closure": ({"held": True}, "closure", "value"),
    "fallback": ({"odd": True}, "fallback", ""),
    "read": ({"early": True}, "step_cut", ""),
}
# One tensor that two things hold has one name; two cuts make graphs of their own.
_SAME = {("kept", "closure"), ("fallback", "read")}
PAIRS = [pair for pair in itertools.combinations(PLANTED, 2) if pair not in _SAME]


def causes_after(known):
    found = [record.explanation for record in lazyrt.compiled_graphs()[known:]]
    return [cause for each in found if each is not None for cause in each.causes]


def check(causes, kind, variable):
    mine = [cause for cause in causes if cause.kind == kind]
    assert mine, [str(cause) for cause in causes]
    assert variable in {cause.variable for cause in mine}
    for cause in mine:
        assert cause.fix
        assert cause.now is not None or cause.before is not None


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_of_each_pair_of_causes_both_are_named(one, other):
    step()
    known = len(lazyrt.compiled_graphs())
    kept.clear()
    step(**PLANTED[one][0], **PLANTED[other][0])

    causes = causes_after(known)
    for name in (one, other):
        check(causes, *PLANTED[name][1:])


class Training:
    """A small model with Adam; each method is one thing that a user changes between steps."""

    def __init__(self):
        layers = nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)
        self.model = nn.Sequential(*layers).to(DEVICE)
        self.optimizer: Any = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.rows = 4
        self.slope = 0.25
        self.history: list[Any] | None = None
        for _ in range(2):
            self.step()

    def step(self):
        model, optimizer = self.model, self.optimizer
        batch = on_device(self.rows, 8)
        lazyrt.mark_step()
        with lazyrt.step():
            optimizer.zero_grad()
            out = nn.functional.leaky_relu(model(batch), self.slope)
            loss = out.square().mean()
            loss.backward()
            optimizer.step()
            if self.history is not None:
                history = self.history
                history.append(loss.detach() * 2)
        del out, loss

    def frozen(self):
        self.model[0].requires_grad_(requires_grad=False)
        self.optimizer.zero_grad()

    def other_optimizer(self):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def evaluation(self):
        self.model.eval()

    def longer(self):
        self.model.append(nn.Linear(8, 8).to(DEVICE))
        lazyrt.mark_step()

    def smaller_batch(self):
        self.rows = 3

    def other_number(self):
        self.slope = 0.5

    def remembered(self):
        self.history = []


# Method, cause, and how the variable that it names begins.
CHANGES: dict[str, tuple[str, str]] = {
    "frozen": ("update", "model.0."),
    "other_optimizer": ("update", "model."),
    "evaluation": ("train_eval", ""),
    "longer": ("module_added", "model.3"),
    "smaller_batch": ("input_shape", "batch"),
    "other_number": ("baked_constant", ""),
    "remembered": ("live_tensor", "history[0]"),
}


def run_changed(*names):
    training = Training()
    known = len(lazyrt.compiled_graphs())
    for name in names:
        getattr(training, name)()
    training.step()
    return causes_after(known)


def check_changes(causes, names):
    for name in names:
        kind, start = CHANGES[name]
        mine = [cause for cause in causes if cause.kind == kind]
        assert mine, (name, [str(cause) for cause in causes])
        assert any(cause.variable.startswith(start) for cause in mine), name
        assert all(cause.fix for cause in mine)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_training_loop_is_named_and_nothing_else(name):
    causes = run_changed(name)

    check_changes(causes, [name])
    assert len(causes) == 1, [str(cause) for cause in causes]
    assert len(causes[0].text) < 300


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "other"),
    [
        pair
        for pair in itertools.combinations(CHANGES, 2)
        if pair != ("frozen", "other_optimizer")  # two changes of one update
    ],
)
def test_of_two_changes_of_a_training_loop_both_are_named(one, other):
    check_changes(run_changed(one, other), [one, other])


def test_accumulated_gradients_and_the_update_are_told_apart():
    model = nn.Linear(8, 8).to(DEVICE)
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    batch = on_device(4, 8)
    lazyrt.mark_step()
    for number in range(4):
        with lazyrt.step():
            model(batch).square().mean().backward()
            if number % 2:
                adam.step()
                adam.zero_grad()

    found = lazyrt.compiled_graphs()[-2].explanation
    assert found is not None
    carried, update = found.causes
    assert carried.kind == "carried_over"
    assert carried.text.startswith("2 gradients (`model.")
    assert carried.text.endswith("gradients accumulate over steps")
    assert "one graph each" in carried.fix
    assert update.kind == "update"
    assert f"the optimizer's update at {update.now} runs in this step" in update.text
    assert len(lazyrt.compiled_graphs()) == 3


def test_a_number_and_its_gradient_are_one_cause_without_digits_of_storage():
    def run(slope):
        x = on_device(4).requires_grad_()
        with lazyrt.step():
            nn.functional.leaky_relu(x, slope).sum().backward()

    run(0.1 + 0.2)
    run(0.4)

    found = lazyrt.explain()
    assert found is not None
    (cause,) = found.causes
    assert "has 0.4 where it had 0.3" in cause.text


def test_the_tokens_of_a_batch_and_a_number_are_both_named():
    """An incomplete batch changes most types; a number beside it is not lost among them."""
    table = on_device(20, 4)
    lazyrt.mark_step()

    def run(ids, slope):
        lazyrt.mark_step()
        with lazyrt.step():
            return nn.functional.leaky_relu(table[ids], slope).mean((1, 2))

    run(tokens(4), 0.1)
    run(tokens(3), 0.2)

    found = lazyrt.explain()
    assert found is not None
    assert [cause.kind for cause in found.causes] == ["input_shape", "baked_constant"]
