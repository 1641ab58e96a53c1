"""What one cell did to the lazy device: the data behind its strip, and its words."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazyviz.render import state, text
from lazyviz.render.html import one_line

if TYPE_CHECKING:
    from lazyviz.draw.model import DrawGraph
    from lazyviz.render.cuts import Cut
    from lazyviz.render.state import Apart, Left, Looked, Redundant, Repeat, State

# What a graph without an earlier relative has as its reason.
_NEW = ("the first graph", "a program not seen", "no boundary had come")


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


def strip_text(strip: Strip) -> str:
    """Return a cell's strip: its line, and below it what made pending ops run."""
    return "\n".join([strip_line(strip), *(f"  {line}" for line in strip_notes(strip))])


def strip_line(strip: Strip) -> str:
    """Return the one line that sums a cell up; only what happened is named."""
    return " · ".join(strip_parts(strip))


def strip_parts(strip: Strip) -> list[str]:
    """Return the parts of the strip's line, in their order."""
    pending = text.plural(strip.pending_ops, "pending op")
    if strip.new_ops:
        pending += f" (+{strip.new_ops:,} here)"
    parts = [pending, text.plural(strip.live_tensors, "live tensor")]
    if strip.singles is not None:
        parts.append(_single_ops(strip.singles, strip.compile_ns))
    if strip.steps:
        parts.append(text.plural(strip.steps, "step"))
    if strip.compiles:
        parts.append(
            f"compiled {strip.compiles:,} in {text.duration(strip.compile_ns)}"
        )
    if strip.loads:
        parts.append(
            f"loaded {strip.loads:,} from disk in {text.duration(strip.load_ns)}"
        )
    if strip.executions:
        parts.append(_executed(strip))
    if strip.cache_hits:
        parts.append(text.plural(strip.cache_hits, "cache hit"))
    if strip.peeks:
        parts.append(
            f"{text.plural(strip.peeks, 'peek')} in {text.duration(strip.peek_ns)}"
        )
    if strip.transfers:
        transfers = text.plural(strip.transfers, "transfer")
        parts.append(f"{transfers} in {text.duration(strip.transfer_ns)}")
    if strip.fallbacks:
        count = sum(fallback.times for fallback in strip.fallbacks)
        parts.append(text.plural(count, "CPU fallback"))
    if strip.state is not None:
        shown = dataclasses.replace(
            strip.state, mode="lazy"
        )  # `singles` tells the mode
        parts += state.open_parts(shown)
    if strip.interrupted:
        parts.append("interrupted")
    elif strip.error is not None:
        parts.append(f"stopped by {strip.error}")
    return list(map(one_line, parts))


def _single_ops(singles: SingleOps, compile_ns: int) -> str:
    """Return the badge of a mode in which ops run one by one, with what they cost."""
    if not singles.ops:
        return singles.mode
    part = f"{singles.mode}: {text.plural(singles.ops, 'op')} in {text.duration(singles.run_ns)}"
    compiled = singles.ops - singles.cache_hits
    if compiled:
        part += f", {compiled:,} compiled in {text.duration(compile_ns)}"
    return f"{part}, {text.plural(singles.cache_hits, 'hit')}"


def _executed(strip: Strip) -> str:
    done = strip.executions - strip.running
    if done <= 0:
        return f"executing {strip.executions:,}, still running"
    part = f"executed {done:,} in {text.duration(strip.execute_ns)}"
    return f"{part}, {strip.running:,} still running" if strip.running else part


def strip_notes(strip: Strip) -> list[str]:
    """Return what a user may want to act on: barriers, fallbacks, recompiles."""
    singles = strip.singles
    notes = [
        *(_single_notes(singles) if singles is not None else ()),
        *map(barrier_text, strip.barriers),
        *map(state.repeat_text, strip.repeats),
        *map(state.looked_text, strip.looks),
        *_print_notes(strip),
        *([state.apart_text(strip.apart)] if strip.apart is not None else ()),
        *map(state.left_text, strip.left),
        *strip.waiting,
        *map(state.redundant_text, strip.redundant),
        *map(fallback_text, strip.fallbacks),
        *strip.waits,
        *map(compiled_text, strip.reasons),
    ]
    return list(map(one_line, notes))


def urgent_notes(strip: Strip) -> list[str]:
    """Return those of the notes that cost time each time the cell runs, the dearest kind first."""
    told = map(compiled_text, strip.reasons)
    notes = [
        *(note for note in told if note.startswith("recompiled")),
        *map(fallback_text, strip.fallbacks),
        *(barrier_text(each) for each in strip.barriers if each.cut is not None),
        *map(state.repeat_text, strip.repeats),
        *([state.apart_text(strip.apart)] if strip.apart is not None else ()),
        *map(state.left_text, strip.left),
        *map(state.redundant_text, strip.redundant),
    ]
    return list(map(one_line, notes))


def _print_notes(strip: Strip) -> list[str]:
    more = strip.more_prints
    return [*strip.prints, *([f"... and {more:,} more printed"] if more else ())]


def _single_notes(singles: SingleOps) -> list[str]:
    notes = []
    if singles.idle_barriers:
        many = text.plural(singles.idle_barriers, "barrier")
        notes.append(f"{many} had no effect: in eager mode each op has run already")
    if singles.repeats:
        many = text.plural(singles.repeats, "op")
        notes.append(
            f"{many} executed again: op-by-op mode remembers nothing between reads; "
            "lazyrt.materialise(t) does"
        )
    return notes


def compiled_text(reason: str) -> str:
    """Return why a graph was compiled, and whether one like it had been before."""
    return f"{'compiled' if reason.startswith(_NEW) else 'recompiled'}: {reason}"


def barrier_text(barrier: Barrier) -> str:
    """Return why pending ops ran, and where.

    Example:
        >>> barrier_text(Barrier(cause="read by .item()", site="cell 3 line 7", nodes=214))
        'ran 214 ops here: read by .item() at cell 3 line 7'
    """
    if barrier.cut is not None:
        return cut_text(barrier)
    where = f" at {barrier.site}" if barrier.site else ""
    many = f" in {barrier.times:,} barriers" if barrier.times > 1 else ""
    return f"ran {text.plural(barrier.nodes, 'op')} here{many}: {barrier.cause}{where}"


def fallback_text(fallback: Fallback) -> str:
    """Return which op ran on the CPU, and where."""
    where = f" at {fallback.site}" if fallback.site else ""
    many = f" {fallback.times:,} times" if fallback.times > 1 else ""
    return f"{fallback.op} ran on the CPU{many}{where}, which cut the graph"


def cut_text(barrier: Barrier) -> str:
    """Return what a read that cut a step did, and the way around it."""
    step = f"the step {barrier.cut}" if barrier.cut else "a step"
    return (
        f"{barrier_cause(barrier)} cut {step}: {text.plural(barrier.nodes, 'op')} ran on their "
        f"own in {text.duration(barrier.duration_ns)}. Read behind the block, or use "
        "add_step_closure()"
    )


def barrier_cause(barrier: Barrier) -> str:
    """Return what a barrier was, with the tensor that was read and the line."""
    tensor = f" of {barrier.tensor}" if barrier.tensor else ""
    where = f" at {barrier.site}" if barrier.site else ""
    return f"{barrier.cause}{tensor}{where}"
