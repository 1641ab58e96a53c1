"""Rounds of a loop, such as the time steps of a recurrent cell, drawn once.

A loop in the user's program leaves one run of operations for each round, of the same kinds on
the same types, in the same modules and lines. Such runs follow each other as the program
recorded them; the drawing has the first one, with the number of rounds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from lazyviz.render.model import DrawGraph

_LEAST_ROUNDS = 3  # two of a kind are no loop yet
_LEAST_SAVED = 4  # boxes; fewer are read as quickly one by one
_MAX_PERIODS = 24
_GRAM = 3


@dataclass(frozen=True, slots=True)
class _Run:
    """Operations that repeat, by their places in the order of recording."""

    start: int
    period: int
    length: int

    @property
    def saved(self) -> int:
        return (self.length // self.period - 1) * self.period


def rounds_of(graph: DrawGraph) -> Iterator[list[list[int]]]:
    """Yield for each loop its rounds, each with its boxes in one order, own inputs last.

    Args:
        graph: A drawing in topological order. Boxes that stand for several already are left.
    """
    order = _Order(graph)
    taken: set[int] = set()
    for run in sorted(order.runs(), key=lambda run: (-run.saved, run.period)):
        places = range(run.start, run.start + run.length)
        if taken.isdisjoint(places):
            rounds = order.rounds(run)
            if rounds:
                taken.update(places)
                yield rounds


class _Order:
    """The operations of a drawing as they were recorded, and who reads what."""

    def __init__(self, graph: DrawGraph) -> None:
        self._boxes = graph.boxes
        self._inputs, self._users = graph.wires()
        lasting = self._lasting()
        recorded = [
            i for i, box in enumerate(graph.boxes) if box.members and i not in lasting
        ]
        self._order = sorted(recorded, key=lambda i: graph.boxes[i].members[0])
        self._place = {position: k for k, position in enumerate(self._order)}
        kinds: dict[Hashable, int] = {}
        self._kinds = [kinds.setdefault(self._kind(i), len(kinds)) for i in self._order]

    def _lasting(self) -> set[int]:
        """Return what is made of inputs alone and read again and again: it is no one round's."""
        found: set[int] = set()
        for position, box in enumerate(self._boxes):
            sources = self._inputs[position]
            if (
                box.members
                and sources
                and len(self._users[position]) >= _LEAST_ROUNDS
                and all(s in found or not self._boxes[s].members for s in sources)
            ):
                found.add(position)
        return found

    def _kind(self, position: int) -> Hashable:
        box = self._boxes[position]
        if box.count > 1 or len(box.members) > 1:
            return position  # like no other
        return box.kind, box.op, box.detail, box.path, box.site, box.is_new

    def runs(self) -> Iterator[_Run]:
        """Yield what repeats, with each period that occurs often."""
        kinds = self._kinds
        for period in self._periods():
            start = 0
            for k in range(len(kinds) - period + 1):
                if k + period < len(kinds) and kinds[k] == kinds[k + period]:
                    continue
                run = _Run(start, period, k - start + period)
                if run.length >= _LEAST_ROUNDS * period and run.saved >= _LEAST_SAVED:
                    yield run
                start = k + 1

    def _periods(self) -> list[int]:
        """Return the commonest distances between equal neighbourhoods, at most a few."""
        kinds = self._kinds
        last: dict[tuple[int, ...], int] = {}
        distances: Counter[int] = Counter()
        for k in range(len(kinds) - _GRAM + 1):
            gram = tuple(kinds[k : k + _GRAM])
            if gram in last:
                distances[k - last[gram]] += 1
            last[gram] = k
        return [period for period, _ in distances.most_common(_MAX_PERIODS)]

    def rounds(self, run: _Run) -> list[list[int]]:
        """Return the rounds of a run that are wired alike; none if they are too few."""
        count, rest = divmod(run.length, run.period)
        start = run.start + min(range(rest + 1), key=lambda by: self._cut(run, by))
        rounds = [
            self._order[start + k * run.period : start + (k + 1) * run.period]
            for k in range(count)
        ]
        shared = self._shared(rounds)
        wired = [self._wiring(each, shared) for each in rounds]
        alike = [k for k, wiring in enumerate(wired) if wiring == wired[count // 2]]
        first, stop = alike[0], alike[-1] + 1
        if alike != list(range(first, stop)):
            return []
        if first == 1 and _begins(wired[0], wired[1]):
            first = 0
        chosen = rounds[first:stop]
        saved = (len(chosen) - 1) * run.period
        if len(chosen) < _LEAST_ROUNDS or saved < _LEAST_SAVED or self._named(chosen):
            return []
        return self._with_own_inputs(chosen, shared)

    def _named(self, rounds: Sequence[Sequence[int]]) -> bool:
        """Return whether one place has several names: the user tells these tensors apart."""
        for slot in zip(*rounds, strict=True):
            names = {self._boxes[position].name.partition("[")[0] for position in slot}
            if len(names - {""}) > 1:
                return True
        return False

    def _cut(self, run: _Run, by: int) -> int:
        """Return how many values go from one round to the next if rounds begin later."""
        rounds = run.length // run.period
        border = run.start + by + rounds // 2 * run.period
        return sum(
            any(self._place.get(user, -1) >= border for user in self._users[position])
            for position in self._order[border - run.period : border]
        )

    def _shared(self, rounds: Sequence[Sequence[int]]) -> set[int]:
        """Return the inputs that several rounds read."""
        readers = Counter(
            source
            for each in rounds
            for source in {s for p in each for s in self._inputs[p]}
            if not self._boxes[source].members
        )
        return {source for source, count in readers.items() if count > 1}

    def _wiring(
        self, each: Sequence[int], shared: set[int]
    ) -> list[tuple[list[int], set[int], int]]:
        """Return for each operation what it reads: in its round, shared, and how much else."""
        index = {position: k for k, position in enumerate(each)}
        return [
            (
                sorted(index[s] for s in sources if s in index),
                {s for s in sources if s in shared},
                sum(s not in index and s not in shared for s in sources),
            )
            for sources in (self._inputs[position] for position in each)
        ]

    def _with_own_inputs(
        self, rounds: list[list[int]], shared: set[int]
    ) -> list[list[int]]:
        """Return the rounds with the inputs that only one of them reads, if all have such ones."""
        own = [self._own(each, shared) for each in rounds]
        wanted = [self._boxes[source].detail for source in own[1]]
        own[0] = self._like(own[0], wanted)
        if any([self._boxes[s].detail for s in each] != wanted for each in own):
            return rounds
        return [[*each, *more] for each, more in zip(rounds, own, strict=True)]

    def _own(self, each: Sequence[int], shared: set[int]) -> list[int]:
        sources = (source for position in each for source in self._inputs[position])
        return [
            source
            for source in dict.fromkeys(sources)
            if not self._boxes[source].members
            and self._boxes[source].count == 1
            and source not in shared
            and set(self._users[source]) <= set(each)
        ]

    def _like(self, own: list[int], wanted: Sequence[str]) -> list[int]:
        """Return of the first round's inputs those of some types: others began the loop."""
        left, found = list(own), []
        for detail in reversed(wanted):
            while left:
                source = left.pop()
                if self._boxes[source].detail == detail:
                    found.append(source)
                    break
        return found[::-1]


def _begins(
    first: list[tuple[list[int], set[int], int]],
    second: list[tuple[list[int], set[int], int]],
) -> bool:
    """Return whether the first round reads an input where others read the round before."""
    return all(
        inner == within and known >= shared and len(known) + other == len(shared) + rest
        for (inner, known, other), (within, shared, rest) in zip(
            first, second, strict=True
        )
    )
