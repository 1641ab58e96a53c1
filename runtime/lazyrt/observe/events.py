"""Typed events: the only way in which lazyrt tells anybody what it did.

An event is a dataclass named for what has happened. It holds names, ids, sizes and integer
nanoseconds (of `time.perf_counter_ns`), never a tensor, so that listening keeps nothing alive.
A listener runs on the thread that emits, so it appends and returns; all listeners get the same
event, so none changes it. A frozen dataclass would take three times as long to make.

Example:
    >>> seen = []
    >>> with subscribe(seen.append, CompileFinished):
    ...     emit(BarrierFinished(step=1, cause="mark_step()", site=None, nodes=0, roots=0,
    ...                          executed=False, duration_ns=5))
    >>> seen
    []
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from lazygraph.snapshot import Site as Site  # noqa: PLC0414 - the name until 0.2
from lazygraph.snapshot import SourceLocation as SourceLocation  # noqa: PLC0414, TC001
from lazyrt.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType


class Closing(ABC):
    """What goes on until it is closed, by itself or by `with`: a listener, a hook, a background thread."""

    @abstractmethod
    def close(self) -> None:
        """End it; closing twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


_log = logging.getLogger(__name__)

Cache = Literal[
    "nodes", "executables", "plans", "slices", "result types", "decompositions", "disk"
]  # fmt: skip
Purpose = Literal["step", "peek", "op", "eager", "op by op", "background", "tier up"]
Tier = Literal["optimised", "fast"]
Direction = Literal["to_device", "to_host"]
Strategy = Literal["memo", "slice", "op by op", "reuse"]
SingleOps = Literal["eager", "op by op", "background"]


# How often each op stands in a graph.
OpCounts = tuple[tuple[str, int], ...]


