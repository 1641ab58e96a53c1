"""Ops without a rule, lowered through torch's own decompositions.

The decomposition of an op is traced once for given operand types, on meta tensors, into a
list of simpler ops. Those are evaluated one by one, by rule or by decomposition again, so the
IR that a user sees keeps the op as it was called.
"""

# torch has no public name for an op's schema.
# ruff: noqa: SLF001, S101

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import torch
import torch._decomp
import torch.fx
from jax import lax
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from lazyrt.errors import NoLoweringError
from lazyrt.ir.budgets import make_room
from lazyrt.lowering.avals import Aval, Unsupported
from lazyrt.lowering.dtypes import default_dtype

if TYPE_CHECKING:
    from lazyrt.lowering.dtypes import Array

Evaluate = Callable[..., list[Any]]

_DYNAMIC = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


def apply(
    func: torch._ops.OpOverload,
    avals: Sequence[object],
    values: Sequence[Any],
    key: Array | None,
    evaluate: Evaluate,
) -> list[Any]:
    """Compute an op by its decomposition.

    Args:
        func: The op.
        avals: One entry for each schema argument: an `Aval` for a tensor, a list for a list,
            the constant itself otherwise.
        values: The same with arrays in place of avals.
        key: (seed, offset) of a random op as u64[2].
        evaluate: How to compute the simpler ops: `lazyrt.lowering.context.evaluate`.

    Raises:
        Unsupported: It has no decomposition, or none for these types.
    """
    program = _program(func, avals)
    tensors: list[Any] = []
    _collect(avals, values, tensors)
    found: dict[str, Any] = dict(zip(program.inputs, tensors, strict=True))
    for number, step in enumerate(program.steps):
        own = None if key is None else _fold(key, number)
        args = [_fill(arg, found) for arg in step.args]
        try:
            results = evaluate(step.func, args, step.avals, step.outs, own)
        except NoLoweringError as error:
            raise Unsupported(f"its decomposition needs {step.func}") from error
        found[step.name] = results[0] if step.is_single else results
    return [_fill(result, found) for result in program.results]


def _fold(key: Array, number: int) -> Array:
    """Return an independent random state for the `number`-th step of a decomposition."""
    if number == 0:
        return key
    mask = np.array([(number * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF, 0], np.uint64)
    return lax.bitwise_xor(key, jax.numpy.asarray(mask))


@dataclass(frozen=True, slots=True)
class _Ref:
    """The value of an earlier step or input, or one of its parts."""

    name: str
    index: int | None = None


@dataclass(frozen=True, slots=True)
class _Step:
    """One op of a decomposition; `args` has a `_Ref` in place of each tensor."""

    name: str
    func: torch._ops.OpOverload
    args: list[Any]
    avals: list[Any]
    outs: list[Aval | None]
    is_single: bool


@dataclass(frozen=True, slots=True)
class _Program:
    """The decomposition of one op on given types."""

    inputs: list[str]
    steps: list[_Step]
    results: list[Any]


_programs: dict[Any, _Program | str] = {}


def _program(func: torch._ops.OpOverload, avals: Sequence[object]) -> _Program:
    """Return the decomposition; refusals are remembered too."""
    key = (func, _frozen(avals), default_dtype())
    program = _programs.get(key)
    if program is None:
        make_room("decompositions", _programs, "max_decompositions")
        try:
            program = _build(func, avals)
        except Unsupported as refusal:
            program = str(refusal)
        _programs[key] = program
    if isinstance(program, str):
        raise Unsupported(program)
    return program


def _frozen(args: Any) -> Any:
    if isinstance(args, (list, tuple)):
        return tuple([_frozen(arg) for arg in args])
    return (args.__class__, repr(args) if isinstance(args, float) else args)


@functools.cache
def _table() -> Mapping[Any, Callable[..., Any]]:
    return {
        **torch._decomp.core_aten_decompositions(),
        **torch._decomp.decomposition_table,
    }


@functools.cache
def _decomposition(func: torch._ops.OpOverload) -> Callable[..., Any] | None:
    found = _table().get(func)
    if found is not None:
        return found
    return func.decompose if func._can_decompose() else None


def _build(func: torch._ops.OpOverload, avals: Sequence[object]) -> _Program:
    if _DYNAMIC & set(func.tags):
        raise Unsupported("the shape of its result depends on data")
    function = _decomposition(func)
    if function is None:
        raise Unsupported("it has no decomposition either")
    metas: list[torch.Tensor] = []
    with torch.inference_mode(mode=False), torch._C.DisableTorchFunction():
        template = [_to_meta(arg, metas) for arg in avals]
    positional, keywords = _split(func, template)

    def run(*tensors: torch.Tensor) -> Any:
        args, kwargs = _place(positional, tensors), _place(keywords, tensors)
        return function(*args, **kwargs)

    try:
        traced = _trace(run, metas)
        return _read(func, traced)
    except Unsupported:
        raise
    except Exception as error:
        reason = f"its decomposition failed with {type(error).__name__}: {error}"
        raise Unsupported(reason) from error


def _trace(run: Callable[..., Any], metas: list[torch.Tensor]) -> torch.fx.Graph:
    """Trace a function on meta tensors into functional ops."""
    with (
        torch.inference_mode(mode=False),
        torch.no_grad(),
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),  # no default device of the user's
        # One mode for the types of all steps; torch makes a new one for each, a third of the time.
        tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True))),
    ):
        traced: torch.fx.Graph = make_fx(run)(*metas).graph
        if any(_is_mutable(node) for node in traced.nodes):
            functional = torch.func.functionalize(run, remove="mutations_and_views")
            traced = make_fx(functional)(*metas).graph
    return traced


