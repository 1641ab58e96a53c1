"""Stopping at the first step whose loss or gradients are not finite (`config.stop_at_nan`).

One execution after each step asks whether its results are finite, and nobody waits for it: the next
step is recorded and dispatched meanwhile. Inputs of both are kept or can be made again (`kept_steps`),
so when the answer is no, tensors are given back what they held before the step, and the ops behind the
NaN can be computed.
"""

from __future__ import annotations

import contextlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from lazyrt import jax_compat
from lazyrt.config import config, follow
from lazyrt.control.rollback import go_back, updates_of
from lazyrt.errors import LazyRuntimeError, NotFiniteError, OutOfMemoryError
from lazyrt.execution import deferred_asserts, kept_steps, replicas
from lazyrt.execution.executor import watch_results
from lazyrt.execution.graph import Graph
from lazyrt.execution.inspection import find_not_finite
from lazyrt.ir.live import lock, pending
from lazyrt.ir.node import type_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from lazygraph.snapshot import Name
    from lazyrt.control.rollback import Updates
    from lazyrt.execution.executor import Plan
    from lazyrt.execution.inspection import NotFinite
    from lazyrt.ir.node import Value

# What training reads, in this order: a mask of -inf that a program keeps is none of it. NaN in a
# gradient goes on into its parameter, which is asked of only where a step keeps no gradients.
_HOLDERS = ("gradient", "module")
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


class FiniteCheck:
    """Asks of each step, once it is dispatched, whether its results are finite.

    Attributes:
        updates: What optimizers have done in the steps that have no answer yet.
    """

    def __init__(self) -> None:
        self.updates: list[tuple[int, Updates]] = []
        self._known: tuple[Plan, dict[Value, int]] | None = None

    def watch(
        self, plan: Plan, results: Sequence[Any], kept: kept_steps.KeptStep | None
    ) -> None:
        """Ask of a step's loss, gradients and parameters, all in one execution."""
        if self._known is None or self._known[0] is not plan:
            self._known = plan, _watched(plan)
        watched = self._known[1]
        step = pending.number - 1
        self.updates = [*self.updates[-1:], (step, updates_of(step))]
        if not watched:
            return
        with jax_compat.scope():
            answers = _are_finite()([results[slot] for slot in watched.values()])

        def judge(finite: np.ndarray[Any, Any]) -> NotFiniteError | None:
            bad = [
                value for value, fine in zip(watched, finite, strict=True) if not fine
            ]
            return self._error(step, plan, bad, kept) if bad else None

        deferred_asserts.watch(step, answers, judge)

    def _error(
        self,
        step: int,
        plan: Plan,
        bad: list[Value],
        kept: kept_steps.KeptStep | None,
    ) -> NotFiniteError:
        """Go back to before a step, and return what to raise, with the op in which it began."""
        called = {plan.graph.roots[k]: name.text for k, name in _names(plan).items()}
        names = [called.get(v, type_text(v.shape, v.dtype)) for v in bad]
        more = f" and {len(bad) - _MAX_NAMED} more" if len(bad) > _MAX_NAMED else ""
        what = (
            f"step {step} gave {', '.join(names[:_MAX_NAMED])}{more} that "
            f"{'is' if len(bad) == 1 else 'are'} not finite"
        )
        deferred_asserts.forget()  # later steps computed with it
        with lock:
            if kept is None or kept.canonical is None:
                return NotFiniteError(
                    f"{what}. {_UNKNOWN}: its inputs are more than config.keep_values_bytes "
                    f"({config.keep_values_bytes:,}). Raise the setting, and run the cell again."
                )
            try:
                later = kept_steps.since(step)
            except OutOfMemoryError as error:
                return NotFiniteError(
                    f"{what}. {_UNKNOWN}: running the steps before it again takes too much memory "
                    f"({error.args[0].splitlines()[0]}) Take smaller batches, and run the cell again."
                )
            began = ""
            with contextlib.suppress(
                LazyRuntimeError
            ):  # an op that all replicas run together
                graph = Graph(bad)
                replicas.check_alone(graph.nodes)
                began = _began(find_not_finite(graph, kept))
            undone = [
                done for number, each in self.updates if number >= step for done in each
            ]
            go_back(later, undone, f"config.stop_at_nan, after step {step},")
            for each in later[:-1]:
                kept_steps.drop(each)
        return NotFiniteError(
            f"{what}.{began} Weights, and what else the step has overwritten, are as before it; later "
            "work is dropped. %lazy nan shows the rest; config.stop_at_nan = False lets such steps "
            "run."
        )


def _names(plan: Plan) -> dict[int, Name]:
    snapshot = plan.record.snapshot if plan.record is not None else None
    return dict(snapshot.root_names) if snapshot is not None else {}


def _watched(plan: Plan) -> dict[Value, int]:
    """Return the results to ask of, with their positions: losses are those of one element."""
    names = _names(plan)
    losses: dict[Value, int] = {}
    held: dict[str, dict[Value, int]] = {holder: {} for holder in _HOLDERS}
    for slot, rank in enumerate(plan.order):
        value, name = plan.graph.roots[rank], names.get(rank)
        if not (value.dtype.is_floating_point or value.dtype.is_complex):
            continue
        if all(size == 1 for size in value.shape):
            losses[value] = slot
        elif name is not None and name.holder in held:
            held[name.holder][value] = slot
    return losses | next(filter(None, held.values()), {})


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
    watch_results(FiniteCheck().watch if value else None)
    kept_steps.trim()


def install() -> None:
    """Follow the setting from now on."""
    follow("stop_at_nan", _follow)
    _follow(config.stop_at_nan)
