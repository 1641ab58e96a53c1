"""Knows when executions end, without holding their data.

Each executable returns one scalar more than its graph has roots, ready when all of it is.
While a listener wants to know ends at once (a notebook's strip does), a daemon thread waits
for these scalars in order. Otherwise nobody waits: ends are noticed at the next dispatch or
wait, and no thread takes the interpreter from the one that records the next step.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazyrt import jax_compat
from lazyrt.config import config
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Callable

    from lazyrt.observe.events import Purpose, SourceLocation

_POLL_S = 0.5
_SHORT_POLL_S = 0.001


@dataclass(frozen=True, slots=True)
class _Execution:
    token: Any
    fingerprint: str
    purpose: Purpose
    step: int
    started_ns: int
    site: SourceLocation | None


_running: deque[_Execution] = deque()
_changed = threading.Condition()
_idle_since = 0
_thread: threading.Thread | None = None


def watch(
    token: Any,
    *,
    fingerprint: str,
    purpose: Purpose,
    step: int,
    started_ns: int,
    site: SourceLocation | None = None,
) -> None:
    """Follow an execution that was just dispatched."""
    with _changed:
        _running.append(_Execution(token, fingerprint, purpose, step, started_ns, site))
        if _has_thread():
            _changed.notify_all()
            return
    _notice()


def in_flight() -> int:
    """Return how many executions the device has not finished."""
    if not _has_thread():
        _notice()
    return len(_running)


def wait(timeout_s: float | None = None) -> bool:
    """Wait until the device is idle.

    Args:
        timeout_s: Give up after this many seconds; None waits as long as it takes, and
            Ctrl-C ends the wait.

    Returns:
        Whether the device is idle; False when the time was up first.
    """
    if not in_flight():
        return True
    with events.waited("execute", *_first_running()):
        return _wait(timeout_s)


def _wait(timeout_s: float | None) -> bool:
    if _has_thread():
        if timeout_s is not None:
            with _changed:
                return _changed.wait_for(lambda: not _running, timeout_s)
        _wait_until(lambda: not _running)
        return True
    if timeout_s is None:
        for execution in list(_running):
            _block(execution.token)
        return in_flight() == 0
    end = time.monotonic() + timeout_s
    while in_flight():
        if time.monotonic() >= end:
            return False
        time.sleep(_SHORT_POLL_S)
    return True


def is_current_thread() -> bool:
    """Return whether the caller runs on the thread that waits for executions."""
    return _thread is not None and threading.get_ident() == _thread.ident


def wait_for(data: Any, *, is_result: bool = True) -> None:
    """Wait until one device array is computed; Ctrl-C ends the wait.

    `is_result` tells whether an execution gives it, whose end is noticed.
    """
    if data.is_ready():
        jax_compat.block(data)  # raises what its execution raised
        return
    with events.waited("execute", *_first_running()):
        if is_result:
            _wait_for(data)
        else:
            jax_compat.block(data)


def _wait_for(data: Any) -> None:
    if _has_thread():
        _wait_until(lambda: not _running or data.is_ready())
    jax_compat.block(data)


def _wait_until(is_over: Callable[[], bool]) -> None:
    """Wait until the watcher thread has noticed an end; tell listeners if it takes long."""
    start = time.perf_counter_ns()
    pause = config.progress_after_s
    with _changed:
        while not _changed.wait_for(is_over, pause):
            pause = _POLL_S
            _report_progress(start)


def _first_running() -> tuple[str, Purpose]:
    """Return the fingerprint and the purpose of what the device computes now."""
    with _changed:
        running = _running[0] if _running else None
    return (running.fingerprint, running.purpose) if running else ("", "step")


def _has_thread() -> bool:
    """Return whether the thread is there, starting it once somebody needs it."""
    global _thread
    with _changed:
        if _thread is None and events.exact_ends_wanted():
            _thread = threading.Thread(
                target=_follow, name="lazyrt-watcher", daemon=True
            )
            _thread.start()
        return _thread is not None


def _notice() -> None:
    """Retire the executions that have ended by now, in order."""
    while True:
        with _changed:
            if not _running or not _running[0].token.is_ready():
                return
            execution = _running.popleft()
        _report_end(execution, exact=False)


def _follow() -> None:
    """Wait for one execution after the other; the watcher thread."""
    while True:
        with _changed:
            while not _running:
                _changed.wait()
            execution = _running[0]
        _block(execution.token)
        _report_end(execution, exact=True)
        with _changed:
            if _running and _running[0] is execution:
                _running.popleft()
            _changed.notify_all()
        del execution


def _block(token: Any) -> None:
    with contextlib.suppress(Exception):  # whoever reads the results gets the error
        jax_compat.block(token)


def _report_end(execution: _Execution, *, exact: bool) -> None:
    global _idle_since
    now = time.perf_counter_ns()
    started = max(execution.started_ns, _idle_since)
    _idle_since = now
    events.emit(
        events.ExecuteFinished(
            fingerprint=execution.fingerprint,
            purpose=execution.purpose,
            step=execution.step,
            duration_ns=now - started,
            exact=exact,
            site=execution.site,
        )
    )


def _report_progress(start: int) -> None:
    fingerprint, purpose = _first_running()
    events.emit(
        events.CompileProgress(
            fingerprint=fingerprint,
            purpose=purpose,
            phase="execute",
            nodes=0,
            elapsed_ns=time.perf_counter_ns() - start,
        )
    )
