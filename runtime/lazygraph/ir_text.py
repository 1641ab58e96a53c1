"""The runtime's IR as text, which `Graph.to_text()` gives and `dump_graphs` writes."""

from __future__ import annotations

import re

from lazygraph.errors import HloSyntaxError
from lazygraph.graph import PARAMETER, Graph, GraphBuilder, Origin
from lazygraph.ir import GETITEM, LEAF_PREFIXES, xla_type

START = re.compile(r"\s*(?:%[a-z]+\d+ : [a-z]\w*\[|%\d+ = [\w.:]+\(|return(?: %|\s*$))")
_LEAF = re.compile(r"%([a-z]+)(\d+) : ([a-z]\w*\[[\d,]*\])(?:  # (.*))?$")
_TYPE = r"(?:[a-z]\w*\[[\d,]*\]|none)"
_NODE = re.compile(
    rf"%(\d+) = ([\w.:]+)\((.*)\) : ({_TYPE}(?:, {_TYPE})*)(?:  # (.*))?$"
)
_VALUE = re.compile(r"(?<![\w%'])%([a-z]*\d+(?:\.\d+)?)(?![\w%'])")
_SITE = re.compile(r"(?:cell \d+ line \d+|.+:\d+)$")
_KINDS = {prefix: kind for kind, prefix in LEAF_PREFIXES.items()}


def graph(text: str, source: str = "") -> Graph:
    """Return the graph of one IR text.

    Raises:
        HloSyntaxError: A line is no node, reads what no line above defines, or the last line,
            `return ...`, is missing.
    """
    reader = _Reader(source)
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and reader.read(line.rstrip(), number):
            return reader.builder.finish(reader.roots)
    raise HloSyntaxError(
        "the IR has no line `return ...`. The text was cut off; save it again.",
        text.rstrip().count("\n") + 1,
        source=source,
    )


class _Reader:
    def __init__(self, source: str) -> None:
        self.builder = GraphBuilder("IR")
        self.roots: list[int] = []
        self._source = source
        self._ids: dict[str, int] = {}
        self._results: dict[str, tuple[str, int, int]] = {}

    def read(self, line: str, number: int) -> bool:
        """Read one line; return whether it was the last."""
        if line.startswith("return"):
            self.roots = self._values(line, number)
            return True
        leaf, node = _LEAF.match(line), _NODE.match(line)
        if leaf is not None and leaf[1] in _KINDS:
            self._add_leaf(leaf)
        elif node is not None:
            self._add_node(node, self._values(node[3], number))
        else:
            raise HloSyntaxError(
                f"{line[:40]!r} is no node of the IR. One reads "
                "`%1 = aten.relu.default(%0) : f32[2]`.",
                number,
                source=self._source,
            )
        return False

    def _add_leaf(self, found: re.Match[str]) -> None:
        prefix, position, type_text, held = found.groups()
        kind = self.builder.label(PARAMETER, xla_type(type_text), _KINDS[prefix])
        name = f"{prefix}{position}"
        self._ids[name] = self.builder.add(
            kind,
            name=f"%{name}",
            number=int(position),
            origin=Origin("", "", held or ""),
        )

    def _add_node(self, found: re.Match[str], operands: list[int]) -> None:
        name, op, args, shown, where = found.groups()
        types = [xla_type(each) for each in re.findall(_TYPE, shown)]
        origin = _origin(where or "")
        whole = types[0] if len(types) == 1 else f"({', '.join(types)})"
        kind = self.builder.label(op, whole, _VALUE.sub("%", args))
        node = self.builder.add(kind, operands, name=f"%{name}", origin=origin)
        self._ids[name] = node
        for index, each in enumerate(types if len(types) > 1 else ()):
            self._results[f"{name}.{index}"] = (each, node, index)

    def _values(self, text: str, line: int) -> list[int]:
        return [self._value(found[1], line) for found in _VALUE.finditer(text)]

    def _value(self, name: str, line: int) -> int:
        known = self._ids.get(name)
        if known is None and name in self._results:
            type_text, node, index = self._results[name]
            kind = self.builder.label(GETITEM, type_text, f"index={index}")
            origin = self.builder.origins[node]
            known = self.builder.add(kind, [node], name=f"%{name}", origin=origin)
            self._ids[name] = known
        if known is None:
            raise HloSyntaxError(
                f"the line reads %{name}, which no line above defines. The text lacks lines; "
                "save it again.",
                line,
                source=self._source,
            )
        return known


def _origin(where: str) -> Origin:
    """Return where a node comes from: `Linear (backward), train.py:3`, either part or none."""
    scope, comma, site = where.rpartition(", ")
    if comma and _SITE.match(site):
        return Origin(scope, site)
    return Origin("", where) if _SITE.match(where) else Origin(where)
