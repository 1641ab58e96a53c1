"""Graphs of the runtime: of its objects, of its snapshots, of its text. Nothing of it is imported."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from lazygraph.graph import (
    PARAMETER,
    Graph,
    GraphBuilder,
    HloSyntaxError,
    Origin,
    gc_paused,
)
from lazygraph.types import tensor_type

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAF_PREFIXES = {"data": "p", "float": "f", "int": "i", "rng": "rng"}


def leaf_name(leaf: Any) -> str:
    """Return an input's name in listings: `%p0`."""
    return f"%{LEAF_PREFIXES.get(leaf.kind, leaf.kind)}{leaf.position}"


@gc_paused
def from_ir(
    graph: Any, name: str = "", called: Mapping[Any, str] | None = None
) -> Graph:
    """Return a snapshot of a graph of the runtime.

    It holds labels, ids and provenance: no tensor, no device data, no node of the IR.

    Args:
        graph: A `lazyrt.Graph`, or its canonical form: what has `nodes` and `roots`.
        name: By default the fingerprint, shortened, if it is known already: to work it out
            takes longer than all the rest.
        called: What the user calls values, inputs and outputs among them.
    """
    called = called or {}
    results = [called[root] for root in graph.roots if root in called]
    return _IrReader(name or _known_name(graph, results)).read(graph, called)


def _known_name(graph: Any, results: list[str]) -> str:
    known = getattr(graph, "known_fingerprint", None)
    pending = f"pending graph of {results[0]}" if len(results) == 1 else "pending graph"
    return (graph.fingerprint if known is None else known)[:12] or pending


def from_snapshot(snapshot: Any, name: str = "") -> Graph:
    """Return the graph of a snapshot that the runtime has kept of a compiled step.

    Args:
        snapshot: Plain data: `vertices` with `op`, `attrs`, `types`, `operands`, `site`,
            `scope` and `backward`; `roots`, and names of leaves.
        name: By default the fingerprint, shortened.
    """
    builder = GraphBuilder(name or snapshot.fingerprint[:12])
    whole: list[int] = []
    results: dict[tuple[int, int], int] = {}
    counts: dict[str, int] = {}

    def result(reference: tuple[int, int]) -> int:
        vertex, index = reference
        types = snapshot.vertices[vertex].types
        if len(types) == 1:
            return whole[vertex]
        if reference not in results:
            name = f"{builder.names[whole[vertex]]}.{index}"
            results[reference] = builder.add_result(
                whole[vertex], index, types[index], name=name
            )
        return results[reference]

    for number, vertex in enumerate(snapshot.vertices):
        operands = [result(reference) for reference in vertex.operands]
        if vertex.op in LEAF_PREFIXES and not vertex.attrs:
            position = counts[vertex.op] = counts.get(vertex.op, -1) + 1
            held = snapshot.leaf_names.get(number)
            kind = builder.label(PARAMETER, vertex.types[0], vertex.op)
            holder = held.text if held is not None else ""
            added = builder.add(
                kind,
                name=f"%{LEAF_PREFIXES[vertex.op]}{position}",
                origin=Origin("", "", holder),
                number=position,
                holder=holder,
            )
        else:
            types = vertex.types
            shown = types[0] if len(types) == 1 else f"({', '.join(types)})"
            attrs = ", ".join(vertex.attrs).replace("·", "%")
            origin = Origin(
                _scope(vertex.scope, is_backward=vertex.backward),
                str(vertex.site or ""),
            )
            added = builder.add(
                builder.label(vertex.op, shown, attrs),
                operands,
                name=f"%{number}",
                origin=origin,
            )
        whole.append(added)
    roots = [result(root) for root in snapshot.roots]
    for position, held in snapshot.root_names.items():
        builder.holders.setdefault(roots[position], held.text)
    found = builder.finish(roots)
    found.saved = snapshot.saved
    return found


