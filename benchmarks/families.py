"""`python -m benchmarks families`: what training each family of models records and costs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from benchmarks import machine
from benchmarks.pool import BenchmarkError
from benchmarks.report import Cell, Goal, Report, Table

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from benchmarks.family_models import Family
    from benchmarks.family_run import Difference, Observed

SUMMARY = "model families: ops, fallbacks, compiles and cuts of three training steps"
TOLERANCE = 1e-3

_COLUMNS = (
    "", "ops/step", "compiles", "fallbacks", "cuts/step", "loss apart", "gradient apart", "s",
)  # fmt: skip


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--families", help="comma-separated names (default: all)")
    parser.add_argument(
        "--steps", type=int, default=3, help="training steps of each (default 3)"
    )
    parser.add_argument(
        "--compiled", action="store_true", help="train what torch.compile makes of them"
    )


def run(options: Namespace) -> Report:
    """Train them all, and return the report."""
    from benchmarks.family_run import difference, observe, train
    from lazyrt.config import config

    compiled = options.compiled

    facts = machine.facts()
    rows: list[list[Cell]] = []
    notes: list[str] = []
    goals: list[Goal] = []
    with config.scoped(compile_tier="fast", cache_dir=None):
        for family in _chosen(options.families):
            try:
                expected = train(family, "cpu", options.steps, compiled=compiled)
            except RuntimeError as error:
                if not compiled:
                    raise
                failure = type(error).__name__  # torch's own, whatever the device
                notes.append(f"{family.name}: compiled for the CPU it raises {failure}")
                continue
            actual, observed = observe(family, options.steps, compiled=compiled)
            apart = difference(actual, expected)
            rows.append(_row(family, observed, apart, options.steps))
            notes += _notes(family, observed, options.steps)
            goals += _goals(family, observed, apart)
            sys.stderr.write(f"{family.name}: {observed.seconds:.1f} s\n")
    how = "SGD, compiled" if compiled else "SGD"
    title = f"{options.steps} steps of {how}, next to the same on the CPU"
    return Report(f"families: {SUMMARY}", facts, [Table(title, _COLUMNS, rows)], goals, notes)  # fmt: skip


def _chosen(names: str | None) -> list[Family]:
    from benchmarks.family_table import FAMILIES

    known = {family.name: family for family in FAMILIES}
    wanted = names.split(",") if names else list(known)
    for name in wanted:
        if name not in known:
            raise BenchmarkError(
                f"no family {name!r}. The families are {', '.join(known)}"
            )
    return [known[name] for name in wanted]


def _row(
    family: Family, observed: Observed, apart: Difference, steps: int
) -> list[Cell]:
    return [
        family.name,
        round(observed.ops / steps),
        len(observed.compiles),
        len(observed.fallbacks),
        observed.cuts.total() / steps,
        f"{apart.loss:.0e}",
        f"{apart.gradient:.0e}",
        observed.seconds,
    ]


def _notes(family: Family, observed: Observed, steps: int) -> list[str]:
    """Return a line for each barrier that the program itself asks for."""
    return [
        f"{family.name}: {cut.cause} at {cut.place}, {count / steps:g} in each step: "
        f"`{cut.place.code}`"
        for cut, count in observed.cuts.items()
    ]


def _goals(family: Family, observed: Observed, apart: Difference) -> list[Goal]:
    ops = ", ".join(sorted({op for op, _ in observed.fallbacks}))
    gradient = f"{apart.gradient:.0e} at {apart.name}"
    return [
        Goal(f"{family.name}, fallbacks", "0", ops or "0", not observed.fallbacks),
        Goal(
            f"{family.name}, gradients",
            f"{TOLERANCE:g}",
            gradient,
            apart.gradient <= TOLERANCE,
        ),
    ]
