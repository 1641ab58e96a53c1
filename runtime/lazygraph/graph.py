"""Graphs as columns: small to keep, quick to compare, free of tensors."""

from __future__ import annotations

import functools
import gc
import hashlib
import re
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from lazygraph.types import flops, type_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


class HloError(RuntimeError, ValueError):
    """A text, a file or a graph cannot be used; the errors of readers are of this class, too."""


class HloSyntaxError(HloError):
    """A text is not what it should be at one place, or breaks off; each reader raises it.

    Attributes:
        message: Without the line.
        line, column: The place, counted from 1.
        source: Name of the file, empty for a text.
    """

    def __init__(
        self, message: str, line: int = 1, column: int = 1, source: str = ""
    ) -> None:
        self.message = message
        self.line = line
        self.column = column
        self.source = source
        super().__init__(message)

    def __str__(self) -> str:
        where = f"{self.source}, line" if self.source else "line"
        return f"{where} {self.line}, column {self.column}: {self.message}"


class MisplacedError(HloError):
    """An instruction is wrong; `parse`, which has the text, finds its column."""

    def __init__(self, message: str, line: int, name: str) -> None:
        self.message = message
        self.line = line
        self.name = name
        super().__init__(f"line {line}: {message}")


PARAMETER = "parameter"
CONSTANT = "constant"
# Results of an op with several are nodes of their own.
GETITEM = "getitem"


class Label(NamedTuple):
    """What a node is, apart from its operands. Nodes of equal labels do the same thing.

    Attributes:
        op: Opcode, such as `add` or `aten.addmm.default`; inputs are `parameter`.
        type: Type of the result without layout, such as `f32[2,3]` or `(f32[], s32[4])`.
        attrs: The other attributes as text in a canonical order.
        literal: The value of a constant, else empty.
    """

    op: str
    type: str
    attrs: str = ""
    literal: str = ""


class Origin(NamedTuple):
    """Where a node came from.

    Attributes:
        scope: Module path or named scope, such as `encoder.layer.0`; may be empty.
        site: Source line, such as `cell 3 line 2` or `train.py:41`; may be empty.
        op_name: The framework's name of the operation, such as `aten.addmm.default`.
    """

    scope: str = ""
    site: str = ""
    op_name: str = ""


class InheritedOrigin(Origin):
    """The origin of an instruction of which the dump says nothing: that of its neighbour.

    XLA makes instructions that nobody wrote, such as those of random bits. Within a fusion
    they have the origin of what they are computed for, else that of the fusion.
    """

    __slots__ = ()


class Node(NamedTuple):
    """One node of a graph, for reading.

    Attributes:
        id: Position in the graph.
        op, type, attrs, literal: The parts of its label.
        operands: Ids of the nodes that it reads, one for each slot, repeats included.
        name: Its name in the text or the IR, such as `%add.12`.
        scope, site: Where it came from; may be empty.
    """

    id: int
    op: str
    type: str
    attrs: str
    literal: str
    operands: tuple[int, ...]
    name: str
    scope: str
    site: str


class DeadNode(NamedTuple):
    """A node that no output needs. It was set aside.

    Attributes:
        name: Its name in the text.
        label: What it is.
        origin: Where it came from.
        bytes: Size of its result.
        flops: Operations to compute it.
    """

    name: str
    label: Label
    origin: Origin
    bytes: int
    flops: int


def dead_node(name: str, label: Label, origin: Origin, operands: list[str]) -> DeadNode:
    """Return a node that was set aside; `operands` are the types of what it reads."""
    work = flops(label.op, label.type, operands, label.attrs)
    return DeadNode(name, label, origin, type_bytes(label.type), work)


_K = TypeVar("_K")
_V = TypeVar("_V")


