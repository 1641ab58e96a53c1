"""The top level of `torch_xla` over lazyrt: devices, steps, compiled functions."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import lazyrt
from lazyrt.compat import _XLAC, common
from lazyrt.compat import xla_model as _xm
from lazyrt.compat.common import Block, of_replicas, only_one, refuse
from lazyrt.control.modes import in_mode
from lazyrt.errors import TooManyGraphsError
from lazyrt.observe import events

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Sequence

    import torch

    from lazyrt.ir.active import OnRead

__all__ = [
    "_XLAC", "compile", "device", "device_count", "devices", "launch", "manual_seed", "real_devices",
    "step", "sync",
]  # fmt: skip

REFUSED: dict[str, str] = {}
__getattr__ = refuse("torch_xla", REFUSED)


@of_replicas
def device(index: int | None = None) -> torch.device:
    """Return the lazy device; `index` is None or 0."""
    only_one("device()", "index", index, allowed=0)
    common.take_switches()
    return lazyrt.device()


@of_replicas
def devices() -> list[torch.device]:
    """Return the one device in a list."""
    return [lazyrt.device()]


@of_replicas
def device_count() -> int:
    """Return 1."""
    return 1


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Run everything pending, then the step closures; see `xm.mark_step`."""
    _xm.mark_step(wait=wait, reset_scope=reset_scope)


# Equal by another name.
real_devices = _xm.xla_real_devices
manual_seed = _xm.set_rng_state


@of_replicas
def launch(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> None:
    """Call `fn(ordinal, *args)` in this process; a launcher starts the others."""
    fn(common.ordinal(), *args)


def step() -> Compiled:
    """Return `compile()`: a block, or each call of a function, as one step.

    Reads inside are allowed, as in the original, and cut the step; `lazyrt.step()` refuses
    them at their line.
    """
    return Compiled()


def compile(  # noqa: A001 - the original's name
    f: Callable[..., Any] | None = None,
    full_graph: bool = False,
    name: str | None = None,
    max_different_graphs: int | None = None,
) -> Any:
    """Run a block, or each call of a function or module, as one step.

    Args:
        f: A function or module; left out, the result is a context manager and decorator.
        full_graph: Whether a read inside is an error, at its line.
        name: For strips and reports; by default that of `f`.
        max_different_graphs: How many graphs the calls may have in all.

    Raises:
        TooManyGraphsError: A call had one graph more; it has run.
        StepSyncError: A read with `full_graph`.
    """
    compiled = Compiled(name, full_graph=full_graph, max_graphs=max_different_graphs)
    return compiled if f is None else compiled(f)


class Compiled(Block):
    """A block that is one step; also a decorator. See `compile`."""

    def __init__(
        self,
        name: str | None = None,
        *,
        full_graph: bool = False,
        max_graphs: int | None = None,
    ) -> None:
        self._name = name
        self._full_graph = full_graph
        self._max_graphs = max_graphs
        self._graphs: set[str] = set()

    def _enter(self, stack: contextlib.ExitStack) -> None:
        lazyrt.mark_step()  # what is pending is none of this block's work
        on_read: OnRead = "error" if self._full_graph else "allow"
        if self._max_graphs is not None:
            stack.enter_context(events.subscribe(self._note, events.GraphCaptured))
        stack.enter_context(in_mode("lazy"))
        stack.enter_context(lazyrt.step(self._name, on_read=on_read))

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        found, most = len(self._graphs), self._max_graphs
        if raised[0] is None and most is not None and found > most:
            raise TooManyGraphsError(
                f"{self._name or 'the block'} has run {found} different graphs, and "
                f"max_different_graphs={self._max_graphs} allows no more. Something varies "
                "between its calls, such as a shape; `%lazy why` names it."
            )

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function or module; each call is a step."""
        if self._name is None:
            self._name = getattr(function, "__name__", type(function).__name__)

        @functools.wraps(function, updated=())
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return run

    def _note(self, event: events.Event) -> None:
        if isinstance(event, events.GraphCaptured):
            self._graphs.add(event.fingerprint)