def base_name(op: str) -> str:
    """Return an op's name without namespace and overload, as torch_xla counts it.

    Example:
        >>> base_name("aten.nonzero.default")
        'nonzero'
    """
    parts = op.split(".")
    return parts[1] if len(parts) > 1 else op


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class OpRecorded(Event):
    """A torch op became an IR node, or met the node of an equal earlier one."""

    node_id: int
    op: str


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class OpTraced(Event):
    """An op was recorded, or run by itself, in so long; emitted while `watch_tracing` is on."""

    duration_ns: int


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class GraphCaptured(Event):
    """A barrier collected the pending graph of all live tensors.

    Attributes:
        ops: How often each op stands in the graph, by its name without namespace and overload.
    """

    step: int
    fingerprint: str
    nodes: int
    parameters: int
    roots: int
    cache_hit: bool
    duration_ns: int
    ops: OpCounts = ()


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class LoweringFinished(Event):
    """A graph became StableHLO text."""

    fingerprint: str
    purpose: Purpose
    nodes: int
    duration_ns: int


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class CompileStarted(Event):
    """XLA began to compile."""

    fingerprint: str
    purpose: Purpose
    tier: Tier
    nodes: int
    time_ns: int


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class CompileProgress(Event):
    """A compile or execution that has been going on for a while; repeated about twice a second.

    Attributes:
        done: How many of the nodes have run, where they run one by one; None otherwise.
    """

    fingerprint: str
    purpose: Purpose
    phase: Literal["compile", "execute"]
    nodes: int
    elapsed_ns: int
    done: int | None = None


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class TransferProgress(Event):
    """A copy that has been going on for a while; repeated about twice a second.

    Attributes:
        nbytes: Size of all of it.
        done: How much is copied.
    """

    direction: Direction
    nbytes: int
    done: int
    elapsed_ns: int
    site: SourceLocation | None


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class WaitFinished(Event):
    """A thread waited for an executable or for the device; comes from that thread.

    Attributes:
        phase: `compile` (lowering and reading from disk included) or `execute`.
        interrupted: Whether an exception ended the wait, such as Ctrl-C or a failed compile.
    """

    fingerprint: str
    purpose: Purpose
    phase: Literal["compile", "execute"]
    duration_ns: int
    interrupted: bool = False


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class CompileFinished(Event):
    """An executable is ready.

    Attributes:
        source: `xla` for a fresh compile, `disk` for one read from the persistent cache.
        reason: Why this graph had to be compiled, in words; empty for peeks and single ops.
    """

    fingerprint: str
    purpose: Purpose
    tier: Tier
    source: Literal["xla", "disk"]
    nodes: int
    duration_ns: int
    reason: str = ""


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class BuildSwapped(Event):
    """From this step on a graph runs by its optimised build; see `config.compile_tier`."""

    fingerprint: str
    nodes: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedGuard:
    """What a call of a compiled function had otherwise than the code that was there assumes.

    Attributes:
        text: What is otherwise, with both values: `n` is 3, was 2.
        site: The line that reads the value; None if not known.
    """

    text: str
    site: SourceLocation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeBreak:
    """Where TorchDynamo ended a graph, or gave a function up, and why."""

    reason: str
    site: SourceLocation | None


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class FrameCompiled(Event):
    """`torch.compile` compiled a function, what follows a graph break in it, or its backward.

    Attributes:
        function: Qualified name of the function, or the class of a module of torch's.
        definition: Where it begins; for the rest after a graph break, the line of the break.
        site: The user's line that called it.
        guard: Why the code that was there did not serve; None for the first compile.
        graph_break: What ended its graph early; None if nothing did.
        failed: Why it runs uncompiled; None if it does not.
        is_rest: Whether it is the rest of a function after a graph break.
        backward: Whether it is the backward of a graph, compiled when that first ran.
        ops: Calls in the captured graph.
        dynamo_ns: Time to capture the graph and make its guards; `aot_ns` is AOTAutograd's.
        guards_ns: How long its guards take in a call, as torch has measured it once, with cold
            caches.
    """

    function: str
    definition: SourceLocation | None
    site: SourceLocation | None
    guard: FailedGuard | None = None
    graph_break: CodeBreak | None = None
    failed: CodeBreak | None = None
    is_rest: bool = False
    backward: bool = False
    ops: int = 0
    dynamo_ns: int = 0
    aot_ns: int = 0
    guards_ns: int = 0

    @property
    def duration_ns(self) -> int:
        """How long it took; lowering and XLA come later, at the step's barrier."""
        return self.dynamo_ns + self.aot_ns


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class GraphBreakReached(Event):
    """A compiled function ran into a graph break that `FrameCompiled` has reported."""

    reason: str
    site: SourceLocation | None


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class CompiledCallTraced(Event):
    """A captured graph's call was recorded or looked up; emitted while `watch_tracing` is on."""

    duration_ns: int


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class CacheHit(Event):
    """A step's graph found its executable in memory."""

    fingerprint: str
    step: int


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class ExecuteStarted(Event):
    """An executable was handed to the device; its work goes on in the background.

    Attributes:
        programs: How many programs of XLA it runs, more than one where layers are shared.
    """

    fingerprint: str
    purpose: Purpose
    step: int
    nodes: int
    inputs: int
    outputs: int
    donated: int
    time_ns: int
    dispatch_ns: int
    programs: int = 1


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class ExecuteFinished(Event):
    """The device finished an executable; comes from a watcher thread.

    Attributes:
        duration_ns: From its start on the device (the later of its dispatch and the end of
            the execution before it) to its end.
        exact: Whether the end was noticed at once. Without a listener to this event no
            thread watches, and `duration_ns` runs until the next dispatch or wait.
        site: For an op that ran by itself, the line that recorded it.
    """

    fingerprint: str
    purpose: Purpose
    step: int
    duration_ns: int
    exact: bool = True
    site: SourceLocation | None = None


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class OpExecuted(Event):
    """One op was run by itself.

    Attributes:
        mode: `eager` (eager debug mode), `op by op` (op-by-op mode) or `background` (a
            background flush).
        cache_hit: Whether its executable was in memory.
        times: How often op-by-op mode has run this node since the last barrier; 1 elsewhere.
        nbytes: Size of its results.
        site: The line that recorded it.
    """

    node_id: int
    op: str
    mode: SingleOps
    cache_hit: bool
    times: int
    nbytes: int
    dispatch_ns: int
    site: SourceLocation | None = None


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class TransferFinished(Event):
    """Bytes were copied between the host and the device.

    Attributes:
        is_look: Whether a view or a peek asked, and not the program.
    """

    direction: Direction
    nbytes: int
    duration_ns: int
    site: SourceLocation | None = None
    is_look: bool = False


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class TensorMaterialised(Event):
    """A peek computed one tensor's value and left the step as it was.

    Attributes:
        strategy: `memo` (an earlier peek's value), `slice` (the cone as one executable) or
            `op by op`; `reuse` where the rest of the step reads what was computed.
        nodes: Nodes that were run.
        reused: Values that were known from an earlier peek.
        tensor: What was looked at, as the user's source names it; empty if not known. `what ...
            checks` for a look that a library takes, such as `what torch.distributions checks`.
    """

    node_id: int | None
    strategy: Strategy
    nodes: int
    reused: int
    duration_ns: int
    site: SourceLocation | None = None
    tensor: str = ""


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class TensorPrinted(Event):
    """The program printed a tensor of several elements, or asked for its text.

    Attributes:
        plan: What the tensor is, in one line that computes nothing.
        shape: Its sizes.
        is_whole: Whether all of it was copied; if not, nothing is known of its numbers.
        nan: How many are NaN, `infinite` how many infinite, `minus_infinite` how many of these
            below all numbers, `nonzero` how many of the others are not zero.
        low: Of those that are finite, as `high`, `mean` and `std`.
    """

    plan: str
    shape: tuple[int, ...]
    dtype: str
    is_whole: bool
    nan: int = 0
    infinite: int = 0
    minus_infinite: int = 0
    nonzero: int = 0
    low: float = 0.0
    high: float = 0.0
    mean: float = 0.0
    std: float = 0.0
    site: SourceLocation | None = None

    @property
    def elements(self) -> int:
        """How many elements the tensor has."""
        return math.prod(self.shape)


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class FallbackUsed(Event):
    """An op without a lowering ran on the CPU, a graph break."""

    op: str
    reason: str
    site: SourceLocation | None


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class FallbackFinished(Event):
    """The op of the last `FallbackUsed` is done; its copies are told apart."""

    op: str
    site: SourceLocation | None
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """Ops that a peek had computed before the step ran them again.

    Attributes:
        tensor: What was looked at, as the user's source names it; empty if not known.
        site: Where.
        nodes: How many ops of the step the peek had run.
        duration_ns: How long the peek took.
    """

    tensor: str
    site: SourceLocation | None
    nodes: int
    duration_ns: int


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class BarrierStarted(Event):
    """A barrier was asked for; goes to functions given to `on_barrier`, and to no listener."""

    step: int
    cause: str
    site: SourceLocation | None
    time_ns: int


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class CacheEvicted(Event):
    """A cache was above its budget and dropped entries; results and fingerprints stay.

    Attributes:
        cache: `nodes` (the tables of recorded ops), `executables`, `plans` (which executable
            runs which values), `slices` (the same of peeks), `result types`,
            `decompositions`, or `disk`.
        dropped: Entries that went.
        kept: Entries that stay.
        budget: The setting that was exceeded, in entries; in bytes for `disk`.
    """

    cache: Cache
    dropped: int
    kept: int
    budget: int


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class BarrierFinished(Event):
    """Everything pending was executed.

    Attributes:
        cause: `mark_step()`, `end of step`, `read by .item()`, `optimizer.step()`, ...
        executed: False for an empty barrier.
        eager: Whether eager debug mode was on: then there is nothing left to run.
        tensor: What was read, as the user's source names it; empty for other causes.
        cut: Name of the `step()` that this barrier cut in two, empty for a nameless one; None
            where it cut none.
        caller: The library's line that called the user's line, for a barrier in a callback.
        repeats: Ops that ran twice because something was looked at before this barrier.
    """

    step: int
    cause: str
    site: SourceLocation | None
    nodes: int
    roots: int
    executed: bool
    duration_ns: int
    eager: bool = False
    tensor: str = ""
    cut: str | None = None
    caller: SourceLocation | None = None
    repeats: tuple[Repeat, ...] = ()


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class BatchLoaded(Event):
    """A `DeviceLoader` handed a batch to the loop.

    Attributes:
        waited_ns: How long the loop waited for it.
        load_ns: How long loading it and moving it to the device took, on whichever thread.
        prefetch: How many batches are loaded ahead; 0 loads each when it is asked for.
        workers: How many processes of a `DataLoader` load; 0 for none.
        site: The loop's line.
    """

    waited_ns: int
    load_ns: int
    prefetch: int
    workers: int = 0
    site: SourceLocation | None


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class WorkLeft(Event):
    """A loop was left early, and what it had recorded since the last barrier is still pending.

    Attributes:
        nodes: Pending ops; they run at the next barrier.
        nbytes: Size of the tensors that they will make.
        site: The line that left the loop.
    """

    nodes: int
    nbytes: int
    site: SourceLocation | None


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class WorkDropped(Event):
    """Pending ops were dropped and will not run.

    Attributes:
        nodes: How many.
        cause: `discard_pending()`, or the policy and the exception of a step.
        restored: Tensors that a rollback gave their earlier data back.
    """

    nodes: int
    cause: str
    site: SourceLocation | None
    restored: int = 0


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class ClosureFinished(Event):
    """A step closure ran.

    Attributes:
        name: Qualified name of the function.
        site: Where it was queued.
        waited_ns: From its step's barrier to its start.
        duration_ns: How long it took.
    """

    name: str
    site: SourceLocation | None
    asynchronous: bool
    failed: bool
    waited_ns: int
    duration_ns: int


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class ScopeFinished(Event):
    """A `scope()` was closed, or split by a barrier.

    Attributes:
        path: The labels of the scope and of those around it, joined by `/`.
        part: 1, or the number of the piece that a barrier made of it.
    """

    path: str
    site: SourceLocation | None
    part: int
    started_ns: int
    duration_ns: int


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class StepStarted(Event):
    """A `step()` block was entered; `step_num` is the number that the user gave it."""

    step: int
    name: str | None
    time_ns: int
    step_num: int | None = None


