"""What explanations ask of a compiled graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from lazygraph.explain.model import Explanation
    from lazygraph.snapshot import Snapshot
    from lazygraph.source_location import SourceLocation

Boundary = tuple[str, "SourceLocation | None"]


class GuardNote(NamedTuple):
    """A guard that failed, so that `torch.compile` compiled a function again.

    Attributes:
        function: The function's name.
        text: What is otherwise than in the call before: `n` is 3, was 2.
        definition: Where the function begins.
        site: The line that called it.
    """

    function: str
    text: str
    definition: SourceLocation | None
    site: SourceLocation | None


class Key(Protocol):
    """What an executable, and a graph's place in the program, depend on; see `StepKey`."""

    @property
    def donated(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def tier(self) -> str: ...  # noqa: D102
    @property
    def device(self) -> str: ...  # noqa: D102
    @property
    def sharding(self) -> str: ...  # noqa: D102
    @property
    def mode(self) -> str: ...  # noqa: D102
    @property
    def ended_by(self) -> Boundary: ...  # noqa: D102
    @property
    def began_after(self) -> Boundary: ...  # noqa: D102
    @property
    def rules(self) -> tuple[tuple[str, int], ...]: ...  # noqa: D102
    @property
    def cell(self) -> int | None: ...  # noqa: D102
    @property
    def guards(self) -> tuple[GuardNote, ...]: ...  # noqa: D102


class Record(Protocol):
    """A compiled graph, with its snapshot until that is dropped to bound memory."""

    name: str
    nodes: int
    first_step: int
    last_step: int
    snapshot: Snapshot | None
    explanation: Explanation | None
    lines: tuple[SourceLocation | None, SourceLocation | None]
    labels: Counter[Any] | None

    @property
    def key(self) -> Key:
        """What its executable depends on."""

    @property
    def fingerprint(self) -> str:
        """The graph's fingerprint."""

    @property
    def ops(self) -> Counter[str]:
        """How often the graph has each op."""


class History(Protocol):
    """The compiled graphs of a process, the earliest first, and the order in which they ran."""

    def __iter__(self) -> Iterator[Record]:
        """Yield the graphs in order of their compilation."""

    def __len__(self) -> int:
        """Return how many there are."""

    def runs(self) -> Iterator[Record]:
        """Yield the graphs that ran, the latest first."""


class Source(Protocol):
    """What the user's source says; a program read from a file has none."""

    def argument(self, site: SourceLocation | None, op: str, position: int) -> str:
        """Return the expression of an argument, such as `self.eps`; empty where unknown."""

    def call(self, site: SourceLocation | None, op: str) -> str:
        """Return the call that recorded an op, as it is written; empty where that is unclear."""

    def takes_tensor(self, op: str, position: int) -> bool:
        """Return whether some overload of an op takes a tensor for an argument."""

    def expression(self, site: SourceLocation | None, op: str) -> tuple[str, str]:
        """Return the expression in which a number varied, and the number's name there."""


class QuotedSource:
    """A source that notes what of it was asked for, and so may stand in a sentence."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.quotes: set[str] = set()

    def argument(self, site: SourceLocation | None, op: str, position: int) -> str:
        """Return the expression of an argument; see `Source`."""
        return self._noted(self._source.argument(site, op, position))

    def call(self, site: SourceLocation | None, op: str) -> str:
        """Return the call that recorded an op; see `Source`."""
        return self._noted(self._source.call(site, op))

    def takes_tensor(self, op: str, position: int) -> bool:
        """Return whether some overload of an op takes a tensor for an argument."""
        return self._source.takes_tensor(op, position)

    def expression(self, site: SourceLocation | None, op: str) -> tuple[str, str]:
        """Return the expression in which a number varied, and the number's name there."""
        text, name = self._source.expression(site, op)
        return self._noted(text), self._noted(name)

    def _noted(self, text: str) -> str:
        if text:
            self.quotes.add(text)
        return text


class NoSource:
    """The source of programs that have none."""

    def argument(self, site: SourceLocation | None, op: str, position: int) -> str:  # noqa: ARG002
        """Return an empty name."""
        return ""

    def call(self, site: SourceLocation | None, op: str) -> str:  # noqa: ARG002
        """Return an empty text."""
        return ""

    def takes_tensor(self, op: str, position: int) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    def expression(self, site: SourceLocation | None, op: str) -> tuple[str, str]:  # noqa: ARG002
        """Return empty texts."""
        return "", ""


NO_SOURCE = NoSource()
