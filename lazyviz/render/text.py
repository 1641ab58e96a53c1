"""Plain text: numbers for people, the listing of a graph, an op as Python that runs by itself."""

from __future__ import annotations

import cmath
import math
from string import ascii_lowercase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lazygraph import readable
from lazygraph.read import lazy_ir
from lazygraph.types import tensor_type
from lazyviz.render.html import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lazyrt import Graph
    from lazyrt.tools import Leaf, Node, Value


_CLOSE = 1.7  # between these a time is told as one
_MAX_NUMBERS = 12


duration, size, plural = readable.duration_text, readable.size_text, readable.plural
leaf_name = lazy_ir.leaf_name


def duration_range(low_ns: float, high_ns: float) -> str:
    """Return an expected time span, or between what it lies where that is not known well.

    Example:
        >>> duration_range(300e6, 1.2e9), duration_range(10e6, 14e6)
        ('0.3 to 1.2 s', 'about 12 ms')
        >>> duration_range(20e6, 80e6), duration_range(0.6e6, 2e6)
        ('20 to 80 ms', '0.6 to 2 ms')
    """
    if high_ns <= _CLOSE * low_ns:
        return f"about {duration((low_ns * high_ns) ** 0.5)}"
    high, _, unit = duration(high_ns).partition(" ")
    scale = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}.get(unit)
    if scale is None or " " in unit:  # of minutes
        return f"{duration(low_ns)} to {duration(high_ns)}"
    low = low_ns / scale
    digits = f"{low:.1f}" if low < 9.95 else f"{low:.0f}"  # noqa: PLR2004
    return f"{digits.removesuffix('.0')} to {high.removesuffix('.0')} {unit}"


def share(part: float, whole: float = 1) -> str:
    """Return a part in per cent of the whole.

    Example:
        >>> share(0.384), share(1, 3000), share(0, 3000)
        ('38 %', '<1 %', '0 %')
    """
    percent = 100 * part / whole if whole else 0
    return "<1 %" if 0 < percent < 1 else f"{percent:.0f} %"


def more(hidden: int, noun: str = "") -> list[str]:
    """Return how many a list leaves out, as its last line; no line if it has all.

    Example:
        >>> more(1_200), more(1, "node"), more(0)
        (['... and 1,200 more'], ['... and 1 more node'], [])
    """
    if hidden <= 0:
        return []
    return [f"... and {plural(hidden, f'more {noun}') if noun else f'{hidden:,} more'}"]


def listing(
    graph: Graph,
    limit: int | None = None,
    names: Mapping[Any, str] = MappingProxyType({}),
) -> str:
    """Return a line for each of the last operations: what, on what, of which type, whence."""
    nodes = graph.nodes
    hidden = max(0, len(nodes) - limit) if limit is not None else 0
    shown = nodes[hidden:]
    lines = [
        one_line(
            f"{leaf_name(leaf)} : {tensor_type(leaf)}"
            + (f"  # {names[leaf]}" if names.get(leaf) else "")
        )
        for leaf in _leaves(graph, shown)
    ]
    if hidden:
        lines.append(f"... {plural(hidden, 'earlier op')}")
    lines.extend(map(_node_line, shown))
    lines.append("return " + ", ".join(map(reference, graph.roots)))
    return "\n".join(lines)


def number_lines(graph: Graph) -> list[str]:
    """Return which Python numbers a graph embeds as constants, and which are inputs of it.

    None where it has none. Sizes and dimensions are no such numbers: they are part of types.
    """
    embedded: dict[str, list[str]] = {}
    inputs: dict[str, str] = {}
    for node in graph.nodes:
        site = str(node.provenance.site or "")
        for arg in node.args:
            if isinstance(arg, tuple) and len(arg) == 2 and arg[0] is float:  # noqa: PLR2004
                places = embedded.setdefault(str(arg[1]), [])
                if site not in places:
                    places.append(site)
            elif getattr(arg, "kind", "") in {"float", "int"}:
                inputs.setdefault(leaf_name(arg), site)
    lines = []
    if embedded:
        shown = [f"{n} ({', '.join(filter(None, s[:3]))})" for n, s in embedded.items()]
        lines.append(
            f"# embedded as constants: {_some(shown)}; "
            "one that varies becomes an input with its second value"
        )
    if inputs:
        shown = [f"{name} ({site})" if site else name for name, site in inputs.items()]
        lines.append(
            f"# numbers that are inputs: {_some(shown)}; other values of them compile nothing"
        )
    return lines


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _MAX_NUMBERS
    shown = ", ".join(map(one_line, names[:_MAX_NUMBERS]))
    return f"{shown} and {rest:,} more" if rest > 0 else shown


