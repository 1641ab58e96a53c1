"""The helpers in a project of its own, as docs/testing.md has it."""

import os
import re
import subprocess

import pytest

from tests.harness import ROOT
from tests.quick_python import interpreter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.lazy_only("counts graphs and executions of steps"),
]

WRONG = """
def test_another_shape_each_time(cold):
    model = torch.nn.Linear(3, 2).to("lazyrt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lazyrt.mark_step()
    with assert_compiles(1):
        for size in (4, 5):
            train(model, optimizer, torch.ones(size, 3, device="lazyrt"))


def test_a_new_graph_where_none_may_be(cold):
    with frozen():
        torch.ones(2, device="lazyrt").sum().item()
"""


def test_a_projects_own_conftest_and_tests_run_as_they_are_documented(tmp_path):
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    conftest, module = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "conftest.py").write_text(conftest, encoding="utf-8")
    (tmp_path / "test_train.py").write_text(module + WRONG, encoding="utf-8")

    environment = {**os.environ, "PYTHONPATH": str(ROOT / "runtime")}

    done = subprocess.run(
        [*interpreter(environment), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path,
         tmp_path],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env=environment,
    )  # fmt: skip

    assert "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "expected 1 new step graph, found 2:" in done.stdout
    assert "FrozenError: a new graph of" in done.stdout
    assert "test_another_shape_each_time" in done.stdout
