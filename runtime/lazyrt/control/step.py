"""Steps: a block of work that always ends in a barrier, and that nothing may cut."""

from __future__ import annotations

import inspect
import sys
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, get_args, overload

from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from lazyrt.config import config
from lazyrt.control import closures, marks, modes
from lazyrt.control.rollback import (
    OnError,
    Outcome,
    Undo,
    note_optimizer,
    note_update,
    optimizers_of_step,
)
from lazyrt.errors import UsageError
from lazyrt.execution import op_by_op
from lazyrt.execution.cache_miss import hooks
from lazyrt.execution.executor import barrier, pending_roots
from lazyrt.execution.graph import Graph
from lazyrt.execution.graph_registry import check_step_limit, graph_registry
from lazyrt.frontend import guard, optimizer_state
from lazyrt.frontend.provenance import user_site
from lazyrt.frontend.torch_compat import is_lazy
from lazyrt.ir import active
from lazyrt.ir.active import ActiveStep, OnRead
from lazyrt.ir.live import pending
from lazyrt.observe import events

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from lazyrt.observe.events import SourceLocation


P = ParamSpec("P")
R = TypeVar("R")

_UNUSED = (
    "no block was run in it, so it did nothing. Write `with lazyrt.step():` around the work, "
    "or call lazyrt.mark_step() to run what is pending"
)


@dataclass(frozen=True, slots=True, eq=False)
class _Entered:
    active: ActiveStep
    number: int
    start_ns: int


