"""Step closures: calls that are put off until the values that they need are there.

A closure runs in the step that queued it: right after its barrier, in the order of queueing,
whatever their number in one execution. An asynchronous one runs on a thread of its own, which
keeps the order too, while the program goes on with the next step.
"""

from __future__ import annotations

import logging
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lazyrt.config import config
from lazyrt.errors import UsageError, seconds
from lazyrt.execution import process
from lazyrt.frontend.provenance import user_site
from lazyrt.frontend.reads import copied
from lazyrt.ir import active
from lazyrt.ir.active import ActiveStep
from lazyrt.observe import events

if TYPE_CHECKING:
    from lazyrt.observe.events import SourceLocation

_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Closure:
    """One call that waits.

    Attributes:
        function: What to call.
        args: Positional arguments.
        kwargs: Keyword arguments.
        site: Where it was queued.
        asynchronous: Whether it runs on the thread of closures.
        due_ns: When its step's barrier had been handed over; 0 before.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    site: SourceLocation | None
    asynchronous: bool
    due_ns: int = field(default=0)

    @property
    def name(self) -> str:
        """The function's qualified name."""
        return str(getattr(self.function, "__qualname__", repr(self.function)))

    @property
    def short_name(self) -> str:
        """The function's name, without the function that it was made in."""
        return self.name.rpartition("<locals>.")[2]

    def run(self) -> None:
        """Call the function; an exception gets a note that says where it was queued."""
        started = time.perf_counter_ns()
        failed = True
        try:
            self.function(*self.args, **self.kwargs)
            failed = False
        except BaseException as error:
            error.add_note(f"raised in {self}")
            raise
        finally:
            events.emit(
                events.ClosureFinished(
                    name=self.name,
                    site=self.site,
                    asynchronous=self.asynchronous,
                    failed=failed,
                    waited_ns=started - self.due_ns,
                    duration_ns=time.perf_counter_ns() - started,
                )
            )

    def __str__(self) -> str:
        kind = "asynchronous step closure" if self.asynchronous else "step closure"
        return f"the {kind} {self.name} that was queued at {self.site}"


# Closures queued outside of any step; those of a step wait in the step itself.
_outside: deque[Closure] = deque()
_taking = threading.RLock()
# Those of steps whose barrier runs: they are in no open step any more, and have not run yet.
_ending: list[Closure] = []


def add_step_closure(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    run_async: bool = False,
) -> None:
    """Call a function at the end of the current step, when its values are there.

    Tensors in `args` make no barrier of their own: all closures of a step share its one
    execution. Inside `step()` they run right after its block; elsewhere after the next
    `mark_step()`, `optimizer.step()` or batch of a `DeviceLoader`; so do those that an
    asynchronous closure queues. A step that ends in an exception drops them.

    Args:
        function: Called as `function(*args, **kwargs)`; its result is ignored.
        args: Positional arguments. A synchronous closure sees the values of the end of its
            step; so does an asynchronous one, which gets copies of its own.
        kwargs: Keyword arguments.
        run_async: Call it on another thread. At most `config.max_async_closures` wait; the
            next mark raises what a closure raised.

    Raises:
        UsageError: `function` cannot be called, or `args` is no sequence of arguments.

    Example:
        >>> import lazyrt, torch
        >>> with lazyrt.step():
        ...     loss = torch.ones(2, device="lazyrt").sum()
        ...     lazyrt.add_step_closure(lambda t: print(t.item()), (loss,))
        2.0
    """
    if not callable(function):
        raise UsageError(
            f"add_step_closure() got {function!r}, which cannot be called, so there would be "
            "nothing to run at the end of the step. Pass the function and its arguments "
            "apart: add_step_closure(print, (loss,))."
        )
    given: object = args
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise UsageError(
            f"add_step_closure() got {type(args).__name__} as the arguments of the function, which "
            "is no list of them. Put a single one into a tuple, with its comma: "
            "add_step_closure(print, (loss,))."
        )
    closure = Closure(
        function, tuple(args), dict(kwargs or {}), user_site(2), run_async
    )
    step = active.innermost()
    # The thread of closures is in no step that ends.
    if step is None or step.kind == "async closure":
        _outside.append(closure)
    else:
        step.closures.append(closure)


def run_queued() -> None:
    """Run what was queued outside of steps; called after a barrier."""
    if not _outside:
        return
    # One by one, since other threads queue meanwhile.
    with _taking:
        waiting = [_outside.popleft() for _ in range(len(_outside))]
    run(waiting)


