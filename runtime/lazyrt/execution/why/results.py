"""Tensors that were alive at the boundary on one side only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lazyrt.execution.why.causes import Cause
from lazyrt.execution.why.edits import (
    at,
    count,
    exclusive,
    is_kept,
    place,
)
from lazyrt.execution.why.train_eval import is_mode
from lazyrt.execution.why.updates import WRITTEN_FIX
from lazyrt.ir.match import cone

if TYPE_CHECKING:
    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Snapshot


_SHOWN = 2
_QUEUED = " queued at "
_QUEUED_FIX = "queue the closure in every step, or in none: what it is given is a result of the step"
ITEM = re.compile(r"(.+)\[\d+\]")


def kept_results(edits: Edits) -> list[Cause]:
    """Return which tensors were alive at the boundary on one side only."""
    causes = []
    came = [edits.b.vertices[k] for k in (*edits.added, *edits.changed)]
    gone = [edits.a.vertices[k] for k in edits.removed]
    if any(map(is_mode, (*came, *gone))):
        _forget_what_training_keeps(edits)
    edits.new_roots = [k for k in edits.new_roots if not _is_overwritten(edits.b, k)]
    edits.gone_roots = [k for k in edits.gone_roots if not _is_overwritten(edits.a, k)]
    _forget_gradients_of_another_path(edits)
    if edits.is_partly_explained:
        _forget_what_backward_keeps(edits)
    if edits.new_roots:
        causes += _kept(edits)
    if edits.gone_roots:
        causes += _dropped(edits)
    return causes


def _forget_what_training_keeps(edits: Edits) -> None:
    """Counters of norms, masks, and what is saved for backward need no cause of their own."""
    edits.new_roots = [k for k in edits.new_roots if _is_users(edits.b, k, edits.added)]
    edits.gone_roots = [
        k for k in edits.gone_roots if _is_users(edits.a, k, edits.removed)
    ]


def _forget_what_backward_keeps(edits: Edits) -> None:
    """What nothing names is saved for a backward pass that comes later, as in another step.

    Where both graphs compute it, what else differs says why it is saved on one side only.
    """
    a, b = edits.a, edits.b
    edits.new_roots = [
        k for k in edits.new_roots if k in b.root_names or b.roots[k][0] in edits.added
    ]
    edits.gone_roots = [
        k for k in edits.gone_roots if k in a.root_names or a.roots[k][0] in edits.removed
    ]  # fmt: skip


def _forget_gradients_of_another_path(edits: Edits) -> None:
    """Gradients on both sides, by other names or in other memory, follow from how they are made."""
    mine = [k for k in edits.new_roots if _is_gradient(edits.b, k)]
    theirs = [k for k in edits.gone_roots if _is_gradient(edits.a, k)]
    if mine and theirs and (edits.added or edits.removed):
        edits.new_roots = [k for k in edits.new_roots if k not in mine]
        edits.gone_roots = [k for k in edits.gone_roots if k not in theirs]


def _is_gradient(snapshot: Snapshot, root: int) -> bool:
    name = snapshot.root_names.get(root)
    return name is not None and name.holder == "gradient"


def _is_overwritten(snapshot: Snapshot, root: int) -> bool:
    """Return whether a root is a gradient that the graph reads and gives anew, as clipped ones."""
    name = snapshot.root_names.get(root)
    read = snapshot.leaf_names.values()
    return name is not None and name.holder == "gradient" and name in read


def _is_users(snapshot: Snapshot, root: int, free: set[int]) -> bool:
    """Return whether a root is the user's own: named, or work of its own."""
    name = snapshot.root_names.get(root)
    vertex = snapshot.roots[root][0]
    if name is not None:
        return name.holder != "buffer"
    return vertex in free and not is_mode(snapshot.vertices[vertex])


