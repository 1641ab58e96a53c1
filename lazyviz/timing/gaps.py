"""The host's time while a profile is taken: phases, steps, and the lines that waited.

The runtime tells of each pause between two ops, with both ends exact and samples of the lines that
the program was at. What the runtime's own events cover (barriers, waits, transfers, compiles) is
taken out of a pause; the rest is the program's own time, a gap.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import heapq
import itertools
import threading
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from lazyrt.observe import events
from lazyviz.render import text
from lazyviz.render.timeline_text import overlap_ns, union, within
from lazyviz.timing.ledger import Ledger, Quiet
from lazyviz.timing.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lazyrt.observe.events import SourceLocation
    from lazyrt.tools import Pause, Sample

MIN_GAP_NS = 1_000_000
# Of events, of some hundred bytes each. With its note each is two objects; 700 bring a collection.
_BATCH, _MAX_BATCHES = 256, 7_500
_now, _thread = time.perf_counter_ns, threading.get_ident
_LAST_NS = 500_000  # an op is recorded in less, and samples lie closer
Interval = tuple[int, int]
# Of a class, when its events came, on which threads, and their values one after the other.
_Rows = tuple["Sequence[Any]", ...]


class Noted(NamedTuple):
    """An event as it came."""

    event: Any
    now_ns: int
    thread: int


@functools.cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


@functools.cache
def _values(kind: type) -> Callable[[events.Event], tuple[Any, ...]]:
    return attrgetter("__class__", *_names(kind))


class Notes:
    """Events of the runtime as they come, kept as plain values in batches.

    An event that is kept is one object more for garbage collections to visit, and brings the next
    one nearer. Turning it into values takes twice as long if only a few are turned at a time, as the
    program has pushed all of it out of the caches.

    Attributes:
        dropped: Events that were too many to keep.
        forgotten_ns: When the last one came that is kept no more; 0 for none.
    """

    def __init__(self) -> None:
        self.dropped = self.forgotten_ns = 0
        self._fresh: deque[tuple[Any, int, int]] = deque()
        self._kept: deque[tuple[int, list[_Rows]]] = deque()  # and when each ended

    def add(self, event: events.Event) -> None:
        """Take note of an event, on the thread that sends it: little may be done here."""
        self._fresh.append((event, _now(), _thread()))
        if len(self._fresh) >= _BATCH:
            self._keep()

    def _keep(self) -> None:
        came: defaultdict[type, list[tuple[Any, int, int]]] = defaultdict(list)
        with contextlib.suppress(IndexError):  # another thread may take the last one
            while True:
                noted = self._fresh.popleft()
                came[noted[0].__class__].append(noted)
        rows: list[_Rows] = []
        for kind, each in came.items():
            found, times, threads = zip(*each, strict=True)
            values = [*chain.from_iterable(map(_values(kind), found))]
            rows.append((times, threads, values))
        if len(self._kept) >= _MAX_BATCHES:
            self.dropped += sum(map(len, came.values()))
        elif rows:
            self._kept.append((max(times[-1] for times, *_ in rows), rows))

    def forget(self, before_ns: int, most: int) -> None:
        """Keep no batch that ended before, and so many at most."""
        while self._kept and (self._kept[0][0] < before_ns or len(self._kept) > most):
            self.forgotten_ns, _ = self._kept.popleft()

    def __iter__(self) -> Iterator[Noted]:
        self._keep()
        found = []
        batches = [rows for _, rows in tuple(self._kept)]
        for times, threads, row in chain.from_iterable(batches):
            values = iter(row)
            for now, thread in zip(times, threads, strict=True):
                kind = next(values)
                event = kind(**{name: next(values) for name in _names(kind)})
                found.append(Noted(event, now, thread))
        return iter(sorted(found, key=attrgetter("now_ns")))


class Stretch(NamedTuple):
    """What the thread did for a while.

    Attributes:
        phase: One of the ledger's phases.
        start_ns, end_ns: When.
        site: The user's line, if it is known.
        is_sampled: Whether the line was seen in this very stretch.
    """

    phase: str
    start_ns: int
    end_ns: int
    site: SourceLocation | None
    is_sampled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AtLine:
    """Something at one of the user's lines.

    Attributes:
        file, line, cell: The line, and its notebook cell; empty, 0 and None if they are not known.
    """

    file: str = ""
    line: int = 0
    cell: int | None = None

    @property
    def at(self) -> str:
        """Its line in short, such as `train.py:41`."""
        return place(self.file, self.line, self.cell)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lasting(AtLine):
    """Something that took time.

    Attributes:
        start_ns, duration_ns: When, of `time.perf_counter_ns`, and how long.
    """

    start_ns: int = 0
    duration_ns: int = 0

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap(Lasting):
    """A stretch in which the program waited or computed elsewhere, at one of its lines.

    Attributes:
        function: Where the line is that waited.
        idle_ns: The part in which the device had nothing to do either.
        step: Number of the step that was being recorded; None after the last barrier.
        sentence: All of it in words, and what would close the gap.
        is_sampled: Whether the line was seen in this very gap, not in others at its place.
    """

    function: str
    idle_ns: int = 0
    step: int | None = None
    sentence: str = ""
    is_sampled: bool = True


def place(file: str, line: int, cell: int | None = None) -> str:
    """Return a line in short; empty if it is not known."""
    if not file:
        return ""
    if cell is not None:
        return f"cell {cell} line {line}"
    return f"{file.rsplit('/', 1)[-1]}:{line}"


class _At(TypedDict):
    file: str
    line: int
    cell: int | None


def _located(at: SourceLocation | StepTime | None) -> _At:
    """Return file, line and cell, as `place` and the rows of a profile take them."""
    if at is None:
        return {"file": "", "line": 0, "cell": None}
    return {"file": at.file, "line": at.line, "cell": at.cell}


@dataclass(slots=True)
class HostTime:
    """What a thread did while it was profiled.

    Attributes:
        stretches: In order of time; what lies between them is recording.
        parts: Nanoseconds of each phase, which add up to the whole.
    """

    stretches: list[Stretch] = field(default_factory=list)
    parts: dict[str, int] = field(default_factory=dict)

    def between(self, start_ns: int, end_ns: int) -> Iterator[Stretch]:
        """Yield what the thread did in some time; stretches do not overlap."""
        ends = bisect.bisect_right(self.stretches, start_ns, key=lambda s: s.end_ns)
        for each in self.stretches[ends:]:
            if each.start_ns >= end_ns:
                return
            yield each


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
    current: tuple[SourceLocation | None, bool] = (None, True)

    def told(phase: str, pieces: list[Interval], _site: str) -> None:
        for start, end in pieces:
            found.stretches.append(Stretch(phase, start, end, *current))

    tally = Tally(ledger=Ledger(start_ns), thread=thread, told=told)
    noted = list(noted)
    for one in _merged(noted, _with_end(noted, pauses)):
        if isinstance(one, Noted):
            current = getattr(one.event, "site", None), True
            tally.add(one.event, one.now_ns, one.thread)
            continue
        for run in one:
            if run.phase == "trace":
                continue
            current = run.site, run.is_sampled
            tally.add(Quiet(run.start_ns, run.end_ns, run.site), run.end_ns, thread)
    found.stretches.sort(key=lambda each: each.start_ns)
    for k, each in enumerate(found.stretches):
        if each.phase == "execute" and each.site is None:
            site = _copy_after(found.stretches, k)
            found.stretches[k] = each._replace(site=site)
    found.parts = tally.ledger.parts(end_ns)
    return found


def _with_end(noted: Sequence[Noted], pauses: Sequence[Pause]) -> Sequence[Pause]:
    """Return pauses whose last one, if the watch ended it, counts with those after the same barrier."""
    if not pauses or pauses[-1].after or pauses[-1].samples:
        return pauses
    ends = [one for one in noted if isinstance(one.event, events.BarrierFinished)]

    def barrier(pause: Pause) -> SourceLocation | None:
        k = bisect.bisect_right(ends, pause.start_ns, key=lambda one: one.now_ns) - 1
        is_near = k >= 0 and pause.start_ns - ends[k].now_ns < MIN_GAP_NS
        return ends[k].event.site if is_near else None

    last = pauses[-1]
    at = barrier(last)
    after = (each.after for each in pauses[:-1] if at and barrier(each) == at)
    return [*pauses[:-1], last._replace(after=next(after, ()))]


def _merged(
    noted: Iterable[Noted], pauses: Sequence[Pause]
) -> Iterator[Noted | list[Stretch]]:
    """Yield events and pauses in order of their ends; a pause as runs of lines."""
    usual = _usual_runs(pauses)
    spent: Iterable[tuple[int, Noted | list[Stretch]]] = (
        (pause.end_ns, lines_of(pause, usual))
        for pause in pauses
        if not pause.is_recording
    )
    came = ((one.now_ns, one) for one in noted)
    for _, one in heapq.merge(spent, came, key=itemgetter(0)):
        yield one


_Place = tuple[Any, ...]


class _Usual(NamedTuple):
    """The line that most often waited before an op, and the shortest pause in which it did."""

    site: SourceLocation
    shortest_ns: int


def _usual_runs(pauses: Sequence[Pause]) -> dict[_Place, _Usual]:
    """Return the usual line of pauses, by the lines that recorded the op that ended them."""
    seen: dict[_Place, Counter[SourceLocation]] = defaultdict(Counter)
    shortest: dict[tuple[_Place, SourceLocation], int] = {}
    for pause in pauses:
        for sample in _samples_before_end(pause):
            if site := _site(sample):
                seen[pause.after][site] += 1
                length = pause.end_ns - pause.start_ns
                before = shortest.get((pause.after, site), length)
                shortest[pause.after, site] = min(before, length)
    return {
        after: _Usual(site, shortest[after, site])
        for after, lines in seen.items()
        for site, _ in lines.most_common(1)
    }


def lines_of(pause: Pause, usual: dict[_Place, _Usual]) -> list[Stretch]:
    """Return the lines that a pause was spent at, each with its part; `trace` for the runtime's.

    A sample stands for the time since the one before. Lines that were at work for less than a
    millisecond each, such as those of a loop in Python, count together, for the most frequent one.
    """
    runs: list[Stretch] = []
    since = pause.start_ns
    samples = _samples_before_end(pause)
    for k, sample in enumerate(samples):
        site = _site(sample)
        phase = "trace" if sample.is_runtime else "python"
        until = pause.end_ns
        if k + 1 < len(samples):
            until = (sample.time_ns + samples[k + 1].time_ns) // 2
        if runs and (runs[-1].site, runs[-1].phase) == (site, phase):
            runs[-1] = runs[-1]._replace(end_ns=until)
        else:
            runs.append(Stretch(phase, since, until, site))
        since = until
    if not runs:
        known = usual.get(pause.after)
        is_like = known and pause.end_ns - pause.start_ns > known.shortest_ns - _LAST_NS
        site = known.site if known and is_like else next(iter(pause.after), None)
        run = Stretch("python", pause.start_ns, pause.end_ns, site)
        return [run._replace(is_sampled=False)]
    return _merge_short(runs)


def _site(sample: Sample) -> SourceLocation | None:
    """Return the line that a sample saw; a lambda's is in the function that the lambda stands in."""
    found = None
    for line in sample.lines:
        if found and (line.file, line.line) != (found.file, found.line):
            break
        found = line
    return found


