"""An IR op as Python that runs by itself: its call, on made-up inputs of the same types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lazyrt.tools import Node, Value

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def python_call(node: Node) -> str:
    """Return lines that run a node's op in torch alone, on inputs of its shapes and dtypes."""
    names: dict[Value, str] = {}
    args = node.args[1:] if node.op.is_random else node.args
    for value in _values(args):
        if value not in names:
            count = len(names)
            letter, round_ = _LETTERS[count % 26], count // 26
            names[value] = f"{letter}{round_ or ''}"
    lines = ["import torch", ""]
    lines += [f"{name} = {_made(value)}{_said(value)}" for value, name in names.items()]
    lines.append(f"torch.ops.{node.op.name}({_arguments(node, args, names)})")
    return "\n".join(lines)


def _values(args: Any) -> list[Value]:
    found: list[Value] = []
    for arg in args:
        if _is_value(arg):
            found.append(arg)
        elif isinstance(arg, tuple):
            found += _values(arg)
    return found


def _is_value(arg: Any) -> bool:
    return hasattr(arg, "strides") and hasattr(arg, "node")


def _made(value: Value) -> str:
    kind = getattr(value, "kind", "data")
    if kind == "float":
        return "1.0"
    if kind == "int":
        return "1"
    shape, dtype = value.shape, value.dtype
    if dtype.is_floating_point or dtype.is_complex:
        return f"torch.randn({shape}, dtype={dtype})"
    high = 2 if str(dtype) == "torch.bool" else 10
    made = f"torch.randint({high}, {shape})"
    return made if str(dtype) == "torch.int64" else f"{made}.to({dtype})"


def _said(value: Value) -> str:
    if value.node is None:
        return ""
    return f"  # %{value.node.id} {value.node.op.name}"


def _arguments(node: Node, args: Any, names: dict[Value, str]) -> str:
    schema = list(getattr(node.op.schema, "arguments", ()))
    parts = []
    for position, arg in enumerate(args):
        known = schema[position] if position < len(schema) else None
        if known is not None and known.kwarg_only:
            if arg is not None:
                parts.append(f"{known.name}={_argument(arg, names)}")
        else:
            parts.append(_argument(arg, names))
    return ", ".join(parts)


def _argument(arg: Any, names: dict[Value, str]) -> str:
    if _is_value(arg):
        return names[arg]
    if isinstance(arg, tuple):
        if len(arg) == 2 and arg[0] in {float, bool, complex}:  # noqa: PLR2004
            return _number(*arg)
        return f"[{', '.join(_argument(part, names) for part in arg)}]"
    shown = repr(arg)
    if shown.startswith("device("):
        return "'cpu'"
    return shown


def _number(kind: type, value: Any) -> str:
    number = kind(value) if isinstance(value, str) else value
    shown = repr(number)
    return f"float('{shown}')" if shown in {"inf", "-inf", "nan"} else shown
