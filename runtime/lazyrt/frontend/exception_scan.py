"""Whether the program around a line catches what the line raises.

A check that waits for its step raises elsewhere, where nobody expects it: a program that tries a
factorisation again with more jitter needs the error at its line.
"""

from __future__ import annotations

import dis
import functools
import itertools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from lazyrt.frontend.provenance import is_library, is_own

if TYPE_CHECKING:
    from types import CodeType, FrameType

# What `except` may name without meaning the error of a check.
_OTHERS = frozenset(
    ("KeyboardInterrupt", "SystemExit", "GeneratorExit", "StopIteration", "StopAsyncIteration")
)  # fmt: skip
_NAMES = frozenset(("LOAD_NAME", "LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD"))


class _Guarded(NamedTuple):
    """A stretch of code whose exceptions go to one place; offsets in bytes."""

    start: int
    end: int
    target: int


def would_catch(depth: int = 1) -> bool:
    """Return whether an `except` of the user's, or of a package below the user's line, would catch.

    A shell, a test runner or a trainer that calls the user's code is not asked. A `with` block may
    swallow an exception too, and counts as one that does not.

    Args:
        depth: How many frames up the first is that may be outside lazyrt.
    """
    frame: FrameType | None = sys._getframe(depth)
    is_below = True
    while frame is not None:
        code = frame.f_code
        is_users = not is_library(code)
        is_below = is_below and not is_users
        asked = is_users or (is_below and not is_own(code))
        if asked and _is_guarded(code, frame.f_lasti):
            return True
        frame = frame.f_back
    return False


@functools.lru_cache(maxsize=4_096)
def _is_guarded(code: CodeType, offset: int) -> bool:
    """Return whether code catches what is raised at an offset."""
    if not code.co_exceptiontable:
        return False
    entries: list[Any] = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    stretches = [_Guarded(entry.start, entry.end, entry.target) for entry in entries]
    instructions = list(dis.get_instructions(code))
    seen: set[int] = set()
    # A handler that passes the exception on is itself within the stretch of the next outer one.
    while offset not in seen:
        seen.add(offset)
        found = [s.target for s in stretches if s.start <= offset < s.end]
        if not found:
            return False
        offset = found[0]
        if _catches([i for i in instructions if i.offset >= offset]):
            return True
    return False


def _catches(handler: list[dis.Instruction]) -> bool:
    """Return whether a handler is an `except` for what a check may raise."""
    if not handler or handler[0].opname != "PUSH_EXC_INFO":
        return False
    names: list[str] = []
    resume = 0  # where the next clause begins
    for instruction, following in itertools.pairwise(handler[1:]):
        name = instruction.opname
        if instruction.offset < resume:
            continue
        if name in {"CHECK_EXC_MATCH", "CHECK_EG_MATCH"}:
            if not names or not _OTHERS.issuperset(names):
                return True
            names, resume = [], following.argval
        elif name in _NAMES:
            names.append(instruction.argval)
        elif not name.startswith(("LOAD_", "BUILD_TUPLE")):
            return not names and name == "POP_TOP"  # `except:`
    return False
