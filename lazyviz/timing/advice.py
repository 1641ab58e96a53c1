"""What a profile advises: to load batches ahead, to read less often; with what that would bring.

A step is the time between two batches, or between two reads at a line. What it would take
otherwise is computed from what was measured: its own parts, and the rule that loading and
execution go on beside recording where nothing waits for them.
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import math
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lazyrt.observe import events
from lazyviz.render import text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lazyrt.observe.events import SourceLocation
    from lazyrt.tools import Pause
    from lazyviz.timing.gaps import Noted

    Busy = Callable[[int, int], int]

WORTH_IT = 0.1  # of a step: what saves less is not worth a sentence
_EVERY = (1, 10, 100)
_FEWEST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTime:
    """How a loop gets its batches.

    Attributes:
        at: The loop's line.
        loads_at: The line that loads, the loop's own where that is not known; empty where the loop
            waits for another thread or process.
        batches: How many were measured; the first one, with which a loader starts up, is not.
        period_ns: From one batch to the next.
        waited_ns: How long of it the loop waited for the batch.
        idle_ns: The part of the wait in which the device had nothing to do either.
        device_ns: How long of it the device worked.
        load_ns: How long loading one takes, in the middle.
        longest_ns: The same, at most.
        prefetch: How many are loaded ahead.
        workers: How many processes of a `DataLoader` load; 0 for none, or where it is not known.
    """

    at: str
    loads_at: str
    batches: int
    period_ns: float
    waited_ns: float
    idle_ns: float
    device_ns: float
    load_ns: float
    longest_ns: float
    prefetch: int = 0
    workers: int = 0

    @property
    def share(self) -> float:
        """The part of the time in which loop and device waited for batches, from 0 to 1."""
        return self.idle_ns / self.period_ns if self.period_ns else 0.0

    @property
    def rest_ns(self) -> float:
        """What a step takes that waits for no batch: what else the loop does, or the device."""
        return max(self.period_ns - self.waited_ns, self.device_ns)

    @property
    def at_once(self) -> int:
        """How many batches must be loaded at once so that the loop waits for none."""
        # Workers load all the time while the loop waits for them, each one of its batches.
        each = self.period_ns if self.workers and not self.prefetch else self.load_ns
        return max(math.ceil(max(self.workers, 1) * each / max(self.rest_ns, 1)), 1)

    @property
    def depth(self) -> int:
        """How many batches must be loaded ahead, to even out the longest load if one suffices."""
        if self.at_once > 1:
            return self.at_once
        return max(math.ceil(self.longest_ns / max(self.rest_ns, 1)), 1)

    @property
    def prefetched_ns(self) -> float:
        """What a step takes where one thread loads ahead."""
        return max(self.load_ns, self.rest_ns)

    @property
    def sentence(self) -> str:
        """How much the loop waits, why, and what to do; empty where little would be won."""
        if self.share < WORTH_IT:
            return ""
        said = f"Input-bound {text.share(self.share)}: the loop at {self.at} waits "
        if not self.loads_at:  # a batch that was there is not seen, so none is counted
            more = self.period_ns / max(self.rest_ns, 1)
            return (
                f"{said}for another thread or process. If these load all the time, as a DataLoader's "
                f"workers do, {more:.1f} times as many of them hide it, and the loop takes "
                f"{text.share(self.rest_ns, self.period_ns)} of its time. If they load when they are "
                "asked, lazyrt.DeviceLoader(loader) asks ahead, while the step runs."
            )
        said += (
            f"{text.duration(self.waited_ns)} for each batch, and the rest of a step takes "
            f"{text.duration(self.rest_ns)}. Loading a batch takes "
            f"{text.duration(self.load_ns)} at {self.loads_at}."
        )
        workers = (
            f"torch.utils.data.DataLoader(..., num_workers={self.at_once}) loads "
            f"{self.at_once} at once, so that the loop waits for none."
        )
        if self.prefetch or self.workers:
            ahead = f"{text.plural(self.prefetch, 'batch', 'batches')} ahead"
            have = ahead if self.prefetch else text.plural(self.workers, "worker")
            return f"{said} {have} do not help, since loading is slower. {workers}"
        loader = f"lazyrt.DeviceLoader(loader, prefetch={self.depth})"
        about = f"about {text.duration(self.prefetched_ns)} instead of {text.duration(self.period_ns)}"
        if self.at_once == 1:
            return f"{said} {loader} loads while the step runs and hides it: {about} a step."
        return f"{said} {loader} loads while the step runs: {about} a step. {workers}"


@dataclass(slots=True)
class _Waits:
    """Batches of one loop as they came: when, after what wait, and what loading took."""

    prefetch: int = 0
    workers: int = 0
    ends: list[int] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    lines: Counter[str] = field(default_factory=Counter)

    def add(self, end: int, wait: float, load: float, line: str) -> None:
        """Take in one batch."""
        self.ends.append(end)
        self.waits.append(wait)
        self.loads.append(load)
        self.lines[line] += 1

    def input_time(self, at: str, busy: Busy) -> InputTime | None:
        """Return what they say of the loop at a line; None for too few."""
        batches = len(self.ends) - 1
        if batches < _FEWEST - 1 or self.ends[-1] <= self.ends[0]:
            return None
        return InputTime(
            at=at,
            loads_at=self.lines.most_common(1)[0][0],
            batches=batches,
            period_ns=(self.ends[-1] - self.ends[0]) / batches,
            waited_ns=statistics.fmean(self.waits[1:]),
            idle_ns=statistics.fmean(
                wait - busy(end - int(wait), end)
                for end, wait in zip(self.ends[1:], self.waits[1:], strict=True)
            ),
            device_ns=busy(self.ends[0], self.ends[-1]) / batches,
            load_ns=statistics.median(self.loads[1:]),
            longest_ns=max(self.loads[1:]),
            prefetch=self.prefetch,
            workers=self.workers,
        )


def input_times(
    noted: Iterable[Noted], pauses: Sequence[Pause], thread: int, busy: Busy
) -> list[InputTime]:
    """Return how the loops of a thread got their batches, the one that waited longest first.

    A `DeviceLoader` tells itself. Another loop waits for its batch where the thread is at the
    line of a `for` whose body records what comes next.

    Args:
        noted: The runtime's events.
        pauses: The thread's pauses.
        thread: Its identity.
        busy: Returns how long the device worked between two moments.
    """
    told: dict[str, _Waits] = defaultdict(_Waits)
    for event, now, its in noted:
        if isinstance(event, events.BatchLoaded) and its == thread:
            at = str(event.site or "an unknown line")
            told[at].prefetch, told[at].workers = event.prefetch, event.workers
            told[at].add(now, event.waited_ns, event.load_ns, at)
    found: dict[str, _Waits] = defaultdict(_Waits)
    for at, end, wait, line in _plain_waits(pauses):
        if at not in told:
            found[at].add(end, wait, wait, line)
    times = [w.input_time(at, busy) for at, w in [*told.items(), *found.items()]]
    return sorted(filter(None, times), key=lambda each: -each.waited_ns * each.batches)


def _plain_waits(pauses: Sequence[Pause]) -> Iterator[tuple[str, int, float, str]]:
    """Yield the waits of plain loops: the loop's line, when, how long, the line that loads.

    No line of this thread loads where it waits for another one, or for a process.
    """
    usual: dict[Any, tuple[str, float, str]] = {}
    for pause in pauses:
        if pause.is_recording or not pause.after:
            continue
        if pause.samples:
            usual.pop(pause.after, None)
            within: Counter[tuple[str, str]] = Counter()
            for sample, length in zip(pause.samples, _lengths(pause), strict=True):
                loop = _loop_of(sample.lines, pause.after)
                if loop is not None:
                    line = "" if sample.is_waiting else str(sample.lines[0])
                    within[str(loop), line] += length
            if within:
                (at, line), _ = within.most_common(1)[0]
                share = within.total() / (pause.end_ns - pause.start_ns)
                usual[pause.after] = at, share, line
        # Where nobody looked it is as it was before this op the last time.
        if pause.after in usual:
            at, share, line = usual[pause.after]
            yield at, pause.end_ns, share * (pause.end_ns - pause.start_ns), line


def _lengths(pause: Pause) -> list[int]:
    """Return how much of a pause each sample stands for: up to the middle between it and the next."""
    times = [sample.time_ns for sample in pause.samples]
    middles = [(a + b) // 2 for a, b in itertools.pairwise(times)]
    bounds = [pause.start_ns, *middles, pause.end_ns]
    return [end - start for start, end in itertools.pairwise(bounds)]


def _loop_of(
    lines: Sequence[SourceLocation], after: Sequence[SourceLocation]
) -> SourceLocation | None:
    """Return the `for` that asks for its next item at some lines, before it records the next op."""
    for line in lines:
        end = _loops(line.file).get(line.line)
        if end and any(
            each.file == line.file and line.line < each.line <= end for each in after
        ):
            return line
    return None


@functools.lru_cache(maxsize=256)
def _loops(file: str) -> dict[int, int]:
    """Return the last line of each `for` of a file, by its first."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return {}
    return {
        each.lineno: each.end_lineno or each.lineno
        for each in ast.walk(tree)
        if isinstance(each, (ast.For, ast.AsyncFor))
    }


