"""Kernels of linear algebra that look at more than values: at layouts, or at success."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lazyrt.config import config
from lazyrt.execution.executor import barrier
from lazyrt.frontend import checking, finalisers, onlookers, provenance, reads
from lazyrt.frontend.buffers import state_of, value_of
from lazyrt.frontend.kernels import emit, functional_kernel
from lazyrt.frontend.record import functional, operation
from lazyrt.frontend.torch_compat import aten, autograd_node
from lazyrt.ir.live import lock

if TYPE_CHECKING:
    from collections.abc import Callable

# How torch's own nodes of backward end; those of a user's `autograd.Function` do not.
_OF_TORCH = "Backward0"
_FAILED: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]


def check_errors(info: torch.Tensor, api_name: str, *, is_matrix: bool) -> None:
    """`aten._linalg_check_errors`: raise where a factorisation failed.

    The program needs to know now, so what is pending runs: a cut of the graph, like a fallback
    and unlike a user's read also inside a step. The `_ex` functions of `torch.linalg` return
    `info` instead and run with the step. A derivative of torch's solves what forward has
    factorised, so its check waits for the step.

    Raises:
        torch.linalg.LinAlgError: A matrix was singular, not positive definite, ...
    """
    if not info.numel():
        return
    site = provenance.user_site(2)
    running = autograd_node()
    if running is not None and running[0].endswith(_OF_TORCH):
        with torch.no_grad():
            said = f"{api_name}: it failed in {running[0]}, as for a singular matrix"
            checking.require((info == 0).all(), said, _FAILED)
        return
    peeks = (
        config.read_policy == "peek"
        or onlookers.at_debugger_prompt()
        or finalisers.interrupts_an_op()
    )
    with lock:
        if state_of(info).is_pending and not peeks:
            barrier(f"{api_name}, which checks for errors", site)
    host = reads.peek(info, site)
    aten._linalg_check_errors.default(host, api_name, is_matrix=is_matrix)


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