@dataclass(unsafe_hash=True, slots=True, kw_only=True)
class StepFinished(Event):
    """A `step()` block ended.

    Attributes:
        failed: Whether an exception ended it.
        outcome: What became of its work: `run`, `discarded` or `rolled back`.
        recompiled: Why graphs were compiled in it, one text each; empty if none was.
    """

    step: int
    name: str | None
    duration_ns: int
    failed: bool
    step_num: int | None = None
    outcome: Literal["run", "discarded", "rolled back"] = "run"
    recompiled: tuple[str, ...] = ()


Listener = Callable[[Event], None]

# Like every lock here, it can be taken again: a garbage collection runs finalisers anywhere.
_lock = threading.RLock()
_subscriptions: tuple[Subscription, ...] = ()
_listeners: dict[type[Event], tuple[Listener, ...]] = {}  # as far as it was asked for
# Generated kernels test this list's truth for every op: it is non-empty only while somebody
# listens to OpRecorded or watches for pauses, and its identity never changes.
op_listeners: list[object] = []
# When the last op or barrier ended meanwhile, of `time.perf_counter_ns`; how much later the next op
# must end for its kernel to tell of it; and the first of these when the last barrier began.
op_clock = [0, -1, 0]
# Called with the ends of a pause, on the thread whose op or barrier ended it.
pause_hooks: list[Callable[[int, int], None]] = []
_PAUSES = "a watch for pauses"
# The same for scopes, which test it at their ends.
scope_listeners: list[Subscription] = []


