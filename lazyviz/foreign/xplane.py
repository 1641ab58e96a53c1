"""A profile as tables and a timeline: threads, steps, instructions, what took the time.

jax reads the files, `*.xplane.pb`, as jax, TensorFlow and torch_xla write them. Trace-event files,
which Perfetto opens, come from `%lazy timeline --export`, jax, torch's profiler and others.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from lazyviz.doc import Doc, Fold, Note, Part, Picture, Table
from lazyviz.foreign import Evidence, EvidenceError, file_bytes
from lazyviz.render import text
from lazyviz.render.timeline_svg import timeline_svg
from lazyviz.render.timeline_text import CellTime, Span, TimelineView, union

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

SUFFIX = ".xplane.pb"
_MAX_BYTES = 256 * 2**20  # a million events or so, which take some ten seconds
# On a TPU an event's name is the whole text of its instruction.
_INSTRUCTION = re.compile(r"%(\S+) = ")
_LINES = ["plane", "line", "events", "busy", "from", "to"]
_STEPS = ["step", "name", "at", "time", "instructions"]
_OPS = ["instruction", "module", "runs", "time", "share", "mean"]
_EVENTS = ["event", "times", "time", "own time", "mean"]
_MAX_ROWS = 20
_MAX_EVENTS = 200
# Events of Python's own frames, and of the profiler, are not the user's annotations.
_FRAME = "$"
_TRANSFERS = (
    ("to_device", ("BufferFromHost", "TransferToDevice", "CopyToDevice", "H2D")),
    ("to_host", ("ToLiteral", "TransferFromDevice", "CopyToHost", "D2H")),
)


class ProfileEvent(NamedTuple):
    """Something that took time on a thread or a stream.

    Attributes:
        name: What.
        start_ns, duration_ns: When, since 1970, and how long.
        stats: What the profiler noted of it, such as `hlo_op`, `hlo_module`, `step_num`.
    """

    name: str
    start_ns: int
    duration_ns: int
    stats: Mapping[str, Any]

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self.start_ns + self.duration_ns


class ProfileLine(NamedTuple):
    """A thread or a stream, with its events in order."""

    name: str
    events: tuple[ProfileEvent, ...]


class ProfilePlane(NamedTuple):
    """A host or a device, with its lines."""

    name: str
    lines: tuple[ProfileLine, ...]
    stats: Mapping[str, Any]


@dataclass(frozen=True, slots=True, repr=False)
class Profile(Evidence):
    """What a profiler saw.

    Attributes:
        planes: Hosts and devices, in the file's order.
    """

    planes: tuple[ProfilePlane, ...]

    def doc(self) -> Doc:
        """Return a timeline, the threads, steps and instructions, and the rest by time."""
        parts: list[Part] = [
            Note(self._summary()),
            Picture(timeline_svg(self._timeline()), "timeline of the profile"),
            *(
                Doc([Note(title), Table(header, rows)])
                for title, header, rows in self._tables()
            ),
        ]
        for plane, line in self.lines():
            events = text.plural(len(line.events), "event")
            listing = self._listing(line.events[:_MAX_EVENTS])
            parts.append(Fold(f"{plane.name} {line.name}: {events}", [listing]))
        return Doc(parts, css_class="lazyviz-profile", gap="\n\n")

    def lines(self) -> Iterator[tuple[ProfilePlane, ProfileLine]]:
        """Yield the threads and streams that have events, with their planes."""
        for plane in self.planes:
            for line in plane.lines:
                if line.events:
                    yield plane, line

    @property
    def steps(self) -> list[ProfileEvent]:
        """What the program marked as steps, in order."""
        found = [event for event in self._events() if "step_num" in event.stats]
        return sorted(found, key=lambda event: event.start_ns)

    @property
    def instructions(self) -> list[ProfileEvent]:
        """The runs of instructions of XLA."""
        return [event for event in self._events() if "hlo_op" in event.stats]

    @property
    def start_ns(self) -> int:
        """When the first event began; 0 without events."""
        return min((event.start_ns for event in self._events()), default=0)

    @property
    def end_ns(self) -> int:
        """When the last event ended; 0 without events."""
        return max((event.end_ns for event in self._events()), default=0)

    def _events(self) -> Iterator[ProfileEvent]:
        for _, line in self.lines():
            yield from line.events

    def _summary(self) -> str:
        events = sum(len(line.events) for _, line in self.lines())
        lines = sum(1 for _ in self.lines())
        length = text.duration(self.end_ns - self.start_ns)
        known: dict[str, Any] = {}
        for plane in self.planes:
            known |= plane.stats
        versions = [
            f"{name.removesuffix('_version')} {known[name]}"
            for name in ("jax_version", "jaxlib_version", "libtpu_version")
            if name in known
        ]
        counted = f"{text.plural(events, 'event')} on {text.plural(lines, 'line')}"
        return " · ".join([f"profile of {length}", counted, *versions])

    def _tables(self) -> Iterator[tuple[str, list[str], list[list[object]]]]:
        yield "threads and streams", _LINES, self._line_rows()
        steps, instructions = self.steps, self.instructions
        if steps:
            yield _titled("steps", len(steps)), _STEPS, self._step_rows(steps)
        if instructions:
            rows = _instruction_rows(instructions)
            yield _titled("instructions by time", len(rows)), _OPS, rows[:_MAX_ROWS]
        others = self._other_rows()
        if others:
            yield (
                _titled("the rest by own time", len(others)),
                _EVENTS,
                others[:_MAX_ROWS],
            )

    def _line_rows(self) -> list[list[object]]:
        zero = self.start_ns
        return [
            [
                plane.name,
                line.name,
                len(line.events),
                text.duration(_busy(line.events)),
                text.duration(line.events[0].start_ns - zero),
                text.duration(max(event.end_ns for event in line.events) - zero),
            ]
            for plane, line in self.lines()
        ]

    def _step_rows(self, steps: Sequence[ProfileEvent]) -> list[list[object]]:
        instructions, zero = self.instructions, self.start_ns
        return [
            [
                step.stats["step_num"],
                step.name,
                text.duration(step.start_ns - zero),
                text.duration(step.duration_ns),
                sum(
                    step.start_ns <= each.start_ns < step.end_ns
                    for each in instructions
                ),
            ]
            for step in steps[:_MAX_ROWS]
        ]

    def _other_rows(self) -> list[list[object]]:
        times, whole, own = Counter[str](), Counter[str](), Counter[str]()
        for _, line in self.lines():
            for event in filter(_is_other, line.events):
                times[event.name] += 1
                whole[event.name] += event.duration_ns
            every = [(each.start_ns, each.end_ns, each) for each in line.events]
            for start_ns, end_ns, event in innermost(every):
                if _is_other(event):
                    own[event.name] += end_ns - start_ns
        return [
            [
                name,
                times[name],
                text.duration(whole[name]),
                text.duration(own[name]),
                text.duration(whole[name] / times[name]),
            ]
            for name in sorted(times, key=lambda name: (-own[name], name))
        ]

    def _listing(self, events: Sequence[ProfileEvent]) -> Table:
        zero = self.start_ns
        rows = [
            [
                text.duration(each.start_ns - zero),
                text.duration(each.duration_ns),
                each.name,
            ]
            for each in events
        ]
        return Table(["at", "time", "event"], rows)

    def _timeline(self) -> TimelineView:
        whole = CellTime(
            number=None,
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            parts={},
            device_ns=_busy(self.instructions),
        )
        if whole.end_ns <= whole.start_ns:
            return TimelineView(cells=[], spans=[])
        spans = [
            Span(lane, kind, event.name, event.start_ns, event.end_ns, None)
            for plane, line in self.lines()
            for event in line.events
            for lane, kind in _lane(plane, line, event)
        ]
        spans.sort(key=lambda span: span.start_ns)
        return TimelineView(cells=[whole], spans=spans, whole="profile")


def read_profile(path: Path) -> Profile:
    """Read one profile, or those of all hosts of a run: the latest one in a folder."""
    files = profiles_in(path) if path.is_dir() else [path]
    if not files:
        raise EvidenceError(
            f"{path} has no profile. jax.profiler.trace(FOLDER) writes "
            f"FOLDER/plugins/profile/TIME/HOST{SUFFIX}; give the folder or the file."
        )
    planes: list[ProfilePlane] = []
    for file in files:
        host = f"{file.name.removesuffix(SUFFIX)}: " if len(files) > 1 else ""
        data = file_bytes(file, _MAX_BYTES, "Profile fewer steps.")
        planes += _planes(data, str(file), host)
    return Profile(tuple(planes))


def parse_trace_events(contents: str) -> Profile:
    """Read the text of a trace-event file: its processes and threads, and what ran on them."""
    try:
        data = json.loads(contents)
        events = data if isinstance(data, list) else data["traceEvents"]
    except (ValueError, TypeError, KeyError) as error:
        raise _broken_trace(error) from None
    return trace_profile(events)


def _broken_trace(error: Exception) -> EvidenceError:
    return EvidenceError(
        f"the text is no trace-event file, or breaks off: {error!r}. The program may have ended "
        "while it was written; export again."
    )


def trace_profile(events: Sequence[Mapping[str, Any]]) -> Profile:
    """Return what a list of trace events says."""
    try:
        named, lines = _threads([event for event in events if "ph" in event])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _broken_trace(error) from None
    if not lines:
        raise EvidenceError(
            "the trace-event file holds no event that took time, so there is nothing to show. Record "
            "while the program runs."
        )
    planes: dict[Any, list[ProfileLine]] = defaultdict(list)
    for (process, thread), found in lines.items():
        found.sort(key=lambda event: (event.start_ns, -event.duration_ns))
        name = named.get((process, thread), f"thread {thread}")
        planes[process].append(ProfileLine(name, tuple(found)))
    return Profile(
        tuple(
            ProfilePlane(
                named.get((process, None), f"process {process}"), tuple(own), {}
            )
            for process, own in planes.items()
        )
    )


_Thread = tuple[Any, Any]
_TORCH_STEP = re.compile(r"ProfilerStep#(\d+)")


def _threads(
    events: Sequence[Mapping[str, Any]],
) -> tuple[dict[_Thread, str], dict[_Thread, list[ProfileEvent]]]:
    """Return the names of processes and threads, and the events of each thread that took time."""
    named: dict[_Thread, str] = {}
    lines: dict[_Thread, list[ProfileEvent]] = defaultdict(list)
    begun: dict[_Thread, list[Mapping[str, Any]]] = defaultdict(list)
    # An end belongs to what began last on its thread, wherever it stands in the file.
    for event in sorted(events, key=lambda event: float(event.get("ts", 0))):
        at = event.get("pid"), event.get("tid")
        match event["ph"]:
            case "M" if event["name"] == "process_name":
                named[at[0], None] = str(event["args"]["name"])
            case "M" if event["name"] == "thread_name":
                named[at] = str(event["args"]["name"])
            case "B":
                begun[at].append(event)
            case "E" if begun[at]:
                first = begun[at].pop()
                lines[at].append(_timed(first, float(event["ts"]) - float(first["ts"])))
            case "X":
                lines[at].append(_timed(event, float(event.get("dur", 0))))
    return named, lines


def _timed(event: Mapping[str, Any], duration_us: float) -> ProfileEvent:
    stats = dict(event.get("args") or {})
    step = _TORCH_STEP.match(str(event["name"]))
    if step:
        stats["step_num"] = int(step[1])
    start, duration = round(float(event["ts"]) * 1000), round(duration_us * 1000)
    return ProfileEvent(str(event["name"]), start, duration, stats)


def profiles_in(folder: Path) -> list[Path]:
    """Return the files of the latest run below a folder; none if there is no profile."""
    found = [
        *folder.glob(f"*{SUFFIX}"),
        *folder.glob(f"plugins/profile/*/*{SUFFIX}"),
        *folder.glob(f"profile/*/*{SUFFIX}"),
    ]
    if not found:
        return []
    latest = max(found, key=lambda path: (path.stat().st_mtime_ns, str(path))).parent
    return sorted(path for path in found if path.parent == latest)


def _planes(data: bytes, source: str, host: str) -> list[ProfilePlane]:
    from jax.profiler import ProfileData

    try:
        planes = [
            ProfilePlane(
                host + plane.name,
                tuple(ProfileLine(line.name, _events(line)) for line in plane.lines),
                _statistics(plane.stats),
            )
            for plane in ProfileData.from_serialized_xspace(data).planes
            if plane.name
        ]
    except (RuntimeError, ValueError) as error:
        raise EvidenceError(
            f"{source} is no profile of XLA, or breaks off: {error}. "
            "The program may have ended while it was written; profile again."
        ) from None
    if not planes:
        raise EvidenceError(
            f"{source} holds no plane, so nothing was profiled. Keep the profiler open while "
            "the program runs."
        )
    return planes


def _events(line: Any) -> tuple[ProfileEvent, ...]:
    found = [
        ProfileEvent(
            instruction[1] if (instruction := _INSTRUCTION.match(name)) else name,
            int(event.start_ns),
            int(event.duration_ns),
            _statistics(event.stats),
        )
        for event in line.events
        for name in (event.name,)
    ]
    return tuple(sorted(found, key=lambda event: (event.start_ns, -event.duration_ns)))


def _statistics(named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return statistics by name, without those that hold bytes."""
    found: dict[str, Any] = {}
    left = iter(named)
    while True:
        try:
            name, value = next(left)
        except StopIteration:
            return found
        except UnicodeDecodeError:
            continue
        found[name] = value


