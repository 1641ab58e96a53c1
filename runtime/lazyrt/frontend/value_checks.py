"""Checks of operands' values: what the CPU refuses in the modes that run op by op; torch's own checks.

The CPU raises for an index out of range, for an integer divided by zero and the like. A lazy op
knows no values: XLA clamps the index and divides anyway. The modes that run ops one by one have the
operands, so such an op is first called on the CPU: integers as they are, as positions and divisors
are integers; blanks for all else. What the CPU raises then is raised, and the op does not run.

`torch.distributions` looks whether parameters and samples are in their domain, a loss whether a
variance is negative, the derivative of eigenvectors whether it exists. A check that takes few
ops on device data is answered by a peek, at its line. Any other would cut the step: it waits
for it (`execution/deferred_asserts.py`), unless `config.deferred_checks` is off.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributions.constraints import Constraint

from lazyrt import jax_compat
from lazyrt.config import config
from lazyrt.errors import ArgumentCheckError
from lazyrt.execution import deferred_asserts, transfer
from lazyrt.execution.op_by_op import Values, read
from lazyrt.frontend.argument_checks import refusal
from lazyrt.frontend.infer import run_blank, run_on_host
from lazyrt.frontend.provenance import is_own
from lazyrt.frontend.torch_compat import autograd_node
from lazyrt.ir.live import Buffer, pending
from lazyrt.ir.node import Node, Value, is_number, iter_values

if TYPE_CHECKING:
    from types import FrameType

    from lazyrt.observe.events import SourceLocation


# ----------------------------------------------------------- numbers that an op refuses
# A number that varies becomes an input of the graph, and nobody looks at an input while a node is
# recorded. So a number that torch might refuse, such as a divisor that has become zero, stays a
# constant: its node is new, and new nodes are checked.


Numbers = Sequence[int | tuple[type, Any]]

# Ops that refuse the integer 0 as a divisor of integers.
_DIVIDING = frozenset(("div", "floor_divide", "fmod", "remainder"))
# Ops that take a number of any size: they convert none to a tensor's dtype, or wrap it.
_OF_ANY_SIZE = frozenset(
    (*_DIVIDING, "mul", "true_divide", "eq", "ne", "lt", "le", "gt", "ge", "maximum",
     "minimum", "pow")
)  # fmt: skip
_LARGEST_INTEGER = 2**63 - 1
_SMALL = 127  # of every dtype


def must_stay(
    func: torch._ops.OpOverload, args: Sequence[Any], numbers: Numbers
) -> bool:
    """Return whether numbers decide if a call is right, although others of their kind do not.

    A number that a tensor's dtype cannot hold raises the CPU's error.
    """
    for number in numbers:
        if _is_complex(number):
            return _decide(func, args, numbers)
        size = number if number.__class__ is int else number[1]  # type: ignore[index]
        # Zero, infinities and NaN of floats are texts in a key.
        if size.__class__ is not str and not 0 < size <= _SMALL:
            return _decide(func, args, numbers)
    return False


def _decide(func: torch._ops.OpOverload, args: Sequence[Any], numbers: Numbers) -> bool:
    integers = [number for number in numbers if isinstance(number, int)]
    name = base_name(func)
    if any(abs(number) > _LARGEST_INTEGER for number in integers):
        return True
    if name in _DIVIDING:
        return 0 in integers and _are_integral(_dtypes(args))
    if name == "pow":
        is_negative = any(number < 0 for number in integers)
        return is_negative and _are_integral(_dtypes(args))
    return name not in _OF_ANY_SIZE and _is_too_large(func, name, args, numbers)


def _is_too_large(
    func: torch._ops.OpOverload, name: str, args: Sequence[Any], numbers: Numbers
) -> bool:
    """Return whether a number does not fit a dtype of an op whose call the CPU takes."""
    sizes = [number[1] if isinstance(number, tuple) else number for number in numbers]
    largest = max((abs(size) for size in sizes if not isinstance(size, str)), default=0)
    dtypes = _dtypes(args) or {torch.get_default_dtype()}
    is_real = any(map(_is_complex, numbers)) and not any(d.is_complex for d in dtypes)
    if not is_real and not any(largest > _largest(dtype) for dtype in dtypes):
        return False
    if name == "full":  # what it says depends on whether there is more than one element
        args = [(min(math.prod(args[0]), 2),), *args[1:]]
    said = refusal(lambda: run_blank(func, args))
    if said is not None:
        raise said
    return True


def _is_complex(number: int | tuple[type, Any]) -> bool:
    return isinstance(number, tuple) and number[0] is complex


@functools.cache
def base_name(func: torch._ops.OpOverload) -> str:
    """Return an op's name without overload, underscores and what makes it one on lists."""
    name: str = func._schema.name
    return name.removeprefix("aten::").removeprefix("_foreach_").strip("_")