class Subscription(Closing):
    """A listener's registration; close it, or use it in `with`."""

    def __init__(
        self, listener: Listener, kinds: tuple[type[Event], ...], *, exact: bool
    ) -> None:
        self.listener = listener
        self.kinds = kinds
        self.exact = exact

    def close(self) -> None:
        """Stop listening; closing twice is harmless."""
        global _subscriptions
        with _lock:
            _subscriptions = tuple(s for s in _subscriptions if s is not self)
            _listeners.clear()
            if self in op_listeners:
                op_listeners.remove(self)
            if self in scope_listeners:
                scope_listeners.remove(self)
            _set_limit()


def subscribe(
    listener: Listener, *kinds: type[Event], exact: bool = True
) -> Subscription:
    """Call `listener` with every event from now on, or with those of `kinds` only.

    Listening to `OpRecorded` costs 1 to 3 µs for each op; a subscription without `kinds`
    therefore gets every event but that one.

    Args:
        listener: Called on the thread that emits.
        kinds: Classes of events.
        exact: Whether `ExecuteFinished` must come at once, which takes a thread that waits.

    Raises:
        UsageError: `listener` cannot be called, or one of `kinds` is no class of events.
    """
    global _subscriptions
    _check(listener, kinds)
    subscription = Subscription(listener, kinds, exact=exact)
    with _lock:
        _subscriptions = (*_subscriptions, subscription)
        _listeners.clear()
        if any(issubclass(OpRecorded, kind) for kind in kinds):
            op_listeners.append(subscription)
        if not kinds or any(issubclass(ScopeFinished, kind) for kind in kinds):
            scope_listeners.append(subscription)
        _set_limit()
    return subscription


