"""The length of a union of time intervals, as they arrive."""

from __future__ import annotations

_MAX_OPEN_INTERVALS = 64


class BusyTime:
    """Length of a union of time intervals that arrive in order of their ends.

    An interval that encloses earlier ones, such as a barrier's around its compile, is not
    counted twice.

    Example:
        >>> busy = BusyTime()
        >>> busy.add(10, 20)
        >>> busy.add(30, 40)
        >>> busy.add(5, 25)
        >>> busy.total_ns
        35
    """

    def __init__(self) -> None:
        self._settled_ns = 0
        self._recent: list[tuple[int, int]] = []

    def add(self, start_ns: int, end_ns: int) -> None:
        """Count the interval from `start_ns` to `end_ns`."""
        recent = self._recent
        kept: list[tuple[int, int]] = []
        while recent and recent[-1][1] > start_ns:
            earlier = recent.pop()
            if earlier[0] < start_ns:
                kept.append((earlier[0], start_ns))
            end_ns = max(end_ns, earlier[1])
        recent.extend(reversed(kept))
        recent.append((start_ns, end_ns))
        if len(recent) > _MAX_OPEN_INTERVALS:
            start, end = recent.pop(0)
            self._settled_ns += end - start

    @property
    def total_ns(self) -> int:
        """Nanoseconds covered by at least one interval."""
        return self._settled_ns + sum(end - start for start, end in self._recent)
