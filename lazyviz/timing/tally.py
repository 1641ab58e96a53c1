"""What happened in one cell, added up from the runtime's events as they arrive.

A training loop in one cell emits millions of events, so nothing is kept but sums and the
few facts that the cell's strip names. This module needs `lazyrt` and is imported once the
user's program has imported it.
"""

from __future__ import annotations

import operator
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from lazyrt.observe import events
from lazyviz.draw.panel import statistics_text
from lazyviz.render.notes import (
    Apart,
    Barrier,
    CompiledBreak,
    Fallback,
    Left,
    Looked,
    Redundant,
    SingleOps,
    is_check,
    looked_again,
)
from lazyviz.render.strip import Strip
from lazyviz.timing.ledger import Ledger, Piece, Quiet

if TYPE_CHECKING:
    from collections.abc import Callable

    Told = events.Event | Quiet

_MAX_REASONS = 8
_MAX_FRAMES = 8
_MAX_EXECUTIONS = 16
_MIN_EMPTY = 2
_MAX_LOWERED = 8
_MIN_LOOKED = 100
_MIN_APART = 4
_SMALL_READ = 8  # nodes: a training step's loss is read after more
_MAX_PRINTS = 4
_MAX_APART = 1_000
# Waits for a compile on behalf of these are part of showing a value.
_LOOKS = ("peek", "op")

# Nothing that the cell itself caused at that moment.
_UNSEEN = (events.ExecuteFinished, events.FrameCompiled, Quiet)
# What says on whose behalf something was done.
_MARKS: dict[type[Any], Callable[[Any], str]] = {
    kind: operator.attrgetter(name)
    for kind in events.Event.__subclasses__()
    for name in ("purpose", "mode")
    if name in kind.__annotations__
}

_BarrierKey = tuple[str, str, str, str | None]


def printed_text(event: events.TensorPrinted) -> str:
    """Return what was printed, its statistics first, then what it is."""
    plan = event.plan.removeprefix("<lazyrt ").removesuffix(">")
    kind, _, plan = plan.partition(", ")
    shown = statistics_text(event) if event.is_whole else kind
    where = f" at {event.site}" if event.site is not None else ""
    return f"printed{where}: {shown}; {plan}"


