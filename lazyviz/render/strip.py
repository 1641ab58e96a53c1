"""What one cell did to the lazy device: the data behind its strip, its words, its HTML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazyviz.doc import Code, Doc, Drawn, Fold, Note, Part, Points, Showable
from lazyviz.draw import svg
from lazyviz.draw.palette import PHASE_COLOURS, PHASES
from lazyviz.render import html, notes, text
from lazyviz.render.html import Fragment, markup, one_line, prose

if TYPE_CHECKING:
    from lazyrt.observe.events import BarrierFinished, BuildSwapped, FrameCompiled
    from lazyrt.tools import Status
    from lazyviz.draw.model import DrawGraph

# What a graph without an earlier relative has as its reason.
_NEW = (
    "the first graph",
    "a program not seen",
    "no boundary had come",
    "another step of the program",
)
_EXPLORE_HINT = "%lazy explore walks through it: click an op to see its value"
_BAR_HEIGHT = 12
_BAR_WIDTH = 420
_SMALL_BAR_WIDTH = 84
_SMALL_BAR_HEIGHT = 8


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Strip(Showable):
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
        frames: Functions that `torch.compile` compiled, `frames_again` how many of them again,
            `frames_ns` the time it took, `frames_shown` the first few.
        code_breaks: Its graph breaks.
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
        fast_builds: Op counts of the graphs that got a fast build.
        swaps: Graphs that run by their optimised build since a step of the cell.
        graph: The pending graph, where it is to be shown; where nothing is pending, that of the
            largest step that the cell ran, the latest of equal ones, whose number is `drawn_step`.
        singles: Operations that ran one by one; None in lazy mode.
        state: What is open, queued and pending after the cell.
        mode: How ops run.
        left: What loops that ended early left pending.
        redundant: Barriers that keep finding nothing to run.
        waits: Waits of more than a moment, in words.
        looks: Looks that had much to compute, or whose ops the step has run since.
        prints: What was printed, with its statistics: the first few.
        more_prints: How many more there were.
        apart: Values that were read one by one; None where none were.
        waiting: Earlier cells' tensors that make the next step's graph bigger, in words.
        breaks: Where new graphs are parts of one step, drawn on its source.
        curves: What the cell tracked over its steps (`lazyviz.track`); None if nothing.
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
    fallbacks: tuple[notes.Fallback, ...] = ()
    frames: int = 0
    frames_again: int = 0
    frames_ns: int = 0
    frames_shown: tuple[FrameCompiled, ...] = ()
    code_breaks: tuple[notes.CompiledBreak, ...] = ()
    barriers: tuple[notes.Barrier, ...] = ()
    parts: tuple[tuple[str, int], ...] = ()
    wall_ns: int = 0
    own_ns: int = 0
    steps: int = 0
    error: str | None = None
    interrupted: bool = False
    reasons: tuple[str, ...] = ()
    fast_builds: tuple[int, ...] = ()
    swaps: tuple[BuildSwapped, ...] = ()
    graph: DrawGraph | None = None
    drawn_step: int | None = None
    singles: notes.SingleOps | None = None
    state: Status | None = None
    mode: str = "lazy"
    left: tuple[notes.Left, ...] = ()
    redundant: tuple[notes.Redundant, ...] = ()
    waits: tuple[str, ...] = ()
    looks: tuple[notes.Looked, ...] = ()
    prints: tuple[str, ...] = ()
    more_prints: int = 0
    apart: notes.Apart | None = None
    waiting: tuple[str, ...] = ()
    breaks: tuple[Doc, ...] = ()
    curves: Doc | None = None

    def doc(self) -> Doc:
        """Return its line, and below it what made pending ops run; a page folds that."""
        lines = [strip_line(self), *(f"  {line}" for line in strip_notes(self))]
        if self.curves is not None:
            lines += [f"  {line}" for line in self.curves.to_text().splitlines()]
        return Doc([Drawn("\n".join(lines), self._html)])

    def _html(self) -> str:
        line, details = Fragment(_line_html(self) + _headline(self)), _details(self)
        shown = Fold(line, details).to_html() if details else line
        curves = self.curves.to_html() if self.curves is not None else ""
        return f'<div class="lazyviz-strip" style="{html.FONT}">{shown}{curves}</div>'


def strip_line(strip: Strip) -> str:
    """Return the one line that sums a cell up; only what happened is named."""
    return " · ".join(strip_parts(strip))


def strip_parts(strip: Strip) -> list[str]:
    """Return the parts of the strip's line: what happened, what is pending, what is there."""
    parts = []
    if strip.singles is not None:
        parts.append(_single_ops(strip.singles, strip.compile_ns))
    if strip.frames or strip.code_breaks:
        parts.append(_compiled_code(strip))
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
    if strip.steps:
        parts.append(text.plural(strip.steps, "step"))
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
    if strip.pending_ops:
        pending = text.plural(strip.pending_ops, "pending op")
        here = f" (+{strip.new_ops:,} here)" if strip.new_ops else ""
        parts.append(f"{pending}{here}")
    parts.append(text.plural(strip.live_tensors, "live tensor"))
    if strip.state is not None:
        parts += open_parts(strip.state)
    if strip.interrupted:
        parts.append("interrupted")
    elif strip.error is not None:
        parts.append(f"stopped by {strip.error}")
    return list(map(one_line, parts))


