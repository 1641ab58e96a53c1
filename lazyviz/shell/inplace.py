"""The body of a cell magic, run as if it were the cell."""

from __future__ import annotations

import ast
import re
from typing import Any


def run_in_place(shell: Any, cell: str, number: int) -> None:
    """Run the body of a cell magic so that errors rise through and line numbers hold.

    Args:
        shell: Where it runs.
        cell: The body.
        number: The cell's execution count.
    """
    __tracebackhide__ = True
    # IPython drops empty lines at the start. With them and one for the magic's own line,
    # line 3 of the cell stays line 3.
    dropped = re.match(r"(?:[^\S\n]*\n)*", cell)
    lead = "\n" + "\n" * (dropped[0].count("\n") if dropped else 0)
    source = lead + shell.transform_cell(cell)
    name = shell.compile.cache(source, number)
    tree = shell.transform_ast(shell.compile.ast_parse(source, filename=name))
    body: list[Any] = tree.body
    shows_last = (
        bool(body)
        and isinstance(body[-1], ast.Expr)
        and not shell.displayhook.semicolon_at_end_of_expression(cell)
    )
    parts: list[tuple[Any, str]] = [(ast.Module(body, []), "exec")]
    if shows_last:
        parts = [
            (ast.Module(body[:-1], []), "exec"),
            (ast.Interactive([body[-1]]), "single"),
        ]
    for tree_part, mode in parts:
        code = shell.compile(tree_part, name, mode)
        exec(code, shell.user_global_ns, shell.user_ns)  # noqa: S102
