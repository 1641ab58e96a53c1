"""What `on_error` does with the work of a step that an exception ended."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Literal

import torch

from lazyrt.control import marks
from lazyrt.execution import undo
from lazyrt.execution.executor import pending_roots
from lazyrt.frontend.buffers import state_of
from lazyrt.frontend.provenance import user_site
from lazyrt.frontend.torch_compat import is_lazy
from lazyrt.ir import active
from lazyrt.ir.live import Lost, pending
from lazyrt.observe import events

if TYPE_CHECKING:
    from lazyrt.execution.graph import Graph
    from lazyrt.observe.events import Site

OnError = Literal["flush", "discard", "rollback"]
Outcome = Literal["run", "discarded", "rolled back"]

# The step that each optimizer updated last, by its number, and how often it did so in it.
_updates: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[int, int]] = (
    weakref.WeakKeyDictionary()
)
_discarded: Graph | None = None


class Undo:
    """What a step needs to take its work back.

    Args:
        policy: `discard` drops what has not run; `rollback` also restores what has.
        site: Where the step begins.
    """

    def __init__(
        self, policy: Literal["discard", "rollback"], site: Site | None
    ) -> None:
        self._states: list[tuple[torch.optim.Optimizer, dict[Any, Any]]] = []
        self._updates = _updates.copy()
        self._mark: undo.Mark | None = None
        self._snapshot: undo.Snapshot | None = None
        if policy == "rollback":
            # What was pending before is the caller's: it must not be taken back, too.
            if pending_roots():
                marks.mark_quietly("start of a step that can roll back", site)
            self._snapshot = undo.Snapshot()
        else:
            self._mark = undo.mark()

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

    def apply(self, step: str, error: BaseException, site: Site | None) -> Outcome:
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
            graph = undo.drop_since(self._mark, reason)
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
    global _discarded
    graph = undo.drop_since(
        None,
        "lazyrt.discard_pending() dropped the ops that would have computed it. Run the lines "
        "that make it again.",
    )
    for optimizer, (number, times) in list(_updates.items()):
        _drop_lost_gradients(optimizer)
        if number == pending.number:
            _take_back_updates(optimizer, times)
            del _updates[optimizer]
    _discarded = graph
    events.emit(
        events.WorkDropped(
            nodes=len(graph.nodes), cause="discard_pending()", site=user_site(2)
        )
    )
    return len(graph.nodes)


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
        if any(_is_lost(value) for value in state.values()):
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
    if isinstance(value, torch.Tensor):
        return value if is_lazy(value) else value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_copied(part) for part in value]
    return value
