"""Why a graph is new: which graph it is compared with, and the causes of the differences."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from lazygraph.explain import breaks, causes
from lazygraph.explain.attribute import (
    Claim,
    at,
    attribute,
    fields_of,
    in_brackets,
    spread_together,
)
from lazygraph.explain.compare import (
    FALLBACK,
    LIMIT,
    Comparison,
    differs,
    is_break,
    is_view,
    nearest,
    position,
)
from lazygraph.explain.facts import Fact, facts_of
from lazygraph.explain.model import NO_SOURCE, Cause, EditCounts, Explanation
from lazygraph.graph import grouped
from lazygraph.match.lists import is_on_lists
from lazygraph.readable import listed, plural
from lazygraph.snapshot import repeated_block, rounds_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lazygraph.explain.compare import Side
    from lazygraph.explain.model import History, Kind, Record, Source

# Below this similarity most of a comparison is edits, and the graph is a program of its own. The
# limit is blunt: of 267 recompilations of the tests, 9 differ under 0.3 and 3 under 0.5.
_RELATED = 0.4
_MOST_CAUSES = 3


def explain(
    record: Record, history: History, source: Source = NO_SOURCE
) -> Explanation:
    """Return why a graph with its snapshot had to be compiled; there is at least one cause."""
    runs = list(_latest(history))
    alone = _over_limit(record)
    if alone is None and not len(history):
        first, end = "the first graph of this process", record.key.ended_by[1]
        alone = Cause(kind="first_trace", text=first, now=end)
    if alone is not None:
        return _explanation(record, (alone,))
    closest = nearest(record, history)
    rest = _rest_of_step(record, runs, history)
    if (
        closest is None
        or (closest[1] < _RELATED and not _is_start_of(record, closest[0]))
        or (rest and not _is_round_of(record, closest[0], runs))
    ):
        said = (rest or _new_program(record, source), *_failed_guards(record))
        return _explanation(record, said, source=source)
    other, similarity = closest
    if other.fingerprint == record.fingerprint:
        same = [each for each in history if each.fingerprint == record.fingerprint]
        donated = {*record.key.donated}
        other = min(same, key=lambda r: (len(donated ^ {*r.key.donated}), -r.last_step))
        found = tuple(of_key(other, record))
        return _explanation(
            record, found or (_new_program(record, source),), other, 1.0
        )
    c = Comparison(other, record, history, runs, source)
    said, unexplained = _causes(c)
    earlier = {each.name: each.explanation for each in history}
    said = with_growth(said, other.name, earlier.get)
    return _explanation(record, said, other, similarity, unexplained, source)


def _is_round_of(record: Record, other: Record, runs: list[Record]) -> bool:
    """Return whether two graphs end at one place, and it is no break that only one begins after.

    Of the parts of one step, one that goes on with values that no variable holds is no round.
    """
    if differs(record.key.ended_by, other.key.ended_by):
        return False
    if other in runs and "" in _read_of(record, runs):
        return False
    return is_break(other.key.began_after) or not is_break(record.key.ended_by)


def _read_of(record: Record, others: Iterable[Record]) -> list[str]:
    """Return what holds each input that some graphs computed; empty where it has no name."""
    if record.snapshot is None:
        return []
    made, names = {each.name for each in others}, record.snapshot.leaf_names
    return [
        names[leaf].holder if leaf in names else ""
        for leaf, origin in record.snapshot.origins.items()
        if origin.graph in made
    ]


def _is_start_of(record: Record, other: Record) -> bool:
    """Return whether a read ended a graph that begins where the other one does."""
    starts = [position(each.lines[0]) for each in (record, other)]
    return is_break(record.key.ended_by) and None is not starts[0] == starts[1]


def differences(before: Record, now: Record) -> tuple[tuple[Cause, ...], int]:
    """Return the ranked causes for which two graphs differ, and how many edits have none."""
    if before.fingerprint == now.fingerprint:
        return tuple(of_key(before, now)), 0
    return _causes(Comparison(before, now))


def _latest(history: History) -> Iterator[Record]:
    """Yield the graphs that ran since a mark of the program, and the one before."""
    for record in history.runs():
        yield record
        if not is_break(record.key.began_after):
            return


def _causes(c: Comparison) -> tuple[tuple[Cause, ...], int]:
    facts = facts_of(c)
    c.switched = {fact.row.name for fact in facts if fact.table == "training"}
    c.modules = {fact.row.name for fact in facts if fact.table == "module"}
    if _is_other_step(c, facts):
        modes = _claims(c, [fact for fact in facts if fact.table == "training"])
        return (_other_step(c), *([_cause(c, modes)] if modes else ())), 0
    claims = _claims(c, facts)
    left = attribute(c, claims)
    groups: dict[object, list[Claim]] = {}
    is_wired = not any(m.weight or m.results for m in claims)
    for claim in claims:
        # What only the runtime keeps, such as for backward, follows from what else differs.
        is_result = claim.results and (
            claim.fact.row.name or not any(m.weight for m in claims)
        )
        is_wiring = claim.rewired and (is_wired or claim.row.kind == "code_path")
        if claim.weight or is_result or is_wiring or claim.row.is_shown:
            row = claim.row  # rows that say the same find its names in different facts
            key = (row.kind, row.says, row.more, row.group(claim.fact))
            groups.setdefault(key, []).append(claim)
    _drop_named_lines(groups)
    found = [
        _cause(c, sorted(group, key=lambda m: -m.weight))
        for group in sorted(groups.values(), key=_importance)
    ]
    if not found:
        found = [_unclaimed(c)]
        left = 0
    said = with_lengths(tuple(found))
    rest = said[_MOST_CAUSES:]
    return said[:_MOST_CAUSES], left + sum(cause.weight for cause in rest)


def _drop_named_lines(groups: dict[object, list[Claim]]) -> None:
    """Drop paths of lines that a higher cause names, and what is kept in lists that one names."""
    named: set[object] = set()
    for key, group in sorted(groups.items(), key=lambda item: item[1][0].rank):
        lines = [
            {position(row.site) for row in (m.fact.before, m.fact.now) if row}
            for m in group
        ]
        is_path = group[0].row.kind in {"code_path", "wiring"}
        lists = {m.fact.row.name.partition("[")[0] for m in group}
        is_kept = not any(m.weight for m in group) and named.issuperset(lists)
        if (is_path and named.issuperset(set().union(*lines))) or (
            is_kept and not group[0].row.is_shown
        ):
            del groups[key]
        named.update(*lines, (m.fact.row.name for m in group if m.fact.row.name))


def _importance(group: list[Claim]) -> tuple[bool, int, int]:
    """Return what sorts causes: what is kept of equal work comes behind what computes otherwise."""
    weight = sum(claim.weight for claim in group)
    is_kept = not weight and any(claim.results for claim in group)
    return is_kept and not group[0].row.is_shown, group[0].rank, -weight


def _claims(c: Comparison, facts: list[Fact]) -> list[Claim]:
    """Return the causes that hold: of each fact, the one that stands highest."""
    by_table = grouped((fact.table, fact) for fact in facts)
    claims = []
    for rank, row in enumerate(causes.TABLE):
        waiting = by_table.get(row.of, [])
        held = {fact: row.holds(c, fact) for fact in waiting}
        by_table[row.of] = [fact for fact in waiting if not held[fact]]
        groups = grouped((row.group(fact), fact) for fact in waiting if held[fact])
        for group in groups.values():
            closures = spread_together(c, group, row.spread)
            claims += [
                Claim(row, rank, *pair) for pair in zip(group, closures, strict=True)
            ]
    return claims


def _cause(c: Comparison, claims: list[Claim]) -> Cause:
    """Return the cause that some claims of one row are."""
    row, fact = claims[0].row, claims[0].fact
    fields = fields_of(c, claims)
    if row.more is not None:
        fields |= row.more(c, claims)
    edits = EditCounts(
        *(sum(getattr(m, part) for m in claims) for part in EditCounts._fields)
    )
    text = row.says.format_map(fields)
    behind = edits.changed - len(claims)
    if row.of in {"input", "parameter", "argument"} and behind > 0:
        depend = "depends" if behind == 1 else "depend"
        text += f"; {plural(behind, 'op')} {depend} on it"
    return Cause(
        kind=fact.row.more.get("kind", row.kind),
        text=text,
        fix=row.fix.format_map(fields),
        variable=fields["variable"],
        before=fact.before.site if fact.before is not None else None,
        now=fact.now.site if fact.now is not None else None,
        edits=edits,
        sizes=fields["sizes"],
    )


def _is_other_step(c: Comparison, facts: Iterable[Fact]) -> bool:
    """Return whether two graphs end two steps of the program, and neither is a part of the other."""
    old, new = c.a.record.key, c.b.record.key
    if breaks.LEFT in new.ended_by[0]:
        return False
    written = [_written(side) for side in (c.a, c.b)]
    parameters = [
        {n.text for n in side.all_names if n.in_module} for side in (c.a, c.b)
    ]
    if not differs(old.ended_by, new.ended_by):
        # One edited cell, or one function: of other parameters it is another step all the same.
        return all([*written, *parameters]) and not parameters[0] & parameters[1]
    if all(written) and not written[0] & written[1]:
        return True
    trains = [any(v.backward for v in side.vertices) for side in (c.a, c.b)]
    if trains[0] != trains[1] and c.switched:
        return True
    lines = [{position(v.site) for v in side.vertices if v.site} for side in (c.a, c.b)]
    if not (parameters[0] & parameters[1] or lines[0] & lines[1]):
        return True
    return trains[0] != trains[1] and all(fact.table != "break" for fact in facts)


def _written(side: Side) -> set[str]:
    names = side.snapshot.root_names.values()
    return {n.text for n in names if n.holder in {"module", "optimizer"}}


def _other_step(c: Comparison) -> Cause:
    old, new = c.a.record, c.b.record
    trains = [any(v.backward for v in side.vertices) for side in (c.a, c.b)]
    how = {(True, False): "without gradients, ", (False, True): "with gradients, "}
    return Cause(
        kind="other_step",
        text=f"another step of the program, {how.get((trains[0], trains[1]), '')}which ends at "
        f"{breaks.mark(new.key.ended_by)}; {old.name} ends at {breaks.mark(old.key.ended_by)}",
        fix="nothing to do: it compiles once, and hits the cache whenever this step comes back",
        now=new.key.ended_by[1],
        before=old.key.ended_by[1],
        edits=EditCounts(len(c.b.unmatched), len(c.a.unmatched), len(c.changed)),
    )


def _unclaimed(c: Comparison) -> Cause:
    """Return the first edit where no fact differs, or what reads something else."""
    if differs(c.a.record.key.ended_by, c.b.record.key.ended_by):
        return _other_step(c)
    lists = {k: old for k, old in c.changed.items() if is_on_lists(c.b[k].op)}
    if lists and all(
        lists.keys() == c.changed.keys() and not c.a.unmatched and not c.b.unmatched
        and c.a[old].label[:2] == c.b[k].label[:2]
        and sorted(c.a[old].types) == sorted(c.b[k].types)
        for k, old in lists.items()
    ):  # fmt: skip
        site = c.b.site(sorted(lists))
        return Cause(
            kind="wiring",
            text=f"the ops are those of {c.a.record.name}; `{c.b[min(lists)].op}`{at(site)} has its "
            "tensors in another order",
            fix="give an optimizer its parameters in the same order each time: each order costs one "
            "compile",
            now=site,
            edits=EditCounts(changed=len(lists)),
        )
    for side, other, word, free in (
        (c.b, c.a, "new", c.b.unmatched),
        (c.a, c.b, "gone", c.a.unmatched),
        (c.b, c.a, "different", {*c.changed}),
    ):
        ops = [k for k in sorted(free) if not side[k].is_leaf]
        if ops:
            site = side.site(ops)
            more = f" (and {len(ops) - 1} more)" if len(ops) > 1 else ""
            is_alone = position(site) not in other.lines
            what = (is_alone and c.source.statement(site)) or side[ops[0]].op
            where, fix = "", causes.PATH_FIX
            if all(s[k].is_leaf or s[k].backward for s in (c.a, c.b) for k in s.free):
                more += f"{_saved_by(side, ops)}; the forward pass is that of {c.a.record.name}"
                where, fix = " in backward alone", _BACKWARD_FIX
            return Cause(
                kind="code_path",
                text=f"code path changed{where}: `{what}`{at(site)} is {word}{more}",
                fix=fix,
                now=site if side is c.b else None,
                before=site if side is c.a else None,
                edits=EditCounts(
                    len(c.b.unmatched), len(c.a.unmatched), len(c.changed)
                ),
            )
    return _wiring(c)


_BACKWARD_FIX = (
    "what is detached, needs a gradient or is checkpointed decides what backward computes: decide it "
    "once; each choice costs one compile"
)


def _saved_by(side: Side, ops: list[int]) -> str:
    """Return which op of the forward pass gave what some ops of backward read."""
    read = [o for k in ops for o, _ in side[k].operands]
    for k in read:  # what a view shows
        read += [o for o, _ in side[k].operands if is_view(side[k])]
    wanted = (k for k in read if not (is_view(side[k]) or side[k].backward))
    saved = next((k for k in wanted if side[k].site or side.name(k)), None)
    return f", reading {_operand(side, saved)}" if saved is not None else ""


def _wiring(c: Comparison) -> Cause:
    where, now, before = "", c.b.record.key.ended_by[1], c.a.record.key.ended_by[1]
    for reader, old, new in c.substitutions[:1]:
        was, is_ = c.a[c.b.partner[reader]], c.b[reader]
        before, now = was.site, is_.site
        reads = sorted((c.b.partner[operand], index) for operand, index in is_.operands)
        where = (
            f": {is_.op}{at(now)} reads {_operand(c.b, new)}, was {_operand(c.a, old)}"
        )
        if reads == sorted(was.operands):
            where += ": what it reads was recorded in another order"
    return Cause(
        kind="wiring",
        text=f"the ops are those of {c.a.record.name}, with other operands{where}",
        fix="a branch or a flag chooses what is read: choose once, or with `torch.where`; look at "
        "both with `%lazy diff`",
        now=now,
        before=before,
    )


def _operand(side: Side, vertex: int) -> str:
    name = side.name(vertex)
    if name is not None:
        return f"`{name.text}`"
    return f"the {side[vertex].op}{at(side.site([vertex]))}"


def _over_limit(record: Record) -> Cause | None:
    """Return that a limit of the pending graph ended it, with the loop that filled it."""
    if not record.key.ended_by[0].startswith(LIMIT) or record.snapshot is None:
        return None
    vertices = record.snapshot.vertices
    found = rounds_in((v.op, v.site) for v in vertices if not v.is_leaf)
    return Cause(
        kind="graph_break",
        text=f"graph break: {breaks.mark(record.key.ended_by)}"
        + (f"; {found}" if found else ""),
        fix="end the step in each round: `lazyrt.mark_step()`, or a `with lazyrt.step():` block",
        now=record.key.ended_by[1],
        edits=EditCounts(added=record.nodes),
    )


def _rest_of_step(
    record: Record, runs: list[Record], history: Iterable[Record]
) -> Cause | None:
    """Return that a graph break left this graph as the rest of its step, None if it did not.

    Where the step went on otherwise before, the value that was read chose another path.
    """
    if not runs or record.snapshot is None or not is_break(record.key.began_after):
        return None
    if _is_round_of(record, runs[0], runs):
        return None
    # Parameters and state are read by whatever comes next.
    if {"module", "buffer", "optimizer"}.issuperset(_read_of(record, runs)):
        return None
    cause, line = record.key.began_after, record.lines[0]
    before = [
        each
        for each in history
        if not differs(each.key.began_after, cause)
        and position(each.lines[0]) != position(line)
        and _read_of(each, runs[:1])
    ]
    if before and line is not None:
        return Cause(
            kind="code_path",
            text=f"code path changed: after the {breaks.mark(cause)} the step goes on{at(line)}, "
            f"went on{at(before[-1].lines[0])} in {before[-1].name}",
            fix=causes.PATH_FIX,
            now=line,
            before=before[-1].lines[0],
            edits=EditCounts(added=record.nodes),
        )
    return Cause(
        kind="fallback" if cause[0].startswith(FALLBACK) else "graph_break",
        text=f"graph break: {breaks.mark(cause)} ended {runs[0].name}; this graph is the rest of "
        "its step",
        fix=breaks.break_fix(cause),
        now=cause[1],
        edits=EditCounts(added=record.nodes),
    )


def _failed_guards(record: Record) -> Iterator[Cause]:
    """Yield why `torch.compile` compiled functions again, for a graph that has no relative."""
    for note in record.key.guards:
        fields = {"name": note.function, "where": in_brackets(note.definition),
                  "at": at(note.site), "texts": note.text}  # fmt: skip
        text = causes.GUARD_SAYS.format_map(fields)
        yield Cause(kind="guard", text=text, fix=causes.GUARD_FIX, now=note.site)


def _new_program(record: Record, source: Source) -> Cause:
    vertices = record.snapshot.vertices if record.snapshot is not None else ()
    site = next((v.site for v in vertices if v.site is not None), None)
    text = source.statement(site)
    start = f", from{f' `{text}`' if text else ''}{at(site)} on" if site else ""
    key = record.key
    marks = [breaks.mark(each) for each in (key.began_after, key.ended_by)]
    between = f" between {marks[0]} and {marks[1]}" if all(marks) else ""
    return Cause(
        kind="new_program",
        text=f"a program not seen before{start}: {plural(record.nodes, 'op')}{between}",
        fix="nothing to do when it comes once; a program that comes again hits the cache",
        now=site,
        edits=EditCounts(added=record.nodes),
    )


def evicted(record: Record, step: int, limit: int) -> Explanation:
    """Return the explanation of a graph that was compiled before; so many executables are kept."""
    cause = Cause(
        kind="cache_evicted",
        text=f"{record.name} was compiled before, in step {record.first_step}, but its executable "
        "is not in memory any more",
        fix="keep the caches (`clear_caches()` drops them, and what is beyond "
        f"`config.max_executables`, {limit} now), or set `config.cache_dir`: reading from disk takes "
        "a fraction of a compile",
        now=record.key.ended_by[1],
    )
    found = _explanation(record, (cause,), record, 1.0)
    return dataclasses.replace(found, step=step, block=None)


def _explanation(
    record: Record,
    said: tuple[Cause, ...],
    other: Record | None = None,
    similarity: float = 0.0,
    unexplained: int = 0,
    source: Source = NO_SOURCE,
) -> Explanation:
    end = record.key.ended_by[1]
    sentences = [part for cause in said for part in (cause.text, cause.fix)]
    return Explanation(
        step=record.first_step,
        graph=record.name,
        against=other.name if other is not None else "",
        similarity=similarity,
        causes=said,
        unexplained=unexplained,
        ended_at=end,
        against_ended_at=other.key.ended_by[1] if other is not None else None,
        block=repeated_block(record.snapshot, end) if record.snapshot else None,
        quotes=tuple(
            sorted(q for q in source.quotes if any(q in each for each in sentences))
        ),
    )


# Causes outside of the graph: the same graph, compiled or laid out in another way.

_HELD_FIX = (
    "nothing to do when it comes once, as by a copy of the model; else drop the other reference (an "
    "alias such as `.detach()`) before the boundary, or keep it in every step"
)
_COPIED_FIX = (
    "end the step after the copy or the load (`lazyrt.mark_step()`), so that the next one begins "
    "with memory of its own"
)


_SETS_FIX = (
    "nothing to do where both come back: each set of donated inputs costs one compile"
)


def of_key(before: Record, now: Record) -> Iterator[Cause]:
    """Yield why a graph of the same fingerprint was compiled again."""
    old, new = before.key, now.key
    cause = partial(Cause, before=old.ended_by[1], now=new.ended_by[1])
    settings: tuple[tuple[Kind, str, str], ...] = (
        ("device", "device", "run the program on one device"),
        ("sharding", "sharding", "keep one layout over devices"),
        ("tier", "compile tier", "keep one tier"),
        ("mode", "mode", "leave the mode as it is over whole steps"),
    )
    for kind, name, fix in settings:
        was, is_ = getattr(old, kind), getattr(new, kind)
        if was != is_:
            text = f"the {name} is {is_}, was {was} for {before.name}"
            yield cause(kind=kind, text=text, fix=f"{fix}; each one costs a compile")
    if old.rules != new.rules:
        changed = sorted({name for name, _ in {*old.rules} ^ {*new.rules}})
        yield cause(
            kind="lowering",
            text=f"the graph is that of {before.name}, but `@lowers` has given {listed(changed)} "
            "another lowering since",
            fix="register lowerings before the first step; each one costs a compile",
            edits=EditCounts(changed=len(changed)),
        )
    if old.donated != new.donated:
        yield _donation(before, now)


def _donation(before: Record, now: Record) -> Cause:
    """Return which inputs give up their memory on one side alone."""
    kept = set(before.key.donated) - set(now.key.donated)
    given = set(now.key.donated) - set(before.key.donated)
    are_copies = _came_from_others(now, kept)
    # One graph: its inputs stand in one order. What holds the data may give the name now.
    was, holder = _inputs(before, kept), _inputs(now, kept)
    other = holder if holder.startswith("`") and holder != was else _others(now, kept)
    is_, its = ("is", "its") if len(kept) == 1 else ("are", "their")
    parts = []
    if kept:
        copied = other if other == holder else "another tensor"
        hold = "hold" if ", " in other or " and " in other else "holds"
        held = f"{other} also {hold} {its} data"
        why = f"{its} data came from {copied}" if are_copies else held
        parts.append(f"{was} {is_} overwritten in place, but {why}")
    if given:
        verbs = ("is", "was") if len(given) == 1 else ("are", "were")
        parts.append(f"{_inputs(now, given)} {verbs[0]} donated and {verbs[1]} not")
    names = _names(before, kept) if kept else _names(now, given)
    return Cause(
        kind="donation",
        text=f"the graph is that of {before.name}, but other inputs are donated: {'; '.join(parts)}",
        fix=_SETS_FIX if not kept else _COPIED_FIX if are_copies else _HELD_FIX,
        variable=next(iter(names), ""),
        before=before.key.ended_by[1],
        now=now.key.ended_by[1],
        edits=EditCounts(changed=len(kept) + len(given)),
    )


def _came_from_others(record: Record, positions: set[int]) -> bool:
    """Return whether the tensors that gave these inputs are gone: the step copied their data."""
    origins = record.snapshot.origins if record.snapshot is not None else {}
    return bool(positions) and all(
        k in origins and origins[k].dropped for k in positions
    )


def _names(record: Record, positions: set[int]) -> list[str]:
    names = record.snapshot.leaf_names if record.snapshot is not None else {}
    return [names[k].text for k in sorted(positions) if k in names]


def _inputs(record: Record, positions: set[int]) -> str:
    known = _names(record, positions)
    if known and len(known) == len(positions):
        return listed(known)
    return plural(len(positions), "input")


def _others(record: Record, positions: set[int]) -> str:
    """Return the inputs that hold the data of some others."""
    origins = record.snapshot.origins if record.snapshot is not None else {}
    known = [origins[k].also for k in sorted(positions) if k in origins]
    if any(known):
        return listed(filter(None, known))
    made = {origins[k][:3] for k in positions if k in origins and origins[k].graph}
    same = {k for k, origin in origins.items() if origin[:3] in made} - positions
    return _inputs(record, same) if same else "something else"


# A size that changes from graph to graph in one direction: each length compiles anew.

_LEAST = 3  # graphs: two sizes may be two kinds of batches
_SHOWN = 5


def with_growth(
    causes: Sequence[Cause],
    against: str,
    explanation_of: Callable[[str], Explanation | None],
) -> tuple[Cause, ...]:
    """Return causes, those of an input's size with the sizes that came before.

    `against` names the graph that the new one was compared with; `explanation_of` returns by its
    name why an earlier graph was new.
    """
    found = []
    for cause in causes:
        series = _series(cause, against, explanation_of)
        long = next((each for each in series if len(each) >= _LEAST), None)
        found.append(cause if long is None else _with_series(cause, long))
    return tuple(found)


def _series(
    cause: Cause, against: str, explanation_of: Callable[[str], Explanation | None]
) -> Iterator[list[int]]:
    """Yield for each input that has another size its sizes from graph to graph."""
    for before, now in cause.sizes:
        found = [now, before]
        graph = against
        while len(found) <= _SHOWN and (earlier := explanation_of(graph)) is not None:
            pairs = [
                pair
                for each in earlier.causes
                for pair in each.sizes
                if each.kind == cause.kind
            ]
            size = next((old for old, new in pairs if new == found[-1]), None)
            if size is None or (size < found[-1]) != (before < now):
                break
            found.append(size)
            graph = earlier.against
        yield found[::-1]


def _with_series(cause: Cause, sizes: list[int]) -> Cause:
    verb = "grows" if sizes[0] < sizes[-1] else "shrinks"
    series = ", ".join(f"{size:,}" for size in sizes[-_SHOWN:])
    start = "..., " if len(sizes) > _SHOWN else ""
    counts = cause.kind in {"loop_count", "carried_over"}
    what = "the number" if counts else "it"
    return replace(
        cause,
        text=f"{cause.text}; {what} {verb} from graph to graph: {start}{series}",
        fix=causes.LENGTH_FIX if cause.kind.endswith("_shape") else cause.fix,
    )


def with_lengths(causes: tuple[Cause, ...]) -> tuple[Cause, ...]:
    """Return causes, a loop with as many rounds as an input is long behind that input.

    Example:
        >>> from lazygraph.explain.model import Cause
        >>> loop = Cause(kind="loop_count", text="it came 7 times", sizes=((4, 7),))
        >>> seq = Cause(kind="input_shape", text="", variable="seq", sizes=((4, 7),))
        >>> [cause.kind for cause in with_lengths((loop, seq))]
        ['input_shape', 'loop_count']
        >>> with_lengths((loop, seq))[1].text
        'it came 7 times, as many as `seq` is long'
    """
    loop = next((cause for cause in causes if cause.kind == "loop_count"), None)
    if loop is None:
        return causes
    kinds = {"input_shape", "parameter_shape", "shape"}
    lengths = [c for c in causes if c.kind in kinds]
    length = next((c for c in lengths if {*loop.sizes} & {*c.sizes}), None)
    if length is None:
        return causes
    what = (
        f"`{length.variable}` is long" if length.variable else "the size that changed"
    )
    told = replace(loop, text=f"{loop.text}, as many as {what}", fix=length.fix)
    found = [cause for cause in causes if cause is not loop]
    found.insert(found.index(length) + 1, told)
    return tuple(found)
