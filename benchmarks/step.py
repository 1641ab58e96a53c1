"""`python -m benchmarks step`: a whole training step beside the limit that jax.jit sets."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING

from benchmarks import machine, pool, recorded
from benchmarks.bert import SHAPE_TEXT
from benchmarks.report import Cell, Goal, Report, Sample, Table, ratio, ratio_goal

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from benchmarks.pool import Peer

SUMMARY = "a whole BERT AdamW step: trace, waiting step, pipelined loop"
PEERS = ("lazyrt", "jax", "eager", "torch-xla")

_TRACE_MS, _TRACE_GOAL, _STEP_GOAL, _PIPELINE_GOAL = 10.0, 0.4, 1.3, 1.15
_WARM_UP = 6
_LOOP = (
    5  # pipelined loops have so many times more steps: their end waits for the last one
)
_SAME_GRAPH = "jax.jit of the same graph"
_BY_HAND = "jax.jit by hand"

Samples = dict[tuple[str, str], list[float]]
"""Milliseconds by row of the table and part of the step."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--peers", help=f"comma-separated, of {', '.join(PEERS)}")
    parser.add_argument(
        "--rounds", type=int, default=6, help="turns of each peer (default 6)"
    )
    parser.add_argument(
        "--steps", type=int, default=20, help="steps in a turn (default 20)"
    )


def run(options: Namespace) -> Report:
    """Measure, and return the report."""
    names = pool.choose(options.peers, PEERS)
    facts = machine.facts()
    samples: Samples = defaultdict(list)
    with pool.open_peers(names) as peers:
        for peer in peers.values():
            if peer.name != "jax":
                for optimizer in _optimizers(peer):
                    peer.ask("run", optimizer=optimizer, steps=_WARM_UP)
            if peer.name in {"jax", "lazyrt"}:
                peer.ask("jax waiting", steps=_WARM_UP)
        for _ in range(options.rounds):
            for peer in peers.values():
                _take_turn(samples, peer, options.steps)
    found = {key: Sample.of(values) for key, values in samples.items()}
    return Report(
        name=f"step: {SUMMARY}",
        facts=facts,
        tables=[_table(found)],
        goals=_goals(samples, found),
        notes=(
            f"bert: {SHAPE_TEXT} AdamW; both jax.jit peers donate parameters and state",
            (
                f"torch-xla, where not measured, is {recorded.ORIGIN}: "
                f"trace {recorded.TORCH_XLA_ADAMW.trace_ms} ms, "
                f"step {recorded.TORCH_XLA_ADAMW.step_ms} ms, "
                f"pipelined {recorded.TORCH_XLA_ADAMW.pipelined_ms} ms"
            ),
            "ratios are of minima, for pipelined loops the median over rounds of means; peers take turns",
        ),
    )


def _optimizers(peer: Peer) -> tuple[str, ...]:
    """Return the optimizers that a peer trains with: a fused update is one op of torch's."""
    if peer.name == "jax":
        return ()
    return ("adamw", "fused adamw") if peer.name in {"lazyrt", "eager"} else ("adamw",)


def _take_turn(samples: Samples, peer: Peer, steps: int) -> None:
    for optimizer in _optimizers(peer):
        row = peer.name if optimizer == "adamw" else f"{peer.name}, {optimizer}"
        _keep(samples, row, peer.ask("waiting", optimizer=optimizer, steps=steps))
        pipelined = peer.ask("pipelined", optimizer=optimizer, steps=_LOOP * steps)
        _keep(samples, row, {"pipelined": [pipelined]})
    if peer.name in {"jax", "lazyrt"}:
        row = _BY_HAND if peer.name == "jax" else _SAME_GRAPH
        _keep(samples, row, peer.ask("jax waiting", steps=steps))
        _keep(
            samples,
            row,
            {"pipelined": [peer.ask("jax pipelined", steps=_LOOP * steps)]},
        )


def _keep(samples: Samples, row: str, parts: dict[str, list[float]]) -> None:
    for part, values in parts.items():
        samples[row, part] += values
        samples[row, f"mean {part}"].append(statistics.fmean(values))


def _table(found: dict[tuple[str, str], Sample]) -> Table:
    rows: list[list[Cell]] = []
    parts = ("trace", "barrier", "dispatch", "step", "pipelined")
    for row in dict.fromkeys(row for row, _ in found):
        samples = [found.get((row, part)) for part in parts]
        shown = [
            None if s is None else f"{s.minimum:.2f} / {s.median:.2f}" for s in samples
        ]
        rows.append([row, *shown])
    return Table("ms for each step, minimum / median", ("", *parts), rows)


def _goals(samples: Samples, found: dict[tuple[str, str], Sample]) -> list[Goal]:
    trace = found.get(("lazyrt", "trace"))
    if trace is None:
        return []
    xla = found.get(("torch-xla", "trace"))
    goals = [
        ratio_goal("host trace", trace.minimum, _TRACE_MS, " ms")
        if xla is None
        else ratio_goal("host trace against torch_xla", ratio(trace, xla), _TRACE_GOAL)
    ]
    for row in (_SAME_GRAPH, _BY_HAND):
        limit = found.get((row, "step"))
        if limit is not None:
            both = trace.minimum + limit.minimum
            waiting = found["lazyrt", "step"].minimum / both
            goals += [
                ratio_goal(f"step against trace + {row}", waiting, _STEP_GOAL),
                ratio_goal(
                    f"pipelined step against the longer of trace and {row}",
                    _pipelined(samples, row),
                    _PIPELINE_GOAL,
                ),
            ]
    return goals


def _pipelined(samples: Samples, row: str) -> float:
    """Return how many times the longer of trace and jax.jit step a pipelined step takes.

    A loop's figure is a mean over its steps, so it is held against the means of the turns beside
    it: the clock of a shared machine changes within seconds. The median of all rounds counts.
    """
    rounds = zip(
        samples["lazyrt", "pipelined"],
        samples["lazyrt", "mean trace"],
        samples[row, "mean step"],
        strict=True,
    )
    return statistics.median(loop / max(trace, step) for loop, trace, step in rounds)
