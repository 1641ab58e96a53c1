"""Result types of an op, asked of torch's meta kernels once and remembered, on disk, too.

A meta call costs 11 to 300 µs, so it happens only for an op on argument types not seen
before, in this process or in one that left what it learned beside its executables. Bad calls raise here, on the user's own line, with the exception that the CPU raises
(`argument_checks.py`).
"""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lazyrt.config import make_room
from lazyrt.execution import cache, transfer
from lazyrt.frontend import argument_checks
from lazyrt.frontend.argument_checks import PLAIN, blank, check, is_suspect, refusal
from lazyrt.frontend.torch_compat import freeing_importers, plain_dispatch
from lazyrt.ir.live import pending
from lazyrt.ir.node import (
    Leaf,
    Node,
    Op,
    Value,
    entry_lists,
    is_number,
    iter_values,
    map_values,
    strides_of,
)
from lazyrt.lowering.registry import rule_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


# ----------------------------------------- ops whose meta kernel knows other types than the CPU
# Each function takes what the op takes, with meta tensors, and returns meta tensors of the types
# of its results. An op without a meta kernel needs none: the CPU runs it on blank tensors.


Tensor = torch.Tensor
Types = Any


def _first(count: int) -> Callable[..., Types]:
    """Return results of the types that the first operands have."""
    return lambda *operands, **_: operands[:count]


def _multi_margin(
    x: Tensor, target: Tensor, p: Any = 1, margin: Any = 1, weight: Any = None,
    reduction: int = 1,
) -> Types:  # fmt: skip
    result = _aten.multi_margin_loss.default(x, target, p, margin, weight, reduction)
    return result if target.dim() else result.new_empty(())


def _multilabel_margin(x: Tensor, target: Tensor, reduction: int) -> Types:
    forward = _aten.multilabel_margin_loss_forward.default
    result, marks = forward(x, target, reduction)
    return result if target.dim() > 1 else result.new_empty(()), marks


def _lstm_cell(inputs: Tensor, hidden: Tensor, cell: Tensor, *biases: Any) -> Types:
    """The types of a cell with or without biases; torch's own takes one with biases only."""
    given = [bias for bias in biases if bias is not None]
    zeros = given or [inputs.new_empty(inputs.shape[1])] * 2
    return _aten._thnn_fused_lstm_cell.default(inputs, hidden, cell, *zeros)


def _grouped_mm(a: Tensor, b: Tensor, *args: Any) -> Types:
    """The product of matrices with rows or columns in groups; torch's own asks for bfloat16."""
    if a.dtype is not b.dtype or a.dtype not in {torch.float32, torch.float16}:
        return _aten._grouped_mm.default(a, b, *args)
    result = _aten._grouped_mm.default(a.bfloat16(), b.bfloat16(), *args)
    return result.to(a.dtype)


def _convolution(x: Tensor, weight: Tensor, *args: Any) -> Types:
    result = _aten.convolution.default(x, weight, *args)
    return _laid_out(result, x, weight)


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *args: Any) -> Types:
    of_input, *others = _aten.convolution_backward.default(grad, x, weight, *args)
    laid_out = None if of_input is None else _laid_out(of_input, x, weight)
    return laid_out, *others


def _laid_out(result: Tensor, *operands: Tensor) -> Tensor:
    """Give a result channels last if an operand has them there, as the CPU's kernels do."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(result.dim())
    if last is None or not result.numel():
        return result
    for operand in operands:
        is_last = operand.is_contiguous(memory_format=last)
        if is_last and not operand.is_contiguous():
            return result.contiguous(memory_format=last)
    return result


def _without_statistics(
    func: torch._ops.OpOverload,
) -> Callable[..., Types]:
    """Return the types of a batch norm: in evaluation it saves no statistics."""

    def types(*args: Any) -> Types:
        results = list(func(*args))
        training = args[5]
        if not training:
            results[1:3] = [saved.new_empty(0) for saved in results[1:3]]
        return tuple(results)

    return types


def _batch_norm_backward(*args: Any) -> Types:
    """The gradients that are asked for; torch's own gives that of the input in any case."""
    results = _aten.native_batch_norm_backward.default(*args)
    asked = args[-1]
    return tuple(
        r if wanted else None for r, wanted in zip(results, asked, strict=True)
    )


