"""A script that `python -m lazyviz run` runs has a strip, a report and a trace."""

import json
import os
import subprocess

import pytest
from IPython.core.error import UsageError

import lazyviz
from lazyviz.documents.script import _status
from tests.quick_python import interpreter
from tests.ratchets import ROOT

SCRIPT = """
import sys, torch, lazyrt
assert __name__ == "__main__"
x = torch.ones(3, device="lazyrt") + int(sys.argv[1])
lazyrt.mark_step()
print(x.sum().item(), sys.argv[1:])
sys.exit(3)
"""


@pytest.mark.slow
def test_a_script_has_what_a_notebook_has_and_keeps_its_exit_status(tmp_path):
    script, page, trace = (tmp_path / n for n in ("a b.py", "r.html", "t.json"))
    script.write_text(SCRIPT)
    environment = os.environ | {
        "LAZYRT_CACHE_DIR": "",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'runtime'}",
        "IPYTHONDIR": str(tmp_path),
    }
    command = [*interpreter(environment), "-m", "lazyviz", "run", "--report", page]

    ran = subprocess.run(
        [*command, script, "1", "--trace", trace, "--lr", "2", "--", "--trace", "3"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )

    assert ran.returncode == 3
    assert "6.0 ['1', '--lr', '2', '--trace', '3']" in ran.stdout
    assert "compiled 2 in" in ran.stdout
    assert "mark_step() at a b.py:5" in page.read_text("utf-8")
    assert json.loads(trace.read_text("utf-8"))


def test_the_status_of_a_script_is_what_python_gives_it():
    endings = [None, SystemExit(), SystemExit(0), SystemExit("no"), SystemExit(4)]

    assert [_status(each) for each in endings] == [0, 0, 0, 1, 4]
    assert _status(ValueError()) == 1


def test_without_a_session_a_trace_names_the_command_that_gives_a_script_one(tmp_path):
    with pytest.raises(UsageError, match="`python -m lazyviz run SCRIPT`"):
        lazyviz.export_trace(tmp_path / "t.json")
