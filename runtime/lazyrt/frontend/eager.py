"""Eager debug mode: each op is compiled and run by itself, as soon as it is called.

While the mode is on, the kernels take `guard` in place of `ir.live.lock`: on entering, what is
pending already is set aside; on leaving, what the op has just recorded is run, its buffers
become ready, and the inputs that it numbered are given back. So a pending graph from before
stays as it is, with its inputs and random states, and while the mode is off nothing of this
costs anything: the kernels hold the plain lock.

Values of a pending graph that an eager op reads are computed as peeks compute them, and
remembered likewise.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lazyrt import jax_compat
from lazyrt.execution.op_by_op import (
    HOW,
    Values,
    cone_of,
    read,
    run_and_tell,
)
from lazyrt.execution.peek import remember
from lazyrt.execution.process import deferred_interrupt
from lazyrt.frontend import (
    kernels,
    linear,
    recorded_calls,
    special,
    views,
)
from lazyrt.frontend.buffers import State, View
from lazyrt.frontend.value_checks import check_values
from lazyrt.ir.live import (
    Buffer,
    Lost,
    Sizes,
    leaf_of,
    lock,
    pending,
    ran_alone,
    unwind,
)
from lazyrt.ir.node import Leaf, Node, Op, Value, iter_values

if TYPE_CHECKING:
    from collections.abc import Callable


_EAGER = HOW["eager"]


@dataclass(slots=True)
class _Marks:
    """How much was pending when the op began."""

    number: int = 0
    sizes: Sizes = field(default_factory=Sizes)
    writes: int = 0

    def set(self) -> None:
        self.number = pending.number
        self.sizes = pending.sizes()
        self.writes = pending.writes

    def is_newer(self, leaf: Leaf) -> bool:
        """Return whether the op numbered this input."""
        kinds = {
            "data": self.sizes.inputs,
            "float": self.sizes.floats,
            "int": self.sizes.ints,
            "rng": self.sizes.rng,
        }
        return leaf.position >= kinds[leaf.kind]

    def restore(self) -> None:
        """Give back the inputs that were numbered since."""
        for position in range(self.sizes.inputs, len(pending.inputs)):
            owner = pending.owners.get(position)
            buffer = owner() if owner is not None else None
            if buffer is not None and buffer.value is not None:
                buffer.value = None
                buffer.version += 1
        pending.cut_back(self.sizes)
        pending.writes = self.writes


class Guard:
    """Takes the place of `ir.live.lock` in the kernels while eager debug mode is on."""

    def __init__(self) -> None:
        # For each op that is running, the exception that the program was handling when it called it.
        self._handled: list[BaseException | None] = []
        self._marks = _Marks()
        self._interrupts = deferred_interrupt()
        self.views: list[EagerView] = []

    def acquire(self) -> None:
        """Set aside what is pending, before the outermost op."""
        try:
            lock.acquire()
        except BaseException:
            unwind()
            raise
        depth = -1
        try:
            depth = len(self._handled)
            self._handled.append(sys.exception())
            if depth == 0:
                self._begin()
                # Last: from here to the end of `release` nothing can come in between.
                self._interrupts = deferred_interrupt()
                self._interrupts.__enter__()
        except BaseException:
            if depth >= 0:
                del self._handled[depth:]
            lock.release()
            raise

    __enter__ = acquire

    def release(self) -> None:
        """Run what the outermost op has recorded, unless an error is on its way."""
        self._leave(failed=sys.exception() is not self._handled[-1])

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        self._leave(failed=error is not None)

    def _leave(self, *, failed: bool) -> None:
        is_outermost = len(self._handled) == 1
        interrupts = self._interrupts
        try:
            # What a failed op has recorded stays pending, like anything recorded.
            if is_outermost and not failed:
                self._finish()
        finally:
            del self._handled[-1:]
            lock.release()
            if is_outermost:
                interrupts.__exit__(None, None, None)

    def _begin(self) -> None:
        self.views.clear()
        if pending.buffers:
            pending.park()
        self._marks.set()

    def _finish(self) -> None:
        """Run what the op has recorded."""
        if self._marks.number != pending.number:  # a barrier came in between
            self._marks = _Marks()
        # A second round is for what a finaliser has recorded during the first one.
        while self._run_fresh():
            pass
        for buffer in pending.fresh():
            pending.parked.pop(buffer, None)
        pending.buffers.clear()
        self._marks.restore()
        pending.activity += 1

    def _run_fresh(self) -> bool:
        """Run what is recorded and make it ready; return whether there was anything."""
        fresh = [buffer for buffer in pending.fresh() if buffer.value is not None]
        views = [view for view in self.views if view.result is not None]
        self.views.clear()
        wanted = [buffer.value for buffer in fresh] + [view.result for view in views]
        roots = {value: None for value in wanted if value is not None and value.node}
        values = self._run(roots) if roots else {}
        for buffer in fresh:
            value = buffer.value
            if value is not None:
                type_ = buffer.meta or (value.shape, value.dtype, value.strides)
                buffer.store(read(value, values), type_)
                buffer.run = ran_alone(_EAGER, value) if value.node else None
        for view in views:
            if view.result is not None:
                view.keep(read(view.result, values))
        return bool(fresh or views)

    def _run(self, roots: dict[Value, None]) -> Values:
        """Return the data of the op's results, and of everything computed for them."""
        values: Values = dict(pending.memo) if pending.parked else {}
        cone, _ = cone_of(roots, values)
        with jax_compat.scope():
            for node in cone:
                self._refuse(node, values)
                run_and_tell(node, values, "eager")
        if pending.parked:
            self._remember(cone, values)
        return values

    def _refuse(self, node: Node, values: Values) -> None:
        """Take the op back if the CPU refuses what a node's operands hold, and raise its error."""
        try:
            check_values(node, values)
        except Exception:
            self._take_back()
            values.clear()  # a traceback keeps them
            raise

    def _take_back(self) -> None:
        """Give what the op has written its contents from before: ready ones, or parked values."""
        for buffer in list(pending.buffers):
            if buffer.value is None:
                continue
            buffer.value = pending.parked.get(buffer)
            buffer.version += 1
            if buffer.value is None and buffer.meta is None:
                buffer.data = Lost("the op that makes it was refused")
        pending.buffers.clear()
        self._marks.restore()

    def _remember(self, cone: list[Node], values: Values) -> None:
        """Keep values of the pending graph: those that read no input of this op."""
        own: set[Node] = set()
        for node in cone:
            if any(
                self._marks.is_newer(operand)
                if isinstance(operand, Leaf)
                else operand.node in own
                for operand in iter_values(node.args)
            ):
                own.add(node)
                continue
            for output in node.outputs:
                if output is not None:
                    remember(output, values[output])


guard = Guard()


# ------------------------------------------- views that own a copy; switching the mode


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
        self._copy.run = ran_alone(_EAGER, value)
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
        "unwind": unwind if found is lock else lambda: None,
    }


def replace(names: dict[str, Any]) -> None:
    """Give global names of every kernel other values."""
    written = [
        vars(module)
        for module in (
            kernels,
            linear,
            special,
            views,
            recorded_calls,
        )
    ]
    for scope in (*kernels.scopes, *written):
        for name, value in names.items():
            if name in scope:
                scope[name] = value
