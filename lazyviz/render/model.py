"""The drawing model: boxes and edges, made from a graph of the runtime.

Nothing here imports the runtime, so `import lazyviz` stays light; a graph is read through
its attributes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from lazyrt import Graph
    from lazyrt.tools import Holding, Leaf, Node, Op, Value

Kind = Literal["op", "backward", "random", "parameter", "constant", "group"]
Change = Literal["added", "removed", "changed", "rewired", "same"]

# The mark of each change, in drawings, listings and panels.
ADDED, REMOVED, CHANGED, REWIRED, SAME = "+", "−", "~", "⇄", "="
MARKS: dict[Change, str] = {
    "added": ADDED,
    "removed": REMOVED,
    "changed": CHANGED,
    "rewired": REWIRED,
    "same": SAME,
}

BACKWARD = "(backward)"
FROM_CPU = "from the CPU"  # the mark of what a fallback made

_MAX_TYPE_CHARS = 30
_DTYPES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint64": "u64",
    "uint32": "u32",
    "uint16": "u16",
    "uint8": "u8",
    "bool": "bool",
    "complex128": "c128",
    "complex64": "c64",
}
_LEAF_KINDS: dict[str, Kind] = {
    "data": "parameter",
    "float": "constant",
    "int": "constant",
    "rng": "random",
}
_LEAF_PREFIXES = {"data": "p", "float": "f", "int": "i", "rng": "rng"}
_LEAF_LABELS = {"data": "input", "float": "float", "int": "int", "rng": "rng"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One box of the drawing: an operation, an input, or several of them folded.

    Attributes:
        label: Short name of the operation, or the variable's name.
        detail: Second line: the type of the result, or what a folded box holds.
        kind: What it is; decides the colour.
        op: Full name of the operation, such as `aten.add.Tensor`, or that of the input in
            listings, such as `%p0`.
        path: nn.Module path of the code that recorded it, in parts; that of a backward
            operation begins with `BACKWARD`.
        site: The user's line that recorded it.
        is_root: Whether it is an output of the graph: a live tensor.
        is_new: Whether the cell that is shown recorded it.
        name: The user's variable that holds it.
        members: Ids of the nodes that it stands for.
        count: How many times what is drawn here repeats, as in `×12`.
        runs: How often op-by-op mode has run it since the last barrier; from 2 on it is marked.
        marks: Short words on what its memory is: `parameter`, `donated`, `v3`, `view`, `CPU`.
        level: Shade of an overlay, from 0 (little) to 4 (most); None without one.
        note: The overlay's text, such as `1.2 ms`.
        scope: Labels of the `scope()` blocks around it, joined by `/`.
        step: Name of the `step()` that recorded it.
        change: What happened to it between two programs; None where one program is drawn.
        hidden: How many of its neighbours are not drawn.
        is_first: Whether a view opens on it.
        anchor: Id of its entry on a static page; empty for none.
    """

    label: str
    detail: str = ""
    kind: Kind = "op"
    op: str = ""
    path: tuple[str, ...] = ()
    site: str = ""
    is_root: bool = False
    is_new: bool = True
    name: str = ""
    members: tuple[int, ...] = ()
    count: int = 1
    runs: int = 0
    marks: tuple[str, ...] = ()
    level: int | None = None
    note: str = ""
    scope: str = ""
    step: str = ""
    change: Change | None = None
    hidden: int = 0
    is_first: bool = False
    anchor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawGraph:
    """Boxes and edges to draw.

    Attributes:
        boxes: In topological order, as far as folding left the graph without cycles.
        edges: Pairs of positions in `boxes`, each pair once, sorted.
        nodes: Operations of the whole graph, folded ones included.
        fingerprint: The graph's, empty when not known.
        aliases: Those edges whose end shares memory with their start: views.
        updates: Pairs of an output and the input that it overwrites; no edges.
        kind: What is drawn, for titles: `IR graph`, `StableHLO`, ...
        legend: CSS class and words of each shade of an overlay; empty without one.
        dimmed: What the boxes are that are not new, for the legend.
        added, removed: In a diff, the edges that only the second or the first program has.
        left_out: In a diff, how many changed nodes are not drawn.
    """

    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int], ...]
    nodes: int = 0
    fingerprint: str = ""
    aliases: frozenset[tuple[int, int]] = frozenset()
    updates: tuple[tuple[int, int], ...] = ()
    kind: str = "IR graph"
    legend: tuple[tuple[str, str], ...] = ()
    dimmed: str = "earlier cell"
    added: frozenset[tuple[int, int]] = frozenset()
    removed: frozenset[tuple[int, int]] = frozenset()
    left_out: int = 0

    @property
    def is_diff(self) -> bool:
        """Whether two programs are drawn, with what changed between them."""
        return any(box.change is not None for box in self.boxes)

    def wires(self) -> tuple[list[list[int]], list[list[int]]]:
        """Return for each box the positions of what it reads, and of what reads it."""
        inputs: list[list[int]] = [[] for _ in self.boxes]
        users: list[list[int]] = [[] for _ in self.boxes]
        for start, end in self.edges:
            inputs[end].append(start)
            users[start].append(end)
        return inputs, users

    def rewired(
        self,
        boxes: Sequence[Box],
        edges: Iterable[tuple[int, int]],
        where: Mapping[int, int],
    ) -> DrawGraph:
        """Return the drawing with other boxes, aliases and updates following along.

        Args:
            boxes: The new boxes.
            edges: The new edges, of new positions.
            where: New position of each old one that is still drawn.
        """
        kept = frozenset(edges)
        return replace(
            self,
            boxes=tuple(boxes),
            edges=tuple(sorted(kept)),
            aliases=kept.intersection(_moved(self.aliases, where)),
            added=kept.intersection(_moved(self.added, where)),
            removed=kept.intersection(_moved(self.removed, where)),
            updates=tuple(sorted(set(_moved(self.updates, where)))),
        )


