"""The executables that this process or this user's disk holds: a list, eviction, texts and traces.

Above their budget they are dropped in order of their last use. A step that repeats finds its
executable by its plan and looks nothing up, so the order would be that of compiling. Plans are
therefore forgotten once before anything is dropped: whatever is still in use is then looked up
and goes to the end.
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from lazygraph.readable import Readable, duration_text, plural, size_text
from lazyrt import jax_compat
from lazyrt.config import config
from lazyrt.errors import UsageError
from lazyrt.execution import cache, compiler
from lazyrt.execution.graph import Graph, compiled_text
from lazyrt.execution.graph_registry import CompiledGraph, graph_registry
from lazyrt.execution.peek import forget_slices
from lazyrt.lowering.emit import function_places
from lazyrt.observe import events
from lazyrt.observe.events import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from lazygraph.snapshot import Snapshot

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedExecutable(Readable):
    """One executable, in memory, on disk, or both.

    Attributes:
        key: 32 hexadecimal digits, equal in all processes; its first ones name it for eviction.
        holds: The op with its operand types, or the kind of graph and its fingerprint; empty
            if an older version wrote it.
        nodes: How many ops it runs; 0 where unknown.
        tier: `fast` or `optimised`; empty where unknown.
        line: The user's line of the op, of a graph's last op; empty where unknown.
        nbytes: Size on disk; 0 for one in memory alone, whose size XLA does not tell.
        age_s: Seconds since it was compiled; since it was used where that is unknown.
        unused_s: Seconds since it was last read from disk or compiled.
        in_memory, on_disk: Where it is.
        compile_ns: How long compiling it took; 0 where unknown.
        hits: How often this process ran or found it without compiling it.
        is_usable: False for a file that other versions or another machine made: it takes
            space, and this process never reads it.
    """

    key: str
    holds: str
    nodes: int
    tier: str
    line: str
    nbytes: int
    age_s: float
    unused_s: float
    in_memory: bool
    on_disk: bool
    is_usable: bool = True
    compile_ns: int = 0
    hits: int = 0
    _file: cache.File | None = field(default=None, repr=False, compare=False)
    _memory_key: str = field(default="", repr=False, compare=False)

    def __str__(self) -> str:
        """Return one line: key, what it holds, where it is, and what it cost and saved."""
        places = ["in memory"] * self.in_memory + ["on disk"] * self.on_disk
        parts = [
            f"{self.key[:8]} {self.holds or 'unknown'}",
            *([self.tier] if self.tier else []),
            *([self.line] if self.line else []),
            " and ".join(places),
            *([size_text(self.nbytes)] if self.nbytes else []),
            *(
                [f"compiled in {duration_text(self.compile_ns)}"]
                if self.compile_ns
                else []
            ),
            plural(self.hits, "hit"),
        ]
        return " · ".join(parts if self.is_usable else [*parts, "of no use here"])


def list_executables(limit: int | None = None) -> tuple[CachedExecutable, ...]:
    """Return the executables in memory and on disk, the latest used first.

    No more files than the limit are read, beside those of what is in memory.
    """
    now = time.time()
    held = compiler.held()
    found = []
    for file in _files(held, limit):
        memory = held.pop(file.digest, None) if file.is_usable else None
        found.append(_entry(now, file.digest, file, memory))
    found += [_entry(now, digest, None, memory) for digest, memory in held.items()]
    return tuple(sorted(found, key=lambda e: (e.unused_s, e.key))[:limit])


def _files(held: Container[str], limit: int | None) -> list[cache.File]:
    """Return the files to list: those used latest, and those of what is in memory."""
    files = list(cache.files())
    if limit is None:
        return files
    latest = heapq.nlargest(limit, files, key=lambda file: file.used_s)
    paths = {file.path for file in latest}
    return latest + [f for f in files if f.digest in held and f.path not in paths]


def _entry(
    now: float,
    digest: str,
    file: cache.File | None,
    memory: tuple[str, cache.Facts] | None,
) -> CachedExecutable:
    facts = file.facts() if file is not None else cache.Facts()
    if memory is not None and not facts.holds:
        facts = memory[1]
    memory_key = memory[0] if memory is not None else ""
    # A step's plan runs an executable without looking it up.
    record = graph_registry.find(memory_key)
    served = record.runs - record.compiles if record else compiler.hits(memory_key)
    used = file.used_s if file is not None else facts.written_s
    return CachedExecutable(
        key=digest,
        holds=facts.holds,
        nodes=facts.nodes,
        tier=facts.tier,
        line=facts.line,
        nbytes=file.nbytes if file is not None else 0,
        age_s=max(0.0, now - (facts.written_s or used)),
        unused_s=max(0.0, now - used),
        in_memory=memory is not None,
        on_disk=file is not None,
        is_usable=file is None or file.is_usable,
        _file=file,
        compile_ns=facts.compile_ns,
        hits=max(0, served),
        _memory_key=memory_key,
    )


def chosen(key: str | None, unused_s: float | None) -> tuple[CachedExecutable, ...]:
    """Return the executables of a key's first digits, or those unused for so long."""
    _check(key, unused_s)
    entries = list_executables()
    if unused_s is not None:
        return tuple(entry for entry in entries if entry.unused_s >= unused_s)
    if key is None:
        return entries
    found = [entry for entry in entries if key and entry.key.startswith(key)]
    # The same key in the folders of two versions is one choice.
    if len({entry.key for entry in found}) == 1:
        return tuple(found)
    if not found:
        raise UsageError(
            f"no executable has a key that begins with {key!r}, so nothing was dropped. "
            "lazyrt.cached_executables() and %lazy cache list the keys."
        )
    several = ", ".join(entry.key[:12] for entry in found[:_SHOWN])
    raise UsageError(
        f"{len(found)} executables have keys that begin with {key!r} ({several}, ...), so "
        "nothing was dropped. Give more digits."
    )


