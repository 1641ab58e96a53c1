"""The device's time by line, scope and op, after fusion.

The device's trace has an event for each run of an instruction. The executables carry where each of
their instructions came from, those inside fusions, too. This joins both.

Rules:
* The device works from the first instruction of a program's run to the last. At each instant in
  between the instructions that are under way share the time equally, the innermost ones where they
  nest; time in which none is under way is needed to start the next one, and is counted for it.
* A fusion's time is shared by the work of the instructions inside, in operations on numbers, where
  a division or a root counts 5, an exponential or logarithm 12, and other functions 20. A fusion
  that only moves data is shared by bytes.
* The time of a backward op counts for the line whose forward op it differentiates, as `backward_ns`.
  What follows from gradients, and what only that needs, is the update.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import lazygraph
from lazygraph.diff import callee_graph, callees
from lazygraph.types import flops, type_bytes
from lazyviz.timing.gaps import place, union

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lazygraph import Graph
    from lazyrt.tools import DeviceTrace, Node
    from lazyviz.timing.gaps import Interval

Part = Literal["forward", "backward", "update"]
_BACKWARD = " (backward)"
_SITE = re.compile(r"(.*):(\d+)$")
_FREE = frozenset(
    {
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "iota",
        "after-all",
    }
)
_MOVES = frozenset(
    {"broadcast", "reshape", "transpose", "slice", "concatenate", "pad", "copy", "convert",
     "dynamic-slice", "dynamic-update-slice", "gather", "reverse", "select", "compare"}
)  # fmt: skip
_WEIGHTS = {
    **dict.fromkeys(("divide", "sqrt", "rsqrt", "remainder", "cbrt"), 5.0),
    **dict.fromkeys(
        ("exponential", "log", "exponential-minus-one", "log-plus-one"), 12.0
    ),
    **dict.fromkeys(
        ("tanh", "erf", "logistic", "power", "sine", "cosine", "tan", "atan2"), 20.0
    ),
}
_TOLERANCE_NS = 200_000  # between the clocks of the trace and of the program
_SINCE_1970_NS = 10**17


class Place(NamedTuple):
    """Where an op came from.

    Attributes:
        file, line, cell: The user's line; empty, 0 and None if it is not known.
        scope: Labels and module, joined by `/`.
        op: The framework's name of the op.
        part: Of the step.
    """

    file: str = ""
    line: int = 0
    cell: int | None = None
    scope: str = ""
    op: str = ""
    part: Part = "forward"


class Run(NamedTuple):
    """One run of a program on a device.

    Attributes:
        device, program, number: As the trace numbers them.
        start_ns, end_ns: Of its first and last instruction, of `time.perf_counter_ns`.
        ops: Names of the instructions that ran.
    """

    device: int
    program: int
    number: int
    start_ns: int
    end_ns: int
    ops: frozenset[str]


class Launch(NamedTuple):
    """A program that was handed to the device."""

    fingerprint: str
    purpose: str
    step: int
    time_ns: int


@dataclass(slots=True)
class Traced:
    """What a trace says.

    Attributes:
        runs: In order of their starts.
        spent: Nanoseconds of each instruction, by run's device, program and number, and its name.
        times: How often each ran, likewise.
    """

    runs: list[Run] = field(default_factory=list)
    spent: dict[tuple[int, int, int], Counter[str]] = field(default_factory=dict)
    times: dict[tuple[int, int, int], Counter[str]] = field(default_factory=dict)


_Key = tuple[int, int, int, str]
_Segment = tuple[int, int, _Key]


def read_trace(trace: DeviceTrace) -> Traced:
    """Return the runs of a device's trace and the time of their instructions."""
    segments: list[_Segment] = []
    found = Traced()
    for events in _instructions(trace):
        for _, _, (device, program, number, op) in events:
            run = device, program, number
            found.times.setdefault(run, Counter())[op] += 1
        segments += _innermost(events)
    by_run: dict[tuple[int, int, int], list[_Segment]] = defaultdict(list)
    for segment in segments:
        by_run[segment[2][:3]].append(segment)
    for run, own in by_run.items():
        own.sort()
        segments += _holes(own)
        ops = frozenset(key[3] for _, _, key in own)
        end = max(segment[1] for segment in own)
        found.runs.append(Run(*run, own[0][0], end, ops))
    found.runs.sort(key=lambda run: run.start_ns)
    by_device: dict[int, list[_Segment]] = defaultdict(list)
    for segment in segments:
        by_device[segment[2][0]].append(segment)
    for own in by_device.values():
        for (*run, op), ns in _shared(own).items():
            found.spent.setdefault((run[0], run[1], run[2]), Counter())[op] += ns
    return found


