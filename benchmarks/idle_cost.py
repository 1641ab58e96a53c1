"""One process of `python -m benchmarks modes`: what recording an op costs with tools idle.

Three conditions take turns: nothing loaded, the extension loaded and idle, and eager debug
mode switched on and off again.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_OPS, _ROUNDS = 2_000, 7
CONDITIONS = ("extension unloaded", "extension loaded, idle", "after eager mode")


def measure() -> dict[str, list[float]]:
    """Return microseconds for one recorded add, one figure for each round and condition."""
    import torch
    from IPython.core.interactiveshell import InteractiveShell

    import lazyrt

    lazyrt.config.cache_dir = None
    shell = InteractiveShell.instance()
    x = torch.ones(8).to(lazyrt.device())
    setups: dict[str, Callable[[], Any]] = {
        CONDITIONS[0]: lambda: None,
        CONDITIONS[1]: lambda: shell.run_line_magic("load_ext", "lazyviz"),
        CONDITIONS[2]: _eager_and_back,
    }
    found: dict[str, list[float]] = {name: [] for name in CONDITIONS}
    for number in range(_ROUNDS + 1):
        for name, setup in setups.items():
            setup()
            time_us = _record(x)
            if number:  # the first round interns the nodes
                found[name].append(time_us)
            if name == CONDITIONS[1]:
                shell.run_line_magic("unload_ext", "lazyviz")
    return found


def ratio(found: dict[str, list[float]], name: str) -> float:
    """Return the median over the rounds of a condition's time by that with nothing loaded."""
    pairs = zip(found[name], found[CONDITIONS[0]], strict=True)
    return statistics.median(ours / theirs for ours, theirs in pairs)


def _eager_and_back() -> None:
    import lazyrt

    with lazyrt.eager_mode():
        pass


def _record(x: Any) -> float:
    """Record a chain of adds; return the fastest hundred's microseconds for each."""
    best = float("inf")
    y = x
    for _ in range(_OPS // 100):
        start = time.perf_counter_ns()
        for _ in range(100):
            y = y + 1
        best = min(best, time.perf_counter_ns() - start)
    return best / 1e5


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure()) + "\n")