def _lane(
    plane: ProfilePlane, line: ProfileLine, event: ProfileEvent
) -> Iterator[tuple[str, str]]:
    """Yield row and colour of an event in the picture; most of the host's have none."""
    if "step_num" in event.stats:
        yield "step", "run"
    elif "hlo_op" in event.stats:
        yield "device", "step"
    elif "compile" in event.name.lower() and event.duration_ns:
        yield "compile", "compile"
    elif kinds := [k for k, marks in _TRANSFERS if any(m in event.name for m in marks)]:
        yield "transfer", kinds[0]
    elif line.name == "python" and not event.name.startswith(_FRAME):
        yield ("host", "runtime") if set(event.name) & set(":(") else ("step", "scope")
    elif "/device:" in plane.name and line.name.startswith(("XLA Ops", "Stream")):
        yield "device", "step"


def _instruction_rows(events: Sequence[ProfileEvent]) -> list[list[object]]:
    runs: Counter[tuple[str, str]] = Counter()
    times: Counter[tuple[str, str]] = Counter()
    for event in events:
        key = str(event.stats["hlo_op"]), str(event.stats.get("hlo_module", ""))
        runs[key] += 1
        times[key] += event.duration_ns
    total = sum(times.values())
    return [
        [
            *key,
            runs[key],
            text.duration(ns),
            text.share(ns, total),
            text.duration(ns / runs[key]),
        ]
        for key, ns in sorted(times.items(), key=lambda item: (-item[1], item[0]))
    ]


