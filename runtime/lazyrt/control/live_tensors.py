"""The live tensors with their ages, lines and holders: who keeps what, and what keeps growing.

A report holds names, numbers and IR, no tensor and no buffer.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lazygraph.readable import Readable, one_line, plural, size_text, text_table
from lazygraph.snapshot import AUTOGRAD, Name
from lazyrt.errors import UsageError
from lazyrt.execution import copy_on_donate, memory
from lazyrt.execution.cache_miss import tree_of
from lazyrt.execution.cost_model import ancestor_counts, ancestors
from lazyrt.execution.graph import Graph
from lazyrt.execution.input_provenance import Holding, holdings
from lazyrt.frontend.names import (
    BACKWARD_OF,
    TRACEBACK,
    Held,
    Walk,
    holders_of_buffers,
    saved_for_backward,
)
from lazyrt.ir import sharding
from lazyrt.ir.live import Buffer, Lost, live_buffers, lock, pending
from lazyrt.ir.node import Provenance, Value, lines_now, type_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

    from lazyrt.observe.events import SourceLocation

# -------------------------------------------- rows: plain data, no tensor and no buffer


_MAX_SHOWN = 3
NOT_FOUND = "nothing found in Python"
_ACTIVATIONS, _OTHERS = "activations", "others"
_KIND_OF = {
    "module": "parameters",
    "buffer": "parameters",
    "gradient": "gradients",
    "optimizer": "optimizer state",
    "optimizer LBFGS": "optimizer state",
    AUTOGRAD: _ACTIVATIONS,
}
_KINDS = tuple(dict.fromkeys(_KIND_OF.values()))
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
        by_device: How many bytes of its data each device has, by the device's number.
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
    site: SourceLocation | None
    frames: tuple[SourceLocation, ...]
    holders: tuple[Name, ...]
    growth: int = 0
    kept: tuple[SourceLocation | None, ...] = ()
    same_memory_as: str = ""
    by_device: Mapping[int, int] = field(default_factory=dict)
    _value: Value | None = field(default=None, repr=False, compare=False)
    _lines: Mapping[int, Provenance] = field(
        default_factory=lines_now, repr=False, compare=False
    )

    @property
    def type(self) -> str:
        """The type in short, such as `f32[2,3]`."""
        return type_text(self.shape, self.dtype)

    @property
    def name(self) -> str:
        """The shortest name, empty where nobody knows one."""
        return self.names[0] if self.names else ""

    @property
    def kind(self) -> str:
        """What it is to training: `parameters`, `gradients`, ..., else `others`."""
        held = {_KIND_OF.get(each.holder, _OTHERS) for each in self.holders}
        owned = [kind for kind in _KINDS if kind in held and kind != _ACTIVATIONS]
        return (
            next(iter(owned or held), _OTHERS) if owned or len(held) == 1 else _OTHERS
        )

    @property
    def places(self) -> list[tuple[Name, SourceLocation | None]]:
        """Each holder with the line that keeps it there, as far as that is known."""
        return list(itertools.zip_longest(self.holders, self.kept))

    @property
    def ir(self) -> str:
        """The pending ops that it needs as text, empty for data."""
        if self._value is None:
            return ""
        return Graph([self._value], self._lines).to_text()

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
    site: SourceLocation | None

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


def holder_text(holder: Name, kept: SourceLocation | None = None) -> str:
    """Return a place in words: what leads there, and of which kind it is.

    Args:
        holder: The place.
        kept: The line that puts things there, where it is a collection.

    Example:
        >>> from lazygraph.snapshot import Name
        >>> from lazyrt.observe.events import SourceLocation
        >>> holder_text(Name("x")), holder_text(Name("history[3]", "list"))
        ('x', 'history[3] (list)')
        >>> holder_text(Name("seen[0]", "list"), SourceLocation("a.py", 7, "f", cell=3))
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


# ---------------------------------------------------------- the table: text, plain data


