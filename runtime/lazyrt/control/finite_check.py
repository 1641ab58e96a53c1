"""Stopping at the first step whose loss or weights are not finite (`config.stop_at_nan`).

Steps are asked of their loss and smallest weight, one in a window (`kept_steps`) of all weights. The next
step is dispatched meanwhile. When the answer is no, the steps of the window run again, each asked of
everything, and tensors get back what they held before the first bad one (decision 038).
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import time
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import torch

from lazyrt import jax_compat
from lazyrt.config import config, follow
from lazyrt.control.rollback import go_back, updates_of
from lazyrt.errors import LazyRuntimeError, NotFiniteError, OutOfMemoryError
from lazyrt.execution import (
    copy_on_donate,
    deferred_asserts,
    executor,
    kept_steps,
    replicas,
)
from lazyrt.execution.graph import Graph
from lazyrt.execution.graph_registry import Run, graph_registry
from lazyrt.execution.inspection import find_not_finite
from lazyrt.frontend.buffers import states_of
from lazyrt.frontend.torch_compat import is_lazy, on_backward
from lazyrt.ir.live import lock, made_in, pending, ready_buffers
from lazyrt.ir.node import iter_values, nbytes_of, type_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from lazyrt.execution.executor import Plan
    from lazyrt.execution.graph_registry import CompiledGraph
    from lazyrt.execution.inspection import NotFinite
    from lazyrt.execution.kept_steps import KeptStep
    from lazyrt.execution.preview import Summary
    from lazyrt.ir.fingerprint import Canonical
    from lazyrt.ir.live import Buffer
    from lazyrt.ir.node import Value
    from lazyrt.jax_compat import Array

_TENSORS = (torch.Tensor, torch.nn.Parameter)
_MAX_NAMED = 3
# With the wait for its answer asking takes a millisecond, so it takes half a percent.
_PAUSE_NS = 200_000_000
# A step is asked once an eighth more have run since the setting was set: a loop goes on by no larger part.
_SHARE = 8
_since = 0
_asked, _asked_ns = 0, 0
# The losses of steps that were not asked, kept until one is, and the latest of these steps.
_losses: list[tuple[KeptStep, Value, Buffer]] = []
_unasked: tuple[Plan, KeptStep] | None = None
# What backward passes of the pending step began with.
_differentiated: list[Value] = []


@jax.jit
def _finite(arrays: Sequence[Array]) -> Array:
    # Zero times what is not finite is NaN. XLA's CPU library vectorises a sum; its maximum loses NaN.
    return jnp.stack([jnp.isfinite((a * 0).sum()) for a in arrays])


def _are_finite(arrays: Sequence[Array]) -> Array:
    """Return whether each array is finite, as one execution on the device."""
    with jax_compat.scope():
        found: Array = _finite(arrays)
    return found


def _is_finite(array: Array) -> bool:
    """Wait for an array, and return whether it is finite; one number is read without an execution."""
    read = np.isfinite(array) if array.size == 1 else _are_finite([array])
    return bool(np.asarray(read).all())


def _note_losses(outputs: Sequence[torch.Tensor]) -> None:
    """Note what a backward pass begins with; look at what a step before has made of that."""
    with lock:
        for output in outputs:
            for state in states_of(output):
                base = state.base
                if base.value is not None:
                    _differentiated.append(base.value)
                if isinstance(base.data, jax.Array) and base.data.size == 1:
                    _look(base, is_loss=True)


def _look(base: Buffer, *, is_loss: bool = False) -> None:
    """Raise if a loss, or weights that are read, are not finite."""
    run, slot = made_in(base)
    if base.is_pending or run.__class__ is not Run or not base.data.is_ready():
        return
    with lock:
        kept = kept_steps.kept(run.step)
        is_weight = kept is not None and slot in kept.watched.values()
        if (is_loss or is_weight) and not _is_finite(base.data):
            graph = run.record.canonical if kept is None else kept.canonical
            bad = [graph.roots[run.order[slot]]] if graph is not None else []
            raise _error(run.step, _names(graph, run.record), bad, kept)


def watch(
    plan: Plan,
    results: Sequence[Array],
    live: Sequence[Buffer],
    kept: KeptStep | None,
) -> None:
    """Ask of a step, once it is dispatched, whether its loss and its weights are finite.

    Weights stay what they are, so a step whose inputs are kept can be asked with a later one.
    """
    global _asked, _asked_ns, _unasked
    step = pending.number - 1
    if not plan.watched:
        plan.watched.extend(_watched(plan, step))
    _differentiated.clear()
    losses, weight, gradients, every = plan.watched
    if kept is not None:
        kept.watched, kept.updates = every, updates_of(step)
        soon = (step - _asked) * _SHARE < step - _since
        soon = soon and time.monotonic_ns() - _asked_ns < _PAUSE_NS
        if weight and soon and not kept.is_first:
            _unasked = plan, kept
            _keep_losses(results, live, kept, losses)
            return
    if not every:
        return
    asked = every if kept is not None and kept.is_first else losses | weight | gradients
    if weight:
        _asked, _asked_ns, _unasked = step, time.monotonic_ns(), None
    judge = _judge(plan, step, asked, kept)
    found = _are_finite([results[slot] for slot in asked.values()])
    deferred_asserts.watch(step, found, judge)


def _keep_losses(
    results: Sequence[Array],
    live: Sequence[Buffer],
    kept: KeptStep,
    losses: Mapping[Value, int],
) -> None:
    keepers: dict[int, list[Buffer]] = {}
    for value, slot in losses.items():
        keeper = kept_steps.keeper_of(value, results[slot])
        keepers[id(keeper.data)] = [keeper]
        _losses.append((kept, value, keeper))
    for owner in live if keepers else ():
        if id(owner.data) in keepers:
            keepers[id(owner.data)].append(owner)
    copy_on_donate.share(keepers.values())


def _judge(
    plan: Plan, step: int, asked: Mapping[Value, int], kept: KeptStep | None
) -> Callable[[NDArray[np.bool_]], NotFiniteError | None]:
    """Return what looks at a step's answer, and at the losses that were kept till then."""
    earlier = _losses.copy()
    _losses.clear()

    def judge(finite: NDArray[np.bool_]) -> NotFiniteError | None:
        for before, value, keeper in earlier:
            if not _is_finite(keeper.data):
                names = _names(before.canonical, before.record)
                return _error(before.number, names, [value], before)
        bad = list(itertools.compress(asked, ~finite))
        return _error(step, _names(plan.graph, plan.record), bad, kept) if bad else None

    return judge


