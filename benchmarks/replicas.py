"""`python -m benchmarks devices`: several processes and several devices, next to their peers.

Each count of processes is one launch, in which lazyrt, torch's gloo and jax's own program take
turns. More processes than cores share them, so scaling is that of this machine.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks import machine
from benchmarks.pool import ROOT, BenchmarkError
from benchmarks.report import Cell, Goal, Report, Table
from lazyviz import launch

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

SUMMARY = (
    "processes and devices: scaling, the guard's cost, collectives next to gloo and jax"
)
COUNTS = (1, 2, 4)
_CHECKED = 8  # devices, for which the model of the others predicts
_SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 22)  # elements of four bytes
_STEPS, _CALLS = 120, 12
_ROWS, _WIDTH = 256, 256
_GUARD_GOAL_MS = 1.0
_FAULTS = 50
_SUM = 10.0  # of four ranks
# This folder is no place for imports: it has a module that is called as one of Python's own.
_ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "runtime")]),
    "PYTHONSAFEPATH": "1",
    "LAZYRT_CACHE_DIR": "",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--soak",
        type=int,
        default=0,
        metavar="STEPS",
        help="run so many steps on four processes with random delays and planted faults instead",
    )


def run(options: Namespace) -> Report:
    """Measure, and return the report."""
    if options.soak:
        return _soaked(options.soak)
    processes = {count: _processes("scaling", count) for count in COUNTS}
    devices = {count: _devices(count) for count in (*COUNTS, _CHECKED)}
    columns = ("", "strong", "weak", "guard", "usually", "its CPU")
    rows: list[list[Cell]] = [
        [_called(count, "process"), *(found.get(key) for key in ("strong", "weak", "exchange", "usual", "cpu"))]
        for count, found in processes.items()
    ]  # fmt: skip
    rows += [
        [_called(count, "device"), found["strong"], found["weak"], None, None, None]
        for count, found in devices.items()
    ]
    peers = _processes("collectives", 2)
    cost = processes[COUNTS[-1]]["exchange"]
    goal = Goal(
        f"the guard at {COUNTS[-1]} processes",
        f"<= {_GUARD_GOAL_MS:g} ms a step",
        f"{cost:.2f} ms",
        cost <= _GUARD_GOAL_MS,
    )
    model = f"four layers of {_WIDTH}, AdamW, {_ROWS} rows in all (strong) or for each (weak)"
    return Report(
        f"devices: {SUMMARY}",
        machine.facts(),
        [
            Table("ms for a training step, smallest", columns, rows),
            _predicted(devices),
            Table(
                "ms for an all-reduce of two processes, smallest",
                ("", "lazyrt", "jax shard_map", "torch gloo"),
                [[f"{4 * size >> 10:,} KiB", *found] for size, found in zip(_SIZES, peers["ms"], strict=True)],
            ),
        ],
        [goal],
        notes=(
            model,
            "the guard: smallest and usual wall time of the rank that comes last; CPU time of any",
        ),
    )  # fmt: skip


def _predicted(devices: dict[int, dict[str, Any]]) -> Table:
    """Return what a model of the steps of few devices says of more, on this machine and others.

    A step takes `a + b * rows / min(devices, cores) + c * (devices - 1)`: what each step takes, the
    work, which cores share, and the exchange. The fit weighs each time by its length.
    """
    np: Any = importlib.import_module("numpy")
    cores = os.cpu_count() or 1

    def terms(count: int, rows: float, cores: int) -> list[float]:
        return [1.0, rows / min(count, cores), count - 1.0]

    cases = [(n, name, n if name == "weak" else 1) for n in devices for name in ("strong", "weak")]  # fmt: skip
    known = [(terms(n, rows, cores), devices[n][name]) for n, name, rows in cases if n in COUNTS]  # fmt: skip
    left = np.array([[each / ms for each in row] for row, ms in known])
    found = np.linalg.lstsq(left, np.ones(len(known)), rcond=None)[0]
    parts = ", ".join(f"{each:.2f}" for each in found)
    return Table(
        f"the model (a, b, c = {parts} ms, of {max(COUNTS)} devices and fewer), ms",
        ("", "measured", "by the model", "as many cores as devices"),
        [
            [
                f"{_called(n, 'device')}, {name}",
                devices[n][name],
                *(float(np.dot(found, terms(n, rows, each))) for each in (cores, n)),
            ]
            for n, name, rows in cases
        ],
    )


def _called(count: int, what: str) -> str:
    plural = "es" if what.endswith("s") else "s"
    return f"{count} {what}{plural if count > 1 else ''}"


def _processes(task: str, count: int, *arguments: object) -> dict[str, Any]:
    found = launch(
        ROOT / "benchmarks" / "replicas.py",
        task,
        *arguments,
        processes=count,
        environment={**_ENVIRONMENT, "LAZYRT_RECORD": ""},
        live=False,
    )  # fmt: skip
    if not found.ok:
        raise BenchmarkError(f"{task} on {count} processes failed:\n{found}")
    told: dict[str, Any] = json.loads(found.outputs[0].splitlines()[-1])
    return told


def _devices(count: int) -> dict[str, Any]:
    environment = {**os.environ, **_ENVIRONMENT, "LAZYRT_NUM_DEVICES": str(count)}
    done = subprocess.run(  # noqa: S603 - our own module
        [sys.executable, str(ROOT / "benchmarks" / "replicas.py"), "devices"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchmarkError(f"{count} devices failed:\n{done.stderr}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def _soaked(steps: int) -> Report:
    start = time.perf_counter()
    found = _processes("soak", 4, steps)
    wall = time.perf_counter() - start
    columns = ("", "planted", "named on all ranks", "wrong sums", "seconds")
    row: list[Cell] = [
        f"{steps} steps", found["planted"], found["named"], found["wrong"], wall,
    ]  # fmt: skip
    is_met = found["planted"] == found["named"] and not found["wrong"]
    goal = Goal(
        "planted faults are named, no sum is wrong, nothing hangs",
        "all",
        f"{found['named']} of {found['planted']}",
        is_met,
    )
    return Report(
        "devices --soak: four processes, random delays, planted faults",
        machine.facts(),
        [Table("a soak of the guard", columns, [row])],
        [goal],
    )


# ------------------------------------------------------------------------- in the processes


def _model(torch: Any) -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(4)]
    return torch.nn.Sequential(*layers).to("lazyrt")


def _train(net: Any, rows: Any, steps: int, each: Callable[[int], None]) -> list[float]:
    """Return the milliseconds of each step."""
    import torch

    import lazyrt

    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    taken = []
    for step in range(steps):
        each(step)
        start = time.perf_counter()
        optimizer.zero_grad()
        net(rows).square().mean().backward()
        optimizer.step()
        lazyrt.wait()
        taken.append((time.perf_counter() - start) * 1e3)
    return taken


def scaling() -> dict[str, Any]:
    """Train by DistributedDataParallel on several processes."""
    import torch
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    importlib.import_module("lazyrt")  # registers the backend
    dist.init_process_group("lazyrt")
    count = dist.get_world_size()

    def trained(rows: int, steps: int, each: Callable[[int], None]) -> list[float]:
        net = DistributedDataParallel(_model(torch))
        return _train(net, torch.ones(rows, _WIDTH).to("lazyrt"), steps, each)

    def nothing(step: int) -> None:
        pass

    strong = min(trained(_ROWS // count, _STEPS // 4, nothing)[5:])
    weak = min(trained(_ROWS, _STEPS // 4, nothing)[5:])
    if count == 1:
        return {"strong": strong, "weak": weak}
    guard = _Timed()
    trained(4, _STEPS, nothing)
    lists: list[Any] = [None] * count
    dist.all_gather_object(lists, guard.seconds[10:_STEPS])
    walls, cpus = zip(*(zip(*own, strict=True) for own in lists), strict=True)
    last = [min(step) for step in zip(*walls, strict=True)]
    return {
        "strong": strong,
        "weak": weak,
        "exchange": min(last) * 1e3,
        "usual": statistics.median(last) * 1e3,
        "cpu": statistics.median(itertools.chain(*cpus)) * 1e3,
    }


class _Timed:
    """Seconds of wall and of this thread's CPU time of each comparison from now on."""

    def __init__(self) -> None:
        guards: Any = importlib.import_module("lazyrt.execution.replicas")
        self.seconds: list[tuple[float, float]] = []
        original = guards._Guard.check  # noqa: SLF001

        def check(guard: Any) -> None:
            wall, cpu = time.perf_counter(), time.thread_time()
            original(guard)
            taken = time.perf_counter() - wall, time.thread_time() - cpu
            self.seconds.append(taken)

        guards._Guard.check = check  # noqa: SLF001