def _samples_before_end(pause: Pause) -> list[Sample]:
    """Return the samples of a pause without the last one, where that saw the op that ended it.

    A thread that computes hands over to the one that looks when it enters the op.
    """
    found = list(pause.samples)
    is_late = bool(found) and pause.end_ns - found[-1].time_ns < _LAST_NS
    if is_late and found[-1].lines[:1] == pause.after[:1]:
        found.pop()
    return found


def _is_short(run: Stretch) -> bool:
    return run.end_ns - run.start_ns < MIN_GAP_NS


def _merge_short(runs: list[Stretch]) -> list[Stretch]:
    """Join runs of less than a millisecond with each other, then with those beside them."""
    joined: list[Stretch] = []
    for is_short, members in itertools.groupby(runs, _is_short):
        for run in [_together([*members])] if is_short else members:
            before = joined[-1] if joined else None
            if before and (_is_short(run) or before.site == run.site):
                joined[-1] = before._replace(end_ns=run.end_ns)
            elif before and _is_short(before):
                joined[-1] = run._replace(start_ns=before.start_ns)
            else:
                joined.append(run)
    return joined


def _together(runs: list[Stretch]) -> Stretch:
    weights: Counter[SourceLocation | None] = Counter()
    for run in runs:
        weights[run.site] += run.end_ns - run.start_ns
    site = weights.most_common(1)[0][0]
    return Stretch("python", runs[0].start_ns, runs[-1].end_ns, site)


