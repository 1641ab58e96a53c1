"""Causes outside of the graph: the same graph, compiled or laid out in another way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazygraph.explain.model import Cause, EditCounts
from lazygraph.numbers import listed, plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazygraph.explain.model import Kind
    from lazygraph.explain.record import Record

_HELD_FIX = (
    "drop the other reference (an alias such as `.detach()` or a saved copy of the state) before "
    "the boundary, or keep it in every step"
)
_COPIED_FIX = (
    "end the step after the copy or the load (`lazyrt.mark_step()`), so that the next one begins "
    "with memory of its own"
)


def of_key(before: Record, now: Record) -> Iterator[Cause]:
    """Yield why a graph of the same fingerprint was compiled again."""
    old, new = before.key, now.key
    for kind, was, is_, fix in (
        ("device", old.device, new.device, "run the program on one device"),
        ("sharding", old.sharding, new.sharding, "keep one layout over devices"),
        ("tier", old.tier, new.tier, "keep one tier"),
        ("mode", old.mode, new.mode, "leave the mode as it is over whole steps"),
    ):
        if was != is_:
            text = f"the {_NAMES.get(kind, kind)} is {is_}, was {was} for {before.name}"
            yield _cause(kind, before, now, text, f"{fix}; each one costs a compile")  # type: ignore[arg-type]
    if old.rules != new.rules:
        changed = sorted({name for name, _ in {*old.rules} ^ {*new.rules}})
        yield _cause(
            "lowering",
            before,
            now,
            f"the graph is that of {before.name}, but `@lowers` has given {listed(changed)} another "
            "lowering since",
            "register lowerings before the first step; each one costs a compile",
            changed=len(changed),
        )
    if old.donated != new.donated:
        yield _donation(before, now)


_NAMES = {"tier": "compile tier"}


def _cause(
    kind: Kind,
    before: Record,
    now: Record,
    text: str,
    fix: str,
    *,
    variable: str = "",
    changed: int = 0,
) -> Cause:
    return Cause(
        kind=kind,
        text=text,
        fix=fix,
        variable=variable,
        before=before.key.ended_by[1],
        now=now.key.ended_by[1],
        edits=EditCounts(changed=changed),
    )


def _donation(before: Record, now: Record) -> Cause:
    """Return which inputs give up their memory on one side alone."""
    kept = set(before.key.donated) - set(now.key.donated)
    given = set(now.key.donated) - set(before.key.donated)
    are_copies = _came_from_others(now, kept)
    # One graph: its inputs stand in one order. What holds the data may give the name now.
    was, holder = _inputs(before, kept), _inputs(now, kept)
    other = holder if holder.startswith("`") and holder != was else "something else"
    is_, its = ("is", "its") if len(kept) == 1 else ("are", "their")
    parts = []
    if kept and are_copies:
        copied = other if other == holder else "another tensor"
        parts.append(
            f"{was} {is_} overwritten in place, but {its} data came from {copied}"
        )
    elif kept:
        parts.append(
            f"{was} {is_} overwritten in place, but {other} also holds {its} data"
        )
    if given:
        verb = "is" if len(given) == 1 else "are"
        parts.append(
            f"{_inputs(now, given)} {verb} donated and {verb.replace('is', 'was').replace('are', 'were')} not"
        )
    return _cause(
        "donation",
        before,
        now,
        f"the graph is that of {before.name}, but other inputs are donated: {'; '.join(parts)}",
        _COPIED_FIX if are_copies else _HELD_FIX,
        variable=_first_name(before, kept) if kept else _first_name(now, given),
        changed=len(kept) + len(given),
    )


def _came_from_others(record: Record, positions: set[int]) -> bool:
    """Return whether the tensors that gave these inputs are gone: the step copied their data."""
    origins = record.snapshot.origins if record.snapshot is not None else {}
    return bool(positions) and all(
        k in origins and origins[k].dropped for k in positions
    )


def _inputs(record: Record, positions: set[int]) -> str:
    names = record.snapshot.leaf_names if record.snapshot is not None else {}
    known = [names[k].text for k in sorted(positions) if k in names]
    if known and len(known) == len(positions):
        return listed(known)
    return plural(len(positions), "input")


def _first_name(record: Record, positions: set[int]) -> str:
    names = record.snapshot.leaf_names if record.snapshot is not None else {}
    return next((names[k].text for k in sorted(positions) if k in names), "")
