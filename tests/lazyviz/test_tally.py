import threading
import time

import pytest

from lazyrt.observe import events
from lazyrt.observe.events import SourceLocation
from lazyviz.render.notes import Barrier, Fallback
from lazyviz.timing.ledger import Ledger
from lazyviz.timing.tally import Tally
from tests.lazyviz import fakes


@pytest.mark.parametrize(
    ("intervals", "total"),
    [
        ([(0, 10), (10, 20)], 20),
        ([(0, 10), (5, 20)], 20),
        ([(2, 4), (6, 8), (0, 10)], 10),
        ([(0, 10), (3, 4)], 10),
        ([(2, 4), (6, 8), (3, 10)], 8),
        ([(i * 10, i * 10 + 3) for i in range(1_000)], 3_000),
    ],
)
def test_overlapping_intervals_of_one_phase_count_once(intervals, total):
    ledger = Ledger(0)

    for start, end in intervals:
        ledger.add("compile", start, end)

    assert ledger.claimed_ns == total


def test_steps_are_counted_and_peeks_are_kept_apart():
    tally = Tally()

    tally.add(fakes.compiled(reason="first run of this code"))
    tally.add(fakes.compiled(purpose="peek"))
    tally.add(fakes.started())
    tally.add(fakes.started(purpose="peek"))
    tally.add(fakes.finished(duration_ns=7_000))
    tally.add(fakes.finished(purpose="peek"))
    tally.add(events.CacheHit(fingerprint="aa", step=2))

    assert (tally.compiles, tally.executions, tally.cache_hits) == (1, 1, 1)
    assert tally.execute_ns == 7_000
    assert tally.running == 0
    assert list(tally.reasons) == ["first run of this code"]


def test_an_execution_that_has_not_ended_is_running():
    tally = Tally()

    tally.add(fakes.started())
    tally.add(fakes.started())
    tally.add(fakes.finished())

    assert tally.running == 1


def test_equal_barriers_are_one_entry_however_many():
    tally = Tally()
    site = SourceLocation("cell", 7, "<module>", 3)
    for _ in range(10_000):
        tally.add(fakes.barrier(site=site, nodes=4))
    tally.add(fakes.barrier(cause="mark_step()", nodes=2))
    tally.add(fakes.barrier(executed=False))

    assert tally.barriers == (
        Barrier(
            cause="read by .item()", site="cell 3 line 7", nodes=40_000, times=10_000
        ),
        Barrier(cause="mark_step()", site="", nodes=2),
    )
    assert tally.executed_barriers == 10_001


def test_fallbacks_are_counted_by_op_and_place():
    tally = Tally()
    for _ in range(2):
        tally.add(events.FallbackUsed(op="aten.foo", reason="no rule", site=None))

    assert tally.fallbacks == (Fallback(op="aten.foo", site="", times=2),)


@pytest.mark.parametrize(
    ("strategy", "peeks"), [("slice", 1), ("op by op", 1), ("memo", 0)]
)
def test_only_values_that_were_computed_count_as_peeks(strategy, peeks):
    tally = Tally()

    tally.add(
        events.TensorMaterialised(
            node_id=1, strategy=strategy, nodes=1, reused=0, duration_ns=9
        )
    )

    assert (tally.peeks, tally.peek_ns) == (peeks, 9)


def test_a_barrier_around_its_compile_is_not_counted_twice():
    tally = Tally(ledger=Ledger(0))

    tally.add(fakes.waited(duration_ns=1_000_000))
    tally.add(
        events.BarrierFinished(
            step=1,
            cause="x",
            site=None,
            nodes=1,
            roots=1,
            executed=True,
            duration_ns=2_000_000_000,
        )
    )

    parts = tally.ledger.parts(time.perf_counter_ns())
    assert parts["compile"] == 1_000_000
    assert parts["compile"] + parts["dispatch"] < 2_100_000_000


class Clock:
    """A clock that a test moves; nothing waits."""

    def __init__(self):
        self.now = 10**12

    def perf_counter_ns(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("lazyviz.timing.tally.time", made)
    return made


def test_waiting_for_a_value_is_not_tracing(clock):
    tally = Tally()
    read = events.TransferFinished(direction="to_host", nbytes=4, duration_ns=1_000)

    tally.add(fakes.barrier())
    clock.now += 20_000_000
    tally.add(read)
    assert tally.ledger.parts(clock.now) == {
        "transfer": 1_000,
        "execute": 20_000_000 - 1_000,
    }
    assert tally.peek_ns == 0

    clock.now += 20_000_000
    tally.add(read)
    assert tally.ledger.claimed_ns == 20_000_000 + 1_000


def test_waiting_for_a_peek_is_the_peeks(clock):
    tally = Tally()

    tally.add(
        events.TensorMaterialised(
            node_id=1, strategy="slice", nodes=1, reused=0, duration_ns=1_000
        )
    )
    clock.now += 20_000_000
    tally.add(events.TransferFinished(direction="to_host", nbytes=4, duration_ns=1_000))

    assert tally.peek_ns == 1_000 + 20_000_000 - 1_000
    assert tally.ledger.claimed_ns == 20_000_000


def test_other_threads_do_not_take_time_from_the_cell():
    tally = Tally()
    thread = threading.Thread(target=tally.add, args=(fakes.compiled(),))
    thread.start()
    thread.join()

    assert tally.compiles == 1
    assert tally.ledger.claimed_ns == 0


def test_lowering_on_a_worker_is_part_of_the_wait_for_it():
    tally = Tally(ledger=Ledger(0))
    lowering = events.LoweringFinished(
        fingerprint="aa", purpose="step", nodes=4, duration_ns=300_000
    )
    worker = threading.Thread(target=tally.add, args=(lowering,))

    worker.start()
    worker.join()
    tally.add(fakes.waited(duration_ns=3_600_000_000_000))

    parts = tally.ledger.parts(time.perf_counter_ns())
    assert parts["lower"] == 300_000
    assert parts["lower"] + parts["compile"] <= 3_600_000_000_000


def test_what_a_look_waits_for_is_the_looks():
    tally = Tally(ledger=Ledger(0))

    tally.add(fakes.waited(duration_ns=2_000, purpose="peek"))
    tally.add(fakes.waited(duration_ns=10, phase="execute"))

    assert set(tally.ledger.parts(time.perf_counter_ns())) == {
        "trace",
        "peek",
        "execute",
    }


def test_the_thread_of_a_stranger_waits_for_itself():
    tally = Tally(ledger=Ledger(0))
    other = threading.Thread(target=tally.add, args=(fakes.waited(),))

    other.start()
    other.join()

    assert set(tally.ledger.parts(time.perf_counter_ns())) == {"trace"}
