"""Functions of the user's that run before each barrier: reports without patching anything."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from lazyrt.closing import Closing
from lazyrt.errors import UsageError
from lazyrt.ir.live import pending
from lazyrt.observe.events import BarrierStarted

if TYPE_CHECKING:
    from collections.abc import Callable

    from lazyrt.observe.events import Site

_log = logging.getLogger(__name__)
_hooks: tuple[BarrierHook, ...] = ()
_running = False


class BarrierHook(Closing):
    """A function's registration; close it, or use it in `with`."""

    def __init__(self, function: Callable[[BarrierStarted], object]) -> None:
        self.function = function

    def close(self) -> None:
        """Call the function no more; closing twice is harmless."""
        global _hooks
        _hooks = tuple(hook for hook in _hooks if hook is not self)


def on_barrier(function: Callable[[BarrierStarted], object]) -> BarrierHook:
    """Call a function before each barrier, while everything is still pending.

    The function may look at anything: `pending_graph()`, `live_tensors()` and a print change
    nothing. A read in it (`.item()`) is a barrier of its own, before the one that called. A
    function that raises is logged, and the barrier goes on.

    Args:
        function: Takes a `BarrierStarted`.

    Raises:
        UsageError: `function` cannot be called.
    """
    global _hooks
    if not callable(function):
        raise UsageError(
            f"on_barrier() got {function!r:.60}, which cannot be called, so nothing would run "
            "before a barrier. Pass a function that takes a BarrierStarted."
        )
    hook = BarrierHook(function)
    _hooks = (*_hooks, hook)
    return hook


def are_running() -> bool:
    """Return whether a barrier is calling the registered functions."""
    return _running


def run_hooks(cause: str, site: Site | None) -> None:
    """Call the registered functions, unless one of them asked for this very barrier."""
    global _running
    if not _hooks or _running:
        return
    event = BarrierStarted(
        step=pending.number, cause=cause, site=site, time_ns=time.perf_counter_ns()
    )
    _running = True
    try:
        for hook in _hooks:
            try:
                hook.function(event)
            except Exception:  # noqa: BLE001 - the barrier goes on
                _log.exception("a function given to on_barrier() failed")
    finally:
        _running = False
