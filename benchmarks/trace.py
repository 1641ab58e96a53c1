"""`python -m benchmarks trace`: what recording costs the host, beside torch's own tracer."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from benchmarks import machine, micro, pool
from benchmarks.bert import SHAPE_TEXT
from benchmarks.pool import BenchmarkError, Peer
from benchmarks.report import Goal, Report, Sample, Table, ratio, ratio_goal

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

SUMMARY = "host time of recording: chains of small ops and a BERT step"
PEERS = ("lazyrt", "torch-lazy", "eager", "torch-xla")
STEPS = ("bert-sgd", "bert-adamw")

_BERT_GOAL, _ADD_GOAL, _ADD_GOAL_US = 0.45, 0.75, 3.0
_WARM_UP, _STEPS_A_ROUND, _REPEATS_A_ROUND = 6, 8, 8
# torch._lazy runs AdamW with CPU fallbacks, a hundred times slower than the other peers.
_FEW = {("torch-lazy", "bert-adamw"): 2}

Samples = dict[tuple[str, str, str], list[float]]
"""Measurements by peer, case and part."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--peers", help=f"comma-separated, of {', '.join(PEERS)}")
    parser.add_argument(
        "--cases", help=f"comma-separated, of {', '.join((*micro.CASES, *STEPS))}"
    )
    parser.add_argument(
        "--rounds", type=int, default=6, help="turns of each peer (default 6)"
    )
    parser.add_argument(
        "--length", type=int, default=200, help="ops in a chain (default 200)"
    )


def run(options: Namespace) -> Report:
    """Measure, and return the report."""
    cases = _choose_cases(options.cases)
    names = pool.choose(options.peers, PEERS)
    facts = machine.facts()
    samples: Samples = defaultdict(list)
    with pool.open_peers(names) as peers:
        _warm_up(peers, cases)
        for _ in range(options.rounds):
            for peer in peers.values():
                for case in cases:
                    _measure(samples, peer, case, options.length)
    found = {key: Sample.of(values) for key, values in samples.items()}
    return Report(
        name=f"trace: {SUMMARY}",
        facts=facts,
        tables=_tables(found, names, cases),
        goals=_goals(found),
        notes=(
            f"bert: {SHAPE_TEXT}; `barrier` is the end of the step until the device has it",
            "x torch-lazy: ratio of minima; one torch thread; peers take turns",
        ),
    )


def _choose_cases(asked: str | None) -> list[str]:
    known = (*micro.CASES, *STEPS)
    cases = (
        list(known) if asked is None else [case.strip() for case in asked.split(",")]
    )
    for case in cases:
        if case not in known:
            raise BenchmarkError(
                f"this benchmark has no case {case!r}. Its cases are {', '.join(known)}."
            )
    return cases


def _warm_up(peers: dict[str, Peer], cases: list[str]) -> None:
    for peer in peers.values():
        peer.ask("open")
        for case in cases:
            if case in STEPS:
                steps = _FEW.get((peer.name, case), _WARM_UP)
                peer.ask("run", optimizer=_optimizer(case), steps=steps)


def _optimizer(case: str) -> str:
    return case.removeprefix("bert-")


def _measure(samples: Samples, peer: Peer, case: str, length: int) -> None:
    if case not in STEPS:
        found = peer.ask("micro", case=case, length=length, repeats=_REPEATS_A_ROUND)
        samples[peer.name, case, "trace"] += found
        return
    steps = _FEW.get((peer.name, case), _STEPS_A_ROUND)
    for part, values in peer.ask(
        "waiting", optimizer=_optimizer(case), steps=steps
    ).items():
        samples[peer.name, case, part] += values


def _tables(
    found: dict[tuple[str, str, str], Sample], names: list[str], cases: list[str]
) -> list[Table]:
    chains = [(case, "trace", case) for case in cases if case not in STEPS]
    steps = [
        (case, part, f"{case} {part}")
        for case in cases
        if case in STEPS
        for part in ("trace", "barrier")
    ]
    titled = (("µs for each op, minimum / median", chains), ("ms for each step", steps))
    columns = ("", *names, "x torch-lazy")
    return [
        Table(title, columns, [_row(found, names, *row) for row in rows])
        for title, rows in titled
        if rows
    ]


def _row(
    found: dict[tuple[str, str, str], Sample],
    names: list[str],
    case: str,
    part: str,
    title: str,
) -> list[str | float | None]:
    samples = {name: found[name, case, part] for name in names}
    shown = [
        f"{sample.minimum:.2f} / {sample.median:.2f}" for sample in samples.values()
    ]
    return [title, *shown, ratio(samples.get("lazyrt"), samples.get("torch-lazy"))]


def _goals(found: dict[tuple[str, str, str], Sample]) -> list[Goal]:
    goals = []
    bert, bert_peer = (found.get((name, "bert-sgd", "trace")) for name in PEERS[:2])
    if bert and bert_peer:
        what = "BERT SGD step, trace against torch._lazy"
        goals.append(ratio_goal(what, ratio(bert, bert_peer), _BERT_GOAL))
    add, add_peer = (found.get((name, "add", "trace")) for name in PEERS[:2])
    if add:
        goals.append(_add_goal(add, ratio(add, add_peer)))
    return goals


def _add_goal(add: Sample, against: float | None) -> Goal:
    beside = "" if against is None else f", {against:.2f}x torch._lazy"
    return Goal(
        "add",
        f"<= {_ADD_GOAL_US:g} µs or <= {_ADD_GOAL:g}x torch._lazy",
        f"{add.minimum:.2f} µs{beside}",
        add.minimum <= _ADD_GOAL_US or (against is not None and against <= _ADD_GOAL),
    )
