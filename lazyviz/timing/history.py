"""What happened when, in the order of its ends: the latest few thousand spans of a session.

Fed with the runtime's events. Holds names and numbers only; older spans give way, and how many
did is known. This module needs `lazyrt` and is imported once the user's program has.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from lazyrt.observe import events
from lazyviz.render import text
from lazyviz.render.timeline_text import CellTime, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_MAX_SPANS = 6_000
_MAX_CELLS = 1_000
_MAX_FLYING = 64
# A user who wrote these wanted a barrier; all others come by themselves.
_EXPLICIT = ("mark_step()", "end of ", "sync()", "torch.lazyrt.synchronize()")

_MAX_STEPS = 1_000
_MAX_FRAMES = 100  # of those that one step holds


class Arrival(NamedTuple):
    """An event, when it came, and the execution count of the cell; None outside cells."""

    event: Any
    now: int
    cell: int | None


class _Note(NamedTuple):
    """What becomes a span once somebody looks.

    Attributes:
        made: Makes the span of the note.
        event, now, cell: As those of an `Arrival`.
        start_ns: When it began, if the event does not say it.
        flow, nodes: Number and ops of an execution; else 0.
    """

    made: Callable[[_Note], Span]
    event: Any
    now: int
    cell: int | None
    start_ns: int = 0
    flow: int = 0
    nodes: int = 0


class _Flying(NamedTuple):
    key: tuple[str, str, int]
    flow: int
    nodes: int
    cell: int | None


class Timeline:
    """The latest spans and cells of a session.

    What is told is noted as it is, since a loop of short steps has thousands of events a second
    of which few are ever drawn; `spans` puts it into words.

    Attributes:
        cells: The cells that touched the device, the latest thousand.
        takes: What takes an arrival, by kind of event; to be called under the lock.

    Args:
        lock: Guards it; by default one of its own.
        most: How many spans are kept; by default as many as a session keeps.
    """

    def __init__(
        self, lock: threading.RLock | None = None, most: int | None = None
    ) -> None:
        self.cells: deque[CellTime] = deque(maxlen=_MAX_CELLS)
        self._notes: deque[_Note | Span] = deque(maxlen=most or _MAX_SPANS)
        self._told = 0
        self._flying: deque[_Flying] = deque(maxlen=_MAX_FLYING)
        self._flows = 0
        self._step_from_ns = 0
        self._lock = threading.RLock() if lock is None else lock
        self.takes: dict[type[events.Event], Callable[[Arrival], None]] = {
            **{kind: partial(self._note, made) for kind, made in _MADE.items()},
            events.ExecuteStarted: self._started,
            events.ExecuteFinished: self._finished,
            events.BarrierFinished: self._barrier,
            events.TensorMaterialised: self._look,
        }

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans that are kept, in the order of their ends."""
        with self._lock:
            notes = tuple(self._notes)
        return tuple(
            note if isinstance(note, Span) else note.made(note) for note in notes
        )

    @property
    def dropped(self) -> int:
        """How many spans have given way to later ones."""
        with self._lock:
            return self._told - len(self._notes)

    def begin_cell(self, now_ns: int) -> None:
        """Note that a cell begins: a step that it goes on with is drawn from here."""
        self._step_from_ns = now_ns

    def end_cell(self, cell: CellTime) -> None:
        """Take in a cell that touched the device."""
        self.cells.append(cell)

    def host(
        self, phase: str, pieces: Sequence[tuple[int, int]], cell: int | None, site: str
    ) -> None:
        """Add what the cell's thread did in some stretches of time."""
        with self._lock:
            for start, end in pieces:
                self._keep(Span("host", phase, phase, start, end, cell, site))

    def add(self, event: events.Event, now: int, cell: int | None) -> None:
        """Take in one event that came at `now`."""
        take = self.takes.get(type(event))
        if take is not None:
            with self._lock:
                take(Arrival(event, now, cell))

    def _note(self, made: Callable[[_Note], Span], came: Arrival) -> None:
        self._keep(_Note(made, *came))

    def _keep(self, note: _Note | Span) -> None:
        self._told += 1
        self._notes.append(note)

    def _look(self, came: Arrival) -> None:
        if came.event.strategy != "memo":
            self._keep(_Note(_look, *came))

    def _started(self, came: Arrival) -> None:
        event = came.event
        self._flows += 1
        key = event.fingerprint, event.purpose, event.step
        self._flying.append(_Flying(key, self._flows, event.nodes, came.cell))
        self._keep(_Note(_handover, *came, flow=self._flows))

    def _finished(self, came: Arrival) -> None:
        event, now, _ = came
        key = event.fingerprint, event.purpose, event.step
        for found in self._flying:
            if found.key == key:
                self._flying.remove(found)
                break
        else:
            found = _Flying(key, 0, 0, None)
        self._keep(_Note(_run, event, now, found.cell, 0, found.flow, found.nodes))

    def _barrier(self, came: Arrival) -> None:
        if came.event.executed:
            self._keep(_Note(_step, *came, self._step_from_ns))
            self._keep(_Note(_mark, *came))
            self._step_from_ns = came.now


