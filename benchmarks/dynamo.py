"""`python -m benchmarks dynamo`: the host's CPU time of a step, plain and compiled."""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from benchmarks import bert, machine
from benchmarks.report import Cell, Report, Sample, Table, ratio, ratio_goal

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

SUMMARY = "torch.compile: the host's CPU time of a step"

LAYERS = 4
_PLAIN, _MODEL, _WHOLE, _EAGER = "plain", "model compiled", "step compiled", "CPU eager"
_GOALS = {_MODEL: 0.6, _WHOLE: 0.3}
_WARM_UP = 5


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--rounds", type=int, default=30, help="turns of each way (default 30)"
    )
    parser.add_argument(
        "--steps", type=int, default=4, help="steps in a turn (default 4)"
    )


def run(options: Namespace) -> Report:
    """Measure all ways in one process, in turn, and return the report."""
    import lazyrt

    lazyrt.config.cache_dir = None
    lazyrt.config.compile_tier = "fast"  # what the device executes is not measured
    facts = machine.facts()
    with lazyrt.config.scoped(barrier_after_optimizer=False):
        ways = {way: _step(way) for way in (_PLAIN, _MODEL, _WHOLE, _EAGER)}
        for step in ways.values():
            _turn(step, _WARM_UP)
        gc.collect()
        samples: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for _ in range(options.rounds):
            for way, step in ways.items():
                samples[way] += _turn(step, options.steps)
    recorded = {way: Sample.of([r for r, _ in found]) for way, found in samples.items()}
    ended = {way: Sample.of([b for _, b in found]) for way, found in samples.items()}
    rows: list[list[Cell]] = [
        [
            way,
            recorded[way].minimum,
            recorded[way].median,
            None if way == _EAGER else ended[way].minimum,
            f"{ratio(recorded[way], recorded[_PLAIN]):.2f}",
        ]
        for way in ways
    ]
    columns = ("", "minimum", "median", "barrier minimum", "of plain")
    return Report(
        name=f"dynamo: {SUMMARY}",
        facts=facts,
        tables=[Table("ms of CPU time on the calling thread", columns, rows)],
        goals=[
            ratio_goal(f"{way} of plain", ratio(recorded[way], recorded[_PLAIN]), goal)
            for way, goal in _GOALS.items()
        ],
        notes=(
            f"{bert.SHAPE_TEXT.replace(f'{bert.LAYERS} layers', f'{LAYERS} layers')} AdamW",
            "each step waits for the one before; TorchDynamo's guards are in, XLA's launch is not",
            "CPU eager computes on this thread and on others",
        ),
    )


def _step(way: str) -> Callable[[], Any]:
    """Return a training step: zero_grad, forward, backward, update."""
    import torch

    device = "cpu" if way == _EAGER else "lazyrt"
    model = bert.make_model(LAYERS).to(device)
    model.tie_weights()
    batch = {name: tensor.to(device) for name, tensor in bert.make_batch().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    called = torch.compile(model, backend="lazyrt") if way == _MODEL else model

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = called(**batch).loss
        loss.backward()
        optimizer.step()
        return loss

    return torch.compile(step, backend="lazyrt") if way == _WHOLE else step


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
