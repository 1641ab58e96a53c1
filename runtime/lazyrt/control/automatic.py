"""Barriers that follow by themselves, so that a plain PyTorch script needs no marks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from lazyrt.config import config
from lazyrt.control.step import depth
from lazyrt.execution.executor import barrier
from lazyrt.frontend.provenance import user_site
from lazyrt.frontend.torch_compat import is_lazy

if TYPE_CHECKING:
    import torch


def _after_optimizer_step(
    optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any
) -> None:
    if depth() or not config.barrier_after_optimizer:
        return
    if any(
        is_lazy(parameter)
        for group in optimizer.param_groups
        for parameter in group["params"]
    ):
        barrier("optimizer.step()", user_site(2))


def install() -> None:
    """Let a barrier follow each `optimizer.step()` of lazy parameters outside `step()`."""
    register_optimizer_step_post_hook(_after_optimizer_step)
