"""Modules that look alike, such as the layers of a transformer, drawn once.

Copies are siblings that hold the same operations on the same types, wired in the same way. What
lies between one copy and the next, such as the addition around a layer, is drawn once with them
if it is the same each time. Where it is not, the copies stay apart: one box for both would
swallow the way from the first to the second.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from lazyviz.render.model import BACKWARD
from lazyviz.render.unrolled import rounds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lazyviz.render.model import Box, DrawGraph

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
