"""`python -m benchmarks profile`: what a profile says, checked by programs that know better."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks import machine
from benchmarks.report import Goal, Report, Table

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    from benchmarks.profile_programs import Program
    from lazyviz.timing.gaps import Gap
    from lazyviz.timing.profile import Profile

SUMMARY = (
    "gaps, idle shares and costs by line that a profile finds, against what they are"
)

_LENGTHS_MS = (2, 5, 10, 30, 100)
_WARM = 3
_STEPS = 6
_PART, _LEAST_NS = 0.10, 500_000
_SUM_PART, _SHARE_POINTS, _IDLE_POINTS = 0.02, 0.05, 0.05
_COST = 1.03
_MOST = 0.95
_READ_MS, _READ_STEPS, _EVERY = (2, 10, 50), 40, 10
_UNCOUNTED = 50


class _Found(NamedTuple):
    """What a profile found of one marked line."""

    name: str
    true_ms: float
    found_ms: float
    at_line: int
    within: int
    times: int


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--steps", type=int, default=_STEPS, help=f"profiled steps of each; {_STEPS}"
    )


def run(options: Namespace) -> Report:
    """Measure, and return the report."""
    import lazyrt
    from benchmarks import profile_programs as programs

    lazyrt.config.cache_dir = None
    facts = machine.facts()
    costs = _costs()  # before others start the thread that waits for exact ends
    gaps: list[_Found] = []
    shares: list[tuple[str, str, float, float]] = []
    sums: list[float] = []
    count = 0
    for program in programs.gap_programs(_LENGTHS_MS):
        gaps += _gaps(program, options.steps, sums)
        count += 1
    for program in programs.line_programs():
        shares += _shares(program, options.steps, sums)
        count += 1
    idle = []
    for name, step in programs.idle_programs():
        idle.append((name, *_idle(step, options.steps)))
        count += 1
    reads = _reads()
    within, times = sum(each.within for each in gaps), sum(each.times for each in gaps)
    most = [each for each in gaps if each.within * 2 > each.times]
    return Report(
        name=f"profile: {SUMMARY}",
        facts=facts,
        tables=[
            Table(
                "gaps: median of each line, ms; how many were found within 10 % or 0.5 ms",
                ("program", "true", "found", "at the line", "within", "of"),
                [tuple(each) for each in gaps],
            ),
            Table(
                "shares of the device's time",
                ("program", "line", "true", "found"),
                shares,
            ),
            Table("duty cycle", ("program", "true", "found"), idle),
            Table(
                "a read in one of ten steps instead of each, ms a step",
                ("step", "in each", "predicted", "measured", "of the prediction"),
                reads,
            ),
        ],
        goals=[
            Goal("programs", ">= 30", str(count), count >= 30),  # noqa: PLR2004
            Goal(
                "lines of which most gaps are found within 10 % or 0.5 ms",
                f"all {len(gaps)}",
                str(len(most)),
                len(most) == len(gaps),
            ),
            Goal(
                "gaps found so",
                ">= 95 %",
                f"{100 * within / times:.1f} % of {times}",
                within >= _MOST * times,
            ),
            _worst(
                "shares of lines, off by",
                [abs(s[2] - s[3]) for s in shares],
                _SHARE_POINTS,
            ),
            _worst(
                "duty cycle, off by", [abs(s[1] - s[2]) for s in idle], _IDLE_POINTS
            ),
            _worst("sum of lines against the busy time, off by", sums, _SUM_PART),
            Goal(
                "predictions of fewer reads that are off by more than steps vary",
                "0",
                str(sum("differ" in each[-1] for each in reads)),
                not any("differ" in each[-1] for each in reads),
            ),
            *(
                Goal(
                    f"{what} while a profile is taken",
                    f"<= {_COST:.2f}x",
                    f"{cost.thread:.3f}x of the thread's CPU time, {cost.process:.3f}x of the "
                    f"process's, ± {cost.error:.3f}",
                    max(cost.thread, cost.process) <= _COST,
                )
                for what, cost in costs.items()
            ),
        ],
        notes=(f"{options.steps} steps of each program were profiled",),
    )


def _worst(what: str, figures: list[float], limit: float) -> Goal:
    worst = max(figures)
    return Goal(what, f"<= {limit:.2f}", f"{worst:.3f} at most", worst <= limit)


def _profiled(step: Callable[[], object], steps: int) -> Profile:
    import lazyrt
    import lazyviz

    for _ in range(_WARM):
        step()
    lazyrt.wait()
    with lazyviz.profile() as profile:
        for _ in range(steps):
            step()
    return profile


def _gaps(program: Program, steps: int, sums: list[float]) -> list[_Found]:
    from benchmarks import profile_programs as programs

    profile = _profiled(program.step, steps)
    _note_sum(profile, sums)
    found = []
    for mark, waited in program.waited.items():
        line = programs.line_of(mark)
        told = [gap for gap in profile.gaps if gap.line == line and _is_here(gap)]
        true = waited[-steps:]
        pairs = [(b - a, _found_in(told, a, b)) for a, b in true]
        found.append(
            _Found(
                program.name if len(program.waited) == 1 else f"{program.name}: {mark}",
                statistics.median(took for took, _ in pairs) / 1e6,
                statistics.median(ns for _, ns in pairs) / 1e6,
                sum(ns > 0 for _, ns in pairs),
                sum(_is_close(ns, took) for took, ns in pairs),
                len(true),
            )
        )
    return found


def _found_in(told: list[Gap], start: int, end: int) -> int:
    """Return the length of the gap that covers most of a stretch; 0 if none does."""
    covering = [
        (min(gap.end_ns, end) - max(gap.start_ns, start), gap.duration_ns)
        for gap in told
    ]
    most, length = max(covering, default=(0, 0))
    return length if most > 0 else 0


def _is_here(gap: Any) -> bool:
    from benchmarks import profile_programs as programs

    return bool(gap.file == programs.__file__)


def _is_close(found: int, true: int) -> bool:
    return abs(found - true) <= max(_PART * true, _LEAST_NS)


def _note_sum(profile: Profile, sums: list[float]) -> None:
    by_line = sum(line.device_ns for line in profile.lines)
    sums.append(abs(by_line / profile.device_ns - 1))


def _shares(
    program: Program, steps: int, sums: list[float]
) -> list[tuple[str, str, float, float]]:
    from benchmarks import profile_programs as programs

    profile = _profiled(program.step, steps)
    _note_sum(profile, sums)
    of_line = {line.line: line.device_ns for line in profile.lines if _is_here(line)}
    found = {mark: of_line.get(programs.line_of(mark), 0) for mark in program.shares}
    total = sum(found.values()) or 1
    return [
        (program.name, mark, share, found[mark] / total)
        for mark, share in program.shares.items()
    ]


def _idle(step: Callable[[], object], steps: int) -> tuple[float, float]:
    """Return the duty cycle by the exact ends of executions, and what a profile finds."""
    import lazyrt
    from lazyrt.observe import events

    worked: list[int] = []

    def note(event: events.Event) -> None:
        worked.append(event.duration_ns)  # type: ignore[attr-defined]

    with lazyrt.subscribe(note, events.ExecuteFinished):
        profile = _profiled(step, steps)
    return sum(worked[-steps:]) / profile.duration_ns, profile.duty_cycle


def _reads() -> list[tuple[str, float, float, float, str]]:
    """Return what is predicted of fewer reads beside what is measured, for steps of three lengths."""
    import lazyviz
    from benchmarks.profile_programs import reading

    found = []
    for ms in _READ_MS:
        loop = reading(ms)
        profiles = []
        for every in (1, _EVERY):
            loop(_EVERY, every)  # compiles
            with lazyviz.profile() as profile:
                loop(_READ_STEPS, every)
            profiles.append(profile)
        each, rare = (profile.reads[0] for profile in profiles)
        said = " ".join(profiles[1].diff(profiles[0]).predictions)
        verdict = next(
            (word for word in ("agree", "differ") if word in said), "unknown"
        )
        in_each, predicted = each.period_ns / 1e6, each.predicted_ns(_EVERY) / 1e6
        measured = rare.period_ns / _EVERY / 1e6
        found.append((f"{ms} ms", in_each, predicted, measured, verdict))
    return found


class _Cost(NamedTuple):
    """How much longer steps take while a profile is taken.

    Attributes:
        thread, process: Times their CPU time, of the thread and with all that the process does.
        error: Standard error of the larger one.
    """

    thread: float
    process: float
    error: float


def _costs() -> dict[str, _Cost]:
    """Compare a BERT step, and the smallest training step, with and without a profile."""
    import torch

    from benchmarks import bert
    from benchmarks.profile_programs import Training

    training = Training()
    bert.set_size(2, 128)
    model = bert.make_model().to("lazyrt")
    batch = {name: tensor.to("lazyrt") for name, tensor in bert.make_batch().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train() -> None:
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()

    return {
        "the smallest training step": _cost(
            lambda: training.update(training.loss()), rounds=60, counted=80
        ),
        "a BERT step of 2 layers": _cost(train, rounds=20, counted=100),
    }


def _cost(step: Callable[[], object], rounds: int, counted: int) -> _Cost:
    """Compare steps while a profile is taken with steps before, round by round.

    The first steps of each round are not counted: those of a profile are traced. The result is the
    median of the rounds' ratios, since a collection of garbage or another program falls into one.
    """
    import lazyrt
    import lazyviz

    def steps() -> tuple[float, float]:
        lazyrt.wait()
        for count in (_UNCOUNTED, counted):
            start = time.thread_time(), time.process_time()
            for _ in range(count):
                step()
        return time.thread_time() - start[0], time.process_time() - start[1]

    steps()
    ratios = []
    for _ in range(rounds):
        plain = steps()
        with lazyviz.profile():
            profiled = steps()
        ratios.append(
            [after / before for before, after in zip(plain, profiled, strict=True)]
        )
    thread, process = (statistics.median(each) for each in zip(*ratios, strict=True))
    low, _, high = statistics.quantiles([max(each) for each in ratios], n=4)
    # The standard error of a median of what is spread normally: 1.25 of a mean's.
    error = 1.25 * (high - low) / 1.35 / rounds**0.5
    return _Cost(thread, process, error)
