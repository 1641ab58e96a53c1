"""Result types of an op, asked of torch's meta kernels once and remembered.

A meta call costs 11 to 300 µs, so it happens only for an op on argument types not seen
before. Bad calls raise here, on the user's own line, with the exception that the CPU raises
(`cpu_errors.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lazyrt.execution import host_kernel
from lazyrt.frontend import warned
from lazyrt.frontend.checks import check
from lazyrt.frontend.cpu_errors import blank, in_words_of_the_cpu
from lazyrt.frontend.result_types import RESULT_TYPES
from lazyrt.frontend.torch_compat import freeing_importers, plain_dispatch
from lazyrt.ir.budgets import make_room
from lazyrt.ir.node import Leaf, Op, Value, strides_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lazyrt.ir.node import Node


@dataclass(frozen=True, slots=True)
class Result:
    """Type of one result; `offset` is that of a view in its base's storage."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] | None
    offset: int


_remembered: dict[Any, Any] = {}


def infer(
    op: Op, args: Sequence[Any], func: torch._ops.OpOverload | None = None
) -> Any:
    """Return the result types of `op` on `args` (schema order, values for tensors).

    The answer has the structure of the op's result: a `Result`, None for an undefined tensor,
    or a tuple of these.

    Args:
        op: The functional op.
        args: One entry for each argument of the schema.
        func: The overload that the user called, when it is not `op.func`: its in-place or
            out= form is run instead, for the checks that only it makes.
    """
    called = func or op.func
    key = (called, type_key(args), torch.get_default_dtype())
    found = _remembered.get(key, _remembered)
    if found is _remembered:
        make_room("result types", _remembered, "max_result_types")
        with freeing_importers():
            found = _remembered[key] = _run_meta(called, args)
    return found


def forget() -> None:
    """Empty the memory of result types."""
    _remembered.clear()


