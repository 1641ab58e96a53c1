"""What the user's source calls a number that an op was given.

An op's record has its value and its line. The name is in the source of that line: the argument
of the call that became the op. A line that cannot be read, or in which several arguments could be
meant, gives no name rather than a wrong one.
"""

from __future__ import annotations

import ast
import linecache
from typing import TYPE_CHECKING, Any

import torch

from lazyrt.ir.varying import expression_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazyrt.observe.events import Site

_MAX_LINES = 20_000
_MAX_TEXT = 40


class UserSource:
    """What the source of the user's program says of arguments and numbers."""

    def argument(self, site: Site | None, op: str, position: int) -> str:
        """Return the expression of an argument, or the name of the argument in torch."""
        return argument_name(site, op, position)

    def call(self, site: Site | None, op: str) -> str:
        """Return the call that recorded an op, as it is written; empty where that is unclear."""
        calls = (
            [call for call in _calls(site) if _callee(call) in _spellings(op)]
            if site
            else []
        )
        text = ast.unparse(calls[0]) if len(calls) == 1 else ""
        return text if len(text) <= _MAX_TEXT else ""

    def takes_tensor(self, op: str, position: int) -> bool:
        """Return whether some overload of an op takes a tensor for an argument."""
        return takes_tensor(op, position)

    def expression(self, site: Site | None, op: str) -> tuple[str, str]:
        """Return the expression in which a number varied, and the number's name there."""
        found = expression_at(site, op)
        return (found.text, found.number) if found is not None else ("", "")


def argument_name(
    site: Site | None, op: str, position: int, item: int | None = None
) -> str:
    """Return the expression of an argument, such as `self.eps`; empty where it is unknown.

    Args:
        site: The line that recorded the op.
        op: Its ATen overload, such as `aten.topk.default`.
        position: The argument's position in the op's schema, operands included.
        item: Which item of a list is meant: `x.view(rows, k)` gives one by one what `x.view((rows,
            k))` gives at once.
    """
    if site is None:
        return ""
    names = _spellings(op)
    calls = [call for call in _calls(site) if _callee(call) in names]
    if len(calls) != 1:
        return ""
    expression = _argument(calls[0], name_in_schema(op, position), position, item)
    if expression is None or not any(
        isinstance(node, ast.Name) for node in ast.walk(expression)
    ):
        return ""
    text = ast.unparse(expression)
    return text if len(text) <= _MAX_TEXT else ""


def takes_tensor(op: str, position: int) -> bool:
    """Return whether some overload of an op takes a tensor for an argument."""
    name = name_in_schema(op, position)
    return any(
        each.name == name and "Tensor" in str(each.type)
        for overload in _overloads(op)
        for each in overload._schema.arguments
    )


def name_in_schema(op: str, position: int) -> str:
    """Return the name of an argument; empty for an op that torch does not have."""
    names = arguments_of(op)
    return names[position] if 0 <= position < len(names) else ""


def arguments_of(op: str) -> list[str]:
    """Return the names of an op's arguments; none for an op that torch does not have."""
    found = next((each for each in _overloads(op) if str(each) == op), None)
    return [str(each.name) for each in found._schema.arguments] if found else []


def _overloads(op: str) -> list[Any]:
    namespace, name, *_ = (*op.split("."), "")
    packet = getattr(getattr(torch.ops, namespace, None), name, None) if name else None
    return (
        [getattr(packet, each) for each in packet.overloads()]
        if packet is not None
        else []
    )


def _spellings(op: str) -> set[str]:
    """Return what a call of an op may be called in a program."""
    name = op.split(".")[1] if op.count(".") > 1 else op
    name = name.removesuffix("_backward")
    bare = name.removeprefix("_").removesuffix("_")
    return {name, bare, f"{bare}_", bare.removeprefix("native_")}


def _calls(site: Site) -> Iterator[ast.Call]:
    """Yield the calls whose text covers a line."""
    lines = linecache.getlines(site.file)
    if not 0 < site.line <= len(lines) <= _MAX_LINES:
        return
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):  # a cell with magics
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _covers(node, site.line):
            yield node


def _covers(node: ast.Call, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _callee(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _argument(
    call: ast.Call, argument: str, position: int, item: int | None
) -> ast.expr | None:
    """Return the argument of that name, else the one at that place."""
    for keyword in call.keywords:
        if keyword.arg == argument:
            return keyword.value
    if any(isinstance(each, ast.Starred) for each in call.args):
        return None
    if _is_method(call):  # the tensor stands in front of the dot
        position -= 1
    given = call.args[position:] if position >= 0 else []
    if item is not None and given and not isinstance(given[0], (ast.Tuple, ast.List)):
        return given[item] if item < len(given) > 1 else None
    return given[0] if given else None


_FUNCTIONS_OF = frozenset(
    ("torch", "F", "functional", "nn", "linalg", "special", "fft")
)


def _is_method(call: ast.Call) -> bool:
    function = call.func
    if not isinstance(function, ast.Attribute):
        return False
    owner = function.value
    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    return name not in _FUNCTIONS_OF
