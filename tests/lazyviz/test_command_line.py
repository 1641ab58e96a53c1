"""`python -m lazyviz` and `python -m benchmarks`: bad words, statuses, readers that go away."""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import lazyviz
from lazyviz import command_line
from lazyviz.__main__ import _COMMANDS, main

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--help"], 0, "tour      run the first notebook"),
        (["--version"], 0, f"lazyviz {lazyviz.__version__}"),
        ([], 2, "tour      run the first notebook"),
        (["tuor"], 2, "there is no command 'tuor'. Did you mean tour?"),
        (["x" * 500], 2, "there is no command 'xxx"),
    ],
)
def test_the_command_line_explains_itself(capsys, arguments, status, said):
    assert main(arguments) == status

    out, err = capsys.readouterr()
    assert said in (err if status else out)
    assert not (out if status else err)
    assert len(out + err) < 1_200


@pytest.mark.parametrize("command", _COMMANDS)
def test_each_command_has_a_help_and_refuses_what_it_does_not_know(command, capsys):
    for words, status in ((["--help"], 0), (["--nonsense", "a", "b"], 2)):
        with pytest.raises(SystemExit) as ended:
            main([command, *words])
        assert ended.value.code == status
    out, err = capsys.readouterr()
    assert out.startswith(f"usage: python -m lazyviz {command}")
    assert "unrecognized arguments: --nonsense" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["read", "none"],
        ["report", "none"],
        ["diff", "none", "none"],
        ["tour", "--notebook", "none"],
        ["report", "broken"],
        ["report", "nested"],
        ["diff", "broken", "broken"],
        ["read", "broken"],
        ["tour", "--notebook", "broken"],
        ["read", "folder"],
        ["report", "folder"],
        ["diff", "folder", "folder"],
        ["replicas", "none"],
        ["replicas", "broken"],
        ["replicas", "folder"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_read_is_named_with_status_2(
    arguments, tmp_path, monkeypatch, capsys
):
    (tmp_path / "broken").write_bytes(b"\x00\xff\x1f\x8b {[")
    (tmp_path / "nested").write_text("[" * 100_000)
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)

    assert main(arguments) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"lazyviz {arguments[0]}: ")
    assert arguments[-1] in err
    assert "Errno" not in err
    assert len(err) < 700


REPORT = str(DATA / "report_2022.txt")


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["read", REPORT], "--html"),
        (["diff", REPORT, REPORT], "--html"),
        (["tour"], "--output"),
        (["replicas", REPORT, REPORT], "--html"),
    ],
)
def test_a_place_that_takes_no_file_is_said_before_any_work(
    arguments, option, tmp_path, capsys
):
    for place, why in ((tmp_path / "no" / "x.html", "no folder"), (tmp_path, "folder")):
        with pytest.raises(SystemExit) as ended:
            main([*arguments, option, str(place)])

        assert ended.value.code == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert f"argument {option}: '{place}' cannot be written" in err
        assert why in err


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write")
def test_a_folder_of_somebody_else_is_said(tmp_path):
    tmp_path.chmod(0o500)

    with pytest.raises(argparse.ArgumentTypeError, match="may not write there"):
        command_line.output_file(str(tmp_path / "x.html"))


def test_the_benchmarks_say_at_once_that_their_report_has_no_place(tmp_path, capsys):
    from benchmarks.__main__ import main as benchmarks

    with pytest.raises(SystemExit) as ended:
        benchmarks(["fuzz", "--json", str(tmp_path / "no" / "x.json")])

    assert ended.value.code == 2
    assert "there is no folder" in capsys.readouterr().err


def start(*words, stdin=None):
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'runtime'}"},
    )


@pytest.mark.skipif(os.name != "posix", reason="about pipes and signals of POSIX")
@pytest.mark.parametrize("words", [["read", REPORT], ["--help"], ["read", "--help"]])
def test_a_reader_that_goes_away_is_no_error_to_tell(words):
    command = start("lazyviz", *words)
    command.stdout.close()

    _, err = command.communicate(timeout=60)

    assert err == b""
    assert command.returncode in {command_line.UNREAD, 0}  # argparse's help looks away


@pytest.mark.skipif(os.name != "posix", reason="about pipes and signals of POSIX")
def test_an_interrupt_is_told_in_one_line():
    command = start("lazyviz", "read", "-", stdin=subprocess.PIPE)
    # It has started once it takes more than a pipe holds.
    command.stdin.write(b"x" * 200_000)
    command.stdin.flush()

    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=60)

    assert err == b"lazyviz: interrupted\n"
    assert out == b""
    assert command.returncode == command_line.INTERRUPTED


def test_data_for_programs_is_json_and_nothing_else(capsys):
    assert main(["read", REPORT, "--json"]) == 0

    assert json.loads(capsys.readouterr().out)
