"""The last steps of the program: what ended each, what it ran, what it cost."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_STEPS = 1_000


@dataclass(slots=True)
class StepRow:
    """One executed barrier.

    Attributes:
        step: The runtime's number of the step.
        cell: Execution count of the cell in which it ran, None outside cells.
        cause: What asked for the barrier, with a step's name; empty while it is under way.
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


class StepLog:
    """Joins the events of each step into one row, the latest thousand kept."""

    def __init__(self) -> None:
        self._rows: OrderedDict[int, StepRow] = OrderedDict()
        self._step_of_graph: dict[str, int] = {}
        self._open: int | None = None

    @property
    def rows(self) -> tuple[StepRow, ...]:
        """Steps that ran something, the earliest first."""
        return tuple(row for row in self._rows.values() if row.cause)

    def add(self, event: events.Event, cell: int | None) -> None:
        """Take in one event that happened in `cell`."""
        take = self._TAKES.get(type(event))
        if take is not None:
            take(self, event, cell)

    def _captured(self, event: events.GraphCaptured, cell: int | None) -> None:
        self._step_of_graph = {event.fingerprint: event.step}
        self._row(event.step, cell)

    def _started(self, event: events.ExecuteStarted, cell: int | None) -> None:
        if event.purpose == "step":
            self._row(event.step, cell)
            self._open = event.step

    def _finished(self, event: events.ExecuteFinished, _cell: int | None) -> None:
        if event.purpose == "step" and event.step in self._rows:
            self._rows[event.step].execute_ns = event.duration_ns

    def _barrier(self, event: events.BarrierFinished, cell: int | None) -> None:
        if not event.executed:
            return
        row = self._row(event.step if self._open is None else self._open, cell)
        self._open = None
        row.cause = event.cause
        row.site = str(event.site or "")
        row.nodes = event.nodes
        row.tensor, row.cut = event.tensor, event.cut
        row.caller = str(event.caller or "")
        row.barrier_ns = event.duration_ns if event.cut is not None else 0
        row.repeats = event.repeats

    def _compiled(
        self,
        event: events.LoweringFinished | events.CompileFinished,
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

    def _row(self, step: int, cell: int | None) -> StepRow:
        row = self._rows.get(step)
        if row is None:
            row = self._rows[step] = StepRow(step, cell)
            if len(self._rows) > _MAX_STEPS:
                self._rows.popitem(last=False)
        return row

    # By kind, since a loop of short steps has thousands of events a second.
    _TAKES: ClassVar[dict[type[events.Event], Callable[..., None]]] = {
        events.GraphCaptured: _captured,
        events.LoweringFinished: _compiled,
        events.CompileFinished: _compiled,
        events.ExecuteStarted: _started,
        events.ExecuteFinished: _finished,
        events.BarrierFinished: _barrier,
    }
