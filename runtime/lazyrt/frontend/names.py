"""What the user calls a tensor, and who holds it: found by walking frames, containers, modules and optimizers.

Only a step-cache miss asks for names, so the search may cost milliseconds. It keeps nothing: names
are texts, and tensors are known by the identity of their buffers. A walk that left a reference
behind would make a dead tensor a root of the next step.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import sys
import types
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lazygraph.snapshot import AUTOGRAD, FROZEN, OF_LBFGS, Name
from lazyrt.execution import deferred_asserts
from lazyrt.frontend.buffers import state_of
from lazyrt.frontend.callsite import library_namespaces, locals_of, namespaces
from lazyrt.frontend.provenance import is_library_file, outward
from lazyrt.frontend.torch_compat import is_lazy
from lazyrt.ir.live import live_buffers, lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import ModuleType, TracebackType


# -------------------------------------------------------------------------------- LBFGS
# Its state is one for all parameters, under the first of them and in lists; while a step runs, most
# of it is in the step's variables alone.


# torch wraps the method once more when the first LBFGS is made.
_STEP = inspect.unwrap(torch.optim.LBFGS.step).__code__


def _of_lbfgs(
    name: str, optimizer: torch.optim.LBFGS, variables: Mapping[str, Any]
) -> Iterator[tuple[Name, Any]]:
    """Yield its tensors, and those of its step's variables, such as `optimizer.old_dirs[2]`."""
    states = list(optimizer.state.values())
    for members in (*states, variables):
        for key, value in list(members.items()):
            if isinstance(value, torch.Tensor):
                yield Name(f"{name}.{key}", OF_LBFGS), value
            elif isinstance(value, list):
                for number, item in enumerate(value):
                    if isinstance(item, torch.Tensor):
                        yield Name(f"{name}.{key}[{number}]", OF_LBFGS), item


_MAX_VISITED = 50_000
_MAX_ITEMS = 1_000
_MAX_DEPTH = 8
_MAX_HOLDERS = 8
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_SEQUENCES = (list, tuple, deque)
_KEYS = (str, bytes, int, float, bool, complex)
# They can hold no tensor, or are not worth a walk.
_PLAIN = (str, bytes, int, float, complex, type, types.ModuleType, types.NoneType)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
# IPython's results: they hold tensors, and are the last place to look.
_RESULTS = ("Out", "_oh")


# Returns what holds tensors for the user beside frames, such as queued step closures, and the holders.
elsewhere: Callable[[], Iterable[tuple[Mapping[str, Any], str]]] = tuple


def names_of_buffers(depth: int = 1) -> dict[int, Name]:
    """Return names by the identity of the buffers that they lead to, shortest path first."""
    return {key: found[0] for key, found in all_names(depth + 1).items()}


def all_names(depth: int = 1) -> dict[int, list[Name]]:
    """Return what leads to each buffer, by its identity, the shortest path first."""
    walk = Walk()
    for namespace, _ in namespaces(depth + 1):
        walk.add_namespace(namespace)
        namespace.clear()
    for namespace, function in library_namespaces(depth + 1):
        walk.add_late(namespace, f"local of {function}")
        namespace.clear()
    # Copies of the variables of steps of LBFGS that are running, `self` among them.
    frames = outward(sys._getframe(depth))
    walk.running = [locals_of(frame) for frame in frames if frame.f_code is _STEP]
    for waiting, holder in elsewhere():
        walk.add_late(waiting, holder)
    walk.run()
    for key, name in walk.frozen:
        walk.holders[key].append(name)
    return walk.holders


