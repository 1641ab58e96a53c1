"""What new memory holds before anybody writes to it.

It is zero: reading memory that was never written would not be reproducible. Where a program asks
for deterministic algorithms, it is what torch writes there on other devices, so that such a read
shows: NaN, or the largest whole number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lazyrt.frontend.scalars import scalar_key
from lazyrt.frontend.torch_compat import fills_new_memory

if TYPE_CHECKING:
    from collections.abc import Callable

# Ops that give memory which nobody has written.
MAKERS = frozenset(
    ("empty.memory_format", "empty_strided", "empty_like", "empty_permuted", "new_empty",
     "new_empty_strided")
)  # fmt: skip


def content(dtype: torch.dtype) -> Any:
    """Return the number in each element of new memory, as a component of a key."""
    return scalar_key(_mark(dtype)) if fills_new_memory() else 0


def filling(kernel: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return the kernel of a maker that fills what it makes where the program asks for that."""

    def filled(*args: Any, **keywords: Any) -> torch.Tensor:
        made = kernel(*args, **keywords)
        return made.fill_(_mark(made.dtype)) if fills_new_memory() else made

    return filled


def _mark(dtype: torch.dtype) -> float:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return True if dtype is torch.bool else torch.iinfo(dtype).max
