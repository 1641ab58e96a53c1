"""A new graph beside the one before that is nearest: what is matched, and what differs."""

from __future__ import annotations

import re
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lazygraph.explain.model import NO_SOURCE
from lazygraph.match import match
from lazygraph.snapshot import AT_CONSTANTS, OPERAND, shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lazygraph.explain.model import Boundary, Record, Source
    from lazygraph.snapshot import Name, Origin, SourceLocation, Vertex

FALLBACK = "CPU fallback of "
LIMIT = "more than "
Position = tuple[str, int, str]
_VIEWS = frozenset(("view", "reshape", "_unsafe_view", "flatten", "ravel", "clone", "t",
                    "unsqueeze", "squeeze", "alias", "detach", "transpose", "expand", "_to_copy"))  # fmt: skip


def position(site: SourceLocation | None) -> Position | None:
    """Return what tells source lines apart; a cell that runs again is the same place."""
    if site is None:
        return None
    return ("" if site.cell is not None else site.file, site.line, site.function)


def differs(one: Boundary, other: Boundary) -> bool:
    """Return whether two boundaries are different places; a cell run again is the same one."""
    return one[0] != other[0] or position(one[1]) != position(other[1])


def is_break(boundary: Boundary) -> bool:
    """Return whether a read, a limit or a fallback ended the graph, and no mark of the program."""
    return boundary[0].startswith(("read", LIMIT, FALLBACK))


def is_view(vertex: Vertex) -> bool:
    """Return whether an op gives the elements of its operand, in another form."""
    return vertex.op.startswith("aten.") and vertex.op.split(".")[1] in _VIEWS


_Operand = tuple[int, int]


def slots(before: Vertex, now: Vertex) -> Iterator[tuple[_Operand, _Operand]]:
    """Yield operands of two ops that stand in one place: an argument's, where it has as many."""
    at_a = at_b = 0
    for one, other in zip(before.attrs, now.attrs, strict=False):
        old, new = one.count(OPERAND), other.count(OPERAND)
        if old == new:
            yield from zip(
                before.operands[at_a : at_a + old],
                now.operands[at_b : at_b + new],
                strict=True,
            )
        at_a, at_b = at_a + old, at_b + new


