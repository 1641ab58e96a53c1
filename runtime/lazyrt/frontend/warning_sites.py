"""torch's own warnings, reported at the line that torch names: the innermost one that is not ours.

These are the warnings of torch's kernels for the CPU. What torch says above a device it says
for this one, too.
"""

from __future__ import annotations

import math
import sys
import warnings
from typing import TYPE_CHECKING, Any

import torch

from lazyrt.frontend.provenance import is_own

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

_said: set[str] = set()

_OF_OPS = {
    "aten.cholesky.default": "torch.cholesky is deprecated in favor of torch.linalg.cholesky and "
    "will be removed in a future PyTorch release.",
    "aten.triangular_solve.default": "torch.triangular_solve is deprecated in favor of "
    "torch.linalg.solve_triangularand will be removed in a future PyTorch release.\n"
    "torch.linalg.solve_triangular has its arguments reversed and does not return a copy of one "
    "of the inputs.\nX = torch.triangular_solve(B, A).solution\nshould be replaced with\n"
    "X = torch.linalg.solve_triangular(A, B).",
    "aten.index_reduce.default": "index_reduce() is in beta and the API may change at any time.",
}
_DISCARDS = "Casting complex values to real discards the imaginary part"


def warn(text: str) -> None:
    """Warn at the caller's line, as often as Python's filters let it through.

    Raises:
        UserWarning: A filter makes errors of such warnings.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_own(frame.f_code):
        frame = frame.f_back
    if frame is None:
        warnings.warn(text, UserWarning, stacklevel=2)
        return
    names = frame.f_globals
    warnings.warn_explicit(
        text,
        UserWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=names.get("__name__"),
        registry=names.setdefault("__warningregistry__", {}),
    )


def warn_once(text: str) -> None:
    """Warn for the first time in a process, as torch does with most of what it warns of.

    Raises:
        UserWarning: A filter makes errors of such warnings.
    """
    if text in _said and not torch.is_warn_always_enabled():
        return
    _said.add(text)
    warn(text)


def warn_of_resize(held: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Warn that an op gives its `out=` another shape; one without elements gets it silently."""
    if 0 in held:
        return
    warn(
        "An output with one or more elements was resized since it had shape "
        f"{list(held)}, which does not match the required output shape {list(wanted)}. This "
        "behavior is deprecated, and in a future PyTorch release outputs will not be resized "
        "unless they have zero elements. You can explicitly reuse an out tensor t by resizing "
        "it, inplace, to zero elements with t.resize_(0)."
    )


def warn_of_cast(source: torch.Tensor, target: torch.dtype) -> None:
    """Warn if a conversion keeps the real parts of complex numbers alone."""
    if not source.is_complex() or target.is_complex or target is torch.bool:
        return
    if source.numel():
        warn_once(_DISCARDS)


def warn_of_count(out: torch.Tensor, count: int) -> None:
    """Warn that `arange` computes another number of elements than its `out=` has."""
    if out.numel() not in {0, count}:
        warn(
            f"The number of elements in the out tensor of shape {list(out.shape)} is {out.numel()} "
            f"which does not match the computed number of elements {count}. Note that this may "
            "occur as a result of rounding error. The out tensor will be resized to a tensor of "
            f"shape ({count},)."
        )


def warns_of(name: str) -> bool:
    """Return whether `warn_of_op` may warn of an op."""
    return name in _OF_OPS or name in _SPREADS


def warn_of_op(name: str, positional: Sequence[Any], keywords: dict[str, Any]) -> None:
    """Warn of a functional op that torch warns of whenever it is called, or for its arguments.

    Args:
        name: Of the op.
        positional: Its arguments, with meta tensors.
        keywords: Those that have names only.
    """
    if name in _OF_OPS:
        warn_once(_OF_OPS[name])
    elif name in _SPREADS:
        _of_freedom(_SPREADS[name], *positional, **keywords)


def _of_freedom(
    name: str, x: torch.Tensor, dim: Any = None, *, correction: Any = None, **_: Any
) -> None:
    """Warn that no number is left after the correction, so that a variance is NaN or infinite."""
    dims = range(x.dim()) if dim is None or len(dim) == 0 else dim
    if not all(-x.dim() <= d < x.dim() for d in dims):
        return  # the op refuses them
    count = math.prod(x.shape[d] for d in dims)
    if (count if x.numel() else 0) <= (1 if correction is None else correction):
        warn(
            f"{name}(): degrees of freedom is <= 0. Correction should be strictly less than the "
            "reduction factor (input numel divided by output numel)."
        )


_SPREADS = {
    f"aten.{name}.correction": name for name in ("std", "var", "std_mean", "var_mean")
}
