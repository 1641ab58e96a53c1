"""Stopping at the first step whose loss or weights are not finite (`config.stop_at_nan`).

A gradient that is not finite makes weights, and those nearly always the next loss and all gradients. So
each step is asked of its loss and its smallest weight, and once in a window of steps (`kept_steps`) of
all its weights. Nobody waits for the answer: the next step is recorded and dispatched meanwhile. When it
is no, the steps of the window run again, and each is asked of everything. Tensors are given back what they
held before the first bad one, and the ops behind the NaN can be computed.
"""

from __future__ import annotations

import gc
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from lazyrt import jax_compat
from lazyrt.config import config, follow
from lazyrt.control.rollback import go_back, updates_of
from lazyrt.errors import LazyRuntimeError, NotFiniteError, OutOfMemoryError
from lazyrt.execution import deferred_asserts, kept_steps, replicas
from lazyrt.execution.executor import watch_results
from lazyrt.execution.graph import Graph
from lazyrt.execution.graph_registry import Run
from lazyrt.execution.inspection import find_not_finite
from lazyrt.frontend.buffers import state_of
from lazyrt.frontend.torch_compat import is_lazy, on_backward, unwrapped
from lazyrt.ir.live import lock, made_in, pending
from lazyrt.ir.node import iter_values, nbytes_of, type_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lazyrt.execution.executor import Plan
    from lazyrt.execution.graph_registry import CompiledGraph
    from lazyrt.execution.inspection import NotFinite
    from lazyrt.ir.fingerprint import Canonical
    from lazyrt.ir.node import Value

_TENSORS = (torch.Tensor, torch.nn.Parameter)
_MAX_NAMED = 3
_UNKNOWN = "Where that began is not known, and tensors are as after it"
# What backward passes of the pending step began with, and the numbers that it was made of.
_differentiated: set[Value] = set()


@lru_cache(maxsize=1)
def _are_finite() -> Any:
    """Return what the device runs: whether each array is finite, as one execution."""
    # A maximum takes four fifths of the time that `isfinite(...).all()` takes; NaN goes through it.
    return jax.jit(
        lambda arrays: jnp.stack(
            [jnp.isfinite(jnp.abs(a).max(initial=0)) for a in arrays]
        )
    )


def _note_losses(outputs: Sequence[torch.Tensor]) -> None:
    """Note what a backward pass begins with; raise if a step has made that, and it is not finite."""
    with lock:
        bases = [state_of(output).base for output in outputs]
        stack = [base.value for base in bases if base.value is not None]
        while stack:
            value = stack.pop()
            if value.first not in _differentiated:
                _differentiated.add(value.first)
                args = () if value.node is None else iter_values(value.node.args)
                stack += [each for each in args if all(n == 1 for n in each.shape)]
        for base in bases:
            run, slot = made_in(base)
            data = base.data
            if base.is_pending or run.__class__ is not Run or not data.is_ready():
                continue
            if data.size == 1 and not np.isfinite(np.asarray(data)).all():
                kept = kept_steps.kept(run.step)
                graph = run.record.canonical if kept is None else kept.canonical
                bad = [graph.roots[run.order[slot]]] if graph is not None else []
                raise _error(run.step, graph, run.record, bad, kept)


def watch(plan: Plan, results: Sequence[Any], kept: kept_steps.KeptStep | None) -> None:
    """Ask of a step, once it is dispatched, whether its loss and its weights are finite."""
    step = pending.number - 1
    if not plan.watched:
        plan.watched.extend(_watched(plan, step))
    _differentiated.clear()
    watched, every = plan.watched
    if kept is not None:
        kept.watched, kept.updates = every, updates_of(step)
        if kept.is_first:
            watched = every
    if not watched:
        return

    def judge(finite: np.ndarray[Any, Any]) -> NotFiniteError | None:
        bad = _bad(watched, finite)
        return _error(step, plan.graph, plan.record, bad, kept) if bad else None

    deferred_asserts.watch(step, _ask(watched, results), judge)