def call_arguments(
    func: torch._ops.OpOverload, args: Sequence[Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Split schema-ordered arguments into positional and keyword ones.

    Arguments with the value None at the end of the schema are left to their defaults.
    """
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for spec, arg in zip(func._schema.arguments, args, strict=False):
        if spec.kwarg_only:
            if arg is not None or not spec.has_default_value():
                keywords[spec.name] = arg
        else:
            positional.append(arg)
    return positional, keywords


# Ops without a meta kernel whose result has the type of one of their arguments.
_LIKE_ARGUMENT = {"aten::_ctc_loss_backward": 1}


def _run_meta(func: torch._ops.OpOverload, args: Sequence[Any]) -> Any:
    like = _LIKE_ARGUMENT.get(func._schema.name)
    if like is not None:
        return Result(args[like].shape, args[like].dtype, None, 0)
    metas = [_to_meta(arg) for arg in args]
    positional, keywords = call_arguments(func, metas)
    if _takes_device(func):
        keywords["device"] = torch.device("meta")
    check(str(func), positional, keywords)
    warned.of_op(str(func), positional, keywords)
    types = RESULT_TYPES.get(str(func))
    try:
        with plain_dispatch():
            out = (
                types(*positional, **keywords)
                if types is not None
                else _accepting_numbers(func, positional, keywords)
            )
    except _WRONG_CALLS as error:
        if torch.Tag.dynamic_output_shape in func.tags:
            raise
        raise in_words_of_the_cpu(lambda: run_blank(func, args), error) from None
    return _describe(out)


# What a kernel raises for a wrong call; others, such as NotImplementedError, have a meaning here.
_WRONG_CALLS = (RuntimeError, IndexError, ValueError, TypeError)


def run_blank(
    func: torch._ops.OpOverload,
    args: Sequence[Any],
    outs: Sequence[Any] = (),
    *,
    device: str = "cpu",
) -> None:
    """Call an op on blank tensors of a device, for what it says of a wrong call.

    Args:
        func: The op.
        args: Components of a key.
        outs: Tensors, or lists of them, for its arguments `out=`.
        device: `cpu` or `meta`.
    """
    convert = _to_cpu if device == "cpu" else _to_meta
    _call(func, [*map(convert, args), *outs], device)


def run_on_host(node: Node, values: Mapping[Value, Any]) -> Any:
    """Return what a node's op gives on the CPU, structured as the op's result.

    Args:
        node: Of an op that draws no random numbers.
        values: CPU tensors, or numbers for lifted ones, of all its operands.
    """

    def convert(arg: Any) -> Any:
        return values[arg] if isinstance(arg, Value) else decode(arg, convert)

    return _call(node.op.func, list(map(convert, node.args)))


def _call(func: torch._ops.OpOverload, args: list[Any], device: str = "cpu") -> Any:
    positional, keywords = call_arguments(func, args)
    if _takes_device(func):
        keywords["device"] = torch.device(device)
    with plain_dispatch():
        return _accepting_numbers(func, positional, keywords)


host_kernel.set_run(_call)


def _accepting_numbers(
    func: torch._ops.OpOverload, positional: Sequence[Any], keywords: dict[str, Any]
) -> Any:
    """Call an op, by the overload that takes numbers if that of its kernel refuses them.

    Of `xlogy(x, 2.0)` torch makes an op on tensors, whose kernel gets a number and whose overload
    takes none; a few, such as that of `add`, do.
    """
    arguments = func._schema.arguments
    try:
        return func(*positional, **keywords)
    except RuntimeError:
        if not any(
            isinstance(arg, (int, float, complex)) and str(argument.type) == "Tensor"
            for argument, arg in zip(arguments, positional, strict=False)
        ):
            raise
    return func.overloadpacket(*positional, **keywords)


def elements_of(args: Any) -> int:
    """Return how many elements the values among components of a key have."""
    if isinstance(args, Value):
        return math.prod(args.shape)
    return sum(map(elements_of, args)) if isinstance(args, (tuple, list)) else 0


def _to_cpu(arg: Any) -> Any:
    if isinstance(arg, Value):
        is_number = isinstance(arg, Leaf) and arg.kind in {"float", "int"}
        return _to_meta(arg) if is_number else blank(arg)
    return decode(arg, _to_cpu)


def _takes_device(func: torch._ops.OpOverload) -> bool:
    return any(argument.name == "device" for argument in func._schema.arguments)


def _describe(out: Any) -> Any:
    if isinstance(out, torch.Tensor):
        shape, start = tuple(out.shape), int(out.storage_offset())
        return Result(shape, out.dtype, strides_of(out), start)
    if isinstance(out, (tuple, list)):
        return tuple([_describe(part) for part in out])
    return None


def _to_meta(arg: Any) -> Any:
    if isinstance(arg, Value):
        if isinstance(arg, Leaf) and arg.kind in {"float", "int"}:
            return 1.5 if arg.kind == "float" else 1
        strides = arg.strides
        if strides is None:
            return torch.empty(arg.shape, dtype=arg.dtype, device="meta")
        return torch.empty_strided(arg.shape, strides, dtype=arg.dtype, device="meta")
    return decode(arg, _to_meta)


def decode(arg: Any, inner: Any) -> Any:
    """Undo the tags of a key component: `(float, 0.5)` → 0.5, tuple → list of `inner`."""
    if arg.__class__ is tuple:
        if len(arg) == 2 and arg[0].__class__ is type:  # noqa: PLR2004
            kind, value = arg
            return kind(value) if value.__class__ is str else value
        return [inner(part) for part in arg]
    if arg.__class__ is torch.device:
        return torch.device("meta")
    return arg


def type_key(args: Any) -> Any:
    """Return what infers the same result: components of a key, with types for values."""
    parts: list[Any] = []
    for arg in args:
        if isinstance(arg, Value):
            if isinstance(arg, Leaf) and arg.kind in {"float", "int"}:
                parts.append(arg.kind)
            else:
                parts.append((arg.shape, arg.dtype, arg.strides, Value))
        elif arg.__class__ is tuple:
            parts.append(type_key(arg))
        else:
            parts.append((arg.__class__, arg))
    return tuple(parts)
