"""`python -m benchmarks modes`: eager debug mode against lazy mode, as PR #3306 compared them."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from benchmarks import bert, extra_barriers, idle_cost, machine
from benchmarks.pool import BenchmarkError
from benchmarks.report import Cell, Goal, Report, Table, ratio_goal

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

SUMMARY = (
    "eager debug mode and lazy mode by model depth: compiles, executions, crossover"
)

LAYERS = (2, 4, 8)
_MODES = ("eager", "lazy")
_MAX_COMPILE_RATIO, _MIN_EXECUTION_RATIO, _LAZY_COMPILES = 1.3, 3.0, 1
_MAX_IDLE_RATIO = 1.02
_MAX_BARRIER_SHARE = 0.02
_MIB = 2**20

Findings = dict[tuple[int, str], dict[str, Any]]
"""What one process found, by layers and mode."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--steps", type=int, default=10, help="iterations of each run (default 10)"
    )


def run(options: Namespace) -> Report:
    """Measure, each mode and depth in a process of its own, and return the report."""
    facts = machine.facts()
    found: Findings = {
        (layers, mode): _process(layers, mode, options.steps)
        for layers in LAYERS
        for mode in _MODES
    }
    idle: dict[str, list[float]] = _ask("benchmarks.idle_cost")
    extra: dict[str, Any] = _ask("benchmarks.extra_barriers")
    return Report(
        name=f"modes: {SUMMARY}",
        facts=facts,
        tables=[
            _counts_table(found),
            _times_table(found),
            _idle_table(idle),
            _barrier_table(extra),
        ],
        goals=[
            *_goals(found, options.steps),
            *_idle_goals(idle),
            _barrier_goal(extra),
        ],
        notes=(
            f"{bert.SHAPE_TEXT.replace(f'{bert.LAYERS} layers', 'so many layers')} AdamW",
            "each run in a new process, nothing on disk; a step ends when its loss is read",
            (
                "crossover: steps after which lazy mode has caught up with eager mode's start; "
                "a stop: one step with a barrier and a read at a place where none was before"
            ),
            "peak: live arrays after each op or execution, with XLA's temporaries",
        ),
    )


def _process(layers: int, mode: str, steps: int) -> dict[str, Any]:
    found: dict[str, Any] = _ask("benchmarks.one_mode", str(layers), mode, str(steps))
    return found