def _leaves(graph: Graph, shown: Sequence[Node]) -> Iterator[Leaf]:
    if len(shown) == len(graph.nodes):
        yield from graph.parameters
        return
    used = {id(value) for node in shown for value in node.operands}
    used.update(id(root) for root in graph.roots)
    yield from (leaf for leaf in graph.parameters if id(leaf) in used)


def _node_line(node: Node) -> str:
    types = ", ".join(
        tensor_type(value) if value is not None else "none" for value in node.outputs
    )
    where = ", ".join(
        part for part in (_module(node), str(node.provenance.site or "")) if part
    )
    comment = f"  # {where}" if where else ""
    args = _arguments(node, node.args, _listed)
    while args and args[-1] == "None":
        args.pop()
    called = f"{node.op.name}({', '.join(args)})"
    return one_line(f"%{node.id} = {called} : {types}{comment}")


def _module(node: Node) -> str:
    module = getattr(node.provenance, "path", node.provenance.module)
    if node.provenance.backward is None:
        return module
    return f"{module} (backward)" if module else "backward"


def _arguments(
    node: Node, args: Sequence[Any], shown: Callable[[Any], str]
) -> list[str]:
    """Return what an op is called with: keyword-only arguments by their names."""
    known = getattr(node.op.schema, "arguments", ())
    names = [arg.name if arg.kwarg_only else "" for arg in known]
    extra = len(args) - len(names)  # a random op has its RNG state in front
    return [
        f"{name}={shown(arg)}" if name else shown(arg)
        for name, arg in zip([""] * extra + names, args, strict=False)
        if not (name and arg is None)
    ]


def _listed(arg: Any) -> str:
    if _is_value(arg):
        return reference(arg)
    if isinstance(arg, tuple):
        return str(arg[1]) if _is_number(arg) else f"[{', '.join(map(_listed, arg))}]"
    return str(arg)


def _is_value(arg: Any) -> bool:
    return hasattr(arg, "strides") and hasattr(arg, "node")


def _is_number(arg: tuple[Any, ...]) -> bool:
    """Return whether it is a Python number with its type, as a node keeps it."""
    return len(arg) == 2 and arg[0] in {float, bool, complex}  # noqa: PLR2004


def reference(value: Value) -> str:
    """Return what a listing calls a value: `%3`, `%p0`."""
    if value.node is None:
        return leaf_name(value)
    suffix = f".{value.index}" if len(value.node.outputs) > 1 else ""
    return f"%{value.node.id}{suffix}"


def python_call(node: Node) -> str:
    """Return lines that run a node's op in torch alone, on inputs of its shapes and dtypes."""
    names: dict[Value, str] = {}
    args = node.args[1:] if node.op.is_random else node.args
    for value in node.operands[len(node.args) - len(args) :]:
        if value not in names:
            count = len(names)
            letter, round_ = ascii_lowercase[count % 26], count // 26
            names[value] = f"{letter}{round_ or ''}"
    lines = ["import torch", ""]
    for value, name in names.items():
        made = value.node
        said = f"  # %{made.id} {made.op.name}" if made is not None else ""
        lines.append(f"{name} = {_made(value)}{said}")
    called = _arguments(node, args, lambda arg: _written(arg, names))
    lines.append(f"torch.ops.{node.op.name}({', '.join(called)})")
    return "\n".join(lines)


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


def _written(arg: Any, names: Mapping[Value, str]) -> str:
    """Return an argument as Python."""
    if _is_value(arg):
        return names[arg]
    if isinstance(arg, tuple):
        if _is_number(arg):
            kind, value = arg
            return literal(kind(value) if isinstance(value, str) else value)
        return f"[{', '.join(_written(part, names) for part in arg)}]"
    shown = repr(arg)
    return "'cpu'" if shown.startswith("device(") else shown


def literal(plain: Any) -> str:
    """Return numbers, and lists of them, as Python."""
    if isinstance(plain, list):
        return f"[{', '.join(map(literal, plain))}]"
    if isinstance(plain, complex) and not cmath.isfinite(plain):
        return f"complex({literal(plain.real)}, {literal(plain.imag)})"
    if isinstance(plain, float) and not math.isfinite(plain):
        return f"float('{plain!r}')"
    return repr(plain)
