"""Numbers that an op refuses for their value.

A number that varies becomes an input of the graph, and nobody looks at an input while a node is
recorded. So a number that torch might refuse, such as a divisor that has become zero, stays a
constant: its node is new, and new nodes are checked.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from lazyrt.frontend.cpu_errors import what_is_said
from lazyrt.frontend.infer import run_blank
from lazyrt.ir.node import iter_values

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

    Args:
        func: An op.
        args: Its key.
        numbers: Its integers, and its floats and complex numbers as components of a key.

    Raises:
        RuntimeError: The CPU refuses a number that a tensor's dtype cannot hold; in its words.
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
    said = what_is_said(lambda: run_blank(func, args))
    if said is not None:
        kind, words = said
        raise kind(words)
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
