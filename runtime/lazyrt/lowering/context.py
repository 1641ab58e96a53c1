"""What a lowering rule is told about its op: types, constants, the random state."""

# torch has no public name for an op's schema.
# ruff: noqa: SLF001, N818

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from lazyrt.ir.node import type_text
from lazyrt.lowering.dtypes import (
    Array,
    cast,
    default_dtype,
    number_dtype,
    opmath_dtype,
    promote,
    to_jax_dtype,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class Unsupported(Exception):
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


@dataclass(frozen=True, slots=True)
class OpContext:
    """One application of an op, as its rule sees it.

    Attributes:
        name: Qualified name of the overload, such as `aten.add.Tensor`.
        func: The overload.
        outs: Type of each result in order; None for a result nobody gets.
        args: One entry for each schema argument: an `Aval` for a tensor, a list for a list,
            the constant itself otherwise.
        key: (seed, offset) of a random op as u64[2], None for other ops.
    """

    name: str
    func: torch._ops.OpOverload
    outs: tuple[Aval | None, ...]
    args: tuple[Any, ...]
    key: Array | None = None

    @property
    def out(self) -> Aval:
        """The type of the first result that exists."""
        return next(out for out in self.outs if out is not None)

    @property
    def dtype(self) -> Any:
        """The jax dtype of the first result."""
        return to_jax_dtype(self.out.dtype)

    @property
    def compute(self) -> torch.dtype:
        """The dtype to compute the first result in: float32 for the half types."""
        return opmath_dtype(self.out.dtype)

    def promoted(self, *positions: int) -> torch.dtype:
        """Return torch's result type of the arguments at `positions`, of all if none given."""
        chosen = [self.args[k] for k in positions] if positions else self.args
        return result_type(chosen)

    def cast(self, *values: Any) -> list[Array]:
        """Return values as arrays of the dtype to compute the result in."""
        return [cast(value, self.compute) for value in values]

    def cast_optional(self, *values: Any) -> list[Array | None]:
        """Do what `cast` does with values of which some may be None."""
        return [
            None if value is None else cast(value, self.compute) for value in values
        ]

    def call(
        self,
        func: torch._ops.OpOverload,
        args: Sequence[Any],
        types: Sequence[Any],
        *outs: Aval,
    ) -> list[Any]:
        """Compute another op, by its rule or its decomposition.

        Args:
            func: The op.
            args: Its arguments in schema order; defaults may be left out at the end.
            types: The same with avals in place of arrays.
            outs: Types of its results.
        """
        from lazyrt.lowering.evaluate import evaluate

        rest = [
            argument.default_value if argument.has_default_value() else None
            for argument in func._schema.arguments[len(args) :]
        ]
        return evaluate(func, [*args, *rest], [*types, *rest], outs, self.key)

    def with_types(self, args: Iterable[Any], *outs: Aval | None) -> OpContext:
        """Return the context of the same op on other types."""
        return replace(self, args=tuple(args), outs=outs)


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