def _check(key: object, unused_s: object) -> None:
    if key is not None and not isinstance(key, str):
        raise UsageError(
            f"drop_executables() got key={key!r}, which is {type(key).__name__}, not text, so "
            "nothing was dropped. Keys are texts: give the first digits as one."
        )
    if unused_s is not None and not isinstance(unused_s, (int, float)):
        raise UsageError(
            f"drop_executables() got unused_s={unused_s!r}, which is no number of seconds, so "
            "nothing was dropped. 86_400 drops what nobody used for a day."
        )


def drop(entries: tuple[CachedExecutable, ...]) -> None:
    """Drop executables from memory and from disk."""
    compiler.drop(entry._memory_key for entry in entries if entry.in_memory)
    for entry in entries:
        if entry._file is not None:
            cache.remove(entry._file)


_order_is_known = False


def keep_within_budget() -> bool:
    """Drop executables above `config.max_executables`; return whether plans must go, too.

    Called with nothing pending. Results and fingerprints stay what they would have been: an
    executable that is needed again is compiled again.
    """
    global _order_is_known
    budget = config.max_executables
    count = compiler.executable_count()
    nearly_full = budget * 3 // 4
    if count <= nearly_full:
        return False
    if count <= budget:
        if _order_is_known:
            return False
        _order_is_known = True
        forget_slices()
        return True
    dropped = compiler.drop_oldest(nearly_full)
    forget_slices()
    _order_is_known = False
    events.emit(
        events.CacheEvicted(
            cache="executables", dropped=dropped, kept=count - dropped, budget=budget
        )
    )
    return True


# ------------------------------------------- compiled graphs as files, and traces of the device


DumpForm = Literal["ir", "stablehlo", "hlo_before", "hlo_after", "dot"]
FORMS: tuple[DumpForm, ...] = get_args(DumpForm)

_SUFFIXES: dict[str, str] = {
    "ir": "ir.txt",
    "stablehlo": "stablehlo.mlir",
    "hlo_before": "before_optimisation.hlo",
    "hlo_after": "after_optimisation.hlo",
    "dot": "dot",
}


def dump(
    records: Iterable[CompiledGraph], folder: str | Path, forms: Iterable[DumpForm]
) -> list[Path]:
    """Write each graph that is still in memory in each form; return the files.

    Nothing of it counts as a compile of the program. Graphs too old to be in memory are left
    out; at least one must be there.
    """
    wanted = tuple(forms)
    for form in wanted:
        if form not in FORMS:
            raise UsageError(
                f"dump_graphs() got the form {form!r}, which there is not. The forms are "
                f"{', '.join(FORMS)}."
            )
    path = _path(folder)
    there = [record for record in records if record.canonical is not None]
    if not there:
        raise UsageError(
            "dump_graphs() found no compiled graph in memory, so there is nothing to write. "
            "Run a step first."
        )
    target = _made(path)
    written = []
    for record in there:
        for form in wanted:
            file = target / f"{record.name}.{_SUFFIXES[form]}"
            file.write_text(text_of(record, form), encoding="utf-8")
            written.append(file)
    return written


def _path(folder: str | Path) -> Path:
    try:
        return Path(folder)
    except TypeError:
        raise UsageError(
            f"dump_graphs() got {folder!r:.60} as its folder, which is {type(folder).__name__} and "
            "no path, so nothing was written. Give the folder's path, such as 'dumps'."
        ) from None


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"dump_graphs() cannot make the folder {str(folder)!r}, so nothing was written: "
            f"{error.strerror}. Give another path."
        ) from None
    return folder


