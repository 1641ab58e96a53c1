"""What `on_error` does with the work of a step that an exception ended."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils._pytree import tree_map_only

from lazygraph.explain.model import OptimizerNote
from lazygraph.readable import listed
from lazyrt.control import marks
from lazyrt.execution.executor import pending_roots
from lazyrt.execution.graph import Graph
from lazyrt.execution.process import deferred_interrupt
from lazyrt.frontend.buffers import state_of, states_of
from lazyrt.frontend.optimizer_state import is_new
from lazyrt.frontend.provenance import user_site
from lazyrt.frontend.torch_compat import is_lazy
from lazyrt.ir import active
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
from lazyrt.observe import events

if TYPE_CHECKING:
    from lazygraph.snapshot import Name
    from lazyrt.execution.kept_steps import KeptStep
    from lazyrt.ir.node import Value
    from lazyrt.observe.events import SourceLocation


# ----------------------------------------------------------------- dropping pending ops
# Dropping never runs anything. A tensor that has data from before keeps it; one that only the
# dropped ops would have made is lost, and says so when it is used.


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

    Tensors that are lost by this say the reason. Returns the graph of what was pending, for looking
    at it.
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

        Returns the graph of what was pending, and how many tensors had changed.
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


OnError = Literal["flush", "discard", "rollback"]
Outcome = Literal["run", "discarded", "rolled back"]

# The step that each optimizer updated last, by its number, and how often it did so in it.
_updates: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[int, int]] = (
    weakref.WeakKeyDictionary()
)
_discarded: Graph | None = None


class Undo:
    """What a step needs to take its work back.

    The policy `discard` drops what has not run; `rollback` also restores what has.
    """

    def __init__(
        self, policy: Literal["discard", "rollback"], site: SourceLocation | None
    ) -> None:
        self._states: list[tuple[torch.optim.Optimizer, dict[Any, Any]]] = []
        self._updates = _updates.copy()
        self._mark: Mark | None = None
        self._snapshot: Snapshot | None = None
        if policy == "rollback":
            # What was pending before is the caller's: it must not be taken back, too.
            if pending_roots():
                marks.mark_quietly("start of a step that can roll back", site)
            self._snapshot = Snapshot()
        else:
            self._mark = mark()

    def note_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember an optimizer's state before its first update in the step."""
        if all(known is not optimizer for known, _ in self._states):
            saved = {key: _copied(value) for key, value in optimizer.state.items()}
            self._states.append((optimizer, saved))

    def forget(self) -> None:
        """Let go of everything: the step is about to end well."""
        self._states.clear()
        self._updates.clear()
        if self._snapshot is not None:
            self._snapshot.release()

    def apply(
        self, step: str, error: BaseException, site: SourceLocation | None
    ) -> Outcome:
        """Take the step's work back; the exception gets a note about it."""
        global _discarded
        outcome: Outcome = "rolled back" if self._snapshot is not None else "discarded"
        name = type(error).__name__
        reason = (
            f"{step}, which would have computed it, was {outcome} after {name}. "
            "Make it again, or clear old gradients with optimizer.zero_grad()."
        )
        restored = 0
        if self._snapshot is not None:
            graph, restored = self._snapshot.restore(reason)
        else:
            graph = drop_since(self._mark, reason)
        self.restore_optimizers()
        _discarded = graph
        events.emit(
            events.WorkDropped(
                nodes=len(graph.nodes),
                cause=f"{step} was {outcome} after {name}",
                site=site,
                restored=restored,
            )
        )
        error.add_note(
            f"{step} was {outcome}: {len(graph.nodes)} pending ops did not run; "
            "lazyrt.discarded_graph() shows them"
        )
        return outcome

    def restore_optimizers(self) -> None:
        """Give optimizers that stepped the state from before."""
        for optimizer, saved in self._states:
            for key in [key for key in optimizer.state if key not in saved]:
                del optimizer.state[key]
            for key, value in saved.items():
                optimizer.state[key] = value
            _updates.pop(optimizer, None)
            if optimizer in self._updates:
                _updates[optimizer] = self._updates[optimizer]
            _drop_lost_gradients(optimizer)
        for optimizer in _updates:
            _drop_lost_gradients(optimizer)


