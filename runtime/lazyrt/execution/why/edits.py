"""The differences between two graphs that still want a cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyrt.execution.why.causes import Taken
from lazyrt.ir.match import Match, cone, match

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lazyrt.execution.census import CompiledGraph
    from lazyrt.ir.snapshot import Name, Snapshot, Vertex
    from lazyrt.observe.events import Site


Place = tuple[str, int, str]

_MAX_CONES = 64
_VIEWS = frozenset(("view", "reshape", "_unsafe_view", "flatten", "ravel", "clone", "t",
                    "unsqueeze", "squeeze", "alias", "detach"))  # fmt: skip


class Edits:
    """What differs between two graphs; each detector takes out what it explains.

    Attributes:
        before, now: The records that are compared, with snapshots `a` and `b`.
        added: Free vertices of `b`; `removed`: of `a`.
        changed: Vertex of `b` to its partner in `a`, where their labels differ.
        new_roots, gone_roots: Positions among the roots that only one side has.
        is_partly_explained: Whether a detector has taken something out.
    """

    def __init__(self, before: CompiledGraph, now: CompiledGraph) -> None:
        assert before.snapshot is not None
        assert now.snapshot is not None
        self.before, self.now = before, now
        self.a, self.b = before.snapshot, now.snapshot
        ran_alone = now.key.mode == "eager" != before.key.mode
        self.match = _without_mistaken(match(self.a, self.b), ran_alone=ran_alone)
        self.added = set(self.match.added)
        self.removed = set(self.match.removed)
        self.changed = {k: partner for partner, k in self.match.changed}
        self.new_roots, self.gone_roots = _unpaired_roots(self)
        self.is_partly_explained = False

    @property
    def remaining(self) -> int:
        """How many differences have no cause yet."""
        return len(self.added) + len(self.removed) + len(self.changed)

    def take(
        self,
        added: Iterable[int] = (),
        removed: Iterable[int] = (),
        changed: Iterable[int] = (),
    ) -> Taken:
        """Take differences out, and return their numbers as a cause's fields."""
        came = self.added & set(added)
        went = self.removed & set(removed)
        other = self.changed.keys() & set(changed)
        self.added -= came
        self.removed -= went
        for vertex in other:
            del self.changed[vertex]
        # A root that goes with what was taken needs no cause of its own.
        self.new_roots = [k for k in self.new_roots if self.b.roots[k][0] not in came]
        self.gone_roots = [k for k in self.gone_roots if self.a.roots[k][0] not in went]
        self.is_partly_explained |= bool(came or went or other)
        return Taken(len(came), len(went), len(other))

    def take_all(self) -> Taken:
        """Take out every difference that is left."""
        return self.take(tuple(self.added), tuple(self.removed), tuple(self.changed))


def _without_mistaken(found: Match, *, ran_alone: bool) -> Match:
    """Return a match without pairs of inputs that are two things.

    A parameter that is made again is no other module's parameter, and what a debug mode ran by
    itself is no data of the program.
    """
    a, b = found.before, found.now
    made = {name.text for name in b.root_names.values() if name.in_module}
    made -= {name.text for name in b.leaf_names.values()} | updated(b)
    wrong = {
        leaf: found.to_now[leaf]
        for leaf, name in a.leaf_names.items()
        if name.text in made and found.to_now[leaf] in b.leaf_names
    }
    for leaf, origin in b.origins.items():
        other = found.to_before[leaf]
        if origin.how and other in a.origins and not a.origins[other].how:
            wrong[other] = leaf
    if ran_alone:
        wrong |= _of_other_modules(found)
    if not wrong:
        return found
    partners = set(wrong.values())
    to_now = [-1 if k in wrong else n for k, n in enumerate(found.to_now)]
    to_before = [-1 if k in partners else n for k, n in enumerate(found.to_before)]
    return Match(a, b, tuple(to_now), tuple(to_before))


def updated(snapshot: Snapshot) -> set[str]:
    """Return the names of parameters that are inputs written in place, whatever those are called."""
    return {
        name.text
        for k, name in snapshot.root_names.items()
        if name.in_module and _is_written(snapshot, *snapshot.roots[k])
    }