# -------------------------------------------------------------------------------- steps


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime(Lasting):
    """One step: from the end of the one before to that of its barrier, and its execution.

    Attributes:
        number: The runtime's number of the step.
        name, step_num: Of the `step()` block that it ran in; empty and None without one.
        cause: What asked for the barrier, such as `mark_step()`; its line is the step's.
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
    parts: dict[str, int] = field(default_factory=dict)
    nodes: int = 0
    device_ns: int = 0
    busy_ns: int = 0
    overlap_ns: int = 0
    compiled: str = ""

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
        both = sum(overlap_ns(waits, *piece) for piece in within(busy, since, now))
        working = overlap_ns(busy, since, now)
        found.append(
            StepTime(
                number=running or event.step,
                name=(block.name or "") if block is not None else "",
                step_num=block.step_num if block is not None else None,
                cause=event.cause,
                **_located(event.site),
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
    for each in host.between(start, end):
        parts[each.phase] += min(each.end_ns, end) - max(each.start_ns, start)
    parts["trace"] += end - start - sum(parts.values())
    return {phase: ns for phase, ns in parts.items() if ns > 0}


# ------------------------------------------------------------------- the device at rest

BUILD, TRANSFER, START, PROGRAM = (
    "building the next graph",
    "transfer",
    "load and start",
    "the program's own lines",
)
COMPILE, WAIT = "compiling", "waiting"
# Of the program's own lines and of waiting: where no wait for the device came before in the step, and
# where no value was read.
AHEAD, LATE = "ahead", "late"
_CHUNKS = {
    "python": PROGRAM,
    "trace": BUILD,
    "dynamo": BUILD,
    "lower": COMPILE,
    "compile": COMPILE,
    "transfer": TRANSFER,
    "dispatch": START,
    "execute": WAIT,
    "peek": WAIT,
    "fallback": "ops on the CPU",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle(Lasting):
    """A stretch of a millisecond or more in which the device had nothing to do.

    Its line is the one to look at: where the program waited, what was transferred, or the barrier.

    Attributes:
        chunks: What the host did meanwhile, in nanoseconds that add up to the duration:
            `building the next graph`, `compiling`, `transfer`, `load and start`,
            `the program's own lines`, ...
        step: Number of the step that ended it; None after the last one.
        sentence: All of it in words, and what would close it.
    """

    chunks: dict[str, int]
    step: int | None = None
    sentence: str = ""


def idle_of(
    host: HostTime,
    busy: Sequence[Interval],
    steps: Sequence[StepTime],
    start_ns: int,
    end_ns: int,
) -> list[Idle]:
    """Return the stretches in which the device had nothing to do, in order."""
    edges = [start_ns, *(edge for interval in busy for edge in interval), end_ns]
    found = []
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        if end - start < MIN_GAP_NS:
            continue
        step = next((each for each in steps if each.end_ns >= end), None)
        found_in: Counter[str] = Counter()
        for phase, ns in _parts(host, start, end).items():
            found_in[_CHUNKS[phase]] += ns
        chunks = dict(found_in.most_common())
        longest = next(iter(chunks))
        site = _site_in(host, start, end, longest)
        where = _located(site or step)
        why = longest
        if longest == PROGRAM and not _waited(host, steps, start):
            why = AHEAD
        elif longest == WAIT and site is None:
            why = LATE
        told = ", ".join(f"{name} {text.duration(ns)}" for name, ns in chunks.items())
        found.append(
            Idle(
                start_ns=start,
                duration_ns=end - start,
                chunks=chunks,
                step=step.number if step is not None else None,
                **where,
                sentence=f"The device is idle for {text.duration(end - start)}: {told}. "
                f"{advice(why, place(**where), step)}",
            )
        )
    return found


def _site_in(host: HostTime, start: int, end: int, chunk: str) -> SourceLocation | None:
    """Return the line that most of a chunk of a stretch was spent at."""
    weights: Counter[SourceLocation] = Counter()
    for each in host.between(start, end):
        if each.site is not None and _CHUNKS[each.phase] == chunk:
            weights[each.site] += min(each.end_ns, end) - max(each.start_ns, start)
    return weights.most_common(1)[0][0] if weights else None


def _waited(host: HostTime, steps: Sequence[StepTime], until_ns: int) -> bool:
    """Return whether the program has waited for the device since the barrier before a moment."""
    ended = bisect.bisect_right(steps, until_ns, key=lambda step: step.end_ns)
    since = steps[ended - 1].end_ns if ended else 0
    meanwhile = host.between(since, until_ns)
    return any(_CHUNKS[each.phase] == WAIT for each in meanwhile)


def advice(chunk: str, at: str, step: StepTime | None) -> str:
    """Return what would close a gap whose longest chunk this is."""
    why = f" ({step.compiled})" if step is not None and step.compiled else ""
    line = f"what {at} does" if at else "it"
    return _ADVICE.get(chunk, _KEEP).format(line=line, at=at or "the step", why=why)


_KEEP = "Keep these ops on the device: %lazy metrics lists them."
_ADVICE = {
    PROGRAM: "Do {line} right after the step's barrier, while the device works, or on another "
    "thread, such as a loader's.",
    AHEAD: "Do {line} on another thread, such as a loader's: the device has finished what it was "
    "given, so doing it earlier in the step wins nothing.",
    BUILD: "Record the next step while this one runs: read its results a step later, or "
    "compile the function with torch.compile, so that it is recorded as one call.",
    COMPILE: "A graph was compiled{why}: a step whose graph stays the same runs it again.",
    TRANSFER: "Transfer ahead with lazyrt.DeviceLoader instead of at {at}.",
    START: "Put more work between two barriers: each one takes this time anew.",
    WAIT: "It is waited for results that are there: read several values at once.",
    LATE: "The program is told late that the device has finished, or this run took longer than "
    "those that were traced.",
}


def gaps_of(
    host: HostTime,
    busy: Sequence[Interval],
    steps: Sequence[StepTime],
    idle: Sequence[Idle],
) -> list[Gap]:
    """Return the stretches of the program's own time, with the line that waited."""
    found = []
    for each in host.stretches:
        length = each.end_ns - each.start_ns
        if each.phase != "python" or length < MIN_GAP_NS:
            continue
        step = next((s for s in steps if s.end_ns >= each.end_ns), None)
        gap = Gap(
            start_ns=each.start_ns,
            duration_ns=length,
            **_located(each.site),
            function=each.site.function if each.site is not None else "",
            idle_ns=length - overlap_ns(busy, each.start_ns, each.end_ns),
            step=step.number if step is not None else None,
            is_sampled=each.is_sampled,
        )
        why = PROGRAM if _waited(host, steps, gap.start_ns) else AHEAD
        said = _sentence(gap, idle, advice(why, gap.at, step))
        found.append(replace(gap, sentence=said))
    return found


