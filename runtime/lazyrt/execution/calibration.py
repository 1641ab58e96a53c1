"""How fast this machine is: a few small programs, compiled and run once.

Until somebody has looked at something, a guess of what a look takes is one of a plain machine.
So the first who asks for one has three programs of our own timed: together some 0.15 s, once for
each machine and version of jax, as `pace` keeps the result on disk. They belong to no graph and
are in no count, and none of their data stays.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import torch

from lazyrt import jax_compat
from lazyrt.execution import compiler, forecast, forks, pace, summaries, watcher
from lazyrt.execution.pace import Part
from lazyrt.ir import costs

if TYPE_CHECKING:
    from collections.abc import Callable

    from lazyrt.jax_compat import Array

_SIDE = 512
_LONG = 2**22  # more elements than a processor's cache holds
_SEEN = 2**20  # enough for a look
_RUNS = 2  # the shortest counts
_one_at_a_time = threading.RLock()


def make_sure() -> None:
    """Time this machine, unless that was done or the device is at work.

    A failure is harmless: guesses are then those of a plain machine.
    """
    if pace.is_calibrated() or watcher.in_flight():
        return
    with _one_at_a_time, contextlib.suppress(Exception):
        if not pace.is_calibrated():
            pace.set_calibrated()
            forks.check()
            with jax_compat.scope():
                _measure()


def _measure() -> None:
    is_first = not compiler.has_compiled()
    tiny, square = np.ones(8, np.float32), np.ones((_SIDE, _SIDE), np.float32)
    line = jax_compat.give(np.linspace(0, 1, _LONG, dtype=np.float32))
    seen = jax_compat.give(np.linspace(0, 1, _SEEN, dtype=np.float32))
    _, first = _compiled(lambda x: x + 1, jax_compat.give(tiny))
    product, one = _compiled(lambda x: x @ x, jax_compat.give(square))
    tanh, other = _compiled(jnp.tanh, line)
    compile_ns = min(one, other)
    _tell("compile", forecast.COMPILE_OP_NS, compile_ns)
    if is_first:
        compiler.note_compiled()
        pace.learn([forecast.first_compile()], first - compile_ns)
    _tell("dense", costs.product_ns(2 * _SIDE**3), _shortest(product))
    _tell("run", costs.moving_ns("tanh", 2 * line.nbytes), _shortest(tanh))
    took = _shortest(lambda: summaries.summarise(seen, torch.float32))
    pace.learn(forecast.look_at("torch.float32", _SEEN), took)


def _tell(family: str, guess_ns: float, took_ns: int) -> None:
    pace.learn([Part(f"{family} calibration", 0, guess_ns)], took_ns)


def _compiled(
    function: Callable[[Any], Any], data: Array
) -> tuple[Callable[[], None], int]:
    """Return what runs a function on some data to the end, and what compiling it took."""
    start = pace.now()
    executable = jax_compat.compile_function(function, [data], {}, fast=True)
    took = pace.now() - start
    return lambda: jax_compat.block(executable(data)), took


def _shortest(run: Callable[[], object]) -> int:
    """Return how long something takes, the shortest of a few times."""
    times = []
    for _ in range(_RUNS):
        start = pace.now()
        run()
        times.append(pace.now() - start)
    return min(times)
