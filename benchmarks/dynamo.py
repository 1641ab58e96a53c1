"""`python -m benchmarks dynamo`: compiled steps, by executions, parts and models.

The tables of torch_xla's thread on TorchDynamo, measured anew: phases on the device, lazy against
compiled, what an execution costs, speed-ups over models. Beside them the host's CPU time of a step,
torch eager, TorchInductor, `jax.jit`, and what was recorded of torch_xla.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from benchmarks import bert, machine, recorded
from benchmarks.pool import BenchmarkError
from benchmarks.report import Cell, Goal, Report, Sample, Table, ratio, ratio_goal

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Sequence

    from benchmarks.dynamo_run import Parts

SUMMARY = "torch.compile: executions, their cost, and speed-ups over models"

LAYERS = 4
_PLAIN, _MODEL, _WHOLE, _EAGER = "plain", "model compiled", "step compiled", "CPU eager"
_TRACED = "step compiled, backward traced"  # what `trace_autograd_ops` and a detached loss bring
_OWN = "torch's own part of step compiled"
_LEAST = "that part without AOTAutograd's forward and backward"
_GOALS = {_MODEL: 0.6, _WHOLE: 0.3, _TRACED: 0.3}
_WARM_UP = 5
_STAGES = ("five", "three", "one")
_DEPTHS = (1, 2, 4, 8)
_SIZES = (64, 128, 192, 256, 384)
_PHASED = "BERT_pytorch"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--rounds", type=int, default=10, help="turns of each way (default 10)"
    )
    parser.add_argument(
        "--steps", type=int, default=20, help="steps of each measurement (default 20)"
    )
    parser.add_argument(
        "--only", help="only the speed-ups of these models, comma-separated, or all"
    )
    parser.add_argument(
        "--training", action="store_true", help="only training, no inference"
    )
    parser.add_argument(
        "--backend",
        default="lazyrt",
        help="what compiles the models; others than lazyrt run on the CPU (default lazyrt)",
    )


def run(options: Namespace) -> Report:
    """Measure all ways in one process, and return the report."""
    import lazyrt

    models = _chosen_models(options.only)
    _check_backend(options.backend)
    lazyrt.config.cache_dir = None
    lazyrt.config.compile_tier = "fast"  # compiles in a quarter of the time
    facts = machine.facts()
    tables: list[Table] = []
    goals: list[Goal] = []
    if not options.only:
        host, goals = _host_time(options.rounds)
        tables = [host, *_phases(options.steps), *_overheads(options.steps)]
    for training in (True,) if options.training else (False, True):
        tables.append(_speed_ups(models, options, training=training))
    if not options.only:
        peers, waiting = _peers(options.steps)
        tables.append(peers)
        goals += waiting
    return Report(
        name=f"dynamo: {SUMMARY}",
        facts={**facts, "xla": "fast tier, nothing cached on disk"},
        tables=tables,
        goals=goals,
        notes=(
            "figures are minima, of loops means; ratios over 1 mean that the compiled way is faster",
            f"{recorded.THREAD}: other models' sizes, another device; compare ratios",
        ),
    )


def _chosen_models(only: str | None) -> Sequence[str]:
    from benchmarks.dynamo_models import DEFAULT, MODELS

    if only is None:
        return DEFAULT
    names = list(MODELS) if only == "all" else only.split(",")
    for name in names:
        if name not in MODELS:
            raise BenchmarkError(
                f"no model {name!r}. The models are {', '.join(MODELS)}, or all"
            )
    return names


def _check_backend(name: str) -> None:
    import torch

    known = torch.compiler.list_backends(exclude_tags=())
    if name not in known:
        raise BenchmarkError(
            f"no backend {name!r}. TorchDynamo's backends are {', '.join(known)}"
        )
    if name == "inductor" and shutil.which("g++") is None:
        raise BenchmarkError(
            "the backend inductor needs g++ for its code, and there is none. Install it, or "
            "choose --backend lazyrt"
        )


# ------------------------------------------------------------------ host time of a step


def _host_time(rounds: int) -> tuple[Table, list[Goal]]:
    """Return the host's CPU time of a step, plain and compiled, and its goals."""
    import torch._dynamo

    import lazyrt
    from benchmarks.dynamo_run import ReadyFunctions, ReadyGraphs

    alone = {_OWN: ReadyGraphs(), _LEAST: ReadyFunctions()}
    with lazyrt.config.scoped(barrier_after_optimizer=False):
        ways = {way: _step(way) for way in (_PLAIN, _MODEL, _WHOLE, _TRACED, _EAGER)}
        ways |= {way: _step(way, ready.backend) for way, ready in alone.items()}
        for way, step in ways.items():
            with torch._dynamo.config.patch(trace_autograd_ops=way == _TRACED):  # noqa: SLF001 - it has no other name
                _turn(step, _WARM_UP)
        gc.collect()
        samples: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for _ in range(rounds):
            for way, step in ways.items():
                for _ in range(4):
                    if way in alone:  # what the others find in the processor's caches
                        alone[way].prepare()
                        _turn(ways[_PLAIN], 1)
                    samples[way] += _turn(step, 1)
    traced = {way: Sample.of([r for r, _ in found]) for way, found in samples.items()}
    ended = {way: Sample.of([b for _, b in found]) for way, found in samples.items()}
    rows: list[list[Cell]] = [
        [
            way,
            traced[way].minimum,
            traced[way].median,
            None if way in {_EAGER, *alone} else ended[way].minimum,
            f"{ratio(traced[way], traced[_PLAIN]):.2f}",
        ]
        for way in ways
    ]
    shape = bert.SHAPE_TEXT.replace(f"{bert.LAYERS} layers", f"{LAYERS} layers")
    title = f"ms of CPU time on the calling thread, {shape} AdamW"
    columns = ("", "minimum", "median", "barrier minimum", "of plain")
    return Table(title, columns, rows), [
        ratio_goal(f"{way} of plain", ratio(traced[way], traced[_PLAIN]), goal)
        for way, goal in _GOALS.items()
    ]


