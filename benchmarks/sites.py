"""Host CPU time of a training step whose call site is new: another line, another cell, the same cell.

`python -m benchmarks start` runs it in a process of its own for each depth. The thread's CPU time from
the first op to the end of the barrier is taken, and steps from a new call site take turns with steps
from the same one.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 12
_STEPS = 3
_CALL = f"times = [timed() for _ in range({_STEPS})]"


def measure(layers: int, rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
    """Train in this process; return `usual`, `new` and `ratio` (ms) for each kind of call site."""
    timed = _training(layers)
    names: dict[str, Any] = {"timed": timed}

    def other_line(number: int) -> list[float]:
        exec(compile("\n" * number + _CALL, "<program>", "exec"), names)  # noqa: S102
        return names["times"]  # type: ignore[no-any-return]

    found = {"another line": _compare(other_line, rounds)}
    cell = _shell(timed)
    found["another cell"] = _compare(lambda n: cell(f"{_CALL}  # {n}"), rounds)
    found["the same cell again"] = _compare(lambda _: cell(_CALL), rounds)
    return found


def _compare(run: Callable[[int], list[float]], rounds: int) -> dict[str, float]:
    """Return the smallest times of the first steps and of later ones, and the median of their ratios.

    The two of a ratio follow each other: a machine's speed may be another one in the next round.

    Args:
        run: Returns the times of some steps from one call site, a new one for each number.
        rounds: How many call sites.
    """
    run(0)
    times = [run(number + 1) for number in range(rounds)]
    usual = [statistics.mean(later) for _, *later in times]
    new = [first for first, *_ in times]
    ratio = statistics.median(a / b for a, b in zip(new, usual, strict=True))
    return {"usual": min(usual), "new": min(new), "ratio": ratio}


def _training(layers: int) -> Callable[[], float]:
    os.environ["LAZYRT_BARRIER_AFTER_OPTIMIZER"] = "0"
    import torch

    import lazyrt
    from benchmarks import bert

    lazyrt.config.cache_dir = None
    lazyrt.config.compile_tier = "fast"
    model = bert.make_model(layers).to("lazyrt")
    batch = {name: tensor.to("lazyrt") for name, tensor in bert.make_batch().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    lazyrt.mark_step()

    def timed() -> float:
        started = time.thread_time()
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        lazyrt.mark_step()
        took = 1e3 * (time.thread_time() - started)
        lazyrt.wait()
        return took

    timed()
    return timed


def _shell(timed: Callable[[], float]) -> Callable[[str], list[float]]:
    """Return what runs a cell in a shell with lazyviz, and returns its `times`."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config({"HistoryManager": {"enabled": False}})
    shell: Any = InteractiveShell.instance(config=config)
    shell.user_ns["timed"] = timed
    shell.run_line_magic("load_ext", "lazyviz")

    def run(text: str) -> list[float]:
        with contextlib.redirect_stdout(io.StringIO()):
            shell.run_cell(text, store_history=True).raise_error()
        return shell.user_ns["times"]  # type: ignore[no-any-return]

    return run


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(int(sys.argv[1]))) + "\n")