def devices() -> dict[str, Any]:
    """Train on a mesh of one process."""
    import torch

    import lazyrt

    count = int(os.environ["LAZYRT_NUM_DEVICES"])
    mesh = lazyrt.mesh({"data": count})
    found = {}
    for name, rows in (("strong", _ROWS), ("weak", _ROWS * count)):
        x = lazyrt.shard(torch.ones(rows, _WIDTH).to("lazyrt"), mesh, ("data",))
        found[name] = min(_train(_model(torch), x, _STEPS // 2, lambda _: None)[5:])
    return found


def collectives() -> dict[str, Any]:
    """All-reduce by lazyrt, by a program of jax's own, and by torch's gloo, in turns."""
    import numpy as np
    import torch
    from torch import distributed as dist

    import lazyrt

    jax: Any = importlib.import_module("jax")
    spec = jax.sharding.PartitionSpec("ranks")
    dist.init_process_group("lazyrt")
    gloo = dist.new_group(backend="gloo")
    mesh = jax.make_mesh((dist.get_world_size(),), ("ranks",))
    split = jax.sharding.NamedSharding(mesh, spec)
    summed = jax.jit(
        jax.shard_map(
            lambda x: jax.lax.psum(x, "ranks"),
            mesh=mesh,
            in_specs=spec,
            out_specs=jax.sharding.PartitionSpec(),
        )
    )
    found = []
    for size in _SIZES:
        plain = torch.ones(size)
        lazy = plain.to("lazyrt")
        shape = (dist.get_world_size() * size,)
        own = np.ones(size, np.float32)
        array = jax.make_array_from_process_local_data(split, own, shape)

        def by_lazyrt(given: torch.Tensor = lazy) -> None:
            result = given * 1
            dist.all_reduce(result)
            lazyrt.mark_step()
            lazyrt.wait()

        def by_jax(given: Any = array) -> None:
            summed(given).block_until_ready()

        def by_gloo(given: torch.Tensor = plain) -> None:
            dist.all_reduce(given * 1, group=gloo)

        calls = (by_lazyrt, by_jax, by_gloo)
        taken: list[list[float]] = [[], [], []]
        for _ in range(_CALLS):
            for call, times in zip(calls, taken, strict=True):
                start = time.perf_counter()
                call()
                times.append((time.perf_counter() - start) * 1e3)
        found.append([min(times[2:]) for times in taken])
    return {"ms": found}


def soak() -> dict[str, Any]:
    """Reduce for many steps with random delays; some steps differ on one rank."""
    import torch
    from torch import distributed as dist

    import lazyrt
    from lazyrt.errors import ReplicaError

    dist.init_process_group("lazyrt")
    steps, rank = int(sys.argv[2]), dist.get_rank()
    shared, own = random.Random(0), random.Random(rank)  # noqa: S311 - delays
    planted = set(shared.sample(range(1, steps), min(_FAULTS, steps // 10)))
    lazyrt.config.replica_timeout_s = 60.0
    x = torch.full((64,), rank + 1.0).to("lazyrt")
    named = wrong = 0
    for step in range(steps):
        kind, odd = shared.choice(("more", "shape", "read")), shared.randrange(4)
        is_odd = step in planted and rank == odd
        time.sleep(own.random() * 0.005)
        y = x[:32] * 1 if is_odd and kind == "shape" else x * 1
        try:
            dist.all_reduce(y)
            if is_odd and kind == "read":
                y.sum().item()
            z = x * 2
            if not (is_odd and kind == "more"):
                dist.all_reduce(z)
            lazyrt.mark_step()
        except ReplicaError:
            named += step in planted
            lazyrt.discard_pending()
            continue
        sums = [y[0].item(), z[0].item()]
        wrong += step in planted or sums != [_SUM, 2 * _SUM]
    counts = torch.tensor([named, -named, wrong]).to("lazyrt")
    dist.all_reduce(counts, dist.ReduceOp.MAX)
    most, least, any_wrong = counts.tolist()
    return {
        "planted": len(planted),
        "named": -least if most == -least else min(most, -least),
        "wrong": any_wrong,
    }


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(globals()[sys.argv[1]]()) + "\n")
