"""The command line of the benchmarks; their figures are nobody's test."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import report
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.dynamo_run import Fit, overlap_of
from benchmarks.pool import XLA_PYTHON


def test_without_arguments_the_benchmarks_are_listed(capsys):
    status = main([])

    listing = capsys.readouterr().out
    assert status == 0
    assert all(f"  {name}" in listing for name in (*BENCHMARKS, "all"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "invalid choice: 'nonsense'"),
        (
            ["trace", "--rounds", "0"],
            "--rounds is 0; it takes a whole number from 1 up",
        ),
        (
            ["trace", "--peers", "foo"],
            "no peer 'foo'. Its peers are lazyrt, torch-lazy",
        ),
        (["trace", "--cases", "foo"], "no case 'foo'. Its cases are add, add-grad"),
        (
            ["coverage", "--dtypes", "int7"],
            "coverage knows no dtype 'int7'. Its dtypes are float32, int64",
        ),
        (
            ["coverage", "--samples", "0"],
            "--samples is 0; it takes a whole number from 1 up",
        ),
        (["dynamo", "--only", "lenet"], "no model 'lenet'. The models are resnet50,"),
        (
            ["dynamo", "--backend", "tensorrt9"],
            "no backend 'tensorrt9'. TorchDynamo's backends are ",
        ),
        (["prints", "--peers", "torch-xla"], f"name its python in {XLA_PYTHON}"),
    ],
)
def test_a_wrong_argument_is_named_with_what_would_be_right(
    arguments, message, capsys, monkeypatch
):
    monkeypatch.delenv(XLA_PYTHON, raising=False)

    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_python_for_torch_xla_that_is_not_there_is_named(capsys, monkeypatch):
    monkeypatch.setenv(XLA_PYTHON, "/no/such/python")

    with pytest.raises(SystemExit):
        main(["step", "--peers", "torch-xla"])

    assert "is '/no/such/python', which is not a file" in capsys.readouterr().err


@pytest.mark.slow
def test_a_micro_benchmark_prints_its_table_and_writes_json(capsys, tmp_path):
    file = tmp_path / "trace.json"

    status = main(
        [
            *("trace", "--peers", "lazyrt,eager", "--cases", "add", "--rounds", "1"),
            *("--length", "10", "--json", str(file)),
        ]
    )

    text = capsys.readouterr().out
    (data,) = json.loads(file.read_text(encoding="utf-8"))
    assert status == 0
    assert "µs for each op" in text
    assert "machine" in data["facts"]
    assert data["tables"][0]["columns"] == ["", "lazyrt", "eager", "x torch-lazy"]
    assert [row[0] for row in data["tables"][0]["rows"]] == ["add"]
    assert data["goals"][0]["what"] == "add"


def test_a_report_says_which_goals_are_met():
    table = report.Table("ms", ("", "a"), [["step", 1.5], ["other", None]])
    goals = [report.ratio_goal("fast", 0.5, 1.0), report.ratio_goal("faster", 2.0, 1.0)]
    found = report.Report("name", {"machine": "one"}, [table], goals)

    text = found.text()

    assert found.missed == [goals[1]]
    assert text == (
        "== name ==\n\n"
        "machine  one\n\n"
        "ms\n\n"
        "          a\n"
        "-----------\n"
        "step   1.50\n"
        "other     -\n\n"
        "met           fast: 0.50x (goal <= 1x)\n"
        "MISSED        faster: 2.00x (goal <= 1x)\n"
    )


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore"
)  # TorchDynamo hides its own, unless they are errors
@pytest.mark.parametrize("backend", ["lazyrt", "aot_eager"])
def test_speed_ups_of_one_model_stand_beside_those_of_torch_xlas_thread(
    backend, capsys
):
    torch.compiler.reset()

    status = main(
        [
            *("dynamo", "--only", "alexnet", "--training", "--steps", "2"),
            *("--backend", backend),
        ]
    )

    torch.compiler.reset()
    text = capsys.readouterr().out
    assert status == 0
    assert f"training with {backend}: times as fast as " in text
    assert "0.632 / 0.802 / 1.264" in text
    assert "inference" not in text


def test_a_fit_finds_the_line_and_how_sure_it_is():
    exact = Fit.through([1, 2, 4], [3.5, 4.0, 5.0])
    rough = Fit.through([1, 2, 4], [3.6, 3.9, 5.0])

    assert (exact.intercept, exact.slope) == pytest.approx((3.0, 0.5))
    assert exact.slope_error == pytest.approx(0.0, abs=1e-6)
    assert rough.slope_error > 0.01


def test_the_overlap_of_a_loop_is_the_tracing_that_is_done_while_the_device_works():
    turns, barriers = [(0, 10), (10, 20)], [(8, 10), (18, 20)]

    assert overlap_of(turns, barriers, [(9, 14), (19, 24)]) == 40.0
    assert overlap_of(turns, barriers, [(9, 10), (20, 29)]) == 0.0
    assert overlap_of(turns, barriers, [(2, 4), (12, 14)]) == 100.0