def _scope(module: str, *, is_backward: bool) -> str:
    if not is_backward:
        return module
    return f"{module} (backward)" if module else "(backward)"


def _origin(provenance: Any) -> Origin:
    if provenance is None:
        return Origin()
    scope = _scope(provenance.module, is_backward=provenance.backward is not None)
    return Origin(scope, str(provenance.site or ""))


class _Known(NamedTuple):
    """What nodes of one spec share.

    Attributes:
        kind: Their label.
        places: Positions of their arguments that are values; None if some are nested.
        first, second: The first two of these positions, of nodes with one or two; else -1.
        single: Whether they have one result.
    """

    kind: int
    places: tuple[int, ...] | None
    first: int
    second: int
    single: bool


@lru_cache(maxsize=65_536)
def _hint(module: str, is_backward: bool) -> str:  # noqa: FBT001
    scope = _scope(module, is_backward=is_backward)
    return f"{scope}/" if scope else ""


def _hints(provenances: list[Any]) -> list[str]:
    return [
        "" if each is None else _hint(each.module, each.backward is not None)
        for each in provenances
    ]


class _IrReader:
    def __init__(self, name: str) -> None:
        self._builder = GraphBuilder(name, _origin, read_hints=_hints)
        self._ids: dict[Any, int] = {}
        # This spares all but a hundred nodes the texts.
        self._known: dict[Any, _Known] = {}

    def read(self, graph: Any, called: Mapping[Any, str]) -> Graph:
        ids, known, builder = self._ids, self._known, self._builder
        add_kind, add_operands = builder.kinds.append, builder.operands.append
        add_name, add_origin = builder.names.append, builder.origins.append
        add_ancestor_key, kinds = builder.ancestor_keys.append, builder.kinds
        for node in graph.nodes:
            spec, args = node.spec, node.args
            kind, places, first, second, single = known.get(spec) or self._meet(node)
            try:
                if second >= 0:
                    operands: tuple[int, ...] = (ids[args[first]], ids[args[second]])
                elif first >= 0:
                    operands = (ids[args[first]],)
                else:
                    operands = tuple([ids[args[place]] for place in places])  # type: ignore[union-attr]
            except (KeyError, TypeError):  # read for the first time, or nested
                operands = tuple([self._id(value) for value in _values(args)])
            ids[node.outputs[0] if single else node] = len(kinds)
            add_kind(kind)
            add_operands(operands)
            add_name(node.id)
            add_origin(node.provenance)
            add_ancestor_key(node.digest)
        roots = [self._id(root) for root in graph.roots]
        for value, name in called.items():
            if value in ids:
                builder.holders.setdefault(ids[value], name)
        return builder.finish(roots)

    def _meet(self, node: Any) -> _Known:
        """Return what nodes of a spec share that is met for the first time."""
        places = _places(node.args)
        first, second = -1, -1
        if places is not None and len(places) in {1, 2}:
            first, second = (*places, -1)[:2]
        single = len(node.outputs) == 1
        found = _Known(self._label(node), places, first, second, single)
        if node.spec is not None:
            self._known[node.spec] = found
        return found

    def _id(self, value: Any) -> int:
        found = self._ids.get(value)
        if found is None:
            leaf = value.node is None
            found = self._leaf(value) if leaf else self._result(value)
            self._ids[value] = found
        return found

    def _leaf(self, leaf: Any) -> int:
        kind = self._builder.label(PARAMETER, tensor_type(leaf), leaf.kind)
        self._builder.ancestor_keys.append(self._builder.labels[kind])
        return self._builder.add(kind, name=leaf_name(leaf), number=leaf.position)

    def _result(self, value: Any) -> int:
        node, index = value.node, value.index
        self._builder.ancestor_keys.append((node.digest, index))
        return self._builder.add_result(
            self._ids[node], index, tensor_type(value), name=f"%{node.id}.{index}"
        )

    def _label(self, node: Any) -> int:
        types = ["none" if v is None else tensor_type(v) for v in node.outputs]
        shown = types[0] if len(types) == 1 else f"({', '.join(types)})"
        return self._builder.label(node.op.name, shown, _arguments(node.args))


