"""torch_xla's IR: the text `IR { %0 = ... }` and its DOT form."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lazygraph.graph import PARAMETER, Graph, GraphBuilder, HloSyntaxError, Origin
from lazygraph.types import without_layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

START = re.compile(r"^IR \{[ \t]*$", re.MULTILINE)
_NODE = re.compile(r"\s*%(\d+) = (.+?) ([\w:.]+)\(([^()]*)\)((?:, .*)?)")
_OPERAND = re.compile(r"%(\d+)(?:\.(\d+))?")
_ATTRIBUTE = re.compile(r", (\w+)=")
_DOT = re.compile(r"^digraph G \{.*?(?:^\}|\Z)", re.MULTILINE | re.DOTALL)
_DOT_NODE = re.compile(r'\s*node(\d+) \[label="(.*)"\]\s*')
_DOT_EDGE = re.compile(r'\s*node(\d+) -> node(\d+)(?: \[label="(.*)"\])?\s*')
_SLOT = re.compile(r"i=(\d+)")
_OUTPUT = re.compile(r"o=(\d+)")
_ELEMENT = re.compile(r"[a-z]\w*\[[^\]]*\]")
_DATA = "xla::device_data"
_WHERE = frozenset({"scope", "location", "ROOT"})
# What says nothing that the type does not.
_NOISE = frozenset({"xla_shape", "shape", "device"})
_INPUT_ORIGIN = Origin()


@dataclass(frozen=True, slots=True, kw_only=True)
class IrNode:
    """One node of torch_xla's IR.

    Attributes:
        id: Its number; operands have smaller ones.
        op: Such as `aten::addmm`.
        type: Shape and layout, such as `f32[2,3]{1,0}`.
        operands: Number of the operand and of its output, for each slot.
        scope: Where the program was, such as `forward.1`; empty outside of scopes.
        location: The line that recorded it, such as `train_step@train.py:12`, or empty.
        root: Which root it is, None for an inner node.
        attributes: Everything else, as text.
    """

    id: int
    op: str
    type: str
    operands: tuple[tuple[int, int], ...]
    scope: str = ""
    location: str = ""
    root: int | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


def graphs(text: str) -> list[Graph]:
    """Return the graphs of every `IR { ... }` in a text."""
    found = []
    for number, start in enumerate(START.finditer(text)):
        end = text.find("\n}", start.end())
        part = text[start.start() : end + 2 if end >= 0 else len(text)]
        line = 1 + text.count("\n", 0, start.start())
        found.append(_graph(parse_ir(part, line), f"IR.{number}"))
    return found


def _graph(nodes: Iterable[IrNode], name: str) -> Graph:
    builder = GraphBuilder(name)
    ids: dict[tuple[int, int], int] = {}
    roots: dict[int, int] = {}
    for each in nodes:
        operands = [ids.get(operand, ids[operand[0], 0]) for operand in each.operands]
        op, origin = PARAMETER, _INPUT_ORIGIN
        if each.op != _DATA:
            op = each.op
            origin = Origin(each.scope, each.location.rpartition("@")[2], op)
        attrs = ", ".join(
            f"{key}={value}"
            for key, value in each.attributes.items()
            if key not in _NOISE
        )
        kind = builder.label(op, without_layout(each.type), attrs)
        node = builder.add(kind, operands, name=f"%{each.id}", origin=origin)
        ids[each.id, 0] = node
        if each.root is not None:
            roots[each.root] = node
        if each.type.startswith("("):
            for index, part in enumerate(_ELEMENT.findall(each.type)):
                ids[each.id, index] = builder.add_result(node, index, part)
    return builder.finish([roots[k] for k in sorted(roots)])


def parse_ir(text: str, line: int = 1) -> tuple[IrNode, ...]:
    """Return the nodes of an IR graph in text form, whose first line has a number in its file."""
    nodes: dict[int, IrNode] = {}
    for number, row in _rows(text, line, "IR {"):
        node = _node(row, number)
        _check(node, nodes, row, number)
        nodes[node.id] = node
    return tuple(nodes.values())


def parse_dot(text: str, line: int = 1) -> tuple[IrNode, ...]:
    """Return the nodes of an IR graph in DOT form, in which edges follow the nodes."""
    labels: dict[int, tuple[int, str]] = {}
    edges: dict[int, list[tuple[int, int, int]]] = {}
    for number, row in _rows(text, line, "digraph G {"):
        node, edge = _DOT_NODE.fullmatch(row), _DOT_EDGE.fullmatch(row)
        if node is not None:
            labels[int(node[1])] = (number, node[2])
        elif edge is not None:
            start, target = int(edge[1]), int(edge[2])
            if start not in labels or target not in labels:
                raise HloSyntaxError(
                    f"the edge {_shown(row)} has an end that is no node. The graph was cut or "
                    "changed; give it as it was written.",
                    number,
                )
            slot, output = _SLOT.search(edge[3] or ""), _OUTPUT.search(edge[3] or "")
            position = int(slot[1]) if slot else 0
            edges.setdefault(target, []).append(
                (position, start, int(output[1]) if output else 0)
            )
        else:
            raise HloSyntaxError(
                f"{_shown(row)} is neither a node nor an edge of a DOT graph.",
                number,
            )
    return tuple(
        _dot_node(name, label, edges.get(name, []), number)
        for name, (number, label) in labels.items()
    )


def without_dot(text: str) -> str:
    """Return a text in which graphs in DOT form stand in text form."""
    if "digraph G {" not in text:
        return text

    def written(found: re.Match[str]) -> str:
        line = 1 + text.count("\n", 0, found.start())
        return ir_text(parse_dot(found[0], line))

    return _DOT.sub(written, text)


def ir_text(nodes: Iterable[IrNode]) -> str:
    """Return the text form of an IR graph."""
    return "\n".join(["IR {", *map(_line, nodes), "}"])


def _line(node: IrNode) -> str:
    operands = ", ".join(
        f"%{operand}.{output}" if output else f"%{operand}"
        for operand, output in node.operands
    )
    where = {"scope": node.scope, "location": node.location}
    facts = {**{k: v for k, v in where.items() if v}, **node.attributes}
    if node.root is not None:
        facts["ROOT"] = str(node.root)
    rest = "".join(f", {key}={value}" for key, value in facts.items())
    return f"  %{node.id} = {node.type} {node.op}({operands}){rest}"


def _rows(text: str, line: int, head: str) -> list[tuple[int, str]]:
    """Return the lines between the first one and the closing brace, with their numbers."""
    rows = [(n, row) for n, row in enumerate(text.splitlines(), line) if row.strip()]
    if not rows or rows[0][1].strip() != head:
        raise HloSyntaxError(
            f"a graph of torch_xla's IR starts with '{head}'. Give it from that line on.",
            line,
        )
    last, row = rows[-1]
    kind = head.partition(" ")[0].replace("digraph", "DOT")
    if row.strip() != "}":
        raise HloSyntaxError(
            f"the {kind} graph breaks off after {_shown(row)}: its closing brace is missing. "
            "The text was cut off; save it again.",
            last,
        )
    return rows[1:-1]


def _node(row: str, number: int) -> IrNode:
    found = _NODE.fullmatch(row)
    if found is None:
        raise HloSyntaxError(
            f"{_shown(row)} is no IR node. One reads "
            "'%4 = f32[2,3]{1,0} aten::addmm(%3, %2, %0), xla_shape=f32[2,3]{1,0}'.",
            number,
        )
    name, type_text, op, body, rest = found.groups()
    operands = tuple(
        (int(operand), int(output or 0)) for operand, output in _OPERAND.findall(body)
    )
    facts = dict(_attributes(rest)) if rest else {}
    return _make(int(name), op, type_text, operands, facts, number)


def _attributes(text: str) -> Iterator[tuple[str, str]]:
    """Split `, key=value, key=value`; values may hold commas in parentheses."""
    starts = [
        match for match in _ATTRIBUTE.finditer(text) if _is_outside(text, match.start())
    ]
    for k, match in enumerate(starts):
        end = starts[k + 1].start() if k + 1 < len(starts) else len(text)
        yield match[1], text[match.end() : end]


def _is_outside(text: str, position: int) -> bool:
    return text.count("(", 0, position) == text.count(")", 0, position)


def _dot_node(
    name: int, label: str, edges: list[tuple[int, int, int]], number: int
) -> IrNode:
    parts = label.split("\\n")
    if len(parts) < 2:  # noqa: PLR2004 - op and type
        raise HloSyntaxError(
            f"the label {_shown(label)} has no type: expected an op, a type and attributes, "
            "with \\n in between.",
            number,
        )
    facts = dict(part.split("=", 1) for part in parts[2:] if "=" in part)
    operands = tuple((start, output) for _, start, output in sorted(edges))
    return _make(name, parts[0], parts[1], operands, facts, number)


def _make(
    name: int, op: str, kind: str, operands: tuple[tuple[int, int], ...],
    facts: dict[str, str], number: int,
) -> IrNode:  # fmt: skip
    root = facts.get("ROOT")
    if root is not None and not root.isdecimal():
        raise HloSyntaxError(
            f"ROOT={_shown(root)} of node {name} is no whole number.",
            number,
        )
    return IrNode(
        id=name,
        op=op,
        type=kind,
        operands=operands,
        scope=facts.get("scope", ""),
        location=facts.get("location", ""),
        root=None if root is None else int(root),
        attributes={k: v for k, v in facts.items() if k not in _WHERE},
    )


def _check(node: IrNode, known: Mapping[int, IrNode], row: str, number: int) -> None:
    if node.id in known:
        raise HloSyntaxError(
            f"%{node.id} is defined twice. Two graphs may have been pasted together; give "
            "one at a time.",
            number,
        )
    for operand, _ in node.operands:
        if operand not in known:
            raise HloSyntaxError(
                f"%{node.id} reads %{operand}, which is not defined above. The graph was cut; "
                "give it as it was written.",
                number,
                row.rfind(f"%{operand}") + 1,
            )


def _shown(text: str) -> str:
    line = text.strip()
    return repr(line if len(line) <= _SHOWN else f"{line[:_SHOWN]}...")


_SHOWN = 60
