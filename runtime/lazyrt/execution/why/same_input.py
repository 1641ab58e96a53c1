"""Inputs that are one tensor now and were two, or the other way round."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from lazyrt.execution.why.causes import Cause, Taken
from lazyrt.execution.why.edits import (
    at,
    count,
    leaf_name,
    leaf_site,
    text_of,
)
from lazyrt.execution.why.neighbours import longer_lists
from lazyrt.execution.why.updates import (
    is_of_optimizer,
    take_updates_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Snapshot


_MAX_PAIRS = 8
_SAME_FIX = (
    "give both as tensors of their own (`y.clone()`), or as one, in every step; tensors of equal "
    "values are no difference"
)


def tied_parameters(edits: Edits) -> list[Cause]:
    """Return which parameters of modules are one tensor now, or were before."""
    return _same_input(edits, _is_parameter)


def merged_inputs(edits: Edits) -> list[Cause]:
    """Return which two inputs are one tensor now, where what was computed of both is one, too.

    A network that is called with `a` and `b`, and then with `a` twice, runs once.
    """
    for is_gain, free in ((False, edits.removed), (True, edits.added)):
        snapshot = edits.b if is_gain else edits.a
        leaves = [k for k in sorted(free) if _is_data_of_program(snapshot, k)]
        others = [
            k
            for k, vertex in enumerate(snapshot.vertices)
            if k not in free and _is_data_of_program(snapshot, k)
        ]
        if not 0 < len(leaves) <= _MAX_PAIRS or len(others) > _MAX_PAIRS:
            continue
        for leaf, twin in product(leaves, others):
            if snapshot.vertices[leaf].types != snapshot.vertices[twin].types:
                continue
            same = _computed_alike(snapshot, leaf, twin, free)
            if not _goes_on_alike(edits, same, is_gain=is_gain):
                continue  # a loop's further round is computed alike, too
            if len(same) > 1 and is_gain != (len(edits.removed) > len(edits.added)):
                return [_one_tensor(edits, leaf, twin, same, is_gain=is_gain)]
    return []


def _is_data_of_program(snapshot: Snapshot, leaf: int) -> bool:
    """Return whether a vertex is data that the user has a name for, and no module or optimizer."""
    name = snapshot.leaf_names.get(leaf)
    return (
        snapshot.vertices[leaf].op == "data"
        and name is not None
        and not name.in_module
        and name.holder not in {"optimizer", "gradient"}
    )


def _computed_alike(
    snapshot: Snapshot, leaf: int, twin: int, free: set[int]
) -> dict[int, int]:
    """Return what is computed of one input and of another alike, each with its double.

    Empty unless all that reads the first one has a double among what both graphs have.
    """
    known: dict[object, int] = {}
    for k, vertex in enumerate(snapshot.vertices):
        if k not in free:
            known.setdefault((vertex.label, vertex.operands), k)
    same = {leaf: twin}
    for k in sorted(free):
        vertex = snapshot.vertices[k]
        if any(operand in same for operand, _ in vertex.operands):
            operands = tuple((same.get(o, o), index) for o, index in vertex.operands)
            double = known.get((vertex.label, operands))
            if double is not None:
                same[k] = double
    readers = [user for user, _ in snapshot.users()[leaf]]
    return same if all(user in same for user in readers) else {}


def _goes_on_alike(edits: Edits, same: dict[int, int], *, is_gain: bool) -> bool:
    """Return whether what reads the results is there on both sides, and reads the doubles there."""
    snapshot, other = (edits.b, edits.a) if is_gain else (edits.a, edits.b)
    partners = edits.match.to_before if is_gain else edits.match.to_now
    readers = 0
    for k, vertex in enumerate(snapshot.vertices):
        slots = [n for n, (o, _) in enumerate(vertex.operands) if o in same]
        if k in same or not slots:
            continue
        theirs = other.vertices[partners[k]].operands if partners[k] >= 0 else ()
        for slot in slots:
            double = partners[same[vertex.operands[slot][0]]]
            if slot >= len(theirs) or theirs[slot][0] != double:
                return False
        readers += 1
    return readers > 0


def _one_tensor(
    edits: Edits, leaf: int, twin: int, same: dict[int, int], *, is_gain: bool
) -> Cause:
    snapshot, other = (edits.b, edits.a) if is_gain else (edits.a, edits.b)
    pair = " and ".join(_called(snapshot, k) for k in (twin, leaf))
    count_text = count(len(same) - 1, "operation")
    text = (
        f"{pair} were one tensor and are two now: {count_text} more"
        if is_gain
        else f"{pair} are one tensor now and were two: {count_text} on them run once"
    )
    partners = edits.match.to_before if is_gain else edits.match.to_now
    sites = leaf_site(snapshot, leaf), leaf_site(other, partners[twin])
    mine = "added" if is_gain else "removed"
    return Cause(
        kind="same_input",
        text=text,
        fix=_SAME_FIX,
        variable=leaf_name(snapshot, leaf),
        now=sites[0] if is_gain else sites[1],
        before=sites[1] if is_gain else sites[0],
        taken=edits.take(**{mine: same}),
    )


def same_input(edits: Edits) -> list[Cause]:
    """Return which two inputs are one tensor now, or were before."""
    return _same_input(edits, lambda *_: True)


def _is_parameter(snapshot: Snapshot, leaf: int) -> bool:
    name = snapshot.leaf_names.get(leaf)
    return name is not None and name.in_module


def _same_input(
    edits: Edits, is_wanted: Callable[[Snapshot, int], bool]
) -> list[Cause]:
    causes = []
    for is_gain, free in ((False, edits.removed), (True, edits.added)):
        snapshot, other = (edits.b, edits.a) if is_gain else (edits.a, edits.b)
        partners = edits.match.to_before if is_gain else edits.match.to_now
        for leaf in sorted(free):
            if not is_wanted(snapshot, leaf):
                continue
            twin = _twin(snapshot, other, partners, leaf)
            if twin is None or _are_two(snapshot, other, leaf, twin):
                continue
            pair = [_called(snapshot, k) for k in (twin, leaf)]
            one = f"{' and '.join(pair)} {{}} one tensor"
            text = (
                f"{one.format('were')} and are two now"
                if is_gain
                else f"{one.format('are')} now and were two"
            )
            causes.append(
                Cause(
                    kind="same_input",
                    text=text,
                    fix=_SAME_FIX,
                    variable=leaf_name(snapshot, leaf),
                    now=leaf_site(edits.b, leaf if is_gain else partners[twin]),
                    before=leaf_site(edits.a, partners[twin] if is_gain else leaf),
                    taken=_take_with_update(edits, leaf, is_gain=is_gain),
                )
            )
    return causes


def _take_with_update(edits: Edits, leaf: int, *, is_gain: bool) -> Taken:
    """Take out an input; of a parameter also its update, and the sum of the gradients of both."""
    snapshot = edits.b if is_gain else edits.a
    mine, others = ("added", "removed") if is_gain else ("removed", "added")
    if not _is_parameter(snapshot, leaf):
        return edits.take(**{mine: [leaf]})
    name = leaf_name(snapshot, leaf)
    gone = {name, f"{name}.grad"}
    edits.new_roots = [k for k in edits.new_roots if text_of(edits.b.root_names.get(k)) not in gone]  # fmt: skip
    edits.gone_roots = [k for k in edits.gone_roots if text_of(edits.a.root_names.get(k)) not in gone]  # fmt: skip
    other = edits.a if is_gain else edits.b
    sums = [
        k
        for k in (edits.removed if is_gain else edits.added)
        if other.vertices[k].backward and other.vertices[k].op.startswith("aten.add.")
    ]
    updates = {k for k in edits.changed if is_of_optimizer(edits.b.vertices[k])}
    joins = longer_lists(edits)
    taken = edits.take(**{mine: [leaf], others: sums, "changed": updates | joins})
    updated = take_updates_of(edits, [name])
    return Taken(*map(sum, zip(taken, updated, strict=True)))


def _twin(
    snapshot: Snapshot, other: Snapshot, partners: Sequence[int], leaf: int
) -> int | None:
    """Return the input whose partner is read wherever `leaf` is, by the partners of its readers."""
    if snapshot.vertices[leaf].op != "data":
        return None
    read = set()
    # Where a list of tensors has another length, nothing tells which of them was which.
    users = [
        (user, slot)
        for user, slot in snapshot.users()[leaf]
        if partners[user] < 0
        or len(other.vertices[partners[user]].operands)
        == len(snapshot.vertices[user].operands)
    ]
    # The update of a parameter has one operand less when it is tied to another.
    users = [user for user in users if snapshot.vertices[user[0]].scope] or users
    for user, slot in users:
        operands = (
            other.vertices[partners[user]].operands if partners[user] >= 0 else ()
        )
        read.add(operands[slot][0] if slot < len(operands) else -1)
    if len(read) != 1:
        return None
    found = read.pop()
    is_input = found >= 0 and other.vertices[found].op == "data"
    if not is_input or found not in partners:
        return None
    twin = partners.index(found)
    return twin if _is_read_alike(snapshot, other, partners, twin) else None


def _is_read_alike(
    snapshot: Snapshot, other: Snapshot, partners: Sequence[int], twin: int
) -> bool:
    """Return whether what modules do with an input reads its partner on the other side, too.

    Where some of it has no counterpart, equal layers were taken for one another.
    """
    for user, slot in snapshot.users()[twin]:
        if not snapshot.vertices[user].scope:
            continue
        operands = (
            other.vertices[partners[user]].operands if partners[user] >= 0 else ()
        )
        if slot >= len(operands) or operands[slot][0] != partners[twin]:
            return False
    return True


def _are_two(snapshot: Snapshot, other: Snapshot, leaf: int, twin: int) -> bool:
    """Return whether two inputs are no two of the program, or parameters of their own on both sides."""
    names = [leaf_name(snapshot, leaf), leaf_name(snapshot, twin)]
    if names[0] == names[1] != "":  # what the name meant earlier, and what it means now
        return True
    return {*names} <= other.modules


def _called(snapshot: Snapshot, leaf: int) -> str:
    """Return how a sentence calls an input: by its name, else by the line that reads it."""
    name = leaf_name(snapshot, leaf)
    return f"`{name}`" if name else f"the one read{at(leaf_site(snapshot, leaf))}"
