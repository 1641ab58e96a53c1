"""What the CPU says of a wrong call, in the words that users know and search for.

torch's meta kernels refuse what the CPU refuses, often in words of their own ("Invalid channel
dimensions"). So a call that was refused is made once more, on the CPU, with blank tensors of
the same types; its message is raised instead. Nothing of it happens in a call that is right.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from lazyrt.ir.node import Value

# A call on more is not made again: should the CPU accept it, it would take long.
_MOST_BYTES = 2**28
_PLAIN = (RuntimeError, IndexError, ValueError, TypeError)


def in_words_of_the_cpu(call: Callable[[], Any], error: Exception) -> Exception:
    """Return the error that `call` raises on the CPU; `error` if it raises no plain one.

    Args:
        call: Makes the call on blank tensors.
        error: What a meta kernel raised.
    """
    if type(error) not in _PLAIN:
        return error
    said = refusal(call)
    return error if said is None else said


def what_is_said(call: Callable[[], Any]) -> tuple[type[Exception], str] | None:
    """Return type and words of the plain error that `call` raises; None if it raises none."""
    said = refusal(call)
    return None if said is None else (type(said), str(said))


def refusal(call: Callable[[], Any]) -> Exception | None:
    """Return the error of a call on the CPU if it is of the kind that tells a user what is wrong."""
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            call()
    except Exception as said:  # noqa: BLE001 - any other kind is no answer
        is_of_memory = isinstance(said, MemoryError) or "allocat" in str(said)
        return said if type(said) in _PLAIN and not is_of_memory else None
    return None


def blank(value: Value) -> torch.Tensor:
    """Return a CPU tensor of a value's type: zeros where numbers may be positions.

    Raises:
        MemoryError: It is too large.
    """
    strides = value.strides
    reach = math.prod(value.shape)
    if strides is not None and reach:
        pairs = zip(value.shape, strides, strict=True)
        reach = 1 + sum((size - 1) * stride for size, stride in pairs)
    if reach * value.dtype.itemsize > _MOST_BYTES:
        raise MemoryError
    is_number = value.dtype.is_floating_point or value.dtype.is_complex
    make = torch.empty if is_number else torch.zeros
    flat = make(reach, dtype=value.dtype, device="cpu")
    return (
        flat.view(value.shape)
        if strides is None
        else flat.as_strided(value.shape, strides)
    )
