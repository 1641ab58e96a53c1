"""What a command at a debugger's prompt cost, on one line after the value."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from lazygraph.numbers import duration_text, plural
from lazyrt.observe.metrics import metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

# Below this nobody waits.
WORTH_TELLING_NS = 50_000_000
_COMPILES = ("peek_compiles", "compiles")
_EXECUTIONS = ("peek_executions", "executions")


def tell_after_command(debugger: Any) -> None:
    """Have a pdb prompt write what its present command cost, if that was worth telling.

    Called before the command's first peek; the debugger is left as it was found.
    """
    own = vars(debugger)
    if "postcmd" in own:  # an earlier peek of this command, or the user's own
        return
    before, start = metrics.counters(), time.perf_counter_ns()

    def postcmd(stop: Any, line: str) -> Any:
        own.pop("postcmd", None)
        spent = time.perf_counter_ns() - start
        if spent > WORTH_TELLING_NS:
            debugger.message(cost_line(metrics.counters() - before, spent))
        return debugger.postcmd(stop, line)

    own["postcmd"] = postcmd


def cost_line(used: Mapping[str, int], spent_ns: int) -> str:
    """Return the line.

    Example:
        >>> cost_line({"peek_compiles": 3, "peek_executions": 1}, 62_000_000)
        '[lazyrt: 3 compiles, 1 execution, 62 ms]'
    """
    compiles = sum(used.get(name, 0) for name in _COMPILES)
    executions = sum(used.get(name, 0) for name in _EXECUTIONS)
    return (
        f"[lazyrt: {plural(compiles, 'compile')}, "
        f"{plural(executions, 'execution')}, {duration_text(spent_ns)}]"
    )
