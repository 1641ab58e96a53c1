"""Local search: exchange partners, or part them, where that makes the edit script shorter."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from lazygraph.matching.conflicts import disputed
from lazygraph.matching.residual import may_change_into
from lazygraph.matching.state import UNPAIRED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lazygraph.matching.state import Matching

_MAX_PASSES = 4
_MAX_USERS = 64
# Exchanges tried in one chain, and in all: then the graphs are too different for this.
_MAX_CHAIN = 10
_MAX_EXCHANGES = 5_000
# Graphs of so many nodes are so ambiguous, and so cheap, that all pairs are tried.
_TINY = 48


class _Exchange(NamedTuple):
    """What undoes an exchange: two nodes that became partners, and their former ones."""

    x: int
    y: int
    old_x: int
    old_y: int


def refine(matching: Matching) -> None:
    """Improve the assignment until no chain of exchanges makes the script shorter."""
    search = _Search(matching)
    matching.rewired = None
    edited = search.edited()
    for _ in range(_MAX_PASSES):
        improved = False
        matching.rewired = edited
        for x, y in list(search.suspects(edited)):
            improved |= search.chain(x, y)
            if search.exchanges > _MAX_EXCHANGES:
                matching.rewired = None
                return
        for x, y in edited:
            if matching.a.partner[x] == y and search.pair_cost(x) > 1:
                improved |= search.part(x, y)
        if not improved:
            return
        edited = search.still_edited(edited)
    matching.rewired = None


class _Search:
    def __init__(self, matching: Matching) -> None:
        self._matching = matching
        self._a = matching.a
        self._b = matching.b
        self.exchanges = 0
        # Nodes of a that have, or had, another partner since `edited` was asked.
        self._touched: set[int] = set()

    def suspects(self, edited: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield the nodes that rewired slots read: pairing those would mend the slot."""
        a, b = self._a, self._b
        for x, y in edited:
            for c, d in zip(a.operands[x], b.operands[y], strict=False):
                if a.partner[c] != d and a.skeleton[c] == b.skeleton[d]:
                    yield c, d
        yield from self._suspect_outputs()
        if max(len(a.partner), len(b.partner)) <= _TINY:
            yield from self._all_suspects()

    def _all_suspects(self) -> Iterator[tuple[int, int]]:
        """Yield every pair of nodes that may be partners and are not, where one has an edit."""
        a, b = self._a, self._b
        odd_a = [y < 0 or self.pair_cost(x) > 0 for x, y in enumerate(a.partner)]
        odd_b = [x < 0 or odd_a[x] for x in b.partner]
        for x, op in enumerate(a.graph.ops):
            for y, other in enumerate(b.graph.ops):
                may_pair = op == other or may_change_into(self._matching, x, y)
                if may_pair and (odd_a[x] or odd_b[y]) and a.partner[x] != y:
                    yield x, y

    def edited(self) -> list[tuple[int, int]]:
        """Return the pairs that read no partners somewhere."""
        return [(x, self._a.partner[x]) for x in disputed(self._matching)]

    def still_edited(self, edited: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return what `edited` would, given its last answer."""
        users = self._a.users
        nodes = {x for x, _ in edited} | self._touched
        nodes.update([user for node in self._touched for user, _ in users[node]])
        self._touched.clear()
        return self._edited_among(sorted(nodes))

    def _edited_among(self, nodes: Iterable[int]) -> list[tuple[int, int]]:
        partner, rows_a, rows_b = self._a.partner, self._a.operands, self._b.operands
        return [
            (x, partner[x])
            for x in nodes
            if partner[x] >= 0
            and tuple([partner[c] for c in rows_a[x]]) != rows_b[partner[x]]
        ]

    def _suspect_outputs(self) -> Iterator[tuple[int, int]]:
        a, b = self._a, self._b
        wanted: dict[int, list[int]] = {}
        for d in dict.fromkeys(b.graph.outputs):
            other = b.partner[d]
            if other < 0 or a.is_output[other] < b.is_output[d]:
                wanted.setdefault(b.full[d], []).append(d)
        for x in dict.fromkeys(a.graph.outputs):
            y = a.partner[x]
            if y < 0 or b.is_output[y] < a.is_output[x]:
                for d in wanted.get(a.full[x], ())[:_MAX_CHAIN]:
                    yield x, d

    def chain(self, x: int, y: int) -> bool:
        """Pair x with y and what follows from it; keep it as soon as it is better."""
        leads = deque([(x, y)])
        done: list[_Exchange] = []
        total = 0
        while leads and len(done) < _MAX_CHAIN:
            c, d = leads.popleft()
            if self._a.partner[c] == d or self._is_crowded(c, d):
                continue
            gain, undo = self._exchange(c, d)
            done.append(undo)
            total += gain
            if total > 0:
                return True
            leads.extend(self._follow_ups(c, d))
            if undo.old_x >= 0 and undo.old_y >= 0:
                leads.extend(self._follow_ups(undo.old_x, undo.old_y))
        for undo in reversed(done):
            self._undo(undo)
        return False

    def _follow_ups(self, x: int, y: int) -> Iterator[tuple[int, int]]:
        """Yield the pairs that would mend the slots around a new pair."""
        a, b = self._a, self._b
        if a.partner[x] != y:
            return
        for c, d in zip(a.operands[x], b.operands[y], strict=False):
            if a.partner[c] != d and a.skeleton[c] == b.skeleton[d]:
                yield c, d
        users_b = b.users[y]
        for user, slot in a.users[x]:
            other = a.partner[user]
            row = b.operands[other] if other >= 0 else ()
            if slot < len(row) and row[slot] == y:
                continue
            label = a.full[user]
            for each, other_slot in users_b:
                if other_slot == slot and b.full[each] == label:
                    yield user, each
                    break

    def _exchange(self, x: int, y: int) -> tuple[int, _Exchange]:
        """Make x and y partners, and their former ones too; return the gain."""
        self.exchanges += 1
        a, b = self._a, self._b
        undo = _Exchange(x, y, b.partner[y], a.partner[x])
        old_x, old_y = undo.old_x, undo.old_y
        self._touched |= {x, old_x} - {UNPAIRED}
        near = self._neighbourhood((x, old_x), (y, old_y))
        before = self._cost(near)
        if old_x >= 0:
            a.partner[old_x] = UNPAIRED
        if old_y >= 0:
            b.partner[old_y] = UNPAIRED
        a.partner[x], b.partner[y] = y, x
        if old_x >= 0 and old_y >= 0 and a.skeleton[old_x] == b.skeleton[old_y]:
            a.partner[old_x], b.partner[old_y] = old_y, old_x
        return before - self._cost(near), undo

    def _undo(self, undo: _Exchange) -> None:
        a, b = self._a, self._b
        if undo.old_x >= 0:
            a.partner[undo.old_x] = undo.y
        if undo.old_y >= 0:
            b.partner[undo.old_y] = undo.x
        a.partner[undo.x], b.partner[undo.y] = undo.old_y, undo.old_x

    def part(self, x: int, y: int) -> bool:
        """Make x and y strangers if removing one and adding the other is cheaper."""
        a, b = self._a, self._b
        if self._is_crowded(x, y):
            return False
        near = self._neighbourhood((x,), (y,))
        before = self._cost(near)
        a.partner[x], b.partner[y] = UNPAIRED, UNPAIRED
        self._touched.add(x)
        if self._cost(near) < before:
            return True
        a.partner[x], b.partner[y] = y, x
        return False

    def _is_crowded(self, x: int, y: int) -> bool:
        a, b = self._a, self._b
        old_x, old_y = b.partner[y], a.partner[x]
        lengths = [len(a.users[x]), len(b.users[y])]
        if old_x >= 0:
            lengths.append(len(a.users[old_x]))
        if old_y >= 0:
            lengths.append(len(b.users[old_y]))
        return max(lengths) > _MAX_USERS

    def _neighbourhood(
        self, nodes_a: tuple[int, ...], nodes_b: tuple[int, ...]
    ) -> tuple[set[int], set[int]]:
        """Return the nodes whose cost depends on who is partner of the given ones."""
        near_a = {node for node in nodes_a if node >= 0}
        near_b = {node for node in nodes_b if node >= 0}
        users_a = {user for node in near_a for user, _ in self._a.users[node]}
        for node in near_b:
            for user, _ in self._b.users[node]:
                other = self._b.partner[user]
                if other >= 0:
                    users_a.add(other)
        return near_a | users_a, near_b

    def _cost(self, near: tuple[set[int], set[int]]) -> int:
        a, b = self._a, self._b
        cost = 0
        for x in near[0]:
            paired = a.partner[x] >= 0
            cost += self.pair_cost(x) if paired else 1 + a.is_output[x]
        for y in near[1]:
            if b.partner[y] < 0:
                cost += 1 + b.is_output[y]
        return cost

    def pair_cost(self, x: int) -> int:
        """Return what a paired node contributes to the script."""
        a, b = self._a, self._b
        y = a.partner[x]
        row_a, row_b = a.operands[x], b.operands[y]
        cost = int(a.full[x] != b.full[y]) + abs(len(row_a) - len(row_b))
        for c, d in zip(row_a, row_b, strict=False):
            cost += a.partner[c] != d
        return cost + abs(a.is_output[x] - b.is_output[y])


def script_cost(matching: Matching) -> int:
    """Return the length of the script that an assignment gives."""
    a, b = matching.a, matching.b
    partner_a, partner_b, labels_b = a.partner, b.partner, b.full
    relabelled = [
        x
        for x, (y, label) in enumerate(zip(partner_a, a.full, strict=True))
        if y >= 0 and label != labels_b[y]
    ]
    outputs = 0
    for x in set(a.graph.outputs):
        y = partner_a[x]
        outputs += abs(a.is_output[x] - (b.is_output[y] if y >= 0 else 0))
    for y in set(b.graph.outputs):
        x = partner_b[y]
        outputs += b.is_output[y] if x < 0 or not a.is_output[x] else 0
    slots = 0
    for x in disputed(matching):
        row_a, row_b = a.operands[x], b.operands[partner_a[x]]
        slots += abs(len(row_a) - len(row_b))
        slots += sum([partner_a[c] != d for c, d in zip(row_a, row_b, strict=False)])
    lone = partner_a.count(UNPAIRED) + partner_b.count(UNPAIRED)
    return lone + len(relabelled) + outputs + slots
