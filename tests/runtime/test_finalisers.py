"""Code of the user's that a collection runs in the middle of an op."""

import gc
import types
import weakref
from typing import Any

import pytest
import torch
from torch.nn.functional import linear

import lazyrt
from lazyrt.config import config
from lazyrt.ir import live
from lazyrt.observe.events import BarrierFinished, OpRecorded


class InTheMiddle:
    """Calls a function once, where a collection could call a finaliser."""

    def __init__(self, function):
        self.function = function
        self.results = []

    def __call__(self, *_):
        function, self.function = self.function, None
        if function is not None:
            self.results.append(function())


@pytest.fixture(params=["numbering", "recorded"])
def interrupt(request, monkeypatch):
    """Return what lets a function be called in the middle of the next op.

    That is while the op numbers its first input, or once it has found its value.
    """
    subscriptions = []

    def begin(function):
        called = InTheMiddle(function)
        if request.param == "recorded":
            subscriptions.append(lazyrt.subscribe(called, OpRecorded))
        else:
            patched = types.SimpleNamespace(ref=lambda x: (called(), weakref.ref(x))[1])
            monkeypatch.setattr(live, "weakref", patched)
        return called.results

    yield begin
    for subscription in subscriptions:
        subscription.close()


def fresh(*numbers):
    return torch.tensor(numbers).to("lazyrt")


class Between(list[Any]):
    """Inputs before the next of which an op of a finaliser's brings its own."""

    def __init__(self, function):
        super().__init__()
        self.called = InTheMiddle(function)

    def append(self, item):
        self.called()
        super().append(item)


@pytest.mark.parametrize("numbered", ["inputs", "floats", "rng"])
def test_an_op_between_a_number_and_its_input_has_a_number_of_its_own(
    monkeypatch, numbered
):
    x, y = fresh(1.0, 2.0), fresh(3.0, 4.0)
    generator = torch.Generator(device="lazyrt").manual_seed(1)
    later = generator.clone_state()
    ops = {
        "inputs": lambda t, _: t + 1,
        "floats": lambda t, _: t.clone().mul_(0.25 if t is x else 0.75),
        "rng": lambda t, g: t + torch.rand(2, generator=g, device="lazyrt"),
    }
    op = ops[numbered]
    lazyrt.mark_step()
    expected = [op(x, later).tolist(), op(y, later).tolist()]
    lazyrt.mark_step()  # op by op, reads leave inputs numbered
    between = Between(lambda: op(y, generator))
    monkeypatch.setattr(live.pending, numbered, between)

    own = op(x, generator)

    (other,) = between.called.results
    assert [own.tolist(), other.tolist()] == expected


def record_one(a, b, c):
    return torch.addcmul(a, b, c, value=0.25)


def test_a_finaliser_that_reads_leaves_the_op_beneath_it_its_inputs(interrupt):
    operands = fresh(0.5, 0.5), fresh(1.0, 2.0), fresh(10.0, 20.0)
    looked_at = fresh(3.0) * 2
    barriers: list[Any] = []

    with lazyrt.subscribe(barriers.append, BarrierFinished):
        seen = interrupt(looked_at.item)
        result = record_one(*operands)

    assert (seen, barriers) == ([6.0], [])
    assert lazyrt.is_pending(looked_at) != config.eager
    assert torch.equal(result.cpu(), torch.tensor([3.0, 10.5]))


def test_a_finaliser_that_records_ops_leaves_the_op_beneath_it_its_inputs(interrupt):
    operands = fresh(0.5, 0.5), fresh(1.0, 2.0), fresh(10.0, 20.0)
    own = fresh(3.0, 4.0), fresh(1.0, 1.0)

    def record():
        return ((own[0] * 1.5 + own[1]).sum() * 2.5).item()

    seen = interrupt(record)
    result = record_one(*operands)

    assert seen == [31.25]
    assert torch.equal(result.cpu(), torch.tensor([3.0, 10.5]))


@pytest.mark.parametrize(
    "barrier", [lazyrt.mark_step, torch.get_device_module("lazyrt").synchronize]
)
def test_a_finaliser_that_asks_for_a_barrier_leaves_it_to_the_next_one(
    interrupt, barrier
):
    operands = fresh(0.5, 0.5), fresh(1.0, 2.0), fresh(10.0, 20.0)

    asked = interrupt(barrier)
    result = record_one(*operands)

    assert asked == [None]
    assert lazyrt.is_pending(result) != config.eager
    assert torch.equal(result.cpu(), torch.tensor([3.0, 10.5]))


