"""The state of a matching: both graphs as columns, labels in several degrees, partners."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from itertools import chain, count
from typing import TYPE_CHECKING, TypeAlias

from lazygraph.graph import CONSTANT, Label

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lazygraph.graph import Graph

# Attributes of HLO and StableHLO that hold sizes or name what is called.
_SIZES = re.compile(
    r"(?:slice|padding|slice_sizes|window|dynamic_slice_sizes|sizes|calls|body|condition"
    r"|to_apply) ?= ?(?:\{[^{}]*\}|\[[^\[\]]*\]|[^,{}]*)|\[[\d:, ]*:[\d:, ]*\]"
)
_NUMBER = re.compile(r"\d+")


Numbers: TypeAlias = defaultdict[object, int]
"""Numbers things by first use, from 0 up."""


def numbers() -> Numbers:
    """Return a table that numbers what it is asked for, without a call of ours."""
    return defaultdict(count().__next__)


def blind_labels(a: Graph, b: Graph) -> tuple[list[int], list[int]]:
    """Return a number for each node that tells of what computes its result's type alone."""
    known = numbers()
    return _blind(a, known), _blind(b, known)


def _blind(graph: Graph, known: Numbers) -> list[int]:
    leaves = [known[label] for label in graph.labels]
    others = [known[label.type] for label in graph.labels]
    return [
        (others if operands else leaves)[kind]
        for kind, operands in zip(graph.kinds, graph.operands, strict=True)
    ]


def skeleton(label: Label) -> tuple[str, object, str]:
    """Return what is left of a label without sizes, dtypes and literals."""
    literal = "" if label.op == CONSTANT else label.literal
    # Attributes without names are the IR's arguments, in which any number may be a size.
    sizes = _SIZES if "=" in label.attrs else _NUMBER
    attrs = sizes.sub("", label.attrs)
    return label.op, _rank(label.type), f"{attrs}|{literal}"


def _rank(type_text: str) -> object:
    if type_text.startswith("("):
        return "tuple"
    sizes = type_text[type_text.find("[") + 1 : type_text.rfind("]")]
    return sizes.count(",") + 1 if sizes else 0


def _numbered(graph: Graph, things: Sequence[object], known: Numbers) -> list[int]:
    of_kind = [known[thing] for thing in things]
    return [of_kind[kind] for kind in graph.kinds]


UNPAIRED = -1
# Users of one node that are looked at. What everybody reads says little about who reads it.
_MAX_FAN_OUT = 256
_MAX_WITNESSES = 12
# Fewer pairs than one for so many unpaired nodes are looked at one by one.
_SPARSE = 8


class Side:
    """One graph with what matching knows of its nodes.

    `full` and `skeleton` are labels as numbers that both sides share, `partner` may be `UNPAIRED`,
    and `is_output` says how many of the outputs each node is.
    """

    __slots__ = (
        "_free", "full", "graph", "is_output", "operands", "partner", "skeleton", "users",
    )  # fmt: skip

    def __init__(self, graph: Graph, full: list[int], skeleton: list[int]) -> None:
        self.graph = graph
        self.operands = graph.operands
        self.users = graph.users
        self.full = full
        self.skeleton = skeleton
        self.partner = [UNPAIRED] * len(graph)
        self._free = list(range(len(graph)))
        self.is_output = bytearray(len(graph))
        for node in graph.outputs:
            self.is_output[node] = min(255, self.is_output[node] + 1)

    def unpaired(self) -> list[int]:
        """Return the nodes without a partner, operands first; before `refine` they get fewer."""
        partner = self.partner
        self._free = [node for node in self._free if partner[node] < 0]
        return self._free


