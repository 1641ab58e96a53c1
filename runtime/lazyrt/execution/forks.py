"""Forked processes: XLA's threads stay in the parent, so a child that waits for them hangs."""

from __future__ import annotations

import os
import warnings

from lazyrt import jax_compat
from lazyrt.errors import LazyRuntimeError

_bad = False


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


def quieten() -> None:
    """Leave out jax's warning that a fork will likely hang.

    Each `DataLoader` with workers would print it. A worker that uses the device gets an error
    of `check()` instead of hanging, and one that does not is fine.
    """
    warnings.filterwarnings(
        "ignore", r"os\.fork\(\) was called\..* JAX is multithreaded", RuntimeWarning
    )


if hasattr(os, "register_at_fork"):
    quieten()
    os.register_at_fork(after_in_child=_after_fork)
