"""Causes outside the graph: other parts of the key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyrt.execution.why.causes import Cause, Taken
from lazyrt.execution.why.edits import (
    count,
    listed,
)

if TYPE_CHECKING:
    from lazyrt.execution.census import CompiledGraph


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
