"""Binder's files install what the notebooks import."""

import ast
import json
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def normalised(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_name(requirement):
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return normalised(found.group())


def binder_lines():
    lines = (ROOT / "binder" / "requirements.txt").read_text("utf-8").splitlines()
    return [line for line in map(str.strip, lines) if line and not line.startswith("#")]


def installed_by_binder():
    """Return the distributions that binder's files name, the project's own included."""
    names = {"lazyviz"}
    for line in binder_lines():
        local = re.fullmatch(r"\.(?:\[([\w,]+)\])?", line)
        if local:
            names.update(map(requirement_name, PROJECT["dependencies"]))
            for extra in (local.group(1) or "").split(","):
                wanted = PROJECT["optional-dependencies"].get(extra, [])
                names.update(map(requirement_name, wanted))
        elif not line.startswith("-"):
            names.add(requirement_name(line))
    return names


def imports_of_notebook(path):
    """Return the top-level modules that a notebook's code imports."""
    found: set[str] = set()
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        source = "".join(cell["source"])
        if source.startswith("%%"):
            source = source.partition("\n")[2]
        lines = source.splitlines()
        code = "\n".join(
            re.sub(r"^(\s*)[%!?].*|^(\s*).*\?$", r"\1\2pass", line) for line in lines
        )
        for statement in ast.walk(ast.parse(code)):
            if isinstance(statement, ast.Import):
                found.update(alias.name.split(".")[0] for alias in statement.names)
            elif isinstance(statement, ast.ImportFrom) and statement.module:
                found.add(statement.module.split(".")[0])
    return found


def distributions_of(module):
    if module in {"lazyviz", "lazyrt"}:
        return {"lazyviz"}
    return {
        normalised(name) for name in metadata.packages_distributions().get(module, ())
    }


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_binder_installs_what_a_notebook_imports(path):
    modules = imports_of_notebook(path) - set(sys.stdlib_module_names)

    missing = {m for m in modules if not distributions_of(m) & installed_by_binder()}

    assert missing == set()


def test_binder_installs_a_kernel_and_jupyterlab():
    assert {"ipykernel", "jupyterlab"} <= installed_by_binder()


def test_binder_pins_what_the_tests_ran_with():
    constraints = [line.split()[1] for line in binder_lines() if line.startswith("-c ")]

    assert [(ROOT / "binder" / path).resolve() for path in constraints] == [
        ROOT / "constraints.txt"
    ]


def test_binder_installs_graphviz_and_a_python_that_the_project_allows():
    assert "graphviz" in (ROOT / "binder" / "apt.txt").read_text("utf-8").split()
    runtime = (ROOT / "binder" / "runtime.txt").read_text("utf-8").strip()
    assert PROJECT["requires-python"] == ">=3.11"
    assert runtime in {"python-3.11", "python-3.12", "python-3.13"}


def test_constraints_pin_every_direct_dependency():
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {
        requirement_name(line) for line in lines if line and not line.startswith("#")
    }
    extras = PROJECT["optional-dependencies"].values()
    wanted = [*PROJECT["dependencies"], *(name for extra in extras for name in extra)]

    assert {requirement_name(name) for name in wanted} - pinned == {"lazyviz"}
