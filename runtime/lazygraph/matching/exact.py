"""The shortest script of two tiny graphs, by branch and bound over all assignments."""

from __future__ import annotations

from collections import Counter

from lazygraph.matching.residual import may_change_into
from lazygraph.matching.state import Matching

# Graphs of so many nodes have too many assignments for the steps that are allowed.
MOST_NODES = 12
_MOST_STEPS = 10_000


def match_exactly(best: Matching, cost: int) -> Matching:
    """Return an assignment with the shortest script, or `best` where none is shorter.

    Args:
        best: An assignment that is known.
        cost: The length of its script.
    """
    search = _Search(best, cost)
    search.go()
    if search.best is None:
        return best
    found = Matching(best.a.graph, best.b.graph)
    for x, y in enumerate(search.best):
        if y >= 0:
            found.pair(x, y)
    return found


class _Search:
    """Assigns the nodes of a one after the other, operands first, so each costs what it costs.

    Attributes:
        best: For each node of a its partner; None while nothing is shorter than what is known.
    """

    def __init__(self, matching: Matching, cost: int) -> None:
        self.best: list[int] | None = None
        self._matching = matching
        self._a, self._b = matching.a, matching.b
        self._lowest = cost
        self._steps = 0
        self._partner = [-1] * len(self._a.operands)
        self._labels_a = Counter(self._a.full)
        self._labels_b = Counter(self._b.full)
        self._free = dict.fromkeys(range(len(self._b.operands)))

    def go(self, x: int = 0, cost: int = 0) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS or cost + self._at_least(x) >= self._lowest:
            return
        if x == len(self._partner):
            self._take(cost)
            return
        label = self._a.full[x]
        self._labels_a[label] -= 1
        for extra, y in self._choices(x):
            self._partner[x] = y
            if y >= 0:
                del self._free[y]
                self._labels_b[self._b.full[y]] -= 1
            self.go(x + 1, cost + extra)
            if y >= 0:
                self._free[y] = None
                self._labels_b[self._b.full[y]] += 1
        self._labels_a[label] += 1
        self._partner[x] = -1

    def _at_least(self, x: int) -> int:
        """Return what nodes that are left cost at least: those that no equal label is left for."""
        left = max(len(self._partner) - x, len(self._free))
        counts = self._labels_b
        return left - sum([min(n, counts[k]) for k, n in self._labels_a.items()])

    def _choices(self, x: int) -> list[tuple[int, int]]:
        """Return what a node costs with each partner, and without one, the cheapest first."""
        found = [(1 + self._a.is_output[x], -1)]
        ops_a, ops_b = self._a.graph.ops, self._b.graph.ops
        found += [
            (self._cost(x, y), y)
            for y in self._free
            if ops_a[x] == ops_b[y] or may_change_into(self._matching, x, y)
        ]
        found.sort()
        return found

    def _cost(self, x: int, y: int) -> int:
        a, b = self._a, self._b
        row_a, row_b = a.operands[x], b.operands[y]
        cost = int(a.full[x] != b.full[y]) + abs(len(row_a) - len(row_b))
        for c, d in zip(row_a, row_b, strict=False):
            cost += self._partner[c] != d
        return cost + abs(a.is_output[x] - b.is_output[y])

    def _take(self, cost: int) -> None:
        cost += sum([1 + self._b.is_output[y] for y in self._free])
        if cost < self._lowest:
            self._lowest = cost
            self.best = list(self._partner)
