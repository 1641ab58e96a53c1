"""The command line: `python -m lazyviz tour`, `python -m lazyviz diff`."""

from __future__ import annotations

import difflib
import importlib
import sys
from typing import TYPE_CHECKING

from lazyviz.command_line import __version__, run

if TYPE_CHECKING:
    from collections.abc import Sequence

_USAGE = """usage: python -m lazyviz COMMAND

commands:
  run       run a script with what a notebook has: strip, report, trace (run --help)
  tour      run the first notebook here and write it as one web page (tour --help)
  read      show a metrics report, a debug log or a dump of torch_xla or XLA (read --help)
  report    summarise a trace that %lazy timeline --export wrote (report --help)
  diff      compare two dumps of HLO or StableHLO (diff --help)
  replicas  say which of several replicas of a program went another way (replicas --help)
  capture   profile another process that holds a profiler server (capture --help)
  doctor    check versions, device, cache, memory and settings, with what to do (doctor --help)

--version tells which lazyviz this is. Exit statuses: 0; 1 where something differs or a cell failed,
or where the doctor finds a fault; 2 for what cannot be read, written or understood; 130 after Ctrl-C.
"""
# Loaded when asked for: a trace is read without what runs a notebook.
_COMMANDS = {
    "run": "lazyviz.documents.script",
    "tour": "lazyviz.documents.tour",
    "read": "lazyviz.foreign.read",
    "report": "lazyviz.timing.trace_file",
    "diff": "lazyviz.inspection.comparison",
    "replicas": "lazyviz.divergence.report",
    "capture": "lazyviz.timing.capture",
    "doctor": "lazyviz.inspection.doctor",
}


def main(arguments: Sequence[str]) -> int:
    """Run one command; return the exit status."""
    match list(arguments):
        case [command, *rest] if command in _COMMANDS:
            return int(importlib.import_module(_COMMANDS[command]).main(rest))
        case ["-h" | "--help", *_]:
            sys.stdout.write(_USAGE)
            return 0
        case ["--version"]:
            sys.stdout.write(f"lazyviz {__version__}\n")
            return 0
        case [command, *_]:
            sys.stderr.write(f"lazyviz: there is no command {command!r:.80}.")
            near = difflib.get_close_matches(command, _COMMANDS, n=1)
            sys.stderr.write(f" Did you mean {near[0]}?\n\n" if near else "\n\n")
    sys.stderr.write(_USAGE)
    return 2


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:], "lazyviz"))
