"""A compact copy of a graph: plain data, for comparing graphs long after they ran; and what it repeats.

It holds texts and numbers only, and keeps no tensor, no node and no device data alive. Vertices are
the graph's leaves, then its nodes, operands first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from lazygraph.graph import Graph, GraphBuilder
from lazygraph.graph import Origin as GraphOrigin

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line of the user's source: where an op was recorded or a barrier was asked for.

    Attributes:
        file: Path of the source file, or IPython's name of the cell's code.
        line: Line number, from 1.
        function: Name of the function, `<module>` at the top level.
        cell: Execution count of the notebook cell, or None outside notebooks.
    """

    file: str
    line: int
    function: str
    cell: int | None = None

    def __str__(self) -> str:
        """Return `cell 3 line 2` or `train.py:41`."""
        if self.cell is not None:
            return f"cell {self.cell} line {self.line}"
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}"


Site = SourceLocation  # the name until 0.2


# Stands for an operand in an argument's text.
OPERAND = "·"
# What holds the state of `torch.optim.LBFGS`: one for all parameters, in lists.
OF_LBFGS = "optimizer LBFGS"

AUTOGRAD = "autograd"  # holds what a backward to come needs
FROZEN = "frozen"  # a module's parameter that requires no gradient, beside its own name


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
        return self.holder in {"module", "buffer", FROZEN}


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
        memory_format: The order of its elements in memory: `contiguous`, `channels_last` or its
            strides.
        also: What else the user calls a tensor of the same data; empty for none.
    """

    step: int
    graph: str = ""
    output: int = -1
    op: str = ""
    site: SourceLocation | None = None
    name: str = ""
    dropped: bool = False
    how: str = ""
    memory_format: str = "contiguous"
    also: str = ""


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
    site: SourceLocation | None = None
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
            read by the graph or not, and whether it is a parameter that requires no gradient.
        saved: Positions in `roots` of what autograd alone held, for a backward to come.
    """

    fingerprint: str
    vertices: tuple[Vertex, ...]
    roots: tuple[tuple[int, int], ...]
    leaf_names: Mapping[int, Name] = field(default_factory=dict)
    root_names: Mapping[int, Name] = field(default_factory=dict)
    origins: Mapping[int, Origin] = field(default_factory=dict)
    random: frozenset[str] = frozenset()
    modules: Mapping[str, bool] = field(default_factory=dict)
    saved: frozenset[int] = frozenset()

    @property
    def nodes(self) -> int:
        """How many of the vertices are nodes."""
        return sum(not vertex.is_leaf for vertex in self.vertices)

    @property
    def graph(self) -> Graph:
        """Its columns, for matching: lines, modules and names of inputs are hints."""
        builder = GraphBuilder("step")
        for k, vertex in enumerate(self.vertices):
            kind = "parameter" if vertex.is_leaf else vertex.op
            name = self.leaf_names[k].text if k in self.leaf_names else ""
            site = str(vertex.site) if vertex.site is not None else ""
            hint = name if vertex.is_leaf else f"{vertex.op} {site}"
            attrs = "; ".join((vertex.op,) if vertex.is_leaf else vertex.attrs)
            label = builder.label(
                kind, ", ".join(vertex.types), attrs + "~" * vertex.backward
            )
            builder.add(
                label,
                [operand for operand, _ in vertex.operands],
                origin=GraphOrigin(vertex.scope, site, hint),
            )
        return Graph(
            builder.name,
            builder.labels,
            builder.kinds,
            builder.operands,
            [vertex for vertex, _ in self.roots],
            names=builder.names,
            origins=builder.origins,
        )


AT_CONSTANTS = {
    "lazyrt.slice_at.default": "aten.slice.Tensor",
    "lazyrt.select_at.default": "aten.select.int",
    "lazyrt.slice_scatter_at.default": "aten.slice_scatter.default",
    "lazyrt.select_scatter_at.default": "aten.select_scatter.default",
}


def labels(snapshot: Snapshot) -> Counter[tuple[Any, ...]]:
    """Return how often each node's (op, types) occurs: what a graph looks like from afar.

    A slice is a slice, whether its position is a constant or an input.
    """
    return Counter(
        (AT_CONSTANTS.get(vertex.op, vertex.op), vertex.types)
        for vertex in snapshot.vertices
        if not vertex.is_leaf
    )


def shared(one: Counter[Any], other: Counter[Any]) -> int:
    """Return how many entries two multisets have in common."""
    small, large = sorted((one, other), key=len)
    return sum(min(count, large[key]) for key, count in small.items())


# -------------------------------------------------------------------------------- what repeats

_Entry = TypeVar("_Entry", bound="Hashable")

# Layers of a model are rounds too, but fewer.
_MANY = 100
_MIN_TIMES = 3
_MIN_OPS = 5
_SHARE = 0.5  # of all ops: the rounds make up most of them
# What is there eight times is there four times twice: a few ops more decide nothing. Rounds
# that lack nothing account for more.
_NEARLY, _NEARLY_WHOLE = 0.8, 0.9
_MAX_COUNTS = 32


