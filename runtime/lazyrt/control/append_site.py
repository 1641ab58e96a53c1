"""The line of the user's source that puts tensors into a collection."""

from __future__ import annotations

import ast
import functools
import linecache
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazyrt.observe.events import SourceLocation

_PUTS = frozenset(
    ("append", "appendleft", "extend", "insert", "add", "update", "setdefault")
)
_MAX_LINES = 20_000


def line_of_keeping(path: str, site: SourceLocation | None) -> SourceLocation | None:
    """Return the line that puts things into the collection that a path ends in.

    Args:
        path: Such as `history` or `trainer.log['loss']`.
        site: Where one of those things was made: the search is in its file, and the nearest
            line from there on is taken.

    Returns:
        None if there is no source, or no such line.
    """
    if site is None:
        return None
    lines = linecache.getlines(site.file)
    if not 0 < len(lines) < _MAX_LINES:
        return None
    try:
        wanted = _last_name(ast.parse(path, mode="eval").body)
        tree = _parsed("".join(lines))
    except (SyntaxError, ValueError):
        return None
    found = sorted(_lines(tree, wanted)) if wanted else []
    later = [line for line in found if line >= site.line]
    if not found:
        return None
    return replace(site, line=later[0] if later else found[-1])


@functools.lru_cache(maxsize=16)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _lines(tree: ast.AST, wanted: str) -> Iterator[int]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if attr in _PUTS:
                targets = [owner]
            case ast.Assign(targets=many, value=value):
                targets = [t.value for t in many if isinstance(t, ast.Subscript)]
                targets += many if _has_items(value) else []
            case ast.AugAssign(target=target):
                targets = [target]
            case _:
                continue
        if any(_last_name(target) == wanted for target in targets):
            yield node.lineno


def _has_items(node: ast.expr) -> bool:
    """Return whether an expression writes out a collection with something in it."""
    match node:
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return bool(items)
        case ast.Dict(values=values):
            return bool(values)
    comprehensions = (ast.ListComp, ast.SetComp, ast.DictComp)
    return isinstance(node, comprehensions)


def _last_name(node: ast.expr) -> str:
    """Return the last name of a path: `log` of `self.log['loss']`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
