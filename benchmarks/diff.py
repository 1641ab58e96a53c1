"""`python -m benchmarks diff`: two large programs compared, next to `git diff`."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import machine
from benchmarks.pool import BenchmarkError
from benchmarks.report import Cell, Goal, Report, Table, ratio_goal
from lazygraph import diff
from tests import hlo_pairs, hlo_zoo

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

SUMMARY = (
    "differences of large programs: time, memory and script size, next to git diff"
)

_LAYERS = 90  # 37.4 thousand instructions
_IR_LAYERS = 815  # 37.5 thousand nodes
_INSERTED = "6 layers inserted"
_COLUMNS = (
    "", "instructions a", "b", "CPU s", "peak MiB", "script", "generator's", "ratio",
    "git diff lines",
)  # fmt: skip
_SECOND = 1.0
_IR_SECONDS = 0.5
_MIB = 300.0
# What a process does that compares two dumps; the interpreter's start is left out.
_CHILD = """
import json, resource, sys, time
from pathlib import Path
from lazygraph import diff, parse, group_hunks

def peak_mib():
    # `ru_maxrss` counts the process that this one was started from, where Linux has better.
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

paths = [Path(name) for name in sys.argv[1:3]]
best = None
for turn in range(int(sys.argv[3])):
    started = time.process_time()
    a, b = (parse(path.read_text("utf-8")) for path in paths)
    found = diff(a, b)
    groups = group_hunks(found.hunks())
    cost = found.cost
    seconds = time.process_time() - started
    best = seconds if best is None else min(best, seconds)
    sizes = len(a), len(b)
    if turn == 0:
        first_peak = peak_mib()
    del a, b, found, groups
print(json.dumps({"seconds": best, "peak": first_peak, "cost": cost, "sizes": sizes}))
"""
_IR_CHILD = """
import json, sys, time
import torch, lazyrt
from lazygraph import diff, from_ir

def graph(layers):
    torch.manual_seed(0)
    device = "lazyrt"
    weights = [torch.zeros(8, 8, device=device, requires_grad=True) for _ in range(layers)]
    x = torch.ones(4, 8, device=device)
    for weight in weights:
        y = torch.tanh(x @ weight) * torch.sigmoid(x) + x
        x = torch.relu(y - y.mean(1, keepdim=True)) / (1 + y.abs().sum())
    x.sum().backward()
    updates = []
    for weight in weights:
        first, second = torch.zeros_like(weight), torch.ones_like(weight)
        moved = first * 0.9 + weight.grad * 0.1
        square = second * 0.999 + weight.grad * weight.grad * 0.001
        updates.append(weight.detach() - moved / (square.sqrt() + 1e-8) * 0.01)
    return lazyrt.pending_graph(*updates), updates, weights

layers, best = int(sys.argv[1]), None
one, two = graph(layers), graph(layers + layers // 13)
for _ in range(int(sys.argv[2])):
    started = time.process_time()
    found = diff(from_ir(one[0]), from_ir(two[0]))
    cost = found.cost
    seconds = time.process_time() - started
    best = seconds if best is None else min(best, seconds)
print(json.dumps({"seconds": best, "cost": cost, "sizes": (len(found.a), len(found.b))}))
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--layers",
        type=int,
        default=_LAYERS,
        help=f"of the programs, {_LAYERS} by default",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="repetitions; the fastest counts (default 3)",
    )
    parser.add_argument(
        "--small-pairs",
        type=int,
        default=200,
        help="small programs of all kinds, for the script's size (default 200)",
    )
    parser.add_argument(
        "--no-ir", action="store_true", help="leave out the runtime's graphs in memory"
    )


