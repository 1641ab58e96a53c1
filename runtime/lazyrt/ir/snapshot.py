"""A compact copy of a graph: plain data, for comparing graphs long after they ran.

A `Canonical` holds nodes, and nodes hold whatever they were interned with. A snapshot holds
texts and numbers only, about a tenth of that, and keeps no tensor, no node and no device data
alive. Vertices are the graph's leaves, then its nodes, operands first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from lazyrt.ir.node import Leaf, Node, Value, iter_values, type_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lazyrt.ir.fingerprint import Canonical
    from lazyrt.observe.events import Site

# Stands for an operand in an argument's text.
OPERAND = "·"
# What holds the state of `torch.optim.LBFGS`: one for all parameters, in lists.
OF_LBFGS = "optimizer LBFGS"


class Name(NamedTuple):
    """What the user calls a tensor.

    Attributes:
        text: Such as `loss`, `history[3]`, `model.0.weight`.
        holder: What holds it: `variable`, the kind of a container such as `list`, `module`,
            `buffer` (of a module), `gradient`, `optimizer`, `optimizer LBFGS`, `object`, `closure of log`,
            `local of train`.
    """

    text: str
    holder: str = "variable"

    @property
    def in_module(self) -> bool:
        """Whether a module holds it, as a parameter or as a buffer."""
        return self.holder in {"module", "buffer"}


class Origin(NamedTuple):
    """The execution that produced an input's data.

    Attributes:
        step: The runtime's number of the step; -1 for data copied from the host.
        graph: Name of the graph that ran, such as `graph.3`; empty for data from the host.
        output: Position among that graph's results.
        op: What computed it there; empty for data from the host.
        site: The line that recorded it.
        name: What the user called it there.
        dropped: Whether nothing holds the tensor any more when the step ends.
        how: What made it outside of a step's executable, such as `in eager debug mode`; empty
            for the rest.
    """

    step: int
    graph: str = ""
    output: int = -1
    op: str = ""
    site: Site | None = None
    name: str = ""
    dropped: bool = False
    how: str = ""


class Vertex(NamedTuple):
    """A leaf or a node.

    Attributes:
        op: ATen overload; for a leaf `data`, `float`, `int` or `rng`.
        attrs: Text of each schema argument, operands written as `·`; empty for a leaf.
        types: Text of each result's type, such as `f32[2,3]`; `none` for an undefined one.
        operands: (vertex, position among its results) of each operand, repeats included.
        site: The user's line that recorded it.
        scope: Qualified name of the module that recorded it.
        backward: Whether autograd's backward recorded it.
        cell: The notebook's cell that ran then; the line may be in a function of another one.
    """

    op: str
    attrs: tuple[str, ...]
    types: tuple[str, ...]
    operands: tuple[tuple[int, int], ...]
    site: Site | None = None
    scope: str = ""
    backward: bool = False
    cell: int | None = None

    @property
    def is_leaf(self) -> bool:
        """Whether it is an input of the graph."""
        return self.op in _LEAF_KINDS

    @property
    def label(self) -> tuple[Any, ...]:
        """What it computes, its operands aside."""
        return (self.op, self.attrs, self.types)


_LEAF_KINDS = frozenset(("data", "float", "int", "rng"))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A graph as plain data.

    Attributes:
        fingerprint: Of the graph.
        vertices: Leaves, then nodes in canonical order.
        roots: (vertex, position among its results), in canonical order.
        leaf_names, root_names: What the user calls them, by vertex and by position in `roots`.
        origins: Where the data of a leaf came from, by vertex.
        random: Names of the ops that draw random numbers.
        modules: What the user calls all parameters and buffers of modules that there were then,
            read by the graph or not.
    """

    fingerprint: str
    vertices: tuple[Vertex, ...]
    roots: tuple[tuple[int, int], ...]
    leaf_names: Mapping[int, Name] = field(default_factory=dict)
    root_names: Mapping[int, Name] = field(default_factory=dict)
    origins: Mapping[int, Origin] = field(default_factory=dict)
    random: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()

    @property
    def nodes(self) -> int:
        """How many of the vertices are nodes."""
        return sum(not vertex.is_leaf for vertex in self.vertices)

    def users(self) -> list[list[tuple[int, int]]]:
        """Return for each vertex its users as (vertex, operand slot), repeats included."""
        users: list[list[tuple[int, int]]] = [[] for _ in self.vertices]
        for number, vertex in enumerate(self.vertices):
            for slot, (operand, _) in enumerate(vertex.operands):
                users[operand].append((number, slot))
        return users


def snapshot_of(
    graph: Canonical,
    names: Mapping[Value, Name] | None = None,
    origins: Mapping[Value, Origin] | None = None,
    modules: frozenset[str] = frozenset(),
) -> Snapshot:
    """Return the snapshot of a graph.

    Args:
        graph: The graph.
        names: What the user calls its leaves and roots. A buffer that the step overwrites is
            both, as a parameter is.
        origins: Where the data of its leaves came from.
        modules: Names of all parameters and buffers of modules.
    """
    names, origins = names or {}, origins or {}
    leaves = (*graph.data, *graph.floats, *graph.ints, *graph.rng)
    numbers: dict[Any, int] = {leaf: number for number, leaf in enumerate(leaves)}
    vertices = [_leaf(leaf) for leaf in leaves]
    for node in graph.nodes:
        numbers[node] = len(vertices)
        vertices.append(_node(node, numbers))
    roots = tuple(_reference(root, numbers) for root in graph.roots)
    return Snapshot(
        graph.fingerprint,
        tuple(vertices),
        roots,
        {numbers[leaf]: names[leaf] for leaf in graph.data if leaf in names},
        {k: names[root] for k, root in enumerate(graph.roots) if root in names},
        {numbers[leaf]: origins[leaf] for leaf in graph.data if leaf in origins},
        frozenset(node.op.name for node in graph.nodes if node.op.is_random),
        modules,
    )


def _reference(value: Value, numbers: Mapping[Any, int]) -> tuple[int, int]:
    if value.node is None:
        return (numbers[value], 0)
    return (numbers[value.node], value.index)


def _leaf(leaf: Leaf) -> Vertex:
    return Vertex(leaf.kind, (), (type_text(leaf.shape, leaf.dtype),), ())


def _node(node: Node, numbers: Mapping[Any, int]) -> Vertex:
    origin = node.provenance
    return Vertex(
        node.op.name,
        tuple(map(_text, node.args)),
        tuple(
            "none" if value is None else type_text(value.shape, value.dtype)
            for value in node.outputs
        ),
        tuple(_reference(value, numbers) for value in iter_values(node.args)),
        origin.site,
        origin.module,
        origin.backward is not None,
        next((site.cell for site in origin.stack if site.cell is not None), None),
    )


def _text(arg: Any) -> str:
    if isinstance(arg, Value):
        return OPERAND
    if arg.__class__ is tuple:
        if len(arg) == 2 and arg[0] in {float, bool, complex}:  # noqa: PLR2004
            return str(arg[1]).strip("'")
        return f"[{', '.join(map(_text, arg))}]"
    return str(arg)
