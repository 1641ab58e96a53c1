"""The errors of graphs and their readers.

```
HloError (RuntimeError, ValueError)   a text, file or graph that cannot be used
├── HloSyntaxError                    a text that does not parse, with line and column
└── MisplacedError                    an instruction that cannot be, before its column is known
```
"""

from __future__ import annotations


class HloError(RuntimeError, ValueError):
    """What was given is no usable graph."""


class HloSyntaxError(HloError):
    """A text is not what it should be at one place, or breaks off; each reader raises it.

    Attributes:
        message: Without the line.
        line, column: The place, counted from 1.
        source: Name of the file, empty for a text.
    """

    def __init__(
        self, message: str, line: int = 1, column: int = 1, source: str = ""
    ) -> None:
        self.message = message
        self.line = line
        self.column = column
        self.source = source
        super().__init__(message)

    def __str__(self) -> str:
        where = f"{self.source}, line" if self.source else "line"
        return f"{where} {self.line}, column {self.column}: {self.message}"


class MisplacedError(HloError):
    """An instruction is wrong; `parse`, which has the text, finds its column."""

    def __init__(self, message: str, line: int, name: str) -> None:
        self.message = message
        self.line = line
        self.name = name
        super().__init__(f"line {line}: {message}")
