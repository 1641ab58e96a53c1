"""The edits of a diff in connected places, and places that are alike."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from lazygraph.collecting import uncollected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lazygraph.difference import GraphDiff, Rewire
    from lazygraph.graph import Origin

_Spot = tuple[str, int]
_SHOWN_SCOPES = 3
_MAX_TOGETHER = 20
# A place of more than so many nodes is cut by module, and a part of as many by source line.
_CUTS = (attrgetter("scope"), attrgetter("site"))


@dataclass(frozen=True, slots=True)
class Hunk:
    """Edits that touch each other, or where those are many, those of one module and line.

    Attributes:
        added: Nodes of b.
        removed: Nodes of a.
        changed: Pairs with other labels.
        rewired: Operand slots of pairs that read something else.
        scope: Where most of it happens: a module path, or the first of several; may be empty.
        site: The source line of its first node with one, may be empty.
        follows: Whether it is a part of a larger place in which no change begins.
        signature: Equal for places that look alike.
    """

    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    changed: tuple[tuple[int, int], ...] = ()
    rewired: tuple[Rewire, ...] = ()
    scope: str = ""
    site: str = ""
    follows: bool = False
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
    def follows(self) -> bool:
        """Whether each of them is a part of a larger place, and no change begins in it."""
        return all(hunk.follows for hunk in self.hunks)

    @property
    def places(self) -> int:
        """How many they are."""
        return len(self.hunks)


def hunks_of(found: GraphDiff) -> list[Hunk]:
    """Return the places of a diff, the largest first.

    What is connected is one place. Another input size or an inserted layer touches half of a
    program, though: such a place is cut by module, so that equal layers are told once.
    """
    spots = _edited(found)
    rewired: dict[int, list[Rewire]] = {}
    for rewire in found.rewired:
        rewired.setdefault(rewire.b, []).append(rewire)
    hunks = []
    for place in _places(found, spots):
        for part in _parts(found, place):
            follows = len(part) < len(place) and _follows(found, part, spots)
            hunks.append(_hunk(found, part, rewired, follows=follows))
    hunks.sort(key=lambda hunk: -len(hunk))
    return hunks


@uncollected
def group_hunks(hunks: Iterable[Hunk]) -> list[HunkGroup]:
    """Return the hunks, those that look alike together.

    What follows from another change comes last; else what concerns most nodes is first.
    """
    groups: dict[tuple[object, ...], list[Hunk]] = {}
    for hunk in hunks:
        groups.setdefault(hunk.signature, []).append(hunk)
    found = [HunkGroup(alike[0], tuple(alike)) for alike in groups.values()]
    found.sort(key=lambda group: (group.follows, -sum(map(len, group.hunks))))
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
    """Return what is connected, each place by node; within, spots are numbers: it may be many."""
    number_of = {spot: 2 * spot[1] + (spot[0] == "b") for spot in spots}
    spot_of = {number: spot for spot, number in number_of.items()}
    near = _neighbours(found)
    left = set(spot_of)
    places = []
    for start in number_of.values():
        if start not in left:
            continue
        left.remove(start)
        place, stack = [], [start]
        while stack:
            number = stack.pop()
            place.append(number)
            fresh = left.intersection(near(number))
            left -= fresh
            stack += fresh
        places.append([spot_of[number] for number in sorted(place)])
    return places


def _neighbours(found: GraphDiff) -> Callable[[int], list[int]]:
    """Return what lists the operands and users of a spot, on both sides if it is on both.

    Spots are numbers here: twice a removed node of a, or one more than twice a node of b.
    """
    rows_a, users_a = found.a.operands, found.a.users
    rows_b, users_b = found.b.operands, found.b.users
    partner_b = found.partner_b
    of_a = [2 * y + 1 if y >= 0 else 2 * x for x, y in enumerate(found.partner_a)]

    def near(number: int) -> list[int]:
        node, is_of_b = divmod(number, 2)
        nodes: list[int] = []
        if is_of_b:
            nodes += [2 * each + 1 for each in rows_b[node]]
            nodes += [2 * user + 1 for user, _ in users_b[node]]
            node = partner_b[node]
        if node >= 0:
            nodes += [of_a[each] for each in rows_a[node]]
            nodes += [of_a[user] for user, _ in users_a[node]]
        return nodes

    return near


def _parts(
    found: GraphDiff,
    place: list[_Spot],
    cuts: Sequence[Callable[[Origin], str]] = _CUTS,
) -> Iterator[list[_Spot]]:
    """Yield a place as it is, or cut by where its nodes come from if it is large."""
    if len(place) <= _MAX_TOGETHER or not cuts:
        yield place
        return
    parts: dict[str, list[_Spot]] = {}
    for spot in place:
        parts.setdefault(cuts[0](_origin(found, spot)), []).append(spot)
    for part in parts.values():
        yield from _parts(found, part, cuts[1:])


def _origin(found: GraphDiff, spot: _Spot) -> Origin:
    side, node = spot
    return (found.a if side == "a" else found.b).origin(node)


def _follows(found: GraphDiff, part: list[_Spot], spots: dict[_Spot, None]) -> bool:
    """Return whether a part of a place changed nothing, or reads an edited node elsewhere."""
    inside = set(part)
    is_read = any(
        read in spots and read not in inside
        for spot in part
        for read in _reads(found, spot)
    )
    return is_read or not any(_is_changed(found, spot) for spot in part)


def _is_changed(found: GraphDiff, spot: _Spot) -> bool:
    side, node = spot
    old = found.partner_b[node] if side == "b" else -1
    return old >= 0 and found.a.label(old) != found.b.label(node)


def _reads(found: GraphDiff, spot: _Spot) -> list[_Spot]:
    """Return the operands of a node, on both sides if it is on both."""
    side, node = spot
    near: list[_Spot] = []
    if side == "b":
        near += [("b", each) for each in found.b.operands[node]]
        node = found.partner_b[node]
    if node >= 0:
        near += [_of_a(found, each) for each in found.a.operands[node]]
    return near


def _of_a(found: GraphDiff, node: int) -> _Spot:
    partner = found.partner_a[node]
    return ("b", partner) if partner >= 0 else ("a", node)


def _hunk(
    found: GraphDiff,
    place: Sequence[_Spot],
    rewired: dict[int, list[Rewire]],
    *,
    follows: bool,
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
        follows,
        _signature(found, added, removed, changed, slots),
    )


def _where(found: GraphDiff, place: Sequence[_Spot]) -> tuple[str, str]:
    origins = [_origin(found, spot) for spot in place]
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
