"""The graph registry: every step graph that was compiled; what it is, what it cost, how often it ran, and why.

Records outlive executables and hold plain data: names, numbers and a snapshot. The graphs of
the latest ones are kept too, for dumps, within bounds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import logging
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from lazygraph.explain.model import Explanation, OptimizerNote, StepKey
from lazygraph.readable import Readable, duration_text, plural
from lazygraph.snapshot import Name, Snapshot, Vertex, labels
from lazyrt.config import config
from lazyrt.execution.graph import Graph
from lazyrt.ir.node import Provenance, lines_now, lines_of
from lazyrt.observe import events
from lazyrt.observe.events import SourceLocation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lazyrt.ir.fingerprint import Canonical


_log = logging.getLogger(__name__)
_MAX_RECORDS = 2_000
_MAX_VERTICES = 2_000_000
_MAX_GRAPHS = 64
_MAX_GRAPH_NODES = 300_000
_MAX_STEPS = 1_000
# What the vectors are in which numbers are passed, in their order after the data.
_PACKED = {"float": "lifted floats", "int": "lifted ints", "rng": "random states"}
# So many graphs are listed by an alarm.
_MAX_ALARM = 12


@dataclass(slots=True, kw_only=True, eq=False)
class CompiledGraph(Readable):
    """One step graph that was compiled.

    Attributes:
        name: Unique in this process: `graph.1`, `graph.2`, ... in order of compilation.
        key: What its executable depends on.
        nodes, inputs, outputs: Sizes.
        first_step, last_step: The runtime's numbers of the steps that ran it.
        runs: How often it ran.
        compiles: How often it was compiled: more than once after its executable was dropped.
        compile_ns: Time to lower and compile it, all compiles together; 0 if read from disk.
        from_disk: Whether the last executable came from the cache on disk.
        explanation: Why it had to be compiled.
        snapshot: The graph as plain data; None once dropped to bound memory.
        results: (op, line, name) of each output.
        lines: Where the op recorded first and the one recorded last stand.
        ran_by: Steps of the program, by name or line, that have a limit and ran it.
        ran_at: Provenances of its nodes, by id, at the call site that ran it last.
    """

    name: str
    key: StepKey
    nodes: int
    inputs: int
    outputs: int
    first_step: int
    last_step: int
    runs: int = 0
    compiles: int = 0
    compile_ns: int = 0
    from_disk: bool = False
    explanation: Explanation | None = None
    snapshot: Snapshot | None = field(default=None, repr=False)
    results: tuple[tuple[str, SourceLocation | None, str], ...] = field(
        default=(), repr=False
    )
    lines: tuple[SourceLocation | None, SourceLocation | None] = (None, None)
    ran_by: set[str] = field(default_factory=set, repr=False)
    canonical: Canonical | None = field(default=None, repr=False)
    ran_at: Mapping[int, Provenance] = field(default_factory=dict, repr=False)
    labels: Counter[Any] | None = field(default=None, repr=False)
    _ops: Counter[str] | None = field(default=None, init=False, repr=False)

    def __str__(self) -> str:
        """Return one line: name, key, size, runs, what compiling took, and why it was new."""
        made = (
            "read from disk"
            if self.from_disk
            else f"compiled in {duration_text(self.compile_ns)}"
        )
        why = f": {self.explanation.text}" if self.explanation is not None else ""
        return (
            f"{self.name} {self.fingerprint[:8]} · {plural(self.nodes, 'op')}, "
            f"{plural(self.inputs, 'input')}, {plural(self.outputs, 'output')} · "
            f"{plural(self.runs, 'run')} from step {self.first_step} on · {made}{why}"
        )

    @property
    def fingerprint(self) -> str:
        """The graph's fingerprint."""
        return self.key.fingerprint

    @property
    def input_names(self) -> dict[int, str]:
        """What its executable's arguments are, by position; those that are known."""
        if self.snapshot is None:
            return {}
        names = {k: name.text for k, name in self.snapshot.leaf_names.items()}
        kinds = [vertex.op for vertex in self.snapshot.vertices if vertex.is_leaf]
        position = kinds.count("data")
        for kind, name in _PACKED.items():
            if kind in kinds:
                names[position] = name
                position += 1
        return names

    @property
    def ops(self) -> Counter[str]:
        """How often the graph has each op; of a graph given up to bound memory nothing."""
        if self.labels is None:
            return Counter()
        if self._ops is None:
            self._ops = Counter()
            for (op, _), number in self.labels.items():
                self._ops[op] += number
        return self._ops

    @property
    def graph(self) -> Graph | None:
        """The graph as IR; None once dropped to bound memory."""
        if self.canonical is None:
            return None
        return Graph(self.canonical.roots, lines_of(self.canonical.nodes))

    @property
    def recorded(self) -> Graph | None:
        """The graph with the lines of the call site that ran it last; None once dropped."""
        if self.canonical is None:
            return None
        return Graph(self.canonical.roots, self.ran_at)

    @property
    def cause(self) -> str:
        """Why it had to be compiled, in words."""
        return self.explanation.text if self.explanation is not None else ""


