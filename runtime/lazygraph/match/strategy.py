"""The order of the tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lazygraph.match.grow import (
    Ties,
    bridge,
    pair_by_colour,
    pair_equal_ancestors,
    pair_in_reading_order,
    pair_local_ancestors,
    pair_unique_labels,
)
from lazygraph.match.refine import (
    crossed,
    disputed,
    may_be_mistaken,
    only_inserts,
    other_ops,
    pair_by_gain,
    pair_handed_through,
    pair_leaves,
    refine,
    script_cost,
)
from lazygraph.match.state import UNPAIRED, Matching, Side, blind_labels, numbers

if TYPE_CHECKING:
    from lazygraph.graph import Graph

# Hints count only if at least this share of the smaller graph's hints occurs in the other.
_SHARED_HINTS = 0.5
_COLOUR_ROUNDS: tuple[tuple[int, Ties], ...] = (
    (2, "leave"), (5, "leave"), (3, "equal"), (1, "equal"), (3, "any"),
)  # fmt: skip
# A pass that makes fewer pairs is not worth another one.
_WORTHWHILE = 50


# Graphs of at most so many nodes are worth a second look.
_SMALL = 5_000
_BLIND_ROUNDS: tuple[tuple[int, Ties], ...] = ((2, "leave"), (3, "equal"), (3, "any"))
# A share of a graph that, left over on both sides, makes it worthwhile to look past what ops are.
_MUCH = 0.1
# A share of a large graph that is crossed, or left over: like layers were mistaken for each
# other between two places where some were inserted.
_SHIFTED = 0.01
_STARTS = ("hints", "colours", "order")
_LARGE_STARTS = ("order", "colours")
_EXACT_ROUNDS = (2, 1, 4, 2, 1)
# How often pairs that read no partners are made anew, at most.
_RECONSIDERED = 6
# Scripts of so many times the shortest one's length may still become the shortest.
_HOPEFUL = 1.5


class _Found(NamedTuple):
    """A matching, and how good it is.

    A script that is one edit shorter because it says that an op became another one is no better
    to read: such a change weighs two.
    """

    matching: Matching
    cost: int
    weight: int

    @property
    def partner(self) -> list[int]:
        """Its partner in b for each node of a."""
        return self.matching.a.partner

    def or_better(self, other: _Found) -> _Found:
        is_better = other.cost < self.cost and other.weight < self.weight
        return other if is_better else self


def match(a: Graph, b: Graph, *, quick: bool = False) -> Matching:
    """Return the assignment of the nodes of `a`, the graph before, to those of `b`.

    Small graphs are matched in several ways, of which the shortest script wins: where much looks
    alike, no one order of the tiers is best. One quick way is enough where the source lines and the
    names of inputs are known.
    """
    if quick or max(len(a), len(b)) > _SMALL:
        return _of_large(a, b)
    return _of_small(a, b).matching


def _of_small(a: Graph, b: Graph) -> _Found:
    """Return the best matching of all starts, each improved where it may become the best."""
    found: list[_Found] = []
    for start in _STARTS:
        found.append(_found(_match(a, b, start)))
        if found[-1].cost <= 1:
            return found[-1]
    found.sort(key=lambda each: each.cost)
    hopeful: list[_Found] = []
    for each in found:
        is_new = all(each.partner != other.partner for other in hopeful)
        if is_new and each.cost <= _HOPEFUL * found[0].cost:
            hopeful.append(each)
    best = min(map(_reconsidered, hopeful), key=lambda each: each.cost)
    return _tried(best, "shapes")


def _of_large(a: Graph, b: Graph) -> Matching:
    """Return the matching of the first start, or of further ones while much of it looks wrong."""
    enough = _SHIFTED * min(len(a), len(b))
    first, others = _begun(a, b, "hints"), list(_LARGE_STARTS)
    _finish(first)
    doubtful = disputed(first)
    rest, is_crossed = _left_over(first), crossed(first, doubtful) > enough
    best = _found(first)
    if not is_crossed and rest <= enough:
        if may_be_mistaken(best.matching):
            best = best.or_better(_found(_match(a, b, others[0])))
        return best.matching
    if rest > enough:  # so much is not paired anew quickly
        best = best.or_better(_found(_match(a, b, others.pop(0))))
    if is_crossed or len(disputed(best.matching)) <= enough:
        best = _reconsidered(best)
    for start in others:
        doubtful = disputed(best.matching)
        if _left_over(best.matching) + len(doubtful) <= enough:
            break
        if only_inserts(best.matching, doubtful):
            break
        best = _tried(best, start)
    is_rest_large = rest > _MUCH * min(len(a), len(b))
    return (_tried(best, "shapes") if is_rest_large else best).matching


def _tried(best: _Found, start: str) -> _Found:
    """Return the better of a matching and that of another start."""
    other = _found(_match(best.matching.a.graph, best.matching.b.graph, start))
    if other.cost <= _HOPEFUL * best.cost and disputed(other.matching):
        other = _reconsidered(other)
    return best.or_better(other)


def _found(matching: Matching) -> _Found:
    cost = script_cost(matching)
    return _Found(matching, cost, cost + other_ops(matching))


def _left_over(matching: Matching) -> int:
    """Return how many nodes have no partner on either side, by the side that has fewer of them."""
    return min(side.partner.count(UNPAIRED) for side in (matching.a, matching.b))


def _match(a: Graph, b: Graph, start: str) -> Matching:
    if start == "shapes":
        matching = Matching(a, b)
        _by_shapes(matching)
    else:
        matching = _begun(a, b, start)
        _finish(matching)
    return matching


def _begun(a: Graph, b: Graph, start: str) -> Matching:
    """Return a matching of what is equal, and of what follows from it."""
    matching = Matching(a, b)
    if start == "colours":
        for rounds in _EXACT_ROUNDS:
            while pair_by_colour(matching, rounds, "leave", exact=True):
                matching.grow()
    elif start == "hints":
        _by_hints(matching)
    elif start == "order":
        pair_in_reading_order(matching)
    pair_equal_ancestors(matching, "full")
    if _is_done(matching):
        return matching
    _spread(matching)
    return matching


def _spread(matching: Matching) -> None:
    """Go on to what can be nothing else, or differs in sizes alone."""
    a, b = matching.a.graph, matching.b.graph
    pair_unique_labels(matching, a.inputs, b.inputs)
    pair_unique_labels(matching, dict.fromkeys(a.outputs), dict.fromkeys(b.outputs))
    matching.grow()
    pair_equal_ancestors(matching, "skeleton", similar=True)


def _finish(matching: Matching) -> None:
    """Go on to all that can be paired."""
    if _is_done(matching) and not disputed(matching):
        return
    a, b = matching.a.graph, matching.b.graph
    while bridge(matching):  # one insertion after the other
        matching.grow(similar=True)
    for rounds, ties in _COLOUR_ROUNDS:
        _by_colours(matching, rounds, ties)
    pair_unique_labels(matching, a.inputs, b.inputs)
    pair_unique_labels(matching, range(len(a)), range(len(b)))
    _pair_rest(matching)


def _pair_rest(matching: Matching) -> None:
    matching.grow(similar=True)
    pair_by_gain(matching)
    pair_leaves(matching)
    pair_handed_through(matching)
    refine(matching)


def _by_shapes(matching: Matching) -> None:
    """Pair what is read and written alike, whatever it computes."""
    a, b = matching.a, matching.b
    plain = a.full, a.skeleton, b.full, b.skeleton
    a.full, b.full = blind_labels(a.graph, b.graph)
    a.skeleton, b.skeleton = a.full, b.full
    matching.forget_leads()
    pair_equal_ancestors(matching, "full")
    pair_unique_labels(matching, a.graph.inputs, b.graph.inputs)
    matching.grow()
    for rounds, ties in _BLIND_ROUNDS:
        _by_colours(matching, rounds, ties)
    a.full, a.skeleton, b.full, b.skeleton = plain
    matching.forget_leads()
    _pair_rest(matching)


def _reconsidered(best: _Found) -> _Found:
    """Return a matching in which what reads no partners was paired anew, while that is shorter.

    Where like branches were inserted into a sum, those of the forward pass may have been counted
    from one end of it and those of the backward pass from the other. The branches themselves
    agree, and say where the links of either chain belong once nothing holds these.
    """
    is_large = len(best.matching.a.graph) > _SMALL
    with_users = False
    for _ in range(_RECONSIDERED):
        doubtful = set(disputed(best.matching))
        if not doubtful or (is_large and only_inserts(best.matching, [*doubtful])):
            break
        if with_users:
            users = best.matching.a.users
            doubtful |= {user for node in doubtful for user, _ in users[node]}
        better = best.or_better(_found(_paired_anew(best.matching, doubtful)))
        if better is best and with_users:
            break
        with_users = better is best
        best = better
    return best


def _paired_anew(matching: Matching, doubtful: set[int]) -> Matching:
    """Return a matching that keeps the pairs of all nodes but some."""
    partner = matching.a.partner
    other = Matching(matching.a.graph, matching.b.graph)
    other.pair_all(
        (x, y) for x, y in enumerate(partner) if y >= 0 and x not in doubtful
    )
    other.forget_leads()
    other.grow()
    _spread(other)
    _finish(other)
    return other


def _is_done(matching: Matching) -> bool:
    return matching.pairs == min(len(matching.a.graph), len(matching.b.graph))


def _by_colours(matching: Matching, rounds: int, ties: Ties) -> None:
    while pair_by_colour(matching, rounds, ties):
        before = matching.pairs
        matching.grow(similar=True)
        if ties != "leave" or matching.pairs - before < _WORTHWHILE:
            return


def _by_hints(matching: Matching) -> None:
    """Let scopes and source lines be part of the labels in a first pass, then forget them."""
    hints_a, hints_b = matching.a.graph.hints(), matching.b.graph.hints()
    names_a, names_b = set(hints_a) - {""}, set(hints_b) - {""}
    smaller = min(len(names_a), len(names_b))
    if smaller < 2 or len(names_a & names_b) < _SHARED_HINTS * smaller:  # noqa: PLR2004
        return
    known = numbers()
    a, b = matching.a, matching.b
    plain = a.full, b.full
    labels_a, labels_b = plain if _share_labels(a, b) else (a.skeleton, b.skeleton)
    a.full = [known[each] for each in zip(labels_a, hints_a, strict=True)]
    b.full = [known[each] for each in zip(labels_b, hints_b, strict=True)]
    pair_unique_labels(matching, a.graph.inputs, b.graph.inputs)
    pair_local_ancestors(matching, _scopes(hints_a), _scopes(hints_b))
    pair_equal_ancestors(matching, "full")
    pair_unique_labels(matching, range(len(a.graph)), range(len(b.graph)))
    matching.grow()
    a.full, b.full = plain
    matching.forget_leads()
    matching.grow()


def _share_labels(a: Side, b: Side) -> bool:
    """Return whether labels say anything: another dtype makes all of them new."""
    shared = set(a.full).intersection(b.full)
    return sum(map(shared.__contains__, a.full)) > _MUCH * len(a.full)


def _scopes(hints: list[str]) -> list[int]:
    """Return a number for each node's scope, 0 for none."""
    known = numbers()
    known[""]  # the first number
    scope_of = {hint: known[hint.rpartition("/")[0]] for hint in set(hints)}
    return [scope_of[hint] for hint in hints]
