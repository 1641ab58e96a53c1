"""Execution modes: lazy, eager debug mode, op-by-op mode; a background flush; the status.

| mode | an op | a read of a pending value | a barrier |
|---|---|---|---|
| lazy | is recorded | barrier, then copy | one executable |
| eager | is compiled and run by itself | copy | has nothing to do |
| opbyop | is recorded | runs the value's cone op by op, again each time | runs op by op |

The modes may change at any time, between any two ops. What is pending when eager debug mode
begins stays pending, with the graph that it had.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import torch

from lazygraph.readable import Readable, plural, size_text
from lazyrt import jax_compat
from lazyrt.config import config, follow
from lazyrt.control import closures
from lazyrt.control.live_tensors import live_tensors
from lazyrt.errors import UsageError
from lazyrt.execution import cache_miss, compiler, completion, op_by_op
from lazyrt.execution.executor import pending_roots
from lazyrt.execution.graph import Graph
from lazyrt.execution.kept_steps import KeptValues, kept_values
from lazyrt.execution.op_by_op import Values, cone_of, run_and_tell
from lazyrt.execution.peek import remember
from lazyrt.frontend import eager
from lazyrt.frontend.provenance import user_site
from lazyrt.ir import active
from lazyrt.ir.live import lock, pending
from lazyrt.ir.node import nbytes_of
from lazyrt.observe import events
from lazyrt.observe.events import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from lazyrt.ir.node import Node, Value
    from lazyrt.observe.events import BarrierFinished, SourceLocation


Name = Literal["lazy", "eager", "opbyop"]
_OP_BY_OP = ("op_by_op_reads", "op_by_op_barriers")


class Mode(str):
    """The name of an execution mode: `lazy`, `eager` or `opbyop`.

    Attributes:
        scope: Who set it: `default`, an environment variable, or a call with its line.
    """

    __slots__ = ("scope",)
    scope: str

    def __new__(cls, name: Name, scope: str) -> Self:
        """Return the mode's name, which knows its scope."""
        mode = super().__new__(cls, name)
        mode.scope = scope
        return mode

    def __repr__(self) -> str:
        return f"<mode {self}, set by {self.scope}>"


def mode() -> Mode:
    """Return the execution mode that ops run in now, and the scope that set it."""
    if config.eager:
        return Mode("eager", config.origin("eager"))
    for name in _OP_BY_OP:
        if getattr(config, name):
            return Mode("opbyop", config.origin(name))
    changed = [
        name for name in ("eager", *_OP_BY_OP) if config.origin(name) != "default"
    ]
    return Mode("lazy", config.origin(changed[0]) if changed else "default")


_IN_PIECES = (
    inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.iscoroutinefunction,
)  # fmt: skip


