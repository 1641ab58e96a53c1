"""How long a compile or an execution will take, from those before it.

A graph that was compiled before takes what it took then; another one is estimated by its ops, from
what compiling such ops took. Where most of them are new, nothing is said.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from lazygraph.graph import HloError
from lazyviz.doc import Doc, Line, Note, Part, Table
from lazyviz.render import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType


_MAX_GRAPHS = 1_000
_MAX_REMEMBERED = 200
_SHOWN_DIGITS = 8  # of a fingerprint, in what the cache on disk remembers

LEARNT_FROM = frozenset(("CompileFinished", "ExecuteStarted", "ExecuteFinished"))
"""Names of the events that tell how long something took."""


VERBS = {
    "load": "looking for the executable of",
    "lower": "lowering",
    "compile": "compiling",
    "execute": "running",
}

_MAX_ROWS = 15
_NUMBER = re.compile(
    r"(?<![^.])\d+(?![^.])"
)  # a part of a module's path that is a number


class Expected(NamedTuple):
    """An expectation.

    Attributes:
        ns: How long, None if nothing is known.
        basis: `as before`, `from its ops`, `at its speed so far`, or empty.
    """

    ns: int | None = None
    basis: str = ""

    def __str__(self) -> str:
        """Return `about 12 s (from its ops)` or `unknown`."""
        if self.ns is None:
            return "unknown"
        return f"about {text.duration(self.ns)} ({self.basis})"


class Expectations:
    """What compiles and executions took so far; fed with events."""

    def __init__(self) -> None:
        self._compiles: OrderedDict[str, int] = OrderedDict()
        self._runs: OrderedDict[str, int] = OrderedDict()
        self._nodes: OrderedDict[str, int] = OrderedDict()
        self._disk: dict[str, int] | None = None

    def add(self, event: Any) -> None:
        """Take in an event; most kinds tell nothing."""
        match type(event).__name__:
            case "CompileFinished" if (
                event.source == "xla" and event.purpose != "tier up"
            ):
                _put(self._compiles, event.fingerprint, event.duration_ns)
            case "ExecuteStarted":
                _put(self._nodes, event.fingerprint, event.nodes)
            case "ExecuteFinished":
                _put(self._runs, event.fingerprint, event.duration_ns)

    def nodes(self, fingerprint: str) -> int:
        """Return the ops of a graph that was run, 0 if it is not known."""
        return self._nodes.get(fingerprint, 0)

    def compile(
        self,
        fingerprint: str,
        runtime: ModuleType | None = None,
        nodes: Sequence[Any] = (),
    ) -> Expected:
        """Return how long compiling a graph will take.

        The runtime knows what it has learned of the ops, and what its cache on disk remembers. Only
        a pending graph has nodes to give.
        """
        known = self._compiles.get(fingerprint)
        if known is None:
            known = self._remembered(runtime).get(fingerprint[:_SHOWN_DIGITS])
        if known is not None:
            return Expected(known, "as before")
        if runtime is None:
            return Expected()
        from lazyrt.tools import compile_forecast

        guess = compile_forecast(nodes or fingerprint)
        return Expected(guess, "from its ops") if guess is not None else Expected()

    def run(self, fingerprint: str) -> Expected:
        """Return how long running a graph will take."""
        known = self._runs.get(fingerprint)
        return Expected(known, "as before") if known is not None else Expected()

    def _remembered(self, runtime: ModuleType | None) -> dict[str, int]:
        """Return compile times of the build that a step waits for, by the first digits of a fingerprint."""
        if self._disk is None and runtime is not None:
            is_optimised = runtime.config.compile_tier == "optimised"
            first = "optimised" if is_optimised else "fast"
            entries = runtime.cached_executables(limit=_MAX_REMEMBERED)
            self._disk = {
                entry.holds.rpartition(" ")[2]: entry.compile_ns
                for entry in sorted(entries, key=lambda entry: entry.tier == first)
                if entry.compile_ns
            }
        return self._disk or {}


def _put(table: OrderedDict[str, int], key: str, value: int) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > _MAX_GRAPHS:
        table.popitem(last=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A wait under way.

    Attributes:
        phase: `load`, `lower`, `compile`, `execute` or `transfer`.
        nodes: Ops of the graph; 0 if not known.
        look: Whether it is for showing a value, which leaves the step alone.
        elapsed_ns: So far.
        expected: How long it will take.
        cause, site: The barrier that waits; empty for a look.
        copy: What is copied where, for a transfer.
        done: How much is copied, or how many ops have run, by now.
        one_by_one: Whether ops run one by one.
    """

    phase: str
    nodes: int
    look: bool
    elapsed_ns: int
    expected: Expected
    cause: str = ""
    site: str = ""
    copy: str = ""
    done: str = ""
    one_by_one: bool = False

    @property
    def what(self) -> str:
        """What is going on, such as `compiling 214 ops`."""
        if self.copy:
            return f"copying {self.copy}"
        ops = f" {text.plural(self.nodes, 'op')}" if self.nodes else ""
        verb = VERBS[self.phase] if ops else VERBS[self.phase].removesuffix(" of")
        return f"{verb}{ops}{' to show a value' if self.look else ''}"

    @property
    def line(self) -> str:
        """All of it in one line."""
        took = text.duration(self.elapsed_ns)
        known = self.expected.ns is not None
        expected = f" of {self.expected}" if known else " · expected: unknown"
        parts = (f"{self.what} · {took}{expected}", self.done, self.site)
        return " · ".join(filter(None, parts))