def _is_written(snapshot: Snapshot, vertex: int, index: int) -> bool:
    """Return whether a result is an input after some ops in place, of one tensor or of many."""
    type_ = snapshot.vertices[vertex].types[index]
    while not snapshot.vertices[vertex].is_leaf:
        found = snapshot.vertices[vertex]
        slot = index if len(found.types) > 1 else 0
        if slot >= len(found.operands):
            return False
        vertex, index = found.operands[slot]
        if snapshot.vertices[vertex].types[index] != type_:
            return False
    return snapshot.vertices[vertex].op == "data"


def _of_other_modules(found: Match) -> dict[int, int]:
    """Return pairs in which a module that has nothing in one graph stands for another one."""
    there = {vertex.scope for vertex in found.now.vertices}
    return {
        one: other
        for one, other in enumerate(found.to_now)
        if other >= 0 and found.before.vertices[one].scope not in there
    }


def _unpaired_roots(edits: Edits) -> tuple[list[int], list[int]]:
    """Return the roots that only `b` has, and those that only `a` has.

    A root is the other side's when its vertex is, its name is, or its kind is and both are
    free: then the program computes it in another way.
    """
    a, b, match_ = edits.a, edits.b, edits.match
    place_in_b = {root: k for k, root in enumerate(b.roots)}
    ours, theirs = set(range(len(b.roots))), set(range(len(a.roots)))
    for k, (vertex, index) in enumerate(a.roots):
        other = place_in_b.get((match_.to_now[vertex], index))
        if other is not None and not _is_moved_in_list(edits, k, other):
            ours.discard(other)
            theirs.discard(k)
    _pair_off(ours, theirs, b.root_names.get, a.root_names.get)
    for kind in (_place, _type, _line):
        _pair_off(
            ours,
            theirs,
            lambda k, kind=kind: kind(b, k, match_.to_before),  # type: ignore[misc]
            lambda k, kind=kind: kind(a, k, match_.to_now),  # type: ignore[misc]
        )
    _pair_extended(edits, ours, theirs)
    return sorted(ours), sorted(theirs)


def _is_moved_in_list(edits: Edits, was: int, now: int) -> bool:
    """Return whether two roots are two things: results of an op that has more of them now.

    A list of gradients that lacks some has the others at other positions.
    """
    names = edits.a.root_names.get(was), edits.b.root_names.get(now)
    sides = (edits.a, was), (edits.b, now)
    lengths = {len(side.vertices[side.roots[k][0]].types) for side, k in sides}
    return len(lengths) > 1 and None not in names and names[0] != names[1]


def _pair_extended(edits: Edits, ours: set[int], theirs: set[int]) -> None:
    """Pair unnamed results where the new one is computed from what the old one was."""
    a, b = edits.a, edits.b
    old = sorted(theirs - set(a.root_names))
    new = sorted(ours - set(b.root_names))
    if not old or not new:
        return
    needs = _needs(b, [edits.match.to_now[a.roots[other][0]] for other in old])
    for k in new:
        wanted = needs[b.roots[k][0]]
        place = next(
            (n for n, o in enumerate(old) if wanted >> n & 1 and o in theirs), -1
        )
        if place >= 0:
            ours.discard(k)
            theirs.discard(old[place])


def _needs(snapshot: Snapshot, targets: list[int]) -> list[int]:
    """Return for each vertex which targets it needs, as bits: one pass for however many."""
    bits = [0] * len(snapshot.vertices)
    for place, target in enumerate(targets):
        if target >= 0:
            bits[target] |= 1 << place
    for number, vertex in enumerate(snapshot.vertices):
        for operand, _ in vertex.operands:
            bits[number] |= bits[operand]
    return bits


def _pair_off(
    ours: set[int],
    theirs: set[int],
    our_key: Callable[[int], object],
    their_key: Callable[[int], object],
) -> None:
    table: dict[object, list[int]] = {}
    for k in sorted(theirs):
        key = their_key(k)
        if key is not None:
            table.setdefault(key, []).append(k)
    for k in sorted(ours):
        found = table.get(our_key(k))
        if found:
            theirs.discard(found.pop(0))
            ours.discard(k)


