"""What differs between two graphs, and at what cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from lazygraph.collecting import uncollected
from lazygraph.matching import match

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazygraph.edits import Edit
    from lazygraph.graph import DeadNode, Graph
    from lazygraph.hunks import Hunk


class Rewire(NamedTuple):
    """An operand slot of a pair that reads another node, or that one side lacks.

    Attributes:
        a, b: The pair.
        slot: Position among the operands.
    """

    a: int
    b: int
    slot: int


@dataclass(frozen=True, slots=True)
class Outputs:
    """How the outputs differ as a multiset of nodes; their order makes no difference.

    Attributes:
        added: Nodes of b that are outputs there only, once for each time.
        removed: Nodes of a that are outputs there only, once for each time.
    """

    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Regrouped:
    """Members of groups, such as coalesced collectives, that are grouped in another way.

    Attributes:
        pairs: The members on both sides that have other companions than before.
        sizes_a, sizes_b: How many members the concerned groups have.
    """

    pairs: tuple[tuple[int, int], ...] = ()
    sizes_a: tuple[int, ...] = ()
    sizes_b: tuple[int, ...] = ()


class GraphDiff:
    """The difference of two graphs: an assignment of their nodes, and what it leaves over.

    Node ids of `a` and of `b` are positions in `a` and `b`.

    Attributes:
        a, b: The graphs.
        partner_a: For each node of a its partner in b, -1 if it was removed.
        partner_b: For each node of b its partner in a, -1 if it was added.
    """

    def __init__(
        self,
        a: Graph,
        b: Graph,
        partner_a: list[int],
        partner_b: list[int],
        suspects: list[tuple[int, int]] | None = None,
    ) -> None:
        self.a = a
        self.b = b
        self.partner_a = partner_a
        self.partner_b = partner_b
        # The only pairs that may be rewired; None where that is not known.
        self._suspects = suspects

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Nodes of a with their partners in b."""
        return [(x, y) for x, y in enumerate(self.partner_a) if y >= 0]

    @cached_property
    def added(self) -> list[int]:
        """Nodes of b without a partner."""
        return [y for y, x in enumerate(self.partner_b) if x < 0]

    @cached_property
    def removed(self) -> list[int]:
        """Nodes of a without a partner."""
        return [x for x, y in enumerate(self.partner_a) if y < 0]

    @cached_property
    def changed(self) -> list[tuple[int, int]]:
        """Pairs whose labels differ: another shape, dtype, literal, attribute or op."""
        numbers = {label: number for number, label in enumerate(self.b.labels)}
        number_of = [numbers.get(label, -1) for label in self.a.labels]
        same_as = [numbers[label] for label in self.b.labels]
        kinds_a, kinds_b = self.a.kinds, self.b.kinds
        return [
            (x, y)
            for x, y in self.pairs
            if number_of[kinds_a[x]] != same_as[kinds_b[y]]
        ]

    @cached_property
    def rewired(self) -> list[Rewire]:
        """Operand slots of pairs that do not read partners."""
        found = []
        partner, partner_of = self.partner_a, self.partner_a.__getitem__
        operands_a, operands_b = self.a.operands, self.b.operands
        for x, y in self.pairs if self._suspects is None else self._suspects:
            row_a, row_b = operands_a[x], operands_b[y]
            if tuple(map(partner_of, row_a)) == row_b:
                continue
            if len(row_a) == len(row_b):
                for slot, operand in enumerate(row_a):
                    if partner[operand] != row_b[slot]:
                        found.append(Rewire(x, y, slot))
                continue
            for slot in range(max(len(row_a), len(row_b))):
                shared = slot < len(row_a) and slot < len(row_b)
                if not shared or partner[row_a[slot]] != row_b[slot]:
                    found.append(Rewire(x, y, slot))
        return found

    @cached_property
    def outputs(self) -> Outputs:
        """Outputs that only one side has."""
        partner_a, partner_b = self.partner_a, self.partner_b
        mine: Counter[int] = Counter(partner_a[x] for x in self.a.outputs)
        theirs: Counter[int] = Counter(self.b.outputs)
        added = [y for y, n in theirs.items() for _ in range(n - mine.get(y, 0))]
        removed = [x for x in dict.fromkeys(self.a.outputs) if partner_a[x] < 0]
        counts = Counter(self.a.outputs)
        gone = [x for x in removed for _ in range(counts[x])]
        for y, n in mine.items():
            if y >= 0:
                gone += [partner_b[y]] * (n - theirs.get(y, 0))
        return Outputs(tuple(added), tuple(gone))

    @property
    def cost(self) -> int:
        """Length of the edit script: 1 for each node added, removed or changed, for each
        rewired operand slot, and for each output added or removed.
        """  # noqa: D205
        return (
            len(self.added)
            + len(self.removed)
            + len(self.changed)
            + len(self.rewired)
            + len(self.outputs.added)
            + len(self.outputs.removed)
        )

    @property
    def is_empty(self) -> bool:
        """Whether the graphs compute the same in the same way."""
        return self.cost == 0 and not self.regrouped.pairs

    @cached_property
    def regrouped(self) -> Regrouped:
        """Pairs whose groups do not correspond; they cost nothing."""
        return _regrouped(self)

    @property
    def dead(self) -> tuple[Sequence[DeadNode], Sequence[DeadNode]]:
        """What no output needs, on either side. It cannot matter and costs nothing."""
        return self.a.dead, self.b.dead

    @cached_property
    def moved_parameters(self) -> list[tuple[int, int]]:
        """Pairs of parameters that have another number on the other side."""
        numbers_a, numbers_b = self.a.numbers, self.b.numbers
        return [
            (x, self.partner_a[x])
            for x in self.a.inputs
            if self.partner_a[x] >= 0
            and numbers_a.get(x) != numbers_b.get(self.partner_a[x])
        ]

    @uncollected
    def hunks(self) -> list[Hunk]:
        """Return the edits in connected places, the largest first."""
        return self._hunks

    @cached_property
    def _hunks(self) -> list[Hunk]:
        from lazygraph.hunks import hunks_of

        return hunks_of(self)

    def script(self) -> list[Edit]:
        """Return the edits that make `b` of `a`; as many as the cost says."""
        from lazygraph.edits import script

        return script(self)

    def __repr__(self) -> str:
        return (
            f"<GraphDiff {self.a.name} -> {self.b.name}: cost {self.cost}, "
            f"+{len(self.added)} -{len(self.removed)} ~{len(self.changed)}, "
            f"{len(self.rewired)} rewired>"
        )


