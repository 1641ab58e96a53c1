"""What differs between two graphs, at what cost, in which hunks, and by which edits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from lazygraph.graph import (
    PARAMETER,
    Graph,
    GraphBuilder,
    HloError,
    Label,
    gc_paused,
    grouped,
)
from lazygraph.match import lists, match
from lazygraph.normalize import called, graph_of_module
from lazygraph.read.hlo_module import HloModule
from lazygraph.read.open import graph_of
from lazygraph.read.stablehlo import MlirModule

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Container,
        Iterable,
        Iterator,
        Sequence,
    )

    from lazygraph.graph import DeadNode, Origin
    from lazygraph.read.hlo_module import Computation


_SHOWN_SCOPES = 3
_MAX_TOGETHER = 20
# A region of more than so many nodes is split by module, and a part of as many by source line.
_SPLIT_KEYS = (attrgetter("scope"), attrgetter("site"))


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
        follows: Whether it is a part of a larger region in which no change begins.
        signature: Equal for regions that look alike.
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
        """Whether each of them is a part of a larger region, and no change begins in it."""
        return all(hunk.follows for hunk in self.hunks)

    @property
    def places(self) -> int:
        """How many they are."""
        return len(self.hunks)


class _Spots:
    """Nodes of both sides as numbers: twice a removed node of a, or one more than twice a node of b."""

    def __init__(self, found: GraphDiff) -> None:
        self.a, self.b = found.a, found.b
        self._partner_b = found.partner_b
        self._of_a = [
            2 * y + 1 if y >= 0 else 2 * x for x, y in enumerate(found.partner_a)
        ]

    def nodes(self, spot: int) -> tuple[int, int]:
        """Return the nodes of a and of b, -1 for none."""
        node, is_of_b = divmod(spot, 2)
        return (self._partner_b[node], node) if is_of_b else (node, -1)

    def adjacent(self, spot: int, *, with_readers: bool) -> list[int]:
        """Return what is read, and what reads it, on both sides if the spot is on both."""
        x, y = self.nodes(spot)
        found: list[int] = []
        if y >= 0:
            found += [2 * each + 1 for each in self.b.operands[y]]
            if with_readers:
                found += [2 * user + 1 for user, _ in self.b.users[y]]
        if x >= 0:
            found += [self._of_a[each] for each in self.a.operands[x]]
            if with_readers:
                found += [self._of_a[user] for user, _ in self.a.users[x]]
        return found

    def origin(self, spot: int) -> Origin:
        """Return where a node came from, that of b if there are two."""
        x, y = self.nodes(spot)
        return self.b.origin(y) if y >= 0 else self.a.origin(x)

    def is_changed(self, spot: int) -> bool:
        """Return whether it is a pair of other labels."""
        x, y = self.nodes(spot)
        return min(x, y) >= 0 and self.a.label(x) != self.b.label(y)


def hunks_of(found: GraphDiff) -> list[Hunk]:
    """Return the regions of a diff, the largest first.

    What is connected is one region. Another input size or an inserted layer touches half of a
    program, though: such a region is split by module, so that equal layers are listed once.
    """
    spots = _Spots(found)
    changed = [y for _, y in found.changed]
    rewired = grouped((rewire.b, rewire) for rewire in found.rewired)
    edits = dict.fromkeys(2 * y + 1 for y in found.added)
    edits |= dict.fromkeys(2 * x for x in found.removed)
    edits |= dict.fromkeys(2 * y + 1 for y in (*changed, *rewired))
    hunks = []
    for region in _regions(spots, edits):
        for part in _parts(spots, region):
            follows = len(part) < len(region) and _follows(spots, part, edits)
            hunks.append(_hunk(spots, part, rewired, follows=follows))
    hunks.sort(key=lambda hunk: -len(hunk))
    return hunks


@gc_paused
def group_hunks(hunks: Iterable[Hunk]) -> list[HunkGroup]:
    """Return the hunks, those that look alike together.

    What follows from another change comes last; else what concerns most nodes is first.
    """
    groups = grouped((hunk.signature, hunk) for hunk in hunks)
    found = [HunkGroup(alike[0], tuple(alike)) for alike in groups.values()]
    found.sort(key=lambda group: (group.follows, -sum(map(len, group.hunks))))
    return found


def _regions(spots: _Spots, edits: Iterable[int]) -> Iterator[list[int]]:
    """Yield what is connected."""
    left = set(edits)
    for start in edits:
        if start not in left:
            continue
        left.remove(start)
        region, stack = [], [start]
        while stack:
            spot = stack.pop()
            region.append(spot)
            fresh = left.intersection(spots.adjacent(spot, with_readers=True))
            left -= fresh
            stack += fresh
        yield sorted(region)


def _parts(
    spots: _Spots,
    region: list[int],
    keys: Sequence[Callable[[Origin], str]] = _SPLIT_KEYS,
) -> Iterator[list[int]]:
    """Yield a region as it is, or split by where its nodes come from if it is large."""
    if len(region) <= _MAX_TOGETHER or not keys:
        yield region
        return
    parts = grouped((keys[0](spots.origin(spot)), spot) for spot in region)
    for part in parts.values():
        yield from _parts(spots, part, keys[1:])


def _follows(spots: _Spots, part: list[int], edits: Container[int]) -> bool:
    """Return whether a part of a region changed nothing, or reads an edited node elsewhere."""
    inside = set(part)
    is_read = any(
        read in edits and read not in inside
        for spot in part
        for read in spots.adjacent(spot, with_readers=False)
    )
    return is_read or not any(map(spots.is_changed, part))


def _hunk(
    spots: _Spots,
    region: Sequence[int],
    rewired: dict[int, list[Rewire]],
    *,
    follows: bool,
) -> Hunk:
    nodes = [spots.nodes(spot) for spot in region]
    removed = tuple(x for x, y in nodes if y < 0)
    added = tuple(y for x, y in nodes if x < 0)
    changed = tuple(spots.nodes(spot) for spot in region if spots.is_changed(spot))
    slots = tuple(rewire for _, y in nodes for rewire in rewired.get(y, ()))
    origins = [spots.origin(spot) for spot in region]
    scope = _main_scope([origin.scope for origin in origins if origin.scope])
    site = next((origin.site for origin in origins if origin.site), "")
    signature = _signature(spots, added, removed, changed, slots)
    return Hunk(added, removed, changed, slots, scope, site, follows, signature)


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
    spots: _Spots,
    added: Sequence[int],
    removed: Sequence[int],
    changed: Sequence[tuple[int, int]],
    rewired: Sequence[Rewire],
) -> tuple[object, ...]:
    a, b = spots.a, spots.b
    counts: Counter[tuple[object, ...]] = Counter()
    counts.update([("+", b.label(y).op, b.label(y).type) for y in added])
    counts.update([("-", a.label(x).op, a.label(x).type) for x in removed])
    counts.update([("~", a.label(x), b.label(y)) for x, y in changed])
    counts.update([(">", b.label(each.b).op, str(each.slot)) for each in rewired])
    return tuple(sorted(counts.items(), key=repr))


class Rewire(NamedTuple):
    """An operand slot of a pair that reads another node, or that one side lacks.

    Attributes:
        a, b: The pair.
        slot: Position among the operands.
    """

    a: int
    b: int
    slot: int


@dataclass(frozen=True, slots=True)
class Outputs:
    """How the outputs differ as a multiset of nodes; their order makes no difference.

    Attributes:
        added: Nodes of b that are outputs there only, once for each time.
        removed: Nodes of a that are outputs there only, once for each time.
    """

    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Regrouped:
    """Members of groups, such as coalesced collectives, that are grouped in another way.

    Attributes:
        pairs: The members on both sides that have other companions than before.
        sizes_a, sizes_b: How many members the concerned groups have.
    """

    pairs: tuple[tuple[int, int], ...] = ()
    sizes_a: tuple[int, ...] = ()
    sizes_b: tuple[int, ...] = ()


@dataclass(eq=False)
class GraphDiff:
    """The difference of two graphs: an assignment of their nodes, and what it leaves over.

    Node ids of `a` and of `b` are positions in `a` and `b`.

    Attributes:
        a, b: The graphs.
        partner_a: For each node of a its partner in b, -1 if it was removed.
        partner_b: For each node of b its partner in a, -1 if it was added.
        uneven: The ops of b on lists that do the same as their partners, to more or fewer entries.
        reordered: How many ops on lists have the entries in another order, which is no difference.
        causes: Why they differ, where a caller knows more of it than the graphs say.
        begun: With which of the framework's operations they begin to differ, where that is known of
            what they were lowered from; None where it is not.
    """

    a: Graph
    b: Graph
    partner_a: list[int]
    partner_b: list[int]
    # The only pairs that may be rewired; None where that is not known.
    _suspects: list[tuple[int, int]] | None = None
    uneven: Collection[int] = ()
    reordered: int = 0
    causes: Sequence[str] = ()
    begun: frozenset[Operation] | None = None

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Nodes of a with their partners in b."""
        return [(x, y) for x, y in enumerate(self.partner_a) if y >= 0]

    @cached_property
    def added(self) -> list[int]:
        """Nodes of b without a partner."""
        return [y for y, x in enumerate(self.partner_b) if x < 0]

    @cached_property
    def removed(self) -> list[int]:
        """Nodes of a without a partner."""
        return [x for x, y in enumerate(self.partner_a) if y < 0]

    @cached_property
    def changed(self) -> list[tuple[int, int]]:
        """Pairs whose labels differ: another shape, dtype, literal, attribute or op."""
        numbers = {label: number for number, label in enumerate(self.b.labels)}
        number_of = [numbers.get(label, -1) for label in self.a.labels]
        same_as = [numbers[label] for label in self.b.labels]
        kinds_a, kinds_b = self.a.kinds, self.b.kinds
        return [
            (x, y)
            for x, y in self.pairs
            if number_of[kinds_a[x]] != same_as[kinds_b[y]]
        ]

    @cached_property
    def rewired(self) -> list[Rewire]:
        """Operand slots of pairs that do not read partners."""
        found = []
        partner, partner_of = self.partner_a, self.partner_a.__getitem__
        operands_a, operands_b = self.a.operands, self.b.operands
        for x, y in self.pairs if self._suspects is None else self._suspects:
            row_a, row_b = operands_a[x], operands_b[y]
            if tuple(map(partner_of, row_a)) == row_b:
                continue
            if y in self.uneven:
                old = list(map(partner_of, row_a))
                long, short = (old, row_b) if len(old) > len(row_b) else (row_b, old)
                slots = (k for k, each in enumerate(long) if each not in {*short})
                found += [Rewire(x, y, slot) for slot in slots]
                continue
            for slot in range(max(len(row_a), len(row_b))):
                shared = slot < len(row_a) and slot < len(row_b)
                if not shared or partner[row_a[slot]] != row_b[slot]:
                    found.append(Rewire(x, y, slot))
        return found

    @cached_property
    def outputs(self) -> Outputs:
        """Outputs that only one side has."""
        old, new = Counter(self.a.outputs), Counter(self.b.outputs)
        partner = self.partner_a
        kept = Counter({partner[x]: n for x, n in old.items() if partner[x] >= 0})
        gone = Counter({x: n for x, n in old.items() if partner[x] < 0})
        gone += Counter({self.partner_b[y]: n for y, n in (kept - new).items()})
        return Outputs(tuple((new - kept).elements()), tuple(gone.elements()))

    @property
    def cost(self) -> int:
        """Length of the edit script: 1 for each node added, removed or changed, for each
        rewired operand slot, and for each output added or removed.
        """  # noqa: D205
        return (
            len(self.added)
            + len(self.removed)
            + len(self.changed)
            + len(self.rewired)
            + len(self.outputs.added)
            + len(self.outputs.removed)
        )

    @property
    def is_empty(self) -> bool:
        """Whether the graphs compute the same in the same way."""
        return self.cost == 0 and not self.regrouped.pairs

    @cached_property
    def regrouped(self) -> Regrouped:
        """Pairs whose groups do not correspond; they cost nothing."""
        return _regrouped(self)

    @cached_property
    def redone(self) -> tuple[set[int], set[int]]:
        """Nodes of a and of b without a partner, or with another op, that do what both programs do.

        Such operations are compiled in another way, or have longer lists, which follows from what
        else differs. There are none where nothing else does.
        """
        nodes_a, nodes_b = self._replaced
        a = {node for node in nodes_a if self.is_alike(self.a, node)}
        b = {node for node in nodes_b if self.is_alike(self.b, node)}
        is_cause_left = self.resized_inputs or nodes_a - a or nodes_b - b
        return (a, b) if is_cause_left else (set(), set())

    @cached_property
    def _replaced(self) -> tuple[set[int], set[int]]:
        """Nodes of a and of b without a partner, or with one that does something else."""
        a, b = self.a.ops, self.b.ops
        others = [(x, y) for x, y in self.changed if a[x] != b[y] or y in self.uneven]
        return (
            {*self.removed, *(x for x, _ in others)},
            {*self.added, *(y for _, y in others)},
        )

    def is_alike(self, graph: Graph, node: int) -> bool:
        """Return whether both programs do alike what a node of one does, with what it calls."""
        if graph.ops[node] in lists.GETTERS:
            node = graph.operands[node][0]
        if (node if graph is self.b else self.partner_a[node]) in self.uneven:
            return True
        done = operations(graph, node)
        if graph.ops[node] == PARAMETER and (self.begun is None or not done):
            return False
        return done.isdisjoint(self._lone)

    @cached_property
    def _lone(self) -> set[Operation] | frozenset[Operation]:
        """Operations that one program does alone, or does more often among what has no partner.

        In compiled ones how many instructions do an operation is the compiler's choice.
        """
        if self.begun is not None:
            return self.begun
        sides = (self.a, self.b)
        if all(map(is_compiled, sides)):
            whole, other = (
                {
                    op
                    for part in graph.source.computations.values()
                    for op in _done(graph, part)
                }
                for graph in sides
            )
            if whole and other:
                return whole ^ other
        a, b = (
            Counter(
                each
                for node in nodes
                if graph.ops[node] not in lists.GETTERS
                for each in operations(graph, node)
            )
            for graph, nodes in zip(sides, self._replaced, strict=True)
        )
        return {each for each in a | b if a[each] != b[each] or not each[1]}

    @cached_property
    def resized_inputs(self) -> list[tuple[int, int]]:
        """Pairs of inputs with other types, from which sizes and slices follow.

        How many numbers one packs follows from the operations that read them.
        """
        a, b = self.a, self.b
        return [
            (x, y)
            for x, y in self.changed
            if a.ops[x] == PARAMETER == b.ops[y]
            and a.types[x] != b.types[y]
            and not lists.is_packed(b, y, called_graphs)
        ]

    @property
    def dead(self) -> tuple[Sequence[DeadNode], Sequence[DeadNode]]:
        """What no output needs, on either side. It cannot matter and costs nothing."""
        return self.a.dead, self.b.dead

    @cached_property
    def moved_parameters(self) -> list[tuple[int, int]]:
        """Pairs of parameters that have another number on the other side."""
        numbers_a, numbers_b = self.a.numbers, self.b.numbers
        return [
            (x, self.partner_a[x])
            for x in self.a.inputs
            if self.partner_a[x] >= 0
            and numbers_a.get(x) != numbers_b.get(self.partner_a[x])
        ]

    @gc_paused
    def hunks(self) -> list[Hunk]:
        """Return the edits in connected places, the largest first."""
        return self._hunks

    @cached_property
    def _hunks(self) -> list[Hunk]:
        return hunks_of(self)

    def __repr__(self) -> str:
        return (
            f"<GraphDiff {self.a.name} -> {self.b.name}: cost {self.cost}, "
            f"+{len(self.added)} -{len(self.removed)} ~{len(self.changed)}, "
            f"{len(self.rewired)} rewired>"
        )