class Side:
    """One of the two graphs, with what is asked of it often.

    `partner` is -1 for a vertex without one; `free` has the vertices that are unmatched, changed,
    or with other operands.
    """

    def __init__(self, record: Record, partner: list[int], source: Source) -> None:
        assert record.snapshot is not None
        self.record = record
        self.source = source
        self.snapshot = record.snapshot
        self.vertices = record.snapshot.vertices
        self.roots = record.snapshot.roots
        self.partner = partner
        self.free: set[int] = set()

    def __getitem__(self, vertex: int) -> Vertex:
        return self.vertices[vertex]

    @cached_property
    def users(self) -> list[list[int]]:
        """For each vertex the vertices that read it."""
        found: list[list[int]] = [[] for _ in self.vertices]
        for number, vertex in enumerate(self.vertices):
            for operand, _ in vertex.operands:
                found[operand].append(number)
        return found

    @cached_property
    def leaves(self) -> list[int]:
        """The inputs."""
        return [k for k, vertex in enumerate(self.vertices) if vertex.is_leaf]

    @cached_property
    def unmatched(self) -> set[int]:
        """Vertices without a partner."""
        return {k for k, partner in enumerate(self.partner) if partner < 0}

    @cached_property
    def lines(self) -> set[Position | None]:
        """The source lines of the forward pass."""
        return {
            position(v.site) for v in self.vertices if not (v.is_leaf or v.backward)
        }

    @cached_property
    def all_names(self) -> list[Name]:
        """What the user calls inputs and results."""
        found = self.snapshot
        return [*found.leaf_names.values(), *found.root_names.values()]

    @cached_property
    def names(self) -> set[str]:
        """The names of inputs, results and all parameters that there were then."""
        return {name.text for name in self.all_names} | self.snapshot.modules.keys()

    @cached_property
    def read(self) -> set[str]:
        """The names of inputs."""
        return {name.text for name in self.snapshot.leaf_names.values()}

    @cached_property
    def updated(self) -> set[str]:
        """The names of parameters that the graph reads and gives anew."""
        names = self.snapshot.root_names.values()
        return {n.text for n in names if n.holder == "module" and n.text in self.read}

    def slot_key(self, vertex: int) -> object:
        """Return what two ops have in common that differ in their arguments alone."""
        found = self.vertices[vertex]
        tensors = sum(
            self.vertices[k].op not in {"float", "int"} for k, _ in found.operands
        )
        # A slice is one wherever its position comes from.
        op = AT_CONSTANTS.get(found.op, found.op)
        return (op, found.scope, position(found.site), tensors)

    def name(self, leaf: int) -> Name | None:
        """Return what the user calls an input."""
        return self.snapshot.leaf_names.get(leaf)

    def origin(self, leaf: int) -> Origin | None:
        """Return which execution made the data of an input."""
        return self.snapshot.origins.get(leaf)

    def root_name(self, rank: int) -> Name | None:
        """Return what the user calls a result."""
        return self.snapshot.root_names.get(rank)

    def site(self, vertices: Iterable[int]) -> SourceLocation | None:
        """Return the line of the first of some vertices, forward ones preferred.

        An input has the line that reads it first.
        """
        first = None
        for k in vertices:
            vertex = self.vertices[k]
            if vertex.is_leaf:
                readers = self.users[k]
                vertex = self.vertices[readers[0]] if readers else vertex
            if vertex.site is not None:
                if not vertex.backward:
                    return vertex.site
                first = first or vertex.site
        return first

    def reading_site(self, leaf: int) -> SourceLocation | None:
        """Return the line that reads an input first, of those that have its name if any do.

        An op that equals one of an earlier step has that one's line.
        """
        name = self.name(leaf)
        words = {*re.findall(r"\w+", name.text)} if name is not None else set()
        sites = dict.fromkeys(self.vertices[user].site for user in self.users[leaf])
        named = (
            site
            for site in sites
            if words.intersection(re.findall(r"\w+", self.source.statement(site)))
        )
        return next(named, None) or self.site([leaf])

    def downstream(
        self, seeds: Iterable[int], inside: Callable[[int], bool]
    ) -> dict[int, int]:
        """Return the vertices that follow from some, each with its distance."""
        found = dict.fromkeys(seeds, 0)
        queue = list(found)
        for vertex in queue:
            for user in self.users[vertex]:
                if user not in found and inside(user):
                    found[user] = found[vertex] + 1
                    queue.append(user)
        return found

    def ancestors(
        self, seeds: Iterable[int], inside: Callable[[int], bool]
    ) -> dict[int, int]:
        """Return the vertices that some are computed from, each with its distance."""
        found = {seed: 0 for seed in seeds if inside(seed)}
        queue = list(found)
        for vertex in queue:
            for operand, _ in self.vertices[vertex].operands:
                if operand not in found and inside(operand):
                    found[operand] = found[vertex] + 1
                    queue.append(operand)
        return found

    def dominated(self, roots: Iterable[int], seeds: Iterable[int] = ()) -> set[int]:
        """Return the free vertices that nothing needs but some vertices, or results by position."""
        wanted = Counter(self.roots[k][0] for k in {*roots})
        found = {*seeds}
        starts = found | wanted.keys()
        inside = self.ancestors(starts, lambda k: k in starts or k in self.unmatched)
        for k in sorted(inside.keys() & self.unmatched - found, reverse=True):
            if self._times_result[k] > wanted[k]:
                continue
            readers = self.users[k]
            if (readers or k in wanted) and found.issuperset(readers):
                found.add(k)
        return found

    @cached_property
    def _times_result(self) -> Counter[int]:
        """How many results each vertex is."""
        return Counter(vertex for vertex, _ in self.roots)


