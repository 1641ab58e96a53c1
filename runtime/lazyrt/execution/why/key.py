"""Causes outside the graph: other parts of the key, and where the step was cut."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from lazyrt.execution.why.causes import Cause, Taken
from lazyrt.execution.why.edits import (
    at,
    count,
    exclusive,
    first_site,
    is_kept,
    listed,
    not_reached,
    of_results,
    place,
)
from lazyrt.execution.why.program import is_mode
from lazyrt.execution.why.updates import written
from lazyrt.ir.rounds import rounds_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazyrt.execution.census import CompiledGraph, StepKey
    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Name, Snapshot
    from lazyrt.observe.events import Site

_FALLBACK = "CPU fallback of "
_BLOCK = "end of step"
_LEFT = ", left by "
_LIMIT = "more than "
_MARK = "end the step with `lazyrt.mark_step()`"
_CUT_FIX = (
    "read values after the step has ended (or print them: a print never cuts a step), so that "
    "each step ends at one place"
)
_MARK_FIX = (
    "end the step at the same place every time; both places are one compile for each graph, and "
    "nothing after that"
)
_CHECK_FIX = (
    "leave the check out with validate_args=False, or for all distributions with "
    "torch.distributions.Distribution.set_default_validate_args(False)"
)
_LEFT_FIX = (
    "mend the error; or choose with `step(on_error=...)` what becomes of the work of a step that "
    "an error leaves, which runs as a graph of its own by default"
)
_HELD_FIX = (
    "drop the other reference (an alias such as `.detach()` or a saved copy of the state) before "
    "the boundary, or keep it in every step"
)
_COPIED_FIX = (
    "end the step after the copy or the load (`lazyrt.mark_step()`), so that the next one begins "
    "with memory of its own"
)
_BY_MODE = {
    "eager": "what the debug mode ran by itself is an input of this graph or of none",
    "opbyop": "a read in that mode is answered op by op and does not end the step, as it "
    "would in lazy mode",
}
# A cut takes at least this share of the larger graph away, and adds little.
_CUT_SHARE = 0.2
_ADDED_SHARE = 0.25


def of_key(before: CompiledGraph, now: CompiledGraph) -> list[Cause]:
    """Return the causes among the parts of the key that are not the graph."""
    old, new = before.key, now.key
    causes = []
    if old.mode != new.mode:
        causes.append(
            Cause(
                kind="mode",
                text=f"the mode was `{old.mode}` for {before.name} and is `{new.mode}` now: "
                + _BY_MODE["opbyop" if "opbyop" in {old.mode, new.mode} else "eager"],
                fix="leave the mode as it is over whole steps, or expect one compile at each switch",
                now=new.ended_by[1],
                before=old.ended_by[1],
            )
        )
    if old.device != new.device:
        causes.append(
            Cause(
                kind="device",
                text=f"{before.name} was compiled for {old.device or 'another device'}, this "
                f"one is for {new.device or 'another'}",
                fix="run the program on one device, or expect one compile for each",
                now=new.ended_by[1],
                before=old.ended_by[1],
            )
        )
    if old.sharding != new.sharding:
        causes.append(
            Cause(
                kind="sharding",
                text=f"the data of {before.name} was laid out over {old.sharding}, that of this "
                f"one over {new.sharding}",
                fix="keep one layout over devices, or expect one compile for each",
                now=new.ended_by[1],
                before=old.ended_by[1],
            )
        )
    # Another tier alone compiles nothing: a graph keeps the executable that it has.
    if old.tier != new.tier and old.fingerprint == new.fingerprint:
        causes.append(
            Cause(
                kind="tier",
                text=f"the compile tier was {old.tier} and is {new.tier}",
                fix="keep one tier, or expect one compile for each",
                now=new.ended_by[1],
                before=old.ended_by[1],
            )
        )
    if old.fingerprint == new.fingerprint and old.rules != new.rules:
        causes.append(_other_rules(before, now))
    if old.fingerprint == new.fingerprint and old.donated != new.donated:
        causes.append(_donation(before, now))
    return causes


def _other_rules(before: CompiledGraph, now: CompiledGraph) -> Cause:
    """The same graph, but the user has registered lowerings of its ops since."""
    changed = sorted({name for name, _ in {*before.key.rules} ^ {*now.key.rules}})
    return Cause(
        kind="lowering",
        text=f"the graph is that of {before.name}, but `@lowers` has given "
        f"{listed([f'`{name}`' for name in changed])} another lowering since",
        fix="register lowerings before the first step, or expect one compile for each",
        now=now.key.ended_by[1],
        before=before.key.ended_by[1],
        taken=Taken(changed=len(changed)),
    )


def _donation(before: CompiledGraph, now: CompiledGraph) -> Cause:
    """The same graph, but other inputs give up their memory."""
    kept = set(before.key.donated) - set(now.key.donated)
    given = set(now.key.donated) - set(before.key.donated)
    # One graph: its inputs stand in one order. What holds the data may give the name now.
    was, holder = _inputs(before, kept), _inputs(now, kept)
    other = holder if holder.startswith("`") and holder != was else "something else"
    parts = []
    if kept:
        verbs = ("is", "its") if len(kept) == 1 else ("are", "their")
        holds = "hold" if len(kept) > 1 and other == holder else "holds"
        parts.append(
            f"{was} {verbs[0]} overwritten in place, but {other} {holds} {verbs[1]} data now"
            if not _came_from_others(now, kept)
            else f"{was} {verbs[0]} overwritten in place, but {verbs[1]} data came from "
            f"{other if other == holder else 'another tensor'} in this step"
        )
    if given:
        verb = "gives" if len(given) == 1 else "give"
        parts.append(f"{_inputs(now, given)} {verb} up memory that was kept before")
    return Cause(
        kind="donation",
        text=f"the graph is that of {before.name}, but its memory is used in another way: "
        + "; ".join(parts),
        fix=_COPIED_FIX if _came_from_others(now, kept) else _HELD_FIX,
        variable=_first_name(before, kept) if kept else _first_name(now, given),
        now=now.key.ended_by[1],
        before=before.key.ended_by[1],
        taken=Taken(changed=len(kept) + len(given)),
    )


def _came_from_others(record: CompiledGraph, positions: set[int]) -> bool:
    """Return whether the tensors that gave these inputs are gone: the step copied their data."""
    origins = record.snapshot.origins if record.snapshot is not None else {}
    return bool(positions) and all(
        k in origins and origins[k].dropped for k in positions
    )


def _inputs(record: CompiledGraph, positions: set[int]) -> str:
    snapshot = record.snapshot
    names = snapshot.leaf_names if snapshot is not None else {}
    known = [names[k].text for k in sorted(positions) if k in names]
    if known and len(known) == len(positions):
        return listed(known)
    return count(len(positions), "input")


def _first_name(record: CompiledGraph, positions: set[int]) -> str:
    names = record.snapshot.leaf_names if record.snapshot is not None else {}
    return next((names[k].text for k in sorted(positions) if k in names), "")


def with_what_ran_alone(edits: Edits, causes: list[Cause]) -> list[Cause]:
    """Return causes in which the eager debug mode accounts for what it ran by itself."""
    if (edits.before.key.mode, edits.now.key.mode) != ("lazy", "eager"):
        return causes
    taken = _cut_away(edits)
    more = edits.take(removed=_of_modules(edits))
    return [
        dataclasses.replace(
            cause, taken=Taken(*map(sum, zip(taken, more, strict=True)))
        )
        if cause.kind == "mode"
        else cause
        for cause in causes
    ]


def _of_modules(edits: Edits) -> set[int]:
    """Return what modules that have nothing in this graph did before, and what they read."""
    users, to_now = edits.a.users(), edits.match.to_now
    there = {vertex.scope for vertex in edits.b.vertices}
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
        or (_is_left(new.ended_by) and gone)
        or (_is_part(gone, came, edits.before.nodes) and not _ends_alike(edits))
    ):
        return _shorter(edits, old, new)
    if _is_part(came, gone, edits.now.nodes):
        return _longer(edits, old, new)
    return []


def _ends_alike(edits: Edits) -> bool:
    """Return whether both graphs end in an update of parameters: none of them was cut short."""
    old, new = edits.before.key, edits.now.key
    if is_cut(old.ended_by) or is_cut(new.ended_by) or is_cut(new.began_after):
        return False
    return bool(written(edits.a).keys() & written(edits.b).keys())


def other_step(edits: Edits) -> list[Cause]:
    """Return that the graph is of another step of the program, such as the evaluation's."""
    if not is_other_step(edits):
        return []
    came = [edits.b.vertices[k] for k in edits.added]
    gone = [edits.a.vertices[k] for k in edits.removed]
    parts = [
        f"{count(sum(not v.is_leaf for v in side), 'operation')} {word}"
        for side, word in ((came, "more"), (gone, "fewer"))
        if any(not v.is_leaf for v in side)
    ]
    edits.new_roots, edits.gone_roots = [], []
    return [
        Cause(
            kind="other_step",
            text=f"{_named(edits.now.key.ended_by)} is a program of its own: "
            f"{' and '.join(parts) or 'other operations'} than {edits.before.name} of "
            f"{_named(edits.before.key.ended_by)}",
            fix="nothing to do: it compiles once and is found again whenever this step comes back",
            now=edits.now.key.ended_by[1],
            before=edits.before.key.ended_by[1],
            # Dropout that only one of the two has says more: the model's mode.
            taken=edits.take(
                [k for k in edits.added if not is_mode(edits.b.vertices[k])],
                [k for k in edits.removed if not is_mode(edits.a.vertices[k])],
                tuple(edits.changed),
            ),
        )
    ]


