"""The subcommands of `%lazy`, and what the Tab key offers behind it."""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any

from IPython.core.completer import SimpleCompletion, context_matcher

from lazyviz.inspection import executables, live
from lazyviz.shell.lazytensors import named_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from IPython.core.completer import CompletionContext, SimpleMatcherResult
    from IPython.core.interactiveshell import InteractiveShell

NAME = "lazy"
SUBCOMMANDS = (
    "status", "explore", "graph", "ir", "hlo", "metrics", "live", "diff", "minimise",
    "replicas", "nan",
    "step", "eager", "why", "graphs", "cache", "reuse", "drop", "compile", "timeline", "report", "on", "off",
    "help",
)  # fmt: skip
CELL_COMMANDS = ("eager", "step", "time")
METRICS_OPTIONS = ("--legacy", "--raw")
REPORT_OPTIONS = ("--force", "--no-source")
EXPORT = "--export"
STABLEHLO = "--stablehlo"
_LIVE_OPTIONS = ("--above", "--reverse", "--sort")


def unknown(command: str) -> str:
    """Return what to say of a subcommand that there is not."""
    near = difflib.get_close_matches(command, SUBCOMMANDS, n=2)
    hint = f" Did you mean %lazy {' or %lazy '.join(near)}?" if near else ""
    return (
        f"%lazy has no subcommand {command!r}.{hint} It has {', '.join(SUBCOMMANDS)}."
    )


def completions(line: str, namespace: dict[str, Any]) -> list[str] | None:
    """Return what can follow on a `%lazy` line up to the cursor, None for other lines."""
    words = line.lstrip().split(" ")
    if words[0] not in {f"%{NAME}", f"%%{NAME}"} or len(words) == 1:
        return None
    given, start = [word for word in words[1:-1] if word], words[-1]
    if words[0].startswith("%%"):
        offered: Iterable[str] = CELL_COMMANDS if not given else ()
    else:
        offered = _offered(given, start, namespace)
    return [word for word in offered if word.startswith(start)]


def _offered(given: list[str], start: str, namespace: dict[str, Any]) -> Iterable[str]:
    """Return the words that may follow some others on a `%lazy` line."""
    names = [name for name, _ in named_tensors(namespace)]
    match given:
        case []:
            return sorted(SUBCOMMANDS)
        case ["help"]:
            return sorted({*SUBCOMMANDS, *CELL_COMMANDS})
        case ["eager"]:
            return ("off", "on")
        case ["metrics"]:
            return METRICS_OPTIONS
        case ["diff"]:
            return ("last", *names)
        case ["minimise"]:
            return names
        case ["minimise", _]:
            functions = (k for k, v in namespace.items() if inspect.isfunction(v))
            return (*names, *functions)
        case ["cache"]:
            return ("--sort", "drop")
        case ["cache", "--sort"]:
            return executables.ORDERS
        case ["cache", "drop"]:
            return ("all", "older")
        case ["live", *options]:
            return _live_words(options)
        case ["timeline"] if start.startswith("-"):  # elsewhere IPython offers paths
            return (EXPORT,)
        case ["report", *others] if start.startswith("-"):
            return [option for option in REPORT_OPTIONS if option not in others]
        case ["drop"]:
            results = (f"Out[{k}]" for k in namespace.get("Out", ()))
            return (*names, live.TRACEBACK, *results)
        case ["hlo", *others]:
            return names if STABLEHLO in others else (*names, STABLEHLO)
        case ["graph" | "explore" | "ir" | "nan" | "reuse", *_]:
            return names
    return ()


def _live_words(given: list[str]) -> Iterable[str]:
    if given and given[-1] == "--sort":
        from lazyrt.tools import LIVE_COLUMNS

        return LIVE_COLUMNS
    return [option for option in _LIVE_OPTIONS if option not in given]


def matcher(shell: InteractiveShell) -> Any:
    """Return a matcher for a shell's completer."""

    @context_matcher()
    def lazyviz_matcher(context: CompletionContext) -> SimpleMatcherResult:
        line = context.line_with_cursor[: context.cursor_position]
        found = completions(line, shell.user_ns)
        if found is None:
            return {"completions": [], "suppress": False}
        return {
            "completions": [SimpleCompletion(name, type="param") for name in found],
            "suppress": bool(found),
        }

    return lazyviz_matcher