def _ask_last() -> None:
    """Raise if the latest step, which was not asked, or a loss since the one that was, is not finite."""
    global _unasked
    with lock:
        if _unasked is None:
            return
        (plan, kept), _unasked = _unasked, None
        asked = plan.watched[1]
        # A weight that the program has let go, or overwritten since, is asked of no more.
        data = [
            buffer.data
            for buffer in ready_buffers()
            if _made(buffer, kept.number) in asked.values()
        ][:1]
        judge = _judge(plan, kept.number, asked if data else {}, kept)
        error = judge(np.array([_is_finite(each) for each in data], bool))
    if error is not None:
        raise error


def _made(buffer: Buffer, step: int) -> int | None:
    """Return which result of a step a buffer has; None for none."""
    run, slot = made_in(buffer)
    return slot if run.__class__ is Run and run.step == step else None


def _error(
    number: int, names: Mapping[Value, str], bad: list[Value], kept: KeptStep | None
) -> NotFiniteError:
    """Go back to before the first bad step, and return what to raise, with the op in which it began."""
    global _since, _unasked
    _since, _unasked = pending.number, None
    _losses.clear()
    deferred_asserts.forget()  # later steps computed with it
    with lock, contextlib.suppress(OutOfMemoryError):
        if kept is not None and kept.canonical is not None:
            first, bad, found = _first(kept, bad)
            names = _names(first.canonical, first.record)
            began = _began(found, names) if found is not None else ""
            seen = f", seen after step {number}" if first.number < number else ""
            later = kept_steps.keep_from(first)
            undone = [done for each in later for done in each.updates]
            go_back(later, undone, f"config.stop_at_nan, after step {number},")
            graph_registry.take_back(first.number)
            for each in later[:-1]:
                each.release()
            return NotFiniteError(
                f"{_gave(first.number, names, bad)}{seen}.{began} Weights, and what else the step has "
                "overwritten, are as before it; later work is dropped. %lazy nan shows the rest; "
                "config.stop_at_nan = False lets such steps run."
            )
    return NotFiniteError(
        f"{_gave(number, names, bad)}. Where that began is not known, and tensors are as after it: the "
        f"inputs of the steps are more than config.keep_values_bytes ({config.keep_values_bytes:,}), or "
        "than there is room for. Raise the setting, or take smaller batches, and run the cell again."
    )


