"""Fold large drawings: modules into boxes, repeated modules into one, lines into boxes.

A drawing of more boxes than a layout engine and a reader can take is folded in two moves.
First, modules that look alike inside, such as the layers of a transformer, are drawn once.
Then the drawing is one box, which is opened level by level, from the coarsest, as long as
the boxes stay within the budget. Levels are the parts of the nn.Module path, then the lines
of the user's code, then runs of neighbours where one place holds too many.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lazyviz.render.model import Box, DrawGraph

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DEFAULT_BUDGET = 300

_MAX_CHILDREN = 24
_MIN_BUDGET = 2
_MAX_NAMED_OPS = 3


def collapse(graph: DrawGraph, budget: int = DEFAULT_BUDGET) -> DrawGraph:
    """Return a drawing of at most `budget` boxes.

    The result is the same for the same graph. Every box knows the nodes that it stands for;
    inputs that only one folded box reads are folded with it.

    Raises:
        ValueError: The budget is less than two boxes.
    """
    if budget < _MIN_BUDGET:
        raise ValueError(
            f"a drawing cannot be folded into {budget} boxes. Allow at least {_MIN_BUDGET}."
        )
    if len(graph.boxes) <= budget:
        return graph
    graph = fold_repeats(graph)
    if len(graph.boxes) <= budget:
        return graph
    return _open_within(graph, budget)


def fold_repeats(graph: DrawGraph) -> DrawGraph:
    """Return the drawing with modules that look alike inside drawn once.

    Sibling modules are alike when they hold the same operations on the same types, wired in
    the same way. Their boxes carry the number of repetitions; edges from one repetition to
    the next are left out.
    """
    stands_for = _twins(graph)
    if all(stands_for[i] == i for i in range(len(stands_for))):
        return graph
    members: dict[int, list[int]] = defaultdict(list)
    for position, twin in enumerate(stands_for):
        members[twin].append(position)
    new_position = {old: new for new, old in enumerate(sorted(members))}
    boxes = [_repeated(graph, members[old]) for old in sorted(members)]
    edges = {
        (new_position[stands_for[start]], new_position[stands_for[end]])
        for start, end in graph.edges
        if not _goes_back(stands_for, start, end)
    }
    return replace(graph, boxes=tuple(boxes), edges=tuple(sorted(edges)))


def _goes_back(stands_for: Sequence[int], start: int, end: int) -> bool:
    """Return whether the edge leads to a later repetition of what it comes from."""
    twins = stands_for[start], stands_for[end]
    return twins[0] >= twins[1]


def _repeated(graph: DrawGraph, positions: Sequence[int]) -> Box:
    boxes = [graph.boxes[i] for i in positions]
    first = boxes[0]
    if len(boxes) == 1:
        return first
    return replace(
        first,
        count=sum(box.count for box in boxes),
        members=tuple(n for box in boxes for n in box.members),
        is_root=any(box.is_root for box in boxes),
        is_new=any(box.is_new for box in boxes),
        path=_common_path([box.path for box in boxes]),
    )


def _common_path(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the path with the parts that differ replaced by what they have in common.

    Example:
        >>> _common_path([("layer", "0", "fc"), ("layer", "11", "fc")])
        ('layer', '0–11', 'fc')
    """
    merged = []
    for parts in zip(*paths, strict=False):
        different = list(dict.fromkeys(parts))
        ends = different[0], different[-1]
        merged.append(ends[0] if len(different) == 1 else f"{ends[0]}–{ends[1]}")
    return tuple(merged)


def _twins(graph: DrawGraph) -> list[int]:
    """Return for each box the position of the box that is drawn for it."""
    inputs: list[list[int]] = [[] for _ in graph.boxes]
    for start, end in graph.edges:
        inputs[end].append(start)
    held: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for position, box in enumerate(graph.boxes):
        for depth in range(1, len(box.path) + 1):
            held[_scope(box, depth)].append(position)
    siblings: dict[tuple[object, ...], list[list[int]]] = defaultdict(list)
    for scope in sorted(held, key=lambda s: (len(s), held[s][0])):
        signature = _signature(graph, held[scope], inputs)
        siblings[(*_parent(scope), signature)].append(held[scope])
    stands_for = list(range(len(graph.boxes)))
    for alike in siblings.values():
        for twin in alike[1:]:
            for position, original in zip(twin, alike[0], strict=True):
                stands_for[position] = min(stands_for[position], original)
    return [_final(stands_for, position) for position in range(len(stands_for))]


