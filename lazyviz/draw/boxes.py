"""Boxes of programs: IR, StableHLO and HLO, all drawn from their columns, and what these cost.

Nothing here imports the runtime; what only its graphs know of memory is read through attributes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypedDict

from lazygraph import from_ir
from lazygraph.diff import callee_graph, callees
from lazygraph.graph import CONSTANT, GETITEM, PARAMETER
from lazygraph.snapshot import AUTOGRAD
from lazygraph.types import flops, short_name, split_types, type_bytes
from lazyviz.draw import model
from lazyviz.render.text import leaf_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from lazygraph.graph import Graph, Label, Origin
    from lazyrt import Graph as IrGraph
    from lazyrt.tools import Holding, Node, Provenance, Value

_MAX_TYPE_CHARS = 30
_RANDOM = "rng"
NUMBERS = ("float", "int", _RANDOM)  # kinds of inputs that hold no data of the user's
# What inputs of each kind are drawn as; those of HLO have no kind.
_LEAVES: dict[str, tuple[model.Kind, str]] = {
    "data": ("parameter", "input"),
    "float": ("constant", "float"),
    "int": ("constant", "int"),
    _RANDOM: ("random", "rng"),
}
_CALLS = frozenset({"call", "custom-call", "custom_call"})
_FREE = frozenset(
    {PARAMETER, CONSTANT, "tuple", "get-tuple-element", GETITEM, "bitcast"}
)
_MAX_LITERAL = 16
_DEEPEST = 8  # calls within calls that are counted
_MAX_WRAPPERS = 3


class Known(TypedDict, total=False):
    """What only the runtime knows of a node or of an input, as parts of its box."""

    members: tuple[int, ...]
    marks: tuple[str, ...]
    library: str
    is_new: bool
    runs: int
    scope: str
    step: str


def draw_program(
    graph: Graph,
    kind: str = "IR graph",
    outputs: Mapping[int, str] | None = None,
    site_text: Callable[[str], str] = str,
    known: Mapping[str, Known] = MappingProxyType({}),
) -> model.DrawGraph:
    """Return the drawing of a whole program, nothing folded.

    The results of an op with several are one box with it.

    Args:
        graph: A program in any form.
        kind: Which form that is.
        outputs: Names of outputs by position, of which no holder is known.
        site_text: How the reader calls a line.
        known: What the runtime knows of a node or an input, by its name in listings.
    """
    pairs = zip(graph.ops, graph.operands, strict=True)
    owner = {k: reads[0] for k, (op, reads) in enumerate(pairs) if op == GETITEM}
    roots = {owner.get(node, node) for node in graph.outputs}
    # Constants are read all over a program: they are told in words, at their readers.
    drawn = [
        k
        for k, op in enumerate(graph.ops)
        if op != GETITEM and (op != CONSTANT or k in roots)
    ]
    where = {node: position for position, node in enumerate(drawn)}
    results: dict[int, list[int]] = {}
    for result, node in owner.items():
        where[result] = where[node]
        results.setdefault(node, []).append(result)
    names: dict[int, str] = {}
    given = ((n, (outputs or {}).get(k, "")) for k, n in enumerate(graph.outputs))
    for node, name in (*sorted(graph.holders.items()), *given):
        if name:
            names.setdefault(owner.get(node, node), name)
    boxes = tuple(
        node_box(
            graph,
            node,
            names.get(node, ""),
            results.get(node, ()),
            site_text,
            known.get(graph.names[node], {}),
        )
        for node in drawn
    )
    edges = {
        (where[operand], where[node])
        for node in drawn
        for operand in graph.operands[node]
        if operand in where
    }
    return model.DrawGraph(
        boxes=boxes,
        edges=tuple(sorted(edges)),
        nodes=sum(bool(box.members) for box in boxes),
        kind=kind,
    )


def node_box(
    graph: Graph,
    node: int,
    called: str = "",
    results: Sequence[int] = (),
    site_text: Callable[[str], str] = str,
    known: Known | None = None,
) -> model.Box:
    """Return the box of a node and of its results; inputs and constants have no members."""
    label, origin, name = graph.label(node), graph.origin(node), graph.names[node]
    held, saved = graph.held_outputs, graph.saved_outputs
    is_root = node in held or not held.isdisjoint(results)
    more: Known = {**(known or {})}
    if label.op == PARAMETER:
        called = called or origin.op_name
        kind, noun = _LEAVES.get(label.attrs, ("parameter", ""))
        number = graph.numbers.get(node, "")
        shown = called or (f"{noun} {number}" if noun else name.lstrip("%"))
        users = graph.users[node]
        path = _path_of(graph.origin(users[0][0])) if users else ()
        return model.Box(
            label=shown, detail=label.type, kind=kind, op=name, path=path, is_root=is_root,
            name=called, **more,
        )  # fmt: skip
    if label.op == CONSTANT:
        shown = label.literal if len(label.literal) <= _MAX_LITERAL else "constant"
        return model.Box(
            label=shown, detail=label.type, kind="constant", op=name, is_root=is_root
        )
    if not is_root and (node in saved or not saved.isdisjoint(results)):
        more["marks"] = (*more.get("marks", ()), model.SAVED)
    more.setdefault("members", (node,))
    path = _path_of(origin)
    shown = _called(label, origin) or short_name(label.op)
    return model.Box(
        label=f"{called} = {shown}" if called else shown,
        detail=_types(label.type),
        kind=_kind(graph, node, path),
        op=label.op,
        listed=name,
        path=path,
        site=site_text(origin.site),
        is_root=is_root,
        name=called,
        **more,
    )


def _kind(graph: Graph, node: int, path: tuple[str, ...]) -> model.Kind:
    """Return what an op is drawn as; one that draws random numbers reads their state."""
    reads = graph.operands[node]
    if any(graph.ops[k] == PARAMETER and graph.attrs[k] == _RANDOM for k in reads):
        return "random"
    return "backward" if path[:1] == (model.BACKWARD,) else "op"


@lru_cache(maxsize=4_096)
def _types(type_text: str) -> str:
    """Return the types of a node's results, or how many more there are than fit."""
    types = [each for each in split_types(type_text) if each != "none"]
    if not types:
        return "no result"
    joined = ", ".join(types)
    if len(types) == 1 or len(joined) <= _MAX_TYPE_CHARS:
        return joined
    return f"{types[0]} and {len(types) - 1} more"


