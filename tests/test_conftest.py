"""The shell fixture itself."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from IPython import get_ipython

from tests.conftest import displayed, pytest_xdist_auto_num_workers


def test_shell_runs_cells_and_captures_displays(shell, capsys):
    result = shell.run_cell(
        "from IPython.display import display; display(41); 1 + 1", store_history=True
    )

    assert result.success
    assert displayed(shell) == ["41"]
    assert "Out[1]: 2" in capsys.readouterr().out


def test_a_shell_is_the_one_that_get_ipython_finds(shell):
    shell.run_cell("leftover = get_ipython()")

    assert shell.user_ns["leftover"] is shell
    assert sys.modules["__main__"] is shell.user_module


def test_the_next_shell_knows_nothing_of_the_one_before(shell):
    assert "leftover" not in shell.user_ns
    assert shell.execution_count == 1


def test_after_a_shell_the_interpreter_is_as_before():
    assert get_ipython() is None
    assert not hasattr(sys.modules["__main__"], "leftover")
    assert sys.displayhook is sys.__displayhook__


@pytest.mark.parametrize(
    ("named", "spread"),
    [
        (["tests"], True),
        (["tests/runtime", "lazyviz"], True),
        (["tests/test_conftest.py"], False),
        (
            ["tests/test_conftest.py::test_shell_runs_cells_and_captures_displays"],
            False,
        ),
    ],
)
def test_folders_are_spread_over_the_cores_and_files_are_not(named, spread):
    config: Any = SimpleNamespace(args=named)

    workers = pytest_xdist_auto_num_workers(config)

    assert workers >= 1 if spread else workers == 0