def grouped(pairs: Iterable[tuple[_K, _V]]) -> dict[_K, list[_V]]:
    """Return values by their keys, in the order in which they come."""
    found: dict[_K, list[_V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


_NO_ORIGIN = Origin()
# Names of inputs that say only their number, or nothing.
_NUMBERED = re.compile(r"(?:[A-Za-z]*[\[_.]?\d+[\]_]?(?:\.\d+)?|.*device_data)?")


def _read_origin(raw: Any) -> Origin:
    return raw if isinstance(raw, Origin) else _NO_ORIGIN


class Graph:
    """A dataflow graph in normal form, as columns. Treat it as immutable.

    To fill one, give each column an entry for each node, operands before their users. A
    vertex of another form gives its op, type and attributes to a `Label`, of which each occurs
    once in `labels`; its site and scope to an `Origin`; what it is called to `names`, and the
    variable that holds it to `holders`. `GraphBuilder` does so node by node, and drops what no
    output needs.

    Example:
        >>> graph = Graph(
        ...     "step 3",
        ...     labels=[Label("parameter", "f32[4]"), Label("aten.exp.default", "f32[4]")],
        ...     kinds=[0, 1],
        ...     operands=[(), (0,)],
        ...     outputs=[1],
        ...     names=["%p0", "%1"],
        ...     origins=[Origin(), Origin("encoder", "train.py:4")],
        ...     holders={0: "batch", 1: "loss"},
        ... )
        >>> graph[1].op, graph[1].site, graph.holders[1]
        ('aten.exp.default', 'train.py:4', 'loss')

    Attributes:
        name: Of the module or step.
        labels: The distinct labels.
        kinds: For each node the position of its label in `labels`.
        operands: For each node the ids of its operands; they are smaller than its own.
        outputs: Ids of the results in order; one node may be several of them.
        groups: For members of a group, such as the operands of one coalesced collective, the
            group's number. Which nodes form a group costs nothing; see `GraphDiff.regrouped`.
        numbers: For inputs, the number in the source.
        holders: For inputs and outputs what holds them, such as `self.weight`, where it is known.
        ancestor_keys: For each node something that equals another's only if all that they compute from
            the inputs on is equal; None where the source knows no such thing.
        dead: What no output needed.
        source: What the graph was made from, for views that look deeper: a parsed module.
        part: Name of the computation of `source` that it is; empty where that has none.
        saved: Positions in `outputs` of what autograd alone held, for a backward to come.
        optimizer: The class whose state the parameters have, such as `AdamW`; empty where it is
            unknown, or several classes update parameters.
    """

    saved: frozenset[int] = frozenset()
    optimizer: str = ""
    _site_text: Callable[[str], str] | None = None

    def __init__(
        self,
        name: str,
        labels: list[Label],
        kinds: list[int],
        operands: list[tuple[int, ...]],
        outputs: Sequence[int],
        *,
        names: list[str | int],
        origins: list[Any],
        read_origin: Callable[[Any], Origin] = _read_origin,
        read_name: Callable[[Any], tuple[str, str]] | None = None,
        read_hints: Callable[[list[Any]], list[str]] | None = None,
        ancestor_keys: list[object] | None = None,
        groups: Mapping[int, int] | None = None,
        numbers: Mapping[int, int] | None = None,
        holders: Mapping[int, str] | None = None,
        dead: Sequence[DeadNode] = (),
        source: Any = None,
        part: str = "",
    ) -> None:
        self.name = name
        self.labels = labels
        self.kinds = kinds
        self.operands = operands
        self.outputs = tuple(outputs)
        self.ancestor_keys = ancestor_keys
        self.groups = dict(groups or {})
        self.numbers = dict(numbers or {})
        self.holders = dict(holders or {})
        self.dead = tuple(dead)
        self.source = source
        self.part = part
        self._names = names
        self._origins = origins
        self._read_origin = read_origin
        self._read_name = read_name or self._name_of
        self._read_hints = read_hints
        self._known_origins: dict[Any, Origin] = {}

    @cached_property
    def held_outputs(self) -> frozenset[int]:
        """Ids of the results that the program holds."""
        held = (node for k, node in enumerate(self.outputs) if k not in self.saved)
        return frozenset(held)

    @cached_property
    def saved_outputs(self) -> frozenset[int]:
        """Ids of the results that autograd alone held."""
        return frozenset(self.outputs) - self.held_outputs

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, node: int) -> Node:
        label, origin = self.label(node), self.origin(node)
        return Node(
            node,
            *label,
            self.operands[node],
            self.names[node],
            origin.scope,
            origin.site,
        )

    def __iter__(self) -> Iterator[Node]:
        return (self[node] for node in range(len(self)))

    def __repr__(self) -> str:
        return (
            f"<Graph {self.name}: {len(self)} nodes, {len(self.inputs)} inputs, "
            f"{len(self.outputs)} outputs>"
        )

    def label(self, node: int) -> Label:
        """Return what a node is."""
        return self.labels[self.kinds[node]]

    def origin(self, node: int) -> Origin:
        """Return where a node came from."""
        return self.origin_of(self._origins[node])

    def origin_of(self, raw: object) -> Origin:
        """Return what its source says of where a node, also one that it calls, came from."""
        if self._read_hints is not None:  # what it came with may take long to hash
            return self._read_origin(raw)
        found = self._known_origins.get(raw)
        if found is None:
            found = self._known_origins[raw] = self._read_origin(raw)
        return found

    def with_sites(self, called: Callable[[str], str]) -> Graph:
        """Return the graph, and what it calls, with source lines as the reader calls them."""

        def renamed(origin: Origin) -> Origin:
            return origin._replace(site=called(origin.site)) if origin.site else origin

        found = copy(self)
        vars(found).update(
            _read_origin=lambda raw: renamed(self._read_origin(raw)), _known_origins={},
            dead=tuple(each._replace(origin=renamed(each.origin)) for each in self.dead),
            _site_text=called,
        )  # fmt: skip
        return found

    def with_sites_of(self, other: Graph) -> Graph:
        """Return the graph with its source lines as another one has been given them."""
        return self.with_sites(other._site_text) if other._site_text else self

    def relabelled(self, new: Mapping[int, tuple[Label, tuple[int, ...]]]) -> Graph:
        """Return the graph with other labels and operands of some nodes."""
        kinds = {label: kind for kind, label in enumerate(self.labels)}
        found, of_nodes, operands = copy(self), [*self.kinds], [*self.operands]
        for node, (label, reads) in new.items():
            of_nodes[node] = kinds.setdefault(label, len(kinds))
            operands[node] = reads
        for known in ("ops", "types", "attrs", "inputs", "users"):
            vars(found).pop(known, None)
        vars(found).update(
            labels=[*kinds], kinds=of_nodes, operands=operands, ancestor_keys=None,
        )  # fmt: skip
        return found

    def scope(self, node: int) -> str:
        """Return a node's module path, which may be empty."""
        return self.origin(node).scope

    def site(self, node: int) -> str:
        """Return a node's source line, which may be empty."""
        return self.origin(node).site

    def hints(self) -> list[str]:
        """Return for each node what may tell it from its like: a scope, an input's name."""
        found = (self._read_hints or self._hints_of)(self._origins)
        for node in self.inputs:
            _, name = self._read_name(self._origins[node])
            found[node] = "" if not name or _NUMBERED.fullmatch(name) else name
        return found

    def _hints_of(self, origins: list[Any]) -> list[str]:
        names = {raw: self._read_name(raw) for raw in {*origins}}
        known = {raw: f"{s}/{op}" if s else "" for raw, (s, op) in names.items()}
        return [known[raw] for raw in origins]

    def _name_of(self, raw: Any) -> tuple[str, str]:
        origin = self._read_origin(raw)
        return origin.scope, origin.op_name

    @cached_property
    def names(self) -> list[str]:
        """For each node its name in the text or the IR."""
        return [_shown_name(name) for name in self._names]

    @cached_property
    def ops(self) -> list[str]:
        """For each node its opcode."""
        ops = [label.op for label in self.labels]
        return [ops[kind] for kind in self.kinds]

    @cached_property
    def types(self) -> list[str]:
        """For each node the type of its result."""
        types = [label.type for label in self.labels]
        return [types[kind] for kind in self.kinds]

    @cached_property
    def attrs(self) -> list[str]:
        """For each node its attributes as text."""
        attrs = [label.attrs for label in self.labels]
        return [attrs[kind] for kind in self.kinds]

    @cached_property
    def inputs(self) -> list[int]:
        """Ids of the parameters."""
        kinds = {k for k, label in enumerate(self.labels) if label.op == PARAMETER}
        return [node for node, kind in enumerate(self.kinds) if kind in kinds]

    @cached_property
    def users(self) -> list[list[tuple[int, int]]]:
        """For each node its users, as pairs of a node and the slot in which it reads."""
        users: list[list[tuple[int, int]]] = [[] for _ in self.kinds]
        for node, operands in enumerate(self.operands):
            for slot, operand in enumerate(operands):
                users[operand].append((node, slot))
        return users


class GraphBuilder:
    """Collects nodes, operands before users, and makes a graph of them.

    Args:
        name: Of the graph.
        read_origin: Makes an `Origin` of what `add` was given; called when somebody asks.
        read_name: Makes its scope and operation alone, if that is quicker.
        read_hints: Makes of all origins what `Graph.hints` returns, if that is quicker.
    """

    def __init__(
        self,
        name: str,
        read_origin: Callable[[Any], Origin] = _read_origin,
        read_name: Callable[[Any], tuple[str, str]] | None = None,
        read_hints: Callable[[list[Any]], list[str]] | None = None,
    ) -> None:
        self.name = name
        self.labels: list[Label] = []
        self.kinds: list[int] = []
        self.operands: list[tuple[int, ...]] = []
        # A number stands for a name that is `%` and the number.
        self.names: list[str | int] = []
        self.origins: list[Any] = []
        # See `Graph.ancestor_keys`; whoever fills it does so for each node.
        self.ancestor_keys: list[object] = []
        self.groups: dict[int, int] = {}
        self.numbers: dict[int, int] = {}
        self.holders: dict[int, str] = {}
        self._read_origin = read_origin
        self._read_name = read_name
        self._read_hints = read_hints
        self._kind_of: dict[Label, int] = {}

    def label(
        self,
        op: str,
        type: str,  # noqa: A002 - the word that every format uses
        attrs: str = "",
        literal: str = "",
    ) -> int:
        """Return the number of a label, for `add`."""
        label = Label(op, type, attrs, literal)
        kind = self._kind_of.get(label)
        if kind is None:
            kind = self._kind_of[label] = len(self.labels)
            self.labels.append(label)
        return kind

    def add(
        self,
        kind: int,
        operands: Sequence[int] = (),
        *,
        name: str = "",
        origin: Any = None,
        number: int | None = None,
        holder: str = "",
        group: int | None = None,
    ) -> int:
        """Add a node; return its id.

        Args:
            kind: What `label` returned.
            operands: Ids of earlier nodes.
            name: Its name; by default `%` and its id.
            origin: Where it came from, hashable.
            number: For an input, its number in the source.
            holder: What holds it, such as the name of a variable.
            group: Number of the group that it belongs to.

        Raises:
            HloError: An operand is no earlier node.
        """
        node = len(self.kinds)
        for operand in operands:
            if not 0 <= operand < node:
                raise HloError(
                    f"node {node} reads node {operand}, which does not precede it. A graph "
                    "lists operands before their users. Add the operand first."
                )
        self.kinds.append(kind)
        self.operands.append(tuple(operands))
        self.names.append(name or f"%{node}")
        self.origins.append(origin)
        if number is not None:
            self.numbers[node] = number
        if holder:
            self.holders[node] = holder
        if group is not None:
            self.groups[node] = group
        return node

    def add_result(
        self,
        whole: int,
        index: int,
        type_text: str,
        *,
        name: str = "",
        op: str = GETITEM,
    ) -> int:
        """Add one result of a node that has several, from where that came; return its id."""
        kind = self.label(op, type_text, f"index={index}")
        return self.add(kind, [whole], name=name, origin=self.origins[whole])

    def finish(
        self,
        outputs: Sequence[int],
        *,
        dead: Sequence[DeadNode] = (),
        source: Any = None,
        part: str = "",
    ) -> Graph:
        """Return the graph, without the nodes that no output needs.

        Args:
            outputs: Ids of the results, in order.
            dead: Further nodes that were left out, to be listed.
            source: See `Graph.source`.
            part: See `Graph.part`.
        """
        live = needed(self.operands, outputs)
        found = list(dead)
        if not all(live):
            found += self._drop(live)
            renumbered = _ranks(live)
            outputs = [renumbered[node] for node in outputs]
        return Graph(
            self.name,
            self.labels,
            self.kinds,
            self.operands,
            outputs,
            names=self.names,
            origins=self.origins,
            read_origin=self._read_origin,
            read_name=self._read_name,
            read_hints=self._read_hints,
            ancestor_keys=self.ancestor_keys or None,
            groups=self.groups,
            numbers=self.numbers,
            holders=self.holders,
            dead=found,
            source=source,
            part=part,
        )

    def _drop(self, live: bytearray) -> list[DeadNode]:
        dead = [
            dead_node(
                _shown_name(self.names[node]),
                self.labels[self.kinds[node]],
                self._read_origin(self.origins[node]),
                [self.labels[self.kinds[each]].type for each in self.operands[node]],
            )
            for node, is_live in enumerate(live)
            if not is_live
        ]
        rank = _ranks(live)
        kept = [node for node, is_live in enumerate(live) if is_live]
        self.kinds = [self.kinds[node] for node in kept]
        self.operands = [
            tuple([rank[operand] for operand in self.operands[node]]) for node in kept
        ]
        self.names = [self.names[node] for node in kept]
        self.origins = [self.origins[node] for node in kept]
        self.ancestor_keys = (
            [self.ancestor_keys[node] for node in kept] if self.ancestor_keys else []
        )
        self.groups = {rank[n]: g for n, g in self.groups.items() if live[n]}
        self.numbers = {rank[n]: k for n, k in self.numbers.items() if live[n]}
        self.holders = {rank[n]: h for n, h in self.holders.items() if live[n]}
        return dead


def _shown_name(name: str | int) -> str:
    return f"%{name}" if isinstance(name, int) else name


def hashed(text: str) -> str:
    """Return sixteen digits that stand for a text, behind a `#`."""
    data = text.encode("utf-8", "surrogatepass")
    return "#" + hashlib.blake2b(data, digest_size=8).hexdigest()


def needed(operands: Sequence[Sequence[int]], outputs: Sequence[int]) -> bytearray:
    """Return for each node whether some outputs need it; operands stand before their users."""
    live = bytearray(len(operands))
    for node in outputs:
        live[node] = 1
    last = max(outputs, default=-1)
    for node, row in zip(range(last, -1, -1), operands[last::-1], strict=False):
        if live[node]:
            for operand in row:
                live[operand] = 1
    return live


def _ranks(live: bytearray) -> list[int]:
    ranks, rank = [], 0
    for is_live in live:
        ranks.append(rank)
        rank += is_live
    return ranks


# No garbage collection while large graphs are built: a sixth of the time, and nothing to find.

# New objects that the collector may well walk through.
_MANY = 20_000
_P = ParamSpec("_P")
_R = TypeVar("_R")


def gc_paused(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function that runs with Python's cyclic garbage collector paused.

    Graphs of 40,000 nodes are hundreds of thousands of objects without a cycle among them, which
    the collector would walk again and again. It is switched on again in any case, unless the
    caller had it off. What was built counts as old then: else it would be walked at once, to
    find nothing. Garbage of the caller's is collected before, as it would have been.
    """

    @functools.wraps(function)
    def paused(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not gc.isenabled():
            return function(*args, **kwargs)
        gc.collect(1)
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            # Make old objects of many new ones, which takes no walk through them.
            if gc.get_count()[0] > _MANY and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()

    return paused