class Comparison:
    """Two graphs, matched, and what is known of the graphs around them: `a` ran before, `b` is new.

    `changed` gives for a vertex of `b` its partner, where their labels differ; `rewired` has those
    that read something else than their partner. `step` has graphs of the same step that ran before,
    the latest first. `readers` read results of `a`, `makers` computed what `a` reads; all of them
    end elsewhere. `switched` modules train on one side and are evaluated on the other; `modules`
    are on one side alone.
    """

    def __init__(
        self,
        before: Record,
        now: Record,
        records: Iterable[Record] = (),
        runs: Iterable[Record] = (),
        source: Source = NO_SOURCE,
    ) -> None:
        assert before.snapshot is not None
        assert now.snapshot is not None
        found = match(before.snapshot.graph, now.snapshot.graph, quick=True)
        self.a = Side(before, list(found.a.partner), source)
        self.b = Side(now, list(found.b.partner), source)
        self.source = source
        for k, partner in enumerate(self.b.partner):
            if partner >= 0 and self._is_other(k, partner):
                self.a.partner[partner] = self.b.partner[k] = -1
        self._pair_parameters()
        self._pair_nearer()
        self._pair_same_slots()
        self.changed: dict[int, int] = {}
        self.rewired: set[int] = set()
        for k, partner in enumerate(self.b.partner):
            if partner >= 0:
                self._compare(k, partner)
        self.b.free = {*self.b.unmatched, *self.changed, *self.rewired}
        self.a.free = {*self.a.unmatched, *self.changed.values()}
        self.a.free |= {self.b.partner[k] for k in self.rewired}
        self.new_results, self.gone_results = self._unpaired_results()
        self.step = list(runs)
        made = {origin.graph for origin in before.snapshot.origins.values()}
        self.readers = [
            record
            for record in records
            if _is_neighbour(record, before) and _reads(record, before.name)
        ]
        self.makers = [
            record
            for record in records
            if record.name in made and _is_neighbour(record, before)
        ]
        self.switched: set[str] = set()
        self.modules: set[str] = set()

    def _is_other(self, k: int, partner: int) -> bool:
        """Return whether what stands at one place is another op, or a tensor unlike the other."""
        now, before = self.b[k], self.a[partner]
        if now.op != "data" or before.op != "data":
            return now.op != before.op
        (one, other) = (vertex.types[0].partition("[") for vertex in (now, before))
        name, old = self.b.name(k), self.a.name(partner)
        if name and old and {name.holder, old.holder} == {"module", "optimizer"}:
            return True
        if one == other or name == old:
            return False
        both = name and old and name.text in self.a.names and old.text in self.b.names
        return bool(both) or (one[0] != other[0] and one[2] != other[2])

    def _pair_parameters(self) -> None:
        """Pair parameters by their names: equal layers look alike, and one may not be called."""
        a, b = self.a, self.b
        names = a.snapshot.leaf_names.items()
        known = {name.text: k for k, name in names if name.in_module}
        for k, name in b.snapshot.leaf_names.items():
            own, other = known.get(name.text, -1), b.partner[k]
            if not name.in_module or own == other:
                continue
            called = a.name(other) if other >= 0 else None
            if own >= 0 or (called and name.text in a.names and called.text in b.names):
                for side, vertex in (
                    (b, a.partner[own] if own >= 0 else -1),
                    (a, other),
                ):
                    if vertex >= 0:
                        side.partner[vertex] = -1
                b.partner[k] = own
                if own >= 0:
                    a.partner[own] = k

    def _pair_nearer(self) -> None:
        """Pair an op with its equal, or else with one of its line that is more alike.

        Matching counts all results of an op as one, and does not know that layers have names.
        """
        a, b = self.a, self.b
        for k, vertex in enumerate(b.vertices):
            read = {b.partner[o] for o, _ in vertex.operands} - {-1}
            near = {one for o in read for one in a.users[o] if a[one].op == vertex.op}
            for one in sorted(near - {b.partner[k]}):
                other, left = b.partner[k], a.partner[one]
                score = self._agree(k, one)
                if other < 0:
                    is_nearer = score[0] > len(vertex.operands)
                else:
                    is_nearer = position(a[one].site) == position(vertex.site)
                    is_nearer &= score > self._agree(k, other)
                if is_nearer and (left < 0 or score > self._agree(left, one)):
                    a.partner[one], b.partner[k] = k, one
                    if other >= 0:
                        a.partner[other] = left
                    if left >= 0:
                        b.partner[left] = other

    def _agree(self, k: int, partner: int) -> tuple[int, int]:
        """Return how many operands two ops have in common, and how many readers.

        It is one more than the operands where they do the same.
        """
        now, before = self.b[k], self.a[partner]
        pairs = slots(before, now)
        alike = sum((self.b.partner[o], i) == other for other, (o, i) in pairs)
        readers = {self.b.partner[user] for user in self.b.users[k]}
        shared_readers = readers.intersection(self.a.users[partner])
        return alike + (now.label == before.label), len(shared_readers)

    def _pair_same_slots(self) -> None:
        """Pair an op with the one that a reader's partner reads in its place, of the same line."""
        queue = [
            (k, partner) for k, partner in enumerate(self.b.partner) if partner >= 0
        ]
        for reader, partner in queue:
            for (old, _), (new, _) in slots(self.a[partner], self.b[reader]):
                if self.a.partner[old] >= 0 or self.b.partner[new] >= 0:
                    continue
                keys = self.a.slot_key(old), self.b.slot_key(new)
                if keys[0] == keys[1] and not self.a[old].is_leaf:
                    self.a.partner[old], self.b.partner[new] = new, old
                    queue.append((new, old))

    def _compare(self, k: int, partner: int) -> None:
        now, before = self.b[k], self.a[partner]
        if now.label != before.label:
            self.changed[k] = partner
        elif now.operands != tuple(
            (self.a.partner[operand], index) for operand, index in before.operands
        ):
            self.rewired.add(k)

    @cached_property
    def forward_differs(self) -> bool:
        """Whether anything but inputs and what backward recorded differs."""
        return any(
            not (side[k].is_leaf or side[k].backward)
            for side in (self.a, self.b)
            for k in side.free
        )

    @cached_property
    def substitutions(self) -> list[tuple[int, int, int]]:
        """(reader in b, operand in a, operand in b) where a pair reads something else."""
        found = []
        for k, partner in enumerate(self.b.partner):
            if partner < 0:
                continue
            for (old, old_index), (new, new_index) in slots(self.a[partner], self.b[k]):
                if self.a.partner[old] != new or new_index != old_index:
                    found.append((k, old, new))
        return found

    @cached_property
    def replaced(self) -> dict[int, set[int]]:
        """For what the new graph reads, the vertices that its readers' partners read instead."""
        found: dict[int, set[int]] = {}
        for _, old, new in self.substitutions:
            found.setdefault(new, set()).add(old)
        return found

    def _are_two(self, old: int, new: int) -> bool:
        """Return whether two results are parameters that both sides have."""
        one, other = self.a.root_name(old), self.b.root_name(new)
        if one is None or other is None or one.text == other.text:
            return False
        if not (one.in_module and other.in_module):
            return False
        return one.text in self.b.names and other.text in self.a.names

    def _unpaired_results(self) -> tuple[list[int], list[int]]:
        """Return the results of one side alone: of equal vertices, of equal names, of one line.

        Parameters that both sides have under their own names are two.
        """
        a, b = self.a, self.b
        gone = dict.fromkeys(range(len(a.roots)))
        new = dict.fromkeys(range(len(b.roots)))

        def pair(
            key_a: Callable[[int], object], key_b: Callable[[int], object]
        ) -> None:
            table: dict[object, list[int]] = {}
            for k in gone:
                if (key := key_a(k)) is not None:
                    table.setdefault(key, []).append(k)
            for k in list(new):
                waiting = table.get(key_b(k), [])
                found = next((j for j in waiting if not self._are_two(j, k)), None)
                if found is not None:
                    waiting.remove(found)
                    del gone[found], new[k]

        pair(lambda k: (a.partner[a.roots[k][0]], a.roots[k][1]), lambda k: b.roots[k])
        pair(a.root_name, b.root_name)

        def line(side: Side) -> Callable[[int], object]:
            def key(k: int) -> object:
                vertex = side[side.roots[k][0]]
                named = side.root_name(k)
                return (named is None, vertex.op, vertex.scope, position(vertex.site))

            return key

        pair(line(a), line(b))
        return list(new), list(gone)


