"""Profiles of a cell, of what just happened, and of another process."""

import json
import os
import re
import subprocess
import sys
import threading

import pytest
import torch

import lazyrt
from lazyviz.__main__ import main
from lazyviz.foreign.read import read
from lazyviz.timing import capture
from tests.conftest import displayed
from tests.quick_python import interpreter

LOOP = """
for k in range(6):
    with lazyrt.step("train", k):
        x = x * 1.5
"""


@pytest.fixture
def lab(shell):
    shell.run_line_magic("load_ext", "lazyviz")
    shell.run_cell("import lazyrt, torch, time\nx = torch.ones(4, device='lazyrt')")
    yield shell
    capture.end_rings()
    shell.run_line_magic("unload_ext", "lazyviz")


def shown(shell, source):
    shell.display_pub.outputs.clear()
    assert shell.run_cell(source, store_history=True).success
    return displayed(shell)[0]


def refused(shell, capsys, source):
    shell.run_cell(source, store_history=True)
    return capsys.readouterr().err


# -------------------------------------------------------------------------------- a cell


def test_a_cell_is_profiled_with_its_lines_and_steps(lab):
    said = shown(lab, f"%%lazy profile\n{LOOP}    time.sleep(0.05)")

    assert said.startswith("profile of ")
    assert "cell 2 line 6" in said or "line 6" in said
    assert said.count("end of step train") == 6


def test_the_source_of_a_cell_has_the_cells_name(lab):
    shown(lab, f"%%lazy profile\n{LOOP}    time.sleep(0.05)")

    page = displayed(lab, "text/html")[0]

    assert set(re.findall("<caption>(.*?)</caption>", page)) == {"cell 1"}


def test_a_profile_ends_with_a_step_while_the_cell_goes_on(lab):
    said = shown(lab, f"%%lazy profile --steps 2\n{LOOP}        time.sleep(0.05)")

    assert 2 <= said.count("end of step train") < 6
    assert lab.user_ns["k"] == 5


def test_a_profile_ends_after_some_time_while_the_cell_goes_on(lab):
    said = shown(lab, f"%%lazy profile --seconds 0.1\n{LOOP}        time.sleep(0.1)")

    assert said.count("end of step train") < 6
    assert lab.user_ns["k"] == 5


def test_a_cell_with_fewer_steps_than_asked_for_says_so(lab):
    said = shown(lab, f"%%lazy profile --steps 20\n{LOOP}")

    assert said.splitlines()[0] == "The cell ended after 6 steps of 20."


def test_a_profile_without_a_whole_step_says_what_to_do(lab):
    said = shown(lab, "%%lazy profile\ny = x + 1")

    assert said.startswith("No whole step ended in this profile")
    assert "lazyrt.mark_step()" in said


def test_a_profile_is_saved(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    said = shown(lab, f"%%lazy profile --save t.json\n{LOOP}")

    assert "Written to t.json." in said
    data = json.loads((tmp_path / "t.json").read_text())
    assert len(data["steps"]) == 6


def test_an_error_of_the_cell_ends_the_profile_and_is_raised(lab, capsys):
    result = lab.run_cell("%%lazy profile\nraise KeyError('mine')", store_history=True)

    assert isinstance(result.error_in_exec, KeyError)
    before = lazyrt.counters()
    assert "profile" not in "".join(t.name for t in threading.enumerate())
    assert lazyrt.counters() == before


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        ("--steps", "'' is no whole number from 1 up"),
        ("--steps 0", "'0' is no whole number from 1 up"),
        ("--seconds x", "'x' is no number of seconds"),
        ("--seconds -1", "'-1' is no number of seconds"),
        ("--stp 3", "'--stp' is no option"),
        (
            "--save no/t.json",
            "or name a file in one that exists. %%lazy profile profiles",
        ),
        ("--save", "it is a folder. Name a file in it. %%lazy profile profiles"),
    ],
)
def test_what_cannot_be_profiled_is_said_before_the_cell_runs(lab, capsys, rest, why):
    said = refused(lab, capsys, f"%%lazy profile {rest}\nran = True")

    assert why in said
    assert "--steps N ends the profile" in said
    assert "ran" not in lab.user_ns


