"""What repeats in a drawing, drawn once: the layers of a model, the rounds of a loop.

Operations repeat where their kinds do, in the order of recording, with one period. Numbers in
module paths are no part of a kind, so equal layers are rounds, too.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from lazyviz.draw.model import Box, DrawGraph

_LEAST_ROUNDS, _PAIR = 3, 2  # two of a kind are no loop yet, but equal layers
_LEAST_SAVED = 4  # boxes; fewer are read as quickly one by one
_MAX_PERIODS = 24
_GRAM = 3
_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)|\[.*")  # of a layer, of an element


def fold_repeats(graph: DrawGraph) -> DrawGraph:
    """Return an unfolded drawing with equal layers, and rounds of a loop, drawn once.

    Their boxes carry the number of repetitions; edges from one repetition to the next are left
    out.
    """
    stands_for = list(range(len(graph.boxes)))
    for first, *others in _Order(graph).repetitions():
        for each in others:
            for position, twin in zip(each, first, strict=True):
                stands_for[position] = twin
    drawn = sorted(set(stands_for))
    if len(drawn) == len(graph.boxes):
        return graph
    members: dict[int, list[Box]] = defaultdict(list)
    for position, twin in enumerate(stands_for):
        members[twin].append(graph.boxes[position])
    new_position = {old: new for new, old in enumerate(drawn)}
    edges = {
        (new_position[stands_for[start]], new_position[stands_for[end]])
        for start, end in graph.edges
        if stands_for[start] < stands_for[end]  # else to a later repetition
    }
    boxes = [_repeated(members[old]) for old in drawn]
    for start, end in edges:
        box, reader = boxes[start], boxes[end]
        if not box.members and box.count == 1 < reader.count:
            # What the first layer takes lies outside of them all.
            both = zip(box.path, reader.path, strict=False)
            shared = takewhile(lambda parts: parts[0] == parts[1], both)
            boxes[start] = replace(box, path=tuple(part for part, _ in shared))
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
        >>> _common_path([("layer", "11", "fc"), ("layer", "1", "fc"), ("layer", "0", "fc")])
        ('layer', '0–11', 'fc')
    """
    merged = []
    for parts in zip(*paths, strict=True):
        ends = sorted({parts[0], parts[-1]}, key=lambda part: (len(part), part))
        merged.append("–".join(ends) if len(set(parts)) > 1 else parts[0])
    return tuple(merged)


