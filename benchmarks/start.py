"""`python -m benchmarks start`: what a user waits for before training runs, by depth.

Each model trains in a process of its own, without the cache on disk except where a restart reads it.
CPU time is that of the whole process, XLA's threads included; on a busy machine it tells more than
wall time.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from benchmarks import machine, recorded
from benchmarks.pool import BenchmarkError
from benchmarks.report import Cell, Goal, Report, Table

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Sequence

SUMMARY = "BERT AdamW by depth: first steps, restart, loop, steps from a new call site"
SIZES = "2x128,12x128,24x128"
PEERS = {
    "lazyrt": "lazyrt",
    "fast": "lazyrt, fast build",
    "whole": "lazyrt, fast build, layers not shared",
    "cpu": "torch eager",
    "inductor": "inductor",
    "jax": "jax.jit by hand",
}
_OWN = ("lazyrt", "fast", "whole")
_STEPS = 10
_ROUNDS = 4
_SITE_GOAL, _RESTART_GOAL_S, _LOOP_GOAL, _COLLECTING_GOAL = 1.5, 0.6, 0.8, 0.05
_SHARING_GOAL = 2.0
_STARTS = 3

_Size = tuple[int, int]
_Found = dict[tuple[_Size, str], dict[str, Any]]


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--sizes", default=SIZES, help=f"layers x hidden size (default {SIZES})"
    )
    parser.add_argument("--peers", help=f"comma-separated, of {', '.join(PEERS)}")


def run(options: Namespace) -> Report:
    """Measure, and return the report."""
    facts = machine.facts()
    sizes: list[_Size] = [
        (int(layers), int(width))
        for layers, width in (size.split("x") for size in options.sizes.split(","))
    ]
    peers = options.peers.split(",") if options.peers else list(PEERS)
    if shutil.which("c++") is None:
        peers = [peer for peer in peers if peer != "inductor"]
    found = {
        (size, peer): _run("benchmarks.start", "train", *size, peer)
        for size in sizes
        for peer in peers
    }
    restarts = {
        (size, tier): _restart(size, tier)
        for size in sizes
        for tier in ("optimised", "tiered")
    }
    sites, site_goal = _sites(
        [layers for layers, width in sizes if width == sizes[0][1]]
    )
    shape = "batch 2, sequence 32, vocabulary 1000; one run each"
    how = (
        "call sites: smallest CPU time of the main thread until the step is handed over, without "
        "compiles; the usual step is a later one from the same call site"
    )
    xla = recorded.TORCH_XLA_START
    return Report(
        f"start: {SUMMARY}",
        facts,
        [_first_steps(found), _later_steps(found), _restarts(restarts), sites],
        [*_goals(found), _restart_goal(restarts), site_goal],
        notes=(
            shape,
            how,
            (
                f"torch_xla is {recorded.ORIGIN}, wall time of the first and second step, ms a step "
                f"waiting / in a loop: {xla}"
            ),
        ),
    )


def _name(size: _Size, peer: str) -> str:
    layers, width = size
    return f"{layers} layers, hidden {width}, {PEERS[peer]}"


def _first_steps(found: _Found) -> Table:
    rows: list[list[Cell]] = [
        [
            _name(size, peer),
            *(f"{one['wall']:.2f} / {one['cpu']:.2f}" for one in each["steps"]),
            each["compiling"],
            each["compiles"],
        ]
        for (size, peer), each in found.items()
    ]
    title = f"seconds of wall time / of CPU, those of lowering and compiling, and compiles in {_STEPS} steps"
    columns = ("", "1st step", "2nd step", "compiling", "compiles")
    return Table(title, columns, rows)


def _later_steps(found: _Found) -> Table:
    parts = ("waiting", "loop", "host", "collecting")
    rows: list[list[Cell]] = [
        [_name(size, peer), *(each[part] for part in parts)]
        for (size, peer), each in found.items()
    ]
    title = (
        f"ms a step, the smallest means of {_STEPS} steps in {_ROUNDS} turns: steps that wait for the "
        "device, and a loop; the main thread's CPU time in the loop, and garbage collections"
    )
    return Table(title, ("", *parts), rows)


def _goals(found: _Found) -> list[Goal]:
    own = {size: each for (size, peer), each in found.items() if peer == "lazyrt"}
    compiles = [each["compiles"] for each in own.values()]
    loops = [each["loop"] / each["waiting"] for each in own.values()]
    eager = [
        each["loop"] / found[size, "cpu"]["waiting"]
        for size, each in own.items()
        if (size, "cpu") in found
    ]
    shares = [each["collecting"] / each["host"] for each in own.values()]
    return [
        Goal(
            f"compiles in {_STEPS} steps, at each size",
            "1",
            ", ".join(map(str, compiles)),
            set(compiles) == {1},
        ),
        _goal("a step in a loop against one that waits", _LOOP_GOAL, loops),
        _goal("a step in a loop against torch eager's", 1.0, eager),
        _goal("garbage collections, of a step's host time", _COLLECTING_GOAL, shares),
        *_sharing_goal(found),
    ]


def _sharing_goal(found: _Found) -> list[Goal]:
    """Compare what fast builds of the most and the fewest layers take to compile."""
    depths = sorted(size for size, peer in found if peer == "fast")
    if not depths:
        return []
    most, fewest = (found[size, "fast"] for size in (depths[-1], depths[0]))
    ratio = most["compiling"] / fewest["compiling"]
    what = f"CPU of lowering and compiling a fast build, {depths[-1][0]} layers against {depths[0][0]}"
    measured = f"{ratio:.2f}x"
    return [Goal(what, f"<= {_SHARING_GOAL:g}x", measured, ratio <= _SHARING_GOAL)]


def _goal(what: str, limit: float, figures: Sequence[float]) -> Goal:
    measured = ", ".join(f"{figure:.2f}" for figure in figures) or "no figure"
    met = all(figure <= limit for figure in figures) if figures else None
    return Goal(what, f"<= {limit:g}x", measured, met)


# ------------------------------------------------------------------ a restart


_RESTART_PARTS = (
    "torch, transformers, model",
    "import lazyrt",
    "record, load",
    "run",
    "beyond torch's",
)
_Start = dict[str, dict[str, float]]  # seconds of each part, by clock
_Starts = dict[tuple[_Size, str], dict[str, _Start]]  # of each size and tier, by caches


def _restart(size: _Size, tier: str) -> dict[str, _Start]:
    """Return what a process takes with empty disk caches and with full ones."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(
            os.environ,
            LAZYRT_CACHE_DIR=str(Path(folder, "cache")),
            LAZYRT_COMPILE_TIER=tier,
        )
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed modules have code
        environment["PYTHONPYCACHEPREFIX"] = str(Path(folder, "code"))
        starts = [
            _run("benchmarks.start", "restart", *size, environment=environment)
            for _ in range(_STARTS)
        ]
    return {
        "empty": starts[0],
        "full": min(starts[1:], key=lambda each: each["cpu"]["beyond torch's"]),
    }


