"""Applying an op's rule, and what the rule is told: types, constants, the random state."""

# torch has no public name for an op's schema.
# ruff: noqa: SLF001

from __future__ import annotations

import difflib
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from lazyrt.errors import LazyRuntimeError, LoweringError, NoLoweringError
from lazyrt.lowering import decompose
from lazyrt.lowering.arrays import (
    Array,
    Aval,
    Unsupported,
    cast,
    describe_types,
    has_jax_dtype,
    opmath_dtype,
    result_type,
    to_jax_dtype,
    to_torch_dtype,
)
from lazyrt.lowering.registry import rule_for, rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


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
        rest = [
            argument.default_value if argument.has_default_value() else None
            for argument in func._schema.arguments[len(args) :]
        ]
        return evaluate(func, [*args, *rest], [*types, *rest], outs, self.key)


def evaluate(
    func: torch._ops.OpOverload,
    args: Sequence[Any],
    avals: Sequence[Any],
    outs: Sequence[Aval | None],
    key: Array | None = None,
) -> list[Array | None]:
    """Compute a functional op on jax arrays or tracers.

    Args:
        func: The op.
        args: One entry for each schema argument: an array for a tensor, a Python list for a
            list, the constant itself otherwise.
        avals: The same with an `Aval` in place of each array.
        outs: Type of each result; None for one that torch leaves undefined.
        key: (seed, offset) of a random op as u64[2].

    Returns:
        One array of the declared type for each result.

    Raises:
        NoLoweringError: There is neither a rule nor a decomposition.
        LoweringError: The rule failed, or gave another shape than torch does.
    """
    values, types = _as_arrays(func, args, avals)
    ctx = OpContext(str(func), func, tuple(outs), types, key)
    for out in outs:
        if out is not None and not has_jax_dtype(out.dtype):
            raise _no_lowering(ctx, f"XLA has no counterpart of {out.dtype}")
    results = _apply(ctx, values)
    return [
        None if out is None else _conform(ctx, result, out)
        for result, out in zip(_flatten(ctx, results), outs, strict=True)
    ]


def _as_arrays(
    func: torch._ops.OpOverload, args: Sequence[Any], avals: Sequence[Any]
) -> tuple[list[Any], tuple[Any, ...]]:
    """Return arguments and types with Python numbers for tensors turned into weak arrays."""
    values, types = list(args), list(avals)
    for position in _tensor_positions(func):
        if isinstance(values[position], (bool, int, float, complex)):
            values[position], types[position] = _number(values[position])
    return values, tuple(types)


def _number(value: Any) -> tuple[Array, Any]:
    """Return a Python number as an array, and itself as what promotion goes by."""
    array = jnp.asarray(np.asarray(value))
    if isinstance(value, (float, int)) and not isinstance(value, bool):
        return array, Aval((), to_torch_dtype(array.dtype), weak=True)
    return array, Aval((), to_torch_dtype(array.dtype))


@functools.cache
def _tensor_positions(func: torch._ops.OpOverload) -> tuple[int, ...]:
    return tuple(
        position
        for position, argument in enumerate(func._schema.arguments)
        if str(argument.type) in {"Tensor", "Optional[Tensor]"}
    )


def _apply(ctx: OpContext, values: Sequence[Any]) -> Any:
    rule = rule_for(ctx.func)
    try:
        if rule is None:
            return decompose.apply(ctx.func, ctx.args, values, ctx.key, evaluate)
        return rule(ctx, *values)
    except Unsupported as refusal:
        raise _no_lowering(ctx, str(refusal)) from refusal
    except LazyRuntimeError:
        raise
    except Exception as error:
        raise _failure(ctx, error) from error


def _flatten(ctx: OpContext, results: Any) -> list[Any]:
    flat = list(results) if isinstance(results, (tuple, list)) else [results]
    if len(flat) != len(ctx.outs):
        raise LoweringError(
            f"the lowering of {_describe(ctx)} gave {len(flat)} results where torch gives "
            f"{len(ctx.outs)}, so they cannot be told apart. Correct its rule."
        )
    return flat


def _conform(ctx: OpContext, result: Any, out: Aval) -> Array:
    if result is None or tuple(jnp.shape(result)) != tuple(out.shape):
        shape = None if result is None else list(jnp.shape(result))
        raise LoweringError(
            f"the lowering of {_describe(ctx)} gave shape {shape} where torch gives "
            f"{list(out.shape)}, so the result would be wrong. Correct its rule."
        )
    return cast(result, out.dtype)


def _failure(ctx: OpContext, error: Exception) -> LoweringError:
    return LoweringError(
        f"the lowering of {_describe(ctx)} failed with {type(error).__name__}: {error}. The "
        f"rule does not cover these types: correct it, or run the op on the CPU with "
        f"lazyrt.fallback({ctx.name!r})."
    )


def _no_lowering(ctx: OpContext, reason: str) -> NoLoweringError:
    because = f" ({reason})" if reason else ""
    error = NoLoweringError(
        f"no lowering for {_describe(ctx)}{because}. Register one with "
        f"@lowers({ctx.name!r}), or run the op on the CPU with lazyrt.fallback({ctx.name!r})."
    )
    near = difflib.get_close_matches(ctx.name, rules(), n=3, cutoff=0.7)
    near = [name for name in near if name != ctx.name]
    if near:
        error.add_note(f"lowered ops with similar names: {', '.join(near)}")
    return error


def _describe(ctx: OpContext) -> str:
    return f"{ctx.name} on {describe_types(ctx.args)}"