class Rounds(NamedTuple):
    """Operations that come again and again.

    Attributes:
        ops: How many there are in one round.
        times: How many rounds.
        lines: Where they stand, such as `cell 3 lines 2-3`; empty where unknown.
    """

    ops: int
    times: int
    lines: str

    def __str__(self) -> str:
        """Return `cell 3 lines 2-3 recorded 3 ops 250 times`."""
        noun = "op" if self.ops == 1 else "ops"
        return f"{self.lines} recorded {self.ops:,} {noun} {self.times:,} times"


def times_of(
    counts: Mapping[_Entry, int], least: int = 2, *, is_whole: bool = False
) -> tuple[int, set[_Entry]]:
    """Return how many rounds account for most of some entries, and for which; 0 for none.

    Args:
        counts: How often each entry is there.
        least: Fewer rounds are none.
        is_whole: Whether each round has all; else an entry may be there once less or more, as
            the first round lacks what adds to the round before, and the last may break off.

    Example:
        >>> times, entries = times_of({"mul": 6, "add": 6, "tanh": 12, "sum": 1})
        >>> times, sorted(entries)
        (6, ['add', 'mul', 'tanh'])
    """
    common = Counter(n for n in counts.values() if n >= least).most_common(_MAX_COUNTS)
    covered = {
        times: sum(n for n in counts.values() if n % times == 0) for times, _ in common
    }
    most = max(covered.values(), default=0)
    if not most:
        return 0, set()
    off, nearly = (0, _NEARLY_WHOLE) if is_whole else (1, _NEARLY)
    times = max(each for each in covered if covered[each] >= nearly * most)
    return times, {
        entry
        for entry, n in counts.items()
        if n >= times - off and min(n % times, -n % times) <= off
    }


def rounds_in(ops: Iterable[tuple[str, SourceLocation | None]]) -> Rounds | None:
    """Return the loop that recorded most of some ops; None if there is no such loop.

    Example:
        >>> from lazygraph.snapshot import SourceLocation
        >>> line = SourceLocation("train.py", 7, "train")
        >>> str(rounds_in([("aten.mul.Tensor", line), ("aten.add.Tensor", line)] * 300))
        'train.py:7 recorded 2 ops 300 times'
    """
    counts = Counter(ops)
    known = {entry: n for entry, n in counts.items() if entry[1] is not None}
    times, inside = times_of(known, _MANY)
    if sum(counts[entry] for entry in inside) < max(1, _SHARE * counts.total()):
        return None
    return Rounds(
        sum(round(counts[entry] / times) for entry in inside),
        times,
        lines_of(site for _, site in inside if site),
    )


def repeated_block(
    snapshot: Snapshot, ended_at: SourceLocation | None
) -> Rounds | None:
    """Return the block that most of a graph repeats; None if there is none.

    Rounds read the same parameters. Layers, which have their own, are no rounds. Of several
    functions, lines in that of the line which ended the graph are told.
    """
    nodes = [vertex for vertex in snapshot.vertices if not vertex.is_leaf]
    counts = Counter(map(_spot, nodes))
    times, spots = times_of(counts, _MIN_TIMES)
    if not times:
        return None
    ops = sum(round(counts[spot] / times) for spot in spots)
    covered = sum(counts[spot] for spot in spots)
    if ops < _MIN_OPS or covered < _SHARE * len(nodes):
        return None
    if not _read_alike(snapshot, times):
        return None
    sites = [v.site for v in nodes if v.site is not None and _spot(v) in spots]
    wanted = (ended_at.file, ended_at.function) if ended_at is not None else None
    kept = [site for site in sites if (site.file, site.function) == wanted]
    return Rounds(ops, times, lines_of(kept or sites))


def _spot(vertex: Vertex) -> Hashable:
    return (vertex.op, vertex.types, vertex.scope, vertex.backward, vertex.site)


def _read_alike(snapshot: Snapshot, times: int) -> bool:
    """Return whether some input is read in each round, as it is or turned once for all."""
    vertices = snapshot.vertices
    reads = Counter(operand for v in vertices for operand, _ in v.operands)
    return any(
        vertices[each].op == "data"
        for k, number in reads.items()
        if number >= times
        for each in (k, *(operand for operand, _ in vertices[k].operands))
    )


def lines_of(sites: Iterable[SourceLocation]) -> str:
    """Return the lines of the function that most of some places stand in."""
    found = list(sites)
    if not found:
        return ""
    file, function = Counter((s.file, s.function) for s in found).most_common(1)[0][0]
    kept = [site for site in found if (site.file, site.function) == (file, function)]
    first, last = min(site.line for site in kept), max(site.line for site in kept)
    span = f"{first}-{last}" if first != last else f"{first}"
    if kept[0].cell is not None:
        return f"cell {kept[0].cell} line{'s' if first != last else ''} {span}"
    return f"{file.rsplit('/', 1)[-1]}:{span}"
