"""After an exception: no lazy tensor of a dead frame stays a graph root.

`sys.last_value`, the shell's last result and IPython's traceback printer keep the frames
of a failed cell, and with them every local tensor. Each is replaced by a stand-in, which
`%debug` can still print and no barrier computes. The user's own namespace stays untouched.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import inspect
import sys
from typing import TYPE_CHECKING, Any

from lazyviz.shell.lazytensors import is_lazy, lazy_tensors, replaced
from lazyviz.shell.tracebacks import is_ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType, TracebackType

_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_MAX_EXCEPTIONS = 100


def let_go(error: BaseException, stand_in: Callable[[Any], Any]) -> int:
    """Replace the lazy tensors that an exception and its traceback hold.

    Args:
        error: The exception; its causes, contexts and members of its group are included.
        stand_in: Returns what takes a tensor's place.

    Returns:
        How many tensors were replaced, each counted once.
    """
    known: dict[int, tuple[Any, Any]] = {}

    def replacement(tensor: Any) -> Any:
        if id(tensor) not in known:
            known[id(tensor)] = (tensor, stand_in(tensor))
        return known[id(tensor)][1]

    alive = _running_frames()
    seen_frames: set[FrameType] = set()
    for each in _chain(error):
        _clear_exception(each, replacement)
        for frame in _frames(each.__traceback__):
            if frame not in seen_frames and id(frame) not in alive:
                seen_frames.add(frame)
                _clear_frame(frame, replacement)
    for frame in _callers(seen_frames, alive):
        if is_ours(frame.f_code.co_filename):
            _empty(frame)
        else:
            _clear_frame(frame, replacement)
    return len(known)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting and len(seen) < _MAX_EXCEPTIONS:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions


def _frames(traceback: TracebackType | None) -> Iterator[FrameType]:
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


def _callers(frames: set[FrameType], alive: set[int]) -> Iterator[FrameType]:
    """Yield the dead frames that called others and are in no traceback themselves.

    A frame keeps its callers. An error that is caught and told in other words, with the traceback
    cut at the user's line, leaves such a row of frames behind it.
    """
    seen = set(frames)
    for each in frames:
        frame = each.f_back
        while frame is not None and frame not in seen and id(frame) not in alive:
            seen.add(frame)
            yield frame
            frame = frame.f_back


def _empty(frame: FrameType) -> None:
    """Take all locals from a frame of ours, where nobody looks: states of tensors, too."""
    with contextlib.suppress(RuntimeError):  # a generator that could go on
        frame.clear()


def _running_frames() -> set[int]:
    # Ids, not frames: a frame among its own locals would keep all of them until the next
    # garbage collection.
    running: set[int] = set()
    for top in sys._current_frames().values():  # noqa: SLF001
        frame: FrameType | None = top
        while frame is not None:
            running.add(id(frame))
            frame = frame.f_back
    del top  # one of them was this function's own frame
    return running


def _clear_exception(error: BaseException, replacement: Callable[[Any], Any]) -> None:
    arguments = replaced(error.args, replacement)
    if arguments is not error.args:
        error.args = arguments
    for name, value in list(vars(error).items()):
        new = replaced(value, replacement)
        if new is not value:
            vars(error)[name] = new
    # `t.misspelt` leaves the tensor on the AttributeError, outside of its __dict__.
    if isinstance(error, AttributeError) and is_lazy(error.obj):
        error.obj = replacement(error.obj)


def _clear_frame(frame: FrameType, replacement: Callable[[Any], Any]) -> None:
    code = frame.f_code
    # Without own fast locals a frame's names are a module's or the user's namespace.
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return
    local = frame.f_locals
    # A variable that an inner function shares may belong to a closure that lives on.
    names = [
        name
        for name in code.co_varnames
        if name in local and name not in code.co_cellvars
    ]
    held = [name for name in names if any(True for _ in lazy_tensors(local[name]))]
    if not held:
        return
    if code.co_flags & _SUSPENDABLE and _is_suspended(frame):
        return
    _write_locals(frame, {name: replaced(local[name], replacement) for name in held})


def _is_suspended(frame: FrameType) -> bool:
    """Return whether a generator or coroutine could still go on in this frame."""
    owners: Iterable[Any] = gc.get_referrers(frame)
    return any(
        getattr(owner, name, None) is frame
        for owner in owners
        if inspect.isgenerator(owner)
        or inspect.iscoroutine(owner)
        or inspect.isasyncgen(owner)
        for name in ("gi_frame", "cr_frame", "ag_frame")
    )


def _write_locals(frame: FrameType, values: dict[str, Any]) -> None:
    frame.f_locals.update(values)
    if sys.version_info < (3, 13):  # from 3.13 on `f_locals` writes through
        keep_missing = ctypes.c_int(0)
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), keep_missing)
