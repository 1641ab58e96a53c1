"""The live tensors with their ages, lines and holders: who keeps what, and what keeps growing.

A report holds names, numbers and IR, no tensor and no buffer.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazygraph.numbers import size_text
from lazygraph.readable import Readable
from lazyrt.control.live_growth import find_growth, find_waiting, with_keepers
from lazyrt.control.live_listing import LiveReport, plain
from lazyrt.control.live_rows import LiveRow, held_by
from lazyrt.errors import UsageError
from lazyrt.execution import memory, sharing
from lazyrt.execution.holdings import holdings
from lazyrt.frontend.holders import (
    AUTOGRAD,
    TRACEBACK,
    Held,
    holders_of_buffers,
)
from lazyrt.frontend.names import Walk
from lazyrt.ir.cones import cone_sizes
from lazyrt.ir.live import Buffer, Lost, live_buffers, lock, pending
from lazyrt.ir.node import type_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from lazygraph.snapshot import Name
    from lazyrt.execution.graph import Graph
    from lazyrt.execution.holdings import Holding
    from lazyrt.ir.node import Value
    from lazyrt.observe.events import Site

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
    site: Site | None

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
    found = [
        _describe(buffer)
        for buffer in live_buffers()
        if not isinstance(buffer.data, Lost)
    ]
    return sorted(found, key=lambda tensor: -tensor.nbytes)


def _describe(buffer: Buffer) -> LiveTensor:
    shape, dtype, _ = buffer.type
    node = buffer.value.node if buffer.value is not None else None
    return LiveTensor(
        shape=shape,
        dtype=dtype,
        nbytes=math.prod(shape) * dtype.itemsize,
        pending=node is not None,
        op=node.op.name if node is not None else "",
        site=node.provenance.site if node is not None else None,
    )


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
    sizes = cone_sizes(values.values())
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
    for key, first in sharing.sharers(buffers).items():
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
    made_at: Site | None = getattr(buffer, "made_at", None)
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
        return holdings(graph, names)


# --- for an error


def _largest_holders() -> list[str]:
    """Return who holds the most memory and what keeps growing, for an error."""
    report = live_tensors_report()
    if not report.rows:
        return []
    lines = [plain(_in_short(row)) for row in report.rows[:_MAX_LISTED]]
    rest = len(report.rows) - len(lines)
    if rest > 0:
        lines.append(f"and {rest:,} more")
    growing = [plain(str(each)) for each in report.growth]
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


memory.describe_holders(_largest_holders)
