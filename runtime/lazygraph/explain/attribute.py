"""Attribution: every edit goes to the cause whose closure holds it, by rank, then distance.

A cause's closure is computed once, from its fact alone; no cause sees what another one took.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lazygraph.explain.compare import position
from lazygraph.explain.facts import Fact, Row, in_scope, update_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lazygraph.explain.compare import Comparison, Side


@dataclass
class Closure:
    """What follows from a cause: vertices of either graph with their distance, and results."""

    a: dict[int, int] = field(default_factory=dict)
    b: dict[int, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    new: set[int] = field(default_factory=set)


def alone(c: Comparison, fact: Fact) -> Closure:
    """The vertices of the rows, with the inputs that only they read."""
    found = Closure()
    for side, row, into in ((c.a, fact.before, found.a), (c.b, fact.now, found.b)):
        if row is not None:
            seeds = {k for k in row.vertices if k in side.free}
            into.update(dict.fromkeys(seeds | side.dominated((), seeds), 0))
    return found


def downstream(c: Comparison, fact: Fact) -> Closure:
    """What both graphs have and is of another type, or reads another operand, behind the rows.

    New operations are passed, and belong to whoever added them.
    """
    found = Closure()
    for side, row, into in ((c.a, fact.before, found.a), (c.b, fact.now, found.b)):
        if row is None:
            continue
        behind = side.downstream(row.vertices, side.free.__contains__)
        seeds = {*row.vertices}
        into.update(
            {
                k: d
                for k, d in behind.items()
                if k in seeds
                or side.partner[k] >= 0
                or side[k].op.startswith("aten._to_copy")
            }
        )
    return found


def spread_together(
    c: Comparison, facts: list[Fact], spread: Callable[[Comparison, Fact], Closure]
) -> list[Closure]:
    """Return the closures of facts that share a sentence.

    What follows from many inputs is walked once, and belongs to the first.
    """
    if spread is not downstream or len(facts) == 1:
        return [spread(c, fact) for fact in facts]
    found = [
        Closure(
            dict.fromkeys(fact.before.vertices if fact.before else (), 0),
            dict.fromkeys(fact.now.vertices if fact.now else (), 0),
        )
        for fact in facts
    ]
    rows = [
        Row(
            None,
            vertices=tuple(vertex for each in found for vertex in getattr(each, of)),
        )
        for of in ("a", "b")
    ]
    whole = downstream(c, Fact(facts[0].table, *rows))
    for of in ("a", "b"):
        own = {vertex for each in found[1:] for vertex in getattr(each, of)}
        behind = getattr(whole, of).items()
        getattr(found[0], of).update({k: d for k, d in behind if k not in own})
    return found


def dominated(c: Comparison, fact: Fact) -> Closure:
    """What nothing needs but the rows."""
    found = Closure()
    for side, row, into, ranks in (
        (c.a, fact.before, found.a, found.gone),
        (c.b, fact.now, found.b, found.new),
    ):
        if row is None:
            continue
        seeds = {*row.more.get("ranks", (row.rank,))} - {-1}
        into.update(dict.fromkeys(side.dominated(seeds), 0))
        ranks.update(seeds)
    return found


def line(c: Comparison, fact: Fact) -> Closure:
    """What one line and module record, backward too, and what only that needs."""
    found = Closure()
    for side, row, into in ((c.a, fact.before, found.a), (c.b, fact.now, found.b)):
        if row is None:
            continue
        seeds = {k for k in row.vertices if k in side.unmatched}
        if seeds:
            into.update(dict.fromkeys(seeds | side.dominated((), seeds), 0))
    return found


def region(c: Comparison, fact: Fact) -> Closure:
    """What hangs together with the rows on the lines that made or read them."""
    found = downstream(c, fact)
    lines = {position(row.site) for row in (fact.before, fact.now) if row is not None}
    for side, row, into in ((c.a, fact.before, found.a), (c.b, fact.now, found.b)):
        if row is None:
            continue
        seeds = {k for k in row.vertices if k in side.unmatched}
        queue = [*row.vertices]
        for k in queue:
            near = [o for o, _ in side[k].operands] + side.users[k]
            for other in near:
                if other in seeds or other not in side.unmatched:
                    continue
                if side[other].is_leaf or position(side[other].site) in lines:
                    seeds.add(other)
                    queue.append(other)
        into.update(dict.fromkeys(seeds | side.dominated((), seeds), 0))
    return found


def call(c: Comparison, fact: Fact) -> Closure:
    """What a module records, and what reads nothing else."""
    found = line(c, fact)
    for side, into in ((c.a, found.a), (c.b, found.b)):
        for k in range(len(side.vertices)) if into else ():
            if k not in into and k in side.unmatched:
                read = [o for o, _ in side[k].operands if not side[o].is_leaf]
                if read and all(o in into for o in read):
                    into[k] = 1
    return found


def reading(c: Comparison, fact: Fact) -> Closure:
    """What reads the rows, and what reads or feeds nothing else."""
    found = Closure()
    for side, row, into in ((c.a, fact.before, found.a), (c.b, fact.now, found.b)):
        if row is None:
            continue
        seeds = {*row.vertices} & side.unmatched
        behind = side.downstream(seeds, side.unmatched.__contains__)
        lines = {
            (position(side[user].site), side[user].scope)
            for k in seeds
            for user in side.users[k]
        }
        into.update(
            {
                k: d
                for k, d in behind.items()
                if k in seeds or (position(side[k].site), side[k].scope) in lines
            }
        )
        into.update(dict.fromkeys(side.dominated((), into), 1))
    return found


def scope(c: Comparison, fact: Fact) -> Closure:
    """What a module records, its parameters with their gradients and updates, and what follows."""
    found = downstream(c, fact)
    path = fact.row.name
    for side, row, into, ranks in (
        (c.a, fact.before, found.a, found.gone),
        (c.b, fact.now, found.b, found.new),
    ):
        if row is None:
            continue
        inside = {k for k in side.unmatched if path and in_scope(side[k].scope, path)}
        inside |= {k for k in row.vertices if k in side.unmatched}
        behind = side.downstream(inside, side.free.__contains__)
        into.update({k: d for k, d in behind.items() if side.partner[k] >= 0})
        seeds = owned(side, [path])
        ranks.update(seeds)
        into.update(dict.fromkeys(inside | side.dominated(seeds, inside), 0))
        if seeds:
            _add_updates(c, found)
    return found


def _add_updates(c: Comparison, found: Closure) -> None:
    """Add what one side alone updates parameters by: of others, an optimizer has other ops."""
    lines = update_lines(c.a) | update_lines(c.b)
    for side, into in ((c.a, found.a), (c.b, found.b)):
        for k in side.unmatched - into.keys():
            vertex = side[k]
            if position(vertex.site) in lines and not (
                vertex.is_leaf or vertex.scope or vertex.backward
            ):
                into[k] = 1


def on_line(c: Comparison, fact: Fact) -> Closure:
    """What the rows need alone, and what their line records."""
    found = dominated(c, fact)
    lines = {position(row.site) for row in (fact.before, fact.now) if row is not None}
    for side, into in ((c.a, found.a), (c.b, found.b)):
        seeds = {
            k
            for k in side.unmatched
            if not side[k].is_leaf
            and not side[k].scope
            and position(side[k].site) in lines
        }
        into.update(dict.fromkeys(seeds | side.dominated((), seeds), 1))
    return found


def owner(c: Comparison, fact: Fact) -> Closure:
    """What updates a parameter, and what an optimizer keeps of it."""
    found = on_line(c, fact)
    for side, row, into, ranks in (
        (c.a, fact.before, found.a, found.gone),
        (c.b, fact.now, found.b, found.new),
    ):
        if row is None:
            continue
        seeds = owned(side, [row.name]) | ({row.rank} - {-1})
        ranks.update(seeds)
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


@dataclass
class Claim:
    """A cause that may hold, with what goes to it.

    Attributes:
        rank: Its place in the table of causes.
        facts: What it is about; facts of one cause and group are one sentence.
        edits: How many vertices were added, removed and changed for it.
    """

    row: Any
    rank: int
    fact: Fact
    closure: Closure
    added: int = 0
    removed: int = 0
    changed: int = 0
    results: int = 0

    @property
    def weight(self) -> int:
        """How much goes to it."""
        return self.added + self.removed + self.changed


def attribute(c: Comparison, claims: list[Claim]) -> int:
    """Give every edit to the best claim that holds it; return how many no claim holds."""
    best_a, best_b = _best(claims, "a"), _best(claims, "b")
    _flood(c.a, best_a, c.a.unmatched)
    _flood(c.b, best_b, c.b.unmatched)
    left = 0
    for k in c.b.unmatched:
        found = best_b.get(k)
        if found is None:
            left += 1
        else:
            found.added += 1
    for k in c.a.unmatched:
        found = best_a.get(k)
        if found is None:
            left += 1
        else:
            found.removed += 1
    waiting: list[int] = []
    for k, partner in (*c.changed.items(), *((r, c.b.partner[r]) for r in c.rewired)):
        options = [m for m in (best_b.get(k), best_a.get(partner)) if m is not None]
        found = min(options, key=lambda m: m.rank, default=None)
        found = found or _follows(c, k, best_b)
        if found is None:
            waiting.append(k)
        else:
            best_b[k] = found
            found.changed += k in c.changed
    for k in reversed(waiting):
        # A gradient's 1/N reads nothing that changed, and what reads it does.
        readers = [best_b[user] for user in c.b.users[k] if user in best_b]
        found = min(readers, key=lambda m: m.rank, default=None)
        if found is None:
            left += k in c.changed
        else:
            best_b[k] = found
            found.changed += k in c.changed
    for ranks, side, best, of in (
        (c.new_results, c.b, best_b, "new"),
        (c.gone_results, c.a, best_a, "gone"),
    ):
        for rank in ranks:
            vertex = side.roots[rank][0]
            options = [
                m
                for m in claims
                if rank in getattr(m.closure, of)
                and (
                    side.partner[vertex] >= 0
                    or vertex in (m.closure.b if of == "new" else m.closure.a)
                )
            ]
            by_vertex = best.get(vertex)
            if by_vertex is not None and by_vertex not in options:
                options.append(by_vertex)
            if options:
                min(options, key=lambda m: m.rank).results += 1
    return left


def _best(claims: list[Claim], of: str) -> dict[int, Claim]:
    best: dict[int, tuple[tuple[int, int], Claim]] = {}
    for claim in claims:
        for vertex, distance in getattr(claim.closure, of).items():
            key = (claim.rank, distance)
            if vertex not in best or key < best[vertex][0]:
                best[vertex] = (key, claim)
    return {vertex: claim for vertex, (_, claim) in best.items()}


def _follows(c: Comparison, vertex: int, best: dict[int, Claim]) -> Claim | None:
    """Return the claim of what a changed vertex reads: 1/N of a mean reads nothing that changed."""
    near = [best[o] for o, _ in c.b[vertex].operands if o in best]
    return min(near, key=lambda m: m.rank, default=None)


def _flood(side: Side, best: dict[int, Claim], free: set[int]) -> None:
    """Give what no closure holds to its line's cause, else to that of its neighbours.

    Autograd records an op's gradient with the op's line and module.
    """
    by_line: dict[object, Counter[int]] = {}
    claims = {id(claim): claim for claim in best.values()}
    for k, claim in best.items():
        vertex = side[k]
        if k in free and vertex.site is not None:
            key = (position(vertex.site), vertex.scope)
            by_line.setdefault(key, Counter())[id(claim)] += 1
    for k in sorted(free - best.keys()):
        vertex = side[k]
        found = by_line.get((position(vertex.site), vertex.scope))
        if found and vertex.backward:
            best[k] = claims[found.most_common(1)[0][0]]
    waiting = sorted(free - best.keys())
    queue = [k for k in best if k in free]
    left = {*waiting}
    for k in queue:
        near = [o for o, _ in side[k].operands] + side.users[k]
        for other in near:
            if other in left:
                left.discard(other)
                best[other] = best[k]
                queue.append(other)