class step:  # noqa: N801 - used like a function: `with step():`, `@step()`, `@step`
    """Run a block, or each call of a function, as one step: it ends in a barrier.

    The barrier comes however the block ends: normally, by `break` or `return`, or by an
    exception, which reaches the caller unchanged. Then the step closures run that were queued
    in it. The same object can be used again.

    What would need a pending value in the middle of the step (`.item()`, `.cpu()`, `if t:`,
    `torch.save`, `mark_step()`, an op whose shape depends on the data, ...) raises
    StepSyncError at its line. Prints and peeks pass, and so do reads of tensors that are
    computed already. A step inside a step ends in a barrier of its own, and what it computed
    can be read; `on_read` is inherited from the step around it, `on_error` is not.

    Args:
        name: Shown in strips and reports.
        step_num: A number of the user's own, for the timeline.
        on_read: `error`, `warn` (StepSyncWarning) or `allow`, which lets a read cut the step.
            None takes that of the step around this one, `error` if there is none.
        on_error: What happens to the step's work when an exception ends it. `flush` runs it.
            `discard` drops what has not run, so that in-place updates do not happen.
            `rollback` also gives every tensor the data of the start, bit by bit, and resets
            random numbers; it keeps all of that data until the end of the step, and runs what
            was pending before the step first. Both restore the state of optimizers that
            stepped. Other changes of Python objects stay. A failing barrier is no case for
            it: it leaves everything pending.
        max_graphs: How many graphs this step of the program, told from others by its name or
            else by its line, may have over all its runs. Each one beyond is logged as a
            warning that lists them all, each with why it was new. None sets no limit.

    Raises:
        UsageError: An argument that is none of these.

    Example:
        >>> import lazyrt, torch
        >>> x = torch.ones(2, device="lazyrt")
        >>> with lazyrt.step("double"):
        ...     y = x * 2
        >>> lazyrt.is_pending(y)
        False
    """

    name: str | None
    step_num: int | None
    on_read: OnRead | None
    on_error: OnError
    max_graphs: int | None
    _function: str
    _entered: list[_Entered]
    # Until __new__ is done: one that was refused needs no warning.
    _is_used: bool = True

    @overload
    def __new__(cls, name: Callable[P, R], /) -> Callable[P, R]: ...  # type: ignore[misc]

    @overload
    def __new__(
        cls,
        name: str | None = None,
        step_num: int | None = None,
        *,
        on_read: OnRead | None = None,
        on_error: OnError = "flush",
        max_graphs: int | None = None,
    ) -> Self: ...

    def __new__(
        cls,
        name: Any = None,
        step_num: int | None = None,
        *,
        on_read: OnRead | None = None,
        on_error: OnError = "flush",
        max_graphs: int | None = None,
    ) -> Any:
        """Return a step, or for `@step` without a call the function that it decorates."""
        if inspect.isroutine(name):
            return cls()(name)
        self = super().__new__(cls)
        if name is not None and not isinstance(name, str):
            raise UsageError(
                f"step() got {name!r} as its name, which is {type(name).__name__}, not text. "
                "Pass a name, or nothing."
            )
        _check_choice("on_read", on_read, (*get_args(OnRead), None))
        _check_choice("on_error", on_error, get_args(OnError))
        if step_num is not None and not hasattr(step_num, "__index__"):
            raise UsageError(
                f"step() got step_num={step_num!r}, which is {type(step_num).__name__}, not a "
                "whole number, so the timeline could not count by it. Pass the loop's number."
            )
        self.name = name
        self.step_num = step_num
        self.on_read = on_read
        self.on_error = on_error
        self.max_graphs = _checked_limit(max_graphs)
        self._function = ""
        self._entered = []
        self._is_used = False
        return self

    def __repr__(self) -> str:
        """Tell whether it was ever entered: as a result of a cell it most likely was not."""
        name = repr(self.name) if self.name else ""
        return f"lazyrt.step({name})" + ("" if self._is_used else f": {_UNUSED}")

    def __del__(self) -> None:
        """Warn of `lazyrt.step()` on a line of its own, which reads like `mark_step()`."""
        if not (self._is_used or sys.is_finalizing()):
            warnings.warn(f"lazyrt.step() was dropped: {_UNUSED}", stacklevel=2)

    def __enter__(self) -> Self:
        self._is_used = True
        active.drop_left()
        op_by_op.begin_step(pending_roots)
        around = active.innermost()
        site = user_site(2)
        opened = ActiveStep(
            name=self.name,
            site=site,
            on_read=self.on_read or (around.on_read if around is not None else "error"),
            function=self._function,
            undo=None if self.on_error == "flush" else Undo(self.on_error, site),
            number=self.step_num,
            block=active.entered_by(sys._getframe(1)),
        )
        now = time.perf_counter_ns()
        self._entered.append(_Entered(opened, pending.number, now))
        active.enter(opened)
        events.emit(
            events.StepStarted(
                step=pending.number,
                name=self.name,
                time_ns=now,
                step_num=self.step_num,
            )
        )
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        entered = self._latest()
        self._entered.remove(entered)
        opened = entered.active
        active.leave(opened)
        outcome: Outcome = "run"
        try:
            if error is None:
                self._finish(opened, user_site(2))
            else:
                outcome = self._recover(opened, error, user_site(2))
        finally:
            if self.max_graphs is not None:
                label = (
                    f"step {self.name!r}" if self.name else f"the step at {opened.site}"
                )
                steps = range(entered.number, pending.number)
                check_step_limit(label, steps, self.max_graphs)
            events.emit(
                events.StepFinished(
                    step=entered.number,
                    name=self.name,
                    failed=error is not None,
                    duration_ns=time.perf_counter_ns() - entered.start_ns,
                    step_num=self.step_num,
                    outcome=outcome,
                    recompiled=graph_registry.reasons(entered.number),
                )
            )

    def _latest(self) -> _Entered:
        """Return what this thread or coroutine entered last: others may share the object."""
        mine = active.steps()
        return next(
            (each for each in reversed(self._entered) if each.active in mine),
            self._entered[-1],
        )

    def _finish(self, opened: ActiveStep, site: SourceLocation | None) -> None:
        if opened.undo is not None:
            opened.undo.forget()
        closures.raise_failure()
        if not guard.interrupts_an_op():
            with closures.wait_for_barrier(opened.closures):
                barrier(self._label, site, ended=opened)
        closures.run(opened.closures)

    def _recover(
        self, opened: ActiveStep, error: BaseException, site: SourceLocation | None
    ) -> Outcome:
        closures.note_dropped(error, opened.closures)
        try:
            if opened.undo is not None:
                outcome: Outcome = opened.undo.apply(self._title, error, site)
                return outcome
            nodes = len(Graph(pending_roots()).nodes)
            label = f"{self._label}, left by {type(error).__name__}"
            if barrier(label, site, ended=opened):
                error.add_note(_committed(self._title, nodes, error))
        except Exception as failure:  # noqa: BLE001 - the user's error goes first
            error.add_note(f"the barrier at the end of the step failed too: {failure}")
        return "run"

    @property
    def _title(self) -> str:
        return f"the step {self.name!r}" if self.name else "the step"

    @property
    def _label(self) -> str:
        return f"end of step {self.name}" if self.name else "end of step"

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function or a coroutine function.

        Raises:
            UsageError: A generator function: its body runs in pieces, between which the
                caller's ops would belong to no step.
        """
        self._is_used = True
        return marks.decorated(function, lambda: self._of(function), "step")

    def _of(self, function: Callable[..., Any]) -> step:
        """Return the step of one call of a decorated function."""
        found = step(
            self.name or function.__qualname__,
            self.step_num,
            on_read=self.on_read,
            on_error=self.on_error,
            max_graphs=self.max_graphs,
        )
        found._function = function.__qualname__
        return found


def _committed(title: str, nodes: int, error: BaseException) -> str:
    """Say what `flush` does to a step that is half built."""
    ops = f"{nodes:,} op" if nodes == 1 else f"{nodes:,} ops"
    return (
        f"{title} ran as far as it was when {type(error).__name__} ended it: {ops}, of which "
        'in-place updates stay. step(on_error="rollback") takes them back'
    )


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise UsageError(
            f"step() got {name}={value!r}, so what it should do is not known. It takes one of "
            f"{', '.join(repr(choice) for choice in choices)}."
        )


def _checked_limit(limit: object) -> int | None:
    if limit is None or (type(limit) is int and limit > 0):
        return limit
    raise UsageError(
        f"step() got max_graphs={limit!r}, which is no number of graphs from 1 on, so no limit "
        "can be watched. Give how many graphs the step needs, or None for no limit."
    )


# ------------------------------------------------- barriers that follow optimizer.step()
# So that a plain PyTorch script needs no marks.


def _before_optimizer_step(
    optimizer: torch.optim.Optimizer, args: Any, kwargs: Any
) -> None:
    if any(step.undo is not None for step in active.steps()):
        note_optimizer(optimizer)
    optimizer_state.begin(optimizer)
    optimizer_state.create_momentum(
        optimizer, has_closure=len(args) > 1 or kwargs.get("closure") is not None
    )


def _after_optimizer_step(
    optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any
) -> None:
    optimizer_state.end()
    note_update(optimizer)
    if not config.barrier_after_optimizer or active.is_inside():
        return
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    if any(map(is_lazy, parameters)):
        marks.mark_quietly("optimizer.step()", user_site(2))


def install() -> None:
    """Let a barrier follow each `optimizer.step()` outside `step()`; note the last barrier."""
    modes.watch_barriers()
    hooks.optimizers = optimizers_of_step
    register_optimizer_step_pre_hook(_before_optimizer_step)
    register_optimizer_step_post_hook(_after_optimizer_step)


def optimizer_step(
    optimizer: torch.optim.Optimizer, *, barrier: bool = False, **kwargs: Any
) -> Any:
    """Call `optimizer.step(**kwargs)` and return its result.

    The name under which scripts for several replicas reduce gradients first; one replica has
    none to reduce.

    Args:
        optimizer: An optimizer of lazy parameters.
        barrier: Whether a barrier follows in any case, as after `mark_step()`. Without it one
            follows outside `step()` if `config.barrier_after_optimizer` is set.
        kwargs: Passed on.

    Raises:
        UsageError: `optimizer` has no `step` method.
        StepSyncError: `barrier` is set inside a `step()` that forbids reads.
    """
    if not callable(getattr(optimizer, "step", None)):
        raise UsageError(
            f"optimizer_step() got {type(optimizer).__name__}, which has no step() method, so "
            "nothing would be updated. Pass a torch.optim optimizer."
        )
    result = optimizer.step(**kwargs)
    if barrier:
        marks.mark_step()
    return result
