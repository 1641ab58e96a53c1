"""Steps that were cut, and what goes on after a cut."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from lazyrt.execution.why.boundaries import (
    FALLBACK,
    LIMIT,
    MARK,
    cut_fix,
    cut_lines,
    differs,
    fallback_op,
    is_cut,
    is_fallback,
    is_left,
    mark_text,
    ran_on_the_cpu,
)
from lazyrt.execution.why.causes import Cause, Taken
from lazyrt.execution.why.edits import (
    at,
    count,
    exclusive,
    is_kept,
    is_view,
    leaf_name,
    listed,
    not_reached,
    of_results,
    place,
)
from lazyrt.execution.why.other_steps import is_other_step, is_part
from lazyrt.execution.why.updates import written
from lazyrt.ir.rounds import rounds_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazyrt.execution.census import CompiledGraph, StepKey
    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Name, Snapshot
    from lazyrt.observe.events import Site


def with_what_ran_alone(edits: Edits, causes: list[Cause]) -> list[Cause]:
    """Return causes in which the eager debug mode accounts for what it ran by itself."""
    if (edits.before.key.mode, edits.now.key.mode) != ("lazy", "eager"):
        return causes
    read = _ran_alone(edits)
    taken = _cut_away(edits)
    gone = _of_modules(edits)
    more = edits.take(_of_backward(edits) | _called_anew(edits, gone), gone)
    return [
        dataclasses.replace(
            cause,
            text=cause.text.partition(":")[0] + read[0] if read else cause.text,
            variable=read[1] if read else cause.variable,
            taken=Taken(*map(sum, zip(taken, more, strict=True))),
        )
        if cause.kind == "mode"
        else cause
        for cause in causes
    ]


def _ran_alone(edits: Edits) -> tuple[str, str] | None:
    """Return which named inputs the eager debug mode ran by itself, and the first one's name."""
    found = [
        (name, origin.site)
        for leaf, origin in edits.b.origins.items()
        if origin.how.endswith("mode") and (name := leaf_name(edits.b, leaf))
    ]
    if not found:
        return None
    called = listed(name for name, _ in found)
    verb = "is an input" if len(found) == 1 else "are inputs"
    return (
        f": {called}, which the debug mode ran by itself{at(found[0][1])}, {verb} of this graph",
        found[0][0],
    )


def _called_anew(edits: Edits, gone: set[int]) -> set[int]:
    """Return what modules do that are called in another way now, and did before as well."""
    there = {vertex.scope for vertex in edits.a.vertices}
    did = {edits.a.vertices[k].label for k in gone}
    return {
        k
        for k in edits.added
        if edits.b.vertices[k].scope not in there and edits.b.vertices[k].label in did
    }


def what_ran_alone(edits: Edits) -> list[Cause]:
    """Return that a debug mode computed what the graph before computed itself."""
    if edits.before.key.mode != edits.now.key.mode:
        return []
    found = [
        leaf
        for leaf, origin in edits.b.origins.items()
        if leaf in edits.added and origin.how.endswith("mode")
    ]
    if not found:
        return []
    origin = edits.b.origins[found[0]]
    names = [name for leaf in found if (name := leaf_name(edits.b, leaf))]
    called = f" ({listed(names)})" if names else ""
    taken = _cut_away(edits)
    more = edits.take(added=found, removed=_of_modules(edits))
    rest = edits.take(added=_of_backward(edits))
    return [
        Cause(
            kind="mode",
            text=f"{count(len(found), 'input')}{called} {origin.how.replace('in ', 'ran in ', 1)}"
            f"{at(origin.site)}; {edits.before.name} computed what they stand for itself",
            fix="leave the mode as it is over whole steps, or expect one compile at each switch",
            variable=names[0] if names else "",
            now=origin.site,
            before=edits.before.key.ended_by[1],
            taken=Taken(*map(sum, zip(taken, more, rest, strict=True))),
        )
    ]


