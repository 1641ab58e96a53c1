"""torch_xla's IR graphs: `IR { %0 = ... }` and their DOT form."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lazyviz.foreign.evidence import EvidenceError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_NODE = re.compile(
    r"\s*%(?P<id>\d+) = (?P<type>.+?) (?P<op>[A-Za-z_]\w*(?:::\w+)+)"
    r"\((?P<operands>[^()]*)\)(?P<rest>(?:, .*)?)"
)
_OPERAND = re.compile(r"%(\d+)(?:\.(\d+))?")
_ATTRIBUTE = re.compile(r", (\w+)=")
_DOT_NODE = re.compile(r'\s*node(\d+) \[label="(.*)"\]\s*')
_DOT_EDGE = re.compile(r'\s*node(\d+) -> node(\d+)(?: \[label="(.*)"\])?\s*')
_SLOT = re.compile(r"i=(\d+)")
_OUTPUT = re.compile(r"o=(\d+)")
_WHERE = ("scope", "location", "ROOT")


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


def parse_ir(text: str, line: int = 1) -> tuple[IrNode, ...]:
    """Read the text form of an IR graph.

    Args:
        text: From `IR {` to the closing brace.
        line: Number of its first line in the file, for errors.

    Raises:
        EvidenceError: It does not follow the form, uses a node before it is there, or has
            no end.
    """
    rows = [(n, row) for n, row in enumerate(text.splitlines(), line) if row.strip()]
    if not rows or rows[0][1].strip() != "IR {":
        raise EvidenceError(
            "an IR graph starts with 'IR {'. Give the graph from that line on.", line
        )
    if rows[-1][1].strip() != "}":
        raise EvidenceError(
            f"the IR graph breaks off after {shorten(rows[-1][1].strip())}: its closing "
            "brace is missing. Give the file whole.",
            rows[-1][0],
        )
    nodes: dict[int, IrNode] = {}
    for number, row in rows[1:-1]:
        node = _node(row, number)
        _check(node, nodes, number)
        nodes[node.id] = node
    return tuple(nodes.values())


def parse_dot(text: str, line: int = 1) -> tuple[IrNode, ...]:
    """Read the DOT form of an IR graph; its nodes come first, operands before users.

    Raises:
        EvidenceError: It does not follow the form, an edge ends nowhere, or it has no end.
    """
    rows = [(n, row) for n, row in enumerate(text.splitlines(), line) if row.strip()]
    if not rows or rows[0][1].strip() != "digraph G {":
        raise EvidenceError(
            "a DOT graph of torch_xla starts with 'digraph G {'. Give it from there on.",
            line,
        )
    if rows[-1][1].strip() != "}":
        raise EvidenceError(
            f"the DOT graph breaks off after {shorten(rows[-1][1].strip())}: its closing "
            "brace is missing. Give the file whole.",
            rows[-1][0],
        )
    labels: dict[int, tuple[int, str]] = {}
    edges: dict[int, list[tuple[int, int, int]]] = {}
    for number, row in rows[1:-1]:
        node, edge = _DOT_NODE.fullmatch(row), _DOT_EDGE.fullmatch(row)
        if node is not None:
            labels[int(node[1])] = (number, node[2])
        elif edge is not None:
            source, target = int(edge[1]), int(edge[2])
            if source not in labels or target not in labels:
                raise EvidenceError(
                    f"the edge {shorten(row.strip())} has an end that is no node. The "
                    "graph was cut or changed; give it as it was written.",
                    number,
                )
            slot, output = _SLOT.search(edge[3] or ""), _OUTPUT.search(edge[3] or "")
            place = int(slot[1]) if slot else 0
            edges.setdefault(target, []).append(
                (place, source, int(output[1]) if output else 0)
            )
        else:
            raise EvidenceError(
                f"{shorten(row.strip())} is neither a node nor an edge of a DOT graph.",
                number,
            )
    return tuple(
        _dot_node(name, label, edges.get(name, []), number)
        for name, (number, label) in labels.items()
    )


def ir_text(nodes: Iterable[IrNode]) -> str:
    """Return the text form of an IR graph, by which the DOT form becomes it."""
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


def _node(row: str, number: int) -> IrNode:
    found = _NODE.fullmatch(row)
    if found is None:
        raise EvidenceError(
            f"{shorten(row.strip())} is no IR node. Expected a line such as "
            "'%4 = f32[2,3]{1,0} aten::addmm(%3, %2, %0), xla_shape=f32[2,3]{1,0}'.",
            number,
        )
    attributes = dict(_attributes(found["rest"]))
    operands = tuple(
        (int(operand[1]), int(operand[2] or 0))
        for operand in _OPERAND.finditer(found["operands"])
    )
    return _make(
        int(found["id"]), found["op"], found["type"], operands, attributes, number
    )


def _attributes(text: str) -> Iterator[tuple[str, str]]:
    """Split `, key=value, key=value`; values may hold commas in parentheses."""
    starts = [
        match for match in _ATTRIBUTE.finditer(text) if _is_outside(text, match.start())
    ]
    for k, match in enumerate(starts):
        end = starts[k + 1].start() if k + 1 < len(starts) else len(text)
        yield match[1], text[match.end() : end]


def _is_outside(text: str, position: int) -> bool:
    before = text[:position]
    return before.count("(") == before.count(")")


def _dot_node(
    name: int, label: str, edges: list[tuple[int, int, int]], number: int
) -> IrNode:
    parts = label.split("\\n")
    if len(parts) < 2:  # noqa: PLR2004 - op and type
        raise EvidenceError(
            f"the label {shorten(label)} has no type: expected an op, a type and "
            "attributes, with \\n in between.",
            number,
        )
    attributes = dict(part.split("=", 1) for part in parts[2:] if "=" in part)
    operands = tuple((source, output) for _, source, output in sorted(edges))
    return _make(name, parts[0], parts[1], operands, attributes, number)


def _make(
    name: int, op: str, kind: str, operands: tuple[tuple[int, int], ...],
    attributes: dict[str, str], number: int,
) -> IrNode:  # fmt: skip
    root = attributes.get("ROOT")
    if root is not None and not root.isdecimal():
        raise EvidenceError(
            f"ROOT={shorten(root)} of node {name} is no whole number.", number
        )
    return IrNode(
        id=name,
        op=op,
        type=kind,
        operands=operands,
        scope=attributes.get("scope", ""),
        location=attributes.get("location", ""),
        root=None if root is None else int(root),
        attributes={k: v for k, v in attributes.items() if k not in _WHERE},
    )


def _check(node: IrNode, known: Mapping[int, IrNode], number: int) -> None:
    if node.id in known:
        raise EvidenceError(
            f"%{node.id} is defined twice. Two graphs may have been pasted together; give "
            "one at a time.",
            number,
        )
    missing = next(
        (operand for operand, _ in node.operands if operand not in known), None
    )
    if missing is not None:
        raise EvidenceError(
            f"%{node.id} reads %{missing}, which is not defined above. The graph was cut; "
            "give it as it was written.",
            number,
        )