@gc_paused
def diff(a: Graph | Any, b: Graph | Any) -> GraphDiff:
    """Return the difference between two graphs.

    It does not depend on which of them comes first: `diff(b, a)` is the mirror image. Nor does it
    depend on the order in which an op on lists, such as an optimizer's, has their entries: `b` of the
    difference has them in the order of `a`.

    Args:
        a: A graph, or what `graph_of` makes one of: a text, a path, a graph of the runtime.
        b: Likewise.

    Raises:
        HloError: One of them holds no graph.
    """
    a, b = (lists.without_positions(graph_of(each), called_graphs) for each in (a, b))
    found = _matched(a, b)
    pairs = [*found.changed, *((each.a, each.b) for each in found.rewired)]
    ours = (*found.removed, *(x for x, _ in pairs))
    others = (*found.added, *(y for _, y in pairs))
    if lists.work(a, ours, called_graphs) & lists.work(b, others, called_graphs):
        paired = _by_entries(a, b)
        aligned = _matched(a, paired.b)
        aligned.reordered = paired.reordered
        return min(found, aligned, paired, key=attrgetter("cost"))
    return found


def called_graphs(graph: Graph, node: int) -> list[Graph]:
    """Return the graphs that a node calls."""
    return [callee_graph(graph, name) for _, name in callees(graph, node)]


