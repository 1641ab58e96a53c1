"""Who holds each tensor: every place from which Python leads to it, in the user's words.

The walk of `names`, with more kinds of places: all frames of a traceback, suspended
generators, the user's own modules, and what autograd keeps for backward. It runs under the
runtime's lock and lets go of every object before it returns the lock: a tensor that dies
meanwhile is gone before any barrier looks.
"""

from __future__ import annotations

import inspect
import logging
import math
import sys
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from lazygraph.snapshot import Name
from lazyrt.execution import deferred_asserts
from lazyrt.frontend.buffers import state_of
from lazyrt.frontend.callsite import locals_of, namespaces
from lazyrt.frontend.names import Walk, is_installed
from lazyrt.frontend.provenance import is_library_file
from lazyrt.frontend.torch_compat import is_lazy
from lazyrt.ir.live import live_buffers, lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType, TracebackType

    import torch

_log = logging.getLogger(__name__)

TRACEBACK = "traceback"
# Whose frames are nothing that a user lets go of.
_OWN = frozenset(("lazygraph", "lazyrt", "lazyviz"))
AUTOGRAD = "autograd"
BACKWARD_OF = "backward of "
_LAST_ERROR = "sys.last_value"
_CHECK = "a check of torch's"
_MAX_FRAMES = 200
_MAX_FUNCTIONS = 20_000
_MAX_SUBGRAPHS = 1_000
_MAX_CLASS_DEPTH = 5


class Held(NamedTuple):
    """Who holds a buffer.

    Attributes:
        places: The places, the shortest first.
        shape: Sizes of the tensor that they hold: of a view of the whole buffer, where nobody
            holds the buffer's own tensor, as autograd makes a bias's gradient.
    """

    places: tuple[Name, ...] = ()
    shape: tuple[int, ...] | None = None


def holders_of_buffers(
    extra: Mapping[str, Any] | None = None, depth: int = 1
) -> dict[int, Held]:
    """Return by the identity of each buffer who holds it, and as what.

    Args:
        extra: A namespace to search beside those of the calling frames, such as a shell's.
        depth: Frames to skip.
    """
    with lock:
        walk = _HolderWalk()
        walk.add_callers(depth + 1)
        walk.add_namespace(dict(extra or {}))
        walk.add_modules()
        walk.add_last_error()
        walk.run()
        walk.run_autograd()
        for buffer in deferred_asserts.waiting():
            walk.holders.setdefault(id(buffer), [Name(_CHECK, "step")])
        return {
            key: Held(_distinct(found), walk.shapes.get(key))
            for key, found in walk.holders.items()
        }


def saved_for_backward(depth: int = 1) -> dict[int, Name]:
    """Return the buffers that autograd alone holds, by identity, under a name without a text.

    The user's modules, of which a project has hundreds, are searched if the callers' variables leave
    a buffer unexplained.
    """
    with lock:
        walk = _HolderWalk()
        walk.add_callers(depth + 1)
        # The cell that has ended is no caller of what a notebook shows below it.
        walk.add_namespace(dict(vars(sys.modules["__main__"])))
        walk.run()
        if walk.holders.keys() >= {id(buffer) for buffer in live_buffers()}:
            return {}
        walk.add_modules()
        walk.add_last_error()
        walk.run()
        named = set(walk.holders)
        walk.run_autograd()
        return dict.fromkeys(walk.holders.keys() - named, Name("", AUTOGRAD))


def _distinct(found: list[Name]) -> tuple[Name, ...]:
    """Return places without second mentions: a local as a global, `_4` beside `Out[4]`."""
    once = tuple({name.text: name for name in reversed(found)}.values())[::-1]
    results = {f"_{name.text[4:-1]}" for name in once if name.text.startswith("Out[")}
    return tuple(name for name in once if name.text not in results)


def _modules_of_the_user() -> Iterator[ModuleType]:
    """Yield the imported modules whose files belong to no library."""
    for module in list(sys.modules.values()):
        if type(module) is not types.ModuleType or module.__name__ == "__main__":
            continue
        file = vars(module).get("__file__")
        if isinstance(file, str) and not is_library_file(file):
            yield module


