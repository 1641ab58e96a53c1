"""Look one node further where the frontier stalls: something was inserted on an edge."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lazygraph.matching.state import Matching, Side

_MAX_NEIGHBOURS = 8
_MAX_SIGNATURE = 16

_Signature = tuple[object, ...]


def bridge(matching: Matching) -> int:
    """Pair nodes that look alike one node behind a stalled frontier; return how many."""
    frontier = _frontier(matching)
    leads = _leads(matching, frontier, _free_users, _upward)
    leads += _leads(matching, frontier, _free_operands, _downward)
    before = matching.pairs
    for x, y in _mutual(leads):
        if not matching.is_free(x, y):
            continue
        agree, conflict = matching.evidence(x, y)
        if conflict <= agree + 1:
            matching.pair(x, y)
    return matching.pairs - before


def _frontier(matching: Matching) -> list[tuple[int, int]]:
    """Return the pairs made since the last call that have unpaired neighbours on both sides."""
    recent, matching.recent = matching.recent, []
    return matching.open_pairs(recent)


def _leads(
    matching: Matching,
    frontier: Iterable[tuple[int, int]],
    near: Callable[[Side, int], list[int]],
    signature: Callable[[Side, int], _Signature | None],
) -> list[tuple[int, int]]:
    """Return the leads of a frontier in one direction, those of each region once."""
    a, b = matching.a, matching.b
    regions: dict[tuple[tuple[int, ...], tuple[int, ...]], None] = {}
    for x, y in frontier:
        near_a = near(a, x)
        if not 0 < len(near_a) <= _MAX_NEIGHBOURS:
            continue
        near_b = near(b, y)
        if 0 < len(near_b) <= _MAX_NEIGHBOURS:
            # What many read is near to all of them.
            regions[tuple(near_a), tuple(near_b)] = None
    leads: list[tuple[int, int]] = []
    for near_to_x, near_to_y in regions:
        leads += _leads_of(matching, near_to_x, near_to_y, signature)
    return leads


def _leads_of(
    matching: Matching,
    near_a: tuple[int, ...],
    near_b: tuple[int, ...],
    signature: Callable[[Side, int], _Signature | None],
) -> list[tuple[int, int]]:
    a, b = matching.a, matching.b
    region_a, region_b = _region(a, near_a), _region(b, near_b)
    leads = _alone(_grouped(a, region_a, signature), _grouped(b, region_b, signature))
    if leads:
        return leads
    # A row of equal nodes: what follows on one side is what comes one later on the other.
    beyond_a = [node for node in region_a if node not in near_a]
    beyond_b = [node for node in region_b if node not in near_b]
    inserted = _alone(_grouped(a, near_a, _label), _grouped(b, beyond_b, _label))
    removed = _alone(_grouped(a, beyond_a, _label), _grouped(b, near_b, _label))
    return inserted if not removed else removed if not inserted else []


def _alone(
    groups_a: dict[_Signature, list[int]], groups_b: dict[_Signature, list[int]]
) -> list[tuple[int, int]]:
    """Return the pairs of nodes that are the only ones of their signature on each side."""
    return [
        (nodes[0], groups_b[key][0])
        for key, nodes in groups_a.items()
        if len(nodes) == 1 and len(groups_b.get(key, ())) == 1
    ]


def _label(side: Side, node: int) -> _Signature:
    return (side.full[node], side.is_output[node])


def _region(side: Side, near: tuple[int, ...]) -> dict[int, None]:
    region = dict.fromkeys(near)
    for node in near:
        region.update(dict.fromkeys(_free_users(side, node)[:_MAX_NEIGHBOURS]))
    return region


def _grouped(
    side: Side,
    nodes: Iterable[int],
    signature: Callable[[Side, int], _Signature | None],
) -> dict[_Signature, list[int]]:
    groups: dict[_Signature, list[int]] = {}
    for node in nodes:
        key = signature(side, node)
        if key is not None:
            groups.setdefault(key, []).append(node)
    return groups


def _free_users(side: Side, node: int) -> list[int]:
    """Return the unpaired users of a node, of very many no more than say that they are many."""
    partner = side.partner
    free = (user for user, _ in side.users[node] if partner[user] < 0)
    return list(islice(free, _MAX_NEIGHBOURS + 1))


def _free_operands(side: Side, node: int) -> list[int]:
    partner = side.partner
    return [operand for operand in side.operands[node] if partner[operand] < 0]


def _upward(side: Side, node: int) -> _Signature:
    skeleton = side.skeleton
    uses = sorted([(skeleton[user], slot) for user, slot in side.users[node]])
    return skeleton[node], side.is_output[node], tuple(uses[:_MAX_SIGNATURE])


def _downward(side: Side, node: int) -> _Signature | None:
    row = side.operands[node]
    if not row:
        return None
    skeleton = side.skeleton
    return skeleton[node], side.is_output[node], tuple([skeleton[o] for o in row])


def _mutual(leads: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the leads whose nodes no other lead claims."""
    of_a: dict[int, set[int]] = {}
    of_b: dict[int, set[int]] = {}
    for x, y in leads:
        of_a.setdefault(x, set()).add(y)
        of_b.setdefault(y, set()).add(x)
    found = []
    for x, ys in of_a.items():
        if len(ys) == 1:
            (y,) = ys
            if len(of_b[y]) == 1:
                found.append((x, y))
    return found