def _find_bad(step: KeptStep, results: Sequence[Array]) -> list[Value]:
    asked = [results[slot] for slot in step.watched.values()]
    finite = np.asarray(_are_finite(asked)) if asked else np.ones(0, bool)
    return list(itertools.compress(step.watched, ~finite))


def _first(
    kept: KeptStep, bad: list[Value]
) -> tuple[KeptStep, list[Value], NotFinite | None]:
    """Return the step in which it began, what of its results is not finite, and a search for the op."""
    # What ranks run together none runs again alone; and their steps are all asked of everything.
    earlier = kept.is_first and not kept_steps.are_whole()
    step, bad = kept_steps.replay(kept.number, bad, _find_bad, earlier=earlier)
    while True:
        graph = Graph(bad, step.lines)
        try:
            replicas.check_alone(graph.nodes)
            found = find_not_finite(graph, step)
        except LazyRuntimeError:
            return step, bad, None
        run, slot = _source(found, step)
        before = kept_steps.kept(run.step) if run is not None else None
        if run is None or before is None or before.canonical is None:
            return step, bad, found
        bad = [before.canonical.roots[run.order[slot]]]
        step, bad = kept_steps.replay(run.step, bad, lambda *_: [], earlier=earlier)


def _source(found: NotFinite, step: KeptStep) -> tuple[Run | None, int]:
    """Return the earlier step, and its result, that a NaN or infinity came from; None for no step."""
    # With NaN in the results, -inf of a mask that came in is no culprit.
    is_nan = any(counts.nan for counts in found.reached.values())
    if not any(origin.counts.nan or not is_nan for origin in found.origins):
        for leaf, counts in found.inputs.items():
            run, slot = step.sources[leaf.position]
            if (counts.nan or not is_nan) and run.__class__ is Run:
                return run, slot
    return None, 0


def _names(graph: Canonical | None, record: CompiledGraph | None) -> dict[Value, str]:
    """Return what the user calls inputs and results."""
    snapshot = record.snapshot if record is not None else None
    if graph is None or snapshot is None:
        return {}
    inputs, results = snapshot.leaf_names, snapshot.root_names
    found: dict[Value, str] = {
        x: inputs[k].text for k, x in enumerate(graph.data) if k in inputs
    }
    return found | {graph.roots[k]: name.text for k, name in results.items()}


def _gave(number: int, names: Mapping[Value, str], bad: Sequence[Value]) -> str:
    called = [names.get(v, type_text(v.shape, v.dtype)) for v in bad[:_MAX_NAMED]]
    more = f" and {len(bad) - _MAX_NAMED} more" if len(bad) > _MAX_NAMED else ""
    are = "is" if len(bad) == 1 else "are"
    return f"step {number} gave {', '.join(called)}{more} that {are} not finite"


