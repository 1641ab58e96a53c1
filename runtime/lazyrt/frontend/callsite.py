"""What the user's line is doing: the expression under execution, and the tensor it names.

Read from the position that the interpreter keeps for each instruction and from the source,
never from a frame's variables: asking a frame for those can keep tensors alive.
"""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import inspect
import itertools
import linecache
import sys
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any

from lazyrt.execution import cache_miss
from lazyrt.frontend.provenance import (
    is_library,
    is_packages,
    outward,
    package_line,
    site_of,
    user_frame,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

    from lazyrt.observe.events import SourceLocation


# ------------------------------------------------------------------ variables of frames
# CPython keeps a frame's dict of locals, with everything in it, once somebody has asked for it:
# a dead tensor would be a root of the next step. So it is copied and emptied.


# References to a frame's dict: of the frame, of a variable here, and of the call that counts.
_UNKEPT = 3
_SHELLS = ("/IPython/", "/ipykernel/", "/traitlets/")


def namespaces(depth: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield copies of the locals and globals of the user's frames, innermost first.

    Each comes with the name of its function, empty for globals.
    """
    seen: set[int] = set()
    for frame in outward(sys._getframe(depth)):
        if not is_library(frame.f_code):
            is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
            if is_function:
                yield locals_of(frame), frame.f_code.co_qualname
            for namespace in (None if is_function else frame.f_locals, frame.f_globals):
                if namespace is not None and id(namespace) not in seen:
                    seen.add(id(namespace))
                    yield dict(namespace), ""


def library_namespaces(depth: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield copies of the locals of packages that the user's line has called, innermost first.

    A loop of a library, such as one that generates text, holds what the user has no name for.
    """
    frame: FrameType | None = sys._getframe(depth)
    called: list[FrameType] = []
    while frame is not None and is_library(frame.f_code):
        if is_packages(frame.f_code.co_filename) and not _is_shell(frame):
            called.append(frame)
        frame = frame.f_back
    for each in called if frame is not None else ():
        yield locals_of(each), each.f_code.co_qualname


def _is_shell(frame: FrameType) -> bool:
    """Return whether a frame is the shell's, which shows a value under a name of its own."""
    return any(part in frame.f_code.co_filename for part in _SHELLS)


def locals_of(frame: FrameType) -> dict[str, Any]:
    """Return a copy of a function's locals, and leave none in the frame.

    Where the function keeps what `locals()` gave it, that is the frame's own dict: it stays.
    """
    if frame.f_trace:  # a debugger keeps the user's edits in that dict
        return {}
    found = frame.f_locals
    copied = dict(found)
    if type(found) is dict and sys.getrefcount(found) <= _UNKEPT:
        found.clear()
    return copied


_MAX_TEXT = 60
_OF_FIRST_ARGUMENT = frozenset(
    ("float", "int", "bool", "complex", "str", "repr", "format", "len", "round")
)
# Functions of several arguments, of which one may be a tensor.
_OF_ANY_ARGUMENT = frozenset(("print", "range"))
# Methods that read something else than what they are called on: what it is compared with.
_COMPARING = frozenset(("index", "count", "remove", "equal", "allclose"))
# Functions that read what lies within their argument.
_SAVING = frozenset(("save", "dump", "dumps"))
_TENSOR_LIKE = (
    ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.BinOp, ast.UnaryOp, ast.Compare,
)  # fmt: skip
# Short names that programs give to modules in functions, too.
_MODULES = frozenset(("torch", "np", "numpy", "pickle", "lazyrt"))
_PLAIN = (int, float, complex, str, bytes)
_STORES_ITEM = dis.opmap["STORE_SUBSCR"]


@dataclass(frozen=True, slots=True)
class Call:
    """The innermost call in the user's own code.

    Attributes:
        site: Its line.
        text: Source of the expression, such as `loss.item()`; empty where there is no source.
        tensor: Source of the operand that is read, such as `loss`; empty if not known.
    """

    site: SourceLocation | None
    text: str = ""
    tensor: str = ""


def user_call() -> Call:
    """Return what the innermost frame of the user's code is calling."""
    frame = user_frame(sys._getframe(1))
    if frame is None:
        return Call(None)
    position = _position(frame)
    if frame.f_code.co_code[frame.f_lasti] == _STORES_ITEM:
        # What is read stands to the right of it.
        first = position.lineno or frame.f_lineno
        return Call(site_of(frame), _cut(_lines(frame, first, first)[0].strip()))
    source = _source_of(frame, position)
    # What a package reads, the user's line does not name.
    tensor = "" if package_line(2) else operand_of(source, frame.f_globals)
    return Call(site_of(frame), _cut(source), tensor)


def operand_of(source: str, scope: Mapping[str, object] | None = None) -> str:
    """Return the source of the tensor that an expression reads, empty if that is unclear.

    Args:
        source: The expression.
        scope: The global names, which tell a module's function from a tensor's method.

    Example:
        >>> operand_of("loss.mean().item()"), operand_of("float(t[0])")
        ('loss.mean()', 't[0]')
        >>> operand_of("loss < best"), operand_of("0 < loss < best")
        ('loss < best', '0 < loss')
        >>> operand_of("math.sqrt(loss)", {"math": ast})
        'loss'
        >>> operand_of("print('loss', i, loss)", {"i": 3}), operand_of("print(a, b)")
        ('loss', '')
        >>> operand_of("f'{type(m).__name__} {y.mean():.3f}'"), operand_of("f'{a} {b}'")
        ('y.mean()', '')
    """
    try:
        tree = _Plain().visit(ast.parse(source, mode="eval")).body
    except (SyntaxError, ValueError):
        return ""
    if isinstance(
        tree, ast.JoinedStr
    ):  # up to Python 3.11 the place is that of the whole text
        shown = [v.value for v in tree.values if isinstance(v, ast.FormattedValue)]
        found = _only_tensor(shown, scope or {})
    elif isinstance(tree, ast.Call):
        found = _of_call(tree, scope or {})
    else:
        found = _tested(tree)
    return "" if found is None else _cut(ast.unparse(found))


class _Plain(ast.NodeTransformer):
    """Puts what a name is given in the place of `(name := value)`."""

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        value: ast.AST = self.visit(node.value)
        return value


def _tested(tree: ast.expr) -> ast.expr | None:
    """Return what is read where an expression's truth, or its text, is asked for."""
    match tree:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _tested(operand)
        case ast.BoolOp(values=[first, _]):
            return _tested(first)
        case ast.BoolOp() | ast.Compare(ops=[ast.In() | ast.NotIn(), *_]):
            return None
        case ast.Compare(left=left, ops=[first, _], comparators=[second, _]):
            return ast.Compare(left=left, ops=[first], comparators=[second])
        case ast.Compare(ops=[_, _, *_]):
            return None
        case ast.BinOp(left=ast.Constant(value=str()), op=ast.Mod(), right=right):
            return right if isinstance(right, _TENSOR_LIKE) else None
    return tree


def _of_call(tree: ast.Call, scope: Mapping[str, object]) -> ast.expr | None:
    """Return what a call reads: what its method belongs to, or its argument."""
    function, args = tree.func, tree.args
    if isinstance(function, ast.Name):
        if function.id in _OF_ANY_ARGUMENT:
            return _only_tensor(args, scope)
        return args[0] if function.id in _OF_FIRST_ARGUMENT and args else None
    if not isinstance(function, ast.Attribute) or function.attr in _COMPARING | _SAVING:
        return None
    root = _root(function.value)
    if args and (function.attr == "copy_" or root == "lazyrt"):
        return args[0]
    is_module = root in _MODULES or isinstance(
        scope.get(root, sys.modules.get(root)), ModuleType
    )
    if root and is_module and (found := _only_tensor(args, scope)) is not None:
        return found
    return (
        None if is_module and isinstance(function.value, ast.Name) else function.value
    )


def _root(tree: ast.expr) -> str:
    """Return the name that a chain of attributes begins with; empty for anything else."""
    while isinstance(tree, ast.Attribute):
        tree = tree.value
    return tree.id if isinstance(tree, ast.Name) else ""


def _only_tensor(args: list[ast.expr], scope: Mapping[str, object]) -> ast.expr | None:
    """Return the argument that may be a tensor, if there is one and no more."""
    found = [arg for arg in args if not _is_plain(arg, scope)]
    return found[0] if len(found) == 1 and isinstance(found[0], _TENSOR_LIKE) else None


def _is_plain(arg: ast.expr, scope: Mapping[str, object]) -> bool:
    """Return whether an argument is a constant, a text, or the name of a plain value."""
    if isinstance(arg, ast.Name):
        return isinstance(scope.get(arg.id), _PLAIN)
    if isinstance(arg, ast.Attribute):
        return arg.attr == "__name__"
    return isinstance(arg, ast.Constant | ast.JoinedStr)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


def _position(frame: FrameType) -> dis.Positions:
    """Return the place of the instruction that a frame is at: lines, and offsets in bytes."""
    instruction = frame.f_lasti // 2
    found = itertools.islice(frame.f_code.co_positions(), instruction, instruction + 1)
    return dis.Positions(*next(found, ()))


def _lines(frame: FrameType, first: int, last: int) -> list[str]:
    return [
        linecache.getline(frame.f_code.co_filename, number, frame.f_globals)
        for number in range(first, last + 1)
    ]


def _source_of(frame: FrameType, position: dis.Positions) -> str:
    """Return the source of the instruction that a frame is at, on one line."""
    first, last, start, end = position
    if first is None or last is None or start is None or end is None:
        return ""
    lines = [line.encode() for line in _lines(frame, first, last)]
    if lines[0][:start].endswith(b"."):  # a method on a line below its object
        tree = cache_miss.tree_of(frame.f_code.co_filename)
        whole = "" if tree is None else _call_ending_at(tree, last, end)
        return " ".join(whole.split())
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return " ".join(b" ".join(lines).decode(errors="replace").split())


@functools.lru_cache(maxsize=64)
def _call_ending_at(tree: ast.Module, last: int, end: int) -> str:
    """Return the source of the longest call that ends there; empty if there is none."""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (node.end_lineno, node.end_col_offset) == (last, end)
        and isinstance(node.func, ast.Attribute)
    ]
    return ast.unparse(calls[0]) if calls else ""


# -------------------------------------------------------------------- numbers that vary
# Read when the number becomes an input, once for a line: the expression under execution, and which
# part of it has no tensor in it.


_MAX_NUMBER_TEXT = 40
_FREE = (ModuleType, FunctionType, BuiltinFunctionType, type)


def note_number(op: str) -> None:
    """Note for the user's line, and the op that it records, the number that varies there."""
    call = user_call()
    frame = user_frame(sys._getframe(1))
    if frame is None or call.site is None or not call.text:
        return
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    scope = dict(frame.f_globals) | (locals_of(frame) if is_function else {})
    name = number_in(call.text, scope)
    cache_miss.note_expression(call.site, op, cache_miss.Expression(call.text, name))


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
    return name if len(found) == 1 and len(name) <= _MAX_NUMBER_TEXT else ""


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
    read = [value_of(each, scope) for each in reads_of(part)]
    return any(isinstance(value, int | float) for value in read) and all(
        isinstance(value, (int, float, *_FREE)) for value in read
    )


def reads_of(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the names, attributes and items in an expression, each as a whole."""
    if isinstance(tree, ast.Name | ast.Attribute | ast.Subscript):
        yield tree
        return
    for child in ast.iter_child_nodes(tree):
        yield from reads_of(child)


def value_of(tree: ast.expr, scope: Mapping[str, Any]) -> Any:
    """Return what an expression is, without running anybody's code; None if that is unclear."""
    match tree:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return scope.get(name, getattr(builtins, name, None))
        case ast.Attribute(value=of, attr=name):
            return _attribute(value_of(of, scope), name)
        case ast.Subscript(value=of, slice=index):
            return _item(value_of(of, scope), value_of(index, scope))
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