def _instructions(trace: DeviceTrace) -> Iterator[list[_Segment]]:
    """Yield the runs of instructions of each thread or stream."""
    from jax.profiler import ProfileData

    if not trace.data:
        return
    planes = list(ProfileData.from_serialized_xspace(trace.data).planes)
    began = next(
        (
            value
            for plane in planes
            if plane.name == "Task Environment"
            for name, value in plane.stats
            if name == "profile_start_time"
        ),
        0,
    )
    for plane in planes:
        for line in plane.lines:
            events: list[_Segment] = []
            for event in line.events:
                stats = dict(event.stats)
                op = stats.get("hlo_op")
                if op is None:
                    continue
                start = int(event.start_ns)
                if start < _SINCE_1970_NS:
                    start += int(began)
                start -= trace.epoch_ns
                key = (
                    int(stats.get("device_ordinal", 0)),
                    int(stats.get("program_id", 0)),
                    int(stats.get("run_id", 0)),
                    str(op),
                )
                events.append((start, start + int(event.duration_ns), key))
            if events:
                yield events


def _innermost(events: list[_Segment]) -> list[_Segment]:
    """Return when each event of a thread was the innermost one."""
    events.sort(key=lambda event: (event[0], -event[1]))
    found: list[_Segment] = []
    stack: list[_Segment] = []
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


def _holes(segments: Sequence[_Segment]) -> list[_Segment]:
    """Return the time within a run in which nothing is under way, for what begins next."""
    found: list[_Segment] = []
    reached = segments[0][0]
    for start, end, key in segments:
        if start > reached:
            found.append((reached, start, key))
        reached = max(reached, end)
    return found


def _shared(segments: Iterable[_Segment]) -> Counter[_Key]:
    """Return the time of each instruction where those under way at an instant share it."""
    edges: list[tuple[int, int, _Key]] = []
    for start, end, key in segments:
        edges.append((start, 1, key))
        edges.append((end, -1, key))
    edges.sort(key=lambda edge: (edge[0], edge[1]))
    under_way: Counter[_Key] = Counter()
    spent: dict[_Key, float] = defaultdict(float)
    before = 0
    for now, change, key in edges:
        if under_way and now > before:
            part = (now - before) / sum(under_way.values())
            for each, count in under_way.items():
                spent[each] += part * count
        before = now
        under_way[key] += change
        if not under_way[key]:
            del under_way[key]
    return Counter({key: round(ns) for key, ns in spent.items()})


# ----------------------------------------------------------------------------- programs


