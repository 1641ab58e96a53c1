"""What happened when, in the order of its ends: the latest few thousand spans of a session.

Fed with the runtime's events. Holds names and numbers only; older spans give way, and how many
did is known. This module needs `lazyrt` and is imported once the user's program has.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from lazyrt.observe import events
from lazyviz.render import text
from lazyviz.render.spans import CellTime, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MAX_SPANS = 6_000
_MAX_CELLS = 1_000
_MAX_FLYING = 64
# A user who wrote these wanted a barrier; all others come by themselves.
_EXPLICIT = ("mark_step()", "end of ", "sync()", "torch.lazyrt.synchronize()")


class _Flying(NamedTuple):
    key: tuple[str, str, int]
    flow: int
    nodes: int
    cell: int | None


class Timeline:
    """The latest spans and cells of a session.

    Attributes:
        cells: The cells that touched the device, the latest thousand.
        dropped: How many spans have given way to later ones.
    """

    def __init__(self) -> None:
        self.cells: deque[CellTime] = deque(maxlen=_MAX_CELLS)
        self.dropped = 0
        self._spans: deque[Span] = deque(maxlen=_MAX_SPANS)
        self._flying: deque[_Flying] = deque(maxlen=_MAX_FLYING)
        self._flows = 0
        self._step_from_ns = 0
        self._lock = threading.Lock()

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans that are kept, in the order of their ends."""
        with self._lock:
            return tuple(self._spans)

    def begin_cell(self, now_ns: int) -> None:
        """Note that a cell begins: a step that it goes on with is drawn from here."""
        self._step_from_ns = now_ns

    def end_cell(self, cell: CellTime) -> None:
        """Take in a cell that touched the device."""
        self.cells.append(cell)

    def keep(self, span: Span) -> None:
        """Add a span."""
        with self._lock:
            if len(self._spans) == _MAX_SPANS:
                self.dropped += 1
            self._spans.append(span)

    def host(
        self, phase: str, pieces: Sequence[tuple[int, int]], cell: int | None, site: str
    ) -> None:
        """Add what the cell's thread did in some stretches of time."""
        for start, end in pieces:
            self.keep(Span("host", phase, phase, start, end, cell, site))

    def add(self, event: events.Event, now: int, cell: int | None) -> None:
        """Take in one event that came at `now`."""
        take = self._TAKES.get(type(event))
        if take is not None:
            take(self, event, now, cell)

    def _transfer(
        self, event: events.TransferFinished, now: int, cell: int | None
    ) -> None:
        name = f"{text.size(event.nbytes)} {event.direction.replace('_', ' ')}"
        self._keep("transfer", event.direction, name, now, event, cell)

    def _look(
        self, event: events.TensorMaterialised, now: int, cell: int | None
    ) -> None:
        if event.strategy != "memo":
            name = f"look at {event.tensor or 'a tensor'}"
            detail = f"{text.plural(event.nodes, 'op')}, {event.strategy}"
            self._keep("step", "look", name, now, event, cell, detail)

    def _fallback(self, event: events.FallbackUsed, now: int, cell: int | None) -> None:
        name, site = f"{event.op} on the CPU", str(event.site or "")
        self.keep(Span("step", "fallback", name, now, now, cell, site, event.reason))

    def _closure(
        self, event: events.ClosureFinished, now: int, cell: int | None
    ) -> None:
        kind = "asynchronous closure" if event.asynchronous else "closure"
        detail = "failed" if event.failed else ""
        self._keep("step", kind, event.name, now, event, cell, detail)

    def _block(self, event: events.StepFinished, now: int, cell: int | None) -> None:
        name = f"step {event.name or ''}".strip()
        if event.step_num is not None:
            name += f" {event.step_num}"
        self.keep(Span("step", "block", name, now - event.duration_ns, now, cell))

    def _scope(self, event: events.ScopeFinished, now: int, cell: int | None) -> None:
        self._keep("step", "scope", event.path, now, event, cell)

    def _dropped(self, event: events.WorkDropped, now: int, cell: int | None) -> None:
        name = f"{text.plural(event.nodes, 'op')} dropped: {event.cause}"
        site = str(event.site or "")
        self.keep(Span("step", "dropped", name, now, now, cell, site))

    def _keep(
        self,
        lane: str,
        kind: str,
        name: str,
        now: int,
        event: events.TransferFinished
        | events.TensorMaterialised
        | events.ClosureFinished
        | events.ScopeFinished,
        cell: int | None,
        detail: str = "",
    ) -> None:
        start, site = now - event.duration_ns, str(event.site or "")
        self.keep(Span(lane, kind, name, start, now, cell, site, detail))

    def _started(
        self, event: events.ExecuteStarted, _now: int, cell: int | None
    ) -> None:
        self._flows += 1
        key = event.fingerprint, event.purpose, event.step
        self._flying.append(_Flying(key, self._flows, event.nodes, cell))
        name = f"dispatch {text.plural(event.nodes, 'op')}"
        end = event.time_ns + event.dispatch_ns
        self.keep(
            Span("host", "handover", name, event.time_ns, end, cell, flow=self._flows)
        )

    def _finished(
        self, event: events.ExecuteFinished, now: int, _cell: int | None
    ) -> None:
        key = event.fingerprint, event.purpose, event.step
        found = next((each for each in self._flying if each.key == key), None)
        if found is not None:
            self._flying.remove(found)
        nodes = found.nodes if found is not None else 0
        what = "step" if event.purpose == "step" else event.purpose
        name = f"{what} {event.step}" + (
            f", {text.plural(nodes, 'op')}" if nodes else ""
        )
        detail = f"graph {event.fingerprint[:8]}"
        if not event.exact:
            detail += "; its end was noticed late"
        self.keep(
            Span(
                "device",
                event.purpose,
                name,
                now - event.duration_ns,
                now,
                found.cell if found is not None else None,
                detail=detail,
                flow=found.flow if found is not None else 0,
            )
        )

    def _compiled(
        self,
        event: events.LoweringFinished | events.CompileFinished,
        now: int,
        cell: int | None,
    ) -> None:
        ops = text.plural(event.nodes, "op")
        if isinstance(event, events.LoweringFinished):
            kind, name, reason = "lower", f"lower {ops}", ""
        else:
            loaded = event.source == "disk"
            kind = "load" if loaded else "compile"
            name = f"load {ops} from disk" if loaded else f"compile {ops}"
            reason = "" if loaded else event.reason
        if event.purpose != "step":
            name += f" ({event.purpose})"
        detail = reason or f"graph {event.fingerprint[:8]}"
        start = now - event.duration_ns
        self.keep(Span("compile", kind, name, start, now, cell, detail=detail))

    def _barrier(
        self, event: events.BarrierFinished, now: int, cell: int | None
    ) -> None:
        if not event.executed:
            return
        site = str(event.site or "")
        cause = f"{event.cause} of {event.tensor}" if event.tensor else event.cause
        detail = text.plural(event.nodes, "op")
        if event.site is not None and event.caller is not None:
            detail += f", {event.site.function} called back by {event.caller}"
        if event.cut is not None:
            detail += f", cut the step {event.cut}".rstrip()
        start = self._step_from_ns or now - event.duration_ns
        ended = f"step {event.step}: {cause}"
        self.keep(Span("step", "run", ended, start, now, cell, site, detail))
        self._step_from_ns = now
        kind = "barrier" if event.cause.startswith(_EXPLICIT) else "implicit barrier"
        self.keep(Span("step", kind, cause, now, now, cell, site, detail))

    # By kind, since a loop of short steps has thousands of events a second.
    _TAKES: ClassVar[dict[type[events.Event], Callable[..., None]]] = {
        events.ExecuteStarted: _started,
        events.ExecuteFinished: _finished,
        events.LoweringFinished: _compiled,
        events.CompileFinished: _compiled,
        events.TransferFinished: _transfer,
        events.BarrierFinished: _barrier,
        events.TensorMaterialised: _look,
        events.FallbackUsed: _fallback,
        events.ClosureFinished: _closure,
        events.StepFinished: _block,
        events.ScopeFinished: _scope,
        events.WorkDropped: _dropped,
    }