class Walk:
    """A breadth-first walk over the user's objects.

    Attributes:
        holders: By the identity of each buffer, where it was found, shortest path first.
        frozen: Parameters that require no gradient, with the identities of their buffers.
    """

    def __init__(self) -> None:
        self.holders: dict[int, list[Name]] = {}
        self.frozen: list[tuple[int, Name]] = []
        self._of_views: dict[int, list[Name]] = {}
        self._queue: deque[tuple[Name, Any, int]] = deque()
        self._late: list[tuple[Name, Any, int]] = []
        self._optimizers: list[tuple[Name, torch.optim.Optimizer]] = []
        self._parameters: list[tuple[Name, torch.Tensor]] = []
        self.running: list[dict[str, Any]] = []
        self._seen: set[int] = set()
        self._namespaces = 0
        # Where a model stands in the queue, and which namespace has named it.
        self._models: dict[int, tuple[int, int]] = {}

    def add_namespace(
        self, namespace: Mapping[str, Any], holder: str = "variable", prefix: str = ""
    ) -> None:
        """Queue a namespace's variables, private ones and IPython's results last."""
        self._namespaces += 1
        for name, thing in namespace.items():
            # IPython's `_oh` is an object that `Out` is a better name of.
            is_twin = name == "_oh" and namespace.get("Out") is thing
            if (name.startswith("__") and name.strip("_")) or is_twin:
                continue
            if (
                holder == "variable"
                and _is_module(thing)
                and self._is_callers(name, thing)
            ):
                continue
            is_self = name == "self" and _is_module(thing)  # a caller has a name for it
            late = name.startswith("_") or name in _RESULTS or is_self
            found = Name(prefix + name, holder)
            (self._late if late else self._queue).append((found, thing, 0))

    def _is_callers(self, name: str, module: torch.nn.Module) -> bool:
        """Let a model be called as the outermost caller does; return whether it is queued.

        `train(net)` and `evaluate(m)` are about the caller's `model`.
        """
        if name.startswith("_") or name == "self":
            return False
        known = self._models.get(id(module))
        if known is None:
            self._models[id(module)] = (len(self._queue), self._namespaces)
            return False
        place, number = known
        if number != self._namespaces:  # of two names there, the first
            self._queue[place] = (Name(name), module, 0)
            self._models[id(module)] = (place, self._namespaces)
        return True

    def add_late(self, namespace: Mapping[str, Any], holder: str) -> None:
        """Queue a namespace behind all others."""
        for name, thing in namespace.items():
            self.add(Name(name, holder), thing)

    def add(self, name: Name, thing: Any) -> None:
        """Queue one object, to be looked at last."""
        self._late.append((name, thing, 0))

    def run(self) -> None:
        """Find every buffer that the queue leads to, and let go of all objects."""
        self._put_off_members()
        while self._queue or self._late:
            if not self._queue:
                self._queue.extend(self._late)
                self._late.clear()
            name, thing, depth = self._queue.popleft()
            if len(self._seen) > _MAX_VISITED:
                break
            self._visit(name, thing, depth)
        for name, parameter in self._parameters:
            self._visit_tensor(name, parameter)
        for name, optimizer in self._optimizers:
            self._visit_optimizer(name, optimizer)
        for buffer, names in self._of_views.items():
            found = self.holders.setdefault(buffer, [])
            found += names[: _MAX_HOLDERS - len(found)]
        self._queue.clear()
        self._late.clear()
        self._optimizers.clear()
        self._parameters.clear()
        self.running.clear()

    def _put_off_members(self) -> None:
        """Let a numbered module be called by its number.

        A loop's variable (`for block in model.blocks`) is another one's name in each round.
        """
        members = _numbered_modules(thing for _, thing, _ in self._queue)
        if not members:
            return
        first: deque[tuple[Name, Any, int]] = deque()
        for entry in self._queue:
            is_member = _is_module(entry[1]) and id(entry[1]) in members
            (self._late if is_member else first).append(entry)
        self._queue = first

    def _visit(self, name: Name, thing: Any, depth: int) -> None:
        if type(thing) is torch.nn.Parameter and name.holder != "module":
            # Its module's name comes first: a loop's variable or a list is one of the moment.
            self._parameters.append((name, thing))
            return
        if type(thing) in _TENSORS:
            self._visit_tensor(name, thing)
            return
        is_known = id(thing) in self._seen or depth >= _MAX_DEPTH
        if is_known or isinstance(thing, _PLAIN):
            return
        self._seen.add(id(thing))
        if isinstance(thing, torch.optim.Optimizer):
            self._optimizers.append((name, thing))
        for child_name, child in self._children(name, thing):
            self._queue.append((child_name, child, depth + 1))

    def _children(self, name: Name, thing: Any) -> Iterator[tuple[Name, Any]]:
        """Yield what an object holds; a wider walk knows more kinds of objects."""
        return _children(name, thing)

    def _visit_tensor(self, name: Name, tensor: torch.Tensor) -> None:
        if not is_lazy(tensor):
            return
        state = state_of(tensor)
        # A view made in eager debug mode owns a copy beside its base.
        copy = getattr(state, "_copy", None)
        for buffer in (state.base,) if copy is None else (state.base, copy):
            # What holds a view alone names its base for want of a better name.
            is_own = state is state.base or buffer is copy
            table = self.holders if is_own else self._of_views
            found = table.setdefault(id(buffer), [])
            if len(found) < _MAX_HOLDERS and name not in found:
                found.append(name)
                if name.holder == "module" and is_own and not tensor.requires_grad:
                    self.frozen.append((id(buffer), Name(name.text, FROZEN)))
        # A parameter that is frozen may have one from before.
        may_have = tensor.requires_grad or type(tensor) is torch.nn.Parameter
        gradient = _gradient(tensor) if may_have else None
        if gradient is not None:
            self._visit_tensor(Name(f"{name.text}.grad", "gradient"), gradient)

    def _visit_optimizer(self, name: Name, optimizer: torch.optim.Optimizer) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            steps = [each for each in self.running if each.get("self") is optimizer]
            for variables in steps or [{}]:
                for found, tensor in _of_lbfgs(name.text, optimizer, variables):
                    self._visit_tensor(found, tensor)
            return
        for number, (parameter, state) in enumerate(list(optimizer.state.items())):
            owner = self._name_of(parameter) or f"{name.text}.state[{number}]"
            for key, value in list(state.items()) if isinstance(state, dict) else []:
                if type(value) in _TENSORS:
                    self._visit_tensor(Name(f"{owner}.{key}", "optimizer"), value)

    def _name_of(self, tensor: Any) -> str | None:
        if type(tensor) not in _TENSORS or not is_lazy(tensor):
            return None
        found = self.holders.get(id(state_of(tensor).base))
        return found[0].text if found else None