def _single_ops(singles: notes.SingleOps, compile_ns: int) -> str:
    """Return the badge of a mode in which ops run one by one, with what they cost."""
    if not singles.ops:
        return singles.mode
    part = f"{singles.mode}: {text.plural(singles.ops, 'op')} in {text.duration(singles.run_ns)}"
    compiled = singles.ops - singles.cache_hits
    if compiled:
        part += f", {compiled:,} compiled in {text.duration(compile_ns)}"
    return f"{part}, {text.plural(singles.cache_hits, 'hit')}"


def _compiled_code(strip: Strip) -> str:
    """Return what `torch.compile` did: functions compiled, how many again, graph breaks."""
    parts = []
    if strip.frames:
        took = text.duration(strip.frames_ns)
        parts.append(f"{text.plural(strip.frames, 'function')} in {took}")
    if strip.frames_again:
        parts.append(f"{strip.frames_again:,} again")
    if strip.code_breaks:
        times = sum(max(1, each.times) for each in strip.code_breaks)
        parts.append(text.plural(times, "graph break"))
    return f"torch.compile: {', '.join(parts)}"


def _executed(strip: Strip) -> str:
    done = strip.executions - strip.running
    if done <= 0:
        return f"executing {strip.executions:,}, still running"
    part = f"executed {done:,} in {text.duration(strip.execute_ns)}"
    return f"{part}, {strip.running:,} still running" if strip.running else part


def strip_notes(strip: Strip) -> list[str]:
    """Return what a user may want to act on: barriers, fallbacks, recompiles."""
    found: list[object] = [
        *(_single_notes(strip.singles) if strip.singles is not None else ()),
        *strip.barriers,
        *strip.looks,
        *strip.prints,
        *([f"... and {strip.more_prints:,} more printed"] if strip.more_prints else ()),
        *([strip.apart] if strip.apart is not None else ()),
        *strip.left,
        *strip.waiting,
        *strip.redundant,
        *strip.fallbacks,
        *map(notes.frame_text, strip.frames_shown),
        *strip.code_breaks,
        *strip.waits,
        *map(compiled_text, strip.reasons),
        *(
            f"the graph of {text.plural(ops, 'op')} runs by its fast build"
            for ops in strip.fast_builds
        ),
        *(
            f"from step {event.step} on the graph of {text.plural(event.nodes, 'op')} runs by its "
            "optimised build"
            for event in strip.swaps
        ),
    ]
    return [one_line(str(note)) for note in found]


def urgent_notes(strip: Strip) -> list[str]:
    """Return those of the notes that cost time each time the cell runs, the dearest kind first."""
    why = map(compiled_text, strip.reasons)
    found: list[object] = [
        *(note for note in why if note.startswith("recompiled")),
        *(
            notes.frame_text(frame)
            for frame in strip.frames_shown
            if frame.guard or frame.failed
        ),
        *strip.code_breaks,
        *strip.fallbacks,
        *(each for each in strip.barriers if each.cut is not None),
        *(each for each in strip.looks if notes.is_check(each.tensor)),
        *([strip.apart] if strip.apart is not None else ()),
        *strip.left,
        *strip.redundant,
        *strip.waiting,
    ]
    return [one_line(str(note)) for note in found]


def _single_notes(singles: notes.SingleOps) -> list[str]:
    found = []
    if singles.idle_barriers:
        many = text.plural(singles.idle_barriers, "barrier")
        found.append(f"{many} had no effect: in eager mode each op has run already")
    if singles.repeats:
        many = text.plural(singles.repeats, "op")
        found.append(
            f"{many} executed again: op-by-op mode remembers nothing between reads; "
            "lazyrt.materialise(t) does"
        )
    return found


def compiled_text(reason: str) -> str:
    """Return why a graph was compiled, and whether one like it had been before."""
    return f"{'compiled' if reason.startswith(_NEW) else 'recompiled'}: {reason}"


def open_parts(state: Status) -> list[str]:
    """Return what is open or queued, each in a few words; empty where nothing is."""
    parts = []
    if state.steps:
        names = [name or "a step" for name in state.steps]
        parts.append(f"in {' / '.join(names)}" if any(state.steps) else "in a step")
    if state.scopes:
        parts.append(f"scope {'/'.join(state.scopes)} open")
    if state.queued_closures:
        parts.append(text.plural(state.queued_closures, "closure") + " queued")
    if state.async_closures:
        waiting = text.plural(state.async_closures, "asynchronous closure")
        parts.append(f"{waiting} due for {text.duration(state.async_age_ns)}")
    return parts


def state_text(state: Status, mode: str) -> str:
    """Return the whole state in one line, with what came last."""
    barrier = state.last_barrier
    last = "no barrier so far"
    if barrier is not None:
        last = f"last barrier: {last_barrier_text(barrier)}"
    return f"{now_text(state, mode)} · {last}"


