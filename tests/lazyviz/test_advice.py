"""What a profile advises: to load batches ahead and to read less often, with what that would bring."""

import linecache
import queue
import threading
import time
from typing import Any

import pytest
import torch

import lazyrt
import lazyviz
from lazyrt.observe import events
from lazyrt.observe.events import SourceLocation
from lazyrt.tools import Pause
from lazyviz.timing import advice
from lazyviz.timing.gaps import Noted
from tests.harness import DEVICE

MS = 1_000_000
ME = 7
LOOP = SourceLocation("train.py", 4, "train")


def idle(_start, _end):
    return 0


def loaded(*, waits, loads, rest, prefetch=0, workers=0, thread=ME):
    """Return what a loader tells: each batch after a wait, then the rest of a step."""
    now, noted = 0, []
    for wait, load in zip(waits, loads, strict=True):
        now += wait * MS
        event = events.BatchLoaded(
            waited_ns=wait * MS,
            load_ns=load * MS,
            prefetch=prefetch,
            workers=workers,
            site=LOOP,
        )
        noted.append(Noted(event, now, thread))
        now += rest * MS
    return noted


def test_a_loop_that_waits_for_its_loader_is_input_bound_and_told_what_hides_it():
    noted = loaded(waits=[90, 20, 20, 20], loads=[90, 20, 20, 20], rest=30)

    (found,) = advice.input_times(noted, [], ME, idle)

    assert (found.batches, found.share, found.at_once, found.depth) == (3, 0.4, 1, 1)
    assert found.prefetched_ns == 30 * MS
    assert found.sentence == (
        "Input-bound 40 %: the loop at train.py:4 waits 20 ms for each batch, and the rest of a "
        "step takes 30 ms. Loading a batch takes 20 ms at train.py:4. "
        "lazyrt.DeviceLoader(loader, prefetch=1) loads while the step runs and hides it: about "
        "30 ms instead of 50 ms a step."
    )


def test_loads_of_varying_length_ask_for_more_batches_ahead():
    noted = loaded(waits=[20, 20, 70, 20], loads=[20, 20, 70, 20], rest=30)

    (found,) = advice.input_times(noted, [], ME, idle)

    assert found.depth == 3


def test_a_loader_slower_than_the_step_needs_several_loads_at_once():
    noted = loaded(waits=[50] * 4, loads=[50] * 4, rest=33)

    (found,) = advice.input_times(noted, [], ME, idle)

    assert round(found.share, 1) == 0.6
    assert "prefetch=2) loads while the step runs: about 50 ms instead of 83 ms" in (
        found.sentence
    )
    assert found.sentence.endswith(
        "num_workers=2) loads 2 at once, so that the loop waits for none."
    )


def test_with_prefetch_that_hides_the_loads_nothing_is_said():
    noted = loaded(waits=[20, 1, 1, 1], loads=[20] * 4, rest=30, prefetch=2)

    (found,) = advice.input_times(noted, [], ME, idle)

    assert found.sentence == ""


def test_prefetch_that_cannot_keep_up_is_not_advised_again():
    noted = loaded(waits=[50, 40, 40, 40], loads=[70] * 4, rest=30, prefetch=2)

    (found,) = advice.input_times(noted, [], ME, idle)

    assert "2 batches ahead do not help, since loading is slower" in found.sentence
    assert "DeviceLoader" not in found.sentence
    assert "num_workers=3" in found.sentence


def test_workers_that_cannot_keep_up_are_counted():
    ahead = loaded(
        waits=[50, 10, 10, 10], loads=[40] * 4, rest=30, prefetch=2, workers=2
    )
    plain = loaded(waits=[50, 10, 10, 10], loads=[10] * 4, rest=30, workers=2)

    for noted, what in ((ahead, "2 batches ahead"), (plain, "2 workers")):
        (found,) = advice.input_times(noted, [], ME, idle)
        assert found.at_once == 3  # each of the two loads one in 80 ms
        assert f"{what} do not help, since loading is slower" in found.sentence
        assert "num_workers=3" in found.sentence