@dataclass(frozen=True, slots=True)
class Run:
    """One execution, as the buffers that hold its results remember it.

    Attributes:
        step: The runtime's number of the step.
        order: For each wanted value, its position among the graph's results.
        block: Name and number of the `step()` block that ran it, such as `train 3`; empty for
            a nameless one, None outside of blocks.
    """

    step: int
    record: CompiledGraph
    order: tuple[int, ...]
    block: str | None = None


class GraphRegistry:
    """The compiled graphs of the process, by key, the earliest first."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, CompiledGraph] = OrderedDict()
        self._of_step: OrderedDict[int, CompiledGraph] = OrderedDict()
        self._graphs: deque[CompiledGraph] = deque()
        self._reasons: deque[tuple[int, str]] = deque(maxlen=_MAX_STEPS)
        self._count = 0
        self._held_nodes = 0
        self._held_vertices = 0
        self._compiling: CompiledGraph | None = None

    def __iter__(self) -> Iterator[CompiledGraph]:
        return iter(tuple(self._records.values()))

    def __len__(self) -> int:
        return len(self._records)

    def find(self, key: str) -> CompiledGraph | None:
        """Return the record of an executable's key."""
        return self._records.get(key)

    def of_step(self, step: int) -> CompiledGraph | None:
        """Return the graph that a step ran, one of the last thousand."""
        return self._of_step.get(step)

    def steps(self) -> tuple[int, ...]:
        """Return the numbers of the last thousand steps that ran something."""
        return tuple(self._of_step)

    def runs(self) -> Iterator[CompiledGraph]:
        """Yield the graphs that the last thousand steps ran, the latest first."""
        yield from reversed(self._of_step.values())

    def create(
        self, key: StepKey, graph: Canonical, snapshot: Snapshot, step: int
    ) -> CompiledGraph:
        """Return a new record, which `admit` will list once there is an executable."""
        names = snapshot.root_names
        results = []
        for rank, root in enumerate(graph.roots):
            name = names[rank].text if rank in names else ""
            node = root.node
            op, site = (node.op.name, node.provenance.site) if node else ("", None)
            results.append((op, site, name))
        return CompiledGraph(
            name=f"graph.{self._count + 1}",
            key=key,
            nodes=len(graph.nodes),
            inputs=len(snapshot.vertices) - len(graph.nodes),
            outputs=len(graph.roots),
            first_step=step,
            last_step=step,
            snapshot=snapshot,
            results=tuple(results),
            lines=_first_and_last(graph),
            canonical=graph,
            labels=labels(snapshot),
        )

    def admit(self, text_key: str, record: CompiledGraph) -> None:
        """List a record; the oldest ones give way."""
        if text_key not in self._records:
            self._count += 1
            self._records[text_key] = record
            self._held_vertices += len(
                record.snapshot.vertices if record.snapshot else ()
            )
            self._held_nodes += record.nodes
            self._graphs.append(record)
        self._bound()

    def ran(self, record: CompiledGraph, step: int) -> None:
        """Count one execution."""
        record.runs += 1
        record.last_step = step
        if record.canonical is not None:
            record.ran_at = lines_now()
        self._of_step[step] = record
        if len(self._of_step) > _MAX_STEPS:
            self._of_step.popitem(last=False)

    def take_back(self, after: int) -> None:
        """Forget which graphs the steps after one ran: they were taken back."""
        for step in [step for step in self._of_step if step > after]:
            record = self._of_step.pop(step)
            left = (k for k, each in self._of_step.items() if each is record)
            record.last_step = max(left, default=record.first_step)

    @contextlib.contextmanager
    def compiling(self, text_key: str, record: CompiledGraph) -> Iterator[None]:
        """Take in the cost of a compile in the block, and list the record if it succeeds."""
        self._compiling = record
        try:
            yield
            self.admit(text_key, record)
            self._reasons.append((self._step_of(record), record.cause))
        finally:
            self._compiling = None
        check_limit()

    def reasons(self, since: int) -> tuple[str, ...]:
        """Return why graphs were compiled in a step and in those after it; O(answers)."""
        found = []
        for step, reason in reversed(self._reasons):
            if step < since:
                break
            found.append(reason)
        return tuple(reversed(found))

    @staticmethod
    def _step_of(record: CompiledGraph) -> int:
        explanation = record.explanation
        return explanation.step if explanation is not None else record.first_step

    def note_compile(self, event: events.Event) -> None:
        """Add the cost of a compile that has finished; a listener."""
        record = self._compiling
        if (
            record is None
            or not isinstance(event, events.CompileFinished)
            or event.fingerprint != record.fingerprint
        ):
            return
        record.from_disk = event.source == "disk"
        if record.from_disk:
            return
        record.compiles += 1
        record.compile_ns += event.duration_ns
        if record.explanation is not None:
            record.explanation = dataclasses.replace(
                record.explanation, compile_ns=event.duration_ns
            )

    def clear(self) -> None:
        """Forget every record, as a new process would."""
        self._records.clear()
        self._of_step.clear()
        self._reasons.clear()
        self._graphs.clear()
        self._held_nodes = self._held_vertices = self._count = 0

    def _bound(self) -> None:
        while self._graphs and (
            len(self._graphs) > _MAX_GRAPHS or self._held_nodes > _MAX_GRAPH_NODES
        ):
            record = self._graphs.popleft()
            self._held_nodes -= record.nodes
            record.canonical, record.ran_at = None, {}
        for record in tuple(self._records.values()):
            if self._held_vertices <= _MAX_VERTICES:
                break
            if record.snapshot is not None:
                self._held_vertices -= len(record.snapshot.vertices)
                record.snapshot = record.labels = record._ops = None
        while len(self._records) > _MAX_RECORDS:
            _, record = self._records.popitem(last=False)
            if record.snapshot is not None:
                self._held_vertices -= len(record.snapshot.vertices)
            if record in self._graphs:
                self._graphs.remove(record)
                self._held_nodes -= record.nodes


