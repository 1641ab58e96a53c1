"""`%lazy compile`: what a compile takes or will take, and which blocks of the program it is for.

XLA does not tell its time by op. Compile time grows with the number of ops, so a block's share
of these is the best that is known of its share of the time.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from lazyviz.doc import Doc, Line, Note, Table
from lazyviz.render import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType

    from lazyviz.timing.expected import Expectations, Expected

_MAX_ROWS = 15
_NUMBER = re.compile(
    r"(?<![^.])\d+(?![^.])"
)  # a part of a module's path that is a number


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What a compile is for.

    Attributes:
        head: One line: which graph, and how long it took or will take.
        header: The titles of the table's columns.
        rows: One for each block; none where nothing is known.
        notes: Lines below the table.
    """

    head: str
    header: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    notes: Sequence[str] = ()

    def doc(self) -> Doc:
        """Return a table under a line."""
        table = [Table(self.header, self.rows)] if self.rows else []
        return Doc([Line(self.head), *table, *map(Note, self.notes)])


def blocks(ops: Iterable[tuple[str, bool, Any]]) -> list[Block]:
    """Return the blocks of some ops, the largest first.

    Args:
        ops: Module path, whether autograd recorded it, and the user's line, of each op.

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
        Block(name, ops, len(modules[name]), sites[name].most_common(1)[0][0])
        for name, ops in counts.most_common()
    ]


def of_step(runtime: ModuleType, step: int | None) -> Shares:
    """Return the share of each block in a step's graph, the last one that was compiled if None.

    Raises:
        ValueError: The step ran nothing, or is too long ago.
    """
    record = _record(runtime, step)
    if record is None:
        return Shares(head="No step was compiled yet, and nothing is pending.")
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
    head = f"{record.name} of step {record.last_step} · {text.plural(len(ops), 'op')} · {took}"
    return _shares(head, ops, None if record.from_disk else record.compile_ns)


def _record(runtime: ModuleType, step: int | None) -> Any:
    if step is None:
        records = runtime.compiled_graphs()
        return records[-1] if records else None
    record = runtime.graph_of_step(step)
    if record is None:
        raise ValueError(
            f"there is no graph of step {step}: {why_unknown(runtime, step)}"
        )
    return record


def why_unknown(runtime: ModuleType, step: int) -> str:
    """Return why no graph is known of a step, and what to do."""
    latest = max((each.last_step for each in runtime.compiled_graphs()), default=None)
    if latest is None:
        return "no step has run yet. Run the cell that trains first."
    if step > latest:
        return (
            f"the latest that ran is step {latest}. `%lazy step` lists the last steps."
        )
    return (
        "it ran nothing, or is more than a thousand steps ago. `%lazy step` lists the last "
        "steps."
    )


def of_pending(runtime: ModuleType, graph: Any, expectations: Expectations) -> Shares:
    """Return what compiling a pending graph will take, and the share of each block."""
    ops = [
        (
            node.provenance.module,
            node.provenance.backward is not None,
            node.provenance.site,
        )
        for node in graph.nodes
    ]
    expected = _expected(runtime, graph, expectations)
    if expected is None:
        what, ns = "in memory already: nothing will be compiled", None
    else:
        what, ns = f"expected compile time: {expected}", expected.ns
    head = f"pending graph · {text.plural(len(ops), 'op')} · {what}"
    return _shares(head, ops, ns)


def _expected(
    runtime: ModuleType, graph: Any, expectations: Expectations
) -> Expected | None:
    known = {record.fingerprint for record in runtime.compiled_graphs()}
    held = {e.holds for e in runtime.cached_executables() if e.in_memory}
    fingerprint = graph.fingerprint
    if fingerprint in known and f"step graph {fingerprint[:8]}" in held:
        return None
    return expectations.compile(fingerprint, len(graph.nodes), runtime)


def _shares(
    head: str, ops: list[tuple[str, bool, Any]], total_ns: int | None
) -> Shares:
    found = blocks(ops)
    rows = []
    for block in found[:_MAX_ROWS]:
        share = block.ops / len(ops)
        about = text.duration(share * total_ns) if total_ns else ""
        name = f"{block.name} ×{block.times}" if block.times > 1 else block.name
        rows.append((name, block.ops, text.share(share), about, block.site))
    header = ["block", "ops", "share", "about", "at"]
    keep = [k for k, _ in enumerate(header) if any(str(row[k]) for row in rows)]
    notes = []
    if len(found) > _MAX_ROWS:
        notes.append(f"... and {text.plural(len(found) - _MAX_ROWS, 'smaller block')}")
    if total_ns:
        notes.append("about: the block's share of the ops, times the compile time")
    return Shares(
        head=head,
        header=[header[k] for k in keep],
        rows=[[row[k] for k in keep] for row in rows],
        notes=notes,
    )
