"""LBFGS calls the model in the middle of its step, decides by values and keeps what it did."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import lazyrt
from tests.harness import DEVICE
from tests.runtime.causes import explained, kinds

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold_and_fast"),
]


def fit(*, mark, steps=3, **options):
    """Train by LBFGS; `mark` says where steps end: `closure`, `step` or `block`."""
    net = nn.Linear(3, 2).to(DEVICE)
    numbers = torch.Generator().manual_seed(3)
    x = torch.randn(8, 3, generator=numbers).to(DEVICE)
    y = torch.randn(8, 2, generator=numbers).to(DEVICE)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=3, **options)
    lazyrt.mark_step()

    def closure():
        optimizer.zero_grad()
        loss = functional.mse_loss(net(x), y)
        loss.backward()
        if mark == "closure":
            lazyrt.mark_step()
        return loss

    for _ in range(steps):
        if mark == "block":
            with lazyrt.step(on_read="allow"):
                optimizer.step(closure)
        else:
            optimizer.step(closure)
            lazyrt.mark_step()


@pytest.mark.parametrize("mark", ["closure", "step", "block"])
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_a_step_of_lbfgs_has_one_cause_and_it_is_about_lbfgs(mark, search):
    fit(mark=mark, line_search_fn=search)

    known = {"first_trace", "new_program", "donation", "fallback"}
    for explanation in explained():
        told = explanation.text
        assert (
            explanation.top.kind in known
            or "LBFGS at " in told
            or "the update " in told
        )
        assert len(explanation.causes) == 1, explanation
        assert explanation.unexplained == 0


def test_what_lbfgs_keeps_is_counted_and_its_bound_is_named():
    fit(mark="closure")

    told = [each.top for each in explained() if "earlier direction" in each.text]
    first = told[0]
    assert first.kind == "loop_count"
    assert "computes with 1 earlier direction, none in graph." in first.text
    assert "`history_size`" in first.fix
    assert any(
        "computes with 2 earlier directions, 1 in graph." in c.text for c in told
    )


def test_another_batch_beside_a_step_of_lbfgs_keeps_its_own_cause():
    net = nn.Linear(3, 2).to(DEVICE)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=1)

    def fit_one(rows):
        x = torch.ones(rows, 3).to(DEVICE)

        def closure():
            with lazyrt.step():
                optimizer.zero_grad()
                loss = net(x).square().mean()
                loss.backward()
            return loss

        optimizer.step(closure)

    for rows in (4, 4, 4, 9):
        fit_one(rows)

    assert "input_shape" in {kind for each in explained()[-3:] for kind in kinds(each)}


def test_what_lbfgs_keeps_has_the_name_of_the_optimizer():
    fit(mark="closure", steps=1)

    names = {
        name.text
        for record in lazyrt.compiled_graphs()
        if record.snapshot is not None
        for name in record.snapshot.root_names.values()
    }
    assert {"optimizer.d", "optimizer.old_dirs[0]"} <= names
