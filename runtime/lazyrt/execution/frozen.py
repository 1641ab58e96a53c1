"""A stretch of the program in which no new graph may appear."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING

from lazyrt.errors import FrozenError

if TYPE_CHECKING:
    from collections.abc import Iterator

_is_frozen: ContextVar[bool] = ContextVar("lazyrt_frozen", default=False)


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """Let no step make a new graph inside the block.

    A barrier that would have to compile, or to read an executable from disk, raises with the
    reason; nothing has run then, and its tensors stay pending. Prints and peeks may compile:
    they do not change what a step compiles.

    Raises:
        FrozenError: A step's graph is new.
    """
    token = _is_frozen.set(True)
    try:
        yield
    finally:
        _is_frozen.reset(token)


def check_frozen(nodes: int, reason: str) -> None:
    """Stop the compile of a new step graph inside `frozen()`.

    Raises:
        FrozenError: The caller is inside `frozen()`.
    """
    if _is_frozen.get():
        raise FrozenError(
            f"a new graph of {nodes:,} {'op' if nodes == 1 else 'ops'} inside frozen(): {reason}. "
            "It would have to be compiled, so nothing ran and its tensors stay pending. Run one "
            "such step before the block, or take away what made it new."
        )
