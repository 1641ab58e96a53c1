"""`lazyviz.profile()`: where a program's time goes, on the host by line and on the device; and two of them.

Works in scripts and in notebooks. While a profile is taken the runtime's events, the pauses between
ops and the device's own trace are noted as they are; they are added up once somebody looks.
"""

from __future__ import annotations

import itertools
import json
import linecache
import math
import socket
import statistics
import threading
import time
from collections import Counter, defaultdict, deque
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from lazyviz.command_line import __version__, path_of
from lazyviz.doc import Doc, Drawn, Fold, Line, Note, Part, Points, Sentence, Table
from lazyviz.draw.model import clip
from lazyviz.draw.palette import count_words
from lazyviz.render import html, text
from lazyviz.render.timeline_text import (
    LANES,
    CellTime,
    Span,
    TimelineView,
    overlap_ns,
    within,
)
from lazyviz.shell.displayed import Displayed
from lazyviz.timing import advice
from lazyviz.timing import device_time as device
from lazyviz.timing import gaps as host
from lazyviz.timing.advice import error_ns
from lazyviz.timing.history import Timeline
from lazyviz.timing.timeline import picture, widget

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lazyrt.observe.events import ExecuteStarted
    from lazyrt.tools import Node, Pause
    from lazyviz.inspection.numerics import Timeline as Lifetimes
    from lazyviz.timing.advice import InputTime, ReadTime

_MAX_ROWS = 12
_ROWS = ("was", "now")
_SHOWN = ("step", "host", "device", "memory")
_MAX_SOURCE = 48
_MAX_SPANS = 200_000  # with which a page draws a frame in 16 ms
_AT_PEAK = 5
_PRODUCER = "lazyviz profile"


class ProfileError(ValueError):
    """A profile that cannot be taken, saved or read."""