def _transfer(note: _Note) -> Span:
    event = note.event
    name = f"{text.size(event.nbytes)} {event.direction.replace('_', ' ')}"
    return _lasting(note, "transfer", event.direction, name)


def _look(note: _Note) -> Span:
    event = note.event
    name = f"look at {event.tensor or 'a tensor'}"
    detail = f"{text.plural(event.nodes, 'op')}, {event.strategy}"
    return _lasting(note, "step", "look", name, detail)


def _fallback(note: _Note) -> Span:
    event = note.event
    return _moment(note, "fallback", f"{event.op} on the CPU", event.reason)


def _closure(note: _Note) -> Span:
    event = note.event
    kind = "asynchronous closure" if event.asynchronous else "closure"
    return _lasting(note, "step", kind, event.name, "failed" if event.failed else "")


def _block(note: _Note) -> Span:
    event = note.event
    name = f"step {event.name or ''}".strip()
    if event.step_num is not None:
        name += f" {event.step_num}"
    return Span(
        "step", "block", name, note.now - event.duration_ns, note.now, note.cell
    )


def _scope(note: _Note) -> Span:
    return _lasting(note, "step", "scope", note.event.path)


def _dropped(note: _Note) -> Span:
    event = note.event
    name = f"{text.plural(event.nodes, 'op')} dropped: {event.cause}"
    return _moment(note, "dropped", name)


def _handover(note: _Note) -> Span:
    event = note.event
    name = f"dispatch {text.plural(event.nodes, 'op')}"
    end = event.time_ns + event.dispatch_ns
    return Span("host", "handover", name, event.time_ns, end, note.cell, flow=note.flow)


def _run(note: _Note) -> Span:
    event = note.event
    what = "step" if event.purpose == "step" else event.purpose
    ops = f", {text.plural(note.nodes, 'op')}" if note.nodes else ""
    late = "" if event.exact else "; its end was noticed late"
    return Span(
        "device",
        event.purpose,
        f"{what} {event.step}{ops}",
        note.now - event.duration_ns,
        note.now,
        note.cell,
        detail=f"graph {event.fingerprint[:8]}{late}",
        flow=note.flow,
    )


def _compiled(note: _Note) -> Span:
    event = note.event
    ops = text.plural(event.nodes, "op")
    if isinstance(event, events.LoweringFinished):
        kind, name, reason = "lower", f"lower {ops}", ""
    else:
        loaded = event.source == "disk"
        kind = "load" if loaded else "compile"
        name = f"load {ops} from disk" if loaded else f"compile {ops}"
        reason = "" if loaded else event.reason
    if event.purpose != "step":
        name += f" ({event.purpose})"
    detail = reason or f"graph {event.fingerprint[:8]}"
    start = note.now - event.duration_ns
    return Span("compile", kind, name, start, note.now, note.cell, detail=detail)


def _step(note: _Note) -> Span:
    event = note.event
    start = note.start_ns or note.now - event.duration_ns
    name = f"step {event.step}: {_cause(event)}"
    site = str(event.site or "")
    return Span("step", "run", name, start, note.now, note.cell, site, _ran(event))


def _mark(note: _Note) -> Span:
    event = note.event
    if event.cut is not None:
        return _lasting(note, "step", "cut", _cause(event), _ran(event))
    kind = "barrier" if event.cause.startswith(_EXPLICIT) else "implicit barrier"
    return _moment(note, kind, _cause(event), _ran(event))


def _cause(event: events.BarrierFinished) -> str:
    return f"{event.cause} of {event.tensor}" if event.tensor else event.cause


def _ran(event: events.BarrierFinished) -> str:
    """Return what a barrier ran, who called back, and which step it broke."""
    told = text.plural(event.nodes, "op")
    if event.site is not None and event.caller is not None:
        told += f", {event.site.function} called back by {event.caller}"
    if event.cut is not None:
        told += f", a graph break in the step {event.cut}".rstrip()
    return told


def _lasting(note: _Note, lane: str, kind: str, name: str, detail: str = "") -> Span:
    event = note.event
    start, site = note.now - event.duration_ns, str(event.site or "")
    return Span(lane, kind, name, start, note.now, note.cell, site, detail)


def _moment(note: _Note, kind: str, name: str, detail: str = "") -> Span:
    site = str(note.event.site or "")
    return Span("step", kind, name, note.now, note.now, note.cell, site, detail)


_MADE: dict[type[events.Event], Callable[[_Note], Span]] = {
    events.LoweringFinished: _compiled,
    events.CompileFinished: _compiled,
    events.TransferFinished: _transfer,
    events.FallbackUsed: _fallback,
    events.ClosureFinished: _closure,
    events.StepFinished: _block,
    events.ScopeFinished: _scope,
    events.WorkDropped: _dropped,
}


