"""Tracebacks of errors that the device raises on purpose end at the user's own line.

Between that line and a refusal lie frames of the runtime's, which tell nobody anything, and in
the innermost of which `%debug` would begin. An error that nobody meant to raise keeps them. An
error of the user's own code that the runtime called is shown without the frames between.
Once it is shown, our frames hold nothing. The KeyboardInterrupt that ends a wait says what goes on,
and is cut too: drawing a dozen frames of the runtime takes longer than the interrupt itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lazyviz.render.text import plural
from lazyviz.shell.lazytensors import (
    is_lazy,
    lazy_tensors,
    replaced,
    runtime_provenance,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType, TracebackType

# What a cell's exception said and where, as text: nothing of it stays alive.

_MAX_MESSAGE = 4_000
_MAX_PLACES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception that ended a cell.

    Attributes:
        kind: Name of its class.
        message: What it said, with its notes; long ones are cut.
        places: The user's own lines that led to it, the outermost first.
    """

    kind: str
    message: str
    places: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """Class and first line of the message."""
        first = self.message.partition("\n")[0]
        return f"{self.kind}: {first}" if first else self.kind

    def __str__(self) -> str:
        """Return the places, then class and message."""
        said = f"{self.kind}: {self.message}" if self.message else self.kind
        return "\n".join([*(f"  {place}" for place in self.places), said])


def failure_of(error: BaseException) -> Failure:
    """Return an exception as text; one whose own text fails has its class alone.

    A tensor in it is a line that computes nothing: lazyrt knows this file as one that looks
    behind the user's back.
    """
    try:
        lines = [str(error), *getattr(error, "__notes__", ())]
        message = "\n".join(map(str, lines))
    except Exception:  # noqa: BLE001 - the user's own class
        message = ""
    if len(message) > _MAX_MESSAGE:
        message = f"{message[:_MAX_MESSAGE]}…"
    return Failure(
        kind=type(error).__name__, message=message, places=_places(error.__traceback__)
    )


def _places(traceback: TracebackType | None) -> tuple[str, ...]:
    provenance = runtime_provenance()
    if provenance is None:
        return ()
    found = []
    while traceback is not None:
        frame = traceback.tb_frame
        if not provenance.is_library(frame.f_code):
            site = provenance.site_at(frame.f_code, traceback.tb_lineno)
            inside = "" if site.function == "<module>" else f", in {site.function}()"
            found.append(f"{site}{inside}")
        traceback = traceback.tb_next
    if len(found) > _MAX_PLACES:
        half = _MAX_PLACES // 2
        found[half:-half] = [f"… {len(found) - 2 * half:,} more …"]
    return tuple(found)


_ROOT = str(Path(__file__).parent.parent) + "/"
_KERNEL = "<lazyrt kernel "
_GOES_ON = "interrupted while {what}; that goes on in the background. "
_PENDING = (
    "{ops} of your program are still pending: lazyrt.mark_step() runs them, %lazy drop takes "
    "them back. Choose one before you run the cell again, which would record its work a second "
    "time."
)
_DISPATCHED = (
    "Nothing is pending: lazyrt.wait() waits for the results. Running the cell again does its "
    "work a second time."
)

_OURS = frozenset(("lazygraph", "lazyrt", "lazyviz"))

_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_MAX_EXCEPTIONS = 100


def install(shell: Any) -> list[Callable[[], None]]:
    """Shorten what a shell shows; return what undoes it."""
    original = shell.showtraceback

    def showtraceback(*args: Any, **options: Any) -> Any:
        error = sys.exception()
        if error is not None:
            leave_out(error.__traceback__)
            if is_meant(error):
                cut(error.__traceback__)
        try:
            return original(*args, **options)
        finally:
            empty_own_frames(error)

    return [override(shell, showtraceback=showtraceback)]


def override(owner: Any, **methods: Callable[..., Any]) -> Callable[[], None]:
    """Give an object other methods; return what undoes it."""
    own = vars(owner)
    before = dict(own)
    own.update(methods)
    return restorer(own, before)