def _sentence(gap: Gap, idle: Sequence[Idle], what_closes_it: str) -> str:
    """Return a gap in words: how long, what else keeps the device idle there, what to do."""
    if not gap.at and gap.is_sampled:
        return f"For {text.duration(gap.duration_ns)} no line of the program ran, as between cells."
    at = gap.at or "A line that is not known"
    took = f"{at} takes {text.duration(gap.duration_ns)} in which no op is recorded"
    if not gap.idle_ns:
        return f"{took}; the device works meanwhile, so nothing is lost."
    part = text.duration(gap.idle_ns) if gap.idle_ns < gap.duration_ns else "all"
    words = [f"{took}, and the device is idle for {part} of it."]
    around = _around(gap, idle)
    if around is not None:
        of = "It" if gap.idle_ns == gap.duration_ns else "That"
        three = ", ".join(
            f"{name} {text.duration(around.chunks.get(name, 0))}"
            for name in (BUILD, TRANSFER, START)
        )
        words.append(
            f"{of} is part of {text.duration(around.duration_ns)} without work: {three}."
        )
    return " ".join([*words, what_closes_it])


def _around(gap: Gap, idle: Sequence[Idle]) -> Idle | None:
    """Return the stretch without work that most of a gap is in; stretches are in order."""
    first = bisect.bisect_right(idle, gap.start_ns, key=lambda each: each.end_ns)
    last = bisect.bisect_left(idle, gap.end_ns, key=lambda each: each.start_ns)
    held = [(each.start_ns, each.end_ns) for each in idle[first:last]]
    shared = [end - start for start, end in within(held, gap.start_ns, gap.end_ns)]
    return idle[first + shared.index(max(shared))] if shared else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait(AtLine):
    """A line at which the program waited for the device, so that nothing overlapped.

    Attributes:
        cause: What was waited for, such as `read by .item() of loss`.
        duration_ns: How long, all times together.
        times: How often.
    """

    cause: str = ""
    duration_ns: int = 0
    times: int = 0


