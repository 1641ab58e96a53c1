"""What a planted script is: a program, and what an honest reader says of its change."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPTS: list[Script] = []


@dataclass(frozen=True)
class Script:
    """A training script whose step is another graph from the planted change on.

    Attributes:
        run: Trains; with `change=False` without what the comments `# planted` mark.
        kinds: The kinds of cause that are right, most often one.
        names: Variables, modules and ops, one of which the sentence may name.
        lines: The lines of the planted statements as `file.py:number`; one may stand for a name.
        graphs: How many of the graphs at the change may be judged: a graph break makes two.
    """

    run: Callable[..., None]
    kinds: frozenset[str]
    names: tuple[str, ...]
    lines: tuple[str, ...]
    graphs: int

    def __str__(self) -> str:
        return self.run.__name__


def planted(*kinds, names, graphs=1):
    """Add a script to the bed; what stands above it up to the last script is its own."""

    def add(run):
        SCRIPTS.append(
            Script(run, frozenset(kinds), names, tuple(_planted_lines(run)), graphs)
        )
        return run

    return add


def _planted_lines(run):
    """Return the lines of the planted statements: of a loop or a function all of its body."""
    path = Path(run.__code__.co_filename)
    text = path.read_text("utf-8")
    first = max(
        (_end(s.run) for s in SCRIPTS if s.run.__module__ == run.__module__),
        default=0,
    )
    marked = {
        number
        for number, line in enumerate(text.splitlines(), 1)
        if "# planted" in line and first < number <= _end(run)
    }
    found = set(marked)
    for statement in ast.walk(ast.parse(text)):
        if isinstance(statement, ast.stmt) and statement.lineno in marked:
            found |= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return [f"{path.name}:{number}" for number in sorted(found)]


def _end(run):
    block, start = inspect.getsourcelines(run)
    return start + len(block) - 1
