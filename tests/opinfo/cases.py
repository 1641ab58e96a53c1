"""torch's own table of ops, `op_db`, as cases: an op, a dtype, a few of its samples.

Importing the table takes seconds, so it happens on first use.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

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
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo import core

    # For each sample it reads the source of every frame on the stack, in search of a TestCase.
    for module in (common_utils, core):
        setattr(module, "extract_test_fn", lambda: None)  # noqa: B010 - it has no types
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
    differentiable = dtype.is_floating_point or dtype.is_complex
    return differentiable and info.supports_autograd and dtype in info.backward_dtypes


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
    """Return torch's own wrong calls of an op, on CPU tensors, with ones for `torch.empty`.

    Memory as it was found holds NaN at times, which would be refused as data.
    """
    torch.manual_seed(0)
    if case.info.error_inputs_func is None:
        return []
    with mock.patch.object(torch, "empty", torch.ones):
        return list(case.info.error_inputs("cpu"))


def to_lazy(tree: Any) -> Any:
    """Return a call's arguments with lazy tensors of equal values, leaves of autograd.

    Tensors that share storage on the CPU share it on the device.
    """
    storages = Counter(
        tensor.untyped_storage()._cdata
        for tensor in {id(t): t for t in tensors(tree)}.values()
        if tensor.layout is torch.strided
    )
    return _moved(tree, storages, {})


def _moved(arg: Any, storages: Counter[int], memo: dict[Any, torch.Tensor]) -> Any:
    if isinstance(arg, torch.Tensor):
        if arg.device.type != "cpu":
            return arg
        if id(arg) not in memo:
            lazy = _moved_tensor(arg, storages, memo)
            memo[id(arg)] = lazy.requires_grad_(arg.requires_grad)
        return memo[id(arg)]
    if isinstance(arg, (list, tuple)):
        parts = [_moved(part, storages, memo) for part in arg]
        return type(arg)(*parts) if hasattr(arg, "_fields") else type(arg)(parts)
    if isinstance(arg, dict):
        return {key: _moved(value, storages, memo) for key, value in arg.items()}
    if isinstance(arg, torch.device) or arg == "cpu":
        return torch.device("lazyrt")
    return arg


def _moved_tensor(
    tensor: torch.Tensor, storages: Counter[int], memo: dict[Any, torch.Tensor]
) -> torch.Tensor:
    """Return a lazy tensor that shows its storage as `tensor` shows its own."""
    plain = tensor.detach()
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return plain.to("lazyrt")
    storage = tensor.untyped_storage()
    size = storage.nbytes() // tensor.itemsize
    if size == tensor.numel() and storages[storage._cdata] == 1:
        return plain.to("lazyrt")
    key = (storage._cdata, tensor.dtype)
    if key not in memo:
        memo[key] = plain.as_strided((size,), (1,), 0).to("lazyrt")
    return memo[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def tensors(tree: Any) -> list[torch.Tensor]:
    """Return the tensors of nested lists, tuples and dicts, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        return []
    return [tensor for part in tree for tensor in tensors(part)]
