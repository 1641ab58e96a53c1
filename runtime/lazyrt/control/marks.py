"""Marks: the barriers that end a step, with what belongs to the end of one.

A mark re-raises what an asynchronous closure raised, refuses to tear an open scope, runs
what is pending, and then runs the closures that were put off to this moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyrt.control import closures, scopes
from lazyrt.execution.executor import barrier
from lazyrt.frontend import finalisers
from lazyrt.frontend.guard import check_barrier
from lazyrt.frontend.provenance import library_caller, user_site
from lazyrt.ir import active

if TYPE_CHECKING:
    from lazyrt.observe.events import Site


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


def mark(cause: str, site: Site | None, *, caller: Site | None = None) -> None:
    """End the work outside of steps in a barrier; inside a step, cut it.

    What a finaliser asks for in the middle of an op is left to the next barrier.
    """
    if finalisers.interrupts_an_op():
        return
    closures.raise_failure()
    inside = active.innermost() is not None
    if active.scopes():
        with scopes.torn(cause, site):
            barrier(cause, site, caller=caller)
    else:
        barrier(cause, site, caller=caller)
    if not inside:
        closures.run_queued()


def mark_quietly(cause: str, site: Site | None) -> None:
    """Do what `mark` does, for a barrier that nobody wrote down: it never tears a scope."""
    if finalisers.interrupts_an_op():
        return
    closures.raise_failure()
    barrier(cause, site)
    closures.run_queued()
