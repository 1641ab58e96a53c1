"""torch's own table of ops, `op_db`, as cases: an op, a dtype, a few of its samples.

Importing the table takes seconds, so it happens on first use.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# How many samples of an op are looked at; those that run are spread evenly over them.
_MOST_SAMPLES = 48


@dataclass(frozen=True, slots=True)
class Case:
    """One op on one dtype.

    Attributes:
        name: The op's name, with its variant where it has one: `norm.fro`.
        info: The entry of `op_db`.
        dtype: Of the samples' tensors.
        has_backward: Whether the op has a derivative for this dtype.
    """

    name: str
    info: Any
    dtype: torch.dtype
    has_backward: bool

    def __str__(self) -> str:
        return f"{self.name} {str(self.dtype).removeprefix('torch.')}"


@functools.cache
def table() -> tuple[Any, ...]:
    """Return the entries of `op_db`."""
    from torch.testing._internal.common_methods_invocations import op_db

    return tuple(op_db)


def name_of(info: Any) -> str:
    """Return an entry's name with its variant: `norm.fro`."""
    variant = info.variant_test_name
    return f"{info.name}.{variant}" if variant else str(info.name)


def cases(dtype: torch.dtype, names: Iterable[str] | None = None) -> list[Case]:
    """Return the cases of a dtype in the table's order.

    Args:
        dtype: Ops that do not take it on the CPU are left out.
        names: Which ops; None for all.
    """
    chosen = None if names is None else set(names)
    return [
        Case(name_of(info), info, dtype, _has_backward(info, dtype))
        for info in table()
        if dtype in info.dtypes and (chosen is None or name_of(info) in chosen)
    ]


def _has_backward(info: Any, dtype: torch.dtype) -> bool:
    return bool(info.supports_autograd) and dtype in info.backward_dtypes


def samples(case: Case, count: int) -> Sequence[Any]:
    """Return up to `count` of an op's samples on the CPU, the first one and others spread out."""
    torch.manual_seed(0)
    stream = case.info.sample_inputs(
        torch.device("cpu"), case.dtype, requires_grad=case.has_backward
    )
    found = list(itertools.islice(stream, _MOST_SAMPLES))
    if len(found) <= count:
        return found
    step = (len(found) - 1) / max(count - 1, 1)
    return [found[round(k * step)] for k in range(count)]


def bad_calls(case: Case) -> Iterable[Any]:
    """Yield torch's own wrong calls of an op, on CPU tensors."""
    torch.manual_seed(0)
    if case.info.error_inputs_func is not None:
        yield from case.info.error_inputs("cpu")


def to_lazy(arg: Any) -> Any:
    """Return a sample's argument with lazy tensors of equal values, leaves of autograd."""
    if isinstance(arg, torch.Tensor):
        return _moved(arg).requires_grad_(arg.requires_grad)
    if isinstance(arg, (list, tuple)):
        parts = [to_lazy(part) for part in arg]
        return type(arg)(*parts) if hasattr(arg, "_fields") else type(arg)(parts)
    if isinstance(arg, dict):
        return {key: to_lazy(value) for key, value in arg.items()}
    if isinstance(arg, torch.device) or arg == "cpu":
        return torch.device("lazyrt")
    return arg


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """Return a lazy tensor that shows its storage as `tensor` shows its own."""
    if tensor.layout is not torch.strided:
        return tensor.detach().to("lazyrt")
    size = tensor.untyped_storage().nbytes() // tensor.itemsize
    if tensor.is_conj() or tensor.is_neg() or size <= tensor.numel():
        return tensor.detach().to("lazyrt")
    whole = tensor.detach().as_strided((size,), (1,), 0).to("lazyrt")
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def tensors(tree: Any) -> list[torch.Tensor]:
    """Return the tensors of nested lists, tuples and dicts, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        return []
    return [tensor for part in tree for tensor in tensors(part)]
