"""The thread that runs asynchronous step closures, in the order of queueing."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from lazyrt.arguments import seconds
from lazyrt.config import config
from lazyrt.errors import UsageError
from lazyrt.frontend.copies import copied
from lazyrt.ir import active
from lazyrt.ir.active import ActiveStep

if TYPE_CHECKING:
    from lazyrt.control.closures import Closure

_log = logging.getLogger(__name__)

_MAX_FAREWELL_S = 30.0
_CROWDED = 0.75

_changed = threading.Condition()
_waiting: deque[Closure] = deque()
_failures: deque[BaseException] = deque()
_running: Closure | None = None
_running_since = 0
_thread: threading.Thread | None = None


def submit(closure: Closure) -> None:
    """Hand a closure to the thread; waits for room, after naming what takes so long."""
    closure.args = copied(closure.args)
    closure.kwargs = copied(closure.kwargs)
    with _changed:
        _start()
        limit = max(1, config.max_async_closures)
        if len(_waiting) + 1 >= max(1, int(limit * _CROWDED)):
            _warn(limit)
        _changed.wait_for(lambda: len(_waiting) < limit)
        _waiting.append(closure)
        _changed.notify_all()


def take_failure() -> BaseException | None:
    """Return the earliest exception that nobody has seen yet."""
    return _failures.popleft() if _failures else None


def depth() -> int:
    """Return how many closures wait or run."""
    with _changed:
        return len(_waiting) + (_running is not None)


def oldest_ns() -> int:
    """Return for how long the oldest closure has been due, 0 if there is none."""
    with _changed:
        oldest = _running or next(iter(_waiting), None)
    return time.perf_counter_ns() - oldest.due_ns if oldest is not None else 0


def wait_for_closures(timeout_s: float | None = None) -> bool:
    """Wait until every asynchronous step closure has run.

    Args:
        timeout_s: Give up after this many seconds; None waits as long as it takes.

    Returns:
        Whether all have run; False when the time was up first.

    Raises:
        BaseException: What one of them raised and no mark has raised yet.
        UsageError: One of them asks: it would wait for itself; or `timeout_s` is no number from
            0 up.
    """
    timeout_s = seconds(timeout_s, "wait_for_closures()")
    if _is_own_thread():
        raise UsageError(
            f"wait_for_closures() was called in {_running}, which would wait for itself: "
            "asynchronous closures run one after the other, on one thread. Call it where the "
            "program goes on, after the step."
        )
    with _changed:
        done = _changed.wait_for(lambda: not _waiting and _running is None, timeout_s)
    failure = take_failure()
    if failure is not None:
        raise failure
    return done


def _is_own_thread() -> bool:
    return _thread is not None and threading.get_ident() == _thread.ident


def _start() -> None:
    global _thread
    if _thread is None or not _thread.is_alive():
        _thread = threading.Thread(target=_work, name="lazyrt-closures", daemon=True)
        _thread.start()


def _work() -> None:
    global _running, _running_since
    # A read of a pending tensor here would cut the step that the program is recording.
    active.enter(ActiveStep(None, None, "error", kind="async closure"))
    while True:
        with _changed:
            _changed.wait_for(lambda: bool(_waiting))
            closure: Any = _waiting.popleft()
            _running, _running_since = closure, time.perf_counter_ns()
            _changed.notify_all()
        try:
            closure.run()
        except BaseException as error:  # noqa: BLE001 - the next mark raises it
            _failures.append(error)
        with _changed:
            _running = closure = None
            _changed.notify_all()


def _warn(limit: int) -> None:
    if _running is None:
        return
    seconds = (time.perf_counter_ns() - _running_since) / 1e9
    _log.warning(
        "%s has been running for %.1f s, and %d of at most %d wait behind it. Training will "
        "wait for it. Make it faster, queue it less often, or raise "
        "lazyrt.config.max_async_closures.",
        _running, seconds, len(_waiting), limit,
    )  # fmt: skip


@atexit.register
def _finish() -> None:
    """Let what is queued run before Python ends, and tell of what went wrong."""
    with _changed:
        _changed.wait_for(lambda: not _waiting and _running is None, _MAX_FAREWELL_S)
    while _failures:
        error = _failures.popleft()
        _log.error("an asynchronous step closure failed", exc_info=error)