class Profile(Displayed):
    """Where the time of a program went, between `start()` and `stop()`.

    Use it in `with`, or start and stop it. It keeps names and numbers, never a tensor.

    Attributes:
        start_ns, end_ns: When it began and ended, of `time.perf_counter_ns`; 0 before.
        dropped: Events that were too many to keep.

    Args:
        path: A folder into which the device's trace is written, too; None writes nothing.
        thread: Identity of the thread to profile; by default the one that starts it.
    """

    def __init__(
        self, path: str | Path | None = None, *, thread: int | None = None
    ) -> None:
        self.path = None
        if path is not None:
            self.path = path_of(path, "profile()", ProfileError)
        self.start_ns = self.end_ns = 0
        self.dropped = 0
        self._thread = thread
        self._windows = device.TraceWindows(is_whole=path is not None)
        self._notes = host.Notes()
        self._pauses: list[Pause] = []
        self._open: list[Any] = []

    @classmethod
    def of(
        cls,
        notes: Iterable[host.Noted],
        pauses: Sequence[Pause],
        thread: int,
        start_ns: int,
        end_ns: int,
        windows: Sequence[device.Window] = (),
    ) -> Profile:
        """Return the profile of a thread that others have noted."""
        found = Profile(thread=thread)
        found._noted, found._pauses = list(notes), list(pauses)
        found._windows.windows.extend(windows)
        found.start_ns, found.end_ns = start_ns, end_ns
        return found

    def from_first_event(self) -> Profile:
        """Return it without what came before anything happened."""
        begun = [each.now_ns for each in self._noted[:1]]
        begun += [pause.end_ns for pause in self._pauses[:1]]
        start = min(begun, default=self.start_ns)
        return Profile.of(
            self._noted,
            [each for each in self._pauses if each.start_ns >= start],
            self._thread or 0,
            start,
            self.end_ns,
            self._windows.windows,
        )

    # ---------------------------------------------------------------------- taking it

    @property
    def is_running(self) -> bool:
        """Whether it is being taken."""
        return bool(self._open)

    def start(self) -> Self:
        """Begin, once the device has finished what is under way, if this is the profiled thread.

        Raises:
            ProfileError: It has begun already.
        """
        if self.start_ns:
            raise ProfileError(
                "this profile has been taken already, so it cannot begin again. Make another "
                "one: lazyviz.profile()."
            )
        import lazyrt
        from lazyrt.tools import provenance

        provenance.add_library(str(Path(__file__).parents[1]))
        if self._thread is None:
            lazyrt.wait()  # what is under way would be the beginning of the device's trace
            self._thread = threading.get_ident()
        thread = self._thread
        for listener, *kinds in self._listeners():
            self._open.append(lazyrt.subscribe(listener, *kinds, exact=False))
        self._windows.begin()
        self.start_ns = time.perf_counter_ns()
        self._open.append(lazyrt.watch_pauses(self._pauses.append, thread))
        return self

    def stop(self, *, wait: bool = True) -> Self:
        """End it; stopping twice is harmless.

        Args:
            wait: Whether to wait for what the device runs, so that its time is known.
        """
        if not self._open:
            return self
        import lazyrt

        opened, self._open = self._open, []
        if wait:
            lazyrt.wait()
        for each in reversed(opened):
            each.close()
        self.end_ns, self.dropped = time.perf_counter_ns(), self._notes.dropped
        _latest[:] = [self]
        self._windows.rest(on=True)
        if self.path is not None:
            self._write_folder(self.path)
        return self

    def _write_folder(self, folder: Path) -> None:
        """Write the device's trace as profilers lay it out, and what the profile says."""
        now = time.strftime("%Y_%m_%d_%H_%M_%S")
        below = folder.expanduser() / "plugins" / "profile" / now
        try:
            below.mkdir(parents=True, exist_ok=True)
            for window in self._windows.windows:
                name = f"{socket.gethostname()}.xplane.pb"
                (below / name).write_bytes(window.trace.data)
            self.save(folder.expanduser() / "profile.json")
        except OSError as error:
            raise ProfileError(
                f"the profile was taken, but cannot be written to {folder}: "
                f"{error.strerror or error}. Call save() with a path that you may write to."
            ) from error

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop(wait=error[0] is None)

    def _listeners(self) -> Iterator[tuple[Any, ...]]:
        """Yield what listens, and to which kinds of events; in the order in which it is told."""
        from lazyrt.observe import events

        unused = {events.GraphCaptured, events.CacheHit, events.OpRecorded}
        unused |= {events.OpTraced, events.CompiledCallTraced}
        every = set(events.Event.__subclasses__()) - unused
        yield self._notes.add, *(k for k in every if k.__module__ == events.__name__)
        yield from self._windows.listeners()

    @cached_property
    def _noted(self) -> list[host.Noted]:
        if not self.end_ns:
            raise ProfileError(
                "this profile is still being taken, so it says nothing yet. Leave its `with` "
                "block, or call stop()."
            )
        return list(self._notes)

    # -------------------------------------------------------------------- what it says

    @cached_property
    def _host(self) -> host.HostTime:
        return host.host_time(
            self._noted, self._pauses, self._thread or 0, self.start_ns, self.end_ns
        )

    @cached_property
    def _device(self) -> device.DeviceTime:
        noted = self._noted
        if self._windows.fault:
            found = device.untraced_time(noted)
        else:
            every = (event for event, _, _ in noted)
            launches = [e for e in every if type(e).__name__ == "ExecuteStarted"]
            programs, ends = _programs(launches), device.ends_of(noted)
            found = device.device_time(
                self._windows.windows, launches, programs, ends, self.end_ns
            )
        found.busy = [*within(found.busy, self.start_ns, self.end_ns)]
        return found

    @cached_property
    def steps(self) -> tuple[host.StepTime, ...]:
        """The steps that ended while it was taken, in order."""
        found = self._device
        return tuple(
            host.step_times(
                self._noted, self._host, found.busy, found.by_step, self.start_ns
            )
        )

    @cached_property
    def gaps(self) -> tuple[host.Gap, ...]:
        """Stretches of a millisecond or more in which the program waited at one of its lines."""
        return tuple(host.gaps_of(self._host, self._device.busy, self.steps, self.idle))

    @cached_property
    def idle(self) -> tuple[host.Idle, ...]:
        """Stretches of a millisecond or more in which the device had nothing to do, in order."""
        return tuple(
            host.idle_of(
                self._host, self._device.busy, self.steps, self.start_ns, self.end_ns
            )
        )

    @cached_property
    def waits(self) -> tuple[host.Wait, ...]:
        """Lines that waited for the device, so that recording did not overlap, the longest first."""
        return tuple(host.waits_of(self._host, self._noted))

    @property
    def duty_cycle(self) -> float:
        """The part of the time in which the device worked, from 0 to 1."""
        return self.device_ns / self.duration_ns

    @property
    def overlap(self) -> float:
        """The part of the device's work during which the host did something else than wait."""
        worked = sum(step.busy_ns for step in self.steps)
        return sum(step.overlap_ns for step in self.steps) / worked if worked else 0.0

    @cached_property
    def lines(self) -> tuple[device.LineTime, ...]:
        """The device's time by line, the largest first."""
        return tuple(self._device.lines)

    @cached_property
    def devices(self) -> tuple[device.DeviceRow, ...]:
        """What each device did, where programs ran on several; empty for one."""
        return tuple(self._device.devices)

    @cached_property
    def scopes(self) -> tuple[device.ScopeTime, ...]:
        """The device's time by scope, the largest first."""
        known = {each.scope: each for each in self._device.scopes}
        for path, times in host.block_times(self._noted, self._device.busy).items():
            found = known.get(path) or device.ScopeTime(scope=path)
            known[path] = replace(found, host_ns=times[0], busy_ns=times[1])
        return tuple(sorted(known.values(), key=lambda each: -each.device_ns))

    @cached_property
    def inputs(self) -> tuple[InputTime, ...]:
        """How the loops got their batches, the one that waited longest first."""
        thread = self._thread or 0
        return tuple(
            advice.input_times(self._noted, self._pauses, thread, self._busy_between)
        )

    @cached_property
    def reads(self) -> tuple[ReadTime, ...]:
        """The lines that read values of the device again and again, the costliest first."""
        thread = self._thread or 0
        return tuple(advice.read_times(self._noted, thread, self._busy_between))

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """What the picture shows: the host, steps, compiles, transfers, each device, memory.

        Of a very long profile, the time of the latest 200,000.
        """
        timeline = Timeline(most=_MAX_SPANS)
        runs = self._device.runs
        for event, now, _ in self._noted:
            if not runs or type(event).__name__ != "ExecuteFinished":
                timeline.add(event, now, None)
        found = (
            *_host_spans(self._host, self.start_ns, self.end_ns),
            *timeline.spans,
            *_device_spans(runs),
            *_memory_spans(runs),
        )
        if len(found) <= _MAX_SPANS:
            return found
        since = sorted(span.end_ns for span in found)[-_MAX_SPANS]
        return tuple(span for span in found if span.end_ns >= since)

    @property
    def timeline(self) -> TimelineView:
        """What happened when, with a row for each device and one for its memory."""
        own = {*LANES, *(span.lane for span in self.spans)}
        several = sorted(
            (lane for lane in own if lane.startswith(("device ", "memory "))),
            key=lambda lane: (lane[:6], int(lane.split()[1])),
        )
        lanes = (*LANES[:-1], *(several or (*LANES[-1:], "memory")))
        whole = CellTime(
            number=None,
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            parts=self.parts,
            device_ns=self.device_ns,
        )
        return TimelineView(
            cells=[whole],
            spans=self.spans,
            whole="profile",
            lanes=[lane for lane in lanes if lane in own],
        )

    def _busy_between(self, start: int, end: int) -> int:
        return overlap_ns(self._device.busy, start, end)

    @cached_property
    def advice(self) -> tuple[str, ...]:
        """What would make a step shorter, in sentences; empty where little would."""
        every = [each.sentence for each in self.inputs]
        every += [each.sentence for each in self.reads]
        return tuple(filter(None, every))

    @property
    def duration_ns(self) -> int:
        """How long it was taken."""
        return self.end_ns - self.start_ns

    @cached_property
    def parts(self) -> dict[str, int]:
        """The thread's time by phase, which adds up to the duration."""
        return self._host.parts

    @cached_property
    def device_ns(self) -> int:
        """How long the device worked."""
        return sum(end - start for start, end in self._device.busy)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data, which JSON can hold."""
        return {
            "producer": f"{_PRODUCER} {__version__}",
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "duration_ns": self.duration_ns,
            "device_ns": self.device_ns,
            "parts": self.parts,
            "duty_cycle": self.duty_cycle,
            "overlap": self.overlap,
            **{name: [*map(asdict, getattr(self, name))] for name in _KINDS},
            "steps": [
                {**asdict(each), "duty_cycle": each.duty_cycle, "overlap": each.overlap}
                for each in self.steps
            ],
            "spans": [list(each) for each in self.spans],
            "advice": list(self.advice),
            "dropped": self.dropped,
        }

    def diff(self, before: Profile) -> ProfileDiff:
        """Return what a step takes now and took before, step by step and line by line.

        Args:
            before: An earlier profile of the loop, also one read back from a file.
        """
        return ProfileDiff(before, self)

    def save(self, path: str | Path) -> Path:
        """Write it as JSON and return the path; `load` reads it.

        Raises:
            ProfileError: The path cannot be written.
        """
        target = path_of(path, "save()", ProfileError).expanduser()
        try:
            target.write_text(json.dumps(self.to_dict()), "utf-8")
        except OSError as error:
            raise ProfileError(
                f"the profile cannot be written to {target}: {error.strerror or error}. Give a "
                "path in a folder that exists and that you may write to."
            ) from error
        return target

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return a profile that `save` wrote.

        Raises:
            ProfileError: It cannot be read, or is no such file.
        """
        source = path_of(path, "load()", ProfileError).expanduser()
        try:
            data = json.loads(source.read_text("utf-8"))
            found = cls()
            for name, kind in _KINDS.items():
                rows = data.get(name, ())
                found.__dict__[name] = tuple(map(partial(_restored, kind), rows))
            for name in ("start_ns", "end_ns", "device_ns", "parts", "dropped"):
                found.__dict__[name] = data[name]
            found.__dict__["spans"] = tuple(Span(*row) for row in data.get("spans", ()))
            found.__dict__["advice"] = tuple(data["advice"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = getattr(error, "strerror", None) or repr(error)
            raise ProfileError(
                f"{source} cannot be read as a profile: {why}. It must be a file that "
                "save() of lazyviz.profile() wrote."
            ) from error
        return found

    def doc(self) -> Doc:
        """Return the phases, the longest gaps, the lines of the device and the steps."""
        if not self.end_ns:
            state = "is being taken" if self.is_running else "has not begun"
            return Doc([Line(f"This profile {state}.")])
        parts: list[Part] = [Line(self._summary())]
        what = "timeline of the profile: the tables below say the same"
        parts += picture(self.timeline, what)
        if self.advice:
            parts.append(Points(self.advice))
        if self.gaps:
            parts.append(self._gap_table())
        if self.lines:
            parts.append(self._line_table())
        if self.devices:
            rows = [
                [r.device, r.runs, text.duration(r.busy_ns), text.duration(r.behind_ns)]
                for r in self.devices
            ]
            parts.append(Table(["device", "runs", "time", "ends later by"], rows))
        parts += self._heat_map()
        at_lines = [gap for gap in self.gaps if gap.at] or self.gaps
        longest = max(at_lines, key=lambda gap: gap.duration_ns, default=None)
        if longest is not None:
            parts.append(Sentence(f"The longest: {longest.sentence}"))
        parts += [Sentence(words) for words in self._remarks() if words]
        if self.steps:
            parts.append(
                Fold(
                    text.plural(len(self.steps), "step"),
                    [self._step_table()],
                    in_text=True,
                )
            )
        return Doc(
            parts,
            css_class="lazyviz-profile",
            gap="\n\n",
            live=lambda: widget(self.timeline),
        )

    def roofline(self) -> Doc:
        """Return how close each line comes to what this machine reaches.

        The machine is measured once in a process, which takes a few tenths of a second.
        """
        reach = device.machine()
        rows = []
        for each in self.lines[:_MAX_ROWS]:
            if not each.device_ns or not each.flops:
                continue
            speed, roof = each.flops / each.device_ns, reach.roof(each.intensity)
            by = "compute" if roof == reach.flops_per_ns else "memory"
            rows.append(
                [
                    each.at or "no line",
                    f"{each.intensity:.1f}",
                    f"{speed:.2f}",
                    f"{each.nbytes / each.device_ns:.2f}",
                    f"{roof:.2f}",
                    text.share(speed, roof),
                    by,
                ]
            )
        header = ["line", "FLOPs/byte", "GFLOP/s", "GB/s", "roof", "of it", "bound by"]
        said = (
            f"This machine reaches {reach.flops_per_ns:.1f} GFLOP/s in a product of matrices and "
            f"{reach.bytes_per_ns:.1f} GB/s in a sum, measured just now or earlier in this process."
        )
        return Doc([Line(said), Table(header, rows)])

    def _heat_map(self) -> Iterator[Part]:
        """Yield the source with the device's time and the program's waits on each line."""
        waits: defaultdict[str, Counter[int]] = defaultdict(Counter)
        worked: defaultdict[str, Counter[int]] = defaultdict(Counter)
        every = [*self.lines, *self.gaps]
        names = {x.file: f"cell {x.cell}" if x.cell else x.file for x in every}
        for gap in self.gaps:
            waits[gap.file][gap.line] += gap.duration_ns
        for line in self.lines:
            worked[line.file][line.line] += line.device_ns
        parts = [
            html.source_map(name, linecache.getlines(file), worked[file], waits[file])
            for file, name in names.items()
            if file
        ]
        if drawn := "".join(parts):
            said = "the source: where the device worked, where the program waited"
            yield Fold(said, [Drawn("", lambda: drawn)])

    def _summary(self) -> str:
        shares = ", ".join(
            f"{phase} {text.share(ns, self.duration_ns)}"
            for phase, ns in sorted(self.parts.items(), key=lambda item: -item[1])
        )
        return (
            f"profile of {text.duration(self.duration_ns)}: the device worked "
            f"{text.share(self.device_ns, self.duration_ns)} of it; the host: {shares}"
        )

    def _remarks(self) -> list[str]:
        """Return what keeps recording and execution apart, the trend, and what is not known."""
        found = []
        if self.waits:
            most = self.waits[0]
            found.append(
                f"Recording and execution overlap {text.share(self.overlap)} of the device's "
                f"time: {most.at} waits for the device"
                f"{f' ({most.cause})' if most.cause else ''}, "
                f"{text.duration(most.duration_ns)} in {text.plural(most.times, 'wait')}."
                + " Read less often, or a step later."
                * (most.duration_ns >= advice.WORTH_IT * self.duration_ns)
            )
        steady = [step for step in self.steps if not step.compiled]
        third = len(steady) // 3
        if third:
            first, last = (
                sum(s.busy_ns for s in part) / sum(s.duration_ns for s in part)
                for part in (steady[:third], steady[-third:])
            )
            found.append(
                f"Duty cycle by step: {text.share(first)} in the first third of the steps, "
                f"{text.share(last)} in the last."
            )
        if self._windows.fault:
            found.append(
                "The device's time is known by its executions only, not by line: "
                f"{self._windows.fault}"
            )
        if self.dropped:
            more = text.plural(self.dropped, "event")
            found.append(
                f"{more} more came than a profile keeps, so its end is missing. Profile fewer "
                "steps: %%lazy profile --steps 20."
            )
        return found

    def _gap_table(self) -> Part:
        by_line: dict[str, list[host.Gap]] = defaultdict(list)
        for gap in self.gaps:
            by_line[gap.at or "no line"].append(gap)
        ranked = sorted(
            by_line.items(), key=lambda item: -sum(g.duration_ns for g in item[1])
        )
        rows = [
            [
                at,
                len(found),
                text.duration(sum(g.duration_ns for g in found)),
                text.duration(max(g.duration_ns for g in found)),
                text.duration(sum(g.idle_ns for g in found)),
            ]
            for at, found in ranked[:_MAX_ROWS]
        ]
        header = ["line", "gaps", "time", "longest", "device idle"]
        return Doc(
            [
                Note("where the program waited or computed elsewhere:"),
                Table(header, rows),
            ]
        )

    def _line_table(self) -> Part:
        rows = [
            [
                each.at or "no line",
                text.duration(each.device_ns),
                text.share(each.device_ns, self.device_ns),
                *(
                    text.duration(ns) if ns else ""
                    for ns in (each.forward_ns, each.backward_ns, each.update_ns)
                ),
                count_words(each.flops) if each.flops else "",
                text.size(each.nbytes) if each.nbytes else "",
                clip(linecache.getline(each.file, each.line).strip(), _MAX_SOURCE),
            ]
            for each in self.lines[:_MAX_ROWS]
        ]
        header = ["line", "device", "share", "forward", "backward", "update"]
        header += ["FLOPs", "bytes", "source"]
        return Doc(
            [Note("the device's time by line, after fusion:"), Table(header, rows)]
        )

    def _step_table(self) -> Table:
        rows = [
            [
                each.number,
                text.duration(each.duration_ns),
                text.share(each.duty_cycle),
                text.share(each.overlap),
                each.cause,
                each.at,
            ]
            for each in self.steps[-_MAX_ROWS:]
        ]
        return Table(
            ["step", "time", "duty cycle", "overlap", "ended by", "line"], rows
        )


# ------------------------------------------------------------------------- the picture


def _host_spans(found: host.HostTime, start_ns: int, end_ns: int) -> Iterator[Span]:
    """Yield what the thread did; what lies between its stretches is recording."""
    since, name = start_ns, "trace: recording ops"
    for each in found.stretches:
        start, end = each.start_ns, each.end_ns
        if start > since:
            yield Span("host", "trace", name, since, start, None)
        yield Span(
            "host", each.phase, each.phase, start, end, None, str(each.site or "")
        )
        since = max(since, end)
    if since < end_ns:
        yield Span("host", "trace", name, since, end_ns, None)


def _device_spans(runs: Sequence[device.Run]) -> Iterator[Span]:
    """Yield the runs of programs, in a row for each device where there are several."""
    numbers = {each.device for each in runs}
    for each in runs:
        launch, lane = each.launch, "device"
        if len(numbers) > 1:
            lane = f"device {each.device}"
        kind, name, graph = "program", "a program", ""
        if launch is not None:
            kind, name = launch.purpose, f"{launch.purpose} {launch.step}"
            graph = f"graph {launch.fingerprint[:8]}"
            if launch.programs == 1:
                name += f", {text.plural(launch.nodes, 'op')}"
        if each.is_like:
            graph += "; not traced, taken to be like its other runs"
        yield Span(lane, kind, name, each.start_ns, each.end_ns, None, "", graph)


def _memory_spans(runs: Sequence[device.Run]) -> Iterator[Span]:
    """Yield what programs hold, by device; the most of it where they were not traced."""
    from lazyviz.inspection.numerics import of_hlo

    programs = {each.program for each in runs if each.program is not None}
    held = {program: of_hlo(program.text) for program in programs}
    most = max((max(each.live_bytes(), default=0) for each in held.values()), default=0)
    numbers = {each.device for each in runs}
    for run in runs:
        if run.program is None or not most:
            continue
        lane = f"memory {run.device}" if len(numbers) > 1 else "memory"
        lives = held[run.program]
        taken, (peak_at, _) = lives.live_bytes(), lives.at_peak()
        begins = [run.start_ns] * len(taken)
        for each in lives.tensors:
            name = each.name.partition(" ")[0]
            begins[each.born] = run.starts.get(name, run.start_ns)
        begins = [*itertools.accumulate(begins, max)]
        points = [*enumerate(zip(begins, [*begins[1:], run.end_ns], strict=True))]
        if run.is_like:
            points = [(peak_at, (run.start_ns, run.end_ns))]
        for at, (begin, end) in points:
            is_peak = at == peak_at
            if end <= begin and not is_peak:
                continue
            kind = "peak" if is_peak and not run.is_like else "memory"
            name = f"{'peak memory' if is_peak else 'memory'} {text.size(taken[at])}"
            detail, level = _at_peak(lives) if kind == "peak" else "", taken[at] / most
            yield Span(lane, kind, name, begin, end, None, "", detail, 0, level)


def _at_peak(lives: Lifetimes) -> str:
    """Return the largest tensors at the peak."""
    _, there = lives.at_peak()
    named = [
        f"{each.name.partition(' ')[2] or each.name} {each.type} {text.size(each.nbytes)}"
        for each in there[:_AT_PEAK]
    ]
    more = len(there) - _AT_PEAK
    rest = f" and {text.plural(more, 'smaller one')}" if more > 0 else ""
    return f"{', '.join(named)}{rest}"


_latest: list[Profile] = []


def latest() -> Profile | None:
    """Return the last profile that has been taken; None if none was."""
    return _latest[-1] if _latest else None


_KINDS: dict[str, type[Any]] = {
    "gaps": host.Gap,
    "idle": host.Idle,
    "waits": host.Wait,
    "lines": device.LineTime,
    "scopes": device.ScopeTime,
    "devices": device.DeviceRow,
    "steps": host.StepTime,
    "inputs": advice.InputTime,
    "reads": advice.ReadTime,
}


def _restored(kind: type[Any], data: dict[str, Any]) -> Any:
    """Return an object from what `asdict` made of it, beside what follows from it."""
    names = {each.name for each in fields(kind)}
    given = {name: value for name, value in data.items() if name in names}
    return kind(**{k: tuple(v) if type(v) is list else v for k, v in given.items()})


def _programs(launches: list[ExecuteStarted]) -> dict[str, list[device.Program]]:
    """Return the builds of the programs that ran, by fingerprint."""
    import lazyrt
    from lazyrt import tools

    found: dict[str, list[device.Program]] = {}
    for launch in launches:
        if launch.fingerprint in found:
            continue
        record = lazyrt.graph_of_step(launch.step) if launch.purpose == "step" else None
        nodes: list[Sequence[Node]] = []
        if record is not None and record.fingerprint == launch.fingerprint:
            both = record.recorded, record.graph
            nodes = [graph.nodes for graph in both if graph is not None]
        found[launch.fingerprint] = [
            device.Program(each, *nodes)
            for each in tools.compiled_texts(launch.fingerprint)
        ]
    return found


# ------------------------------------------------------ two profiles, aligned by step


class Pair(NamedTuple):
    """One step of both profiles."""

    before: host.StepTime
    after: host.StepTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a line took for each step.

    Attributes:
        what: `waits`, `waits for the device`, or `device` for what it cost there.
        at: The line.
        before_ns, after_ns: For one step.
    """

    what: str
    at: str
    before_ns: float
    after_ns: float

    @property
    def change_ns(self) -> float:
        """How much more it takes now; negative for less."""
        return self.after_ns - self.before_ns


class ProfileDiff(Displayed):
    """The differences between two profiles of a loop.

    Attributes:
        before_ns, after_ns: What a step took on average, without those that compiled, and what it
            takes now; 0 without a step in both.

    Args:
        before: The earlier one.
        after: The later one.
    """

    def __init__(self, before: Profile, after: Profile) -> None:
        self._before, self._after = before, after
        self.pairs = tuple(_aligned(before.steps, after.steps))
        changes = _changes(before, after)
        self.changes = tuple(sorted(changes, key=lambda each: -abs(each.change_ns)))
        ran = [p for p in self.pairs if not (p.before.compiled or p.after.compiled)]
        self.before_ns, self.after_ns = (
            statistics.fmean(
                [pair[side].duration_ns for pair in ran or self.pairs] or [0]
            )
            for side in (0, 1)
        )

    @property
    def sentence(self) -> str:
        """What changed, and at which line most."""
        if not self.pairs:
            return "No step is in both profiles, so there is nothing to compare."
        said = (
            f"A step takes {text.duration(self.after_ns)}, was {text.duration(self.before_ns)} "
            f"({_percent(self.before_ns, self.after_ns)}), over "
            f"{text.plural(len(self.pairs), 'step')} of both."
        )
        towards = self.after_ns - self.before_ns
        same_way = (each for each in self.changes if each.change_ns * towards > 0)
        top = next(same_way, None)
        if top is None:
            return said
        verb = "costs the device" if top.what == "device" else top.what
        return (
            f"{said} Most of it: {top.at} {verb} {text.duration(top.after_ns)} a step, was "
            f"{text.duration(top.before_ns)}."
        )

    @property
    def predictions(self) -> tuple[str, ...]:
        """For each line that reads less often now: what was predicted of a step, and what it takes."""
        now = {each.at: each for each in self._after.reads}
        pairs = [(each, now[each.at]) for each in self._before.reads if each.at in now]
        found = [self._confronted(*pair) for pair in pairs]
        return tuple(filter(None, found))

    def _confronted(self, before: ReadTime, after: ReadTime) -> str:
        each, every = (
            round(len(_own_steps(profile.steps)) / (read.reads + 1))
            for profile, read in ((self._before, before), (self._after, after))
        )
        if each != 1 or every <= 1:
            return ""
        predicted, took = before.predicted_ns(every), after.period_ns / every
        error = math.hypot(
            *(
                error_ns([step.end_ns for step in _own_steps(profile.steps)])
                for profile in (self._before, self._after)
            )
        )
        varies = f"± {text.duration(error)}, as steps vary"
        said = (
            f"The read at {before.at}, in one of {every} steps instead of each: the earlier profile "
            f"predicts {text.duration(predicted)} a step, and it takes {text.duration(took)}; with "
            f"a read in each it took {text.duration(before.period_ns)}."
        )
        if abs(before.period_ns - predicted) <= error:
            return (
                f"{said} These are known to {varies}, which is more than was to be won, so this run "
                "says nothing about the prediction."
            )
        if abs(took - predicted) <= error:
            return f"{said} Both agree ({varies})."
        return (
            f"{said} They differ by more than {varies}: the prediction takes it that recording and "
            "execution do not slow each other down, and that the machine is as busy as before."
        )

    def doc(self) -> Doc:
        """Return the sentence, the lines that changed most, and the steps side by side."""
        parts: list[Part] = [Line(self.sentence), *map(Sentence, self.predictions)]
        what = "the steps of both profiles, aligned: the tables below say the same"
        parts += picture(self.timeline, what)
        lines = [
            [
                each.at or "no line",
                each.what,
                text.duration(each.before_ns),
                text.duration(each.after_ns),
                _signed(each.change_ns),
            ]
            for each in self.changes[:_MAX_ROWS]
        ]
        if self.pairs and lines:
            header = ["line", "what", "before", "after", "change"]
            parts.append(Doc([Note("by line, for each step:"), Table(header, lines)]))
        if self.pairs:
            count = text.plural(len(self.pairs), "step")
            parts.append(Fold(f"{count} side by side", [self._steps()], in_text=True))
        return Doc(
            parts,
            css_class="lazyviz-profile-diff",
            gap="\n\n",
            live=lambda: widget(self.timeline),
        )

    @property
    def timeline(self) -> TimelineView:
        """The latest steps of both profiles, those of a pair from the same moment on."""
        cells, spans, since = [], list[Span](), 0
        for pair in self.pairs[-_MAX_ROWS:]:
            for step, profile, row in zip(
                pair, (self._before, self._after), _ROWS, strict=True
            ):
                spans += _moved(step, profile.spans, row, since)
            end = since + max(step.duration_ns for step in pair)
            cells.append(
                CellTime(number=None, start_ns=since, end_ns=end, parts={}, device_ns=0)
            )
            since = end + 1  # a cell of its own, with a break before it
        own = sorted({span.lane for span in spans}, key=_rank)
        return TimelineView(cells=cells, spans=spans, whole="two profiles", lanes=own)

    def _steps(self) -> Table:
        rows = [
            [
                before.number,
                after.number,
                text.duration(before.duration_ns),
                text.duration(after.duration_ns),
                _percent(before.duration_ns, after.duration_ns),
                text.share(before.duty_cycle),
                text.share(after.duty_cycle),
            ]
            for before, after in self.pairs[-_MAX_ROWS:]
        ]
        header = ["step", "is step", "before", "after", "change", "duty before", "duty after"]  # fmt: skip
        return Table(header, rows)


def _own_steps(steps: Sequence[host.StepTime]) -> Sequence[host.StepTime]:
    """Return the steps that the program ends itself; all if only reads end them."""
    return [each for each in steps if not each.cause.startswith("read")] or steps


def _moved(
    step: host.StepTime, spans: Iterable[Span], row: str, to_ns: int
) -> Iterable[Span]:
    """Yield a step, and what the host and the devices did in its time, from a moment on."""
    name, moved = f"step {step.number}", to_ns - step.start_ns
    yield Span(f"{row}: step", "run", name, to_ns, step.end_ns + moved, None)
    for span in spans:
        start, end = max(span.start_ns, step.start_ns), min(span.end_ns, step.end_ns)
        is_shown = span.kind != "handover" and span.lane.startswith(_SHOWN[1:])
        if is_shown and start < end:
            yield span._replace(
                lane=f"{row}: {span.lane}", start_ns=start + moved, end_ns=end + moved
            )


def _rank(lane: str) -> tuple[int, int, str]:
    """Return where a row stands: all of the earlier profile first."""
    row, name = lane.split(": ")
    return _ROWS.index(row), _SHOWN.index(name.split()[0]), name


def _aligned(
    before: Iterable[host.StepTime], after: Iterable[host.StepTime]
) -> Iterable[Pair]:
    """Yield the steps of one name in both: of the user's same number, else in their order."""
    earlier = list(before)
    later = list(after)
    numbers = {_key(each): each for each in earlier if each.step_num is not None}
    shared = [each for each in later if _key(each) in numbers]
    if shared and len({_key(each) for each in shared}) == len(shared):
        for step in shared:
            yield Pair(numbers[_key(step)], step)
        return
    waiting: dict[str, deque[host.StepTime]] = defaultdict(deque)
    for step in earlier:
        waiting[step.name].append(step)
    for step in later:
        if waiting[step.name]:
            yield Pair(waiting[step.name].popleft(), step)


def _key(step: host.StepTime) -> tuple[str, int | None]:
    return step.name, step.step_num


def _changes(before: Profile, after: Profile) -> Iterable[Change]:
    """Yield how long each line waited for each step, and what it cost the device."""
    was, now = _for_each_step(before), _for_each_step(after)
    for key in was | now:
        what, at = key
        yield Change(what=what, at=at, before_ns=was[key], after_ns=now[key])


def _for_each_step(profile: Profile) -> Counter[tuple[str, str]]:
    total: Counter[tuple[str, str]] = Counter()
    for gap in profile.gaps:
        total["waits", gap.at] += gap.duration_ns
    for wait in profile.waits:
        total["waits for the device", wait.at] += wait.duration_ns
    for line in profile.lines:
        total["device", line.at] += line.device_ns
    steps = max(len(profile.steps), 1)
    return Counter({key: ns // steps for key, ns in total.items()})


def _percent(before: float, after: float) -> str:
    if not before:
        return ""
    return f"{100 * (after - before) / before:+.0f} %"


def _signed(ns: float) -> str:
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{text.duration(abs(ns))}"