def test_a_step_in_a_finaliser_leaves_the_op_beneath_it_its_inputs(interrupt):
    operands = fresh(0.5, 0.5), fresh(1.0, 2.0), fresh(10.0, 20.0)
    own = fresh(3.0, 4.0)

    @lazyrt.step()
    def double():
        return own * 2

    made = interrupt(double)
    result = record_one(*operands)

    assert torch.equal(result.cpu(), torch.tensor([3.0, 10.5]))
    assert torch.equal(made[0].cpu(), torch.tensor([6.0, 8.0]))


def test_a_finaliser_whose_op_runs_on_the_cpu_leaves_the_op_beneath_it_its_inputs(
    interrupt,
):
    operands = fresh(0.5, 0.5), fresh(1.0, 2.0), fresh(10.0, 20.0)
    own = fresh(0.0, 3.0, 4.0)

    found = interrupt(lambda: (own * 2).nonzero().shape)
    result = record_one(*operands)

    assert found == [(2, 1)]
    assert torch.equal(result.cpu(), torch.tensor([3.0, 10.5]))


@pytest.mark.parametrize("op", [record_one, lambda a, b, _: linear(a, b.view(1, 2))])
def test_a_finaliser_beyond_the_limit_of_pending_ops_runs_no_barrier(interrupt, op):
    operands = fresh(0.5, 0.5), fresh(1.0, 2.0), fresh(10.0, 20.0)
    own = fresh(3.0, 4.0)
    barriers: list[Any] = []

    def record():
        with lazyrt.config.scoped(max_pending_nodes=1):
            kept.append([own * 2, own * 3, own * 4])

    kept: list[Any] = []
    with lazyrt.subscribe(barriers.append, BarrierFinished):
        interrupt(record)
        result = op(*operands)

    assert (len(kept), barriers) == (1, [])
    assert torch.equal(result.cpu(), op(*[each.cpu() for each in operands]))


def test_random_ops_of_a_finaliser_draw_states_of_their_own(interrupt):
    with lazyrt.subscribe(lambda _: None, OpRecorded):
        drawn = interrupt(lambda: torch.rand(4, device="lazyrt"))
        first = torch.rand(4, device="lazyrt") + fresh(0.0)
        second = torch.rand(4, device="lazyrt")

    values = [tuple(t.tolist()) for t in (first, second, *drawn)]
    assert len(set(values)) == 3


def test_the_step_that_a_finaliser_reads_in_is_the_same_graph(interrupt):
    def step():
        one, two = fresh(1.0, 2.0), fresh(10.0, 20.0)
        return (torch.addcmul(one, one, two) * two).exp()

    looked_at = fresh(3.0) * 2
    lazyrt.mark_step()
    kept = step()
    alone = lazyrt.pending_graph().fingerprint
    del kept
    lazyrt.mark_step()

    seen = interrupt((looked_at * 2).sum().item)
    kept = step()

    assert seen == [12.0]
    assert lazyrt.pending_graph().fingerprint == alone
    del kept


@pytest.mark.lazy_only("counts barriers")
def test_a_read_in_a_barrier_hook_is_a_barrier_of_its_own():
    """It is in the middle of nothing: the barrier that calls it has not begun."""
    x = fresh(1.0) + 1
    barriers: list[Any] = []
    with (
        lazyrt.on_barrier(lambda _: x.item()),
        lazyrt.subscribe(barriers.append, BarrierFinished),
    ):
        lazyrt.mark_step()

    assert [event.cause for event in barriers] == ["read by .item()", "mark_step()"]


def test_a_finaliser_that_a_collection_calls_reads_its_tensor():
    class Ring:
        def __init__(self, tensor):
            self.itself = self
            self.tensor = tensor

        def __del__(self):
            seen.append(self.tensor.item())

    seen: list[float] = []
    wrong: list[int] = []
    before = gc.get_threshold()
    operands = fresh(0.5, 0.5), fresh(1.0, 2.0), fresh(10.0, 20.0)
    try:
        for threshold in range(1, 16):
            gc.collect()
            Ring(fresh(3.0) * 2)
            gc.set_threshold(threshold)
            results = [record_one(*operands) * k for k in (1, 2, 3)]
            gc.set_threshold(0)
            wrong += [
                k
                for k, result in enumerate(results, 1)
                if not torch.equal(result.cpu(), torch.tensor([3.0, 10.5]) * k)
            ]
    finally:
        gc.set_threshold(*before)

    assert seen == [6.0] * len(seen)
    assert seen
    assert wrong == []