_MAX_TEXT_ROWS = 40


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LiveReport:
    """All live tensors at one moment, without a reference to any of them.

    Attributes:
        rows: One for each storage, the largest first.
        step: Number of the step that was pending.
        threshold: Tensors that need no more pending nodes than this are left out, unless 0.
        left_out: How many those are, with `left_out_bytes`.
        growth: Places that collect tensors step after step.
        waiting: Earlier cells' pending tensors that nothing reads.
        step_bytes: Size of data that only the pending step reads, of tensors that are gone.
    """

    rows: tuple[LiveRow, ...]
    step: int
    threshold: int = 0
    left_out: int = 0
    left_out_bytes: int = 0
    growth: tuple[Growth, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    step_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """Size of the listed tensors together, in bytes; memory that two have counts once."""
        return _size(self.rows)

    @property
    def by_device(self) -> dict[int, int]:
        """How many bytes of the listed tensors each device has; empty without a mesh."""
        found: Counter[int] = Counter()
        for row in self.rows:
            if not row.same_memory_as:
                found.update(row.by_device)
        return dict(sorted(found.items()))

    @property
    def summary(self) -> str:
        """One line of totals."""
        waiting = [row for row in self.rows if row.is_pending]
        parts = [f"{plural(len(self.rows), 'live tensor')}, {size_text(self.nbytes)}"]
        if waiting:
            nbytes = size_text(sum(row.nbytes for row in waiting))
            parts.append(f"{len(waiting):,} pending, {nbytes}")
        devices = self.by_device.values()
        if len(devices) > 1:
            least, most = size_text(min(devices)), size_text(max(devices))
            size = most if least == most else f"{least} to {most}"
            parts.append(f"{size} on each of {len(devices)} devices")
        if self.left_out:
            parts.append(
                f"{self.left_out:,} more that need at most {plural(self.threshold, 'pending op')} "
                f"left out, {size_text(self.left_out_bytes)}"
            )
        if self.step_bytes:
            parts.append(
                f"{size_text(self.step_bytes)} more that only the pending step reads"
            )
        return " · ".join(parts)

    @property
    def totals(self) -> dict[str, tuple[int, int]]:
        """How many tensors there are of each kind, and their size together.

        Kinds are parameters (with buffers), gradients, optimizer state, activations (what autograd
        alone keeps), and others. Memory that two have counts for the first.
        """
        found: dict[str, tuple[int, int]] = {}
        for row in self.rows:
            count, nbytes = found.get(row.kind, (0, 0))
            nbytes += 0 if row.same_memory_as else row.nbytes
            found[row.kind] = count + 1, nbytes
        return {kind: found[kind] for kind in (*_KINDS, _OTHERS) if kind in found}

    @property
    def notes(self) -> list[str]:
        """The totals, where there are several kinds, and what a reader may want to act on."""
        totals = [f"{k}: {n:,}, {size_text(b)}" for k, (n, b) in self.totals.items()]
        shown = [" · ".join(totals)] if len(totals) > 1 else []
        return [*shown, *map(str, self.growth), *map(str, self.waiting)]

    def sorted(self, column: str = "size", *, reverse: bool = False) -> LiveReport:
        """Return the report with its rows in another order.

        Args:
            column: `id`, `name`, `type`, `size`, `ops`, `age`, `made at` or `held by`; numbers
                from the largest down, words from A to Z.
            reverse: Whether to turn that round.

        Raises:
            UsageError: There is no such column.
        """
        key = _sort_keys.get(column)
        if key is None:
            raise UsageError(
                f"the live tensors have no column {column!r}, so they cannot be sorted by it. "
                f"Take one of {', '.join(COLUMNS)}."
            )
        down = (column in _NUMBERS) is not reverse
        rows = tuple(sorted(self.rows, key=key, reverse=down))
        return dataclasses.replace(self, rows=rows)

    def table(self) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Return the columns' titles and each row's cells; empty columns are left out."""
        cells = [_cells(row) for row in self.rows]
        keep = [
            k
            for k in range(len(COLUMNS))
            if k == 0 or any(row[k] != "" for row in cells)
        ]
        header = tuple(COLUMNS[k] for k in keep)
        return header, [tuple(row[k] for k in keep) for row in cells]

    def to_text(self, limit: int = _MAX_TEXT_ROWS) -> str:
        """Return a table, the totals and the notes as plain text."""
        if not self.rows:
            some = self.left_out or self.step_bytes
            return self.summary if some else "No tensor lives on the lazy device."
        header, rows = self.table()
        right = [title in _NUMBERS for title in header]
        lines = [text_table(header, rows[:limit], right)]
        if len(rows) > limit:
            rest = sum(row.nbytes for row in self.rows[limit:])
            lines.append(f"... and {len(rows) - limit:,} more, {size_text(rest)}")
        return "\n".join([*lines, self.summary, *map(one_line, self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, as JSON takes it."""
        return {
            "step": self.step,
            "threshold": self.threshold,
            "left_out": self.left_out,
            "bytes": self.nbytes,
            "step_bytes": self.step_bytes,
            "rows": [row.to_dict() for row in self.rows],
            "growth": [str(each) for each in self.growth],
            "waiting": [str(each) for each in self.waiting],
        }

    def __repr__(self) -> str:
        return self.to_text()

    __str__ = __repr__


def _cells(row: LiveRow) -> tuple[Any, ...]:
    mark = f"{row.name} ↑" if row.growth else row.name
    made = str(row.site or "")
    nodes = row.ir_nodes if row.is_pending else ""
    return (
        row.id, mark, row.type, Size(row.nbytes), nodes, row.age, made, held_by(row)
    )  # fmt: skip


class Size(int):
    """A number of bytes that shows with its unit."""

    def __str__(self) -> str:
        return size_text(self)


_sort_keys: dict[str, Callable[[LiveRow], Any]] = {
    "id": lambda row: row.id,
    "name": lambda row: (not row.name, row.name),
    "type": lambda row: row.type,
    "size": lambda row: (row.nbytes, -row.id),
    "ops": lambda row: (row.ir_nodes, -row.id),
    "age": lambda row: (row.age, -row.id),
    "made at": lambda row: (
        (row.site.cell or 0, row.site.file, row.site.line) if row.site else (0, "", 0)
    ),
    "held by": lambda row: (not row.holders, held_by(row)),
}
COLUMNS = tuple(_sort_keys)
_NUMBERS = frozenset(("id", "size", "ops", "age"))


# ------------------------------------------------------------------------------- growth


_MIN_STEPS = 3
_ITEM = re.compile(r"(\[[^\[\]]*\]|\{\.\.\.\})$")


def find_growth(rows: Sequence[LiveRow]) -> tuple[tuple[Growth, ...], list[LiveRow]]:
    """Return the places that collect tensors, and the rows with those marked."""
    places: dict[str, list[LiveRow]] = defaultdict(list)
    for row in rows:
        place = _collection(row)
        if place:
            places[place].append(row)
    found = []
    marks: dict[int, int] = {}
    for place, members in places.items():
        ages = {row.age for row in members}
        if len(ages) < _MIN_STEPS:
            continue
        per_step = max(1, round(len(members) / len(ages)))
        marks |= dict.fromkeys((row.id for row in members), per_step)
        found.append(_growth_of(place, members, per_step))
    found.sort(key=lambda each: -each.nbytes)
    return tuple(found), [
        dataclasses.replace(row, growth=marks[row.id]) if row.id in marks else row
        for row in rows
    ]


def _growth_of(place: str, members: Sequence[LiveRow], per_step: int) -> Growth:
    now, ages = pending.number, [row.age for row in members]
    latest = min(members, key=lambda row: row.age)
    kept = line_of_keeping(place.rpartition(" ")[2], latest.site)
    return Growth(
        holder=place,
        per_step=per_step,
        first=now - max(ages),
        last=now - min(ages),
        count=len(members),
        nbytes=sum(row.nbytes for row in members),
        site=kept or latest.site,
    )


def with_keepers(rows: Sequence[LiveRow]) -> list[LiveRow]:
    """Return the rows with the lines that put them into the collections that hold them."""
    known: dict[tuple[str, SourceLocation], SourceLocation | None] = {}

    def line(holder: Name, site: SourceLocation) -> SourceLocation | None:
        path = _collection_of(holder)
        key = path, site
        if path and key not in known:
            known[key] = line_of_keeping(path, site)
        return known.get(key)

    found = []
    for row in rows:
        site = row.site
        kept = tuple(line(each, site) for each in row.holders) if site else ()
        found.append(dataclasses.replace(row, kept=kept) if any(kept) else row)
    return found


def _collection_of(holder: Name) -> str:
    """Return the path of the collection whose item a holder is; empty for another holder."""
    parent = _ITEM.sub("", holder.text)
    return parent if holder.holder in COLLECTIONS and parent != holder.text else ""


def _collection(row: LiveRow) -> str:
    """Return the collection that holds a tensor, such as `list history`; empty for none."""
    for holder in row.holders:
        parent = _ITEM.sub("", holder.text)
        if parent == holder.text:
            continue
        if holder.holder in COLLECTIONS:
            return f"{holder.holder} {parent}"
        if holder.holder == AUTOGRAD:
            return f"autograd's graphs under {parent.removeprefix(BACKWARD_OF)}"
    return ""


def find_waiting(rows: Sequence[LiveRow]) -> tuple[Waiting, ...]:
    """Return the earlier cells' tensors for which ops run that nothing else needs."""
    names = {row._value: row.name for row in rows if row._value is not None}
    named = {value: name for value, name in names.items() if name}
    return waiting_cells(Graph(list(names)), named)


def waiting_cells(graph: Graph, names: Mapping[Value, str]) -> tuple[Waiting, ...]:
    """Return the earlier cells' results for which ops of a graph run that nothing else needs.

    Args:
        graph: The pending graph.
        names: The user's names of its roots, as far as they are known.
    """
    by_cell: dict[int, list[Value]] = defaultdict(list)
    for root in graph.roots:
        site = root.node.provenance.site if root.node is not None else None
        if site is not None and site.cell is not None:
            by_cell[site.cell].append(root)
    found = []
    for cell in sorted(by_cell)[:-1]:
        mine = set(by_cell[cell])
        others = [root for root in graph.roots if root not in mine]
        alone = set(graph.nodes) - ancestors(others)
        held = [root for root in by_cell[cell] if root.node in alone]
        if held:
            called = tuple(names[root] for root in held if root in names)
            found.append(
                Waiting(cell=cell, names=called, count=len(held), nodes=len(alone))
            )
    return tuple(found)


_numbers = itertools.count(1)
_MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class LiveTensor(Readable):
    """One storage on the lazy device that Python still references.

    Attributes:
        shape: Sizes.
        dtype: torch dtype.
        nbytes: Size of the data, in bytes.
        pending: Whether it has yet to be computed.
        op: The op that computes it; empty for data.
        site: Where that op was recorded, None for data.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    nbytes: int
    pending: bool
    op: str
    site: SourceLocation | None

    @property
    def is_root(self) -> bool:
        """Whether the next barrier computes it."""
        return self.pending

    def __str__(self) -> str:
        state = f"pending: {self.op}" if self.pending else "ready"
        where = f", {self.site}" if self.site else ""
        return f"{type_text(self.shape, self.dtype)} {state}{where}"


def live_tensors() -> list[LiveTensor]:
    """Return a record of each live tensor, largest first; holds none of them."""
    found = []
    for buffer in live_buffers():
        if isinstance(buffer.data, Lost):
            continue
        shape, dtype, _ = buffer.type
        node = buffer.value.node if buffer.value is not None else None
        found.append(
            LiveTensor(
                shape=shape,
                dtype=dtype,
                nbytes=math.prod(shape) * dtype.itemsize,
                pending=node is not None,
                op=node.op.name if node is not None else "",
                site=node.provenance.site if node is not None else None,
            )
        )
    return sorted(found, key=lambda tensor: -tensor.nbytes)


def live_tensors_report(
    threshold: int = 0, *, namespace: Mapping[str, Any] | None = None
) -> LiveReport:
    """Return every live tensor with its size, pending ops, age, line and holders.

    Looking computes nothing, records nothing and keeps nothing alive.

    Args:
        threshold: List only tensors that need more pending nodes than this; 0 lists all.
            500 finds what holds large graphs.
        namespace: Variables to search for holders beside those of the calling frames and of
            the user's modules, such as a shell's.

    Raises:
        UsageError: The threshold is no count.
    """
    if type(threshold) is not int or threshold < 0:
        raise UsageError(
            f"live_tensors_report() got threshold={threshold!r}, which is no number of pending "
            "nodes. 0 lists all tensors, 500 those that hold large graphs."
        )
    with lock:
        held = holders_of_buffers(namespace, depth=2)
        return _report(live_buffers(), held, threshold)


def _report(
    buffers: Sequence[Buffer], held: Mapping[int, Held], threshold: int
) -> LiveReport:
    alive = [buffer for buffer in buffers if buffer.data.__class__ is not Lost]
    # Numbers are given in this order, so that two runs of a program have the same ones.
    alive.sort(key=lambda buffer: _birth(buffer, held.get(id(buffer), Held()).places))
    values = {
        id(buffer): buffer.value
        for buffer in alive
        if buffer.value is not None and buffer.value.node is not None
    }
    sizes = ancestor_counts(values.values())
    rows = []
    for buffer in alive:
        value = values.get(id(buffer))
        nodes = sizes[value] if value is not None else 0
        rows.append(_row(buffer, value, nodes, held.get(id(buffer), Held())))
    rows = with_keepers(_with_shared_memory(rows, alive))
    growth, marked = find_growth(rows)
    listed = [row for row in marked if not threshold or row.ir_nodes > threshold]
    listed.sort(key=lambda row: (-row.nbytes, row.id))
    return LiveReport(
        rows=tuple(listed),
        step=pending.number,
        threshold=threshold,
        left_out=len(rows) - len(listed),
        left_out_bytes=_size(rows) - _size(listed),
        growth=growth,
        waiting=find_waiting(rows),
        step_bytes=_size_of_the_step(buffers),
    )


def _size(rows: Sequence[LiveRow]) -> int:
    return sum(row.nbytes for row in rows if not row.same_memory_as)


def _with_shared_memory(
    rows: Sequence[LiveRow], buffers: Sequence[Buffer]
) -> list[LiveRow]:
    """Return the rows, those marked whose memory an older one has as well."""
    number = {id(buffer): k for k, buffer in enumerate(buffers)}
    found = list(rows)
    for key, first in copy_on_donate.sharers(buffers).items():
        older = rows[number[id(first)]]
        name = older.name or f"id {older.id}"
        k = number[key]
        found[k] = dataclasses.replace(found[k], same_memory_as=name)
    return found


def _size_of_the_step(buffers: Sequence[Buffer]) -> int:
    """Return the size of the pending step's inputs that no tensor has any more."""
    held = {id(buffer.data) for buffer in [*buffers, *pending.transient]}
    inputs = {id(data): data.nbytes for data in pending.inputs if id(data) not in held}
    return sum(inputs.values())


def _row(buffer: Buffer, value: Value | None, nodes: int, held: Held) -> LiveRow:
    own_shape, dtype, _ = buffer.type
    shape = own_shape if held.shape is None else held.shape
    provenance = value.node.provenance if value is not None and value.node else None
    made_at: SourceLocation | None = getattr(buffer, "made_at", None)
    return LiveRow(
        id=_number(buffer),
        names=tuple(each.text for each in held.places if _is_name(each)),
        shape=shape,
        dtype=dtype,
        device="lazyrt:0",
        nbytes=math.prod(shape) * dtype.itemsize,
        is_pending=value is not None,
        op=value.node.op.name if value is not None and value.node else "",
        ir_nodes=nodes,
        age=pending.number - getattr(buffer, "born", pending.number),
        site=made_at or (provenance.site if provenance is not None else None),
        frames=provenance.stack if provenance is not None else (),
        holders=held.places,
        by_device=sharding.bytes_by_device(buffer.data) if sharding.in_use else {},
        _value=value,
    )


def _birth(buffer: Buffer, holders: Sequence[Name]) -> tuple[int, str, str, str]:
    """Return what tells buffers apart in the same way in each run of a program."""
    born = getattr(buffer, "born", pending.number)
    site = str(getattr(buffer, "made_at", None) or "")
    return born, site, holders[0].text if holders else "", str(buffer.type[0])


def _number(buffer: Buffer) -> int:
    number = getattr(buffer, "number", None)
    if number is None:
        number = buffer.number = next(_numbers)
    return int(number)


def _is_name(holder: Name) -> bool:
    """Return whether a place is one that the user wrote, and not a traceback or autograd."""
    return holder.holder != AUTOGRAD and not holder.holder.startswith(TRACEBACK)


def holdings_in(graph: Graph, namespace: Mapping[str, Any]) -> dict[Value, Holding]:
    """Return what stands behind the inputs and outputs of a graph, named from one namespace.

    Args:
        graph: A graph of the step that is pending now.
        namespace: The user's variables, where no frame of the user's is running.
    """
    walk = Walk()
    with lock:
        walk.add_namespace(namespace)
        walk.run()
        names = {key: found[0] for key, found in walk.holders.items()}
        return holdings(graph, saved_for_backward(extra=namespace) | names)


# --- for an error


def _largest_holders() -> list[str]:
    """Return who holds the most memory and what keeps growing, for an error."""
    report = live_tensors_report()
    if not report.rows:
        return []
    lines = [one_line(_in_short(row)) for row in report.rows[:_MAX_LISTED]]
    rest = len(report.rows) - len(lines)
    if rest > 0:
        lines.append(f"and {rest:,} more")
    growing = [one_line(str(each)) for each in report.growth]
    return [
        f"On the device are {report.summary}:",
        *(f"  {line}" for line in lines),
        *growing,
    ]


def _in_short(row: LiveRow) -> str:
    made = f", made at {row.site}" if row.site is not None else ""
    state = "pending" if row.is_pending else "ready"
    name = row.name or f"held by {held_by(row, 1)}"
    return f"{size_text(row.nbytes)}: {name}, {row.type}, {state}{made}"


memory.describe_holders = _largest_holders


# The line of the user's source that puts tensors into a collection.

_PUTS = frozenset(
    ("append", "appendleft", "extend", "insert", "add", "update", "setdefault")
)
_DISPLAYS = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp)  # fmt: skip


