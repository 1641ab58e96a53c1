"""Checks of arguments that wait for their step, which they would otherwise break.

torch asks whether a scale is positive, or a matrix was singular, in the middle of a program. What
such a check looks at becomes a result of the step instead: the program goes on as if it had passed,
and the error comes once the step has run, at the next barrier, read or wait. What is asked of a step
that was dispatched already, such as whether its results are finite, waits in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lazyrt.errors import seconds
from lazyrt.execution import completion, process
from lazyrt.ir.live import Buffer, Lost, lock

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(slots=True, eq=False)
class _Check:
    """One value to be looked at.

    The buffer is a root of its step, None once that has been dispatched; then `data` is its device
    array. `judge` returns what to raise for the data. `step` is the step about which it was asked
    after its barrier; None for a result of a step.
    """

    buffer: Buffer | None
    judge: Callable[[np.ndarray[Any, Any]], Exception | None]
    data: Any = None
    step: int | None = None


_checks: list[_Check] = []
on_read: list[Callable[[Buffer], object]] = []
"""Called with what has been read for the program, once that is there."""
on_wait: list[Callable[[], object]] = []
"""Called once all checks have passed that somebody has waited for."""


def defer(
    buffer: Buffer, judge: Callable[[np.ndarray[Any, Any]], Exception | None]
) -> None:
    """Look at a small pending value once its step has run.

    `judge` gets its data and returns what to raise for them, None if they are good. It must hold no
    tensor of the device.
    """
    with lock:
        _checks.append(_Check(buffer, judge))


def watch(
    step: int, data: Any, judge: Callable[[np.ndarray[Any, Any]], Exception | None]
) -> None:
    """Look at an array that is computed from a step's results; see `defer`."""
    with lock:
        _checks.append(_Check(None, judge, data, step))


def note_barrier() -> None:
    """Take the data of checks that a barrier has run, and forget those of dropped work."""
    if not _checks:
        return
    for check in _checks:
        buffer = check.buffer
        if buffer is not None and not buffer.is_pending:
            check.data = None if isinstance(buffer.data, Lost) else buffer.data
            check.buffer = None
    _checks[:] = [c for c in _checks if c.buffer is not None or c.data is not None]


def count() -> int:
    """Return how many checks that were recorded wait for their step, or to be looked at."""
    return sum(check.step is None for check in _checks)


def waiting() -> list[Buffer]:
    """Return the values to be looked at that no barrier has run yet."""
    return [check.buffer for check in _checks if check.buffer is not None]


def raise_failed(
    *,
    wait: bool = False,
    through: int = -1,
    only_watched: bool = False,
    read: Buffer | None = None,
) -> None:
    """Raise the error of the first check that did not pass.

    Those are looked at that are done, with `wait` also checks that still run; `through` waits for
    those that `watch` added for the steps up to this one. What is pending stays so.
    """
    if read is not None:
        for look in on_read:
            look(read)
    if not (_checks or wait):
        return
    failed: list[Exception] = []
    with lock:
        dispatched = [
            check
            for check in _checks
            if check.data is not None and not (only_watched and check.step is None)
        ]
    for check in dispatched:
        if wait or (check.step is not None and check.step <= through):
            completion.wait_for(check.data, is_result=check.step is None)
        if check.data.is_ready():
            failed += _settle(check)
    if not failed:
        for ask in on_wait if wait else ():
            ask()
        return
    error = failed[0]
    if len(failed) > 1:
        error.add_note(f"{len(failed) - 1:,} more failed in the same steps")
    raise error


def wait(timeout_s: float | None = None, *, check: bool = True) -> bool:
    """Wait until the device is idle.

    Args:
        timeout_s: Give up after this many seconds; None waits as long as it takes, and
            Ctrl-C ends the wait.
        check: Whether what waits for its step is looked at; else the next barrier or read does.

    Returns:
        Whether the device is idle; False when the time was up first.

    Raises:
        ArgumentCheckError: A check of torch's that ran with a step has failed.
        torch.linalg.LinAlgError: So has a factorisation.
        UsageError: `timeout_s` is no number from 0 up.
    """
    is_idle = completion.wait(seconds(timeout_s, "wait()"))
    if check:
        raise_failed(wait=is_idle)
    return is_idle


def _settle(check: _Check) -> list[Exception]:
    """Look at a check that is done, once; return its error if it has failed."""
    with lock:
        if check not in _checks:
            return []
        _checks.remove(check)
    error = check.judge(np.asarray(check.data))
    return [] if error is None else [error]


def forget() -> None:
    """Drop every check, whatever it would find."""
    with lock:
        _checks.clear()


process.at_exit(lambda: raise_failed(wait=True))
