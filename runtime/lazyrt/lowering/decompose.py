"""Ops without a rule, lowered through torch's own decompositions.

The decomposition of an op is traced once for given operand types, on meta tensors, into a
list of simpler ops. Those are evaluated one by one, by rule or by decomposition again, so the
IR that a user sees keeps the op as it was called.
"""

# torch has no public name for an op's schema.
# ruff: noqa: SLF001

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
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
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from lazyrt.errors import NoLoweringError
from lazyrt.ir.budgets import make_room
from lazyrt.lowering.arrays import Aval, Unsupported, default_dtype

if TYPE_CHECKING:
    from lazyrt.lowering.arrays import Array

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
    pairs = zip(tree_leaves([*avals]), tree_leaves([*values]), strict=True)
    tensors = [value for aval, value in pairs if isinstance(aval, Aval)]
    found = _Evaluation(program, key, evaluate).run(*tensors)
    return list(found) if isinstance(found, (list, tuple)) else [found]


class _Evaluation(torch.fx.Interpreter):
    """One run of a decomposition on arrays."""

    def __init__(
        self, program: torch.fx.GraphModule, key: Array | None, evaluate: Evaluate
    ) -> None:
        super().__init__(program, garbage_collect_values=False)
        self._key = key
        self._evaluate = evaluate
        self._count = 0
        self.extra_traceback = False  # errors keep their words

    def run_node(self, n: torch.fx.Node) -> Any:
        """Compute one op by its rule, or by its decomposition again."""
        func = n.target
        if not isinstance(func, torch._ops.OpOverload):
            return super().run_node(n)
        given = _arguments(func, n)
        args: Any = map_aggregate(given, self._value)
        avals: Any = map_aggregate(given, _type)
        outs = n.meta["val"]
        is_single = isinstance(outs, torch.Tensor)
        types = [_aval(out) for out in ([outs] if is_single else outs)]
        own = None if self._key is None else _fold(self._key, self._count)
        self._count += 1
        pure = _functional(func) if func._schema.is_mutable else func
        try:
            results = self._evaluate(pure, args, avals, types, own)
        except NoLoweringError as error:
            raise Unsupported(f"its decomposition needs {func}") from error
        if pure is not func:  # whoever reads the operand from now on gets the result
            old = self.env[given[0]]
            for node, value in self.env.items():
                if value is old:
                    self.env[node] = results[0]
        return results[0] if is_single else results

    def _value(self, arg: Any) -> Any:
        return self.env[arg] if isinstance(arg, torch.fx.Node) else arg


def _type(arg: Any) -> Any:
    return _aval(arg.meta["val"]) if isinstance(arg, torch.fx.Node) else arg


def _arguments(func: torch._ops.OpOverload, node: torch.fx.Node) -> list[Any]:
    """Return what an op gets for each argument of its schema."""
    args: list[Any] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.name in node.kwargs:
            args.append(node.kwargs[argument.name])
        elif position < len(node.args):
            args.append(node.args[position])
        else:
            default = argument.default_value if argument.has_default_value() else None
            args.append(default)
    return args


def _aval(value: Any) -> Aval | None:
    return None if value is None else Aval(tuple(value.shape), value.dtype)


def _fold(key: Array, number: int) -> Array:
    """Return an independent random state for the `number`-th step of a decomposition."""
    if number == 0:
        return key
    mask = np.array([(number * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF, 0], np.uint64)
    return lax.bitwise_xor(key, jax.numpy.asarray(mask))


def _functional(func: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """Return the op that computes what an in-place op writes.

    `functionalize` leaves in-place ops on fresh tensors in a few C++ decompositions; views are
    gone by then.
    """
    namespace, name = func._schema.name.split("::")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    found: torch._ops.OpOverload | None = getattr(packet, func._overloadname, None)
    if found is None or found._schema.is_mutable:
        raise Unsupported(f"its decomposition needs {func}, which writes in place")
    return found


_programs: dict[Any, torch.fx.GraphModule | str] = {}


def _program(
    func: torch._ops.OpOverload, avals: Sequence[object]
) -> torch.fx.GraphModule:
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


def _build(
    func: torch._ops.OpOverload, avals: Sequence[object]
) -> torch.fx.GraphModule:
    if _DYNAMIC & set(func.tags):
        raise Unsupported("the shape of its result depends on data")
    function = _decomposition(func)
    if function is None:
        raise Unsupported("it has no decomposition either")
    leaves, shape = tree_flatten([*avals])
    with torch.inference_mode(mode=False), torch._C.DisableTorchFunction():
        metas = [
            torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")
            for leaf in leaves
            if isinstance(leaf, Aval)
        ]

    def run(*tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        filled = [next(rest) if isinstance(leaf, Aval) else leaf for leaf in leaves]
        positional, keywords = _split(func, tree_unflatten(filled, shape))
        return function(*positional, **keywords)

    try:
        traced = _trace(run, metas)
    except Exception as error:
        reason = f"its decomposition failed with {type(error).__name__}: {error}"
        raise Unsupported(reason) from error
    for node in traced.graph.nodes:
        if node.target is func:
            raise Unsupported("its decomposition leads back to it")
        if node.op == "get_attr":
            raise Unsupported(f"its decomposition holds a constant tensor, {node.name}")
    traced.graph.eliminate_dead_code()
    return traced


def _trace(run: Callable[..., Any], metas: list[torch.Tensor]) -> torch.fx.GraphModule:
    """Trace a function on meta tensors into functional ops."""
    with (
        torch.inference_mode(mode=False),
        torch.no_grad(),
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),  # no default device of the user's
        # One mode for the types of all steps; torch makes a new one for each, a third of the time.
        tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True))),
    ):
        traced = make_fx(run)(*metas)
        if any(_is_mutable(node) for node in traced.graph.nodes):
            functional = torch.func.functionalize(run, remove="mutations_and_views")
            traced = make_fx(functional)(*metas)
    return traced


def _is_mutable(node: torch.fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


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