def _numbered_modules(things: Iterable[Any]) -> set[int]:
    """Return the identities of modules that stand in a list, or in a module under a number."""
    found: set[int] = set()
    seen: set[int] = set()
    stack = [part for thing in things for part in (thing, *_attributes(thing))]
    while stack:
        thing = stack.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if _is_module(thing):
            children = list(vars(thing).get("_modules", {}).items())
            found |= {id(child) for key, child in children if key.isdigit()}
            stack += [child for _, child in children]
        elif type(thing) in {list, tuple}:
            modules = [item for item in thing[:_MAX_ITEMS] if _is_module(item)]
            if len(modules) == len(
                thing[:_MAX_ITEMS]
            ):  # no pair of a model and its data
                found |= {id(module) for module in modules}
            stack += modules
    return found


def _is_module(thing: Any) -> bool:
    """Return whether a thing is a module, without asking the thing."""
    return issubclass(type(thing), torch.nn.Module)


def _attributes(thing: Any) -> list[Any]:
    """Return what an object of the user's holds by name."""
    if issubclass(type(thing), (type, torch.Tensor)) or is_installed(type(thing)):
        return []
    return list(_own(thing).values())[:_MAX_ITEMS]


def _children(name: Name, thing: Any) -> Iterator[tuple[Name, Any]]:
    kind, text = type(thing), name.text
    if isinstance(thing, _SEQUENCES):
        yield from _of_sequence(text, thing)
    elif isinstance(thing, dict):
        for key, item in list(dict.items(thing))[:_MAX_ITEMS]:
            yield Name(f"{text}[{_key_text(key)}]", "dict"), item
            if type(key) in _TENSORS:
                yield Name(f"a key of {text}", "dict"), key
    elif isinstance(thing, (set, frozenset)):
        for item in list(thing)[:_MAX_ITEMS]:
            yield Name(f"{text}{{...}}", "set"), item
    elif isinstance(thing, torch.nn.Module):
        yield from _of_module(text, thing)
    elif kind in _FUNCTIONS:
        yield from _of_function(text, thing)
    elif not isinstance(thing, torch.optim.Optimizer) and not is_installed(kind):
        yield from _of_object(text, thing)


def _key_text(key: Any) -> str:
    """Return a key's source; only plain keys are asked, as a tensor's text is a read."""
    plain = key if type(key) is tuple else (key,)
    if all(each is None or type(each) in _KEYS for each in plain):
        return f"{key!r:.40}"
    return f"<{type(key).__name__}>"


def _of_sequence(text: str, thing: Any) -> Iterator[tuple[Name, Any]]:
    # The classes' own iterators: a subclass's could run the user's code.
    base = next(kind for kind in _SEQUENCES if isinstance(thing, kind))
    fields = getattr(type(thing), "_fields", None) if base is tuple else None
    for number, item in enumerate(list(base.__iter__(thing))[:_MAX_ITEMS]):
        if fields is not None and number < len(fields):
            yield Name(f"{text}.{fields[number]}", "tuple"), item
        else:
            yield Name(f"{text}[{number}]", base.__name__), item


def _of_module(text: str, module: torch.nn.Module) -> Iterator[tuple[Name, Any]]:
    own = vars(module)
    for table in ("_parameters", "_buffers", "_modules"):
        holder = "buffer" if table == "_buffers" else "module"
        for key, item in list(own.get(table, {}).items()):
            yield Name(f"{text}.{key}", holder), item
    for key, item in list(own.items()):
        if not key.startswith("_"):
            # What a forward pass leaves on its module is no parameter and no buffer of it.
            holder = "object" if type(item) is torch.Tensor else "module"
            yield Name(f"{text}.{key}", holder), item


