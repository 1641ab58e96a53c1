"""Step closures, synchronous and asynchronous: order, values, failures, room."""

import gc
import logging
import threading
from collections import deque
from typing import Any

import pytest
import torch

import lazyrt
from lazyrt.config import config
from lazyrt.control import closures
from lazyrt.errors import StepSyncError, UsageError
from lazyrt.observe import events
from tests.harness import DEVICE, recorded


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    lazyrt.wait_for_closures(30)
    closures._outside.clear()


def work(factor=1):
    return torch.ones(2, device=DEVICE).sum() * factor


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_closures_run_after_the_barrier_in_order_and_share_one_execution():
    seen: list[Any] = []

    def note(name, tensor):
        assert not lazyrt.is_pending(tensor)
        seen.append((name, tensor.item()))

    with lazyrt.step():
        loss = work()
        lazyrt.add_step_closure(note, ("first", loss))
        lazyrt.add_step_closure(note, args=("second",), kwargs={"tensor": loss * 2})
        lazyrt.add_step_closure(lambda: note("third", loss))
        assert seen == []

    assert seen == [("first", 2.0), ("second", 4.0), ("third", 2.0)]
    assert lazyrt.counters()["executions"] == 1


def test_closures_run_in_the_step_that_queued_them():
    seen: list[Any] = []

    for number in range(3):
        with lazyrt.step():
            lazyrt.add_step_closure(lambda t: seen.append(t.item()), (work(number),))
        assert len(seen) == number + 1

    assert seen == [0.0, 2.0, 4.0]


def test_an_inner_step_runs_its_own_closures_only():
    seen: list[Any] = []

    with lazyrt.step("outer"):
        lazyrt.add_step_closure(seen.append, ("outer",))
        with lazyrt.step("inner"):
            lazyrt.add_step_closure(seen.append, ("inner",))
        assert seen == ["inner"]

    assert seen == ["inner", "outer"]


def by_mark_step():
    work()
    lazyrt.mark_step()


def by_optimizer():
    weight = torch.nn.Parameter(torch.ones(2, device=DEVICE))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()


def by_loader():
    for _ in lazyrt.DeviceLoader([torch.ones(2)]):
        pass


@pytest.mark.parametrize("end", [by_mark_step, by_optimizer, by_loader])
def test_outside_of_steps_the_next_mark_runs_them(end):
    seen: list[Any] = []
    loss = work()
    lazyrt.add_step_closure(lambda: seen.append(loss.item()))
    loss.tolist()
    assert seen == []

    end()
    end()

    assert seen == [2.0]


def test_a_closure_may_queue_another_for_the_next_step():
    seen: list[Any] = []

    def first():
        seen.append("first")
        lazyrt.add_step_closure(seen.append, ("second",))

    with lazyrt.step():
        lazyrt.add_step_closure(first)
    assert seen == ["first"]
    lazyrt.mark_step()

    assert seen == ["first", "second"]


@pytest.mark.parametrize("run_async", [False, True])
def test_tensors_that_closures_hold_are_let_go(run_async):
    with lazyrt.step():
        loss = work()
        lazyrt.add_step_closure(lambda t: t.item(), (loss,), run_async=run_async)
    lazyrt.wait_for_closures(30)
    del loss
    gc.collect()

    assert lazyrt.live_tensors() == []


def test_a_failing_closure_raises_at_the_end_of_its_step_and_drops_the_rest():
    seen: list[Any] = []

    def fail():
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full") as caught, lazyrt.step():  # noqa: PT012
        y = work()
        lazyrt.add_step_closure(fail)
        lazyrt.add_step_closure(seen.append, (1,))

    assert seen == []
    assert not lazyrt.is_pending(y)
    notes = "\n".join(caught.value.__notes__)
    assert "fail that was queued at test_step_closures.py" in notes
    assert "dropped with this step: list.append" in notes


def test_a_step_that_fails_drops_its_closures_and_says_so():
    seen: list[Any] = []

    with pytest.raises(ZeroDivisionError) as caught, lazyrt.step():  # noqa: PT012
        lazyrt.add_step_closure(seen.append, (1,))
        raise ZeroDivisionError

    lazyrt.mark_step()
    assert seen == []
    assert "dropped with this step: list.append" in caught.value.__notes__[0]


def test_what_cannot_be_called_is_refused():
    with pytest.raises(UsageError, match=r"got 3.*add_step_closure\(print"):
        lazyrt.add_step_closure(3)  # type: ignore[arg-type]


# ---------------------------------------------------------------- asynchronous ones


def test_asynchronous_closures_run_on_another_thread_in_order():
    seen: list[Any] = []

    for number in range(20):
        with lazyrt.step():
            lazyrt.add_step_closure(
                lambda t: seen.append((t.item(), threading.current_thread().name)),
                (work(number),),
                run_async=True,
            )
    assert lazyrt.wait_for_closures(30)

    assert seen == [(2.0 * number, "lazyrt-closures") for number in range(20)]


def test_an_asynchronous_closure_keeps_the_values_of_its_step():
    gate = threading.Event()
    seen: list[Any] = []
    weight = torch.zeros(2).to(DEVICE)

    def note(tensors):
        gate.wait(30)
        seen.append(tensors["weight"][0].tolist())

    for _ in range(3):
        with lazyrt.step():
            weight.add_(1)
            args = ({"weight": [weight]},)
            lazyrt.add_step_closure(note, args, run_async=True)
    gate.set()
    lazyrt.wait_for_closures(30)

    assert seen == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]


def test_containers_without_tensors_reach_an_asynchronous_closure_as_they_are():
    results: list[float] = []

    def note(kept, *, also):
        kept.append(1.0)
        also["kept"].append(2.0)

    with lazyrt.step():
        lazyrt.add_step_closure(
            note, (results,), {"also": {"kept": results}}, run_async=True
        )
    lazyrt.wait_for_closures(30)

    assert results == [1.0, 2.0]


