"""The command line of the benchmarks."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING

from benchmarks import (
    coverage,
    diff,
    dynamo,
    explore,
    families,
    fuzz,
    lab,
    looks,
    memory,
    modes,
    prints,
    profile,
    replicas,
    start,
    step,
    trace,
)
from benchmarks.pool import BenchmarkError
from lazyviz.command_line import output_file, run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.report import Report

BENCHMARKS = {
    "trace": trace,
    "step": step,
    "start": start,
    "prints": prints,
    "families": families,
    "modes": modes,
    "dynamo": dynamo,
    "coverage": coverage,
    "diff": diff,
    "explore": explore,
    "lab": lab,
    "looks": looks,
    "fuzz": fuzz,
    "memory": memory,
    "devices": replicas,
    "profile": profile,
}

_EPILOG = """\
`python -m benchmarks NAME --help` shows a benchmark's options. torch_xla needs an older torch:
set LAZYRT_TORCH_XLA_PYTHON to the python of an environment that has torch_xla and transformers.
"""


def main(arguments: Sequence[str]) -> int:
    """Run one benchmark, or list them all; return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.benchmark is None:
        sys.stdout.write(_listing())
        return 0
    _check_counts(parser, options)
    try:
        names = BENCHMARKS if options.benchmark == "all" else [options.benchmark]
        reports = [_run(name, options) for name in names]
        if options.json:
            _write(options.json, reports)
    except (BenchmarkError, OSError) as error:
        parser.exit(2, f"benchmarks: error: {error}\n")
    return int(options.check and any(report.missed for report in reports))


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        "python -m benchmarks",
        description=_listing(),
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="benchmark", metavar="NAME")
    for name, module in BENCHMARKS.items():
        command = commands.add_parser(
            name, help=module.SUMMARY, description=module.SUMMARY
        )
        module.add_arguments(command)
        _add_common(command)
    everything = commands.add_parser("all", help="all of them, with their defaults")
    _add_common(everything)
    return parser


def _add_common(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--json", type=output_file, metavar="FILE", help="also write the report as JSON"
    )
    parser.add_argument(
        "--check", action="store_true", help="exit with status 1 when a goal is missed"
    )


def _check_counts(parser: ArgumentParser, options: Namespace) -> None:
    for name in ("rounds", "length", "steps", "samples", "programs"):
        number = getattr(options, name, 1)
        if number < 1:
            parser.error(f"--{name} is {number}; it takes a whole number from 1 up")


def _listing() -> str:
    lines = [f"  {name:<10}{module.SUMMARY}" for name, module in BENCHMARKS.items()]
    return "\n".join(["benchmarks:", *lines, f"  {'all':<10}all of them", ""])


def _run(name: str, options: Namespace) -> Report:
    module = BENCHMARKS[name]
    if options.benchmark == "all":
        defaults = ArgumentParser()
        module.add_arguments(defaults)
        options = defaults.parse_args([])
    report: Report = module.run(options)
    sys.stdout.write(f"{report.text()}\n")
    sys.stdout.flush()
    return report


def _write(path: Path, reports: Sequence[Report]) -> None:
    data = [report.as_json() for report in reports]
    path.write_text(
        json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:], "benchmarks"))