def _ask(watched: Mapping[Value, int], results: Sequence[Any]) -> Any:
    with jax_compat.scope():
        return _are_finite()([results[slot] for slot in watched.values()])


def _bad(watched: Mapping[Value, int], finite: np.ndarray[Any, Any]) -> list[Value]:
    return [value for value, fine in zip(watched, finite, strict=True) if not fine]


def _error(
    step: int,
    graph: Canonical | None,
    record: CompiledGraph | None,
    bad: list[Value],
    kept: kept_steps.KeptStep | None,
) -> NotFiniteError:
    """Go back to before the first bad step, and return what to raise, with the op in which it began."""
    deferred_asserts.forget()  # later steps computed with it
    what = _gave(step, graph, record, bad)
    with lock:
        if kept is None or kept.canonical is None:
            return NotFiniteError(
                f"{what}. {_UNKNOWN}: its inputs are more than config.keep_values_bytes "
                f"({config.keep_values_bytes:,}). Raise the setting, and run the cell again."
            )
        try:
            first, bad, began = _first(kept, bad)
        except OutOfMemoryError as error:
            return NotFiniteError(
                f"{what}. {_UNKNOWN}: running the steps before it again takes too much memory "
                f"({error.args[0].splitlines()[0]}) Take smaller batches, and run the cell again."
            )
        what = _gave(first.number, first.canonical, first.record, bad)
        seen = f", seen after step {step}" if first.number < step else ""
        later = kept_steps.keep_from(first)
        undone = [done for each in later for done in each.updates]
        go_back(later, undone, f"config.stop_at_nan, after step {step},")
        for each in later[:-1]:
            each.release()
    return NotFiniteError(
        f"{what}{seen}.{began} Weights, and what else the step has overwritten, are as before it; "
        "later work is dropped. %lazy nan shows the rest; config.stop_at_nan = False lets such "
        "steps run."
    )


def _first(
    kept: kept_steps.KeptStep, bad: list[Value]
) -> tuple[kept_steps.KeptStep, list[Value], str]:
    """Return the step in which it began, what of its results is not finite, and the op."""

    def is_bad(step: kept_steps.KeptStep, results: Sequence[Any]) -> bool:
        nonlocal bad
        if not step.watched:
            return False
        found = _bad(step.watched, np.asarray(_ask(step.watched, results)))
        bad = found or bad
        return bool(found)

    # What ranks run together none runs again alone; and their steps are all asked of everything.
    earlier = kept.is_first and not kept_steps.are_whole()
    step = kept_steps.replay(kept.number, is_bad, earlier=earlier)
    while True:
        graph = Graph(bad)
        try:
            replicas.check_alone(graph.nodes)
            found = find_not_finite(graph, step)
        except LazyRuntimeError:
            return step, bad, ""
        source = _source(found, step)
        before = kept_steps.kept(source[0]) if source is not None else None
        if source is None or before is None or before.canonical is None:
            return step, bad, _began(found, step)
        bad = [before.canonical.roots[source[1]]]
        step = kept_steps.replay(before.number, lambda *_: False, earlier=earlier)


def _source(found: NotFinite, step: kept_steps.KeptStep) -> tuple[int, int] | None:
    """Return the earlier step, and its result, that an infinity or NaN came from; None for no step."""
    # With NaN in the results, -inf of a mask that came in is no culprit.
    is_nan = any(counts.nan for counts in found.reached.values())
    if any(origin.counts.nan or not is_nan for origin in found.origins):
        return None
    for leaf, counts in found.inputs.items():
        run = step.sources[leaf.position][0]
        if (counts.nan or not is_nan) and run.__class__ is Run:
            return run.step, run.order[step.sources[leaf.position][1]]
    return None


