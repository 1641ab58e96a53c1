"""The drawing model: boxes and edges, their texts and sizes, and parts of a drawing.

Nothing here imports the runtime, so `import lazyviz` stays light.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping, Sequence


Kind = Literal["op", "backward", "random", "parameter", "constant", "group"]
Change = Literal["added", "removed", "changed", "rewired", "same"]

# The mark of each change, in drawings, listings and panels.
ADDED, REMOVED, CHANGED, REWIRED, SAME = "+", "−", "~", "⇄", "="
MARKS: dict[Change, str] = {
    "added": ADDED,
    "removed": REMOVED,
    "changed": CHANGED,
    "rewired": REWIRED,
    "same": SAME,
}

BACKWARD = "(backward)"
SAVED = "saved"  # the mark of what no variable holds: autograd saves it for backward
_ALIKE = re.compile(r"\b(\d+)–\d+\b")  # layers that are drawn once have one class
FROM_CPU = "from the CPU"  # the mark of what a fallback made


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One box of the drawing: an operation, an input, or several of them folded.

    Attributes:
        label: Short name of the operation, or the variable's name.
        detail: Second line: the type of the result, or what a folded box holds.
        kind: What it is; decides the colour.
        op: Full name of the operation, such as `aten.add.Tensor`, or that of the input in
            listings, such as `%p0`.
        listed: The name of an operation in listings, such as `%12` or `%fusion.3`.
        path: nn.Module path of the code that recorded it, in parts; that of a backward
            operation begins with `BACKWARD`.
        site: The user's line that recorded it.
        library: The line of an installed package that did so for it; empty for none.
        is_root: Whether it is an output of the graph: a live tensor.
        is_new: Whether the cell that is shown recorded it.
        name: The user's variable that holds it.
        members: Ids of the nodes that it stands for.
        count: How many times what is drawn here repeats, as in `×12`.
        runs: How often op-by-op mode has run it since the last barrier; from 2 on it is marked.
        marks: Short words on what its memory is: `parameter`, `donated`, `v3`, `view`, `CPU`.
        level: Shade of an overlay, from 0 (little) to 4 (most); None without one.
        note: The overlay's text, such as `1.2 ms`.
        scope: Labels of the `scope()` blocks around it, joined by `/`.
        step: Name of the `step()` that recorded it.
        change: What happened to it between two programs; None where one program is drawn.
        hidden: How many of its neighbours are not drawn.
        is_first: Whether a view opens on it.
        follows: In a diff, whether it changed only because of what it reads.
        anchor: Id of its entry on a static page; empty for none.
    """

    label: str
    detail: str = ""
    kind: Kind = "op"
    op: str = ""
    listed: str = ""
    path: tuple[str, ...] = ()
    site: str = ""
    library: str = ""
    is_root: bool = False
    is_new: bool = True
    name: str = ""
    members: tuple[int, ...] = ()
    count: int = 1
    runs: int = 0
    marks: tuple[str, ...] = ()
    level: int | None = None
    note: str = ""
    scope: str = ""
    step: str = ""
    change: Change | None = None
    hidden: int = 0
    is_first: bool = False
    follows: bool = False
    anchor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawGraph:
    """Boxes and edges to draw.

    Attributes:
        boxes: In topological order, as far as folding left the graph without cycles.
        edges: Pairs of positions in `boxes`, each pair once, sorted.
        nodes: Operations of the whole graph, folded ones included.
        aliases: Those edges whose end shares memory with their start: views.
        updates: Pairs of an output and the input that it overwrites; no edges.
        kind: What is drawn, for titles: `IR graph`, `StableHLO`, ...
        legend: CSS class and words of each shade of an overlay; empty without one.
        dimmed: What the boxes are that are not new, for the legend.
        added, removed: In a diff, the edges that only the second or the first program has.
        left_out: In a diff, how many changed nodes are not drawn.
        classes: Of modules by their names in words, for titles.
        where: Of a folded drawing, in which box each box of the whole is; else empty.
    """

    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int], ...]
    nodes: int = 0
    aliases: frozenset[tuple[int, int]] = frozenset()
    updates: tuple[tuple[int, int], ...] = ()
    kind: str = "IR graph"
    legend: tuple[tuple[str, str], ...] = ()
    dimmed: str = "earlier cell"
    added: frozenset[tuple[int, int]] = frozenset()
    removed: frozenset[tuple[int, int]] = frozenset()
    left_out: int = 0
    classes: Mapping[str, str] = field(default_factory=dict)
    where: Sequence[int] = ()

    @property
    def is_diff(self) -> bool:
        """Whether two programs are drawn, with what changed between them."""
        return any(box.change is not None for box in self.boxes)

    def wires(self) -> tuple[list[list[int]], list[list[int]]]:
        """Return for each box the positions of what it reads, and of what reads it."""
        inputs: list[list[int]] = [[] for _ in self.boxes]
        users: list[list[int]] = [[] for _ in self.boxes]
        for start, end in self.edges:
            inputs[end].append(start)
            users[start].append(end)
        return inputs, users

    def rewired(
        self,
        boxes: Sequence[Box],
        edges: Iterable[tuple[int, int]],
        where: Mapping[int, int],
    ) -> DrawGraph:
        """Return the drawing with other boxes; aliases and updates follow.

        `where` has the new position of each old box that is still drawn.
        """
        kept, whole = frozenset(edges), self.where or range(len(self.boxes))
        return replace(
            self,
            boxes=tuple(boxes),
            edges=tuple(sorted(kept)),
            aliases=kept.intersection(_moved(self.aliases, where)),
            added=kept.intersection(_moved(self.added, where)),
            removed=kept.intersection(_moved(self.removed, where)),
            updates=tuple(sorted(set(_moved(self.updates, where)))),
            where=tuple(where.get(box, -1) for box in whole),
        )


