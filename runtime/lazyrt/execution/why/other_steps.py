"""Another step of the program, such as the evaluation's, is a program of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyrt.execution.why.boundaries import (
    BLOCK,
    differs,
    is_block,
    is_cut,
    is_left,
    step_text,
)
from lazyrt.execution.why.causes import Cause
from lazyrt.execution.why.edits import (
    count,
    is_view,
)
from lazyrt.execution.why.train_eval import is_mode, modes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Snapshot

# A cut takes at least this share of the larger graph away, and adds little.
CUT_SHARE = 0.2
_ADDED_SHARE = 0.25
# Of what a backward pass reads, a step that was cut short keeps at least this share.
_KEPT_SHARE = 0.5


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
    alone = (
        "computes no gradients and "
        if runs_forward_alone(edits)
        else "computes gradients and "
        if trains_besides(edits)
        else ""
    )
    return [
        Cause(
            kind="other_step",
            text=f"{step_text(edits.now.key.ended_by)} {alone}is a program of its own: "
            f"{' and '.join(parts) or 'other operations'} than {edits.before.name} of "
            f"{step_text(edits.before.key.ended_by)}",
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
    if is_left(new.ended_by) or not differs(old.ended_by, new.ended_by):
        return False
    if runs_forward_alone(edits) or trains_besides(edits):
        return True
    if is_cut(new.ended_by) or is_cut(new.began_after):
        return False
    if is_cut(old.ended_by) and not _changes_mode(edits):
        return False
    edited = len(edits.added) + len(edits.removed)
    if edited < CUT_SHARE * max(edits.before.nodes, edits.now.nodes):
        return False
    # A block with a name is a step of its own, whatever ended the other.
    is_named = new.ended_by[0].startswith(f"{BLOCK} ")
    are_blocks = is_named or (is_block(old.ended_by) and is_block(new.ended_by))
    return are_blocks or _changes_mode(edits) or not _may_have_moved(edits)


def runs_forward_alone(edits: Edits) -> bool:
    """Return whether a graph keeps nothing for the backward pass that the one before has.

    A training step that was cut short leaves what its rest reads; an evaluation does not.
    """
    wanted, kept = _saved(edits.b, edits.a, edits.removed, edits.match.to_now)
    return wanted >= 0 and kept < _KEPT_SHARE * wanted


def trains_besides(edits: Edits) -> bool:
    """Return whether it is the graph before that keeps little for a backward pass.

    A pass over the data before the first update is no part of that. What it gives to the user may
    be what the other's backward pass reads, too.
    """
    if is_cut(edits.before.key.ended_by) or is_cut(edits.now.key.began_after):
        return False
    wanted, kept = _saved(edits.a, edits.b, edits.added, edits.match.to_before)
    return wanted > 0 and kept <= _KEPT_SHARE * wanted


def _saved(
    alone: Snapshot, other: Snapshot, free: set[int], partners: Sequence[int]
) -> tuple[int, int]:
    """Return how many results of one graph the other's backward pass reads, and how many it keeps.

    Args:
        alone: The graph that may be the forward pass alone.
        other: The one with a backward pass; without one, or with two, the number is -1.
        free: Vertices of `other` without a partner.
        partners: For each vertex of `other` its partner in `alone`, -1 for none.
    """
    rest = [k for k in free if other.vertices[k].backward]
    if not rest or any(vertex.backward for vertex in alone.vertices):
        return -1, 0
    wanted = {
        (partner, index)
        for k in rest
        for operand, index in other.vertices[k].operands
        if (partner := partners[operand]) >= 0
        and not alone.vertices[partner].is_leaf
        and not is_view(alone.vertices[partner])
    }
    return len(wanted), len(wanted & {*alone.roots})


def _changes_mode(edits: Edits) -> bool:
    """Return whether dropout or the like is on one side only: the other is the evaluation."""
    more, fewer = modes(edits)
    return bool(more) != bool(fewer)


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
    is_start = is_part(gone, came, edits.before.nodes) and _is_read_by_the_rest(edits)
    return is_start or is_part(came, gone, edits.now.nodes)


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


def is_part(missing: int, other: int, size: int) -> bool:
    """Return whether a graph of this size lacks much of the other and adds little to it."""
    return missing >= max(1, CUT_SHARE * size) and other <= _ADDED_SHARE * missing
