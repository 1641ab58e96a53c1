"""Modules that look alike, such as the layers of a transformer, drawn once.

Copies are siblings that hold the same operations on the same types, wired in the same way. What
lies between one copy and the next, such as the addition around a layer, is drawn once with them
if it is the same each time. Where it is not, the copies stay apart: one box for both would
swallow the way from the first to the second.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from lazyviz.draw.model import BACKWARD

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from lazyviz.draw.model import Box, DrawGraph

_PAIR = 2


def fold_repeats(graph: DrawGraph) -> DrawGraph:
    """Return the drawing with modules that look alike inside, and rounds of a loop, drawn once.

    Their boxes carry the number of repetitions; edges from one repetition to the next are left
    out.

    Args:
        graph: A drawing with nothing folded, in topological order.
    """
    modules = _drawn_once(graph, *_twins(graph))
    stands_for = list(range(len(modules.boxes)))
    for first, *others in rounds_of(modules):
        for each in others:
            for position, twin in zip(each, first, strict=True):
                stands_for[position] = twin
    return _drawn_once(modules, stands_for, {})


def _drawn_once(
    graph: DrawGraph, stands_for: Sequence[int], given: Mapping[int, tuple[str, ...]]
) -> DrawGraph:
    """Return the drawing with one box for all that one stands for; see `_twins`."""
    drawn = sorted(set(stands_for))
    if len(drawn) == len(graph.boxes):
        return graph
    members: dict[int, list[int]] = defaultdict(list)
    for position, twin in enumerate(stands_for):
        members[twin].append(position)
    new_position = {old: new for new, old in enumerate(drawn)}
    edges = {
        (new_position[stands_for[start]], new_position[stands_for[end]])
        for start, end in graph.edges
        if stands_for[start] < stands_for[end]  # else to a later repetition
    }
    boxes = [_repeated([graph.boxes[i] for i in members[old]]) for old in drawn]
    for start, end in edges:
        if drawn[start] in given and boxes[end].count > 1:
            # What the first copy takes lies beside them all.
            boxes[start] = replace(boxes[start], path=given[drawn[start]])
    where = {i: new_position[twin] for i, twin in enumerate(stands_for)}
    return graph.rewired(boxes, edges, where)


def _repeated(boxes: Sequence[Box]) -> Box:
    if len(boxes) == 1:
        return boxes[0]
    # The last round's result is what the variable holds.
    named = next((box for box in reversed(boxes) if box.name), boxes[0])
    shown = boxes[0] if boxes[0].name else named
    return replace(
        boxes[0],
        label=shown.label,
        name=shown.name,
        count=len(boxes),
        members=tuple(node for box in boxes for node in box.members),
        is_root=any(box.is_root for box in boxes),
        is_new=any(box.is_new for box in boxes),
        runs=max(box.runs for box in boxes),
        path=_common_path([box.path for box in boxes]),
    )


def _common_path(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return a path that names the first and the last where the paths differ.

    Example:
        >>> _common_path([("layer", "0", "fc"), ("layer", "1", "fc"), ("layer", "11", "fc")])
        ('layer', '0–11', 'fc')
    """
    merged = []
    for parts in zip(*paths, strict=True):
        first, last = parts[0], parts[-1]
        merged.append(first if len(set(parts)) == 1 else f"{first}–{last}")
    return tuple(merged)


def _twins(graph: DrawGraph) -> tuple[list[int], dict[int, tuple[str, ...]]]:
    """Return for each box the position of the one drawn for it, and what is given to copies.

    The latter are inputs that the first copy of a module takes where others take what the copy
    before made, each with the path of what holds the copies.
    """
    wires = _Wires(graph)
    held: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for position, box in enumerate(graph.boxes):
        for depth in range(1, wires.depth_of(position) + 1):
            held[box.path[:depth]].append(position)
    similar: dict[tuple[tuple[str, ...], tuple[object, ...]], list[list[int]]]
    similar = defaultdict(list)
    for path, positions in sorted(held.items(), key=lambda item: len(item[0])):
        similar[path[:-1], tuple(wires.operations(positions))].append(positions)
    alike: dict[tuple[object, ...], list[list[int]]] = defaultdict(list)
    given: dict[int, tuple[str, ...]] = {}
    for (above, _), copies in similar.items():
        given.update(dict.fromkeys(wires.given_to(copies), above))
        for copy in copies:
            own = [position for position in copy if position not in given]
            alike[above, *wires.signature(own)].append(own)
    stands_for = list(range(len(graph.boxes)))
    for copies in alike.values():
        for original, *others in wires.rows(copies):
            for other in others:
                for position, twin in zip(other, original, strict=False):
                    stands_for[position] = min(stands_for[position], twin)
    for position, twin in enumerate(
        stands_for
    ):  # twins come first, so one look is enough
        stands_for[position] = stands_for[twin]
    return stands_for, given


@dataclass(frozen=True, slots=True)
class _Gap:
    """What lies outside a copy and leads from it to itself, and to the next copy.

    Attributes:
        back: Boxes between two boxes of the copy.
        onward: Boxes between the copy and the next one.
        shape: What both look like, wherever they stand.
    """

    back: list[int]
    onward: list[int]
    shape: tuple[tuple[object, ...], tuple[object, ...]]