def test_a_wait_in_which_the_device_works_is_not_input_bound():
    noted = loaded(waits=[20] * 4, loads=[20] * 4, rest=5)

    (found,) = advice.input_times(noted, [], ME, lambda start, end: end - start)

    assert found.share == 0
    assert found.rest_ns == 25 * MS
    assert found.sentence == ""


def test_one_batch_and_another_thread_say_nothing():
    assert advice.input_times(loaded(waits=[9], loads=[9], rest=1), [], ME, idle) == []
    others = loaded(waits=[9, 9], loads=[9, 9], rest=1, thread=8)
    assert advice.input_times(others, [], ME, idle) == []


# A loop over something else than a DeviceLoader: where the thread is in the pauses.

SOURCE = """\
def load():
    time.sleep(0.02)

def train(loader):
    for batch in loader:
        with lazyrt.step():
            loss = model(batch)
    for row in table:
        print(row)
"""


@pytest.fixture
def source(monkeypatch):
    lines = SOURCE.splitlines(keepends=True)
    monkeypatch.setitem(
        linecache.cache, "prog.py", (len(SOURCE), None, lines, "prog.py")
    )
    advice._loops.cache_clear()
    yield
    advice._loops.cache_clear()


def at(line, function="train"):
    return SourceLocation("prog.py", line, function)


def pause(start, end, *samples, after, is_waiting=False):
    from lazyrt.frontend.tracing import Sample

    part = (end - start) / max(len(samples), 1)
    every = tuple(
        Sample(int((start + (k + 0.5) * part) * MS), lines, is_waiting=is_waiting)
        for k, lines in enumerate(samples)
    )
    return Pause(start * MS, end * MS, every, after)


BODY = (at(7),)
LOADS = (at(2, "load"), at(5))


def test_a_plain_loop_waits_where_its_for_asks_for_the_next_batch(source):
    pauses = [pause(50 * k, 50 * k + 20, LOADS, LOADS, after=BODY) for k in range(4)]
    pauses[2] = pause(100, 120, after=BODY)  # nobody looked: it is as before

    (found,) = advice.input_times([], pauses, ME, idle)

    assert (found.at, found.loads_at) == ("prog.py:5", "prog.py:2")
    assert (found.batches, found.period_ns, found.waited_ns) == (3, 50 * MS, 20 * MS)
    assert found.share == 0.4


def test_only_the_part_of_a_pause_at_the_for_counts(source):
    pauses = [pause(50 * k, 50 * k + 20, LOADS, (at(6),), after=BODY) for k in range(3)]

    (found,) = advice.input_times([], pauses, ME, idle)

    assert found.waited_ns == 10 * MS


def test_a_for_that_records_nothing_next_is_no_input(source):
    pauses = [
        pause(50 * k, 50 * k + 20, (at(8),), after=(at(3, "load"),)) for k in range(3)
    ]

    assert advice.input_times([], pauses, ME, idle) == []


def test_a_loop_that_waits_for_workers_is_told_how_many_more_hide_it(source):
    pauses = [
        pause(50 * k, 50 * k + 10, (at(5),), after=BODY, is_waiting=True)
        for k in range(3)
    ]

    (found,) = advice.input_times([], pauses, ME, idle)

    assert (found.loads_at, found.share) == ("", 0.2)
    assert found.sentence == (
        "Input-bound 20 %: the loop at prog.py:5 waits for another thread or process. If these load "
        "all the time, as a DataLoader's workers do, 1.2 times as many of them hide it, and the loop "
        "takes 80 % of its time. If they load when they are asked, lazyrt.DeviceLoader(loader) asks "
        "ahead, while the step runs."
    )


# --------------------------------------------------------------------------------- reads


def read(now, waited, copied=1, line=12):
    site = SourceLocation("train.py", line, "train")
    wait = events.WaitFinished(
        fingerprint="a", purpose="step", phase="execute", duration_ns=waited * MS
    )
    copy = events.TransferFinished(
        direction="to_host", nbytes=4, duration_ns=copied * MS, site=site
    )
    return [Noted(wait, (now - copied) * MS, ME), Noted(copy, now * MS, ME)]


