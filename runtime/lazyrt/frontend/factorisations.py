"""Kernels of linear algebra that look at more than values: at layouts, or at success."""

from __future__ import annotations

import dis
import functools
import itertools
import math
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lazyrt.config import config
from lazyrt.execution import deferred_asserts
from lazyrt.execution.executor import barrier
from lazyrt.frontend import guard, provenance, reads, value_checks
from lazyrt.frontend.buffers import emit, state_of, value_of
from lazyrt.frontend.kernels import functional_kernel
from lazyrt.frontend.provenance import is_library, is_own, outward
from lazyrt.frontend.record import functional, operation
from lazyrt.frontend.torch_compat import aten, autograd_node
from lazyrt.ir.live import Buffer, lock, pending

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    import numpy as np

    from lazyrt.observe.events import SourceLocation

# How torch's own nodes of backward end; those of a user's `autograd.Function` do not.
_OF_TORCH = "Backward0"
# Above this many elements a factorisation is not worth doing twice to tell at its line.
_MOST_ELEMENTS = 65_536


def check_errors(info: torch.Tensor, api_name: str, *, is_matrix: bool) -> None:
    """`aten._linalg_check_errors`: raise where a factorisation failed.

    One of a small matrix that few ops lead to is looked at now; any other waits for its step, as
    torch's other checks do (`value_checks.py`). Where it may not wait, what is pending runs: a cut
    of the graph, like a fallback and unlike a user's read also inside a step. The `_ex` functions
    of `torch.linalg` return `info` and check nothing.
    """
    if not info.numel():
        return
    site = provenance.user_site(2)
    peeks = _must_peek()
    with lock:
        host = _small_info(info, api_name, site)
        is_pending = host is None and not peeks and state_of(info).is_pending
        if is_pending and _put_off(info, api_name, is_matrix=is_matrix, site=site):
            return
        if is_pending and not _in_derivative():
            barrier(f"{api_name}, which checks for errors", site)
    host = reads.peek(info, site) if host is None else host
    try:
        aten._linalg_check_errors.default(host, api_name, is_matrix=is_matrix)
    except RuntimeError as error:  # its frames are of torch's dispatch
        raise error.with_traceback(None) from None


def _small_info(
    info: torch.Tensor, api_name: str, site: SourceLocation | None
) -> torch.Tensor | None:
    """Return the success of a factorisation that is quickly repeated, None for another."""
    state = state_of(info)
    if not state.is_pending or state.value is None or state.value.node is None:
        return None
    operands = state.value.node.operands
    if sum(math.prod(operand.shape) for operand in operands) > _MOST_ELEMENTS:
        return None
    return reads.small_check(info, state, site, api_name)


def _put_off(
    info: torch.Tensor, api_name: str, *, is_matrix: bool, site: SourceLocation | None
) -> bool:
    """Let a check wait for its step; return whether it may."""
    state = state_of(info)
    if not isinstance(state, Buffer) or not value_checks.can_wait():
        return False
    if would_catch():  # as to try again with more jitter
        return False

    def judge(found: np.ndarray[Any, Any]) -> Exception | None:
        host = torch.from_numpy(found.copy())
        try:
            aten._linalg_check_errors.default(host, api_name, is_matrix=is_matrix)
        except RuntimeError as error:  # LinAlgError is one
            said = str(error)
            return value_checks.explained(type(error), said, site, number)
        return None

    number = pending.number
    deferred_asserts.defer(state, judge)
    return True


def _must_peek() -> bool:
    """Return whether a check may neither wait for its step nor end it; asked without the lock."""
    return (
        config.read_policy == "peek"
        or guard.at_debugger_prompt()
        or guard.interrupts_an_op()
    )


def _in_derivative() -> bool:
    running = autograd_node()
    return running is not None and running[0].endswith(_OF_TORCH)


def _determinant(func: torch._ops.OpOverload) -> Callable[[torch.Tensor], Any]:
    """Return the kernel of a determinant, which also returns the factors.

    Its derivative takes them for factors of the transpose where the matrix is real and
    contiguous, as LAPACK gets such a matrix. So they are.
    """
    plain = functional_kernel(func)
    op, transpose = operation(func), operation(aten.transpose.int)

    def kernel(matrix: torch.Tensor) -> Any:
        if matrix.is_complex() or not matrix.is_contiguous():
            return plain(matrix)
        with lock:
            turned = functional(transpose, (value_of(matrix), -2, -1))
            return emit(functional(op, (turned,)))

    return kernel


FACTORISATIONS: dict[str, Callable[..., Any]] = {
    "_linalg_check_errors": check_errors,
    "_linalg_det": _determinant(aten._linalg_det.default),
    "_linalg_slogdet": _determinant(aten._linalg_slogdet.default),
}


# Whether the program around a line catches what the line raises.
#
# A check that waits for its step raises elsewhere, where nobody expects it: a program that tries a
# factorisation again with more jitter needs the error at its line.

# What `except` may name without meaning the error of a check.
_OTHERS = frozenset(
    ("KeyboardInterrupt", "SystemExit", "GeneratorExit", "StopIteration", "StopAsyncIteration")
)  # fmt: skip
_NAMES = frozenset(("LOAD_NAME", "LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD"))


class _Guarded(NamedTuple):
    """A stretch of code whose exceptions go to one place; offsets in bytes."""

    start: int
    end: int
    target: int


def would_catch() -> bool:
    """Return whether an `except` of the user's, or of a package below the user's line, would catch.

    A shell, a test runner or a trainer that calls the user's code is not asked. A `with` block may
    swallow an exception too, and counts as one that does not.
    """
    is_below = True
    for frame in outward(sys._getframe(1)):
        code = frame.f_code
        is_users = not is_library(code)
        is_below = is_below and not is_users
        asked = is_users or (is_below and not is_own(code))
        if asked and _is_guarded(code, frame.f_lasti):
            return True
    return False


@functools.lru_cache(maxsize=4_096)
def _is_guarded(code: CodeType, offset: int) -> bool:
    """Return whether code catches what is raised at an offset."""
    if not code.co_exceptiontable:
        return False
    entries: list[Any] = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    stretches = [_Guarded(entry.start, entry.end, entry.target) for entry in entries]
    instructions = list(dis.get_instructions(code))
    seen: set[int] = set()
    # A handler that passes the exception on is itself within the stretch of the next outer one.
    while offset not in seen:
        seen.add(offset)
        found = [s.target for s in stretches if s.start <= offset < s.end]
        if not found:
            return False
        offset = found[0]
        if _catches([i for i in instructions if i.offset >= offset]):
            return True
    return False


def _catches(handler: list[dis.Instruction]) -> bool:
    """Return whether a handler is an `except` for what a check may raise."""
    if not handler or handler[0].opname != "PUSH_EXC_INFO":
        return False
    names: list[str] = []
    resume = 0  # where the next clause begins
    for instruction, following in itertools.pairwise(handler[1:]):
        name = instruction.opname
        if instruction.offset < resume:
            continue
        if name in {"CHECK_EXC_MATCH", "CHECK_EG_MATCH"}:
            if not names or not _OTHERS.issuperset(names):
                return True
            names, resume = [], following.argval
        elif name in _NAMES:
            names.append(instruction.argval)
        elif not name.startswith(("LOAD_", "BUILD_TUPLE")):
            return not names and name == "POP_TOP"  # `except:`
    return False