def _called(label: Label, origin: Origin) -> str:
    """Return what a call or a fusion stands for, in the framework's words."""
    if not origin.op_name or label.op not in _CALLS | {"fusion"}:
        return ""
    said = short_name(origin.op_name.removesuffix(model.BACKWARD).strip())
    return said if label.op in _CALLS else f"fusion: {said}"


def _path_of(origin: Origin) -> tuple[str, ...]:
    """Return the parts of a module path; those of a backward op begin with `BACKWARD`."""
    scope = origin.scope.replace("/", ".")
    is_backward = model.BACKWARD in scope or origin.op_name.endswith(model.BACKWARD)
    plain = scope.replace(model.BACKWARD, "").strip()
    parts = tuple(part for part in plain.split(".") if part)
    return (model.BACKWARD, *parts) if is_backward else parts


# --- what only a graph of the runtime knows


def draw_graph(
    graph: IrGraph,
    *,
    new: Collection[int] | None = None,
    runs: Mapping[Node, int] | None = None,
    holdings: Mapping[Any, Holding] | None = None,
    columns: Graph | None = None,
) -> model.DrawGraph:
    """Return the drawing of a graph of the runtime, nothing folded; members are ids of its nodes.

    Args:
        graph: A graph of the runtime.
        new: Ids of the nodes that the shown cell recorded; None counts all as new.
        runs: How often op-by-op mode has run each node, from `lazyrt.times_run`.
        holdings: What stands behind inputs and outputs, from `Inspection.holdings`; with them
            boxes say what is a view, a parameter, overwritten or donated.
        columns: What `columns_of` has made of it; by default with the names of holdings.
    """
    held = holdings or {}
    if columns is None:
        columns = columns_of(graph, {}, held)
    with_memory = holdings is not None
    known = {
        f"%{node.id}": Known(
            members=(node.id,),
            marks=_node_marks(node, held) if with_memory else (),
            library=_library(node.provenance),
            is_new=new is None or node.id in new,
            runs=(runs or {}).get(node, 0),
            scope=node.provenance.scope,
            step=node.provenance.step,
        )
        for node in graph.nodes
    }
    for leaf in graph.parameters:
        known[leaf_name(leaf)] = Known(marks=_leaf_marks(held.get(leaf)))
    drawing = draw_program(columns, known=known)
    position = {box.listed or box.op: k for k, box in enumerate(drawing.boxes)}

    def place(value: Value) -> int:
        node = value.node
        return position[leaf_name(value) if node is None else f"%{node.id}"]

    views = {
        (place(node.operands[0]), position[f"%{node.id}"])
        for node in graph.nodes
        if with_memory and node.op.is_view and node.operands
    }
    updates = {
        (place(value), place(each.overwrites))
        for value, each in held.items()
        if value.node is not None and each.overwrites is not None
    }
    return replace(drawing, aliases=frozenset(views), updates=tuple(sorted(updates)))


