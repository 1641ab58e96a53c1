"""What no other cause explains: the program took another path."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lazyrt.execution.why.causes import Cause
from lazyrt.execution.why.edits import (
    at,
    count,
    first_site,
    is_view,
    leaf_name,
    listed,
)
from lazyrt.execution.why.rewired import rewired
from lazyrt.execution.why.source import name_in_schema
from lazyrt.execution.why.train_eval import SHOWN_OPS
from lazyrt.execution.why.updates import OPTIONS_FIX, is_of_update
from lazyrt.ir.snapshot import OPERAND

if TYPE_CHECKING:
    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Vertex


def other_update(edits: Edits) -> list[Cause]:
    """Return that the optimizer computes something else, where nothing else is left.

    Numbers that its other ops take as inputs have not varied.
    """
    ops = [edits.b.vertices[k] for k in sorted(edits.added)]
    ops += [edits.a.vertices[k] for k in sorted(edits.removed)]
    if all(vertex.is_leaf for vertex in ops) or not is_of_update(edits):
        return []
    return [_other_update(edits)]


def other_path(edits: Edits) -> list[Cause]:
    """Return what is left: the program took another path."""
    if not edits.added and not edits.removed and not edits.changed:
        return []
    new, old = _sides(edits)
    places = Counter(
        (v.op, v.scope.rpartition(".")[2]) for v in (*new, *old) if not v.is_leaf
    )
    scopes = {v.scope for v in (*new, *old) if v.scope}
    times = max(places.values(), default=0)
    alike = f", alike in {len(scopes)} modules" if times > 2 and len(scopes) > 2 else ""  # noqa: PLR2004
    if is_of_update(edits):
        return [_other_update(edits)]
    other = None
    if all(vertex.is_leaf or vertex.backward for vertex in (*new, *old)):
        other = rewired(edits)
    return [
        Cause(
            kind="code_path",
            text="the program took another path: "
            + (f"{other.text}; of its backward pass " if other is not None else "")
            + _arguments_text(edits)
            + _ops_text(new, old)
            + _inputs_text(edits)
            + at(first_site(new) or first_site(old))
            + (f" (in module `{next(iter(scopes))}`)" if len(scopes) == 1 else alike),
            fix="a branch, a flag or a loop decides by the step: make the decision once, or "
            "compute both sides and choose with `torch.where`",
            now=other.now if other is not None else first_site(new),
            before=other.before if other is not None else first_site(old),
            taken=edits.take_all(),
        )
    ]


def _sides(edits: Edits) -> tuple[list[Vertex], list[Vertex]]:
    """Return what is left of this graph and of the one before; what changed is in both."""
    new, old = {*edits.added, *edits.changed}, {*edits.removed, *edits.changed.values()}
    return (
        [edits.b.vertices[k] for k in sorted(new)],
        [edits.a.vertices[k] for k in sorted(old)],
    )


def _arguments_text(edits: Edits) -> str:
    """Return which op reads a tensor where it had none, or the other way round."""
    for k, partner in edits.changed.items():
        now, before = edits.b.vertices[k], edits.a.vertices[partner]
        for place, (new, old) in enumerate(zip(now.attrs, before.attrs, strict=False)):
            if OPERAND not in {new, old} or new == old or now.backward:
                continue
            name = name_in_schema(now.op, place)
            called = f" as its `{name}`" if name else ""
            reads = f"reads a tensor{called} where it had {old}"
            if old == OPERAND:
                reads = f"has {new}{called} where it read a tensor"
            return f"{now.op}{at(now.site)} {reads}; "
    return ""


def _inputs_text(edits: Edits) -> str:
    """Return which named inputs one side alone reads."""
    sides = (edits.b, edits.added, "reads"), (edits.a, edits.removed, "no longer reads")
    parts = []
    for snapshot, free, verb in sides:
        names = [
            leaf_name(snapshot, k)
            for k in sorted(free)
            if snapshot.vertices[k].op == "data"
        ]
        if named := [name for name in names if name]:
            parts.append(f", it {verb} {listed(named)}")
    return "".join(parts)


def _other_update(edits: Edits) -> Cause:
    new, old = _sides(edits)
    site = first_site(new) or first_site(old)
    return Cause(
        kind="update",
        text=f"the optimizer's update{at(site)} computes something else: {_ops_text(new, old)}",
        fix=OPTIONS_FIX,
        now=first_site(new),
        before=first_site(old),
        taken=edits.take_all(),
    )


def _telling(ops: Counter[str], views: set[str]) -> list[tuple[str, int]]:
    """Return a few ops, those that merely view last: they come with whatever reads them."""
    return sorted(ops.most_common(), key=lambda item: item[0] in views)[:SHOWN_OPS]


def _ops_text(new: list[Vertex], old: list[Vertex]) -> str:
    ours = Counter(v.op for v in new if not v.is_leaf)
    theirs = Counter(v.op for v in old if not v.is_leaf)
    views = {v.op for v in (*new, *old) if is_view(v)}
    parts = [f"{n} more {op}" for op, n in _telling(ours - theirs, views)]
    parts += [f"{n} fewer {op}" for op, n in _telling(theirs - ours, views)]
    if not parts:
        inputs = [v for v in (*new, *old) if v.is_leaf]
        if inputs:
            return f"{count(len(inputs), 'other input')}"
        parts = [f"{op} in another form" for op in list(ours)[:SHOWN_OPS]]
    return ", ".join(parts)