def last_barrier_text(barrier: BarrierFinished) -> str:
    """Return what a barrier ran, and why and where."""
    tensor = f" of {barrier.tensor}" if barrier.tensor else ""
    where = f" at {barrier.site}" if barrier.site else ""
    return f"{text.plural(barrier.nodes, 'op')}, {barrier.cause}{tensor}{where}"


def now_text(state: Status, mode: str) -> str:
    """Return what is open, queued and pending in one line."""
    parts = [f"{mode} mode", *([] if state.steps else ["not in a step"])]
    parts += open_parts(state)
    pending = text.plural(state.pending_ops, "pending op")
    if state.pending_ops:
        pending += f", {text.size(state.pending_bytes)}"
    if state.pending_from:
        pending += f", from {state.pending_from} on"
    return " · ".join([*parts, pending, text.plural(state.live_tensors, "live tensor")])


def _headline(strip: Strip) -> str:
    """Return the first thing that a user may want to act on, in two lines at most."""
    found = urgent_notes(strip)
    if not found:
        return ""
    more = f"1 of {len(found)}: " if len(found) > 1 else ""
    style = "display:-webkit-box;-webkit-box-orient:vertical;-webkit-line-clamp:2;overflow:hidden;opacity:.75"
    # A viewer that takes styles out would run both lines into one.
    return f'<br><span style="{style}">{more}{prose(found[0])}</span>'


def _line_html(strip: Strip) -> str:
    first, *others = [markup(part) for part in strip_parts(strip)]
    parts = [f"<b>{first}</b>", *others]
    if strip.error is not None or strip.interrupted:
        parts[-1] = f'<b style="color:var(--jp-error-color1,#d14d72)">{parts[-1]}</b>'
    if not set(dict(strip.parts)) - {"python", "trace"}:
        return " · ".join(parts)
    bar = bar_svg(dict(strip.parts), _SMALL_BAR_WIDTH, _SMALL_BAR_HEIGHT)
    return f"{html.image(bar, 'where the time went')} " + " · ".join(parts)


def _details(strip: Strip) -> list[Part]:
    parts: list[Part] = []
    if sum(dict(strip.parts).values()):
        parts.append(Drawn("", lambda: timing_html(strip)))
    if strip.state is not None:
        parts.append(Note(state_text(strip.state, strip.mode)))
    found = strip_notes(strip)
    if found:
        parts.append(Points(found))
    if strip.apart is not None and strip.apart.source:
        many = f"{len(strip.apart.tensors):,}"
        title = f"{many} reads = {many} executions: batch them"
        parts.append(Fold(title, [Code(strip.apart.source)]))
    parts += strip.breaks
    graph = strip.graph
    if graph is not None and graph.boxes:
        hint = _EXPLORE_HINT
        if strip.drawn_step is not None:
            hint = f"step {strip.drawn_step}; %lazy explore {strip.drawn_step} walks through it"
        parts.append(Drawn("", lambda: svg.graph_html(graph, hint=hint)))
    return parts


def timing_html(strip: Strip) -> str:
    """Return a bar with the phases of a cell, each with its colour, name and time.

    The parts of the bar add up to the cell's time. What the device did is told behind them:
    it may have worked while the cell's thread did something else, and is no part of the bar.
    """
    times = dict(strip.parts)
    bar = bar_svg(times)
    if not bar:
        return ""
    names = "&ensp;".join(
        f'<span style="color:{PHASE_COLOURS[name]}">■</span> {name} {text.duration(ns)}'
        for name, ns in times.items()
    )
    total = f"&ensp;= cell {text.duration(strip.wall_ns)}" if strip.wall_ns else ""
    if total and strip.own_ns:
        total += f", {text.duration(strip.own_ns)} of it listening by lazyviz"
    waited = times.get("execute", 0)
    hidden = strip.execute_ns - waited
    device = f"device busy {text.duration(strip.execute_ns)}"
    if not waited:
        device += ", all of it behind the other phases"
    elif hidden > waited // 10:
        device += f", {text.duration(hidden)} of it behind the other phases"
    told = html.muted(device) if strip.execute_ns else ""
    return (
        f'<div style="margin:4px 0">{html.image(bar, "the time of the cell by phase")}'
        f"<br>{names}{total}{told}</div>"
    )


def bar_svg(
    times: dict[str, int], width: int = _BAR_WIDTH, height: int = _BAR_HEIGHT
) -> str:
    """Return a bar whose segments are as long as the phases; empty when there are none."""
    total = sum(times.values())
    if not total:
        return ""
    segments = []
    x = 0.0
    for name in PHASES:
        if not times.get(name):
            continue
        length = times[name] / total * width
        segments.append(
            f'<rect x="{x:.1f}" width="{length:.1f}" height="{height}" '
            f'fill="{PHASE_COLOURS[name]}">'
            f"<title>{name} {text.duration(times[name])}</title></rect>"
        )
        x += length
    corner = height / 3
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">'
        f'<clipPath id="r"><rect width="{width}" height="{height}" rx="{corner:.1f}"/>'
        f'</clipPath><g clip-path="url(#r)">{"".join(segments)}</g></svg>'
    )
