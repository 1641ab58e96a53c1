"""What is told is noted at once and added up later, and nothing is lost by that."""

import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import lazyrt
from lazyrt.observe import events
from lazyviz import session
from lazyviz.timing import event_queue as module
from lazyviz.timing.event_queue import Intake
from lazyviz.timing.ledger import Quiet
from lazyviz.timing.tally import Tally
from tests.harness import DEVICE
from tests.lazyviz import fakes


@dataclass
class Cell:
    number: int
    tally: Any


class Progress:
    """Follows nothing; remembers what was asked of it at once, and what it learnt."""

    def __init__(self):
        self.taken = []
        self.expectations = self
        self.learnt = []

    def take(self, event):
        self.taken.append(type(event).__name__)
        return isinstance(event, events.CompileProgress)

    def add(self, event):
        self.learnt.append(type(event).__name__)


@pytest.fixture
def made():
    intake = Intake(Progress())  # type: ignore[arg-type]
    yield intake
    intake.pulse.close()


def begin(intake, number=1):
    cell = Cell(number, Tally())
    intake.begin_cell(cell, 5)
    return cell


def test_an_event_is_counted_once_somebody_asks(made):
    cell = begin(made)

    made.note(fakes.started())
    made.note(fakes.barrier())

    assert cell.tally.seen == 0
    assert made.timeline.spans == ()
    made.settle()
    made.settle()
    assert cell.tally.seen == 2
    assert [row.cause for row in made.steps.rows] == ["read by .item()"]
    assert {span.cell for span in made.timeline.spans} == {1}


def test_an_event_belongs_to_the_cell_and_the_moment_in_which_it_came(made):
    first = begin(made, 1)
    made.note(fakes.started())
    before = time.perf_counter_ns()
    second = begin(made, 2)  # which adds up the first
    made.note(fakes.started())
    time.sleep(0.01)
    made.end_cell()
    made.note(fakes.started())
    made.settle()

    assert (first.tally.executions, second.tally.executions) == (1, 1)
    told = [event.now for event in made.timeline._notes]
    assert told[0] < before < told[1] < told[2]


def test_time_of_another_thread_is_not_the_cells(made):
    cell = begin(made)
    other = threading.Thread(target=made.note, args=(fakes.waited(),))

    other.start()
    other.join()
    made.note(fakes.waited(duration_ns=10))
    made.settle()

    assert cell.tally.ledger.claimed_ns == 10


def test_what_is_shown_while_the_program_waits_is_told_at_once(made):
    made.note(fakes.compiled())
    made.note(fakes.progress())

    # The expectation that is shown is learnt from what came before.
    assert made._progress.taken == ["CompileFinished", "CompileProgress"]
    assert made._progress.learnt == ["CompileFinished"]


def test_many_notes_do_not_wait_for_somebody_to_ask(made, monkeypatch):
    monkeypatch.setattr(module, "_MANY", 10)
    cell = begin(made)

    for _ in range(95):
        made.note(fakes.started())

    assert cell.tally.seen == 90
    assert len(made._notes) == 5


def test_an_event_that_cannot_be_counted_stops_no_other(made, caplog):
    cell = begin(made)
    made.timeline.takes[events.ExecuteStarted] = lambda *_: 1 / 0
    made._takes[events.ExecuteStarted] = (made.timeline.takes[events.ExecuteStarted],)

    made.note(fakes.started())
    made.note(events.CacheHit(fingerprint="aa", step=1))
    made.settle()

    assert cell.tally.cache_hits == 1
    assert "ExecuteStarted was not counted" in caplog.text


def test_what_comes_while_it_adds_up_is_added_up_too(made):
    cell = begin(made)
    hit = events.CacheHit(fingerprint="aa", step=1)

    def finaliser(*_):
        made._takes[events.ExecuteStarted] = ()
        made.note(hit)
        made.settle()  # as a note does when many are waiting

    made._takes[events.ExecuteStarted] = (finaliser,)
    made.note(fakes.started())
    made.settle()

    assert (cell.tally.executions, cell.tally.cache_hits) == (1, 1)


def test_a_pause_is_a_note_as_well(made):
    cell = begin(made)
    now = time.perf_counter_ns()

    made.note(Quiet(now, now + 7, None))
    made.settle()

    assert cell.tally.ledger.parts(now + 7)["python"] == 7
    assert cell.tally.seen == 0


def test_while_a_cell_records_the_pulse_adds_up(shell):
    """The cell's own thread does not, unless the pulse cannot keep up."""
    x = torch.ones(8).to(DEVICE)
    shell.run_line_magic("load_ext", "lazyviz")
    found: Any = session.current(shell)
    adding = set()
    real = found._intake.timeline.takes[events.BarrierFinished]

    def noticed(*told):
        adding.add(threading.current_thread().name)
        real(*told)

    found._intake._takes[events.BarrierFinished] = (noticed,)
    found.start_cell(1)
    end = time.monotonic() + 30
    while not adding and time.monotonic() < end:
        y = x + 1
        lazyrt.mark_step()
        del y
    found.finish_cell(None)
    shell.run_line_magic("unload_ext", "lazyviz")

    assert "lazyviz-pulse" in adding


def test_what_ends_while_a_cell_is_added_up_is_the_cells(lab, monkeypatch):
    """An execution that ends just after the cell is no longer running in its strip."""
    real = Intake.settle

    def slow(self):
        real(self)
        lazyrt.wait()  # the device ends meanwhile

    monkeypatch.setattr(Intake, "settle", slow)
    lab.run_cell(
        "z = torch.rand(500, 500).to('lazyrt')\n"
        "for _ in range(20):\n    z = torch.tanh(z @ z)\nlazyrt.mark_step()"
    )

    found: Any = session.current(lab)
    strip = found.cells[-1].strip
    assert (strip.executions, strip.running) == (1, 0)
    assert strip.execute_ns > 0
