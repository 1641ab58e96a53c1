"""`python -m benchmarks start`: what a user waits for before training runs, by depth.

Each model trains in a process of its own, without the cache on disk. CPU time is that of the
whole process, XLA's threads included; on a busy machine it tells more than wall time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks import machine
from benchmarks.bert import BATCH, LENGTH, VOCABULARY, WIDTH
from benchmarks.pool import BenchmarkError
from benchmarks.report import Cell, Goal, Report, Table

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

SUMMARY = "BERT AdamW by depth: the first two steps, and steps from a new call site"
LAYERS = (2, 12, 24)
PEERS = ("lazyrt", "cpu")
_STEPS = 10
_SITE_GOAL = 1.5


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--layers", help="comma-separated depths (default 2,12,24)")


def run(options: Namespace) -> Report:
    """Measure, and return the report."""
    facts = machine.facts()
    depths = options.layers.split(",") if options.layers else LAYERS
    found = {
        (int(layers), peer): _ask(int(layers), peer)
        for layers in depths
        for peer in PEERS
    }
    rows: list[list[Cell]] = [
        [
            f"{layers} layers, {'torch eager' if peer == 'cpu' else peer}",
            *(f"{one['wall']:.2f} / {one['cpu']:.2f}" for one in each["steps"]),
            each["compiles"],
            each["later_ms"],
        ]
        for (layers, peer), each in found.items()
    ]
    compiles = [each["compiles"] for (_, peer), each in found.items() if peer != "cpu"]
    columns = ("", "1st step", "2nd step", "compiles", "ms a later step")
    title = f"seconds of wall time / of CPU, and compiles in {_STEPS} steps"
    goal = Goal(
        "compiles in ten steps, at each depth",
        "1",
        ", ".join(map(str, compiles)),
        set(compiles) == {1},
    )
    table, site_goal = _sites([int(layers) for layers in depths])
    shape = (
        f"batch {BATCH}, sequence {LENGTH}, hidden {WIDTH}, vocabulary {VOCABULARY}; one run "
        "each, and each step ends when its loss is read"
    )
    how = (
        "call sites: smallest CPU time of the main thread until the step is handed over, without "
        "compiles; the usual step is a later one from the same call site"
    )
    return Report(
        f"start: {SUMMARY}",
        facts,
        [Table(title, columns, rows), table],
        [goal, site_goal],
        notes=(shape, how),
    )


def _sites(depths: Sequence[int]) -> tuple[Table, Goal]:
    """Measure what steps from a new call site cost the host."""
    found = {layers: _run("benchmarks.sites", layers) for layers in depths}
    rows: list[list[Cell]] = [
        [f"{layers} layers, {site}", *(one[key] for key in ("usual", "new", "ratio"))]
        for layers, each in found.items()
        for site, one in each.items()
    ]
    worst = max(one["ratio"] for each in found.values() for one in each.values())
    goal = Goal(
        "a step from a new call site against a usual one",
        f"<= {_SITE_GOAL:g}x",
        f"{worst:.2f}x at most",
        worst <= _SITE_GOAL,
    )
    columns = ("", "usual step", "new call site", "ratio")
    return Table("ms of the host's CPU for a step", columns, rows), goal


def _ask(layers: int, peer: str) -> dict[str, Any]:
    return _run("benchmarks.start", layers, peer)


def _run(module: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise BenchmarkError(f"{' '.join(command[2:])} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(layers: int, peer: str) -> dict[str, Any]:
    """Train in this process; return seconds of the first two steps, compiles, later steps' ms."""
    import torch

    import lazyrt
    from benchmarks import bert

    lazyrt.config.cache_dir = None
    model = bert.make_model(layers).to(peer)
    batch = {name: tensor.to(peer) for name, tensor in bert.make_batch().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    lazyrt.mark_step()
    lazyrt.reset_counters()
    steps = []
    for _ in range(_STEPS):
        wall, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        loss.item()
        steps.append(
            {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        )
    later = min(step["wall"] for step in steps[2:])
    return {
        "steps": steps[:2],
        "compiles": lazyrt.counters()["compiles"],
        "later_ms": 1e3 * later,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(int(sys.argv[1]), sys.argv[2])) + "\n")
