"""`torch_xla.debug.profiler` over lazyrt: annotations, traces by jax's profiler, captures."""

from __future__ import annotations

import contextlib
import dis
import logging
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

import jax

import lazyrt
from lazyrt.compat.common import INTERNAL, Block, refuse
from lazyrt.control import capture
from lazyrt.control.capture import ProfilerServer
from lazyrt.errors import NoEquivalentError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from types import FrameType

__all__ = [
    "StepTrace",
    "Trace",
    "start_server",
    "start_trace",
    "stop_trace",
    "trace",
    "trace_detached",
    "trace_me",
]

REFUSED = {
    "start_session": INTERNAL,
    "stop_session": INTERNAL,
    "set_tracer_marked_step": INTERNAL,
    "get_tracer_marked_step": INTERNAL,
}
__getattr__ = refuse("torch_xla.debug.profiler", REFUSED)

_log = logging.getLogger(__name__)


class Trace(lazyrt.scope):
    """A labelled block, or each call of a function: on the timeline, and as a scope of its ops.

    A barrier inside raises ScopeError, whose text is the original's with the lines and the fix.

    Args:
        name: The label.
        kwargs: Facts for the timeline.
    """

    __slots__ = ("_facts",)

    def __init__(self, name: str, **kwargs: Any) -> None:
        if not name or not isinstance(name, str):
            super().__init__(name)  # raises
        self.name, self.part, self._facts = name, 0, kwargs

    def _annotation(self) -> jax.profiler.TraceAnnotation:
        return jax.profiler.TraceAnnotation(self.name, **self._facts)


def trace_me(scope: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator: each call of the function is a block labelled `scope`, a `Trace`."""
    return Trace(scope)


class _Label(lazyrt.scope):
    """A scope whose step is on the profile already."""

    __slots__ = ()

    def _annotation(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()


class StepTrace(Block, Trace):
    """A labelled block that is one step, or each call of a function: it ends in a barrier.

    Args:
        name: The label.
        kwargs: Facts for the timeline; `step_num` is the step's number.
    """

    def _enter(self, stack: contextlib.ExitStack) -> None:
        number = self._facts.get("step_num")
        annotation = jax.profiler.StepTraceAnnotation(self.name, **self._facts)
        stack.enter_context(annotation)
        stack.enter_context(lazyrt.step(self.name, number, on_read="allow"))
        stack.enter_context(_Label(self.name))  # ends before the step's barrier


def start_server(port: int, only_on_master: bool = True) -> ProfilerServer:
    """Start a server to which `trace`, `python -m lazyviz capture` and TensorBoard can connect.

    It listens on all interfaces of the machine, and lives as long as the result. Where the
    result is not kept, a warning names the line, and the server lives as long as the process.

    Args:
        port: 0 lets the system choose; `.port` of the result says which it is.
        only_on_master: Without effect: each process is a master.

    Raises:
        RuntimeError: The port is invalid or busy.
    """
    server = ProfilerServer(port, host="")
    _log.warning(
        "the profiler server listens on port %d of all interfaces", server.port
    )
    if _drops_result(sys._getframe(1)):  # noqa: SLF001 - Python's own way to a caller
        _unheld.append(server)
        warnings.warn(
            f"no variable holds the server on port {server.port}, so it lives until the process ends. "
            "Write `server = xp.start_server(...)`; `server.close()` ends it.",
            RuntimeWarning,
            stacklevel=2,
        )
    return server


_unheld: list[ProfilerServer] = []


def _drops_result(frame: FrameType) -> bool:
    """Return whether a frame drops what the call returns that it is at."""
    after = (
        each
        for each in dis.get_instructions(frame.f_code)
        if each.offset > frame.f_lasti
    )
    return next(after).opname == "POP_TOP"


def start_trace(log_dir: str | os.PathLike[str], options: Any = None) -> None:
    """Record a trace from now on, with jax's profiler; it ends by itself at 256 MiB.

    Args:
        log_dir: The folder to which `stop_trace` writes.
        options: jax's `ProfileOptions`, or some of them by name. Python's own frames are left
            out, unless `{"python_tracer_level": 1}` asks for them.

    Raises:
        RuntimeError: A trace is being recorded, or there is no such option.
    """
    _recording.append(capture.Recording(log_dir, options))


_recording: list[capture.Recording] = []


def stop_trace() -> None:
    """End the trace and write it; a warning says so if it ended before, as it became too large.

    Raises:
        RuntimeError: None is being recorded.
    """
    if not _recording:
        raise RuntimeError("No profile started")
    note = _recording.pop().stop()
    if note:
        warnings.warn(f"the trace: {note}.", RuntimeWarning, stacklevel=2)


def trace(
    service_addr: str,
    logdir: str,
    duration_ms: int = 1000,
    num_tracing_attempts: int = 3,
    host_tracer_level: int = 2,
    device_tracer_level: int = 1,
    delay_ms: int = 0,
    timeout_s: int = 120,
    interactive: str = "",
) -> None:
    """Capture what the programs at some addresses do, and write it where TensorBoard looks.

    Args:
        service_addr: `HOST:PORT` of the server that `start_server` started; several with commas.
        logdir: The folder, below which `plugins/profile` is made.
        duration_ms: For how long.
        num_tracing_attempts: How often to ask where no server answers.
        host_tracer_level: 0 to 3: how much of the host is recorded.
        device_tracer_level: Without effect: the device is always recorded.
        delay_ms: How long the program waits first.
        timeout_s: How long to wait for the answer beside that.
        interactive: Must be empty.

    Raises:
        RuntimeError: An address is none, or no profile came from it.
    """
    if interactive:
        raise NoEquivalentError(
            f"trace() got interactive={interactive!r}, so it would have to show the profile. "
            "Leave it out, and look at the folder with lazyviz.read() or TensorBoard."
        )
    request = capture.Request(
        duration_s=duration_ms / 1000,
        delay_s=delay_ms / 1000,
        options={"host_tracer_level": host_tracer_level},
    )
    for address in service_addr.split(","):
        found = capture.capture(
            address.strip(), request, attempts=num_tracing_attempts, timeout_s=timeout_s
        )
        _log.info("the profile of %s is in %s", address, found.write(logdir))
        for note in found.notes:
            _log.warning("the profile of %s: %s", address, note)


def trace_detached(*args: Any, **kwargs: Any) -> threading.Thread:
    """Do what `trace` does on a thread of its own, which is returned; the program goes on."""
    thread = threading.Thread(
        target=trace, args=args, kwargs=kwargs, name="lazyrt trace_detached"
    )
    thread.start()
    return thread
