"""`out=`: kernels that write what an op has computed to tensors that they are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lazyrt.errors import DeviceError
from lazyrt.frontend import argument_checks, generators
from lazyrt.frontend.buffers import component, value_of
from lazyrt.frontend.fallback import run_on_cpu
from lazyrt.frontend.kernels import Kernel, write
from lazyrt.frontend.record import FallbackNeeded, functional, operation
from lazyrt.frontend.torch_compat import DEVICE_TYPE, TorchGenerator
from lazyrt.frontend.views import resize
from lazyrt.ir.live import Generator, lock, random_leaf, undo_random

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lazyrt.ir.node import Value


def out_kernel(func: torch._ops.OpOverload, pure: torch._ops.OpOverload) -> Kernel:
    """Return the kernel of `foo.out(..., out=t)`: t is resized where it must be, and written."""
    arguments = func._schema.arguments
    first_out = next(k for k, argument in enumerate(arguments) if argument.is_out)
    op = operation(pure)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        full = [
            *args,
            *(kwargs.get(a.name, a.default_value) for a in arguments[len(args) :]),
        ]
        given, targets = full[:first_out], full[first_out:]
        with lock:
            parts = tuple([component(arg) for arg in given])
            source = _source_among(full)
            key = (random_leaf(source), *parts) if op.is_random else parts
            try:
                result = functional(op, key)
                check_outs(func, targets, _matched(result, targets))
            except FallbackNeeded as needed:
                if op.is_random:
                    undo_random(source)
                pure_args = dict(zip((a.name for a in arguments), given, strict=False))
                made = run_on_cpu(pure, [], pure_args, str(needed))
                made = made if isinstance(made, (tuple, list)) else [made]
                result = [value_of(tensor) for tensor in made]
                check_outs(func, targets, _matched(result, targets))
            except BaseException:
                if op.is_random:
                    undo_random(source)
                raise
            for target, value in zip(targets, _matched(result, targets), strict=True):
                write_out(target, value)
        if not func._schema.returns:
            return None
        return targets[0] if len(targets) == 1 else tuple(targets)

    return kernel


def _matched(result: Any, targets: list[Any]) -> list[Any]:
    """Return what belongs to each `out=`: one value, or a list of them for a list."""
    is_one = result.__class__ not in (tuple, list) or _is_list(targets[0])
    return [result] if is_one else list(result)


def _is_list(arg: Any) -> bool:
    return arg.__class__ in (list, tuple)


def _source_among(args: list[Any]) -> Generator:
    """Return what an op with these arguments draws from."""
    given = [arg for arg in args if isinstance(arg, TorchGenerator)]
    return generators.source(given[0] if given else None)


def check_outs(
    func: torch._ops.OpOverload, targets: Sequence[Any], values: Sequence[Any]
) -> None:
    """Check that what an op has computed can be written to each `out=`, before any is written.

    Args:
        func: The op with `out=`.
        targets: Tensors, or lists of them.
        values: What belongs to each.

    Raises:
        RuntimeError: One repeats elements, or cannot hold the result's kind of number.
        DeviceError: One lives on another device.
    """
    for target, value in _pairs(targets, values):
        _check_out(func, target, value)


def _pairs(
    targets: Sequence[Any], values: Sequence[Any]
) -> Iterator[tuple[torch.Tensor, Value]]:
    for target, value in zip(targets, values, strict=True):
        if _is_list(target):
            yield from _pairs(target, value)
        else:
            yield target, value


def _check_out(func: torch._ops.OpOverload, target: torch.Tensor, value: Value) -> None:
    if target.device.type != DEVICE_TYPE:
        raise DeviceError(
            f"Expected all tensors to be on the same device, but out= is on {target.device}. An "
            f"op on {DEVICE_TYPE} writes there only. Leave out= away and copy the result."
        )
    if any(
        stride == 0 and size > 1
        for stride, size in zip(target.stride(), target.shape, strict=True)
    ):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            f"single memory location: out= of {func} has strides {tuple(target.stride())}. "
            "Please clone() the tensor before performing the operation."
        )
    if not torch.can_cast(value.dtype, target.dtype):
        raise RuntimeError(
            f"result type {value.dtype} can't be cast to the desired output type {target.dtype}"
        )


def write_out(target: Any, value: Any) -> None:
    """Write what an op has computed to its `out=`, which is resized where it must be."""
    for tensor, part in _pairs([target], [value]):
        if tuple(tensor.shape) != part.shape:
            argument_checks.warn_of_resize(tuple(tensor.shape), part.shape)
            resize(tensor, part.shape, part.strides)
        write(tensor, part)