def _first_and_last(
    graph: Canonical,
) -> tuple[SourceLocation | None, SourceLocation | None]:
    """Return the lines of the ops recorded first and last."""
    lines = {node.id: node.provenance.site for node in graph.nodes}
    known = [site for number in lines_now() if (site := lines.get(number)) is not None]
    return (known[0], known[-1]) if known else (None, None)


graph_registry = GraphRegistry()
events.subscribe(graph_registry.note_compile, events.CompileFinished, exact=False)


def check_limit() -> None:
    """Warn once for each graph beyond `config.max_graphs`."""
    limit = config.max_graphs
    if limit and len(graph_registry) > limit:
        _log.warning("%s", alarm(limit, list(graph_registry)))


def check_step_limit(label: str, steps: Iterable[int], limit: int) -> None:
    """Warn when a step of the program has run another graph than before, beyond its limit."""
    ran = [graph_registry.of_step(number) for number in steps]
    new = [
        record for record in ran if record is not None and label not in record.ran_by
    ]
    for record in new:
        record.ran_by.add(label)
    if not new:
        return
    found = [record for record in graph_registry if label in record.ran_by]
    if len(found) > limit:
        _log.warning("%s%s", alarm(limit, found, label), _listed(found))


def alarm(limit: int, found: list[CompiledGraph], label: str = "") -> str:
    """Return the sentence of a program with more graphs than it should have."""
    newest, of = found[-1], f" of {label}" if label else ""
    return (
        f"expected at most {plural(limit, 'graph')}{of}, found {len(found)}: {newest.name} was compiled in "
        f"step {newest.first_step} because {newest.cause}. `%lazy graphs` or "
        "`lazyrt.compiled_graphs()` lists them all."
    )


def _listed(found: list[CompiledGraph]) -> str:
    lines = [
        f"\n  {record.name}, step {record.first_step}: {record.cause}"
        for record in found[:_MAX_ALARM]
    ]
    if len(found) > _MAX_ALARM:
        lines.append(f"\n  and {len(found) - _MAX_ALARM:,} more")
    return "".join(lines)


# --------------------------------------------------------------------- records as bytes
# Plain data, compressed: the snapshot, what the step's key says, and the names of results. Numbers
# of tensors are not in it, and nothing of it holds one.


RECORD_VERSION = 1


