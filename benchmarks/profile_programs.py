"""Programs whose gaps, idle shares and costs by line are known, for `python -m benchmarks profile`.

Each is a training step or a part of one. The line that waits, or that costs, ends in a mark by which
its number is found; how long it really waited is measured around it.
"""

from __future__ import annotations

import asyncio
import atexit
import io
import logging
import os
import queue
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import lazyrt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BATCH, _WIDTH = 32, 64
now = time.perf_counter_ns
Stretch = tuple[int, int]


@dataclass(slots=True)
class Program:
    """A program with what a profile of it has to say.

    Attributes:
        name: What it is.
        step: Runs it once.
        waited: From when to when its marked lines waited, by mark, in order; filled as it runs.
        shares: The part of the device's time that each marked line has, by mark.
    """

    name: str
    step: Callable[[], object]
    waited: dict[str, list[Stretch]] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)


def line_of(mark: str) -> int:
    """Return the number of the line of this file that ends in a mark."""
    lines = Path(__file__).read_text("utf-8").split("\n")
    return next(k for k, line in enumerate(lines, 1) if line.endswith(f"# <{mark}>"))


class Training:
    """A small model and its optimizer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.first = nn.Linear(_WIDTH, _WIDTH)
        layers = [self.first, nn.GELU(), nn.Linear(_WIDTH, 8)]
        self.model = nn.Sequential(*layers).to("lazyrt")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.x = torch.randn(_BATCH, _WIDTH).to("lazyrt")

    def loss(self) -> torch.Tensor:
        """Record a forward."""
        found: torch.Tensor = self.model(self.x).square().mean()
        return found

    def update(self, loss: torch.Tensor) -> None:
        """Record backward and update, and end the step."""
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        lazyrt.mark_step()


def reading(ms: float) -> Callable[[int, int], None]:
    """Return a loop of steps that wait half of a time on the host and take half on the device.

    It takes how many steps to run, and after how many of them a value is read.
    """
    weight = (torch.randn(256, 256) / 16).to("lazyrt")
    x = torch.randn(256, 256).to("lazyrt")

    def record(products: int) -> torch.Tensor:
        nonlocal x
        for _ in range(products):
            x = (x @ weight).tanh()
        found = x[0, 0]
        lazyrt.mark_step()
        return found

    def took(products: int) -> int:
        began = now()
        record(products).item()
        return now() - began

    few, more = (min(took(products) for _ in range(8)) for products in (4, 24))
    products = max(round(ms / 2 * 1e6 / max((more - few) / 20, 1)), 1)

    def loop(steps: int, every: int) -> None:
        for step in range(1, steps + 1):
            time.sleep(ms / 2e3)
            value = record(products)
            if step % every == 0:
                value.item()

    return loop


def gap_programs(lengths_ms: tuple[int, ...]) -> Iterator[Program]:
    """Yield the programs with gaps: each kind with each length, and some of one length."""
    for ms in lengths_ms:
        for make in (_forward, _between, _nested, _loader, _compiled):
            yield make(ms)
    for make in (
        _busy, _two_lines, _hook, _thread, _numpy, _in_step, _generator, _stream, _backward
    ):  # fmt: skip
        yield make(10)
    yield _rare(40)
    for wait in (
        _comprehension, _callback, _lambda, _coroutine, _holds_interpreter, _file, _process, _future, _at_exit, _recursive
    ):  # fmt: skip
        yield _waiting(wait)
    yield _workers(10)


def _forward(ms: int) -> Program:
    training, waited = Training(), list[Stretch]()

    def step() -> None:
        loss = training.loss()
        began = now()
        time.sleep(ms / 1e3)  # <forward>
        waited.append((began, now()))
        training.update(loss)

    return Program(f"between forward and backward, {ms} ms", step, {"forward": waited})


def _between(ms: int) -> Program:
    training, waited = Training(), list[Stretch]()

    def step() -> None:
        training.update(training.loss())
        began = now()
        time.sleep(ms / 1e3)  # <between>
        waited.append((began, now()))

    return Program(f"between steps, {ms} ms", step, {"between": waited})


def _nested(ms: int) -> Program:
    training, waited = Training(), list[Stretch]()

    def innermost() -> None:
        began = now()
        time.sleep(ms / 1e3)  # <nested>
        waited.append((began, now()))

    def inner() -> None:
        innermost()

    def step() -> None:
        loss = training.loss()
        inner()
        training.update(loss)

    return Program(f"in nested functions, {ms} ms", step, {"nested": waited})


class _Slow(Dataset[torch.Tensor]):
    def __init__(self, ms: int) -> None:
        self.ms = ms
        self.waited: list[Stretch] = []

    def __len__(self) -> int:
        return 1_000

    def __getitem__(self, index: int) -> torch.Tensor:
        began = now()
        time.sleep(self.ms / 1e3)  # <loader>
        self.waited.append((began, now()))
        return torch.full((_BATCH, _WIDTH), float(index))


def _loader(ms: int) -> Program:
    training, data = Training(), _Slow(ms)
    batches = iter(DataLoader(data, batch_size=None))

    def step() -> None:
        training.x = next(batches).to("lazyrt")
        training.update(training.loss())

    return Program(f"in the loader, {ms} ms", step, {"loader": data.waited})


def _compiled(ms: int) -> Program:
    training, times, waited = Training(), list[int](), list[Stretch]()

    note: Callable[[], None] = torch.compiler.disable(  # type: ignore[no-untyped-call]
        lambda: times.append(now())
    )

    def forward(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = training.model(x)
        note()
        time.sleep(ms / 1e3)  # <compiled>
        note()
        return y.square().mean()

    torch.compiler.reset()
    compiled = torch.compile(forward)

    def step() -> None:
        training.update(compiled(training.x))
        waited.append((times[-2], times[-1]))

    return Program(f"in a compiled function, {ms} ms", step, {"compiled": waited})


def _spin(until_ns: int) -> None:
    while now() < until_ns:  # <busy>
        pass


def _busy(ms: int) -> Program:
    training, waited = Training(), list[Stretch]()

    def step() -> None:
        loss = training.loss()
        began = now()
        _spin(began + ms * 1_000_000)
        waited.append((began, now()))
        training.update(loss)

    return Program(f"a loop in Python, {ms} ms", step, {"busy": waited})


def _two_lines(ms: int) -> Program:
    training, first, second = Training(), list[Stretch](), list[Stretch]()

    def step() -> None:
        loss = training.loss()
        began = now()
        time.sleep(ms / 2e3)  # <first>
        middle = now()
        time.sleep(ms / 1e3)  # <second>
        second.append((middle, now()))
        first.append((began, middle))
        training.update(loss)

    waited = {"first": first, "second": second}
    return Program(f"two lines after one another, {ms // 2} and {ms} ms", step, waited)


def _hook(ms: int) -> Program:
    training, waited = Training(), list[Stretch]()

    def wait(_gradient: torch.Tensor) -> None:
        began = now()
        time.sleep(ms / 1e3)  # <hook>
        waited.append((began, now()))

    training.first.weight.register_hook(wait)  # type: ignore[no-untyped-call]
    return Program(
        f"in a hook of backward, {ms} ms",
        lambda: training.update(training.loss()),
        {"hook": waited},
    )


def _thread(ms: int) -> Program:
    training, waited = Training(), list[Stretch]()
    asked: queue.Queue[int] = queue.Queue()
    given: queue.Queue[int] = queue.Queue()

    def work() -> None:
        while True:
            number = asked.get()
            time.sleep(ms / 1e3)
            given.put(number)

    threading.Thread(target=work, daemon=True).start()

    def step() -> None:
        asked.put(1)
        began = now()
        given.get()  # <thread>
        waited.append((began, now()))
        training.update(training.loss())

    return Program(f"for another thread, {ms} ms", step, {"thread": waited})


def _numpy(ms: int) -> Program:
    training, waited = Training(), list[Stretch]()
    data = np.random.default_rng(0).random(ms * 60_000)

    def step() -> None:
        loss = training.loss()
        began = now()
        np.sort(data)  # <numpy>
        waited.append((began, now()))
        training.update(loss)

    return Program("NumPy at work", step, {"numpy": waited})


def _in_step(ms: int) -> Program:
    training, waited = Training(), list[Stretch]()

    def step() -> None:
        with lazyrt.step("train"):
            loss = training.loss()
            loss.backward()  # type: ignore[no-untyped-call]
            began = now()
            time.sleep(ms / 1e3)  # <block>
            waited.append((began, now()))
            training.model.zero_grad()

    return Program(f"at the end of a step() block, {ms} ms", step, {"block": waited})


def _generator(ms: int) -> Program:
    training, waited = Training(), list[Stretch]()

    def batches() -> Iterator[torch.Tensor]:
        while True:
            began = now()
            time.sleep(ms / 1e3)  # <generator>
            waited.append((began, now()))
            yield torch.ones(_BATCH, _WIDTH)

    source = batches()

    def step() -> None:
        training.x = next(source).to("lazyrt")
        training.update(training.loss())

    return Program(f"in a generator, {ms} ms", step, {"generator": waited})


def _stream(ms: int) -> Program:
    training, waited = Training(), list[Stretch]()

    class Slow(io.StringIO):
        def write(self, _text: str) -> int:
            began = now()
            time.sleep(ms / 1e3)  # <stream>
            waited.append((began, now()))
            return 0

    log = logging.getLogger("a training loop")
    log.propagate = False
    log.addHandler(logging.StreamHandler(Slow()))

    def step() -> None:
        log.warning("a step")
        training.update(training.loss())

    return Program(f"in a log's stream, {ms} ms", step, {"stream": waited})


def _backward(ms: int) -> Program:
    training, waited = Training(), list[Stretch]()

    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            began = now()
            time.sleep(ms / 1e3)  # <backward>
            waited.append((began, now()))
            return gradient * 2

    def step() -> None:
        found: torch.Tensor = Waits.apply(training.loss())  # type: ignore[no-untyped-call]
        training.update(found)

    name = f"in a function's own backward, {ms} ms"
    return Program(name, step, {"backward": waited})


def _rare(ms: int) -> Program:
    training, waited = Training(), list[Stretch]()

    def step() -> None:
        for _ in range(20):
            training.update(training.loss())
        began = now()
        time.sleep(ms / 1e3)  # <rare>
        waited.append((began, now()))

    return Program(f"after each twentieth step, {ms} ms", step, {"rare": waited})


# Each of these waits some 10 ms in a way of its own.


def _comprehension() -> None:
    [time.sleep(0.001) for _ in range(9)]  # type: ignore[func-returns-value]  # <comprehension>


def _callback() -> None:
    def key(number: int) -> int:
        time.sleep(0.001)  # <callback>
        return -number

    sorted(range(9), key=key)


_NUMBERS = np.random.default_rng(0).random(40_000).tolist()


def _holds_interpreter() -> None:
    sorted(_NUMBERS)  # <holds interpreter>


_WRITTEN = Path(tempfile.gettempdir()) / f"lazyviz-profile-{os.getpid()}"
atexit.register(_WRITTEN.unlink, missing_ok=True)


def _lambda() -> None:
    sorted(_NUMBERS, key=lambda number: -number)  # <lambda>


async def _slept() -> None:
    await asyncio.sleep(0.01)


def _coroutine() -> None:
    asyncio.run(_slept())  # <coroutine>


def _file() -> None:
    _WRITTEN.write_bytes(bytes(20_000_000))  # <file>


def _process() -> None:
    subprocess.run(["/bin/sleep", "0.01"], check=True)  # <process>


_pool = ThreadPoolExecutor(1)


def _future() -> None:
    _pool.submit(time.sleep, 0.01).result()  # <future>


class _SlowExit:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        time.sleep(0.01)  # <at exit>


def _at_exit() -> None:
    with _SlowExit():
        pass


def _recursive(depth: int = 20) -> None:
    if depth:
        _recursive(depth - 1)
    else:
        time.sleep(0.01)  # <recursive>


def _waiting(wait: Callable[[], None]) -> Program:
    training, waited = Training(), list[Stretch]()

    def step() -> None:
        loss = training.loss()
        began = now()
        wait()
        waited.append((began, now()))
        training.update(loss)

    name = wait.__name__.strip("_").replace("_", " ")
    return Program(f"waits of other kinds: {name}", step, {name: waited})


def _workers(ms: int) -> Program:
    training, waited = Training(), list[Stretch]()
    loader = DataLoader(_Slow(ms), batch_size=None, num_workers=1, prefetch_factor=1)
    batches = iter(loader)

    def step() -> None:
        began = now()
        batch = next(batches)  # <workers>
        waited.append((began, now()))
        training.x = batch.to("lazyrt")
        training.update(training.loss())

    return Program(f"for a loader's worker, {ms} ms", step, {"workers": waited})


# -------------------------------------------------------------------------------- lines


def line_programs() -> Iterator[Program]:
    """Yield programs whose lines cost the device in known proportions."""
    torch.manual_seed(0)
    w = (torch.randn(384, 384) * 0.05).to("lazyrt")
    x = torch.randn(384, 384).to("lazyrt")
    big = (torch.rand(1_000_000) * 0.5 + 0.25).to("lazyrt")

    def nine_to_one() -> None:
        y = x
        for _ in range(9):
            y = y @ w  # <nine>
        y = y @ w  # <one>
        lazyrt.mark_step()

    yield Program("products, 9 to 1", nine_to_one, shares={"nine": 0.9, "one": 0.1})

    def three_to_one() -> None:
        y = x
        for _ in range(6):
            y = torch.tanh(y) @ w  # <six>
        for _ in range(2):
            y = torch.tanh(y) @ w  # <two>
        lazyrt.mark_step()

    yield Program(
        "products of functions, 6 to 2", three_to_one, shares={"six": 0.75, "two": 0.25}
    )

    def fused() -> None:
        y = big
        for _ in range(8):
            y = torch.tanh(y)  # <eight>
        for _ in range(2):
            y = torch.tanh(y)  # <fused two>
        lazyrt.mark_step()

    yield Program("one fusion, 8 to 2", fused, shares={"eight": 0.8, "fused two": 0.2})

    def equal() -> None:
        y = x
        y = y @ w  # <equal a>
        y = y @ w  # <equal b>
        lazyrt.mark_step()

    yield Program("two products", equal, shares={"equal a": 0.5, "equal b": 0.5})

    weights = [nn.Parameter(torch.randn(384, 384) * 0.05) for _ in range(2)]
    u, v = (each.to("lazyrt").detach().requires_grad_() for each in weights)

    # The first product needs no gradient of what it reads: 11 products against 3.
    def trained() -> None:
        y = x
        for _ in range(4):
            y = y @ u  # <trained four>
        y = y @ v  # <trained one>
        y.sum().backward()  # type: ignore[no-untyped-call]
        u.grad = v.grad = None
        lazyrt.mark_step()

    yield Program(
        "forward and backward, 4 to 1",
        trained,
        shares={"trained four": 11 / 14, "trained one": 3 / 14},
    )

    def called(y: torch.Tensor, times: int) -> torch.Tensor:
        for _ in range(times):
            y = y @ w  # <called>
        return y

    def in_function() -> None:
        y = called(x, 6)
        for _ in range(2):
            y = w @ y  # <caller>
        lazyrt.mark_step()

    yield Program(
        "in a function and its caller, 6 to 2",
        in_function,
        shares={"called": 0.75, "caller": 0.25},
    )


# --------------------------------------------------------------------------- idle shares


def idle_programs() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield programs in which the device is idle for a part of the time that can be measured."""
    w = (torch.randn(512, 512) * 0.05).to("lazyrt")
    x = torch.randn(512, 512).to("lazyrt")

    def make(products: int, ms: int) -> Callable[[], object]:
        def step() -> None:
            y: Any = x
            for _ in range(products):
                y = y @ w
            lazyrt.mark_step()
            lazyrt.wait()
            time.sleep(ms / 1e3)

        return step

    for products, ms in ((4, 20), (8, 8), (16, 4)):
        yield f"{products} products, then {ms} ms of sleep", make(products, ms)
