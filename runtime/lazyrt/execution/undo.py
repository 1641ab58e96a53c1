"""Taking recorded work back: pending ops are dropped, and tensors get earlier data again.

Dropping never runs anything. A tensor that has data from before keeps it; one that only the
dropped ops would have made is lost, and says so when it is used.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazyrt.execution.executor import pending_roots
from lazyrt.execution.graph import Graph
from lazyrt.execution.interrupts import deferred_interrupt
from lazyrt.ir.live import (
    Buffer,
    Lost,
    Sizes,
    Type,
    drop_stand_ins,
    generators,
    let_go,
    live_buffers,
    lock,
    made_in,
    pending,
)

if TYPE_CHECKING:
    from lazyrt.ir.node import Value

_Source = tuple[Any, int]


@dataclass(frozen=True, slots=True)
class Mark:
    """What was pending at one moment; holds no buffer.

    Attributes:
        number: The pending step's number; after a barrier nothing of the mark is left.
        written: Buffers that ops made or wrote, with their values, parked ones included.
        read: Buffers whose data are inputs, with their leaves.
        sizes: How much it had numbered.
        writes: In-place ops.
    """

    number: int
    written: list[tuple[weakref.ref[Buffer], Value | None]]
    read: list[tuple[weakref.ref[Buffer], Value | None]]
    sizes: Sizes
    writes: int


_NOTHING = Mark(-1, [], [], Sizes(), 0)


def mark() -> Mark:
    """Return a mark of what is pending now."""
    with lock:
        owners = [owner() for owner in pending.owners.values()]
        return Mark(
            number=pending.number,
            written=[(weakref.ref(b), b.value) for b in _recorded()],
            read=[(weakref.ref(b), b.value) for b in owners if b is not None],
            sizes=pending.sizes(),
            writes=pending.writes,
        )


def _recorded() -> list[Buffer]:
    """Return what the step made or wrote, and what eager debug mode has set aside of it."""
    return [*pending.parked, *pending.buffers]


def drop_since(before: Mark | None, reason: str) -> Graph:
    """Drop what was recorded since a mark, or everything that is pending.

    Args:
        before: What stays pending; of no effect once a barrier has run it.
        reason: What tensors say that are lost by this.

    Returns:
        The graph of what was pending, for looking at it.
    """
    with lock:
        graph = Graph(pending_roots())
        if before is None or before.number != pending.number:
            before = _NOTHING
        with deferred_interrupt():
            _drop(before, reason)
        return graph


def _drop(before: Mark, reason: str) -> None:
    kept = _alive(before.written)
    held = {**_alive(before.read), **kept}
    owners = [owner() for owner in pending.owners.values()]
    touched = dict.fromkeys(_recorded())
    touched.update(dict.fromkeys(owner for owner in owners if owner is not None))
    for buffer in touched:
        if buffer not in held:
            let_go(buffer, reason)
            buffer.version += 1
        elif buffer.value is not held[buffer]:
            buffer.value = held[buffer]
            buffer.version += 1  # only then: views of it would be recorded anew
        if buffer not in kept:
            pending.buffers.pop(buffer, None)
            pending.parked.pop(buffer, None)
    drop_stand_ins(reason)
    pending.cut_back(before.sizes)
    pending.memo.clear()
    pending.memo_bytes = 0
    pending.forget_peeks()
    pending.writes = before.writes
    pending.activity += len(touched) + 1


def _alive(
    held: list[tuple[weakref.ref[Buffer], Value | None]],
) -> dict[Buffer, Value | None]:
    found = ((reference(), value) for reference, value in held)
    return {buffer: value for buffer, value in found if buffer is not None}


class Snapshot:
    """The data of every live tensor and the random states, to go back to.

    It keeps the data alive, so steps that end meanwhile cannot reuse their memory. Take it
    while nothing is pending.
    """

    def __init__(self) -> None:
        with lock:
            self._data: list[tuple[weakref.ref[Buffer], Any, Type | None, _Source]] = [
                (weakref.ref(buffer), buffer.data, buffer.meta, made_in(buffer))
                for buffer in live_buffers()
                if not isinstance(buffer.data, Lost)
            ]
            self._random = [
                (weakref.ref(each), each.seed, each.offset) for each in generators
            ]

    def release(self) -> None:
        """Let go of the data: there is no going back any more."""
        self._data.clear()

    def restore(self, reason: str) -> tuple[Graph, int]:
        """Drop everything pending, and give each tensor the data that it had.

        Returns:
            The graph of what was pending, and how many tensors had changed.
        """
        with lock:
            written = [
                (buffer, data, meta, source)
                for reference, data, meta, source in self._data
                if (buffer := reference()) is not None
                and (buffer.data is not data or buffer.is_pending)
            ]
            graph = drop_since(None, reason)
            with deferred_interrupt():
                for buffer, data, meta, source in written:
                    buffer.data, buffer.meta, buffer.value = data, meta, None
                    buffer.run, buffer.slot = source
                    buffer.version += 1
                for reference, seed, offset in self._random:
                    if (generator := reference()) is not None:
                        generator.restart(seed, offset)
            self.release()
            return graph, len(written)