def _by_entries(a: Graph, b: Graph) -> GraphDiff:
    """Return a difference in which ops on lists are paired by what they do for each entry."""
    split = _matched(*(lists.split(each, called_graphs) for each in (a, b)))
    partner_a, partner_b = [*split.partner_a], [*split.partner_b]
    orders = lists.orders(a, b, called_graphs, split.partner_b)
    results, uneven = lists.results(b), set()
    new: dict[int, tuple[Label, tuple[int, ...]]] = {}
    for whole, (of, label, places, operands) in orders.items():
        nodes = results[whole]
        new[whole] = label._replace(type=b.types[whole]), operands
        if whole in nodes.values():
            continue
        for known, other in ((partner_a[of], partner_b), (partner_b[whole], partner_a)):
            if known >= 0:
                other[known] = -1
        partner_a[of], partner_b[whole] = whole, of
        if len(operands) != len(a.operands[of]):
            uneven.add(whole)
        if len(nodes) == len(places):
            types = ", ".join(
                b.types[nodes[k]] for k in sorted(places, key=places.__getitem__)
            )
            new[whole] = label._replace(type=f"({types})"), operands
        for k, node in nodes.items():
            picked = b.label(node)._replace(attrs=f"index={places[k]}")
            new[node] = picked, b.operands[node]
    found = GraphDiff(a, b.relabelled(new), partner_a, partner_b, uneven=uneven)
    rows = ([*each.places.values()] for each in orders.values())
    found.reordered = sum(row != sorted(row) for row in rows)
    return found