@contextlib.contextmanager
def _any_algorithm() -> Iterator[None]:
    """Let a meta kernel take what CUDA refuses for deterministic algorithms: here each run gives the same."""
    asked = torch.are_deterministic_algorithms_enabled()
    if not asked:
        yield
        return
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(mode=False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(asked, warn_only=only_warns)


_aten = torch.ops.aten

RESULT_TYPES: dict[str, Callable[..., Types]] = {
    **{
        str(func): _without_statistics(func)
        for func in (
            _aten.native_batch_norm.default,
            _aten._native_batch_norm_legit_functional.default,
        )
    },
    "aten.native_batch_norm_backward.default": _batch_norm_backward,
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
    "aten._fused_adam.default": _first(5),
    "aten._fused_adam.tensor_lr": _first(5),
    "aten._fused_adamw.default": _first(5),
    "aten._fused_adamw.tensor_lr": _first(5),
    "aten._fused_sgd.default": _first(3),
    "aten._fused_sgd.tensor_lr": _first(3),
    "aten._fused_adagrad.default": _first(4),
    "aten._fused_adagrad.tensor_lr": _first(3),
    "aten._thnn_fused_lstm_cell.default": _lstm_cell,
    "aten.multi_margin_loss.default": _multi_margin,
    "aten.multilabel_margin_loss_forward.default": _multilabel_margin,
    "aten.pow.Tensor_Scalar": lambda x, exponent: torch.empty_like(
        x, dtype=torch.result_type(x, exponent)
    ),
    "aten._grouped_mm.default": _grouped_mm,
}


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

    The answer has the structure of the op's result: a `Result`, None for an undefined tensor, or a
    tuple of these. `func` is the overload that the user called, when it is not `op.func`: its
    in-place or out= form is run instead, for the checks that only it makes.
    """
    called = func or op.func
    if func is not None:
        check_inputs(func, args)
    key = (called, type_key(args), torch.get_default_dtype())
    found = _remembered.get(key, _remembered)
    if found is _remembered:
        make_room("result types", _remembered, "max_result_types")
        found = _remembered[key] = _learned(called, key, args)
    return found


def _learned(called: torch._ops.OpOverload, key: Any, args: Sequence[Any]) -> Any:
    """Return result types as another process wrote them down, else ask torch.

    An op that torch warns of is asked each time: the warning comes from there.
    """
    name = str(called)
    question = cache.Question(
        "" if argument_checks.warns_of(name) else name, "types", key[1:]
    )
    answer = question.answer()
    if answer is not None:
        with contextlib.suppress(TypeError, ValueError, AttributeError):
            return _from_json(answer[0])
    with freeing_importers():
        found = _infer_entries(called, args)
    question.learn([_to_json(found)])
    return found


def _to_json(found: Any) -> Any:
    """Return result types as JSON: an object for each type, a list for a tuple."""
    if isinstance(found, Result):
        dtype = str(found.dtype).removeprefix("torch.")
        return {"of": [found.shape, dtype, found.strides, found.offset]}
    return found if found is None else [_to_json(part) for part in found]


def _from_json(answer: Any) -> Any:
    if isinstance(answer, list):
        return tuple([_from_json(part) for part in answer])
    if answer is None:
        return None
    shape, dtype, strides, offset = answer["of"]
    laid_out = None if strides is None else tuple(strides)
    return Result(tuple(shape), getattr(torch, dtype), laid_out, offset)


_LEAST_MAXIMUM = min(
    torch.finfo(dtype).max
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
    and dtype.is_floating_point
    and dtype is not torch.float4_e2m1fn_x2  # which torch knows no maximum of
)


def has_large_inputs(args: Sequence[Any]) -> bool:
    """Return whether a float that is an input among the components of a key needs a check.

    There is no tensor dtype that cannot hold a smaller one.
    """
    for arg in args:
        if arg.__class__ is tuple:
            # A list has tensors or numbers.
            first = arg[0] if arg else None
            is_data = first.__class__ is Leaf and first.kind == "data"
            if first.__class__ is Value or is_data:
                continue
            if has_large_inputs(arg):
                return True
        elif arg.__class__ is Leaf and arg.kind == "float":
            number = abs(pending.floats[arg.position])
            if math.isfinite(number) and number > _LEAST_MAXIMUM:
                return True
    return False


def check_inputs(func: torch._ops.OpOverload, args: Sequence[object]) -> None:
    """Check the floats that an in-place op takes as inputs, as they are where it is recorded."""
    values = list(iter_values(args))
    inputs = {
        value: pending.floats[value.position]
        for value in values
        if isinstance(value, Leaf) and value.kind == "float"
    }
    largest = max(map(abs, filter(math.isfinite, inputs.values())), default=0.0)
    dtypes = {value.dtype for value in values if value.dtype.is_floating_point}
    if not any(largest > torch.finfo(dtype).max for dtype in dtypes):
        return
    known = map_values(args, lambda v: (float, inputs[v]) if v in inputs else v)
    said = refusal(lambda: run_blank(func, known))
    if said is not None:
        raise said


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


_UNFIT = (
    "{} got operands whose dtypes or shapes do not go together, and the CPU refuses such calls. "
    "Convert or reshape them first."
)


def _infer_entries(func: torch._ops.OpOverload, args: Sequence[Any]) -> Any:
    """Run the meta kernel with one entry of each type, where an op does the same to each entry.

    An optimizer's lists have an entry for each parameter, of a few types. A call that torch refuses
    is run with all entries, for its error.
    """
    lists = entry_lists(func, args)
    if not lists:
        return _run_meta(func, args)
    types = list(zip(*(type_key(args[at]) for at in lists), strict=True))
    number = {each: k for k, each in enumerate(dict.fromkeys(types))}
    chosen = [types.index(each) for each in number]
    fewer = [
        tuple(arg[k] for k in chosen) if at in lists else arg
        for at, arg in enumerate(args)
    ]
    try:
        found = _run_meta(func, fewer)
    except PLAIN:
        return _run_meta(func, args)

    def expand(results: Any) -> Any:
        if not results:  # of an in-place op, or of an empty list
            return results
        if isinstance(results[0], tuple):  # a list for each of several lists
            return tuple(map(expand, results))
        return tuple(results[number[each]] for each in types)

    return expand(found)


def _run_meta(func: torch._ops.OpOverload, args: Sequence[Any]) -> Any:
    metas = [_to_meta(arg) for arg in args]
    positional, keywords = call_arguments(func, metas)
    if _takes_device(func):
        keywords["device"] = torch.device("meta")
    check(str(func), positional, keywords)
    argument_checks.warn_of_op(str(func), positional, keywords)
    types = RESULT_TYPES.get(str(func))
    try:
        if is_suspect(str(func), positional, keywords):
            raise RuntimeError(_UNFIT.format(func))
        with plain_dispatch(), _any_algorithm():
            out = (
                types(*positional, **keywords)
                if types is not None
                else _accepting_numbers(func, positional, keywords)
            )
    except (*PLAIN, AssertionError) as error:  # an assertion of torch's own code
        kinds = {*PLAIN, AssertionError}
        is_refused = type(error) in kinds or (
            type(error) is NotImplementedError and rule_for(func) is not None
        )
        if torch.Tag.dynamic_output_shape in func.tags or not is_refused:
            raise
        accepted: list[object] = []
        said = refusal(
            lambda: accepted.append(run_blank(func, args)), NotImplementedError
        )
        if not accepted:
            raise said or error from None
        return _describe(accepted[0])
    _check_elements(func, args)
    return _describe(out)


# Dtypes that the CPU computes with. Of others, such as float8, the device knows more.
_COMMON = frozenset(
    (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
     torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
)  # fmt: skip
# Elementwise ops that torch does not mark as such.
_ELEMENTWISE = re.compile("aten::(_foreach_.*|floor_divide_?|rsub|complex|polar)")


def _check_elements(func: torch._ops.OpOverload, args: Sequence[object]) -> None:
    """Raise what the CPU raises for an elementwise op on these dtypes, or by this number.

    A meta kernel takes more, such as integers that have no result. One element tells.
    """
    dtypes = {value.dtype for value in iter_values(args) if not is_number(value)}
    is_plain = len(dtypes) == 1 and all(dtype.is_floating_point for dtype in dtypes)
    if not dtypes or is_plain or not dtypes <= _COMMON:
        return
    is_marked = torch.Tag.pointwise in func.tags
    if not is_marked and not _ELEMENTWISE.fullmatch(func._schema.name):
        return

    def element(arg: Any) -> Any:
        if isinstance(arg, Value) and not is_number(arg):
            return torch.ones([1] * len(arg.shape), dtype=arg.dtype, device="cpu")
        return _to_cpu(arg) if isinstance(arg, Value) else decode(arg, element)

    said = refusal(lambda: _call(func, [*map(element, args)]), NotImplementedError)
    if said is not None:
        raise said


def run_blank(func: torch._ops.OpOverload, args: Sequence[Any]) -> Any:
    """Call an op on blank CPU tensors, for what it says of a wrong call."""
    return _call(func, [*map(_to_cpu, args)])


def run_on_host(node: Node, values: Mapping[Value, Any]) -> Any:
    """Return what a node's op gives on the CPU, structured as the op's result.

    The values are CPU tensors, or numbers for lifted ones.
    """

    def convert(arg: Any) -> Any:
        return values[arg] if isinstance(arg, Value) else decode(arg, convert)

    return _call(node.op.func, list(map(convert, node.args)))


def _call(func: torch._ops.OpOverload, args: list[Any]) -> Any:
    positional, keywords = call_arguments(func, args)
    if _takes_device(func):
        keywords["device"] = torch.device("cpu")
    with plain_dispatch():
        return _accepting_numbers(func, positional, keywords)


transfer.set_run(_call)


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


def _to_cpu(arg: Any) -> Any:
    if isinstance(arg, Value):
        return _to_meta(arg) if is_number(arg) else blank(arg)
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
        if is_number(arg):
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
            if is_number(arg):
                parts.append(arg.kind)
            else:
                parts.append((arg.shape, arg.dtype, arg.strides, Value))
        elif arg.__class__ is tuple:
            parts.append(type_key(arg))
        else:
            parts.append((arg.__class__, arg))
    return tuple(parts)
