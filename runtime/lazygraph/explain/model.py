"""Compiled graphs as they are compared, their causes and explanations: plain data."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from lazygraph.readable import Readable, duration_text

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from lazygraph.snapshot import Rounds, Snapshot, SourceLocation

# A loop of the program: its file, first and last line.
Loop = tuple[str, int, int]

# What explanations ask of a compiled graph.

Boundary = tuple[str, "SourceLocation | None"]


class GuardNote(NamedTuple):
    """A guard that failed, so that `torch.compile` compiled a function again.

    The text says what is otherwise than in the call before: `n` is 3, was 2. The function begins at
    `definition`, and `site` called it.
    """

    function: str
    text: str
    definition: SourceLocation | None
    site: SourceLocation | None


class OptimizerNote(NamedTuple):
    """An optimizer that updates parameters in a step, by its class.

    Its options are those of each group, with a text and whether the value is true: a number that is
    zero chooses another path, and others are inputs. `groups` says which parameters each has.
    """

    name: str
    options: tuple[tuple[str, str, bool], ...]
    groups: tuple[str, ...] = ()


class BucketNote(NamedTuple):
    """In what parts DistributedDataParallel reduces its gradients, in bytes.

    `times` is how often it has chosen them so far.
    """

    times: int
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKey:
    """What a step's executable and its place in the program depend on.

    `donated` are positions of the arguments whose memory results take. `mode` is `lazy`, or the
    debug mode that ran a part of the step by itself. `ended_by` is what asked for the barrier, and
    `began_after` for the one before: the executable does not depend on them, but a step cut at
    another place is a reason for another graph. `fallbacks` are ops that ran on the CPU since the
    graph before, `rules` the user's own lowerings with how often one had been registered. `cell` is
    the cell of a notebook that ran when it was compiled; its functions may be others'.
    """

    fingerprint: str
    donated: tuple[int, ...] = ()
    tier: str = "optimised"
    device: str = ""
    sharding: str = "one device"
    mode: str = "lazy"
    ended_by: Boundary = ("", None)
    began_after: Boundary = ("", None)
    fallbacks: tuple[Boundary, ...] = ()
    rules: tuple[tuple[str, int], ...] = ()
    cell: int | None = None
    guards: tuple[GuardNote, ...] = ()
    optimizers: tuple[OptimizerNote, ...] = ()
    buckets: BucketNote | None = None

    @property
    def optimizer(self) -> str:
        """The class of the step's optimizers; empty where there is none or several."""
        classes = {note.name for note in self.optimizers}
        return classes.pop() if len(classes) == 1 else ""


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
    def key(self) -> StepKey:
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


class Source:
    """What the user's source says; this one says nothing, as of a program read from a file.

    `quotes` is what of it was asked for, and so may stand in a sentence.
    """

    def __init__(self) -> None:
        self.quotes: set[str] = set()

    def argument(self, site: SourceLocation | None, op: str, position: int) -> str:  # noqa: ARG002
        """Return the expression of an argument, such as `self.eps`; empty where unknown."""
        return ""

    def call(self, site: SourceLocation | None, op: str) -> str:  # noqa: ARG002
        """Return the call that recorded an op, as it is written; empty where that is unclear."""
        return ""

    def parameter(self, op: str, position: int) -> str:  # noqa: ARG002
        """Return what an op's schema calls an argument; empty where unknown."""
        return ""

    def statement(self, site: SourceLocation | None) -> str:  # noqa: ARG002
        """Return a line of the program, shortened to one sentence's length; empty where unknown."""
        return ""

    def loop(self, site: SourceLocation | None) -> Loop | None:  # noqa: ARG002
        """Return the innermost `for` or `while` around a line; None where none is known."""
        return None

    def takes_tensor(self, op: str, position: int) -> bool:  # noqa: ARG002
        """Return whether some overload of an op takes a tensor for an argument."""
        return False

    def expression(self, site: SourceLocation | None, op: str) -> tuple[str, str]:  # noqa: ARG002
        """Return the expression in which a number varied, and the number's name there."""
        return "", ""

    def quote(self, text: str) -> str:
        """Return a text of the program, and note it in `quotes`."""
        if text:
            self.quotes.add(text)
        return text


NO_SOURCE = Source()


Kind = Literal[
    "first_trace", "new_program", "cache_evicted", "mode", "tier", "device", "sharding",
    "lowering", "donation", "fallback", "other_step", "graph_break", "missing_boundary", "module_added", "module_removed",
    "module_recreated", "module_call", "same_input", "state_became_input", "carried_over", "update", "input_shape", "input_dtype",
    "parameter_shape", "shape", "memory_format", "dtype", "loop_count", "regrouped", "buckets", "train_eval",
    "live_tensor", "live_tensor_gone", "closure", "rng", "baked_constant", "lifted_number",
    "new_input", "code_path", "wiring", "guard",
]  # fmt: skip