def _matched(a: Graph, b: Graph) -> GraphDiff:
    if _order_key(b) < _order_key(a):
        other = match(b, a)
        rewired = other.rewired
        suspects = None if rewired is None else sorted([(y, x) for x, y in rewired])
        return GraphDiff(a, b, other.b.partner, other.a.partner, suspects)
    found = match(a, b)
    return GraphDiff(a, b, found.a.partner, found.b.partner, found.rewired)


def _order_key(graph: Graph) -> tuple[object, ...]:
    """Return something that orders graphs by what they are, the smaller ones first."""
    return len(graph), graph.labels, graph.kinds, graph.operands


def _regrouped(found: GraphDiff) -> Regrouped:
    groups_a, groups_b = found.a.groups, found.b.groups
    if not groups_a and not groups_b:
        return Regrouped()
    companions_a = _companions(groups_a, found.partner_a)
    companions_b = _companions(groups_b, list(range(len(found.b))))
    pairs = tuple(
        (x, y)
        for x, y in found.pairs
        if (x in groups_a or y in groups_b)
        and companions_a.get(groups_a.get(x, -1))
        != companions_b.get(groups_b.get(y, -1))
    )
    return Regrouped(
        pairs,
        _sizes(groups_a, [x for x, _ in pairs]),
        _sizes(groups_b, [y for _, y in pairs]),
    )