def test_the_copies_for_closures_change_neither_compiles_nor_donation():
    def run(*, closing):
        weight = torch.zeros(2).to(DEVICE)
        with recorded(events.ExecuteStarted) as found:
            for _ in range(4):
                with lazyrt.step():
                    weight.add_(1)
                    if closing:
                        lazyrt.add_step_closure(
                            lambda t: None, (weight,), run_async=True
                        )
        return [(event.fingerprint, event.donated) for event in found]

    assert run(closing=False) == run(closing=True)


def test_an_exception_reaches_the_next_barrier_with_its_traceback():
    def fail(_):
        raise OSError("disk full")

    with lazyrt.step():
        lazyrt.add_step_closure(fail, (work(),), run_async=True)
    while closures.asynchronous_depth():
        pass
    with pytest.raises(OSError, match="disk full") as caught, lazyrt.step():
        y = work()

    assert caught.traceback[-1].name == "fail"
    assert "asynchronous step closure" in caught.value.__notes__[0]
    lazyrt.mark_step()
    assert y.item() == 2.0


@pytest.mark.parametrize("raise_at", [lazyrt.mark_step, lazyrt.wait_for_closures])
def test_every_mark_raises_the_exception_of_a_closure_once(raise_at):
    def fail():
        raise OSError("disk full")

    lazyrt.add_step_closure(fail, run_async=True)
    lazyrt.mark_step()
    while closures.asynchronous_depth():
        pass

    with pytest.raises(OSError, match="disk full"):
        raise_at()
    raise_at()


def test_a_slow_closure_is_named_before_training_waits_for_it(caplog):
    gate = threading.Event()
    seen: list[Any] = []

    def slow():
        gate.wait(30)
        seen.append(1)

    def queue_one():
        with lazyrt.step():
            lazyrt.add_step_closure(slow, run_async=True)

    def train():
        for _ in range(8):
            queue_one()

    with (
        config.scoped(max_async_closures=4),
        caplog.at_level(logging.WARNING, logger="lazyrt"),
    ):
        thread = threading.Thread(target=train)
        thread.start()
        while closures.asynchronous_depth() < 5:
            pass
        thread.join(0.05)
        assert thread.is_alive()
        assert closures.asynchronous_depth() == 5
        assert closures.asynchronous_age_ns() > 0
        assert "slow that was queued at test_step_closures.py" in caplog.text
        assert "of at most 4 wait" in caplog.text
        gate.set()
        thread.join(30)

    lazyrt.wait_for_closures(30)
    assert seen == [1] * 8


@pytest.mark.not_eager("counts graphs and executions of steps")
def test_a_pending_tensor_in_an_asynchronous_closure_is_an_error_not_a_cut():
    gate = threading.Event()
    weight = torch.zeros(2).to(DEVICE)

    def read_global():
        gate.wait(30)
        weight.tolist()

    with lazyrt.step():
        lazyrt.add_step_closure(read_global, run_async=True)
    with recorded(events.BarrierFinished) as found:
        weight.add_(1)
        gate.set()
        with pytest.raises(StepSyncError, match="in `args`: those keep the values"):
            lazyrt.wait_for_closures(30)

    assert found == []
    assert weight.tolist() == [1.0, 1.0]


def test_waiting_for_closures_gives_up_in_time():
    gate = threading.Event()
    lazyrt.add_step_closure(lambda: gate.wait(30), run_async=True)
    lazyrt.mark_step()

    assert not lazyrt.wait_for_closures(0.01)
    gate.set()
    assert lazyrt.wait_for_closures(30)


def test_a_closure_that_would_wait_for_itself_is_told_so():
    with lazyrt.step():
        lazyrt.add_step_closure(lazyrt.wait_for_closures, (5,), run_async=True)

    with pytest.raises(UsageError, match="would wait for itself"):
        lazyrt.wait_for_closures(30)


def test_closures_tell_how_long_they_waited_and_took():
    with recorded(events.ClosureFinished) as found, lazyrt.step():
        lazyrt.add_step_closure(lambda: None)

    (event,) = found
    assert "<lambda>" in event.name
    assert not event.asynchronous
    assert not event.failed
    assert event.waited_ns > 0
    assert event.duration_ns > 0


def test_a_closure_that_an_asynchronous_one_queues_runs_after_the_next_mark():
    seen = []

    def outer():
        seen.append("outer")
        lazyrt.add_step_closure(lambda: seen.append("inner"))

    with lazyrt.step():
        lazyrt.add_step_closure(outer, run_async=True)
    lazyrt.wait_for_closures(30)
    assert seen == ["outer"]

    lazyrt.mark_step()

    assert seen == ["outer", "inner"]


@pytest.mark.parametrize("args", [torch.ones(()), torch.ones(2), "loss", 5])
def test_arguments_that_are_no_sequence_are_refused(args):
    with pytest.raises(UsageError, match=r"into a tuple.*print, \(loss,\)"):
        lazyrt.add_step_closure(print, args)


def test_a_closure_that_is_queued_while_others_are_taken_is_kept(monkeypatch):
    class Busy(deque[Any]):
        """A queue to which another thread appends while the first closure is taken."""

        def popleft(self):
            found = super().popleft()
            if found is first:
                self.append(second)
            return found

    seen: list[str] = []
    first, second = (
        closures.Closure(seen.append, (name,), {}, None, asynchronous=False)
        for name in ("a", "b")
    )
    monkeypatch.setattr(closures, "_outside", Busy([first]))

    closures.run_queued()
    assert seen == ["a"]
    closures.run_queued()
    assert seen == ["a", "b"]