@pytest.mark.not_eager("counts executions of whole steps")
def test_a_profile_changes_neither_graph_nor_count_nor_random_numbers(lab):
    def run(magic):
        lab.run_cell("torch.manual_seed(7)\nx = torch.ones(4, device='lazyrt')")
        lazyrt.mark_step()
        lazyrt.reset_counters()
        lab.run_cell(
            f"{magic}\nfor k in range(3):\n    with lazyrt.step():\n"
            "        x = x * torch.rand(4, device='lazyrt')",
            store_history=True,
        )
        counts = lazyrt.counters()
        return counts["executions"], counts["compiles"], lab.user_ns["x"].tolist()

    run("")
    plain = run("")

    assert run("%%lazy profile") == plain
    assert run("%%lazy profile --steps 2") == plain


@pytest.mark.not_eager("counts executions of whole steps")
def test_the_button_of_a_strip_profiles_the_next_step_and_changes_nothing(lab):
    from lazyviz.widgets import StripPage

    def run(before):
        lab.run_cell("torch.manual_seed(7)\nx = torch.ones(4, device='lazyrt')")
        lazyrt.mark_step()
        lazyrt.reset_counters()
        waiting = before()
        for _ in range(40):
            lab.run_cell(
                "with lazyrt.step():\n    x = x * torch.rand(4, device='lazyrt')"
            )
            if not waiting or waiting.wait(0.05):
                break
        counts = lazyrt.counters()
        return counts["executions"], counts["compiles"]

    sent, told = [], threading.Event()
    button = StripPage(capture.next_step)

    def send(message):
        sent.append(message)
        told.set()

    button.send = send

    def press():
        button._handle_custom_msg({"kind": "capture"}, [])
        threading.Event().wait(0.3)  # the profile has begun
        return told

    run(lambda: None)
    run(lambda: None)
    executions, compiles = run(press)

    assert told.wait(60)
    (message,) = sent
    assert (message["kind"], message["steps"]) == ("captured", 1)
    assert "profile of" in message["html"]
    assert executions >= 1
    assert compiles == 0
    button.close()


# ------------------------------------------------------------------ what just happened


def test_unloading_keeps_the_last_seconds_no_more(lab):
    shown(lab, "%lazy profile on 60")
    lab.run_line_magic("unload_ext", "lazyviz")
    lab.run_line_magic("load_ext", "lazyviz")
    assert shown(lab, "%lazy profile off") == "Nothing was kept."


def test_the_last_seconds_are_shown_where_they_are_kept(lab):
    assert shown(lab, "%lazy profile 5").startswith("Nothing is kept.")
    assert "The last 60 s are kept" in shown(lab, "%lazy profile on 60")
    lab.run_cell(LOOP, store_history=True)
    assert shown(lab, "%lazy profile").count("end of step train") == 6
    assert shown(lab, "%lazy profile 30").count("end of step train") == 6
    assert shown(lab, "%lazy profile off") == "Nothing is kept any more."
    assert shown(lab, "%lazy profile off") == "Nothing was kept."


def test_what_is_older_than_asked_for_is_dropped():
    x = torch.ones(4, device="lazyrt")

    def step(name):
        nonlocal x
        with lazyrt.step(name):
            x = x * 2

    step("compiled")
    ring = capture.Ring(0.5)
    ring.start()
    step("old")
    threading.Event().wait(0.8)
    step("new")
    found = ring.last(10)
    ring.stop()

    assert {each.name for each in found.steps} == {"new"}
    assert found.duration_ns <= 501_000_000


@pytest.mark.parametrize("rest", ["x", "0", "on x", "on 5 6", "off now", "-3"])
def test_what_is_no_number_of_seconds_is_refused(lab, capsys, rest):
    assert "no number of seconds" in refused(lab, capsys, f"%lazy profile {rest}")