def _companions(groups: dict[int, int], image: list[int]) -> dict[int, frozenset[int]]:
    members: dict[int, set[int]] = {}
    for node, group in groups.items():
        members.setdefault(group, set()).add(image[node])
    return {group: frozenset(nodes) for group, nodes in members.items()}


def _sizes(groups: dict[int, int], nodes: Sequence[int]) -> tuple[int, ...]:
    concerned = dict.fromkeys(groups[node] for node in nodes if node in groups)
    counts = Counter(groups.values())
    return tuple(counts[group] for group in concerned)


def callees(graph: Graph, node: int) -> list[tuple[str, str]]:
    """Return what a node calls: pairs of an attribute and a computation's name."""
    source = graph.source
    if isinstance(source, MlirModule):
        return source.called_in(graph.label(node).attrs)
    if not isinstance(source, HloModule):
        return []
    computation = source.computations[graph.part]
    position = computation.index.get(graph.names[node].removeprefix("%"))
    return [] if position is None else called(computation.row(position), source)


def callee_graph(graph: Graph, name: str) -> Graph:
    """Return the graph of a computation that `callees` has named."""
    source, is_mlir = graph.source, isinstance(graph.source, MlirModule)
    found: Graph = source.graph(name) if is_mlir else graph_of_module(source, name)
    return found.with_sites_of(graph)