def _of_function(text: str, function: Any) -> Iterator[tuple[Name, Any]]:
    if isinstance(function, functools.partial):
        for number, item in enumerate(function.args):
            yield Name(f"{text}.args[{number}]", f"closure of {text}"), item
        for key, item in function.keywords.items():
            yield Name(key, f"closure of {text}"), item
        yield Name(text), function.func
    elif isinstance(function, types.MethodType):
        yield Name(f"{text}.__self__", "object"), function.__self__
    else:
        variables = function.__code__.co_freevars
        for key, cell in zip(variables, function.__closure__ or (), strict=False):
            try:
                yield Name(key, f"closure of {text}"), cell.cell_contents
            except ValueError:  # the variable has no value yet
                continue
        for number, item in enumerate(function.__defaults__ or ()):
            yield Name(f"{text}'s default {number}", f"closure of {text}"), item


def _of_object(text: str, thing: Any) -> Iterator[tuple[Name, Any]]:
    for kind in type(thing).__mro__:
        for key, member in list(vars(kind).items()):
            if type(member) is types.MemberDescriptorType:  # one of its `__slots__`
                try:
                    yield Name(f"{text}.{key}", "object"), member.__get__(thing)
                except AttributeError:  # not set
                    continue
    for key, item in list(_own(thing).items())[:_MAX_ITEMS]:
        yield Name(f"{text}.{key}", "object"), item


def _own(thing: Any) -> dict[str, Any]:
    """Return an object's attributes, without running code of its class."""
    try:
        own = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return own if type(own) is dict else {}


def is_installed(kind: type) -> bool:
    """Return whether a class comes with Python, torch or IPython: no place of the user's."""
    package = (kind.__module__ or "").partition(".")[0]
    return package in _INSTALLED


_INSTALLED = frozenset((*sys.stdlib_module_names, "torch", "IPython", "traitlets",
                        "ipykernel", "numpy", "jax", "jaxlib", "lazygraph", "lazyrt", "lazyviz",
                        "zmq", "tornado", "_pytest", "pytest", "pluggy")) - {"types", "argparse"}  # fmt: skip


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a parameter's gradient.

    torch refuses to say for one of several views made at once, after a write to their base.
    """
    try:
        return tensor.grad if tensor.is_leaf else None
    except RuntimeError:
        return None


# ------------------------------------------------------------------ who holds a tensor
# The same walk, with more kinds of places: all frames of a traceback, suspended generators, the
# user's own modules, and what autograd keeps for backward. It runs under the runtime's lock and lets
# go of every object before it returns the lock: a tensor that dies meanwhile is gone before any
# barrier looks.


_log = logging.getLogger(__name__)

TRACEBACK = "traceback"
# Whose frames are nothing that a user lets go of.
_OWN = frozenset(("lazygraph", "lazyrt", "lazyviz"))
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

    `extra` is searched beside the calling frames' namespaces, such as a shell's.
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


def saved_for_backward(
    depth: int = 1, extra: Mapping[str, Any] | None = None
) -> dict[int, Name]:
    """Return the buffers that autograd alone holds, by identity, under a name without a text.

    See `holders_of_buffers`. The user's modules, of which a project has hundreds, are searched if
    the callers' variables leave a buffer unexplained.
    """
    with lock:
        walk = _HolderWalk()
        walk.add_callers(depth + 1)
        # The cell that has ended is no caller of what a notebook shows below it.
        walk.add_namespace(dict(vars(sys.modules["__main__"])))
        walk.add_namespace(dict(extra or {}))
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
            place, stack = Name(BACKWARD_OF + name, AUTOGRAD), [function]
            while stack and len(seen) < _MAX_FUNCTIONS:
                each = stack.pop()
                if each is None or each in seen:
                    continue
                seen.add(each)
                for tensor in filter(is_lazy, _saved(each)):
                    found = self.holders.setdefault(id(state_of(tensor).base), [])
                    if place not in found:
                        found.append(place)
                stack += [following for following, _ in each.next_functions]
        self._functions.clear()

    def _visit_tensor(self, name: Name, tensor: torch.Tensor) -> None:
        super()._visit_tensor(name, tensor)
        if not is_lazy(tensor):
            return
        if tensor.grad_fn is not None:
            self._functions.append((name.text, tensor.grad_fn))
        state = state_of(tensor)
        own = state.base.type[0]
        if state is state.base:
            self.shapes[id(state.base)] = own
        elif math.prod(tensor.shape) == math.prod(own):
            self.shapes.setdefault(id(state.base), tuple(tensor.shape))

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
