import asyncio
import threading

import pytest
import torch

import lazyrt
from lazyrt.errors import StepSyncError, UsageError
from lazyrt.ir import active
from lazyrt.observe import events
from tests.harness import DEVICE, recorded


def work():
    return torch.ones(2, device=DEVICE) * 3


@pytest.mark.not_eager("counts graphs and executions of steps")
def test_a_step_ends_in_a_barrier():
    with (
        recorded(
            events.StepStarted, events.BarrierFinished, events.StepFinished
        ) as found,
        lazyrt.step("train"),
    ):
        y = work()
        assert lazyrt.is_pending(y)

    started, barrier, finished = found
    assert not lazyrt.is_pending(y)
    assert (started.name, finished.name) == ("train", "train")
    assert barrier.cause == "end of step train"
    assert barrier.site.function == "test_a_step_ends_in_a_barrier"
    assert not finished.failed
    assert started.step == finished.step
    assert finished.duration_ns > 0


def test_a_step_without_a_name_works():
    with recorded(events.BarrierFinished) as found, lazyrt.step():
        y = work()

    assert found[0].cause == "end of step"
    assert y.tolist() == [3.0, 3.0]


def test_a_step_on_a_line_of_its_own_says_that_it_did_nothing():
    y = work()
    with pytest.warns(UserWarning, match="call lazyrt.mark_step") as found:
        lazyrt.step()

    assert found[0].filename == __file__
    assert y.tolist() == [3.0, 3.0]
    unused = lazyrt.step("train")
    assert repr(unused).startswith("lazyrt.step('train'): no block was run in it")
    with unused:
        pass
    assert repr(unused) == "lazyrt.step('train')"


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_a_decorated_function_is_a_step_of_its_name():
    @lazyrt.step()
    def train(factor, *, offset=0):
        """Train."""
        return work() * factor + offset

    with recorded(events.StepFinished) as found:
        y = train(2, offset=1)

    assert y.tolist() == [7.0, 7.0]
    assert found[0].name.endswith("train")
    assert train.__name__ == "train"
    assert train.__doc__ == "Train."
    assert lazyrt.counters()["executions"] == 1


def test_a_decorator_may_give_another_name():
    @lazyrt.step("epoch")
    def train():
        return work()

    with recorded(events.StepFinished) as found:
        train()
        train()

    assert [event.name for event in found] == ["epoch", "epoch"]


def test_decorated_functions_may_call_themselves():
    @lazyrt.step("down")
    def down(n):
        y = work() + n
        return y if n == 0 else down(n - 1) + y

    with recorded(events.StepFinished) as found:
        assert down(2).tolist() == [12.0, 12.0]

    assert len(found) == 3


def test_methods_can_be_decorated():
    class Trainer:
        @lazyrt.step("method")
        def train(self, factor):
            return work() * factor

    assert Trainer().train(2).tolist() == [6.0, 6.0]


def test_a_coroutine_function_is_one_step():
    @lazyrt.step("async")
    async def train():
        y = work()
        await asyncio.sleep(0)
        return y + 1

    with recorded(events.StepFinished, events.BarrierFinished) as found:
        y = asyncio.run(train())

    assert [type(event).__name__ for event in found] == [
        "BarrierFinished",
        "StepFinished",
    ]
    assert not lazyrt.is_pending(y)
    assert asyncio.iscoroutinefunction(train)


def test_two_coroutines_may_be_in_steps_at_once():
    ends = []

    @lazyrt.step("slow")
    async def slow(first, second):
        y = work()
        await first.wait()
        second.set()
        ends.append("slow")
        return y

    @lazyrt.step("fast")
    async def fast(first, second):
        y = work() * 2
        first.set()
        await second.wait()
        ends.append("fast")
        return y

    async def both():
        first, second = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(slow(first, second), fast(first, second))

    with recorded(events.StepFinished) as found:
        a, b = asyncio.run(both())

    assert ends == ["slow", "fast"]
    assert [event.name for event in found] == ["slow", "fast"]
    assert (a.tolist(), b.tolist()) == ([3.0, 3.0], [6.0, 6.0])


def generator():
    yield 1


async def async_generator():
    yield 1


@pytest.mark.parametrize("function", [generator, async_generator])
def test_a_generator_function_is_refused_with_the_way_out(function):
    with pytest.raises(UsageError, match=r"`with step\(\):` around the work between"):
        lazyrt.step()(function)


@pytest.mark.not_eager("a step has nothing pending to guard")
def test_a_step_in_a_generator_that_another_thread_closes_is_over():
    def pieces():
        with lazyrt.step("pieces"):
            yield torch.ones(2, device=DEVICE) * 2
            yield None

    left = pieces()
    y = next(left)
    assert [step.name for step in active.steps()] == ["pieces"]
    with pytest.raises(StepSyncError, match="inside the step 'pieces'"):
        y.sum().item()

    thread = threading.Thread(target=left.close)
    thread.start()
    thread.join()

    assert active.steps() == ()
    assert active.innermost() is None
    assert y.sum().item() == 4.0