class Block(NamedTuple):
    """The ops of modules that differ in numbers only, or of one line outside of modules.

    Attributes:
        name: Such as `layers.*.linear1`; `cell 3 line 7` for a line.
        ops: How many.
        times: How many such modules.
        site: The line that recorded most of them.
    """

    name: str
    ops: int
    times: int
    site: str


def blocks(ops: Iterable[tuple[str, bool, Any]]) -> list[Block]:
    """Return the blocks of some ops, by module path, direction and line of each, the largest first.

    Example:
        >>> blocks([("layers.0.fc", False, "a.py:3"), ("layers.1.fc", False, "a.py:3"),
        ...         ("", True, "a.py:9")])[0]
        Block(name='layers.*.fc', ops=2, times=2, site='a.py:3')
    """
    counts: Counter[str] = Counter()
    modules: defaultdict[str, set[str]] = defaultdict(set)
    sites: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for scope, backward, site in ops:
        place = str(site or "")
        name = _NUMBER.sub("*", scope) or place or "not known"
        if backward:
            name += " (backward)"
        counts[name] += 1
        modules[name].add(scope)
        sites[name][place] += 1
    return [
        Block(
            name.replace("*", "modules *", 1) if name[0] == "*" else name,
            ops,
            len(modules[name]),
            sites[name].most_common(1)[0][0],
        )
        for name, ops in counts.most_common()
    ]


def of_step(runtime: ModuleType, step: int) -> Doc:
    """Return the share of each block in a step's graph."""
    record = record_of_step(runtime, step)
    if record.snapshot is None:
        raise ValueError(
            f"the ops of {record.name} are forgotten, to bound memory. Name a later step; "
            "%lazy step lists them."
        )
    ops = [
        (v.scope, v.backward, v.site) for v in record.snapshot.vertices if not v.is_leaf
    ]
    took = f"compiled in {text.duration(record.compile_ns)}"
    if record.from_disk:
        took = "read from disk"
    head = f"{record.name} of step {step} · {text.plural(len(ops), 'op')} · {took}"
    return _shares(head, ops, None if record.from_disk else record.compile_ns)


def latest_step(runtime: ModuleType) -> int | None:
    """Return the number of the last step that ran something, and was not taken back."""
    known = ((each.last_step, each) for each in runtime.compiled_graphs())
    ran = (step for step, each in known if runtime.graph_of_step(step) is each)
    return max(ran, default=None)


def record_of_step(runtime: ModuleType, step: int) -> Any:
    """Return the record of the graph that a step ran.

    Raises:
        HloError: No graph is known of it.
    """
    if (record := runtime.graph_of_step(step)) is not None:
        return record
    latest = latest_step(runtime)
    why = "no step has run yet. Run the cell that trains first."
    if latest is not None:
        why = f"the latest that ran is step {latest}. `%lazy step N` lists the last N."
    raise HloError(f"there is no graph of step {step}: {why}")


def of_pending(runtime: ModuleType, graph: Any, expectations: Expectations) -> Doc:
    """Return what compiling a pending graph will take, and the share of each block."""
    ops = [
        (
            node.provenance.module,
            node.provenance.backward is not None,
            node.provenance.site,
        )
        for node in graph.nodes
    ]
    known = {record.fingerprint for record in runtime.compiled_graphs()}
    held = {e.holds for e in runtime.cached_executables() if e.in_memory}
    fingerprint = graph.fingerprint
    if fingerprint in known and f"step graph {fingerprint[:8]}" in held:
        what, ns = "in memory already: nothing will be compiled", None
    else:
        expected = expectations.compile(fingerprint, runtime, graph.nodes)
        what, ns = f"expected compile time: {expected}", expected.ns
    head = f"pending graph · {text.plural(len(ops), 'op')} · {what}"
    return _shares(head, ops, ns)


def _shares(head: str, ops: list[tuple[str, bool, Any]], total_ns: int | None) -> Doc:
    """Return the blocks of a compile under a line that says which graph, and how long."""
    found = blocks(ops)
    rows = []
    for block in found[:_MAX_ROWS]:
        share = block.ops / len(ops)
        about = text.duration(share * total_ns) if total_ns else ""
        name = f"{block.name} ×{block.times}" if block.times > 1 else block.name
        rows.append((name, block.ops, text.share(share), about, block.site))
    table = Table(["block", "ops", "share", "about", "at"], rows).filled()
    parts: list[Part] = [Line(head), *([table] if rows else [])]
    if len(found) > _MAX_ROWS:
        rest = text.plural(len(found) - _MAX_ROWS, "smaller block")
        parts.append(Note(f"... and {rest}"))
    if total_ns:
        parts.append(
            Note("about: the block's share of the ops, times the compile time")
        )
    return Doc(parts)
