"""Whether a `with` block still runs, told by the stack.

A block says so itself when it ends, but for one moment: Ctrl-C that comes while `__exit__` is being
called is raised before that has done anything.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from types import CodeType, FrameType

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
