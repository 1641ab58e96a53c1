"""Two graphs that ran one after the other, as the one graph that they are without their cut.

What differs between two programs besides the place of a cut is found by comparing them without it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from lazyrt.execution.why.cuts import is_of_program
from lazyrt.execution.why.edits import is_kept, is_view
from lazyrt.execution.why.updates import OF_OPTIMIZERS, stale_gradients
from lazyrt.ir.match import labels
from lazyrt.ir.snapshot import Snapshot

if TYPE_CHECKING:
    from lazyrt.execution.census import CompiledGraph
    from lazyrt.ir.snapshot import Name, Origin, Vertex

_FIRST, _SECOND = 0, 1


class Joined(NamedTuple):
    """A graph, or two as one.

    Attributes:
        record: What the compared side is, with its snapshot.
        parts: For each vertex of it, 0 if the first graph has it and 1 if the second; of a
            single graph all are 1.
        first: The record of the graph that ran first, or of the only one.
        alive: What either graph has for a result, also where only the cut kept it.
    """

    record: CompiledGraph
    parts: tuple[int, ...]
    first: CompiledGraph
    alive: frozenset[tuple[int, int]]


def alone(record: CompiledGraph) -> Joined:
    """Return a single graph in the same form."""
    snapshot = record.snapshot
    assert snapshot is not None
    parts = (_SECOND,) * len(snapshot.vertices)
    return Joined(record, parts, record, frozenset(snapshot.roots))


def goes_on(now: CompiledGraph, previous: CompiledGraph) -> bool:
    """Return whether a graph reads what the one before left half done: no parameter, no state."""
    snapshot = now.snapshot
    if snapshot is None or previous.labels is None or previous.snapshot is None:
        return False
    names = snapshot.leaf_names
    stale = stale_gradients(snapshot)
    return any(
        origin.graph == previous.name
        and leaf not in stale
        and not origin.op.startswith(OF_OPTIMIZERS)
        and not (
            leaf in names
            and (names[leaf].in_module or names[leaf].holder == "optimizer")
        )
        for leaf, origin in snapshot.origins.items()
    )


def follows(second: CompiledGraph, first: CompiledGraph) -> bool:
    """Return whether a graph that ran after another may have read results of it.

    Where its inputs came from is known of its first run alone; of later ones, types tell.
    """
    if goes_on(second, first):
        return True
    one, other = first.snapshot, second.snapshot
    is_known = second.runs < 2  # noqa: PLR2004 - it ran after no other graph
    if is_known or one is None or other is None:
        return False
    return bool(_guessed(one, other))


def joined(first: CompiledGraph, second: CompiledGraph) -> Joined:
    """Return two graphs as one: what the second reads of the first is no input any more.

    Args:
        first: A graph with its snapshot.
        second: The one that ran after it and goes on with its results.
    """
    one, other = first.snapshot, second.snapshot
    assert one is not None
    assert other is not None
    handed = _handed_on(one, other, first.name)
    if (
        second is first
    ):  # in its second run it read other parameters than in its first one
        other = dataclasses.replace(other, leaf_names={}, origins={})
    splice = _Splice(one, other, handed)
    snapshot = splice.snapshot()
    record = dataclasses.replace(
        second,
        key=dataclasses.replace(
            second.key,
            fingerprint=f"{first.fingerprint}+{second.fingerprint}",
            began_after=first.key.began_after,
            mode=second.key.mode if second.key.mode != "lazy" else first.key.mode,
            fallbacks=(*first.key.fallbacks, *second.key.fallbacks),
        ),
        nodes=snapshot.nodes,
        inputs=len(snapshot.vertices) - snapshot.nodes,
        outputs=len(snapshot.roots),
        snapshot=snapshot,
        lines=(first.lines[0], second.lines[1]),
        labels=labels(snapshot),
        canonical=None,
    )
    return Joined(record, tuple(splice.parts), first, splice.alive())


class _Splice:
    """The vertices of both graphs under one numbering: leaves, then nodes, operands first."""

    def __init__(
        self, one: Snapshot, other: Snapshot, handed: dict[int, tuple[int, int]]
    ) -> None:
        self.one, self.other = one, other
        self.vertices: list[Vertex] = []
        self.parts: list[int] = []
        self._known: dict[Vertex, int] = {}
        # Of the second graph: what follows from inputs that may be two although they have one
        # name. A result of the first graph is what the first one made of its own.
        self._doubtful: set[int] = set()
        self.of_one: dict[int, tuple[int, int | None]] = {}
        self.of_other: dict[int, tuple[int, int | None]] = {}
        shared = _shared_leaves(one, other, handed)
        self._add(one, self.of_one, _FIRST, leaves=True)
        for leaf, twin in shared.items():
            if one.vertices[twin].is_leaf:
                self.of_other[leaf] = self.of_one[twin]
                if not _is_the_same(other, leaf):
                    self._doubtful.add(leaf)
        self._add(other, self.of_other, _SECOND, leaves=True, skip={*handed})
        self._add(one, self.of_one, _FIRST, leaves=False)
        for leaf, (vertex, index) in handed.items():
            self.of_other[leaf] = (self.of_one[vertex][0], index)
        self._add(other, self.of_other, _SECOND, leaves=False)

    def _add(
        self,
        side: Snapshot,
        numbers: dict[int, tuple[int, int | None]],
        part: int,
        *,
        leaves: bool,
        skip: frozenset[int] | set[int] = frozenset(),
    ) -> None:
        for k, vertex in enumerate(side.vertices):
            if vertex.is_leaf != leaves or k in numbers or k in skip:
                continue
            operands = tuple(_moved(numbers, each) for each in vertex.operands)
            placed = vertex._replace(operands=operands)
            if side is self.other and not self._doubtful.isdisjoint(
                operand for operand, _ in vertex.operands
            ):
                self._doubtful.add(k)
            is_sure = k not in self._doubtful or is_view(vertex)
            twin = self._twin(placed, side) if is_sure else -1
            numbers[k] = (twin, None)
            if twin < 0:
                numbers[k] = (len(self.vertices), None)
                self.vertices.append(placed)
                self.parts.append(part)

    def _twin(self, placed: Vertex, side: Snapshot) -> int:
        """Return what computes the same already, as one graph would have it once; else -1."""
        if placed.is_leaf or placed.op in side.random:  # each draw is another one
            return -1
        key = placed._replace(site=None, scope="", backward=False)
        found = self._known.get(key, -1)
        if found < 0:
            self._known[key] = len(self.vertices)
        return found

    def alive(self) -> frozenset[tuple[int, int]]:
        """Return the results of both graphs."""
        sides = ((self.one, self.of_one), (self.other, self.of_other))
        return frozenset(
            _moved(numbers, root) for side, numbers in sides for root in side.roots
        )

    def snapshot(self) -> Snapshot:
        """Return the graph; values that only the cut kept alive are no results of it."""
        roots: list[tuple[int, int]] = []
        names: dict[int, Name] = {}
        later = {name.text for name in self.other.root_names.values()}
        read = {operand for vertex in self.vertices for operand, _ in vertex.operands}
        for side, numbers in ((self.one, self.of_one), (self.other, self.of_other)):
            for k, root in enumerate(side.roots):
                vertex, index = _moved(numbers, root)
                name = side.root_names.get(k)
                if side is self.one and (
                    (name is not None and name.text in later)
                    or (vertex in read and not _is_wanted(name))
                ):
                    continue
                if (vertex, index) in roots:
                    continue
                if name is not None:
                    names[len(roots)] = name
                roots.append((vertex, index))
        leaf_names: dict[int, Name] = {}
        origins: dict[int, Origin] = {}
        # Each graph may have been ended in another function, by whose names it knows the model.
        for side, numbers in ((self.one, self.of_one), (self.other, self.of_other)):
            for leaf, leaf_name in side.leaf_names.items():
                if self.vertices[numbers[leaf][0]].is_leaf:
                    leaf_names[numbers[leaf][0]] = leaf_name
        for side, numbers in ((self.other, self.of_other), (self.one, self.of_one)):
            for leaf, origin in side.origins.items():
                if self.vertices[numbers[leaf][0]].is_leaf:
                    origins[numbers[leaf][0]] = origin
        return Snapshot(
            f"{self.one.fingerprint}+{self.other.fingerprint}",
            tuple(self.vertices),
            tuple(roots),
            leaf_names,
            names,
            origins,
            self.one.random | self.other.random,
            self.one.modules | self.other.modules,
        )


def _is_wanted(name: Name | None) -> bool:
    """Return whether a result that the second graph reads is one of both all the same."""
    return is_kept(name) or (name is not None and name.in_module)


def _moved(
    numbers: dict[int, tuple[int, int | None]], reference: tuple[int, int]
) -> tuple[int, int]:
    vertex, index = numbers[reference[0]]
    return vertex, reference[1] if index is None else index


def _handed_on(one: Snapshot, other: Snapshot, name: str) -> dict[int, tuple[int, int]]:
    """Return for inputs of the second graph the result of the first that they are."""
    known = {
        leaf: one.roots[origin.output]
        for leaf, origin in other.origins.items()
        if origin.graph == name and 0 <= origin.output < len(one.roots)
    }
    return known or _guessed(one, other)


def _guessed(one: Snapshot, other: Snapshot) -> dict[int, tuple[int, int]]:
    """Return the one input, no parameter, that has the type of the one result that it may be."""
    leaves = [
        k
        for k, vertex in enumerate(other.vertices)
        if vertex.op == "data" and not is_of_program(other.leaf_names.get(k))
    ]
    if len(leaves) != 1:
        return {}
    (wanted,) = other.vertices[leaves[0]].types
    roots = {
        k: root
        for k, root in enumerate(one.roots)
        if not is_of_program(one.root_names.get(k))
        and one.vertices[root[0]].types[root[1]] == wanted
    }
    if len(roots) > 1:  # what only backward needs has no name
        roots = {k: root for k, root in roots.items() if k in one.root_names}
    return {leaves[0]: next(iter(roots.values()))} if len(roots) == 1 else {}


def _shared_leaves(
    one: Snapshot, other: Snapshot, handed: dict[int, tuple[int, int]]
) -> dict[int, int]:
    """Return which inputs of the second graph are inputs of the first, by name or by origin."""
    table: dict[object, int] = {}
    for leaf, vertex in enumerate(one.vertices):
        for key in _identities(one, leaf, vertex):
            table.setdefault(key, leaf)
    found = {}
    for leaf, vertex in enumerate(other.vertices):
        keys = () if leaf in handed else _identities(other, leaf, vertex)
        twin = next((table[key] for key in keys if key in table), None)
        if twin is not None:
            found[leaf] = twin
    return found


def _is_the_same(snapshot: Snapshot, leaf: int) -> bool:
    """Return whether an input is what has its name in the graph before: no other batch."""
    origin = snapshot.origins.get(leaf)
    return is_of_program(snapshot.leaf_names.get(leaf)) or (
        origin is not None and bool(origin.graph)
    )


def _identities(snapshot: Snapshot, leaf: int, vertex: Vertex) -> list[object]:
    if vertex.op != "data":
        return []
    name, origin = snapshot.leaf_names.get(leaf), snapshot.origins.get(leaf)
    found: list[object] = []
    if origin is not None and origin.graph:
        found.append((origin.step, origin.graph, origin.output))
    if name is not None:
        found.append((name.text, vertex.types))
    return found
