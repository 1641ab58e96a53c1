"""Stopping at the first step whose loss or weights are not finite (`config.stop_at_nan`).

A gradient that is not finite makes weights, and those nearly always the next loss and all gradients. So
each step is asked of its loss and its smallest weight, and once in a window of steps (`kept_steps`) of
all its weights. Nobody waits for the answer: the next step is recorded and dispatched meanwhile. When it
is no, the steps of the window run again, each read in full. Tensors are given back what they held before
the first bad one, and the ops behind the NaN can be computed.
"""

from __future__ import annotations

import gc
from functools import lru_cache
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
from lazyrt.frontend.torch_compat import is_lazy
from lazyrt.ir.live import lock, made_in, pending
from lazyrt.ir.node import iter_values, nbytes_of, type_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lazygraph.snapshot import Name
    from lazyrt.execution.executor import Plan
    from lazyrt.execution.graph_registry import CompiledGraph
    from lazyrt.execution.inspection import NotFinite
    from lazyrt.ir.fingerprint import Canonical
    from lazyrt.ir.node import Value

_MAX_NAMED = 3
_UNKNOWN = "Where that began is not known, and tensors are as after it"


@lru_cache(maxsize=1)
def _are_finite() -> Any:
    """Return what the device runs: whether each array is finite, as one execution."""
    # A maximum takes four fifths of the time that `isfinite(...).all()` takes; NaN goes through it.
    return jax.jit(
        lambda arrays: jnp.stack(
            [jnp.isfinite(jnp.abs(a).max(initial=0)) for a in arrays]
        )
    )


def watch(
    plan: Plan,
    results: Sequence[Any],
    kept: kept_steps.KeptStep | None,
    differentiated: Sequence[Value],
) -> None:
    """Ask of a step, once it is dispatched, whether its loss and its weights are finite."""
    step = pending.number - 1
    if not plan.watched:
        plan.watched.extend(_watched(plan, step, differentiated))
    watched, every = plan.watched
    if kept is not None:
        kept.watched, kept.updates = every, updates_of(step)
        if kept.is_first:
            watched = every
    if not watched:
        return

    def judge(finite: np.ndarray[Any, Any]) -> NotFiniteError | None:
        bad = _bad(watched, finite)
        return _error(step, plan, bad, kept) if bad else None

    deferred_asserts.watch(step, _ask(watched, results), judge)


def _ask(watched: Mapping[Value, int], results: Sequence[Any]) -> Any:
    with jax_compat.scope():
        return _are_finite()([results[slot] for slot in watched.values()])


def _bad(watched: Mapping[Value, int], finite: np.ndarray[Any, Any]) -> list[Value]:
    return [value for value, fine in zip(watched, finite, strict=True) if not fine]