class Program:
    """An executable's instructions, and where each came from.

    Args:
        text: Its optimised HLO.
        nodes: The ops of its graph as IR; none where that is not kept.
    """

    def __init__(self, text: str, nodes: Sequence[Node] = ()) -> None:
        self._origins = _by_label(nodes)
        self._found: dict[str, tuple[Graph, int]] = {}
        self._shares: dict[str, dict[Place, float]] = {}
        stack, seen = [lazygraph.parse(text)], set[str]()
        while stack:
            graph = stack.pop()
            for node, name in enumerate(graph.names):
                self._found.setdefault(name.removeprefix("%"), (graph, node))
                for _, called in callees(graph, node) if graph.attrs[node] else ():
                    inner = None if called in seen else callee_graph(graph, called)
                    seen.add(called)
                    if inner is not None and graph.ops[node] != "fusion":
                        stack.append(inner)

    def has(self, ops: frozenset[str]) -> bool:
        """Return whether all these are its instructions."""
        return all(op in self._found for op in ops)

    def shares(self, name: str) -> dict[Place, float]:
        """Return where an instruction's time belongs, in shares that add up to 1."""
        known = self._shares.get(name)
        if known is None:
            known = self._shares[name] = self._find_shares(name)
        return known

    def _find_shares(self, name: str) -> dict[Place, float]:
        if name not in self._found:
            return {Place(): 1.0}
        graph, node = self._found[name]
        weights: dict[Place, float] = defaultdict(float)
        for inner, k, weight in self._work(graph, node):
            for where, part in self._places(inner, k).items():
                weights[where] += weight * part
        weights.pop(Place(), None)
        total = sum(weights.values())
        if total:
            return {where: weight / total for where, weight in weights.items()}
        return self._places(graph, node) or self._beside(graph, node)

    def _work(self, graph: Graph, node: int) -> list[tuple[Graph, int, float]]:
        """Return what an instruction holds, with the work of each part."""
        if graph.ops[node] != "fusion":
            return [(graph, node, 1.0)]
        found = [
            (inner, k, _work_of(inner, k))
            for _, name in callees(graph, node)
            if (inner := callee_graph(graph, name)) is not None
            for k in range(len(inner))
        ]
        if any(weight for _, _, weight in found):
            return found
        return [
            (inner, k, float(type_bytes(inner.types[k])))
            for inner, k, _ in found
            if inner.ops[k] not in _FREE
        ]

    def _places(self, graph: Graph, node: int) -> dict[Place, float]:
        """Return the places of one instruction; none if they are not known."""
        origin = graph.origin(node)
        label = f"{origin.scope}/{origin.op_name}" if origin.scope else origin.op_name
        known = self._origins.get((label, origin.site)) or self._origins.get(
            (label, "")
        )
        if known is not None:
            return known
        site = _SITE.match(origin.site)
        if site is None or not origin.op_name or _is_ours(site[1]):
            return {}
        part: Part = "backward" if origin.op_name.endswith(_BACKWARD) else "forward"
        op = origin.op_name.removesuffix(_BACKWARD)
        return {Place(site[1], int(site[2]), None, origin.scope, op, part): 1.0}

    def _beside(self, graph: Graph, node: int) -> dict[Place, float]:
        """Return the places of what reads an instruction of XLA's own, or of what it reads."""
        readers = [k for k in range(node + 1, len(graph)) if node in graph.operands[k]]
        for k in (*readers, *graph.operands[node]):
            name = graph.names[k].removeprefix("%")
            if graph.ops[k] not in _FREE and (found := self.shares(name)):
                return found
        return {Place(): 1.0}

    def cost(self, name: str) -> tuple[float, float]:
        """Return the floating-point operations of an instruction and the bytes that it moves."""
        if name not in self._found:
            return 0.0, 0.0
        graph, node = self._found[name]
        nbytes = type_bytes(graph.types[node])
        nbytes += sum(type_bytes(graph.types[k]) for k in graph.operands[node])
        count = sum(
            _flops(inner, k)
            for inner, k, _ in self._work(graph, node)
            if inner.ops[k] not in _FREE
        )
        return float(count), float(nbytes)


def _flops(graph: Graph, node: int) -> float:
    types = [graph.types[operand] for operand in graph.operands[node]]
    return float(flops(graph.ops[node], graph.types[node], types, graph.attrs[node]))


def _work_of(graph: Graph, node: int) -> float:
    op = graph.ops[node]
    if op in _FREE or op in _MOVES:
        return 0.0
    return _flops(graph, node) * _WEIGHTS.get(op, 1.0)


def _is_ours(file: str) -> bool:
    from lazyrt.tools import provenance

    return file == "-" or bool(provenance.is_own_file(file))