class Scoped:
    """Settings that hold from a call on, for a block, or for each call of a function."""

    def __init__(self, label: str, settings: dict[str, Any], *, now: bool) -> None:
        self._label = label
        self._settings = settings
        self._before: list[dict[str, tuple[Any, str]]] = []
        self._at_once: dict[str, tuple[Any, str]] | None = None
        if now:
            self._at_once = self._remember()
            self._apply(f"{label}{_at(user_site(3))}")

    def __enter__(self) -> Self:
        before = self._remember() if self._at_once is None else self._at_once
        self._at_once = None
        self._before.append(before)
        self._apply(f"with {self._label}{_at(user_site(2))}")
        return self

    def __exit__(self, *_: object) -> None:
        for name, (value, origin) in self._before.pop().items():
            config.set(name, value, origin=origin)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function: its ops run in this mode.

        A generator or coroutine function is a UsageError: its body runs in pieces.
        """
        name = getattr(function, "__qualname__", repr(function))
        label, settings = f"@{self._label} {name}", self._settings
        if any(is_kind(function) for is_kind in _IN_PIECES):
            raise UsageError(
                f"{label}: the body of a generator or coroutine runs in pieces, between which "
                f"the mode would hold for others. Put `with {self._label}:` around the work "
                "between two of its yields or awaits."
            )

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with Scoped(label, settings, now=False):
                return function(*args, **kwargs)

        return run

    def _remember(self) -> dict[str, tuple[Any, str]]:
        return {
            name: (getattr(config, name), config.origin(name))
            for name in self._settings
        }

    def _apply(self, origin: str) -> None:
        for name, value in self._settings.items():
            config.set(name, value, origin=origin)


def _at(site: object) -> str:
    return f" at {site}" if site is not None else ""


def eager_mode(on: Any = None) -> Any:
    """Compile and run each op by itself, as soon as it is called.

    Values are there at every line, breakpoints and prints cost a copy, and how often XLA
    compiles depends on the ops alone. Each op is slower than its share of a step.

    Args:
        on: Left out, a context manager and decorator; True or False, from this call on (or,
            in `with`, for the block); a module, as `eager_module`; a function, decorated.

    Example:
        >>> import lazyrt, torch
        >>> x = torch.ones(2, device="lazyrt")
        >>> with lazyrt.eager_mode():
        ...     y = x + 1
        >>> lazyrt.is_pending(y)
        False

    Raises:
        UsageError: `on` is something else.
    """
    if isinstance(on, torch.nn.Module):
        return eager_module(on)
    if on is None:
        return Scoped("eager_mode()", {"eager": True}, now=False)
    if isinstance(on, bool):
        return Scoped(f"eager_mode({on})", {"eager": on}, now=True)
    if callable(on):
        return Scoped("eager_mode", {"eager": True}, now=False)(on)
    raise UsageError(
        f"eager_mode({on!r:.60}) got {type(on).__name__}, which is neither True, False, a module "
        "nor a function, so the mode stays. Write `eager_mode(True)`, or `with eager_mode():`."
    )


def enable_eager_execution() -> None:
    """Switch eager debug mode on from here on; legal at any time."""
    origin = f"enable_eager_execution(){_at(user_site(2))}"
    config.set("eager", value=True, origin=origin)


def op_by_op_mode(*, reads: bool = True, barriers: bool = True) -> Any:
    """Run the recorded graph op by op, without XLA's optimisation across ops.

    Nothing is remembered between two reads, so what both need runs twice; the counter
    `op_by_op_repeats` tells how often. A peek (`materialise`, `print`) in this mode remembers.

    Args:
        reads: Whether a program's read (`.cpu()`, `.item()`) runs its tensor's cone so, and
            leaves it pending.
        barriers: Whether barriers run what is pending so.

    Returns:
        A context manager and decorator.
    """
    label = f"op_by_op_mode(reads={reads}, barriers={barriers})"
    settings = {"op_by_op_reads": reads, "op_by_op_barriers": barriers}
    return Scoped(label, settings, now=False)


_SETTINGS: dict[Name, dict[str, bool]] = {
    "lazy": {"eager": False, "op_by_op_reads": False, "op_by_op_barriers": False},
    "eager": {"eager": True},
    "opbyop": {"eager": False, "op_by_op_reads": True, "op_by_op_barriers": True},
}
MODES: tuple[Name, ...] = tuple(_SETTINGS)
"""Every execution mode, for tests that run a program in each."""


def in_mode(name: Name) -> Any:
    """Return a context manager and decorator for a mode by its name, one of `MODES`."""
    if name not in _SETTINGS:
        raise UsageError(
            f"in_mode({name!r}): there is no such execution mode, so it stays {mode()}. "
            f"The modes are {', '.join(MODES)}."
        )
    return Scoped(f"in_mode({name!r})", dict(_SETTINGS[name]), now=False)


class EagerModule(Closing):
    """A module whose forward runs in eager debug mode; `remove()` or `close()` ends that."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._label = f"eager_module({type(module).__name__})"
        self._entered: list[Scoped] = []
        self._hooks = (
            module.register_forward_pre_hook(self._before, prepend=True),
            module.register_forward_hook(self._after, always_call=True),
        )

    def _before(self, _module: torch.nn.Module, _args: Any) -> None:
        scope = Scoped(self._label, {"eager": True}, now=False)
        scope.__enter__()
        self._entered.append(scope)

    def _after(self, _module: torch.nn.Module, _args: Any, _result: Any) -> None:
        if self._entered:
            self._entered.pop().__exit__(None, None, None)

    def close(self) -> None:
        """Let the module be recorded again, like any other."""
        for hook in self._hooks:
            hook.remove()

    remove = close  # as torch's own handles have it


def eager_module(module: torch.nn.Module) -> EagerModule:
    """Run one module's forward in eager debug mode, the rest of the program as before.

    The backward of its ops is recorded lazily, as the program around it is.

    Raises:
        UsageError: `module` is no module.
    """
    if not isinstance(module, torch.nn.Module):
        raise UsageError(
            f"eager_module({module!r:.60}) got {type(module).__name__}, not a module, so "
            "there is no forward to run eagerly. Pass a `torch.nn.Module`."
        )
    return EagerModule(module)


def _debug_mode_of_step(made: Container[str]) -> Name:
    """Return the debug mode that ran some of the pending step's work by itself."""
    if op_by_op.has_run("eager", made):
        return "eager"
    return "opbyop" if op_by_op.has_run("op by op", made) else "lazy"


