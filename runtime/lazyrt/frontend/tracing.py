"""How long recording takes, op by op, and how long nothing is recorded.

Both are measured only while somebody asks, at no cost before. A kernel holds one lock from its
first line to its last: while tracing is watched, that lock tells the time on its way in and out.
While pauses are watched, each op notes when it ended.
"""

from __future__ import annotations

import contextlib
import dis
import itertools
import queue
import selectors
import subprocess
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from lazyrt.frontend import eager, record
from lazyrt.frontend.provenance import (
    is_library,
    outward,
    site_of,
    site_of_instruction,
    user_lines,
)
from lazyrt.frontend.recorded_calls import RecordedCall
from lazyrt.ir.live import lock, unwind
from lazyrt.observe import events
from lazyrt.observe.events import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from lazyrt.observe.events import SourceLocation


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
        self._leave(self._inner.release)

    def __exit__(self, *error: object) -> None:
        self._leave(self._inner.__exit__, *error)

    def _leave(self, leave: Callable[..., None], *error: object) -> None:
        self._depth -= 1
        is_outermost, since = self._depth == 0, self._since
        leave(*error)
        if is_outermost:
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
            eager.wrap_lock(_Timed)
            _time_calls(on=True)

    def close(self) -> None:
        """Time no more ops, unless another watch does."""
        with lock:
            if self in _watchers:
                _watchers.remove(self)
            if not _watchers:
                eager.wrap_lock(None)
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


# ------------------------------------------------------------------------------- pauses
# Each op notes when it ended, so both ends of a pause are exact. Its lines are samples: a thread looks
# where the program is if the last op was a while ago. It holds the recorder's lock meanwhile, so that
# no step sees the frame that it refers to. A look at a busy program takes the interpreter from it, so
# these looks take a small part of the time: more only while the thread has credit and a pause came
# whose line is not known, which wakes it.

MIN_PAUSE_NS = 1_000_000
_OFTEN_S = 0.001
_SELDOM_S = 0.008
_LOOK_S = 0.00012  # that a look at a busy program takes: measured, of all threads
_PART_OF_TIME = 0.0025  # that these looks take
_CREDIT = 10  # looks at a busy program that a watch begins with
_PART = 0.1  # of the looks at a busy program that give credit back
_QUIET_NS = 300_000  # a program that has recorded nothing for so long may be in a pause
_RESOLUTION = 20  # samples of a long pause lie closer than this part of it
_FINEST_S = 0.0005
_COARSEST_S = 0.02
_LONGEST_S = _LOOK_S / _PART_OF_TIME
_MAX_SAMPLES = 10_000
_MAX_LINES = 8  # of a sample
_MAX_UNKNOWN = 1_000
_SWITCH_S = 0.0005  # after which a program that is busy in Python gives way to a look


class Sample(NamedTuple):
    """Where the program was at a moment of a pause.

    Attributes:
        time_ns: On the clock of `time.perf_counter_ns`.
        lines: The user's lines, innermost first; empty where only libraries run.
        is_runtime: Whether the runtime was at work, so that nobody could look.
        is_waiting: Whether it waited for another thread or process, such as a loader's.
    """

    time_ns: int
    lines: tuple[SourceLocation, ...]
    is_runtime: bool = False
    is_waiting: bool = False


class Pause(NamedTuple):
    """A stretch of at least a millisecond in which a thread recorded no op.

    Attributes:
        start_ns, end_ns: On the clock of `time.perf_counter_ns`.
        samples: Where the thread was, in order of time; empty where nobody looked.
        after: The user's lines that ended it, innermost first; empty for the end of the watch.
        is_recording: Whether an op was being recorded for the first time, and took so long.
    """

    start_ns: int
    end_ns: int
    samples: tuple[Sample, ...]
    after: tuple[SourceLocation, ...]
    is_recording: bool = False


