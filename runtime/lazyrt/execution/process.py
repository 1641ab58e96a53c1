"""What lazyrt has to do with the process around it: forks, Ctrl-C, the environment, Python's collector.

XLA's threads stay in the parent of a fork, so a child that waits for them hangs.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from lazyrt import jax_compat
from lazyrt.errors import LazyRuntimeError
from lazyrt.execution import completion
from lazyrt.ir.live import pending

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType


_bad = False
# jax's hook that warns of forks, until the user's own code has used jax.
_withheld: Callable[[], None] | None = None


def is_forked() -> bool:
    """Return whether this process was forked from one that had used the device."""
    return _bad


def at_exit(function: Callable[..., object], *args: object) -> Callable[..., object]:
    """Call a function before Python ends; not in a fork, where nobody does what it waits for."""
    atexit.register(lambda: is_forked() or function(*args))
    return function


def check_not_forked() -> None:
    """Check that the device can be used in this process."""
    if _bad:
        raise LazyRuntimeError(
            f"process {os.getpid()} used the device lazyrt, and it is a forked process of one that "
            "had used it before. XLA's threads do not exist here, so the call would never return. "
            "Return CPU tensors from loader workers and move them in the parent, or start workers "
            "with the method 'spawn' (`DataLoader(..., multiprocessing_context='spawn')`)."
        )


@at_exit
def _finish() -> None:
    """Let the device come to rest: a thread inside XLA while Python ends would abort it."""
    completion.wait(timeout_s=30.0)


def end_by_interrupt() -> None:
    """End the process at once, as one that Ctrl-C ends: Python would abort below a thread inside XLA."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


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


# ------------------------------------------------------------------------------- Ctrl-C


# `signal.signal` looks each handler up among the names of an enum: 7 µs a call, cold three times
# that, twice in every barrier. The function behind it takes 0.3.
_set_handler = getattr(importlib.import_module("_signal"), "signal", signal.signal)


class deferred_interrupt:  # noqa: N801 - used like a function, in `with`
    """Put SIGINT off to the end of the block; costs about 1 µs, and nothing off the main thread.

    Dispatch donates the memory of inputs. An interrupt between it and the moment when its
    results are stored would lose both.
    """

    __slots__ = ("_before", "_caught")

    def __enter__(self) -> None:
        self._caught: tuple[int, FrameType | None] | None = None
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():
            self._before = _set_handler(signal.SIGINT, self._catch)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self._caught = (number, frame)
        if _is_waiting:
            self.deliver()

    def deliver(self) -> None:
        """Let Ctrl-C that has come have its effect now."""
        caught, self._caught = self._caught, None
        if caught is not None and callable(self._before):
            self._before(*caught)

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            return
        _set_handler(signal.SIGINT, self._before)
        self.deliver()


class waiting:  # noqa: N801 - likewise
    """Let Ctrl-C end what waits in the block, though an op of the eager debug mode puts it off."""

    def __enter__(self) -> None:
        global _is_waiting
        if threading.current_thread() is threading.main_thread():
            _is_waiting = True
            deferring = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
            if isinstance(deferring, deferred_interrupt):
                deferring.deliver()

    def __exit__(self, *_: object) -> None:
        global _is_waiting
        if threading.current_thread() is threading.main_thread():
            _is_waiting = False


_is_waiting = False  # on the main thread


# ----------------------------------------------------------- changes of the environment
# XLA reads environment variables on its own threads, when an executable multiplies matrices for
# the first time. In the C library nobody may read variables while somebody adds or removes one:
# the reader finds freed memory, and the process ends. pytest sets a variable three times a test,
# so test suites of programs that record and run later died of it now and then. From the first
# execution on, `os.environ[...] = ...`, `del os.environ[...]`, `os.putenv` and `os.unsetenv`
# therefore wait until nothing runs. What changes variables without Python is not noticed.


_ours: set[Callable[..., None]] = set()
_CHANGES = ("putenv", "unsetenv")  # `os.environ` calls these by their names in `os`


def guard_environment() -> None:
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
        if not is_forked() and not completion.is_current_thread():
            completion.wait()
        change(*args)

    _ours.add(wait_and_change)
    return wait_and_change


# ------------------------------------------------------------------ Python's collector
# Python looks for garbage whenever 700 more objects were made than died. A deep step keeps thousands
# until its barrier, where they die without a collector's help: each look within it finds nothing, and
# counts what it saw as long-lived, until a look through the whole heap seems due. So the threshold grows
# until a step fits below it. Cycles that a program makes are still found: such a look finds
# something, and leaves the threshold alone.


# A threshold that differs from it is the program's own, and stays.
_gc_threshold = 0
_is_automatic = False
# The latest step in which a look found nothing.
_in_vain = -2


def adapt_collector() -> None:
    """Let the threshold of the youngest generation grow from what it is now."""
    global _gc_threshold
    _gc_threshold = gc.get_threshold()[0]
    if _adapt not in gc.callbacks:
        gc.callbacks.append(_adapt)


def _adapt(phase: str, info: Mapping[str, int]) -> None:
    """Double the threshold when Python has looked in vain within two steps in a row.

    A step that fits below it has such a look every now and then, so it grows to twice a step's
    objects and no further. A single step may make many more, such as one that compiles.
    """
    global _gc_threshold, _is_automatic, _in_vain
    threshold, *older = gc.get_threshold()
    if phase == "start":
        _is_automatic = gc.get_count()[0] > threshold
        return
    if not _is_automatic or info["collected"] or not pending.buffers:
        return
    is_again = pending.number - _in_vain == 1
    _in_vain = pending.number
    if is_again and threshold == _gc_threshold > 0:
        _gc_threshold = 2 * threshold
        gc.set_threshold(_gc_threshold, *older)