# --------------------------------------------------------------------------------- reads


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTime:
    """A line that reads a value of the device again and again.

    Attributes:
        at: The line.
        reads: How many were measured, but for the first.
        period_ns: From one to the next.
        waited_ns: How long of it the program waited for the device and for the copy.
        device_ns: How long of it the device worked.
        error_ns: Twice the standard error of the period.
    """

    at: str
    reads: int
    period_ns: float
    waited_ns: float
    device_ns: float
    error_ns: float

    def predicted_ns(self, every: int) -> float:
        """Return what a step takes where only each `every`-th one is read.

        The others record while the device works, so each takes the longer of the two.
        """
        free = max(self.period_ns - self.waited_ns, self.device_ns)
        return (self.period_ns + (every - 1) * min(free, self.period_ns)) / every

    @property
    def sentence(self) -> str:
        """What the reads cost, and what fewer would bring; empty where that is little."""
        if self.predicted_ns(_EVERY[1]) > (1 - WORTH_IT) * self.period_ns:
            return ""
        steps = ", ".join(
            f"every {each}: {text.duration(self.predicted_ns(each))}"
            for each in _EVERY[1:]
        )
        error = text.duration(self.error_ns)
        brings = f"Read less often, a step takes about: {steps} (± {error})."
        if self.period_ns - self.predicted_ns(_EVERY[1]) <= self.error_ns:
            brings = (
                f"What fewer reads bring is unknown: steps vary so that this average is known to "
                f"± {error}, which is more than would be won."
            )
        return (
            f"The read at {self.at} waits {text.duration(self.waited_ns)} in each step of "
            f"{text.duration(self.period_ns)}, so recording the next step does not overlap the "
            f"execution of this one. {brings}"
        )


