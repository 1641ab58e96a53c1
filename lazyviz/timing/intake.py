"""What the runtime tells: noted at once, added up later, so that a step does not wait for it.

A note is taken on the thread that emits. Notes are added to the cell, the steps and the timeline
in the order in which they came: by the thread of the pulse while a cell runs, so that its own
thread records on, at the end of the cell, and whenever somebody asks. This module needs `lazyrt`
and is imported once the user's program has.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from lazyrt.observe import events
from lazyviz.timing.expected import LEARNT_FROM
from lazyviz.timing.history import Timeline
from lazyviz.timing.pulse import Pulse, Quiet
from lazyviz.timing.steplog import StepLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from lazyrt.observe.events import Event
    from lazyviz.shell.progress import Progress
    from lazyviz.timing.tally import Tally

    Take = Callable[..., None]

_log = logging.getLogger(__name__)

_MANY = 4_096  # the pulse sleeps, or cannot keep up
_LEARNT_FROM = [getattr(events, name) for name in sorted(LEARNT_FROM)]
# Shown, or needed for what is shown, while the program waits.
_URGENT = frozenset(
    (
        "CompileProgress",
        "TransferProgress",
        "CompileStarted",
        "LoweringFinished",
        "CompileFinished",
        "WaitFinished",
        "TransferFinished",
        "TensorMaterialised",
        "BarrierFinished",
    )
)


class Cell(Protocol):
    """A cell that is running."""

    number: int | None
    tally: Tally | None


class Intake:
    """Takes in the events of a session.

    Attributes:
        cell: What happens now belongs to it; None between cells.
        timeline: Spans; `settle()` before reading.
        steps: Rows of steps; `settle()` before reading.
        pulse: Samples the cell's thread.
        shows: Whether a tensor's text is asked for by a display of ours, and not printed.
    """

    def __init__(self, progress: Progress) -> None:
        self.cell: Cell | None = None
        self.lock = threading.RLock()
        self.timeline = Timeline(self.lock)
        self.steps = StepLog()
        self.pulse = Pulse(self.note, self.settle)
        self._takes = _by_kind(
            dict.fromkeys(_LEARNT_FROM, self._learn),
            self.steps.takes,
            self.timeline.takes,
        )
        self.shows = False
        self._progress = progress
        self._notes: deque[tuple[Any, int, Cell | None, int]] = deque()
        self._settling = False

    def note(self, event: Event | Quiet) -> None:
        """Take note of what happened, on the thread where it did."""
        now = time.perf_counter_ns()
        kind = type(event).__name__
        if self.shows and kind == "TensorPrinted":
            return
        if kind in _URGENT and self._shown(kind, event):
            return
        cell, thread = self.cell, threading.get_ident()
        self._notes.append((event, now, cell, thread))
        if len(self._notes) >= _MANY:
            self.settle()
        if kind == "BarrierFinished":
            # What the program does before its next op is not tracing.
            self.pulse.ask()
        tally = cell.tally if cell is not None else None
        if tally is not None and thread == tally.thread:
            tally.own_ns += time.perf_counter_ns() - now

    def begin_cell(self, cell: Cell, now: int) -> None:
        """What happens from `now` on belongs to a cell."""
        self.settle()
        self.cell = cell
        self.timeline.begin_cell(now)
        self.pulse.begin()

    def end_cell(self) -> None:
        """What happens from now on belongs to no cell; all before is added up."""
        self.cell = None
        self.settle()

    def _shown(self, kind: str, event: Any) -> bool:
        if kind.endswith("Progress"):
            self.settle()  # what is expected is learnt from what came before
        return self._progress.take(event)

    def settle(self) -> None:
        """Add up what has been noted."""
        with self.lock:
            if self._settling:  # a finaliser noted something while we add up
                return
            self._settling = True
            try:
                while self._notes:
                    self._add(*self._notes.popleft())
            finally:
                self._settling = False

    def _add(self, event: Any, now: int, cell: Cell | None, thread: int) -> None:
        number = None
        try:
            if cell is not None and cell.tally is not None:
                number = cell.number
                cell.tally.add(event, now, thread)
            for take in self._takes.get(type(event), ()):
                take(event, now, number)
        except Exception:  # noqa: BLE001 - the others still count
            _log.exception("%s was not counted", type(event).__name__)

    def _learn(self, event: Event, _now: int, _number: int | None) -> None:
        self._progress.expectations.add(event)


def _by_kind(*tables: dict[type[Event], Take]) -> dict[type[Event], tuple[Take, ...]]:
    """Return who takes an event of which kind."""
    kinds = {kind for table in tables for kind in table}
    return {kind: tuple(t[kind] for t in tables if kind in t) for kind in kinds}
