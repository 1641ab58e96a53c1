"""Boxes of programs: of the runtime's graphs, of StableHLO and of HLO, with what these cost.

Nothing here imports the runtime; a graph is read through its attributes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lazygraph.diff import callee_graph, callees
from lazygraph.graph import CONSTANT, PARAMETER
from lazygraph.snapshot import AUTOGRAD
from lazygraph.types import flops, short_name, tensor_type, type_bytes
from lazyviz.draw import model
from lazyviz.render.text import leaf_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from lazygraph.graph import Graph, Label, Origin
    from lazyrt import Graph as IrGraph
    from lazyrt.tools import Holding, Leaf, Node, Op, Provenance, Value

_MAX_TYPE_CHARS = 30
_LEAF_KINDS: dict[str, model.Kind] = {
    "data": "parameter",
    "float": "constant",
    "int": "constant",
    "rng": "random",
}
_LEAF_LABELS = {"data": "input", "float": "float", "int": "int", "rng": "rng"}


def draw_graph(
    graph: IrGraph,
    *,
    new: Collection[int] | None = None,
    names: Mapping[Any, str] | None = None,
    runs: Mapping[Node, int] | None = None,
    holdings: Mapping[Any, Holding] | None = None,
) -> model.DrawGraph:
    """Return the drawing of a whole graph, nothing folded.

    Args:
        graph: A graph of the runtime.
        new: Ids of the nodes that the shown cell recorded; None counts all as new.
        names: Variable names of values and leaves.
        runs: How often op-by-op mode has run each node, from `lazyrt.times_run`.
        holdings: What stands behind inputs and outputs, from `Inspection.holdings`; with them
            boxes say what is a view, a parameter, overwritten or donated.
    """
    with_memory = holdings is not None
    holdings = holdings or {}
    held_names = {value: held.name for value, held in holdings.items() if held.name}
    names = {**held_names, **(names or {})}
    runs = runs or {}
    boxes: list[model.Box] = []
    position: dict[Any, int] = {}
    roots = {root.node or root for root in graph.roots}
    paths = _leaf_paths(graph.nodes)
    views = _views(graph.nodes) if with_memory else set()

    def add_leaf(value: Any) -> None:
        position[value] = len(boxes)
        marks = _leaf_marks(holdings.get(value))
        is_root = value in roots
        boxes.append(_leaf_box(value, paths, names, marks=marks, is_root=is_root))

    for node in graph.nodes:
        for value in node.operands:
            if value.node is None and value not in position:
                add_leaf(value)
        position[node] = len(boxes)
        held = [holdings[value] for value in node.outputs if value in holdings]
        marks = _node_marks(held, is_view=node in views)
        # Autograd alone holds what it gives.
        if node in roots and held and all(each.holder == AUTOGRAD for each in held):
            marks = (*marks, model.SAVED)
        box = _node_box(
            node,
            names,
            is_root=node in roots and model.SAVED not in marks,
            is_new=new is None or node.id in new,
            runs=runs.get(node, 0),
            marks=marks if with_memory else (),
        )
        boxes.append(box)
    for leaf_value in graph.parameters:  # a root that is an input and no op reads
        if leaf_value not in position:
            add_leaf(leaf_value)
    return model.DrawGraph(
        boxes=tuple(boxes),
        edges=tuple(sorted(_edges(graph.nodes, position))),
        nodes=len(graph.nodes),
        fingerprint=graph.fingerprint if graph.nodes else "",
        aliases=_edges(views, position, 1),
        updates=_updates(holdings, position),
    )


def _edges(
    nodes: Iterable[Node], position: Mapping[Any, int], operands: int | None = None
) -> frozenset[tuple[int, int]]:
    """Return what nodes read, or the first few operands of them, as pairs of positions."""
    return frozenset(
        (position[value.node or value], position[node])
        for node in nodes
        for value in node.operands[:operands]
    )


def _views(nodes: Iterable[Node]) -> set[Node]:
    """Return the nodes whose results share memory with their first operands."""
    known: dict[Op, bool] = {}
    for node in nodes:
        if node.op not in known:
            known[node.op] = _is_view(node.op)
    return {node for node in nodes if known[node.op]}


def _is_view(op: Op) -> bool:
    """Return whether an op's result shares memory with its first operand, by its schema."""
    returns = getattr(op.schema, "returns", ())
    alias = getattr(returns[0], "alias_info", None) if returns else None
    return alias is not None and not alias.is_write


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


def _node_marks(held: Sequence[Holding], *, is_view: bool) -> tuple[str, ...]:
    marks = ["view"] if is_view else []
    version = max((each.version or 0 for each in held), default=0)
    if version:
        marks.append(f"v{version}")
    if any(each.overwrites is not None for each in held):
        marks.append("in place")
    return tuple(marks)


def _updates(
    holdings: Mapping[Any, Holding], position: Mapping[Any, int]
) -> tuple[tuple[int, int], ...]:
    pairs = {
        (position[value.node], position[held.overwrites])
        for value, held in holdings.items()
        if held.overwrites is not None
        and value.node in position
        and held.overwrites in position
    }
    return tuple(sorted(pairs))


