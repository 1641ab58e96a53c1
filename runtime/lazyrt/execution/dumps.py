"""What XLA made and what the device ran: compiled graphs as files, and traces of the device."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from lazygraph.normalize import with_all_places
from lazyrt import jax_compat
from lazyrt.closing import Closing
from lazyrt.errors import UsageError
from lazyrt.execution import compiler
from lazyrt.execution.graph import Graph, compiled_text
from lazyrt.execution.linked import LinkedExecutable
from lazyrt.lowering.emit import (
    argument_types,
    emit_text,
    function_places,
    result_types,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lazygraph.snapshot import Snapshot
    from lazyrt.execution.graph_registry import CompiledGraph
    from lazyrt.ir.fingerprint import Canonical

DumpForm = Literal["ir", "stablehlo", "hlo_before", "hlo_after", "dot"]
FORMS: tuple[DumpForm, ...] = get_args(DumpForm)

_DATA = re.compile(r"^%p\d+ : \S+$", re.MULTILINE)
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
    graph = record.canonical
    if graph is None or record.snapshot is None:
        raise UsageError(
            f"{record.name} is too old to be written: only the latest graphs are kept in "
            "memory. Call dump_graphs() nearer to its compile."
        )
    writers: dict[str, Callable[[], str]] = {
        "ir": lambda: _ir(record, graph) + "\n",
        "stablehlo": lambda: jax_compat.placed_text(
            emit_text(graph, record.input_names), function_places(graph)
        ),
        "hlo_before": lambda: _before(record, graph),
        "hlo_after": lambda: _after(record, graph),
        "dot": lambda: _to_dot(record, _ir(record, graph)),
    }
    return writers[form]()


def _ir(record: CompiledGraph, graph: Canonical) -> str:
    """Return the IR with the names of its inputs, which come from no line."""
    names, ranks = record.input_names, count()

    def named(found: re.Match[str]) -> str:
        name = names.get(next(ranks), "")
        return f"{found[0]}  # {name}" if name else found[0]

    return _DATA.sub(named, Graph(graph.roots).to_text())


def _before(record: CompiledGraph, graph: Canonical) -> str:
    text = emit_text(graph, record.input_names)
    return with_all_places(jax_compat.hlo_text(text, function_places(graph)))


def _after(record: CompiledGraph, graph: Canonical) -> str:
    fast = record.key.tier == "fast"
    key = compiler.graph_key(graph, record.key.donated, fast=fast)
    executable = compiler.lookup(key)
    if executable is None or isinstance(executable, LinkedExecutable):
        names = record.input_names
        executable = compiler.compile_uncounted(
            emit_text(graph, names), argument_types(graph), result_types(graph), names
        )
    return compiled_text(executable)


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
    """A trace of the device, taken until it is closed.

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


def device_trace() -> DeviceTrace:
    """Trace what the device runs, instruction by instruction, from now on.

    Returns:
        Close it, or use it in `with`, to stop; then it has the trace, or why there is none.
    """
    return DeviceTrace()


def compiled_texts(fingerprint: str) -> tuple[str, ...]:
    """Return the optimised HLO of the programs that a graph's builds in memory consist of."""
    return tuple(
        compiled_text(program)
        for build in compiler.executables_of(fingerprint)
        for program in getattr(build, "programs", [build])
    )
