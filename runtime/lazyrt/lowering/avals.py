"""The types of tensors in a graph, and torch's promotion of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lazyrt.ir.node import type_text
from lazyrt.lowering.dtypes import default_dtype, number_dtype, promote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Unsupported(Exception):  # noqa: N818 - a rule declines
    """A rule does not cover these types or constants; says why."""


@dataclass(frozen=True, slots=True)
class Aval:
    """The type of a tensor.

    Attributes:
        shape: Sizes.
        dtype: torch dtype.
        weak: A Python number that is an input of the graph: a 0-d f64 or i64 array that
            takes part in dtype promotion as the number would.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    weak: bool = False

    def __str__(self) -> str:
        return type_text(self.shape, self.dtype)


def result_type(args: Iterable[Any]) -> torch.dtype:
    """Return torch's result type of tensors' types and Python numbers.

    Tensors with dimensions weigh more than 0-d tensors, these more than Python numbers.
    """
    found: list[torch.dtype | None] = [None, None, None]
    for arg in _operands(args):
        if not isinstance(arg, Aval):
            rank, dtype = 2, number_dtype(arg)
        elif arg.weak:
            is_float = arg.dtype.is_floating_point
            rank, dtype = 2, default_dtype() if is_float else torch.int64
        else:
            rank, dtype = (0 if arg.shape else 1), arg.dtype
        so_far = found[rank]
        found[rank] = dtype if so_far is None else torch.promote_types(so_far, dtype)
    return promote(found)


def _operands(args: Iterable[Any]) -> Iterator[Any]:
    for arg in args:
        if isinstance(arg, (list, tuple)):
            yield from _operands(arg)
        elif isinstance(arg, (Aval, bool, int, float, complex)):
            yield arg


def describe_types(args: Iterable[Any]) -> str:
    """Return the types of an op's tensors for a message: `f32[2,3], i64[2]`."""
    tensors = [str(arg) for arg in _operands(args) if isinstance(arg, Aval)]
    return ", ".join(tensors) or "no tensors"