def _final(stands_for: list[int], position: int) -> int:
    while stands_for[position] != position:
        position = stands_for[position]
    return position


_BACKWARD = "(backward)"


def _scope(box: Box, depth: int) -> tuple[str, ...]:
    """Return the module scope of a box at a depth; forward and backward are apart."""
    if box.path[-1] != _BACKWARD or depth == len(box.path):
        return box.path[:depth]
    return (*box.path[:depth], _BACKWARD)


def _parent(scope: tuple[str, ...]) -> tuple[str, ...]:
    if scope[-1] == _BACKWARD:
        return (*scope[:-2], _BACKWARD)
    return scope[:-1]


def _signature(
    graph: DrawGraph, positions: Sequence[int], inputs: Sequence[Sequence[int]]
) -> tuple[object, ...]:
    """Return what a module's boxes look like from inside, wherever they stand."""
    index = {position: i for i, position in enumerate(positions)}
    return tuple(
        (
            box.kind,
            box.op,
            box.detail,
            box.is_root,
            tuple(index.get(source, -1) for source in inputs[position]),
        )
        for position, box in ((p, graph.boxes[p]) for p in positions)
    )


@dataclass(slots=True)
class _Group:
    """Part of the drawing that is either one box or its children."""

    path: tuple[str, ...]
    label: str
    boxes: list[int]
    children: list[_Group] = field(default_factory=list)


def _open_within(graph: DrawGraph, budget: int) -> DrawGraph:
    """Return the drawing opened from the coarsest level on, within the budget."""
    whole = _tree(graph, min(_MAX_CHILDREN, budget))
    queue = [(0, whole.boxes[0], whole)]
    shown: list[_Group] = []
    visible = 1
    while queue:
        depth, _, group = heapq.heappop(queue)
        extra = len(group.children) - 1
        if not group.children or visible + extra > budget:
            shown.append(group)
            continue
        visible += extra
        for child in group.children:
            heapq.heappush(queue, (depth + 1, child.boxes[0], child))
    shown.sort(key=lambda group: group.boxes[0])
    return _fold(graph, shown)


def _tree(graph: DrawGraph, most: int) -> _Group:
    """Return the levels of the drawing: modules, then lines, then runs of neighbours."""
    root = _Group((), "graph", list(range(len(graph.boxes))))
    stack = [(root, 0)]
    while stack:
        group, depth = stack.pop()
        if len(group.boxes) == 1:
            continue
        parts = _split(graph, group, depth)
        if len(parts) == 1:
            stack.append((replace_boxes(group, parts[0]), depth + 1))
            continue
        group.children = parts
        _bundle(group, most)
        stack.extend((part, depth + 1) for part in parts)
    return root


def replace_boxes(group: _Group, part: _Group) -> _Group:
    """Give a group the name of its only part, so that no level holds just one group."""
    group.path, group.label = part.path, part.label
    return group


def _split(graph: DrawGraph, group: _Group, depth: int) -> list[_Group]:
    """Return the parts of a group: by module part, else by line, else box by box."""
    keys: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for position in group.boxes:
        keys[_key(graph.boxes[position], position, depth)].append(position)
    if len(keys) == 1 and depth > _deepest(graph, group.boxes) + 1:
        return [_Group(group.path, group.label, [p]) for p in group.boxes]
    return [
        _Group(
            _group_path(graph, boxes, depth), _group_label(graph, boxes, depth), boxes
        )
        for boxes in keys.values()
    ]


def _deepest(graph: DrawGraph, positions: Iterable[int]) -> int:
    return max(len(graph.boxes[p].path) for p in positions)


def _key(box: Box, position: int, depth: int) -> tuple[object, ...]:
    path = _levels(box)
    if depth < len(path):
        return ("module", path[depth])
    if depth == len(path):
        return ("line", box.site)
    return ("box", position)


