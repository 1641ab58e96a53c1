"""Fold large drawings: modules into boxes, repeated modules into one, lines into boxes.

A drawing of more boxes than a layout engine and a reader can take is folded in two moves.
First, modules that look alike inside, such as the layers of a transformer, are drawn once.
Then the drawing is one box, which is opened level by level, from the coarsest, as long as
it stays within the budget. Levels are the parts of the nn.Module path, then the lines of the
user's code, then single boxes. Inputs go with what reads them first.

Operations repeat where their kinds do, in the order of recording, with one period. Numbers in
module paths are no part of a kind, so equal layers are rounds, too.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from lazygraph.graph import gc_paused
from lazygraph.readable import plural
from lazyviz.draw.model import Box, DrawGraph, path_text, restrict

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

DEFAULT_BUDGET = 300

Folding = Literal["auto", "module", "cell", "line", "none"]
FOLDINGS: tuple[Folding, ...] = get_args(Folding)

_FILE_OR_CELL = re.compile(r"cell \d+|[^:]+(?=:\d+$)")
_MIN_BUDGET = 2
_MAX_NAMED_OPS = 3
_MAX_PIECES, _MAX_PIECEWISE = 6, 200  # of a line, and of the boxes of one
_MAX_EDGES_PER_BOX = 2.2
_FEW = 24  # a drawing of so many boxes is readable however they are connected
READ_WHOLE = 48  # boxes that a reader takes without folding; more are folded to fewer
_OVERVIEW = _FEW


def collapse(graph: DrawGraph, budget: int = DEFAULT_BUDGET) -> DrawGraph:
    """Return a drawing of at most `budget` boxes, the same one for the same graph."""
    if len(graph.boxes) <= budget:
        return graph
    graph = fold_repeats(graph)
    if len(graph.boxes) <= budget:
        return graph
    return _open_within(graph, budget)


def overview(graph: DrawGraph, budget: int = DEFAULT_BUDGET) -> DrawGraph:
    """Return a drawing that is read at a glance: a small one whole, a large one by its parts."""
    whole = len(graph.boxes) <= READ_WHOLE
    return collapse(graph, min(budget, READ_WHOLE if whole else _OVERVIEW))


def fold_by(graph: DrawGraph, by: Folding, budget: int = DEFAULT_BUDGET) -> DrawGraph:
    """Return the drawing with one box for each module, notebook cell or line.

    What would still be more than `budget` boxes is folded further. Modules that look alike are
    drawn once. `auto` gives an overview, `none` folds no more than the budget asks for.
    """
    if by == "auto":
        return overview(graph, budget)
    if by == "none":
        return collapse(graph, budget)
    if by == "module":
        graph = fold_repeats(graph)
    anchors = _anchors(graph)
    groups: dict[tuple[str, ...], _Group] = {}
    for position in range(len(graph.boxes)):
        path, label = _place(graph.boxes[anchors[position]], by)
        key = (*path, "", label)
        groups.setdefault(key, _Group(path, label, [])).boxes.append(position)
    if len(groups) <= budget:
        return _fold(graph, list(groups.values()))
    regrouped = [
        replace(
            box,
            path=_place(graph.boxes[anchors[k]], by)[0] or (box.site or "elsewhere",),
        )
        for k, box in enumerate(graph.boxes)
    ]
    return _open_within(replace(graph, boxes=tuple(regrouped)), budget)


def _place(box: Box, by: Folding) -> tuple[tuple[str, ...], str]:
    """Return the path and the label of the group that a box belongs to."""
    if by == "module":
        return box.path, path_text(box.path) or "outside modules"
    if by == "line":
        return (box.site,) if box.site else (), box.site or "no line"
    where = _FILE_OR_CELL.match(box.site)
    place = where[0] if where is not None else box.site
    return (place,) if place else (), place or "no line"


@gc_paused
def unfold(
    graph: DrawGraph, folded: DrawGraph, index: int, budget: int = DEFAULT_BUDGET
) -> DrawGraph:
    """Return a folded drawing with one of its boxes opened where it stands.

    At most `budget` boxes, an overview of what it holds, come in its place.
    """
    where = folded.where or range(len(graph.boxes))
    part = [position for position, box in enumerate(where) if box == index]
    inner_graph = restrict(graph, part)
    inner = overview(inner_graph, budget)
    if (
        len(inner.boxes) == 1
    ):  # one line of many ops, one module within another, equal layers
        most = max(_MIN_BUDGET, min(budget, READ_WHOLE))
        is_small = len(inner_graph.boxes) <= most
        inner = inner_graph if is_small else _open_within(inner_graph, most)
    within = inner.where or range(len(part))
    more = len(inner.boxes) - 1
    moved = {p: index + within[k] for k, p in enumerate(part)}
    for position, box in enumerate(where):
        if box != index:
            moved[position] = box if box < index else box + more
    edges = {
        (moved[start], moved[end])
        for start, end in graph.edges
        if start in moved and end in moved and moved[start] != moved[end]
    }
    boxes = [*folded.boxes[:index], *inner.boxes, *folded.boxes[index + 1 :]]
    return graph.rewired(boxes, edges, moved)


def fold_earlier(graph: DrawGraph) -> DrawGraph:
    """Return the drawing with all operations of earlier cells, and their inputs, in one box."""
    old = {i for i, box in enumerate(graph.boxes) if box.members and not box.is_new}
    if len(old) < 2 or len(old) == len(graph.boxes):  # noqa: PLR2004
        return graph
    read_by_new = {start for start, end in graph.edges if end not in old}
    inputs = {i for i, box in enumerate(graph.boxes) if not box.members}
    folded = sorted(old | (inputs - read_by_new))
    earlier = _Group((), "earlier cells", folded)
    others = [
        _Group((), "", [i]) for i in sorted(set(range(len(graph.boxes))) - set(folded))
    ]
    return _fold(graph, [earlier, *others])


@dataclass(slots=True)
class _Group:
    """Part of the drawing that is either one box or its children.

    Attributes:
        is_run: Whether it has no structure but is one of several runs of neighbours.
    """

    path: tuple[str, ...]
    label: str
    boxes: list[int]
    children: list[_Group] = field(default_factory=list)
    is_run: bool = False

    @property
    def has_runs(self) -> bool:
        return bool(self.children) and self.children[0].is_run

    @property
    def rank(self) -> int:
        """Which groups are opened before it: 0 holds modules, 2 are runs or hold some."""
        if self.is_run or self.has_runs:
            return 2
        return int(all(child.path == self.path for child in self.children))


def _open_within(graph: DrawGraph, budget: int) -> DrawGraph:
    """Return the drawing opened as far as budget and legibility allow."""
    tree = _tree(graph, budget)
    while True:
        folded = _fold(graph, _open(tree, budget))
        edges_allowed = _MAX_EDGES_PER_BOX * len(folded.boxes)
        if budget <= _FEW or len(folded.edges) <= edges_allowed:
            return folded
        budget = max(_FEW, int(min(budget, len(folded.boxes)) * 0.8))


def _open(tree: _Group, budget: int) -> list[_Group]:
    """Return the groups that are drawn: modules are opened first, those that hold most before.

    Lines come next. Runs come last and stay few: a line of a thousand ops is one box rather
    than many.
    """
    queue = [(0, 0, 0, tree)]
    shown: list[_Group] = []
    visible = 1
    while queue:
        *_, group = heapq.heappop(queue)
        more = len(group.children) - 1
        limit = min(budget, _FEW) if group.is_run or group.has_runs else budget
        if not group.children or visible + more > limit:
            shown.append(group)
            continue
        visible += more
        for child in group.children:
            key = child.rank, -len(child.boxes), child.boxes[0]
            heapq.heappush(queue, (*key, child))
    return sorted(shown, key=lambda group: group.boxes[0])


def _tree(graph: DrawGraph, budget: int) -> _Group:
    """Return the levels of the drawing: modules, then lines, then single boxes."""
    anchors = _anchors(graph)
    inputs: list[list[int]] = [[] for _ in graph.boxes]
    for start, end in graph.edges:
        inputs[end].append(start)
    root = _Group((), "ops", list(range(len(graph.boxes))))
    stack = [(root, 0)]
    while stack:
        group, depth = stack.pop()
        if len(group.boxes) == 1:
            continue
        parts = _split(graph, group, depth, anchors)
        if len(parts) > 1:
            parts = [
                piece
                for part in parts
                for piece in _in_pieces(graph, part, anchors, inputs)
            ]
        if len(parts) == 1:  # no level of its own for a single part
            if len(parts[0].path) > len(group.path) or not group.path:
                group.path, group.label = parts[0].path, parts[0].label
            stack.append((group, depth + 1))
            continue
        stack.extend((part, depth + 1) for part in parts)
        group.children = _runs(group, parts, budget)
    return root


def _anchors(graph: DrawGraph) -> list[int]:
    """Return for each input the first operation that reads it, for an operation itself."""
    anchors = list(range(len(graph.boxes)))
    for start, end in reversed(graph.edges):  # sorted, so the first reader comes last
        if not graph.boxes[start].members:
            anchors[start] = end
    return anchors


def _split(
    graph: DrawGraph, group: _Group, depth: int, anchors: Sequence[int]
) -> list[_Group]:
    """Return the parts of a group at a level of the tree, in order of their first box."""
    parts: dict[tuple[object, ...], _Group] = {}
    for position in group.boxes:
        anchor = graph.boxes[anchors[position]]
        key: tuple[object, ...]
        if depth < len(anchor.path):
            path = anchor.path[: depth + 1]
            key, label = (0, path), path_text(path)
        elif depth == len(anchor.path):
            path, label = anchor.path, anchor.site or group.label
            key = (1, anchor.site)
        else:
            path, label = anchor.path, group.label
            key = (2, position)
        parts.setdefault(key, _Group(path, label, [])).boxes.append(position)
    return list(parts.values())


def _in_pieces(
    graph: DrawGraph,
    part: _Group,
    anchors: Sequence[int],
    inputs: Sequence[Sequence[int]],
) -> list[_Group]:
    """Return a line, or a module's own ops, in pieces between which other modules lie.

    As in `relu(conv(relu(x)))`: one box for both would stand in front of the module and behind
    it. What is passed more often, as in a loop, stays in one.
    """
    own = {k for k in part.boxes if anchors[k] == k}
    if not _MIN_BUDGET <= len(part.boxes) <= _MAX_PIECEWISE or any(
        graph.boxes[anchors[k]].path != part.path for k in part.boxes
    ):
        return [part]
    times: dict[int, int] = {}  # how often a way to a box has left the part
    for position in range(min(own, default=0), max(own, default=-1) + 1):
        is_own = position in own
        left = [
            times[source] + (source in own and not is_own)
            for source in inputs[position]
            if source in times
        ]
        if left or is_own:
            times[position] = max(left, default=0)
    pieces: dict[int, _Group] = {}
    for position in part.boxes:
        number = times.get(anchors[position], 0)
        pieces.setdefault(number, replace(part, boxes=[])).boxes.append(position)
    if len(pieces) > _MAX_PIECES:
        return [part]
    return [pieces[number] for number in sorted(pieces)]


def _runs(group: _Group, parts: list[_Group], budget: int) -> list[_Group]:
    """Return the parts, or where they are too many, runs of neighbours."""
    most = min(budget, _FEW)
    if len(parts) <= budget:
        return parts
    size = -(-len(parts) // most)
    runs = []
    for start in range(0, len(parts), size):
        inside = parts[start : start + size]
        first, last = inside[0].label, inside[-1].label
        number = start // size + 1
        runs.append(
            _Group(
                path=group.path,
                label=f"{first}, part {number}"
                if first == last
                else f"{first} – {last}",
                boxes=[position for part in inside for position in part.boxes],
                children=_runs(group, inside, budget),
                is_run=True,
            )
        )
    return runs


def _fold(graph: DrawGraph, groups: Sequence[_Group]) -> DrawGraph:
    where: dict[int, int] = {}
    for number, group in enumerate(groups):
        where.update(dict.fromkeys(group.boxes, number))
    edges = {
        (where[start], where[end])
        for start, end in graph.edges
        if where[start] != where[end]
    }
    boxes = [_group_box(graph, group) for group in groups]
    return graph.rewired(boxes, edges, where)


def _group_box(graph: DrawGraph, group: _Group) -> Box:
    boxes = [graph.boxes[i] for i in group.boxes]
    if len(boxes) == 1:
        return boxes[0]
    ops = [box for box in boxes if box.members]
    repeats = {box.count for box in ops}
    count = repeats.pop() if len(repeats) == 1 else 1
    members = tuple(node for box in ops for node in box.members)
    site, *others = dict.fromkeys(box.site for box in ops if box.site) or [""]
    site += f" and {len(others):,} more lines" if others else ""
    held = (len(members) // count, "op"), (len(boxes) - len(ops), "input")
    return Box(
        label=group.label,
        detail=", ".join(plural(n, noun) for n, noun in held if n),
        kind="group",
        op=_named_ops(ops),
        path=group.path,
        site=site,
        is_root=any(box.is_root for box in boxes),
        is_new=any(box.is_new for box in ops),
        runs=max((box.runs for box in ops), default=0),
        members=members,
        count=count,
    )


def _named_ops(ops: Sequence[Box]) -> str:
    """Return the most frequent operations of a folded box, for its tooltip."""
    counts = Counter[str]()
    for box in ops:
        counts[box.op] += len(box.members)
    common = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    named = [f"{count:,} {op}" for op, count in common[:_MAX_NAMED_OPS]]
    if len(common) > _MAX_NAMED_OPS:
        named.append(plural(len(common) - _MAX_NAMED_OPS, "other kind"))
    return ", ".join(named)


# --- equal layers and rounds of a loop

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
