"""What a report of the live tensors consists of: plain data, no tensor and no buffer."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lazygraph.numbers import plural, size_text
from lazyrt.execution.graph import Graph
from lazyrt.ir.node import type_text

if TYPE_CHECKING:
    import torch

    from lazygraph.snapshot import Name
    from lazyrt.ir.node import Value
    from lazyrt.observe.events import Site

_MAX_SHOWN = 3
NOT_FOUND = "nothing found in Python"
COLLECTIONS = frozenset(("list", "tuple", "dict", "set", "deque"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRow:
    """One storage on the lazy device that something still references.

    Attributes:
        id: Its number, the same in each report.
        names: What the user calls it, the shortest path first; empty where nobody knows.
        shape: Sizes, those of the tensor that its holders have.
        dtype: torch dtype.
        device: Such as `lazyrt:0`.
        nbytes: Size of its data, in bytes.
        is_pending: Whether it has yet to be computed.
        op: The op that computes it; empty for data.
        ir_nodes: Pending nodes that it needs; 0 for data.
        age: Steps since the one that made it.
        site: The line that made it, None where it is not known.
        frames: The user's frames that recorded it, the outermost first; empty for data.
        holders: Every place that holds it: variables, containers, `Out`, tracebacks, closures,
            modules, optimizers, autograd.
        growth: How many like it are added in each step; 0 where none are.
        kept: For each holder that is an item of a collection, the line that puts it there.
        same_memory_as: The name of an older tensor whose memory it has as well, which is so until
            a step writes to one of them; empty where the memory is its own.
    """

    id: int
    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str
    nbytes: int
    is_pending: bool
    op: str
    ir_nodes: int
    age: int
    site: Site | None
    frames: tuple[Site, ...]
    holders: tuple[Name, ...]
    growth: int = 0
    kept: tuple[Site | None, ...] = ()
    same_memory_as: str = ""
    _value: Value | None = field(default=None, repr=False, compare=False)

    @property
    def type(self) -> str:
        """The type in short, such as `f32[2,3]`."""
        return type_text(self.shape, self.dtype)

    @property
    def name(self) -> str:
        """The shortest name, empty where nobody knows one."""
        return self.names[0] if self.names else ""

    @property
    def places(self) -> list[tuple[Name, Site | None]]:
        """Each holder with the line that keeps it there, as far as that is known."""
        return list(itertools.zip_longest(self.holders, self.kept))

    @property
    def ir(self) -> str:
        """The pending ops that it needs as text, empty for data."""
        return Graph([self._value]).to_text() if self._value is not None else ""

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data, as JSON takes it."""
        return {
            "id": self.id,
            "names": list(self.names),
            "shape": list(self.shape),
            "dtype": str(self.dtype),
            "device": self.device,
            "bytes": self.nbytes,
            "pending": self.is_pending,
            "op": self.op,
            "ir_nodes": self.ir_nodes,
            "age_steps": self.age,
            "site": str(self.site or ""),
            "frames": [str(frame) for frame in self.frames],
            "held_by": [
                {"path": holder.text, "holder": holder.holder, "line": str(line or "")}
                for holder, line in self.places
            ],
            "growth_per_step": self.growth,
            "same_memory_as": self.same_memory_as,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Tensors that one place collects, step after step.

    Attributes:
        holder: Such as `list history`.
        per_step: Tensors that each step adds.
        first, last: The steps in which the first and the last of them were made.
        count: How many there are.
        nbytes: Their size together.
        site: The line that puts them there, or else the one that makes them.
    """

    holder: str
    per_step: int
    first: int
    last: int
    count: int
    nbytes: int
    site: Site | None

    def __str__(self) -> str:
        """Return one sentence."""
        where = f" ({self.site})" if self.site is not None else ""
        return (
            f"+{plural(self.per_step, 'live tensor')} per step, held by {self.holder}{where}: "
            f"{self.count:,} since step {self.first}, {size_text(self.nbytes)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Pending tensors of one notebook cell that nothing later reads.

    Attributes:
        cell: Execution count of the cell that recorded them.
        names: What the user calls them.
        count: How many there are.
        nodes: Ops that run for them alone.
    """

    cell: int
    names: tuple[str, ...]
    count: int
    nodes: int

    def __str__(self) -> str:
        """Return one sentence."""
        shown = ", ".join(self.names[:_MAX_SHOWN])
        more = ", …" if len(self.names) > _MAX_SHOWN else ""
        called = f" ({shown}{more})" if shown else ""
        verb = "makes" if self.count == 1 else "make"
        return (
            f"cell {self.cell} holds {plural(self.count, 'tensor')}{called} that {verb} the next "
            f"step's graph bigger: {plural(self.nodes, 'op')} run only for "
            f"{'it' if self.count == 1 else 'them'}"
        )


def holder_text(holder: Name, kept: Site | None = None) -> str:
    """Return a place in words: what leads there, and of which kind it is.

    Args:
        holder: The place.
        kept: The line that puts things there, where it is a collection.

    Example:
        >>> from lazygraph.snapshot import Name
        >>> from lazyrt.observe.events import Site
        >>> holder_text(Name("x")), holder_text(Name("history[3]", "list"))
        ('x', 'history[3] (list)')
        >>> holder_text(Name("seen[0]", "list"), Site("a.py", 7, "f", cell=3))
        'seen[0] (list in cell 3)'
    """
    if holder.holder == "variable" or holder.text.startswith("Out["):
        return holder.text
    where = ""
    if kept is not None:
        where = f", {kept}" if kept.cell is None else f" in cell {kept.cell}"
    return f"{holder.text} ({holder.holder}{where})"


def held_by(row: LiveRow, limit: int = _MAX_SHOWN) -> str:
    """Return the places that hold a tensor, in words."""
    shown = [holder_text(*place) for place in row.places[:limit]]
    rest = len(row.holders) - limit
    more = f" and {rest} more" if rest > 0 else ""
    same = f"; same memory as {row.same_memory_as}" if row.same_memory_as else ""
    return (", ".join(shown) or NOT_FOUND) + more + same
