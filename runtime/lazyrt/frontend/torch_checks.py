"""torch's own checks of values: what asks, what it finds for good arguments, what it would say.

`torch.distributions` looks whether parameters and samples are in their domain, a loss whether a
variance is negative, the derivative of eigenvectors whether it exists. A check that takes few
ops on device data is answered by a peek, at its line. Any other would cut the step: it waits
for it (`execution/deferred_asserts.py`), unless `config.deferred_checks` is off.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.distributions.constraints import Constraint

from lazyrt.config import config
from lazyrt.errors import ArgumentCheckError
from lazyrt.execution import deferred_asserts
from lazyrt.frontend.provenance import is_own
from lazyrt.frontend.torch_compat import autograd_node
from lazyrt.ir.live import Buffer, pending

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from lazyrt.frontend.buffers import State
    from lazyrt.observe.events import SourceLocation

_ROOT = torch.__path__[0] + "/"


class Check(NamedTuple):
    """A check that reads a value.

    Attributes:
        passes: What it finds for good arguments.
        said: What is wrong if it finds the opposite.
    """

    passes: bool
    said: str


def _of_parameter(frame: FrameType) -> str:
    names = frame.f_locals
    value = names.get("value")
    if not isinstance(value, torch.Tensor):
        return _of_line(frame)
    return (
        f"Expected parameter {names.get('param')} ({type(value).__name__} of shape "
        f"{tuple(value.shape)}) of distribution {type(names.get('self')).__name__} to satisfy the "
        f"constraint {_named(names.get('constraint'))}, but found invalid values"
    )


def _of_sample(frame: FrameType) -> str:
    names = frame.f_locals
    value = names.get("value")
    shape = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
    return (
        f"Expected value argument ({type(value).__name__} of shape {shape}) to be within the "
        f"support ({_named(names.get('support'))}) of the distribution {type(names.get('self')).__name__}, "
        "but found invalid values"
    )


def _named(constraint: object) -> str:
    """Return what a constraint is called; one with tensors would look at them in its repr."""
    if _has_tensors(constraint):
        return type(constraint).__name__.strip("_")
    return repr(constraint)


def _has_tensors(part: object) -> bool:
    if isinstance(part, (list, tuple)):
        return any(map(_has_tensors, part))
    if isinstance(part, Constraint):  # such as one of each element's
        return any(map(_has_tensors, vars(part).values()))
    return isinstance(part, torch.Tensor)


def _of_line(frame: FrameType) -> str:
    code = frame.f_code
    path = code.co_filename.removeprefix(_ROOT)
    return f"the check of torch/{path}:{frame.f_lineno}, in {code.co_name}(), found invalid values"


def _of_variance(_frame: FrameType) -> str:
    return "var has negative entry/entries"


# Files of torch, functions in them, what they find for good arguments, and what they say.
_IN_PYTHON: dict[tuple[str, str], tuple[bool, Callable[[FrameType], str]]] = {
    ("distributions/distribution.py", "__init__"): (True, _of_parameter),
    ("distributions/distribution.py", "_validate_sample"): (True, _of_sample),
    ("distributions/constraints.py", "check"): (True, _of_line),
    ("distributions/continuous_bernoulli.py", "__init__"): (True, _of_line),
    ("distributions/geometric.py", "__init__"): (True, _of_line),
    ("nn/functional.py", "gaussian_nll_loss"): (False, _of_variance),
}
# Checks that torch makes in C++, within our kernels of these names.
_WITHIN_OURS = {
    "istft": "istft() window overlap add min: 1. The shifted windows add up to zero somewhere, and "
    "the signal is not known there",
}
# A default device, `with torch.device(...)` for one, puts these between a check and its read.
_BETWEEN = frozenset(_ROOT + name for name in ("utils/_device.py", "overrides.py"))
_IN_DERIVATIVES = {
    "LinalgEigBackward0": "linalg_eig_backward: The eigenvectors in the complex case are specified "
    "up to multiplication by e^{i phi}. The specified loss function depends on this quantity, so "
    "it is ill-defined."
}


def find(depth: int = 1) -> Check | None:
    """Return the check of torch's that reads a value now; None for any other reader.

    Args:
        depth: How many frames up the first is that may be torch's.
    """
    running = autograd_node()
    if running is not None and running[0] in _IN_DERIVATIVES:
        return Check(passes=True, said=_IN_DERIVATIVES[running[0]])
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and _is_between(frame.f_code):
        if frame.f_code.co_name in _WITHIN_OURS:
            return Check(passes=True, said=_WITHIN_OURS[frame.f_code.co_name])
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.startswith(_ROOT):
        return None
    code = frame.f_code
    known = _IN_PYTHON.get((code.co_filename.removeprefix(_ROOT), code.co_name))
    return None if known is None else Check(known[0], known[1](frame))


def _is_between(code: CodeType) -> bool:
    return is_own(code) or code.co_filename in _BETWEEN


def put_off(
    check: Check, tensor: torch.Tensor, state: State, site: SourceLocation | None
) -> torch.Tensor | None:
    """Let a check wait for its step; return what it finds if it passes, None if it cannot wait.

    Args:
        check: What reads.
        tensor: What it reads, pending.
        state: That tensor's.
        site: The user's line.
    """
    if not can_wait() or not isinstance(state, Buffer):
        return None
    error = explained(ArgumentCheckError, check.said, site, pending.number)
    wait_for(state, error, passes=check.passes)
    return torch.tensor(check.passes).to(tensor.dtype)


def wait_for(state: Buffer, error: Exception, *, passes: bool) -> None:
    """Raise an error once the step has run, unless a truth value turns out as `passes`."""
    deferred_asserts.defer(
        state, lambda found: None if bool(found) is passes else error
    )


def can_wait() -> bool:
    """Return whether checks may come after their line."""
    return config.deferred_checks and config.read_policy == "barrier"


def explained(
    kind: type[Exception], said: str, site: SourceLocation | None, number: int
) -> Exception:
    """Return the error of a check that has run with its step.

    Args:
        kind: Its class.
        said: What is wrong, in torch's words.
        site: The user's line.
        number: Of the pending step in which it was recorded.
    """
    error = kind(
        f"{said.rstrip('.')}. The check ran together with its step, so what was computed since, "
        "updates of parameters too, used these values. Set lazyrt.config.deferred_checks = False "
        "and run it again: then the line itself raises, before anything follows from it."
    )
    where = site or "a line that is not known"
    error.add_note(f"checked at {where}, in pending step {number}")
    return error