def _levels(box: Box) -> tuple[str, ...]:
    """Return a box's module path, backward parts gathered under one first level."""
    if box.path and box.path[-1] == _BACKWARD:
        return (_BACKWARD, *box.path[:-1])
    return box.path


def _group_path(
    graph: DrawGraph, positions: Sequence[int], depth: int
) -> tuple[str, ...]:
    levels = _levels(graph.boxes[positions[0]])[: depth + 1]
    if levels and levels[0] == _BACKWARD:
        return (*levels[1:], _BACKWARD)
    return levels


def _group_label(graph: DrawGraph, positions: Sequence[int], depth: int) -> str:
    box = graph.boxes[positions[0]]
    levels = _levels(box)
    if depth < len(levels):
        path = _group_path(graph, positions, depth)
        return (
            ".".join(path[:-1]) + " backward" if _BACKWARD in path else ".".join(path)
        )
    return box.site or ".".join(box.path) or "ops"


def _bundle(group: _Group, most: int) -> None:
    """Gather a group's children in runs of neighbours until they are few enough."""
    while len(group.children) > most:
        size = max(2, -(-len(group.children) // most))
        runs = [
            group.children[i : i + size] for i in range(0, len(group.children), size)
        ]
        group.children = [
            run[0] if len(run) == 1 else _run(group, run, number)
            for number, run in enumerate(runs, 1)
        ]


def _run(group: _Group, run: list[_Group], number: int) -> _Group:
    boxes = [position for part in run for position in part.boxes]
    first, last = run[0].label, run[-1].label
    label = f"{group.label} part {number}" if first == last else f"{first} – {last}"
    return _Group(group.path, label, boxes, children=run)


def _fold(graph: DrawGraph, groups: Sequence[_Group]) -> DrawGraph:
    where: dict[int, int] = {}
    for number, group in enumerate(groups):
        where.update(dict.fromkeys(group.boxes, number))
    edges = {
        (where[start], where[end])
        for start, end in graph.edges
        if where[start] != where[end]
    }
    boxes = tuple(_group_box(graph, group) for group in groups)
    return replace(graph, boxes=boxes, edges=tuple(sorted(edges)))


def _group_box(graph: DrawGraph, group: _Group) -> Box:
    boxes = [graph.boxes[i] for i in group.boxes]
    if len(boxes) == 1:
        return boxes[0]
    ops = [box for box in boxes if box.members]
    counts = {box.count for box in ops}
    count = counts.pop() if len(counts) == 1 else 1
    members = tuple(node for box in ops for node in box.members)
    kinds = {box.kind for box in boxes}
    return Box(
        label=_label_of(group, ops),
        detail=_contents(ops, len(members) // count, len(boxes) - len(ops)),
        kind=kinds.pop() if len(kinds) == 1 and not ops else "group",
        op=_named_ops(ops),
        path=group.path,
        site=_sites(ops),
        is_root=any(box.is_root for box in boxes),
        is_new=any(box.is_new for box in boxes),
        members=members,
        count=count,
    )


def _label_of(group: _Group, ops: Sequence[Box]) -> str:
    return group.label if ops else "inputs"


def _contents(ops: Sequence[Box], members: int, inputs: int) -> str:
    """Return how much a folded box holds."""
    if not ops:
        return f"{inputs:,} inputs"
    return f"{members:,} op" + ("s" if members != 1 else "")


def _named_ops(ops: Sequence[Box]) -> str:
    """Return the most frequent operations of a folded box, for its tooltip."""
    counts = Counter[str]()
    for box in ops:
        counts[box.op] += len(box.members)
    common = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    named = [f"{count:,} {op}" for op, count in common[:_MAX_NAMED_OPS]]
    if len(common) > _MAX_NAMED_OPS:
        named.append(f"{len(common) - _MAX_NAMED_OPS} other kinds")
    return ", ".join(named)


def _sites(ops: Sequence[Box]) -> str:
    sites = list(dict.fromkeys(box.site for box in ops if box.site))
    if len(sites) <= 1:
        return "".join(sites)
    return f"{sites[0]} and {len(sites) - 1:,} more lines"