def _place(snapshot: Snapshot, k: int, partners: tuple[int, ...]) -> object:
    vertex_number = snapshot.roots[k][0]
    vertex = snapshot.vertices[vertex_number]
    if partners[vertex_number] >= 0 or vertex.site is None:
        return None
    return (vertex.types, vertex.scope, vertex.site.line, vertex.site.function)


def _type(snapshot: Snapshot, k: int, partners: tuple[int, ...]) -> object:
    vertex, index = snapshot.roots[k]
    named = k in snapshot.root_names
    if partners[vertex] >= 0 or named:
        return None
    return snapshot.vertices[vertex].types[index]


def _line(snapshot: Snapshot, k: int, _: tuple[int, ...]) -> object:
    """Return the op, line and sizes of what nothing names, such as what backward needs."""
    number, index = snapshot.roots[k]
    vertex = snapshot.vertices[number]
    if k in snapshot.root_names or vertex.site is None:
        return None
    return (vertex.op, place(vertex.site), vertex.types[index].partition("[")[2])


def exclusive(
    snapshot: Snapshot, roots: Iterable[int], free: set[int]
) -> tuple[set[int], dict[int, set[int]]]:
    """Return the free vertices that only `roots` need: all together, and of each alone.

    Args:
        snapshot: The graph.
        roots: Positions among its roots.
        free: Vertices without a partner.
    """
    wanted = set(roots)
    others = [vertex for k, (vertex, _) in enumerate(snapshot.roots) if k not in wanted]
    kept = cone(snapshot, others, lambda vertex: vertex in free)
    # Matched vertices may read free ones too.
    kept |= cone(
        snapshot,
        [
            operand
            for number, vertex in enumerate(snapshot.vertices)
            if number not in free
            for operand, _ in vertex.operands
        ],
        lambda vertex: vertex in free,
    )
    each: dict[int, set[int]] = {}
    inside = free - kept
    for k in sorted(wanted):
        each[k] = cone(snapshot, [snapshot.roots[k][0]], inside.__contains__)
        if len(each) > _MAX_CONES:  # of so many, later ones get what is left
            inside -= each[k]
    return set().union(*each.values()), each


def of_results(
    snapshot: Snapshot, roots: Iterable[int], free: set[int], near: set[int]
) -> set[int]:
    """Return the free vertices, of no module, that only results kept by the program need.

    Args:
        snapshot: The graph.
        roots: Positions of results that one side alone has.
        free: Vertices without a partner.
        near: Vertices that are something else's whatever needs them.
    """
    kept = [k for k in roots if is_kept(snapshot.root_names.get(k))]
    alone = exclusive(snapshot, kept, free)[0] if kept else set()
    return {k for k in alone - near if not snapshot.vertices[k].scope}


def is_kept(name: Name | None) -> bool:
    """Return whether something holds a tensor beyond the variables of the running code."""
    return (
        name is not None
        and not name.in_module
        and not name.holder.startswith(("variable", "local", "gradient", "optimizer"))
    )


def connected(snapshot: Snapshot, seeds: Iterable[int], free: set[int]) -> set[int]:
    """Return the free vertices that edges among free vertices connect with `seeds`."""
    users = snapshot.users()
    found: set[int] = set()
    stack = [seed for seed in seeds if seed in free]
    while stack:
        vertex = stack.pop()
        if vertex in found:
            continue
        found.add(vertex)
        near = [operand for operand, _ in snapshot.vertices[vertex].operands]
        near += [user for user, _ in users[vertex]]
        stack += [other for other in near if other in free and other not in found]
    return found


def not_reached(edits: Edits) -> set[int]:
    """Return what the graph before computes from results of the new one, as one cut short lacks.

    It is read by nothing that both have: what is missing in the middle has other reasons.
    """
    users = edits.a.users()
    ends = {vertex for vertex, _ in edits.b.roots}
    for k in sorted(ends, reverse=True):  # a result in another shape is the same result
        while is_view(edits.b.vertices[k]) and edits.b.vertices[k].operands:
            k = edits.b.vertices[k].operands[0][0]  # noqa: PLW2901 - the way down
            ends.add(k)
    for k in edits.added:  # of a longer loop, what the rounds before gave
        ends.update(operand for operand, _ in edits.b.vertices[k].operands)
    results = {edits.match.to_before[vertex] for vertex in ends} - {-1}
    called = set(
        edits.b.root_names.values()
    )  # a gradient that is scaled is the gradient
    results |= {edits.a.roots[k][0] for k, name in edits.a.root_names.items() if name in called}  # fmt: skip
    below: set[int] = set()
    for k in sorted(edits.removed):
        operands = {operand for operand, _ in edits.a.vertices[k].operands}
        if operands & results or operands & below:
            below.add(k)
    found: set[int] = set()
    for k in sorted(edits.removed, reverse=True):
        readers = [user for user, _ in users[k]]
        if (k in below or readers) and found.issuperset(readers):
            found.add(k)
    return found


