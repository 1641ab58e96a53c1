"""The IR that torch_xla writes as text: `IR {` and one line for each node."""

from __future__ import annotations

import re

from lazygraph.errors import HloSyntaxError
from lazygraph.graph import PARAMETER, Graph, GraphBuilder, Origin
from lazygraph.module import without_layout

START = re.compile(r"^IR \{[ \t]*$", re.MULTILINE)
_NODE = re.compile(
    r"\s*%(\d+) = (\([^%]*?\)|[a-z]\w*\[[^\]]*\](?:\{[^}]*\})?) ([\w:.]+)\(([^()]*)\)(.*)"
)
_OPERAND = re.compile(r"%(\d+)(?:\.(\d+))?")
_ROOT = re.compile(r", ROOT=(\d+)")
_SCOPE = re.compile(r", scope=([^,]*)")
_LOCATION = re.compile(r", location=[^@,]*@([^,]*)")
_NOISE = re.compile(
    r", (?:ROOT|scope|location|xla_shape|shape|device)="
    r"(?:\([^()]*\)|\w+\[[^\[\]]*\](?:\{[^{}]*\})?|[^,]*)"
)
_DATA = "xla::device_data"
_INPUT_ORIGIN = Origin()


def graphs(text: str, source: str = "") -> list[Graph]:
    """Return the graphs of every `IR { ... }` in a text.

    Raises:
        HloSyntaxError: A line is no node, or the last graph is cut off.
    """
    return [
        _graph(text, found.end(), number, source)
        for number, found in enumerate(START.finditer(text))
    ]


def _graph(text: str, start: int, number: int, source: str) -> Graph:
    end = text.find("\n}", start)
    first = text.count("\n", 0, start) + 2
    if end < 0:
        raise HloSyntaxError(
            "the IR has no closing brace. The text was cut off; save it again.",
            text.count("\n") + 1,
            source=source,
        )
    builder = GraphBuilder(f"IR.{number}")
    ids: dict[tuple[str, str], int] = {}
    roots: dict[int, int] = {}
    for offset, line in enumerate(text[start + 1 : end].split("\n")):
        if not line.strip():
            continue
        found = _NODE.match(line)
        if found is None:
            raise HloSyntaxError(
                f"{line.strip()[:40]!r} is no node. One reads `%1 = f32[2] aten::add(%0)`.",
                first + offset,
                source=source,
            )
        node = _add(builder, ids, found, first + offset, source)
        root = _ROOT.search(found[5])
        if root:
            roots[int(root[1])] = node
    return builder.finish([roots[k] for k in sorted(roots)])


def _add(
    builder: GraphBuilder,
    ids: dict[tuple[str, str], int],
    found: re.Match[str],
    line: int,
    source: str,
) -> int:
    name, type_text, op, body, rest = found.groups()
    scope, location = _SCOPE.search(rest), _LOCATION.search(rest)
    origin = Origin(scope[1] if scope else "", location[1] if location else "", op)
    operands = []
    for operand, index in _OPERAND.findall(body):
        known = ids.get((operand, index or "0"), ids.get((operand, "")))
        if known is None:
            raise HloSyntaxError(
                f"%{name} reads %{operand}, which no line above defines.",
                line,
                found.string.find(f"%{operand}") + 1,
                source,
            )
        operands.append(known)
    attrs = _NOISE.sub("", rest).strip(", ")
    shown = PARAMETER if op == _DATA else op
    origin = _INPUT_ORIGIN if op == _DATA else origin
    kind = builder.label(shown, without_layout(type_text), attrs)
    node = builder.add(kind, operands, name=f"%{name}", origin=origin)
    ids[name, ""] = node
    if type_text.startswith("("):
        parts = re.findall(r"[a-z]\w*\[[^\]]*\]", type_text)
        for index, part in enumerate(parts):
            item = builder.label("getitem", part, f"index={index}")
            ids[name, str(index)] = builder.add(item, [node], origin=origin)
    return node