Operation = tuple[str, str, str]
"""An operation of a framework: its module, its name, its line."""


def operations(graph: Graph, node: int) -> set[Operation]:
    """Return which of the framework's operations a node does, with what it calls; an input its name."""
    if graph.ops[node] == PARAMETER:
        name = graph.holders.get(node) or graph.origin(node).op_name
        return {(PARAMETER, name, "")} if name else set()
    source = graph.source
    found = {_operation(graph.origin(node), "" if source else graph.ops[node])}
    names = [name for _, name in callees(graph, node)]
    for name in names if isinstance(source, HloModule) else ():
        computation = source.computations[name]
        found |= _done(graph, computation)
        inner = (computation.table[form] for form in {*computation.forms})
        further = {each for form in inner for _, each in called(form, source)}
        names += sorted(further - {*names})
    return found


def _done(graph: Graph, computation: Computation) -> set[Operation]:
    """Return the operations that a computation says it does itself."""
    rows = zip(computation.metadata, computation.forms, strict=True)
    told = {raw for raw, k in rows if computation.table[k].op != PARAMETER}
    found = {_operation(graph.origin_of(raw)) for raw in told}
    return {each for each in found if each[1]}


def _operation(origin: Origin, op: str = "") -> Operation:
    scope = origin.scope.removesuffix("(backward)").strip()
    return scope, (origin.op_name or op).removesuffix(" (backward)"), origin.site


def is_compiled(graph: Graph) -> bool:
    """Return whether a program is what XLA has made of one, in the order of execution."""
    source = graph.source
    return isinstance(source, HloModule) and "is_scheduled=true" in source.header


def nested_diffs(found: GraphDiff, a: int, b: int) -> list[tuple[str, GraphDiff]]:
    """Return the differences within what a pair calls, with the names of the callees."""
    callees_b = _nth(callees(found.b, b))
    diffs = []
    for (key, nth), name in _nth(callees(found.a, a)).items():
        other = callees_b.get((key, nth))
        if other is None:
            continue
        inner_a, inner_b = callee_graph(found.a, name), callee_graph(found.b, other)
        inner = diff(inner_a, inner_b)
        if inner.is_empty:  # what differs is which input or result is which
            inner = diff(_numbered(inner_a), _numbered(inner_b))
        inner.begun = found.begun
        if not inner.is_empty:
            diffs.append((f"{key}: %{name} → %{other}", inner))
    return diffs


