"""Local search: exchange partners, or part them, where that makes the edit script shorter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyviz.hlo.matching.state import UNPAIRED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazyviz.hlo.matching.state import Matching

_MAX_PASSES = 4
_MAX_USERS = 64
# Beyond so many suspicious slots the graphs are too different for a local search to matter.
_MAX_SUSPECTS = 20_000


def refine(matching: Matching) -> None:
    """Improve the assignment until no exchange of two pairs makes the script shorter."""
    for _ in range(_MAX_PASSES):
        suspects = list(_suspects(matching))
        if len(suspects) > _MAX_SUSPECTS:
            return
        improved = False
        for x, y in suspects:
            improved |= _exchange(matching, x, y)
        for x, y in enumerate(matching.a.partner):
            if y >= 0 and _pair_cost(matching, x) > 1:
                improved |= _part(matching, x, y)
        if not improved:
            return


def _suspects(matching: Matching) -> Iterator[tuple[int, int]]:
    """Yield the nodes that rewired slots read: pairing those would mend the slot."""
    a, b = matching.a, matching.b
    for x, y in enumerate(a.partner):
        if y < 0:
            continue
        row_a, row_b = a.operands[x], b.operands[y]
        for c, d in zip(row_a, row_b, strict=False):
            if a.partner[c] != d and a.skeleton[c] == b.skeleton[d]:
                yield c, d
    for x in a.graph.outputs:
        y = a.partner[x]
        if y >= 0 and not b.is_output[y]:
            for d in b.graph.outputs:
                other = b.partner[d]
                free = other < 0 or not a.is_output[other]
                if free and a.full[x] == b.full[d]:
                    yield x, d


def _exchange(matching: Matching, x: int, y: int) -> bool:
    """Pair x with y, and their former partners with each other; keep it if it is better."""
    a, b = matching.a, matching.b
    old_y, old_x = a.partner[x], b.partner[y]
    if old_y == y or _is_crowded(matching, (x, old_x), (y, old_y)):
        return False
    near = _neighbourhood(matching, (x, old_x), (y, old_y))
    before = _cost(matching, near)
    _set(matching, x, y, old_x, old_y)
    if old_x >= 0 and old_y >= 0 and a.skeleton[old_x] == b.skeleton[old_y]:
        a.partner[old_x], b.partner[old_y] = old_y, old_x
    if _cost(matching, near) < before:
        return True
    if old_x >= 0:
        a.partner[old_x] = y
    if old_y >= 0:
        b.partner[old_y] = x
    a.partner[x], b.partner[y] = old_y, old_x
    return False


def _set(matching: Matching, x: int, y: int, old_x: int, old_y: int) -> None:
    a, b = matching.a, matching.b
    if old_x >= 0:
        a.partner[old_x] = UNPAIRED
    if old_y >= 0:
        b.partner[old_y] = UNPAIRED
    a.partner[x], b.partner[y] = y, x


def _part(matching: Matching, x: int, y: int) -> bool:
    """Make x and y strangers if removing one and adding the other is cheaper."""
    a, b = matching.a, matching.b
    if _is_crowded(matching, (x,), (y,)):
        return False
    near = _neighbourhood(matching, (x,), (y,))
    before = _cost(matching, near)
    a.partner[x], b.partner[y] = UNPAIRED, UNPAIRED
    if _cost(matching, near) < before:
        matching.pairs -= 1
        return True
    a.partner[x], b.partner[y] = y, x
    return False


def _is_crowded(
    matching: Matching, nodes_a: tuple[int, ...], nodes_b: tuple[int, ...]
) -> bool:
    a, b = matching.a, matching.b
    return any(n >= 0 and len(a.users[n]) > _MAX_USERS for n in nodes_a) or any(
        n >= 0 and len(b.users[n]) > _MAX_USERS for n in nodes_b
    )


def _neighbourhood(
    matching: Matching, nodes_a: tuple[int, ...], nodes_b: tuple[int, ...]
) -> tuple[set[int], set[int]]:
    """Return the nodes whose cost depends on who is partner of the given ones."""
    near_a = {node for node in nodes_a if node >= 0}
    near_b = {node for node in nodes_b if node >= 0}
    users_a = {user for node in near_a for user, _ in matching.a.users[node]}
    for node in list(near_b):
        for user, _ in matching.b.users[node]:
            other = matching.b.partner[user]
            if other >= 0:
                users_a.add(other)
    return near_a | users_a, near_b


def _cost(matching: Matching, near: tuple[set[int], set[int]]) -> int:
    a, b = matching.a, matching.b
    cost = 0
    for x in near[0]:
        if a.partner[x] >= 0:
            cost += _pair_cost(matching, x)
        else:
            cost += 1 + a.is_output[x]
    for y in near[1]:
        if b.partner[y] < 0:
            cost += 1 + b.is_output[y]
    return cost


def _pair_cost(matching: Matching, x: int) -> int:
    a, b = matching.a, matching.b
    y = a.partner[x]
    row_a, row_b = a.operands[x], b.operands[y]
    cost = int(a.full[x] != b.full[y]) + abs(len(row_a) - len(row_b))
    for c, d in zip(row_a, row_b, strict=False):
        cost += a.partner[c] != d
    return cost + (a.is_output[x] != b.is_output[y])
