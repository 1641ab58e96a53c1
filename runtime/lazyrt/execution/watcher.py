"""Knows when executions end, without making anybody wait and without holding their data.

Each executable returns one scalar more than its graph has roots, ready when all of it is. A
daemon thread waits for these scalars in order and tells listeners how long each took.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazyrt import jax_compat
from lazyrt.config import config
from lazyrt.observe import events

if TYPE_CHECKING:
    from lazyrt.observe.events import Purpose

_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class _Execution:
    token: Any
    fingerprint: str
    purpose: Purpose
    step: int
    nodes: int
    started_ns: int


_queue: queue.SimpleQueue[_Execution] = queue.SimpleQueue()
_changed = threading.Condition()
_running = 0
_thread: threading.Thread | None = None


def watch(
    token: Any,
    *,
    fingerprint: str,
    purpose: Purpose,
    step: int,
    nodes: int,
    started_ns: int,
) -> None:
    """Follow an execution that was just dispatched."""
    global _running, _thread
    with _changed:
        _running += 1
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(
                target=_watch, name="lazyrt-watcher", daemon=True
            )
            _thread.start()
    _queue.put(_Execution(token, fingerprint, purpose, step, nodes, started_ns))


def in_flight() -> int:
    """Return how many executions the device has not finished."""
    return _running


def wait(timeout_s: float | None = None) -> bool:
    """Wait until the device is idle.

    Args:
        timeout_s: Give up after this many seconds; None waits as long as it takes, shows
            progress to listeners, and Ctrl-C ends the wait at once.

    Returns:
        Whether the device is idle; False when the time was up first.
    """
    start = time.perf_counter_ns()
    with _changed:
        if timeout_s is not None:
            return _changed.wait_for(lambda: _running == 0, timeout_s)
        pause = config.progress_after_s
        while not _changed.wait_for(lambda: _running == 0, pause):
            pause = _POLL_S
            _tell_progress(start)
    return True


def wait_for(data: Any) -> None:
    """Wait until one device array is computed; Ctrl-C ends the wait at once."""
    start = time.perf_counter_ns()
    pause = config.progress_after_s
    with _changed:
        while _running and not data.is_ready():
            if not _changed.wait(pause):
                pause = _POLL_S
                _tell_progress(start)
    jax_compat.block(data)


def _tell_progress(start: int) -> None:
    events.emit(
        events.CompileProgress(
            fingerprint="",
            purpose="step",
            phase="execute",
            nodes=0,
            elapsed_ns=time.perf_counter_ns() - start,
        )  # fmt: skip
    )


def _watch() -> None:
    global _running
    idle_since = 0
    while True:
        execution = _queue.get()
        try:
            jax_compat.block(execution.token)
        except Exception:  # noqa: BLE001, S110 - whoever reads the results gets the error
            pass
        now = time.perf_counter_ns()
        started = max(execution.started_ns, idle_since)
        idle_since = now
        event = events.ExecuteFinished(
            fingerprint=execution.fingerprint, purpose=execution.purpose, step=execution.step,
            duration_ns=now - started,
        )  # fmt: skip
        del execution
        events.emit(event)
        with _changed:
            _running -= 1
            _changed.notify_all()
