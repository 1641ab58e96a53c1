"""Better pairs: disputed ones given up, the rest paired by cost, small graphs exactly."""

from __future__ import annotations

from collections import Counter, deque
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from lazygraph.graph import CONSTANT, PARAMETER
from lazygraph.match.state import UNPAIRED, Matching

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lazygraph.match.state import Side

# Pairs that are looked at together; most have no edit.
_BLOCK = 128
# A share of the disputed nodes that, gone here and new elsewhere, looks like a shift.
_MOVED = 0.05
# Places that read a part that was inserted.
_READERS = 2


def disputed(matching: Matching) -> list[int]:
    """Return the nodes of `a` whose partners read something else."""
    if matching.rewired is not None:
        return [x for x, _ in matching.rewired]
    partner = matching.a.partner
    paired = [x for x, y in enumerate(partner) if y >= 0]
    found: list[int] = []
    for start in range(0, len(paired), _BLOCK):
        block = paired[start : start + _BLOCK]
        if not _reads_partners(matching, block):
            found += _rewired(matching, block)
    return found


def _rewired(matching: Matching, nodes: Iterable[int]) -> list[int]:
    """Return the paired nodes among these that do not read the partners of what theirs reads."""
    rows_a, rows_b = matching.a.operands, matching.b.operands
    partner = matching.a.partner
    partner_of = partner.__getitem__
    return [
        x
        for x in nodes
        if partner[x] >= 0 and tuple(map(partner_of, rows_a[x])) != rows_b[partner[x]]
    ]


def _reads_partners(matching: Matching, block: Sequence[int]) -> bool:
    """Return whether all slots of some pairs read partners; without a loop of ours."""
    partner_of = matching.a.partner.__getitem__
    rows_a = [*map(matching.a.operands.__getitem__, block)]
    rows_b = [*map(matching.b.operands.__getitem__, map(partner_of, block))]
    if [*map(len, rows_a)] != [*map(len, rows_b)]:
        return False
    read = [*map(partner_of, chain.from_iterable(rows_a))]
    return read == [*chain.from_iterable(rows_b)]


def crossed(matching: Matching, nodes: Iterable[int]) -> int:
    """Return how many of some disputed nodes read, in one slot, nodes with other partners both.

    Where something was inserted or removed one of them has none. What is crossed was rewired, or
    like nodes were mistaken for each other.
    """
    rows_a, rows_b = matching.a.operands, matching.b.operands
    partner_a, partner_b = matching.a.partner, matching.b.partner
    return sum(
        any(
            partner_a[c] != d and partner_a[c] >= 0 <= partner_b[d]
            for c, d in zip(rows_a[x], rows_b[partner_a[x]], strict=False)
        )
        for x in nodes
    )


def may_be_mistaken(matching: Matching) -> bool:
    """Return whether like nodes may have been taken for each other.

    More than half of what is gone is new elsewhere then, and it is no small part of what differs:
    of a thousand edits a few are alike by chance.
    """
    a, b = matching.a, matching.b
    gone = Counter([a.full[node] for node in a.unpaired()])
    moved = (gone & Counter([b.full[node] for node in b.unpaired()])).total()
    return moved > max(gone.total() / 2, _MOVED * len(disputed(matching)))


def only_inserts(matching: Matching, nodes: Sequence[int]) -> bool:
    """Return whether some disputed nodes are all that insertions into one side explain.

    One side is wholly paired then, nothing is crossed, and what the other has more is read in two
    places for each of its parts: a branch of a layer is, in the forward pass and the backward.
    """
    small, large = matching.a, matching.b
    if small.partner.count(UNPAIRED) and large.partner.count(UNPAIRED):
        return False
    if small.partner.count(UNPAIRED):
        small, large = large, small
    return not crossed(matching, nodes) and len(nodes) <= _READERS * _parts(large)


