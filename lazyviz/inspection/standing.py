"""How things stand on the lazy device: the runtime's status as the data that is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazyviz.render import text
from lazyviz.render.state import State

if TYPE_CHECKING:
    from types import ModuleType


def state_of(runtime: ModuleType) -> State:
    """Return what is open, queued and pending now; looking changes nothing."""
    status: Any = runtime.status()
    return State(
        mode=_mode(runtime),
        steps=status.steps,
        scopes=status.scopes,
        pending_ops=status.pending_ops,
        pending_bytes=status.pending_bytes,
        pending_from=str(status.pending_from or ""),
        live_tensors=status.live_tensors,
        queued_closures=status.queued_closures,
        async_closures=status.async_closures,
        async_age_ns=status.async_age_ns,
        last_barrier=_barrier_words(status.last_barrier),
    )


def _mode(runtime: ModuleType) -> str:
    mode = getattr(runtime, "mode", None)
    return "lazy" if mode is None else str(mode())


def _barrier_words(barrier: Any) -> str:
    if barrier is None:
        return ""
    tensor = f" of {barrier.tensor}" if barrier.tensor else ""
    where = f" at {barrier.site}" if barrier.site else ""
    return f"{text.plural(barrier.nodes, 'op')}, {barrier.cause}{tensor}{where}"
