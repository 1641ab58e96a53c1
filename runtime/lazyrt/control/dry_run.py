"""Dry run: a call is recorded and undone; nothing of it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lazyrt.config import config
from lazyrt.control import rollback
from lazyrt.control.rollback import Undo
from lazyrt.errors import StepSyncError, UsageError
from lazyrt.execution.graph import Graph
from lazyrt.execution.input_provenance import Holding, holdings
from lazyrt.frontend import scalars
from lazyrt.frontend.buffers import state_of, wrap
from lazyrt.frontend.names import names_of_buffers
from lazyrt.frontend.provenance import user_site
from lazyrt.frontend.reads import type_of
from lazyrt.frontend.torch_compat import (
    is_lazy,
    is_transformed,
    set_versions,
    unobserved,
)
from lazyrt.ir import active
from lazyrt.ir.live import exempt, generators, lock, stand_ins
from lazyrt.observe.events import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lazyrt.ir.node import Value


# ----------------------------------------------- the program's state outside the device
# Its arguments stand for the program's tensors: an op in place gives the stand-in its history, not the
# program's tensor. Modules get their attributes back, tensors their memory, gradients and autograd's
# counts of writes, without which a derivative of the program would refuse what the call has written and
# undone.


_CONTAINERS = (list, tuple, dict)


class _Apart(torch.autograd.Function):
    """Another tensor of the same contents; gradients go to the first one."""

    @staticmethod
    def forward(_ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return _alike(tensor)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def _alike(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same contents whose storage is another one to torch."""
    return wrap(state_of(tensor), type_of(tensor))


def apart(things: Any, depth: int = 0, known: dict[int, Any] | None = None) -> Any:
    """Return arguments with a tensor of its own in the place of each plain lazy one.

    Leaves that need a gradient stay: torch refuses to write to them.
    """
    known = {} if known is None else known
    if type(things) is torch.Tensor and is_lazy(things):
        if id(things) not in known:  # `query is key` stays true
            known[id(things)] = _stand_in(things)
        return known[id(things)]
    if depth == _MAX_DEPTH or type(things) not in _CONTAINERS:
        return things
    if isinstance(things, dict):
        return {key: apart(t, depth + 1, known) for key, t in things.items()}
    return type(things)(apart(thing, depth + 1, known) for thing in things)


def _stand_in(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.requires_grad:
        return _alike(tensor)
    if tensor.is_leaf:
        return tensor
    with torch.enable_grad():
        found: torch.Tensor = _Apart.apply(tensor)  # type: ignore[no-untyped-call]
    return found


class StateGuard(Closing):
    """The modules and tensors that a call reaches, in `with`: as they were at its end."""

    def __init__(self, function: Callable[..., Any], arguments: Any) -> None:
        roots = [*_reached(function), *_containers_in(arguments)]
        modules = _modules(roots)
        tensors = [t for t in roots if isinstance(t, torch.Tensor)]
        for module in modules:
            tensors += [*module._parameters.values(), *module._buffers.values()]  # type: ignore[list-item]
        _check_shapes(tensors)
        self._tables = [
            (table, dict(table))
            for module in modules
            for table in (vars(module), module._parameters, module._buffers)
        ]
        lazy = list({id(t): t for t in tensors if is_lazy(t)}.values())
        self._grad_mode = torch.is_grad_enabled()
        self._memory = [(t, state_of(t), t.data) for t in lazy]
        self._leaves = [(t, t.requires_grad) for t in lazy if t.is_leaf]
        self._gradients = [(t, t.grad) for t, _ in self._leaves]
        written = [*lazy, *(g for _, g in self._gradients if g is not None)]
        self._versions = [(t, t._version) for t in written if not t.is_inference()]
        self._plain = [t for t in lazy if not t.requires_grad]

    def close(self) -> None:
        """Give everything back."""
        for table, before in self._tables:
            _restore(table, before)
        torch.set_grad_enabled(self._grad_mode)
        for tensor, state, data in self._memory:
            if state_of(tensor) is not state:
                tensor.data = (
                    data  # the call gave it other memory, as in `weight.data = ...`
                )
        for tensor in self._plain:
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.detach_()  # written in place with what needs a gradient
        for tensor, needs_gradient in self._leaves:
            if tensor.requires_grad is not needs_gradient:
                tensor.requires_grad_(needs_gradient)
        for tensor, gradient in self._gradients:
            if tensor.grad is not gradient:
                tensor.grad = gradient
        set_versions(self._versions)
        held = (
            self._tables,
            self._memory,
            self._leaves,
            self._gradients,
            self._versions,
        )
        for kept in (*held, self._plain):
            kept.clear()  # a traceback may keep this


def _restore(table: dict[str, Any], before: dict[str, Any]) -> None:
    for name in [name for name in table if name not in before]:
        del table[name]
    for name, thing in before.items():
        if name not in table or table[name] is not thing:
            table[name] = thing


def _reached(function: Callable[..., Any]) -> Iterator[Any]:
    """Yield what a function is, is bound to, and names."""
    yield function
    yield getattr(function, "__self__", None)
    code = inspect.unwrap(getattr(function, "__func__", function))
    if inspect.isfunction(code):
        named = inspect.getclosurevars(code)
        yield from named.nonlocals.values()
        yield from named.globals.values()


def _containers_in(things: Any) -> Iterator[Any]:
    """Yield what is in nested lists, tuples and dicts."""
    stack = [(things, 0)]
    while stack:
        thing, depth = stack.pop()
        if depth <= _MAX_DEPTH and isinstance(thing, _CONTAINERS):
            inner = thing.values() if isinstance(thing, dict) else thing
            stack.extend((part, depth + 1) for part in inner)
        else:
            yield thing


def _modules(things: Iterable[Any]) -> list[torch.nn.Module]:
    roots = (thing for thing in things if isinstance(thing, torch.nn.Module))
    return list(dict.fromkeys(each for root in roots for each in root.modules()))


def _check_shapes(tensors: Iterable[Any]) -> None:
    if any(map(torch.nn.parameter.is_lazy, tensors)):
        raise UsageError(
            "the call would decide the shapes of a module's parameters (`LazyLinear` and its like), and "
            "what is recorded to be seen decides nothing. Call the module once, or give it sizes."
        )


_MAX_DEPTH = 6
_REASON = (
    "the call that made it was only recorded to see its graph, and taken back. Make the call to "
    "have it."
)


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a call would compute; holds IR and texts, no tensor.

    Attributes:
        graph: The ops that its results need.
        holdings: What stands behind its inputs, by what the user calls them.
        outputs: What leads from the result to each of its tensors: `logits`, `[0]`, `output`.
    """

    graph: Graph
    holdings: dict[Value, Holding]
    outputs: dict[Value, str]


def dry_run(function: Callable[..., Any], *arguments: Any, **options: Any) -> DryRun:
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
    before = rollback.mark()
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
        rollback.drop_since(before, _REASON)
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


def _recorded(result: Any, name: str) -> DryRun:
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
        return DryRun(graph, holdings(graph, names_of_buffers()), values)


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
