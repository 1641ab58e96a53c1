"""Where a stretch of time went, by phase: what overlaps counts once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lazyviz.draw.palette import PHASES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazyrt.observe.events import SourceLocation


_MAX_OPEN = 64
Piece = tuple[int, int]


class Quiet(NamedTuple):
    """A stretch in which the cell's thread recorded no op.

    Attributes:
        start_ns, end_ns: On the clock of `time.perf_counter_ns`.
        site: The line that ended it; None for the end of the cell or of its imports.
    """

    start_ns: int
    end_ns: int
    site: SourceLocation | None


class Ledger:
    """Sums of one stretch of time, by phase.

    Args:
        start_ns: Nothing before it counts.

    Example:
        >>> ledger = Ledger(0)
        >>> ledger.add("compile", 10, 40), ledger.add("dispatch", 5, 50)
        ([(10, 40)], [(5, 10), (40, 50)])
        >>> ledger.parts(100)
        {'trace': 55, 'dispatch': 15, 'compile': 30}
    """

    def __init__(self, start_ns: int) -> None:
        self._totals: dict[str, int] = {}
        self._start_ns = start_ns
        self._settled_ns = start_ns
        self._claimed: list[Piece] = []

    def add(self, phase: str, start_ns: int, end_ns: int) -> list[Piece]:
        """Give a phase what nobody has claimed of an interval; return that, in pieces."""
        start_ns = max(start_ns, self._settled_ns)
        if end_ns <= start_ns:
            return []
        claimed = self._claimed
        if not claimed or claimed[-1][1] < start_ns:  # nearly always
            claimed.append((start_ns, end_ns))
            self._totals[phase] = self._totals.get(phase, 0) + end_ns - start_ns
            self._bound()
            return [(start_ns, end_ns)]
        pieces = list(self._unclaimed(start_ns, end_ns))
        self._totals[phase] = self._totals.get(phase, 0) + sum(
            end - start for start, end in pieces
        )
        self._claim(start_ns, end_ns)
        return pieces

    @property
    def claimed_ns(self) -> int:
        """Time that belongs to some phase."""
        return sum(self._totals.values())

    def parts(self, end_ns: int) -> dict[str, int]:
        """Return the time of each phase up to now; what nobody claimed was tracing."""
        wall_ns = max(0, end_ns - self._start_ns)
        totals = dict(self._totals)
        totals["trace"] = totals.get("trace", 0) + max(0, wall_ns - self.claimed_ns)
        return {name: totals[name] for name in PHASES if totals.get(name, 0) > 0}

    def _unclaimed(self, start_ns: int, end_ns: int) -> Iterator[Piece]:
        for claimed_start, claimed_end in self._claimed[self._from(start_ns + 1) :]:
            if claimed_start >= end_ns:
                break
            if claimed_start > start_ns:
                yield start_ns, claimed_start
            start_ns = claimed_end
        if start_ns < end_ns:
            yield start_ns, end_ns

    def _claim(self, start_ns: int, end_ns: int) -> None:
        claimed = self._claimed
        first, last = self._from(start_ns), len(claimed)
        while last > first and claimed[last - 1][0] > end_ns:
            last -= 1
        if last > first:
            start_ns = min(start_ns, claimed[first][0])
            end_ns = max(end_ns, claimed[last - 1][1])
        claimed[first:last] = [(start_ns, end_ns)]
        self._bound()

    def _from(self, start_ns: int) -> int:
        """Return which piece is the first that ends no earlier; nearly always one of the last."""
        claimed = self._claimed
        first = len(claimed)
        while first and claimed[first - 1][1] >= start_ns:
            first -= 1
        return first

    def _bound(self) -> None:
        if len(self._claimed) > _MAX_OPEN:
            # What comes so late is not claimed twice; the gap before it stays tracing.
            self._settled_ns = self._claimed.pop(0)[1]
