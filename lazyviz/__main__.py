"""The command line: `python -m lazyviz tour`, `python -m lazyviz diff`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_USAGE = """usage: python -m lazyviz COMMAND

commands:
  tour    run the first notebook here and write it as one web page (tour --help)
  read    show a metrics report, a debug log or a dump of torch_xla or XLA (read --help)
  report  summarise a trace that %lazy timeline --export wrote (report --help)
  diff    compare two dumps of HLO or StableHLO (diff --help)
"""


def main(arguments: Sequence[str]) -> int:
    """Run one command; return the exit status."""
    if arguments and arguments[0] == "tour":
        from lazyviz.documents import tour

        return tour.main(arguments[1:])
    if arguments and arguments[0] == "read":
        from lazyviz.foreign import read

        return read.main(arguments[1:])
    if arguments and arguments[0] == "report":
        from lazyviz.timing import trace_file

        return trace_file.main(arguments[1:])
    if arguments and arguments[0] == "diff":
        from lazyviz.inspection import comparison

        return comparison.main(arguments[1:])
    asked = bool(arguments) and arguments[0] in {"-h", "--help"}
    (sys.stdout if asked else sys.stderr).write(_USAGE)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
