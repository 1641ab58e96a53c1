"""Helpers for tests of programs on the lazy device: what was compiled, what was run.

They count what the program's steps did. Prints, peeks and other looks do not count, since
they do not change what a step compiles or runs.

Example:
    >>> import lazyrt, torch
    >>> from lazyrt.testing import assert_compiles, assert_executions, frozen
    >>> x = torch.ones(2, device="lazyrt")
    >>> with assert_executions(1):
    ...     y = x * 2
    ...     lazyrt.mark_step()
    >>> with frozen():
    ...     y = x * 2 + 1
    ...     lazyrt.mark_step()
    Traceback (most recent call last):
    ...
    lazyrt.errors.FrozenError: ...
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from lazygraph.readable import plural
from lazyrt.errors import UsageError
from lazyrt.execution.cache_miss import frozen
from lazyrt.execution.executor import pending_roots
from lazyrt.execution.graph import Graph
from lazyrt.observe import events
from lazyrt.observe.events import BarrierFinished, CompileFinished, Event

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["assert_compiles", "assert_executions", "frozen"]


@contextlib.contextmanager
def assert_compiles(count: int) -> Iterator[None]:
    """Check that a block makes exactly `count` new step graphs.

    A graph is new when this process has no executable for it, whether XLA compiles it or the
    disk cache has it from an earlier run, so that the second run of a test counts the same.

    Args:
        count: How many.

    Raises:
        AssertionError: It made another number; the message gives the reason of each.
        UsageError: `count` is not a whole number from 0.
    """
    _check("assert_compiles", count)
    found: list[Event] = []
    with events.subscribe(found.append, CompileFinished, exact=False):
        yield
    compiles = [
        e for e in found if isinstance(e, CompileFinished) and e.purpose == "step"
    ]
    if len(compiles) != count:
        lines = [f"{plural(e.nodes, 'op')}: {e.reason}" for e in compiles]
        raise AssertionError(_message(count, "new step graph", lines))


@contextlib.contextmanager
def assert_executions(count: int) -> Iterator[None]:
    """Check that a block starts exactly `count` executions.

    Args:
        count: How many barriers run something.

    Raises:
        AssertionError: It started another number; the message gives cause and line of each.
        UsageError: `count` is not a whole number from 0.
    """
    _check("assert_executions", count)
    found: list[Event] = []
    with events.subscribe(found.append, BarrierFinished, exact=False):
        yield
    ran = [e for e in found if isinstance(e, BarrierFinished) and e.executed]
    if len(ran) != count:
        lines = [f"{plural(e.nodes, 'op')}: {e.cause} at {e.site}" for e in ran]
        raise AssertionError(_message(count, "execution", lines))


def _check(name: str, count: object) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise UsageError(
            f"{name}() got {count!r}, which is no number to compare a count with. Pass a "
            "whole number from 0."
        )


def _message(expected: int, what: str, lines: list[str]) -> str:
    found = f"expected {plural(expected, what)}, found {len(lines)}"
    parts = [f"{found}:" if lines else f"{found}.", *(f"  {line}" for line in lines)]
    pending = len(Graph(pending_roots()).nodes)
    if pending:
        parts.append(
            f"{plural(pending, 'op')} still pending: a barrier such as lazyrt.mark_step() at "
            "the end of the block would run them."
        )
    return "\n".join(parts)