@dataclass(slots=True)
class Tally:
    """Running sums over one cell's events, which are added in the order in which they came.

    Attributes:
        seen: How many events there were that the cell itself caused.
        executed_barriers: Barriers that ran something, so that what was pending before the
            cell no longer is.
        ledger: Where the time of the cell's own thread went.
        told: Called with a phase, the stretches of that thread's time that are its own, and
            the user's line.
        single_mode: `eager` or `op by op` once ops ran one by one, or eager debug mode found
            a barrier with nothing to do.
        own_ns: What listening took from the cell's own thread.
        largest: Ops and number of the largest step that ran, the latest of equal ones.
        new_steps: Steps whose graph had no executable in memory.
        ended: Called where the device ends what the cell has begun after the cell's end.
    """

    seen: int = 0
    compiles: int = 0
    loads: int = 0
    load_ns: int = 0
    executions: int = 0
    execute_ns: int = 0
    finished: int = 0
    cache_hits: int = 0
    peeks: int = 0
    peek_ns: int = 0
    transfers: int = 0
    transfer_ns: int = 0
    steps: int = 0
    executed_barriers: int = 0
    single_mode: str = ""
    single_ops: int = 0
    single_hits: int = 0
    single_repeats: int = 0
    single_ns: int = 0
    idle_barriers: int = 0
    own_ns: int = 0
    frames: int = 0
    frames_again: int = 0
    frames_ns: int = 0
    largest: tuple[int, int] | None = None
    compiling: Ledger = field(default_factory=lambda: Ledger(0))
    ledger: Ledger = field(default_factory=lambda: Ledger(time.perf_counter_ns()))
    told: Callable[[str, list[Piece], str], None] = lambda *_: None
    reasons: dict[str, None] = field(default_factory=dict)
    new_steps: list[int] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)
    ended: Callable[[], object] = lambda: None
    # End of a read's barrier or computation: until the value is copied, the host waits.
    _awaited_since: int | None = None
    _lowered: deque[Piece] = field(default_factory=lambda: deque(maxlen=_MAX_LOWERED))
    _awaits_peek: bool = False
    _executed: deque[tuple[int, int]] = field(
        default_factory=lambda: deque(maxlen=_MAX_EXECUTIONS)
    )
    _barriers: dict[_BarrierKey, list[int]] = field(default_factory=dict)
    _repeats: dict[tuple[str, str], Looked] = field(default_factory=dict)
    _empty: Counter[tuple[str, str]] = field(default_factory=Counter)
    _left: list[Left] = field(default_factory=list)
    _looks: list[Looked] = field(default_factory=list)
    prints: list[str] = field(default_factory=list)
    more_prints: int = 0
    _peeked: list[str] = field(default_factory=list)
    _read: list[str] = field(default_factory=list)
    # When the event that is being added came, and from which thread.
    _now: int = 0
    _thread: int = 0
    _most_apart: list[str] = field(default_factory=list)
    _fallbacks: Counter[tuple[str, str]] = field(default_factory=Counter)
    _frames: list[events.FrameCompiled] = field(default_factory=list)
    _code_breaks: Counter[tuple[str, str]] = field(default_factory=Counter)
    _swaps: list[events.BuildSwapped] = field(default_factory=list)
    _fast_builds: dict[int, None] = field(default_factory=dict)

    @property
    def running(self) -> int:
        """Executions of this cell that the device has not finished."""
        return max(0, self.executions - self.finished)

    @property
    def barriers(self) -> tuple[Barrier, ...]:
        """One entry for each cause and place, in order of the first."""
        return tuple(
            Barrier(
                cause=cause,
                site=site,
                nodes=nodes,
                times=times,
                tensor=tensor,
                cut=cut,
                duration_ns=duration,
            )
            for (cause, site, tensor, cut), (
                times,
                nodes,
                duration,
            ) in self._barriers.items()
        )

    @property
    def apart(self) -> Apart | None:
        """The longest row of values that were read one by one, None for a short one."""
        self._note_apart(self._peeked)
        row = self._most_apart
        if len(row) < _MIN_APART:
            return None
        return Apart(tensors=tuple(row))

    @property
    def redundant(self) -> tuple[Redundant, ...]:
        """Written marks that found nothing to run, again and again."""
        ran = [(cause, site) for cause, site, _, cut in self._barriers if cut is None]
        return tuple(
            Redundant(
                cause=cause,
                site=site,
                times=times,
                before=f"{ran[-1][0]} at {ran[-1][1]}",
            )
            for (cause, site), times in self._empty.items()
            if times >= _MIN_EMPTY and ran and (cause, site) not in ran
        )

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """One entry for each op and place, in order of the first."""
        return tuple(
            Fallback(op=op, site=site, times=times)
            for (op, site), times in self._fallbacks.items()
        )

    @property
    def singles(self) -> SingleOps | None:
        """What ran one by one; None when nothing did."""
        if not self.single_mode:
            return None
        return SingleOps(
            mode=self.single_mode,
            ops=self.single_ops,
            cache_hits=self.single_hits,
            repeats=self.single_repeats,
            run_ns=self.single_ns,
            idle_barriers=self.idle_barriers,
        )

    def strip(self) -> Strip:
        """Return the figures as a strip that knows neither the graph nor the cell's end."""
        alike = (each.name for each in fields(Strip) if hasattr(self, each.name))
        found: dict[str, Any] = {name: getattr(self, name) for name in alike}
        found |= {name: tuple(found[name]) for name in ("reasons", "prints")}
        return Strip(
            **found,
            compile_ns=self.compiling.claimed_ns,
            frames_shown=tuple(self._frames),
            code_breaks=tuple(
                CompiledBreak(reason=reason, site=site, times=times)
                for (reason, site), times in self._code_breaks.items()
            ),
            swaps=tuple(self._swaps),
            fast_builds=tuple(self._fast_builds)[:_MAX_REASONS],
            left=tuple(self._left),
            looks=(*self._repeats.values(), *self._looks),
        )

    def add(
        self, event: Told, now: int | None = None, thread: int | None = None
    ) -> None:
        """Count one event; without a time and a thread it came now, on this thread."""
        kind = type(event)
        mark = _MARKS.get(kind)
        if mark is not None and mark(event) == "background":
            return  # a background flush's work, which the cell did not ask for
        if kind not in _UNSEEN:
            self.seen += 1
        count = self._COUNTS.get(kind)
        if count is not None:
            self._now = time.perf_counter_ns() if now is None else now
            self._thread = threading.get_ident() if thread is None else thread
            count(self, event)

    def _started(self, event: events.ExecuteStarted) -> None:
        self.executions += event.purpose == "step"

    def _finished(self, event: events.ExecuteFinished) -> None:
        if event.purpose == "step":
            self.finished += 1
            self.execute_ns += event.duration_ns
            end = self._now
            self._executed.append((end - event.duration_ns, end))

    def _hit(self, _event: events.CacheHit) -> None:
        self.cache_hits += 1

    def _captured(self, event: events.GraphCaptured) -> None:
        if not event.cache_hit and len(self.new_steps) < _MAX_REASONS:
            self.new_steps.append(event.step)

    def _compile(self, event: events.CompileFinished) -> None:
        if event.purpose == "step" and event.tier == "fast":
            self._fast_builds[event.nodes] = None
        if event.purpose == "step" and event.source == "disk":
            self.loads += 1
            self.load_ns += event.duration_ns
        elif event.purpose == "step":
            self.compiles += 1
            self._compiled(event.duration_ns)
            if event.reason and len(self.reasons) < _MAX_REASONS:
                self.reasons[event.reason] = None
        elif event.purpose in {"eager", "op by op"} and event.source == "xla":
            self._compiled(event.duration_ns)

    def _materialised(self, event: events.TensorMaterialised) -> None:
        duration = event.duration_ns
        self._awaited_since = self._spend("peek", duration, event.site)
        # A value that an earlier peek or a barrier computed costs only its copy.
        self._awaits_peek = event.strategy in {"slice", "op by op", "reuse"}
        self.peeks += self._awaits_peek
        self.peek_ns += self._without_executions(self._now - duration, self._now)
        self._look(event)

    def _printed(self, event: events.TensorPrinted) -> None:
        if len(self.prints) < _MAX_PRINTS:
            self.prints.append(printed_text(event))
        else:
            self.more_prints += 1

    def _fallback(self, event: events.FallbackUsed) -> None:
        self._fallbacks[event.op, str(event.site or "")] += 1

    def _fell_back(self, event: events.FallbackFinished) -> None:
        self._spend("fallback", event.duration_ns, event.site)

    def _frame(self, event: events.FrameCompiled) -> None:
        self.frames += event.failed is None
        self.frames_again += event.guard is not None
        self.frames_ns += event.duration_ns
        if len(self._frames) < _MAX_FRAMES:
            self._frames.append(event)
        if event.graph_break is not None:
            broken = event.graph_break
            self._code_breaks.setdefault((broken.reason, str(broken.site or "")), 0)
        self._spend("dynamo", event.duration_ns, event.site)

    def _code_break(self, event: events.GraphBreakReached) -> None:
        self._code_breaks[event.reason, str(event.site or "")] += 1

    def _step(self, _event: events.StepFinished) -> None:
        self.steps += 1

    def _work_left(self, event: events.WorkLeft) -> None:
        site = str(event.site or "")
        self._left.append(Left(nodes=event.nodes, nbytes=event.nbytes, site=site))

    def _dropped(self, _event: events.WorkDropped) -> None:
        self._left.clear()

    def _single(self, event: events.OpExecuted) -> None:
        self.single_mode = event.mode
        self.single_ops += 1
        self.single_hits += event.cache_hit
        self.single_repeats += event.times > 1
        self.single_ns += event.dispatch_ns
        self._spend("dispatch", event.dispatch_ns)

    def _compiled(self, duration_ns: int) -> None:
        self.compiling.add("compile", self._now - duration_ns, self._now)

    def _swapped(self, event: events.BuildSwapped) -> None:
        if len(self._swaps) < _MAX_REASONS:
            self._swaps.append(event)

    def _lower(self, event: events.LoweringFinished) -> None:
        if event.purpose == "tier up":  # nobody waited for it
            return
        self._lowered.append((self._now - event.duration_ns, self._now))
        if event.purpose == "step":
            self._compiled(event.duration_ns)

    def _wait(self, event: events.WaitFinished) -> None:
        if event.phase == "execute":
            self._spend("execute", event.duration_ns)
            return
        looks = event.purpose in _LOOKS
        end = self._now
        since = end - event.duration_ns
        while self._lowered:  # by a worker, while this thread waited for it
            start, done = self._lowered.popleft()
            if self._thread == self.thread and not looks:
                self._claim("lower", max(start, since), min(done, end), "")
        self._spend("peek" if looks else "compile", event.duration_ns)

    def _transfer(self, event: events.TransferFinished) -> None:
        self.transfers += 1
        self.transfer_ns += event.duration_ns
        end = self._spend("transfer", event.duration_ns, event.site)
        since, self._awaited_since = self._awaited_since, None
        if event.direction == "to_host" and end is not None and since is not None:
            copy = end - event.duration_ns
            self._claim("execute", since, copy, str(event.site or ""))
            if self._awaits_peek:
                self.peek_ns += self._without_executions(since, copy)
        self._awaits_peek = False

    def _without_executions(self, start_ns: int, end_ns: int) -> int:
        """Return the part of a peek's time in which no step kept the device busy."""
        waited = (
            max(0, min(end_ns, end) - max(start_ns, start))
            for start, end in self._executed
        )
        return max(0, end_ns - start_ns - sum(waited))

    def _look(self, event: events.TensorMaterialised) -> None:
        if event.strategy == "memo":
            return
        site = str(event.site or "")
        if event.nodes >= _MIN_LOOKED:
            took = event.duration_ns
            self._looks.append(
                Looked(
                    tensor=event.tensor, site=site, nodes=event.nodes, duration_ns=took
                )
            )
        if len(self._peeked) < _MAX_APART and event.site and not is_check(event.tensor):
            self._peeked.append(event.tensor)  # an op of a graph has no line

    def _note_apart(self, row: list[str]) -> None:
        if len(row) > len(self._most_apart):
            self._most_apart = list(row)
        del row[_MAX_APART:]

    def _barrier(self, event: events.BarrierFinished) -> None:
        if event.eager and not event.executed:
            self.single_mode = "eager"
            self.idle_barriers += 1
            return
        end = self._spend("dispatch", event.duration_ns, event.site)
        self._awaited_since = end if event.cause.startswith("read") else None
        site = str(event.site or "")
        if not event.executed:
            if event.cause == "mark_step()":
                self._empty[event.cause, site] += 1
            return
        self.executed_barriers += 1
        self.largest = max(self.largest or (0, 0), (event.nodes, event.step))
        self._left.clear()
        self._looks.clear()  # the barrier's repeats tell of them
        self._note_apart(self._peeked)
        self._peeked = []
        if self._awaited_since is not None and event.nodes <= _SMALL_READ:
            self._read.append(event.tensor)
            self._note_apart(self._read)
        else:
            self._read = []
        tensor = event.tensor if event.cut is not None else ""
        key = event.cause, site, tensor, event.cut
        entry = self._barriers.setdefault(key, [0, 0, 0])
        entry[0] += 1
        entry[1] += event.nodes
        entry[2] += event.duration_ns if event.cut is not None else 0
        for repeat in event.repeats:
            look = repeat.tensor, str(repeat.site or "")
            self._repeats[look] = looked_again(repeat, self._repeats.get(look))

    def _quiet(self, event: Quiet) -> None:
        self._claim("python", event.start_ns, event.end_ns, str(event.site or ""))

    def _spend(
        self, phase: str, duration_ns: int, site: events.SourceLocation | None = None
    ) -> int | None:
        """Count time up to now; return now, or None on a thread that is not the cell's."""
        if self._thread != self.thread:
            return None
        end = self._now
        self._claim(phase, end - duration_ns, end, str(site or ""))
        return end

    def _claim(self, phase: str, start_ns: int, end_ns: int, site: str) -> None:
        pieces = self.ledger.add(phase, start_ns, end_ns)
        if pieces:
            self.told(phase, pieces, site)

    # By kind, since a loop of short steps has thousands of events a second.
    _COUNTS: ClassVar[dict[type[Any], Callable[..., None]]] = {
        events.ExecuteStarted: _started,
        events.ExecuteFinished: _finished,
        events.CacheHit: _hit,
        events.GraphCaptured: _captured,
        events.LoweringFinished: _lower,
        events.WaitFinished: _wait,
        events.CompileFinished: _compile,
        events.BuildSwapped: _swapped,
        events.TensorMaterialised: _materialised,
        events.TensorPrinted: _printed,
        events.TransferFinished: _transfer,
        events.FallbackUsed: _fallback,
        events.FallbackFinished: _fell_back,
        events.OpExecuted: _single,
        events.BarrierFinished: _barrier,
        events.FrameCompiled: _frame,
        events.GraphBreakReached: _code_break,
        events.StepFinished: _step,
        events.WorkLeft: _work_left,
        events.WorkDropped: _dropped,
        Quiet: _quiet,
    }
