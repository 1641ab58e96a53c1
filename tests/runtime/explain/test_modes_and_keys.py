"""Modes, and the same graph compiled again: its device, layout, tier, memory or lost executable."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import lazyrt
from lazygraph.explain.why import differences
from tests.harness import DEVICE
from tests.runtime.explain.shared import compiles_of, latest, ones, the_cause

pytestmark = [
    pytest.mark.lazy_only("is about compiled steps"),
    pytest.mark.usefixtures("cold"),
]


def run(x):
    with lazyrt.step():
        return (x * 2).exp().sum()


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("device", "tpu: v5", "device"),
        ("sharding", "4 devices by rows", "sharding"),
        ("tier", "optimised", "compile tier"),
        ("mode", "eager", "mode"),
    ],
)
def test_what_the_key_says_of_the_same_graph_is_the_cause(field, value, named):
    """There is one device: the key's slot is filled by hand."""
    run(ones(4))
    (record,) = lazyrt.compiled_graphs()
    was = getattr(record.key, field)
    changed: dict[str, Any] = {field: value}
    other = dataclasses.replace(record, key=dataclasses.replace(record.key, **changed))

    (cause,), unexplained = differences(record, other)

    assert cause.kind == field
    assert cause.text == f"the {named} is {value}, was {was} for graph.1"
    assert cause.fix.endswith("; each one costs a compile")
    assert cause.now is not None
    assert cause.before is not None
    assert unexplained == 0


def test_an_executable_that_was_dropped_is_named_with_the_step_that_compiled_it():
    x = ones(4)
    run(x)
    lazyrt.clear_caches()
    run(x)

    cause = the_cause("cache_evicted")
    assert cause.text.startswith("graph.1 was compiled before, in step ")
    assert "`config.max_executables`" in cause.fix


@pytest.mark.parametrize("part", ["module", "forward"])
def test_what_a_debug_mode_ran_by_itself_is_the_only_cause(part):
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)).to(DEVICE)
    x = ones(4, 8)

    def step():
        with lazyrt.step():
            return model(x).exp().sum()

    def by_itself():
        if part == "module":
            with lazyrt.eager_module(model[0]):
                step()
        else:
            with lazyrt.step():
                with lazyrt.eager_mode():
                    hidden = model[0](x)
                return model[2](model[1](hidden)).exp().sum()
        return None

    step()
    kept = by_itself()

    cause = the_cause("mode")
    assert cause.text.startswith("the mode is `eager`, was `lazy` for graph.")
    assert "leave the mode as it is over whole steps" in cause.fix
    assert cause.now is not None
    assert compiles_of(step) == 0
    del kept


def test_a_mode_that_ran_nothing_of_the_step_is_no_cause():
    run(ones(4))
    five = ones(5)
    with lazyrt.eager_mode():
        other = torch.ones(3).to(DEVICE) + 1
    lazyrt.mark_step()
    run(five)

    the_cause("input_shape")
    assert other.sum().item() == 6


@pytest.mark.parametrize("drops", [False, True])
def test_memory_that_something_else_holds_is_a_donation_with_both_names(drops):
    """A checkpoint that is loaded shares its memory with what it was loaded into."""
    state = ones(8)

    def add_one():
        with lazyrt.step():
            state.add_(1)

    add_one()
    saved = state.clone()
    lazyrt.mark_step()
    state.copy_(saved)
    if drops:
        del saved
    add_one()

    cause = the_cause("donation")
    assert "`state` is overwritten in place, but " in cause.text
    told = "its data came from `saved`" if drops else "`saved` also holds its data"
    assert cause.text.endswith(told)
    assert cause.variable == "state"
    assert ("after the copy" if drops else "drop the other reference") in cause.fix


def test_the_order_of_creation_and_dead_code_compile_nothing():
    x = ones(8)
    makers = [x.exp, x.sin, lambda: x * 3, lambda: x.tanh() + 2]

    def step(shift):
        with lazyrt.step():
            for number in range(shift):
                torch.full((), 9.0 + number, device=DEVICE)
            kept = [makers[(k + shift) % 4]() for k in range(4)]
        del kept

    step(0)

    assert sum(compiles_of(step, shift) for shift in (1, 2, 3)) == 0


def test_a_copy_of_weights_names_what_holds_their_data_too():
    source, target = ones(4), ones(4)

    def step(*, copies):
        with lazyrt.step():
            out = (source * target).sum()
            source.add_(1)
            if copies:
                target.copy_(source)
            return out

    for copies in (False, True, False):
        step(copies=copies)

    assert "but `target` also holds its data" in latest().text


def test_an_average_that_begins_with_a_copy_of_the_weights_is_named():
    """The copy waits for the next step, and is no value of its own before."""
    weight, averaged = ones(4), ones(4)

    def train():
        with lazyrt.step():
            weight.mul_(2)

    train()
    averaged.copy_(weight)
    train()

    assert "but `averaged` also holds its data" in the_cause("donation").text