def _by_label(nodes: Sequence[Node]) -> dict[tuple[str, str], dict[Place, float]]:
    """Return the places of ops by what HLO metadata calls them: label and line, or label alone."""
    from lazyrt.tools import run_ns

    update = _update_nodes(nodes)
    weights: dict[tuple[str, str], Counter[Place]] = defaultdict(Counter)
    for node in nodes:
        origin = node.provenance
        site, part = origin.site, "update" if node.id in update else "forward"
        label = f"{origin.path}/{node.op.name}" if origin.path else node.op.name
        written = f"{site.file}:{site.line}" if site is not None else ""
        if origin.backward is not None:
            label, part = f"{label}{_BACKWARD}", "backward"
            forward = origin.backward.forward
            site = (forward.site if forward is not None else None) or site
        file, line, cell = (
            ("", 0, None) if site is None else (site.file, site.line, site.cell)
        )
        where = Place(file, line, cell, origin.path, node.op.name, part)  # type: ignore[arg-type]
        for key in {(label, written), (label, "")}:
            weights[key][where] += max(1, round(run_ns(node)))
    return {
        key: {where: ns / sum(found.values()) for where, ns in found.items()}
        for key, found in weights.items()
    }


def _update_nodes(nodes: Sequence[Node]) -> set[int]:
    """Return the ops that follow from gradients, and those that only these need."""
    found: set[int] = set()
    after: set[int] = set()
    for node in nodes:  # operands first
        read = {value.node.id for value in node.operands if value.node is not None}
        if node.provenance.backward is not None:
            after.add(node.id)
        elif read & after:
            after.add(node.id)
            found.add(node.id)
    readers: dict[int, set[int]] = defaultdict(set)
    for node in nodes:
        for value in node.operands:
            if value.node is not None:
                readers[value.node.id].add(node.id)
    for node in reversed(nodes):
        of = readers.get(node.id)
        if node.provenance.backward is None and of and of <= found:
            found.add(node.id)
    return found


# --------------------------------------------------------------------------------- join


@dataclass(frozen=True, slots=True, kw_only=True)
class LineTime:
    """What one line cost the device.

    Attributes:
        file, line, cell: The line; empty, 0 and None for work that belongs to no line.
        device_ns: All of it: `forward_ns`, `backward_ns` and `update_ns` together.
        flops: Floating-point operations, counted from types.
        nbytes: Bytes that its instructions read and wrote, its share of a fusion's.
        runs: Runs of programs that had work of this line.
        ops: The framework's names of its ops, the costliest first.
    """

    file: str
    line: int
    cell: int | None = None
    device_ns: int = 0
    forward_ns: int = 0
    backward_ns: int = 0
    update_ns: int = 0
    flops: int = 0
    nbytes: int = 0
    runs: int = 0
    ops: tuple[str, ...] = ()

    @property
    def at(self) -> str:
        """The line in short."""
        return place(self.file, self.line, self.cell)

    @property
    def intensity(self) -> float:
        """Floating-point operations for each byte moved."""
        return self.flops / self.nbytes if self.nbytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeTime:
    """What one scope cost the device: its labels and its module, joined by `/`."""

    scope: str
    device_ns: int = 0
    forward_ns: int = 0
    backward_ns: int = 0
    update_ns: int = 0


@dataclass(slots=True)
class DeviceTime:
    """What the device did while it was traced.

    Attributes:
        busy: When it worked, disjoint and in order.
        lines: Its time by line, the largest first.
        scopes: Its time by scope, the largest first.
        by_step: Its time by step.
        runs: Each run of a program with the step that launched it; None if that is not known.
    """

    busy: list[Interval] = field(default_factory=list)
    lines: list[LineTime] = field(default_factory=list)
    scopes: list[ScopeTime] = field(default_factory=list)
    by_step: Counter[int] = field(default_factory=Counter)
    runs: list[tuple[Run, Launch | None]] = field(default_factory=list)


def launches_of_runs(
    runs: Sequence[Run],
    launches: Sequence[Launch],
    programs: Mapping[str, Sequence[Program]],
) -> list[Launch | None]:
    """Return which launch each run came from: the first one before it that has its instructions."""
    left = list(launches)
    known: dict[int, str] = {}
    found: list[Launch | None] = []
    for run in runs:
        chosen = next(
            (
                launch
                for launch in left
                if launch.time_ns <= run.start_ns + _TOLERANCE_NS
                and any(p.has(run.ops) for p in programs.get(launch.fingerprint, ()))
            ),
            None,
        )
        if chosen is not None:
            left.remove(chosen)
            known[run.program] = chosen.fingerprint
        elif run.program in known:  # it was launched before the profile began
            chosen = Launch(known[run.program], "step", -1, run.start_ns)
        found.append(chosen)
    return found