def _is_mutable(node: torch.fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def _to_meta(arg: Any, metas: list[torch.Tensor]) -> Any:
    """Return the argument with an `_Ref` for each tensor, whose meta tensor is appended."""
    if isinstance(arg, Aval):
        metas.append(torch.empty(arg.shape, dtype=arg.dtype, device="meta"))
        return _Ref("", len(metas) - 1)
    if isinstance(arg, (list, tuple)):
        return [_to_meta(part, metas) for part in arg]
    if isinstance(arg, torch.device):
        return torch.device("meta")
    return arg


def _place(args: Any, tensors: Sequence[Any]) -> Any:
    if isinstance(args, _Ref):
        assert args.index is not None
        return tensors[args.index]
    if isinstance(args, list):
        return [_place(part, tensors) for part in args]
    if isinstance(args, dict):
        return {name: _place(part, tensors) for name, part in args.items()}
    return args


def _collect(avals: Any, values: Any, tensors: list[Any]) -> None:
    for aval, value in zip(avals, values, strict=True):
        if isinstance(aval, Aval):
            tensors.append(value)
        elif isinstance(aval, (list, tuple)):
            _collect(aval, value, tensors)


def _split(
    func: torch._ops.OpOverload, args: Sequence[Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Split schema-ordered arguments; what is its default stays out of the keywords."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    takes_device = False
    for argument, arg in zip(func._schema.arguments, args, strict=False):
        takes_device |= argument.name == "device"
        if not argument.kwarg_only:
            positional.append(arg)
        elif arg is not None and argument.name not in {
            "layout",
            "pin_memory",
            "generator",
        }:
            keywords[argument.name] = arg
    if takes_device:
        keywords["device"] = torch.device("meta")
    return positional, keywords


def _read(func: torch._ops.OpOverload, graph: torch.fx.Graph) -> _Program:
    inputs: list[str] = []
    steps: list[_Step] = []
    results: list[Any] = []
    names = _Names()
    for node in graph.nodes:
        if node.op == "placeholder":
            inputs.append(node.name)
        elif node.op == "output":
            found = _refs(node.args[0], names)
            results = found if isinstance(found, list) else [found]
        elif node.op == "call_function" and isinstance(
            node.target, torch._ops.OpOverload
        ):
            if node.target is func:
                raise Unsupported("its decomposition leads back to it")
            steps.append(_step(node, names))
        elif node.op != "call_function":
            raise Unsupported(f"its decomposition holds a constant tensor, {node.name}")
    return _Program(inputs, _needed(steps, results), results)


class _Names:
    """Which step holds the newest value of a tensor that is written to in place.

    `functionalize` leaves in-place ops on fresh tensors in a few C++ decompositions. Views are
    gone by then, so an in-place op is its functional form under the name of its operand.
    """

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._newest: dict[str, str] = {}

    def of(self, name: str) -> str:
        first = self._first.get(name, name)
        return self._newest.get(first, name)

    def write(self, operand: str, name: str) -> None:
        first = self._first.get(operand, operand)
        self._first[name] = first
        self._newest[first] = name


def _functional(func: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """Return the op that computes what an in-place op writes."""
    namespace, name = func._schema.name.split("::")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    found: torch._ops.OpOverload | None = getattr(packet, func._overloadname, None)
    if found is None or found._schema.is_mutable:
        raise Unsupported(f"its decomposition needs {func}, which writes in place")
    return found


def _needed(steps: list[_Step], results: list[Any]) -> list[_Step]:
    """Drop the steps that no result depends on."""
    used = set(_names(results))
    kept = []
    for step in reversed(steps):
        if step.name in used:
            kept.append(step)
            used.update(_names(step.args))
    return kept[::-1]


def _names(args: Any) -> list[str]:
    if isinstance(args, _Ref):
        return [args.name]
    if isinstance(args, (list, tuple)):
        return [name for arg in args for name in _names(arg)]
    return []


def _step(node: torch.fx.Node, names: _Names) -> _Step:
    func = node.target
    assert isinstance(func, torch._ops.OpOverload)
    args: list[Any] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.name in node.kwargs:
            args.append(node.kwargs[argument.name])
        elif position < len(node.args):
            args.append(node.args[position])
        else:
            default = argument.default_value if argument.has_default_value() else None
            args.append(default)
    refs = [_refs(arg, names) for arg in args]
    if func._schema.is_mutable:
        func = _functional(func)
        names.write(_source(args[0]).name, node.name)
    outs = node.meta["val"]
    is_single = isinstance(outs, torch.Tensor)
    return _Step(
        name=node.name,
        func=func,
        args=refs,
        avals=[_types(arg) for arg in args],
        outs=[_aval(out) for out in ([outs] if is_single else outs)],
        is_single=is_single,
    )


def _refs(arg: Any, names: _Names) -> Any:
    if isinstance(arg, torch.fx.Node):
        source = _source(arg)
        return _Ref(names.of(source.name), source.index)
    if isinstance(arg, (list, tuple)):
        return [_refs(part, names) for part in arg]
    return arg


def _source(node: torch.fx.Node) -> _Ref:
    """Return the step that computes a node, through `operator.getitem`."""
    if node.op == "call_function" and not isinstance(
        node.target, torch._ops.OpOverload
    ):
        parent, index = node.args
        assert isinstance(parent, torch.fx.Node)
        assert isinstance(index, int)
        return _Ref(parent.name, index)
    return _Ref(node.name)


def _types(arg: Any) -> Any:
    if isinstance(arg, torch.fx.Node):
        return _aval(arg.meta["val"])
    if isinstance(arg, (list, tuple)):
        return [_types(part) for part in arg]
    return arg


def _aval(value: Any) -> Aval | None:
    return None if value is None else Aval(tuple(value.shape), value.dtype)


def _fill(arg: Any, found: Mapping[str, Any]) -> Any:
    if isinstance(arg, _Ref):
        value = found[arg.name]
        return value if arg.index is None else value[arg.index]
    if isinstance(arg, (list, tuple)):
        return [_fill(part, found) for part in arg]
    return arg
