"""Training and evaluation: dropout, norms, and the ways that torch takes in either."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from lazyrt.execution.why.causes import Cause, Taken
from lazyrt.execution.why.edits import (
    at,
    connected,
    downstream,
    exclusive,
    first_site,
    listed,
    place,
    with_leaves,
)

if TYPE_CHECKING:
    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Snapshot, Vertex


_DROPOUTS = (
    "aten.native_dropout",
    "aten.bernoulli",
    "aten.dropout",
    "aten.feature_dropout",
)
_NORMS = ("batch_norm", "instance_norm")
SHOWN_OPS = 3
# Dropout alone is one operation or two.
_WAY = 4
_MODE_FIX = (
    "one graph for training and one for evaluation is what it takes; call `.train()` and "
    "`.eval()` at the boundary of steps"
)


def _counters(snapshot: Snapshot) -> list[int]:
    """Return the roots that are buffers of modules."""
    return [k for k, name in snapshot.root_names.items() if name.holder == "buffer"]


def train_or_eval(edits: Edits) -> list[Cause]:
    """Return whether dropout or batch norm switched between training and evaluation."""
    more, fewer = modes(edits)
    flags = [
        k
        for k, partner in edits.changed.items()
        if is_mode(edits.b.vertices[k])
        and edits.b.vertices[k].attrs != edits.a.vertices[partner].attrs
    ]
    if not more and not fewer and not flags:
        return []
    to_train = _trains(edits.b, [*more, *flags]) or not (fewer or flags)
    vertices = [edits.b.vertices[k] for k in sorted([*more, *flags])]
    old = [edits.a.vertices[k] for k in sorted(fewer)]
    scopes = [v.scope for v in (*vertices, *old) if v.scope]
    where = f" (in module {listed(scopes)})" if scopes else ""
    old_mode, new_mode = (
        ("evaluation", "training") if to_train else ("training", "evaluation")
    )
    text = f"the model runs in {new_mode} mode, before in {old_mode} mode: "
    fix = _MODE_FIX
    if _is_dropout_alone(edits, [*vertices, *old]):
        text = f"dropout is {'on' if to_train else 'off'}, before it was {'off' if to_train else 'on'}: "
        fix = (
            "set the rate once, before the loop; one compile with dropout and one without, "
            "as after `.train()` and `.eval()`, is what it costs"
        )
    return [
        Cause(
            kind="train_eval",
            text=f"{text}{_norms_and_dropouts([*vertices, *old])} differ{where}",
            fix=fix,
            now=first_site(vertices),
            before=first_site(old),
            taken=edits.take(
                added=connected(edits.b, more, edits.added)
                | exclusive(edits.b, _counters(edits.b), edits.added)[0]
                | {k for k in edits.added if _is_copy(edits.b.vertices[k])},
                removed=connected(edits.a, fewer, edits.removed)
                | exclusive(edits.a, _counters(edits.a), edits.removed)[0],
                changed=downstream(
                    edits.b,
                    [*flags, *_changed_gradients(edits)],
                    set(edits.changed),
                ),
            ),
        )
    ]


def _changed_gradients(edits: Edits) -> list[int]:
    """Return the gradients of norms that are computed with another flag than before."""
    return [
        k
        for k, partner in edits.changed.items()
        if _is_mode_or_its_gradient(edits.b.vertices[k])
        and edits.b.vertices[k].attrs != edits.a.vertices[partner].attrs
    ]


def fast_path(edits: Edits) -> list[Cause]:
    """Return whether a module takes another way in evaluation, as torch's attention does."""
    sides = (edits.b, edits.added), (edits.a, edits.removed)
    for is_gain in (True, False):
        snapshot, free = sides[not is_gain]
        drops = [k for k in free if snapshot.vertices[k].op.startswith(_DROPOUTS)]
        found = [snapshot.vertices[k] for k in drops]
        spots = {(vertex.scope, place(vertex.site)) for vertex in found}
        both = [
            sum(_at_spots(side.vertices[k], spots) for k in mine)
            for side, mine in sides
        ]
        if not drops or min(both) < _WAY:
            continue
        old, new = ("evaluation", "training")[:: 1 if is_gain else -1]
        site = first_site(snapshot.vertices[k] for k in sorted(drops))
        names = listed(sorted(scope for scope, _ in spots if scope))
        return [
            Cause(
                kind="train_eval",
                text=f"the model runs in {new} mode, before in {old} mode: dropout and the way "
                f"that torch takes{at(site)} differ"
                + (f" (in module {names})" if names else ""),
                fix=_MODE_FIX,
                now=site if is_gain else None,
                before=None if is_gain else site,
                taken=_take_places(edits, spots),
            )
        ]
    return []