def restorer(entries: dict[str, Any], before: dict[str, Any]) -> Callable[[], None]:
    """Return what undoes the changes made to some entries, but for those changed once more since."""
    ours = {k: v for k, v in entries.items() if before.get(k) is not v}

    def undo() -> None:
        for name, value in ours.items():
            # Somebody who wrapped our method later keeps theirs.
            if entries.get(name) is value:
                entries.pop(name)
                if name in before:
                    entries[name] = before[name]

    return undo


def empty_own_frames(error: BaseException | None) -> None:
    """Let functions of lazyviz and the runtime that an exception has ended forget their variables.

    IPython keeps the last traceback. What our frames hold of it would be tensors that no line of
    the user's keeps.
    """
    for each in _chain(error):
        for frame in _frames(each.__traceback__):
            if is_ours(frame.f_code.co_filename):
                _empty(frame)


def is_meant(error: BaseException) -> bool:
    """Return whether an error says what is wrong with a call, not with us, or is the user's wish."""
    if type(error).__module__.partition(".")[0] in _OURS:
        return True
    if isinstance(error, KeyboardInterrupt):  # a wait of ours may be what it ended
        return True
    meant = (RuntimeError, IndexError, AssertionError)
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if innermost is None or not isinstance(error, meant):
        return False
    where = innermost.tb_frame.f_globals.get("__name__", "")
    # A call that torch refuses; a count that a test did not expect.
    if where in {"lazyrt.frontend.record", "lazyrt.testing"}:
        return True
    return type(error) is RuntimeError and where.partition(".")[0] in _OURS


def note(what: str, pending_ops: int) -> str:
    """Return what an interrupted wait was for, and what to do with ops that have not run."""
    ops = plural(pending_ops, "op")
    rest = _PENDING.format(ops=ops) if pending_ops else _DISPATCHED
    return _GOES_ON.format(what=what) + rest


def cut(traceback: TracebackType | None) -> None:
    """Take the runtime's innermost frames off a traceback: those that no user's code follows."""
    provenance = runtime_provenance()
    last: TracebackType | None = None
    inside = False
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if is_ours(name):
            inside = True
        elif not (provenance and provenance.is_library_file(name)):
            inside = False
        if not inside and name != contextlib.__file__:  # what enters our `with` blocks
            last = traceback
        traceback = traceback.tb_next
    if last is not None:
        last.tb_next = None


def leave_out(traceback: TracebackType | None) -> None:
    """Take the runtime's frames between the user's own ones off a traceback.

    So a step closure, a batch loader, a decorated function or an expression of `%lazy` that raises
    is shown with the line that queued, asked or called, and its own. Where the runtime's frames are the innermost, or a
    library's that it calls, they stay: that is an error of the runtime's.
    """
    provenance = runtime_provenance()
    if provenance is None:
        return
    kept: TracebackType | None = None
    calls_ours = False
    while traceback is not None:
        code = traceback.tb_frame.f_code
        name = code.co_filename
        is_typed = (name, code.co_name) == ("<string>", "<module>")  # on a magic's line
        if is_typed or not (is_ours(name) or provenance.is_library_file(name)):
            if kept is not None and calls_ours:
                kept.tb_next = traceback
            kept, calls_ours = traceback, False
        calls_ours = calls_ours or is_ours(name)
        traceback = traceback.tb_next


def is_ours(file: str) -> bool:
    """Return whether a frame with this file is one of lazyviz, the runtime or its kernels."""
    provenance = runtime_provenance()
    is_own = provenance is not None and provenance.is_own_file(file)
    return is_own or file.startswith((_ROOT, _KERNEL))


def let_go(error: BaseException, stand_in: Callable[[Any], Any]) -> int:
    """Replace the lazy tensors that an exception and its traceback hold; return how many those were.

    Its causes, its contexts and the members of its group are included.
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


def _chain(error: BaseException | None) -> Iterator[BaseException]:
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
