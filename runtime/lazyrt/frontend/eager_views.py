"""Switching the kernels to eager debug mode and back; views that own a computed copy."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from lazyrt.execution.eager import EAGER, guard
from lazyrt.frontend import (
    factorisations,
    kernels,
    linear,
    outs,
    recorded_calls,
    special,
    views,
)
from lazyrt.frontend.buffers import View
from lazyrt.ir.live import Buffer, leaf_of, lock, pending, ran_alone, unwind
from lazyrt.ir.node import Leaf

if TYPE_CHECKING:
    from collections.abc import Callable

    from lazyrt.frontend.buffers import State
    from lazyrt.ir.node import Op, Value


class EagerView(View):
    """A view made in eager debug mode: its op runs at once, its result is a copy.

    The copy serves readers for as long as the base still holds the data that it was made
    from. Writes go to the base, as with any view.
    """

    __slots__ = ("_copy", "_source")

    def __init__(
        self, parent: State, op: Op, args: tuple[Any, ...], value: Value
    ) -> None:
        super().__init__(parent, op, args, value)
        self.begin()

    def begin(self) -> None:
        """Wait for the end of the op; called for a view whose other attributes are set."""
        self._copy: Buffer | None = None
        self._source: Any = None
        guard.views.append(self)

    @property
    def result(self) -> Value | None:
        """The value to compute; None while the base is pending."""
        return None if self.base.is_pending else self._value

    def keep(self, data: Any) -> None:
        """Take the value's data."""
        source = _contents(self.base)
        if source is None:
            return
        value = self._value
        self._copy = Buffer(None)
        self._copy.store(data, (value.shape, value.dtype, value.strides))
        self._copy.run = ran_alone(EAGER, value)
        self._source = weakref.ref(source)

    @property
    def value(self) -> Value:
        """The copy's value while it is valid; else that of the view op on the base."""
        copy = self._valid_copy()
        if copy is None:
            return super().value
        return copy.value if copy.value is not None else leaf_of(copy)

    @property
    def data(self) -> Any:
        """The copy's device data while it is valid, None otherwise."""
        copy = self._valid_copy()
        return copy.data if copy is not None else None

    def _valid_copy(self) -> Buffer | None:
        if self._copy is None:
            return None
        source = self._source()
        # A pending base has no data, and the copy's source may be gone: None is no match.
        if source is not None and source is _contents(self.base):
            return self._copy
        self._copy = None  # the base was written: free the memory
        return None


def _contents(buffer: Buffer) -> Any:
    """Return the device data that a ready buffer holds, None for a pending one."""
    value = buffer.value
    if value is None:
        return buffer.data
    return pending.inputs[value.position] if isinstance(value, Leaf) else None


def switch(*, on: bool) -> None:
    """Let every kernel run its op at once, or record it again."""
    with lock:
        if pending.eager is on:
            return
        replace({**_lock_names(on=on), "View": EagerView if on else View})
        pending.eager = on
        if not on:
            pending.unpark()


_wrapper: Callable[[Any], Any] | None = None


def wrap_lock(wrapper: Callable[[Any], Any] | None) -> None:
    """Let kernels take what `wrapper` makes of their lock; None for the lock itself."""
    global _wrapper
    with lock:
        _wrapper = wrapper
        replace(_lock_names(on=pending.eager))


def _lock_names(*, on: bool) -> dict[str, Any]:
    """Return what stands for the lock, under the names by which kernels take it."""
    found: Any = guard if on else lock
    if _wrapper is not None:
        found = _wrapper(found)
    return {
        "lock": found,
        "acquire": found.acquire,
        "release": found.release,
        # The others take back what they have begun before an error leaves them.
        "unwind": unwind if found is lock else _nothing,
    }


def _nothing() -> None:
    """Take nothing back."""


def replace(names: dict[str, Any]) -> None:
    """Give global names of every kernel other values."""
    written = [
        vars(module)
        for module in (
            kernels,
            linear,
            outs,
            special,
            factorisations,
            views,
            recorded_calls,
        )
    ]
    for scope in (*kernels.scopes, *written):
        for name, value in names.items():
            if name in scope:
                scope[name] = value
