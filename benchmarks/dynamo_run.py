"""Steps of lazy and compiled models, taken apart: tracing, barriers, device, wall."""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

import lazyrt
from lazyrt.frontend.torch_compat import aot_backend
from lazyrt.observe.events import BarrierFinished, ExecuteFinished

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
        loop: Mean wall time of a step in a loop that waits only at its end.
        overlap: In such a loop, how much of the tracing is done while the device works, in per
            cent; of the device's time, where that is shorter.
    """

    tracing: float
    barriers: float
    device: dict[str, float]
    wall: float
    loop: float
    overlap: float

    @property
    def on_device(self) -> float:
        """All executions together."""
        return sum(self.device.values())


def take_apart(step: Step, steps: int) -> Parts:
    """Run a step some times and return the minima of its parts."""
    for _ in range(WARM_UP):
        _whole(step)
    gc.collect()
    barriers: list[Any] = []
    walls, hosts, inside = [], [], []
    with lazyrt.subscribe(barriers.append, BarrierFinished):
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
    return Parts(
        1e3 * min(hosts),
        1e3 * min(inside),
        _device_ms(step, steps),
        1e3 * min(walls),
        _loop(step, steps),
        _overlap(step, steps),
    )


def _device_ms(step: Step, steps: int) -> dict[str, float]:
    """Return the least milliseconds of each execution of a step, by its barrier's cause.

    Each is waited for before the host goes on: the thread that notices ends needs the interpreter.
    """
    barriers: list[Any] = []
    ends: list[Any] = []

    def wait_for(barrier: Any) -> None:
        barriers.append(barrier)
        lazyrt.wait()

    with (
        lazyrt.subscribe(wait_for, BarrierFinished),
        lazyrt.subscribe(ends.append, ExecuteFinished),
    ):
        for _ in range(steps):
            result = step()
            lazyrt.mark_step()
            del result
        _wait_for(lambda: len(ends) >= sum(each.executed for each in barriers))
    causes = {each.step: each.cause for each in barriers if each.executed}
    device: dict[str, list[float]] = {cause: [] for cause in causes.values()}
    for end in ends:
        if end.step in causes:
            device[causes[end.step]].append(end.duration_ns / 1e6)
    return {cause: min(times) for cause, times in device.items() if times}


_Spans = list[tuple[int, int]]


def _overlap(step: Step, steps: int) -> float:
    """Return the overlap of a loop, from when each traces and executes."""
    device: _Spans = []
    barriers: _Spans = []
    turns: _Spans = []
    counts: list[Any] = []

    def noting(spans: _Spans) -> Callable[[Any], None]:
        def note(event: Any) -> None:
            end = time.perf_counter_ns()
            spans.append((end - event.duration_ns, end))

        return note

    with (
        _prompt_threads(),
        lazyrt.subscribe(noting(device), ExecuteFinished),
        lazyrt.subscribe(noting(barriers), BarrierFinished),
        lazyrt.subscribe(counts.append, BarrierFinished),
    ):
        for _ in range(steps):
            start = time.perf_counter_ns()
            result = step()
            lazyrt.mark_step()
            turns.append((start, time.perf_counter_ns()))
            del result
        lazyrt.wait()
        executed = sum(each.executed for each in counts)
        _wait_for(lambda: len(device) >= executed)
    return overlap_of(turns, barriers, device)


def overlap_of(turns: _Spans, barriers: _Spans, device: _Spans) -> float:
    """Return how much of the tracing is done while the device works, in per cent.

    Args:
        turns: When each step began and ended on the host, in order.
        barriers: When its barriers did.
        device: When the device worked.
    """
    tracing = list(_without(turns, barriers))
    both = sum(
        max(0, min(end, stop) - max(start, begin))
        for start, end in tracing
        for begin, stop in device
    )
    shorter = min(sum(b - a for a, b in spans) for spans in (tracing, device))
    return 100 * both / shorter


@contextlib.contextmanager
def _prompt_threads() -> Iterator[None]:
    """Let the thread that notices ends take the interpreter at once from one that traces."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def _without(turns: _Spans, barriers: _Spans) -> Iterator[tuple[int, int]]:
    """Yield what is left of some spans without those inside them; both are in order."""
    for start, end in turns:
        begin = start
        for first, last in barriers:
            if start <= first < end:
                yield begin, first
                begin = last
        yield begin, end