def test_reads_in_each_step_are_told_with_what_fewer_would_bring():
    noted = [each for k in range(1, 5) for each in read(100 * k, 39)]

    (found,) = advice.read_times(
        noted, ME, lambda start, end: (end - start) * 45 // 100
    )

    assert (found.reads, found.period_ns, found.waited_ns) == (3, 100 * MS, 40 * MS)
    assert found.device_ns == 45 * MS
    assert found.predicted_ns(1) == 100 * MS
    assert found.predicted_ns(10) == (100 + 9 * 60) / 10 * MS
    assert found.sentence.startswith(
        "The read at train.py:12 waits 40 ms in each step of 100 ms, so recording the next step "
        "does not overlap"
    )
    assert "every 10: 64 ms, every 100: 60 ms" in found.sentence


def test_what_fewer_reads_bring_is_unknown_where_steps_vary_by_more():
    moments = (100, 150, 250, 300, 400, 450, 550)
    noted = [each for now in moments for each in read(now, 19)]

    (found,) = advice.read_times(noted, ME, lambda start, end: (end - start) // 10)

    assert found.period_ns - found.predicted_ns(10) == pytest.approx(18 * MS)
    assert found.error_ns == pytest.approx(50 * MS / 5**0.5)  # of six, 25 off the mean
    assert found.sentence.endswith(
        "What fewer reads bring is unknown: steps vary so that this average is known to ± 22 ms, "
        "which is more than would be won."
    )


def test_a_read_that_waits_for_a_busy_device_costs_little_and_is_not_told():
    noted = [each for k in range(1, 5) for each in read(100 * k, 89)]

    (found,) = advice.read_times(
        noted, ME, lambda start, end: (end - start) * 97 // 100
    )

    assert found.predicted_ns(10) == pytest.approx((100 + 9 * 97) / 10 * MS)
    assert found.sentence == ""


def test_a_single_read_says_nothing():
    assert advice.read_times(read(100, 50), ME, idle) == []


# ------------------------------------------------------------------------- a whole program


class Slow:
    """Batches that take a while each."""

    def __init__(self, count, seconds):
        self.count, self.seconds = count, seconds

    def __iter__(self):
        for _ in range(self.count):
            time.sleep(self.seconds)
            yield torch.ones(4)


def train(loader, seconds):
    x = torch.ones(4, device=DEVICE)
    for batch in loader:
        with lazyrt.step("train"):
            x = x + batch.to(DEVICE)
        time.sleep(seconds)


@pytest.mark.lazy_only("it is about steps of one execution")
def test_a_wait_for_a_thread_of_the_loader_is_told_as_such():
    given: queue.Queue[Any] = queue.Queue()

    def batches(count):
        for _ in range(count):
            threading.Timer(0.02, given.put, [torch.ones(4)]).start()
            yield given.get()

    train(batches(2), 0)
    with lazyviz.profile() as profile:
        train(batches(4), 0)

    assert [each.loads_at for each in profile.inputs] == [""]


@pytest.mark.slow
@pytest.mark.lazy_only("it is about steps of one execution")
def test_a_loop_over_a_slow_loader_is_told_and_not_with_prefetch():
    train(Slow(2, 0), 0)  # compiles
    with lazyviz.profile() as plain:
        train(Slow(8, 0.05), 0.06)
    with lazyviz.profile() as ahead:
        train(lazyrt.DeviceLoader(Slow(8, 0.05), prefetch=plain.inputs[0].depth), 0.06)

    (said,) = plain.advice
    assert said.startswith("Input-bound ")
    assert "test_advice.py" in said
    assert "prefetch=" in said
    (found,) = plain.inputs
    assert found.loads_at.endswith(f":{Slow.__iter__.__code__.co_firstlineno + 2}")
    assert found.load_ns > 45e6  # of the sleep; a busy machine sleeps longer
    assert ahead.advice == ()
    assert threading.active_count() < 50