def line_of_keeping(path: str, site: SourceLocation | None) -> SourceLocation | None:
    """Return the line that puts things into the collection that a path ends in.

    Args:
        path: Such as `history` or `trainer.log['loss']`.
        site: Where one of those things was made: the search is in its file, and the nearest
            line from there on is taken.

    Returns:
        None if there is no source, or no such line.
    """
    tree = tree_of(site.file) if site is not None else None
    if site is None or tree is None:
        return None
    try:
        wanted = _last_name(ast.parse(path, mode="eval").body)
    except (SyntaxError, ValueError):
        return None
    found = sorted(_lines(tree, wanted)) if wanted else []
    later = [line for line in found if line >= site.line]
    if not found:
        return None
    return replace(site, line=later[0] if later else found[-1])


def _lines(tree: ast.AST, wanted: str) -> Iterator[int]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if attr in _PUTS:
                targets = [owner]
            case ast.Assign(targets=many, value=value):
                items = map(type, ast.iter_child_nodes(value))
                has_items = any(issubclass(kind, ast.expr) for kind in items)
                is_display = isinstance(value, _DISPLAYS)
                targets = [t.value for t in many if isinstance(t, ast.Subscript)]
                targets += many if is_display and has_items else []
            case ast.AugAssign(target=target):
                targets = [target]
            case _:
                continue
        if any(_last_name(target) == wanted for target in targets):
            yield node.lineno


def _last_name(node: ast.expr) -> str:
    """Return the last name of a path: `log` of `self.log['loss']`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
