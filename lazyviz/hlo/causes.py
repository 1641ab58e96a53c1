"""Why two programs differ, in sentences: what they were compiled for, then what was edited."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lazyviz.hlo.graph import CONSTANT, PARAMETER
from lazyviz.hlo.module import HloModule
from lazyviz.hlo.normal import attributes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lazyviz.hlo.difference import GraphDiff
    from lazyviz.hlo.graph import Graph

# What a module says of itself that decides how it is compiled and run.
_SETTINGS = {
    "num_partitions": "the number of partitions",
    "replica_count": "the number of replicas",
    "input_output_alias": "the inputs whose memory results take",
    "buffer_donor": "the inputs that give up their memory",
    "allow_spmd_sharding_propagation_to_parameters": "how sharding spreads to parameters",
    "allow_spmd_sharding_propagation_to_output": "how sharding spreads to outputs",
}
_PLACEMENT = ("sharding", "replica_groups", "source_target_pairs", "device_list")
_MAX_SENTENCES = 8
_CLIP = 60


def sentences(found: GraphDiff) -> list[str]:
    """Return why the second program is another one, the most basic reason first.

    A reason counts what follows from it: types that changed with an input's are no reason
    of their own. What is left has no sentence; the places list it.
    """
    said = [*_settings(found), *_inputs(found), *_placement(found), *_constants(found)]
    said += _outputs(found)
    return said[:_MAX_SENTENCES]


def _settings(found: GraphDiff) -> Iterator[str]:
    before, now = _header(found.a), _header(found.b)
    for key, what in _SETTINGS.items():
        old, new = before.get(key), now.get(key)
        if old != new:
            yield f"{what} ({key}) was {_shown(old)} and is {_shown(new)}"


def _header(graph: Graph) -> dict[str, str]:
    if not isinstance(graph.source, HloModule):
        return {}
    return {
        key: " ".join(value.split()) for key, value in attributes(graph.source.header)
    }


def _shown(value: str | None) -> str:
    if value is None:
        return "not given"
    return value if len(value) <= _CLIP else f"{value[: _CLIP - 1]}…"


def _inputs(found: GraphDiff) -> Iterator[str]:
    a, b = found.a, found.b
    changed = [
        (x, y)
        for x, y in found.changed
        if b.ops[y] == PARAMETER and a.types[x] != b.types[y]
    ]
    follow = sum(a.types[x] != b.types[y] for x, y in found.changed) - len(changed)
    for x, y in changed[:3]:
        more = f"; {follow:,} results changed with it" if follow > 0 else ""
        more = "" if len(changed) > 1 else more
        yield f"input {_name(b, y)} was {a.types[x]} and is {b.types[y]}{more}"
    if len(changed) > 3:  # noqa: PLR2004
        yield f"{len(changed) - 3:,} more inputs changed their types"


def _name(graph: Graph, node: int) -> str:
    return graph.origin(node).op_name or graph.names[node]


def _placement(found: GraphDiff) -> Iterator[str]:
    """Yield how instructions are laid out over devices, where that changed."""
    changes: Counter[tuple[str, str | None, str | None]] = Counter()
    first: dict[tuple[str, str | None, str | None], int] = {}
    for x, y in found.changed:
        before, now = (
            dict(attributes(g.attrs[n])) for g, n in ((found.a, x), (found.b, y))
        )
        for key in _PLACEMENT:
            if before.get(key) != now.get(key):
                change = (key, before.get(key), now.get(key))
                changes[change] += 1
                first.setdefault(change, y)
    for change, count in changes.most_common(3):
        key, old, new = change
        where = _where(found.b, [first[change]])
        of = (
            f" of {count:,} instructions"
            if count > 1
            else f" of {found.b.names[first[change]]}"
        )
        yield f"{key}{of}{where} was {_shown(old)} and is {_shown(new)}"


def _constants(found: GraphDiff) -> Iterator[str]:
    changes: dict[tuple[str, str], list[int]] = {}
    for x, y in found.changed:
        before, now = found.a.label(x), found.b.label(y)
        if now.op == CONSTANT == before.op and before.literal != now.literal:
            changes.setdefault((before.literal, now.literal), []).append(y)
    resized = any(found.b.ops[y] == PARAMETER for _, y in found.changed)
    for (old, new), nodes in list(changes.items())[:3]:
        times = f" in {len(nodes):,} places" if len(nodes) > 1 else ""
        hint = ", which may follow from the other sizes" if resized else ""
        yield f"a constant was {_shown(old)} and is {_shown(new)}{times}{_where(found.b, nodes)}{hint}"


def _outputs(found: GraphDiff) -> Iterator[str]:
    sides = (
        ("one more output", found.b, found.outputs.added, found.added, "+"),
        ("one output less", found.a, found.outputs.removed, found.removed, "−"),
    )
    for what, graph, outputs, lone, sign in sides:
        mine = set(lone)
        # A replaced result is no further one.
        if not outputs or len(outputs) == len(found.outputs.added) == len(
            found.outputs.removed
        ):
            continue
        count = len(_cone(graph, outputs, mine))
        many = (
            what if len(outputs) == 1 else what.replace("one", f"{len(outputs):,}", 1)
        )
        many = many.replace("output", "outputs") if len(outputs) > 1 else many
        node = outputs[0]
        yield (
            f"{many}: {graph.names[node]} {graph.types[node]}{_where(graph, [node])}, "
            f"{sign}{count:,} instructions that nothing else needs"
        )


def _cone(graph: Graph, roots: Iterable[int], inside: set[int]) -> set[int]:
    seen: set[int] = set()
    stack = [root for root in roots if root in inside]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += [o for o in graph.operands[node] if o in inside]
    return seen


def _where(graph: Graph, nodes: Iterable[int]) -> str:
    """Return the first source line and module of some nodes, as ` at train.py:4 in head`."""
    for node in nodes:
        origin = graph.origin(node)
        if origin.site or origin.scope:
            at = f" at {origin.site}" if origin.site else ""
            return at + (f" in {origin.scope}" if origin.scope else "")
    return ""
