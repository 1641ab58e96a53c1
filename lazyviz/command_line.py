"""What the command lines share: the version, where they may write, how they end when nobody reads on."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__version__ = "0.1.0.dev0"  # of the distribution

# As a shell reports a process that a signal has ended: 128 and the signal's number.
INTERRUPTED = 130
UNREAD = 141


def run(
    main: Callable[[Sequence[str]], int], arguments: Sequence[str], name: str
) -> int:
    """Run a command; return its exit status, also where it is stopped from outside.

    Args:
        main: Takes the arguments, returns the exit status.
        arguments: As in `sys.argv[1:]`.
        name: Of the program, for the line that says that it was interrupted.

    Returns:
        The status of `main`; 2 without a package that it needs; 130 after Ctrl-C; 141 when
        whoever read the output has gone, as `head` has after its last line.
    """
    try:
        try:
            return main(arguments)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write(f"{name}: interrupted\n")
        return INTERRUPTED
    except ModuleNotFoundError as error:
        sys.stderr.write(f"{name}: {error}. Run: pip install 'lazyviz[lab]'\n")
        return 2
    except BrokenPipeError:
        # The interpreter flushes once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD


def path_of(given: object, caller: str, error: type[ValueError]) -> Path:
    """Return a path that a public function was given; anything else is an error of that class."""
    if isinstance(given, (str, os.PathLike)):
        return Path(given)
    raise error(
        f"{caller} got {given!r:.60}, which is {type(given).__name__} and no path. Give the path of "
        "a file as a text."
    )


def whole_number(word: str) -> int:
    """Return a number from 1 up; for argparse's `type`."""
    if not (word.isdecimal() and int(word)):
        raise argparse.ArgumentTypeError(f"{word!r} is no whole number from 1 up")
    return int(word)


def output_file(word: str) -> Path:
    """Return the path of a file to be written, where there can be one; for argparse's `type`.

    A command that works for minutes says at its start that its result has no place.
    """
    path = Path(word)
    folder = path.absolute().parent
    if path.is_dir():
        why = "it is a folder. Name a file in it"
    elif not folder.is_dir():
        why = f"there is no folder {folder}. Make it, or name a file in one that exists"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        why = "you may not write there. Name a file in a folder of yours"
    else:
        return path
    raise argparse.ArgumentTypeError(f"{word!r} cannot be written: {why}")


def keep_inputs(
    parser: argparse.ArgumentParser, output: Path | None, inputs: Sequence[Path]
) -> None:
    """End the program with a usage error if it would write over what it is to read."""
    if output is None:
        return
    for path in inputs:
        if path.exists() and output.exists() and path.samefile(output):
            parser.error(
                f"{str(output)!r} is what is to be read. Name another file to write."
            )
