"""The device's time by line, scope and op, after fusion.

The device's trace has an event for each run of an instruction. The executables carry where each of
their instructions came from, those inside fusions, too. This joins both.

Rules:
* The device works from the first instruction of a program's run to the last. The instructions share
  this time by how long each takes, the innermost ones where they nest, also where some ran side by
  side. How long an instruction takes is the shortest time in its program's runs, as other work on
  the machine interrupts now one and now another.
* A fusion's time is shared by the work of the instructions inside: their operations on numbers,
  where one of a function such as `exp` counts as much as the additions that take as long (measured
  with XLA on a CPU, see `_WEIGHTS`). A fusion that only moves data is shared by bytes.
* The time of a backward op counts for the line whose forward op it differentiates, as `backward_ns`.
  What follows from gradients, and what only that needs, is the update.
* A program from disk has the lines of the recording that compiled it. Where these are not all lines of
  the graph, the time of an op is shared by the graph's ops of its name and scope, else of its name.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import re
import threading
import time
import timeit
from collections import Counter, defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import lazygraph
from lazygraph.diff import callee_graph, callees
from lazygraph.explain.facts import shape_of
from lazygraph.types import flops, type_bytes
from lazyviz.foreign.xplane import innermost
from lazyviz.render.timeline_text import union
from lazyviz.timing.gaps import AtLine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from lazygraph import Graph
    from lazyrt.observe import events
    from lazyrt.observe.events import Subscription
    from lazyrt.tools import DeviceTrace, Node
    from lazyviz.timing.gaps import Interval, Noted

Part = Literal["forward", "backward", "update"]
_BACKWARD = " (backward)"
_SITE = re.compile(r"(.*):(\d+)$")
_FREE = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "iota", "after-all"}
)  # fmt: skip
_MOVES = frozenset(
    {"broadcast", "reshape", "transpose", "slice", "concatenate", "pad", "copy", "convert",
     "dynamic-slice", "dynamic-update-slice", "gather", "reverse", "select", "compare"}
)  # fmt: skip
_WEIGHTS = {
    **dict.fromkeys(("divide", "remainder"), 4.0),
    "sqrt": 8.0,
    "erf": 50.0,
    **dict.fromkeys(("tanh", "log", "sine", "cbrt", "atan2"), 70.0),
    **dict.fromkeys(
        ("exponential", "rsqrt", "logistic", "cosine", "tan", "log-plus-one"), 95.0
    ),
    "exponential-minus-one": 105.0,
    "power": 570.0,
}
_HEADER = re.compile(r"HloModule ([\w.\-]+)")
_ELEMENT = re.compile(
    r"%?([\w.\-]+) = .* get-tuple-element\((?:.* )?%?([\w.\-]+)\), index="
)
_LAYER = re.compile(r"(^|\.)\d+(?=\.|$)")
_TOLERANCE_NS = 200_000  # between the clocks of the trace and of the program
_SINCE_1970_NS = 10**17
_FIRST_RUNS = 4
_BUDGET = 0.005
_MAX_IN_FLIGHT = 64
_TRIES = 6


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


@dataclass(slots=True, eq=False)
class Run:
    """One run of a program on a device.

    Attributes:
        device: Its number.
        module: What XLA calls the program; empty where the trace does not say.
        start_ns, end_ns: Of its first and last instruction, of `time.perf_counter_ns`.
        spent: How long each instruction was the innermost one of its thread.
        times: How often each ran.
        starts: When each began first.
        busy_ns: The device's time: what runs that overlap take together, in proportion.
        launch: When its graph was handed to the device; None if that is not known.
        program: What ran; None if that is not known.
        is_like: Whether it was not traced, and is taken to be like a run of the same program.
    """

    device: int
    module: str
    start_ns: int
    end_ns: int
    spent: Counter[str] = field(default_factory=Counter)
    times: Counter[str] = field(default_factory=Counter)
    starts: dict[str, int] = field(default_factory=dict)
    busy_ns: float = 0.0
    launch: events.ExecuteStarted | None = None
    program: Program | None = None
    is_like: bool = False

    def costs(self, usual: Mapping[str, float]) -> _Costs:
        """Return nanoseconds, operations and bytes by place.

        Args:
            usual: How long each instruction takes.
        """
        if self.program is None:
            return {Place(): (self.busy_ns, 0.0, 0.0)}
        found: dict[Place, list[float]] = defaultdict(lambda: [0.0] * 3)
        total = sum(usual[op] for op in self.spent) or 1.0
        for op in self.spent:
            ns = self.busy_ns * usual[op] / total
            nbytes = self.program.bytes_moved(op) * self.times[op]
            for where, share in self.program.shares(op).items():
                found[where][0] += ns * share
                found[where][2] += nbytes * share
            for where, count in self.program.operations(op).items():
                found[where][1] += count * self.times[op]
        return {**found}


_Costs = dict[Place, "Sequence[float]"]  # nanoseconds, operations and bytes
_LaunchKey = tuple[int, str, str]  # step, fingerprint and purpose
_End = tuple[int, bool]  # when a run was seen to have ended, and whether just then
_RunKey = tuple[int, int, int]  # device, program and number, as the trace has them
_Key = tuple[int, int, int, str]
_Segment = tuple[int, int, _Key]


def read_trace(trace: DeviceTrace) -> list[Run]:
    """Return the runs of a device's trace in order of their starts, with their instructions."""
    runs: dict[_RunKey, Run] = {}
    modules: dict[_RunKey, str] = {}
    for events in _instructions(trace, modules):
        for start, end, key in events:
            of, op = key[:3], key[3]
            run = runs.setdefault(of, Run(of[0], modules[of], start, end))
            run.times[op] += 1
            run.starts[op] = min(run.starts.get(op, start), start)
            run.start_ns, run.end_ns = min(run.start_ns, start), max(run.end_ns, end)
        for start, end, key in innermost(events):
            runs[key[:3]].spent[key[3]] += end - start
    found = sorted(runs.values(), key=lambda run: run.start_ns)
    for together in _side_by_side(found):
        length = max(each.end_ns for each in together) - together[0].start_ns
        total = sum(each.spent.total() for each in together) or 1
        for each in together:
            each.busy_ns = length * each.spent.total() / total
    return found