def run(waiting: list[Closure]) -> None:
    """Run closures in order; after one that raises, the rest of the step's are dropped."""
    now = time.perf_counter_ns()
    for position, closure in enumerate(waiting):
        closure.due_ns = now
        try:
            if closure.asynchronous:
                _submit(closure)
            else:
                closure.run()
        except BaseException as error:
            note_dropped(error, waiting[position + 1 :])
            raise


def note_dropped(error: BaseException, dropped: list[Closure]) -> None:
    """Say in an exception which closures will not run because of it."""
    if dropped:
        names = ", ".join(closure.name for closure in dropped)
        error.add_note(f"step closures that were dropped with this step: {names}")


def raise_failure() -> None:
    """Raise what an asynchronous closure raised, once, with its own traceback."""
    if _failures:
        raise _failures.popleft()


def queued() -> int:
    """Return how many closures wait for the end of a step."""
    return len(_outside) + sum(len(step.closures) for step in active.steps())


@contextmanager
def wait_for_barrier(waiting: Sequence[Closure]) -> Iterator[None]:
    """Let closures of a step that ends be found as holders of tensors until its barrier is over."""
    held = tuple(waiting)  # whatever the barrier does to the step's own list
    _ending.extend(held)
    try:
        yield
    finally:
        for closure in held:
            _ending.remove(closure)


def waiting_arguments() -> Iterator[tuple[dict[str, Any], str]]:
    """Yield what queued closures will be given, by the names of their parameters, and which one."""
    waiting = [*_outside, *_ending]
    for step in active.steps():
        waiting += step.closures
    for closure in waiting:
        known = _parameters(closure.function)
        names = [
            known[k] if k < len(known) else f"{closure.short_name}()'s argument {k}"
            for k in range(len(closure.args))
        ]
        given = dict(zip(names, closure.args, strict=True)) | dict(closure.kwargs)
        yield given, f"closure {closure.short_name} queued at {closure.site}"


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return what a function of the user's calls its positional arguments."""
    bound = isinstance(function, types.MethodType)
    plain = function.__func__ if isinstance(function, types.MethodType) else function
    if not isinstance(plain, types.FunctionType):
        return ()
    code = plain.__code__
    return code.co_varnames[int(bound) : code.co_argcount]


# ---------------------------------------------------- the thread of asynchronous ones

_MAX_FAREWELL_S = 30.0
_CROWDED = 0.75

_changed = threading.Condition()
_waiting: deque[Closure] = deque()
_failures: deque[BaseException] = deque()
_running: Closure | None = None
_running_since = 0
_thread: threading.Thread | None = None


def _submit(closure: Closure) -> None:
    """Hand a closure to the thread; waits for room, after naming what takes so long."""
    global _thread
    closure.args = copied(closure.args)
    closure.kwargs = copied(closure.kwargs)
    with _changed:
        if _thread is None or not _thread.is_alive():
            name = "lazyrt-closures"
            _thread = threading.Thread(target=_work, name=name, daemon=True)
            _thread.start()
        limit = max(1, config.max_async_closures)
        if len(_waiting) + 1 >= max(1, int(limit * _CROWDED)):
            _warn(limit)
        _changed.wait_for(lambda: len(_waiting) < limit)
        _waiting.append(closure)
        _changed.notify_all()


def asynchronous_depth() -> int:
    """Return how many asynchronous closures wait or run."""
    with _changed:
        return len(_waiting) + (_running is not None)


def asynchronous_age_ns() -> int:
    """Return for how long the oldest asynchronous closure has been due, 0 if there is none."""
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
    if _thread is not None and threading.get_ident() == _thread.ident:
        raise UsageError(
            f"wait_for_closures() was called in {_running}, which would wait for itself: "
            "asynchronous closures run one after the other, on one thread. Call it where the "
            "program goes on, after the step."
        )
    with _changed:
        done = _changed.wait_for(lambda: not _waiting and _running is None, timeout_s)
    raise_failure()
    return done


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


@process.at_exit
def _finish() -> None:
    """Let what is queued run before Python ends, and tell of what went wrong."""
    with _changed:
        _changed.wait_for(lambda: not _waiting and _running is None, _MAX_FAREWELL_S)
    while _failures:
        error = _failures.popleft()
        _log.error("an asynchronous step closure failed", exc_info=error)
