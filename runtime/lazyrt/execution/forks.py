"""Forked processes: XLA's threads stay in the parent, so a child that waits for them hangs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from lazyrt import jax_compat
from lazyrt.errors import LazyRuntimeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_bad = False
# jax's hook that warns of forks, until the user's own code has used jax.
_withheld: Callable[[], None] | None = None


def is_bad() -> bool:
    """Return whether this process was forked from one that had used the device."""
    return _bad


def check() -> None:
    """Check that the device can be used in this process.

    Raises:
        LazyRuntimeError: The process was forked after the device was used.
    """
    if _bad:
        raise LazyRuntimeError(
            f"process {os.getpid()} used the device lazyrt, and it is a forked process of one that "
            "had used it before. XLA's threads do not exist here, so the call would never return. "
            "Return CPU tensors from loader workers and move them in the parent, or start workers "
            "with the method 'spawn' (`DataLoader(..., multiprocessing_context='spawn')`)."
        )


def _after_fork() -> None:
    global _bad
    _bad = _bad or jax_compat.is_initialised()


_COMPILED = "/jax/core/compile/backend_compile_duration"
# Packages whose frames say nothing about who uses jax: they are called by both.
_BETWEEN = frozenset(("jax", "jaxlib", "contextlib", "functools", "threading"))


def _notice_the_users_jax(event: str, _duration: float, **_: object) -> None:
    """Give jax its warning of forks back once code that is not ours compiles something."""
    global _withheld
    if _withheld is not None and event == _COMPILED and _caller() != "lazyrt":
        hook, _withheld = _withheld, None
        os.register_at_fork(before=hook)


def _caller() -> str:
    """Return the top-level package of the innermost frame that uses jax."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _BETWEEN:
            return package
        frame = frame.f_back
    return ""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
    # Each `DataLoader` with workers would print that it may hang. A worker that uses the device
    # gets an error of `check()` instead, and one that does not is fine.
    _withheld = jax_compat.take_fork_hook()
    if _withheld is not None:
        jax_compat.on_durations(_notice_the_users_jax)