def _moved(
    pairs: Iterable[tuple[int, int]], where: Mapping[int, int]
) -> Iterable[tuple[int, int]]:
    for start, end in pairs:
        if start in where and end in where and where[start] != where[end]:
            yield where[start], where[end]


def path_text(path: Sequence[str]) -> str:
    """Return a box's path as a reader knows it.

    Example:
        >>> path_text(("encoder", "fc")), path_text((BACKWARD, "fc")), path_text((BACKWARD,))
        ('encoder.fc', 'fc (backward)', 'backward')
    """
    if path and path[0] == BACKWARD:
        return f"{'.'.join(path[1:])} {BACKWARD}" if len(path) > 1 else "backward"
    return ".".join(path)


LABEL_CHAR = 6.7
DETAIL_CHAR = 6.1
LINE = 13.0
PAD_X = 10.0
PAD_Y = 6.0
_MIN_WIDTH = 44.0
_MAX_LABEL = 30
_MAX_STATE = 44  # room for an optimizer's class, the state's name and how many have it
_MAX_DETAIL = 32
_MIN_NAME = 8
MAX_FRAME_DEPTH = 4


def label_text(box: Box) -> str:
    """Return the first line of a box, cut to fit, with its repetition.

    Of a path or a long name the end says most.
    """
    name, equals, op = box.label.rpartition(" = ")
    room = _MAX_LABEL - len(equals) - len(op)
    if box.kind in {"group", "parameter"}:
        is_words = box.kind == "group" and not box.path
        label = clip_start(box.label, _MAX_STATE if is_words else _MAX_LABEL)
    elif room < _MIN_NAME:
        label = clip(box.label, _MAX_LABEL)
    else:
        label = f"{clip_start(name, room)}{equals}{op}"
    return f"{label} ×{box.count}" if box.count > 1 else label


def detail_text(box: Box) -> str:
    """Return the second line of a box, cut to fit: its type, then marks and the overlay.

    What is hidden around it comes last, as in `… 3`.
    """
    hidden = f"… {box.hidden}" if box.hidden else ""
    parts = (clip(box.detail, _MAX_DETAIL), *box.marks, box.note, hidden)
    return " · ".join([part for part in parts if part])


def clip(text: str, length: int) -> str:
    """Return one line of at most `length` characters.

    Example:
        >>> clip("encoder.layer.0", 20), clip("encoder.layer.0", 8)
        ('encoder.layer.0', 'encoder…')
    """
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def clip_start(text: str, length: int) -> str:
    """Return one line of at most `length` characters, the end of the text.

    Example:
        >>> clip_start("encoder.layer.0", 20), clip_start("encoder.layer.0", 8)
        ('encoder.layer.0', '…layer.0')
    """
    line = " ".join(text.split())
    return line if len(line) <= length else "…" + line[1 - length :]


