"""Of a few pairs of causes both are named, on two models.

A boundary that moved makes two graphs; together they name it and whatever changed beside it.
"""

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

import lazyrt
from tests.harness import DEVICE
from tests.runtime.explain.test_table import logger

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold"),
]


class Perceptron(nn.Module):
    """A model that is trained, with batch norm and dropout."""

    shape = (8,)
    trains = True
    eager = "body.0"

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
        self.tail = nn.Sequential(nn.Linear(6, 4), nn.Tanh())

    def first(self, x):
        return self.body(x)

    def second(self, x):
        return self.tail(x)


class Attention(nn.Module):
    """A model that is applied without gradients; in evaluation torch takes another way."""

    shape = (3, 8)
    trains = False
    eager = "embed"

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 4)
        self.block = nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.tail = nn.Sequential(nn.Linear(4, 4), nn.GELU())

    def first(self, x):
        x = self.embed(x)
        return x + self.block(x, x, x, need_weights=False)[0]

    def second(self, x):
        return self.tail(self.norm(x))


class Program:
    """A loop of steps; each method below `step` plants one cause."""

    def __init__(self, kind, mark):
        self.model = kind().to(DEVICE)
        lazyrt.mark_step()
        self.rows, self.dtype, self.slope, self.rounds = 5, torch.float32, 0.25, 2
        self.keeps, self.logs, self.closes, self.again = False, True, False, False
        self.mark = mark
        self.kept: list[Any] = []
        self.old: list[Any] = []
        self.logger: Any = None
        self.make_optimizer()

    def make_optimizer(self):
        if self.model.trains:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self):
        model, kept, old = self.model, self.kept, self.old
        kept.clear()
        old.clear()
        self.logger = None
        batch = torch.ones(self.rows, *model.shape).to(self.dtype).to(DEVICE)
        lazyrt.mark_step()
        if self.again:
            model.tail[0] = nn.Linear(model.tail[0].in_features, 4, device=DEVICE)
            self.make_optimizer()
        with torch.set_grad_enabled(model.trains):
            h = model.first(batch.float())
            if self.mark == "early":
                lazyrt.mark_step()
            for _ in range(self.rounds):
                h = torch.tanh(h) * 3 - h
            if self.mark == "late":
                lazyrt.mark_step()
            h = nn.functional.leaky_relu(h, self.slope)
            out = model.second(h)
            if self.closes:
                self.logger = logger(out.detach().amin())
            loss = out.square().mean()
            if self.keeps:
                kept.append(loss.detach().exp())
            if self.logs:
                old.append(loss.detach().sin())
        if model.trains:
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        loss = loss.detach()
        del h, out
        lazyrt.mark_step()
        return loss

    def train_or_eval(self):
        self.model.eval()

    def shape(self):
        self.rows = 7

    def dtype_of_data(self):
        self.dtype = torch.float64

    def scalar(self):
        self.slope = 0.75

    def extra_root(self):
        self.keeps = True

    def vanished_root(self):
        self.logs = False

    def module_added(self):
        self.model.tail.append(nn.Linear(4, 4).to(DEVICE))
        lazyrt.mark_step()
        self.make_optimizer()

    def module_made_again(self):
        self.again = True

    def rounds_of_a_loop(self):
        self.rounds = 4

    def closure(self):
        self.closes = True

    def cut_moved(self):
        self.mark = "late" if self.mark == "early" else "early"

    def mode(self):
        return lazyrt.eager_module(self.model.get_submodule(self.model.eager))


# The cause that each must give, and how the variable that it names begins.
CAUSES = {
    "train_or_eval": ("train_eval", ""),
    "shape": ("input_shape", "batch"),
    "dtype_of_data": ("input_dtype", "batch"),
    "scalar": ("baked_constant", "self.slope"),
    "extra_root": ("live_tensor", "kept[0]"),
    "vanished_root": ("live_tensor_gone", "old[0]"),
    "module_added": ("module_added", "model.tail.2"),
    "module_made_again": ("module_recreated", "model.tail.0"),
    "rounds_of_a_loop": ("loop_count", ""),
    "closure": ("closure", "value"),
    "mode": ("mode", ""),
    "cut_moved": ("graph_break", ""),
}


def explained_after(kind, mark, names):
    program = Program(kind, mark if "cut_moved" in names else "")
    program.step()
    program.step()
    known = len(lazyrt.compiled_graphs())
    with contextlib.ExitStack() as modes:
        for name in names:
            if name == "mode":
                modes.enter_context(program.mode())
            else:
                getattr(program, name)()
        known = len(lazyrt.compiled_graphs())
        program.step()
    found = [record.explanation for record in lazyrt.compiled_graphs()[known:]]
    assert found
    return [each for each in found if each is not None]


def check(found, names):
    told = "\n".join(map(str, found))
    causes = [cause for each in found for cause in each.causes]
    assert {cause.kind for cause in causes} == {CAUSES[name][0] for name in names}, told
    for name in names:
        kind, variable = CAUSES[name]
        mine = [cause for cause in causes if cause.kind == kind]
        assert any(cause.variable.startswith(variable) for cause in mine), told
    assert all(cause.fix for cause in causes), told
    assert sum(each.unexplained for each in found) == 0, told


def test_a_dtype_that_the_debug_mode_takes_makes_no_graph_of_its_own():
    program = Program(Attention, "")
    with program.mode():
        program.step()
        program.step()
        known = len(lazyrt.compiled_graphs())
        program.dtype_of_data()
        program.step()

    assert len(lazyrt.compiled_graphs()) == known


@pytest.mark.parametrize(
    ("kind", "mark", "one", "other"),
    [
        (Attention, "late", "scalar", "cut_moved"),
        (Attention, "late", "extra_root", "cut_moved"),
        (Attention, "late", "vanished_root", "module_added"),
        (Attention, "late", "module_added", "module_made_again"),
    ],
)
def test_of_some_pairs_both_causes_are_named_and_nothing_else(kind, mark, one, other):
    check(explained_after(kind, mark, (one, other)), (one, other))
