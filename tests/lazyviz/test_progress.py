import io
import sys
import threading

import pytest

from lazyviz.progress import Progress
from tests.lazyviz import fakes


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def notebook(shell):
    shell.add_traits()
    object.__setattr__(shell, "kernel", object())
    return shell


def published(shell):
    return [
        (output["update"], output["data"].get("text/plain"))
        for output in shell.display_pub.outputs
    ]


def test_a_terminal_shows_one_line_and_takes_it_away(shell, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = Progress(shell)

    assert progress.take(fakes.progress())
    assert progress.take(fakes.progress(elapsed_ns=2_000_000_000))
    progress.take(fakes.compiled())

    erase = "\r\x1b[2K"
    assert terminal.getvalue() == (
        f"{erase}compiling 214 ops · 1.5 s{erase}compiling 214 ops · 2.0 s{erase}"
    )


def test_a_pipe_shows_nothing(shell, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)

    Progress(shell).take(fakes.progress())

    assert stream.getvalue() == ""


def test_a_notebook_fills_one_display_and_empties_it(notebook):
    progress = Progress(notebook)

    progress.take(fakes.progress())
    progress.take(fakes.progress(elapsed_ns=2_000_000_000))
    progress.take(fakes.compiled())
    progress.take(fakes.progress(phase="execute", nodes=0))
    progress.end_cell()

    assert published(notebook) == [
        (False, None),
        (True, "compiling 214 ops · 1.5 s"),
        (True, "compiling 214 ops · 2.0 s"),
        (True, None),
        (True, "running · 1.5 s"),
        (True, None),
    ]
    ids = {o["transient"]["display_id"] for o in notebook.display_pub.outputs}
    assert len(ids) == 1


def test_the_next_cell_has_a_display_of_its_own(notebook):
    progress = Progress(notebook)
    for _ in range(2):
        progress.take(fakes.progress(purpose="peek"))
        progress.end_cell()

    ids = {o["transient"]["display_id"] for o in notebook.display_pub.outputs}
    assert len(ids) == 2
    assert published(notebook)[1] == (True, "compiling 214 ops to show a value · 1.5 s")


def test_other_threads_show_nothing(notebook):
    progress = Progress(notebook)
    thread = threading.Thread(target=progress.take, args=(fakes.progress(),))
    thread.start()
    thread.join()

    assert published(notebook) == []


def test_other_events_are_left_to_others(shell):
    assert not Progress(shell).take(fakes.compiled())
