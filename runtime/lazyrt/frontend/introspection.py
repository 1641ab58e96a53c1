"""Who asks for a tensor's text or value: the user, an inspector, or a debugger's prompt."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from lazygraph.numbers import duration_text
from lazyrt.frontend.provenance import outward
from lazyrt.observe.metrics import metrics

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType


# Files whose code looks at variables without being asked for their value by the user.
_INSPECTORS = (
    "/IPython/core/oinspect.py", "/IPython/core/magics/namespace.py",
    "/IPython/core/completer.py", "/IPython/core/guarded_eval.py", "/jedi/",
    "/_pydevd_bundle/", "/pydevd_plugins/", "/ipykernel/debugger.py", "/spyder_kernels/",
    "/IPython/core/ultratb.py", "/stack_data/", "/variable_inspector", "/pandas/io/clipboard",
    "/lazyviz/shell/tracebacks.py",
)  # fmt: skip
_IPYTHON = "ipy"
_TRACEBACK_FUNCTIONS = frozenset(
    (
        "_showtraceback",
        "showtraceback",
        "_format_exception_for_storage",
        "structured_traceback",
    )
)
_DEBUGGER_EVALUATION = (
    "evaluate_expression", "internal_exec_on_thread", "internal_evaluate_expression",
    "internal_evaluate_expression_json", "exec_on_thread", "handle_breakpoint_condition",
    "handle_breakpoint_expression",
)  # fmt: skip
_PROMPT_FUNCTIONS = frozenset(
    ("default", "_getval", "_getval_except", "do_p", "do_pp", "message", "displayhook",
     "do_display", "do_whatis", "do_interact", "effective")
)  # fmt: skip
_PROMPTS = _PROMPT_FUNCTIONS.union(_DEBUGGER_EVALUATION)
# A debugger that stops at a function's end shows what it returns; nobody has typed that.
_STOP_FUNCTION = "format_stack_entry"
_PROMPT_FILES = ("/pdb.py", "/IPython/core/debugger.py", "/IPython/terminal/debugger.py",
                 "/bdb.py")  # fmt: skip


def is_introspection() -> bool:
    """Return whether an inspector, a completer or a debugger's variable list is asking.

    Printing a traceback is looking, too: `raise ValueError(t)` must not compute `t`.
    """
    looks = any(map(_is_inspector, outward(sys._getframe(1))))
    return looks and not at_debugger_prompt()


def at_debugger_prompt() -> bool:
    """Return whether the call comes from an expression typed at a debugger's prompt."""
    # Each read asks, so few frames are looked at closely.
    return any(
        frame.f_code.co_name in _PROMPTS and _is_prompt(frame)
        for frame in outward(sys._getframe(1))
    )


def debugger_at_prompt() -> Any:
    """Return the pdb, or IPython's, whose prompt asks; None elsewhere."""
    pdb = sys.modules.get("pdb")
    for frame in outward(sys._getframe(1) if pdb is not None else None):
        if _is_prompt(frame):
            asks = frame.f_locals.get("self")
            return asks if isinstance(asks, vars(pdb)["Pdb"]) else None
    return None


def _is_inspector(frame: FrameType) -> bool:
    code = frame.f_code
    name = code.co_filename
    if code.co_name in _TRACEBACK_FUNCTIONS and _IPYTHON in name.lower():
        return True
    if code.co_name == _STOP_FUNCTION and name.endswith(_PROMPT_FILES):
        return True
    if not any(part in name for part in _INSPECTORS):
        return False
    return code.co_name not in _DEBUGGER_EVALUATION and not _evaluates(frame)


def _evaluates(frame: FrameType) -> bool:
    """Return whether a debugger runs what the user typed, farther up the stack."""
    return any(
        outer.f_code.co_name in _DEBUGGER_EVALUATION for outer in outward(frame.f_back)
    )


def _is_prompt(frame: FrameType) -> bool:
    code = frame.f_code
    if code.co_name in _DEBUGGER_EVALUATION and "/pydevd" in code.co_filename:
        return True
    return code.co_name in _PROMPT_FUNCTIONS and code.co_filename.endswith(
        _PROMPT_FILES
    )


# ----------------------------------------------------- the cost of a debugger's command


# Below this nobody waits.
WORTH_REPORTING_NS = 50_000_000
_COMPILES = ("peek_compiles", "compiles")
_EXECUTIONS = ("peek_executions", "executions")


def report_after_command(debugger: Any) -> None:
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
        if spent > WORTH_REPORTING_NS:
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
        f"[lazyrt: {compiles} compile{'s' * (compiles != 1)}, "
        f"{executions} execution{'s' * (executions != 1)}, {duration_text(spent_ns)}]"
    )