_pause_ns = 0


def tell_pauses(shortest_ns: int) -> None:
    """Let kernels tell of ops that end so long after the one before; 0 ends that."""
    global _pause_ns
    with _lock:
        _pause_ns = shortest_ns
        if _PAUSES in op_listeners:
            op_listeners.remove(_PAUSES)
        _set_limit()
        if shortest_ns:
            op_clock[0] = time.perf_counter_ns()
            op_listeners.append(_PAUSES)


def end_pause(now: int) -> None:
    """Tell of the time since the last op or barrier, which a barrier ends."""
    last = op_clock[2] = op_clock[0]
    if now - last > _pause_ns:
        for hook in pause_hooks:
            hook(last, now)


def _set_limit() -> None:
    """Have all ops told while somebody listens to them, else those that end a pause."""
    op_clock[1] = -1 if wants_ops() else _pause_ns


def wants_ops() -> bool:
    """Return whether a listener takes `OpRecorded`."""
    return any(isinstance(each, Subscription) for each in op_listeners)


def _check(listener: object, kinds: tuple[object, ...]) -> None:
    if not callable(listener):
        raise UsageError(
            f"subscribe() got {listener!r:.60} as its listener, which cannot be called, so nobody "
            "would hear of events. Pass a function of one argument, and then kinds of events."
        )
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Event)):
            raise UsageError(
                f"subscribe() got {kind!r:.60}, which is no class of events, so no event would be "
                "of that kind. The classes are in `lazyrt.observe.events`, such as "
                "`CompileFinished`."
            )


def exact_ends_wanted() -> bool:
    """Return whether a listener needs to know the ends of executions at once."""
    return any(
        subscription.exact
        and (not subscription.kinds or issubclass(ExecuteFinished, subscription.kinds))
        for subscription in _subscriptions
    )


def active() -> bool:
    """Return whether anybody listens."""
    return bool(_subscriptions)


def emit(event: Event) -> None:
    """Hand `event` to every listener that asked for its kind.

    A listener that raises is logged and skipped: the step goes on.
    """
    kind = event.__class__
    listeners = _listeners.get(kind)
    for listener in _listeners_of(kind) if listeners is None else listeners:
        try:
            listener(event)
        except Exception:  # noqa: BLE001 - the step goes on
            _log.exception("a listener failed on %s", kind.__name__)


@contextlib.contextmanager
def waited(
    phase: Literal["compile", "execute"], fingerprint: str, purpose: Purpose
) -> Iterator[int]:
    """Tell listeners how long the block waited, however it ended; give when it began."""
    start = time.perf_counter_ns()
    interrupted = True
    try:
        yield start
        interrupted = False
    finally:
        emit(
            WaitFinished(
                fingerprint=fingerprint,
                purpose=purpose,
                phase=phase,
                duration_ns=time.perf_counter_ns() - start,
                interrupted=interrupted,
            )
        )


def _listeners_of(kind: type[Event]) -> tuple[Listener, ...]:
    with _lock:
        found = _listeners[kind] = tuple(
            each.listener
            for each in _subscriptions
            if (
                issubclass(kind, each.kinds)
                if each.kinds
                else not issubclass(kind, OpRecorded)
            )
        )
    return found