# --------------------------------------------------------------------- another process

_CHILD = """
import sys, time, torch, lazyrt
server = lazyrt.ProfilerServer()
x = torch.ones(4, device="lazyrt")
def step():
    global x
    with lazyrt.step("train"):
        x = x * 1.5
    time.sleep(0.03)  # the line that waits
step()
print(server.port, flush=True)
if sys.argv[1] == "idle":
    time.sleep(60)
end = time.monotonic() + 60
while time.monotonic() < end:
    step()
"""
_ENTRY = "[lazyrt.captures]\nlazyviz = lazyviz.timing.capture:register\n"


@pytest.fixture
def child(tmp_path):
    """Return what starts a program that steps, or is idle; it has no line about lazyviz."""
    info = tmp_path / "path" / "lazyviz_checkout-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: lazyviz-checkout\nVersion: 1\n"
    )
    (info / "entry_points.txt").write_text(_ENTRY)
    (tmp_path / "program.py").write_text(_CHILD)
    started = []

    def start(what="busy"):
        paths = os.pathsep.join([str(info.parent), *filter(None, sys.path)])
        environment = os.environ | {
            "LAZYRT_COMPILE_TIER": "fast",
            "PYTHONPATH": paths,
        }
        code = f"import runpy; runpy.run_path({str(tmp_path / 'program.py')!r}, run_name='__main__')"
        found = subprocess.Popen(
            [*interpreter(environment), "-c", code, what],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        started.append(found)
        assert found.stdout is not None
        return f"localhost:{int(found.stdout.readline())}"

    yield start
    for each in started:
        each.kill()
        each.communicate()


@pytest.mark.slow
def test_another_process_is_profiled_down_to_the_line(child, tmp_path, capsys):
    address, file = child(), tmp_path / "t.json"

    assert main(["capture", address, "--steps", "5", "--output", str(file)]) == 0

    said = capsys.readouterr().out
    assert said.startswith("profile of ")
    assert "program.py:9" in said
    assert f"Written to {file}" in said
    data = json.loads(file.read_text())
    assert len(data["steps"]) >= 5
    assert {gap["line"] for gap in data["gaps"] if gap["duration_ns"] > 25e6} == {9}

    assert (
        main(["capture", address, "--xplane", str(tmp_path), "--seconds", "0.3"]) == 0
    )
    assert read(tmp_path).steps is not None  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_capture_without_a_step_offers_to_go_on_and_detached_returns_at_once(
    child, tmp_path, capsys, monkeypatch
):
    idle = child("idle")

    assert main(["capture", idle, "--seconds", "0.2"]) == 1
    assert "note: no whole step ended within" in capsys.readouterr().out

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    asked = []

    def refuse(words):
        asked.append(words)
        return "n"

    monkeypatch.setattr("builtins.input", refuse)
    assert main(["capture", idle, "--seconds", "0.2"]) == 1
    assert "Go on until one has? [Y/n]" in asked[0]
    capsys.readouterr()

    assert main(["capture", idle, "--detached"]) == 2
    assert "would be lost" in capsys.readouterr().err
    file = tmp_path / "later.json"
    words = ["capture", idle, "--seconds", "0.2", "--detached", "--output", str(file)]
    assert main(words) == 0
    assert "captures and writes the file" in capsys.readouterr().out
    for _ in range(600):
        if file.exists() and file.stat().st_size:
            break
        threading.Event().wait(0.1)
    assert json.loads(file.read_text())["steps"] == []
    capture._detached.pop().wait()


def test_nobody_to_profile_is_said_with_status_2(capsys):
    with lazyrt.ProfilerServer() as server:
        port = server.port

    assert main(["capture", f"localhost:{port}", "--attempts", "1"]) == 2
    assert main(["capture", "nowhere"]) == 2

    said = capsys.readouterr().err
    assert "no server answers" in said
    assert "not HOST:PORT" in said
