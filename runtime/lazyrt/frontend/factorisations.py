"""Kernels of linear algebra that look at more than values: at layouts, or at success."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from lazyrt.config import config
from lazyrt.execution import deferred_asserts
from lazyrt.execution.executor import barrier
from lazyrt.frontend import (
    exception_scan,
    finalisers,
    introspection,
    provenance,
    reads,
    torch_checks,
)
from lazyrt.frontend.buffers import emit, state_of, value_of
from lazyrt.frontend.kernels import functional_kernel
from lazyrt.frontend.record import functional, operation
from lazyrt.frontend.torch_compat import aten, autograd_node
from lazyrt.ir.live import Buffer, lock, pending

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from lazyrt.observe.events import SourceLocation

# How torch's own nodes of backward end; those of a user's `autograd.Function` do not.
_OF_TORCH = "Backward0"
# Above this many elements a factorisation is not worth doing twice to tell at its line.
_MOST_ELEMENTS = 65_536


def check_errors(info: torch.Tensor, api_name: str, *, is_matrix: bool) -> None:
    """`aten._linalg_check_errors`: raise where a factorisation failed.

    One of a small matrix that few ops lead to is looked at now; any other waits for its step, as
    torch's other checks do (`torch_checks.py`). Where it may not wait, what is pending runs: a cut
    of the graph, like a fallback and unlike a user's read also inside a step. The `_ex` functions
    of `torch.linalg` return `info` and check nothing.

    Raises:
        torch.linalg.LinAlgError: A matrix was singular, not positive definite, ...
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
    if not isinstance(state, Buffer) or not torch_checks.can_wait():
        return False
    if exception_scan.would_catch():  # as to try again with more jitter
        return False

    def judge(found: np.ndarray[Any, Any]) -> Exception | None:
        host = torch.from_numpy(found.copy())
        try:
            aten._linalg_check_errors.default(host, api_name, is_matrix=is_matrix)
        except RuntimeError as error:  # LinAlgError is one
            said = str(error)
            return torch_checks.explained(type(error), said, site, number)
        return None

    number = pending.number
    deferred_asserts.defer(state, judge)
    return True


def _must_peek() -> bool:
    """Return whether a check may neither wait for its step nor end it; asked without the lock."""
    return (
        config.read_policy == "peek"
        or introspection.at_debugger_prompt()
        or finalisers.interrupts_an_op()
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