class _Run(NamedTuple):
    """Operations that repeat, by their places in the order of recording."""

    start: int
    period: int
    rounds: int

    @property
    def saved(self) -> int:
        return (self.rounds - 1) * self.period


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
        kinds: dict[Hashable, int] = {}
        self._kinds = [kinds.setdefault(self._kind(i), len(kinds)) for i in self._order]

    def repetitions(self) -> Iterator[list[list[int]]]:
        """Yield for each repetition its rounds, each with its boxes in one order, inputs last."""
        taken: set[int] = set()
        found: list[list[list[int]]] = []
        for run in sorted(self._runs(), key=lambda run: (-run.saved, run.period)):
            places = range(run.start, run.start + run.rounds * run.period)
            rounds = [self._order[k : k + run.period] for k in places[:: run.period]]
            if taken.isdisjoint(places) and (alike := self._alike(rounds)):
                taken.update(places)
                found.append(alike)
        inputs: set[int] = set()
        for rounds in sorted(found):  # an input goes with what reads it first
            for own in list(self._own_inputs(rounds, inputs)):
                inputs.update(own)
                for each, source in zip(rounds, own, strict=True):
                    each.append(source)
            yield rounds

    def _lasting(self) -> set[int]:
        """Return what reads inputs alone, or nothing, and is read again and again: it is no one round's."""
        found: set[int] = set()
        for position, box in enumerate(self._boxes):
            sources = self._inputs[position]
            if (
                box.members
                and len(self._users[position]) >= _LEAST_ROUNDS
                and all(s in found or not self._boxes[s].members for s in sources)
            ):
                found.add(position)
        return found

    def _kind(self, position: int) -> Hashable:
        box = self._boxes[position]
        if box.count > 1 or len(box.members) > 1:
            return position  # like no other
        return box.kind, box.op, box.detail, _layer(box), box.site, box.is_new

    def _runs(self) -> Iterator[_Run]:
        """Yield what repeats, with each period that occurs often."""
        kinds = self._kinds
        for period in self._periods():
            start = 0
            for k in range(len(kinds) - period + 1):
                if k + period < len(kinds) and kinds[k] == kinds[k + period]:
                    continue
                rounds, spare = divmod(k - start, period)
                run = _Run(self._aligned(start, spare, period), period, rounds + 1)
                if run.rounds > 1 and run.saved >= _LEAST_SAVED:
                    yield run
                start = k + 1

    def _aligned(self, start: int, spare: int, period: int) -> int:
        """Return where rounds begin: where a layer does, if one can begin there and a round is it."""
        layers = [
            _number(self._boxes[i]) for i in self._order[start : start + spare + period]
        ]
        begins = [0, *(k for k in range(1, spare + 1) if layers[k] != layers[k - 1])]
        whole = (k for k in begins if len(set(layers[k : k + period])) == 1)
        return start + next(whole, 0)

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

    def _alike(self, rounds: list[list[int]]) -> list[list[int]]:
        """Return the rounds that are layers or a loop, none if they are not.

        They are wired alike; the first and the last of a run may not be. Two rounds of one module
        are no loop, and the user tells tensors of several names apart.
        """
        wired = list(map(self._wiring, rounds))
        alike = [k for k, each in enumerate(wired) if each == wired[len(wired) // 2]]
        if alike != list(range(alike[0], alike[-1] + 1)):
            return []
        found = [rounds[k] for k in alike]
        slots = [[self._boxes[k] for k in slot] for slot in zip(*found, strict=True)]
        are_layers = any(len({box.path for box in slot}) > 1 for slot in slots)
        if len(found) < (_PAIR if are_layers else _LEAST_ROUNDS):
            return []
        names = ({_INDEX.sub("", box.name) for box in slot} - {""} for slot in slots)
        return [] if any(len(each) > 1 for each in names) else found

    def _wiring(self, each: Sequence[int]) -> list[tuple[list[int], int]]:
        """Return for each operation what it reads in its round, and how much outside of it.

        The first round may read inputs where others read the round before.
        """
        index = {position: k for k, position in enumerate(each)}
        return [
            (
                sorted(index[s] for s in sources if s in index),
                sum(s not in index for s in sources),
            )
            for sources in (self._inputs[position] for position in each)
        ]

    def _own_inputs(
        self, rounds: Sequence[Sequence[int]], taken: set[int]
    ) -> Iterator[list[int]]:
        """Yield the inputs that each round has of its own, such as the weights of a layer."""
        slots = {p: (n, k) for n, each in enumerate(rounds) for k, p in enumerate(each)}
        alike: dict[Hashable, list[list[int]]] = defaultdict(
            lambda: [[] for _ in rounds]
        )
        for source in sorted({s for p in slots for s in self._inputs[p]} - taken):
            box = self._boxes[source]
            readers = [slots[user] for user in self._users[source] if user in slots]
            if box.members or len({n for n, _ in readers}) != 1:
                continue
            key = box.kind, box.detail, _layer(box), *sorted(k for _, k in readers)
            alike[key][readers[0][0]].append(source)
        for own in alike.values():
            # What begins a loop stands in front of the first round's own.
            count = min(map(len, own))
            yield from map(
                list, zip(*(each[-count:] for each in own if count), strict=True)
            )


def _number(box: Box) -> tuple[str, ...]:
    """Return the path of the outermost layer that a box is in; empty outside of layers."""
    at = next((k for k, part in enumerate(box.path) if part.isdecimal()), -1)
    return box.path[: at + 1]


def _layer(box: Box) -> tuple[str, ...]:
    """Return the path of a box in any of the layers that are equal to its own."""
    return tuple("#" if part.isdecimal() else part for part in box.path)
