"""The edits that a diff stands for: applied to the first graph, they must give the second."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lazygraph import Graph, GraphBuilder, GraphDiff, Label

if TYPE_CHECKING:
    from collections.abc import Sequence

EditKind = Literal["remove", "add", "change", "rewire", "add output", "remove output"]
# A node of the edited graph: of the first graph by its id, or added, by its id in the second.
NodeRef = tuple[Literal["old", "new"], int]


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
    node: NodeRef
    label: Label | None = None
    operands: tuple[NodeRef, ...] = ()
    slot: int = 0
    source: NodeRef | None = None


def script(found: GraphDiff) -> list[Edit]:
    """Return the edits that make b of a."""
    b = found.b
    places = [_node_ref(found, y) for y in range(len(b))]
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
    return edits


def _node_ref(found: GraphDiff, node: int) -> NodeRef:
    partner = found.partner_b[node]
    return ("old", partner) if partner >= 0 else ("new", node)


def apply_script(graph: Graph, edits: Sequence[Edit]) -> Graph:
    """Return what the edits make of a graph, its outputs sorted."""
    labels: dict[NodeRef, Label] = {
        ("old", x): graph.label(x) for x in range(len(graph))
    }
    operands: dict[NodeRef, list[NodeRef | None]] = {
        ("old", x): [("old", operand) for operand in row]
        for x, row in enumerate(graph.operands)
    }
    outputs: Counter[NodeRef] = Counter(("old", x) for x in graph.outputs)
    for edit in edits:
        _apply(edit, labels, operands, outputs)
    return _built(graph.name, labels, operands, list(outputs.elements()))


def _apply(
    edit: Edit,
    labels: dict[NodeRef, Label],
    operands: dict[NodeRef, list[NodeRef | None]],
    outputs: Counter[NodeRef],
) -> None:
    node = edit.node
    assert edit.kind == "add" or node in labels
    match edit.kind:
        case "add":
            assert edit.label is not None
            labels[node] = edit.label
            operands[node] = list(edit.operands)
        case "change":
            assert edit.label is not None
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
    labels: dict[NodeRef, Label],
    operands: dict[NodeRef, list[NodeRef | None]],
    outputs: list[NodeRef],
) -> Graph:
    builder = GraphBuilder(name)
    ids: dict[NodeRef, int] = {}
    for start in labels:
        stack = [start]
        under_way: set[NodeRef] = set()
        while stack:
            key = stack[-1]
            if key in ids:
                stack.pop()
                continue
            row = [each for each in operands[key] if each is not None]
            waiting = [each for each in row if each not in ids]
            assert not (waiting and key in under_way), "a cycle"
            under_way.add(key)
            assert all(each in labels for each in waiting), "reads what was removed"
            if waiting:
                stack.extend(waiting)
                continue
            stack.pop()
            kind = builder.label(*labels[key])
            ids[key] = builder.add(kind, [ids[each] for each in row], origin=None)
    return builder.finish(sorted(ids[key] for key in outputs))
