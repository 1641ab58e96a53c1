"""What one cell did to the lazy device: the data behind its strip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lazyviz.render.cuts import Cut
    from lazyviz.render.model import DrawGraph
    from lazyviz.render.state import Apart, Left, Looked, Redundant, Repeat, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """The barriers of one cause at one place that ran something.

    Attributes:
        cause: Why they came, in the runtime's words: `mark_step()`, `read by .item()`, ...
        site: The user's line, such as `cell 3 line 7`; empty where it is not known.
        nodes: Operations that they ran, all together.
        times: How many there were.
        tensor: What was read, in the user's words; told only where it cut a step.
        cut: Name of the `step()` that they cut, empty for a nameless one; None if none was.
        duration_ns: How long they took, where they cut a step.
    """

    cause: str
    site: str
    nodes: int
    times: int = 1
    tensor: str = ""
    cut: str | None = None
    duration_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """An operation that ran on the CPU and cut the graph, at one place."""

    op: str
    site: str
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleOps:
    """The operations that ran one by one, in eager debug mode or op-by-op mode.

    Attributes:
        mode: `eager` or `op by op`.
        ops: How many ran, `cache_hits` of them with an executable from memory.
        repeats: How many of them had run before since the last barrier.
        run_ns: Time to hand them over.
        idle_barriers: Barriers that found nothing left to run.
    """

    mode: str
    ops: int = 0
    cache_hits: int = 0
    repeats: int = 0
    run_ns: int = 0
    idle_barriers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """Counts and times of one cell.

    Attributes:
        pending_ops: Operations that wait to be run after the cell.
        new_ops: How many of them the cell recorded.
        live_tensors: Tensors on the lazy device that Python still references.
        compiles: Graphs that XLA compiled, `compile_ns` the time it took.
        loads: Executables that were read from disk instead, `load_ns` the time it took.
        executions: Executables that were started, `execute_ns` the time of those that
            have ended, `running` the number of those that have not.
        cache_hits: Graphs that found their executable in memory.
        peeks: Values that were computed to be shown, leaving the pending graph alone.
        transfers: Copies between host and device.
        fallbacks: Operations that ran on the CPU.
        barriers: What made pending operations run, and where.
        parts: Phases of the cell's own thread and their nanoseconds, which add up to
            `wall_ns`: see `lazyviz.timing.ledger`. Its `execute` is waiting for the device, so what
            ran while the thread did something else is in `execute_ns` alone.
        wall_ns: From the cell's start to its end.
        own_ns: How much of it lazyviz took by listening.
        steps: `step()` blocks that ended.
        error: Name of the exception that ended the cell, or None.
        interrupted: Whether that was the user's interrupt.
        reasons: Why graphs had to be compiled, in words.
        graph: The pending graph, where it is to be shown.
        singles: Operations that ran one by one; None in lazy mode.
        state: What is open, queued and pending after the cell.
        repeats: Ops that ran twice because of a look.
        left: What loops that ended early left pending.
        redundant: Barriers that keep finding nothing to run.
        waits: Waits of more than a moment, in words.
        looks: Looks that had much to compute.
        prints: What was printed, with its statistics: the first few.
        more_prints: How many more there were.
        apart: Values that were read one by one; None where none were.
        waiting: Earlier cells' tensors that make the next step's graph bigger, in words.
        cuts: Where new graphs are parts of one step, drawn on its source.
    """

    pending_ops: int = 0
    new_ops: int = 0
    live_tensors: int = 0
    compiles: int = 0
    compile_ns: int = 0
    loads: int = 0
    load_ns: int = 0
    executions: int = 0
    execute_ns: int = 0
    running: int = 0
    cache_hits: int = 0
    peeks: int = 0
    peek_ns: int = 0
    transfers: int = 0
    transfer_ns: int = 0
    fallbacks: tuple[Fallback, ...] = ()
    barriers: tuple[Barrier, ...] = ()
    parts: tuple[tuple[str, int], ...] = ()
    wall_ns: int = 0
    own_ns: int = 0
    steps: int = 0
    error: str | None = None
    interrupted: bool = False
    reasons: tuple[str, ...] = ()
    graph: DrawGraph | None = None
    singles: SingleOps | None = None
    state: State | None = None
    repeats: tuple[Repeat, ...] = ()
    left: tuple[Left, ...] = ()
    redundant: tuple[Redundant, ...] = ()
    waits: tuple[str, ...] = ()
    looks: tuple[Looked, ...] = ()
    prints: tuple[str, ...] = ()
    more_prints: int = 0
    apart: Apart | None = None
    waiting: tuple[str, ...] = ()
    cuts: tuple[Cut, ...] = ()