def _is_neighbour(record: Record, other: Record) -> bool:
    return (
        record is not other
        and record.snapshot is not None
        and differs(record.key.ended_by, other.key.ended_by)
    )


def _reads(record: Record, graph: str) -> bool:
    assert record.snapshot is not None
    return any(origin.graph == graph for origin in record.snapshot.origins.values())


# Which of the graphs before a new one is compared with.

# Each thing in common counts a tenth of the share of operations, which ranges from 0 to 1: the end,
# the sort of end, and the start. One number for all: of 819 explanations of the tests, 1 was compared with another graph under five weights.
_TENTH = 0.1
# A graph that is a part of the other one is similar, but less so than an equal; a graph of two
# operations is a part of many. Without this, 16 of 267 recompilations were compared with others.
_AS_PART = 0.9
_LEAST_PART = 3


def nearest(record: Record, records: Iterable[Record]) -> tuple[Record, float] | None:
    """Return the graph that explains a new one best, if any, and their similarity from 0 to 1.

    All are considered: by operations and types first, then by the lines where they begin and end. Of
    equals it is the one that has fewest operations which the new
    one lacks: work that joined a step takes nothing from it. Then it is the one that ran last. Few
    are compared type by type: the others' operations alone say that they rank behind.
    """
    others = [
        (op_similarity(record, other), other)
        for other in records
        if other is not record and other.labels is not None and other.snapshot
    ]
    if not others:
        return None
    others.sort(key=lambda item: item[0], reverse=True)
    alike: dict[Record, float] = {}
    most = 0.0
    for bound, other in others:
        if bound <= most:
            break
        alike[other] = closeness(record, other)
        most = max(most, alike[other])
    best = _best(record, others, alike)
    return best, min(1.0, alike[best])


