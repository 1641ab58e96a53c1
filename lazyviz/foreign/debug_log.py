"""Logs that torch_xla writes with PT_XLA_DEBUG or PT_XLA_DEBUG_LEVEL.

Level 1 tells of each compile, level 2 of each execution too; PT_XLA_DEBUG=1 adds the
profiler's summary of ops that ran on the CPU. The program's own output may stand in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lazyviz.foreign.evidence import Evidence, user_frame

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lazyviz.foreign.evidence import Frame

Kind = Literal["compile", "execute", "unexpected execute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One compile or execution that a log tells of.

    Attributes:
        kind: What happened.
        cause: Why, in the log's words.
        name: Name of the compiled function, or an empty text.
        graph: Hash of the graph.
        inputs, outputs: Numbers of them.
        frames: The Python stack, innermost first.
        computation: Hash of the computation, for compiles.
        sizes_gb: Sizes of inputs, outputs, aliases, intermediates and program as the log
            has them, in GB with six decimals; only for compiles.
        line: Number of the line where it begins.
    """

    kind: Kind
    cause: str
    name: str
    graph: str
    inputs: int
    outputs: int
    frames: tuple[Frame, ...]
    computation: str = ""
    sizes_gb: Mapping[str, float] = field(default_factory=dict)
    line: int = 0

    @property
    def user_frame(self) -> Frame | None:
        """The user's line; the innermost frame that no installed package owns."""
        return user_frame(self.frames)

    @property
    def is_read(self) -> bool:
        """Whether the log blames a value that was read before the step's end."""
        return "access tensor value" in self.cause


@dataclass(frozen=True, slots=True)
class Unlowered:
    """An entry of the profiler's summary: an op, or a line, with how often.

    Attributes:
        op: The op, empty for an entry of a line.
        frames: The stack, empty for an entry of an op.
        count: How often.
    """

    op: str
    frames: tuple[Frame, ...]
    count: int


@dataclass(frozen=True, slots=True, repr=False)
class DebugLog(Evidence):
    """What a debug log tells.

    Attributes:
        events: Compiles and executions, in order.
        unlowered: The profiler's summary of ops that ran on the CPU.
    """

    events: tuple[Event, ...]
    unlowered: tuple[Unlowered, ...]

    @property
    def compiles(self) -> tuple[Event, ...]:
        """The compiles."""
        return tuple(event for event in self.events if event.kind == "compile")

    @property
    def executions(self) -> tuple[Event, ...]:
        """The executions, those that were forbidden included; none in a log of level 1."""
        return tuple(event for event in self.events if event.kind != "compile")

    @property
    def graphs(self) -> dict[str, list[Event]]:
        """The events of each graph, by its hash, in order of appearance."""
        found: dict[str, list[Event]] = {}
        for event in self.events:
            found.setdefault(event.graph, []).append(event)
        return found

    def text(self) -> str:
        """Return a table of the graphs and what stands out."""
        from lazyviz.foreign.debug_log_view import log_text

        return log_text(self)

    def to_html(self) -> str:
        """Return the same for a notebook, with each event folded."""
        from lazyviz.foreign.debug_log_view import log_html

        return log_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        from lazyviz.foreign.debug_log_view import log_dict

        return log_dict(self)