@uncollected
def diff(a: Graph | Any, b: Graph | Any) -> GraphDiff:
    """Return the difference between two graphs.

    It does not depend on which of them comes first: `diff(b, a)` is the mirror image.

    Args:
        a: A graph, or what `graph_of` makes one of: a text, a path, a graph of the runtime.
        b: Likewise.

    Raises:
        HloError: One of them holds no graph.
    """
    from lazygraph.load import graph_of

    a, b = graph_of(a), graph_of(b)
    if _order_key(b) < _order_key(a):
        other = match(b, a)
        rewired = other.rewired
        suspects = None if rewired is None else sorted([(y, x) for x, y in rewired])
        return GraphDiff(a, b, other.b.partner, other.a.partner, suspects)
    found = match(a, b)
    return GraphDiff(a, b, found.a.partner, found.b.partner, found.rewired)


def _order_key(graph: Graph) -> tuple[object, ...]:
    """Return something that orders graphs by what they are, the smaller ones first."""
    return len(graph), graph.labels, graph.kinds, graph.operands


def _regrouped(found: GraphDiff) -> Regrouped:
    groups_a, groups_b = found.a.groups, found.b.groups
    if not groups_a and not groups_b:
        return Regrouped()
    companions_a = _companions(groups_a, found.partner_a)
    companions_b = _companions(groups_b, list(range(len(found.b))))
    pairs = tuple(
        (x, y)
        for x, y in found.pairs
        if (x in groups_a or y in groups_b)
        and companions_a.get(groups_a.get(x, -1))
        != companions_b.get(groups_b.get(y, -1))
    )
    return Regrouped(
        pairs,
        _sizes(groups_a, [x for x, _ in pairs]),
        _sizes(groups_b, [y for _, y in pairs]),
    )


def _companions(groups: dict[int, int], image: list[int]) -> dict[int, frozenset[int]]:
    members: dict[int, set[int]] = {}
    for node, group in groups.items():
        members.setdefault(group, set()).add(image[node])
    return {group: frozenset(nodes) for group, nodes in members.items()}


def _sizes(groups: dict[int, int], nodes: Sequence[int]) -> tuple[int, ...]:
    concerned = dict.fromkeys(groups[node] for node in nodes if node in groups)
    counts = Counter(groups.values())
    return tuple(counts[group] for group in concerned)