def _best(
    record: Record, others: list[tuple[float, Record]], alike: dict[Record, float]
) -> Record:
    """Return the best by all measures."""
    bounds = [
        (ops + _boundary_similarity(record, other), age, other)
        for age, (ops, other) in enumerate(others)
    ]
    bounds.sort(key=lambda item: item[:2], reverse=True)
    best: tuple[float, int, int, str] = (-1.0, 0, -1, "")
    found = others[0][1]
    for bound, _, other in bounds:
        if bound + _TENTH < best[0]:
            break
        if other not in alike:
            alike[other] = closeness(record, other)
        score = (
            alike[other]
            + _boundary_similarity(record, other)
            + _input_similarity(record, other)
        )
        lacked = (other.ops - record.ops).total()
        rank = (score, -lacked, other.last_step, other.name)
        if rank > best:
            best, found = rank, other
    return found


def closeness(one: Record, other: Record) -> float:
    """Return the similarity by ops and types; the same ops on other sizes are close too."""
    assert one.labels is not None
    assert other.labels is not None
    typed = _similarity(one.labels, other.labels)
    return max(typed, (typed + 2 * op_similarity(one, other)) / 3)


def op_similarity(one: Record, other: Record) -> float:
    """Return a cheap similarity, never less than `closeness`: of ops alone, types ignored."""
    return _similarity(one.ops, other.ops)


def _similarity(one: Counter[Any], other: Counter[Any]) -> float:
    common = shared(one, other)
    sizes = one.total(), other.total()
    whole, part = common / max(*sizes, 1), common / max(min(sizes), 1)
    return max(whole, _AS_PART * part if min(sizes) >= _LEAST_PART else 0.0)


def _boundary_similarity(one: Record, other: Record) -> float:
    ends = not differs(one.key.ended_by, other.key.ended_by)
    begins = (
        not differs(one.key.began_after, other.key.began_after)
        or not other.key.began_after[0]  # the first graph begins with the program
        or position(one.lines[0]) == position(other.lines[0]) is not None
    )
    sort = _sort(one.key.ended_by[0]) == _sort(other.key.ended_by[0])
    return _TENTH * (ends + sort + begins)


def _sort(ended_by: str) -> str:
    """Return what sort of mark ended a graph: a block, by whatever name, a read, a loader."""
    return ended_by.partition(" ")[0]


def _input_similarity(one: Record, other: Record) -> float:
    """Return how alike two graphs are by the names of what they read besides modules."""
    held = [r.snapshot.leaf_names.values() if r.snapshot else () for r in (one, other)]
    a, b = ({n.text for n in names if not n.in_module} for names in held)
    return _TENTH * len(a & b) / max(len(a | b), 1)
