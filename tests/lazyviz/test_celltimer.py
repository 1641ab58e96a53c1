"""A timer that tells compiling, recording and executing apart."""

import pytest

from lazyviz.timing import celltimer
from lazyviz.timing.celltimer import Run
from tests.conftest import displayed

MS = 1_000_000


def run(shell, source):
    shell.display_pub.outputs.clear()
    shell.run_cell(source, store_history=True)
    return displayed(shell)


def test_the_first_run_compiles_and_the_others_are_the_programs_speed(lab):
    shown = run(lab, "%%lazy time 4\ny = (x * 7).sum()\nlazyrt.mark_step()")[0]

    lines = shown.splitlines()
    assert lines[0].split()[:2] == ["run", "time"]
    assert {"trace", "compile", "device", "compiles"} <= set(lines[0].split())
    assert [line.split()[-1] for line in lines[2:6]] == ["1", "0", "0", "0"]
    assert "median of 3 runs without the 1 run that compiled: " in shown
    assert "compile: waiting for XLA, or for an executable from disk" in shown


def test_the_parts_of_a_run_add_up(lab):
    import lazyrt

    lab.run_cell("def body():\n    return (x * 9).sum().item()", store_history=True)

    timed = celltimer.timed(lazyrt, lab.user_ns["body"])

    assert sum(timed.parts.values()) == timed.wall_ns
    assert (timed.compiles, timed.executions) == (1, 1)


def test_a_cell_without_a_barrier_only_records(lab):
    shown = run(lab, "%%lazy time\ny = x + 1")[0]

    assert "Nothing was executed: the cell has no barrier" in shown


def test_one_run_that_compiled_is_no_benchmark(lab):
    shown = run(lab, "%%lazy time\n((x + 1) * 11).sum().item()")[0]

    assert "Every run compiled, so none of these times is the program's own" in shown


def test_the_cells_names_stay_and_its_errors_rise(lab, capsys):
    run(lab, "%%lazy time 2\nkept = x + 1\nlazyrt.mark_step()")
    run(lab, "%%lazy time\nraise ValueError('mine')")
    run(lab, "%%lazy time many\nkept = 0")
    run(lab, "%%lazy time 0\nkept = 0")

    said = capsys.readouterr()
    assert "mine" in said.err + said.out
    assert "'many' is no number of runs" in said.err
    assert "'0' is no number of runs" in said.err
    assert lab.user_ns["kept"].shape == (2, 3)


@pytest.mark.parametrize(
    ("device", "longer"), [(1, "recording is the longer part"), (90, "the device is")]
)
def test_the_longer_part_is_named(device, longer):
    run_ = Run(
        wall_ns=10 * MS,
        parts={"trace": 4 * MS},
        device_ns=device * MS,
        executions=1,
    )

    assert longer in celltimer.doc([run_] * 20).to_text()
    assert "... and 8 more" in celltimer.doc([run_] * 20).to_text()
