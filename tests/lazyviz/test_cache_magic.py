"""S0.07: `%lazy cache` lists the executables and drops some."""

import re

import pytest

import lazyrt
from tests.conftest import displayed


@pytest.fixture
def folder(lab, tmp_path):
    lazyrt.config.cache_dir = tmp_path
    lab.run_cell("y = (x * 2).sum()\nlazyrt.mark_step()", store_history=True)
    return tmp_path


def run(shell, source):
    shell.display_pub.outputs.clear()
    shell.run_cell(source, store_history=True)
    return displayed(shell)


def test_the_cache_is_listed(lab, folder):
    lines = run(lab, "%lazy cache")[0].splitlines()
    row = next(line for line in lines if "memory, disk" in line)

    header = ["key", "holds", "ops", "tier", "at", "size", "where", "age", "unused for"]
    assert re.split(r"\s{2,}", lines[0].strip()) == header
    assert re.match(r"[0-9a-f]{8}  step graph [0-9a-f]{8}\s+2  optimised", row)
    assert "cell 4 line 1" in row
    assert "KiB" in row
    assert re.fullmatch(
        r"\d+ executables?: \d+ in memory, 1 on disk \([\d.]+ KiB\)", lines[-1]
    )


def test_executables_are_dropped_by_key_by_age_and_all(lab, folder):
    key = next(e.key for e in lazyrt.cached_executables() if e.on_disk)

    kept = run(lab, "%lazy cache drop older 7d")[0]
    assert kept == "No executable was dropped: none is that old, or there is none."
    one = run(lab, f"%lazy cache drop {key[:8]}")[0]
    run(lab, "z = x + 3\nlazyrt.mark_step()")
    run(lab, "%lazy cache drop all")

    assert re.match(r"Dropped 1 executable: 1 in memory, 1 on disk \(", one)
    assert not list(folder.rglob("*.xla"))
    assert run(lab, "%lazy cache") == ["No executable is in memory or on disk."]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("clear", "%lazy cache has no subcommand 'clear'"),
        ("drop", "%lazy cache drop  names no executable"),
        ("drop older", "%lazy cache drop older names no executable"),
        ("drop older soon", "'soon' is no span of time, so nothing was dropped"),
        ("drop zz", "no executable has a key that begins with 'zz'"),
    ],
)
def test_what_names_no_executable_is_refused(lab, folder, capsys, line, message):
    run(lab, f"%lazy cache {line}")

    assert message in capsys.readouterr().err
    assert len(list(folder.rglob("*.xla"))) == 1
