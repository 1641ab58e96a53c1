"""`python -m benchmarks coverage`: PyTorch's own op database on the lazy device."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import torch

from benchmarks import machine
from benchmarks.report import Cell, Goal, Report, Table

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Sequence

    from tests.opinfo.cases import Case
    from tests.opinfo.errors import Refusal
    from tests.opinfo.sweep import Outcome

SUMMARY = "ops of torch's test database: own lowering, CPU fallback, gap"
DTYPES = ("float32", "int64", "bool", "bfloat16", "float16", "complex64", "float64")
_FORWARD_GOAL, _BACKWARD_GOAL = 660, 520
_TORCHAX = 562  # of 677 forward, float32, torchax 0.0.13 with its defaults

_COLUMNS = ("", "ops", "own lowering", "fallback", "gap", "cut by a read")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--samples", type=int, default=3, help="samples of each op in float32 (3)"
    )
    parser.add_argument(
        "--dtypes", default=",".join(DTYPES), help="comma-separated (all seven)"
    )


def run(options: Namespace) -> Report:
    """Run every op, and return the report."""
    from benchmarks.pool import BenchmarkError

    chosen = [name.strip() for name in options.dtypes.split(",") if name.strip()]
    for name in chosen:
        if name not in DTYPES:
            raise BenchmarkError(
                f"coverage knows no dtype {name!r}. Its dtypes are {', '.join(DTYPES)}."
            )
    start = time.monotonic()
    found = {name: _sweep(name, options.samples) for name in chosen}
    if "float32" in chosen:
        found["modules, float32"] = _sweep_modules(options.samples)
    refused = _refusals()
    facts = {**machine.facts(), "seconds": f"{time.monotonic() - start:.0f}"}
    missing = [o for outcomes in found.values() for o in outcomes if o.kind != "own"]
    return Report(
        name=f"coverage: {SUMMARY}",
        facts=facts,
        tables=[
            _table(found),
            _missing_table(missing),
            _reads_table(found),
            _refusal_table(refused),
        ],
        goals=_goals(found.get("float32")),
        notes=(
            f"float32 with up to {options.samples} samples of each op, other dtypes with one",
            f"torchax lowers {_TORCHAX} of 677 ops forward in float32, with its defaults",
        ),
    )


def _sweep(dtype: str, count: int) -> list[Outcome]:
    from tests.opinfo.cases import cases
    from tests.opinfo.sweep import sweep

    chosen = cases(getattr(torch, dtype))
    count = count if dtype == "float32" else 1
    found = list(sweep(chosen, count=count, progress=_teller(dtype, len(chosen))))
    _progress("")
    return found


def _sweep_modules(count: int) -> list[Outcome]:
    """Run torch's own modules, in training and where they differ in evaluation."""
    from tests.opinfo.modules import module_cases, record_module
    from tests.opinfo.sweep import sweep

    chosen = module_cases()
    tell = _teller("modules", len(chosen))
    found = list(sweep(chosen, count=count, progress=tell, record=record_module))
    _progress("")
    return found


def _teller(what: str, total: int) -> Callable[[Case], None]:
    numbers = iter(range(1, total + 1))

    def tell(case: Case) -> None:
        _progress(f"{what} {next(numbers, 0)}/{total} {case.name}")

    return tell


def _refusals() -> list[Refusal]:
    from tests.opinfo.cases import cases
    from tests.opinfo.errors import refusals

    found = []
    for case in cases(torch.float32):
        _progress(f"wrong calls of {case.name}")
        found += list(refusals(case))
    _progress("")
    return found


def _progress(text: str) -> None:
    """Show what is going on, on a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text[:78]}")
        sys.stderr.flush()


def _table(found: dict[str, list[Outcome]]) -> Table:
    rows: list[Sequence[Cell]] = []
    for dtype, outcomes in found.items():
        for direction in ("forward", "backward"):
            chosen = [o for o in outcomes if o.direction == direction]
            counts = Counter(o.kind for o in chosen)
            if counts:
                kinds = (counts["own"], counts["fallback"], counts["gap"])
                cut = sum(bool(o.reads) for o in chosen)
                rows.append((f"{dtype} {direction}", len(chosen), *kinds, cut))
    rows.append(("torchax, float32 forward", 677, _TORCHAX, None, None, None))
    return Table("ops", _COLUMNS, rows)


def _missing_table(missing: Sequence[Outcome]) -> Table:
    from tests.opinfo import known

    everywhere = {**known.FALLBACKS, **known.GAPS}
    rows = []
    for outcome in missing:
        reasons = {**everywhere, **known.listed(outcome.case.dtype)}
        reason = reasons.get(outcome.case.name, f"NOT LISTED: {outcome.detail[:80]}")
        rows.append((f"{outcome.case} {outcome.direction}", outcome.kind, reason))
    return Table("not on a lowering of its own", ("", "kind", "why"), rows)


def _reads_table(found: dict[str, list[Outcome]]) -> Table:
    """Return the ops that the device computes, in a graph that torch cuts by reading a value."""
    rows = [
        (f"{outcome.case} {outcome.direction}", ", ".join(outcome.reads))
        for outcomes in found.values()
        for outcome in outcomes
        if outcome.reads
    ]
    return Table("on the device, but cut by a read", ("", "what reads"), rows)


def _refusal_table(found: Sequence[Refusal]) -> Table:
    agreed = sum(refusal.agrees for refusal in found)
    rows = [("wrong calls", len(found), agreed, len(found) - agreed)]
    return Table(
        "wrong calls that the CPU refuses",
        ("", "calls", "refused alike", "differently"),
        rows,
    )


def _goals(outcomes: list[Outcome] | None) -> list[Goal]:
    if outcomes is None:
        return []
    goals = []
    for direction, limit in (("forward", _FORWARD_GOAL), ("backward", _BACKWARD_GOAL)):
        chosen = [outcome for outcome in outcomes if outcome.direction == direction]
        own = sum(outcome.kind == "own" for outcome in chosen)
        goals.append(
            Goal(
                what=f"own lowering, float32 {direction}",
                limit=f">= {limit}",
                measured=f"{own} of {len(chosen)}",
                met=own >= limit,
            )
        )
    return goals
