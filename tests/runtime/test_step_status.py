"""What is open, queued and pending, told without changing it."""

import gc
import threading

import pytest
import torch

import lazyrt
from lazyrt.observe import events
from tests.harness import DEVICE, recorded


@pytest.mark.not_eager("looks at what is pending")
def test_everything_that_is_open_is_told():
    gc.collect()
    before = lazyrt.status()
    x = torch.ones(4).to(DEVICE)

    with lazyrt.step("train"), lazyrt.scope("loss"), lazyrt.scope("mse"):
        y = x * 2
        lazyrt.add_step_closure(print, ())
        lazyrt.add_step_closure(print, ())
        now = lazyrt.status()
        fingerprint = lazyrt.pending_graph().fingerprint

    assert now.steps == ("train",)
    assert now.scopes == ("loss", "mse")
    assert now.queued_closures == 2
    assert (now.pending_ops, now.pending_bytes) == (1, 16)
    assert now.pending_from is not None
    assert now.pending_from.function == test_everything_that_is_open_is_told.__name__
    assert now.live_tensors - before.live_tensors == 2
    assert now.live_bytes - before.live_bytes == 32
    assert fingerprint
    assert y.tolist() == [2.0] * 4


@pytest.mark.not_eager("looks at what is pending")
def test_outside_of_everything_nothing_is_open():
    x = torch.ones(4).to(DEVICE)
    with lazyrt.step("train"):
        x.add_(1)

    now = lazyrt.status()

    assert now.steps == now.scopes == ()
    assert now.pending_ops == now.pending_bytes == now.queued_closures == 0
    assert now.pending_from is None
    assert now.last_barrier is not None
    assert now.last_barrier.cause == "end of step train"


@pytest.mark.lazy_only("looks at what is pending")
def test_the_last_barrier_is_the_last_that_ran_something():
    y = torch.ones(4, device=DEVICE) * 3
    y.tolist()
    lazyrt.mark_step()

    last = lazyrt.status().last_barrier

    assert last is not None
    assert last.cause == "read by .tolist()"
    assert last.tensor == "y"


def test_asynchronous_closures_are_told_with_their_age():
    gate = threading.Event()
    for _ in range(3):
        lazyrt.add_step_closure(lambda: gate.wait(30), run_async=True)
    lazyrt.mark_step()

    now = lazyrt.status()
    gate.set()
    lazyrt.wait_for_closures(30)

    assert now.async_closures == 3
    assert now.async_age_ns > 0
    assert lazyrt.status().async_closures == 0


def test_looking_disturbs_nothing():
    kept = []

    def run(*, looking):
        with recorded(events.GraphCaptured) as found:
            kept.append(torch.rand(3, device=DEVICE) + 1)
            if looking:
                lazyrt.status()
                repr(lazyrt.status())
            lazyrt.mark_step()
        return [event.fingerprint for event in found]

    assert run(looking=True) == run(looking=False)


@pytest.mark.lazy_only("looks at what is pending")
def test_work_that_ran_twice_is_told_with_its_tensor_line_and_time():
    with recorded(events.BarrierFinished) as found, lazyrt.step():
        x = torch.ones(4, device=DEVICE)
        loss = ((x * 2).exp() + 1).sum()
        print(loss)  # noqa: T201
        _ = loss * 2

    (barrier,) = found
    (repeat,) = barrier.repeats
    assert repeat.tensor == "loss"
    assert repeat.site.function.startswith("test_work_that_ran_twice")
    assert repeat.nodes == 5
    assert barrier.nodes == 6
    assert repeat.duration_ns > 0


@pytest.mark.lazy_only("looks at what is pending")
def test_each_op_counts_for_the_first_look_that_ran_it():
    with recorded(events.BarrierFinished) as found, lazyrt.step():
        a = torch.ones(4, device=DEVICE) * 2
        repr(a)
        b = a + 1
        repr(b)
        repr(b)

    assert [(r.tensor, r.nodes) for r in found[0].repeats] == [("a", 2), ("b", 1)]


@pytest.mark.lazy_only("looks at what is pending")
def test_what_only_the_look_needed_did_not_run_twice():
    with recorded(events.BarrierFinished) as found, lazyrt.step():
        a = torch.ones(4, device=DEVICE) * 2
        lazyrt.materialise(a.exp())

    assert [r.nodes for r in found[0].repeats] == [2]


@pytest.mark.lazy_only("looks at what is pending")
def test_a_step_without_looks_and_a_barrier_by_a_read_repeat_nothing():
    with recorded(events.BarrierFinished) as found:
        with lazyrt.step():
            a = torch.ones(4, device=DEVICE) * 2
        (a + 1).tolist()

    assert [event.repeats for event in found] == [(), ()]
