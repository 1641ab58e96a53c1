"""`python -m benchmarks fuzz`: random tensor programs in every mode, next to the CPU."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks import machine
from benchmarks.report import Cell, Goal, Report, Table

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from benchmarks.programs import Program

SUMMARY = "random tensor programs in every mode, next to the CPU"
LENGTH = 14
_CHUNK = 25


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--programs", type=int, default=2000, help="how many (default 2000)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first ones (default 0)"
    )
    parser.add_argument(
        "--length", type=int, default=LENGTH, help=f"lines of each (default {LENGTH})"
    )


def run(options: Namespace) -> Report:
    """Write and run the programs, and return the report."""
    from benchmarks.programs import modes
    from lazyrt.config import config

    facts = machine.facts()
    seen: set[str] = set()
    failures: list[str] = []
    seed, start = options.seed, time.perf_counter()
    with config.scoped(cache_dir=None):
        while len(seen) < options.programs:
            wanted = min(_CHUNK, options.programs - len(seen))
            failure = search(seed, wanted, options.length, seen)
            if failure is not None:
                failures.append(f"seed {seed}: {failure}")
                sys.stderr.write(f"\n{failures[-1]}\n")  # an aborted run has told it
            seed += 1
            _show_progress(len(seen), options.programs, len(failures), start)
    sys.stderr.write("\n")
    rows: list[list[Cell]] = [[mode.name, len(seen)] for mode in modes()]
    goal = Goal("programs that differ", "0", str(len(failures)), not failures)
    lines = sum(len(text.splitlines()) for text in seen)
    title = f"{lines:,} lines, seeds {options.seed} to {seed - 1}"
    table = Table(title, ("mode", "programs"), rows)
    return Report(f"fuzz: {SUMMARY}", facts, [table], [goal], failures)


def search(seed: int, count: int, length: int, seen: set[str]) -> str | None:
    """Try `count` programs; return None, or the shortest failing one with what differs.

    Args:
        seed: Decides all of them.
        count: How many are tried.
        length: Lines of each.
        seen: Gets the text of each program that was run.
    """
    import hypothesis

    from benchmarks.programs import Mismatch, check

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count + 1,  # the first is always the simplest program
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
        phases=[
            hypothesis.Phase.generate
        ],  # lines are left out one by one, which is quicker
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(programs(length))
    def attempt(program: Program) -> None:
        if program.text in seen:
            return
        seen.add(program.text)
        try:
            check(program)
        except Mismatch as found:
            failing.append((program, str(found)))
            raise

    failing: list[tuple[Program, str]] = []
    try:
        attempt()
    except (Mismatch, BaseExceptionGroup):  # a group: it failed once, and not again
        return shortest(*failing[0])
    return None


def shortest(program: Program, found: str) -> str:
    """Leave out lines of a failing program while it fails; return what the rest differs in."""
    from benchmarks.programs import START, Mismatch, Program, check, is_as_said

    position = len(program.lines) - 1
    while position >= len(START):
        rest = program.lines[:position] + program.lines[position + 1 :]
        last = position == len(program.lines) - 1
        candidate = Program(rest, None if last else program.error)
        try:
            if is_as_said(candidate):
                check(candidate)
        except Mismatch as error:
            program, found = candidate, str(error)
        except Exception:  # noqa: BLE001, S110 - a line that others need
            pass
        position -= 1
    return found


def programs(length: int = LENGTH) -> Any:
    """Return the hypothesis strategy of programs of up to `length` random lines."""
    from hypothesis import strategies

    from benchmarks.programs import CHOICES, LARGEST_CHOICE, write_program

    number = strategies.integers(0, LARGEST_CHOICE)
    line = strategies.lists(number, min_size=CHOICES, max_size=CHOICES)
    numbers = strategies.lists(line, min_size=1, max_size=length)
    return numbers.map(write_program)


def _show_progress(done: int, wanted: int, failures: int, start: float) -> None:
    rate = done / (time.perf_counter() - start)
    left = (wanted - done) / rate if rate else 0.0
    sys.stderr.write(
        f"\r{done:,} of {wanted:,} programs, {failures} failures, {rate:.1f} a second, "
        f"{left:.0f} s left  "
    )
    sys.stderr.flush()
