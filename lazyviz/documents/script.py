"""`python -m lazyviz run`: a script runs as a cell of a session, which a report and a trace tell of."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lazyviz.command_line import keep_inputs, output_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from IPython.core.interactiveshell import InteractiveShell


def main(arguments: Sequence[str]) -> int:
    """Run a script; return its exit status, 1 where it raised.

    Report and trace are written then, too.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    # Behind the script the outputs are ours, too, up to a `--`.
    given: list[str] = options.arguments
    end = given.index("--") if "--" in given else len(given)
    outputs = argparse.ArgumentParser(parser.prog, add_help=False, allow_abbrev=False)
    _add_outputs(outputs)
    _, own = outputs.parse_known_args(given[:end], options)
    for output in (options.report, options.trace):
        keep_inputs(parser, output, [options.script])
    if not options.script.is_file():
        parser.error(f"there is no file {str(options.script)!r}. Name a Python script.")
    shell = _shell()
    shell.run_line_magic("load_ext", "lazyviz")
    words = [str(options.script), *own, *given[end + 1 :]]
    line = f"%run {shlex.join(words)}"
    shell.run_cell(line, store_history=True)  # type: ignore[no-untyped-call]
    status = _status(getattr(sys, "last_value", None))  # %run shows errors itself
    if options.report is not None:
        from lazyviz import report

        sys.stderr.write(f"{report(options.report, force=True)}\n")
    if options.trace is not None:
        from lazyviz import export_trace

        sys.stderr.write(f"The trace: {export_trace(options.trace)}\n")
    return status


def _status(error: BaseException | None) -> int:
    """Return the exit status that Python gives a script that ended so."""
    if isinstance(error, SystemExit):
        return (
            error.code if isinstance(error.code, int) else int(error.code is not None)
        )
    return int(error is not None)


def _shell() -> InteractiveShell:
    """Return a shell that keeps no history on disk."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    return InteractiveShell.instance(config=config)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lazyviz run",
        description="Run a Python script as a notebook runs a cell: its strip is printed at the "
        "end. The exit status is the script's own.",
    )
    _add_outputs(parser)
    parser.add_argument("script", type=Path, help="the script")
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        help="what the script gets; --report and --trace only behind a --",
    )
    return parser


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--report", type=output_file, metavar="FILE", help="write the session as a page"
    )
    parser.add_argument(
        "--trace", type=output_file, metavar="FILE", help="write a trace for Perfetto"
    )