def _parts(side: Side) -> int:
    """Return into how many connected parts the unpaired nodes of a side fall."""
    part = {node: node for node in side.unpaired()}
    count = len(part)
    for node in side.unpaired():
        for operand in side.operands[node]:
            if operand in part:
                one, other = _first(part, node), _first(part, operand)
                count -= one != other
                part[one] = other
    return count


def _first(part: dict[int, int], node: int) -> int:
    while part[node] != node:
        part[node] = node = part[part[node]]
    return node


def other_ops(matching: Matching) -> int:
    """Return how many pairs are of two opcodes."""
    ops_a, ops_b = matching.a.graph.ops, matching.b.graph.ops
    return sum(
        y >= 0 and ops_a[x] != ops_b[y] for x, y in enumerate(matching.a.partner)
    )


_MAX_USERS = 64
_MAX_PASSES = 6
# A pair saves the removal of one node and the addition of the other.
_SAVED = 2


def pair_by_gain(matching: Matching) -> None:
    """Pair nodes in the same place while that makes the edit script shorter."""
    for _ in range(_MAX_PASSES):
        found = _gainful(matching)
        before = matching.pairs
        for _, _, _, x, y in found:
            if matching.is_free(x, y):
                matching.pair(x, y)
        if matching.pairs == before:
            return
        matching.grow(similar=True)


def _gainful(matching: Matching) -> list[tuple[int, bool, bool, int, int]]:
    found = []
    a, b = matching.a, matching.b
    ops_a, ops_b = a.graph.ops, b.graph.ops
    for x in a.unpaired():
        for y in _candidates(matching, x):
            gain = _gain(matching, x, y)
            if gain > 0:
                alike = a.skeleton[x] == b.skeleton[y]
                found.append((-gain, not alike, ops_a[x] != ops_b[y], x, y))
    found.sort()
    return found


def _candidates(matching: Matching, x: int) -> dict[int, None]:
    """Return unpaired nodes that share an operand or a user with x, in the same slot."""
    a, b = matching.a, matching.b
    found: dict[int, None] = {}
    for slot, operand in enumerate(a.operands[x]):
        other = a.partner[operand]
        if other >= 0 and len(b.users[other]) <= _MAX_USERS:
            for user, other_slot in b.users[other]:
                if other_slot == slot and b.partner[user] < 0:
                    found[user] = None
    for user, slot in a.users[x][:_MAX_USERS]:
        other = a.partner[user]
        if other >= 0 and slot < len(b.operands[other]):
            operand = b.operands[other][slot]
            if b.partner[operand] < 0:
                found[operand] = None
    return found


def _gain(matching: Matching, x: int, y: int) -> int:
    """Return by how much pairing x with y shortens the script; 0 if they may not pair."""
    a, b = matching.a, matching.b
    op_a, op_b = a.graph.ops[x], b.graph.ops[y]
    if op_a != op_b and not may_change_into(matching, x, y):
        return 0
    agreeing, possible, rewired = _slots(matching, x, y)
    users = _agreeing_users(matching, x, y)
    outputs = bool(a.is_output[x] and b.is_output[y])
    if op_a != op_b:
        below = agreeing or possible or not a.operands[x]
        if not (below and (users or outputs)):
            return 0
    return _SAVED + users + outputs - (a.full[x] != b.full[y]) - rewired


def may_change_into(matching: Matching, x: int, y: int) -> bool:
    """Return whether nodes of two ops may be one node whose op changed.

    An input, a constant, and an op that reads nothing (`ones`) are never said to have become
    something that computes, however short the script would be.
    """
    a, b = matching.a, matching.b
    special = {a.graph.ops[x], b.graph.ops[y]} & {PARAMETER, CONSTANT}
    return not special and bool(a.operands[x]) == bool(b.operands[y])


