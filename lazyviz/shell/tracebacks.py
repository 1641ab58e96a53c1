"""Tracebacks of errors that the device raises on purpose end at the user's own line.

Between that line and a refusal lie frames of the runtime's, which tell nobody anything, and in
the innermost of which `%debug` would begin. An error that nobody meant to raise keeps them. An
error of the user's own code that the runtime called is shown without the frames between.
Once it is shown, our frames hold nothing.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from lazyviz.shell.interrupted import cut, is_ours, leave_out

if TYPE_CHECKING:
    from collections.abc import Callable

_OURS = frozenset(("lazyrt", "lazyviz"))


def install(shell: Any) -> list[Callable[[], None]]:
    """Shorten what a shell shows; return what undoes it."""
    before = vars(shell).get("showtraceback")
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

    def undo() -> None:
        if vars(shell).get("showtraceback") is not showtraceback:
            return  # somebody has wrapped it since
        if before is None:
            del shell.showtraceback
        else:
            shell.showtraceback = before

    shell.showtraceback = showtraceback
    return [undo]


def empty_own_frames(error: BaseException | None) -> None:
    """Let functions of lazyviz and the runtime that an exception has ended forget their variables.

    IPython keeps the last traceback. What our frames hold of it would be tensors that no line of
    the user's keeps.
    """
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        waiting += (each.__cause__, each.__context__)
        traceback = each.__traceback__
        while traceback is not None:
            if is_ours(traceback.tb_frame.f_code.co_filename):
                with contextlib.suppress(RuntimeError):  # it goes on
                    traceback.tb_frame.clear()
            traceback = traceback.tb_next


def is_meant(error: BaseException) -> bool:
    """Return whether an error says what is wrong with a call, and not what is wrong with us."""
    if type(error).__module__.partition(".")[0] in _OURS:
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