def first_site(vertices: Iterable[Vertex]) -> Site | None:
    """Return the line of the first vertex that has one, forward ones preferred."""
    found = [vertex for vertex in vertices if vertex.site is not None]
    forward = [vertex for vertex in found if not vertex.backward]
    return (forward or found)[0].site if found else None


def is_view(vertex: Vertex) -> bool:
    """Return whether an op gives the same elements in another shape."""
    return vertex.op.startswith("aten.") and vertex.op.split(".")[1] in _VIEWS


def place(site: Site | None) -> Place | None:
    """Return what tells lines apart; a cell that runs again is the same place."""
    if site is None:
        return None
    file = "" if site.cell is not None else site.file
    return (file, site.line, site.function)


def at(site: Site | None) -> str:
    """Return ` at cell 3 line 2`, or nothing for an unknown line."""
    return f" at {site}" if site is not None else ""


def count(number: int, noun: str) -> str:
    """Return `1 input`, `2 inputs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(names: Iterable[str], limit: int = 3) -> str:
    """Return names in backticks, the first few of many."""
    found = list(dict.fromkeys(names))
    shown = ", ".join(f"`{name}`" for name in found[:limit])
    return shown + (f" and {len(found) - limit} more" if len(found) > limit else "")


def with_leaves(
    snapshot: Snapshot, vertices: Iterable[int], free: set[int]
) -> set[int]:
    """Return free vertices with the free inputs that only they read."""
    found = set(vertices)
    users = snapshot.users()
    found |= {
        k
        for k in free
        if snapshot.vertices[k].is_leaf and all(user in found for user, _ in users[k])
    }
    return found


def readers_of(snapshot: Snapshot, vertices: Iterable[int]) -> list[int]:
    """Return what reads some vertices, repeats included."""
    users = snapshot.users()
    return [user for vertex in vertices for user, _ in users[vertex]]


def lists(edits: Edits, came: Iterable[int], gone: Iterable[int]) -> set[int]:
    """Return the changed ops that join many tensors, more or fewer by some that came or went.

    With them comes what follows from their length alone.
    """
    came, gone = {*came}, {*gone}
    joins = [
        k
        for k, partner in edits.changed.items()
        if len(edits.b.vertices[k].operands) != len(edits.a.vertices[partner].operands)
        and (
            any(operand in came for operand, _ in edits.b.vertices[k].operands)
            or any(o in gone for o, _ in edits.a.vertices[partner].operands)
        )
    ]
    return downstream(edits.b, joins, set(edits.changed)) if joins else set()


def downstream(snapshot: Snapshot, seeds: Iterable[int], free: set[int]) -> set[int]:
    """Return vertices with the free ones that follow from them."""
    users = snapshot.users()
    found: set[int] = set()
    stack = list(seeds)
    while stack:
        vertex = stack.pop()
        if vertex in found:
            continue
        found.add(vertex)
        stack += [user for user, _ in users[vertex] if user in free]
    return found


def leaf_name(snapshot: Snapshot, leaf: int) -> str:
    """Return what the user calls an input; empty where it has no name."""
    return snapshot.leaf_names[leaf].text if leaf in snapshot.leaf_names else ""


def text_of(name: Name | None) -> str:
    """Return what the user calls a tensor; empty where it has no name."""
    return name.text if name is not None else ""


def leaf_site(snapshot: Snapshot, leaf: int) -> Site | None:
    """Return the line of the first operation that reads an input."""
    readers = [
        vertex
        for vertex in snapshot.vertices
        if any(operand == leaf for operand, _ in vertex.operands)
    ]
    return first_site(readers)
