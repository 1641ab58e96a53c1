"""The host's time while a profile is taken: phases, steps, and the lines that waited.

The runtime tells of each pause between two ops, with both ends exact and samples of the lines that
the program was at. What the runtime's own events cover (barriers, waits, transfers, compiles) is
taken out of a pause; the rest is the program's own time, a gap.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from lazyrt.observe import events
from lazyviz.render import text
from lazyviz.timing.ledger import Ledger, Quiet
from lazyviz.timing.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lazyrt.observe.events import SourceLocation
    from lazyrt.tools import Pause

MIN_GAP_NS = 1_000_000
_NOWHERE = ("", 0, "")
Interval = tuple[int, int]


class Noted(NamedTuple):
    """An event as it came."""

    event: Any
    now_ns: int
    thread: int


class Stretch(NamedTuple):
    """What the thread did for a while.

    Attributes:
        phase: One of the ledger's phases.
        start_ns, end_ns: When.
        site: The user's line, if it is known.
    """

    phase: str
    start_ns: int
    end_ns: int
    site: SourceLocation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A stretch in which the program waited or computed elsewhere, at one of its lines.

    Attributes:
        start_ns, duration_ns: When, of `time.perf_counter_ns`, and how long.
        file, line, function: The user's line that waited; empty and 0 if it is not known.
        cell: Execution count of its notebook cell, None outside notebooks.
        idle_ns: The part in which the device had nothing to do either.
        step: Number of the step that was being recorded; None after the last barrier.
        sentence: All of it in words, and what would close the gap.
        is_sampled: Whether the line was seen in this very gap, not in others at its place.
    """

    start_ns: int
    duration_ns: int
    file: str
    line: int
    function: str
    cell: int | None = None
    idle_ns: int = 0
    step: int | None = None
    sentence: str = ""
    is_sampled: bool = True

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self.start_ns + self.duration_ns

    @property
    def at(self) -> str:
        """Its line in short, such as `train.py:41`."""
        return place(self.file, self.line, self.cell)


def place(file: str, line: int, cell: int | None = None) -> str:
    """Return a line in short; empty if it is not known."""
    if not file:
        return ""
    if cell is not None:
        return f"cell {cell} line {line}"
    return f"{file.rsplit('/', 1)[-1]}:{line}"


@dataclass(slots=True)
class HostTime:
    """What a thread did while it was profiled.

    Attributes:
        stretches: In order of time; what lies between them is recording.
        parts: Nanoseconds of each phase, which add up to the whole.
    """

    stretches: list[Stretch] = field(default_factory=list)
    parts: dict[str, int] = field(default_factory=dict)


def host_time(
    noted: Iterable[Noted],
    pauses: Sequence[Pause],
    thread: int,
    start_ns: int,
    end_ns: int,
) -> HostTime:
    """Add up what a thread did.

    Args:
        noted: The runtime's events, in order.
        pauses: Its pauses, in order.
        thread: Identity of the thread.
        start_ns: When the profile began.
        end_ns: When it ended.
    """
    found = HostTime()
    current: list[SourceLocation | None] = [None]

    def told(phase: str, pieces: list[Interval], _site: str) -> None:
        for start, end in pieces:
            found.stretches.append(Stretch(phase, start, end, current[0]))

    tally = Tally(ledger=Ledger(start_ns), thread=thread, told=told)
    for one in _merged(noted, pauses):
        if isinstance(one, Noted):
            current[0] = getattr(one.event, "site", None)
            tally.add(one.event, one.now_ns, one.thread)
            continue
        for run in one:
            current[0] = run.site
            tally.add(Quiet(run.start_ns, run.end_ns, run.site), run.end_ns, thread)
    found.stretches.sort(key=lambda each: each.start_ns)
    found.parts = tally.ledger.parts(end_ns)
    return found


def _merged(
    noted: Iterable[Noted], pauses: Sequence[Pause]
) -> Iterator[Noted | list[Stretch]]:
    """Yield events and pauses in order of their ends; a pause as runs of lines."""
    usual = _usual_runs(pauses)
    waiting = [
        (pause.end_ns, lines_of(pause, usual))
        for pause in pauses
        if not pause.is_recording
    ]
    waiting.reverse()
    for one in noted:
        while waiting and waiting[-1][0] <= one.now_ns:
            yield waiting.pop()[1]
        yield one
    while waiting:
        yield waiting.pop()[1]


