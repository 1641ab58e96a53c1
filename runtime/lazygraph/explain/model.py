"""Causes and explanations: plain data, ready to print."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from lazygraph.numbers import duration_text
from lazygraph.readable import Readable

if TYPE_CHECKING:
    from lazygraph.repeat import Rounds
    from lazygraph.source_location import SourceLocation

Kind = Literal[
    "first_trace", "new_program", "cache_evicted", "mode", "tier", "device", "sharding",
    "lowering", "donation", "fallback", "other_step", "graph_break", "missing_boundary", "module_added", "module_removed",
    "module_recreated", "module_call", "same_input", "state_became_input", "carried_over", "update", "input_shape", "input_dtype",
    "parameter_shape", "shape", "dtype", "loop_count", "regrouped", "train_eval",
    "live_tensor", "live_tensor_gone", "closure", "rng", "baked_constant", "lifted_number",
    "code_path", "wiring", "guard",
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
        sites = [
            f"{when} at {site}"
            for when, site in (("before", self.before), ("now", self.now))
            if site is not None and str(site) not in self.text
        ]
        details = "; ".join([part for part in (self._follows, *sites) if part])
        return f"{self.text} ({details})" if details else self.text

    @property
    def _follows(self) -> str:
        """What follows from it, where the sentence does not say so already."""
        is_counted = self.text.endswith("on it")
        return "" if is_counted or not self.counts else f"ops and inputs: {self.counts}"


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