class _HolderWalk(Walk):
    """A walk that also looks into exceptions, generators and autograd's graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: dict[int, tuple[int, ...]] = {}
        self._functions: list[tuple[str, Any]] = []

    def add_callers(self, depth: int) -> None:
        """Queue the variables of the user's frames but `depth`."""
        for namespace, function in namespaces(depth + 1):
            holder = f"local of {function}" if function else "variable"
            self.add_namespace(namespace, holder)
            namespace.clear()

    def add_modules(self) -> None:
        """Queue the globals of the user's modules."""
        for module in _modules_of_the_user():
            name = module.__name__
            self.add_namespace(dict(vars(module)), f"global of {name}", f"{name}.")

    def add_last_error(self) -> None:
        """Queue the exception that the interpreter shows last and keeps."""
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if isinstance(error, BaseException):
            self.add(Name(_LAST_ERROR, TRACEBACK), error)

    def run_autograd(self) -> None:
        """Find what autograd keeps for the backward of the tensors that the walk found."""
        seen: set[Any] = set()
        for name, function in self._functions[:_MAX_SUBGRAPHS]:
            self._visit_function(name, function, seen)
        self._functions.clear()

    def _visit_tensor(self, name: Name, tensor: torch.Tensor) -> None:
        super()._visit_tensor(name, tensor)
        self._note_shape(tensor)
        function = tensor.grad_fn if tensor.device.type == "lazyrt" else None
        if function is not None:
            self._functions.append((name.text, function))

    def _note_shape(self, tensor: torch.Tensor) -> None:
        if not is_lazy(tensor):
            return
        state = state_of(tensor)
        own = state.base.type[0]
        if state is state.base:
            self.shapes[id(state.base)] = own
        elif math.prod(tensor.shape) == math.prod(own):
            self.shapes.setdefault(id(state.base), tuple(tensor.shape))

    def _visit_function(self, name: str, function: Any, seen: set[Any]) -> None:
        stack = [function]
        while stack and len(seen) < _MAX_FUNCTIONS:
            each = stack.pop()
            if each is None or each in seen:
                continue
            seen.add(each)
            for tensor in _saved(each):
                self._visit_saved(Name(BACKWARD_OF + name, AUTOGRAD), tensor)
            stack += [following for following, _ in each.next_functions]

    def _visit_saved(self, name: Name, tensor: Any) -> None:
        if is_lazy(tensor):
            found = self.holders.setdefault(id(state_of(tensor).base), [])
            if name not in found:
                found.append(name)

    def _visit(self, name: Name, thing: Any, depth: int) -> None:
        try:
            if isinstance(thing, type):
                self._visit_class(name, thing, depth)
            else:
                super()._visit(name, thing, depth)
        except Exception as error:  # noqa: BLE001 - an object that cannot be looked into
            _log.debug("%s cannot be looked into: %r", name.text, type(error))

    def _visit_class(self, name: Name, kind: type, depth: int) -> None:
        """Queue what a class of the user's holds: a cache that all its objects share."""
        if id(kind) in self._seen or depth >= _MAX_CLASS_DEPTH or is_installed(kind):
            return
        self._seen.add(id(kind))
        for key, item in list(vars(kind).items()):
            if not key.startswith("__"):
                place = Name(f"{name.text}.{key}", "class")
                self._queue.append((place, item, depth + 1))

    def _children(self, name: Name, thing: Any) -> Iterator[tuple[Name, Any]]:
        if isinstance(thing, BaseException):
            yield from _of_exception(name, thing)
        elif isinstance(thing, types.TracebackType):
            yield from _of_traceback(name, thing, name.text)
        elif isinstance(thing, types.GeneratorType):
            if thing.gi_frame is not None and not thing.gi_running:
                holder = f"generator {thing.__qualname__}"
                for key, item in locals_of(thing.gi_frame).items():
                    yield Name(f"{name.text}: {key}", holder), item
        else:
            yield from super()._children(name, thing)
            if type(thing) is types.FunctionType:
                for key, item in list(vars(thing).items()):
                    yield Name(f"{name.text}.{key}", "function"), item
            elif not is_installed(type(thing)):
                yield Name(type(thing).__name__, "class"), type(thing)


def _of_exception(name: Name, error: BaseException) -> Iterator[tuple[Name, Any]]:
    kind = type(error).__name__
    holder = f"{TRACEBACK} of {kind}"
    for number, item in enumerate(error.args):
        yield Name(f"{name.text}.args[{number}]", holder), item
    for key, item in list(vars(error).items()):
        yield Name(f"{name.text}.{key}", holder), item
    if isinstance(error, AttributeError):  # its object is in no dictionary
        yield Name(f"{name.text}.obj", holder), error.obj
    for other in (error.__cause__, error.__context__):
        if other is not None:
            yield name, other
    if isinstance(error, BaseExceptionGroup):
        yield from ((name, each) for each in error.exceptions)
    yield from _of_traceback(name, error.__traceback__, kind)


def _of_traceback(
    name: Name, traceback: TracebackType | None, kind: str
) -> Iterator[tuple[Name, Any]]:
    holder = f"{TRACEBACK} of {kind}"
    count = 0
    while traceback is not None and count < _MAX_FRAMES:
        frame, count = traceback.tb_frame, count + 1
        own = str(frame.f_globals.get("__name__")).partition(".")[0] in _OWN
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED and not own:
            found = locals_of(frame)
            for key, item in found.items():
                place = f"{key} in {frame.f_code.co_qualname}()"
                yield Name(place, f"{holder}, {name.text}"), item
            found.clear()
        traceback = traceback.tb_next


def _saved(function: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that a node of autograd's graph keeps.

    `data` is what was kept: no hook of the user's runs, and no version is checked.
    """
    for key in dir(type(function)):
        if not key.startswith("_raw_saved_"):
            continue
        try:
            raw = getattr(function, key)
        except RuntimeError:  # freed by backward
            continue
        for each in raw if isinstance(raw, (list, tuple)) else (raw,):
            yield getattr(each, "data", None)  # type: ignore[misc]
    yield getattr(function, "variable", None)  # type: ignore[misc]
    own = getattr(function, "__dict__", None)  # a custom function's own attributes
    yield from list(own.values()) if type(own) is dict else ()
