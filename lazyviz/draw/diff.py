"""A diff as a drawing: the union of two graphs where they differ, with some context."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from lazygraph.diff import group_hunks, nested_diffs, operations
from lazygraph.explain.hlo_causes import state_of
from lazygraph.graph import CONSTANT, PARAMETER, grouped
from lazygraph.trace import TUPLES
from lazyviz.draw.boxes import node_box
from lazyviz.draw.model import MARKS, Box, DrawGraph, clip, path_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazygraph.diff import GraphDiff, Hunk, HunkGroup, Operation
    from lazygraph.graph import Graph, Label
    from lazyviz.draw.model import Change

# A called computation in a label, which its fingerprint stands for.
CALLED = re.compile(r"(\w+)=#[0-9a-f]{16}")
# Sizes within a type, and numbers within attributes.
_SIZE = re.compile(r"(?<=[\[,])\d+(?=[,\]])")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_MAX_NESTING = 3
_MAX_KINDS = 3
_MAX_WORDS = 60
_MAX_LITERAL = 24


def change(found: GraphDiff, a: int, b: int, nesting: int = _MAX_NESTING) -> str:
    """Return the first part of a pair's labels that changed: op, type, literal, attributes.

    Of what it calls, what differs within; at most so many calls deep.
    """
    before, after = found.a.label(a), found.b.label(b)
    for old, new in (
        (before.type, after.type),
        (before.literal, after.literal),
        (before.op, after.op),
    ):
        if old != new:
            return f"{clip(old, _MAX_LITERAL)} → {clip(new, _MAX_LITERAL)}"
    told = changed_attributes(before.attrs, after.attrs)
    if nesting and told.startswith("differs within "):
        return clip(_inside(found, a, b, nesting - 1), _MAX_WORDS) or told
    return told


def changed_attributes(before: str, after: str) -> str:
    """Return the attributes that changed; of what is called, that it differs within.

    Example:
        >>> changed_attributes("dim=0, kind=kLoop", "dim=1, kind=kLoop")
        'dim=0 → dim=1'
        >>> changed_attributes("body=#0123456789abcdef", "body=#fedcba9876543210")
        'differs within body'
        >>> changed_attributes("True, [True", "False, [True")
        'True → False'
        >>> changed_attributes("calls=#0123456789abcdef, kind=kLoop", "calls=#fedcba9876543210, kind=kInput")
        'differs within calls'
    """
    old, new = Counter(before.split(", ")), Counter(after.split(", "))
    gone, came = [*(old - new).elements()], [*(new - old).elements()]
    parts = [part for part in (*gone, *came) if not part.startswith("kind=")]
    called = [CALLED.fullmatch(part) for part in parts]
    if called and all(called):
        return "differs within " + ", ".join(dict.fromkeys(c[1] for c in called if c))
    return f"{', '.join(gone) or 'none'} → {', '.join(came) or 'none'}"


def _ratios(before: str, after: str) -> set[float]:
    """Return by which factors the sizes of a type changed, and all of them together."""
    old, new = (list(map(int, _SIZE.findall(each))) for each in (before, after))
    if len(old) != len(new) or not all(old):
        return set()
    found = {b / a for a, b in zip(old, new, strict=True)} | {prod(new) / prod(old)}
    return found | {1 / each for each in found if each}  # a mean divides by a size


def _only_resized(before: Label, after: Label, ratios: set[float]) -> bool:
    """Return whether the numbers of a label changed as sizes did, and nothing else of it."""
    old, new = (f"{each.attrs} {each.literal}" for each in (before, after))
    if old == new:
        return True
    if _NUMBER.sub("", old) != _NUMBER.sub("", new):
        return False
    pairs = zip(_NUMBER.findall(old), _NUMBER.findall(new), strict=True)
    return all(
        a == b or (float(a) != 0 and float(b) / float(a) in ratios) for a, b in pairs
    )


def _inside(found: GraphDiff, a: int, b: int, nesting: int) -> str:
    """Return what differs in what a pair calls: `in calls: constant 2 → 3`."""
    parts = []
    for title, inner in nested_diffs(found, a, b):
        words = _words(inner, nesting)
        if words:
            parts.append(f"in {title.partition(':')[0]}: {words}")
    return "; ".join(parts)


def _words(inner: GraphDiff, nesting: int) -> str:
    changes = []
    for x, y in inner.changed[:_MAX_KINDS]:
        told = change(inner, x, y, nesting)
        op = inner.b.ops[y]
        is_told = told.startswith("in ") or inner.a.ops[x] != op
        changes.append(told if is_told else f"{op} {told}")
    if len(inner.changed) > _MAX_KINDS:
        changes.append(f"{len(inner.changed) - _MAX_KINDS:,} more changed")
    marks = [
        f"{mark} {_kinds(ops)}"
        for mark, ops in (
            ("+", [_named(inner.b.label(y)) for y in inner.added]),
            ("−", [_named(inner.a.label(x)) for x in inner.removed]),
        )
        if ops
    ]
    if not changes and not marks:
        rewired = dict.fromkeys(each.b for each in inner.rewired)
        marks = [f"⇄ {_kinds(inner.b.ops[y] for y in rewired)}"] if rewired else []
    return ", ".join([*dict.fromkeys(changes), *marks]) or "its results"


def _named(label: Label) -> str:
    is_constant = label.op == CONSTANT and label.literal
    return (
        f"{label.op} {clip(label.literal, _MAX_LITERAL)}" if is_constant else label.op
    )


def _kinds(ops: Iterable[str]) -> str:
    """Return kinds of op, the most frequent first: `2 add, tanh`."""
    counts = Counter(ops)
    shown = [
        f"{count} {op}" if count > 1 else op
        for op, count in counts.most_common(_MAX_KINDS)
    ]
    return ", ".join([*shown, "…"] if len(counts) > _MAX_KINDS else shown)


DEFAULT_BUDGET = 120
_FEW = 24  # boxes that need no folding
_MAX_FOLDS = 12
_MAX_NEIGHBOURS = 6

# A node of the union: of b, or of a if b has no such node.
Spot = tuple[str, int]


class Side(NamedTuple):
    """A node on one of the two sides.

    Attributes:
        graph: The program.
        node: Its position.
        first: The number by which the page asks for this program's first node.
    """

    graph: Graph
    node: int
    first: int


class _Unit(NamedTuple):
    """What is drawn as one box.

    Attributes:
        spot: The node, or the op of which others are results.
        called: What state of many parameters is called; empty for anything else.
        state: All of it.
    """

    spot: Spot
    called: str = ""
    state: tuple[Spot, ...] = ()


def union_graph(found: GraphDiff, budget: int = DEFAULT_BUDGET) -> DrawGraph:
    """Return the changed nodes of a diff with one hop of context; see `Union.overview`."""
    return Union(found).overview(budget)


class Union:
    """Two programs as one graph: of a pair one node is drawn, that of the second.

    Nodes of both programs have one number: those of the second come after the first's. The
    boxes of its drawings have these numbers as members.
    """

    def __init__(self, found: GraphDiff) -> None:
        self.found = found
        self._within: dict[tuple[str, str], bool] = {}

    @cached_property
    def places(self) -> list[HunkGroup]:
        """The kinds of place in which the programs differ, those in which it begins first.

        Changed inputs come before other ops, these before inputs that came or went.
        """
        return sorted(group_hunks(self.found.hunks()), key=self._rank)

    def _rank(self, group: HunkGroup) -> int:
        causes = self.causes.intersection(self._spots(group.exemplar))
        if any(map(self._is_changed_input, causes)):
            return 0
        return 1 + all(self.side(side).ops[node] == PARAMETER for side, node in causes)

    @cached_property
    def changes(self) -> dict[Spot, Change]:
        """What happened to the nodes that are not the same."""
        found = self.found
        changes: dict[Spot, Change] = {("b", y): "added" for y in found.added}
        changes |= {("a", x): "removed" for x in found.removed}
        changes |= {("b", each.b): "rewired" for each in found.rewired}
        return changes | {("b", y): "changed" for _, y in found.changed}

    @cached_property
    def causes(self) -> frozenset[Spot]:
        """The changed nodes that changed by themselves: what follows from others is not among them.

        What one side alone does, and another op, begin a change. Any other node follows from what
        it reads, if that changed and its own sizes are all that is new about it.
        """
        changes, found = self.changes, self.found
        redone = {("a", x) for x in found.redone[0]} | {
            ("b", y) for y in found.redone[1]
        }
        inputs = ((found.a.types[x], found.b.types[y]) for x, y in found.resized_inputs)
        ratios = {1.0}.union(*itertools.starmap(_ratios, inputs))
        begun: set[Spot] = set()
        for spot in sorted(changes.keys() - redone, key=self._height):
            what = changes[spot]
            reads_changed = any(start in changes for start, _ in self._incoming(spot))
            if what == "changed":
                before, after = self._labels(spot)
                sizes = _ratios(before.type, after.type)
                is_known = sizes <= ratios and before.op != PARAMETER
                ratios |= sizes
                is_resized = _only_resized(before, after, ratios)
                is_own = before.op != after.op or not (reads_changed or is_known)
                is_own = is_own or not (is_resized or self._follows_within(spot))
            else:
                is_own = what != "rewired" or not reads_changed
            if is_own:
                begun.add(spot)
        if found.begun is not None:
            own = {
                s
                for s in begun
                if not all(found.is_alike(*side[:2]) for side in self.sides(s) if side)
            }
            begun = own or begun
        # How many numbers an input packs is no cause beside the operations that read them.
        packed = set(filter(self._is_changed_input, begun))
        packed -= {("b", y) for _, y in found.resized_inputs}
        return frozenset(begun - packed or begun)

    def _is_changed_input(self, spot: Spot) -> bool:
        side, node = spot
        is_changed = self.changes[spot] == "changed"
        return is_changed and self.side(side).ops[node] == PARAMETER

    def operations(self) -> frozenset[Operation]:
        """Return with which of the framework's operations the programs begin to differ."""
        sides = (side for spot in self.causes for side in self.sides(spot) if side)
        done = (operations(side.graph, side.node) for side in sides)
        return frozenset(itertools.chain.from_iterable(done))

    def _follows_within(self, spot: Spot) -> bool:
        """Return whether all that is new about a pair follows, in what it calls, from its inputs."""
        before, after = self._labels(spot)
        key = before.attrs, after.attrs
        if not changed_attributes(*key).startswith("differs within "):
            return False
        if key not in self._within:
            inner = [Union(found) for _, found in self.inner(spot)]
            begun = [each.side(s).ops[n] for each in inner for s, n in each.causes]
            self._within[key] = bool(inner) and set(begun) == {PARAMETER}
        return self._within[key]

    def _labels(self, spot: Spot) -> tuple[Label, Label]:
        """Return the labels of a pair."""
        found = self.found
        return found.a.label(found.partner_b[spot[1]]), found.b.label(spot[1])

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return len(self.found.a) + len(self.found.b)

    def side(self, name: str) -> Graph:
        """Return one of the two programs."""
        return self.found.a if name == "a" else self.found.b

    def number(self, side: str, node: int) -> int:
        """Return the number of a node."""
        return node if side == "a" else len(self.found.a) + node

    def spot(self, asked: int) -> Spot:
        """Return the node of a number: that of the second program, if a pair has it."""
        of_a = len(self.found.a)
        return ("b", asked - of_a) if asked >= of_a else self._of_a(asked)

    def inner(self, spot: Spot) -> list[tuple[str, GraphDiff]]:
        """Return what differs within what a changed pair calls."""
        side, node = spot
        if side != "b" or self.changes.get(spot) != "changed":
            return []
        return nested_diffs(self.found, self.found.partner_b[node], node)

    def sides(self, spot: Spot) -> tuple[Side | None, Side | None]:
        """Return a node in the first program and in the second, None where it is not."""
        side, node = spot
        a = node if side == "a" else self.found.partner_b[node]
        b = node if side == "b" else -1
        return (
            Side(self.found.a, a, 0) if a >= 0 else None,
            Side(self.found.b, b, len(self.found.a)) if b >= 0 else None,
        )

    def overview(self, budget: int) -> DrawGraph:
        """Return what begins the difference with one hop of context, in about so many boxes.

        What follows is folded. Of places that look alike one is drawn.
        """
        chosen: dict[Spot, int] = {}  # how many places look like the one it is part of
        follow: dict[Spot, None] = {}
        units: set[_Unit] = set()
        first: set[Spot] = set()  # on which a view opens: inputs, else the first place
        room = max(4, budget // 3)
        inputs = set(filter(self._is_changed_input, self.causes))
        for group in self.places:
            spots = self._connected(group.exemplar, len(self.changes))
            rest = [spot for spot in spots if spot not in self.causes]
            follow |= dict.fromkeys(rest[:room])
            begun = [spot for spot in spots if spot in self.causes]
            begun.sort(key=lambda spot: spot not in inputs)
            own = set([*dict.fromkeys(map(self._unit, begun))][:room])
            if units and len(units | own) > budget:  # inputs always have room
                own &= set(map(self._unit, inputs))
            if not own:
                continue
            units |= own
            begun = [spot for spot in begun if self._unit(spot) in own]
            first = first or set(begun)
            chosen |= dict.fromkeys(begun, group.places)
        first = inputs & chosen.keys() or first
        drawn = self._with_context(chosen, first, budget)
        rest = [spot for spot in self.changes if spot not in self.causes]
        if len(drawn.boxes) + len(rest) <= _FEW:
            return self._with_context(chosen | dict.fromkeys(follow, 1), first, budget)
        return self._with_follow_ups(drawn, budget)

    def begins(self, group: HunkGroup) -> bool:
        """Return whether a change begins in places that look alike."""
        return not self.causes.isdisjoint(self._spots(group.exemplar))

    @cached_property
    def _units(self) -> dict[Spot, _Unit]:
        """What is drawn as one: state of many parameters, and an op with its several results."""
        found: dict[Spot, _Unit] = {}
        for side in ("a", "b"):
            graph = self.side(side)
            alike: dict[Change, list[int]] = {}
            for node, op in enumerate(graph.ops):
                spot = (side, node)
                if op in TUPLES and graph.ops[graph.operands[node][0]] != PARAMETER:
                    of = (side, graph.operands[node][0])
                    is_alike = self.changes.get(of) == self.changes.get(spot)
                    if is_alike or spot not in self.causes:
                        found[spot] = _Unit(of)
                elif op == PARAMETER:
                    what = self.changes.get(spot, "same")
                    alike.setdefault(what, []).append(node)
            for what, inputs in alike.items():
                for words, nodes in state_of(graph, inputs).items():
                    # What is the same stands beside the layer that reads it.
                    is_read_apart = what == "same" and words == "{} parameters"
                    if len(nodes) > 1 and not is_read_apart:
                        called = words.format(f"{len(nodes):,}").replace("`", "")
                        state = tuple((side, k) for k in nodes)
                        found |= dict.fromkeys(state, _Unit(state[0], called, state))
        return found

    def _unit(self, spot: Spot) -> _Unit:
        return self._units.get(spot, _Unit(spot))

    def _with_follow_ups(self, drawn: DrawGraph, budget: int) -> DrawGraph:
        """Return a drawing with what follows from it in pale boxes, one for each module.

        A module of many parts is one box where there are too many.
        """
        shown = {member for box in drawn.boxes for member in box.members}
        spots = sorted(
            (s for s in self.changes if s not in self.causes and self.number(*s) not in shown),
            key=self._height,
        )  # fmt: skip
        if not spots:
            return drawn
        room = max(2, min(_MAX_FOLDS, budget - len(drawn.boxes)))
        paths = {spot: self._box(spot).path for spot in spots}
        depth = max(map(len, paths.values()))
        while depth and len({path[:depth] for path in paths.values()}) > room:
            depth -= 1
        groups = grouped((paths[spot][:depth], spot) for spot in spots)
        boxes = list(drawn.boxes)
        where: dict[Spot, int] = {}
        for k, box in enumerate(boxes):
            where |= {self.spot(member): k for member in box.members}
        for path, members in groups.items():
            where |= dict.fromkeys(members, len(boxes))
            boxes.append(self._fold(path, members))
        edges = set(drawn.edges) | {
            (where[start], position)
            for end, position in where.items()
            for start, _ in self._incoming(end)
            if where.get(start, position) != position
        }
        return replace(
            drawn,
            boxes=tuple(boxes),
            edges=tuple(sorted(edges)),
            left_out=max(0, drawn.left_out - len(spots)),
        )

    def _fold(self, path: tuple[str, ...], spots: list[Spot]) -> Box:
        kinds = Counter(self._box(spot).label.partition(" ")[2] for spot in spots)
        common = [f"{n} {op}" for op, n in kinds.most_common(_MAX_KINDS)]
        many = len(spots)
        return Box(
            label=f"{path_text(path) or 'outside modules'}: {many:,} follow",
            detail=", ".join(common),
            kind="group",
            path=path,
            members=tuple(self.number(*spot) for spot in spots),
            change="changed",
            follows=True,
        )

    def folded(self, spots: Iterable[Spot], budget: int) -> DrawGraph:
        """Return what a folded box holds, with its surroundings; the first of it if it is much."""
        inside = list(spots)[:budget]
        chosen = dict.fromkeys(inside, 1)
        return self._with_context(chosen, set(inside), budget, apart=True)

    def place(self, group: HunkGroup, budget: int) -> DrawGraph:
        """Return one place of those that look alike, with its surroundings."""
        spots = self._connected(group.exemplar, budget)
        chosen = dict.fromkeys(spots, group.places)
        return self._with_context(chosen, set(spots), budget)

    def near(self, spot: Spot, hops: int, budget: int) -> DrawGraph:
        """Return what is so many edges from a node, on both sides; the nearest if it is too much."""
        found, edge = {spot: None}, [spot]
        for _ in range(hops):
            near = (each for spot in edge for each in self._neighbours(spot))
            edge = [each for each in near if each not in found]
            found |= dict.fromkeys(edge[: budget - len(found)])
        return self._drawing(list(found), {}, set())

    def _with_context(
        self,
        chosen: dict[Spot, int],
        first: set[Spot],
        budget: int,
        *,
        apart: bool = False,
    ) -> DrawGraph:
        context: dict[Spot, None] = {}
        units = {self._unit(spot) for spot in chosen}
        for spot in chosen:
            for near in self._neighbours(spot)[:_MAX_NEIGHBOURS]:
                if near not in chosen and len(units) < 2 * budget:
                    context[near] = None
                    units.add(self._unit(near))
        return self._drawing([*chosen, *context], chosen, first, apart=apart)

    def _drawing(
        self,
        spots: list[Spot],
        chosen: dict[Spot, int],
        first: set[Spot],
        *,
        apart: bool = False,
    ) -> DrawGraph:
        """Return nodes as a drawing.

        Args:
            spots: The nodes.
            chosen: Those that are drawn for themselves, with how many places look alike.
            first: Those on which a view opens.
            apart: Whether each has a box of its own, members of a unit too.
        """
        spots.sort(key=self._height)
        units: dict[_Unit, list[Spot]] = {}
        for spot in spots:
            unit = _Unit(spot) if apart else self._unit(spot)
            units.setdefault(unit, list(unit.state)).append(spot)
        position = {s: k for k, each in enumerate(units.values()) for s in each}
        edges: dict[Change, set[tuple[int, int]]] = {
            "same": set(), "added": set(), "removed": set()
        }  # fmt: skip
        for end in spots:
            for start, what in self._incoming(end):
                if position.get(start, position[end]) != position[end]:
                    edges[what].add((position[start], position[end]))
        boxes = []
        for unit, members in units.items():
            if unit.state:
                boxes.append(self._state_box(unit, first))
                continue
            spot = unit.spot
            near = () if spot in chosen else self._neighbours(spot)
            hidden = sum(1 for each in near if each not in position)
            box = replace(
                self._box(spot),
                hidden=hidden,
                is_first=spot in first,
                follows=spot in self.changes and spot not in self.causes,
                count=chosen.get(spot, 1),
                members=tuple(self.number(*s) for s in dict.fromkeys([spot, *members])),
            )
            boxes.append(box)
        drawn = sum(1 for spot in position if spot in self.changes)
        return DrawGraph(
            boxes=tuple(boxes),
            edges=tuple(sorted(set().union(*edges.values()))),
            nodes=len(spots),
            kind="difference of two graphs",
            added=frozenset(edges["added"]),
            removed=frozenset(edges["removed"]),
            left_out=len(self.changes) - drawn,
        )

    def _state_box(self, unit: _Unit, first: set[Spot]) -> Box:
        """Return the box of an optimizer's state of many parameters, or of many numbers."""
        what = self.changes.get(unit.spot, "same")
        return Box(
            label=unit.called if what == "same" else f"{MARKS[what]} {unit.called}",
            detail=f"{len(unit.state):,} inputs",
            kind="group",
            members=tuple(self.number(*spot) for spot in unit.state),
            change=what,
            is_first=not first.isdisjoint(unit.state),
        )

    def _height(self, spot: Spot) -> tuple[float, str]:
        """Return how far into the program a node is, on a scale that both sides share."""
        side, node = spot
        return node / max(1, len(self.side(side))), side

    def _spots(self, hunk: Hunk) -> list[Spot]:
        changed, rewired = (y for _, y in hunk.changed), (r.b for r in hunk.rewired)
        found: set[Spot] = {("b", y) for y in (*hunk.added, *changed, *rewired)}
        return sorted(found | {("a", x) for x in hunk.removed}, key=self._height)

    def _connected(self, hunk: Hunk, limit: int) -> list[Spot]:
        """Return the nodes of a place that lead to its last one, the nearest first."""
        spots = self._spots(hunk)
        inside, found = set(spots), dict.fromkeys(spots[-1:])
        queue = list(found)
        for spot in queue:
            operands = dict.fromkeys(each for each, _ in self._incoming(spot))
            near = [each for each in operands if each in inside and each not in found]
            queue += near
            found |= dict.fromkeys(near)
            if len(found) >= limit:
                break
        for spot in reversed(spots):
            if len(found) >= limit:
                break
            found[spot] = None
        return list(found)[:limit]

    def _of_a(self, node: int) -> Spot:
        partner = self.found.partner_a[node]
        return ("b", partner) if partner >= 0 else ("a", node)

    def _incoming(self, spot: Spot) -> Iterable[tuple[Spot, Change]]:
        """Yield the operands of a node on both sides, with whether both have the edge."""
        found = self.found
        side, node = spot
        old = node if side == "a" else found.partner_b[node]
        before = (
            {self._of_a(each) for each in found.a.operands[old]} if old >= 0 else set()
        )
        after = (
            {("b", each) for each in found.b.operands[node]} if side == "b" else set()
        )
        for start in before | after:
            if start in before and start in after:
                yield start, "same"
            else:
                yield start, "added" if start in after else "removed"

    def _neighbours(self, spot: Spot) -> list[Spot]:
        found = self.found
        side, node = spot
        near: dict[Spot, None] = {start: None for start, _ in self._incoming(spot)}
        if side == "b":
            near.update({("b", user): None for user, _ in found.b.users[node]})
            node = found.partner_b[node]
        if node >= 0:
            near.update({self._of_a(user): None for user, _ in found.a.users[node]})
        return list(near)

    def _box(self, spot: Spot) -> Box:
        side, node = spot
        graph = self.side(side)
        called = graph.holders.get(node, "") if graph.ops[node] == PARAMETER else ""
        box = node_box(graph, node, called)
        what, detail = self.changes.get(spot, "same"), box.detail
        if what == "changed":
            detail = change(self.found, self.found.partner_b[node], node)
        return replace(
            box,
            detail=detail,
            label=box.label if what == "same" else f"{MARKS[what]} {box.label}",
            members=(self.number(side, node),),
            change=what,
            anchor=f"{side}{node}",
        )
