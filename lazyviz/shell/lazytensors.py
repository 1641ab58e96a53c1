"""Telling lazy tensors from everything else, and replacing them inside containers.

Nothing here records an op: a tensor is recognised by its device alone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_DEVICE_TYPE = "lazyrt"

_CONTAINERS = (list, tuple, dict)
_MAX_DEPTH = 4
_MAX_ITEMS = 10_000
_MAX_LOOKED_AT = 200_000  # 0.1 s; a list of lists of numbers may hold millions


def runtime_provenance() -> Any:
    """Return what tells the user's lines from ours; None if nobody has imported `lazyrt`."""
    if not hasattr(sys.modules.get("lazyrt"), "activity"):
        return None
    from lazyrt.tools import provenance

    return provenance


def be_library() -> None:
    """Keep our own lines out of the places that the runtime shows."""
    runtime_provenance().add_library(str(Path(__file__).parent.parent))


def is_lazy(thing: object) -> bool:
    """Return whether `thing` is a tensor on the lazy device."""
    torch = sys.modules.get("torch")
    tensor_type = getattr(torch, "Tensor", None)
    if tensor_type is None or not isinstance(thing, tensor_type):
        return False
    return bool(thing.device.type == _DEVICE_TYPE)


def lazy_tensors(thing: object) -> Iterator[Any]:
    """Yield the lazy tensors that `thing` is or that its lists, tuples and dicts hold.

    Of very large containers only the beginning is looked at.
    """
    stack = [(thing, 0)]
    room = _MAX_LOOKED_AT
    while stack and room:
        room -= 1
        found, depth = stack.pop()
        if is_lazy(found):
            yield found
        elif _is_container(found) and depth < _MAX_DEPTH:
            items: Any = found.values() if type(found) is dict else found
            stack.extend((item, depth + 1) for item in reversed(list(items)))


def _is_container(thing: Any) -> bool:
    # A dict with builtins is a namespace, such as the user's, that a frame of IPython holds.
    return (
        type(thing) in _CONTAINERS
        and len(thing) <= _MAX_ITEMS
        and not (type(thing) is dict and "__builtins__" in thing)
    )


def named_tensors(namespace: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the lazy tensors that a namespace holds under public names, sorted by name."""
    return [
        (name, namespace[name])
        for name in sorted(namespace)
        if not name.startswith("_") and is_lazy(namespace[name])
    ]


def replaced(thing: Any, replacement: Callable[[Any], Any]) -> Any:
    """Return `thing` with its lazy tensors replaced.

    Lists, tuples and dicts are rebuilt where they hold one, never changed in place: the
    user may share them. Subclasses and everything else are returned as they are.
    """
    return _replaced(thing, replacement, 0, [_MAX_LOOKED_AT])


def _replaced(
    thing: Any, replacement: Callable[[Any], Any], depth: int, room: list[int]
) -> Any:
    # A closure that calls itself would keep the replacement, and so tensors, until a collection.
    room[0] -= 1
    if is_lazy(thing):
        return replacement(thing)
    if room[0] < 0 or depth >= _MAX_DEPTH or not _is_container(thing):
        return thing
    kind = type(thing)
    old = list(thing.values()) if kind is dict else list(thing)
    new = [_replaced(item, replacement, depth + 1, room) for item in old]
    if all(after is before for after, before in zip(new, old, strict=True)):
        return thing
    return dict(zip(thing, new, strict=True)) if kind is dict else kind(new)