def is_other_step(edits: Edits) -> bool:
    """Return whether two graphs that differ in much end two different steps of the program."""
    old, new = edits.before.key, edits.now.key
    if is_cut(old.ended_by) or is_cut(new.ended_by) or is_cut(new.began_after):
        return False
    if _is_left(new.ended_by):
        return False
    if not differs(old.ended_by, new.ended_by):
        return False
    edited = len(edits.added) + len(edits.removed)
    if edited < _CUT_SHARE * max(edits.before.nodes, edits.now.nodes):
        return False
    # A block with a name is a step of its own, whatever ended the other.
    is_named = new.ended_by[0].startswith(f"{_BLOCK} ")
    are_blocks = is_named or (_is_block(old.ended_by) and _is_block(new.ended_by))
    return are_blocks or _changes_mode(edits) or not _may_have_moved(edits)


def _changes_mode(edits: Edits) -> bool:
    """Return whether dropout or the like is on one side only: the other is the evaluation."""
    return any(is_mode(edits.b.vertices[k]) for k in edits.added) != any(
        is_mode(edits.a.vertices[k]) for k in edits.removed
    )


def _may_have_moved(edits: Edits) -> bool:
    """Return whether a mark of the program that stands elsewhere now may have made a graph.

    Then it begins where the other did, or one is a part of the other; of a step that was cut
    short something is left for the rest to read.
    """
    old, new = edits.before.key, edits.now.key
    if old.began_after[1] is not None and not differs(old.began_after, new.began_after):
        return True
    gone = sum(not edits.a.vertices[k].is_leaf for k in edits.removed)
    came = sum(not edits.b.vertices[k].is_leaf for k in edits.added)
    is_start = _is_part(gone, came, edits.before.nodes) and _is_read_by_the_rest(edits)
    return is_start or _is_part(came, gone, edits.now.nodes)


