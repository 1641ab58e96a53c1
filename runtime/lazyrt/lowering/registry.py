"""The rules that lower ops: their table, what a rule is told, and how one is applied.

A rule is a function on jax arrays, called with an `OpContext` and one value for each argument
of the op's schema. It returns an array, or a sequence of them for an op with several results:

    @lowers("aten.addcmul.default")
    def addcmul(ctx, self, tensor1, tensor2, value):
        self, tensor1, tensor2, value = ctx.cast(self, tensor1, tensor2, value)
        return self + value * tensor1 * tensor2

Tensors come as arrays of their own dtype, numbers as Python numbers or as 0-d arrays (see
`Aval.weak`), so a rule casts what it computes with. Results are cast to the op's result
dtypes by whoever calls the rule. An op without a rule goes through torch's decomposition.
"""

# torch has no public name for an op's schema.
# ruff: noqa: SLF001

from __future__ import annotations

import contextlib
import difflib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
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

from lazyrt.config import make_room
from lazyrt.errors import LazyRuntimeError, LoweringError, NoLoweringError, UsageError
from lazyrt.lowering.arrays import (
    Array,
    Aval,
    Unsupported,
    cast,
    default_dtype,
    describe_types,
    has_jax_dtype,
    opmath_dtype,
    result_type,
    to_jax_dtype,
    to_torch_dtype,
)

Rule = Callable[..., Any]
_R = TypeVar("_R", bound=Rule)

_OWN = "lazyrt.lowering."
_rules: dict[str, Rule] = {}
# Ops whose rule came from outside of this package, and how often one came.
_given: dict[str, int] = {}
_versions: dict[tuple[str, int], Rule] = {}
_recorded: ContextVar[Mapping[str, int]]
_recorded = ContextVar("lazyrt_rules", default=MappingProxyType({}))
_noted: list[set[str]] = []
# What forgets what rules gave, called when somebody registers one.
on_change: list[Callable[[], None]] = []


def lowers(*names: str) -> Callable[[_R], _R]:
    """Register the decorated function as the rule of one or more ops.

    A later registration replaces an earlier one, for every op that is recorded from then on.

    Args:
        names: Qualified overloads, such as `aten.add.Tensor`.

    Raises:
        UsageError: A name lacks its overload, or there is no such op; what is decorated is no
            function.
    """
    given: tuple[object, ...] = names
    if not given:
        raise UsageError(
            "lowers() got no name, so there is no op to lower. Name one or more: "
            "@lowers('aten.relu.default')."
        )
    for name in given:
        if not isinstance(name, str):
            raise UsageError(
                f"lowers() got {name!r:.60}, which is {type(name).__name__}, not the name of an op, "
                "so there is no op to lower. Name it: @lowers('aten.relu.default')."
            )
        if name.count(".") != 2:  # noqa: PLR2004
            raise UsageError(
                f"lowers({name!r}) names no overload, so it would never be found. Write "
                f"namespace, op and overload, such as '{name}.default'."
            )

    def register(rule: _R) -> _R:
        if not callable(rule):
            raise UsageError(
                f"lowers({names[0]!r}) got {rule!r:.60} as its rule, which cannot be called, so "
                "the op would have no lowering any more. Decorate a function of jax arrays."
            )
        is_own = str(getattr(rule, "__module__", "")).startswith(_OWN)
        for name in () if is_own else names:
            _require_op(name)
        for name in names:
            if not is_own:
                times = _given.get(name, 0) + 1
                _versions[name, times] = rule
                _given[name] = times
            _rules[name] = rule
        for forget in () if is_own else on_change:
            forget()
        return rule

    return register


def _require_op(name: str) -> None:
    """Refuse the name of an op that torch does not have: its rule would never be asked for."""
    namespace, op, overload = name.split(".")
    packet = getattr(getattr(torch.ops, namespace), op, None)
    known = packet.overloads() if packet is not None else []
    if overload in known:
        return
    have = ", ".join(f"'{namespace}.{op}.{each}'" for each in known[:8])
    do = (
        f"Name one of {have}."
        if known
        else "Names look like 'aten.gelu.default'; an op of your own has to be defined first."
    )
    raise UsageError(
        f"lowers({name!r}): torch has no op of that name, so the rule would never be used. {do}"
    )


@contextlib.contextmanager
def noting_given() -> Iterator[set[str]]:
    """Collect the ops whose rule, one from outside of this package, is asked for meanwhile."""
    found: set[str] = set()
    _noted.append(found)
    try:
        yield found
    finally:
        _noted[:] = [each for each in _noted if each is not found]


@contextlib.contextmanager
def as_recorded(given: Iterable[tuple[str, int]]) -> Iterator[None]:
    """Lower an op by the rules that it was recorded with, though others may have come since."""
    before = _recorded.set(dict(given))
    try:
        yield
    finally:
        _recorded.reset(before)


