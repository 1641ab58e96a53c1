"""Batches on the device, each moved there before it is needed, with the marks of a training loop."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from lazyrt.control import marks
from lazyrt.errors import UsageError
from lazyrt.execution.executor import pending_roots
from lazyrt.execution.graph import Graph
from lazyrt.frontend.provenance import user_site
from lazyrt.frontend.torch_compat import DEVICE_TYPE
from lazyrt.ir import active
from lazyrt.ir.live import pending
from lazyrt.ir.node import nbytes_of
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

T = TypeVar("T")

_MAX_DEPTH = 8
_JOIN_S = 5.0
_NONE: Any = (object(), 0)


class DeviceLoader(Generic[T]):
    """Iterate over batches on the lazy device, with a barrier before each batch and at the end.

    For n batches those are n + 1 marks and n executions: the mark before the first batch has
    nothing to run. Inside `step()` the loader leaves the barriers to the step. With a `step()`
    in the loop's body its marks find nothing to run and cost a few microseconds.

    A loop that is left early (`break`, `return`) leaves what it recorded pending: a `WorkLeft`
    event names the line, and `discard_pending()` drops it.

    The loader runs on the thread that prefetches, so what it draws from torch's CPU generator
    is not in order with what the loop's body draws from it; `prefetch=0` keeps both on one.

    Args:
        loader: Batches: tensors, or lists, tuples, dicts and objects with `.to()` of them.
        device: Where they go: the lazy device.
        prefetch: How many batches are moved ahead, on a thread of their own; 0 moves each
            when it is asked for.
        batches_per_execution: How many batches share one execution.

    Raises:
        UsageError: A count that is too small, a loader that cannot be iterated, or another device.

    Example:
        >>> import lazyrt, torch
        >>> for batch in lazyrt.DeviceLoader([torch.ones(2), torch.zeros(2)]):
        ...     print(batch.device, batch.sum().item())
        lazyrt:0 2.0
        lazyrt:0 0.0
    """

    def __init__(
        self,
        loader: Iterable[T],
        device: torch.device | str = DEVICE_TYPE,
        *,
        prefetch: int = 2,
        batches_per_execution: int = 1,
    ) -> None:
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise UsageError(
                f"DeviceLoader got {type(loader).__name__} {loader!r:.60}, which cannot be "
                "iterated, so there are no batches. Pass a DataLoader or a list of batches."
            )
        _check_count("prefetch", prefetch, 0)
        _check_count("batches_per_execution", batches_per_execution, 1)
        self.loader = loader
        self.device = _lazy_device(device)
        self.prefetch = prefetch
        self.batches_per_execution = batches_per_execution

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        batches: Any = (
            _prefetched(self.loader, self.device, self.prefetch)
            if self.prefetch
            else _timed(self.loader, self.device)
        )
        count = number = 0
        try:
            while True:
                if count % self.batches_per_execution == 0:
                    self._mark()  # first, so that the device works while the host loads
                since = time.perf_counter_ns()
                batch, load_ns = next(batches, _NONE)
                if batch is _NONE[0]:
                    break
                if events.active():
                    self._tell(since, load_ns)
                count, number = count + 1, pending.number
                yield batch
        except GeneratorExit:
            _tell_left(number)
            raise
        finally:
            batches.close()
        if count % self.batches_per_execution:
            self._mark()

    def _mark(self) -> None:
        if not active.is_inside():
            marks.mark_quietly("loader", user_site(3))

    def _tell(self, since_ns: int, load_ns: int) -> None:
        events.emit(
            events.BatchLoaded(
                waited_ns=time.perf_counter_ns() - since_ns,
                load_ns=load_ns,
                prefetch=self.prefetch,
                workers=getattr(self.loader, "num_workers", 0),
                site=user_site(3),
            )
        )


def to_device(thing: Any, device: torch.device, depth: int = 0) -> Any:
    """Return a batch with its tensors on `device`; other things stay as they are.

    What has a method `to` moves itself: of a `PackedSequence` a part stays on the CPU.
    """
    move = getattr(thing, "to", None)
    if callable(move) and not isinstance(thing, type):
        return move(device)
    if depth >= _MAX_DEPTH:
        return thing
    if isinstance(thing, tuple) and hasattr(thing, "_fields"):
        return type(thing)(*(to_device(part, device, depth + 1) for part in thing))
    if type(thing) in {list, tuple, deque}:
        return type(thing)([to_device(part, device, depth + 1) for part in thing])
    moved: Any
    if isinstance(thing, dict):
        moved = copy.copy(thing)
        moved.update((k, to_device(part, device, depth + 1)) for k, part in thing.items())  # fmt: skip
        return moved
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        moved = copy.copy(thing)
        for field in dataclasses.fields(thing):
            part = to_device(getattr(thing, field.name), device, depth + 1)
            object.__setattr__(moved, field.name, part)  # a frozen one, too
        return moved
    return thing


def _timed(
    loader: Iterable[Any], device: torch.device
) -> Generator[tuple[Any, int], None, None]:
    """Yield a loader's batches on the device, each with how long it took to get it there."""
    since = time.perf_counter_ns()
    for batch in loader:
        # The moved batch gets no name here, which would keep it until the next one is there.
        yield to_device(batch, device), time.perf_counter_ns() - since
        since = time.perf_counter_ns()


class _End:
    """What the thread sends last: the exception that ended it, if one did."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def _prefetched(
    loader: Iterable[Any], device: torch.device, ahead: int
) -> Iterator[Any]:
    """Yield what `_timed` does, which a thread does ahead of time."""
    ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
    room, stop = threading.Semaphore(ahead), threading.Event()

    def fill() -> None:
        error: BaseException | None = None
        try:
            for _ in map(ready.put, _timed(loader, device)):
                room.acquire()
                if stop.is_set():
                    return
        except BaseException as raised:  # noqa: BLE001 - raised again where the batch is asked for
            error = raised
        ready.put(_End(error))

    thread = threading.Thread(target=fill, name="lazyrt-loader", daemon=True)
    thread.start()
    try:
        while (timed := ready.get()).__class__ is not _End:
            room.release()
            yield timed
        if timed.error is not None:
            raise timed.error
    finally:
        stop.set()
        room.release()
        thread.join(_JOIN_S)


def _tell_left(number: int) -> None:
    """Tell of work that a loop left pending; nothing if a barrier came since the last batch."""
    if active.is_inside() or pending.number != number:
        return
    roots = pending_roots()
    graph = Graph(roots)
    if not graph.nodes:
        return
    events.emit(
        events.WorkLeft(
            nodes=len(graph.nodes), nbytes=sum(map(nbytes_of, roots)), site=user_site(3)
        )
    )


def _lazy_device(device: object) -> torch.device:
    """Return where batches go; elsewhere the loader would mark steps that it has no part in."""
    with contextlib.suppress(RuntimeError, TypeError):
        found = torch.device(device)  # type: ignore[call-overload]
        if found.type == DEVICE_TYPE and not found.index:
            return found  # type: ignore[no-any-return]
    raise UsageError(
        f"DeviceLoader got device={str(device)!r:.60}, which is not the lazy device, so no step would "
        "use its batches. Leave the device out; for another one iterate over the loader itself."
    )


def _check_count(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(
            f"DeviceLoader got {name}={value!r}, which is no count of at least {least}. "
            f"Pass a whole number from {least}."
        )
