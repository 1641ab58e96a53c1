"""`torch_xla.debug.profiler` over lazyrt: annotations, and traces by jax's profiler."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import jax

import lazyrt
from lazyrt.compat.common import INTERNAL, NO_SERVER, Block, refuse

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable

__all__ = [
    "StepTrace",
    "Trace",
    "start_server",
    "start_trace",
    "stop_trace",
    "trace_me",
]

REFUSED = {
    "trace": NO_SERVER,
    "trace_detached": NO_SERVER,
    "start_session": INTERNAL,
    "stop_session": INTERNAL,
    "set_tracer_marked_step": INTERNAL,
    "get_tracer_marked_step": INTERNAL,
}
__getattr__ = refuse("torch_xla.debug.profiler", REFUSED)

_log = logging.getLogger(__name__)
_MAX_PORT = 65_535


class Trace(lazyrt.scope):
    """A labelled block, or each call of a function: on the timeline, and as a scope of its ops.

    A barrier inside raises ScopeError, whose text is the original's with the lines and the fix.

    Args:
        name: The label.
        kwargs: Facts for the timeline.
    """

    __slots__ = ("_facts",)

    def __init__(self, name: str, **kwargs: Any) -> None:
        lazyrt.scope.__init__(self, name)
        self._facts = kwargs

    def _annotation(self) -> jax.profiler.TraceAnnotation:
        return jax.profiler.TraceAnnotation(self.name, **self._facts)


def trace_me(scope: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator: each call of the function is a block labelled `scope`, a `Trace`."""
    return Trace(scope)


class _Label(lazyrt.scope):
    """A scope whose step is on the profile already."""

    __slots__ = ()
    _is_annotated = False


class StepTrace(Block, Trace):
    """A labelled block that is one step, or each call of a function: it ends in a barrier.

    Args:
        name: The label.
        kwargs: Facts for the timeline; `step_num` is the step's number.
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        Block.__init__(self)
        Trace.__init__(self, name, **kwargs)

    def _enter(self, stack: contextlib.ExitStack) -> None:
        number = self._facts.get("step_num")
        annotation = jax.profiler.StepTraceAnnotation(self.name, **self._facts)
        stack.enter_context(annotation)
        stack.enter_context(lazyrt.step(self.name, number, on_read="allow"))
        stack.enter_context(_Label(self.name))  # ends before the step's barrier


def start_server(port: int, only_on_master: bool = True) -> Any:
    """Start jax's profiler server, to which a profiler's client can connect.

    It listens on all interfaces of the machine, and lives as long as the result.

    Raises:
        RuntimeError: The port is invalid or busy.
    """
    if not 0 < port <= _MAX_PORT:
        raise RuntimeError(
            f"start_server() got port {port}, which is none. Give a free one from 1024 to "
            f"{_MAX_PORT}."
        )
    _log.warning("the profiler server listens on port %d of all interfaces", port)
    return jax.profiler.start_server(port)


def start_trace(log_dir: str, options: Any = None) -> None:
    """Record a trace from now on, with jax's profiler."""
    jax.profiler.start_trace(log_dir)


def stop_trace() -> None:
    """End the trace and write it."""
    jax.profiler.stop_trace()  # type: ignore[no-untyped-call]