def _nth(called: list[tuple[str, str]]) -> dict[tuple[str, int], str]:
    """Return names by attribute and position in it: branches are several of one attribute."""
    found: dict[tuple[str, int], str] = {}
    for key, name in called:
        found[key, sum(known == key for known, _ in found)] = name
    return found


def _numbered(graph: Graph) -> Graph:
    """Return a graph in which the places of inputs and results make a difference."""
    builder = GraphBuilder(graph.name)
    for node, operands in enumerate(graph.operands):
        label = graph.label(node)
        if node in graph.numbers:
            label = label._replace(literal=str(graph.numbers[node]))
        builder.add(
            builder.label(*label),
            operands,
            name=graph.names[node],
            origin=graph.origin(node),
            number=graph.numbers.get(node),
            group=graph.groups.get(node),
        )
    results = builder.add(builder.label("return", "()"), graph.outputs, name="%results")
    found = builder.finish([results], source=graph.source, part=graph.part)
    return found.with_sites_of(graph)


# -------------------------------------------------------------- the smallest part that differs


def minimise(program: Any, shows: Callable[[Graph], bool]) -> Graph:
    """Return a smallest cut of a program that a predicate still holds for.

    What is cut off above becomes an input of its type; what nothing in the cut reads becomes
    an output. No single node of the answer can be left out. Nodes are left out in halves
    first, then in ever smaller pieces: the predicate is asked some k log n times for k
    nodes that matter of n, and at worst n² times.

    Args:
        program: Anything that `graph_of` takes.
        shows: Whether a graph still shows what is looked for, such as
            `lambda part: diff(part, other).cost > 0`.

    Raises:
        HloError: `program` holds no graph, or does not show it itself.
    """
    if not callable(shows):
        raise HloError(
            f"minimise() got {shows!r:.60} as what to look for, which is {type(shows).__name__} and "
            "cannot be called. Give a function that takes a graph and returns whether it shows it."
        )
    graph = graph_of(program)
    kept = [node for node in range(len(graph)) if graph.ops[node] != PARAMETER]
    if not shows(cut(graph, kept)):
        raise HloError(
            f"{graph.name} with its {len(kept)} nodes does not show what is looked for: the "
            "predicate is false for all of it, so no part can be searched. Check the predicate."
        )
    pieces = 2
    while len(kept) > 1:
        size = -(-len(kept) // pieces)
        for start in range(0, len(kept), size):
            rest = kept[:start] + kept[start + size :]
            if rest and shows(cut(graph, rest)):
                kept, pieces = rest, max(pieces - 1, 2)
                break
        else:
            if size == 1:
                break
            pieces = min(2 * pieces, len(kept))
    return cut(graph, kept)


def cut(graph: Graph, kept: Iterable[int]) -> Graph:
    """Return the part of a graph that computes some nodes, inputs for what they read else."""
    wanted = set(kept)
    builder = GraphBuilder(graph.name, read_origin=graph.origin)
    ids: dict[int, int] = {}

    def add(node: int) -> int:
        label = graph.label(node)
        inside = node in wanted
        kind = builder.label(*label) if inside else builder.label(PARAMETER, label.type)
        operands = [ids[k] for k in graph.operands[node]] if inside else []
        return builder.add(kind, operands, name=graph.names[node], origin=node)

    for node in sorted(wanted):
        for operand in graph.operands[node]:
            if operand not in ids:
                ids[operand] = add(operand)
        ids[node] = add(node)
    read = {operand for node in wanted for operand in graph.operands[node]}
    outputs = set(graph.outputs)
    return builder.finish(
        [ids[k] for k in sorted(wanted) if k not in read or k in outputs]
    )
