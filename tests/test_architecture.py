"""Rules about the code as a whole: who imports whom, and what an import costs."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ratchets

ROOT = Path(__file__).parent.parent
RUNTIME = ROOT / "runtime" / "lazyrt"
LAZYGRAPH = ROOT / "runtime" / "lazygraph"
LAZYVIZ = ROOT / "lazyviz"


def imported_names(path):
    """Yield every module that a file imports, at whatever depth of the code."""
    for statement in ast.walk(ratchets.tree_of(path)):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            yield statement.module


def imports_of(package, *forbidden):
    return {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(package.rglob("*.py"))
        for name in imported_names(path)
        if name.split(".")[0] in forbidden
    }


def python(code):
    paths = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'runtime')!r}]\n"
    done = subprocess.run(
        [sys.executable, "-c", paths + code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    "module",
    [
        "lazyviz",
        "lazygraph",
        "lazyviz.render.html",
        "lazyviz.draw.layout",
        "lazyviz.render.text",
    ],
)
def test_importing_what_shows_loads_none_of_the_heavy_packages(module):
    loaded = python(f"import {module}; print(*sys.modules)")

    assert not {"torch", "jax", "ipywidgets", "anywidget", "lazyrt"} & set(loaded)


def test_importing_lazyviz_loads_not_even_ipython():
    loaded = python(
        "before = set(sys.modules); import lazyviz; print(*set(sys.modules) - before)"
    )

    assert {name.split(".")[0] for name in loaded} <= {
        "lazyviz",
        *sys.stdlib_module_names,
    }


def test_programs_load_no_runtime_and_no_shell():
    loaded = python("import lazygraph; print(*sys.modules)")

    assert not {"torch", "jax", "jaxlib", "IPython", "lazyrt", "lazyviz"} & set(loaded)


def test_programs_know_nothing_of_what_records_and_shows_them():
    assert imports_of(LAZYGRAPH, "lazyrt", "lazyviz", "torch", "IPython") == set()


def test_the_runtime_knows_nothing_of_what_shows_it():
    assert imports_of(RUNTIME, "lazyviz", "IPython", "ipywidgets", "anywidget") == set()


def test_drawing_is_pure_and_knows_nothing_of_shells_and_widgets():
    allowed = {"draw", "render", "doc"}
    found = {
        f"{path.name}: {name}"
        for path in [
            *(LAZYVIZ / "draw").glob("*.py"),
            *(LAZYVIZ / "render").glob("*.py"),
            LAZYVIZ / "doc.py",
        ]
        for name in imported_names(path)
        if name.split(".")[0] in {"IPython", "ipywidgets", "anywidget", "torch", "jax"}
        or (name.startswith("lazyviz.") and name.split(".")[1] not in allowed)
    }

    assert found == set()


@pytest.mark.parametrize("package", [RUNTIME, LAZYGRAPH, LAZYVIZ])
def test_files_are_part_of_a_package(package):
    folders = {path.parent for path in package.rglob("*.py")}

    assert {
        str(f.relative_to(ROOT)) for f in folders if not (f / "__init__.py").exists()
    } == set()


def test_private_names_of_torch_and_jax_stand_in_few_files():
    private = re.compile(r"\btorch\._(?!ops\b|_)|\bjax\._src")
    found = {
        str(path.relative_to(RUNTIME))
        for path in RUNTIME.rglob("*.py")
        if private.search(path.read_text("utf-8"))
    }

    assert found == {
        "frontend/torch_compat.py",
        "jax_compat.py",
        "lowering/registry.py",
        "lowering/optimizers.py",
    }


def test_the_runtime_gathers_for_inspectors_what_lazyviz_uses_and_no_more():
    sources = [path.read_text("utf-8") for path in LAZYVIZ.rglob("*.py")]
    used = {
        name.partition(".")[2]
        for path in LAZYVIZ.rglob("*.py")
        for imported in ratchets.imports_in(ratchets.tree_of(path))
        if (name := imported.removeprefix("lazyrt.")).startswith("tools.")
    } | {name for text in sources for name in re.findall(r"\btools\.(\w+)", text)}

    gathered = ratchets._all_of(RUNTIME / "tools.py")
    assert sorted(used) == sorted(gathered)


def test_imports_run_one_way():
    order = ("ir", "lowering", "execution", "frontend", "control", "api")
    upwards = {
        f"{path.relative_to(RUNTIME)}: {name}"
        for level, part in enumerate(order[:-1])
        for path in (RUNTIME / part).rglob("*.py")
        for name in imports_at_the_top(path)
        if name.split(".")[1:2] and name.split(".")[1] in order[level + 1 :]
    }

    assert upwards == set()


def imports_at_the_top(path):
    """Yield lazyrt's modules that importing a file imports; those for types alone are none."""
    for statement in ratchets.tree_of(path).body:
        if isinstance(statement, ast.ImportFrom) and statement.module:
            if statement.module == "lazyrt":
                yield from (f"lazyrt.{alias.name}" for alias in statement.names)
            elif statement.module.startswith("lazyrt."):
                yield statement.module


def test_every_lock_can_be_taken_again_by_the_thread_that_holds_it():
    """A garbage collection runs finalisers anywhere, and theirs may be an op or a read."""
    plain = [
        str(path.relative_to(ROOT))
        for package in (RUNTIME, LAZYGRAPH, LAZYVIZ)
        for path in package.rglob("*.py")
        if re.search(r"\bLock\(\)", path.read_text("utf-8"))
    ]

    assert plain == []


# ---------------------------------------------------------------- what may only fall


def test_the_product_gets_no_more_tangled_and_no_larger():
    assert ratchets.risen(ratchets.figures(), ratchets.committed()) == []


def test_what_rises_is_named():
    most = {"circles": [["a", "b", "c"]], "internals": ["x: lazyrt.ir.node.Node"]}
    now = {
        "circles": [["a", "c"], ["c", "d"]],
        "internals": ["y: lazyrt.ir.graph.Graph"],
    }
    counts = [{key: {"new": n} for key in ("files", "lines", "any")} for n in (1, 2)]

    assert ratchets.risen({**now, **counts[1]}, {**most, **counts[0]}) == [
        "modules import each other: c, d",
        "lazyviz imports an internal name: y: lazyrt.ir.graph.Graph",
        "files of new: 2, at most 1",
        "lines of new: 2, at most 1",
        "any of new: 2, at most 1",
    ]


def test_circles_are_found_through_functions_and_types():
    graph = {"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": [], "e": ["e", "d"]}

    assert ratchets._components(graph) == [["d"], ["a", "b", "c"], ["e"]]
    example = ast.parse("def f():\n from a.b import c\nif TYPE_CHECKING:\n import d.e")
    assert ratchets.imports_in(example) == {"a.b.c", "d.e"}