def _watched(plan: Plan, step: int) -> list[dict[Value, int]]:
    """Return a plan's losses, smallest weight, gradients that no optimizer takes, and all together.

    All by value, with the position among the results. Without an optimizer gradients are asked of
    instead of weights.
    """
    trained, gradients = _trained(step)
    differentiated = set(_differentiated)
    stack = _differentiated.copy()
    while stack:  # a loss, and the numbers that it is made of
        value = stack.pop()
        args = () if value.node is None else iter_values(value.node.args)
        numbers = [each for each in args if all(n == 1 for n in each.shape)]
        stack += [each for each in numbers if each not in differentiated]
        differentiated.update(numbers)
    losses: dict[Value, int] = {}
    others: dict[Value, int] = {}
    for slot, rank in enumerate(plan.order):
        value = plan.graph.roots[rank]
        if value.dtype.is_floating_point or value.dtype.is_complex:
            if value in differentiated:
                losses[value] = slot
            elif slot in (trained or gradients):
                others[value] = slot
    others = {value: others[value] for value in sorted(others, key=nbytes_of)}
    weight = dict(itertools.islice(others.items(), 1 if trained else 0))
    return [losses, weight, {} if trained else others, losses | others]


def _trained(step: int) -> tuple[set[int], set[int]]:
    """Return which results of a step are weights, and which are gradients that no optimizer takes.

    What an optimizer does with a gradient shows in weights: a scaler of gradients leaves out steps in
    which some are not finite. Where no optimizer has updated any, a weight is a leaf that requires
    gradients, which only a search finds.
    """
    weights = {
        slot
        for reference, _ in updates_of(step)
        if (optimizer := reference()) is not None
        for group in optimizer.param_groups
        for parameter in group["params"]
        for slot in _slots(parameter, step)
    }
    if weights:
        return weights, set()
    gradients: dict[int, int] = {}
    taken: set[int] = set()
    for each in gc.get_objects():
        kind = type(each)
        if issubclass(kind, torch.optim.Optimizer):
            taken.update(id(p) for group in each.param_groups for p in group["params"])
        if kind in _TENSORS and each.requires_grad and each.is_leaf:
            weights.update(_slots(each, step))
            gradients |= dict.fromkeys(_slots(each.grad, step), id(each))
    return weights, {slot for slot, key in gradients.items() if key not in taken}


def _slots(tensor: torch.Tensor | None, step: int) -> list[int]:
    """Return which results of a step a tensor has."""
    if not is_lazy(tensor):
        return []
    made = (_made(state.base, step) for state in states_of(tensor))
    return [slot for slot in made if slot is not None]


def _began(found: NotFinite, names: Mapping[Value, str]) -> str:
    """Return in which op it began, with its line and operands, and which inputs had it."""
    came_in = ", ".join(
        f"{names.get(leaf, f'input {leaf.position}')} has {counts}"
        for leaf, counts in found.inputs.items()
    )
    if not found.origins:
        return f" It came in: {came_in}." if came_in else ""
    first = found.origins[0]
    origin = first.node.provenance
    operands = [
        f"{type_text(each.value.shape, each.value.dtype)}{_seen(each.summary)}"
        for each in first.operands
    ]
    of = f" of {'; '.join(operands)}" if operands else ""
    where = f" at {origin.site}" if origin.site is not None else ""
    forward = origin.backward.forward if origin.backward is not None else None
    if forward is not None and forward.site not in {None, origin.site}:
        where += f" (backward of {forward.site})"
    also = f" {came_in}." if came_in else ""
    return f" It begins with {first.counts} in {first.node.op.name}{where}{of}.{also}"


def _seen(found: Summary) -> str:
    """Return the range of an operand's finite numbers, and how many are not finite."""
    spread = (
        f" from {found.low:.4g} to {found.high:.4g}"
        if not math.isnan(found.low)
        else ""
    )
    return f"{spread} with {found.not_finite}" if any(found.not_finite) else spread


def _follow(value: object) -> None:
    global _since, _unasked
    _since, _unasked = pending.number, None
    _losses.clear()
    _differentiated.clear()
    on_backward[:] = [_note_losses] if value else []
    deferred_asserts.on_read[:] = [_look] if value else []
    deferred_asserts.on_wait[:] = [_ask_last] if value else []
    executor.watch_results = watch if value else None
    kept_steps.trim()


def install() -> None:
    """Follow the setting from now on."""
    follow("stop_at_nan", _follow)
    _follow(config.stop_at_nan)
