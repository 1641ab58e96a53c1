"""StableHLO and HLO as drawings, with what their instructions cost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lazygraph.diff import callee_graph, callees
from lazygraph.graph import CONSTANT, PARAMETER
from lazygraph.types import flops, type_bytes
from lazyviz.render.model import BACKWARD, Box, DrawGraph, short_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lazygraph.graph import Graph, Label, Origin
    from lazyviz.render.model import Kind

_CALLS = frozenset({"call", "custom-call", "custom_call"})
_FREE = frozenset(
    {PARAMETER, CONSTANT, "tuple", "get-tuple-element", "getitem", "bitcast"}
)
_MAX_LITERAL = 16
_DEEPEST = 8  # calls within calls that are counted
_MAX_WRAPPERS = 3
_LEAF_KINDS: dict[str, Kind] = {"float": "constant", "int": "constant", "rng": "random"}


def draw_hlo(
    graph: Graph,
    kind: str,
    inputs: Mapping[int, str] | None = None,
    outputs: Mapping[int, str] | None = None,
    site_text: Callable[[str], str] = str,
) -> DrawGraph:
    """Return the drawing of a whole program, nothing folded.

    Args:
        graph: StableHLO, HLO, or a snapshot of an IR graph.
        kind: What it is, for titles.
        inputs: What the user calls its parameters, by their number.
        outputs: What the user calls its results, by their position.
        site_text: Writes a source line for people.
    """
    names = _names(graph, inputs or {}, outputs or {})
    roots = set(graph.outputs)
    # Constants are read all over a program: they are told in words, at their readers.
    drawn = [k for k, op in enumerate(graph.ops) if op != CONSTANT or k in roots]
    where = {node: position for position, node in enumerate(drawn)}
    boxes = [
        node_box(graph, node, names.get(node, ""), is_root=node in roots)
        for node in drawn
    ]
    edges = {
        (where[operand], where[node])
        for node in drawn
        for operand in graph.operands[node]
        if operand in where
    }
    return DrawGraph(
        boxes=tuple(replace(box, site=site_text(box.site)) for box in boxes),
        edges=tuple(sorted(edges)),
        nodes=sum(bool(box.members) for box in boxes),
        kind=kind,
    )


def _names(
    graph: Graph, inputs: Mapping[int, str], outputs: Mapping[int, str]
) -> dict[int, str]:
    names = {
        node: inputs[number]
        for node, number in graph.numbers.items()
        if inputs.get(number)
    }
    for position, node in enumerate(graph.outputs):
        if outputs.get(position):
            names.setdefault(node, outputs[position])
    return names


def node_box(graph: Graph, node: int, called: str = "", *, is_root: bool) -> Box:
    """Return the box of an instruction; inputs and numbers have no members.

    Args:
        graph: The program.
        node: The instruction.
        called: The user's variable that holds it.
        is_root: Whether it is an output.
    """
    label, origin, name = graph.label(node), graph.origin(node), graph.names[node]
    if label.op == PARAMETER:
        called = called or origin.op_name
        return Box(
            label=called or name.lstrip("%"),
            detail=label.type,
            kind=_LEAF_KINDS.get(label.attrs, "parameter"),
            op=name,
            is_root=is_root,
            name=called,
        )
    path = _path(origin)
    if label.op == CONSTANT:
        shown = label.literal if len(label.literal) <= _MAX_LITERAL else "constant"
        return Box(
            label=shown,
            detail=label.type,
            kind="constant",
            op=name,
            path=path,
            is_root=is_root,
        )
    shown = _called(label, origin) or short_name(label.op)
    return Box(
        label=f"{called} = {shown}" if called else shown,
        detail=label.type,
        kind="backward" if path and path[0] == BACKWARD else "op",
        op=f"{label.op} {name}",
        path=path,
        site=origin.site,
        is_root=is_root,
        name=called,
        members=(node,),
    )


def _called(label: Label, origin: Origin) -> str:
    """Return what a call or a fusion stands for, in the framework's words."""
    if not origin.op_name or label.op not in _CALLS | {"fusion"}:
        return ""
    said = short_name(origin.op_name.removesuffix(BACKWARD).strip())
    return said if label.op in _CALLS else f"fusion: {said}"


def _path(origin: Origin) -> tuple[str, ...]:
    """Return the parts of a module path; those of a backward op begin with `BACKWARD`."""
    scope = origin.scope.replace("/", ".")
    is_backward = BACKWARD in scope or origin.op_name.endswith(BACKWARD)
    plain = scope.replace(BACKWARD, "").strip()
    parts = tuple(part for part in plain.split(".") if part)
    return (BACKWARD, *parts) if is_backward else parts


def unwrapped(graph: Graph) -> Graph:
    """Return the program itself where the text's main function only calls it."""
    inner = graph
    for _ in range(_MAX_WRAPPERS):
        does = [k for k, op in enumerate(inner.ops) if op not in _FREE]
        if len(does) != 1 or inner.ops[does[0]] != "call":
            break
        within = inside_of(inner, does[0])
        if not within:
            break
        inner = within[0][1]
    return inner


def inside_of(graph: Graph, node: int) -> list[tuple[str, Graph]]:
    """Return name and graph of each computation that a node calls."""
    found = ((name, callee_graph(graph, name)) for _, name in callees(graph, node))
    return [(name, inner) for name, inner in found if inner is not None]


class HloCosts:
    """Bytes and floating-point operations of a program's nodes, called ones included."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._inside: dict[str, float] = {}

    def bytes(self) -> dict[int, float]:
        """Return the bytes of each node's result."""
        graph = self._graph
        return {
            node: float(type_bytes(type_text))
            for node, (op, type_text) in enumerate(
                zip(graph.ops, graph.types, strict=True)
            )
            if op not in _FREE
        }

    def flops(self) -> dict[int, float]:
        """Return the floating-point operations of each node; a loop's body counts once."""
        return self._flops(self._graph, 0)

    def _flops(self, graph: Graph, depth: int) -> dict[int, float]:
        return {
            node: self._of(graph, node, depth)
            for node, op in enumerate(graph.ops)
            if op not in _FREE
        }

    def _of(self, graph: Graph, node: int, depth: int) -> float:
        op, _, attrs, _ = graph.label(node)
        if (
            "#" in attrs
            and op not in {"reduce", "map", "sort", "scatter"}
            and depth < _DEEPEST
        ):
            known = self._inside.get(attrs)
            if known is None:
                known = sum(
                    sum(self._flops(inner, depth + 1).values())
                    for _, inner in inside_of(graph, node)
                )
                self._inside[attrs] = known
            if known:
                return known
        types = [graph.types[operand] for operand in graph.operands[node]]
        return float(flops(op, graph.types[node], types, attrs))


def origins_of(graph: Graph, node: int) -> set[tuple[str, str, str]]:
    """Return scope, framework's op and line of a node and of what it calls directly."""
    found: set[Any] = {_key(graph.origin(node))}
    if "#" in graph.attrs[node]:
        for _, inner in inside_of(graph, node):
            found.update(_key(inner.origin(k)) for k in range(len(inner)))
    return {key for key in found if key[1]}


def _key(origin: Origin) -> tuple[str, str, str]:
    return origin.scope, origin.op_name, origin.site
