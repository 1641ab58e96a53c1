"""What a program keeps from earlier steps and reads in each later one: lists, and graphs of autograd."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lazyrt.execution.why.causes import Cause
from lazyrt.execution.why.edits import (
    at,
    count,
    downstream,
    first_site,
    leaf_name,
    place,
    readers_of,
    with_leaves,
)

if TYPE_CHECKING:
    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Name, Snapshot, Vertex

_ITEM = re.compile(r"(.+)\[\d+\]")
_SHOWN_STEPS = 3
_JOINS = ("aten.cat.", "aten.stack.")
_LIST_FIX = (
    "keep a running value (`total += x.detach()`) or a tensor of fixed size, or read the list "
    "after the loop: each length of what is read is a graph of its own"
)
_DETACH_FIX = (
    "hand on `{}.detach()`, so that backward ends where the step begins; or run the whole "
    "sequence in one step of fixed length"
)


def growing_list(edits: Edits) -> list[Cause]:
    """Return that a list of earlier results is longer and is read as a whole."""
    before, now = _items(edits.a), _items(edits.b)
    for name, leaves in now.items():
        came = [leaf for leaf in leaves if leaf in edits.added]
        had = len(before.get(name, ()))
        if not came or len(leaves) <= had:
            continue
        users = readers_of(edits.b, came)
        spots = {_spot(edits.b.vertices[user]) for user in users}
        near = {*came, *(k for k in edits.added if _spot(edits.b.vertices[k]) in spots)}
        joins = [user for user in users if user in edits.changed]
        site = first_site(edits.b.vertices[user] for user in users)
        return [
            Cause(
                kind="carried_over",
                text=f"the list `{name}` of earlier results is read as a whole{at(site)}: "
                f"{count(len(leaves), 'input')} of this step, {had} in {edits.before.name}",
                fix=_LIST_FIX,
                variable=name,
                now=site,
                before=edits.b.origins[came[0]].site,
                taken=edits.take(
                    added=with_leaves(edits.b, near, edits.added),
                    changed=downstream(edits.b, joins, set(edits.changed)),
                ),
                sizes=((had, len(leaves)),),
            )
        ]
    return []


def _spot(vertex: Vertex) -> object:
    return (vertex.op, place(vertex.site))


def _items(snapshot: Snapshot) -> dict[str, list[int]]:
    """Return the inputs that earlier steps computed and a list holds, by what it is called."""
    found: dict[str, list[int]] = {}
    # What each step writes anew is state, as an optimizer's own.
    written = {name.text for name in snapshot.root_names.values()}
    for leaf, name in snapshot.leaf_names.items():
        if name.text in written:
            continue
        item = _ITEM.fullmatch(name.text)
        origin = snapshot.origins.get(leaf)
        is_kept = name.holder in {"list", "deque"} and item is not None
        if is_kept and item is not None and origin is not None and origin.step >= 0:
            found.setdefault(item[1], []).append(leaf)
    for leaves in found.values():
        leaves.extend(_read_beside(snapshot, leaves))
    return found


def _read_beside(snapshot: Snapshot, items: list[int]) -> list[int]:
    """Return the results of earlier steps that are joined with a list's items.

    The list has let them go since, or a variable, by which they are called, holds them as well.
    """
    type_ = snapshot.vertices[items[0]].types
    beside = [
        operand
        for vertex in snapshot.vertices
        if vertex.op.startswith(_JOINS)
        and any(operand in items for operand, _ in vertex.operands)
        for operand, _ in vertex.operands
        if operand not in items
        and operand in snapshot.origins
        and snapshot.origins[operand].step >= 0
        and snapshot.vertices[operand].types == type_
        and not _is_programs(snapshot.leaf_names.get(operand))
    ]
    return list(dict.fromkeys(beside))


def _is_programs(name: Name | None) -> bool:
    return name is not None and (
        name.in_module or name.holder in {"optimizer", "gradient"}
    )


def through_earlier_steps(edits: Edits) -> list[Cause]:
    """Return that backward goes further back: through steps whose state was not detached."""
    now, before = _saved(edits.b), _saved(edits.a)
    forward = any(not v.backward and not v.is_leaf for v in edits.b.vertices)
    came = [leaf for leaves in now.values() for leaf in leaves if leaf in edits.added]
    if len(now) <= len(before) or not came or not forward:
        return []
    last = max(now)
    handed = [
        leaf
        for leaf, origin in edits.b.origins.items()
        if origin.step >= last
        and leaf not in came
        and (name := edits.b.leaf_names.get(leaf)) is not None
        and name.holder.startswith(("variable", "object", "list", "dict"))
    ]
    variable = leaf_name(edits.b, handed[0]) if handed else ""
    shown = ", ".join(map(str, sorted(now)[-_SHOWN_STEPS:]))
    backward = {k for k in edits.added if edits.b.vertices[k].backward}
    site = first_site(edits.b.vertices[k] for k in sorted(backward))
    steps = f"step {shown}" if len(now) == 1 else f"steps {shown}"
    return [
        Cause(
            kind="carried_over",
            text=f"backward{at(site)} goes on through {count(len(now), 'earlier step')}, "
            f"{len(before)} in {edits.before.name}: it reads what {steps} saved for it"
            + (f", as `{variable}` was handed on with its history" if variable else ""),
            fix=_DETACH_FIX.format(variable or "h"),
            variable=variable,
            now=site,
            before=edits.b.origins[came[0]].site,
            taken=edits.take(
                added={*backward, *came},
                removed=[leaf for leaf, o in edits.a.origins.items() if o.step >= 0],
            ),
            sizes=((len(before), len(now)),),
        )
    ]


def _saved(snapshot: Snapshot) -> dict[int, list[int]]:
    """Return by step the inputs that it computed and that backward alone reads."""
    users = snapshot.users()
    found: dict[int, list[int]] = {}
    for leaf, origin in snapshot.origins.items():
        name = snapshot.leaf_names.get(leaf)
        held = name is not None and (
            name.in_module or name.holder in {"optimizer", "gradient"}
        )
        read = [snapshot.vertices[user] for user, _ in users[leaf]]
        is_saved = read and all(v.backward for v in read)
        if (
            origin.step >= 0
            and is_saved
            and not (held or origin.name.endswith(".grad"))
        ):
            found.setdefault(origin.step, []).append(leaf)
    return found
