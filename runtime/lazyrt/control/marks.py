"""Marks: the barriers that end a step, with what belongs to the end of one, and scopes.

A mark re-raises what an asynchronous closure raised, refuses to tear an open scope, runs
what is pending, and then runs the closures that were put off to this moment.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from jax.profiler import TraceAnnotation

from lazyrt.config import config
from lazyrt.control import closures
from lazyrt.errors import ScopeError, UsageError
from lazyrt.execution.executor import barrier
from lazyrt.frontend import guard
from lazyrt.frontend.guard import check_barrier
from lazyrt.frontend.provenance import (
    is_library,
    library_caller,
    library_files,
    site_of_instruction,
    user_site,
)
from lazyrt.ir import active
from lazyrt.ir.active import ActiveScope, innermost_scope
from lazyrt.observe import events
from lazyrt.observe.events import SourceLocation, scope_listeners

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType, TracebackType


P = ParamSpec("P")
R = TypeVar("R")
_is_profiled = TraceAnnotation.is_enabled
# Names of their own: an attribute of an imported object is looked up anew in each call.
_frame, _known_library, _UNKNOWN = sys._getframe, library_files.get, True
_innermost, _set_innermost = innermost_scope.get, innermost_scope.set


# ------------------------------------------------------------------------------- scopes


class scope(ActiveScope):  # noqa: N801 - used like a function: `with scope("loss"):`, `@scope("loss")`
    """Label the ops of a block, or of each call of a function: on the timeline and in errors.

    A scope does not change the graph. `mark_step()` inside one raises ScopeError, because the
    block would lie in two steps; with `config.scope_policy = "split"` the scope ends before
    the barrier and goes on, as its next part, after it. Whole `step()` blocks may lie inside.
    One object may be entered again, within itself and by several threads and coroutines.

    Args:
        name: The label.

    Raises:
        UsageError: The name is empty or no text.
    """

    __slots__ = ()

    def __init__(self, name: str) -> None:
        if not name or not isinstance(name, str):
            raise UsageError(
                f"scope() got {name!r} as its name, so its ops would have no label. "
                "Give it a word: `with lazyrt.scope('loss'):`."
            )
        self.name = name
        self.part = 0

    # Each layer of a model may enter one in each step, so this counts nanoseconds.
    def __enter__(self) -> Self:
        if self.part:
            opened = ActiveScope()
            opened.name, opened.owner = self.name, self
        else:
            opened = self
        opened.part = 1  # no other thread runs between the question and this
        frame = _frame(1)
        code = frame.f_code
        if _known_library(code.co_filename, _UNKNOWN):
            opened.code, opened.instruction = _user_code(frame)
        else:
            opened.code, opened.instruction = code, frame.f_lasti
        opened.annotation = None
        if _is_profiled():
            opened.annotation = self._annotation()
            opened.annotation.__enter__()
        opened.outer = _innermost()
        _set_innermost(opened)
        opened.started_ns = perf_counter_ns() if scope_listeners else 0
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        opened = _innermost()
        if scope_listeners or (
            opened is not self and getattr(opened, "owner", None) is not self
        ):
            self._close()
            return
        _set_innermost(opened.outer)  # type: ignore[union-attr]
        if opened.annotation is not None:  # type: ignore[union-attr]
            opened.annotation.__exit__(None, None, None)  # type: ignore[union-attr]

    def _close(self) -> None:
        """Leave what was entered last, and tell of it; coroutines may end in any order."""
        opened = active.scopes()
        ended = active.close_scope(self)
        if ended is None:
            return
        _tell_end(ended, opened)
        if ended.annotation is not None:
            ended.annotation.__exit__(None, None, None)

    def _annotation(self) -> TraceAnnotation:
        """Return the mark that it makes on a profile of XLA."""
        return TraceAnnotation(self.name)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function or a coroutine function: each call is a block.

        Raises:
            UsageError: A generator function: its body runs in pieces, between which the
                caller's ops would have the label, too.
        """
        return decorated(function, lambda: self, "scope")


