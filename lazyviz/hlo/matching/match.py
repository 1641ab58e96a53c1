"""The order of the tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyviz.hlo.matching.bridge import bridge
from lazyviz.hlo.matching.colours import Ties, pair_by_colour
from lazyviz.hlo.matching.labels import numbers
from lazyviz.hlo.matching.order import pair_in_reading_order
from lazyviz.hlo.matching.refine import refine, script_cost
from lazyviz.hlo.matching.residual import (
    pair_by_gain,
    pair_contested,
    pair_leaves,
    pair_lone_leaves,
)
from lazyviz.hlo.matching.state import Matching
from lazyviz.hlo.matching.tiers import (
    pair_equal_cones,
    pair_local_cones,
    pair_unique_labels,
)

if TYPE_CHECKING:
    from lazyviz.hlo.graph import Graph

# Hints count only if at least this share of the smaller graph's hints occurs in the other.
_SHARED_HINTS = 0.5
_COLOUR_ROUNDS: tuple[tuple[int, Ties], ...] = (
    (2, "leave"), (5, "leave"), (3, "equal"), (1, "equal"), (3, "any"),
)  # fmt: skip
# A pass that makes fewer pairs is not worth another one.
_WORTHWHILE = 50


# Graphs of at most so many nodes are worth a second look.
_SMALL = 5_000
_OTHER_STARTS = ("colours", "cones", "order")
_EXACT_ROUNDS = (2, 1, 4, 2, 1)


def match(a: Graph, b: Graph) -> Matching:
    """Return the assignment of the nodes of `a` to those of `b`.

    Small graphs are matched in several ways, of which the shortest script wins: where much
    looks alike, no one order of the tiers is best.
    """
    best = _match(a, b)
    if max(len(a), len(b)) > _SMALL:
        return best
    lowest = script_cost(best)
    for start in _OTHER_STARTS:
        if lowest <= 1:
            break
        other = _match(a, b, start)
        cost = script_cost(other)
        if cost < lowest:
            best, lowest = other, cost
    return best


def _match(a: Graph, b: Graph, start: str = "hints") -> Matching:
    matching = Matching(a, b)
    pair_lone_leaves(matching)
    if start == "colours":
        _by_exact_colours(matching)
    elif start == "hints":
        _by_hints(matching)
    elif start == "order":
        pair_in_reading_order(matching)
    pair_equal_cones(matching, "full")
    if _is_done(matching):
        return matching
    pair_unique_labels(matching, a.inputs, b.inputs)
    pair_unique_labels(matching, dict.fromkeys(a.outputs), dict.fromkeys(b.outputs))
    matching.grow()
    pair_equal_cones(matching, "skeleton", similar=True)
    _by_bridges(matching)
    for rounds, ties in _COLOUR_ROUNDS:
        _by_colours(matching, rounds, ties)
    matching.revisit()
    pair_contested(matching)
    pair_unique_labels(matching, a.inputs, b.inputs)
    pair_unique_labels(matching, range(len(a)), range(len(b)))
    matching.grow(similar=True)
    pair_contested(matching)
    pair_by_gain(matching)
    pair_leaves(matching)
    refine(matching)
    return matching


def _is_done(matching: Matching) -> bool:
    return matching.pairs == min(len(matching.a.graph), len(matching.b.graph))


def _by_bridges(matching: Matching) -> None:
    """Step over one insertion after the other."""
    while bridge(matching):
        matching.grow(similar=True)


def _by_colours(matching: Matching, rounds: int, ties: Ties) -> None:
    while pair_by_colour(matching, rounds, ties):
        before = matching.pairs
        matching.grow(similar=True)
        if ties != "leave" or matching.pairs - before < _WORTHWHILE:
            return


def _by_exact_colours(matching: Matching) -> None:
    for rounds in _EXACT_ROUNDS:
        while pair_by_colour(matching, rounds, "leave", exact=True):
            matching.grow()


def _by_hints(matching: Matching) -> None:
    """Let scopes and source lines be part of the labels in a first pass, then forget them."""
    hints_a, hints_b = _hints(matching.a.graph), _hints(matching.b.graph)
    if hints_a is None or hints_b is None:
        return
    names_a, names_b = set(hints_a) - {""}, set(hints_b) - {""}
    smaller = min(len(names_a), len(names_b))
    if smaller < 2 or len(names_a & names_b) < _SHARED_HINTS * smaller:  # noqa: PLR2004
        return
    known = numbers()
    a, b = matching.a, matching.b
    plain = a.full, b.full
    a.full = [known[each] for each in zip(a.full, hints_a, strict=True)]
    b.full = [known[each] for each in zip(b.full, hints_b, strict=True)]
    pair_unique_labels(matching, a.graph.inputs, b.graph.inputs)
    pair_local_cones(matching, _scopes(hints_a), _scopes(hints_b))
    pair_equal_cones(matching, "full")
    pair_unique_labels(matching, range(len(a.graph)), range(len(b.graph)))
    matching.grow()
    a.full, b.full = plain
    matching.forget_leads()
    matching.grow()


def _scopes(hints: list[str]) -> list[int]:
    """Return a number for each node's scope, 0 for none."""
    known = numbers()
    known[""]  # the first number
    scope_of = {hint: known[hint.rpartition("/")[0]] for hint in set(hints)}
    return [scope_of[hint] for hint in hints]


def _hints(graph: Graph) -> list[str] | None:
    """Return a hint for each node, None if none has any."""
    hints = graph.hints()
    return hints if any(hints) else None
