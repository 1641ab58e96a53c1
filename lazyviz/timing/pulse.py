"""When the cell's thread was recording, and on which lines, at no cost for each op.

While a cell records, a thread asks fifty times a second to be told of the next op; the op's own
thread answers, once. An answer that comes late means that nothing was recorded until then: the
program read a file, slept, or computed elsewhere. The line that answers is a sample of where
recording takes its time. No frame or value of another thread is ever looked at, so this keeps
nothing alive.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from lazyrt.observe import events
from lazyrt.tools import user_site

if TYPE_CHECKING:
    from collections.abc import Callable

    from lazyrt.observe.events import Event, Site, Subscription

PERIOD_S = 0.02
QUIET_NS = 1_000_000  # a shorter pause between two ops is part of tracing
_MAX_LINES = 500
_SELDOM_NS = 5_000_000


def _rest() -> None:
    """Do nothing."""


class Quiet(NamedTuple):
    """A stretch in which the cell's thread recorded no op.

    Attributes:
        start_ns, end_ns: On the clock of `time.perf_counter_ns`.
        site: The line that ended it; None for the end of the cell or of its imports.
    """

    start_ns: int
    end_ns: int
    site: Site | None


class Pulse:
    """Samples one cell after the other.

    Args:
        quiet: Called with each stretch in which no op was recorded, on the cell's thread.
        beat: Called at each beat while a cell records, on the pulse's thread.
    """

    def __init__(
        self, quiet: Callable[[Quiet], None], beat: Callable[[], None] = _rest
    ) -> None:
        self.lines: Counter[Site] = Counter()
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

    def _tell(self, start_ns: int, end_ns: int, site: Site | None) -> None:
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
