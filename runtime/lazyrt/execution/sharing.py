"""One device array under several buffers: what is shown is kept without a copy.

What a notebook keeps of a displayed tensor must stay as it was shown. Arrays never change, so
the keeper has the tensor's own array, until a step is about to give that memory away: then the
other holders get a copy, which is what the keeper would have had from the start. So a step
donates the same inputs whether somebody has looked or not.

Everything here is called with the runtime's lock held.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from lazyrt import jax_compat
from lazyrt.execution import memory
from lazyrt.ir.live import pending

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lazyrt.ir.live import Buffer, Type

# A copy of less costs no more than remembering who has it.
_MIN_SHARED = 2**20
_holders: dict[int, list[weakref.ref[Buffer]]] = {}


def keep(keeper: Buffer, data: Any, type_: Type, source: Buffer | None) -> None:
    """Give a buffer of its own a tensor's present data: a small array is copied.

    Args:
        keeper: The new buffer.
        data: A device array.
        type_: Shape, dtype and strides of the keeper.
        source: The buffer whose data it is; None for what a peek has computed.
    """
    if data.nbytes < _MIN_SHARED:
        keeper.store(jax_compat.copy(data), type_)
        return
    keeper.store(data, type_)
    _register(
        data, [*_sharing(data), keeper, *([source] if source is not None else [])]
    )


def references(position: int) -> int:
    """Return how many references to an input's data end once it is given away.

    Those are the other buffers that share it, and their places among the step's inputs.
    """
    data = pending.inputs[position]
    if id(data) not in _holders:
        return 0
    buffers, places = _others(position)
    return len(buffers) + len(places)


def to_copy(positions: Sequence[int]) -> int:
    """Return the size of the copies that `separate` would make, in bytes."""
    if _holders:  # what one buffer has alone needs no copy, and no step need ask for it
        _forget(fewer_than=2)
    return sum(pending.inputs[position].nbytes for position in _shared(positions))


def separate(positions: Sequence[int]) -> None:
    """Give everybody else a copy of the inputs that are about to be given away.

    Raises:
        OutOfMemoryError: There is no room for a copy.
    """
    for position in _shared(positions):
        buffers, places = _others(position)
        with memory.explained("a copy of what was shown"):
            copy = jax_compat.copy(pending.inputs[position])
        for buffer in buffers:
            buffer.data = copy
        for place in places:
            pending.inputs[place] = copy
        _register(copy, buffers)


def _shared(positions: Sequence[int]) -> list[int]:
    """Return the inputs among these whose data somebody else has, too."""
    if not _holders:
        return []
    inputs = pending.inputs
    known = [position for position in positions if id(inputs[position]) in _holders]
    return [position for position in known if references(position)]


def sharers(buffers: Iterable[Buffer]) -> dict[int, Buffer]:
    """Return the buffers whose memory another one has, too: the first that was given has it.

    Args:
        buffers: Live buffers.

    Returns:
        By the id of a buffer, the one that it shares with.
    """
    first: dict[int, Buffer] = {}
    found = {}
    for buffer in buffers:
        if id(buffer.data) not in _holders or buffer.data is None:
            continue
        known = first.setdefault(id(buffer.data), buffer)
        if known is not buffer:
            found[id(buffer)] = known
    return found


def _others(position: int) -> tuple[list[Buffer], list[int]]:
    """Return the other buffers with an input's data, and the other places where it is an input."""
    data, owner = pending.inputs[position], pending.owners[position]()
    buffers = [buffer for buffer in _sharing(data) if buffer is not owner]
    places = [
        place
        for place, each in enumerate(pending.inputs)
        if each is data and place != position
    ]
    return buffers, places


def _sharing(data: Any) -> list[Buffer]:
    """Return the known buffers that have an array now."""
    known = [reference() for reference in _holders.get(id(data), ())]
    return [buffer for buffer in known if buffer is not None and buffer.data is data]


def _register(data: Any, buffers: Iterable[Buffer]) -> None:
    _forget(fewer_than=1)
    _holders[id(data)] = [weakref.ref(each) for each in dict.fromkeys(buffers)]


def _forget(*, fewer_than: int) -> None:
    """Forget the arrays that fewer buffers still have."""
    for key, known in list(_holders.items()):
        buffers = [reference() for reference in known]
        have_it = [b for b in buffers if b is not None and id(b.data) == key]
        if len(have_it) < fewer_than:
            del _holders[key]