def _of_modules(edits: Edits) -> set[int]:
    """Return what modules that have nothing in this graph did before, and what they read."""
    users, to_now = edits.a.users(), edits.match.to_now
    there = {vertex.scope for vertex in edits.b.vertices if not vertex.backward}
    found = {
        k
        for k, vertex in enumerate(edits.a.vertices)
        if to_now[k] < 0 and vertex.scope not in there
    }
    leaves = {
        leaf
        for leaf in edits.removed
        if edits.a.vertices[leaf].is_leaf
        and not found.isdisjoint(user for user, _ in users[leaf])
        and all(to_now[user] < 0 for user, _ in users[leaf])
    }
    return found | leaves


def _of_backward(edits: Edits) -> set[int]:
    """Return what the backward pass does with results of ops that ran alone, and what it reads."""
    vertices, users = edits.b.vertices, edits.b.users()
    return {
        k
        for k in edits.added
        if vertices[k].backward
        or (
            vertices[k].is_leaf and all(vertices[user].backward for user, _ in users[k])
        )
    }


def cuts(edits: Edits) -> list[Cause]:
    """Return why the step ends or begins at another place than the one before.

    Only where one graph is mostly a part of the other: a program may well end two kinds of
    step at two lines.
    """
    old, new = edits.before.key, edits.now.key
    fallback = _new_fallback(old, new)
    if fallback is not None:
        return [_by_fallback(edits, fallback)]
    if is_other_step(edits):
        return []
    gone = sum(not edits.a.vertices[k].is_leaf for k in edits.removed)
    came = sum(not edits.b.vertices[k].is_leaf for k in edits.added)
    # What a read cut off is missing, however little it is, and the read adds what it reads.
    began_alike = place(edits.before.lines[0]) == place(edits.now.lines[0])
    read = is_cut(new.ended_by) and not is_cut(old.ended_by) and gone >= 1
    read = read and (came <= gone or began_alike)
    if (
        read
        or (is_left(new.ended_by) and gone)
        or (gone and not came and _ends_before_the_rest(edits))
        or (is_part(gone, came, edits.before.nodes) and not ends_alike(edits))
    ):
        return _shorter(edits, old, new)
    if is_part(came, gone, edits.now.nodes):
        return _longer(edits, old, new)
    return []


def _ends_before_the_rest(edits: Edits) -> bool:
    """Return whether a mark stands in front of all lines that are missing.

    A mark behind them is that of a step that left them out, such as an update in some rounds.
    """
    mark = edits.now.key.ended_by[1]
    if mark is None or not differs(edits.before.key.ended_by, edits.now.key.ended_by):
        return False
    vertices = [edits.a.vertices[k] for k in edits.removed]
    # What backward gave may have been turned for the update.
    sites = [v.site for v in vertices if not (v.is_leaf or is_view(v))]
    return bool(sites) and all(
        site is not None and _code(site) == _code(mark) and site.line > mark.line
        for site in sites
    )


def _code(site: Site) -> tuple[str, str]:
    """Return the file and function of a line; a cell that runs again has the same code."""
    return ("" if site.cell is not None else site.file, site.function)


def ends_alike(edits: Edits) -> bool:
    """Return whether both graphs end in an update of parameters: none of them was cut short."""
    old, new = edits.before.key, edits.now.key
    if is_cut(old.ended_by) or is_cut(new.ended_by) or is_cut(new.began_after):
        return False
    return bool(written(edits.a).keys() & written(edits.b).keys())


def began_after_a_cut(
    now: CompiledGraph, others: Iterable[CompiledGraph]
) -> Cause | None:
    """Return why a graph that is like no other is the rest of a step that was cut."""
    if not is_cut(now.key.began_after):
        return None
    if is_fallback(now.key.began_after):
        return Cause(
            kind="fallback",
            text=ran_on_the_cpu(now.key.began_after),
            fix=cut_fix(now.key.began_after),
            now=now.key.began_after[1],
            taken=Taken(added=now.nodes),
        )
    for other in others:
        ends_alike = not differs(other.key.ended_by, now.key.ended_by)
        cut_too = is_cut(other.key.began_after) or is_cut(other.key.ended_by)
        if ends_alike and not cut_too:
            return Cause(
                kind="step_cut",
                text=f"the step began later: {mark_text(now.key.began_after)} ran its first part "
                f"alone, which {other.name} ran as one with the rest",
                fix=cut_fix(now.key.began_after),
                now=now.key.began_after[1],
                before=other.key.ended_by[1],
                taken=Taken(added=now.nodes),
            )
    return None


