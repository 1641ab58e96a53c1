"""Steps: a block of work that always ends in a barrier."""

from __future__ import annotations

import functools
import inspect
import threading
import time
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from lazyrt.errors import UsageError
from lazyrt.execution.executor import barrier
from lazyrt.frontend.provenance import user_site
from lazyrt.ir.live import pending
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

P = ParamSpec("P")
R = TypeVar("R")

_active = threading.local()


class step:  # noqa: N801 - used like a function: `with step():`, `@step()`
    """Run a block, or each call of a function, as one step: it ends in a barrier.

    The barrier comes however the block ends: normally, by `break` or `return`, or by an
    exception, which reaches the caller unchanged. A step inside a step ends in a barrier of
    its own. The same object can be used again.

    Args:
        name: Shown in strips and reports.

    Example:
        >>> import lazyrt, torch
        >>> x = torch.ones(2, device="lazyrt")
        >>> with lazyrt.step("double"):
        ...     y = x * 2
        >>> lazyrt.is_pending(y)
        False
    """

    def __init__(self, name: str | None = None) -> None:
        if name is not None and not isinstance(name, str):
            raise UsageError(
                f"step() got {name!r} as its name, which is {type(name).__name__}, not text. "
                "To decorate a function, call it: `@step()`."
            )
        self.name = name
        self._starts: list[tuple[int, int]] = []

    def __enter__(self) -> Self:
        now = time.perf_counter_ns()
        self._starts.append((pending.number, now))
        _active.depth = depth() + 1
        events.emit(
            events.StepStarted(step=pending.number, name=self.name, time_ns=now)
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        number, start = self._starts.pop()
        _active.depth = depth() - 1
        label = f"end of step {self.name}" if self.name else "end of step"
        try:
            barrier(label, user_site(2))
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"the barrier at the end of the step failed too: {failure}")
        finally:
            events.emit(
                events.StepFinished(
                    step=number,
                    name=self.name,
                    failed=error is not None,
                    duration_ns=time.perf_counter_ns() - start,
                )
            )

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function or a coroutine function.

        Raises:
            UsageError: A generator function: its body runs in pieces, between which the
                caller's ops would belong to no step.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(
            function
        ):
            raise UsageError(
                f"@step() cannot decorate the generator function {function.__qualname__}: its "
                "body runs in pieces. Put `with step():` around the work between two yields."
            )
        name = self.name or function.__qualname__
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                with step(name):
                    return await function(*args, **kwargs)

            return run_async  # type: ignore[return-value]

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with step(name):
                return function(*args, **kwargs)

        return run


def depth() -> int:
    """Return how many steps this thread is in."""
    return getattr(_active, "depth", 0)
