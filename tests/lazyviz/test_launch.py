"""Several processes, started and watched from a kernel that is none of them."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time

import pytest
from IPython.core.error import UsageError

import lazyviz
from lazyviz.divergence.launch import Launched
from lazyviz.divergence.sources import read_record
from tests.lazyviz.records import barrier, write_record

SCALE = 3
STATE = threading.Lock()


def greet(name):
    print(name, SCALE * int(os.environ["RANK"]))  # noqa: T201


def greet_loudly(name):
    greet(name.upper())


def uses_a_lock():
    return STATE


@pytest.fixture(autouse=True)
def _in_main(monkeypatch):
    """The functions here are a notebook's."""
    for function in (greet, greet_loudly, uses_a_lock):
        monkeypatch.setattr(function, "__module__", "__main__")


@pytest.mark.slow
def test_a_function_runs_with_what_it_uses_in_each_process(tmp_path):
    found = lazyviz.launch(greet_loudly, "ann", processes=2, folder=tmp_path)

    assert found.ok
    assert found.outputs == ("ANN 0\n", "ANN 3\n")
    assert "[1] ANN 3" in repr(found)
    source = (tmp_path / "greet.py").read_text().split("\n")
    assert source[greet.__code__.co_firstlineno - 1] == "def greet(name):"


def test_what_another_process_cannot_have_is_named():
    with pytest.raises(UsageError, match=r"uses_a_lock\(\) uses `STATE`, a lock of"):
        lazyviz.launch(uses_a_lock)
    with pytest.raises(UsageError, match=r"no script 'none\.py'"):
        lazyviz.launch("none.py")


def test_a_script_gets_its_arguments_and_a_failure_is_shown_once(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys\nraise ValueError(sys.argv[1])\n")

    found = lazyviz.launch(script, 7, processes=2, folder=tmp_path)

    assert found.exits == (1, 1)
    assert found.errors == ("ValueError: 7",) * 2
    assert repr(found).count("ValueError: 7") == 1
    assert "Replicas 0 and 1 failed:" in repr(found)
    assert f"next: `%lazy replicas {tmp_path}` compares what they ran" in repr(found)


def test_the_kernel_survives_a_killed_process_and_ends_the_others(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\ntime.sleep(60)"
    )

    found = lazyviz.launch(script, processes=2, folder=tmp_path, patience_s=0.2)

    assert found.exits == (-9, -9)
    assert found.table[2][3] == "killed by SIGKILL"


def test_an_interrupt_reaches_every_process(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import time\nprint('here')\n"
        "try: time.sleep(60)\nexcept KeyboardInterrupt: print('stopped')\n"
    )

    def interrupt():
        files = [tmp_path / f"rank-{k}.out" for k in range(2)]
        while not all(file.is_file() and file.read_text() for file in files):
            time.sleep(0.05)
        _thread.interrupt_main(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        lazyviz.launch(script, processes=2, folder=tmp_path)
    thread.join()
    for rank in range(2):
        assert (tmp_path / f"rank-{rank}.out").read_text() == "here\nstopped\n"


def test_a_rank_behind_the_others_is_shown_with_steps_and_time(tmp_path):
    write_record(tmp_path, "0", [barrier()] * 3)
    path = write_record(tmp_path, "1", [barrier()])
    first = read_record(tmp_path / "replica-0.jsonl", 0.0)
    now = first.barriers[1].time + 2.0

    header, ahead, behind = Launched(path.parent, (None, None), now).table

    assert header == ("rank", "steps", "at", "phase", "behind")
    assert ahead[1:2] + ahead[4:] == ("3", "")
    assert behind[1:2] + behind[4:] == ("1", "2 steps, 2.0 s")


@pytest.mark.slow
def test_the_live_view_is_one_output_that_is_updated(tmp_path, shell):
    script = tmp_path / "train.py"
    script.write_text("import time\ntime.sleep(1.5)\n")

    with shell.builtin_trap:
        lazyviz.launch(script, processes=1, folder=tmp_path, live=True)

    shown = [each["data"]["text/plain"] for each in shell.display_pub.outputs]
    assert "starts" in shown[0]
    assert shown[-1] == "1 process ended, none by a failure"


@pytest.mark.parametrize("line", ["", "-n", "-n many train.py"])
def test_the_command_says_what_it_takes(line, lab):
    with pytest.raises(UsageError, match=r"%lazy launch -n 4 train.py"):
        lab.run_line_magic("lazy", f"launch {line}")


def test_the_command_runs_a_script(tmp_path, lab, capsys):
    script = tmp_path / "train.py"
    script.write_text("import sys\nprint(sys.argv[1:])\n")

    lab.run_line_magic("lazy", f"launch -n 1 {script} a b")

    assert "[0] ['a', 'b']" in str(lab.display_pub.outputs) + capsys.readouterr().out
