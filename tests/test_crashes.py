"""A worker that dies leaves its stack in the run's summary."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CRASH = """
import faulthandler

def test_that_dies():
    faulthandler._sigsegv()
"""
CONFTEST = """
from tests.conftest import pytest_configure, pytest_terminal_summary, pytest_unconfigure
"""


@pytest.mark.slow
def test_the_stack_of_a_crashed_worker_is_in_the_summary(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(CRASH)

    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *("-p", "xdist", "-n1"),
            "-p",
            "no:cacheprovider",
            str(tmp_path),
        ],
        cwd=tmp_path,
        env={
            "PYTHONPATH": str(ROOT),
            "PATH": "",
            "TMPDIR": str(tmp_path),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert "=== worker gw0 was ended by a fatal signal" in run.stdout
    assert "Fatal Python error: Segmentation fault" in run.stdout
    assert "in test_that_dies" in run.stdout
    assert not [*tmp_path.glob("lazyviz-crashes-*")]
