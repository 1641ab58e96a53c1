"""Why a graph is new: the key's parts first, then the graph against the nearest one before."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lazyrt.config import config
from lazyrt.execution.why.begun_anew import begun_anew
from lazyrt.execution.why.blocks import Block, repeated_block
from lazyrt.execution.why.boundaries import differs, is_cut
from lazyrt.execution.why.carried import (
    carried_over,
    with_what_the_part_before_hands_on,
)
from lazyrt.execution.why.causes import Cause, Explanation, Taken, ranked
from lazyrt.execution.why.copied import copied_parameters
from lazyrt.execution.why.cuts import (
    began_after_a_cut,
    cuts,
    over_limit,
    rest_of_a_cut,
    what_ran_alone,
    with_what_ran_alone,
)
from lazyrt.execution.why.edits import Edits, at, count, place
from lazyrt.execution.why.growth import with_growth, with_lengths
from lazyrt.execution.why.history import growing_list, through_earlier_steps
from lazyrt.execution.why.joined import goes_on
from lazyrt.execution.why.key import of_key
from lazyrt.execution.why.lbfgs import lbfgs, part_of_lbfgs, runs_lbfgs
from lazyrt.execution.why.leftovers import left_by_cells
from lazyrt.execution.why.loops import repeats
from lazyrt.execution.why.modules import modules
from lazyrt.execution.why.nearest import closeness, nearest
from lazyrt.execution.why.other_steps import is_other_step, other_step
from lazyrt.execution.why.passes import backward_pass
from lazyrt.execution.why.paths import other_path, other_update
from lazyrt.execution.why.pieces import piece
from lazyrt.execution.why.randomness import random_numbers, recomputed
from lazyrt.execution.why.regrouping import regrouped
from lazyrt.execution.why.results import kept_results
from lazyrt.execution.why.rewired import Rewired, rewired
from lazyrt.execution.why.same_input import (
    merged_inputs,
    same_input,
    tied_parameters,
)
from lazyrt.execution.why.scalars import lifted_numbers, positions
from lazyrt.execution.why.sequence import moved_boundary
from lazyrt.execution.why.state import replaced_creations, replaced_numbers, state
from lazyrt.execution.why.train_eval import fast_path, train_or_eval
from lazyrt.execution.why.types import types_and_constants, types_of_inputs
from lazyrt.execution.why.updates import updates
from lazyrt.ir.match import shared

if TYPE_CHECKING:
    from lazyrt.execution.census import Census, CompiledGraph
    from lazyrt.execution.why.sequence import Moved

# Below this similarity a comparison would list everything.
_RELATED = 0.4
# Below this one, a program of other lines is another program.
_ALIKE = 0.7
# A graph of less than this share of another one is no version of it, on lines of its own.
_SCRAP = 0.25
# In this order: each takes out what it explains, and the next one sees the rest.
_DETECTORS = (
    lbfgs,
    what_ran_alone,
    cuts,
    left_by_cells,
    tied_parameters,
    merged_inputs,
    copied_parameters,  # before the modules: theirs are called all the same
    fast_path,
    modules,
    positions,  # before the state, which the first slice may be a part of
    growing_list,
    through_earlier_steps,
    state,
    begun_anew,
    backward_pass,
    updates,
    replaced_numbers,
    replaced_creations,
    carried_over,
    same_input,
    regrouped,
    repeats,
    kept_results,
    other_update,
    lifted_numbers,
    types_and_constants,
    recomputed,  # before the mode, which takes dropout for its own
    train_or_eval,
    random_numbers,
    other_path,
)
# Of two steps of the program, other results and paths are what is to be expected.
_BETWEEN_STEPS = (types_of_inputs, other_step, train_or_eval)


def explain(record: CompiledGraph, census: Census) -> Explanation:
    """Return why a graph had to be compiled; there is at least one cause.

    Args:
        record: The new graph, with its snapshot.
        census: The graphs before; the nearest of all is compared.
    """
    limit = over_limit(record)
    if limit is not None:
        return _alone(record, limit)
    if not len(census):
        return _alone(record, _first_trace(record))
    is_of_lbfgs = runs_lbfgs(record)
    found_piece = None if is_of_lbfgs else piece(record, census)
    if found_piece is not None:
        cause, begun = found_piece
        alike = min(1.0, closeness(record, begun))
        return _compared(record, begun, alike, (cause,))
    moved = None if is_of_lbfgs else moved_boundary(record, census)
    if moved is not None:
        causes, unexplained = _beside(moved)
        alike = min(1.0, closeness(record, moved.old))
        return _compared(record, moved.old, alike, causes, unexplained)
    found = nearest(record, census)
    rest = None if is_of_lbfgs else _rest_of(record, census.latest)
    if (
        found is None
        or found[1] < _RELATED
        or _is_elsewhere(record, found[0])
        or (rest is not None and _is_other_part(record, *found, census.latest))
    ):
        if is_of_lbfgs:
            return _alone(record, part_of_lbfgs(record))
        cut = began_after_a_cut(record, census) or rest
        return _alone(record, cut or _new_program(record))
    other, similarity = found
    causes, unexplained = differences(other, record)
    causes = with_what_the_part_before_hands_on(causes, record, other, census)
    earlier = {each.name: each.explanation for each in census}
    causes = with_growth(causes, other.name, earlier.get)
    return _compared(record, other, similarity, causes, unexplained)


def _is_elsewhere(record: CompiledGraph, other: CompiledGraph) -> bool:
    """Return whether two graphs that are little alike have no line and no module in common.

    The same ops on other lines, and in other sizes, may well be the same program. Modules are told
    apart by the names of their parameters where both have such: each `nn.Sequential` has a `0`.
    """
    sides = [
        [v for v in each.snapshot.vertices if not v.is_leaf] if each.snapshot else []
        for each in (record, other)
    ]
    ours, other_ops = (Counter(v.op for v in side) for side in sides)
    if shared(ours, other_ops) >= _ALIKE * max(ours.total(), other_ops.total()):
        return False
    lines, theirs = ({place(v.site) for v in side} - {None} for side in sides)
    if lines and theirs and not lines & theirs and _is_scrap(record, other):
        return True
    modules, modules_there = _parameters(record), _parameters(other)
    if not (modules and modules_there):
        modules, modules_there = ({v.scope for v in side} - {""} for side in sides)
    return bool(lines and theirs) and not (lines & theirs or modules & modules_there)


def _is_other_part(
    record: CompiledGraph,
    other: CompiledGraph,
    similarity: float,
    previous: CompiledGraph | None,
) -> bool:
    """Return whether the nearest graph is the part of the step before the cut, and no version."""
    ends_elsewhere = differs(record.key.ended_by, other.key.ended_by)
    return other is previous and (similarity < _ALIKE or ends_elsewhere)


def _is_scrap(record: CompiledGraph, other: CompiledGraph) -> bool:
    """Return whether one is little of the other and calls no module, as a copy of a model."""
    small, large = sorted((record, other), key=lambda each: each.nodes)
    vertices = small.snapshot.vertices if small.snapshot is not None else ()
    return small.nodes < _SCRAP * large.nodes and not any(v.scope for v in vertices)


def _rest_of(record: CompiledGraph, previous: CompiledGraph | None) -> Cause | None:
    """Return that a graph is what a cut left of the step of the one before, None if it is not."""
    if previous is None or not is_cut(record.key.began_after):
        return None
    is_rest = goes_on(record, previous) or _reads_alike(record, previous)
    return rest_of_a_cut(record, previous) if is_rest else None


def _reads_alike(record: CompiledGraph, previous: CompiledGraph) -> bool:
    """Return whether a graph begins at the cut that ended the one before, and reads its data."""
    if differs(record.key.began_after, previous.key.ended_by):
        return False
    sides = [each.snapshot for each in (record, previous)]
    ours, theirs = (
        {
            (name.text, side.vertices[leaf].types)
            for leaf, name in side.leaf_names.items()
            if not name.in_module
        }
        for side in sides
        if side is not None
    )
    return bool(ours & theirs)


def _parameters(record: CompiledGraph) -> set[str]:
    """Return what the user calls the parameters that a graph reads."""
    names = record.snapshot.leaf_names.values() if record.snapshot is not None else ()
    return {name.text for name in names if name.in_module}


def _compared(
    record: CompiledGraph,
    other: CompiledGraph,
    similarity: float,
    causes: tuple[Cause, ...],
    unexplained: int = 0,
) -> Explanation:
    return Explanation(
        step=record.first_step,
        graph=record.name,
        against=other.name,
        similarity=similarity,
        causes=causes,
        unexplained=unexplained,
        ended_at=record.key.ended_by[1],
        against_ended_at=other.key.ended_by[1],
        block=_block(record),
    )


def _block(record: CompiledGraph) -> Block | None:
    if record.snapshot is None:
        return None
    return repeated_block(record.snapshot, record.key.ended_by[1])


def _alone(record: CompiledGraph, cause: Cause) -> Explanation:
    """Return the explanation of a graph that is compared with no other."""
    return Explanation(
        step=record.first_step,
        graph=record.name,
        causes=(cause,),
        ended_at=record.key.ended_by[1],
        block=_block(record),
    )


def evicted(record: CompiledGraph, step: int) -> Explanation:
    """Return the explanation of a graph that was compiled before."""
    cause = Cause(
        kind="cache_evicted",
        text=f"{record.name} was compiled before, in step {record.first_step}, but its "
        "executable is not in memory any more",
        fix="keep the caches (`clear_caches()` drops them, and what is beyond "
        f"`config.max_executables`, {config.max_executables} now), or set `config.cache_dir`: "
        "reading from disk takes a fraction of a compile",
        now=record.key.ended_by[1],
    )
    return Explanation(step=step, graph=record.name, against=record.name, similarity=1.0, causes=(cause,))  # fmt: skip


def differences(
    before: CompiledGraph, now: CompiledGraph
) -> tuple[tuple[Cause, ...], int]:
    """Return the ranked causes for which two graphs differ, and how much has none."""
    causes = of_key(before, now)
    if before.fingerprint != now.fingerprint:
        edits = Edits(before, now)
        causes = with_what_ran_alone(edits, causes)
        if is_other_step(
            edits
        ):  # or only the first one, that made the optimizer's state
            causes += state(edits, of_optimizer=True)
        for detect in _BETWEEN_STEPS if is_other_step(edits) else _DETECTORS:
            causes += detect(edits)
        unexplained = edits.remaining
    else:
        unexplained = 0
    if not causes:
        causes.append(
            _wiring(
                before,
                now,
                None if before.fingerprint == now.fingerprint else rewired(edits),
            )
        )
    return with_lengths(ranked(causes)), unexplained


def _beside(moved: Moved) -> tuple[tuple[Cause, ...], int]:
    """Return a boundary that moved and the causes of what differs besides."""
    edits = moved.edits
    causes = [moved.cause, *of_key(edits.before, edits.now)]
    causes = with_what_ran_alone(edits, causes)
    for detect in _DETECTORS:
        if detect is not cuts:
            causes += detect(edits)
    return with_lengths(ranked(causes)), edits.remaining


def _first_trace(record: CompiledGraph) -> Cause:
    return Cause(
        kind="first_trace",
        text="the first graph of this process",
        now=record.key.ended_by[1],
        taken=Taken(added=record.nodes),
    )


def _new_program(record: CompiledGraph) -> Cause:
    snapshot = record.snapshot
    vertices = snapshot.vertices if snapshot is not None else ()
    site = next((v.site for v in vertices if v.site is not None), None)
    first = f", the first{at(site)}" if site is not None else ""
    return Cause(
        kind="new_program",
        text=f"a program not seen before: {count(record.nodes, 'op')}{first}",
        fix="nothing to do when it comes once; a program that comes again is found by its graph",
        now=site,
        taken=Taken(added=record.nodes),
    )


def _wiring(before: CompiledGraph, now: CompiledGraph, other: Rewired | None) -> Cause:
    told = f": {other.text}" if other is not None else ""
    return Cause(
        kind="wiring",
        text=f"the operations are those of {before.name}, wired in another way{told}",
        fix="a branch or a flag chooses what is read: choose once, or with `torch.where`; look at "
        "both with `%lazy diff`",
        now=other.now if other is not None else now.key.ended_by[1],
        before=other.before if other is not None else before.key.ended_by[1],
    )