def _side_by_side(runs: Sequence[Run]) -> Iterator[list[Run]]:
    """Yield the runs in groups that overlap in time; most are alone."""
    group: list[Run] = []
    for run in runs:
        if group and run.start_ns >= max(each.end_ns for each in group):
            yield group
            group = []
        group.append(run)
    if group:
        yield group


def _instructions(
    trace: DeviceTrace, modules: dict[_RunKey, str]
) -> Iterator[list[_Segment]]:
    """Yield the runs of instructions of each thread or stream; note their programs' names."""
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
                modules[key[:3]] = str(stats.get("hlo_module", ""))
                events.append((start, start + int(event.duration_ns), key))
            if events:
                yield events


# ----------------------------------------------------------------------------- programs


class Program:
    """An executable's instructions, and where each came from.

    Attributes:
        text: Its optimised HLO.

    Args:
        text: The same.
        nodes: The ops of its graph as IR, as the lines that ran it have recorded them; none where
            that is not kept.
        named_after: The same ops as its instructions are named after, if other lines recorded those.
    """

    def __init__(
        self, text: str, nodes: Sequence[Node] = (), named_after: Sequence[Node] = ()
    ) -> None:
        self.text = text
        self._module = header[1] if (header := _HEADER.match(text)) else ""
        self._origins = _by_label(nodes, named_after)
        self._parts: dict[str, set[Part]] = defaultdict(set)  # by line
        for (_, line), places in self._origins.items():
            self._parts[line].update(where.part for where in places)
        sites = (node.provenance.site for node in (*named_after, *nodes))
        self._cells = {site.file: site.cell for site in sites if site is not None}
        self._found: dict[str, tuple[Graph, int]] = {}
        self.shares = functools.cache(self._shares)
        self.operations = functools.cache(self._operations)
        stack, seen = [lazygraph.parse(text)], set[str]()
        while stack:
            graph = stack.pop()
            for node, name in enumerate(graph.names):
                self._found.setdefault(name.removeprefix("%"), (graph, node))
                for _, called in callees(graph, node) if graph.attrs[node] else ():
                    if called not in seen and graph.ops[node] != "fusion":
                        stack.append(callee_graph(graph, called))
                    seen.add(called)
        written = {graph.origin(node).site for graph, node in self._found.values()}
        foreign = written - self._parts.keys() - {""}
        # Whether its lines are those of the graph.
        self._is_named = all(_is_ours(each.rpartition(":")[0]) for each in foreign)
        # A collective of several operands is one vertex for each, named by what reads it.
        self._split: dict[str, list[str]] = defaultdict(list)
        for element, whole in _ELEMENT.findall(text):
            if whole not in self._found and element in self._found:
                self._split[whole].append(element)

    def has(self, run: Run) -> bool:
        """Return whether it is what ran: it has that name, and all those instructions."""
        is_named = not run.module or run.module == self._module
        return is_named and all(
            op in self._found or op in self._split for op in run.times
        )

    def _shares(self, name: str) -> dict[Place, float]:
        """Return where an instruction's time belongs, in shares that add up to 1.

        It has its own places, else those of the nearest that reads it or is read.
        """
        if name in self._split:
            sizes = {
                element: type_bytes(graph.types[node])
                for element in self._split[name]
                for graph, node in self._vertices(element)
            }
            total = sum(sizes.values()) or 1
            found: dict[Place, float] = defaultdict(float)
            for element, size in sizes.items():
                for where, part in self.shares(element).items():
                    found[where] += part * size / total
            return found
        if name not in self._found:
            return {Place(): 1.0}
        graph, start = self._found[name]
        for is_forwards in (True, False):
            nodes, seen = deque([start]), {start}
            while nodes:
                node = nodes.popleft()
                if own := self._own_shares(graph, node):
                    return own
                users = dict.fromkeys(user for user, _ in graph.users[node])
                towards = users if is_forwards else graph.operands[node]
                near = [k for k in towards if k not in seen]
                seen.update(near)
                nodes.extend(near)
        return {Place(): 1.0}

    def _own_shares(self, graph: Graph, node: int) -> dict[Place, float]:
        """Return the places of what an instruction holds, in shares; empty if none is known."""
        weights: dict[Place, float] = defaultdict(float)
        for inner, k, weight in self._work(graph, node):
            for where, part in self._places(inner, k).items():
                weights[where] += weight * part
        total = sum(weights.values())
        if not total:
            return self._places(graph, node)
        return {where: weight / total for where, weight in weights.items()}

    def _work(self, graph: Graph, node: int) -> list[tuple[Graph, int, float]]:
        """Return what an instruction holds, with the work of each part."""
        if graph.ops[node] != "fusion":
            return [(graph, node, 1.0)]
        found = [
            (inner, k, _work_of(inner, k))
            for _, name in callees(graph, node)
            for inner in [callee_graph(graph, name)]
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
        from lazyrt.tools import provenance

        origin = graph.origin(node)
        label = f"{origin.scope}/{origin.op_name}" if origin.scope else origin.op_name
        keys = [(label, origin.site), (label, "")]
        if not self._is_named:
            keys = [(label, ""), ("", origin.op_name)]
        if graph.ops[node] == "convolution":
            taking_part = (graph.types[k] for k in (node, *graph.operands[node]))
            keys.insert(0, _convolution(map(shape_of, taking_part)))
        for key in keys:
            if key in self._origins:
                return self._origins[key]
        # XLA calls what it has made of several `(a:b)`.
        parts = [(part, "") for part in label[1:-1].split(":")]
        if label.startswith("(") and all(part in self._origins for part in parts):
            found: dict[Place, float] = defaultdict(float)
            for part in parts:
                for where, share in self._origins[part].items():
                    found[where] += share / len(parts)
            return found
        site = _SITE.match(origin.site)
        if site is None or not origin.op_name or _is_ours(site[1]):
            return {}
        if self._origins and not self._is_named:
            return {}
        of: Part = "backward" if origin.op_name.endswith(_BACKWARD) else "forward"
        if self._parts.get(origin.site) == {"update"}:
            of = "update"  # such as the numbers that an optimizer's ops read
        op = origin.op_name.removesuffix(_BACKWARD)
        file, line = site[1], int(site[2])
        cell = self._cells.get(file) or provenance.site_in(file, line, "").cell
        return {Place(file, line, cell, origin.scope, op, of): 1.0}

    def _operations(self, name: str) -> dict[Place, float]:
        """Return the floating-point operations of an instruction by place."""
        found: dict[Place, float] = defaultdict(float)
        for vertex in self._vertices(name):
            for inner, k, _ in self._work(*vertex):
                if inner.ops[k] in _FREE:
                    continue
                for where, part in self._places(inner, k).items():
                    found[where] += part * _flops(inner, k)
        return found

    def bytes_moved(self, name: str) -> float:
        """Return the bytes that an instruction reads and writes."""
        return float(
            sum(
                type_bytes(graph.types[k])
                for graph, node in self._vertices(name)
                for k in (node, *graph.operands[node])
            )
        )

    def _vertices(self, name: str) -> list[tuple[Graph, int]]:
        names = self._split.get(name, [name])
        return [self._found[each] for each in names if each in self._found]


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


def _by_label(
    nodes: Sequence[Node], named_after: Sequence[Node] = ()
) -> dict[tuple[str, str], dict[Place, float]]:
    """Return the places of ops by what HLO metadata calls them: label and line, or label alone."""
    from lazyrt.tools import run_ns

    update = _update_nodes(nodes)
    equal = {node.id: node for node in named_after}
    weights: dict[tuple[str, str], Counter[Place]] = defaultdict(Counter)
    for node in nodes:
        origin, named = node.provenance, equal.get(node.id, node).provenance
        site, part = origin.site, "update" if node.id in update else "forward"
        label = f"{named.path}/{node.op.name}" if named.path else node.op.name
        first = named.site
        written = f"{first.file}:{first.line}" if first is not None else ""
        if origin.backward is not None:
            label, part = f"{label}{_BACKWARD}", "backward"
            forward = origin.backward.forward
            site = (forward.site if forward is not None else None) or site
        # A program that equal layers share names none of them; its time is spread over all.
        shared = _LAYER.sub(r"\1*", named.module, count=1)
        of_any = label.replace(named.module, shared) if named.module else label
        at = ("", 0, None) if site is None else (site.file, site.line, site.cell)
        where = Place(*at, origin.path, node.op.name, part)  # type: ignore[arg-type]
        name = node.op.name + _BACKWARD * (part == "backward")
        for key in (*itertools.product({label, of_any}, {written, ""}), ("", name)):
            weights[key][where] += max(1, round(run_ns(node)))
        if "convolution" in node.op.name:
            results = [value for value in node.outputs if value is not None]
            sizes = [value.shape for value in (*node.operands, *results)]
            for value in results:
                weights[_convolution([value.shape, *sizes])][where] += 1
    return {
        key: {where: ns / sum(found.values()) for where, ns in found.items()}
        for key, found in weights.items()
    }


def _convolution(sizes: Iterable[Iterable[int]]) -> tuple[str, str]:
    """Return by what a convolution is known, whose layout XLA changes and whose name it then loses.

    It is the sizes of its result and of all that takes part; those that have these alike share.
    """
    result, *others = (tuple(sorted(each)) for each in sizes)
    arrays = {result, *(each for each in others if each[2:])}  # not a bias
    return f"convolution {result}", str(sorted(arrays))


def _update_nodes(nodes: Sequence[Node]) -> set[int]:
    """Return the ops that follow from gradients, and those that only these need."""
    found: set[int] = set()
    after: set[int] = set()
    readers: dict[int, set[int]] = defaultdict(set)
    for node in nodes:  # operands first
        read = {value.node.id for value in node.operands if value.node is not None}
        for each in read:
            readers[each].add(node.id)
        if node.provenance.backward is not None:
            after.add(node.id)
        elif read & after:
            after.add(node.id)
            found.add(node.id)
    for node in reversed(nodes):
        of = readers.get(node.id)
        if node.provenance.backward is None and of and of <= found:
            found.add(node.id)
    return found


# --------------------------------------------------------------------------------- join


@dataclass(frozen=True, slots=True, kw_only=True)
class LineTime(AtLine):
    """What one line cost the device; no line stands for work that belongs to none.

    Attributes:
        device_ns: All of it: `forward_ns`, `backward_ns` and `update_ns` together.
        flops: Floating-point operations, counted from types.
        nbytes: Bytes that its instructions read and wrote, its share of a fusion's.
        runs: Runs of programs that had work of this line.
        ops: The framework's names of its ops, the costliest first.
    """

    device_ns: int = 0
    forward_ns: int = 0
    backward_ns: int = 0
    update_ns: int = 0
    flops: int = 0
    nbytes: int = 0
    runs: int = 0
    ops: tuple[str, ...] = ()

    @property
    def intensity(self) -> float:
        """Floating-point operations for each byte moved."""
        return self.flops / self.nbytes if self.nbytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeTime:
    """What one scope cost.

    Attributes:
        scope: Labels and module, joined by `/`.
        device_ns: Time of the device at its ops: `forward_ns`, `backward_ns` and `update_ns`.
        host_ns: How long the program was in its blocks; 0 for a module.
        busy_ns: How long the device worked at anything meanwhile.
    """

    scope: str
    device_ns: int = 0
    forward_ns: int = 0
    backward_ns: int = 0
    update_ns: int = 0
    host_ns: int = 0
    busy_ns: int = 0

    @property
    def duty_cycle(self) -> float:
        """The part of its blocks' time in which the device worked, from 0 to 1."""
        return self.busy_ns / self.host_ns if self.host_ns else 0.0


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """What one of several devices did.

    Attributes:
        device: Its number.
        runs: How many runs of programs were traced on it.
        busy_ns: How long these took, waits for the other devices included.
        behind_ns: How much later it ended a run than the first device, on average.
    """

    device: int
    runs: int
    busy_ns: int
    behind_ns: int


@dataclass(slots=True)
class DeviceTime:
    """What the device did while it was traced.

    Attributes:
        busy: When it worked, disjoint and in order.
        lines: Its time by line, the largest first.
        scopes: Its time by scope, the largest first.
        by_step: Its time by step.
        devices: Each by itself, where programs ran on several.
        runs: What ran when, on each device.
    """

    busy: list[Interval] = field(default_factory=list)
    lines: list[LineTime] = field(default_factory=list)
    scopes: list[ScopeTime] = field(default_factory=list)
    by_step: Counter[int] = field(default_factory=Counter)
    devices: list[DeviceRow] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)


