"""The widget of a long wait: its state, its one message, what it interrupts."""

import signal
import threading
import time

import pytest

from lazyviz import widgets
from lazyviz.shell.progress import Progress
from lazyviz.timing.compile_time import Expected, Wait
from tests.lazyviz import fakes
from tests.lazyviz.test_progress import published

WAIT = Wait(
    phase="compile",
    nodes=214,
    look=False,
    elapsed_ns=1_500_000_000,
    expected=Expected(12_000_000_000, "from its ops"),
    cause="mark_step()",
    site="cell 3 line 7",
)


@pytest.fixture
def view():
    made = widgets.WaitView()
    yield made
    made.close()


@pytest.fixture
def interrupts(monkeypatch):
    calls: list[int] = []
    monkeypatch.setattr(widgets, "interrupt", lambda: calls.append(1))
    return calls


def test_the_state_says_all_that_is_known(view):
    view.show(WAIT)

    state = view.get_state()
    assert (state["what"], state["phase"]) == ("compiling 214 ops", "compile")
    assert state["where"] == "mark_step() at cell 3 line 7"
    assert state["expected"] == "about 12 s (from its ops)"
    assert (state["elapsed_ms"], state["expected_ms"]) == (1500.0, 12000.0)
    assert (state["number"], state["active"]) == (1, True)


def test_cancel_interrupts_the_wait_that_is_shown(view, interrupts):
    view.show(WAIT)

    view._handle_custom_msg({"kind": "cancel", "wait": 1}, [])

    assert interrupts == [1]


@pytest.mark.parametrize(
    "message",
    [None, "cancel", {"kind": "cancel"}, {"kind": "cancel", "wait": 2}, {"wait": 1}],
)
def test_other_messages_interrupt_nothing(view, interrupts, message):
    view.show(WAIT)

    view._handle_custom_msg(message, [])

    assert interrupts == []


def test_a_click_that_comes_too_late_interrupts_nothing(view, interrupts):
    view.show(WAIT)
    view.end()

    view._handle_custom_msg({"kind": "cancel", "wait": 1}, [])
    view.show(WAIT)
    view._handle_custom_msg({"kind": "cancel", "wait": 1}, [])

    assert interrupts == []
    assert view.number == 2


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs POSIX signals")
def test_an_interrupt_wakes_the_main_thread_from_a_wait():
    threading.Timer(0.2, widgets.interrupt).start()
    started = time.monotonic()

    with pytest.raises(KeyboardInterrupt):
        threading.Event().wait(20)

    assert time.monotonic() - started < 10


class Kernel:
    comm_manager = object()


def test_a_page_gets_one_widget_and_the_saved_cell_nothing(shell):
    object.__setattr__(shell, "kernel", Kernel())
    progress = Progress(shell)

    for elapsed in (1, 2, 3):
        progress.take(fakes.progress(elapsed_ns=elapsed * 1_000_000_000))
    widget = progress._widget
    assert widget is not None
    assert (widget.active, widget.elapsed_ms) == (True, 3000.0)
    progress.take(fakes.waited())
    progress.end_cell()
    progress.take(fakes.progress())
    progress.close()

    data = [output["data"] for output in shell.display_pub.outputs]
    view = "application/vnd.jupyter.widget-view+json"
    # Empty, filled once, emptied; and again for the next cell.
    assert [view in each for each in data] == [False, True, False] * 2
    assert published(shell)[2] == (True, None)
    assert progress._widget is None
