"""What a step says to a read or a barrier in its middle: `StepSyncError`, a warning, or nothing.

Whatever needs a pending value would run a part of the step now, as a graph of its own. Prints
and peeks pass: they leave the step as it is. Where the source does not name what the line reads,
the tensor has the name under which variables, modules and optimizers hold it.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from lazyrt.errors import StepSyncError, StepSyncWarning
from lazyrt.frontend.buffers import state_of
from lazyrt.frontend.callsite import Call, user_call
from lazyrt.frontend.names import all_names
from lazyrt.frontend.provenance import package_line
from lazyrt.ir import active
from lazyrt.ir.live import pending
from lazyrt.ir.node import type_text

if TYPE_CHECKING:
    import torch

    from lazyrt.ir.active import ActiveStep

_MAX_NAMED = 4
# How torch.distributions reads, in causes of barriers; its checks can be left out.
ARGUMENT_CHECK = "torch.distributions, which checks its arguments"


def check_read(how: str, tensor: torch.Tensor) -> None:
    """Stop a read of a pending tensor if the innermost step forbids it.

    Args:
        how: What was called, where the source does not tell: `.item()`, `torch.save`, ...
        tensor: What is read.

    Raises:
        StepSyncError: The innermost step has `on_read="error"`.
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
    """Stop a barrier that the program asks for in the middle of a step.

    Raises:
        StepSyncError: The innermost step has `on_read="error"`.
    """
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
    """Stop an op whose result has a shape that only the data tell.

    Raises:
        StepSyncError: The innermost step has `on_read="error"`.
    """
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
