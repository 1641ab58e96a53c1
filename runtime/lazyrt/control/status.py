"""The state that decides what a line may do now, made visible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazygraph.numbers import plural, size_text
from lazygraph.readable import Readable
from lazyrt.control import closures
from lazyrt.control.live_tensors import live_tensors
from lazyrt.execution import completion
from lazyrt.execution.executor import pending_roots
from lazyrt.execution.graph import Graph
from lazyrt.execution.kept_steps import KeptValues, kept_values
from lazyrt.ir import active
from lazyrt.ir.live import lock
from lazyrt.ir.node import nbytes_of
from lazyrt.observe import events

if TYPE_CHECKING:
    from lazyrt.observe.events import BarrierFinished, SourceLocation

_last_barrier: BarrierFinished | None = None
_NOTHING_KEPT = KeptValues()


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(Readable):
    """What is open, queued and pending at one moment; holds no tensor.

    Attributes:
        steps: Names of the open steps, the outermost first; empty text for a nameless one.
        scopes: Labels of the open scopes, the outermost first.
        pending_ops: Ops that the next barrier runs.
        pending_bytes: Size of the tensors that it will make.
        pending_from: The line that recorded the first of these ops, None if it is not known.
        live_tensors: Tensors on the device that Python references.
        live_bytes: Their size, pending ones included.
        queued_closures: Step closures that wait for the end of their step.
        async_closures: Asynchronous ones that are due and have not run.
        async_age_ns: For how long the oldest of them has been due.
        in_flight: Executions that the device has not finished.
        last_barrier: The last barrier that ran something, None if none did.
        kept: The finished steps whose values can be computed again (`config.keep_values`).
    """

    steps: tuple[str, ...]
    scopes: tuple[str, ...]
    pending_ops: int
    pending_bytes: int
    pending_from: SourceLocation | None
    live_tensors: int
    live_bytes: int
    queued_closures: int
    async_closures: int
    async_age_ns: int
    in_flight: int
    last_barrier: BarrierFinished | None
    kept: KeptValues = _NOTHING_KEPT

    def __str__(self) -> str:
        """Return what is pending and open, one thing to a line."""
        pending = (
            f"{plural(self.pending_ops, 'pending op')}, {size_text(self.pending_bytes)}"
        )
        if self.pending_from is not None:
            pending += f", from {self.pending_from} on"
        live = (
            f"{plural(self.live_tensors, 'live tensor')}, {size_text(self.live_bytes)}"
        )
        lines = [pending, live]
        lines += [f"open step: {name or 'without a name'}" for name in self.steps]
        lines += [f"open scope: {name}" for name in self.scopes]
        for count, noun in (
            (self.queued_closures, "step closure"),
            (self.async_closures, "asynchronous closure"),
            (self.in_flight, "execution"),
        ):
            if count:
                lines.append(
                    f"{plural(count, noun)} {'under way' if noun == 'execution' else 'waiting'}"
                )
        if self.kept != _NOTHING_KEPT:
            lines.append(f"kept: {self.kept}")
        last = self.last_barrier
        if last is None:
            return "\n".join([*lines, "no barrier so far"])
        where = f" at {last.site}" if last.site is not None else ""
        return "\n".join(
            [*lines, f"last barrier: {plural(last.nodes, 'op')}, {last.cause}{where}"]
        )


def status() -> Status:
    """Return what is open, queued and pending now; looking changes nothing."""
    with lock:
        roots = pending_roots()
        graph = Graph(roots)
        live = live_tensors()
        kept = kept_values()
    sites = (node.provenance.site for node in graph.nodes)
    return Status(
        steps=tuple(step.name or "" for step in active.steps()),
        scopes=tuple(scope.name for scope in active.scopes()),
        pending_ops=len(graph.nodes),
        pending_bytes=sum(map(nbytes_of, graph.roots)),
        pending_from=next((site for site in sites if site is not None), None),
        live_tensors=len(live),
        live_bytes=sum(tensor.nbytes for tensor in live),
        queued_closures=closures.queued(),
        async_closures=closures.asynchronous_depth(),
        async_age_ns=closures.asynchronous_age_ns(),
        in_flight=completion.in_flight(),
        last_barrier=_last_barrier,
        kept=kept,
    )


def install() -> None:
    """Remember the last barrier from now on."""
    events.subscribe(_note, events.BarrierFinished, exact=False)


def _note(event: events.Event) -> None:
    global _last_barrier
    if isinstance(event, events.BarrierFinished) and event.executed:
        _last_barrier = event
