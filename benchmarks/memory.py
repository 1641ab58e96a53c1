"""`python -m benchmarks memory`: peak bytes of a BERT training step beside donated jax.jit.

The peak of a step is counted, not sampled: the bytes of all arrays that live when the step is
handed to XLA, plus what the executable adds by its own memory analysis, which are its results
without those that take a donated argument's memory, and its temporary buffers.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from benchmarks import machine
from benchmarks.bert import SHAPE_TEXT
from benchmarks.report import Cell, Report, Table, ratio_goal

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

SUMMARY = "peak bytes of a BERT AdamW step, beside donated jax.jit by hand"
GOAL = 1.15
_WARM_UP = 4
_MIB = 2**20


def add_arguments(_parser: ArgumentParser) -> None:
    """Add the options of this benchmark: it has none."""


def run(_options: Namespace) -> Report:
    """Measure both, and return the report."""
    facts = machine.facts()
    theirs, mine = jax_peak(), lazy_peak()
    columns = ("MiB", "live before", "results", "temporary", "peak")
    rows: list[list[Cell]] = [
        [name, *(part / _MIB for part in (*parts, sum(parts)))]
        for name, parts in (("lazyrt", mine), ("jax.jit by hand", theirs))
    ]
    goal = ratio_goal("peak", sum(mine) / sum(theirs), GOAL)
    return Report(
        f"memory: {SUMMARY}", facts, [Table(SHAPE_TEXT, columns, rows)], [goal]
    )


def jax_peak() -> tuple[int, int, int]:
    """Return bytes before the step, of new results, and of temporaries, for jax by hand."""
    from benchmarks.jax_steps import memory_of_hand_written

    return _parts(*memory_of_hand_written())


def lazy_peak() -> tuple[int, int, int]:
    """Return bytes before the step, of new results, and of temporaries, for lazyrt."""
    import lazyrt
    from benchmarks import bert, devices
    from benchmarks.jax_steps import live_bytes
    from lazyrt.config import config
    from lazyrt.execution import compiler
    from lazyrt.observe import events

    gc.collect()
    others = live_bytes()
    captured: list[Any] = []
    with config.scoped(barrier_after_optimizer=False, cache_dir=None):
        training = bert.Training(devices.open_device("lazyrt"), "adamw")
        for _ in range(_WARM_UP):
            training.step()
            lazyrt.mark_step()
        loss = training.step()
        gc.collect()
        before = live_bytes() - others
        with lazyrt.subscribe(captured.append, events.GraphCaptured):
            lazyrt.mark_step()
    del loss
    executable = compiler.executables_of(captured[0].fingerprint)[-1]
    return _parts(before, executable.memory_analysis())


def _parts(before: int, analysis: Any) -> tuple[int, int, int]:
    new = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return before, new, analysis.temp_size_in_bytes