def encode_record(record: CompiledGraph) -> bytes:
    """Return a record with its snapshot as compressed JSON."""
    snapshot = record.snapshot
    if snapshot is None:
        raise ValueError(f"{record.name} has no snapshot any more")
    sites: dict[SourceLocation | None, int] = {}
    key = record.key
    data = {
        "version": RECORD_VERSION,
        "name": record.name,
        "fingerprint": snapshot.fingerprint,
        "step": record.first_step,
        "donated": key.donated,
        "tier": key.tier,
        "device": key.device,
        "mode": key.mode,
        "boundaries": [
            [cause, _numbered(site, sites)]
            for cause, site in (key.ended_by, key.began_after, *key.fallbacks)
        ],
        "vertices": [
            [v.op, v.attrs, v.types, v.operands, _numbered(v.site, sites), v.scope, v.backward]
            for v in snapshot.vertices
        ],
        "roots": snapshot.roots,
        "leaf_names": [[k, *name] for k, name in snapshot.leaf_names.items()],
        "root_names": [[k, *name] for k, name in snapshot.root_names.items()],
        "random": sorted(snapshot.random),
        "modules": sorted(snapshot.modules),
        "frozen": sorted(name for name, is_frozen in snapshot.modules.items() if is_frozen),
        "saved": sorted(snapshot.saved),
        "optimizers": key.optimizers,
        "results": [[op, _numbered(site, sites), name] for op, site, name in record.results],
        "sites": [
            None if s is None else [s.file, s.line, s.function, s.cell] for s in sites
        ],
    }  # fmt: skip
    text = json.dumps(data, separators=(",", ":"))
    return gzip.compress(text.encode(), compresslevel=3, mtime=0)


def _numbered(
    site: SourceLocation | None, sites: dict[SourceLocation | None, int]
) -> int:
    return sites.setdefault(site, len(sites))


def decode_record(contents: str) -> CompiledGraph:
    """Return the record whose JSON `encode` compressed.

    Raises:
        ValueError: It is another text, or one that was cut or edited.
    """
    try:
        return _record(json.loads(contents))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"it is not the record of a graph: {error!r:.80}") from None


def _record(data: Any) -> CompiledGraph:
    if data["version"] != RECORD_VERSION:
        raise ValueError(
            f"it has version {data['version']!r:.20}, not {RECORD_VERSION}"
        )
    sites = [None if each is None else SourceLocation(*each) for each in data["sites"]]
    snapshot = _snapshot(data, sites)
    boundaries = [(cause, sites[number]) for cause, number in data["boundaries"]]
    key = StepKey(
        fingerprint=data["fingerprint"],
        donated=tuple(data["donated"]),
        tier=data["tier"],
        device=data["device"],
        mode=data["mode"],
        ended_by=boundaries[0],
        began_after=boundaries[1],
        fallbacks=tuple(boundaries[2:]),
        optimizers=tuple(
            # Older records have none, or no groups.
            OptimizerNote(name, tuple(map(tuple, options)), *map(tuple, groups))
            for name, options, *groups in data.get("optimizers", ())
        ),
    )
    nodes = snapshot.nodes
    return CompiledGraph(
        name=data["name"],
        key=key,
        nodes=nodes,
        inputs=len(snapshot.vertices) - nodes,
        outputs=len(snapshot.roots),
        first_step=data["step"],
        last_step=data["step"],
        snapshot=snapshot,
        results=tuple((op, sites[number], name) for op, number, name in data["results"]),
        labels=labels(snapshot),
    )  # fmt: skip


def _snapshot(data: Any, sites: list[SourceLocation | None]) -> Snapshot:
    vertices = tuple(
        Vertex(
            op,
            tuple(attrs),
            tuple(types),
            tuple((int(x), int(k)) for x, k in operands),
            sites[site],
            scope,
            backward,
        )
        for op, attrs, types, operands, site, scope, backward in data["vertices"]
    )
    for number, vertex in enumerate(vertices):
        if any(not 0 <= x < number for x, _ in vertex.operands):
            raise ValueError(f"operation {number} reads one that is not in front of it")
    roots = tuple((int(x), int(k)) for x, k in data["roots"])
    if any(not 0 <= x < len(vertices) for x, _ in roots):
        raise ValueError("a result is none of the operations")
    return Snapshot(
        cast("str", data["fingerprint"]),
        vertices,
        roots,
        {k: Name(text, holder) for k, text, holder in data["leaf_names"]},
        {k: Name(text, holder) for k, text, holder in data["root_names"]},
        random=frozenset(data["random"]),
        modules={name: name in data.get("frozen", ()) for name in data["modules"]},
        saved=frozenset(data.get("saved", ())),
    )
