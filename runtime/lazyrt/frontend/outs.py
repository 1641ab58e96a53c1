"""`out=`: kernels that write what an op has computed to tensors that they are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lazyrt.errors import DeviceError
from lazyrt.frontend import argument_checks, generators
from lazyrt.frontend.argument_checks import refusal
from lazyrt.frontend.buffers import component, state_of, value_of
from lazyrt.frontend.fallback import run_on_cpu
from lazyrt.frontend.infer import elements_of, run_blank, type_key
from lazyrt.frontend.kernels import Kernel, write
from lazyrt.frontend.record import FallbackNeeded, functional, operation
from lazyrt.frontend.torch_compat import DEVICE_TYPE, TorchGenerator, is_lazy
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
            if str(func) in _APART:
                _check_apart(func, given, targets)
            parts = tuple([component(arg) for arg in given])
            source = _source_among(full)
            key = (random_leaf(source), *parts) if op.is_random else parts
            try:
                result = functional(op, key)
                check_outs(func, given, targets, _matched(result, targets))
            except FallbackNeeded as needed:
                if op.is_random:
                    undo_random(source)
                pure_args = dict(zip((a.name for a in arguments), given, strict=False))
                made = run_on_cpu(pure, [], pure_args, str(needed))
                made = made if isinstance(made, (tuple, list)) else [made]
                result = [value_of(tensor) for tensor in made]
                check_outs(func, given, targets, _matched(result, targets))
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


# Ops whose out= may share no memory with an operand; others read everything first.
_APART = frozenset(
    ("aten.cat.out", "aten.gather.out", "aten.index_select.out", "aten.kthvalue.values",
     "aten.masked_select.out", "aten.max.dim_max", "aten.median.dim_values", "aten.min.dim_min",
     "aten.mode.values", "aten.stack.out", "aten.take.out")
)  # fmt: skip


def _check_apart(
    func: torch._ops.OpOverload, operands: list[Any], targets: list[Any]
) -> None:
    flat = [
        part
        for arg in operands
        for part in (arg if isinstance(arg, (list, tuple)) else (arg,))
        if isinstance(part, torch.Tensor)
    ]
    for target in targets:
        if any(_overlap(target, operand) for operand in flat):
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to "
                f"tensor refer to a single memory location: out= of {func} shares memory with "
                "an operand. Please clone() the tensor before performing the operation."
            )


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors' ranges of a storage have an element in common."""
    if one is other:
        return True
    if not is_lazy(one) or not is_lazy(other):
        return False
    if state_of(one).base is not state_of(other).base:
        return False
    (first, last), (begin, end) = _extent(one), _extent(other)
    return first < end and begin < last


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of a tensor in its storage, and the one behind its last."""
    start = int(tensor.storage_offset())
    reach = sum(
        int((n - 1) * s) for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    )
    stop = start + reach + 1 if tensor.numel() else start
    return start * tensor.itemsize, stop * tensor.itemsize


def check_outs(
    func: torch._ops.OpOverload,
    args: Sequence[Any],
    targets: Sequence[Any],
    values: Sequence[Any],
) -> None:
    """Check that what an op has computed can be written to each `out=`, before any is written.

    Args:
        func: The op with `out=`.
        args: Its arguments but for those.
        targets: Tensors, or lists of them.
        values: What belongs to each.

    Raises:
        RuntimeError: One repeats elements, or the dtypes do not fit.
        DeviceError: One lives on another device.
    """
    pairs = list(_pairs(targets, values))
    for target, value in pairs:
        _check_out(func, target, value)
    if any(target.dtype is not value.dtype for target, value in pairs):
        _check_conversions(func, args, targets, values)


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


# What the CPU said of calls whose out= has another dtype than the result: None for nothing.
_answers: dict[Any, tuple[type[Exception], str] | None] = {}
_MOST_ANSWERS = 256
# A call on more elements is made on the meta device, which knows most of what the CPU refuses.
_MOST_ELEMENTS = 2**20


def _check_conversions(
    func: torch._ops.OpOverload,
    args: Sequence[Any],
    targets: Sequence[Any],
    values: Sequence[Any],
) -> None:
    """Refuse an `out=` of another dtype where the CPU does; many ops convert what they write."""
    parts = [component(arg) for arg in args]
    dtypes = tuple([target.dtype for target, _ in _pairs(targets, values)])
    key = (func, type_key(parts), dtypes)
    if key not in _answers:
        if len(_answers) >= _MOST_ANSWERS:
            _answers.clear()
        _answers[key] = _answer(func, parts, targets, values)
    answer = _answers[key]
    if answer is not None:
        kind, words = answer
        raise kind(words)


def _answer(
    func: torch._ops.OpOverload,
    parts: Sequence[Any],
    targets: Sequence[Any],
    values: Sequence[Any],
) -> tuple[type[Exception], str] | None:
    is_small = elements_of((parts, values)) <= _MOST_ELEMENTS
    device = "cpu" if is_small else "meta"

    def said(like: Any) -> tuple[type[Exception], str] | None:
        def blank(target: Any, value: Any) -> Any:
            if _is_list(target):
                return [*map(blank, target, value)]
            return torch.empty(value.shape, dtype=like(target, value), device=device)

        outs = [*map(blank, targets, values)]
        error = refusal(lambda: run_blank(func, parts, outs, device=device))
        return None if error is None else (type(error), str(error))

    refused = said(lambda target, _: target.dtype)
    # What it says of a call that it would accept is about blank numbers.
    return None if refused == said(lambda _, value: value.dtype) else refused


def write_out(target: Any, value: Any) -> None:
    """Write what an op has computed to its `out=`, which is resized where it must be."""
    for tensor, part in _pairs([target], [value]):
        if tuple(tensor.shape) != part.shape:
            argument_checks.warn_of_resize(tuple(tensor.shape), part.shape)
            resize(tensor, part.shape, part.strides)
        write(tensor, part)