def _gave(
    step: int,
    graph: Canonical | None,
    record: CompiledGraph | None,
    bad: Sequence[Value],
) -> str:
    roots = {value: k for k, value in enumerate(graph.roots if graph else ())}
    snapshot = record.snapshot if record is not None else None
    called = snapshot.root_names if snapshot is not None else {}
    names = [
        called[rank].text
        if (rank := roots.get(value, -1)) in called
        else type_text(value.shape, value.dtype)
        for value in bad
    ]
    more = f" and {len(bad) - _MAX_NAMED} more" if len(bad) > _MAX_NAMED else ""
    return (
        f"step {step} gave {', '.join(names[:_MAX_NAMED])}{more} that "
        f"{'is' if len(bad) == 1 else 'are'} not finite"
    )


def _watched(plan: Plan, step: int) -> tuple[dict[Value, int], dict[Value, int]]:
    """Return what each step of a plan is asked of, and all that tells whether it is finite.

    Both by value, with the position among the results: losses, then weights, the smallest first.
    """
    weights, gradients = _trained(step)
    losses: dict[Value, int] = {}
    found: list[tuple[int, int, Value]] = []
    for slot, rank in enumerate(plan.order):
        value = plan.graph.roots[rank]
        if not (value.dtype.is_floating_point or value.dtype.is_complex):
            continue
        if value.first in _differentiated:
            losses[value] = slot
        elif slot in (weights or gradients):
            found.append((nbytes_of(value), slot, value))
    every = {value: slot for _, slot, value in sorted(found, key=itemgetter(0))}
    return losses | dict(list(every.items())[:1]), losses | every


def _trained(step: int) -> tuple[set[int], set[int]]:
    """Return which results of a step are weights, and which are gradients that no optimizer takes.

    What a program with an optimizer does with a gradient shows in its weights: a scaler of gradients
    leaves out steps in which some are not finite.
    """
    weights: set[int] = set()
    gradients: set[int] = set()
    has_optimizer = False
    for each in gc.get_objects():
        kind = type(each)
        has_optimizer |= issubclass(kind, torch.optim.Optimizer)
        if kind not in _TENSORS or not (
            is_lazy(each) and each.requires_grad and each.is_leaf
        ):
            continue
        for tensor, found in ((each, weights), (each.grad, gradients)):
            if is_lazy(tensor):
                run, slot = made_in(state_of(unwrapped(tensor)).base)
                if run.__class__ is Run and run.step == step:
                    found.add(slot)
    return weights, set() if has_optimizer else gradients


def _began(found: NotFinite, step: kept_steps.KeptStep) -> str:
    """Return in which op it began, with its line and operands, and which inputs had it."""
    snapshot = step.record.snapshot if step.record is not None else None
    names = {}
    if snapshot is not None and step.canonical is not None:
        graph, called = step.canonical, snapshot.leaf_names
        names = {
            leaf: called[k].text for k, leaf in enumerate(graph.data) if k in called
        }
    came_in = ", ".join(
        f"{names.get(leaf, f'input {leaf.position}')} has {counts}"
        for leaf, counts in found.inputs.items()
    )
    if not found.origins:
        return f" It came in: {came_in}." if came_in else ""
    first = found.origins[0]
    origin = first.node.provenance
    operands = [
        f"{type_text(each.value.shape, each.value.dtype)} from {each.summary.low:.4g} to "
        f"{each.summary.high:.4g}{f' with {each.summary.not_finite}' if any(each.summary.not_finite) else ''}"
        for each in first.operands
    ]
    of = f" of {'; '.join(operands)}" if operands else ""
    where = f" at {origin.site}" if origin.site is not None else ""
    forward = origin.backward.forward if origin.backward is not None else None
    if forward is not None and forward.site not in {None, origin.site}:
        where += f" (backward of {forward.site})"
    return (
        f" It begins with {first.counts} in {first.node.op.name}{where}{of}."
        f"{f' {came_in}.' if came_in else ''}"
    )


def _follow(value: object) -> None:
    _differentiated.clear()
    if _note_losses in on_backward:
        on_backward.remove(_note_losses)
    if value:
        on_backward.append(_note_losses)
    watch_results(watch if value else None)
    kept_steps.trim()


def install() -> None:
    """Follow the setting from now on."""
    follow("stop_at_nan", _follow)
    _follow(config.stop_at_nan)