def run(options: Namespace) -> Report:
    """Measure, and return the report."""
    if options.layers < 4:  # noqa: PLR2004 - the edits concern layers in the middle
        raise BenchmarkError(f"--layers is {options.layers}; it takes 4 or more.")
    facts = machine.facts()
    rows: list[list[Cell]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, first, second in _pairs(options.layers):
            rows.append(_row(name, first, second, Path(folder), options.rounds))
    goals = _goals(rows)
    tables = [Table("dumps as text, lines and parameters shuffled", _COLUMNS, rows)]
    if options.small_pairs:
        table, worst = _small_pairs(options.small_pairs)
        tables.append(table)
        goals.append(ratio_goal("small structured pairs, script", worst[0], 1.1))
        goals.append(ratio_goal("small edited pairs, script", worst[1], 2.0))
    if not options.no_ir:
        found = _child(_IR_CHILD, str(_IR_LAYERS), str(options.rounds))
        a, b = found["sizes"]
        row: list[Cell] = ["layers inserted", a, b, found["seconds"], found["cost"]]
        columns = ("", "nodes a", "b", "CPU s", "script")
        tables.append(Table("graphs of the runtime, in memory", columns, [row]))
        goals.append(
            ratio_goal("graphs in memory", found["seconds"], _IR_SECONDS, " s")
        )
    notes = (
        "CPU s: read, parsed, matched and put into hunks; the interpreter's start left out",
        (
            "generator's: the script that the generator of the pair made; a shorter one can "
            "exist, as equal layers and equal edits elsewhere are alike"
        ),
        "git diff lines: added and removed, of the same two files",
    )
    return Report(f"diff: {SUMMARY}", facts, tables, goals, notes)


def _small_pairs(count: int) -> tuple[Table, list[float]]:
    """Return how long scripts are for small programs of all kinds, and the worst ratios."""
    zoo: Any = hlo_zoo
    found: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for seed in range(count):
        pair = zoo.pair(5_000 + seed, 1 + seed % 8)
        a, b, truth = pair.graphs()
        found[pair.is_structured].append((diff(a, b).cost, int(truth)))
    rows: list[list[Cell]] = []
    worst = []
    for is_structured, costs in found.items():
        worst.append(max((cost / max(1, truth) for cost, truth in costs), default=0.0))
        name = "whole blocks edited" if is_structured else "single rows edited too"
        sums = (sum(cost for cost, _ in costs), sum(truth for _, truth in costs))
        rows.append([name, len(costs), *sums, worst[-1]])
    columns = ("", "pairs", "script", "generator's", "worst ratio")
    return Table("small programs of a second generator", columns, rows), worst


def _pairs(layers: int) -> list[tuple[str, Any, Any]]:
    make: Any = hlo_pairs.transformer
    base = make(layers)
    middle = layers // 2
    names = [*range(middle), *(f"new{k}" for k in range(6)), *range(middle, layers)]
    edited: Any = hlo_pairs.edited
    rng = random.Random(7)  # noqa: S311 - reproducible
    return [
        ("the same", base, base),
        ("a live tensor more", base, make(layers, norm=True)),
        (_INSERTED, base, make(names=names)),
        ("dropout in each layer", base, make(layers, dropout=range(layers))),
        ("another batch size", base, make(layers, batch=12)),
        ("a baked learning rate", base, make(layers, lr=0.02)),
        ("16 random edits", base, edited(base, rng, 16)),
    ]


def _row(name: str, first: Any, second: Any, folder: Path, rounds: int) -> list[Cell]:
    paths = [folder / "a.hlo", folder / "b.hlo"]
    text_of: Any = hlo_pairs.text_of
    texts: list[str] = []
    keys: list[dict[str, str]] = []
    for seed, (program, path) in enumerate(zip((first, second), paths, strict=True)):
        text, names = text_of(program, seed=seed, shuffle=True)
        path.write_text(text, encoding="utf-8")
        texts.append(text)
        keys.append(names)
    found = _child(_CHILD, *map(str, paths), str(rounds))
    truth = _truth(texts, keys)
    a, b = found["sizes"]
    ratio = found["cost"] / truth if truth else None
    return [
        name, a, b, found["seconds"], round(found["peak"]), found["cost"], truth, ratio,
        _git_lines(*paths),
    ]  # fmt: skip


def _truth(texts: list[str], names: list[dict[str, str]]) -> int:
    pairs: Any = hlo_pairs
    graphs = [pairs.parse(text) for text in texts]
    keys = [
        pairs.keys_of(graph, each) for graph, each in zip(graphs, names, strict=True)
    ]
    return int(pairs.truth(graphs[0], keys[0], graphs[1], keys[1]).cost)


def _child(code: str, *arguments: str) -> Any:
    done = subprocess.run(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchmarkError(f"a process failed: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _git_lines(a: Path, b: Path) -> int | None:
    """Return how many lines `git diff` shows as added or removed; None without git."""
    command = ["git", "diff", "--no-index", "--numstat", str(a), str(b)]
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, check=False, timeout=600
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if not done.stdout.strip():
        return 0
    added, removed, _ = done.stdout.split("\t")
    return int(added) + int(removed)


def _goals(rows: list[list[Cell]]) -> list[Goal]:
    by_name = {str(row[0]): row for row in rows}

    def figure(name: str, column: str) -> float | None:
        cell = by_name[name][_COLUMNS.index(column)]
        return float(cell) if isinstance(cell, (int, float)) else None

    structured = [
        figure(name, "ratio") or 0.0 for name in by_name if name != "16 random edits"
    ]
    return [
        ratio_goal(f"{_INSERTED}, CPU", figure(_INSERTED, "CPU s"), _SECOND, " s"),
        ratio_goal(f"{_INSERTED}, memory", figure(_INSERTED, "peak MiB"), _MIB, " MiB"),
        ratio_goal("structured changes, script", max(structured), 1.1),
        ratio_goal("random edits, script", figure("16 random edits", "ratio"), 2.0),
    ]