def _slots(matching: Matching, x: int, y: int) -> tuple[int, int, int]:
    """Return how many operand slots agree, still may, and are rewired."""
    a, b = matching.a, matching.b
    row_a, row_b = a.operands[x], b.operands[y]
    agreeing = possible = 0
    rewired = abs(len(row_a) - len(row_b))
    for c, d in zip(row_a, row_b, strict=False):
        other = a.partner[c]
        if other == d:
            agreeing += 1
        elif other >= 0 or b.partner[d] >= 0:
            rewired += 1
        elif a.skeleton[c] == b.skeleton[d]:
            possible += 1
    return agreeing, possible, rewired


def _agreeing_users(matching: Matching, x: int, y: int) -> int:
    a, b = matching.a, matching.b
    count = 0
    for user, slot in a.users[x]:
        other = a.partner[user]
        if other >= 0:
            row = b.operands[other]
            count += slot < len(row) and row[slot] == y
    return count


def pair_handed_through(matching: Matching) -> None:
    """Pair inputs and constants that are outputs and nothing else, the most alike first.

    Strangers would be an input and an output less, and one more. Among equal ones, that which is
    an output most often goes with the other side's.
    """
    a, b = matching.a, matching.b
    typed = [[*zip(each.graph.ops, each.graph.types, strict=True)] for each in (a, b)]
    for labels_a, labels_b in ((a.full, b.full), typed, (a.graph.ops, b.graph.ops)):
        leaves_b = _unmatched_leaves(b, labels_b)
        for label, leaves in _unmatched_leaves(a, labels_a).items():
            for x, y in zip(leaves, leaves_b.get(label, ()), strict=False):
                matching.pair(x, y)


def _unmatched_leaves(side: Side, labels: Sequence[object]) -> dict[object, list[int]]:
    """Return the free ones by label, those first that are outputs most often."""
    found: dict[object, list[int]] = {}
    for node in sorted(set(side.graph.outputs), key=lambda n: -side.is_output[n]):
        is_lone = not side.operands[node] and not side.users[node]
        if is_lone and side.partner[node] < 0:
            found.setdefault(labels[node], []).append(node)
    return found


def pair_leaves(matching: Matching) -> None:
    """Pair the inputs and constants that are left over, equal ones in their order.

    A leaf reads nothing, so a pair of equal ones can only make the script shorter.
    """
    left: dict[int, deque[int]] = {}
    for y in matching.b.unpaired():
        if not matching.b.operands[y]:
            left.setdefault(matching.b.full[y], deque()).append(y)
    for x in matching.a.unpaired():
        waiting = left.get(matching.a.full[x])
        if waiting and not matching.a.operands[x]:
            matching.pair(x, waiting.popleft())
    matching.grow(similar=True)


_MAX_REFINE_PASSES = 4

# Exchanges tried in one chain, and in all: then the graphs are too different for this.
_MAX_CHAIN = 10
_MAX_EXCHANGES = 5_000
# Graphs of so many nodes are so ambiguous, and so cheap, that all pairs are tried.
_TINY = 48


class _Exchange(NamedTuple):
    """What undoes an exchange: two nodes that became partners, and their former ones."""

    x: int
    y: int
    old_x: int
    old_y: int


def refine(matching: Matching) -> None:
    """Improve the assignment until no chain of exchanges makes the script shorter."""
    search = _LocalSearch(matching)
    matching.rewired = None
    edited = [(x, matching.a.partner[x]) for x in disputed(matching)]
    for _ in range(_MAX_REFINE_PASSES):
        improved = False
        matching.rewired = edited
        for x, y in list(search.suspects(edited)):
            improved |= search.chain(x, y)
            if search.exchanges > _MAX_EXCHANGES:
                matching.rewired = None
                return
        if not improved:
            return
        edited = search.still_edited(edited)
    matching.rewired = None