# ------------------------------------------------------------- executions and their cost


def _ways(name: str, *, training: bool) -> dict[str, Any]:
    """Return a model's step, recorded op by op and compiled."""
    import torch

    from benchmarks.dynamo_models import MODELS, batch_of
    from benchmarks.dynamo_run import make_step

    torch.compiler.reset()  # it compiles one function at most eight times
    batch = batch_of(name).to("lazyrt")
    return {
        backend or "lazy": make_step(MODELS[name](), batch, backend, training=training)
        for backend in (None, "lazyrt")
    }


def _phases(steps: int) -> list[Table]:
    """Return the device's time by phase, and the parts of a step by way."""
    import lazyrt
    from benchmarks.dynamo_run import take_apart

    found: dict[str, Parts] = {}
    ways = _ways(_PHASED, training=True)
    found["lazy"] = take_apart(ways["lazy"], steps)
    for stage in _STAGES:
        with lazyrt.dynamo.bridge(stage):  # type: ignore[arg-type]
            found[stage] = take_apart(ways["lazyrt"], steps)
    phases: list[list[Cell]] = [
        ["lazy", found["lazy"].on_device, recorded.THREAD_LAZY_MS]
    ]
    for stage in _STAGES:
        for cause, ms in found[stage].device.items():
            theirs = recorded.THREAD_PHASES_MS.get(cause) if stage == "five" else None
            phases.append([f"{stage}: {cause}", ms, theirs])
        theirs = recorded.THREAD_DYNAMO_MS if stage == "five" else None
        phases.append([f"{stage}: combined", found[stage].on_device, theirs])
    lazy = found["lazy"]
    parts: list[list[Cell]] = [
        [
            way,
            len(each.device),
            each.tracing,
            each.barriers,
            _against(each.on_device, lazy.on_device),
            _against(each.wall, lazy.wall),
            _against(each.loop, lazy.loop),
            f"{each.overlap:.0f} %",
        ]
        for way, each in found.items()
    ]
    parts += [
        [f"lazy, {recorded.THREAD}", 1, recorded.THREAD_LAZY_TRACING_MS, None,
         f"{recorded.THREAD_LAZY_MS:.2f}", f"{recorded.THREAD_LAZY_WALL_MS:.2f}", None, None],
        [f"five, {recorded.THREAD}", 5, None, None,
         _against(recorded.THREAD_DYNAMO_MS, recorded.THREAD_LAZY_MS),
         _against(recorded.THREAD_DYNAMO_WALL_MS, recorded.THREAD_LAZY_WALL_MS), None, None],
    ]  # fmt: skip
    columns = (
        "", "executions", "tracing", "barriers", "device", "wall", "in a loop", "overlap",
    )  # fmt: skip
    return [
        Table(
            f"ms on the device by phase, training {_PHASED}",
            ("", "here", recorded.THREAD),
            phases,
        ),
        Table(
            "ms of a step and its parts; overlap is how much of the tracing a loop does while "
            "the device works (of the device's time, where that is shorter)",
            columns,
            parts,
        ),
    ]