def read_times(noted: Iterable[Noted], thread: int, busy: Busy) -> list[ReadTime]:
    """Return the lines of a thread that read values of the device, the costliest first.

    Args:
        noted: The runtime's events.
        thread: The thread's identity.
        busy: Returns how long the device worked between two moments.
    """
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    waited, since = 0, 0
    for event, now, its in noted:
        if its != thread:
            continue
        if isinstance(event, events.WaitFinished) and event.phase == "execute":
            waited += event.duration_ns
        elif isinstance(event, events.BarrierFinished):
            since = now if event.cause.startswith("read") else 0
        elif isinstance(event, events.TransferFinished):
            if event.direction == "to_host" and event.site is not None:
                copied = now - event.duration_ns
                stood = copied - since if since else waited
                found[str(event.site)].append((now, stood + event.duration_ns))
            waited = since = 0
    times = []
    for at, reads in found.items():
        first, last, count = reads[0][0], reads[-1][0], len(reads) - 1
        if count >= _FEWEST - 1 and last > first:
            times.append(
                ReadTime(
                    at=at,
                    reads=count,
                    period_ns=(last - first) / count,
                    waited_ns=statistics.fmean(wait for _, wait in reads[1:]),
                    device_ns=busy(first, last) / count,
                    error_ns=error_ns([now for now, _ in reads]),
                )
            )
    return sorted(times, key=lambda each: -each.waited_ns * each.reads)


def error_ns(moments: Sequence[int]) -> float:
    """Return twice the standard error of the mean time between moments; 0 for fewer than three."""
    times = [end - start for start, end in itertools.pairwise(moments)]
    return 2 * statistics.stdev(times) / len(times) ** 0.5 if len(times) > 1 else 0.0
