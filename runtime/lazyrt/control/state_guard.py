"""What a call that is taken back would change beside the device, kept from it or given back.

Its arguments stand for the program's tensors: an op in place gives the stand-in its history, not the
program's tensor. Modules get their attributes back, tensors their memory, gradients and autograd's
counts of writes, without which a derivative of the program would refuse what the call has written and
undone.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from lazyrt.closing import Closing
from lazyrt.errors import UsageError
from lazyrt.frontend.buffers import state_of
from lazyrt.frontend.reads import type_of
from lazyrt.frontend.tensors import wrap
from lazyrt.frontend.torch_compat import is_lazy, set_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_MAX_DEPTH = 6
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
    """The modules and tensors that a call reaches, in `with`: as they were at its end.

    Args:
        function: What is called.
        arguments: What it is called with.

    Raises:
        UsageError: A module's parameters have no shape before its first call.
    """

    def __init__(self, function: Callable[..., Any], arguments: Any) -> None:
        roots = [*_reached(function), *_parts(arguments)]
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


def _parts(things: Any) -> Iterator[Any]:
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