def _against(ms: float, lazy: float) -> str:
    return f"{ms:.2f} ({lazy / ms:.2f}x)"


def _overheads(steps: int) -> list[Table]:
    """Return what an execution costs besides the device's time, over sizes and over depths."""
    import torch

    import lazyrt
    from benchmarks.dynamo_models import ROWS, WIDTH, deep
    from benchmarks.dynamo_run import Fit, make_step, take_apart

    rows: list[list[Cell]] = []
    walls, devices = [], []
    for size in _SIZES:
        x = torch.ones(size, size).to("lazyrt")
        parts = take_apart(lambda x=x: x @ x @ x, steps)  # type: ignore[misc]
        wall = parts.wall - parts.tracing
        walls.append(wall)
        devices.append(parts.on_device)
        rows.append([f"{size} x {size}", wall, parts.on_device, wall - parts.on_device])
    fit = Fit.through(devices, walls)
    rows.append([_line(fit, "device"), None, None, None])
    theirs = statistics.fmean(recorded.THREAD_OVERHEAD_MS)
    rows.append([f"mean of six, {recorded.THREAD}", None, None, theirs])
    by_size = Table(
        "one execution: ms from its barrier to its end",
        ("", "call to end", "device", "overhead"),
        rows,
    )
    depths: list[list[Cell]] = []
    each = []
    for depth in _DEPTHS:
        torch.compiler.reset()
        batch = torch.ones(ROWS, WIDTH).to("lazyrt")
        step = make_step(deep(depth), batch, "lazyrt", training=True)
        found = {}
        for stage in ("five", "one"):
            with lazyrt.dynamo.bridge(stage):
                found[stage] = take_apart(step, steps)
        more = len(found["five"].device) - len(found["one"].device)
        each.append((found["five"].wall - found["one"].wall) / more)
        depths.append([f"{depth} layers", found["five"].wall, found["one"].wall, each[-1]])  # fmt: skip
    depths.append([_line(Fit.through(_DEPTHS, each), "layers"), None, None, None])
    columns = ("", "five executions", "one", "each further one")
    return [by_size, Table("ms of a training step by depth", columns, depths)]


def _line(fit: Any, of: str) -> str:
    """Return a fit as text, each figure with twice its standard error."""
    return (
        f"fit: {fit.intercept:.3f} ± {2 * fit.intercept_error:.3f} ms "
        f"+ ({fit.slope:.3f} ± {2 * fit.slope_error:.3f}) x {of}"
    )


# ---------------------------------------------------------------------- models and peers


