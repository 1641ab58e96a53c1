"""The last steps of the program: what ended each, what it ran, what it cost."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_STEPS = 1_000


@dataclass(frozen=True, slots=True)
class StepRow:
    """One executed barrier.

    Attributes:
        step: The runtime's number of the step.
        cell: Execution count of the cell in which it ran, None outside cells.
        cause: What asked for the barrier, with a step's name.
        site: Where it was asked for, such as `cell 3 line 2`.
        nodes: Ops that ran.
        compile_ns: Time to lower and compile; 0 for a cache hit.
        execute_ns: Time on the device; None while it is running.
        reason: Why it had to be compiled, empty for a cache hit.
        from_disk: Whether the executable was read from disk; `compile_ns` says how long.
        tensor: What was read, in the user's words; empty for other causes.
        cut: Name of the `step()` that the barrier cut, None if it cut none.
        caller: The library's line that called the user's, for a callback.
        barrier_ns: How long a barrier took that cut a step.
        repeats: Ops that ran twice because of a look.
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


@dataclass(slots=True)
class _Step:
    """A step as it was told; it becomes a row once somebody looks."""

    step: int
    cell: int | None
    barrier: events.BarrierFinished | None = None
    compile_ns: int = 0
    execute_ns: int | None = None
    reason: str = ""
    from_disk: bool = False


class StepLog:
    """Joins the events of each step into one row, the latest thousand kept.

    Attributes:
        takes: What takes an event, when it came, and the cell's number, by kind of event.
    """

    def __init__(self) -> None:
        self._rows: OrderedDict[int, _Step] = OrderedDict()
        self._step_of_graph: dict[str, int] = {}
        self._open: int | None = None
        self.takes: dict[type[events.Event], Callable[..., None]] = {
            events.GraphCaptured: self._captured,
            events.LoweringFinished: self._compiled,
            events.CompileFinished: self._compiled,
            events.ExecuteStarted: self._started,
            events.ExecuteFinished: self._finished,
            events.BarrierFinished: self._barrier,
        }

    @property
    def rows(self) -> tuple[StepRow, ...]:
        """Steps that ran something, the earliest first."""
        return tuple(
            _row(step, step.barrier)
            for step in self._rows.values()
            if step.barrier is not None
        )

    def add(self, event: events.Event, cell: int | None) -> None:
        """Take in one event that happened in `cell`."""
        take = self.takes.get(type(event))
        if take is not None:
            take(event, 0, cell)

    def _captured(
        self, event: events.GraphCaptured, _now: int, cell: int | None
    ) -> None:
        self._step_of_graph = {event.fingerprint: event.step}
        self._row(event.step, cell)

    def _started(
        self, event: events.ExecuteStarted, _now: int, cell: int | None
    ) -> None:
        if event.purpose == "step":
            self._row(event.step, cell)
            self._open = event.step

    def _finished(
        self, event: events.ExecuteFinished, _now: int, _cell: int | None
    ) -> None:
        if event.purpose == "step" and event.step in self._rows:
            self._rows[event.step].execute_ns = event.duration_ns

    def _barrier(
        self, event: events.BarrierFinished, _now: int, cell: int | None
    ) -> None:
        if not event.executed:
            return
        row = self._row(event.step if self._open is None else self._open, cell)
        self._open = None
        row.barrier = event

    def _compiled(
        self,
        event: events.LoweringFinished | events.CompileFinished,
        _now: int,
        _cell: int | None,
    ) -> None:
        step = self._step_of_graph.get(event.fingerprint)
        if event.purpose != "step" or step is None or step not in self._rows:
            return
        row = self._rows[step]
        if isinstance(event, events.CompileFinished):
            row.from_disk = event.source == "disk"
            row.reason = "" if row.from_disk else event.reason
        row.compile_ns += event.duration_ns

    def _row(self, step: int, cell: int | None) -> _Step:
        row = self._rows.get(step)
        if row is None:
            row = self._rows[step] = _Step(step, cell)
            if len(self._rows) > _MAX_STEPS:
                self._rows.popitem(last=False)
        return row


def _row(step: _Step, barrier: events.BarrierFinished) -> StepRow:
    return StepRow(
        step=step.step,
        cell=step.cell,
        cause=barrier.cause,
        site=str(barrier.site or ""),
        nodes=barrier.nodes,
        compile_ns=step.compile_ns,
        execute_ns=step.execute_ns,
        reason=step.reason,
        from_disk=step.from_disk,
        tensor=barrier.tensor,
        cut=barrier.cut,
        caller=str(barrier.caller or ""),
        barrier_ns=barrier.duration_ns if barrier.cut is not None else 0,
        repeats=barrier.repeats,
    )