def rest_of_a_cut(now: CompiledGraph, previous: CompiledGraph) -> Cause:
    """Return that a graph is what a cut left of the step that the one before it began."""
    cut = now.key.began_after
    told = (
        ran_on_the_cpu(cut)
        if is_fallback(cut)
        else f"{mark_text(cut)} cut the step: {previous.name} is what is before it, and this graph "
        "what is after it"
    )
    return Cause(
        kind="fallback" if is_fallback(cut) else "step_cut",
        text=told,
        fix=cut_fix(cut),
        now=cut[1],
        before=previous.key.ended_by[1],
        taken=Taken(added=now.nodes),
    )


def over_limit(record: CompiledGraph) -> Cause | None:
    """Return that the limit of pending ops ended a graph, with the loop that filled it."""
    what, site = record.key.ended_by
    if not what.startswith(LIMIT) or record.snapshot is None:
        return None
    nodes = [vertex for vertex in record.snapshot.vertices if not vertex.is_leaf]
    rounds = rounds_in((vertex.op, vertex.site) for vertex in nodes)
    told = f": {rounds}" if rounds is not None else ""
    return Cause(
        kind="missing_boundary",
        text=f"no boundary had come when {what.removesuffix(' ops')} ops cut the graph"
        f"{at(site)}{told}",
        fix=("end each round with `lazyrt.mark_step()`" if rounds else MARK)
        + ", or put it in `with lazyrt.step():`; a step that does need as many ops wants a "
        "higher `config.max_pending_nodes`",
        now=site,
        taken=Taken(added=record.nodes),
    )


def _new_fallback(old: StepKey, new: StepKey) -> tuple[str, Site | None] | None:
    """Return the op that ran on the CPU in or around this graph and not before."""
    known = {op for op, _ in old.fallbacks}
    known |= {fallback_op(old.ended_by[0]), fallback_op(old.began_after[0])}
    for cause, site in (new.ended_by, new.began_after):
        op = fallback_op(cause)
        if op and op not in known:
            return op, site
    return next((entry for entry in new.fallbacks if entry[0] not in known), None)


def _by_fallback(edits: Edits, fallback: tuple[str, Site | None]) -> Cause:
    op, site = fallback
    return Cause(
        kind="fallback",
        text=ran_on_the_cpu((f"{FALLBACK}{op}", site)),
        fix=cut_fix((f"{FALLBACK}{op}", site)),
        now=site,
        before=edits.before.key.ended_by[1],
        taken=_cut_away(edits),
    )


def _cut_away(edits: Edits) -> Taken:
    """Take out what a cut explains: what is missing, what is read of the other part, the rest.

    Variables that are alive at the cut are results of the first part, and inputs of the second.
    """
    moved = differs(edits.before.key.ended_by, edits.now.key.ended_by)
    left = not_reached(edits) if moved else set()
    kept = of_results(edits.b, edits.new_roots, edits.added, set())
    for_the_cut = _read_at_the_cut(edits) if moved else set()
    edits.gone_roots = [
        k
        for k in edits.gone_roots
        if is_kept(edits.a.root_names.get(k)) and edits.a.roots[k][0] not in left
    ]
    edits.new_roots = [k for k in edits.new_roots if is_kept(edits.b.root_names.get(k))]
    vertices = edits.b.vertices
    read = place(edits.now.key.ended_by[1])
    leaves = {
        k
        for k in edits.added
        if vertices[k].op == "data" and not is_of_program(edits.b.leaf_names.get(k))
    }
    others = {
        k
        for k in edits.added
        if any(operand in leaves for operand, _ in vertices[k].operands)
        or (not vertices[k].is_leaf and place(vertices[k].site) == read)
    }
    others |= for_the_cut | of_new_inputs(edits.b, edits.added)
    return edits.take((leaves | others) - kept, left | replaced_by_inputs(edits, left))


