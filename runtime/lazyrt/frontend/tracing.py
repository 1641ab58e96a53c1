"""How long recording takes, op by op: measured only while somebody asks, at no cost before.

A kernel holds one lock from its first line to its last. While tracing is watched, that lock
tells the time on its way in and out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from lazyrt.closing import Closing
from lazyrt.frontend import eager_views
from lazyrt.frontend.recorded_calls import RecordedCall
from lazyrt.ir.live import lock, unwind
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType


class _Timed:
    """Takes the place of the kernels' lock and emits `OpTraced` for each outermost op."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._depth = 0
        self._since = 0

    def acquire(self) -> None:
        start = time.perf_counter_ns()
        try:
            self._inner.acquire()
        except BaseException:
            if self._inner is lock:  # a guard has taken back what it had begun
                unwind()
            raise
        self._depth += 1
        if self._depth == 1:
            self._since = start

    __enter__ = acquire

    def release(self) -> None:
        self._depth -= 1
        outermost, since = self._depth == 0, self._since
        self._inner.release()
        _report(outermost, since)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._depth -= 1
        outermost, since = self._depth == 0, self._since
        self._inner.__exit__(kind, error, traceback)
        _report(outermost, since)


def _report(outermost: bool, since: int) -> None:  # noqa: FBT001
    if outermost:
        spent = time.perf_counter_ns() - since
        events.emit(events.OpTraced(duration_ns=spent))


_untimed = RecordedCall.__call__


def _timed_call(
    call: RecordedCall, args: Sequence[object], numbers: Sequence[float] = ()
) -> Sequence[object]:
    """Call a captured graph and tell how long that took."""
    start = time.perf_counter_ns()
    results = _untimed(call, args, numbers)
    spent = time.perf_counter_ns() - start
    events.emit(events.CompiledCallTraced(duration_ns=spent))
    return results


def _time_calls(*, on: bool) -> None:
    called = _timed_call if on else _untimed
    setattr(RecordedCall, "__call__", called)  # noqa: B010 - mypy takes it for a new signature


_watchers: list[TracingWatch] = []


class TracingWatch(Closing):
    """Times each op until it is closed."""

    def __init__(self) -> None:
        with lock:
            _watchers.append(self)
            eager_views.wrap_lock(_Timed)
            _time_calls(on=True)

    def close(self) -> None:
        """Time no more ops, unless another watch does."""
        with lock:
            if self in _watchers:
                _watchers.remove(self)
            if not _watchers:
                eager_views.wrap_lock(None)
                _time_calls(on=False)


def watch_tracing() -> TracingWatch:
    """Time the recording of each op from now on: the metric `LazyTracing` of the report.

    One sample for each op that the program calls, from the kernel's first line to its last;
    the program's own Python and torch's dispatch are not in it. The metric
    `lazyrt::CompiledCallTime` has one for each call of a graph that `torch.compile` captured.
    While it is on, an op takes about a microsecond longer; while it is off, it costs nothing.

    Returns:
        Close it, or use it in `with`, to stop.
    """
    return TracingWatch()