def _is_other(event: ProfileEvent) -> bool:
    """Return whether it took time and is no instruction."""
    return "hlo_op" not in event.stats and event.duration_ns > 0


_Key = TypeVar("_Key")


def innermost(events: list[tuple[int, int, _Key]]) -> list[tuple[int, int, _Key]]:
    """Return when each event of a thread, with its start and end, was the innermost one."""
    events.sort(key=lambda event: (event[0], -event[1]))
    found: list[tuple[int, int, _Key]] = []
    stack: list[tuple[int, int, _Key]] = []
    now = 0

    def until(time_ns: int) -> None:
        nonlocal now
        while stack and now < time_ns:
            _, end, key = stack[-1]
            upto = min(end, time_ns)
            if upto > now:
                found.append((now, upto, key))
                now = upto
            if end <= now:
                stack.pop()
        now = max(now, time_ns)

    for event in events:
        until(event[0])
        stack.append(event)
    until(max((event[1] for event in events), default=0))
    return found


def _busy(events: Sequence[ProfileEvent]) -> int:
    """Return how long at least one of some events was under way."""
    busy = union((event.start_ns, event.end_ns) for event in events)
    return sum(end - start for start, end in busy)


def _titled(title: str, count: int) -> str:
    return title if count <= _MAX_ROWS else f"{title}, {_MAX_ROWS} of {count:,}"
