"""What a timeline is made of: spans, and the time of each cell. Plain data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

LANES = ("cell", "step", "host", "compile", "transfer", "device")


class Span(NamedTuple):
    """Something that took time, or a moment (then it ends when it starts).

    Attributes:
        lane: One of `LANES`.
        kind: What it is, within its lane: a phase of the ledger, `barrier`, `implicit barrier`,
            `closure`, `to_device`, `fallback`, ...
        name: A few words.
        start_ns, end_ns: On the clock of `time.perf_counter_ns`.
        cell: Execution count of the cell, None outside cells.
        site: The user's line; empty if not known.
        detail: One sentence more, for whoever looks closer.
        flow: Number that a dispatch and its execution share; 0 for none.
    """

    lane: str
    kind: str
    name: str
    start_ns: int
    end_ns: int
    cell: int | None
    site: str = ""
    detail: str = ""
    flow: int = 0

    @property
    def duration_ns(self) -> int:
        """How long it took; 0 for a moment."""
        return self.end_ns - self.start_ns


NO_LINES: Counter[Any] = Counter()  # one for all cells that were not sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTime:
    """One cell's time.

    Attributes:
        number: Execution count.
        start_ns, end_ns: When it ran.
        parts: Phases of its own thread and their nanoseconds; they add up to its time.
        device_ns: How long the device worked for it, whatever the thread did meanwhile.
        lines: Samples of the lines that recorded, by line.
    """

    number: int | None
    start_ns: int
    end_ns: int
    parts: dict[str, int]
    device_ns: int
    lines: Counter[Any] = field(default_factory=Counter)