def _speed_ups(models: Sequence[str], options: Namespace, *, training: bool) -> Table:
    """Return how many times faster compiled steps of models are."""
    kind = "training" if training else "inference"
    found: dict[str, dict[str, float]] = {}
    for name in models:
        measure = _lazy_speed_ups if options.backend == "lazyrt" else _cpu_speed_ups
        found[name] = measure(name, options, training)
        sys.stderr.write(f"{kind} {name}\n")
    columns = list(next(iter(found.values())))
    rows: list[list[Cell]] = []
    for name, row in found.items():
        theirs = recorded.THREAD_SPEED_UPS[name] if training else ()
        rows.append([name, *row.values(), " / ".join(map(str, theirs)) or None])
    for title, mean in (
        ("mean", statistics.fmean),
        ("geometric mean", statistics.geometric_mean),
    ):
        means = [mean([row[each] for row in found.values()]) for each in columns]
        rows.append([title, *means, None])
    baseline = "lazy" if options.backend == "lazyrt" else "torch eager"
    return Table(
        f"{kind} with {options.backend}: times as fast as {baseline}, each step waiting",
        ("", *columns, recorded.THREAD),
        rows,
    )


def _lazy_speed_ups(name: str, options: Namespace, training: bool) -> dict[str, float]:  # noqa: FBT001 - one of two kinds
    import lazyrt
    from benchmarks.dynamo_run import waiting_ms

    ways = _ways(name, training=training)
    lazy = waiting_ms(ways["lazy"], options.steps)
    found = {}
    for stage in _STAGES:
        with lazyrt.dynamo.bridge(stage):  # type: ignore[arg-type]
            found[stage] = lazy / waiting_ms(ways["lazyrt"], options.steps)
    return found


def _cpu_speed_ups(name: str, options: Namespace, training: bool) -> dict[str, float]:  # noqa: FBT001 - one of two kinds
    import torch

    from benchmarks.dynamo_models import MODELS, batch_of
    from benchmarks.dynamo_run import make_step, waiting_ms

    torch.compiler.reset()
    plain, compiled = (
        make_step(MODELS[name](), batch_of(name), backend, training=training)
        for backend in (None, options.backend)
    )
    eager = waiting_ms(plain, options.steps)
    return {options.backend: eager / waiting_ms(compiled, options.steps)}


