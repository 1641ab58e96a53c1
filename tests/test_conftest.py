"""The shell fixture itself."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from IPython import get_ipython

from conftest import (
    pytest_collect_file,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_xdist_auto_num_workers,
)
from tests.conftest import displayed


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


def test_of_all_files_of_tests_the_running_one_alone_is_imported():
    imported = {
        name
        for name in sys.modules
        if name.startswith("tests.") and name.rpartition(".")[2].startswith("test_")
    }

    assert imported == {__name__}


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
    config: Any = SimpleNamespace(
        args=named, invocation_params=SimpleNamespace(args=named)
    )

    workers = pytest_xdist_auto_num_workers(config)

    assert workers >= 1 if spread else workers == 0


@pytest.mark.parametrize(
    ("named", "spread"), [("notebooks", True), ("notebooks/04_steps.ipynb", False)]
)
def test_notebooks_are_spread_over_the_cores_each_as_a_whole(named, spread):
    config: Any = SimpleNamespace(
        args=[named],
        invocation_params=SimpleNamespace(args=["--nbval", named]),
        option=SimpleNamespace(dist="worksteal"),
    )

    workers = pytest_xdist_auto_num_workers(config)

    assert workers >= 1 if spread else workers == 0
    assert config.option.dist == ("loadfile" if spread else "worksteal")


ROOT = Path(__file__).parents[1]
COLLECTING = """
import sys
import pytest

class Seen:
    def pytest_collection_finish(self, session):
        option = session.config.option
        print("sanitized with", getattr(option, "nbval_sanitize_with", None))
        print("limits", {mark.args for item in session.items for mark in
                         item.iter_markers("timeout")})

pytest.main(["--collect-only", "-q", *sys.argv[1:]], plugins=[Seen()])
print("nbval was imported:", "nbval.plugin" in sys.modules)
"""


def collected(*arguments):
    """Return the tests that a pytest of its own finds here, and what it says beside them."""
    done = subprocess.run(
        [sys.executable, "-c", COLLECTING, "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    return [line for line in lines if "::" in line], done.stdout


@pytest.mark.slow
def test_notebooks_are_run_with_one_option():
    """Their times and addresses do not count, and nbval alone bounds what a cell takes."""
    cells, said = collected("--nbval", "notebooks/03_eager_debug.ipynb")

    assert len(cells) > 5
    assert f"sanitized with {ROOT / 'notebooks/sanitize.cfg'}\n" in said
    assert "limits {(0,)}\n" in said


def test_notebooks_may_be_compared_in_another_way():
    config: Any = SimpleNamespace(
        invocation_params=SimpleNamespace(args=["--nbval"]),
        option=SimpleNamespace(nbval_sanitize_with="x.cfg"),
    )

    pytest_configure(config)

    assert config.option.nbval_sanitize_with == "x.cfg"


@pytest.mark.slow
def test_a_run_without_notebooks_does_not_import_nbval():
    some, said = collected("--share=3", "tests/lazygraph/test_hlo.py")

    assert "nbval was imported: False" in said
    assert some == share_of(some, 3)[0] != []


@dataclass(frozen=True)
class Item:
    nodeid: str
    path: Path = Path("test_x.py")


def share_of(ids, number):
    """Return the tests that one share of so many has, and those left out."""
    items: Any = [Item(each) for each in ids]
    left: list[Any] = []

    def pytest_deselected(items):
        left.extend(items)

    hook = SimpleNamespace(pytest_deselected=pytest_deselected)
    config: Any = SimpleNamespace(getoption=lambda _: number, hook=hook)
    pytest_collection_modifyitems(config, items)
    return [item.nodeid for item in items], [item.nodeid for item in left]


def test_a_share_of_the_tests_is_the_same_each_time_and_of_about_that_size():
    ids = [f"tests/test_x.py::test_{k}" for k in range(400)]

    kept, left = share_of(ids, 4)

    assert kept == share_of(ids, 4)[0] == share_of(ids[::-1], 4)[0][::-1]
    assert sorted(kept + left) == sorted(ids)
    assert 50 < len(kept) < 200
    assert share_of(ids, 1) == (ids, [])


class Doctests(pytest.Module):
    """What doctest collects for a file."""


@pytest.mark.parametrize(
    ("text", "kept"), [("x = 1", [pytest.Module]), (">>> 1", [pytest.Module, Doctests])]
)
def test_a_file_without_examples_is_no_doctest(tmp_path, text, kept):
    (tmp_path / "a.py").write_text(text)
    parent: Any = SimpleNamespace(config=object())  # of no worker
    hook = pytest_collect_file(tmp_path / "a.py", parent)
    next(hook)

    with pytest.raises(StopIteration) as ended:
        hook.send([object.__new__(kind) for kind in (pytest.Module, Doctests)])

    assert [type(each) for each in ended.value.value] == kept


@pytest.mark.slow
def test_a_marker_of_a_mode_needs_its_reason(tmp_path):
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import pytest_runtest_setup\n"
    )
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.lazy_only\ndef test_it():\n    pass\n"
    )

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "the marker lazy_only needs the reason" in run.stdout