def _ask(module: str, *arguments: str) -> Any:
    """Run a module in a process of its own and return what it prints."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        what = " ".join((module, *arguments))
        raise BenchmarkError(f"{what} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def compiles(run: dict[str, Any], mode: str) -> int:
    """Return how many executables a run compiled."""
    return int(run["counts"]["eager_compiles" if mode == "eager" else "compiles"])


def executions(run: dict[str, Any], mode: str) -> int:
    """Return how many executables a run started."""
    return int(run["counts"]["eager_executions" if mode == "eager" else "executions"])


def crossover(eager: list[float], lazy: list[float]) -> float:
    """Return after how many steps lazy mode has taken less time than eager mode.

    Args:
        eager: Seconds of each step; the first ones compile.
        lazy: Likewise.

    Returns:
        A whole number inside the measured steps, an extrapolation by the last steps beyond
        them, and infinity where lazy mode never catches up.
    """
    ahead = 0.0
    for number, (slow, fast) in enumerate(zip(eager, lazy, strict=True), 1):
        ahead += fast - slow
        if ahead <= 0:
            return number
    tail = len(eager) // 2
    gain = statistics.median(eager[tail:]) - statistics.median(lazy[tail:])
    return float("inf") if gain <= 0 else len(eager) + ahead / gain


def _counts_table(found: Findings) -> Table:
    rows: list[list[Cell]] = []
    for (layers, mode), run in found.items():
        hits = run["counts"]["eager_cache_hits" if mode == "eager" else "cache_hits"]
        rows.append(
            [
                f"{layers} layers, {mode}",
                compiles(run, mode),
                executions(run, mode),
                f"{100 * hits / max(1, executions(run, mode)):.1f} %",
                run["peak_bytes"] / _MIB,
                f"{run['losses'][-1]:.5f}",
            ]
        )
    columns = ("", "compiles", "executions", "from cache", "peak MiB", "last loss")
    return Table("what was compiled and run", columns, rows)


def _times_table(found: Findings) -> Table:
    rows: list[list[Cell]] = []
    for (layers, mode), run in found.items():
        seconds = run["seconds"]
        crossing = crossover(
            found[layers, "eager"]["seconds"], found[layers, "lazy"]["seconds"]
        )
        rows.append(
            [
                f"{layers} layers, {mode}",
                seconds[0],
                1e3 * statistics.median(seconds[len(seconds) // 2 :]),
                sum(seconds),
                run["stop_s"],
                f"{crossing:.0f} steps" if mode == "lazy" else None,
            ]
        )
    columns = ("", "first step s", "later ms", "all s", "a stop s", "crossover")
    return Table("how long it took", columns, rows)


def _idle_table(idle: dict[str, list[float]]) -> Table:
    rows: list[list[Cell]] = [
        [
            name,
            min(times),
            statistics.median(times),
            f"{idle_cost.ratio(idle, name):.3f}",
        ]
        for name, times in idle.items()
    ]
    columns = ("", "minimum", "median", "ratio")
    return Table("µs to record an add while nothing is switched on", columns, rows)


def _barrier_table(extra: dict[str, Any]) -> Table:
    rows: list[list[Cell]] = [
        [
            name,
            1e3 * min(extra[name]),
            1e3 * statistics.median(extra[name]),
            *(extra["counts"][name][kind] for kind in ("executions", "empty_barriers")),
        ]
        for name in ("loader", "step in loader")
    ]
    columns = ("", "minimum", "median", "executions", "empty barriers")
    return Table(
        "ms a step, with and without a step() in the loader's loop", columns, rows
    )


def _barrier_goal(extra: dict[str, Any]) -> Goal:
    share = extra_barriers.share(extra)
    return Goal(
        "a barrier that finds nothing to run, of a step",
        f"< {_MAX_BARRIER_SHARE:.0%}",
        f"{share:.2%} ({1e6 * extra['empty']:.1f} µs)",
        share < _MAX_BARRIER_SHARE,
    )


def _idle_goals(idle: dict[str, list[float]]) -> list[Goal]:
    return [
        ratio_goal(
            f"recording an op, {name}", idle_cost.ratio(idle, name), _MAX_IDLE_RATIO
        )
        for name in idle_cost.CONDITIONS[1:]
    ]


def _goals(found: Findings, steps: int) -> list[Goal]:
    few, many = found[LAYERS[0], "eager"], found[LAYERS[-1], "eager"]
    compiled = compiles(many, "eager") / compiles(few, "eager")
    executed = executions(many, "eager") / executions(few, "eager")
    lazily = [
        (compiles(found[n, "lazy"], "lazy"), executions(found[n, "lazy"], "lazy"))
        for n in LAYERS
    ]
    worst = max(
        abs(a - b)
        for n in LAYERS
        for a, b in zip(
            found[n, "eager"]["losses"], found[n, "lazy"]["losses"], strict=True
        )
    )
    depth = f"{LAYERS[-1]} layers / {LAYERS[0]} layers"
    return [
        Goal(
            f"eager compiles, {depth}", f"<= {_MAX_COMPILE_RATIO}", f"{compiled:.2f}",
            compiled <= _MAX_COMPILE_RATIO,
        ),
        Goal(
            f"eager executions, {depth}", f">= {_MIN_EXECUTION_RATIO}", f"{executed:.2f}",
            executed >= _MIN_EXECUTION_RATIO,
        ),
        Goal(
            "lazy compiles and executions", f"{_LAZY_COMPILES} and {steps}, at each depth",
            ", ".join(f"{c} and {x}" for c, x in lazily),
            set(lazily) == {(_LAZY_COMPILES, steps)},
        ),
        Goal("largest difference of a loss", "< 1e-3", f"{worst:.1e}", worst < 1e-3),  # noqa: PLR2004
    ]  # fmt: skip
