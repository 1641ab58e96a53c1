"""Why a graph is new, in one sentence, from what differs to the step before."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lazyrt.ir.node import Node, type_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazyrt.ir.fingerprint import Canonical

_SHOWN = 3
# Below this similarity a comparison would list everything.
_RELATED = 0.5
_CREATION = (
    "aten.zeros_like",
    "aten.full",
    "aten.zeros",
    "aten.ones_like",
    "aten.zero.",
)


def explain(
    graph: Canonical, known: Iterable[Canonical], *, dropped: bool = False
) -> str:
    """Return why `graph` had to be compiled; never empty.

    Args:
        graph: The graph of this step.
        known: Graphs of earlier steps; the most similar one is compared, the newest of equals.
        dropped: Whether this very executable was compiled before.
    """
    if dropped:
        return "it was compiled before, but its executable is not in memory any more"
    candidates = list(known)
    if not candidates:
        return "the first graph of this process"
    similarity, _, before = max(
        ((_similarity(graph, candidate), age, candidate)
         for age, candidate in enumerate(candidates)),
        key=lambda entry: entry[:2],
    )  # fmt: skip
    if similarity < _RELATED:
        return f"a program not seen before{_first_site(graph)}"
    if before.fingerprint == graph.fingerprint:
        return "the step overwrites other inputs in place than before; the graph is the same"
    reasons = [
        *_state_became_input(graph, before),
        *_lifted(graph, before),
        *_inputs(graph, before),
        *_ops(graph, before),
        *_roots(graph, before),
    ]
    if not reasons:
        reasons = [_first_difference(graph, before)]
    return "; ".join(reasons[:_SHOWN])


def _similarity(one: Canonical, other: Canonical) -> float:
    """Return which share of the larger graph's ops the other has too, 0 to 1."""
    ours = Counter(node.op.name for node in one.nodes)
    theirs = Counter(node.op.name for node in other.nodes)
    shared = sum((ours & theirs).values())
    return shared / max(len(one.nodes), len(other.nodes), 1)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _first_site(graph: Canonical) -> str:
    sites = (node.provenance.site for node in graph.nodes)
    site = next((site for site in sites if site is not None), None)
    return f": {_count(len(graph.nodes), 'op')}, the first at {site}" if site else ""


def _state_became_input(graph: Canonical, before: Canonical) -> list[str]:
    """The optimizer's state: created in one step, an input from the next on."""
    created = [node for node in before.nodes if node.op.name.startswith(_CREATION)]
    now = [node for node in graph.nodes if node.op.name.startswith(_CREATION)]
    gone, more = len(created) - len(now), len(graph.data) - len(before.data)
    if gone <= 0 or more <= 0:
        return []
    site = next(
        (node.provenance.site for node in created if node.provenance.site), None
    )
    where = f" at {site}" if site else ""
    return [
        (
            f"state that the step before created{where} is an input from now on "
            f"({_count(more, 'more input')}, {_count(gone, 'fewer creation')})"
        )
    ]


def _lifted(graph: Canonical, before: Canonical) -> list[str]:
    more = len(graph.floats) + len(graph.ints) - len(before.floats) - len(before.ints)
    if more <= 0:
        return []
    if more == 1:
        return ["a Python number that varies is an input from now on"]
    return [f"{more} Python numbers that vary are inputs from now on"]


def _inputs(graph: Canonical, before: Canonical) -> list[str]:
    new = Counter((leaf.shape, leaf.dtype) for leaf in graph.data)
    old = Counter((leaf.shape, leaf.dtype) for leaf in before.data)
    came, went = new - old, old - new
    if not came and not went:
        return []
    if sum(came.values()) == sum(went.values()):
        pairs = zip(went.elements(), came.elements(), strict=True)
        shown = [f"{type_text(*a)} is now {type_text(*b)}" for a, b in pairs]
        return ["input " + ", ".join(shown[:_SHOWN])]
    return [f"{_count(len(graph.data), 'input')} instead of {len(before.data)}"]


def _ops(graph: Canonical, before: Canonical) -> list[str]:
    new = Counter(node.op.name for node in graph.nodes)
    old = Counter(node.op.name for node in before.nodes)
    reasons = []
    for name, count in (new - old).most_common(_SHOWN):
        reasons.append(f"{count} more {name}{_where(graph.nodes, name)}")
    for name, count in (old - new).most_common(_SHOWN):
        reasons.append(f"{count} fewer {name}{_where(before.nodes, name)}")
    return reasons


def _where(nodes: tuple[Node, ...], name: str) -> str:
    sites = (node.provenance.site for node in nodes if node.op.name == name)
    site = next((site for site in sites if site is not None), None)
    return f" ({site})" if site is not None else ""


def _roots(graph: Canonical, before: Canonical) -> list[str]:
    if len(graph.roots) == len(before.roots):
        return []
    return [f"{_count(len(graph.roots), 'live result')} instead of {len(before.roots)}"]


def _first_difference(graph: Canonical, before: Canonical) -> str:
    for new, old in zip(graph.nodes, before.nodes, strict=False):
        if new.op is not old.op or new.spec is not old.spec:
            site = new.provenance.site
            where = f" at {site}" if site else ""
            return f"{new.op.name}{where} has other constants or types than {old.op.name} before"
    return "the same operations are wired differently"
