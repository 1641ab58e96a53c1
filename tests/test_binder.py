"""Binder's files install what the notebooks import."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import nbformat
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
    """The environment comes from the listed packages alone."""
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


# What binder starts, on a machine that reaches nothing but itself.
OFFLINE = """
import fcntl, pathlib, socket, struct, subprocess, sys, time, urllib.request

with socket.socket() as interface:
    fcntl.ioctl(interface, 0x8914, struct.pack("16sh22x", b"lo", 0x49))  # the loopback is up
try:
    socket.create_connection(("192.0.2.1", 80), timeout=2)
    sys.exit("there is a network")
except OSError:
    pass
notebook, folder = map(pathlib.Path, sys.argv[1:])
jupyter = [sys.executable, "-m"]
options = ["--no-browser", "--port=8899", "--ServerApp.token=", "--allow-root"]
with subprocess.Popen([*jupyter, "jupyterlab", *options], cwd=folder) as server:
    for _ in range(240):
        time.sleep(0.5)
        try:
            page = urllib.request.urlopen("http://127.0.0.1:8899/lab").read()
            break
        except OSError:
            pass
    server.terminate()
assert b"JupyterLab" in page
subprocess.run(
    [*jupyter, "nbconvert", "--to", "notebook", "--execute", str(notebook),
     "--output-dir", str(folder)],
    check=True,
)
"""


@pytest.mark.slow
def test_jupyterlab_starts_and_a_notebook_runs_without_a_network(tmp_path):
    """Once it is built, nothing is fetched."""
    alone = ["unshare", "--map-root-user", "--net"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*alone, "true"], check=False).returncode
    ):
        pytest.skip("needs a network of its own (unshare --net)")
    first = tmp_path / "in" / "first.ipynb"
    first.parent.mkdir()
    sources = [
        "%load_ext lazyviz\nimport torch, lazyrt",
        "x = torch.ones(2, 3, device='lazyrt')\nx + 1",
    ]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), first)

    done = subprocess.run(
        [*alone, sys.executable, "-c", OFFLINE, str(first), str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'runtime'}",
            "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
            "LAZYRT_CACHE_DIR": "",
        },
    )

    assert done.returncode == 0, done.stderr[-2000:]
    cells = json.loads((tmp_path / first.name).read_text("utf-8"))["cells"]
    outputs = [each for cell in cells for each in cell.get("outputs", ())]
    texts = ["".join(each["data"]["text/plain"]) for each in outputs]
    assert texts[0].startswith("tensor([[2., 2., 2.]")
    assert "1 pending op" in texts[1] or "2 pending ops" in texts[1]