def note_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Let each open step remember an optimizer that is about to update lazy parameters."""
    for step in active.steps():
        if step.undo is not None:
            step.undo.note_optimizer(optimizer)


def note_update(optimizer: torch.optim.Optimizer) -> None:
    """Remember that an optimizer has updated its parameters in the step that is pending."""
    number, times = _updates.get(optimizer, (-1, 0))
    times = times + 1 if number == pending.number else 1
    _updates[optimizer] = (pending.number, times)


def optimizers_of_step(names: Mapping[int, list[Name]]) -> tuple[OptimizerNote, ...]:
    """Return the optimizers that have updated parameters in the pending step."""

    def called(group: dict[str, Any]) -> str:
        states = chain.from_iterable(map(states_of, group["params"]))
        found = (names.get(id(state.base)) for state in states)
        return listed(name[0].text for name in found if name)

    return tuple(
        OptimizerNote(
            type(optimizer).__name__,
            tuple(_options(optimizer)),
            tuple(map(called, optimizer.param_groups)),
        )
        for optimizer, (number, _) in _updates.items()
        if number == pending.number
    )


def _options(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, str, bool]]:
    """Yield the options that choose what is computed: the learning rate is an input."""
    for group in optimizer.param_groups:
        for name, value in group.items():
            if name not in {"params", "lr", "initial_lr"} and not isinstance(
                value, torch.Tensor
            ):
                yield name, repr(value), bool(value)


def discarded_graph() -> Graph | None:
    """Return the graph that was dropped last, for a look at what did not run; None if none was.

    It holds no tensors and no data.
    """
    return _discarded


def discard_pending() -> int:
    """Drop everything that is pending, unrun, and return how many ops that were.

    Tensors with data from before keep it; those that only the dropped ops would have made
    are lost, and raise LostValueError where they are used. Optimizers are as before the
    updates that are dropped: what they keep for a parameter, its gradient, their `step` counts.
    """
    return _discard("discard_pending()", "lazyrt.discard_pending()", user_site(2))


def _discard(cause: str, what: str, site: SourceLocation | None) -> int:
    """Drop everything that is pending; say that `what` did it to whoever uses what is lost."""
    global _discarded
    graph = drop_since(
        None,
        f"{what} dropped the ops that would have computed it. Run the lines that make it again.",
    )
    for optimizer, (number, times) in list(_updates.items()):
        _drop_lost_gradients(optimizer)
        if number == pending.number:
            _take_back_updates(optimizer, times)
            del _updates[optimizer]
    _discarded = graph
    events.emit(events.WorkDropped(nodes=len(graph.nodes), cause=cause, site=site))
    return len(graph.nodes)


Updates = Sequence[tuple[weakref.ref[torch.optim.Optimizer], int]]


def updates_of(step: int) -> Updates:
    """Return the optimizers that updated parameters in a step, the latest of theirs, and how often."""
    return [
        (weakref.ref(optimizer), times)
        for optimizer, (number, times) in _updates.items()
        if number == step
    ]


def go_back(steps: Iterable[KeptStep], updates: Updates, what: str) -> None:
    """Drop what is pending, and give tensors the data that they had before steps that have run.

    The steps come the latest first.
    """
    with lock, deferred_interrupt():
        _discard(what, what, None)
        for step in steps:
            step.give_back()
        for reference, times in updates:
            if (optimizer := reference()) is not None:
                _take_back_updates(optimizer, times)


def _drop_lost_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Leave no gradient that cannot be computed: without one it is as after `zero_grad()`."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if _is_lost(parameter.grad):
                parameter.grad = None


def _take_back_updates(optimizer: torch.optim.Optimizer, times: int) -> None:
    """Take back what updates that were dropped have left in an optimizer's state.

    Tensors on the device are taken back with the ops; `step`, torch's name for how many updates
    a parameter has had, is on the host by default.
    """
    for parameter, state in list(optimizer.state.items()):
        made = (_is_lost(value) or is_new(value) for value in state.values())
        if any(made):
            del optimizer.state[parameter]  # the first of these updates has made it
        elif "step" in state and not is_lazy(state["step"]):
            state["step"] -= times


def _is_lost(value: Any) -> bool:
    if not is_lazy(value):
        return False
    base = state_of(value).base
    return isinstance(base.data, Lost) and base.value is None


def _copied(value: Any) -> Any:
    """Copy what an optimizer changes on the host; lazy tensors are restored as tensors."""

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if is_lazy(tensor) else tensor.detach().clone()

    return tree_map_only(torch.Tensor, copy, value)
