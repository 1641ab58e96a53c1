"""What changed about one node of a diff, in a few words."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from lazygraph.diff import nested_diffs
from lazygraph.graph import CONSTANT
from lazyviz.render.measure import clip

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazygraph.diff import GraphDiff
    from lazygraph.graph import Label

# A called computation in a label, which its fingerprint stands for.
CALLED = re.compile(r"(\w+)=#[0-9a-f]{16}")
_MAX_NESTING = 3
_MAX_KINDS = 3
_MAX_WORDS = 60
_MAX_LITERAL = 24


def change(found: GraphDiff, a: int, b: int, nesting: int = _MAX_NESTING) -> str:
    """Return the first part of a pair's labels that changed: op, type, literal, attributes.

    Of what it calls, what differs within; at most so many calls deep.
    """
    before, after = found.a.label(a), found.b.label(b)
    for old, new in (
        (before.type, after.type),
        (before.literal, after.literal),
        (before.op, after.op),
    ):
        if old != new:
            return f"{clip(old, _MAX_LITERAL)} → {clip(new, _MAX_LITERAL)}"
    told = changed_attributes(before.attrs, after.attrs)
    if nesting and told.startswith("differs within "):
        return clip(_inside(found, a, b, nesting - 1), _MAX_WORDS) or told
    return told


def changed_attributes(before: str, after: str) -> str:
    """Return the attributes that changed; of what is called, that it differs within.

    Example:
        >>> changed_attributes("dim=0, kind=kLoop", "dim=1, kind=kLoop")
        'dim=0 → dim=1'
        >>> changed_attributes("body=#0123456789abcdef", "body=#fedcba9876543210")
        'differs within body'
    """
    old, new = before.split(", "), after.split(", ")
    gone = [part for part in old if part not in new]
    came = [part for part in new if part not in old]
    called = [CALLED.fullmatch(part) for part in (*gone, *came)]
    if called and all(called):
        return "differs within " + ", ".join(dict.fromkeys(c[1] for c in called if c))
    return f"{', '.join(gone) or 'none'} → {', '.join(came) or 'none'}"


def _inside(found: GraphDiff, a: int, b: int, nesting: int) -> str:
    """Return what differs in what a pair calls: `in calls: constant 2 → 3`."""
    parts = []
    for title, inner in nested_diffs(found, a, b):
        words = _words(inner, nesting)
        if words:
            parts.append(f"in {title.partition(':')[0]}: {words}")
    return "; ".join(parts)


def _words(inner: GraphDiff, nesting: int) -> str:
    changes = []
    for x, y in inner.changed[:_MAX_KINDS]:
        told = change(inner, x, y, nesting)
        op = inner.b.ops[y]
        is_told = told.startswith("in ") or inner.a.ops[x] != op
        changes.append(told if is_told else f"{op} {told}")
    if len(inner.changed) > _MAX_KINDS:
        changes.append(f"{len(inner.changed) - _MAX_KINDS:,} more changed")
    marks = [
        f"{mark} {_kinds(ops)}"
        for mark, ops in (
            ("+", [_named(inner.b.label(y)) for y in inner.added]),
            ("−", [_named(inner.a.label(x)) for x in inner.removed]),
        )
        if ops
    ]
    if not changes and not marks:
        rewired = dict.fromkeys(each.b for each in inner.rewired)
        marks = [f"⇄ {_kinds(inner.b.ops[y] for y in rewired)}"] if rewired else []
    return ", ".join([*dict.fromkeys(changes), *marks]) or "its results"


def _named(label: Label) -> str:
    is_constant = label.op == CONSTANT and label.literal
    return (
        f"{label.op} {clip(label.literal, _MAX_LITERAL)}" if is_constant else label.op
    )


def _kinds(ops: Iterable[str]) -> str:
    """Return kinds of op, the most frequent first: `2 add, tanh`."""
    counts = Counter(ops)
    shown = [
        f"{count} {op}" if count > 1 else op
        for op, count in counts.most_common(_MAX_KINDS)
    ]
    return ", ".join([*shown, "…"] if len(counts) > _MAX_KINDS else shown)
