"""What a step-cache miss finds out besides the executable.

The new graph gets a name, its tensors the user's names, and its compile a reason. Nothing here
runs on a hit, and nothing here may stop a step: an explanation that fails is logged, and the
step goes on without it. Only `frozen()` stops one.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from contextvars import ContextVar
from typing import TYPE_CHECKING

from lazygraph.explain.model import Cause, Explanation
from lazygraph.explain.why import evicted, explain
from lazygraph.snapshot import Name, Origin
from lazyrt import jax_compat
from lazyrt.config import config
from lazyrt.errors import FrozenError, LazyRuntimeError
from lazyrt.execution import compiler
from lazyrt.execution.census import CompiledGraph, Run, StepKey, census
from lazyrt.execution.source_names import UserSource
from lazyrt.ir.live import FromCpu, RanAlone, pending
from lazyrt.ir.snapshot import snapshot_of
from lazyrt.observe.events import Site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lazyrt.ir.fingerprint import Canonical
    from lazyrt.ir.node import Value

_is_frozen: ContextVar[bool] = ContextVar("lazyrt_frozen", default=False)
_log = logging.getLogger(__name__)
_MAX_FALLBACKS = 100

# What asked for a barrier, and where.
Boundary = tuple[str, Site | None]

_began_after: Boundary = ("", None)
_fallbacks: deque[tuple[str, Site | None]] = deque(maxlen=_MAX_FALLBACKS)
_modules: frozenset[str] = frozenset()
_namer: Callable[[], dict[int, Name]] = dict
_mode: Callable[[], str] = lambda: "lazy"  # noqa: E731 - replaced by `set_mode`
_cell: Callable[[], int | None] = lambda: None  # noqa: E731 - replaced by `set_cell`


def set_namer(namer: Callable[[], dict[int, Name]]) -> None:
    """Tell how to find the user's names of buffers, by their identity."""
    global _namer
    _namer = namer


def set_mode(mode: Callable[[], str]) -> None:
    """Tell how to find the name of the debug mode that ran a part of the pending step."""
    global _mode
    _mode = mode


def set_cell(cell: Callable[[], int | None]) -> None:
    """Tell how to find the cell of a notebook that runs."""
    global _cell
    _cell = cell


def note_barrier(cause: str, site: Site | None) -> None:
    """Remember where the step that is over ended."""
    global _began_after
    _began_after = (cause, site)
    if _fallbacks and not cause.startswith("CPU fallback"):
        _fallbacks.clear()


def describe(
    graph: Canonical,
    donated: Sequence[int],
    known: CompiledGraph | None,
    boundary: Boundary,
    *,
    fast: bool,
) -> CompiledGraph:
    """Return the record of a graph that is about to be compiled, with its explanation.

    Args:
        graph: What the pending step computes.
        donated: Positions of arguments whose memory results take.
        known: Its record if it was compiled before.
        boundary: What ends the step.
        fast: Whether the fast compile tier is on.
    """
    step = pending.number
    if known is not None:
        known.explanation = evicted(known, step, config.max_executables)
        return known
    names, origins, modules = _names_and_origins(graph)
    key = StepKey(
        fingerprint=graph.fingerprint,
        donated=tuple(donated),
        tier="fast" if fast else "optimised",
        device=jax_compat.device_name(),
        mode=_mode(),
        ended_by=boundary,
        began_after=_began_after,
        fallbacks=tuple(_fallbacks),
        rules=compiler.given_rules(graph),
        cell=_cell(),
    )
    record = census.create(
        key, graph, snapshot_of(graph, names, origins, modules), step
    )
    record.explanation = _explanation(record)
    return record


def check_hit(graph: Canonical, record: CompiledGraph) -> None:
    """Compare a graph with the one of the same fingerprint that was compiled.

    Args:
        graph: What is about to run with the executable of `record`.
        record: What was compiled; its graph may have been given up to bound memory.

    Raises:
        LazyRuntimeError: They are two programs.
    """
    if record.canonical is None:
        return
    one, other = snapshot_of(graph), snapshot_of(record.canonical)
    rows = [
        [(v.label, v.operands) for v in each.vertices] + [each.roots]
        for each in (one, other)
    ]
    if rows[0] != rows[1]:
        raise LazyRuntimeError(
            f"the pending graph and {record.name} have the fingerprint {graph.fingerprint[:8]} and "
            "are two programs: running the executable of the one would give wrong values for the "
            "other, so nothing has run. Please report it; `lazyrt.clear_caches()` lets the graph "
            "be compiled anew."
        )


def _explanation(record: CompiledGraph) -> Explanation:
    try:
        return explain(record, census, UserSource())
    except Exception:  # noqa: BLE001 - the step goes on
        _log.exception("explaining why %s is new failed", record.name)
        cause = Cause(
            kind="wiring",
            text="it differs from every graph before (the comparison itself failed; see the log)",
            fix="look at both with `%lazy diff`",
        )
        return Explanation(step=record.first_step, graph=record.name, causes=(cause,))


def _names_and_origins(
    graph: Canonical,
) -> tuple[dict[Value, Name], dict[Value, Origin], frozenset[str]]:
    """Return names of a graph's roots and inputs, origins of its inputs, and names in modules."""
    global _modules
    try:
        by_buffer = _namer()
    except Exception:  # noqa: BLE001 - the step goes on
        _log.exception("finding the names of tensors failed")
        by_buffer = {}
    names: dict[Value, Name] = {}
    origins: dict[Value, Origin] = {}
    for buffer in pending.buffers:
        name = by_buffer.get(id(buffer))
        if name is not None and buffer.value is not None:
            names.setdefault(buffer.value, name)
    for leaf in graph.data:
        owner = pending.owners[leaf.position]()
        name = by_buffer.get(id(owner))
        origin = origins[leaf] = _origin(leaf.position, dropped=owner is None)
        if name is None and origin.name:  # what it was called when it was computed
            name = Name(origin.name)
        if name is not None:
            names[leaf] = name
    modules = frozenset(name.text for name in by_buffer.values() if name.in_module)
    if modules != _modules:  # else one set serves all graphs
        _modules = modules
    return names, origins, _modules


def _origin(position: int, *, dropped: bool) -> Origin:
    """Return which execution produced an input of the pending step."""
    run: Run | FromCpu | RanAlone | None
    run, slot = pending.sources[position]
    if isinstance(run, RanAlone):
        op, site = run.made[slot]
        return Origin(-1, op=op, site=site, dropped=dropped, how=run.how)
    if not isinstance(run, Run):
        return Origin(-1, dropped=dropped)
    output = run.order[slot]
    op, site, name = run.record.results[output]
    return Origin(run.step, run.record.name, output, op, site, name, dropped)


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """Let no step make a new graph inside the block.

    A barrier that would have to compile, or to read an executable from disk, raises with the
    reason; nothing has run then, and its tensors stay pending. Prints and peeks may compile:
    they do not change what a step compiles.

    Raises:
        FrozenError: A step's graph is new.
    """
    token = _is_frozen.set(True)
    try:
        yield
    finally:
        _is_frozen.reset(token)


def check_frozen(nodes: int, reason: str) -> None:
    """Stop the compile of a new step graph inside `frozen()`.

    Raises:
        FrozenError: The caller is inside `frozen()`.
    """
    if _is_frozen.get():
        raise FrozenError(
            f"a new graph of {nodes:,} {'op' if nodes == 1 else 'ops'} inside frozen(): {reason}. "
            "It would have to be compiled, so nothing ran and its tensors stay pending. Run one "
            "such step before the block, or take away what made it new."
        )
