"""Steps of lazy and compiled models, taken apart: tracing, barriers, device, wall."""

from __future__ import annotations

import gc
import math
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

import lazyrt
from lazyrt.observe.events import BarrierFinished, ExecuteFinished

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    Step = Callable[[], torch.Tensor]

WARM_UP = 3
_PATIENCE_S = 5.0


def make_step(
    model: nn.Module, batch: torch.Tensor, backend: str | None, *, training: bool
) -> Step:
    """Return a step of a model on the device of the batch.

    Args:
        model: The model, on any device.
        batch: Its input.
        backend: What compiles the model; None for nothing.
        training: Whether a backward and an update by AdamW belong to the step.
    """
    model = model.to(batch.device).train(training)
    called: Any = torch.compile(model, backend=backend) if backend else model
    if not training:

        def infer() -> torch.Tensor:
            with torch.no_grad():
                result: torch.Tensor = called(batch)
            return result

        return infer
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = called(batch).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    return train


@dataclass(frozen=True, slots=True)
class Parts:
    """Milliseconds of a step that waits for the device at its end.

    Attributes:
        tracing: Of the host, outside of barriers.
        barriers: Of the host, in barriers.
        device: Of each execution, by the barrier's cause.
        wall: From the step's begin until the device is idle.
        mean_wall: The same, as a mean.
        loop: Mean wall time of a step in a loop that waits only at its end.
    """

    tracing: float
    barriers: float
    device: dict[str, float]
    wall: float
    mean_wall: float
    loop: float

    @property
    def on_device(self) -> float:
        """All executions together."""
        return sum(self.device.values())

    @property
    def overlap(self) -> float:
        """The share, in per cent, of the shorter of host's and device's work that the loop hides."""
        host = self.tracing + self.barriers
        shorter = min(host, self.on_device)
        return 100 * max(0.0, min(1.0, (self.mean_wall - self.loop) / shorter))


def take_apart(step: Step, steps: int) -> Parts:
    """Run a step some times and return the minima of its parts."""
    for _ in range(WARM_UP):
        _whole(step)
    gc.collect()
    barriers: list[Any] = []
    ends: list[Any] = []
    walls, hosts, inside = [], [], []
    with (
        lazyrt.subscribe(barriers.append, BarrierFinished),
        lazyrt.subscribe(ends.append, ExecuteFinished),
    ):
        for _ in range(steps):
            first = len(barriers)
            start = time.perf_counter()
            result = step()
            lazyrt.mark_step()
            host = time.perf_counter() - start
            lazyrt.wait()
            walls.append(time.perf_counter() - start)
            in_barriers = sum(each.duration_ns for each in barriers[first:]) / 1e9
            hosts.append(host - in_barriers)
            inside.append(in_barriers)
            del result
        _wait_for(lambda: len(ends) >= sum(each.executed for each in barriers))
    causes = {each.step: each.cause for each in barriers if each.executed}
    device: dict[str, list[float]] = {cause: [] for cause in causes.values()}
    for end in ends:
        if end.step in causes:
            device[causes[end.step]].append(end.duration_ns / 1e6)
    return Parts(
        1e3 * min(hosts),
        1e3 * min(inside),
        {cause: min(times) for cause, times in device.items() if times},
        1e3 * min(walls),
        1e3 * statistics.fmean(walls),
        _loop(step, steps),
    )


def waiting_ms(step: Step, steps: int) -> float:
    """Return the least milliseconds of a step that waits for the device."""
    for _ in range(WARM_UP):
        _whole(step)
    gc.collect()
    return 1e3 * min(_whole(step) for _ in range(steps))


def _whole(step: Step) -> float:
    start = time.perf_counter()
    result = step()
    lazyrt.mark_step()
    lazyrt.wait()
    del result
    return time.perf_counter() - start


def _loop(step: Step, steps: int) -> float:
    start = time.perf_counter()
    for _ in range(steps):
        result = step()
        lazyrt.mark_step()
    lazyrt.wait()
    del result
    return 1e3 * (time.perf_counter() - start) / steps


def _wait_for(done: Callable[[], bool]) -> None:
    """Wait until the thread that notices ends has told them all."""
    limit = time.perf_counter() + _PATIENCE_S
    while not done() and time.perf_counter() < limit:
        time.sleep(0.001)


@dataclass(frozen=True, slots=True)
class Fit:
    """A straight line through measured points, with standard errors of what it says."""

    intercept: float
    slope: float
    intercept_error: float
    slope_error: float

    @classmethod
    def through(cls, xs: Sequence[float], ys: Sequence[float]) -> Fit:
        """Return the line of least squares; it takes three points or more."""
        mean = statistics.fmean(xs)
        spread = sum((x - mean) ** 2 for x in xs)
        slope, intercept = statistics.linear_regression(xs, ys)
        rest = sum(
            (y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True)
        )
        noise = math.sqrt(rest / (len(xs) - 2))
        return cls(
            intercept,
            slope,
            noise * math.sqrt(1 / len(xs) + mean**2 / spread),
            noise / math.sqrt(spread),
        )