def box_size(box: Box) -> tuple[float, float]:
    """Return width and height of a box in pixels."""
    detail = detail_text(box)
    width = max(len(label_text(box)) * LABEL_CHAR, len(detail) * DETAIL_CHAR)
    lines = 2 if detail else 1
    return max(_MIN_WIDTH, width + 2 * PAD_X), lines * LINE + 2 * PAD_Y


def frame_paths(graph: DrawGraph) -> list[tuple[str, ...]]:
    """Return the module paths that are drawn as frames, in the order of their numbers.

    A path gets one when it holds more than one box and more than its only child holds, when it
    is not the whole drawing, and is not nested too deep. Colour tells what is backward, so the
    backward pass as a whole gets none.
    """
    held: dict[tuple[str, ...], int] = {}
    for box in graph.boxes:
        for depth in range(1, len(box.path) + 1):
            held[box.path[:depth]] = held.get(box.path[:depth], 0) + 1
    inner: dict[tuple[str, ...], int] = {}  # what the largest child of each holds
    for path, count in held.items():
        inner[path[:-1]] = max(inner.get(path[:-1], 0), count)
    chosen = {
        path
        for path, count in held.items()
        if 1 < count < len(graph.boxes)
        and inner.get(path, 0) < count
        and path != (BACKWARD,)
    }
    return [
        path
        for path in held
        if path in chosen
        and sum(path[:depth] in chosen for depth in range(1, len(path)))
        < MAX_FRAME_DEPTH
    ]


def named_in_frames(graph: DrawGraph) -> DrawGraph:
    """Return the drawing with folded modules called as in the frame round them.

    In the frame of `encoder.layer.0` the module `encoder.layer.0.attention` is `attention`.
    """
    frames = set(frame_paths(graph))
    boxes = tuple(
        replace(box, label=title_within(graph, box.path, frames))
        if box.kind == "group" and box.label == path_text(box.path)
        else box
        for box in graph.boxes
    )
    return replace(graph, boxes=boxes)


def title_within(
    graph: DrawGraph,
    path: tuple[str, ...],
    frames: Container[tuple[str, ...]] = (),
) -> str:
    """Return what a module is called inside the innermost of the frames round it, with its class.

    Example:
        >>> title_within(DrawGraph(boxes=(), edges=(), classes={"0": "Linear"}), ("0",))
        '0: Linear'
    """
    name = path_text(tuple(part for part in path if part != BACKWARD))
    kind = graph.classes.get(_ALIKE.sub(r"\1", name), "")
    said = f": {kind}" if kind else ""
    for depth in range(len(path) - 1, 0, -1):
        if path[:depth] in frames:
            return path_text(path[depth:]) + said
    return path_text(path) + said


def restrict(graph: DrawGraph, keep: Collection[int]) -> DrawGraph:
    """Return the boxes at the positions `keep`, in order, and the edges among them."""
    kept = sorted(keep)
    position = {old: new for new, old in enumerate(kept)}
    edges = [
        (position[start], position[end])
        for start, end in graph.edges
        if start in position and end in position
    ]
    boxes = [graph.boxes[old] for old in kept]
    part = graph.rewired(boxes, edges, position)
    return replace(part, nodes=sum(bool(box.members) for box in boxes), where=())


def neighbourhood(graph: DrawGraph, centre: Iterable[int], hops: int) -> set[int]:
    """Return the positions within so many edges of `centre`, in either direction."""
    inputs, users = graph.wires()
    found = border = set(centre)
    for _ in range(hops):
        border = {k for box in border for k in (*inputs[box], *users[box])} - found
        found = found | border
    return found


def inside(graph: DrawGraph, members: Collection[int]) -> DrawGraph:
    """Return the boxes of some nodes and, dimmed, what they read and what reads them."""
    wanted = set(members)
    within = {
        i for i, box in enumerate(graph.boxes) if wanted.intersection(box.members)
    }
    around = neighbourhood(graph, within, 1)
    # Two neighbours of the part need no edge of their own: the part is what is shown.
    edges = tuple(
        (start, end) for start, end in graph.edges if start in within or end in within
    )
    boxes = tuple(
        box if i in within else replace(box, is_new=False)
        for i, box in enumerate(graph.boxes)
    )
    part = replace(graph, boxes=boxes, edges=edges, dimmed="outside this part")
    return restrict(part, around)