class _Wires:
    """Who reads what in a drawing."""

    def __init__(self, graph: DrawGraph) -> None:
        self._boxes = graph.boxes
        self._inputs, self._users = graph.wires()

    def depth_of(self, position: int) -> int:
        """Return how deep in the modules a box lies, counted by the parts of its path.

        An input that other modules read too, such as what a residual connection adds, lies in
        what holds all its readers. Backward passes and optimizers read what a module owns.
        """
        box = self._boxes[position]
        depth = len(box.path)
        if box.members:
            return depth
        for user in self._users[position]:
            path = self._boxes[user].path
            if path and path[0] != BACKWARD:
                while path[:depth] != box.path[:depth]:
                    depth -= 1
        return depth

    def operations(self, positions: Sequence[int]) -> Iterator[object]:
        """Yield what the operations among some boxes are, whatever they read."""
        for position in positions:
            box = self._boxes[position]
            if box.members:
                yield box.kind, box.op, box.detail, len(box.path)

    def given_to(self, copies: Sequence[Sequence[int]]) -> set[int]:
        """Return the inputs that stand for what other copies get from the copy before.

        The first of equal layers often reads the batch itself. An input is such a one where
        its reader takes more from within than its counterparts in other copies do, and these
        take something of the same type from outside.
        """
        given: set[int] = set()
        if len(copies) < _PAIR:
            return given
        within = [set(copy) for copy in copies]
        rows = [[p for p in copy if self._boxes[p].members] for copy in copies]
        for slot in zip(*rows, strict=True):
            outside = [
                [s for s in self._inputs[p] if s not in inner or s in given]
                for p, inner in zip(slot, within, strict=True)
            ]
            most = max(outside, key=len)
            types = " ".join(self._boxes[s].detail for s in most)
            for position, found in zip(slot, outside, strict=True):
                leaves = [
                    s
                    for s in self._inputs[position]
                    if s not in found
                    and not self._boxes[s].members
                    and self._boxes[s].detail in types
                ]
                leaves.sort(key=lambda s: bool(self._boxes[s].marks))
                given.update(leaves[: len(most) - len(found)])
        return given

    def signature(
        self, positions: Sequence[int], around: Sequence[int] = ()
    ) -> Iterator[object]:
        """Yield what boxes look like, wherever they stand.

        Args:
            positions: The boxes.
            around: Others that they may read; all else is one to them.
        """
        index = {position: i for i, position in enumerate((*around, *positions))}
        for position in positions:
            box = self._boxes[position]
            sources = self._inputs[position]  # by place: of operands no order is known
            wiring = tuple(sorted(index.get(source, -1) for source in sources))
            # An input's number and name differ from one repetition to the next.
            yield (
                box.kind,
                box.op if box.members else "",
                box.detail,
                len(box.path),
                wiring,
            )

    def rows(self, copies: list[list[int]]) -> Iterator[list[list[int]]]:
        """Yield rows of two or more copies with one thing between each two of them.

        Each copy comes with what belongs to it outside; the last has nothing after it.
        """
        if len(copies) < _PAIR:
            return
        others = {position for copy in copies for position in copy}
        gaps = [self._gap(*pair, others) for pair in pairwise(copies)]
        gaps.append(self._gap(copies[-1], [], others))
        start = 0
        while start < len(copies) - 1:
            end = start + 1
            while end < len(copies) - 1 and gaps[end].shape == gaps[start].shape:
                end += 1
            last = gaps[end].shape[0] == gaps[start].shape[0]
            stop = end + 1 if last else end
            if self._repeats(stop - start, gaps[start]):
                yield [
                    [
                        *copies[k],
                        *gaps[k].back,
                        *(gaps[k].onward if k < stop - 1 else ()),
                    ]
                    for k in range(start, stop)
                ]
                start = stop
            else:
                start += 1

    def _repeats(self, count: int, gap: _Gap) -> bool:
        """Return whether so many copies are a repetition: what lies between must repeat too."""
        return count > _PAIR if gap.onward else count >= _PAIR

    def _gap(self, copy: list[int], following: list[int], others: set[int]) -> _Gap:
        last = max(following or copy)
        reached: set[int] = set()
        stack = [user for position in copy for user in self._users[position]]
        while stack:
            position = stack.pop()
            if position in others or position > last or position in reached:
                continue
            reached.add(position)
            stack.extend(self._users[position])
        back = self._leading(reached, set(copy))
        onward = self._leading(reached - set(back), set(following))
        shape = (
            tuple(self.signature(back, copy)),
            tuple(self.signature(onward, (*copy, *back))),
        )
        return _Gap(back, onward, shape)

    def _leading(self, reached: set[int], goal: set[int]) -> list[int]:
        """Return those that lead to a goal, with the inputs that nothing else reads."""
        leads: set[int] = set()
        for position in sorted(reached, reverse=True):
            if any(user in leads or user in goal for user in self._users[position]):
                leads.add(position)
        own = {
            source
            for position in leads
            for source in self._inputs[position]
            if not self._boxes[source].members and leads.issuperset(self._users[source])
        }
        return sorted(leads | own)


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
