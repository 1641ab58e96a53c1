"""The edit script of a diff, and what it makes of a graph."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lazygraph.errors import HloError
from lazygraph.graph import Graph, GraphBuilder, Label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazygraph.difference import GraphDiff

EditKind = Literal["remove", "add", "change", "rewire", "add output", "remove output"]
# A node of the edited graph: of the first graph by its id, or added, by its id in the second.
Place = tuple[Literal["old", "new"], int]


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit.

    Attributes:
        kind: What happens.
        node: To which node.
        label: What an added or changed node is.
        operands: What an added node reads.
        slot: Which operand of a rewired node.
        source: What a rewired slot reads now; None: the slot, the last one, goes.
    """

    kind: EditKind
    node: Place
    label: Label | None = None
    operands: tuple[Place, ...] = ()
    slot: int = 0
    source: Place | None = None


def script(found: GraphDiff) -> list[Edit]:
    """Return the edits that make b of a."""
    a, b = found.a, found.b
    places = [_place(found, y) for y in range(len(b))]
    edits = [
        Edit(
            "add",
            places[y],
            b.label(y),
            tuple(places[operand] for operand in b.operands[y]),
        )
        for y in found.added
    ]
    edits += [Edit("change", ("old", x), b.label(y)) for x, y in found.changed]
    for x, y, slot in found.rewired:
        row = b.operands[y]
        source = places[row[slot]] if slot < len(row) else None
        edits.append(Edit("rewire", ("old", x), slot=slot, source=source))
    edits += [Edit("add output", places[y]) for y in found.outputs.added]
    edits += [Edit("remove output", ("old", x)) for x in found.outputs.removed]
    edits += [Edit("remove", ("old", x)) for x in found.removed]
    if len(edits) != found.cost:
        raise HloError(
            f"the script of {a.name} -> {b.name} has {len(edits)} edits and its cost is "
            f"{found.cost}. That is a fault of lazyviz; please report it."
        )
    return edits


def _place(found: GraphDiff, node: int) -> Place:
    partner = found.partner_b[node]
    return ("old", partner) if partner >= 0 else ("new", node)


def apply_script(graph: Graph, edits: Sequence[Edit]) -> Graph:
    """Return what the edits make of a graph, its outputs sorted.

    Raises:
        HloError: The edits do not fit the graph, or leave a cycle or a missing node behind.
    """
    labels: dict[Place, Label] = {("old", x): graph.label(x) for x in range(len(graph))}
    operands: dict[Place, list[Place | None]] = {
        ("old", x): [("old", operand) for operand in row]
        for x, row in enumerate(graph.operands)
    }
    outputs: Counter[Place] = Counter(("old", x) for x in graph.outputs)
    for edit in edits:
        _apply(edit, labels, operands, outputs)
    return _built(graph.name, labels, operands, list(outputs.elements()))


def _apply(
    edit: Edit,
    labels: dict[Place, Label],
    operands: dict[Place, list[Place | None]],
    outputs: Counter[Place],
) -> None:
    node = edit.node
    if edit.kind != "add" and node not in labels:
        raise HloError(
            f"the edit {edit.kind} concerns node {node[1]}, which the graph does not have. "
            "A script fits only the graph that it was made for."
        )
    match edit.kind:
        case "add":
            assert edit.label is not None  # noqa: S101 - what `script` gives
            labels[node] = edit.label
            operands[node] = list(edit.operands)
        case "change":
            assert edit.label is not None  # noqa: S101
            labels[node] = edit.label
        case "rewire":
            row = operands[node]
            row.extend([None] * (edit.slot + 1 - len(row)))
            row[edit.slot] = edit.source
        case "add output":
            outputs[node] += 1
        case "remove output":
            outputs[node] -= 1
        case "remove":
            del labels[node], operands[node]


def _built(
    name: str,
    labels: dict[Place, Label],
    operands: dict[Place, list[Place | None]],
    outputs: list[Place],
) -> Graph:
    builder = GraphBuilder(name)
    ids: dict[Place, int] = {}
    for start in labels:
        stack = [start]
        under_way: set[Place] = set()
        while stack:
            place = stack[-1]
            if place in ids:
                stack.pop()
                continue
            row = [each for each in operands[place] if each is not None]
            waiting = [each for each in row if each not in ids]
            if waiting and place in under_way:
                raise HloError(f"the edited graph has a cycle through node {place[1]}.")
            under_way.add(place)
            missing = [each for each in waiting if each not in labels]
            if missing:
                raise HloError(
                    f"node {place[1]} of the edited graph reads node {missing[0][1]}, "
                    "which was removed."
                )
            if waiting:
                stack.extend(waiting)
                continue
            stack.pop()
            kind = builder.label(*labels[place])
            ids[place] = builder.add(kind, [ids[each] for each in row], origin=None)
    return builder.finish(sorted(ids[place] for place in outputs))