def _kept(edits: Edits) -> list[Cause]:
    roots = edits.new_roots = [
        k for k in edits.new_roots if not _comes_with_a_path(edits, k)
    ]
    together, each = exclusive(edits.b, roots, edits.added)
    # What others need too, and the graph before did not compute, came with another path; so did
    # what nothing names and only a new operation reads, which saved it for backward.
    roots = [
        k
        for k in roots
        if each[k]
        or is_kept(edits.b.root_names.get(k))
        or (edits.b.roots[k][0] not in edits.added and not _is_saved(edits, k))
    ]
    edits.new_roots = roots
    by_holder: dict[str, list[int]] = {}
    for k in sorted(roots, key=lambda k: -len(each[k])):
        name = edits.b.root_names.get(k)
        holder = (
            name.holder
            if name is not None and name.holder.startswith("closure")
            else ""
        )
        by_holder.setdefault(holder, []).append(k)
    causes = []
    if written := [k for k in roots if _is_written(edits, k)]:
        causes.append(_written(edits, written))
        by_holder = {
            holder: left
            for holder, mine in by_holder.items()
            if (left := [k for k in mine if k in edits.new_roots])
        }
        together = together & edits.added
    for holder, mine in by_holder.items():
        nodes = set().union(*(each[k] for k in mine))
        if len(by_holder) == 1:
            nodes = together
        vertex = edits.b.vertices[edits.b.roots[mine[0]][0]]
        called, variable = _root(edits.b, mine[0])
        more = _others(edits.b, mine)
        held = f", held by the {holder}," if holder else ""
        step, before = edits.now.first_step, edits.before.name
        causes.append(
            Cause(
                kind="closure" if holder else "live_tensor",
                text=f"live tensor {called} created{at(vertex.site)}{held} was alive at the "
                f"boundary of step {step} but not in {before}{more}: "
                f"{_difference('+', len(mine), len(nodes))}",
                fix=_QUEUED_FIX
                if _QUEUED in holder
                else "log after the boundary, or `del` it, or keep a value of it "
                "(`lazyrt.materialise(t)`), or put it off with a step closure in every step: "
                f"`lazyrt.add_step_closure({_keeper(variable)}, (t,))`",
                variable=variable,
                now=vertex.site,
                taken=edits.take(added=nodes),
            )
        )
        edits.new_roots = [k for k in edits.new_roots if k not in mine]
    return causes


def _comes_with_a_path(edits: Edits, root: int) -> bool:
    """Return whether a result is a local variable, or a gradient, of what is new beside it.

    A loop that takes another branch leaves its last round's value in a variable, and a tensor
    that wants a gradient gets one.
    """
    name, vertices = edits.b.root_names.get(root), edits.b.vertices
    if name is None or is_kept(name) or name.in_module:
        return False
    alone = exclusive(edits.b, [root], edits.added)[0]
    others = [vertices[k] for k in edits.added - alone if not vertices[k].is_leaf]
    if not alone or not others:
        return False
    if name.holder == "gradient":
        return vertices[edits.b.roots[root][0]].backward and any(
            operand in edits.added for k in alone for operand, _ in vertices[k].operands
        )
    did = {(vertex.op, place(vertex.site)) for vertex in others}
    return name.holder.startswith(("variable", "local")) and did.issuperset(
        (vertices[k].op, place(vertices[k].site)) for k in alone
    )


def _others(snapshot: Snapshot, roots: list[int]) -> str:
    """Return the results beside the first one, by name where they have one."""
    if len(roots) < 2:  # noqa: PLR2004
        return ""
    first = place(snapshot.vertices[snapshot.roots[roots[0]][0]].site)
    told: list[str] = []
    for k in roots[1:]:
        site = snapshot.vertices[snapshot.roots[k][0]].site
        if k in snapshot.root_names and len(told) < _SHOWN:
            line = "" if place(site) == first else at(site)
            told.append(f"`{snapshot.root_names[k].text}`{line}")
    left = len(roots) - 1 - len(told)
    if left:
        told.append(f"{left} more")
    shown = " and ".join((", ".join(told[:-1]), told[-1]) if told[1:] else told)
    return f" (and {shown})"


