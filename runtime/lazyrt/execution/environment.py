"""Changes of the environment wait for the device.

XLA reads environment variables on its own threads, when an executable multiplies matrices for
the first time. In the C library nobody may read variables while somebody adds or removes one:
the reader finds freed memory, and the process ends. pytest sets a variable three times a test,
so test suites of programs that record and run later died of it now and then. From the first
execution on, `os.environ[...] = ...`, `del os.environ[...]`, `os.putenv` and `os.unsetenv`
therefore wait until nothing runs. What changes variables without Python is not noticed.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from lazyrt import jax_compat
from lazyrt.execution import forks, watcher

if TYPE_CHECKING:
    from collections.abc import Callable

_ours: set[Callable[..., None]] = set()
_CHANGES = ("putenv", "unsetenv")  # `os.environ` calls these by their names in `os`


def guard() -> None:
    """Let changes of the environment wait from now on; further calls do nothing."""
    if jax_compat.device().platform != "cpu":
        return
    for name in _CHANGES:
        change: Callable[..., None] = getattr(os, name)
        if not _waits(change):
            setattr(os, name, _after_the_device(change))


def _waits(change: Callable[..., None] | None) -> bool:
    """Return whether a function is ours, or one that somebody has put in front of ours."""
    while change is not None and change not in _ours:
        change = getattr(change, "__wrapped__", None)
    return change is not None


def _after_the_device(change: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(change)
    def wait_and_change(*args: Any) -> None:
        # A fork has nobody to wait for; the watcher's listeners would wait for themselves.
        if not forks.is_bad() and not watcher.is_current_thread():
            watcher.wait()
        change(*args)

    _ours.add(wait_and_change)
    return wait_and_change