def guards_ms(step: Step, steps: int) -> float:
    """Return the least milliseconds of a step in which TorchDynamo looks for compiled code."""
    step()
    activities = [torch.profiler.ProfilerActivity.CPU]
    found: list[float] = []
    for _ in range(steps):
        with torch.profiler.profile(activities=activities) as profile:
            step()
        lazyrt.mark_step()
        events = profile.events() or ()
        lookups = [e for e in events if e.name == "TorchDynamo Cache Lookup"]
        found.append(sum(each.cpu_time_total for each in lookups) / 1e3)
    return min(found)


class ReadyGraphs:
    """A backend on the CPU whose graphs compute nothing once `prepare` was called.

    Their calls give tensors that were made before, so what a step takes is torch's own: guards,
    AOTAutograd, autograd, and the program's Python.
    """

    def __init__(self) -> None:
        self._graphs: list[tuple[list[Any], list[list[Any]]]] = []
        self.backend = aot_backend(self._compile)

    def _compile(
        self, _role: str, graph: torch.fx.GraphModule
    ) -> Callable[[list[Any]], Sequence[Any]]:
        return self._ready(graph.forward)

    def _ready(
        self, code: Callable[..., Sequence[Any]]
    ) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Return what calls some code once, and then gives what `prepare` has made."""
        examples: list[Any] = []
        ready: list[list[Any]] = []
        self._graphs.append((examples, ready))

        def call(args: Sequence[Any]) -> Sequence[Any]:
            if ready:
                return [args[r] if r.__class__ is int else r for r in ready.pop()]
            results: Sequence[Any] = code(*args)
            places = {id(arg): k for k, arg in enumerate(args)}
            examples[:] = [places.get(id(result), result) for result in results]
            return results

        return call

    def prepare(self) -> None:
        """Make the results of one call of each graph."""
        for examples, ready in self._graphs:
            is_tensor = [isinstance(each, torch.Tensor) for each in examples]
            pairs = zip(examples, is_tensor, strict=True)
            ready.append([torch.empty_like(e) if new else e for e, new in pairs])


class ReadyFunctions(ReadyGraphs):
    """Likewise, with AOTAutograd only where no gradients are asked for.

    Elsewhere a graph is one function of autograd's that saves no tensors, so what a step takes is
    the least that any backend leaves of torch's own part.
    """

    def __init__(self) -> None:
        super().__init__()
        self._aot: Callable[..., Callable[..., Any]] = self.backend
        self.backend = self._choose

    def _choose(
        self, graph: torch.fx.GraphModule, inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        is_wanted = [
            isinstance(each, torch.Tensor) and each.requires_grad for each in inputs
        ]
        if not (torch.is_grad_enabled() and any(is_wanted)):
            return self._aot(graph, inputs)
        types = [
            (tuple(each.shape), each.dtype) if wanted else None
            for each, wanted in zip(inputs, is_wanted, strict=True)
        ]

        def gradients() -> list[torch.Tensor | None]:
            return [type_ and torch.zeros(type_[0], dtype=type_[1]) for type_ in types]

        forward, backward = self._ready(graph.forward), self._ready(gradients)

        class Whole(torch.autograd.Function):
            @staticmethod
            def forward(_context: Any, *args: Any) -> Any:
                return tuple(forward(args))

            @staticmethod
            def backward(_context: Any, *_grads: Any) -> Any:
                return tuple(backward(()))

        whole: Callable[..., Any] = Whole.apply
        return whole


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