def _is_written(edits: Edits, root: int) -> bool:
    """Return whether a result is an input written in place: it was there, and is given anew."""
    name = edits.b.root_names.get(root)
    if name is None or name.in_module:
        return False
    vertex, index = edits.b.roots[root]
    type_ = edits.b.vertices[vertex].types[index]
    return any(
        other.text == name.text
        and edits.b.vertices[leaf].types == (type_,)
        and leaf in edits.added
        for leaf, other in edits.b.leaf_names.items()
    )


def _written(edits: Edits, roots: list[int]) -> Cause:
    """Return that tensors of the program are written to, as a metric's sums."""
    # What nothing names on the way was saved for a backward pass.
    way = cone(edits.b, [edits.b.roots[k][0] for k in roots], edits.added.__contains__)
    saved = [
        k
        for k in edits.new_roots
        if k not in edits.b.root_names and edits.b.roots[k][0] in way
    ]
    nodes = exclusive(edits.b, [*roots, *saved], edits.added)[0]
    vertex = edits.b.vertices[edits.b.roots[roots[0]][0]]
    called, variable = _root(edits.b, roots[0])
    edits.new_roots = [k for k in edits.new_roots if k not in roots]
    return Cause(
        kind="update",
        text=f"{called} is written to{at(vertex.site)} in step {edits.now.first_step}, and was "
        f"not in {edits.before.name}{_others(edits.b, roots)}: "
        f"{_difference('+', len(roots), len(nodes))}",
        fix=WRITTEN_FIX,
        variable=variable,
        now=vertex.site,
        taken=edits.take(added=nodes),
    )


def _keeper(variable: str) -> str:
    """Return what keeps a tensor, as a function: `history.append` for `history[3]`.

    Example:
        >>> _keeper("self.log['loss'][12]"), _keeper("best")
        ("self.log['loss'].append", 'f')
    """
    item = ITEM.fullmatch(variable)
    return f"{item[1]}.append" if item is not None else "f"


def _is_saved(edits: Edits, root: int) -> bool:
    """Return whether a result has no name and the operations that read it are new."""
    vertex = edits.b.roots[root][0]
    if root in edits.b.root_names:
        return False
    return any(
        vertex in (operand for operand, _ in edits.b.vertices[k].operands)
        for k in edits.added
    )


def _dropped(edits: Edits) -> list[Cause]:
    roots = edits.gone_roots
    together, each = exclusive(edits.a, roots, edits.removed)
    # What others needed too, and this graph does not compute, went with another path.
    roots = [
        k
        for k in roots
        if each[k]
        or is_kept(edits.a.root_names.get(k))
        or edits.a.roots[k][0] not in edits.removed
    ]
    edits.gone_roots = []
    if not roots:
        return []
    first = max(roots, key=lambda k: len(each[k]))
    vertex = edits.a.vertices[edits.a.roots[first][0]]
    called, name = _root(edits.a, first)
    more = _others(edits.a, [first, *(k for k in roots if k != first)])
    cause = Cause(
        kind="live_tensor_gone",
        text=f"live tensor {called} created{at(vertex.site)} was alive at the boundary in "
        f"{edits.before.name} but not in step {edits.now.first_step}{more}: "
        f"{_difference('-', len(roots), len(together))}",
        fix="keep the same tensors alive at each boundary: drop it in every step or in none",
        variable=name,
        before=vertex.site,
        taken=edits.take(removed=together),
    )
    return [cause]


def _difference(sign: str, outputs: int, operations: int) -> str:
    """Return how many outputs, and operations for them alone, a graph has more or less.

    Example:
        >>> _difference("+", 2, 4), _difference("-", 1, 0)
        ('+2 outputs, +4 operations', '-1 output')
    """
    shown = f"{sign}{count(outputs, 'output')}"
    return f"{shown}, {sign}{count(operations, 'operation')}" if operations else shown


def _root(snapshot: Snapshot, k: int) -> tuple[str, str]:
    """Return how a sentence calls a root, and its name."""
    vertex, index = snapshot.roots[k]
    type_ = snapshot.vertices[vertex].types[index]
    if k not in snapshot.root_names:
        return f"{type_} of {snapshot.vertices[vertex].op}", ""
    name = snapshot.root_names[k].text
    return f"`{name}` {type_}", name
