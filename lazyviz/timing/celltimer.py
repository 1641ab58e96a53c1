"""`%%lazy time`: run a cell and say which of its phases took how long, run by run.

The first run of a program records, lowers and compiles; later ones only record and run. A
timer that does not keep these apart calls the time of a compile that of an execution.
"""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lazyrt.observe import events
from lazyviz.doc import Doc, Drawn, Facts, Fold, Line, Note, Table
from lazyviz.draw.palette import PHASE_MEANINGS
from lazyviz.render import text
from lazyviz.render.timeline_text import phase_row, phases_of
from lazyviz.timing.event_queue import Pulse
from lazyviz.timing.ledger import Ledger, Quiet
from lazyviz.timing.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_MAX_RUNS = 10_000
_MAX_ROWS = 12
_USAGE = (
    "%%lazy time runs the cell once, %%lazy time 20 runs it twenty times; each run ends when "
    "the device is idle."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a cell; the phases of its thread add up to its time."""

    wall_ns: int
    parts: dict[str, int] = field(default_factory=dict)
    device_ns: int = 0
    compiles: int = 0
    executions: int = 0


def runs_asked(rest: str) -> int:
    """Return how often `%%lazy time` shall run its cell."""
    if not rest:
        return 1
    if not rest.isdecimal() or not 0 < int(rest) <= _MAX_RUNS:
        raise ValueError(
            f"%%lazy time {rest}: {rest!r} is no number of runs from 1 to {_MAX_RUNS:,}. "
            f"{_USAGE}"
        )
    return int(rest)


def timed(runtime: ModuleType, body: Callable[[], Any]) -> Run:
    """Run something, wait for the device, and return where the time went.

    What was running before is waited for first. Work that is pending at the end stays pending:
    a body without a barrier only records.
    """
    __tracebackhide__ = True
    runtime.wait()
    lock = threading.RLock()
    start = time.perf_counter_ns()
    tally = Tally(ledger=Ledger(start))

    def add(told: events.Event | Quiet) -> None:
        with lock:
            tally.add(told)
        if isinstance(told, events.BarrierFinished):
            pulse.ask()

    pulse = Pulse(add)
    with runtime.subscribe(add):
        pulse.begin()
        try:
            body()
            runtime.wait()
        finally:
            pulse.end()
            pulse.close()
        end = time.perf_counter_ns()
    with lock:
        return Run(
            wall_ns=end - start,
            parts=tally.ledger.parts(end),
            device_ns=tally.execute_ns,
            compiles=tally.compiles + tally.loads,
            executions=tally.executions,
        )


def doc(runs: list[Run]) -> Doc:
    """Return the runs as a table, and what may be said of the program's speed.

    That is the first line of a page, and the last one in a terminal.
    """
    verdict = Line(_verdict(runs))
    names = phases_of([run.parts for run in runs])
    rows = [
        [number, *phase_row(run.wall_ns, run.parts, run.device_ns, names), run.compiles]
        for number, run in enumerate(runs[:_MAX_ROWS], start=1)
    ]
    device = "how long it worked; what nobody waited for is in no other column"
    columns = [*((name, PHASE_MEANINGS[name]) for name in names), ("device", device)]
    meanings = Facts(("column", "what it is"), columns)
    return Doc(
        [
            Drawn("", verdict.to_html),
            Table(["run", "time", *names, "device", "compiles"], rows),
            *map(Note, text.more(len(runs) - _MAX_ROWS)),
            Fold("what the columns are", [meanings], in_text=True),
            Drawn(f"\n{verdict.words}", str),
        ]
    )


def _verdict(runs: list[Run]) -> str:
    """Return what a run costs without compiles, and what it spends that on."""
    warm = [run for run in runs if not run.compiles]
    cold = len(runs) - len(warm)
    if not any(run.executions for run in runs):
        return (
            "Nothing was executed: the cell has no barrier, so this is the time to record it. "
            "Put lazyrt.mark_step() at its end to time its execution too."
        )
    if not warm:
        return (
            "Every run compiled, so none of these times is the program's own speed. Run the "
            "cell several times: %%lazy time 10."
        )
    wall = statistics.median(run.wall_ns for run in warm)
    device = statistics.median(run.device_ns for run in warm)
    host = statistics.median(
        run.parts.get("trace", 0) + run.parts.get("dispatch", 0) for run in warm
    )
    many = text.plural(len(warm), "run")
    without = f" without the {text.plural(cold, 'run')} that compiled" if cold else ""
    bound = (
        "recording is the longer part"
        if host > device
        else "the device is the longer part"
    )
    return (
        f"median of {many}{without}: {text.duration(wall)}; the device worked "
        f"{text.duration(device)} of it, recording and dispatch took {text.duration(host)}: "
        f"{bound}."
    )
