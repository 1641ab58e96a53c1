"""Attribution: every edit goes to the cause whose closure holds it, by rank, then distance.

A cause's closure is computed once, from its fact alone; no cause sees what another one took. What a
cause's sentence may name follows from its facts, too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from lazygraph.explain.compare import position
from lazygraph.explain.facts import Fact, Row, in_scope
from lazygraph.readable import listed, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from lazygraph.explain.compare import Comparison, Side
    from lazygraph.snapshot import SourceLocation, Vertex


@dataclass
class Closure:
    """What follows from a cause: vertices of either graph with their distance, and results."""

    a: dict[int, int] = field(default_factory=dict)
    b: dict[int, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    new: set[int] = field(default_factory=set)

    def with_others_of(self, more: Closure) -> Closure:
        """Return these vertices, and those that another closure has besides."""
        a, b = more.a | self.a, more.b | self.b
        return Closure(a, b, self.gone, self.new)

    def with_all(self, c: Comparison, is_wanted: Callable[[Vertex], bool]) -> Closure:
        """Add the unmatched vertices of a sort, and what only they need; return all."""
        for side, into in ((c.a, self.a), (c.b, self.b)):
            seeds = {k for k in side.unmatched if is_wanted(side[k])}
            into.update(dict.fromkeys(seeds | side.dominated((), seeds), 1))
        return self

    def parts(
        self, c: Comparison, fact: Fact
    ) -> Iterator[tuple[Side, Row, dict[int, int], set[int]]]:
        """Yield each side that has a row, with the vertices and results found there."""
        if fact.before is not None:
            yield c.a, fact.before, self.a, self.gone
        if fact.now is not None:
            yield c.b, fact.now, self.b, self.new


def alone(c: Comparison, fact: Fact) -> Closure:
    """The vertices of the rows, with the inputs that only they read."""
    found = Closure()
    for side, row, into, _ in found.parts(c, fact):
        seeds = {*row.vertices} & side.free
        into.update(dict.fromkeys(seeds | side.dominated((), seeds), 0))
    return found


def downstream(c: Comparison, fact: Fact) -> Closure:
    """What both graphs have and is of another type, or reads another operand, behind the rows.

    New operations are passed, and belong to whoever added them.
    """
    found = Closure()
    for side, row, into, _ in found.parts(c, fact):
        behind = side.downstream(row.vertices, side.free.__contains__)
        for k, distance in behind.items():
            is_known = side.partner[k] >= 0 or side[k].op.startswith("aten._to_copy")
            if is_known or k in row.vertices:
                into[k] = distance
    return found


def spread_together(
    c: Comparison, facts: list[Fact], spread: Callable[[Comparison, Fact], Closure]
) -> list[Closure]:
    """Return the closures of facts that share a sentence.

    What follows from many inputs is walked once, and belongs to the first.
    """
    if spread is not downstream or len(facts) == 1:
        return [spread(c, fact) for fact in facts]
    sides = [[f.before for f in facts], [f.now for f in facts]]
    own = [[row.vertices if row else () for row in rows] for rows in sides]
    rows = [Row(None, vertices=tuple(chain(*each))) for each in own]
    whole = downstream(c, Fact(facts[0].table, *rows))
    found = [
        Closure(dict.fromkeys(a, 0), dict.fromkeys(b, 0))
        for a, b in zip(*own, strict=True)
    ]
    for each in found[1:]:
        for vertices, into in ((each.a, whole.a), (each.b, whole.b)):
            for vertex in vertices:
                into.pop(vertex, None)
    return [whole, *found[1:]]


def dominated(c: Comparison, fact: Fact) -> Closure:
    """What nothing needs but the rows."""
    found = Closure()
    for side, row, into, ranks in found.parts(c, fact):
        seeds = {row.rank} - {-1}
        into.update(dict.fromkeys(side.dominated(seeds), 0))
        ranks.update(seeds)
    return found


def line(c: Comparison, fact: Fact) -> Closure:
    """What one line and module record, what only that needs, and what is new or gone behind it."""
    found = Closure()
    for side, row, into, _ in found.parts(c, fact):
        seeds = {k for k in row.vertices if k in side.unmatched}
        if fact.is_new or fact.is_gone:  # what one line did another does now
            into.update(dict.fromkeys({*row.vertices} & side.free, 1))
        into.update(dict.fromkeys(side.dominated((), seeds) if seeds else (), 1))
        into.update(side.downstream(seeds, side.unmatched.__contains__))
    return found


def reading(c: Comparison, fact: Fact) -> Closure:
    """What reads the rows, and what reads or feeds nothing else."""
    found = Closure()
    for side, row, into, _ in found.parts(c, fact):
        seeds = {*row.vertices} & side.unmatched
        behind = side.downstream(seeds, side.unmatched.__contains__)
        readers = (user for k in seeds for user in side.users[k])
        lines = {position(side[user].site) for user in readers}
        into.update(
            {
                k: d
                for k, d in behind.items()
                if k in seeds or position(side[k].site) in lines
            }
        )
        into.update(dict.fromkeys(side.dominated((), into), 1))
    return found


def scope(c: Comparison, fact: Fact) -> Closure:
    """What a module records, its parameters with their gradients and updates, and what follows."""
    found = downstream(c, fact)
    path = fact.row.name
    for side, row, into, ranks in found.parts(c, fact):
        inside = {k for k in side.unmatched if path and in_scope(side[k].scope, path)}
        inside |= {k for k in row.vertices if k in side.unmatched}
        behind = side.downstream(inside, side.free.__contains__)
        into.update({k: d for k, d in behind.items() if side.partner[k] >= 0})
        seeds = owned(side, [path])
        ranks.update(seeds)
        into.update(dict.fromkeys(inside | side.dominated(seeds, inside), 0))
    return found


def on_line(c: Comparison, fact: Fact) -> Closure:
    """What the rows need alone, and what their line records."""
    lines = {position(row.site) for row in (fact.before, fact.now) if row is not None}
    return dominated(c, fact).with_all(
        c, lambda v: not (v.is_leaf or v.scope) and position(v.site) in lines
    )


def owner(c: Comparison, fact: Fact) -> Closure:
    """What updates a parameter, its gradient, and what an optimizer keeps of it."""
    found = on_line(c, fact)
    for side, row, into, ranks in found.parts(c, fact):
        seeds = owned(side, [row.name]) | ({row.rank} - {-1})
        ranks.update(seeds)
        updates = {*row.vertices} & side.free
        into.update(side.ancestors(updates, (updates | side.unmatched).__contains__))
        into.update(dict.fromkeys(side.dominated(seeds), 0))
    return found


def owned(side: Side, paths: Iterable[str]) -> set[int]:
    """Return the results that are parameters, gradients or state below some module paths."""
    wanted = tuple(f"{path}." for path in paths)
    exact = {*paths}
    return {
        k
        for k, name in side.snapshot.root_names.items()
        if (name.in_module or name.holder in {"optimizer", "gradient"})
        and (name.text in exact or name.text.startswith(wanted))
    }


@dataclass(eq=False)
class Claim:
    """A cause that may hold, with what goes to it.

    It counts vertices that differ for it, results that one side alone has, and vertices that read
    something else and are otherwise as before (`rewired`). `rank` is its place in the table of
    causes.
    """

    row: Any
    rank: int
    fact: Fact
    closure: Closure
    added: int = 0
    removed: int = 0
    changed: int = 0
    results: int = 0
    rewired: int = 0

    @property
    def weight(self) -> int:
        """How much goes to it."""
        return self.added + self.removed + self.changed


def attribute(c: Comparison, claims: list[Claim]) -> int:
    """Give every edit to the best claim that holds it; return how many no claim holds.

    A claim of whose rows all edits are others' follows from those, and goes.
    """
    best_a, best_b = _best(claims, "a"), _best(claims, "b")
    kept = [m for m in claims if _has_own(c, m, best_a, best_b)]
    if len(kept) < len(claims):
        claims[:] = kept
        best_a, best_b = _best(claims, "a"), _best(claims, "b")
    sides, left = ((c.a, best_a), (c.b, best_b)), 0
    for side, best in sides:
        _flood(side, best, side.unmatched)
    _claim_replaced(c, best_a, best_b)
    _claim_changed(c, best_a, best_b)
    for side, best in sides:
        _flood(side, best, side.free)
    behind = _claim_of_loss(c, best_a, best_b)
    for side, best in sides:
        for k in side.unmatched | (c.changed.keys() if side is c.b else set()):
            readers = side.users[k] if side[k].is_leaf else [k]
            is_behind = any(readers) and all(side[r].backward for r in readers)
            found = best.get(k) or (behind if is_behind else None)
            if found is None:
                left += 1
            elif k not in side.unmatched:
                found.changed += 1
            elif side is c.b:
                found.added += 1
            else:
                found.removed += 1
    for k in c.rewired & best_b.keys():
        for claim in {best_b[k], best_a[c.b.partner[k]]}:
            claim.rewired += 1
    for ranks, side, best, of in (
        (c.new_results, c.b, best_b, "new"),
        (c.gone_results, c.a, best_a, "gone"),
    ):
        for rank in ranks:
            vertex = side.roots[rank][0]
            # Of a new vertex it counts for who holds that, too.
            is_new = side.partner[vertex] < 0
            options = [
                m
                for m in claims
                if rank in getattr(m.closure, of)
                and not (is_new and vertex not in getattr(m.closure, "ab"[side is c.b]))
            ]
            options += [best[vertex]] if vertex in best else []
            if options:
                min(options, key=lambda m: m.rank).results += 1
    return left


def _has_own(
    c: Comparison, claim: Claim, best_a: dict[int, Claim], best_b: dict[int, Claim]
) -> bool:
    """Return whether some edit of a claim's rows is the claim's, or they have none."""
    parts = ((c.a, claim.fact.before, best_a), (c.b, claim.fact.now, best_b))
    owners = {
        best.get(k)
        for side, row, best in parts
        if row is not None
        for k in row.vertices
        if k in side.unmatched
    }
    is_own = any(owner is None or owner.rank == claim.rank for owner in owners)
    return is_own or not owners or claim.row.is_shown


def _best(claims: list[Claim], of: str) -> dict[int, Claim]:
    best: dict[int, tuple[tuple[int, int], Claim]] = {}
    for claim in claims:
        for vertex, distance in getattr(claim.closure, of).items():
            key = (claim.rank, distance)
            if vertex not in best or key < best[vertex][0]:
                best[vertex] = (key, claim)
    return {vertex: claim for vertex, (_, claim) in best.items()}


def _claim_changed(
    c: Comparison, best_a: dict[int, Claim], best_b: dict[int, Claim]
) -> None:
    """Give pairs that differ to a claim of either, of what they read, or of what reads them."""
    pairs = [*c.changed.items(), *((k, c.b.partner[k]) for k in c.rewired)]
    waiting = []
    for k, partner in pairs:
        near = [best_b.get(k), best_a.get(partner)]
        found = _first(near) or _first(best_b.get(o) for o, _ in c.b[k].operands)
        if found is None:
            waiting.append((k, partner))
        else:
            best_b[k] = found
            best_a.setdefault(partner, found)
    for k, partner in reversed(waiting):
        # 1/N of a mean reads nothing that changed, and what reads it does.
        found = _first(best_b.get(user) for user in c.b.users[k])
        if found is not None:
            best_b[k] = found
            best_a.setdefault(partner, found)


def _first(claims: Iterable[Claim | None]) -> Claim | None:
    """Return the claim of the highest rank."""
    return min((m for m in claims if m), key=lambda m: m.rank, default=None)


def _claim_of_loss(
    c: Comparison, best_a: dict[int, Claim], best_b: dict[int, Claim]
) -> Claim | None:
    """Return the claim of most of what differs in front of backward: gradients follow from it.

    What only a result needs is no part of a loss.
    """
    counts = Counter(
        claim
        for side, best in ((c.a, best_a), (c.b, best_b))
        for k, claim in best.items()
        if k in side.free
        and not (side[k].backward or side[k].is_leaf)
        and claim.row.spread is not dominated
    )
    return max(counts, key=lambda m: (counts[m], -m.rank), default=None)


def _claim_replaced(
    c: Comparison, best_a: dict[int, Claim], best_b: dict[int, Claim]
) -> None:
    """Give what was replaced to the claim of what replaced it.

    Two edits replace each other where the two of a pair read them in one slot, or where one line
    and module record them.
    """
    for _, old, new in c.substitutions:
        if old in c.a.unmatched and new in c.b.unmatched:
            if old not in best_a and new in best_b:
                best_a[old] = best_b[new]
            elif new not in best_b and old in best_a:
                best_b[new] = best_a[old]
    lines_a, lines_b = _by_line(c.a, best_a), _by_line(c.b, best_b)
    for side, best, lines in ((c.a, best_a, lines_b), (c.b, best_b, lines_a)):
        for k in side.unmatched - best.keys():
            claim = lines.get(_line_of(side[k]))
            if claim is not None and not side[k].is_leaf:
                best[k] = claim


def _line_of(vertex: Vertex) -> Hashable:
    return (position(vertex.site), vertex.scope)


def _by_line(side: Side, best: dict[int, Claim]) -> dict[Hashable, Claim]:
    """Return for each line and module the claim of most edits that it records."""
    counts: dict[Hashable, Counter[Claim]] = {}
    for k, claim in best.items():
        if k in side.free and side[k].site is not None:
            counts.setdefault(_line_of(side[k]), Counter())[claim] += 1
    return {line: found.most_common(1)[0][0] for line, found in counts.items()}


def _flood(side: Side, best: dict[int, Claim], seeds: set[int]) -> None:
    """Give what no closure holds to the cause of its neighbours, beginning from the seeds."""
    left = side.unmatched - best.keys()
    queue = [k for k in best if k in seeds]
    for k in queue:
        for other in (*(o for o, _ in side[k].operands), *side.users[k]):
            if other in left:
                left.discard(other)
                best[other] = best[k]
                queue.append(other)


# How a sentence names things: the fields that the templates of causes may use.

Fields = dict[str, Any]


def at(site: SourceLocation | None) -> str:
    """Return ` at cell 3 line 2`, or nothing for an unknown line."""
    return f" at {site}" if site is not None else ""


def in_brackets(site: SourceLocation | None) -> str:
    """Return ` (cell 3 line 2)`, or nothing for an unknown line."""
    return f" ({site})" if site is not None else ""


def forms(*, many: bool) -> Fields:
    """Return the fields that are forms of words for one or several."""
    words = ("s", "are", "were", "them") if many else ("", "is", "was", "it")
    return dict(zip(("s", "is_", "was", "it"), words, strict=True))


def fields_of(c: Comparison, claims: list[Claim]) -> Fields:
    """Return the fields of a cause: of its first fact, and of all where several share a sentence.

    The claim that most follows from is the first. `called` is what the user calls the first one, or
    else the line that reads it; `text`, `before` and `now` are how the rows show themselves;
    `sizes` is, of what has another size along one axis, that size before and now.
    """
    facts = [claim.fact for claim in claims]
    fact, row = facts[0], facts[0].row
    many = len(facts) > 1
    origin = row.more.get("origin")
    reader = "" if row.name else c.source.statement(row.site)
    return {
        "name": row.name,
        "names": listed(f.row.name for f in facts) or plural(len(facts), "tensor"),
        "called": f"`{row.name}`"
        if row.name
        else f"of `{reader}`{at(row.site)}"
        if reader
        else f"(read{at(row.site)})",
        "text": row.text,
        "before": fact.before.text if fact.before else "",
        "now": fact.now.text if fact.now else "",
        "at": at(row.site),
        "before_at": at(fact.before.site) if fact.before else "",
        "others": f" (and {len(facts) - 1} more)" if many else "",
        **forms(many=many),
        "an_input": "inputs" if many else "an input",
        "graph_before": c.a.record.name,
        "holder": row.more.get("holder", ""),
        "op": row.more.get("op", ""),
        "origin_step": origin.step if origin is not None else "",
        "variable": row.name,
        "sizes": (),
    }
