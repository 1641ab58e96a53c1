"""What is known of one replica: its barriers in order, their graphs, and its last sign of life."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from lazygraph import Graph

State = Literal["ended", "failed", "full", "running", "silent", "dump"]


class Place(NamedTuple):
    """A line of the user's source."""

    file: str
    line: int
    function: str = ""
    cell: int | None = None

    def __str__(self) -> str:
        """Return `cell 3 line 2` or `train.py:41`."""
        if self.cell is not None:
            return f"cell {self.cell} line {self.line}"
        return f"{self.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """One barrier of a replica.

    Attributes:
        cause: Such as `mark_step()` or `read by .cpu()`.
        tensor: What was read, as the source names it; may be empty.
        place: The user's line; None where unknown.
        lines: The lines that lead there, innermost first.
        step: Name and number of the `step()` around it; may be empty.
        graph: What tells its graph from others, equal for equal graphs of all replicas; empty
            where none ran.
        ops: Size of the graph.
        ran: Whether anything ran.
        time: When it was done, in seconds since 1970; 0 where unknown.
    """

    cause: str
    tensor: str = ""
    place: Place | None = None
    lines: tuple[Place, ...] = ()
    step: str = ""
    graph: str = ""
    ops: int = 0
    ran: bool = True
    time: float = 0.0

    @property
    def where(self) -> tuple[str, str]:
        """What is equal for the same barrier of two replicas: why it was, and on which line."""
        return self.cause, str(self.place or "")

    @property
    def what(self) -> tuple[tuple[str, str], str]:
        """Where it was, and what it ran."""
        return self.where, self.graph

    def __str__(self) -> str:
        """Return `mark_step() at train.py:41`."""
        return f"{self.cause} at {self.place}" if self.place else self.cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One graph of a replica.

    Attributes:
        load: Gives it in normal form.
        record: Gives the runtime's own record of it, for its causes; None for others' dumps.
    """

    load: Callable[[], Graph]
    record: Callable[[], Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """What one replica left behind.

    Attributes:
        name: Such as `0`.
        path: The file.
        barriers: In order.
        programs: Its graphs, by what tells them apart.
        of: How many replicas there are, as the program was told; None where it was not.
        state: How the file ends: `ended`, `failed` (an exception), `full` (its limit), `running`
            (a sign of life just now), `silent` (none, and no end), `dump` (nothing is known).
        started, last_time: First and last sign of life, in seconds since 1970; 0 where unknown.
        last_lines: Where it was then, innermost first.
        entered: A barrier that was entered and never done.
        failure: Name of the exception that ended it; may be empty.
        notes: What else is to be said of the file.
    """

    name: str
    path: Path
    barriers: tuple[Barrier, ...]
    programs: Mapping[str, Program] = field(default_factory=dict)
    of: int | None = None
    state: State = "dump"
    started: float = 0.0
    last_time: float = 0.0
    last_lines: tuple[Place, ...] = ()
    entered: Barrier | None = None
    failure: str = ""
    notes: tuple[str, ...] = ()

    @property
    def is_cut(self) -> bool:
        """Whether more may have followed than it tells of."""
        return self.state in {"failed", "full", "running", "silent"}


def order(name: str) -> tuple[bool, int, str]:
    """Return what sorts replicas: numbers first, by their value."""
    return not name.isdecimal(), int(name) if name.isdecimal() else 0, name


def called(names: Sequence[str]) -> str:
    """Return some replicas as a subject: `replica 1`, `replicas 0 and 2`, `replicas 0 to 6`.

    Example:
        >>> called(["3"]), called(["0", "1", "2", "5"])
        ('replica 3', 'replicas 0 to 2 and 5')
    """
    if len(names) == 1:
        return f"replica {names[0]}"
    parts = _ranges(names)
    if len(parts) > 6:  # noqa: PLR2004 - more are no sentence
        return f"{len(names)} replicas ({', '.join(parts[:5])}, ...)"
    return f"replicas {', '.join(parts[:-1])}{' and ' if len(parts) > 1 else ''}{parts[-1]}"


def _ranges(names: Sequence[str]) -> list[str]:
    if not all(name.isdecimal() for name in names):
        return list(names)
    parts: list[list[int]] = []
    for number in sorted(map(int, names)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return [
        f"{p[0]} to {p[-1]}" if len(p) > 2 else " and ".join(map(str, p))  # noqa: PLR2004
        for p in parts
    ]
