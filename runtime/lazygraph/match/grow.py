"""Pairs by tiers of likeness, by colours, by reading order, and by the pairs around them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import chain, islice
from operator import ne
from typing import TYPE_CHECKING, Literal, NamedTuple

from lazygraph.graph import grouped
from lazygraph.match.state import Numbers, numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lazygraph.match.state import Matching, Side


# Scopes that name their nodes otherwise on the other side, at most so much of a slot for each.
_MAX_DISPUTED = 0.01


def pair_equal_ancestors(
    matching: Matching, labels: str, *, similar: bool = False
) -> None:
    """Pair nodes whose whole set of ancestors occurs once on each side, the tallest first.

    Their `full` or `skeleton` labels make two nodes equal. What grows from similar ones may differ
    in sizes.
    """
    ids = numbers()
    known_a, known_b = matching.a.graph.ancestor_keys, matching.b.graph.ancestor_keys
    if known_a and known_b and labels == "full" and not matching.pairs:
        a, b = ([ids[each] for each in known] for known in (known_a, known_b))
    else:
        a = _ancestor_ids(matching.a, getattr(matching.a, labels), ids, own=True)
        b = _ancestor_ids(matching.b, getattr(matching.b, labels), ids, own=False)
    heights = heights_of(matching.a)
    found = _pairs_of_ancestors(matching, a, b, heights, len(ids))
    _pair_ancestors(matching, found, heights)
    matching.grow(similar=similar)


def pair_local_ancestors(
    matching: Matching, scopes_a: Sequence[int], scopes_b: Sequence[int]
) -> None:
    """Pair nodes whose ancestors within their scope, 0 for none, occur once on each side.

    What a scope reads from others counts by its label alone, so that a change in one scope leaves
    the others as they are.
    """
    ids = numbers()
    a = _local_ancestor_ids(matching.a, scopes_a, ids)
    b = _local_ancestor_ids(matching.b, scopes_b, ids)
    heights = [
        height if scope else 0
        for height, scope in zip(heights_of(matching.a), scopes_a, strict=True)
    ]
    found = _pairs_of_ancestors(matching, a, b, heights, len(ids))
    if _agree(matching, found):
        _pair_ancestors(matching, found, heights)


def _agree(matching: Matching, found: list[tuple[int, int]]) -> bool:
    """Return whether pairs read each other, which those of misleading scopes do not.

    Equal ancestors have equally many operands, so that all slots can be laid in one row.
    """
    partner = dict(found)
    slots_a = chain.from_iterable(map(matching.a.operands.__getitem__, partner))
    slots_b = list(
        chain.from_iterable(map(matching.b.operands.__getitem__, partner.values()))
    )
    disputed: int = sum(map(ne, map(partner.get, slots_a, slots_b), slots_b))
    return disputed <= _MAX_DISPUTED * len(found)


def _pairs_of_ancestors(
    matching: Matching, a: list[int], b: list[int], heights: list[int], count: int
) -> list[tuple[int, int]]:
    """Return the nodes that are the only ones with their ancestors on each side, leaves apart."""
    once_a = _singles(matching.a.unpaired(), a, count)
    once_b = _singles(matching.b.unpaired(), b, count)
    return [
        (x, y)
        for x, y in zip(once_a, once_b, strict=True)
        if x >= 0 and y >= 0 and heights[x]
    ]


def _pair_ancestors(
    matching: Matching, found: list[tuple[int, int]], heights: list[int]
) -> None:
    matching.pair_all(found)
    partner, users = matching.a.partner, matching.a.users
    reading = {user for node in matching.a.unpaired() for user, _ in users[node]}
    open_pairs = [
        (-heights[x], -x, y) for x, y in found if x in reading and partner[x] == y
    ]
    open_pairs.sort()
    # What several nodes compute alike is told apart by who reads it, the tallest first.
    for _, minus_x, y in open_pairs:
        matching.note_operands(-minus_x, y)
        matching.descend()
    matching.note_frontier(found)


def _ancestor_ids(
    side: Side, labels: Sequence[int], ids: Numbers, *, own: bool
) -> list[int]:
    """Return a number for the ancestors of each node; a paired one has its own."""
    partner, operands = side.partner, side.operands
    ancestors = [0] * len(partner)
    free = side.unpaired()
    if len(free) < len(partner):
        for node in free:
            for operand in operands[node]:
                other = partner[operand]
                if other >= 0:
                    ancestors[operand] = -1 - (operand if own else other)
    for node in free:
        row = operands[node]
        if len(row) == 1:
            ancestors[node] = ids[labels[node], ancestors[row[0]]]
        elif len(row) == 2:  # noqa: PLR2004 - most nodes have one or two
            one, two = row
            ancestors[node] = ids[labels[node], ancestors[one], ancestors[two]]
        elif row:
            ancestors[node] = ids[(labels[node], *[ancestors[o] for o in row])]
        else:
            ancestors[node] = ids[labels[node]]
    return ancestors


def heights_of(side: Side) -> list[int]:
    """Return the height of each node above the inputs and the paired nodes."""
    operands = side.operands
    heights = [0] * len(operands)
    for node in side.unpaired():
        row = operands[node]
        if len(row) == 1:
            heights[node] = heights[row[0]] + 1
        elif len(row) == 2:  # noqa: PLR2004 - most nodes have one or two
            up, other = heights[row[0]], heights[row[1]]
            heights[node] = (up if up > other else other) + 1  # noqa: FURB136 - twice as quick
        elif row:
            heights[node] = max([heights[o] for o in row]) + 1
    return heights


def _local_ancestor_ids(side: Side, scopes: Sequence[int], ids: Numbers) -> list[int]:
    """Return a number for the ancestors of each node within its scope."""
    labels = side.full
    ancestors = [ids[label] for label in labels]
    for node, row in enumerate(side.operands):
        scope = scopes[node]
        if not scope or not row:
            continue
        seen = [ancestors[o] if scopes[o] == scope else -1 - labels[o] for o in row]
        ancestors[node] = ids[(labels[node], *seen)]
    return ancestors


def _singles(nodes: Iterable[int], ancestors: Sequence[int], count: int) -> list[int]:
    """Return for each number the node that has it; -1 for none, -2 for several."""
    found = [-1] * count
    for node in nodes:
        number = ancestors[node]
        found[number] = node if found[number] == -1 else -2
    return found


def pair_unique_labels(
    matching: Matching, nodes_a: Iterable[int], nodes_b: Iterable[int]
) -> None:
    """Pair nodes whose label is the only one of its kind on either side."""
    a, b = matching.a, matching.b
    free_a = [node for node in nodes_a if a.partner[node] < 0]
    free_b = [node for node in nodes_b if b.partner[node] < 0]
    counts_a = Counter([a.full[node] for node in free_a])
    counts_b = Counter([b.full[node] for node in free_b])
    node_of = {b.full[node]: node for node in free_b}
    for x in free_a:
        label = a.full[x]
        if counts_a[label] != 1 or counts_b.get(label) != 1:
            continue
        y = node_of[label]
        agree, conflict = matching.evidence(x, y)
        if conflict <= agree + 1 and matching.is_free(x, y):
            matching.pair(x, y)


def pair_in_order(
    matching: Matching, nodes_a: Sequence[int], nodes_b: Sequence[int]
) -> int:
    """Pair two rows of interchangeable nodes one by one; return how many."""
    made = 0
    for x, y in zip(nodes_a, nodes_b, strict=False):
        if matching.is_free(x, y) and not matching.evidence(x, y)[1]:
            matching.pair(x, y)
            made += 1
    return made


_MAX_USERS = 64
_MAX_SLOT = 7

Ties = Literal["leave", "equal", "any"]


def pair_by_colour(
    matching: Matching, rounds: int, ties: Ties, *, exact: bool = False
) -> int:
    """Pair nodes of equal colour, which sees so many rounds far; return how many pairs that made.

    Of several nodes of one colour, `leave` them, pair them in order of height if both sides have
    `equal` numbers, or pair `any`. Exact colours have sizes, dtypes and constants.
    """
    free_a, free_b = matching.a.unpaired(), matching.b.unpaired()
    if not free_a or not free_b:
        return 0
    before = matching.pairs
    classes_a, classes_b = _classes(matching, free_a, free_b, rounds, exact=exact)
    tied: list[tuple[list[int], list[int]]] = []
    for colour, nodes in classes_a.items():
        others = classes_b.get(colour)
        if others is None:
            continue
        if len(nodes) == 1 == len(others):
            pair_in_order(matching, nodes, others)
        elif ties == "any" or (ties == "equal" and len(nodes) == len(others)):
            tied.append((nodes, others))
    if tied:
        _pair_tied(matching, tied)
    return matching.pairs - before


def _classes(
    matching: Matching,
    free_a: list[int],
    free_b: list[int],
    rounds: int,
    *,
    exact: bool,
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    known = numbers()
    a, b = matching.a, matching.b
    labels_a, labels_b = (a.full, b.full) if exact else (a.skeleton, b.skeleton)
    colours_a = {n: known["first", labels_a[n], a.is_output[n]] for n in free_a}
    colours_b = {n: known["first", labels_b[n], b.is_output[n]] for n in free_b}
    if set(colours_a.values()).isdisjoint(colours_b.values()):
        return {}, {}
    for _ in range(rounds):
        colours_a = _refined(a, colours_a, known, own=True)
        colours_b = _refined(b, colours_b, known, own=False)
    return (
        grouped((colour, node) for node, colour in colours_a.items()),
        grouped((colour, node) for node, colour in colours_b.items()),
    )


def _refined(
    side: Side, colours: dict[int, int], known: Numbers, *, own: bool
) -> dict[int, int]:
    partner = side.partner
    refined = {}
    for node, colour in colours.items():
        seen: list[int | None] = [colour]
        for operand in side.operands[node]:
            other = partner[operand]
            pair = operand if own else other
            seen.append(colours[operand] if other < 0 else -1 - pair)
        users = side.users[node]
        if len(users) <= _MAX_USERS:
            above = []
            for user, slot in users:
                other = partner[user]
                pair = user if own else other
                seen_user = colours[user] if other < 0 else -1 - pair
                above.append(seen_user * (_MAX_SLOT + 1) + min(slot, _MAX_SLOT))
            seen.append(None)
            seen += sorted(above)
        refined[node] = known[tuple(seen)]
    return refined


def _pair_tied(matching: Matching, tied: list[tuple[list[int], list[int]]]) -> None:
    """Pair interchangeable nodes in order of height, the tallest class first."""
    heights_a, heights_b = _colour_heights(matching.a), _colour_heights(matching.b)
    for nodes, others in tied:
        nodes.sort(key=lambda node: (heights_a[node], matching.a.full[node]))
        others.sort(key=lambda node: (heights_b[node], matching.b.full[node]))
    tied.sort(key=lambda both: (-heights_a[both[0][-1]][0], both[0][-1]))
    for nodes, others in tied:
        free_a = [node for node in nodes if matching.a.partner[node] < 0]
        free_b = [node for node in others if matching.b.partner[node] < 0]
        if pair_in_order(matching, free_a, free_b):
            matching.grow(similar=True)


def _colour_heights(side: Side) -> list[tuple[int, int]]:
    """Return for each node its height above the inputs and minus its depth below the outputs."""
    height = [0] * len(side.operands)
    depth = [0] * len(side.operands)
    for node, row in enumerate(side.operands):
        if row:
            height[node] = 1 + max([height[operand] for operand in row])
    for node in range(len(depth) - 1, -1, -1):
        below = depth[node] + 1
        for operand in side.operands[node]:
            depth[operand] = max(depth[operand], below)
    return [(up, -down) for up, down in zip(height, depth, strict=True)]


_MAX_NEIGHBOURS = 8
_MAX_SIGNATURE = 16

_Signature = tuple[object, ...]


def bridge(matching: Matching) -> int:
    """Pair nodes that look alike one node behind a stalled frontier; return how many."""
    recent, matching.recent = matching.recent, []
    frontier = matching.open_pairs(recent)
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
    keys = ((signature(side, node), node) for node in nodes)
    return grouped((key, node) for key, node in keys if key is not None)


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
    pairs = dict.fromkeys(leads)
    of_a, of_b = Counter([x for x, _ in pairs]), Counter([y for _, y in pairs])
    return [(x, y) for x, y in pairs if of_a[x] == 1 == of_b[y]]


# The same rows in the same order: a chain of like layers has no landmarks, and yet an order.

# Entries of a landmark; where none of a length is found, shorter ones are looked for.
_LONGEST = 256
_SHORTER = 4
# Of the sums by which stretches are told apart: a prime, and a number below it.
_PRIME = (1 << 61) - 1
_BASE = 1_000_003


class _Gap(NamedTuple):
    """What is to be aligned: from where to where in both rows, and by which landmarks."""

    start: int
    end: int
    other: int
    other_end: int
    length: int = _LONGEST


def anchored(one: Sequence[int], two: Sequence[int]) -> list[tuple[int, int]]:
    """Return positions in two rows that belong together, in both rows' order.

    Of rows that differ in little it is nearly a longest common subsequence, in a time that does
    not grow with the number of differences: between landmarks each is looked for alone. Where
    nothing occurs once, nothing is said.

    Example:
        >>> anchored([1, 2, 3, 4], [1, 5, 3, 4])
        [(0, 0), (2, 2), (3, 3)]
    """
    found: list[tuple[int, int]] = []
    gaps = [_Gap(0, len(one), 0, len(two))]
    while gaps:
        gap, ends = _without_ends(one, two, gaps.pop())
        found += ends
        if gap.start == gap.end or gap.other == gap.other_end or not gap.length:
            continue
        landmarks = _landmarks(one, two, gap)
        if landmarks:
            runs = list(_runs(one, two, gap, landmarks))
            gaps += _between(gap, runs)
            found += [(i + n, k + n) for i, k, size in runs for n in range(size)]
        else:
            gaps.append(gap._replace(length=gap.length // _SHORTER))
    return sorted(found)


def _without_ends(
    one: Sequence[int], two: Sequence[int], gap: _Gap
) -> tuple[_Gap, list[tuple[int, int]]]:
    """Return a gap without what is equal at its two ends, and the pairs of that."""
    start, end, other, other_end, length = gap
    found = []
    while start < end and other < other_end and one[start] == two[other]:
        found.append((start, other))
        start += 1
        other += 1
    while start < end and other < other_end and one[end - 1] == two[other_end - 1]:
        end -= 1
        other_end -= 1
        found.append((end, other_end))
    return _Gap(start, end, other, other_end, length), found


def _runs(
    one: Sequence[int],
    two: Sequence[int],
    gap: _Gap,
    landmarks: Sequence[tuple[int, int]],
) -> Iterator[tuple[int, int, int]]:
    """Yield where landmarks begin in both rows, and for how long both are equal from there on."""
    at, other = gap.start, gap.other
    for i, k in landmarks:
        if i < at or k < other:
            continue
        at, other = i, k
        while at < gap.end and other < gap.other_end and one[at] == two[other]:
            at += 1
            other += 1
        yield i, k, at - i


def _between(gap: _Gap, runs: Sequence[tuple[int, int, int]]) -> Iterator[_Gap]:
    """Yield what runs leave of a gap."""
    start, _, other, _, length = gap
    for i, k, size in runs:
        yield _Gap(start, i, other, k, length)
        start, other = i + size, k + size
    yield gap._replace(start=start, other=other)


def _landmarks(
    one: Sequence[int], two: Sequence[int], gap: _Gap
) -> list[tuple[int, int]]:
    """Return where stretches begin that occur once in either row, as many as keep their order."""
    starts_a = _stretches(one, gap.start, gap.end, gap.length)
    starts_b = _stretches(two, gap.other, gap.other_end, gap.length)
    found = [
        (at, starts_b[total])
        for total, at in starts_a.items()
        if at >= 0 and starts_b.get(total, -1) >= 0
    ]
    return _increasing(found)


def _stretches(row: Sequence[int], start: int, end: int, length: int) -> dict[int, int]:
    """Return where each stretch of a length begins, by a sum over it; -1 if it occurs twice."""
    sums, total = [0], 0
    for entry in islice(row, start, end):
        total = (total * _BASE + entry + 1) % _PRIME
        sums.append(total)
    lost = pow(_BASE, length, _PRIME)
    found: dict[int, int] = {}
    ends = islice(sums, length, None)
    for at, (before, now) in enumerate(zip(sums, ends, strict=False), start):
        key = (now - before * lost) % _PRIME
        found[key] = -1 if key in found else at
    return found


def _increasing(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the most of some pairs of positions that rise in both; the first rises already."""
    lowest: list[int] = []  # ends of the best rows of each length
    last: list[int] = []
    before: list[int] = []
    for n, (_, other) in enumerate(found):
        length = bisect_left(lowest, other)
        before.append(last[length - 1] if length else -1)
        lowest[length : length + 1] = [other]
        last[length : length + 1] = [n]
    kept = []
    at = last[-1] if last else -1
    while at >= 0:
        kept.append(found[at])
        at = before[at]
    return kept[::-1]


