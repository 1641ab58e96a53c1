"""Graphs of the runtime's IR. Read through attributes, so that nothing is imported."""

from __future__ import annotations

from typing import Any

from lazyviz.hlo.graph import PARAMETER, Graph, GraphBuilder, Origin

_DTYPES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16",
    "int64": "s64", "int32": "s32", "int16": "s16", "int8": "s8",
    "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8",
    "bool": "pred", "complex128": "c128", "complex64": "c64",
}  # fmt: skip
_LEAF_PREFIXES = {"data": "p", "float": "f", "int": "i", "rng": "rng"}
# Results of an op with several are nodes of their own.
GETITEM = "getitem"


def from_ir(graph: Any, name: str = "") -> Graph:
    """Return a snapshot of a graph of the runtime.

    It holds labels, ids and provenance: no tensor, no device data, no node of the IR.

    Args:
        graph: A `lazyrt.Graph`, or its canonical form: what has `nodes` and `roots`.
        name: By default the fingerprint, shortened.
    """
    return _Reader(name or graph.fingerprint[:12]).read(graph)


def _origin(provenance: Any) -> Origin:
    if provenance is None:
        return Origin()
    scope = provenance.module
    if provenance.backward is not None:
        scope = f"{scope} (backward)" if scope else "(backward)"
    return Origin(scope, str(provenance.site or ""))


def _type(value: Any) -> str:
    dtype = str(value.dtype).rpartition(".")[2]
    return f"{_DTYPES.get(dtype, dtype)}[{','.join(map(str, value.shape))}]"


class _Reader:
    def __init__(self, name: str) -> None:
        self._builder = GraphBuilder(name, _origin)
        self._ids: dict[Any, int] = {}
        # Nodes of one spec have one label: this spares all but a hundred nodes the texts.
        self._kinds: dict[Any, int] = {}

    def read(self, graph: Any) -> Graph:
        for node in graph.nodes:
            self._node(node)
        return self._builder.finish([self._id(root) for root in graph.roots])

    def _node(self, node: Any) -> None:
        values = _values(node.args)
        spec = node.spec
        kind = self._kinds.get(spec) if spec is not None else None
        if kind is None:
            kind = self._label(node)
            if spec is not None:
                self._kinds[spec] = kind
        ids = self._ids
        operands = [ids[v] if v in ids else self._id(v) for v in values]
        name = f"%{node.id}"
        added = self._builder.add(kind, operands, name=name, origin=node.provenance)
        if len(node.outputs) == 1:
            ids[node.outputs[0]] = added
        else:
            ids[node] = added

    def _id(self, value: Any) -> int:
        found = self._ids.get(value)
        if found is None:
            leaf = value.node is None
            found = self._leaf(value) if leaf else self._result(value)
            self._ids[value] = found
        return found

    def _leaf(self, leaf: Any) -> int:
        kind = self._builder.label(PARAMETER, _type(leaf), leaf.kind)
        name = f"%{_LEAF_PREFIXES.get(leaf.kind, leaf.kind)}{leaf.position}"
        return self._builder.add(kind, name=name, number=leaf.position)

    def _result(self, value: Any) -> int:
        node = value.node
        kind = self._builder.label(GETITEM, _type(value), f"index={value.index}")
        name = f"%{node.id}.{value.index}"
        return self._builder.add(
            kind, [self._ids[node]], name=name, origin=node.provenance
        )

    def _label(self, node: Any) -> int:
        types = ["none" if v is None else _type(v) for v in node.outputs]
        shown = types[0] if len(types) == 1 else f"({', '.join(types)})"
        return self._builder.label(node.op.name, shown, _arguments(node.args))


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