def install() -> None:
    """Follow the setting `eager`, which an environment variable may have set already."""
    cache_miss.hooks.mode = _debug_mode_of_step
    follow("eager", lambda on: eager.switch(on=bool(on)))
    eager.switch(on=config.eager)


# ------------------------------------------------------------------ a background flush
# Values of pending tensors are computed before anybody asks for them. The user's graph is not cut:
# values are computed op by op, as peeks compute them, and remembered until the next barrier. That
# barrier runs the same graph as without the flush; only peeks find what they need, at once.


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
    with lock:  # asked anew: a barrier may have run them, or somebody dropped them
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


# ------------------------------------------------------------------------------ status
# The rest of what decides what a line may do now, made visible.


_last_barrier: BarrierFinished | None = None
_NOTHING_KEPT = KeptValues()


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(Readable):
    """What is open, queued and pending at one moment; holds no tensor.

    Attributes:
        steps: Names of the open steps, the outermost first; empty text for a nameless one.
        scopes: Labels of the open scopes, the outermost first.
        pending_ops: Ops that the next barrier runs.
        pending_bytes: Size of the tensors that it will make.
        pending_from: The line that recorded the first of these ops, None if it is not known.
        live_tensors: Tensors on the device that Python references.
        live_bytes: Their size, pending ones included.
        queued_closures: Step closures that wait for the end of their step.
        async_closures: Asynchronous ones that are due and have not run.
        async_age_ns: For how long the oldest of them has been due.
        in_flight: Executions that the device has not finished.
        last_barrier: The last barrier that ran something, None if none did.
        kept: The finished steps whose values can be computed again (`config.keep_values`).
    """

    steps: tuple[str, ...]
    scopes: tuple[str, ...]
    pending_ops: int
    pending_bytes: int
    pending_from: SourceLocation | None
    live_tensors: int
    live_bytes: int
    queued_closures: int
    async_closures: int
    async_age_ns: int
    in_flight: int
    last_barrier: BarrierFinished | None
    kept: KeptValues = _NOTHING_KEPT

    def __str__(self) -> str:
        """Return what is pending and open, one thing to a line."""
        pending = (
            f"{plural(self.pending_ops, 'pending op')}, {size_text(self.pending_bytes)}"
        )
        if self.pending_from is not None:
            pending += f", from {self.pending_from} on"
        live = (
            f"{plural(self.live_tensors, 'live tensor')}, {size_text(self.live_bytes)}"
        )
        lines = [pending, live]
        lines += [f"open step: {name or 'without a name'}" for name in self.steps]
        lines += [f"open scope: {name}" for name in self.scopes]
        for count, noun in (
            (self.queued_closures, "step closure"),
            (self.async_closures, "asynchronous closure"),
            (self.in_flight, "execution"),
        ):
            if count:
                lines.append(
                    f"{plural(count, noun)} {'under way' if noun == 'execution' else 'waiting'}"
                )
        if self.kept != _NOTHING_KEPT:
            lines.append(f"kept: {self.kept}")
        last = self.last_barrier
        if last is None:
            return "\n".join([*lines, "no barrier so far"])
        where = f" at {last.site}" if last.site is not None else ""
        return "\n".join(
            [*lines, f"last barrier: {plural(last.nodes, 'op')}, {last.cause}{where}"]
        )


def status() -> Status:
    """Return what is open, queued and pending now; looking changes nothing."""
    with lock:
        roots = pending_roots()
        graph = Graph(roots)
        live = live_tensors()
        kept = kept_values()
    sites = (node.provenance.site for node in graph.nodes)
    return Status(
        steps=tuple(step.name or "" for step in active.steps()),
        scopes=tuple(scope.name for scope in active.scopes()),
        pending_ops=len(graph.nodes),
        pending_bytes=sum(map(nbytes_of, graph.roots)),
        pending_from=next((site for site in sites if site is not None), None),
        live_tensors=len(live),
        live_bytes=sum(tensor.nbytes for tensor in live),
        queued_closures=closures.queued(),
        async_closures=closures.asynchronous_depth(),
        async_age_ns=closures.asynchronous_age_ns(),
        in_flight=completion.in_flight(),
        last_barrier=_last_barrier,
        kept=kept,
    )


def watch_barriers() -> None:
    """Remember the last barrier from now on."""
    events.subscribe(_note, events.BarrierFinished, exact=False)


def _note(event: events.Event) -> None:
    global _last_barrier
    if isinstance(event, events.BarrierFinished) and event.executed:
        _last_barrier = event
