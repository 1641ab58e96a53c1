"""What reads and barriers may do where they stand: by the step, by who asks, within another op.

In a step that forbids reads: `StepSyncError`, a warning, or nothing. Whatever needs a pending value
would run a part of the step now, as a graph of its own. Prints and peeks pass: they leave the step
as it is. Where the source does not name what the line reads, the tensor has the name under which
variables, modules and optimizers hold it.
"""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lazygraph.readable import duration_text
from lazyrt.config import config
from lazyrt.errors import StepSyncError, StepSyncWarning
from lazyrt.execution import executor
from lazyrt.execution.executor import barrier
from lazyrt.frontend.buffers import state_of
from lazyrt.frontend.callsite import Call, user_call
from lazyrt.frontend.names import all_names
from lazyrt.frontend.provenance import (
    is_of_torch,
    is_own_file,
    outward,
    package_line,
    user_site,
)
from lazyrt.ir import active
from lazyrt.ir.live import lock, pending
from lazyrt.ir.node import type_text
from lazyrt.observe.metrics import metrics

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType, FrameType

    import torch

    from lazyrt.ir.active import ActiveStep


_MAX_NAMED = 4
# How torch.distributions reads, in causes of barriers; its checks can be left out.
ARGUMENT_CHECK = "torch.distributions, which checks its arguments"


def check_read(how: str, tensor: torch.Tensor) -> None:
    """Stop a read of a pending tensor if the innermost step forbids it.

    `how` is what was called, where the source does not tell: `.item()`, `torch.save`, ...
    """
    step = _forbidding()
    if step is None:
        return
    call = user_call()
    notes: tuple[str, ...] = ()
    kind = type_text(tuple(tensor.shape), tensor.dtype)
    held = ""
    if step.on_read == "error":
        held, *others = _names_in_program(tensor)
        notes = _note_on_others(others) if how == "save" else ()
        call = replace(call, tensor=call.tensor or held)
    said = f"{call.tensor}, {kind}," if call.tensor else f"a pending {kind}"
    if held not in {"", call.tensor}:
        said = f"{call.tensor} (`{held}`), {kind},"
    line = package_line(3)
    within = f" (in {line})" if line else ""
    what = f"{_operation(call, how)}{within} reads {said}"
    fix = _read_fixes(step, call)
    if how == ARGUMENT_CHECK:
        what = f"{_operation(call, how)} checks its arguments, which reads {said}"
        fix = (
            "Leave the check out with validate_args=False, or for all distributions with "
            "torch.distributions.Distribution.set_default_validate_args(False); or make the "
            'distribution behind the block; or allow it with step(on_read="allow")'
        )
    _stop(step, call, what, fix, notes)


# Holders that outlast a line: their names say more than a loop's variable.
_LASTING = ("module", "buffer", "optimizer", "gradient")


def _names_in_program(tensor: torch.Tensor) -> list[str]:
    """Return the name of a tensor, empty for none, and those of other pending ones that last."""
    names = all_names(2)
    own = names.pop(id(state_of(tensor).base), [])
    lasting = [name.text for name in own if name.holder in _LASTING]
    first = (lasting or [name.text for name in own] or [""])[0]
    pending_ids = {id(buffer) for buffer in pending.live() if buffer.is_pending}
    others = [
        next((name.text for name in found if name.holder in _LASTING), "")
        for key, found in names.items()
        if key in pending_ids
    ]
    return [first, *filter(None, others)]


def _note_on_others(names: list[str]) -> tuple[str, ...]:
    if not names:
        return ()
    more = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
    shown = ", ".join(f"`{name}`" for name in names[:_MAX_NAMED])
    return (f"pending in the same step: {shown}{more}",)


def _forbidding() -> ActiveStep | None:
    """Return the innermost step, unless it allows to be cut."""
    step = active.innermost()
    if step is not None and active.drop_left():
        step = active.innermost()
    return None if step is None or step.on_read == "allow" else step


def check_barrier(how: str) -> None:
    """Stop a barrier that the program asks for in the middle of a step."""
    step = _forbidding()
    if step is None:
        return
    call = user_call()
    fix = (
        f"Leave it out: the step ends in a barrier by itself. Or {_after(step, call)}, "
        'or allow it with step(on_read="allow")'
    )
    call = Call(call.site, call.text)  # no tensor is read
    _stop(step, call, f"{_operation(call, how)} asks for a barrier", fix)


