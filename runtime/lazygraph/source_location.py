"""Where a line of the user's stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line of the user's source: where an op was recorded or a barrier was asked for.

    Attributes:
        file: Path of the source file, or IPython's name of the cell's code.
        line: Line number, from 1.
        function: Name of the function, `<module>` at the top level.
        cell: Execution count of the notebook cell, or None outside notebooks.
    """

    file: str
    line: int
    function: str
    cell: int | None = None

    def __str__(self) -> str:
        """Return `cell 3 line 2` or `train.py:41`."""
        if self.cell is not None:
            return f"cell {self.cell} line {self.line}"
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}"


Site = SourceLocation  # the name until 0.2