def waits_of(host: HostTime, noted: Sequence[Noted]) -> list[Wait]:
    """Return the lines that waited for the device, the longest first."""
    causes: dict[SourceLocation, str] = {}
    for event, _, _ in noted:
        if isinstance(event, events.BarrierFinished) and event.site is not None:
            of = f" of {event.tensor}" if event.tensor else ""
            causes.setdefault(event.site, f"{event.cause}{of}")
    spent: Counter[SourceLocation] = Counter()
    times: Counter[SourceLocation] = Counter()
    for each in host.stretches:
        if each.phase == "execute" and each.site is not None:
            spent[each.site] += each.end_ns - each.start_ns
            times[each.site] += 1
    return [
        Wait(
            **_located(site),
            cause=causes.get(site, ""),
            duration_ns=ns,
            times=times[site],
        )
        for site, ns in spent.most_common()
    ]


def _copy_after(stretches: Sequence[Stretch], k: int) -> SourceLocation | None:
    """Return the line that copied what was waited for, which comes right after the wait."""
    for each in stretches[k + 1 : k + 3]:
        if each.phase == "transfer":
            return each.site
        if each.phase != "python" or each.end_ns - each.start_ns >= MIN_GAP_NS:
            break
    return None


def block_times(
    noted: Sequence[Noted], busy: Sequence[Interval]
) -> dict[str, tuple[int, int]]:
    """Return for each scope how long its blocks took, and how long the device worked meanwhile."""
    found: dict[str, tuple[int, int]] = {}
    for event, _, _ in noted:
        if isinstance(event, events.ScopeFinished):
            start, end = event.started_ns, event.started_ns + event.duration_ns
            took, worked = found.get(event.path, (0, 0))
            found[event.path] = (
                took + event.duration_ns,
                worked + overlap_ns(busy, start, end),
            )
    return found