def decorated(
    function: Callable[P, R],
    block: Callable[[], contextlib.AbstractContextManager[Any]],
    name: str,
) -> Callable[P, R]:
    """Return a function or coroutine function whose calls are blocks, such as scopes.

    A generator function is a UsageError: its body runs in pieces, and the ops of its caller would
    belong to the block, too. `name` is what the decorator is called.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"@{name}() cannot decorate the generator function {function.__qualname__}: its "
            f"body runs in pieces. Put `with {name}():` around the work between two yields."
        )
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            with block():
                return await function(*args, **kwargs)

        return run_async  # type: ignore[return-value]

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with block():
            return function(*args, **kwargs)

    return run


def _user_code(frame: FrameType | None) -> tuple[CodeType | None, int]:
    """Return the code and the instruction of the innermost frame of the user's."""
    while frame is not None and is_library(frame.f_code):
        frame = frame.f_back
    return (None, 0) if frame is None else (frame.f_code, frame.f_lasti)


@contextlib.contextmanager
def torn(cause: str, site: SourceLocation | None) -> Iterator[None]:
    """Refuse a barrier inside open scopes, or split them around it."""
    opened = active.scopes()
    if opened and config.scope_policy == "error":
        raise _error(opened, cause, site)
    for each in reversed(opened):
        _tell_end(each, opened)
    try:
        yield
    finally:
        for each in opened:
            each.part += 1
            each.started_ns = perf_counter_ns()


def _error(
    opened: tuple[ActiveScope, ...], cause: str, site: SourceLocation | None
) -> ScopeError:
    inner = opened[-1]
    line = f"line {site.line}" if site is not None else "the call"
    error = ScopeError(
        f"Expecting scope to be empty but it is {_path(opened, inner)}. {cause} inside a scope "
        f"would put its ops into two steps. Move {line} out of the `with` block, or split "
        'scopes at barriers with `lazyrt.config.scope_policy = "split"`.'
    )
    opened_at = site_of_instruction(inner.code, inner.instruction)
    if opened_at is not None:
        error.add_note(f"the scope {inner.name!r} was opened at {opened_at}")
    if site is not None:
        error.add_note(f"{cause} was called at {site}")
    return error


def _path(opened: tuple[ActiveScope, ...], inner: ActiveScope) -> str:
    names = [each.name for each in opened]
    return "/".join(names[: opened.index(inner) + 1])


def _tell_end(ended: ActiveScope, opened: tuple[ActiveScope, ...]) -> None:
    if not (scope_listeners and ended.started_ns):  # opened before anybody listened
        return
    events.emit(
        events.ScopeFinished(
            path=_path(opened, ended),
            site=site_of_instruction(ended.code, ended.instruction),
            part=ended.part,
            started_ns=ended.started_ns,
            duration_ns=perf_counter_ns() - ended.started_ns,
        )
    )


def mark_step() -> None:
    """Run everything pending as one executable; a barrier with nothing pending runs nothing.

    Then the step closures run that were queued outside of `step()`. Returns when the work is
    handed to the device, not when it is done; see `wait`.

    Raises:
        StepSyncError: Called inside a `step()` that forbids reads; it ends in a barrier anyway.
        ScopeError: Called inside an open `scope()` while `config.scope_policy` is `error`.
    """
    check_barrier("mark_step()")
    mark("mark_step()", user_site(2), caller=library_caller(2))


def mark(
    cause: str, site: SourceLocation | None, *, caller: SourceLocation | None = None
) -> None:
    """End the work outside of steps in a barrier; inside a step, cut it.

    What a finaliser asks for in the middle of an op is left to the next barrier.
    """
    if guard.interrupts_an_op():
        return
    closures.raise_failure()
    inside = active.innermost() is not None
    if active.scopes():
        with torn(cause, site):
            barrier(cause, site, caller=caller)
    else:
        barrier(cause, site, caller=caller)
    if not inside:
        closures.run_queued()


def mark_quietly(cause: str, site: SourceLocation | None) -> None:
    """Do what `mark` does, for a barrier that nobody wrote down: it never tears a scope."""
    if guard.interrupts_an_op():
        return
    closures.raise_failure()
    barrier(cause, site)
    closures.run_queued()
