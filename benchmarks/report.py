"""What a benchmark found: tables of figures, and goals with whether they are met."""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

Cell = str | float | int | None
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Sample:
    """Smallest and middle value of repeated measurements.

    The minimum is the figure to trust on a machine with other work: noise only ever adds.
    """

    minimum: float
    median: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample:
        """Summarise measurements; there must be at least one."""
        return cls(min(values), statistics.median(values), len(values))


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table; None in a cell shows as a dash."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]

    def text(self) -> str:
        """Return the table with its first column to the left and figures to the right."""
        grid = [
            list(self.columns),
            *([_cell_text(cell) for cell in row] for row in self.rows),
        ]
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        lines = [_line(row, widths) for row in grid]
        rule = "-" * max(map(len, lines))
        return "\n".join([self.title, "", lines[0], rule, *lines[1:]])


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that a benchmark is held to; `met` is None where it was not measured."""

    what: str
    limit: str
    measured: str
    met: bool | None

    def text(self) -> str:
        """Return one line that begins with the verdict."""
        verdict = {True: "met", False: "MISSED", None: "not measured"}[self.met]
        return f"{verdict:<14}{self.what}: {self.measured} (goal {self.limit})"


@dataclass(frozen=True, slots=True)
class Report:
    """All that one benchmark has to say."""

    name: str
    facts: dict[str, str]
    tables: Sequence[Table]
    goals: Sequence[Goal]
    notes: Sequence[str] = field(default=())

    @property
    def missed(self) -> list[Goal]:
        """The goals that were measured and not reached."""
        return [goal for goal in self.goals if goal.met is False]

    def text(self) -> str:
        """Return the report as plain text."""
        facts = "\n".join(f"{name:<9}{value}" for name, value in self.facts.items())
        blocks = [f"== {self.name} ==", facts, *(table.text() for table in self.tables)]
        blocks.append("\n".join(goal.text() for goal in self.goals))
        blocks.append("\n".join(f"note: {note}" for note in self.notes))
        return "\n\n".join(block for block in blocks if block) + "\n"

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return dataclasses.asdict(self)


def ratio_goal(what: str, figure: float | None, limit: float, unit: str = "x") -> Goal:
    """Return the goal that a figure is at most `limit`; None was not measured."""
    measured = "no figure" if figure is None else f"{figure:.2f}{unit}"
    met = None if figure is None else figure <= limit
    return Goal(what, f"<= {limit:g}{unit}", measured, met)


def ratio(figure: Sample | None, peer: Sample | None) -> float | None:
    """Return how many times the peer's minimum a figure's minimum is."""
    return None if figure is None or peer is None else figure.minimum / peer.minimum


def _cell_text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.2f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first = row[0].ljust(widths[0])
    rest = (text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))
    return _GAP.join([first, *rest]).rstrip()