def _at_spots(vertex: Vertex, spots: set[Any]) -> bool:
    return not vertex.is_leaf and (vertex.scope, place(vertex.site)) in spots


def _take_places(edits: Edits, spots: set[Any]) -> Taken:
    """Take out what the same modules recorded on the same lines, on both sides."""
    a, b = edits.a, edits.b
    ours = [k for k in edits.added if _at_spots(b.vertices[k], spots)]
    theirs = [k for k in edits.removed if _at_spots(a.vertices[k], spots)]
    changed = [
        k
        for k, partner in edits.changed.items()
        if _at_spots(b.vertices[k], spots) and _at_spots(a.vertices[partner], spots)
    ]
    return edits.take(
        with_leaves(b, ours, edits.added),
        with_leaves(a, theirs, edits.removed),
        changed,
    )


def _is_dropout_alone(edits: Edits, vertices: list[Vertex]) -> bool:
    """Return whether both sides train: then a rate of 0 leaves dropout out as well."""
    return all(vertex.op.startswith(_DROPOUTS) for vertex in vertices) and all(
        any(vertex.backward for vertex in side.vertices) for side in (edits.a, edits.b)
    )


def _is_copy(vertex: Vertex) -> bool:
    """Return whether a vertex is what dropout leaves of itself in compiled evaluation."""
    return vertex.op == "aten.clone.default"


def _norms_and_dropouts(vertices: list[Vertex]) -> str:
    ops = Counter(vertex.op for vertex in vertices)
    return ", ".join(f"{number} {op}" for op, number in ops.most_common(SHOWN_OPS))


def modes(edits: Edits) -> tuple[list[int], list[int]]:
    """Return the vertices that show the mode and that one side alone has: of `b`, of `a`.

    A module that does the same on the other side, at another time, is in the same mode.
    """
    found = []
    sides = (edits.b, edits.a, edits.added), (edits.a, edits.b, edits.removed)
    for snapshot, other, free in sides:
        mine = [k for k in free if is_mode(snapshot.vertices[k])]
        there = {
            (v.op.replace("_backward", ""), v.scope)
            for v in (other.vertices if mine else ())
            if is_mode(v) or v.op.startswith(_DROPOUTS)
        }
        found.append(
            [
                k
                for k in mine
                if (snapshot.vertices[k].op, snapshot.vertices[k].scope) not in there
            ]
        )
    return found[0], found[1]


def is_mode(vertex: Vertex) -> bool:
    """Return whether training and evaluation do something else in an op of the forward pass.

    What backward does follows from it: a step that was cut has one without the other.
    """
    return "_backward" not in vertex.op and _is_mode_or_its_gradient(vertex)


def _is_mode_or_its_gradient(vertex: Vertex) -> bool:
    return vertex.op.startswith(_DROPOUTS) or any(norm in vertex.op for norm in _NORMS)


def _trains(snapshot: Snapshot, vertices: list[int]) -> bool:
    return any(
        snapshot.vertices[k].op.startswith(_DROPOUTS)
        or "True" in snapshot.vertices[k].attrs
        for k in vertices
        if "no_training" not in snapshot.vertices[k].op
    )