def test_a_module_is_no_name_of_a_step():
    with pytest.raises(UsageError, match=r"got Linear.* as its name, which is Linear"):
        lazyrt.step(torch.nn.Linear(2, 2))


def test_an_exception_passes_unchanged_and_the_barrier_comes():
    error = ValueError("mine")

    with (  # noqa: PT012
        recorded(events.StepFinished) as found,
        pytest.raises(ValueError, match="mine") as caught,
        lazyrt.step("broken"),
    ):
        y = work()
        raise error

    assert caught.value is error
    assert not lazyrt.is_pending(y)
    assert found[0].failed


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_a_failing_barrier_does_not_mask_the_exception(monkeypatch):
    from lazyrt.execution import executor

    def fail(plan):
        raise OSError("no memory")

    y = work()
    with monkeypatch.context() as patch:
        patch.setattr(executor, "run_plan", fail)
        with pytest.raises(ValueError, match="mine") as caught, lazyrt.step():  # noqa: PT012
            y = work() + 1
            raise ValueError("mine")

    assert any("no memory" in note for note in caught.value.__notes__)
    assert y.tolist() == [4.0, 4.0]


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_a_failing_barrier_at_the_end_of_a_good_step_is_raised(monkeypatch):
    from lazyrt.execution import executor

    def fail(plan):
        raise OSError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(executor, "run_plan", fail)
        with pytest.raises(OSError, match="no memory"), lazyrt.step():
            y = work() + 1

    assert lazyrt.is_pending(y)
    assert y.tolist() == [4.0, 4.0]


@pytest.mark.parametrize("way", ["normal", "break", "continue", "return"])
def test_nothing_is_pending_however_a_step_ends(way):
    def run():
        for _ in range(1):
            with lazyrt.step():
                y = work()
                if way == "break":
                    break
                if way == "continue":
                    continue
                if way == "return":
                    return y
        return y

    with recorded(events.StepFinished) as found:
        y = run()

    assert not lazyrt.is_pending(y)
    assert lazyrt.status().pending_ops == 0
    assert not found[0].failed


def test_steps_may_be_nested():
    with (
        recorded(events.StepFinished, events.BarrierFinished) as found,
        lazyrt.step("outer"),
    ):
        x = work()
        with lazyrt.step("inner"):
            y = x + 1
        z = y + 1

    assert [getattr(event, "name", None) or event.cause for event in found] == [
        "end of step inner",
        "inner",
        "end of step outer",
        "outer",
    ]
    assert z.tolist() == [5.0, 5.0]


def test_one_step_object_can_be_used_again_and_inside_itself():
    again = lazyrt.step("again")

    with recorded(events.StepFinished) as found:
        with again, again:
            work()
        with again:
            work()

    assert [event.name for event in found] == ["again"] * 3


def test_an_empty_step_executes_nothing():
    with recorded(events.BarrierFinished) as found, lazyrt.step():
        pass

    assert not found[0].executed
    assert lazyrt.counters()["executions"] == 0
    assert lazyrt.counters()["steps"] == 1


@pytest.mark.lazy_only("counts graphs and executions of steps")
def test_an_allowed_read_inside_a_step_is_a_barrier_and_costs_nothing_twice():
    with lazyrt.step(on_read="allow"):
        y = work()
        assert y.tolist() == [3.0, 3.0]

    assert lazyrt.counters()["executions"] == 1


def test_steps_of_two_threads_do_not_disturb_each_other():
    from concurrent.futures import ThreadPoolExecutor

    def train(number):
        total = 0.0
        for _ in range(5):
            with lazyrt.step(f"thread {number}"):
                y = work() * number
            total += y.sum().item()
        return total

    with ThreadPoolExecutor(3) as pool:
        totals = list(pool.map(train, range(1, 4)))

    assert totals == [30.0, 60.0, 90.0]


def test_one_step_object_may_be_open_in_two_coroutines():
    import asyncio

    shared = lazyrt.step("shared")

    async def run(before, inside):
        await asyncio.sleep(before)
        with shared:
            await asyncio.sleep(inside)
        return active.steps()

    async def both():
        return await asyncio.gather(run(0, 0.03), run(0.01, 0.05))

    assert asyncio.run(both()) == [(), ()]
    assert shared._entered == []


def test_a_number_that_is_none_is_refused():
    with pytest.raises(UsageError, match="step_num='third', which is str"):
        lazyrt.step("train", "third")  # type: ignore[call-overload]
