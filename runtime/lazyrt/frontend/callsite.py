"""What the user's line is doing: the expression under execution, and the tensor it names.

Read from the position that the interpreter keeps for each instruction and from the source,
never from a frame's variables: asking a frame for those can keep tensors alive.
"""

from __future__ import annotations

import ast
import itertools
import linecache
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazyrt.frontend.provenance import is_library, site_of

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import FrameType

    from lazyrt.observe.events import Site

_MAX_TEXT = 60
_OF_FIRST_ARGUMENT = frozenset(
    ("float", "int", "bool", "complex", "range", "print", "str", "repr", "format", "len",
     "max", "min", "sum", "round", "list", "tuple")
)  # fmt: skip
_MODULES = frozenset(("torch", "np", "numpy", "pickle", "lazyrt"))


@dataclass(frozen=True, slots=True)
class Call:
    """The innermost call in the user's own code.

    Attributes:
        site: Its line.
        text: Source of the expression, such as `loss.item()`; empty where there is no source.
        tensor: Source of the operand that is read, such as `loss`; empty if not known.
    """

    site: Site | None
    text: str = ""
    tensor: str = ""


def user_call() -> Call:
    """Return what the innermost frame of the user's code is calling."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_library(frame.f_code):
        frame = frame.f_back
    if frame is None:
        return Call(None)
    source = _source_under_execution(frame)
    if len(source) > _MAX_TEXT:
        return Call(site_of(frame), f"{source[: _MAX_TEXT - 3]}...", operand_of(source))
    return Call(site_of(frame), source, operand_of(source))


def operand_of(source: str) -> str:
    """Return the source of the tensor that an expression reads, empty if that is unclear.

    Example:
        >>> operand_of("loss.mean().item()"), operand_of("float(t[0])")
        ('loss.mean()', 't[0]')
        >>> operand_of("loss < best")
        'loss < best'
    """
    try:
        tree = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    if not isinstance(tree, ast.Call):
        return _short(tree)
    function = tree.func
    if isinstance(function, ast.Name):
        known = function.id in _OF_FIRST_ARGUMENT and tree.args
        return _short(tree.args[0]) if known else ""
    if not isinstance(function, ast.Attribute):
        return ""
    if tree.args and (
        function.attr == "copy_" or _is_module(function.value, {"lazyrt"})
    ):
        return _short(tree.args[0])
    if not _is_module(function.value, _MODULES):
        return _short(function.value)
    return ""


def _is_module(tree: ast.expr, names: Collection[str]) -> bool:
    return isinstance(tree, ast.Name) and tree.id in names


def _short(tree: ast.expr) -> str:
    text = ast.unparse(tree)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


def _source_under_execution(frame: FrameType) -> str:
    """Return the source of the instruction that a frame is at, on one line."""
    positions = itertools.islice(
        frame.f_code.co_positions(), frame.f_lasti // 2, frame.f_lasti // 2 + 1
    )
    first, last, start, end = next(positions, (None, None, None, None))
    if first is None or last is None or start is None or end is None:
        return ""
    lines = [
        linecache.getline(frame.f_code.co_filename, number, frame.f_globals).encode()
        for number in range(first, last + 1)
    ]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return " ".join(b" ".join(lines).decode(errors="replace").split())
