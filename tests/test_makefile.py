"""The Makefile's targets say what they do, whoever runs them and whatever pip finds."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")

RETRIES = "".join(
    f"WARNING: Retrying (Retry(total={left}, connect=None)) after connection broken by "
    "'NewConnectionError('<object at 0x7f>: [Errno -2] unknown')': /simple/jax/\n"
    for left in (4, 3)
)
PIP = f"Collecting jax<0.11\n  Downloading jax\n{RETRIES}Installing collected packages: jax\n"


def make(*arguments, **options):
    done = subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        **options,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("user", [0, 1000])
def test_jupyterlab_is_told_when_root_starts_it(tmp_path, user):
    (tmp_path / "id").write_text(f"#!/bin/sh\necho {user}\n")
    (tmp_path / "id").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"

    last = make("-n", "lab", env={**os.environ, "PATH": path})[-1]

    assert " -m jupyterlab " in last
    assert ("--allow-root" in last) == (user == 0)


def test_pips_downloads_and_an_index_without_an_answer_are_told_once(tmp_path):
    rules = (
        f"include Makefile\nshown:\n\t@cat | $(subst $(VENV),{tmp_path},$(PROGRESS))\n"
    )
    (tmp_path / "rules").write_text(rules)

    shown = make("-f", str(tmp_path / "rules"), "shown", input=PIP)

    assert shown == [
        "  jax",
        "  no answer yet from the index for /simple/jax/",
        "  Installing collected packages",
    ]
    assert (tmp_path / "install.log").read_text() == PIP