def pair_in_reading_order(matching: Matching) -> None:
    """Pair first of all what stands in the same place, read from the first result of each program.

    A chain of like layers has no landmarks, but its order says which layer was inserted.
    """
    order_a, order_b = _reading_order(matching.a), _reading_order(matching.b)
    ids: dict[object, int] = {}  # nearly a longest common subsequence
    symbols = _symbols(matching.a, order_a, ids), _symbols(matching.b, order_b, ids)
    found = {order_a[i]: order_b[k] for i, k in anchored(*symbols)}
    rows_a, rows_b = matching.a.operands, matching.b.operands
    seen = set(found.values())
    kept = [
        (x, y)
        for x, y in found.items()
        if matching.is_free(x, y)
        and all(
            found[c] == d if c in found else d not in seen
            for c, d in zip(rows_a[x], rows_b[y], strict=False)
        )
    ]
    matching.pair_all(kept)
    for x, y in kept:
        matching.note_operands(x, y)
    matching.note_frontier(kept)
    matching.grow()


def _reading_order(side: Side) -> list[int]:
    """Return the nodes as a depth-first walk finishes them, the lowest result first."""
    heights = heights_of(side)
    results = sorted(
        dict.fromkeys(side.graph.outputs),
        key=lambda node: (heights[node], side.skeleton[node], node),
    )
    order: list[int] = []
    seen = bytearray(len(heights))
    stack = results[::-1]
    while stack:
        node = stack.pop()
        if node < 0:
            order.append(-1 - node)
        elif not seen[node]:
            seen[node] = 1
            stack.append(-1 - node)
            stack += [each for each in reversed(side.operands[node]) if not seen[each]]
    return order


def _symbols(side: Side, order: Sequence[int], ids: dict[object, int]) -> list[int]:
    skeleton, number = side.skeleton, ids.setdefault
    return [
        number(
            (skeleton[node], *[skeleton[each] for each in side.operands[node]]),
            len(ids),
        )
        for node in order
    ]
