"""Programs that start quickly are programs like any other."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.quick_python import interpreter

TELLS = """
import atexit, os, sys
atexit.register(print, "at exit")
print(sys.argv, __name__, sys.path[0] == "", os.getcwd(), os.environ["LAZYRT_TELLS"], sys.stdin.read())
print("lazyrt" in sys.modules, "torch" in sys.modules)
sys.exit(int(sys.argv[1]))
"""


def test_a_program_has_its_words_streams_folder_environment_and_status(tmp_path):
    environment = dict(os.environ, LAZYRT_TELLS="x")

    told = [
        subprocess.run(
            [*words, "-c", TELLS, "3"],
            input="typed",
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=environment,
        )
        for words in (interpreter(environment), [sys.executable])
    ]

    quick, plain = ((done.returncode, done.stdout.splitlines()) for done in told)
    assert quick[1].pop(1) == "False True"
    assert plain[1].pop(1) == "False False"
    assert quick == plain == (3, [f"['-c', '3'] __main__ True {tmp_path} x typed", "at exit"])  # fmt: skip


def test_a_module_runs_as_the_main_one():
    done = subprocess.run(
        [*interpreter(), "-m", "calendar", "2024", "2"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines()[0].split() == ["February", "2024"]


@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_program_and_tells(ended_by):
    code = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    with subprocess.Popen(
        [*interpreter(), "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        process = int(program.stdout.readline())
        program.send_signal(ended_by)
        program.communicate(timeout=60)

    assert program.returncode in {-ended_by, 1}
    end = time.monotonic() + 60
    while is_there(process):  # the server has yet to take note of the end
        assert time.monotonic() < end
        time.sleep(0.05)


def is_there(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_is_read_at_an_import_needs_an_interpreter_of_its_own():
    other = dict(os.environ, PYTHONHASHSEED="5")

    assert interpreter(other) == [sys.executable]
    assert interpreter()[1] == "-SE"