def _error(
    step: int,
    plan: Plan,
    bad: list[Value],
    kept: kept_steps.KeptStep | None,
) -> NotFiniteError:
    """Go back to before the first bad step, and return what to raise, with the op in which it began."""
    deferred_asserts.forget()  # later steps computed with it
    what = _gave(step, plan.graph, plan.record, bad)
    with lock:
        if kept is None or kept.canonical is None:
            return NotFiniteError(
                f"{what}. {_UNKNOWN}: its inputs are more than "
                f"config.keep_values_bytes ({config.keep_values_bytes:,}). Raise the setting, and "
                "run the cell again."
            )
        try:
            first, bad, began = _first(kept, bad)
        except OutOfMemoryError as error:
            return NotFiniteError(
                f"{what}. {_UNKNOWN}: running the steps before it again takes too "
                f"much memory ({error.args[0].splitlines()[0]}) Take smaller batches, and run the "
                "cell again."
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
            return step, bad, _began(found)
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
    roots = graph.roots if graph is not None else ()
    called = {roots[k]: name.text for k, name in _names(record).items()}
    names = [called.get(v, type_text(v.shape, v.dtype)) for v in bad]
    more = f" and {len(bad) - _MAX_NAMED} more" if len(bad) > _MAX_NAMED else ""
    return (
        f"step {step} gave {', '.join(names[:_MAX_NAMED])}{more} that "
        f"{'is' if len(bad) == 1 else 'are'} not finite"
    )


def _names(record: CompiledGraph | None) -> Mapping[int, Name]:
    snapshot = record.snapshot if record is not None else None
    return snapshot.root_names if snapshot is not None else {}


def _watched(
    plan: Plan, step: int, differentiated: Sequence[Value]
) -> tuple[dict[Value, int], dict[Value, int]]:
    """Return what each step of a plan is asked of, and all that tells whether it is finite.

    Both by value, with the position among the results: losses, then weights, the smallest first.
    """
    losses, names = _losses(differentiated), _names(plan.record)
    updated = _updated(step)
    found: dict[bool, dict[Value, int]] = {True: {}, False: {}}
    gradients: dict[Value, int] = {}
    for slot, rank in enumerate(plan.order):
        value, holder = (
            plan.graph.roots[rank],
            names[rank].holder if rank in names else "",
        )
        if not (value.dtype.is_floating_point or value.dtype.is_complex):
            continue
        if value.first in losses:
            found[True][value] = slot
        elif slot in updated or holder == "module":
            found[False][value] = slot
        elif holder == "gradient":
            gradients[value] = slot
    if not found[False] and not _has_optimizer():
        found[False] = gradients
    weights = dict(sorted(found[False].items(), key=lambda item: nbytes_of(item[0])))
    return found[True] | dict(list(weights.items())[:1]), found[True] | weights


def _losses(differentiated: Sequence[Value]) -> set[Value]:
    """Return what a backward pass began with, and the numbers that it was made of."""
    found: set[Value] = set()
    stack = list(differentiated)
    while stack:
        value = stack.pop()
        if value.first in found:
            continue
        found.add(value.first)
        operands = iter_values(value.node.args) if value.node is not None else ()
        stack += [each for each in operands if all(size == 1 for size in each.shape)]
    return found


def _updated(step: int) -> set[int]:
    """Return the results of a step that are parameters, which an optimizer has updated in it."""
    optimizers = [reference() for reference, _ in updates_of(step)]
    made = [
        made_in(state_of(parameter).base)
        for optimizer in optimizers
        for group in (optimizer.param_groups if optimizer is not None else ())
        for parameter in group["params"]
        if is_lazy(parameter)
    ]
    return {slot for run, slot in made if run.__class__ is Run and run.step == step}


def _has_optimizer() -> bool:
    """Return whether a program has an optimizer: what it does with a gradient shows in its weights."""
    return any(
        issubclass(type(each), torch.optim.Optimizer) for each in gc.get_objects()
    )


def _began(found: NotFinite) -> str:
    """Return in which op it began, with its line and operands; empty where no op is to blame."""
    if not found.origins:
        inputs = ", ".join(
            f"input {leaf.position} has {n}" for leaf, n in found.inputs.items()
        )
        return f" It came in: {inputs}." if inputs else ""
    first = found.origins[0]
    at = first.node.provenance.site
    operands = [
        f"{type_text(each.value.shape, each.value.dtype)} from {each.summary.low:.4g} to "
        f"{each.summary.high:.4g}{f' with {each.summary.not_finite}' if any(each.summary.not_finite) else ''}"
        for each in first.operands
    ]
    of = f" of {'; '.join(operands)}" if operands else ""
    where = f" at {at}" if at is not None else ""
    return f" It begins with {first.counts} in {first.node.op.name}{where}{of}."


def _follow(value: object) -> None:
    watch_results(watch if value else None)
    kept_steps.trim()


def install() -> None:
    """Follow the setting from now on."""
    follow("stop_at_nan", _follow)
    _follow(config.stop_at_nan)