def _node_box(
    node: Node,
    names: Mapping[Any, str],
    *,
    is_root: bool,
    is_new: bool,
    runs: int,
    marks: tuple[str, ...],
) -> model.Box:
    provenance = node.provenance
    is_backward = provenance.backward is not None
    outputs = [value for value in node.outputs if value is not None]
    name = next((names[value] for value in outputs if value in names), "")
    label = short_name(node.op.name)
    return model.Box(
        label=f"{name} = {label}" if name else label,
        detail=_types(outputs),
        kind="random" if node.op.is_random else "backward" if is_backward else "op",
        op=node.op.name,
        path=_path(provenance.module, is_backward=is_backward),
        site=str(provenance.site or ""),
        library=_library(provenance),
        is_root=is_root,
        is_new=is_new,
        name=name,
        members=(node.id,),
        runs=runs,
        marks=marks,
        scope=getattr(provenance, "scope", ""),
        step=getattr(provenance, "step", ""),
    )


def _library(provenance: Provenance) -> str:
    """Return the line of a library's model that recorded an op, or its forward op."""
    if provenance.library is None and provenance.backward is not None:
        forward = provenance.backward.forward
        return str((forward.library if forward is not None else None) or "")
    return str(provenance.library or "")


def _types(values: Sequence[Value]) -> str:
    texts = [tensor_type(value) for value in values]
    if not texts:
        return "no result"
    joined = ", ".join(texts)
    if len(joined) <= _MAX_TYPE_CHARS:
        return joined
    return f"{texts[0]} and {len(texts) - 1} more" if len(texts) > 1 else joined


def _path(module: str, *, is_backward: bool) -> tuple[str, ...]:
    parts = tuple(part for part in module.split(".") if part)
    return (model.BACKWARD, *parts) if is_backward else parts


def _leaf_paths(nodes: Iterable[Node]) -> dict[Any, tuple[str, ...]]:
    """Return for each leaf the module path of the first operation that reads it."""
    paths: dict[Any, tuple[str, ...]] = {}
    for node in nodes:
        for value in node.operands:
            if value.node is None and value not in paths:
                backward = node.provenance.backward is not None
                paths[value] = _path(node.provenance.module, is_backward=backward)
    return paths


def _leaf_box(
    leaf: Leaf,
    paths: Mapping[Any, tuple[str, ...]],
    names: Mapping[Any, str],
    *,
    marks: tuple[str, ...],
    is_root: bool,
) -> model.Box:
    name = names.get(leaf, "")
    label = _LEAF_LABELS.get(leaf.kind, leaf.kind)
    return model.Box(
        label=name or f"{label} {leaf.position}",
        detail=tensor_type(leaf),
        kind=_LEAF_KINDS.get(leaf.kind, "parameter"),
        op=leaf_name(leaf),
        path=paths.get(leaf, ()),
        is_root=is_root,
        name=name,
        marks=marks,
    )


_CALLS = frozenset({"call", "custom-call", "custom_call"})
_FREE = frozenset(
    {PARAMETER, CONSTANT, "tuple", "get-tuple-element", "getitem", "bitcast"}
)
_MAX_LITERAL = 16
_DEEPEST = 8  # calls within calls that are counted
_MAX_WRAPPERS = 3


def draw_hlo(
    graph: Graph,
    kind: str,
    outputs: Mapping[int, str] | None = None,
    site_text: Callable[[str], str] = str,
) -> model.DrawGraph:
    """Return the drawing of a whole program, nothing folded.

    Inputs have the names of their holders; `outputs` names outputs by their position.
    """
    names = {node: graph.holders.get(node, "") for node in graph.numbers}
    for position, node in enumerate(graph.outputs):
        names[node] = names.get(node) or (outputs or {}).get(position, "")
    roots = set(graph.outputs)
    # Constants are read all over a program: they are told in words, at their readers.
    drawn = [k for k, op in enumerate(graph.ops) if op != CONSTANT or k in roots]
    where = {node: position for position, node in enumerate(drawn)}
    boxes = [node_box(graph, node, names.get(node, "")) for node in drawn]
    edges = {
        (where[operand], where[node])
        for node in drawn
        for operand in graph.operands[node]
        if operand in where
    }
    return model.DrawGraph(
        boxes=tuple(replace(box, site=site_text(box.site)) for box in boxes),
        edges=tuple(sorted(edges)),
        nodes=sum(bool(box.members) for box in boxes),
        kind=kind,
    )


def node_box(graph: Graph, node: int, called: str = "") -> model.Box:
    """Return the box of an instruction; inputs and numbers have no members."""
    label, origin, name = graph.label(node), graph.origin(node), graph.names[node]
    path, is_root = _path_of(origin), node in graph.held_outputs
    box = model.Box(label="", detail=label.type, op=name, path=path, is_root=is_root)
    if label.op == PARAMETER:
        called = called or origin.op_name
        kind = _LEAF_KINDS.get(label.attrs, "parameter")
        shown = called or name.lstrip("%")
        return replace(box, label=shown, kind=kind, path=(), name=called)
    if label.op == CONSTANT:
        shown = label.literal if len(label.literal) <= _MAX_LITERAL else "constant"
        return replace(box, label=shown, kind="constant")
    shown = _called(label, origin) or short_name(label.op)
    return replace(
        box,
        label=f"{called} = {shown}" if called else shown,
        kind="backward" if path and path[0] == model.BACKWARD else "op",
        op=f"{label.op} {name}",
        site=origin.site,
        name=called,
        members=(node,),
        marks=(model.SAVED,) if node in graph.saved_outputs else (),
    )


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
    return _path(plain, is_backward=is_backward)


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
