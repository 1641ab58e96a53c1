"""A background flush: values of pending tensors are computed before anybody asks for them.

The user's graph is not cut: values are computed op by op, as peeks compute them, and
remembered until the next barrier. That barrier runs the same graph as without the flush; only
peeks find what they need, at once.
"""

from __future__ import annotations

import itertools
import logging
import threading
from typing import TYPE_CHECKING, overload

from lazyrt import jax_compat
from lazyrt.closing import Closing
from lazyrt.config import config
from lazyrt.errors import UsageError
from lazyrt.execution import compiler
from lazyrt.execution.op_by_op import cone_of, run_and_tell
from lazyrt.execution.peek import remember
from lazyrt.ir.live import lock, pending

if TYPE_CHECKING:
    from lazyrt.execution.op_by_op import Values
    from lazyrt.ir.node import Node, Value

_log = logging.getLogger(__name__)
# Nodes in one go with the lock held: the user's thread waits for at most so many.
_BATCH = 16
_FAREWELL_S = 10.0


class BackgroundFlush(Closing):
    """The thread of a background flush; `close()` ends it, and so does leaving `with`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="lazyrt-flush", daemon=True
        )
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many live pending values have not been computed."""
        with lock:
            return len(_unknown())

    def close(self) -> None:
        """End the thread; returns when it has ended."""
        self._closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_FAREWELL_S)

    def _run(self) -> None:
        while not self._closed.wait(self.seconds):
            try:
                while not self._closed.is_set() and _flush_some():
                    pass
            except Exception:  # noqa: BLE001 - the thread ends, the program goes on
                # An op that cannot be computed raises again where the user's program needs it.
                _log.exception("the background flush has stopped")
                return


_running: BackgroundFlush | None = None
_switching = threading.RLock()


@overload
def background_flush(seconds: float) -> BackgroundFlush: ...


@overload
def background_flush(seconds: None) -> None: ...


def background_flush(seconds: float | None) -> BackgroundFlush | None:
    """Compute pending values in the background, every so many seconds.

    There is one flush at a time: another call replaces it.

    Args:
        seconds: Pause between two looks at what is pending; None ends the flush.

    Returns:
        The flush, also a context manager; None after `background_flush(None)`.

    Raises:
        UsageError: `seconds` is not a positive number.
    """
    global _running
    if seconds is not None and not _is_pause(seconds):
        raise UsageError(
            f"background_flush({seconds!r}) takes the seconds between two looks, more than 0; "
            "the flush that may be running goes on. Write `background_flush(0.2)`, or "
            "`background_flush(None)` to end it."
        )
    with _switching:
        if _running is not None:
            _running.close()
        _running = BackgroundFlush(float(seconds)) if seconds is not None else None
        return _running


def _is_pause(seconds: object) -> bool:
    """Return whether a thread can wait so long."""
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        return False
    return 0 < seconds <= threading.TIMEOUT_MAX


def _unknown() -> list[Value]:
    """Return the live pending values that nobody has computed."""
    values = (buffer.value for buffer in pending.live())
    return list(
        dict.fromkeys(
            value
            for value in values
            if value is not None
            and value.node is not None
            and value not in pending.memo
        )
    )


def _flush_some() -> bool:
    """Compute a few nodes; return whether there is more to do."""
    with lock:
        cone = _next_nodes()
    for node in cone:  # XLA compiles without the lock: the user's thread goes on
        if not compiler.is_compiled(node.spec):
            compiler.compile_spec(node.spec, "background", node)
    with (
        lock
    ):  # asked anew: a barrier may have run those nodes, or somebody dropped them
        cone = _next_nodes()
        ready = itertools.takewhile(lambda n: compiler.is_compiled(n.spec), cone)
        return _run(list(ready)) and bool(cone)


def _next_nodes() -> list[Node]:
    unknown = _unknown()
    if not unknown or pending.memo_bytes >= config.peek_memo_bytes:
        return []
    cone, _ = cone_of(unknown[:1], pending.memo)
    return cone[:_BATCH]


def _run(cone: list[Node]) -> bool:
    """Run nodes and remember what they give; return whether there is room for more."""
    values: Values = dict(pending.memo)
    with jax_compat.scope():
        for node in cone:
            if all(out is None or out in pending.memo for out in node.outputs):
                continue  # a peek was faster
            run_and_tell(node, values, "background")
            for output in node.outputs:
                if output is not None and not remember(output, values[output]):
                    return False  # none until the next barrier
    return True
