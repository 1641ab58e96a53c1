"""Barriers that follow by themselves, so that a plain PyTorch script needs no marks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from lazyrt.config import config
from lazyrt.control import marks, status
from lazyrt.control.rollback import note_optimizer, note_update, optimizers_of_step
from lazyrt.errors import UsageError, require_flag
from lazyrt.execution.cache_miss import hooks
from lazyrt.frontend import optimizer_state
from lazyrt.frontend.provenance import user_site
from lazyrt.frontend.torch_compat import is_lazy
from lazyrt.ir import active

if TYPE_CHECKING:
    import torch


def _before_optimizer_step(
    optimizer: torch.optim.Optimizer, args: Any, kwargs: Any
) -> None:
    if any(step.undo is not None for step in active.steps()):
        note_optimizer(optimizer)
    optimizer_state.begin(optimizer)
    optimizer_state.create_momentum(
        optimizer, has_closure=len(args) > 1 or kwargs.get("closure") is not None
    )


def _after_optimizer_step(
    optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any
) -> None:
    optimizer_state.end()
    note_update(optimizer)
    if not config.barrier_after_optimizer or active.is_inside():
        return
    if _updates_lazy(optimizer):
        marks.mark_quietly("optimizer.step()", user_site(2))


def _updates_lazy(optimizer: torch.optim.Optimizer) -> bool:
    return any(
        is_lazy(parameter)
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def install() -> None:
    """Let a barrier follow each `optimizer.step()` outside `step()`; note the last barrier."""
    status.install()
    hooks.optimizers = optimizers_of_step
    register_optimizer_step_pre_hook(_before_optimizer_step)
    register_optimizer_step_post_hook(_after_optimizer_step)


def optimizer_step(
    optimizer: torch.optim.Optimizer, *, barrier: bool = False, **kwargs: Any
) -> Any:
    """Call `optimizer.step(**kwargs)` and return its result.

    The name under which scripts for several replicas reduce gradients first; one replica has
    none to reduce.

    Args:
        optimizer: An optimizer of lazy parameters.
        barrier: Whether a barrier follows in any case, as after `mark_step()`. Without it one
            follows outside `step()` if `config.barrier_after_optimizer` is set.
        kwargs: Passed on.

    Raises:
        UsageError: `optimizer` has no `step` method, or `barrier` is neither True nor False.
        StepSyncError: `barrier` is set inside a `step()` that forbids reads.
    """
    if not callable(getattr(optimizer, "step", None)):
        raise UsageError(
            f"optimizer_step() got {type(optimizer).__name__}, which has no step() method, so "
            "nothing would be updated. Pass a torch.optim optimizer."
        )
    require_flag(barrier, "optimizer_step()", "barrier")
    result = optimizer.step(**kwargs)
    if barrier:
        marks.mark_step()
    return result
