"""The graph of a call that is recorded and taken back: nothing of it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lazyrt.config import config
from lazyrt.control.rollback import Undo
from lazyrt.control.state_guard import StateGuard, apart
from lazyrt.errors import StepSyncError, UsageError
from lazyrt.execution import undo
from lazyrt.execution.graph import Graph
from lazyrt.execution.holdings import holdings
from lazyrt.frontend import scalars
from lazyrt.frontend.buffers import state_of
from lazyrt.frontend.names import names_of_buffers
from lazyrt.frontend.provenance import user_site
from lazyrt.frontend.torch_compat import is_lazy, is_transformed, unobserved
from lazyrt.ir import active
from lazyrt.ir.live import exempt, generators, lock, stand_ins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lazyrt.execution.holdings import Holding
    from lazyrt.ir.node import Value

_MAX_DEPTH = 6
_REASON = (
    "the call that made it was only recorded to see its graph, and taken back. Make the call to "
    "have it."
)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a call would compute; holds IR and texts, no tensor.

    Attributes:
        graph: The ops that its results need.
        holdings: What stands behind its inputs, by what the user calls them.
        outputs: What leads from the result to each of its tensors: `logits`, `[0]`, `output`.
    """

    graph: Graph
    holdings: dict[Value, Holding]
    outputs: dict[Value, str]


def rehearse(
    function: Callable[..., Any], *arguments: Any, **options: Any
) -> Rehearsal:
    """Record a call and take it back; what was pending before stays as it was.

    Tensors that the call writes keep their data, their gradients and autograd's history, modules and
    optimizers their attributes and state, and no random number is drawn. What else it does to Python
    objects, such as lists that it appends to, stays, as does what it does to tensors elsewhere than on
    the device.

    Args:
        function: A module or a function.
        arguments: What it is called with, on the lazy device.
        options: The same by name.

    Raises:
        UsageError: It gives no tensor of pending ops, or ops run at once in this mode, or within a
            transform of torch.func.
        StepSyncError: It needs a value, which only running a part of it would give.
    """
    name = type(function).__name__
    name = getattr(function, "__qualname__", name)
    if config.eager:
        raise UsageError(
            f"the graph of {name} cannot be recorded in eager debug mode, where each op runs at "
            "once. Leave the mode first: lazyrt.config.eager = False."
        )
    if is_transformed():
        raise UsageError(
            f"the graph of {name} was asked for within a transform of torch.func, whose tensors have "
            "no graph of their own. Ask for it outside, with the transformed function."
        )
    site = user_site(2)
    taken_back = Undo("discard", site)
    opened = active.ActiveStep(name, site, on_read="error", undo=taken_back)
    before = undo.mark()
    drawn = [(each, each.seed, each.offset) for each in generators]
    held = [(each, each.value) for each in stand_ins() if each.is_pending]
    active.enter(opened)
    try:
        with (
            config.scoped(max_pending_nodes=0),
            scalars.unnoticed(),
            _drawing_nothing(),
            unobserved(),
            StateGuard(function, (arguments, options)),
        ):
            own, named = apart((arguments, options))
            return _recorded(function(*own, **named), name)
    except StepSyncError as error:
        error.add_note(
            f"{name} was called to see its graph, of which nothing runs. Explore what is pending "
            "after a call of your own instead"
        )
        raise
    finally:
        active.leave(opened)
        undo.drop_since(before, _REASON)
        taken_back.restore_optimizers()
        for generator, seed, offset in drawn:
            generator.restart(seed, offset)
        for buffer, value in held:
            buffer.data, buffer.value = None, value
            exempt(buffer)


@contextlib.contextmanager
def _drawing_nothing() -> Iterator[None]:
    """Give the random states of the host back: torch's, Python's and numpy's."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _recorded(result: Any, name: str) -> Rehearsal:
    with lock:
        states = [(path, state_of(tensor)) for path, tensor in _tensors(result)]
        found = [(path, state.value) for path, state in states if state.is_pending]
        values = {value: path for path, value in reversed(found) if value is not None}
        graph = Graph([value for _, value in found if value is not None])
        if not graph.nodes:
            raise UsageError(
                f"{name} gave {type(result).__name__}, in which no tensor of the lazy device has "
                "pending ops, so there is no graph to show. Move module and inputs with "
                ".to('lazyrt')."
            )
        return Rehearsal(graph, holdings(graph, names_of_buffers()), values)


def _tensors(result: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the lazy tensors of a result, and what leads to each."""
    stack = [("", result, 0)]
    while stack:
        path, thing, depth = stack.pop()
        if isinstance(thing, torch.Tensor):
            if is_lazy(thing):
                yield path.removeprefix(".") or "output", thing
        elif depth < _MAX_DEPTH:
            parts = [(path + step, part, depth + 1) for step, part in _parts(thing)]
            stack.extend(reversed(parts))


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, dict):
        for key, part in thing.items():
            is_name = isinstance(key, str) and key.isidentifier()
            yield f".{key}" if is_name else f"[{key!r:.40}]", part
    elif isinstance(thing, (list, tuple)):
        yield from ((f"[{number}]", part) for number, part in enumerate(thing))
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        yield from ((f".{f.name}", getattr(thing, f.name)) for f in dataclasses.fields(thing))  # fmt: skip
