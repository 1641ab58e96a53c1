"""Objects that are entered again and again: by nested blocks, threads and coroutines at once."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

_open: ContextVar[tuple[contextlib.ExitStack, ...]] = ContextVar(
    "lazyrt_compat_blocks", default=()
)


class Block:
    """A context manager that leaves what the same thread or coroutine entered last."""

    def __init__(self) -> None:
        self._entered: list[contextlib.ExitStack] = []

    def _enter(self, stack: contextlib.ExitStack) -> None:
        """Enter what the block consists of."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._enter(stack)
            entered = stack.pop_all()
        self._entered.append(entered)
        _open.set((*_open.get(), entered))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        mine = _open.get()
        latest = next(
            (each for each in reversed(self._entered) if each in mine),
            self._entered[-1],
        )
        self._entered.remove(latest)
        _open.set(tuple(each for each in mine if each is not latest))
        latest.__exit__(kind, error, traceback)