def _read_at_the_cut(edits: Edits) -> set[int]:
    """Return what only variables alive at a read need: it was computed to be read."""
    if not is_cut(edits.now.key.ended_by):
        return set()
    names = edits.b.root_names
    read = [k for k in edits.new_roots if not is_kept(names.get(k))]
    return exclusive(edits.b, read, edits.added)[0]


def of_new_inputs(snapshot: Snapshot, free: set[int]) -> set[int]:
    """Return free inputs that belong to no model, and what is computed of them alone."""
    found: set[int] = set()
    for k in sorted(free):
        vertex, name = snapshot.vertices[k], snapshot.leaf_names.get(k)
        operands = {operand for operand, _ in vertex.operands}
        if (vertex.op == "data" and not is_of_program(name)) or (
            operands and operands <= found
        ):
            found.add(k)
    return found


def replaced_by_inputs(edits: Edits, left: set[int]) -> set[int]:
    """Return what the graph before computed where the new one has inputs, and what led to it.

    Args:
        edits: The differences.
        left: What the graph before computed behind the cut; it may have read it as well.
    """
    found: set[int] = set()
    for leaf, users in enumerate(edits.b.users()):
        name = edits.b.leaf_names.get(leaf)
        if edits.b.vertices[leaf].op != "data" or is_of_program(name):
            continue
        for user, slot in users:
            partner = edits.match.to_before[user]
            operands = edits.a.vertices[partner].operands if partner >= 0 else ()
            found.update(operand for operand, _ in operands[slot : slot + 1])
    found &= edits.removed
    found |= _made_before(edits)
    readers = edits.a.users()
    for k in sorted(edits.removed, reverse=True) if found else ():
        if readers[k] and all(u in found or u in left for u, _ in readers[k]):
            found.add(k)
    return found


def _made_before(edits: Edits) -> set[int]:
    """Return what the graph before computed itself, by op and line of what now comes in."""
    made = {
        (origin.op, place(origin.site), edits.b.vertices[leaf].types)
        for leaf, origin in edits.b.origins.items()
        if leaf in edits.added and origin.step >= 0
    }
    vertices = edits.a.vertices
    return {
        k
        for k in edits.removed
        if (vertices[k].op, place(vertices[k].site), vertices[k].types) in made
    }


def is_of_program(name: Name | None) -> bool:
    """Return whether an input is there in every step: a parameter, or state of an optimizer."""
    return name is not None and (
        name.in_module or name.holder in {"optimizer", "gradient"}
    )


def _shorter(edits: Edits, old: StepKey, new: StepKey) -> list[Cause]:
    cut = new.ended_by
    if is_cut(new.began_after) and not is_cut(old.began_after):
        cut = new.began_after
        text = f"the step began later: {mark_text(new.began_after)} ran its first part alone"
    elif differs(old.ended_by, new.ended_by):
        text = cut_lines(edits.before, edits.now) or (
            f"the step ended earlier: {mark_text(new.ended_by)} instead of {mark_text(old.ended_by)}"
        )
    else:
        return []
    return [
        Cause(
            kind="step_cut",
            text=text,
            fix=cut_fix(cut),
            now=new.ended_by[1],
            before=old.ended_by[1],
            taken=_cut_away(edits),
        )
    ]


def _longer(edits: Edits, old: StepKey, new: StepKey) -> list[Cause]:
    cut_now = is_cut(new.ended_by) or is_cut(new.began_after)
    if cut_now or not (is_cut(old.ended_by) or is_cut(old.began_after)):
        return []
    cut = old.ended_by if is_cut(old.ended_by) else old.began_after
    return [
        Cause(
            kind="step_cut",
            text=f"the step went on longer: {mark_text(cut)} cut {edits.before.name}, and nothing "
            f"cut this one before {mark_text(new.ended_by)}",
            fix="end each step at one place",
            now=new.ended_by[1],
            before=cut[1],
            taken=edits.take(tuple(edits.added), tuple(edits.removed)),
        )
    ]
