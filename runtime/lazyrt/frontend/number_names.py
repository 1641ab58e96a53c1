"""What the user's line calls a Python number that varies.

Read when the number becomes an input, once for a line: the expression under execution, and which
part of it has no tensor in it.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any

from lazyrt.frontend.callsite import user_call
from lazyrt.frontend.namespaces import locals_of
from lazyrt.frontend.provenance import is_library
from lazyrt.ir import varying

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

_MAX_TEXT = 40
_FREE = (ModuleType, FunctionType, BuiltinFunctionType, type)


def note(op: str) -> None:
    """Note for the user's line, and the op that it records, the number that varies there."""
    call = user_call()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_library(frame.f_code):
        frame = frame.f_back
    if frame is None or call.site is None or not call.text:
        return
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    scope = dict(frame.f_globals) | (locals_of(frame) if is_function else {})
    name = number_in(call.text, scope)
    varying.note(call.site, op, varying.Expression(call.text, name))


def number_in(source: str, scope: Mapping[str, Any]) -> str:
    """Return the part of an expression that is a Python number; empty for none or several.

    Args:
        source: The expression of one op.
        scope: The names that it sees.

    Example:
        >>> number_in("x * (1 - beta)", {"beta": 0.9, "x": None})
        '1 - beta'
        >>> number_in("data[i : i + 4]", {"i": 8}), number_in("x.clamp(a, b)", {"a": 1, "b": 2})
        ('i', '')
    """
    try:
        tree = ast.parse(source).body[0]
    except (SyntaxError, ValueError, IndexError):  # such as a text that was cut
        return ""
    found = {
        ast.unparse(part): None for part in _parts(tree) if _is_number(part, scope)
    }
    name = next(iter(found), "")
    return name if len(found) == 1 and len(name) <= _MAX_TEXT else ""


def _parts(tree: ast.AST) -> list[ast.expr]:
    """Return the operands of an op, as they are written."""
    match tree:
        case ast.Expr(value=value) | ast.Return(value=value) if value is not None:
            return _parts(value)
        case ast.AugAssign(value=value):
            return [value]
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.Compare(left=left, comparators=others):
            return [left, *others]
        case ast.Call(args=args, keywords=keywords):
            return [*args, *[keyword.value for keyword in keywords]]
        case ast.Subscript(slice=index):
            return [each for each in ast.walk(index) if isinstance(each, ast.Name)]
    return []


def _is_number(part: ast.expr, scope: Mapping[str, Any]) -> bool:
    """Return whether an expression is made of variables that are Python numbers."""
    read = [_value(each, scope) for each in _reads(part)]
    return any(isinstance(value, int | float) for value in read) and all(
        isinstance(value, (int, float, *_FREE)) for value in read
    )


def _reads(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the names, attributes and items in an expression, each as a whole."""
    if isinstance(tree, ast.Name | ast.Attribute | ast.Subscript):
        yield tree
        return
    for child in ast.iter_child_nodes(tree):
        yield from _reads(child)


def _value(tree: ast.expr, scope: Mapping[str, Any]) -> Any:
    """Return what an expression is, without running anybody's code; None if that is unclear."""
    match tree:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return scope.get(name, getattr(builtins, name, None))
        case ast.Attribute(value=of, attr=name):
            return _attribute(_value(of, scope), name)
        case ast.Subscript(value=of, slice=index):
            return _item(_value(of, scope), _value(index, scope))
    return None


def _attribute(owner: Any, name: str) -> Any:
    found = inspect.getattr_static(owner, name, None)
    if isinstance(found, MemberDescriptorType):  # a slot
        try:
            return found.__get__(owner)
        except AttributeError:
            return None
    return found


def _item(owner: Any, key: Any) -> Any:
    if type(owner) not in {dict, list, tuple} or type(key) not in {str, int}:
        return None
    try:
        return owner[key]
    except LookupError:
        return None
