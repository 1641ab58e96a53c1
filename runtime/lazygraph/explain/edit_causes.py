"""What was edited in a program, in sentences: ops, attributes, what is read, what was put in."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from lazygraph.graph import CONSTANT, PARAMETER
from lazygraph.read.brackets import split_commas

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from lazygraph.diff import GraphDiff
    from lazygraph.graph import Graph

    Where = Callable[[Graph, Iterable[int]], str]

_OTHERWISE = re.compile(r"#|sharding|replica_groups|source_target_pairs|device_list")
_CLIP = 60
_MOST = 3
_LEAVES = frozenset({PARAMETER, CONSTANT})


def edit_sentences(
    found: GraphDiff, where: Where, told: tuple[Collection[int], Collection[int]]
) -> Iterator[str]:
    """Yield what other reasons leave untold.

    Args:
        found: The difference.
        where: Returns the place of some nodes, as ` at train.py:4`.
        told: Removed nodes of a and added ones of b that another reason counts.
    """
    yield from _ops(found, where)
    if not _is_resized(found):
        yield from _attributes(found, where)
    yield from _code(found, where, told)
    yield from _reads(found, where)
    yield from _results(found)


def _is_resized(found: GraphDiff) -> bool:
    """Return whether inputs changed their types, from which sizes and slices follow."""
    a, b = found.a, found.b
    changed = (
        b.ops[y] == PARAMETER and a.types[x] != b.types[y] for x, y in found.changed
    )
    return any(changed)


def _ops(found: GraphDiff, where: Where) -> Iterator[str]:
    changes: dict[tuple[str, str], list[int]] = {}
    for x, y in found.changed:
        ops = found.a.ops[x], found.b.ops[y]
        if ops[0] != ops[1]:
            changes.setdefault(ops, []).append(y)
    for (old, new), nodes in list(changes.items())[:_MOST]:
        places = f" in {len(nodes):,} places" if len(nodes) > 1 else ""
        first = found.b.names[nodes[0]]
        yield f"{old} became {new}{places}: {first}{where(found.b, nodes)}"


def _attributes(found: GraphDiff, where: Where) -> Iterator[str]:
    a, b = found.a, found.b
    changes: dict[tuple[str, str, str], list[int]] = {}
    for x, y in found.changed:
        if a.ops[x] != b.ops[y] or a.attrs[x] == b.attrs[y]:
            continue
        before, now = split_commas(a.attrs[x]), split_commas(b.attrs[y])
        old = ", ".join(each for each in before if each not in now)
        new = ", ".join(each for each in now if each not in before)
        # Another body is a reason within it; what is placed elsewhere is told as such.
        if not _OTHERWISE.search(f"{old}, {new}"):
            changes.setdefault((b.ops[y], old, new), []).append(y)
    for (op, old, new), nodes in list(changes.items())[:_MOST]:
        places = f" in {len(nodes):,} places" if len(nodes) > 1 else ""
        yield (
            f"{op} {b.names[nodes[0]]}{where(b, nodes)} had {_shown(old)} and has "
            f"{_shown(new)}{places}"
        )


def _shown(attrs: str) -> str:
    attrs = attrs.strip() or "no such attribute"
    return attrs if len(attrs) <= _CLIP else f"{attrs[: _CLIP - 1]}…"


def _code(
    found: GraphDiff, where: Where, told: tuple[Collection[int], Collection[int]]
) -> Iterator[str]:
    """Yield which instructions one side has alone, as a step that takes another way has."""
    sides = (
        (found.b, found.added, told[1], "more"),
        (found.a, found.removed, told[0], "fewer"),
    )
    for graph, unmatched, counted, what in sides:
        mine = [
            node
            for node in unmatched
            if node not in counted and graph.ops[node] not in _LEAVES
        ]
        mine = _without_readers(graph, mine, unmatched)
        if mine:
            ops = Counter(graph.ops[node] for node in mine)
            shown = [f"{op} ×{n:,}" if n > 1 else op for op, n in ops.most_common(4)]
            noun = "instruction" if len(mine) == 1 else "instructions"
            more = ", ..." if len(ops) > len(shown) else ""
            yield (
                f"{len(mine):,} {noun} {what}: {', '.join(shown)}{more}, first "
                f"{graph.names[mine[0]]}{where(graph, mine)}"
            )


def _without_readers(
    graph: Graph, nodes: list[int], unmatched: Iterable[int]
) -> list[int]:
    """Return the nodes that read no input that one side has alone, which is told already."""
    reading = {node for node in unmatched if graph.ops[node] == PARAMETER}
    kept = []
    for node in nodes:
        if reading.isdisjoint(graph.operands[node]):
            kept.append(node)
        else:
            reading.add(node)
    return kept


def _reads(found: GraphDiff, where: Where) -> Iterator[str]:
    """Yield which pairs read other values than before, where nothing was put in between."""
    a, b = found.a, found.b
    slots: dict[tuple[int, int], list[int]] = {}
    for x, y, slot in found.rewired:
        slots.setdefault((x, y), []).append(slot)
    shown = 0
    for (x, y), changed in slots.items():
        row, other = a.operands[x], b.operands[y]
        partners = [found.partner_a[each] for each in row]
        if shown == _MOST or len(row) != len(other):
            continue
        at = next(
            (
                each
                for each in changed
                if _is_known(a, row[each], partners[each])
                and _is_known(b, other[each], found.partner_b[other[each]])
            ),
            None,
        )
        if at is None:
            continue
        shown += 1
        place = f"{b.ops[y]} {b.names[y]}{where(b, [y])}"
        if sorted(partners) == sorted(other):
            yield f"{place} reads its operands in another order"
        else:
            yield f"{place} reads {_value(b, other[at])} where it read {_value(a, row[at])}"


def _results(found: GraphDiff) -> Iterator[str]:
    """Yield which results took the place of others, where both programs compute both."""
    old, new = found.outputs.removed, found.outputs.added
    if len(old) != len(new):
        return
    for x, y in list(zip(old, new, strict=True))[:_MOST]:
        if found.partner_a[x] >= 0 and found.partner_b[y] >= 0:
            was, now = found.a, found.b
            yield (
                f"{now.names[y]} {now.types[y]} is returned where {was.names[x]} "
                f"{was.types[x]} was"
            )


def _is_known(graph: Graph, node: int, partner: int) -> bool:
    """Return whether a value was there before, or is a number."""
    return partner >= 0 or graph.ops[node] == CONSTANT


def _value(graph: Graph, node: int) -> str:
    if graph.ops[node] != CONSTANT:
        return graph.names[node]
    return f"the constant {_shown(graph.label(node).literal)}"