def device_time(
    traces: Sequence[DeviceTrace],
    launches: Sequence[Launch],
    programs: Mapping[str, Sequence[Program]],
) -> DeviceTime:
    """Join traces of the device with the programs that ran.

    Args:
        traces: In order of time.
        launches: What was handed to the device, in order.
        programs: The builds of each program, by fingerprint.
    """
    found = DeviceTime()
    by_place: dict[Place, list[float]] = defaultdict(lambda: [0.0] * 3)
    line_runs: Counter[tuple[str, int, int | None]] = Counter()
    left = list(launches)
    for trace in traces:
        traced = read_trace(trace)
        matched = launches_of_runs(traced.runs, left, programs)
        left = [each for each in left if each not in matched]
        for run, launch in zip(traced.runs, matched, strict=True):
            found.runs.append((run, launch))
            spent = traced.spent.get(run[:3], Counter())
            if launch is not None and launch.purpose == "step":
                found.by_step[launch.step] += sum(spent.values())
            builds = programs.get(launch.fingerprint, ()) if launch is not None else ()
            program = next((p for p in builds if p.has(run.ops)), None)
            times = traced.times.get(run[:3], Counter())
            lines = set()
            for where, numbers in _run_costs(program, spent, times):
                for k, number in enumerate(numbers):
                    by_place[where][k] += number
                lines.add(where[:3])
            line_runs.update(lines)
    found.busy = union((run.start_ns, run.end_ns) for run, _ in found.runs)
    found.lines = _lines(by_place, line_runs)
    found.scopes = _scopes(by_place)
    return found


def _run_costs(
    program: Program | None, spent: Counter[str], times: Counter[str]
) -> Iterator[tuple[Place, tuple[float, float, float]]]:
    """Yield nanoseconds, operations and bytes of one run by place."""
    for op, ns in spent.items():
        if program is None:
            yield Place(), (float(ns), 0.0, 0.0)
            continue
        count, nbytes = program.cost(op)
        for where, share in program.shares(op).items():
            yield (
                where,
                (ns * share, count * share * times[op], nbytes * share * times[op]),
            )


def _lines(
    by_place: Mapping[Place, Sequence[float]],
    runs: Counter[tuple[str, int, int | None]],
) -> list[LineTime]:
    grouped: dict[tuple[str, int, int | None], list[tuple[Place, Sequence[float]]]]
    grouped = defaultdict(list)
    for where, numbers in by_place.items():
        grouped[where[:3]].append((where, numbers))
    found = []
    for (file, line, cell), members in grouped.items():
        parts: Counter[str] = Counter()
        ops: Counter[str] = Counter()
        for where, (ns, _, _) in members:
            parts[where.part] += round(ns)
            ops[where.op] += round(ns)
        found.append(
            LineTime(
                file=file,
                line=line,
                cell=cell,
                device_ns=sum(parts.values()),
                forward_ns=parts["forward"],
                backward_ns=parts["backward"],
                update_ns=parts["update"],
                flops=round(sum(numbers[1] for _, numbers in members)),
                nbytes=round(sum(numbers[2] for _, numbers in members)),
                runs=runs[file, line, cell],
                ops=tuple(op for op, _ in ops.most_common() if op),
            )
        )
    return sorted(found, key=lambda each: -each.device_ns)


def _scopes(by_place: Mapping[Place, Sequence[float]]) -> list[ScopeTime]:
    grouped: dict[str, Counter[str]] = defaultdict(Counter)
    for where, (ns, _, _) in by_place.items():
        grouped[where.scope][where.part] += round(ns)
    found = [
        ScopeTime(
            scope=scope,
            device_ns=sum(parts.values()),
            forward_ns=parts["forward"],
            backward_ns=parts["backward"],
            update_ns=parts["update"],
        )
        for scope, parts in grouped.items()
    ]
    return sorted(found, key=lambda each: -each.device_ns)


def launch_of(event: Any) -> Launch:
    """Return the launch that an `ExecuteStarted` tells of."""
    return Launch(event.fingerprint, event.purpose, event.step, event.time_ns)