def check_shape(op: str) -> None:
    """Stop an op whose result has a shape that only the data tell."""
    step = _forbidding()
    if step is None:
        return
    call = user_call()
    fix = (
        "Use a form of fixed shape, such as torch.where() or a product with the mask; or "
        f'{_after(step, call)}, or allow it with step(on_read="allow")'
    )
    what = f"{_operation(call, op)} needs values to know the shape of its result ({op})"
    _stop(step, call, what, fix)


def _stop(
    step: ActiveStep, call: Call, what: str, fix: str, notes: tuple[str, ...] = ()
) -> None:
    consequence = (
        "A part of the step would have to run now, as a graph of its own, and the rest later"
        if step.kind == "step"
        else "It would cut the step that is being recorded meanwhile"
    )
    message = f"{what} inside {step}. {consequence}. {fix}."
    if step.on_read == "warn":
        _warn(message, call)
        return
    operation = call.text or what.split(" ", maxsplit=1)[0].strip("`")
    error = StepSyncError(
        message, operation=operation, tensor=call.tensor, site=call.site, fix=fix
    )
    error.add_note(f"called at {call.site}")
    if step.site is not None:
        error.add_note(f"{step} began at {step.site}")
    for note in notes:
        error.add_note(note)
    raise error


def _warn(message: str, call: Call) -> None:
    site = call.site
    file, line = (site.file, site.line) if site is not None else ("<unknown>", 0)
    warnings.warn_explicit(message, StepSyncWarning, file, line)


def _operation(call: Call, how: str) -> str:
    return f"`{call.text}`" if call.text else how.split(",", maxsplit=1)[0]


def _read_fixes(step: ActiveStep, call: Call) -> str:
    if step.kind == "async closure":
        return (
            "Pass the tensor to add_step_closure() in `args`: those keep the values of the "
            "step that queued the closure"
        )
    name = call.tensor if call.tensor.isidentifier() else "t"
    after = _after(step, call)
    return (
        f"{after[0].upper()}{after[1:]}; or look at it with print() or "
        f"lazyrt.materialise({name}), which disturb nothing; or put the call off with "
        f'lazyrt.add_step_closure(f, ({name},)); or allow it with step(on_read="allow")'
    )


def _after(step: ActiveStep, call: Call) -> str:
    """Return how to bring the user's line behind the end of the step."""
    line = f"line {call.site.line}" if call.site is not None else "the call"
    if step.function:
        return f"return the tensor from {step.function}() and read it there"
    same_place = (
        step.site is not None
        and call.site is not None
        and (step.site.file, step.site.function) == (call.site.file, call.site.function)
    )
    if same_place and step.site is not None:
        return f"dedent {line} below the `with` block of line {step.site.line}"
    where = f" that begins at {step.site}" if step.site is not None else ""
    return f"move {line} behind the block{where}"


# ---------------------------------------------------------------------------- who asks
# The user, an inspector, or a debugger's prompt.


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
    # Not where a debugger, here or farther up the stack, runs what the user typed.
    names = (outer.f_code.co_name for outer in outward(frame))
    return not any(name in _DEBUGGER_EVALUATION for name in names)


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


# -------------------------------------------------------------- in the middle of an op
# A `__del__` may read a tensor, or ask for a barrier. Beneath a kernel that has just numbered its
# inputs a barrier would take the numbers away, and the op would read other data. So a finaliser's
# reads are peeks there, and what else would end the step is left to the next barrier.


KERNEL = "<lazyrt kernel "
_others: set[CodeType] = {barrier.__code__}


def note_kernel(kernel: Any) -> None:
    """Count a function that is written by hand among the kernels."""
    _others.add(kernel.__code__)


def interrupts_an_op() -> bool:
    """Return whether this thread is in the middle of an op or a barrier.

    To be asked before the lock is taken. Functions given to `on_barrier` are in the middle of
    nothing: a barrier calls them before it begins.
    """
    return lock._is_owned() and not executor.hooks_are_running()  # type: ignore[attr-defined]


def interrupts_another_op() -> bool:
    """Return whether the op that this kernel records was called in the middle of another, or of a barrier.

    A kernel that calls an op itself has no code of others between the two.
    """
    is_others = False
    for frame in outward(sys._getframe(1)):
        name = frame.f_code.co_filename
        if name.startswith(KERNEL) or frame.f_code in _others:
            if is_others:
                return True
        elif not is_own_file(name) and not is_of_torch(name):
            is_others = True
    return False


# ------------------------------------------------------------- the bound of pending ops


def over_limit() -> None:
    """Run a barrier once too much is pending; a finaliser's op leaves it to the next one."""
    # In eager debug mode each op runs at its end, and would find its inputs gone.
    if pending.eager or interrupts_another_op():
        return
    barrier(f"more than {config.max_pending_nodes:,} pending ops", user_site(2))
