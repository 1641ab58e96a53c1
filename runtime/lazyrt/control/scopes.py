"""Scopes: labelled blocks of the user's code, and what a barrier in one means."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from lazyrt.config import config
from lazyrt.errors import ScopeError, UsageError
from lazyrt.frontend.provenance import user_site
from lazyrt.ir import active
from lazyrt.ir.active import ActiveScope
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazyrt.observe.events import Site


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
def torn(cause: str, site: Site | None) -> Iterator[None]:
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
    opened: tuple[ActiveScope, ...], cause: str, site: Site | None
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