_Place = tuple[Any, ...]


def _usual_runs(pauses: Sequence[Pause]) -> dict[_Place, SourceLocation]:
    """Return the line that most often waited before an op, by the lines that recorded the op."""
    seen: dict[_Place, Counter[SourceLocation]] = defaultdict(Counter)
    for pause in pauses:
        for sample in pause.samples:
            if sample.lines:
                seen[pause.after][sample.lines[0]] += 1
    return {after: lines.most_common(1)[0][0] for after, lines in seen.items()}


def lines_of(pause: Pause, usual: dict[_Place, SourceLocation]) -> list[Stretch]:
    """Return the lines that a pause was spent at, each with its part of it.

    A sample stands for the time since the one before. Lines that were at work for less than a
    millisecond each, such as those of a loop in Python, count together, for the most frequent one.
    """
    runs: list[Stretch] = []
    since = pause.start_ns
    for k, sample in enumerate(pause.samples):
        site = sample.lines[0] if sample.lines else None
        until = sample.time_ns
        if k + 1 < len(pause.samples):
            until = (sample.time_ns + pause.samples[k + 1].time_ns) // 2
        else:
            until = pause.end_ns
        if runs and runs[-1].site == site:
            runs[-1] = runs[-1]._replace(end_ns=until)
        else:
            runs.append(Stretch("python", since, until, site))
        since = until
    if not runs:
        site = usual.get(pause.after) or next(iter(pause.after), None)
        return [Stretch("python", pause.start_ns, pause.end_ns, site)]
    return _merge_short(runs)


def _merge_short(runs: list[Stretch]) -> list[Stretch]:
    """Join runs of less than a millisecond with those beside them."""
    found: list[Stretch] = []
    mixed: list[Stretch] = []
    for run in runs:
        if run.end_ns - run.start_ns >= MIN_GAP_NS:
            found += [*_together(mixed), run]
            mixed = []
        else:
            mixed.append(run)
    found += _together(mixed)
    joined: list[Stretch] = []
    for run in found:
        is_short = run.end_ns - run.start_ns < MIN_GAP_NS
        if joined and (is_short or joined[-1].site == run.site):
            joined[-1] = joined[-1]._replace(end_ns=run.end_ns)
        elif joined and joined[-1].end_ns - joined[-1].start_ns < MIN_GAP_NS:
            joined[-1] = run._replace(start_ns=joined[-1].start_ns)
        else:
            joined.append(run)
    return joined


def _together(runs: list[Stretch]) -> list[Stretch]:
    if not runs:
        return []
    weights: Counter[SourceLocation | None] = Counter()
    for run in runs:
        weights[run.site] += run.end_ns - run.start_ns
    return [
        Stretch(
            "python", runs[0].start_ns, runs[-1].end_ns, weights.most_common(1)[0][0]
        )
    ]


# -------------------------------------------------------------------------------- steps


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One step: what was recorded up to a barrier, and its execution.

    Attributes:
        number: The runtime's number of the step.
        name, step_num: Of the `step()` block that it ran in; empty and None without one.
        cause: What asked for the barrier, such as `mark_step()`.
        file, line: Where.
        start_ns, duration_ns: From the end of the step before to the end of its barrier.
        parts: Nanoseconds of each phase of the host, which add up to the duration.
        nodes: Ops that ran.
        device_ns: How long the device worked at this step's graph.
        busy_ns: How long it worked at anything in the time of this step.
        overlap_ns: How long it worked while the host did not wait for it.
        compiled: Why its graph was compiled; empty if it was not.
    """

    number: int
    name: str = ""
    step_num: int | None = None
    cause: str = ""
    file: str = ""
    line: int = 0
    start_ns: int = 0
    duration_ns: int = 0
    parts: dict[str, int] = field(default_factory=dict)
    nodes: int = 0
    device_ns: int = 0
    busy_ns: int = 0
    overlap_ns: int = 0
    compiled: str = ""

    @property
    def end_ns(self) -> int:
        """When its barrier ended."""
        return self.start_ns + self.duration_ns

    @property
    def idle_ns(self) -> int:
        """How long the device had nothing to do in its time."""
        return self.duration_ns - self.busy_ns

    @property
    def duty_cycle(self) -> float:
        """The part of its time in which the device worked, from 0 to 1."""
        return self.busy_ns / self.duration_ns if self.duration_ns else 0.0

    @property
    def overlap(self) -> float:
        """The part of the device's work during which the host did something else than wait."""
        return self.overlap_ns / self.busy_ns if self.busy_ns else 0.0