def _places(args: Any) -> tuple[int, ...] | None:
    """Return the positions of the values among arguments; None if some are nested."""
    if any(arg.__class__ is tuple and _values(arg) for arg in args):
        return None
    return tuple([place for place, arg in enumerate(args) if hasattr(arg, "strides")])


def _values(args: Any) -> list[Any]:
    """Return the values in an argument structure, depth first."""
    found: list[Any] = []
    for arg in args:
        if hasattr(arg, "strides"):
            found.append(arg)
        elif arg.__class__ is tuple:
            found += _values(arg)
    return found


def _arguments(args: Any) -> str:
    """Return the arguments as text, a `%` in the place of each value."""
    return ", ".join(_argument(arg) for arg in args)


def _argument(arg: Any) -> str:
    if hasattr(arg, "strides"):
        return "%"
    if arg.__class__ is not tuple:
        return str(arg)
    if len(arg) == 2 and arg[0] in {float, bool, complex}:  # noqa: PLR2004
        return str(arg[1])
    return f"[{_arguments(arg)}]"


START = re.compile(r"\s*(?:%[a-z]+\d+ : [a-z]\w*\[|%\d+ = [\w.:]+\(|return(?: %|\s*$))")
_LEAF = re.compile(r"%([a-z]+)(\d+) : ([a-z]\w*\[[\d,]*\])(?:  # (.*))?$")
_TYPE = r"(?:[a-z]\w*\[[\d,]*\]|none)"
_NODE = re.compile(
    rf"%(\d+) = ([\w.:]+)\((.*)\) : ({_TYPE}(?:, {_TYPE})*)(?:  # (.*))?$"
)
_VALUE = re.compile(r"(?<![\w%'])%([a-z]*\d+(?:\.\d+)?)(?![\w%'])")
_SITE = re.compile(r"(?:cell \d+ line \d+|.+:\d+)$")
_KINDS = {prefix: kind for kind, prefix in LEAF_PREFIXES.items()}


def graph(text: str) -> Graph:
    """Return the graph of one IR text."""
    reader = _TextReader()
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and reader.read(line.rstrip(), number):
            return reader.builder.finish(reader.roots)
    raise HloSyntaxError(
        "the IR has no line `return ...`. The text was cut off; save it again.",
        text.rstrip().count("\n") + 1,
    )


class _TextReader:
    def __init__(self) -> None:
        self.builder = GraphBuilder("IR")
        self.roots: list[int] = []
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
            )
        return False

    def _add_leaf(self, found: re.Match[str]) -> None:
        prefix, position, type_text, held = found.groups()
        kind = self.builder.label(PARAMETER, type_text, _KINDS[prefix])
        name = f"{prefix}{position}"
        self._ids[name] = self.builder.add(
            kind,
            name=f"%{name}",
            number=int(position),
            origin=Origin("", "", held or ""),
        )

    def _add_node(self, found: re.Match[str], operands: list[int]) -> None:
        name, op, args, shown, where = found.groups()
        types = re.findall(_TYPE, shown)
        origin = _written_origin(where or "")
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
            known = self.builder.add_result(node, index, type_text, name=f"%{name}")
            self._ids[name] = known
        if known is None:
            raise HloSyntaxError(
                f"the line reads %{name}, which no line above defines. The text lacks lines; "
                "save it again.",
                line,
            )
        return known


def _written_origin(where: str) -> Origin:
    """Return where a node comes from: `Linear (backward), train.py:3`, either part or none."""
    scope, comma, site = where.rpartition(", ")
    if comma and _SITE.match(site):
        return Origin(scope, site)
    return Origin("", where) if _SITE.match(where) else Origin(where)
