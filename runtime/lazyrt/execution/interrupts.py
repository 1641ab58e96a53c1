"""Ctrl-C at the one place where it must wait: between handing memory to XLA and noting results."""

from __future__ import annotations

import importlib
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType, TracebackType


# `signal.signal` looks each handler up among the names of an enum: 7 µs a call, cold three times
# that, twice in every barrier. The function behind it takes 0.3.
_set_handler = getattr(importlib.import_module("_signal"), "signal", signal.signal)


class deferred_interrupt:  # noqa: N801 - used like a function, in `with`
    """Put SIGINT off to the end of the block; costs about 1 µs, and nothing off the main thread.

    Dispatch donates the memory of inputs. An interrupt between it and the moment when its
    results are stored would lose both.
    """

    __slots__ = ("_before", "_caught")

    def __enter__(self) -> None:
        self._caught: tuple[int, FrameType | None] | None = None
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():
            self._before = _set_handler(signal.SIGINT, self._catch)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self._caught = (number, frame)
        if _is_waiting:
            self.deliver()

    def deliver(self) -> None:
        """Let Ctrl-C that has come have its effect now."""
        caught, self._caught = self._caught, None
        if caught is not None and callable(self._before):
            self._before(*caught)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before is None:
            return
        _set_handler(signal.SIGINT, self._before)
        self.deliver()


class waiting:  # noqa: N801 - likewise
    """Let Ctrl-C end what waits in the block, though an op of the eager debug mode puts it off."""

    def __enter__(self) -> None:
        global _is_waiting
        if threading.current_thread() is threading.main_thread():
            _is_waiting = True
            deferring = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
            if isinstance(deferring, deferred_interrupt):
                deferring.deliver()

    def __exit__(self, *_: object) -> None:
        global _is_waiting
        if threading.current_thread() is threading.main_thread():
            _is_waiting = False


_is_waiting = False  # on the main thread