class PauseWatch(Closing):
    """Tells of the pauses of one thread until it is closed."""

    def __init__(self, tell: Callable[[Pause], None], thread: int) -> None:
        self._tell = tell
        self._thread = thread
        self._samples: deque[Sample] = deque(maxlen=_MAX_SAMPLES)
        self._unknown: set[tuple[SourceLocation, ...]] = set()
        self._closed = False
        self._credit = float(_CREDIT)
        # A queue, not an event: a finaliser may wake the thread while it is being woken.
        self._alarm = queue.SimpleQueue[None]()
        with lock:
            _watch(self)
        sampler = threading.Thread(
            target=self._sample, name="lazyrt-pauses", daemon=True
        )
        sampler.start()

    def close(self) -> None:
        """Watch no more; the pause that goes on is told of as far as it has come."""
        with lock:
            if self._closed:
                return
            self._closed = True
            now = time.perf_counter_ns()
            if now - events.op_clock[0] >= MIN_PAUSE_NS:
                self._told(events.op_clock[0], now, ())
            self._alarm.put(None)
            _unwatch(self)

    def ended(self, start: int, end: int, *, is_recording: bool = False) -> None:
        """Tell of a pause that the calling thread has ended, if it is the one watched."""
        if threading.get_ident() == self._thread:
            self._told(start, end, user_lines(3, _MAX_LINES), is_recording=is_recording)

    def _told(
        self,
        start: int,
        end: int,
        after: tuple[SourceLocation, ...],
        *,
        is_recording: bool = False,
    ) -> None:
        taken = [self._samples.popleft() for _ in range(len(self._samples))]
        samples = [each for each in taken if start <= each.time_ns <= end]
        if samples:
            self._unknown.discard(after)
        elif not is_recording and len(self._unknown) < _MAX_UNKNOWN:
            self._unknown.add(after)
            if self._credit >= 1:
                self._alarm.put(None)
        self._tell(Pause(start, end, tuple(samples), after, is_recording))

    def _sample(self) -> None:
        clock, pause, seldom = events.op_clock, _OFTEN_S, _SELDOM_S
        while not self._closed:
            with contextlib.suppress(queue.Empty):
                self._alarm.get(timeout=pause)
            last = clock[0]
            quiet = time.perf_counter_ns() - last
            if quiet > _QUIET_NS and last != clock[2]:
                self._look()
                seldom = _SELDOM_S
                pause = min(max(quiet / 1e9 / _RESOLUTION, _FINEST_S), _COARSEST_S)
                continue
            if self._credit >= 1 and (self._unknown or pause < _SELDOM_S):
                self._credit -= 1
                pause = _OFTEN_S
            else:
                self._credit += _PART
                pause = seldom
                seldom = min(2 * seldom, _LONGEST_S)  # until it comes upon a pause

    def _look(self) -> None:
        """Note the lines that the thread is at, unless it is recording right now."""
        if not lock.acquire(blocking=False):
            self._samples.append(Sample(time.perf_counter_ns(), (), is_runtime=True))
            return
        try:
            frame = sys._current_frames().get(self._thread)
            is_waiting = bool(frame and frame.f_code.co_filename in _WAITING)
            frames = outward(frame)
            users = (_site_of_call(f) for f in frames if not is_library(f.f_code))
            lines = tuple(itertools.islice(users, _MAX_LINES))
            del frame, frames, users  # which refer to the program's frames
            now = time.perf_counter_ns()
            self._samples.append(Sample(now, lines, is_waiting=is_waiting))
        finally:
            lock.release()


# Where Python code stands while its thread waits for another one or for another process.
_WAITING = {each.__file__ for each in (queue, selectors, subprocess, threading)}
# Python 3.11 calls a builtin from the instruction before CALL once it has run a few times. In code
# that TorchDynamo has made, only CALL has the line.
_PRECALL = dis.opmap.get("PRECALL")
_TO_CALL = 4


def _site_of_call(frame: FrameType) -> SourceLocation:
    """Return the line of the call that a frame is in."""
    code, at = frame.f_code, frame.f_lasti
    if _PRECALL is not None and at >= 0 and code.co_code[at] == _PRECALL:
        return site_of_instruction(code, at + _TO_CALL) or site_of(frame)
    return site_of(frame)


_pause_watches: list[PauseWatch] = []
_switch_s = 0.0
_missed = record.miss


def _pause_ended(start: int, end: int, *, is_recording: bool = False) -> None:
    if end - start >= MIN_PAUSE_NS:
        for watch in tuple(_pause_watches):
            watch.ended(start, end, is_recording=is_recording)


def _timed_miss(*args: Any, **named: Any) -> Any:
    """Record what was not found; the time that takes is no pause."""
    start = time.perf_counter_ns()
    _pause_ended(events.op_clock[0], start)
    try:
        return _missed(*args, **named)
    finally:
        end = events.op_clock[0] = time.perf_counter_ns()
        _pause_ended(start, end, is_recording=True)


def _watch(watch: PauseWatch) -> None:
    global _switch_s
    _pause_watches.append(watch)
    if len(_pause_watches) == 1:
        _switch_s = sys.getswitchinterval()
        sys.setswitchinterval(min(_switch_s, _SWITCH_S))
        events.pause_hooks.append(_pause_ended)
        _time_misses(_timed_miss)
        events.tell_pauses(MIN_PAUSE_NS)


def _unwatch(watch: PauseWatch) -> None:
    _pause_watches.remove(watch)
    if not _pause_watches:
        events.tell_pauses(0)
        _time_misses(_missed)
        events.pause_hooks.remove(_pause_ended)
        sys.setswitchinterval(_switch_s)


def _time_misses(miss: Callable[..., Any]) -> None:
    eager.replace({"miss": miss})
    setattr(record, "miss", miss)  # noqa: B010 - mypy takes it for a new signature


def watch_pauses(
    tell: Callable[[Pause], None], thread: int | None = None
) -> PauseWatch:
    """Call a function with each stretch of a millisecond or more in which nothing is recorded.

    The program computed elsewhere, slept or waited; barriers do not count. Both ends are exact; the
    lines come from samples. While it is on, each op notes the time, and a thread looks at the
    program now and then; while it is off, it costs nothing.

    Args:
        tell: Called on the thread that records; it appends and returns.
        thread: Identity of the thread; by default the caller's.

    Returns:
        Close it, or use it in `with`, to stop.
    """
    return PauseWatch(tell, threading.get_ident() if thread is None else thread)