def _is_read_by_the_rest(edits: Edits) -> bool:
    """Return whether a result is what the graph before went on with, in what is gone now."""
    users = edits.a.users()
    partners = [edits.match.to_before[vertex] for vertex, _ in edits.b.roots]
    return any(
        user in edits.removed
        for partner in partners
        if partner >= 0
        for user, _ in users[partner]
    )


def _is_left(boundary: tuple[str, Site | None]) -> bool:
    """Return whether an error ended a block."""
    return _LEFT in boundary[0]


def _is_block(boundary: tuple[str, Site | None]) -> bool:
    """Return whether a boundary is the end of a `with` block or of a function."""
    return boundary[0].startswith(_BLOCK)


def _named(boundary: tuple[str, Site | None]) -> str:
    if not _is_block(boundary):
        return f"the step that {_what(boundary)} ends"
    name = boundary[0].removeprefix(_BLOCK).partition(_LEFT)[0].strip()
    return f"the step{f' `{name}`' if name else ''}{at(boundary[1])}"


def began_after_a_cut(
    now: CompiledGraph, others: Iterable[CompiledGraph]
) -> Cause | None:
    """Return why a graph that is like no other is the rest of a step that was cut."""
    if not is_cut(now.key.began_after):
        return None
    for other in others:
        ends_alike = not differs(other.key.ended_by, now.key.ended_by)
        if ends_alike and not is_cut(other.key.began_after):
            return Cause(
                kind="step_cut",
                text=f"the step began later: {_what(now.key.began_after)} ran its first part "
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
        else f"{_what(cut)} cut the step: {previous.name} is what is before it, and this graph "
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
    if not what.startswith(_LIMIT) or record.snapshot is None:
        return None
    nodes = [vertex for vertex in record.snapshot.vertices if not vertex.is_leaf]
    rounds = rounds_in((vertex.op, vertex.site) for vertex in nodes)
    told = f": {rounds}" if rounds is not None else ""
    return Cause(
        kind="missing_boundary",
        text=f"no boundary had come when {what.removesuffix(' ops')} ops cut the graph"
        f"{at(site)}{told}",
        fix=("end each round with `lazyrt.mark_step()`" if rounds else _MARK)
        + ", or put it in `with lazyrt.step():`; a step that does need as many ops wants a "
        "higher `config.max_pending_nodes`",
        now=site,
        taken=Taken(added=record.nodes),
    )


def _is_part(missing: int, other: int, size: int) -> bool:
    return missing >= max(1, _CUT_SHARE * size) and other <= _ADDED_SHARE * missing


def _new_fallback(old: StepKey, new: StepKey) -> tuple[str, Site | None] | None:
    """Return the op that ran on the CPU in or around this graph and not before."""
    known = {op for op, _ in old.fallbacks}
    known |= {_fallback_op(old.ended_by[0]), _fallback_op(old.began_after[0])}
    for cause, site in (new.ended_by, new.began_after):
        op = _fallback_op(cause)
        if op and op not in known:
            return op, site
    return next((entry for entry in new.fallbacks if entry[0] not in known), None)


def _fallback_op(cause: str) -> str:
    return cause.removeprefix(_FALLBACK) if cause.startswith(_FALLBACK) else ""


def _by_fallback(edits: Edits, fallback: tuple[str, Site | None]) -> Cause:
    op, site = fallback
    return Cause(
        kind="fallback",
        text=ran_on_the_cpu((f"{_FALLBACK}{op}", site)),
        fix=cut_fix((f"{_FALLBACK}{op}", site)),
        now=site,
        before=edits.before.key.ended_by[1],
        taken=_cut_away(edits),
    )


def ran_on_the_cpu(cut: tuple[str, Site | None]) -> str:
    """Return what an op that has no lowering does to its step."""
    return (
        f"{_fallback_op(cut[0])}{at(cut[1])} ran on the CPU and cut the step: what is before "
        "it and what is after it are graphs of their own"
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
    readers = edits.a.users()
    for k in sorted(edits.removed, reverse=True) if found else ():
        if readers[k] and all(u in found or u in left for u, _ in readers[k]):
            found.add(k)
    return found


def is_of_program(name: Name | None) -> bool:
    """Return whether an input is there in every step: a parameter, or state of an optimizer."""
    return name is not None and (
        name.in_module or name.holder in {"optimizer", "gradient"}
    )


def cut_fix(cut: tuple[str, Site | None]) -> str:
    """Return what to do about a cut."""
    op = _fallback_op(cut[0])
    if op:
        return (
            f"register a lowering with @lowers('{op}'), or move the op out of the step"
        )
    if _is_left(cut):
        return _LEFT_FIX
    if not is_cut(cut):
        return _MARK_FIX
    return _CHECK_FIX if "torch.distributions" in cut[0] else _CUT_FIX


def cut_lines(before: CompiledGraph, now: CompiledGraph) -> str:
    """Return between which lines a mark of the program has moved; empty if none has.

    Both graphs begin at the same line, and the same kind of mark ends them at two places.
    """
    (first_before, last_before), (first_now, last_now) = before.lines, now.lines
    if last_before is None or last_now is None:
        return ""
    old, new = before.key.ended_by, now.key.ended_by
    same_mark = old[0] == new[0] and not is_cut(new) and differs(old, new)
    same_start = place(first_before) == place(first_now)
    if not (same_mark and same_start) or place(last_before) == place(last_now):
        return ""
    # The last line of a module's code says nothing of the place of a mark.
    functions = {
        each.function for each in (last_before, last_now, old[1], new[1]) if each
    }
    if len(functions) > 1:
        return ""
    lines = str(last_before), str(last_now)
    if (last_before.file, last_before.cell) == (last_now.file, last_now.cell):
        lines = f"line {last_before.line}", f"line {last_now.line}"
    return f"the step was cut after {lines[0]} before, after {lines[1]} now"


def left_by_cells(edits: Edits) -> list[Cause]:
    """Return that one of the graphs also ran what earlier cells of a notebook had left pending."""
    for is_gain in (True, False):
        record, snapshot = (edits.now, edits.b) if is_gain else (edits.before, edits.a)
        free = edits.added if is_gain else edits.removed
        own = record.key.ended_by[1]
        left = {
            k: site.cell
            for k in free
            if (site := snapshot.vertices[k].site) is not None
            and _is_left_by(site, own)
        }
        # What the cell itself needs of it is an input of another name, and no rest.
        if not left or any(
            operand in left and k not in left and not _is_left_by(v.site, own)
            for k, v in enumerate(snapshot.vertices)
            for operand, _ in v.operands
        ):
            continue
        return [_left(edits, left, is_gain=is_gain)]
    return []


def _is_left_by(site: Site | None, own: Site | None) -> bool:
    """Return whether a line of an earlier cell, in no function, recorded an op."""
    if site is None or own is None or site.cell is None or own.cell is None:
        return False
    return site.cell < own.cell and site.function.startswith(("<module>", "<cell"))


def _left(edits: Edits, left: dict[int, int | None], *, is_gain: bool) -> Cause:
    snapshot = edits.b if is_gain else edits.a
    cells = sorted({cell for cell in left.values() if cell is not None})
    users = snapshot.users()
    free = edits.added if is_gain else edits.removed
    found = set(left)
    for k in sorted(free, reverse=True):  # what only the rest reads, the last first
        if users[k] and all(user in found for user, _ in users[k]):
            found.add(k)
    roots = {k for k, (vertex, _) in enumerate(snapshot.roots) if vertex in left}
    if is_gain:
        edits.new_roots = [k for k in edits.new_roots if k not in roots]
    else:
        edits.gone_roots = [k for k in edits.gone_roots if k not in roots]
    named = f"cell{'s' if len(cells) > 1 else ''} {', '.join(map(str, cells[:4]))}"
    what = f"what {named} had left pending: {count(len(left), 'operation')}"
    site = first_site(snapshot.vertices[k] for k in sorted(left))
    return Cause(
        kind="missing_boundary",
        text=f"this step also ran {what}"
        if is_gain
        else f"{edits.before.name} also ran {what}",
        fix="end a cell whose work is to run with `lazyrt.mark_step()`, or read what it makes: "
        "what is pending runs with whatever step comes next",
        now=site if is_gain else None,
        before=None if is_gain else site,
        taken=edits.take(
            added=found if is_gain else (), removed=() if is_gain else found
        ),
    )


def _shorter(edits: Edits, old: StepKey, new: StepKey) -> list[Cause]:
    cut = new.ended_by
    if is_cut(new.began_after) and not is_cut(old.began_after):
        cut = new.began_after
        text = (
            f"the step began later: {_what(new.began_after)} ran its first part alone"
        )
    elif differs(old.ended_by, new.ended_by):
        text = cut_lines(edits.before, edits.now) or (
            f"the step ended earlier: {_what(new.ended_by)} instead of {_what(old.ended_by)}"
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
            text=f"the step went on longer: {_what(cut)} cut {edits.before.name}, and nothing "
            f"cut this one before {_what(new.ended_by)}",
            fix="end each step at one place",
            now=new.ended_by[1],
            before=cut[1],
            taken=edits.take(tuple(edits.added), tuple(edits.removed)),
        )
    ]


def is_cut(boundary: tuple[str, Site | None]) -> bool:
    """Return whether a boundary came by a read or a limit, and not by a mark of the program."""
    return boundary[0].startswith(("read", _LIMIT, _FALLBACK))


def is_fallback(boundary: tuple[str, Site | None]) -> bool:
    """Return whether an op that ran on the CPU ended a graph."""
    return boundary[0].startswith(_FALLBACK)


def differs(one: tuple[str, Site | None], other: tuple[str, Site | None]) -> bool:
    """Return whether two boundaries are different places; a cell run again is the same one."""
    return one[0] != other[0] or place(one[1]) != place(other[1])


def _what(boundary: tuple[str, Site | None]) -> str:
    return f"{boundary[0]}{at(boundary[1])}"