class Matching:
    """A one-to-one assignment between the nodes of two graphs, and the leads to more of it.

    A lead is a pair of nodes that might belong together: operands in the same slot of a
    pair, or the only users of a pair that look alike. It becomes a pair unless a neighbour
    contradicts it: one that is paired elsewhere on both sides is a hard conflict, one that
    is paired on one side only a soft one, as where something was inserted between.
    """

    def __init__(self, a: Graph, b: Graph) -> None:
        full, plain = numbers(), numbers()
        self.a, self.b = (
            Side(
                each,
                _numbered(each, each.labels, full),
                _numbered(each, [skeleton(label) for label in each.labels], plain),
            )
            for each in (a, b)
        )
        self._equal_operands: deque[tuple[int, int]] = deque()
        self._equal_users: deque[tuple[int, int]] = deque()
        self._similar: deque[tuple[int, int]] = deque()
        self._fresh: deque[tuple[int, int]] = deque()
        self.pairs = 0
        # Pairs of which a slot does not read partners, once `refine` knows them all.
        self.rewired: list[tuple[int, int]] | None = None
        # Pairs that `bridge` has yet to look at.
        self.recent: list[tuple[int, int]] = []

    def evidence(self, x: int, y: int) -> tuple[int, int]:
        """Return what speaks for and against pairing x with y, in half points."""
        a, b = self.a, self.b
        partner_a, partner_b = a.partner, b.partner
        agree = conflict = 0
        for c, d in zip(a.operands[x], b.operands[y], strict=False):
            other = partner_a[c]
            if other >= 0:
                if other == d:
                    agree += 2
                else:
                    conflict += 2 if partner_b[d] >= 0 else 1
            elif partner_b[d] >= 0:
                conflict += 1
        witnesses = 0
        operands_b = b.operands
        for user, slot in a.users[x]:
            other = partner_a[user]
            if other < 0:
                continue
            row = operands_b[other]
            if slot < len(row):
                d = row[slot]
                if d == y:
                    agree += 2
                else:
                    conflict += 2 if partner_b[d] >= 0 else 1
            witnesses += 1
            if witnesses >= _MAX_WITNESSES:
                break
        if a.is_output[x] and b.is_output[y]:
            agree += 1
        return agree, conflict

    def is_free(self, x: int, y: int) -> bool:
        """Return whether neither node has a partner."""
        return self.a.partner[x] < 0 and self.b.partner[y] < 0

    def pair(self, x: int, y: int) -> None:
        """Make x and y partners, and note the leads that follow from it."""
        a, b = self.a, self.b
        a.partner[x], b.partner[y] = y, x
        self.pairs += 1
        self.recent.append((x, y))
        self.note_operands(x, y)
        self._fresh.append((x, y))

    def pair_all(self, found: Iterable[tuple[int, int]]) -> None:
        """Make many free nodes partners at once; the leads are up to the caller."""
        partner_a, partner_b = self.a.partner, self.b.partner
        before = len(partner_a) - partner_a.count(UNPAIRED)
        for x, y in found:
            partner_a[x], partner_b[y] = y, x
        self.pairs += len(partner_a) - partner_a.count(UNPAIRED) - before

    def note_frontier(self, found: Sequence[tuple[int, int]]) -> None:
        """Note the pairs among these that have unpaired neighbours on both sides."""
        partner = self.a.partner
        kept = [(x, y) for x, y in self.open_pairs(found) if partner[x] == y]
        self.recent += kept
        self._fresh += kept

    def open_pairs(self, found: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the pairs that have unpaired neighbours on both sides."""
        if len(found) * _SPARSE < len(self.a.partner) - self.pairs:
            a, b = self.a, self.b
            return [(x, y) for x, y in found if _is_open(a, x) and _is_open(b, y)]
        near_a, near_b = _near(self.a), _near(self.b)
        return [(x, y) for x, y in found if x in near_a and y in near_b]

    def note_operands(self, x: int, y: int) -> None:
        """Note what follows from a pair for its operands."""
        a, b = self.a, self.b
        partner_a, partner_b = a.partner, b.partner
        for c, d in zip(a.operands[x], b.operands[y], strict=False):
            if partner_a[c] < 0 and partner_b[d] < 0:
                if a.full[c] != b.full[d]:
                    if a.skeleton[c] == b.skeleton[d]:
                        self._similar.append((c, d))
                elif self._is_own_leaf(c, d):
                    partner_a[c], partner_b[d] = d, c
                    self.pairs += 1
                else:
                    self._equal_operands.append((c, d))

    def _is_own_leaf(self, x: int, y: int) -> bool:
        """Return whether two nodes read nothing and one node alone reads each of them.

        If those two are a pair nothing can speak against this one, and nothing follows from it.
        """
        a, b = self.a, self.b
        reads = a.operands[x] or b.operands[y]
        return not reads and len(a.users[x]) == 1 == len(b.users[y])

    def descend(self) -> None:
        """Pair what follows from operand slots alone."""
        leads, attempt = self._equal_operands, self._try
        while leads:
            attempt(*leads.popleft())

    def grow(self, *, similar: bool = False) -> None:
        """Follow all leads until none is left, to `similar` nodes of other sizes and dtypes too."""
        spread: list[tuple[int, int]] = []
        below, above, fresh = self._equal_operands, self._equal_users, self._fresh
        attempt, note_users = self._try, self._note_users
        while True:
            while below:
                attempt(*below.popleft())
            if above:
                attempt(*above.popleft())
            elif fresh:
                lead = fresh.popleft()
                note_users(*lead, similar=False)
                spread.append(lead)
            elif similar and self._similar:
                self._try(*self._similar.popleft())
            elif similar and spread:
                for x, y in self.open_pairs(spread):
                    self._note_users(x, y, similar=True)
                spread = []
            else:
                return

    def forget_leads(self) -> None:
        """Drop all leads and note them anew from the pairs, when labels have changed."""
        below, above = self._equal_operands, self._equal_users
        for leads in (below, above, self._similar, self._fresh):
            leads.clear()
        partner = self.a.partner
        for x in sorted(_near(self.a)):
            if partner[x] >= 0:
                self.note_operands(x, partner[x])
                self._fresh.append((x, partner[x]))

    def _try(self, x: int, y: int) -> None:
        """Pair x with y unless anything contradicts it; most of the time goes here."""
        a, b = self.a, self.b
        partner_a, partner_b = a.partner, b.partner
        if partner_a[x] >= 0 or partner_b[y] >= 0:
            return
        leads = False
        row_a, row_b = a.operands[x], b.operands[y]
        # Most read nothing but partners, which is soon said.
        if tuple(map(partner_a.__getitem__, row_a)) != row_b:
            for c, d in zip(row_a, row_b, strict=False):
                other = partner_a[c]
                if other != d:
                    if other >= 0 or partner_b[d] >= 0:
                        return
                    leads = True
        if self._readers_contradict(x, y):
            return
        partner_a[x], partner_b[y] = y, x
        self.pairs += 1
        pair = (x, y)
        self.recent.append(pair)
        self._fresh.append(pair)
        if leads:
            self.note_operands(x, y)

    def _readers_contradict(self, x: int, y: int) -> bool:
        """Return whether a pair that reads x reads another node than y."""
        partner, operands_b = self.a.partner, self.b.operands
        witnesses = 0
        for user, slot in self.a.users[x]:
            other = partner[user]
            if other >= 0:
                row = operands_b[other]
                if slot < len(row) and row[slot] != y:
                    return True
                witnesses += 1
                if witnesses >= _MAX_WITNESSES:
                    break
        return False

    def _note_users(self, x: int, y: int, *, similar: bool) -> None:
        a, b = self.a, self.b
        users_a, users_b = a.users[x], b.users[y]
        if len(users_a) > 1 or len(users_b) > 1:
            partner_a, partner_b = a.partner, b.partner
            users_a = [use for use in users_a if partner_a[use[0]] < 0]
            if not users_a:
                return
            users_b = [use for use in users_b if partner_b[use[0]] < 0]
        if not users_a or not users_b:
            return
        if len(users_a) > _MAX_FAN_OUT or len(users_b) > _MAX_FAN_OUT:
            return
        leads = self._similar if similar else self._equal_users
        labels = (a.skeleton, b.skeleton) if similar else (a.full, b.full)
        if len(users_a) == 1 == len(users_b):
            (user, slot), (other, other_slot) = users_a[0], users_b[0]
            if slot == other_slot and labels[0][user] == labels[1][other]:
                leads.append((user, other))
            return
        groups = _by_use(users_b, labels[1])
        for key, users in _by_use(users_a, labels[0]).items():
            others = groups.get(key)
            if others is None:
                continue
            if len(users) == 1 == len(others):
                leads.append((users[0], others[0]))


def _near(side: Side) -> set[int]:
    """Return the neighbours of unpaired nodes."""
    operands, users, nodes = side.operands, side.users, side.unpaired()
    near = {user for node in nodes for user, _ in users[node]}
    near.update(chain.from_iterable(map(operands.__getitem__, nodes)))
    return near


def _is_open(side: Side, node: int) -> bool:
    """Return whether a node has an unpaired neighbour."""
    partner = side.partner
    return any(partner[each] < 0 for each in side.operands[node]) or any(
        partner[user] < 0 for user, _ in side.users[node]
    )


def _by_use(
    uses: Sequence[tuple[int, int]], labels: list[int]
) -> dict[tuple[int, int], list[int]]:
    groups: dict[tuple[int, int], list[int]] = {}
    for user, slot in uses:
        groups.setdefault((labels[user], slot), []).append(user)
    return groups
