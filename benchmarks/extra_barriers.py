"""One process of `python -m benchmarks modes`: what barriers cost that find nothing to run.

The loader's loop marks after each batch. A `with step():` in it has run the step already, so
each of the loader's marks finds nothing. Loops with and without the block take turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

_ROUNDS, _STEPS, _EMPTY = 7, 12, 2_000


def measure() -> dict[str, Any]:
    """Return seconds for a step of each kind, round by round, and for one empty barrier.

    Keys: `loader` and `step in loader`, seconds a step; `empty`, the fastest round's seconds
    for one `mark_step()` with nothing pending; `counts`, barriers and executions of a round.
    """
    import lazyrt
    from benchmarks.one_mode import Training

    lazyrt.config.cache_dir = None
    training = Training(2)
    found: dict[str, Any] = {"loader": [], "step in loader": [], "counts": {}}
    with lazyrt.config.scoped(barrier_after_optimizer=False):
        for number in range(_ROUNDS + 2):  # the first two compile
            for name in ("loader", "step in loader"):
                before = lazyrt.counters()
                seconds = _loop(training, name == "step in loader")
                used = lazyrt.counters() - before
                if number > 1:
                    found[name].append(seconds)
                    found["counts"][name] = {
                        kind: used[kind]
                        for kind in (
                            "executions",
                            "barriers",
                            "empty_barriers",
                            "compiles",
                        )
                    }
    found["empty"] = min(_empty() for _ in range(_ROUNDS))
    return found


def share(found: dict[str, Any]) -> float:
    """Return what an empty barrier takes of a step's median time."""
    return float(found["empty"] / statistics.median(found["step in loader"]))


def _loop(training: Any, block: bool) -> float:  # noqa: FBT001 - one of two kinds
    import lazyrt

    start = time.perf_counter()
    for _ in lazyrt.DeviceLoader([0] * _STEPS):
        if block:
            with lazyrt.step():
                training.record()
        else:
            training.record()
    lazyrt.wait()
    return (time.perf_counter() - start) / _STEPS


def _empty() -> float:
    import lazyrt

    start = time.perf_counter()
    for _ in range(_EMPTY):
        lazyrt.mark_step()
    return (time.perf_counter() - start) / _EMPTY


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure()) + "\n")