def _dtypes(args: Sequence[Any]) -> set[torch.dtype]:
    """Return the dtypes of tensors and results that a key names, but for truth values."""
    dtypes = {value.dtype for value in iter_values(args)}
    dtypes.update(arg for arg in args if isinstance(arg, torch.dtype))
    dtypes.discard(torch.bool)
    return dtypes


def _are_integral(dtypes: set[torch.dtype]) -> bool:
    return not any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes)


@functools.cache
def _largest(dtype: torch.dtype) -> float:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.finfo(dtype).max
    return torch.iinfo(dtype).max


# Ops of which some operand holds positions; `index_reduce` would warn once more.
_WITH_POSITIONS = frozenset(
    f"aten::{name}"
    for name in (
        "index", "index_put", "_index_put_impl", "index_select", "index_add", "index_copy",
        "index_fill", "gather", "take", "put", "scatter", "scatter_add",
        "scatter_reduce", "embedding", "_embedding_bag", "_embedding_bag_forward_only",
        "nll_loss_forward", "nll_loss2d_forward", "multi_margin_loss",
        "multilabel_margin_loss_forward", "max_unpool2d", "max_unpool3d",
    )
)  # fmt: skip
# Ops that refuse some integers if their result is one.
_ON_INTEGERS = frozenset(
    f"aten::{name}"
    for name in ("floor_divide", "div", "remainder", "fmod", "pow", "_foreach_pow")
)


def check_values(node: Node, values: Values) -> None:
    """Raise what the CPU raises for an op on operands that hold what these do."""
    name = node.op.schema.name
    if name not in _WITH_POSITIONS and not (
        name in _ON_INTEGERS
        and _are_integral({out.dtype for out in node.outputs if out is not None})
    ):
        return
    error = refusal(
        lambda: run_on_host(
            node, {value: _on_host(value, values) for value in node.operands}
        )
    )
    if error is not None:
        site = node.provenance.site
        if site is not None:
            error.add_note(f"recorded at {site}")
        raise error.with_traceback(None)  # whose frames hold the device's memory


def _on_host(value: Value, values: Values) -> Any:
    """Return an operand with its contents if it is integral, a blank that takes no memory if not."""
    if is_number(value):
        return read(value, values).item()
    if not _are_integral({value.dtype}):
        return torch.zeros((), dtype=value.dtype, device="cpu").expand(value.shape)
    data = read(value, values)
    jax_compat.block(data)
    return transfer.borrowed(data, value.dtype)


# ------------------------------------------------------------------ torch's own checks


_ROOT = torch.__path__[0] + "/"


class Check(NamedTuple):
    """A check that reads a value.

    `said` is what is wrong if it finds the opposite of `passes`.
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


# Files of torch, functions in them, what they find for good arguments, and what they say.
_IN_PYTHON: dict[tuple[str, str], tuple[bool, Callable[[FrameType], str]]] = {
    ("distributions/distribution.py", "__init__"): (True, _of_parameter),
    ("distributions/distribution.py", "_validate_sample"): (True, _of_sample),
    ("distributions/constraints.py", "check"): (True, _of_line),
    ("distributions/continuous_bernoulli.py", "__init__"): (True, _of_line),
    ("distributions/geometric.py", "__init__"): (True, _of_line),
    ("nn/functional.py", "gaussian_nll_loss"): (
        False,
        lambda _frame: "var has negative entry/entries",
    ),
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
    """Return the check of torch's that reads a value now; None for any other reader."""
    running = autograd_node()
    if running is not None and running[0] in _IN_DERIVATIVES:
        return Check(passes=True, said=_IN_DERIVATIVES[running[0]])
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and (
        is_own(frame.f_code) or frame.f_code.co_filename in _BETWEEN
    ):
        if frame.f_code.co_name in _WITHIN_OURS:
            return Check(passes=True, said=_WITHIN_OURS[frame.f_code.co_name])
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.startswith(_ROOT):
        return None
    code = frame.f_code
    known = _IN_PYTHON.get((code.co_filename.removeprefix(_ROOT), code.co_name))
    return None if known is None else Check(known[0], known[1](frame))


def put_off(
    check: Check, tensor: torch.Tensor, state: object, site: SourceLocation | None
) -> torch.Tensor | None:
    """Let a check wait for its step; return what it finds if it passes, None if it cannot wait."""
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
    """Return the error of a check that has run with its step."""
    error = kind(
        f"{said.rstrip('.')}. The check ran together with its step, so what was computed since, "
        "updates of parameters too, used these values. Set lazyrt.config.deferred_checks = False "
        "and run it again: then the line itself raises, before anything follows from it."
    )
    where = site or "a line that is not known"
    error.add_note(f"checked at {where}, in pending step {number}")
    return error