def times_given(name: str) -> int:
    """Return how often a rule of an op came from outside of this package."""
    return _given.get(name, 0)


def has_given() -> bool:
    """Return whether any rule came from outside of this package."""
    return bool(_given)


def overloads(op: str, *suffixes: str) -> list[str]:
    """Return the qualified names of those overloads of `aten.<op>` that exist."""
    packet = getattr(torch.ops.aten, op)
    return [
        f"aten.{op}.{suffix}" for suffix in suffixes if suffix in packet.overloads()
    ]


def rule_for(func: torch._ops.OpOverload) -> Rule | None:
    """Return the rule of an op, None when there is none."""
    name = str(func)
    if name in _given:
        for found in _noted:
            found.add(name)
        times = _recorded.get().get(name)
        if times is not None:
            return _versions[name, times]
    return _rules.get(name)


def rules() -> Mapping[str, Rule]:
    """Return all rules by qualified op name, read-only."""
    return MappingProxyType(_rules)


# --------------------------------------------------------------------- applying a rule


@dataclass(frozen=True, slots=True)
class OpContext:
    """One application of an op, as its rule sees it.

    Attributes:
        name: Qualified name of the overload, such as `aten.add.Tensor`.
        func: The overload.
        outs: Type of each result in order; None for a result nobody gets.
        args: One entry for each schema argument: an `Aval` for a tensor, a list for a list,
            the constant itself otherwise.
        key: (seed, offset) of a random op as u64[2], None for other ops.
    """

    name: str
    func: torch._ops.OpOverload
    outs: tuple[Aval | None, ...]
    args: tuple[Any, ...]
    key: Array | None = None

    @property
    def out(self) -> Aval:
        """The type of the first result that exists."""
        return next(out for out in self.outs if out is not None)

    @property
    def dtype(self) -> Any:
        """The jax dtype of the first result."""
        return to_jax_dtype(self.out.dtype)

    @property
    def compute(self) -> torch.dtype:
        """The dtype to compute the first result in: float32 for the half types."""
        return opmath_dtype(self.out.dtype)

    def promoted(self, *positions: int) -> torch.dtype:
        """Return torch's result type of the arguments at `positions`, of all if none given."""
        chosen = [self.args[k] for k in positions] if positions else self.args
        return result_type(chosen)

    def cast(self, *values: Any) -> list[Array]:
        """Return values as arrays of the dtype to compute the result in."""
        return [cast(value, self.compute) for value in values]

    def cast_optional(self, *values: Any) -> list[Array | None]:
        """Do what `cast` does with values of which some may be None."""
        return [
            None if value is None else cast(value, self.compute) for value in values
        ]

    def named(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return the values of all arguments by their names in the op's schema."""
        names = (argument.name for argument in self.func._schema.arguments)
        return dict(zip(names, values, strict=True))

    def call(
        self,
        func: torch._ops.OpOverload,
        args: Sequence[Any],
        types: Sequence[Any],
        *outs: Aval,
    ) -> list[Any]:
        """Compute another op, by its rule or its decomposition.

        Defaults may be left out at the end of the arguments; the types have avals in place of
        arrays.
        """
        rest = [
            argument.default_value if argument.has_default_value() else None
            for argument in func._schema.arguments[len(args) :]
        ]
        return evaluate(func, [*args, *rest], [*types, *rest], outs, self.key)

    def pulled_back(
        self,
        grad: Array,
        inputs: Sequence[Array],
        rest: Sequence[Any],
        name: str = "",
        *spare: Aval,
    ) -> list[Array]:
        """Return what the forward op of this backward op passes back to its first arguments.

        `name` is the forward op's where it is another one than that of this without `_backward`;
        `spare` are the types of its results after the first.
        """
        name = name or self.name.split(".")[1].removesuffix("_backward")
        forward = getattr(torch.ops.aten, name).default
        types = [_aval_of(each) if hasattr(each, "dtype") else each for each in rest]

        def run(*values: Array) -> Array:
            given = [*map(_aval_of, values), *types]
            out = Aval(tuple(grad.shape), to_torch_dtype(grad.dtype))
            found: Array = self.call(forward, [*values, *rest], given, out, *spare)[0]
            return found

        return list(jax.vjp(run, *inputs)[1](grad))


def _aval_of(x: Array) -> Aval:
    return Aval(tuple(x.shape), to_torch_dtype(x.dtype))


def evaluate(
    func: torch._ops.OpOverload,
    args: Sequence[Any],
    avals: Sequence[Any],
    outs: Sequence[Aval | None],
    key: Array | None = None,
) -> list[Array | None]:
    """Compute a functional op on jax arrays or tracers.

    There is one argument for each of the schema, and one array of the declared type for each
    result. NoLoweringError: there is neither a rule nor a decomposition. LoweringError: the rule
    failed, or gave another shape than torch does.
    """
    values, types = _as_arrays(func, args, avals)
    ctx = OpContext(str(func), func, tuple(outs), types, key)
    for out in outs:
        if out is not None and not has_jax_dtype(out.dtype):
            raise _no_lowering(ctx, f"XLA has no counterpart of {out.dtype}")
    results = _apply(ctx, values)
    return [
        None if out is None else _conform(ctx, result, out)
        for result, out in zip(_flatten(ctx, results), outs, strict=True)
    ]


def _as_arrays(
    func: torch._ops.OpOverload, args: Sequence[Any], avals: Sequence[Any]
) -> tuple[list[Any], tuple[Any, ...]]:
    """Return arguments and types with Python numbers for tensors turned into weak arrays."""
    values, types = list(args), list(avals)
    for position in _tensor_positions(func):
        if isinstance(values[position], (bool, int, float, complex)):
            values[position], types[position] = _number(values[position])
    return values, tuple(types)


def _number(value: Any) -> tuple[Array, Any]:
    """Return a Python number as an array, and itself as what promotion goes by."""
    array = jnp.asarray(np.asarray(value))
    if isinstance(value, (float, int)) and not isinstance(value, bool):
        return array, Aval((), to_torch_dtype(array.dtype), weak=True)
    return array, Aval((), to_torch_dtype(array.dtype))


@functools.cache
def _tensor_positions(func: torch._ops.OpOverload) -> tuple[int, ...]:
    return tuple(
        position
        for position, argument in enumerate(func._schema.arguments)
        if str(argument.type) in {"Tensor", "Optional[Tensor]"}
    )


def _apply(ctx: OpContext, values: Sequence[Any]) -> Any:
    rule = rule_for(ctx.func)
    try:
        found = NotImplemented if rule is None else rule(ctx, *values)
        return _decomposed(ctx, values) if found is NotImplemented else found
    except Unsupported as refusal:
        raise _no_lowering(ctx, str(refusal)) from refusal
    except LazyRuntimeError:
        raise
    except Exception as error:
        raise _failure(ctx, error) from error


def _flatten(ctx: OpContext, results: Any) -> list[Any]:
    flat = list(results) if isinstance(results, (tuple, list)) else [results]
    if len(flat) != len(ctx.outs):
        raise LoweringError(
            f"the lowering of {_describe(ctx)} gave {len(flat)} results where torch gives "
            f"{len(ctx.outs)}, so they cannot be told apart. Correct its rule."
        )
    return flat


def _conform(ctx: OpContext, result: Any, out: Aval) -> Array:
    if result is None or tuple(jnp.shape(result)) != tuple(out.shape):
        shape = None if result is None else list(jnp.shape(result))
        raise LoweringError(
            f"the lowering of {_describe(ctx)} gave shape {shape} where torch gives "
            f"{list(out.shape)}, so the result would be wrong. Correct its rule."
        )
    return cast(result, out.dtype)


def _failure(ctx: OpContext, error: Exception) -> LoweringError:
    return LoweringError(
        f"the lowering of {_describe(ctx)} failed with {type(error).__name__}: {error}. The "
        f"rule does not cover these types: correct it, or run the op on the CPU with "
        f"lazyrt.fallback({ctx.name!r})."
    )


def _no_lowering(ctx: OpContext, reason: str) -> NoLoweringError:
    because = f" ({reason})" if reason else ""
    error = NoLoweringError(
        f"no lowering for {_describe(ctx)}{because}. Register one with "
        f"@lowers({ctx.name!r}), or run the op on the CPU with lazyrt.fallback({ctx.name!r})."
    )
    near = difflib.get_close_matches(ctx.name, rules(), n=3, cutoff=0.7)
    near = [name for name in near if name != ctx.name]
    if near:
        error.add_note(f"lowered ops with similar names: {', '.join(near)}")
    return error


def _describe(ctx: OpContext) -> str:
    return f"{ctx.name} on {describe_types(ctx.args)}"


# ---------------------------------------------------------------------- decompositions


_DYNAMIC = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


def _decomposed(ctx: OpContext, values: Sequence[Any]) -> list[Any]:
    """Compute an op by its decomposition.

    The decomposition is traced once for given operand types, on meta tensors, into a list of
    simpler ops. Those are evaluated one by one, by rule or by decomposition again, so the IR that
    a user sees keeps the op as it was called.
    """
    program = _program(ctx.func, ctx.args)
    pairs = zip(tree_leaves([*ctx.args]), tree_leaves([*values]), strict=True)
    tensors = [value for aval, value in pairs if isinstance(aval, Aval)]
    found = _Evaluation(program, ctx.key).run(*tensors)
    return list(found) if isinstance(found, (list, tuple)) else [found]


class _Evaluation(torch.fx.Interpreter):
    """One run of a decomposition on arrays."""

    def __init__(self, program: torch.fx.GraphModule, key: Array | None) -> None:
        super().__init__(program, garbage_collect_values=False)
        self._key = key
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
            results = evaluate(pure, args, avals, types, own)
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