@dataclass(slots=True)
class StepRow:
    """One step, and the barrier that ran it.

    Attributes:
        step: The runtime's number of the step.
        cell: Execution count of the cell in which it ran, None outside cells.
        cause: What asked for the barrier, with a step's name; empty before it has ended.
        site: Where it was asked for, such as `cell 3 line 2`.
        nodes: Ops that ran.
        compile_ns: Time that XLA took to compile; 0 for a cache hit.
        execute_ns: Time on the device; None while it is running.
        reason: Why it had to be compiled, empty for a cache hit.
        from_disk: Whether the executable was read from disk; `compile_ns` says how long.
        tensor: What was read, in the user's words; empty for other causes.
        cut: Name of the `step()` that the barrier broke, None if it broke none.
        caller: The library's line that called the user's, for a callback.
        barrier_ns: How long a barrier took that broke a step.
        repeats: Ops that ran twice because of a look.
        lowering_ns: Time in which the graph became StableHLO.
        worked_ns: How long the cell's thread had the processor; None where that is not known.
        frames: What `torch.compile` compiled since the step before.
        code_breaks: Its graph breaks that calls ran into, each as often as one did.
    """

    step: int
    cell: int | None
    cause: str = ""
    site: str = ""
    nodes: int = 0
    compile_ns: int = 0
    execute_ns: int | None = None
    reason: str = ""
    from_disk: bool = False
    tensor: str = ""
    cut: str | None = None
    caller: str = ""
    barrier_ns: int = 0
    repeats: tuple[events.Repeat, ...] = ()
    lowering_ns: int = 0
    worked_ns: int | None = None
    frames: tuple[events.FrameCompiled, ...] = ()
    code_breaks: tuple[events.GraphBreakReached, ...] = ()


class StepLog:
    """Joins the events of each step into one row, the latest thousand kept.

    Attributes:
        takes: What takes an arrival, by kind of event.
        worked_ns: How long the thread of a coming barrier had the processor, by the barrier's step.
    """

    def __init__(self) -> None:
        self.worked_ns: dict[int, int | None] = {}
        self._rows: OrderedDict[int, StepRow] = OrderedDict()
        self._step_of_graph: dict[str, int] = {}
        self._open: int | None = None
        self._frames: list[events.FrameCompiled] = []
        self._code_breaks: list[events.GraphBreakReached] = []
        self.takes: dict[type[events.Event], Callable[[Arrival], None]] = {
            events.GraphCaptured: self._captured,
            events.LoweringFinished: self._compiled,
            events.CompileFinished: self._compiled,
            events.ExecuteStarted: self._started,
            events.ExecuteFinished: self._finished,
            events.BarrierFinished: self._barrier,
            events.FrameCompiled: lambda came: self._frames.append(came.event),
            events.GraphBreakReached: self._code_break,
        }

    @property
    def rows(self) -> tuple[StepRow, ...]:
        """Steps that ran something, the earliest first."""
        return tuple(replace(row) for row in self._rows.values() if row.cause)

    def add(self, event: events.Event, cell: int | None) -> None:
        """Take in one event that happened in `cell`."""
        take = self.takes.get(type(event))
        if take is not None:
            take(Arrival(event, 0, cell))

    def _captured(self, came: Arrival) -> None:
        self._step_of_graph = {came.event.fingerprint: came.event.step}
        self._row(came.event.step, came.cell)

    def _started(self, came: Arrival) -> None:
        if came.event.purpose == "step":
            self._row(came.event.step, came.cell)
            self._open = came.event.step

    def _finished(self, came: Arrival) -> None:
        event = came.event
        if event.purpose == "step" and event.step in self._rows:
            self._rows[event.step].execute_ns = event.duration_ns

    def _barrier(self, came: Arrival) -> None:
        event: events.BarrierFinished = came.event
        worked = self.worked_ns.pop(event.step, None)
        if not event.executed:
            return
        row = self._row(event.step if self._open is None else self._open, came.cell)
        self._open = None
        row.cause, row.nodes, row.tensor = event.cause, event.nodes, event.tensor
        row.site, row.caller = str(event.site or ""), str(event.caller or "")
        row.cut, row.repeats, row.worked_ns = event.cut, event.repeats, worked
        row.barrier_ns = event.duration_ns if event.cut is not None else 0
        if self._frames or self._code_breaks:
            row.frames = tuple(self._frames[-_MAX_FRAMES:])
            row.code_breaks = tuple(self._code_breaks)
            self._frames.clear()
            self._code_breaks.clear()

    def _code_break(self, came: Arrival) -> None:
        if len(self._code_breaks) < _MAX_FRAMES:
            self._code_breaks.append(came.event)

    def _compiled(self, came: Arrival) -> None:
        event = came.event
        step = self._step_of_graph.get(event.fingerprint)
        if event.purpose != "step" or step is None or step not in self._rows:
            return
        row = self._rows[step]
        if isinstance(event, events.CompileFinished):
            row.from_disk = event.source == "disk"
            row.reason = "" if row.from_disk else event.reason
            row.compile_ns += event.duration_ns
        else:
            row.lowering_ns += event.duration_ns

    def _row(self, step: int, cell: int | None) -> StepRow:
        row = self._rows.get(step)
        if row is None:
            row = self._rows[step] = StepRow(step, cell)
            if len(self._rows) > _MAX_STEPS:
                self._rows.popitem(last=False)
        return row
