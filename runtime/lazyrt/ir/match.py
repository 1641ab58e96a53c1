"""Matching two snapshots: which vertex of one is which vertex of the other.

Tiers, from certain to likely: equal computations from equal inputs, bottom up; roots and
operands of the same name, top down; equal computations in other sizes; vertices that the same
module and line recorded; and vertices whose neighbours are matched already, by votes. Lines and
names are hints that break ties: a graph without them is matched by structure alone.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from lazyrt.ir.snapshot import Snapshot, Vertex

_ROUNDS = 6
# A vertex with more users than this gives no vote to them: a constant or a mask.
_MAX_FAN_OUT = 64
_NONE = -1
# Lists of sizes, and floats: the factor of a mean's gradient is 1/N.
_SIZES = re.compile(r"\[[^\]]*\]|-?\d+(?:\.\d*(?:e[+-]?\d+)?|e[+-]?\d+)")


@dataclass(frozen=True, slots=True)
class Match:
    """A partial one-to-one map between the vertices of two snapshots.

    Attributes:
        before, now: The snapshots.
        to_now: For each vertex of `before` its partner, -1 if it has none.
        to_before: The inverse.
    """

    before: Snapshot
    now: Snapshot
    to_now: tuple[int, ...]
    to_before: tuple[int, ...]

    @property
    def added(self) -> list[int]:
        """Vertices of `now` without a partner."""
        return [k for k, partner in enumerate(self.to_before) if partner < 0]

    @property
    def removed(self) -> list[int]:
        """Vertices of `before` without a partner."""
        return [k for k, partner in enumerate(self.to_now) if partner < 0]

    @property
    def changed(self) -> list[tuple[int, int]]:
        """Pairs (before, now) that compute something else on their operands."""
        before, now = self.before.vertices, self.now.vertices
        return [
            (partner, k)
            for k, partner in enumerate(self.to_before)
            if partner >= 0 and before[partner].label != now[k].label
        ]

    @property
    def rewired(self) -> list[tuple[int, int, int]]:
        """(before, now, slot) of each operand slot of a pair that reads something else."""
        before, now = self.before.vertices, self.now.vertices
        found = []
        for k, partner in enumerate(self.to_before):
            if partner < 0:
                continue
            ours, theirs = now[k].operands, before[partner].operands
            mapped = [(self.to_now[vertex], index) for vertex, index in theirs]
            found += [
                (partner, k, slot)
                for slot in range(max(len(ours), len(theirs)))
                if ours[slot : slot + 1] != tuple(mapped[slot : slot + 1])
            ]
        return found

    @property
    def cost(self) -> int:
        """Edits from one to the other: vertices, operand slots and outputs."""
        partners = {(self.to_now[vertex], index) for vertex, index in self.before.roots}
        outputs = len(partners ^ set(self.now.roots))
        vertices = len(self.added) + len(self.removed) + len(self.changed)
        return vertices + len(self.rewired) + outputs


def match(before: Snapshot, now: Snapshot) -> Match:
    """Return the likeliest correspondence of two graphs; O(edges) for each of few passes."""
    matcher = _Matcher(before, now)
    matcher.equal_computations()
    matcher.same_names()
    matcher.equal_but_for_sizes()
    matcher.by_neighbours(_exact)
    for key in (_exact_origin, _origin, _exact_scope):
        matcher.by_neighbours(key)  # casts on one line are told apart by what they cast
        matcher.by_key(key)
        matcher.by_neighbours(_exact)
    matcher.by_neighbours(_same_op)
    matcher.by_key(_scope)
    matcher.equal_outlines()
    matcher.by_neighbours(_same_op)
    matcher.in_order()
    return Match(before, now, tuple(matcher.to_now), tuple(matcher.to_before))


def _exact(vertex: Vertex) -> Hashable:
    return vertex.label


def _same_op(vertex: Vertex) -> Hashable:
    return (vertex.op, len(vertex.types))


def _origin(vertex: Vertex) -> Hashable:
    site = vertex.site
    if vertex.is_leaf or site is None:
        return None
    return (vertex.op, vertex.scope, vertex.backward, site.function, site.line)


def _exact_origin(vertex: Vertex) -> Hashable:
    origin = _origin(vertex)
    return None if origin is None else (origin, vertex.attrs, vertex.types)


def _scope(vertex: Vertex) -> Hashable:
    if vertex.is_leaf or not vertex.scope:
        return None
    return (vertex.op, vertex.scope, vertex.backward)


def _exact_scope(vertex: Vertex) -> Hashable:
    scope = _scope(vertex)
    return None if scope is None else (scope, vertex.attrs, vertex.types)


class _Matcher:
    """The growing map; each method adds pairs and never takes one back."""

    def __init__(self, before: Snapshot, now: Snapshot) -> None:
        self.before, self.now = before, now
        self.to_now = [_NONE] * len(before.vertices)
        self.to_before = [_NONE] * len(now.vertices)
        self._users_before, self._users_now = before.users(), now.users()
        self._lasting = (_lasting(before, now), _lasting(now, before))

    def pair(self, one: int, other: int) -> bool:
        """Match two vertices if both are free, and no parameter says that they are not one."""
        if self.to_now[one] >= 0 or self.to_before[other] >= 0:
            return False
        if self._conflicts(one, other):
            return False
        self.to_now[one], self.to_before[other] = other, one
        return True

    def _conflicts(self, one: int, other: int) -> bool:
        """Return whether two vertices are a parameter that stays and one that is new.

        What two modules do with them conflicts, too. One module may read another parameter.
        """
        ours, theirs = self.now.vertices[other], self.before.vertices[one]
        operands = zip(theirs.operands, ours.operands, strict=False)
        pairs = [(one, other), *((a, b) for (a, _), (b, _) in operands)]
        if self._differ_in_sort(one, other) or any(self._are_two(*p) for p in pairs):
            return True
        if not ours.is_leaf and ours.scope == theirs.scope:
            return False
        return any(self._differ(a, b) for a, b in pairs)

    def _differ_in_sort(self, one: int, other: int) -> bool:
        """Return whether two inputs are a parameter and what an optimizer keeps of one."""
        sorts = {
            "module" if name.in_module else name.holder
            for name in (
                self.before.leaf_names.get(one),
                self.now.leaf_names.get(other),
            )
            if name is not None
        }
        return len(sorts & {"module", "optimizer", "gradient"}) > 1

    def _are_two(self, one: int, other: int) -> bool:
        """Return whether two vertices are two parameters that both programs have."""
        stays, was = self._lasting[0].get(one), self._lasting[1].get(other)
        if stays is None or was is None:
            return False
        return stays[0] and was[0] and stays[1] != was[1]

    def _differ(self, one: int, other: int) -> bool:
        stays, was = self._lasting[0].get(one), self._lasting[1].get(other)
        return stays is not None and was is not None and stays[0] != was[0]

    def equal_computations(self) -> None:
        """Match what computes the same from inputs of the same name and type."""
        shared = {name.text for name in self.before.leaf_names.values()} & {
            name.text for name in self.now.leaf_names.values()
        }
        table: dict[Any, int] = {}
        ours = _classes(self.now, shared, table)
        theirs = _classes(self.before, shared, table)
        # Unnamed inputs of one type are told apart by what reads them, later.
        skip = {ours[k] for k, v in enumerate(self.now.vertices) if v.is_leaf} - {
            theirs[k] for k in self.before.leaf_names
        }
        self._zip(theirs, ours, skip)

    def equal_outlines(self) -> None:
        """Match what is left and applies the same ops in the same way, types aside."""
        table: dict[Any, int] = {}
        ours, theirs = _outlines(self.now, table), _outlines(self.before, table)
        self._zip_free(theirs, ours)

    def equal_but_for_sizes(self) -> None:
        """Match what computes the same from inputs of the same name, in whatever sizes.

        A batch of another size changes the types of most vertices and the program of none.
        """
        table: dict[Any, int] = {}
        ours = _sizeless(self.now, table)
        theirs = _sizeless(self.before, table)
        self._zip_free(theirs, ours)

    def same_names(self) -> None:
        """Match roots of the same name, and inputs of the same name."""
        roots = {
            name.text: self.before.roots[k][0]
            for k, name in self.before.root_names.items()
        }
        for k, name in self.now.root_names.items():
            one, other = roots.get(name.text), self.now.roots[k][0]
            if one is not None and self._same_op(one, other):
                self.pair(one, other)
        leaves = {name.text: k for k, name in self.before.leaf_names.items()}
        for k, name in self.now.leaf_names.items():
            if name.text in leaves:
                self.pair(leaves[name.text], k)

    def by_key(self, key: Callable[[Vertex], Hashable]) -> None:
        """Match free vertices of equal keys where both sides have as many of them."""
        groups = self._free_groups(self.before, self.to_now, key)
        for found, others in self._free_groups(self.now, self.to_before, key).items():
            ones = groups.get(found, [])
            if len(ones) == len(others):
                for one, other in zip(ones, others, strict=True):
                    self.pair(one, other)

    def by_neighbours(self, key: Callable[[Vertex], Hashable]) -> None:
        """Match free vertices of equal keys that have most matched neighbours in common."""
        for number in range(_ROUNDS):
            free = [k for k, partner in enumerate(self.to_before) if partner < 0]
            if number % 2:
                free.reverse()
            if not sum([self._vote(other, key) for other in free]):
                return

    def in_order(self) -> None:
        """Match what is left of each kind of input, where both sides have as many."""
        self.by_key(lambda vertex: vertex.label if vertex.is_leaf else None)
        self.by_key(lambda vertex: _data_sizes(vertex) if vertex.op == "data" else None)

    def _vote(self, other: int, key: Callable[[Vertex], Hashable]) -> bool:
        votes: Counter[int] = Counter()
        vertex = self.now.vertices[other]
        wanted = key(vertex)
        if wanted is None:
            return False
        for slot, (operand, index) in enumerate(vertex.operands):
            partner = self.to_before[operand]
            if partner < 0 or len(self._users_before[partner]) > _MAX_FAN_OUT:
                continue
            for user, place in self._users_before[partner]:
                if place == slot and self.to_now[user] < 0:
                    same = self.before.vertices[user].operands[slot][1] == index
                    votes[user] += 2 if same else 1
        for user, slot in self._users_now[other][:_MAX_FAN_OUT]:
            partner = self.to_before[user]
            operands = self.before.vertices[partner].operands if partner >= 0 else ()
            if slot < len(operands) and self.to_now[operands[slot][0]] < 0:
                votes[operands[slot][0]] += 2
        best = self._best(votes, wanted, key, vertex)
        return best is not None and self.pair(best, other)

    def _best(
        self,
        votes: Counter[int],
        wanted: Hashable,
        key: Callable[[Vertex], Hashable],
        vertex: Vertex,
    ) -> int | None:
        candidates = [
            (count, self._alike(one, vertex), -one)
            for one, count in votes.items()
            if key(self.before.vertices[one]) == wanted
        ]
        return -max(candidates)[2] if candidates else None

    def _alike(self, one: int, vertex: Vertex) -> int:
        """Return how many hints two vertices share."""
        found = self.before.vertices[one]
        return (
            (found.scope == vertex.scope)
            + (found.backward == vertex.backward)
            + (found.attrs == vertex.attrs)
            + (found.types == vertex.types)
            + (_origin(found) == _origin(vertex))
        )

    def _same_op(self, one: int, other: int) -> bool:
        return self.before.vertices[one].op == self.now.vertices[other].op

    def _zip(self, theirs: list[int], ours: list[int], skip: set[int]) -> None:
        groups: dict[int, list[int]] = defaultdict(list)
        for one, found in enumerate(theirs):
            groups[found].append(one)
        others: dict[int, list[int]] = defaultdict(list)
        for other, found in enumerate(ours):
            others[found].append(other)
        for found, members in others.items():
            ones = groups.get(found, [])
            if found not in skip and len(ones) == len(members):
                for one, other in zip(ones, members, strict=True):
                    self.pair(one, other)

    def _zip_free(self, theirs: list[int], ours: list[int]) -> None:
        """Match free vertices of equal numbers that are no inputs."""
        leaves = {ours[k] for k, v in enumerate(self.now.vertices) if v.is_leaf}
        free_ours = [-1 if self.to_before[k] >= 0 else n for k, n in enumerate(ours)]
        free_theirs = [-1 if self.to_now[k] >= 0 else n for k, n in enumerate(theirs)]
        self._zip(free_theirs, free_ours, leaves | {-1})

    @staticmethod
    def _free_groups(
        snapshot: Snapshot, partners: list[int], key: Callable[[Vertex], Hashable]
    ) -> dict[Hashable, list[int]]:
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for k, partner in enumerate(partners):
            found = key(snapshot.vertices[k]) if partner < 0 else None
            if found is not None:
                groups[found].append(k)
        return groups


def _data_sizes(vertex: Vertex) -> str:
    """Return the sizes of an input without its dtype."""
    return vertex.types[0].partition("[")[2]


def _lasting(snapshot: Snapshot, other: Snapshot) -> dict[int, tuple[bool, str]]:
    """Return for parameters, and views of them, whether the other side's program has them too.

    Each comes with its name.
    """
    found = {
        leaf: (name.text in other.modules, name.text)
        for leaf, name in snapshot.leaf_names.items()
        if name.in_module
    }
    if not other.modules:
        return {}
    for k, vertex in enumerate(snapshot.vertices):
        if len(vertex.operands) == 1 and vertex.operands[0][0] in found:
            found[k] = found[vertex.operands[0][0]]
    return found


def _classes(snapshot: Snapshot, names: set[str], table: dict[Any, int]) -> list[int]:
    """Number the vertices so that equal computations from equal inputs share a number."""
    classes: list[int] = []
    for k, vertex in enumerate(snapshot.vertices):
        name = snapshot.leaf_names.get(k)
        known = name.text if name is not None and name.text in names else ""
        operands = tuple((classes[one], index) for one, index in vertex.operands)
        key = (vertex.label, known, operands)
        classes.append(table.setdefault(key, len(table)))
    return classes


def _sizeless(snapshot: Snapshot, table: dict[Any, int]) -> list[int]:
    """Number the vertices so that computations that differ in sizes alone share a number."""
    classes: list[int] = []
    for k, vertex in enumerate(snapshot.vertices):
        name = snapshot.leaf_names.get(k)
        known = name.text if name is not None else ""
        attrs = tuple(_SIZES.sub("#", attr) for attr in vertex.attrs)
        operands = tuple((classes[one], index) for one, index in vertex.operands)
        key = (vertex.op, attrs, known, operands)
        classes.append(table.setdefault(key, len(table)))
    return classes


def _outlines(snapshot: Snapshot, table: dict[Any, int]) -> list[int]:
    """Number the vertices so that equal ops on equally made operands share a number."""
    outlines: list[int] = []
    for vertex in snapshot.vertices:
        operands = tuple((outlines[one], index) for one, index in vertex.operands)
        outlines.append(table.setdefault((vertex.op, operands), len(table)))
    return outlines


_AT_CONSTANTS = {
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
        (_AT_CONSTANTS.get(vertex.op, vertex.op), vertex.types)
        for vertex in snapshot.vertices
        if not vertex.is_leaf
    )


def shared(one: Counter[Any], other: Counter[Any]) -> int:
    """Return how many entries two multisets have in common."""
    small, large = sorted((one, other), key=len)
    return sum(min(count, large[key]) for key, count in small.items())


def cone(
    snapshot: Snapshot, roots: Iterable[int], inside: Callable[[int], bool]
) -> set[int]:
    """Return the vertices that `roots` need and for which `inside` holds, roots included."""
    seen: set[int] = set()
    stack = [root for root in roots if inside(root)]
    while stack:
        vertex = stack.pop()
        if vertex in seen:
            continue
        seen.add(vertex)
        stack.extend(
            operand
            for operand, _ in snapshot.vertices[vertex].operands
            if operand not in seen and inside(operand)
        )
    return seen