_SHOWN = 3


class EditCounts(NamedTuple):
    """Operations and inputs that a cause accounts for."""

    added: int = 0
    removed: int = 0
    changed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause(Readable):
    """One reason why a graph differs from the nearest one before.

    Attributes:
        kind: What sort of reason.
        text: The sentence, without a full stop.
        fix: What to do about it; empty where nothing is wrong.
        variable: What the user calls the tensor that it is about; empty where unknown.
        before, now: Lines on both sides, None where a side has none.
        edits: How many operations and inputs follow from it.
        sizes: Of inputs that have another size along one axis, that size before and now; of a
            loop its rounds.
    """

    kind: Kind
    text: str
    fix: str = ""
    variable: str = ""
    before: SourceLocation | None = None
    now: SourceLocation | None = None
    edits: EditCounts = field(default_factory=EditCounts)
    sizes: tuple[tuple[int, int], ...] = ()

    @property
    def taken(self) -> EditCounts:
        """The name of `edits` until 0.2."""
        warnings.warn(
            "Cause.taken is now Cause.edits, and goes in lazyrt 0.2: write `cause.edits`",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.edits

    @property
    def weight(self) -> int:
        """How many operations and inputs follow from it."""
        return sum(self.edits)

    @property
    def counts(self) -> str:
        """Operations and inputs that follow from it: `3 added, 2 changed`; empty if none do."""
        parts = zip(("added", "removed", "changed"), self.edits, strict=True)
        return ", ".join(f"{number:,} {what}" for what, number in parts if number)

    def __str__(self) -> str:
        """Return the sentence and the lines of both sides."""
        both = [("before ", self.before), ("now ", self.now)]
        sites = [
            f"{when}at {site}"
            for when, site in (both if self.before != self.now else [("", self.now)])
            if site is not None and str(site) not in self.text
        ]
        if self.counts and not self.text.endswith("on it"):  # which says so already
            sites.insert(0, f"ops and inputs: {self.counts}")
        return f"{self.text} ({'; '.join(sites)})" if sites else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation(Readable):
    """Why a step's graph had to be compiled.

    Attributes:
        step: The runtime's number of the step.
        graph: Name of the new graph.
        against: Name of the nearest graph before; empty for the first.
        similarity: Share of operations and types that both have, 0 to 1.
        causes: The reasons, the most basic first; never empty.
        unexplained: Operations that differ for none of these reasons.
        compile_ns: What the compile cost; 0 while it is under way or when read from disk.
        ended_at, against_ended_at: Lines of the boundaries at which both graphs ended.
        block: What the graph repeats several times over; None if nothing.
        quotes: What the causes quote of the user's source, names included.
    """

    step: int
    graph: str
    against: str = ""
    similarity: float = 0.0
    causes: tuple[Cause, ...] = field(default=())
    unexplained: int = 0
    compile_ns: int = 0
    ended_at: SourceLocation | None = None
    against_ended_at: SourceLocation | None = None
    block: Rounds | None = None
    quotes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """One line: the first three causes."""
        shown = [cause.text for cause in self.causes[:_SHOWN]]
        more = len(self.causes) - len(shown)
        return "; ".join((*shown, f"and {more} more") if more > 0 else shown)

    @property
    def top(self) -> Cause:
        """The most basic cause."""
        return self.causes[0]

    @property
    def alike(self) -> str:
        """`similarity` in words; 100 % would read as if the two were equal."""
        whole = 0.995
        return ">99 %" if self.similarity > whole else f"{100 * self.similarity:.0f} %"

    @property
    def _ends(self) -> str:
        if self.ended_at is None:
            return ""
        text = f"; ended at {self.ended_at}"
        if self.against_ended_at in {None, self.ended_at}:
            return text
        return f"{text}, {self.against} at {self.against_ended_at}"

    def __str__(self) -> str:
        """Return the causes one by one, each with its counts, lines and fix."""
        head = f"step {self.step} compiled {self.graph}"
        if self.against:
            head += f", nearest {self.against} ({self.alike} alike)"
        if self.compile_ns:
            head += f", took {duration_text(self.compile_ns)}"
        head += self._ends
        lines = [head]
        for number, cause in enumerate(self.causes, 1):
            lines.append(f"  {number}. {cause}")
            if cause.fix:
                lines.append(f"     fix: {cause.fix}")
        if self.unexplained:
            lines.append(f"  {self.unexplained:,} other operations differ too")
        if self.block is not None:
            ops, times, where = self.block
            lines.append(
                f"  note: this graph contains the same {ops:,}-op block {times} times"
                f"{f' ({where})' if where else ''}: compile time and memory grow with the rounds. "
                "Where a round can be a step of its own, `lazyrt.mark_step()` at its end makes it "
                "one graph of one round"
            )
        return "\n".join(lines)