def overlap_ns(intervals: Sequence[Interval], start: int, end: int) -> int:
    """Return how much of a stretch some intervals cover; they are disjoint."""
    return sum(max(0, min(b, end) - max(a, start)) for a, b in intervals)


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the stretches that at least one interval covers, in order."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif end > start:
            found.append((start, end))
    return found


def step_times(
    noted: Sequence[Noted],
    host: HostTime,
    busy: Sequence[Interval],
    by_step: dict[int, int],
    start_ns: int,
) -> list[StepTime]:
    """Return the steps that ended while the profile was taken, in order.

    Args:
        noted: The runtime's events.
        host: What the thread did.
        busy: When the device worked, disjoint and in order.
        by_step: Nanoseconds of the device by step.
        start_ns: When the profile began.
    """
    found: list[StepTime] = []
    reasons: dict[int, str] = {}
    block: events.StepStarted | None = None
    waits = union(
        (s.start_ns, s.end_ns)
        for s in host.stretches
        if s.phase in {"execute", "dispatch"}
    )
    last = running = 0
    since = start_ns
    for event, now, _ in noted:
        if isinstance(event, events.StepStarted):
            block = event
        elif isinstance(event, events.StepFinished):
            block = None
        elif isinstance(event, events.ExecuteStarted) and event.purpose == "step":
            running = event.step
        elif isinstance(event, events.CompileFinished) and event.purpose == "step":
            reasons[last] = event.reason or f"read from {event.source}"
        if not isinstance(event, events.BarrierFinished) or not event.executed:
            continue
        site = event.site
        both = sum(
            overlap_ns(busy, max(a, since), min(b, now))
            for a, b in waits
            if a < now and b > since
        )
        working = overlap_ns(busy, since, now)
        found.append(
            StepTime(
                number=running or event.step,
                name=(block.name or "") if block is not None else "",
                step_num=block.step_num if block is not None else None,
                cause=event.cause,
                file=site.file if site is not None else "",
                line=site.line if site is not None else 0,
                start_ns=since,
                duration_ns=now - since,
                parts=_parts(host, since, now),
                nodes=event.nodes,
                device_ns=by_step.get(running or event.step, 0),
                busy_ns=working,
                overlap_ns=working - both,
                compiled=reasons.pop(last, ""),
            )
        )
        since = now
    return found


def _parts(host: HostTime, start: int, end: int) -> dict[str, int]:
    parts: Counter[str] = Counter()
    for each in host.stretches:
        inside = min(each.end_ns, end) - max(each.start_ns, start)
        if inside > 0:
            parts[each.phase] += inside
    parts["trace"] += end - start - sum(parts.values())
    return {phase: ns for phase, ns in parts.items() if ns > 0}


def gaps_of(
    host: HostTime, busy: Sequence[Interval], steps: Sequence[StepTime]
) -> list[Gap]:
    """Return the stretches of the program's own time, with the line that waited."""
    found = []
    for each in host.stretches:
        length = each.end_ns - each.start_ns
        if each.phase != "python" or length < MIN_GAP_NS:
            continue
        site = each.site
        file, line, function = (
            (site.file, site.line, site.function) if site is not None else _NOWHERE
        )
        step = next((s.number for s in steps if s.end_ns >= each.end_ns), None)
        gap = Gap(
            start_ns=each.start_ns,
            duration_ns=length,
            file=file,
            line=line,
            function=function,
            cell=site.cell if site is not None else None,
            idle_ns=length - overlap_ns(busy, each.start_ns, each.end_ns),
            step=step,
        )
        found.append(_with_sentence(gap))
    return found


def _with_sentence(gap: Gap) -> Gap:
    at = gap.at or "a line that is not known"
    words = (
        f"{at} waits {text.duration(gap.duration_ns)} and records nothing; "
        f"the device is idle for {text.duration(gap.idle_ns)} of it."
    )
    return replace(gap, sentence=words)