def _peers(steps: int) -> tuple[Table, list[Goal]]:
    """Return a waiting step of one model on lazyrt, torch's own ways, jax, and torch_xla."""
    import torch

    import lazyrt
    from benchmarks import devices, jax_steps
    from benchmarks.dynamo_models import MODELS, batch_of
    from benchmarks.dynamo_run import ReadyGraphs, guards_ms, make_step, waiting_ms

    ways = {
        f"lazyrt, {'lazy' if name == 'lazy' else 'model compiled'}": step
        for name, step in _ways(_PHASED, training=True).items()
    }
    backends = [None, "inductor"] if shutil.which("g++") else [None]
    for backend in backends:
        model, batch = MODELS[_PHASED](), batch_of(_PHASED)
        ways[backend or "torch eager"] = make_step(model, batch, backend, training=True)
    rows: list[list[Cell]] = [
        [way, waiting_ms(step, steps)] for way, step in ways.items()
    ]
    told = f"BERT with {bert.LAYERS} layers"
    # What jax.jit compiles is optimised, too.
    with lazyrt.config.scoped(barrier_after_optimizer=False, compile_tier="optimised"):
        training = bert.Training(devices.open_device("lazyrt"), "adamw")
        training.run(_WARM_UP)
        lazy = bert.time_waiting(training, steps)["step"]
        plain = training.step
        training.step = torch.compile(plain, backend="lazyrt")  # type: ignore[method-assign]
        training.run(_WARM_UP)
        traced = bert.Training(devices.open_device("lazyrt"), "adamw")
        traced.step = _step(_TRACED, layers=bert.LAYERS)  # type: ignore[method-assign]
        with torch._dynamo.config.patch(trace_autograd_ops=True):  # noqa: SLF001 - it has no other name
            traced.run(_WARM_UP)
        jitted = jax_steps.same_graph(training)
        jax_steps.time_waiting(jitted, _WARM_UP)
        ready = ReadyGraphs()
        own = _step(_OWN, ready.backend, bert.LAYERS)
        _turn(own, _WARM_UP)
        compiled, of_traced, of_jax, of_torch = [], [], [], []
        for _ in range(4):  # in turn, since other programs run, too
            compiled += bert.time_waiting(training, steps)["step"]
            of_traced += bert.time_waiting(traced, steps)["step"]
            of_jax += jax_steps.time_waiting(jitted, steps)["step"]
            for _ in range(steps):
                ready.prepare()
                compiled += bert.time_waiting(training, 1)["step"]
                of_torch += [recorded for recorded, _ in _turn(own, 1)]
        guards = guards_ms(training.step, steps)
        traced_guards = guards_ms(traced.step, steps)
    rows += [
        [f"{told}: lazyrt, lazy", min(lazy)],
        [f"{told}: lazyrt, step compiled", min(compiled)],
        [f"{told}: of it torch's own part", min(of_torch)],
        [f"{told}: of that TorchDynamo's look-up and guards", guards],
        [f"{told}: jax.jit of its graph, donated", min(of_jax)],
        [
            f"{told}: step compiled, of jax.jit and torch's own part",
            f"{min(compiled) / (min(of_jax) + min(of_torch)):.2f}x",
        ],
        [f"{told}: lazyrt, {_TRACED}", min(of_traced)],
        [f"{told}: of it TorchDynamo's look-up and guards", traced_guards],
        [f"{told}: torch_xla lazy, {recorded.ORIGIN}", recorded.TORCH_XLA_ADAMW.step_ms],
        [f"{told}: torch_xla compiled, 4 executions", recorded.TORCH_XLA_COMPILED.step_ms],
    ]  # fmt: skip
    table = Table(f"ms of a training step that waits, {_PHASED}", ("", "step"), rows)
    waiting = {_WHOLE: (compiled, guards), _TRACED: (of_traced, traced_guards)}
    return table, [
        ratio_goal(
            f"{way}, waiting, of jax.jit and guards",
            min(found) / (min(of_jax) + guarding),
            1.2,
        )
        for way, (found, guarding) in waiting.items()
    ]


# ----------------------------------------------------------------- steps of the host's table


def _step(way: str, backend: Any = "lazyrt", layers: int = LAYERS) -> Callable[[], Any]:
    """Return a training step: zero_grad, forward, backward, update."""
    import torch

    device = "cpu" if way in {_EAGER, _OWN, _LEAST} else "lazyrt"
    model = bert.make_model(layers).to(device)
    model.tie_weights()
    batch = {name: tensor.to(device) for name, tensor in bert.make_batch().items()}
    foreach = None if way == _EAGER else True  # as on the device by itself
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=foreach)
    called = torch.compile(model, backend=backend) if way == _MODEL else model

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = called(**batch).loss
        loss.backward()
        optimizer.step()
        return loss

    def traced() -> Any:  # code of its own: TorchDynamo would find the other's graphs
        optimizer.zero_grad(set_to_none=True)
        loss = called(**batch).loss
        loss.backward()
        loss = loss.detach()
        optimizer.step()
        return loss

    if way in {_PLAIN, _MODEL, _EAGER}:
        return step
    return torch.compile(traced if way == _TRACED else step, backend=backend)


def _turn(step: Callable[[], Any], steps: int) -> list[tuple[float, float]]:
    """Return the milliseconds of CPU time of some steps, and of their barriers."""
    import lazyrt

    found = []
    for _ in range(steps):
        lazyrt.wait()
        start = time.thread_time()
        loss = step()
        recorded = time.thread_time()
        lazyrt.mark_step()
        found.append((1e3 * (recorded - start), 1e3 * (time.thread_time() - recorded)))
        del loss
    return found
