"""Barriers and ops: finalisers in the middle of an op, and the bound of pending ops.

A `__del__` may read a tensor, or ask for a barrier. Beneath a kernel that has just numbered its
inputs a barrier would take the numbers away, and the op would read other data. So a finaliser's
reads are peeks there, and what else would end the step is left to the next barrier.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from lazyrt.config import config
from lazyrt.execution import executor
from lazyrt.execution.executor import barrier
from lazyrt.frontend.provenance import is_of_torch, is_own_file, outward
from lazyrt.ir.live import lock, pending

if TYPE_CHECKING:
    from types import CodeType


KERNEL = "<lazyrt kernel "
_others: set[CodeType] = {barrier.__code__}


def note_kernel(kernel: Any) -> None:
    """Count a function that is written by hand among the kernels."""
    _others.add(kernel.__code__)


def interrupts_an_op() -> bool:
    """Return whether this thread is in the middle of an op or a barrier.

    To be asked before the lock is taken. Functions given to `on_barrier` are in the middle of
    nothing: a barrier calls them before it begins.
    """
    return lock._is_owned() and not executor.hooks_are_running()  # type: ignore[attr-defined]


def interrupts_another_op() -> bool:
    """Return whether the op that this kernel records was called in the middle of another, or of a barrier.

    A kernel that calls an op itself has no code of others between the two.
    """
    is_others = False
    for frame in outward(sys._getframe(1)):
        name = frame.f_code.co_filename
        if name.startswith(KERNEL) or frame.f_code in _others:
            if is_others:
                return True
        elif not is_own_file(name) and not is_of_torch(name):
            is_others = True
    return False


# ------------------------------------------------------------- the bound of pending ops


def over_limit() -> None:
    """Run a barrier once too much is pending; a finaliser's op leaves it to the next one."""
    from lazyrt.execution.executor import barrier
    from lazyrt.frontend.provenance import user_site

    # In eager debug mode each op runs at its end, and would find its inputs gone.
    if pending.eager or interrupts_another_op():
        return
    barrier(f"more than {config.max_pending_nodes:,} pending ops", user_site(2))
