"""Marks: the barriers that end a step, with what belongs to the end of one, and scopes.

A mark re-raises what an asynchronous closure raised, refuses to tear an open scope, runs
what is pending, and then runs the closures that were put off to this moment.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from lazyrt.config import config
from lazyrt.control import closures
from lazyrt.errors import ScopeError, UsageError
from lazyrt.execution.executor import barrier
from lazyrt.frontend import finalisers
from lazyrt.frontend.guard import check_barrier
from lazyrt.frontend.provenance import library_caller, user_site
from lazyrt.ir import active
from lazyrt.ir.active import ActiveScope
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazyrt.observe.events import SourceLocation


# ------------------------------------------------------------------------------- scopes


@contextlib.contextmanager
def scope(name: str) -> Iterator[None]:
    """Label the ops of a block, on the timeline and in errors.

    A scope does not change the graph. `mark_step()` inside one raises ScopeError, because the
    block would lie in two steps; with `config.scope_policy = "split"` the scope ends before
    the barrier and goes on, as its next part, after it. Whole `step()` blocks may lie inside.

    Args:
        name: The label.

    Raises:
        UsageError: The name is empty or no text.
    """
    if not name or not isinstance(name, str):
        raise UsageError(
            f"scope() got {name!r} as its name, so its ops would have no label. "
            "Give it a word: `with lazyrt.scope('loss'):`."
        )
    opened = ActiveScope(name, user_site(3), time.perf_counter_ns())
    active.open_scope(opened)
    try:
        yield
    finally:
        _tell_end(opened)
        active.close_scope(opened)


@contextlib.contextmanager
def torn(cause: str, site: SourceLocation | None) -> Iterator[None]:
    """Refuse a barrier inside open scopes, or split them around it.

    Raises:
        ScopeError: A scope is open and the policy is `error`.
    """
    opened = active.scopes()
    if opened and config.scope_policy == "error":
        raise _error(opened, cause, site)
    for each in reversed(opened):
        _tell_end(each)
    try:
        yield
    finally:
        for each in opened:
            each.part += 1
            each.started_ns = time.perf_counter_ns()


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
    if inner.site is not None:
        error.add_note(f"the scope {inner.name!r} was opened at {inner.site}")
    if site is not None:
        error.add_note(f"{cause} was called at {site}")
    return error


def _path(opened: tuple[ActiveScope, ...], inner: ActiveScope) -> str:
    names = [each.name for each in opened]
    return "/".join(names[: opened.index(inner) + 1])


def _tell_end(ended: ActiveScope) -> None:
    if not events.active():
        return
    opened = active.scopes()
    events.emit(
        events.ScopeFinished(
            path=_path(opened, ended) if ended in opened else ended.name,
            site=ended.site,
            part=ended.part,
            started_ns=ended.started_ns,
            duration_ns=time.perf_counter_ns() - ended.started_ns,
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
    if finalisers.interrupts_an_op():
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
    if finalisers.interrupts_an_op():
        return
    closures.raise_failure()
    barrier(cause, site)
    closures.run_queued()