@dataclass(slots=True)
class Window:
    """A time in which the device was traced.

    Attributes:
        trace: What was traced.
        launched: What the device was at when it began, and what was handed to it meanwhile.
        earlier: How many of these were handed to it before.
        whole: Those of the others that the device finished before the window ended.
        end_ns: When it ended; what was traced of later runs is their beginning alone.
    """

    trace: DeviceTrace
    launched: list[events.ExecuteStarted] = field(default_factory=list)
    earlier: int = 0
    whole: set[events.ExecuteStarted] = field(default_factory=set)
    end_ns: float = math.inf


class TraceWindows:
    """Traces the device in windows of some steps, so that it costs half a per cent at most.

    To trace an instruction and to collect it takes some 2 µs, which small instructions feel. So each
    program is traced in its first runs, and after that as long as windows take at most half a per cent of
    the time. The other runs are taken to be like those.

    Attributes:
        windows: In order of time.
        fault: Why there is no trace; empty if there is one.

    Args:
        is_whole: Whether to trace all of the time, whatever that costs.
    """

    def __init__(self, *, is_whole: bool = False) -> None:
        self._is_whole = is_whole
        self.windows: list[Window] = []
        self.fault = ""
        self._traced: Counter[str] = Counter()
        self._launched: deque[events.ExecuteStarted] = deque(maxlen=_MAX_IN_FLIGHT)
        self._began_ns = time.perf_counter_ns()
        self._spent_ns = 0
        self._ended_runs = 0
        # When another run may be traced, where no window is open.
        self._next_ns = math.inf
        self._open: Window | None = None
        self._in_flight: deque[events.ExecuteStarted] = deque()  # while one is open
        self._subscriptions: list[Subscription] = []
        self._collector: ThreadPoolExecutor | None = None
        self._ending: Future[None] | None = None
        self._lock = threading.RLock()  # another thread may end it
        self._rests = False

    def listeners(self) -> Iterator[tuple[Any, ...]]:
        """Yield what listens all of the time, and to which kinds of events: it takes little of it."""
        from lazyrt.observe import events

        yield self._captured, events.GraphCaptured
        yield self._launched.append, events.ExecuteStarted

    def begin(self) -> None:
        """Trace from now on, unless that is under way or cannot be done."""
        import lazyrt
        from lazyrt.observe import events

        with self._lock, self._counted():
            is_ending = self._ending is not None and not self._ending.done()
            if self._open is not None or self.fault or self._rests or is_ending:
                return
            launched = [*self._launched]
            in_flight = launched[max(len(launched) - lazyrt.in_flight(), 0) :]
            self._in_flight = deque(in_flight)
            window = Window(lazyrt.tools.device_trace(), in_flight, len(in_flight))
            self._open = window
            self.windows.append(window)
            listeners: list[tuple[Any, type[events.Event]]] = [
                (self._in_flight.append, events.ExecuteStarted),
                (window.launched.append, events.ExecuteStarted),
                (self._finished, events.ExecuteFinished),
            ]
            self._subscriptions = [
                lazyrt.subscribe(listener, kind, exact=False)
                for listener, kind in listeners
            ]

    def end(self) -> None:
        """Trace no more for now; another thread collects, as that takes a while."""
        with self._lock, self._counted():
            window, self._open = self._open, None
            if window is None:
                return
            window.end_ns = time.perf_counter_ns()
            while self._subscriptions:
                self._subscriptions.pop().close()
            if self._collector is None:
                self._collector = ThreadPoolExecutor(1, "lazyviz-trace")
            self._ending = self._collector.submit(self._collect, window)

    def rest(self, *, on: bool) -> None:
        """Begin no trace until told otherwise: another profile takes one, or this one is over.

        Waits until all is collected.
        """
        with self._lock:
            self._rests = on
            self.end()
            collector, self._collector = self._collector, None
        if collector is not None:
            collector.shutdown()

    def _collect(self, window: Window) -> None:
        with self._counted():
            window.trace.close()
        self.fault = self.fault or window.trace.fault
        self._ended_runs += len(window.launched) - window.earlier
        self._next_ns = self._due_ns(1)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Count what the calling thread spends meanwhile."""
        start = time.thread_time_ns()
        yield
        self._spent_ns += time.thread_time_ns() - start

    def _captured(self, event: events.GraphCaptured) -> None:
        """Begin or end a window before a graph is handed to the device."""
        if self.fault:
            return
        is_new = self._traced[event.fingerprint] < _FIRST_RUNS
        now = time.perf_counter_ns()
        if self._open is None:
            if is_new or now >= self._next_ns:
                self.begin()
        elif not (
            is_new
            or self._is_whole
            or now >= self._due_ns(len(self._open.launched) + 1)
        ):
            self.end()

    def _finished(self, event: events.ExecuteFinished) -> None:
        """Take note of the end of a run in a window; runs end in the order in which they began."""
        of, window = _key(event), self._open
        launched = next((each for each in self._in_flight if _key(each) == of), None)
        if launched is None or window is None:
            return
        self._in_flight.remove(launched)
        if launched in window.launched[window.earlier :]:
            window.whole.add(launched)
            self._traced[event.fingerprint] += 1

    def _due_ns(self, more: int) -> float:
        """Return when the trace of so many runs more takes a small part of the time so far."""
        if not self._ended_runs:
            return math.inf
        runs = self._ended_runs + more
        expected = runs * self._spent_ns / self._ended_runs
        return self._began_ns + expected / _BUDGET


def _key(event: events.ExecuteStarted | events.ExecuteFinished) -> _LaunchKey:
    return event.step, event.fingerprint, event.purpose


def ends_of(noted: Iterable[Noted]) -> dict[_LaunchKey, _End]:
    """Return when runs were seen to have ended, and whether just then: a thread waited for one.

    A wait that ends with several runs tells the end of the last one alone.
    """
    found: dict[_LaunchKey, _End] = {}
    last: _LaunchKey | None = None
    for event, now, _ in noted:
        kind = type(event).__name__
        if kind == "ExecuteFinished":
            last = _key(event)
            found[last] = now, event.exact
        elif kind == "WaitFinished" and event.phase == "execute" and last is not None:
            end, _ = found[last]
            if end > now - event.duration_ns + _TOLERANCE_NS:
                found[last] = end, True
            last = None
    return found


def launches_of_runs(
    runs: Sequence[Run],
    launches: Sequence[events.ExecuteStarted],
    programs: Mapping[str, Sequence[Program]],
) -> list[events.ExecuteStarted | None]:
    """Return which launch each run came from: the first one left that has its instructions.

    A launch is left until it has as many runs as it has programs.
    """
    found: list[events.ExecuteStarted | None] = []
    left = deque(launches)
    runs_of: Counter[events.ExecuteStarted] = Counter()
    for run in runs:
        fits = [
            k
            for k, launch in enumerate(left)
            if launch.time_ns <= run.start_ns + _TOLERANCE_NS
            and any(each.has(run) for each in programs.get(launch.fingerprint, ()))
        ]
        found.append(left[fits[0]] if fits else None)
        if fits:
            launch = left[fits[0]]
            runs_of[launch] += 1
            if runs_of[launch] == launch.programs:
                del left[fits[0]]
    return found


def _usual_times(runs: Sequence[Run]) -> dict[Program | None, dict[str, float]]:
    """Return how long each instruction takes, by program."""
    found: dict[Program | None, dict[str, float]] = defaultdict(dict)
    for run in runs:
        usual = found[run.program]
        for op, ns in run.spent.items():
            usual[op] = min(ns, usual.get(op, ns))
    return found


def device_time(
    windows: Sequence[Window],
    launches: Sequence[events.ExecuteStarted],
    programs: Mapping[str, Sequence[Program]],
    ends: Mapping[_LaunchKey, _End],
    end_ns: int,
) -> DeviceTime:
    """Join traces of the device with the programs that ran.

    Args:
        windows: Times in which the device was traced, in order.
        launches: What was handed to the device, in order.
        programs: The builds of each program, by fingerprint.
        ends: When runs were seen to have ended.
        end_ns: When the profile ended.
    """
    ran: list[_Costs] = []
    by_step: Counter[int] = Counter()
    known: dict[str, list[_Costs]] = defaultdict(list)
    whole: list[Run] = []
    left = list(launches)
    for window in windows:
        traced = [r for r in read_trace(window.trace) if r.start_ns < window.end_ns]
        for number in {run.device for run in traced}:  # a launch runs on each
            runs = [run for run in traced if run.device == number]
            found = launches_of_runs(runs, window.launched, programs)
            for run, launch in zip(runs, found, strict=True):
                run.launch = launch
        for run in traced:
            launch = run.launch
            if launch is not None and launch not in window.whole:
                continue  # an end of the window cut it
            builds = programs.get(launch.fingerprint, ()) if launch is not None else ()
            run.program = next((p for p in builds if p.has(run)), None)
            whole.append(run)
            if launch in left:
                left.remove(launch)
    usual = _usual_times(whole)
    launched: dict[events.ExecuteStarted, list[Run]] = defaultdict(list)

    def add(costs: _Costs, launch: events.ExecuteStarted) -> None:
        ran.append(costs)
        if launch.purpose == "step":
            by_step[launch.step] += _length(costs)

    for each in whole:
        if each.launch is None:
            ran.append(each.costs(usual[each.program]))
        else:
            launched[each.launch].append(each)
    for launch, on_devices in launched.items():
        costs = _sum([each.costs(usual[each.program]) for each in on_devices])
        add(costs, launch)
        known[launch.fingerprint].append(costs)
    means = {name: _sum(costs, 1 / len(costs)) for name, costs in known.items()}
    like: list[Run] = []
    guessed = [each for each in left if each.fingerprint in means]
    lengths = [(g, _length(means[g.fingerprint])) for g in guessed]
    for (launch, length), runs in zip(
        lengths, _like(whole, lengths, ends, end_ns), strict=True
    ):
        took = max(each.end_ns for each in runs) - min(each.start_ns for each in runs)
        part = took / max(length, 1)
        # A run that took longer did the same work.
        mean = means[launch.fingerprint].items()
        add({where: (ns * part, *work) for where, (ns, *work) in mean}, launch)
        like += runs
    every = sorted([*whole, *like], key=lambda each: each.start_ns)
    by_place = _sum(ran)
    return DeviceTime(
        busy=union((each.start_ns, each.end_ns) for each in every),
        runs=every,
        lines=_lines(
            by_place,
            Counter(at for costs in ran for at in {where[:3] for where in costs}),
        ),
        scopes=_scopes(by_place),
        by_step=by_step,
        devices=_device_rows(launched.values()),
    )


def _device_rows(launched: Iterable[Sequence[Run]]) -> list[DeviceRow]:
    """Return what each device did; empty for one."""
    times: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for on_devices in launched:
        first = min(run.end_ns for run in on_devices)
        for run in on_devices:
            times[run.device].append((run.end_ns - run.start_ns, run.end_ns - first))
    found = []
    for device, each in sorted(times.items()):
        busy, behind = map(sum, zip(*each, strict=True))
        found.append(DeviceRow(device, len(each), busy, behind // len(each)))
    return found if len(found) > 1 else []


def untraced_time(noted: Iterable[Noted]) -> DeviceTime:
    """Return when the device worked by the ends of executions, where there is no trace."""
    ended = [n for n in noted if type(n.event).__name__ == "ExecuteFinished"]
    found = DeviceTime()
    found.busy = union((n.now_ns - n.event.duration_ns, n.now_ns) for n in ended)
    for event, _, _ in ended:
        if event.purpose == "step":
            found.by_step[event.step] += event.duration_ns
    return found


def _length(costs: _Costs) -> int:
    return round(sum(ns for ns, *_ in costs.values()))


def _sum(runs: Sequence[_Costs], part: float = 1.0) -> _Costs:
    """Return costs added up, times a part."""
    total: dict[Place, list[float]] = defaultdict(lambda: [0.0] * 3)
    for costs in runs:
        for where, numbers in costs.items():
            for k, number in enumerate(numbers):
                total[where][k] += number * part
    return {**total}


def _like(
    traced: Iterable[Run],
    guessed: Sequence[tuple[events.ExecuteStarted, int]],
    ends: Mapping[_LaunchKey, _End],
    end_ns: int,
) -> Iterator[list[Run]]:
    """Yield for each launch runs that were not traced, taken to begin once the device was free.

    They take as long as traced ones, or until their end where that is known, and end before the
    next traced run begins and before the profile does.
    """
    waiting = deque(sorted(traced, key=lambda each: each.start_ns))
    by_launch: dict[events.ExecuteStarted, list[Run]] = defaultdict(list)
    for each in waiting:
        if each.launch is not None:
            by_launch[each.launch].append(each)
    models = {launch.fingerprint: runs for launch, runs in by_launch.items()}
    free = 0
    for launch, length in guessed:
        while waiting and waiting[0].start_ns <= launch.time_ns:
            free = max(free, waiting.popleft().end_ns)
        start = max(launch.time_ns, free)
        noticed_ns, is_exact = ends.get(_key(launch), (end_ns, False))
        until = min([noticed_ns, end_ns, *(each.start_ns for each in [*waiting][:1])])
        took = max(until - start if is_exact else min(length, until - start), 0)
        runs = models[launch.fingerprint]
        begun = min(each.start_ns for each in runs)
        part = took / (max(each.end_ns for each in runs) - begun or 1)
        yield [
            replace(
                each,
                start_ns=start + round((each.start_ns - begun) * part),
                end_ns=start + round((each.end_ns - begun) * part),
                launch=launch,
                is_like=True,
            )
            for each in runs
        ]
        free = start + took


def _lines(
    by_place: _Costs, runs: Counter[tuple[str, int, int | None]]
) -> list[LineTime]:
    found = []
    for at, parts, members in _grouped(by_place, itemgetter(0, 1, 2)):
        ops: Counter[str] = Counter()
        for where, (ns, _, _) in members:
            ops[where.op] += round(ns)
        file, line, cell = at
        found.append(
            LineTime(
                file=file,
                line=line,
                cell=cell,
                **parts,
                flops=round(sum(numbers[1] for _, numbers in members)),
                nbytes=round(sum(numbers[2] for _, numbers in members)),
                runs=runs[file, line, cell],
                ops=tuple(op for op, _ in ops.most_common() if op),
            )
        )
    worked = [each for each in found if each.device_ns or not each.file]
    return sorted(worked, key=lambda each: -each.device_ns)


def _scopes(by_place: _Costs) -> list[ScopeTime]:
    grouped = _grouped(by_place, attrgetter("scope"))
    found = [ScopeTime(scope=scope, **parts) for scope, parts, _ in grouped]
    return sorted(found, key=lambda each: -each.device_ns)


_Of = TypeVar("_Of")


def _grouped(
    by_place: _Costs, key: Callable[[Place], _Of]
) -> Iterator[tuple[_Of, dict[str, int], list[tuple[Place, Sequence[float]]]]]:
    """Yield places with one key: the key, their time as `LineTime` has it, and their costs."""
    groups: dict[_Of, list[tuple[Place, Sequence[float]]]] = defaultdict(list)
    for where, numbers in by_place.items():
        groups[key(where)].append((where, numbers))
    for value, members in groups.items():
        parts = {f"{part}_ns": 0 for part in ("forward", "backward", "update")}
        for where, (ns, _, _) in members:
            parts[f"{where.part}_ns"] += round(ns)
        yield value, {"device_ns": sum(parts.values()), **parts}, members


# ----------------------------------------------------------------------------- roofline


class Machine(NamedTuple):
    """What this machine's device reaches, measured.

    Attributes:
        flops_per_ns: Floating-point operations in a product of two matrices of 1,024 by 1,024
            32-bit floats.
        bytes_per_ns: Bytes read and written in a sum of 64 MiB.
    """

    flops_per_ns: float
    bytes_per_ns: float

    def roof(self, intensity: float) -> float:
        """Return the operations in a nanosecond that code of this intensity can reach."""
        return min(self.flops_per_ns, intensity * self.bytes_per_ns)


@functools.lru_cache(maxsize=1)
def machine() -> Machine:
    """Measure what the device reaches; once in a process, a few tenths of a second."""
    import jax
    import jax.numpy as jnp

    side, numbers = 1024, 2**24
    square = jnp.ones((side, side), jnp.float32)
    flat = jnp.ones((numbers,), jnp.float32)
    product_ns = _shortest_ns(jax.jit(jnp.matmul), square, square)
    sum_ns = _shortest_ns(jax.jit(jnp.add), flat, flat)
    return Machine(2 * side**3 / product_ns, 3 * 4 * numbers / sum_ns)


def _shortest_ns(function: Callable[..., Any], *arguments: Any) -> float:
    def run() -> None:
        function(*arguments).block_until_ready()

    return min(timeit.repeat(run, number=1, repeat=_TRIES)) * 1e9