class _LocalSearch:
    def __init__(self, matching: Matching) -> None:
        self._matching = matching
        self._a = matching.a
        self._b = matching.b
        self.exchanges = 0
        # Nodes of a that have, or had, another partner since those were asked for.
        self._touched: set[int] = set()

    def suspects(self, edited: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield the nodes that rewired slots read: pairing those would mend the slot."""
        a, b = self._a, self._b
        for x, y in edited:
            for c, d in zip(a.operands[x], b.operands[y], strict=False):
                if a.partner[c] != d and a.skeleton[c] == b.skeleton[d]:
                    yield c, d
        yield from self._suspect_outputs()
        if max(len(a.partner), len(b.partner)) <= _TINY:
            yield from self._all_suspects()

    def _all_suspects(self) -> Iterator[tuple[int, int]]:
        """Yield every pair of nodes that may be partners and are not, where one has an edit."""
        a, b = self._a, self._b
        odd_a = [y < 0 or self.pair_cost(x) > 0 for x, y in enumerate(a.partner)]
        odd_b = [x < 0 or odd_a[x] for x in b.partner]
        for x, op in enumerate(a.graph.ops):
            for y, other in enumerate(b.graph.ops):
                may_pair = op == other or may_change_into(self._matching, x, y)
                if may_pair and (odd_a[x] or odd_b[y]) and a.partner[x] != y:
                    yield x, y

    def still_edited(self, edited: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the pairs that read no partners somewhere, given those before."""
        users = self._a.users
        nodes = {x for x, _ in edited} | self._touched
        nodes.update([user for node in self._touched for user, _ in users[node]])
        self._touched.clear()
        rewired = _rewired(self._matching, sorted(nodes))
        return [(x, self._a.partner[x]) for x in rewired]

    def _suspect_outputs(self) -> Iterator[tuple[int, int]]:
        a, b = self._a, self._b
        wanted: dict[int, list[int]] = {}
        for d in dict.fromkeys(b.graph.outputs):
            other = b.partner[d]
            if other < 0 or a.is_output[other] < b.is_output[d]:
                wanted.setdefault(b.full[d], []).append(d)
        for x in dict.fromkeys(a.graph.outputs):
            y = a.partner[x]
            if y < 0 or b.is_output[y] < a.is_output[x]:
                for d in wanted.get(a.full[x], ())[:_MAX_CHAIN]:
                    yield x, d

    def chain(self, x: int, y: int) -> bool:
        """Pair x with y and what follows from it; keep it as soon as it is better."""
        leads = deque([(x, y)])
        done: list[_Exchange] = []
        total = 0
        while leads and len(done) < _MAX_CHAIN:
            c, d = leads.popleft()
            if self._a.partner[c] == d or self._is_crowded(c, d):
                continue
            gain, undo = self._exchange(c, d)
            done.append(undo)
            total += gain
            if total > 0:
                return True
            leads.extend(self._follow_ups(c, d))
            if undo.old_x >= 0 and undo.old_y >= 0:
                leads.extend(self._follow_ups(undo.old_x, undo.old_y))
        for undo in reversed(done):
            self._undo(undo)
        return False

    def _follow_ups(self, x: int, y: int) -> Iterator[tuple[int, int]]:
        """Yield the pairs that would mend the slots around a new pair."""
        a, b = self._a, self._b
        if a.partner[x] != y:
            return
        for c, d in zip(a.operands[x], b.operands[y], strict=False):
            if a.partner[c] != d and a.skeleton[c] == b.skeleton[d]:
                yield c, d
        users_b = b.users[y]
        for user, slot in a.users[x]:
            other = a.partner[user]
            row = b.operands[other] if other >= 0 else ()
            if slot < len(row) and row[slot] == y:
                continue
            label = a.full[user]
            for each, other_slot in users_b:
                if other_slot == slot and b.full[each] == label:
                    yield user, each
                    break

    def _exchange(self, x: int, y: int) -> tuple[int, _Exchange]:
        """Make x and y partners, and their former ones too; return the gain."""
        self.exchanges += 1
        a, b = self._a, self._b
        undo = _Exchange(x, y, b.partner[y], a.partner[x])
        old_x, old_y = undo.old_x, undo.old_y
        self._touched |= {x, old_x} - {UNPAIRED}
        near = self._neighbourhood((x, old_x), (y, old_y))
        before = self._cost(near)
        if old_x >= 0:
            a.partner[old_x] = UNPAIRED
        if old_y >= 0:
            b.partner[old_y] = UNPAIRED
        a.partner[x], b.partner[y] = y, x
        if old_x >= 0 and old_y >= 0 and a.skeleton[old_x] == b.skeleton[old_y]:
            a.partner[old_x], b.partner[old_y] = old_y, old_x
        return before - self._cost(near), undo

    def _undo(self, undo: _Exchange) -> None:
        a, b = self._a, self._b
        if undo.old_x >= 0:
            a.partner[undo.old_x] = undo.y
        if undo.old_y >= 0:
            b.partner[undo.old_y] = undo.x
        a.partner[undo.x], b.partner[undo.y] = undo.old_y, undo.old_x

    def _is_crowded(self, x: int, y: int) -> bool:
        a, b = self._a, self._b
        lengths = [len(a.users[n]) for n in (x, b.partner[y]) if n >= 0]
        lengths += [len(b.users[n]) for n in (y, a.partner[x]) if n >= 0]
        return max(lengths) > _MAX_USERS

    def _neighbourhood(
        self, nodes_a: tuple[int, ...], nodes_b: tuple[int, ...]
    ) -> tuple[set[int], set[int]]:
        """Return the nodes whose cost depends on who is partner of the given ones."""
        near_a = {node for node in nodes_a if node >= 0}
        near_b = {node for node in nodes_b if node >= 0}
        users_a = {user for node in near_a for user, _ in self._a.users[node]}
        for node in near_b:
            for user, _ in self._b.users[node]:
                other = self._b.partner[user]
                if other >= 0:
                    users_a.add(other)
        return near_a | users_a, near_b

    def _cost(self, near: tuple[set[int], set[int]]) -> int:
        a, b = self._a, self._b
        cost = 0
        for x in near[0]:
            paired = a.partner[x] >= 0
            cost += self.pair_cost(x) if paired else 1 + a.is_output[x]
        for y in near[1]:
            if b.partner[y] < 0:
                cost += 1 + b.is_output[y]
        return cost

    def pair_cost(self, x: int) -> int:
        """Return what a paired node contributes to the script."""
        a, b = self._a, self._b
        y = a.partner[x]
        row_a, row_b = a.operands[x], b.operands[y]
        cost = int(a.full[x] != b.full[y]) + abs(len(row_a) - len(row_b))
        for c, d in zip(row_a, row_b, strict=False):
            cost += a.partner[c] != d
        return cost + abs(a.is_output[x] - b.is_output[y])


def script_cost(matching: Matching) -> int:
    """Return the length of the script that an assignment gives."""
    a, b = matching.a, matching.b
    partner_a, partner_b, labels_b = a.partner, b.partner, b.full
    pairs = zip(partner_a, a.full, strict=True)
    relabelled = sum([y >= 0 and label != labels_b[y] for y, label in pairs])
    outputs = 0
    for x in set(a.graph.outputs):
        y = partner_a[x]
        outputs += abs(a.is_output[x] - (b.is_output[y] if y >= 0 else 0))
    for y in set(b.graph.outputs):
        x = partner_b[y]
        outputs += b.is_output[y] if x < 0 or not a.is_output[x] else 0
    slots = 0
    for x in disputed(matching):
        row_a, row_b = a.operands[x], b.operands[partner_a[x]]
        slots += abs(len(row_a) - len(row_b))
        slots += sum([partner_a[c] != d for c, d in zip(row_a, row_b, strict=False)])
    unmatched = partner_a.count(UNPAIRED) + partner_b.count(UNPAIRED)
    return unmatched + relabelled + outputs + slots
