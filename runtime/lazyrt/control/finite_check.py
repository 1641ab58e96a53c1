"""Stopping at the first step whose loss or gradients are not finite (`config.stop_at_nan`).

The results of a step are checked before anything takes them, so the step that fails is still
pending: tensors are as before it, and the ops behind the NaN can be computed.
"""

from __future__ import annotations

import contextlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from lazyrt import jax_compat
from lazyrt.config import config, follow
from lazyrt.errors import LazyRuntimeError, NotFiniteError
from lazyrt.execution import replicas
from lazyrt.execution.executor import check_results
from lazyrt.execution.graph import Graph
from lazyrt.execution.inspection import find_not_finite
from lazyrt.ir.live import pending
from lazyrt.ir.node import type_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazygraph.snapshot import Name
    from lazyrt.execution.executor import Plan
    from lazyrt.execution.inspection import NotFinite
    from lazyrt.ir.node import Value

# What training reads: a mask of -inf that a program keeps is none of it.
_HOLDERS = frozenset(("module", "gradient", "optimizer", "optimizer LBFGS"))
_MAX_NAMED = 3


@lru_cache(maxsize=1)
def _are_finite() -> Any:
    """Return what the device runs: whether each array is finite, as one execution."""
    return jax.jit(lambda arrays: jnp.stack([jnp.isfinite(a).all() for a in arrays]))


class FiniteCheck:
    """What a barrier asks of a step's results before anything takes them."""

    def bad(self, plan: Plan, results: Sequence[Any]) -> dict[Value, str]:
        """Return the losses, gradients and updated states that are not finite, with names.

        Losses are floating-point results of one element.
        """
        names = _names(plan)
        watched = {
            value: slot
            for slot, rank in enumerate(plan.order)
            for value in [plan.graph.roots[rank]]
            if _is_watched(value, names.get(rank))
        }
        if not watched:
            return {}
        with jax_compat.scope():
            arrays = [results[slot] for slot in watched.values()]
            finite = _are_finite()(arrays).tolist()
        called = {plan.graph.roots[rank]: name.text for rank, name in names.items()}
        return {
            value: called.get(value, type_text(value.shape, value.dtype))
            for value, is_fine in zip(watched, finite, strict=True)
            if not is_fine
        }

    def error(self, bad: dict[Value, str], *, is_pending: bool) -> NotFiniteError:
        """Return what to raise, with the op in which it began where the step is pending."""
        shown = ", ".join(list(bad.values())[:_MAX_NAMED])
        more = f" and {len(bad) - _MAX_NAMED} more" if len(bad) > _MAX_NAMED else ""
        step = pending.number if is_pending else pending.number - 1
        what = f"step {step} gives {shown}{more} that {'is' if len(bad) == 1 else 'are'} not finite"
        if not is_pending:
            return NotFiniteError(
                f"{what}. Its inputs are more than config.keep_values_bytes "
                f"({config.keep_values_bytes:,}), so it has run, and where that began is not known. "
                "Raise the setting, and run the cell again."
            )
        began = ""
        with contextlib.suppress(
            LazyRuntimeError
        ):  # an op that all replicas run together
            graph = Graph(bad)
            replicas.check_alone(graph.nodes)
            began = _began(find_not_finite(graph))
        return NotFiniteError(
            f"{what}.{began} The step was not run: every tensor is as before it, and its "
            "ops are pending. %lazy nan shows the rest, %lazy drop gives the step up, "
            "config.stop_at_nan = False lets it run."
        )


def _names(plan: Plan) -> dict[int, Name]:
    snapshot = plan.record.snapshot if plan.record is not None else None
    return dict(snapshot.root_names) if snapshot is not None else {}


def _is_watched(value: Value, name: Name | None) -> bool:
    if not (value.dtype.is_floating_point or value.dtype.is_complex):
        return False
    is_loss = all(size == 1 for size in value.shape)
    return is_loss or (name is not None and name.holder in _HOLDERS)


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
    check_results(FiniteCheck() if value else None)


def install() -> None:
    """Follow the setting from now on."""
    follow("stop_at_nan", _follow)
    _follow(config.stop_at_nan)