def _moved(
    pairs: Iterable[tuple[int, int]], where: Mapping[int, int]
) -> Iterable[tuple[int, int]]:
    for start, end in pairs:
        if start in where and end in where and where[start] != where[end]:
            yield where[start], where[end]


def type_text(shape: Iterable[int], dtype: object) -> str:
    """Return a type as XLA spells it.

    Example:
        >>> type_text((8, 10), "torch.float32")
        'f32[8,10]'
    """
    name = str(dtype).rsplit(".", 1)[-1]
    return f"{_DTYPES.get(name, name)}[{','.join(map(str, shape))}]"


def short_name(op: str) -> str:
    """Return the part of an operation's name that people say.

    Example:
        >>> short_name("aten.add.Tensor"), short_name("aten.native_layer_norm.default")
        ('add', 'native_layer_norm')
        >>> short_name("fused"), short_name("aten.add_.Tensor")
        ('fused', 'add_')
    """
    parts = op.split(".")
    return parts[1] if len(parts) > 1 and parts[1] else op


def draw_graph(
    graph: Graph,
    *,
    new: Collection[int] | None = None,
    names: Mapping[Any, str] | None = None,
    runs: Mapping[Node, int] | None = None,
    holdings: Mapping[Any, Holding] | None = None,
) -> DrawGraph:
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
    names = {**_held_names(holdings), **(names or {})}
    runs = runs or {}
    boxes: list[Box] = []
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
        marks = _node_marks(node, holdings, is_view=node in views)
        box = _node_box(
            node,
            names,
            is_root=node in roots,
            is_new=new is None or node.id in new,
            runs=runs.get(node, 0),
            marks=marks if with_memory else (),
        )
        boxes.append(box)
    for leaf_value in graph.parameters:  # a root that is an input and no op reads
        if leaf_value not in position:
            add_leaf(leaf_value)
    return DrawGraph(
        boxes=tuple(boxes),
        edges=tuple(sorted(_edges(graph.nodes, position))),
        nodes=len(graph.nodes),
        fingerprint=_fingerprint(graph),
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


def _held_names(holdings: Mapping[Any, Holding]) -> dict[Any, str]:
    return {value: held.name for value, held in holdings.items() if held.name}


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
        marks.append(FROM_CPU)
    return tuple(marks)


def _node_marks(
    node: Node, holdings: Mapping[Any, Holding], *, is_view: bool
) -> tuple[str, ...]:
    marks = ["view"] if is_view else []
    held = [holdings[v] for v in node.outputs if v in holdings]
    version = max((each.version for each in held), default=0)
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


def _fingerprint(graph: Graph) -> str:
    return graph.fingerprint if graph.nodes else ""


def _node_box(
    node: Node,
    names: Mapping[Any, str],
    *,
    is_root: bool,
    is_new: bool,
    runs: int,
    marks: tuple[str, ...],
) -> Box:
    provenance = node.provenance
    outputs = [value for value in node.outputs if value is not None]
    name = next((names[value] for value in outputs if value in names), "")
    label = short_name(node.op.name)
    return Box(
        label=f"{name} = {label}" if name else label,
        detail=_types(outputs),
        kind=_node_kind(node),
        op=node.op.name,
        path=_path(provenance.module, is_backward=provenance.backward is not None),
        site=str(provenance.site or ""),
        is_root=is_root,
        is_new=is_new,
        name=name,
        members=(node.id,),
        runs=runs,
        marks=marks,
        scope=getattr(provenance, "scope", ""),
        step=getattr(provenance, "step", ""),
    )


def _node_kind(node: Node) -> Kind:
    if node.op.is_random:
        return "random"
    return "backward" if node.provenance.backward is not None else "op"


def _types(values: Sequence[Value]) -> str:
    texts = [type_text(value.shape, value.dtype) for value in values]
    if not texts:
        return "no result"
    joined = ", ".join(texts)
    if len(joined) <= _MAX_TYPE_CHARS:
        return joined
    return f"{texts[0]} and {len(texts) - 1} more" if len(texts) > 1 else joined


def _path(module: str, *, is_backward: bool) -> tuple[str, ...]:
    parts = tuple(part for part in module.split(".") if part)
    return (BACKWARD, *parts) if is_backward else parts


def path_text(path: Sequence[str]) -> str:
    """Return a box's path as a reader knows it.

    Example:
        >>> path_text(("encoder", "fc")), path_text((BACKWARD, "fc")), path_text((BACKWARD,))
        ('encoder.fc', 'fc (backward)', 'backward')
    """
    if path and path[0] == BACKWARD:
        return f"{'.'.join(path[1:])} {BACKWARD}" if len(path) > 1 else "backward"
    return ".".join(path)


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
    value: Any,
    paths: Mapping[Any, tuple[str, ...]],
    names: Mapping[Any, str],
    *,
    marks: tuple[str, ...],
    is_root: bool,
) -> Box:
    leaf: Leaf = value
    name = names.get(leaf, "")
    label = _LEAF_LABELS.get(leaf.kind, leaf.kind)
    return Box(
        label=name or f"{label} {leaf.position}",
        detail=type_text(leaf.shape, leaf.dtype),
        kind=_LEAF_KINDS.get(leaf.kind, "parameter"),
        op=f"%{_LEAF_PREFIXES.get(leaf.kind, leaf.kind)}{leaf.position}",
        path=paths.get(leaf, ()),
        is_root=is_root,
        name=name,
        marks=marks,
    )