def text_of(record: CompiledGraph, form: DumpForm) -> str:
    """Return a compiled graph in one form.

    A graph so old that only its record is left raises UsageError.
    """
    graph, called = record.canonical, record.input_names
    if graph is None or record.snapshot is None:
        raise UsageError(
            f"{record.name} is too old to be written: only the latest graphs are kept in "
            "memory. Call dump_graphs() nearer to its compile."
        )
    ir = Graph(graph.roots)
    computation = ir.lower(called)
    match form:
        case "ir":
            return ir.to_text(called) + "\n"
        case "dot":
            return _to_dot(record, ir.to_text(called))
        case "stablehlo":
            places = function_places(graph)
            return jax_compat.placed_text(computation.as_text(), places)
        case "hlo_before":
            return computation.as_text(form)
    fast = record.key.tier == "fast"
    key = compiler.graph_key(graph, record.key.donated, fast=fast)
    return computation.known_hlo(key) or computation.as_text("hlo")


def _to_dot(record: CompiledGraph, ir: str) -> str:
    """Return a graph's snapshot as a DOT digraph, clustered by module.

    The IR follows as comments: a drawing lacks the ops' arguments, and a comparison needs them.
    """
    snapshot = record.snapshot
    assert snapshot is not None
    scopes: dict[str, list[int]] = defaultdict(list)
    for k, vertex in enumerate(snapshot.vertices):
        scopes[vertex.scope].append(k)
    lines = [f"digraph {_quoted(record.name)} {{", "  node [shape=box];"]
    for number, (scope, members) in enumerate(scopes.items()):
        nodes = [f"v{k} [label={_quoted(_label(snapshot, k))}];" for k in members]
        if scope:
            head = f"subgraph cluster_{number} {{ label={_quoted(scope)};"
            nodes = [head, *(f"  {node}" for node in nodes), "}"]
        lines += [f"  {node}" for node in nodes]
    for k, vertex in enumerate(snapshot.vertices):
        lines += [f"  v{operand} -> v{k};" for operand, _ in vertex.operands]
    for rank, (vertex_number, _) in enumerate(snapshot.roots):
        name = snapshot.root_names[rank].text if rank in snapshot.root_names else ""
        label = f"output {rank} {name}".strip()
        lines.append(f"  r{rank} [shape=ellipse, label={_quoted(label)}];")
        lines.append(f"  v{vertex_number} -> r{rank};")
    comments = [f"// {line}" for line in ir.splitlines()]
    return "\n".join([*lines, "}", *comments, ""])


def _label(snapshot: Snapshot, k: int) -> str:
    vertex = snapshot.vertices[k]
    name = snapshot.leaf_names[k].text if k in snapshot.leaf_names else ""
    parts = [f"{vertex.op} {name}".strip(), ", ".join(vertex.types)]
    if vertex.site is not None:
        parts.append(str(vertex.site))
    return "\n".join(parts)


def _quoted(text: str) -> str:
    """Return a DOT string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


# Traces of the device: what it ran and when, and the programs that its instructions are of.

_TRIES = 5


class DeviceTrace(Closing):
    """A trace of what the device runs, instruction by instruction, taken until it is closed.

    Attributes:
        data: The trace as bytes of an XSpace proto; empty until it is closed.
        fault: Why there is no trace; empty if there is one. jax says so at the end of it.
        epoch_ns: What to add to a time of `time.perf_counter_ns` to get nanoseconds since 1970,
            as the trace counts them.
    """

    def __init__(self) -> None:
        self.data = b""
        self.fault = ""
        self.epoch_ns = _epoch_ns()
        self._end: Callable[[], bytes] | None = None
        try:
            self._end = jax_compat.start_device_trace()
        except RuntimeError as error:
            self.fault = _fault(error)

    def close(self) -> None:
        """End the trace; closing twice is harmless."""
        end, self._end = self._end, None
        try:
            self.data = end() if end is not None else self.data
        except RuntimeError as error:
            self.fault = _fault(error)


device_trace = DeviceTrace


def _fault(error: RuntimeError) -> str:
    return (
        f"no trace of the device was taken: {str(error).rstrip('.')}. There is one at a time: end the other one "
        "first (jax.profiler.stop_trace(), or the end of its block)."
    )


def _epoch_ns() -> int:
    """Return the difference of the two clocks, from the closest of a few readings."""
    found = []
    for _ in range(_TRIES):
        before = time.perf_counter_ns()
        since_1970 = time.time_ns()
        after = time.perf_counter_ns()
        found.append((after - before, since_1970 - (before + after) // 2))
    return min(found)[1]


def compiled_texts(fingerprint: str) -> tuple[str, ...]:
    """Return the optimised HLO of the programs that a graph's builds in memory consist of."""
    return tuple(
        compiled_text(program)
        for build in compiler.executables_of(fingerprint)
        for program in getattr(build, "programs", [build])
    )
