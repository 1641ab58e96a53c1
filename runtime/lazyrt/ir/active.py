"""The steps and scopes that the running code is in: what reads, barriers and hooks ask.

Context variables hold them, so two coroutines in steps at once do not see each other's, and
a new thread is in none.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import threading
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from lazyrt.observe.events import SourceLocation


# ----------------------------------------------------------- whether a block still runs
# A block says so itself when it ends, but for one moment: Ctrl-C that comes while `__exit__` is being
# called is raised before that has done anything.


_IN_PIECES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_ENTERS = dis.opmap.get("BEFORE_WITH", -1)
_INSTRUCTION = 2  # bytes


class Block(NamedTuple):
    """A `with` block, without a reference to its frame and what lives there."""

    frame: int
    code: CodeType
    instruction: int
    thread: int


def entered_by(frame: FrameType) -> Block | None:
    """Return the block that a frame is entering; None where the stack does not tell of its end.

    A generator or a coroutine is left and entered again, and what calls `__enter__` by itself may end
    before the block does.
    """
    code, instruction = frame.f_code, frame.f_lasti
    if code.co_flags & _IN_PIECES or code.co_code[instruction] != _ENTERS:
        return None
    return Block(id(frame), code, instruction, threading.get_ident())


def has_ended(block: Block | None) -> bool:
    """Return whether a block of this thread does not run any more; False if nobody can tell."""
    if block is None or block.thread != threading.get_ident():
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if id(frame) == block.frame and frame.f_code is block.code:
            return not _is_within(block.code, block.instruction, frame.f_lasti)
        frame = frame.f_back
    return True


@functools.lru_cache(maxsize=1_024)
def _is_within(code: CodeType, instruction: int, offset: int) -> bool:
    """Return whether an exception at an offset would reach the end of the block that begins there."""
    entries: list[Any] = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]

    def target(offset: int) -> int | None:
        found = (e.target for e in entries if e.start <= offset < e.end)
        return next(found, None)

    end = target(instruction + _INSTRUCTION)
    # A handler that passes the exception on is itself guarded by the next outer one.
    seen: set[int | None] = {None}
    place = target(offset)
    while place not in seen and place != end:
        seen.add(place)
        place = target(place)  # type: ignore[arg-type]
    return place == end


OnRead = Literal["error", "warn", "allow"]


@dataclass(eq=False, slots=True)
class ActiveStep:
    """A block that must not be cut in two.

    Attributes:
        name: Its name, None if it has none.
        site: Where it began.
        on_read: What a read of a pending tensor does in it.
        kind: `step`, or `async closure` for the thread that runs those.
        function: Qualified name of the decorated function, empty for a `with` block.
        closures: What was put off to the end of the step.
        undo: What `on_error` needs to take the step back; None for `flush`.
        number: The number that the user gave it, None if none.
        is_over: Whether it was left, on whichever thread: a generator may be closed on another one.
        block: Its `with` block, where the stack tells whether that still runs.
    """

    name: str | None
    site: SourceLocation | None
    on_read: OnRead = "error"
    kind: Literal["step", "async closure"] = "step"
    function: str = ""
    closures: list[Any] = field(default_factory=list)
    undo: Any = None
    number: int | None = None
    is_over: bool = False
    block: Block | None = None

    @property
    def label(self) -> str:
        """Its name and the user's number, as far as it has them: `train 3`."""
        number = "" if self.number is None else str(self.number)
        return " ".join(part for part in (self.name, number) if part)

    def __str__(self) -> str:
        return f"the {self.kind} {self.name!r}" if self.name else f"the {self.kind}"


class ActiveScope:
    """A labelled block that is open.

    Attributes:
        name: Its label.
        owner: The object that was entered, where that was open already; else it is this one.
        outer: The scope around it.
        code, instruction: Where it was opened; the line is looked up when somebody asks.
        started_ns: When, by `time.perf_counter_ns`, or 0 if nobody listened then; a barrier that splits
            the scope renews it.
        part: 1, and one more for each time that a barrier has split it; 0 before it is opened.
        annotation: Its mark on a profile of XLA that is being taken, None if none is.
    """

    __slots__ = (
        "annotation", "code", "instruction", "name", "outer", "owner", "part", "started_ns",
    )  # fmt: skip
    name: str
    owner: ActiveScope
    outer: ActiveScope | None
    code: CodeType | None
    instruction: int
    started_ns: int
    part: int
    annotation: Any


_steps: ContextVar[tuple[ActiveStep, ...]] = ContextVar("lazyrt_steps", default=())
innermost_scope: ContextVar[ActiveScope | None] = ContextVar(
    "lazyrt_scope", default=None
)


def steps() -> tuple[ActiveStep, ...]:
    """Return the open steps, the outermost first."""
    return tuple(each for each in _steps.get() if not each.is_over)


def innermost() -> ActiveStep | None:
    """Return the innermost open step, None outside of all."""
    return next((each for each in reversed(_steps.get()) if not each.is_over), None)


def enter(step: ActiveStep) -> None:
    """Open a step."""
    _steps.set((*steps(), step))


def leave(step: ActiveStep) -> None:
    """Close a step, whichever it is: coroutines may end in another order than they began."""
    step.is_over = True
    _steps.set(tuple(each for each in _steps.get() if each is not step))


def is_inside() -> bool:
    """Return whether a step is open."""
    drop_left()
    return innermost() is not None


def drop_left() -> bool:
    """Close the steps whose block Ctrl-C has ended unnoticed; return whether there were any."""
    left = [step for step in steps() if has_ended(step.block)]
    for step in left:
        leave(step)
    return bool(left)


def scopes() -> tuple[ActiveScope, ...]:
    """Return the open scopes, the outermost first."""
    found: list[ActiveScope] = []
    scope = innermost_scope.get()
    while scope is not None:
        found.append(scope)
        scope = scope.outer
    return tuple(reversed(found))


def labels() -> tuple[str, str]:
    """Return the labels of the open scopes, joined, and the name of the innermost step."""
    if not _steps.get() and innermost_scope.get() is None:
        return "", ""
    step = innermost()
    scope = "/".join([each.name for each in scopes()])
    return scope, (step.name or "" if step is not None else "")


def close_scope(owner: ActiveScope) -> ActiveScope | None:
    """Close the scope that an object opened last, wherever it lies, and return it."""
    inner, scope = None, innermost_scope.get()
    while scope is not None and scope is not owner:
        if type(scope) is ActiveScope and scope.owner is owner:
            break
        inner, scope = scope, scope.outer
    if scope is None:
        return None
    if inner is None:
        innermost_scope.set(scope.outer)
    else:
        inner.outer = scope.outer
    return scope
