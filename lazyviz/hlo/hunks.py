"""The edits of a diff in connected places, and places that are alike."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lazyviz.hlo.collecting import uncollected

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lazyviz.hlo.difference import GraphDiff, Rewire

_Spot = tuple[str, int]
_SHOWN_SCOPES = 3


@dataclass(frozen=True, slots=True)
class Hunk:
    """Edits that touch each other.

    Attributes:
        added: Nodes of b.
        removed: Nodes of a.
        changed: Pairs with other labels.
        rewired: Operand slots of pairs that read something else.
        scope: Where most of it happens: a module path, or the first of several; may be empty.
        site: The source line of its first node with one, may be empty.
        signature: Equal for places that look alike.
    """

    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    changed: tuple[tuple[int, int], ...] = ()
    rewired: tuple[Rewire, ...] = ()
    scope: str = ""
    site: str = ""
    signature: tuple[object, ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        """Return the number of nodes concerned."""
        changed = {y for _, y in self.changed}
        only_rewired = {rewire.b for rewire in self.rewired} - changed
        return len(self.added) + len(self.removed) + len(changed) + len(only_rewired)


@dataclass(frozen=True, slots=True)
class HunkGroup:
    """Hunks that look alike.

    Attributes:
        exemplar: The first of them.
        hunks: All of them, the exemplar included.
    """

    exemplar: Hunk
    hunks: tuple[Hunk, ...]

    @property
    def places(self) -> int:
        """How many they are."""
        return len(self.hunks)


def hunks_of(found: GraphDiff) -> list[Hunk]:
    """Return the connected places of a diff, the largest first."""
    spots = _edited(found)
    rewired: dict[int, list[Rewire]] = {}
    for rewire in found.rewired:
        rewired.setdefault(rewire.b, []).append(rewire)
    hunks = [_hunk(found, place, rewired) for place in _places(found, spots)]
    hunks.sort(key=lambda hunk: -len(hunk))
    return hunks


@uncollected
def group_hunks(hunks: Iterable[Hunk]) -> list[HunkGroup]:
    """Return the hunks, those that look alike together; what concerns most nodes first."""
    groups: dict[tuple[object, ...], list[Hunk]] = {}
    for hunk in hunks:
        groups.setdefault(hunk.signature, []).append(hunk)
    found = [HunkGroup(alike[0], tuple(alike)) for alike in groups.values()]
    found.sort(key=lambda group: -sum(map(len, group.hunks)))
    return found


def _edited(found: GraphDiff) -> dict[_Spot, None]:
    """Return the nodes with an edit: of a if removed, else of b."""
    spots: dict[_Spot, None] = {}
    spots.update(dict.fromkeys(("b", y) for y in found.added))
    spots.update(dict.fromkeys(("a", x) for x in found.removed))
    spots.update(dict.fromkeys(("b", y) for _, y in found.changed))
    spots.update(dict.fromkeys(("b", rewire.b) for rewire in found.rewired))
    return spots


def _places(found: GraphDiff, spots: dict[_Spot, None]) -> list[list[_Spot]]:
    seen: set[_Spot] = set()
    places = []
    for start in spots:
        if start in seen:
            continue
        seen.add(start)
        place, stack = [], [start]
        while stack:
            spot = stack.pop()
            place.append(spot)
            for near in _neighbours(found, spot):
                if near in spots and near not in seen:
                    seen.add(near)
                    stack.append(near)
        places.append(sorted(place, key=lambda spot: (spot[1], spot[0])))
    return places


def _neighbours(found: GraphDiff, spot: _Spot) -> list[_Spot]:
    side, node = spot
    near: list[_Spot] = []
    if side == "b":
        near += [("b", other) for other in found.b.operands[node]]
        near += [("b", user) for user, _ in found.b.users[node]]
        node = found.partner_b[node]
        if node < 0:
            return near
    for other in (*found.a.operands[node], *(u for u, _ in found.a.users[node])):
        partner = found.partner_a[other]
        near.append(("b", partner) if partner >= 0 else ("a", other))
    return near


def _hunk(
    found: GraphDiff, place: Sequence[_Spot], rewired: dict[int, list[Rewire]]
) -> Hunk:
    removed = tuple(node for side, node in place if side == "a")
    mine = [node for side, node in place if side == "b"]
    added = tuple(node for node in mine if found.partner_b[node] < 0)
    pairs = [
        (found.partner_b[node], node) for node in mine if found.partner_b[node] >= 0
    ]
    changed = tuple((x, y) for x, y in pairs if found.a.label(x) != found.b.label(y))
    slots = tuple(rewire for _, y in pairs for rewire in rewired.get(y, ()))
    scope, site = _where(found, place)
    return Hunk(
        added,
        removed,
        changed,
        slots,
        scope,
        site,
        _signature(found, added, removed, changed, slots),
    )


def _where(found: GraphDiff, place: Sequence[_Spot]) -> tuple[str, str]:
    origins = [
        (found.a if side == "a" else found.b).origin(node) for side, node in place
    ]
    scope = _main_scope([origin.scope for origin in origins if origin.scope])
    site = next((origin.site for origin in origins if origin.site), "")
    return scope, site


def _main_scope(scopes: Sequence[str]) -> str:
    """Return the scope in which most nodes are, else the first modules that have any.

    Example:
        >>> _main_scope(["0", "1", "2", "(backward)", "(backward)", "2 (backward)"])
        '0, 1, 2'
        >>> _main_scope(["0", "0", "1"]), _main_scope(["(backward)"]), _main_scope([])
        ('0', '(backward)', '')
    """
    if not scopes:
        return ""
    scope, count = Counter(scopes).most_common(1)[0]
    modules = dict.fromkeys(each.removesuffix("(backward)").strip() for each in scopes)
    modules.pop("", None)
    if 2 * count > len(scopes) or not modules:
        return scope
    shown = ", ".join([*modules][:_SHOWN_SCOPES])
    return f"{shown}, …" if len(modules) > _SHOWN_SCOPES else shown


def _signature(
    found: GraphDiff,
    added: Sequence[int],
    removed: Sequence[int],
    changed: Sequence[tuple[int, int]],
    rewired: Sequence[Rewire],
) -> tuple[object, ...]:
    a, b = found.a, found.b
    counts: Counter[tuple[object, ...]] = Counter()
    counts.update([("+", b.label(y).op, b.label(y).type) for y in added])
    counts.update([("-", a.label(x).op, a.label(x).type) for x in removed])
    counts.update([("~", a.label(x), b.label(y)) for x, y in changed])
    counts.update([(">", b.label(each.b).op, str(each.slot)) for each in rewired])
    return tuple(sorted(counts.items(), key=repr))