def columns_of(
    graph: IrGraph, names: Mapping[Any, str], holdings: Mapping[Any, Holding]
) -> Graph:
    """Return a graph as it is drawn: with names of values, those of holdings among them."""
    called = {value: each.name for value, each in holdings.items() if each.name}
    found = from_ir(graph, called={**called, **names})
    found.saved = saved_outputs(graph.roots, holdings)
    return found


def saved_outputs(
    roots: Sequence[Value], holdings: Mapping[Value, Holding]
) -> frozenset[int]:
    """Return the positions of the results that autograd alone holds."""
    return frozenset(
        k
        for k, root in enumerate(roots)
        if root in holdings and holdings[root].holder == AUTOGRAD
    )


_HOLDERS = {
    "module": "parameter",
    "buffer": "buffer",
    "optimizer": "optimizer state",
    "optimizer LBFGS": "optimizer state",
    "gradient": "gradient",
}


def _leaf_marks(held: Holding | None) -> tuple[str, ...]:
    if held is None:
        return ()
    marks = [_HOLDERS[held.holder]] if held.holder in _HOLDERS else []
    if held.overwritten_by is not None:
        marks.append("donated" if held.is_donated else "overwritten")
    if held.origin is not None and held.origin.how == "on the CPU":
        marks.append(model.FROM_CPU)
    return tuple(marks)


def _node_marks(node: Node, holdings: Mapping[Any, Holding]) -> tuple[str, ...]:
    held = [holdings[value] for value in node.outputs if value in holdings]
    marks = ["view"] if node.op.is_view else []
    version = max((each.version or 0 for each in held), default=0)
    if version:
        marks.append(f"v{version}")
    if any(each.overwrites is not None for each in held):
        marks.append("in place")
    return tuple(marks)


def _library(provenance: Provenance) -> str:
    """Return the line of a library's model that recorded an op, or its forward op."""
    if provenance.library is None and provenance.backward is not None:
        forward = provenance.backward.forward
        return str((forward.library if forward is not None else None) or "")
    return str(provenance.library or "")


# --- what a program calls, and what its nodes cost


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
    return [(name, callee_graph(graph, name)) for _, name in callees(graph, node)]


def bytes_of(graph: Graph) -> dict[int, float]:
    """Return the bytes of each node's result."""
    types = enumerate(graph.types)
    return {k: float(type_bytes(t)) for k, t in types if graph.ops[k] not in _FREE}


def flops_of(
    graph: Graph, known: dict[str, float] | None = None, depth: int = 0
) -> dict[int, float]:
    """Return the floating-point operations of each node with what it calls.

    A loop's body counts once. `known` has those of what is called, by attributes.
    """
    known = {} if known is None else known
    found = {}
    for node, (op, attrs) in enumerate(zip(graph.ops, graph.attrs, strict=True)):
        if op in _FREE:
            continue
        calls = "#" in attrs and op not in {"reduce", "map", "sort", "scatter"}
        if calls and depth < _DEEPEST and attrs not in known:
            inner = (flops_of(g, known, depth + 1) for _, g in inside_of(graph, node))
            known[attrs] = sum(sum(each.values()) for each in inner)
        types = [graph.types[operand] for operand in graph.operands[node]]
        within = known.get(attrs, 0.0) if calls else 0.0
        found[node] = within or float(flops(op, graph.types[node], types, attrs))
    return found


def origins_of(graph: Graph, node: int) -> set[tuple[str, str, str]]:
    """Return scope, framework's op and line of a node and of what it calls directly."""
    found = {graph.origin(node)}
    if "#" in graph.attrs[node]:
        for _, inner in inside_of(graph, node):
            found.update(map(inner.origin, range(len(inner))))
    return {(each.scope, each.op_name, each.site) for each in found if each.op_name}
