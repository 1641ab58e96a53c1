"""Numbers that are constants in one program and inputs in the other: who embedded which."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lazygraph.graph import PARAMETER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazygraph.diff import GraphDiff
    from lazygraph.graph import Graph

# Which of a graph's inputs are Python numbers, as the runtime's IR says.
_NUMBERS = frozenset({"float", "int"})
_VALUE = re.compile(r"value=([^,]*)|dense<([^<>]*)>")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)")
_MARK = "%"
_SCALAR = "[]"
_REPEATS = frozenset({"broadcast", "broadcast_in_dim", "convert"})
_MOST = 3


def embedded(found: GraphDiff) -> Iterator[str]:
    """Yield a sentence for each number that only one of two programs embeds as a constant."""
    said: dict[str, None] = {}
    for each in found.rewired:
        old, new = _operand(found.a, each.a, each.slot), _operand(found.b, each.b, each.slot)  # fmt: skip
        if old is None and new is not None and _is_number(found.b, new):
            literal = _argument(found, each.a, each.b, each.slot)
            if literal:
                said[_now_an_input(found, each.b, literal, new)] = None
        if new is None and old is not None and _is_number(found.a, old):
            literal = _argument(found, each.a, each.b, each.slot, swapped=True)
            if literal:
                said[_now_embedded(found, each.b, literal, old)] = None
        if old is not None and new is not None:
            said |= dict.fromkeys(_exchanged(found, each.b, old, new))
    for x, y in found.changed:
        for user, _ in found.b.users[y][:1]:
            said |= dict.fromkeys(_exchanged(found, user, x, y))
    yield from list(said)[:_MOST]


def _operand(graph: Graph, node: int, slot: int) -> int | None:
    row = graph.operands[node]
    return row[slot] if slot < len(row) else None


def _is_number(graph: Graph, node: int) -> bool:
    label = graph.label(node)
    return label.op == PARAMETER and label.attrs in _NUMBERS


def _exchanged(found: GraphDiff, user: int, old: int, new: int) -> Iterator[str]:
    """Yield that a constant took the place of a scalar input, or the other way round."""
    literal, other = _literal(found.a, old), _literal(found.b, new)
    if literal and _is_scalar_input(found.b, new):
        yield _now_an_input(found, user, literal, new)
    if other and _is_scalar_input(found.a, old):
        yield _now_embedded(found, user, other, old)


def _is_scalar_input(graph: Graph, node: int) -> bool:
    label = graph.label(node)
    return label.op == PARAMETER and label.type.endswith(_SCALAR)


def _literal(graph: Graph, node: int) -> str:
    """Return the number that a constant is; empty for what is none."""
    label = graph.label(node)
    if not label.op.lower().endswith("constant") or not label.type.endswith(_SCALAR):
        return ""
    value = _VALUE.search(f"{label.attrs} {label.literal}")
    text = (value[1] or value[2] or "") if value else label.literal
    return text.strip() if _NUMBER.fullmatch(text.strip()) else ""


def _argument(
    found: GraphDiff, a: int, b: int, slot: int, *, swapped: bool = False
) -> str:
    """Return the number that stands among an op's arguments where the other side reads one."""
    one, two = found.a.label(a).attrs.split(", "), found.b.label(b).attrs.split(", ")
    if swapped:
        one, two = two, one
    marks = [k for k, part in enumerate(two) if part.endswith(_MARK)]
    if len(one) != len(two) or slot >= len(marks):
        return ""
    part = one[marks[slot]].rpartition("=")[2]
    return part if _NUMBER.fullmatch(part) else ""


def _now_an_input(found: GraphDiff, user: int, literal: str, new: int) -> str:
    return (
        f"the number {literal} of {_of(found.b, user)} was embedded as a constant and is an "
        f"input now ({_name(found.b, new)}): other values of it compile nothing"
    )


def _now_embedded(found: GraphDiff, user: int, literal: str, old: int) -> str:
    is_special = float(literal) in {0.0, 1.0} and _is_of_torch_xla(found.b, user)
    why = (
        " (torch_xla embeds 0 and 1 and sends other numbers as data)"
        if is_special
        else ""
    )
    return (
        f"constant {literal} was embedded in {_of(found.b, user)}, where the first program has "
        f"the input {_name(found.a, old)}{why}"
    )


def _name(graph: Graph, node: int) -> str:
    return graph.origin(node).op_name or graph.names[node]


def _is_of_torch_xla(graph: Graph, node: int) -> bool:
    node = _reader(graph, node)
    name = graph.origin(node).op_name
    return "::" in graph.ops[node] or name.startswith(("aten__", "aten::", "xla__"))


def _reader(graph: Graph, node: int) -> int:
    """Return what reads a number, past the ops that only repeat it."""
    while graph.ops[node] in _REPEATS and len(graph.users[node]) == 1:
        ((node, _),) = graph.users[node]
    return node


def _of(graph: Graph, node: int) -> str:
    """Return the op that reads a number, and where."""
    node = _reader(graph, node)
    site = graph.origin(node).site
    return f"{graph.ops[node]}{f' at {site}' if site else ''}"
