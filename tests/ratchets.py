"""Figures of the product's structure that may only fall, and what they are today.

`python -m tests.ratchets` lowers the committed figures in `tests/data/structure.json` to today's,
and refuses to raise one. `tests/test_architecture.py` holds the code against them.
"""

from __future__ import annotations

import ast
import functools
import itertools
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
COMMITTED = ROOT / "tests/data/structure.json"
Figures = dict[str, Any]


@functools.cache
def modules() -> dict[str, Path]:
    """Return the files of the product by the names of their modules."""
    found = {}
    for source, package in (
        (ROOT / "runtime", "lazyrt"),
        (ROOT / "runtime", "lazygraph"),
        (ROOT, "lazyviz"),
    ):
        for path in sorted((source / package).rglob("*.py")):
            parts = path.relative_to(source).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text("utf-8"))


@functools.cache
def imports_in(tree: ast.Module) -> set[str]:
    """Return the names that a module imports, in functions and for types too."""
    found = set()
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            found |= {f"{statement.module}.{alias.name}" for alias in statement.names}
    return found


def circles() -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    known = modules()
    graph = {}
    for name, path in known.items():
        targets = {
            i if i in known else i.rpartition(".")[0] for i in imports_in(tree_of(path))
        }
        graph[name] = sorted(targets & known.keys() - {name})
    return sorted(group for group in _components(graph) if len(group) > 1)


def _components(graph: dict[str, list[str]]) -> list[list[str]]:
    """Return the strongly connected components: Tarjan's algorithm."""
    found: list[list[str]] = []
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    count = itertools.count()

    def visit(node: str) -> None:
        number[node] = low[node] = next(count)
        stack.append(node)
        for other in graph[node]:
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            start = stack.index(node)
            found.append(sorted(stack[start:]))
            del stack[start:]

    for node in graph:
        if node not in number:
            visit(node)
    return found


def internals() -> list[str]:
    """Return what lazyviz imports of lazyrt beside its public names, with the module.

    Public are the names of `lazyrt.__all__`, the errors, the events, and what `lazyrt.tools`
    gathers for inspectors.
    """
    public = set(_all_of(modules()["lazyrt"]))
    return sorted(
        f"{name}: {imported}"
        for name, path in modules().items()
        if name.split(".")[0] == "lazyviz"
        for imported in imports_in(tree_of(path))
        if imported.startswith("lazyrt.")
        and not f"{imported}.".startswith(_PUBLIC)
        and imported.removeprefix("lazyrt.") not in public
    )


_PUBLIC = ("lazyrt.errors.", "lazyrt.observe.events.", "lazyrt.tools.")


def _all_of(path: Path) -> list[str]:
    for statement in tree_of(path).body:
        if isinstance(statement, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__"
            for target in statement.targets
        ):
            found: list[str] = ast.literal_eval(statement.value)
            return found
    return []


def figures() -> Figures:
    """Return today's figures."""
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    anys: Counter[str] = Counter()
    for name, path in modules().items():
        folder = "/".join(path.relative_to(ROOT).parts[:-1][:3])
        files[folder] += 1
        lines[folder] += len(path.read_text("utf-8").splitlines())
        anys[name.split(".")[0]] += sum(
            isinstance(node, ast.Name) and node.id == "Any"
            for node in ast.walk(tree_of(path))
        )
    return {
        "circles": circles(),
        "internals": internals(),
        "files": dict(sorted(files.items())),
        "lines": dict(sorted(lines.items())),
        "any": dict(sorted(anys.items())),
    }


def committed() -> Figures:
    """Return the figures that nothing may be above."""
    found: Figures = json.loads(COMMITTED.read_text("utf-8"))
    return found


def risen(now: Figures, most: Figures) -> list[str]:
    """Return what is above the committed figures, in words."""
    found = [
        f"modules import each other: {', '.join(group)}"
        for group in now["circles"]
        if not any(set(group) <= set(known) for known in most["circles"])
    ]
    found += [
        f"lazyviz imports an internal name: {each}"
        for each in now["internals"]
        if each not in most["internals"]
    ]
    for kind in ("files", "lines", "any"):
        for where, count in now[kind].items():
            limit = most[kind].get(where, 0)
            if count > limit:
                found.append(f"{kind} of {where}: {count}, at most {limit}")
    return found


def _lower() -> None:
    now = figures()
    above = risen(now, committed()) if COMMITTED.exists() else []
    if above:
        sys.exit("These only fall:\n" + "\n".join(above))
    COMMITTED.write_text(json.dumps(now, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    _lower()