def _restarts(restarts: _Starts) -> Table:
    rows: list[list[Cell]] = [
        [
            f"{_name(size, 'lazyrt')}, {tier}, {kind} caches",
            *(f"{each['wall'][p]:.2f} / {each['cpu'][p]:.2f}" for p in _RESTART_PARTS),
        ]
        for (size, tier), kinds in restarts.items()
        for kind, each in kinds.items()
    ]
    title = (
        "seconds of wall time / of CPU from a process's start to its first step's end"
    )
    return Table(title, ("", *_RESTART_PARTS), rows)


def _restart_goal(restarts: _Starts) -> Goal:
    beyond = [
        (full["wall"]["beyond torch's"], full["cpu"]["beyond torch's"])
        for full in (kinds["full"] for kinds in restarts.values())
    ]
    return Goal(
        "a restart beyond imports of torch, transformers and the model, wall time / CPU",
        f"<= {_RESTART_GOAL_S:g} s",
        ", ".join(f"{wall:.2f} / {cpu:.2f}" for wall, cpu in beyond) + " s",
        all(cpu <= _RESTART_GOAL_S for _, cpu in beyond),
    )


def restart(layers: int, width: int) -> _Start:
    """Take a first step in this process; return seconds of each part, by clock."""
    clocks = {"wall": time.perf_counter, "cpu": time.process_time}
    marks = [{name: clock() for name, clock in clocks.items()}]

    def mark() -> None:
        marks.append({name: clock() for name, clock in clocks.items()})

    import torch

    from benchmarks import bert

    bert.set_size(layers, width)
    model, batch = bert.make_model(), bert.make_batch()
    mark()
    import lazyrt

    mark()
    model = model.to("lazyrt")
    batch = {name: tensor.to("lazyrt") for name, tensor in batch.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    lazyrt.mark_step()
    mark()
    loss.item()
    mark()
    spans = [*itertools.pairwise(marks), (marks[1], marks[-1])]
    return {
        clock: {
            part: later[clock] - former[clock]
            for part, (former, later) in zip(_RESTART_PARTS, spans, strict=True)
        }
        for clock in clocks
    }


# ------------------------------------------------------------------ call sites


def _sites(depths: Sequence[int]) -> tuple[Table, Goal]:
    """Measure what steps from a new call site cost the host."""
    found = {layers: _run("benchmarks.sites", layers) for layers in depths}
    rows: list[list[Cell]] = [
        [f"{layers} layers, {site}", *(one[key] for key in ("usual", "new", "ratio"))]
        for layers, each in found.items()
        for site, one in each.items()
    ]
    ratios = [one["ratio"] for each in found.values() for one in each.values()]
    worst = max(ratios, default=0.0)
    goal = Goal(
        "a step from a new call site against a usual one",
        f"<= {_SITE_GOAL:g}x",
        f"{worst:.2f}x at most",
        worst <= _SITE_GOAL if ratios else None,
    )
    columns = ("", "usual step", "new call site", "ratio")
    return Table("ms of the host's CPU for a step", columns, rows), goal


def _run(
    module: str, *arguments: object, environment: dict[str, str] | None = None
) -> dict[str, Any]:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        raise BenchmarkError(f"{' '.join(command[2:])} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# ------------------------------------------------------------------ training


def measure(layers: int, width: int, peer: str) -> dict[str, Any]:
    """Train in this process; return seconds of the first two steps, compiles, later steps' ms."""
    from benchmarks import bert

    bert.set_size(layers, width)
    step, wait, compiles = _by_jax() if peer == "jax" else _by_torch(peer)
    steps = []
    compiling = _CompileTime() if peer in _OWN else None
    for _ in range(_STEPS):
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        wait()
        steps.append(
            {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        )
    compiled = compiles()
    waiting, loops, hosts, collecting = [], [], [], []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        for _ in range(_STEPS):
            step()
            wait()
        waiting.append((time.perf_counter() - start) / _STEPS)
        with _Collections() as found:
            start, host = time.perf_counter(), time.thread_time()
            for _ in range(_STEPS):
                step()
            hosts.append((time.thread_time() - host) / _STEPS)
            wait()
            loops.append((time.perf_counter() - start) / _STEPS)
        collecting.append(found.seconds / _STEPS)
    return {
        "steps": steps[:2],
        "compiling": None if compiling is None else compiling.seconds,
        "compiles": compiled,
        "waiting": 1e3 * min(waiting),
        "loop": 1e3 * min(loops),
        "host": 1e3 * sum(hosts) / _ROUNDS,
        "collecting": 1e3 * sum(collecting) / _ROUNDS,
    }


class _CompileTime:
    """Adds up the process's CPU time while XLA's worker lowers and compiles steps."""

    def __init__(self) -> None:
        import lazyrt
        from lazyrt.observe import events

        self.seconds = 0.0
        lazyrt.subscribe(self._note, events.CompileStarted, events.CompileFinished)

    def _note(self, event: Any) -> None:
        if event.purpose == "step":
            begins = type(event).__name__ == "CompileStarted"
            self.seconds += (-1 if begins else 1) * time.process_time()


class _Collections:
    """Adds up the CPU time of garbage collections while it is entered."""

    def __enter__(self) -> Self:
        self.seconds = 0.0
        self._start = 0.0
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, _: object) -> None:
        if phase == "start":
            self._start = time.thread_time()
        else:
            self.seconds += time.thread_time() - self._start


_Training = tuple["Callable[[], Any]", "Callable[[], Any]", "Callable[[], int | None]"]


def _by_jax() -> _Training:
    """Return what takes a step, what waits for it, and how many compiles there were."""
    from benchmarks import jax_steps

    step = jax_steps.hand_written()
    results: list[Any] = []

    def one() -> None:
        results[:] = [step()]

    def wait() -> None:
        results[0].block_until_ready()

    return one, wait, lambda: None


def _by_torch(peer: str) -> _Training:
    import torch

    from benchmarks import bert

    device = "lazyrt" if peer in _OWN else "cpu"
    wait: Callable[[], Any] = lambda: None  # noqa: E731
    compiles: Callable[[], int | None] = lambda: None  # noqa: E731
    if peer in _OWN:
        import lazyrt

        lazyrt.config.cache_dir = None
        if peer != "lazyrt":
            lazyrt.config.compile_tier = "fast"
        lazyrt.config.share_layers = peer != "whole"
        wait = lazyrt.wait
        compiles = lambda: lazyrt.counters()["compiles"]  # noqa: E731
    model = bert.make_model().to(device)
    batch = {name: tensor.to(device) for name, tensor in bert.make_batch().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    called = torch.compile(model) if peer == "inductor" else model

    def step() -> None:
        optimizer.zero_grad()
        called(**batch).loss.backward()
        optimizer.step()

    return step, wait, compiles


if __name__ == "__main__":
    task, *given = sys.argv[1:]
    size = int(given[0]), int(given[1])
    answer = restart(*size) if task == "restart" else measure(*size, given[2])
    sys.stdout.write(json.dumps(answer) + "\n")
