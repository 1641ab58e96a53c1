"""What the runtime tells of a cell, queued and added up later; samples of its thread.

An event is noted on the thread that emits it. Notes are added to the cell, the steps and the
timeline in the order in which they came: by the thread of the pulse while a cell runs, so that its
own thread records on, at the end of the cell, and whenever somebody asks. This module needs
`lazyrt` and is imported once the user's program has.

The pulse samples when the cell's thread was recording, and on which lines, at no cost for each op.

While a cell records, a thread asks fifty times a second to be told of the next op; the op's own
thread answers, once. An answer that comes late means that nothing was recorded until then: the
program read a file, slept, or computed elsewhere. The line that answers is a sample of where
recording takes its time. No frame or value of another thread is ever looked at, so this keeps
nothing alive.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, Any, Protocol

from lazyrt.observe import events
from lazyrt.tools import user_site
from lazyviz.timing.compile_time import LEARNT_FROM
from lazyviz.timing.history import Arrival, StepLog, Timeline
from lazyviz.timing.ledger import Quiet

if TYPE_CHECKING:
    from collections.abc import Callable

    from lazyrt.observe.events import Event, SourceLocation, Subscription
    from lazyviz.shell.progress import Progress
    from lazyviz.timing.tally import Tally

    Take = Callable[[Arrival], None]

PERIOD_S = 0.02
QUIET_NS = 1_000_000  # a shorter pause between two ops is part of tracing
_MAX_LINES = 500
_SELDOM_NS = 5_000_000

_log = logging.getLogger(__name__)
_MANY = 4_096  # the pulse sleeps, or cannot keep up
_LEARNT_FROM = [getattr(events, name) for name in sorted(LEARNT_FROM)]
# Shown, or needed for what is shown, while the program waits.
_URGENT = frozenset((
    "CompileProgress", "TransferProgress", "CompileStarted", "LoweringFinished", "CompileFinished",
    "WaitFinished", "TransferFinished", "TensorMaterialised", "BarrierFinished",
))  # fmt: skip


class Pulse:
    """Samples one cell after the other.

    Args:
        quiet: Called with each stretch in which no op was recorded, on the cell's thread.
        beat: Called at each beat while a cell records, on the pulse's thread.
    """

    def __init__(
        self, quiet: Callable[[Quiet], None], beat: Callable[[], None] = lambda: None
    ) -> None:
        self.lines: Counter[SourceLocation] = Counter()
        self._quiet = quiet
        self._beat = beat
        self._subscription: Subscription | None = None
        # Taken again by a finaliser's op, which a collection runs while a question is asked.
        self._lock = threading.RLock()
        self._asked_ns = 0
        self._samples = False
        self._thread_id = 0
        self._wake = threading.Event()
        self._ticker: threading.Thread | None = None
        self._stop = threading.Event()

    def begin(self) -> None:
        """Begin a cell, on its thread."""
        self.lines = Counter()
        self._thread_id = threading.get_ident()
        self._asked_ns = 0
        self.ask()

    def end(self) -> None:
        """End the cell; a question that nothing has answered counts as quiet until now."""
        self._wake.clear()
        asked = self._withdraw()
        if asked:
            self._tell(asked, time.perf_counter_ns(), None)
        self._thread_id = 0

    def close(self) -> None:
        """Stop for good."""
        self._stop.set()
        self._withdraw()
        self._wake.set()

    def ask(self, *, sample: bool = False) -> None:
        """Ask to be told of the next op, unless that was asked already or just now.

        Args:
            sample: Whether the answer counts as a sample of its line.
        """
        now = time.perf_counter_ns()
        # A loop of short steps is not asked in each of them.
        if (
            not sample
            and now - self._asked_ns < _SELDOM_NS
            and self._ticker is not None
        ):
            return
        with self._lock:
            if self._subscription is not None or not self._thread_id:
                return
            if self._stop.is_set():  # closed while the ticker was about to ask
                return
            self._asked_ns = now
            self._samples = sample
            self._subscription = events.subscribe(self._answer, events.OpRecorded)

    def _withdraw(self) -> int:
        """Close the question; return when it was asked, 0 if there is none."""
        with self._lock:
            subscription, self._subscription = self._subscription, None
            if subscription is None:
                return 0
            subscription.close()
            return self._asked_ns

    def _answer(self, _event: Event) -> None:
        if threading.get_ident() != self._thread_id:
            return
        now, samples = time.perf_counter_ns(), self._samples
        asked = self._withdraw()
        if not asked:
            return
        site = user_site(2)
        self._tell(asked, now, site)
        if samples and site is not None and len(self.lines) < _MAX_LINES:
            self.lines[site] += 1
        if not self._wake.is_set():
            self._start()

    def _tell(self, start_ns: int, end_ns: int, site: SourceLocation | None) -> None:
        if end_ns - start_ns > QUIET_NS:
            self._quiet(Quiet(start_ns, end_ns, site))

    def _start(self) -> None:
        if self._ticker is None:
            self._ticker = threading.Thread(
                target=self._tick, name="lazyviz-pulse", daemon=True
            )
            self._ticker.start()
        self._wake.set()

    def _tick(self) -> None:
        while True:
            self._wake.wait()
            if self._stop.wait(PERIOD_S):
                return
            if self._wake.is_set():
                self._beat()
                self.ask(sample=True)


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
        late: What cells have done of which the device still runs a part, the earliest first.
    """

    def __init__(self, progress: Progress) -> None:
        self.cell: Cell | None = None
        self.lock = threading.RLock()
        self.timeline = Timeline(self.lock)
        self.steps = StepLog()
        self.pulse = Pulse(self.note, self.settle)
        learns = dict.fromkeys(_LEARNT_FROM, self._learn)
        self._takes: defaultdict[type[Event], list[Take]] = defaultdict(list)
        for table in (learns, self.steps.takes, self.timeline.takes):
            for kind, take in table.items():
                self._takes[kind].append(take)
        self.shows = False
        self.late: deque[Tally] = deque()
        self._progress = progress
        self._worked = (0, 0)  # a thread, and how long it had had the processor
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
        if isinstance(event, events.BarrierFinished):
            self.steps.worked_ns[event.step] = self._since_barrier(thread)
        self._notes.append((event, now, cell, thread))
        if len(self._notes) >= _MANY or (self.late and kind == "ExecuteFinished"):
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
        self._since_barrier(threading.get_ident())
        self.cell = cell
        self.timeline.begin_cell(now)
        self.pulse.begin()

    def end_cell(self) -> None:
        """What happens from now on belongs to no cell, but for the ends of what it has begun."""
        with self.lock:
            cell, self.cell = self.cell, None
            self.settle()
            if cell is not None and cell.tally is not None and cell.tally.running:
                self.late.append(cell.tally)

    def _since_barrier(self, thread: int) -> int | None:
        """Return how long this thread had the processor since this was asked; None for another one."""
        before, self._worked = self._worked, (thread, time.thread_time_ns())
        return self._worked[1] - before[1] if before[0] == thread else None

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
            if self.late and isinstance(event, events.ExecuteFinished):
                self.late[0].add(event, now, thread)
                if not self.late[0].running:
                    self.late.popleft().ended()
            elif cell is not None and cell.tally is not None:
                number = cell.number
                cell.tally.add(event, now, thread)
            came = Arrival(event, now, number)
            for take in self._takes.get(type(event), ()):
                take(came)
        except Exception:  # noqa: BLE001 - the others still count
            _log.exception("%s was not counted", type(event).__name__)

    def _learn(self, came: Arrival) -> None:
        self._progress.expectations.add(came.event)
