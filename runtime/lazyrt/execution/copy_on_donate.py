"""One device array under several buffers: what is shown is kept without a copy.

What a notebook keeps of a displayed tensor must stay as it was shown. Arrays never change, so
the keeper has the tensor's own array, until a step is about to give that memory away: then the
other holders get a copy, which is what the keeper would have had from the start. So a step
donates the same inputs whether somebody has looked or not.

A read copies without the lock, so another thread's step may come to give away what is being
read: then the step gets the copy, and gives that away.

Everything here is called with the runtime's lock held, but for the end of a `reading`.
"""

from __future__ import annotations

import contextlib
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lazyrt import jax_compat
from lazyrt.execution import memory
from lazyrt.ir import sharding
from lazyrt.ir.live import Buffer, Type, pending, ready_buffers
from lazyrt.observe.events import Closing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import TracebackType


_OWN_ROOT = str(Path(__file__).parent.parent) + "/"
# A copy of less costs no more than remembering who has it.
_MIN_SHARED = 2**20
_holders: dict[int, list[weakref.ref[Buffer]]] = {}
_readings: dict[reading, None] = {}


class reading(Closing):  # noqa: N801 - used like a function, in `with`
    """Device data that is read without the lock, in `with`.

    The data is put into it with the lock held. No variable that outlives the block refers to
    it: references that stay would change what the next step donates. After Ctrl-C those of the
    frames below would, which the traceback keeps.
    """

    def __enter__(self) -> Self:
        self.found: Any = None
        _readings[self] = None
        return self

    def close(self) -> None:
        """Let go of the data."""
        self.found = None  # first, so that no reference is left that nobody tells of
        _readings.pop(self, None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Our own functions that an exception has ended forget their variables.
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename.startswith(_OWN_ROOT):
                with contextlib.suppress(RuntimeError):  # the one that reads goes on
                    traceback.tb_frame.clear()
            traceback = traceback.tb_next
        self.close()


def being_read() -> frozenset[int]:
    """Return the ids of the arrays that are read without the lock at present."""
    if not _readings:
        return frozenset()
    return frozenset(map(id, _parts([each.found for each in list(_readings)])))


def _parts(found: Iterable[Any]) -> Iterator[Any]:
    for each in found:
        if isinstance(each, (list, tuple)):  # of values, or a base with its views
            yield from _parts(each)
        else:
            yield each


def is_only_read(position: int) -> bool:
    """Return whether an input's data has no holders but its buffer, readers and known sharers."""
    data, owner = pending.inputs[position], pending.owners[position]()
    known = _sharing(data)
    if not known and sum(each is data for each in pending.inputs) > 1:
        return False
    strangers = (buffer for buffer in ready_buffers() if buffer.data is data)
    return all(buffer is owner or buffer in known for buffer in strangers)


def keep(keeper: Buffer, data: Any, type_: Type, source: Buffer | None) -> None:
    """Give a buffer of its own a tensor's present data: a small array is copied.

    `source` is the buffer whose data it is; None for what a peek has computed.
    """
    if data.nbytes < _MIN_SHARED:
        keeper.store(jax_compat.copy(data), type_)
        return
    keeper.store(data, type_)
    share([[keeper, *([source] if source is not None else [])]])


def share(buffers: Iterable[Sequence[Buffer]]) -> None:
    """Let buffers that have one array share it, whatever its size."""
    _forget(fewer_than=1)
    for group in buffers:
        data = group[0].data
        known = dict.fromkeys([*_sharing(data), *group])
        _holders[id(data)] = [weakref.ref(each) for each in known]


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
    copied = {*_read(positions), *_shared(positions)}
    return sum(pending.inputs[position].nbytes for position in copied)


def separate(positions: Sequence[int], *, at_once: bool = False) -> None:
    """Make each of the inputs that are about to be given away the step's own.

    Who shares one gets a copy; of one that is being read, the step itself does. `at_once` lets one
    execution make all the copies, for what is copied again and again.
    """
    for position in _read(positions):
        with memory.explained("a copy of what was shown"):
            copy = jax_compat.copy(pending.inputs[position])
        pending.inputs[position] = copy
        owner = pending.owners[position]()
        if owner is not None:
            owner.data = copy
    groups = []
    shared = _shared(positions)
    with memory.explained("a copy of what was shown"):
        arrays = [pending.inputs[position] for position in shared]
        # One program runs on one set of devices.
        is_one = at_once and not sharding.in_use
        made = jax_compat.copies(arrays) if is_one else map(jax_compat.copy, arrays)
        copies = list(made)
    for copy, (buffers, places) in zip(copies, shared.values(), strict=True):
        for buffer in buffers:
            buffer.data = copy
        for place in places:
            pending.inputs[place] = copy
        groups.append(buffers)
    share(filter(None, groups))


def _read(positions: Sequence[int]) -> list[int]:
    """Return the inputs among these whose data is being read."""
    if not _readings:
        return []
    read = being_read()
    return [each for each in positions if id(pending.inputs[each]) in read]


def _shared(positions: Sequence[int]) -> dict[int, tuple[list[Buffer], list[int]]]:
    """Return the inputs among these whose data somebody else has, too: see `_others`."""
    if not _holders:
        return {}
    inputs = pending.inputs
    if _holders.keys().isdisjoint(map(id, map(inputs.__getitem__, positions))):
        return {}
    known = [position for position in positions if id(inputs[position]) in _holders]
    places: dict[int, list[int]] = {}
    for place, data in enumerate(inputs):
        places.setdefault(id(data), []).append(place)
    found = {position: _others(position, places) for position in known}
    return {position: others for position, others in found.items() if any(others)}


def sharers(buffers: Iterable[Buffer]) -> dict[int, Buffer]:
    """Return the buffers whose memory another one has, too: the first that was given has it."""
    first: dict[int, Buffer] = {}
    found = {}
    for buffer in buffers:
        if id(buffer.data) not in _holders or buffer.data is None:
            continue
        known = first.setdefault(id(buffer.data), buffer)
        if known is not buffer:
            found[id(buffer)] = known
    return found


def _others(
    position: int, places: Mapping[int, Sequence[int]] | None = None
) -> tuple[list[Buffer], list[int]]:
    """Return the other buffers with an input's data, and the other places where it is an input.

    `places` tells where each array is an input, by its identity; by default it is found now.
    """
    data, owner = pending.inputs[position], pending.owners[position]()
    buffers = [buffer for buffer in _sharing(data) if buffer is not owner]
    if places is None:
        places = {id(data): [k for k, x in enumerate(pending.inputs) if x is data]}
    return buffers, [place for place in places[id(data)] if place != position]


def _sharing(data: Any) -> list[Buffer]:
    """Return the known buffers that have an array now."""
    known = [reference() for reference in _holders.get(id(data), ())]
    return [buffer for buffer in known if buffer is not None and buffer.data is data]


def _forget(*, fewer_than: int) -> None:
    """Forget the arrays that fewer buffers still have."""
    for key, known in list(_holders.items()):
        buffers = [reference() for reference in known]
        have_it = [b for b in buffers if b is not None and id(b.data) == key]
        if len(have_it) < fewer_than:
            del _holders[key]
