from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import lazyrt
from lazyrt.observe import events
from lazyviz.render.notes import Barrier
from lazyviz.session import Session
from tests.lazyviz import fakes

if TYPE_CHECKING:
    from lazyviz.render.strip import Strip


@pytest.fixture
def fake():
    runtime = fakes.FakeRuntime()
    yield runtime
    for subscription in runtime.subscriptions:
        subscription.close()


@pytest.fixture
def session(shell, fake):
    session = Session(shell)
    session.attach(fake)
    yield session
    session.close()


def test_a_cell_without_activity_has_no_strip(session):
    session.start_cell(1)

    assert session.finish_cell(None) is None
    assert list(session.cells) == []


def test_a_cell_with_activity_is_recorded(session, fake):
    session.start_cell(7)
    fake.act(fakes.compiled(), fakes.started(), fakes.finished(), fakes.barrier())
    strip = session.finish_cell(None)

    assert (strip.compiles, strip.executions, strip.running) == (1, 1, 0)
    assert strip.barriers == (Barrier(cause="read by .item()", site="", nodes=4),)
    assert session.cells[-1].number == 7
    assert session.cells[-1].strip == strip


def test_events_between_cells_belong_to_none(session, fake):
    fake.act(fakes.compiled())
    session.start_cell(1)
    fake.act(fakes.started())
    strip = session.finish_cell(None)

    assert (strip.compiles, strip.executions) == (0, 1)


def test_an_execution_that_ends_in_an_idle_cell_is_not_the_cells(session, fake):
    session.start_cell(1)
    fake.act(fakes.started())
    session.finish_cell(None)
    session.start_cell(2)
    events.emit(fakes.finished())

    assert session.finish_cell(None) is None


def test_executions_under_way_are_waited_for_a_moment_only(session, fake):
    session.start_cell(1)
    fake.running = 1
    fake.act(fakes.started())
    strip = session.finish_cell(None)

    assert fake.waits == [0.2]
    assert strip.running == 1


def test_a_strip_is_told_again_once_the_device_has_run_it(session, fake):
    told: list[Strip] = []
    for number in (1, 2):
        session.start_cell(number)
        fake.act(fakes.started())
        session.tell_end(session.finish_cell(None), told.append)
    session.start_cell(3)
    fake.act(fakes.started(), fakes.finished(duration_ns=5))

    assert [(strip.running, strip.execute_ns) for strip in told] == [(0, 5)]
    assert [cell.strip.running for cell in session.cells] == [0, 1]

    fake.act(fakes.finished(duration_ns=6), fakes.finished(duration_ns=7))
    assert [strip.execute_ns for strip in told] == [5, 6]
    assert session.finish_cell(None).execute_ns == 7


def test_an_execution_that_ends_in_that_moment_counts(session, fake):
    session.start_cell(1)
    fake.running = 1
    fake.act(fakes.started())

    def wait(timeout_s, *, check):
        fake.act(fakes.finished(duration_ns=9))
        return True

    fake.wait = wait
    strip = session.finish_cell(None)

    assert (strip.running, strip.execute_ns) == (0, 9)


def test_errors_and_interrupts_are_named(session, fake):
    session.start_cell(1)
    fake.act()
    failed = session.finish_cell(ValueError())
    session.start_cell(2)
    fake.act()
    interrupted = session.finish_cell(KeyboardInterrupt())

    assert (failed.error, failed.interrupted) == ("ValueError", False)
    assert (interrupted.error, interrupted.interrupted) == ("KeyboardInterrupt", True)


def test_the_last_thousand_cells_are_kept(session, fake):
    for number in range(1_100):
        session.start_cell(number)
        fake.act()
        session.finish_cell(None)

    assert len(session.cells) == 1_000
    assert session.cells[0].number == 100


def test_the_phases_add_up_to_the_cells_time(session, fake):
    session.start_cell(1)
    fake.act(fakes.compiled(duration_ns=3_000), fakes.waited(duration_ns=3_000))
    strip = session.finish_cell(None)

    assert dict(strip.parts)["compile"] == 3_000
    assert sum(ns for _, ns in strip.parts) == strip.wall_ns
    assert strip.compile_ns == 3_000


def test_waiting_behind_the_cell_is_no_part_of_it(session, fake):
    session.start_cell(1)
    fake.running = 1
    fake.act(fakes.started())

    def wait(timeout_s, *, check):
        fake.act(fakes.waited(duration_ns=10**12, phase="execute"))
        return True

    fake.wait = wait
    strip = session.finish_cell(None)

    assert "execute" not in dict(strip.parts)
    assert sum(ns for _, ns in strip.parts) == strip.wall_ns


def test_attaching_in_the_middle_of_a_cell_records_the_rest(shell, fake):
    session = Session(shell)
    session.start_cell(1)
    session.attach(fake)
    fake.act(fakes.started())

    strip = session.finish_cell(None)
    session.close()

    assert strip is not None
    assert strip.executions == 1


def test_imports_in_front_of_the_first_op_are_no_tracing(shell, fake):
    """A cell that imports torch and lazyrt for ten seconds records in the rest."""
    session = Session(shell)
    session.start_cell(1)
    session._running.started_ns -= 10**10  # type: ignore[union-attr]
    session.attach(fake)
    fake.act(fakes.started())

    strip = session.finish_cell(None)
    session.close()

    assert strip is not None
    parts = dict(strip.parts)
    assert parts["python"] >= 10**10
    assert sum(parts.values()) == strip.wall_ns


def test_a_closed_session_hears_nothing(session, fake):
    session.start_cell(1)
    session.close()
    fake.act(fakes.compiled())

    assert session.finish_cell(None) is None
    assert list(session.cells) == []


def test_steps_are_handed_out_as_copies(session, fake):
    fake.act(fakes.started(step=3), fakes.barrier(step=3))

    rows = session.steps
    fake.act(fakes.finished(step=3))

    assert rows[0].execute_ns is None
    assert session.steps[0].execute_ns == 7_000


def test_cells_are_found_by_the_file_name_of_their_code(shell, session):
    name = shell.compile.cache("x = 1", 12)

    assert session.cell_of_file(name) == 12
    assert session.cell_of_file("train.py") is None


def test_an_exceptions_text_computes_no_tensor(lab):
    """The report quotes it, and nobody has asked for the values in it."""
    lab.run_cell("y = x * 2 + 1")
    before = dict(lazyrt.counters())

    lab.run_cell("raise ValueError('bad', y, y * 3)")
    lab.run_cell(
        "class Told(Exception):\n    def __str__(self): return str(y * 5)\nraise Told"
    )

    assert dict(lazyrt.counters()) == before
    cells = list(vars(lab)["_lazyviz_session"].cells)
    told = [cell.failure for cell in cells[-2:]]
    assert all("lazyrt" in failure.message for failure in told)


def test_a_failed_check_is_left_to_the_program(lab, monkeypatch):
    """The strip waits a moment for the device; an error that it would raise nobody would see."""
    monkeypatch.setattr(lazyrt, "in_flight", lambda: 1)
    lab.run_cell(
        "z = x @ x.T * 0\nfor _ in range(99): z = z + 0\n"
        "y = torch.linalg.inv(z)\nlazyrt.mark_step()\nlazyrt.wait(check=False)"
    )

    result = lab.run_cell("lazyrt.mark_step()")

    assert type(result.error_in_exec).__name__ == "_LinAlgError"
