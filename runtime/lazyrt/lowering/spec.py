"""What lowering knows of one op on operands of certain types: a spec.

A model of 24 equal layers has thousands of nodes and about a hundred specs. Each spec is
checked abstractly when it is first recorded, turned into one private StableHLO function when
a graph first needs it, and compiled by itself when a peek first runs it.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import jax
import torch

from lazyrt import jax_compat
from lazyrt.errors import LazyRuntimeError, LoweringError
from lazyrt.ir.node import Node, Value, is_number, nbytes_of
from lazyrt.lowering import (  # noqa: F401 - importing a module of rules registers them
    activations,
    collectives,
    convolution,
    elementwise,
    indexing,
    linalg,
    normalisation,
    optimizers,
    partitioning,
    pooling,
    random,
    reductions,
    registry,
    shape_ops,
)
from lazyrt.lowering.arrays import Aval, has_jax_dtype, recorded_under, to_jax_dtype
from lazyrt.lowering.collectives import processes_of
from lazyrt.lowering.registry import evaluate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_LARGE_BYTES = 2**20


class SpecFailure(Exception):  # noqa: N818 - a signal to the recorder
    """The op has no lowering for these operand types; carries the reason."""


class _Operand:
    """The place of the `position`-th operand in an argument structure."""

    __slots__ = ("position",)

    def __init__(self, position: int) -> None:
        self.position = position

    def __repr__(self) -> str:
        return f"%{self.position}"


class Spec:
    """One op on operands of given types and given constants.

    Attributes:
        name: Qualified name of the op, `func` the overload itself.
        is_random: Whether the first operand is the state of random numbers.
        operands: Type of each operand, repeats included.
        outs: Type of each result, None for an undefined tensor.
        symbol: Name of the private StableHLO function.
        is_large: Whether its results take so much memory that nobody but the program should
            hold them.
        default_dtype: torch's default dtype when it was recorded.
        executable: The compiled single op, None until something runs it.
        given: The rules from outside of this package that it is lowered by, and how often such a
            rule had come then; known once it was checked.
        failure: Why it cannot be lowered; empty where it can, None where nobody knows yet.
        general: The spec whose function computes it, given a `position` as one operand more;
            None for an op with a function of its own. See `indexing.by_position`.
        position: That operand.
        traced: It as a function that jax has traced, from `check` to `lower`.
        lowered: Its text, once `lower` has made it.
        processes: How many there are, if several compute it together; 0 for an op of one.
    """

    __slots__ = (
        "_args", "_avals", "default_dtype", "executable", "failure", "func", "general", "given",
        "is_large", "is_random", "lowered", "name", "operands", "outs", "position", "processes",
        "symbol", "traced",
    )  # fmt: skip

    def __init__(self, node: Node, number: int) -> None:
        self.name = node.op.name
        self.func = node.op.func
        self.is_random = node.op.is_random
        self.operands: list[Aval] = []
        self._args = [self._template(arg) for arg in node.args]
        self._avals = [_fill(arg, self.operands) for arg in self._args]
        self.outs = tuple(
            None if out is None else Aval(out.shape, out.dtype) for out in node.outputs
        )
        self.is_large = sum(map(nbytes_of, filter(None, node.outputs))) >= _LARGE_BYTES
        self.symbol = f"{re.sub(r'[^A-Za-z0-9_]', '_', self.name)}_{number}"
        self.default_dtype = torch.get_default_dtype()
        self.failure: str | None = None
        self.lowered: str | None = None
        self.traced: Any = None
        self.executable: Any = None
        self.given: tuple[tuple[str, int], ...] = ()
        self.processes = processes_of((node,))
        self.general: Spec | None = None
        self.position = 0
        found = None if registry.times_given(self.name) else indexing.by_position(node)
        if found is not None:
            self.general, self.position = spec_of(found[0]), found[1]

    @property
    def called(self) -> Spec:
        """The spec of the private function that computes the op in a graph."""
        return self.general or self

    def apply(self, *operands: Any) -> list[Any]:
        """Compute the op on jax arrays or tracers; undefined results are left out."""
        args = [_fill(arg, operands) for arg in self._args]
        avals = self._avals
        key = None
        if self.is_random:
            key, args, avals = args[0], args[1:], avals[1:]
        with recorded_under(self.default_dtype), registry.as_recorded(self.given):
            results = evaluate(self.func, args, avals, self.outs, key)
        return [result for result in results if result is not None]

    @property
    def template(self) -> list[Any]:
        """The arguments with a marker for each operand: equal in all processes."""
        return self._args

    @property
    def signature(self) -> list[jax.ShapeDtypeStruct]:
        """The operands as jax types."""
        return [jax_type(aval) for aval in self.operands]

    @property
    def results(self) -> list[Aval]:
        """Types of the results that exist."""
        return [out for out in self.outs if out is not None]

    @property
    def text(self) -> str:
        """What `called` computes as private StableHLO functions, the first named by its `symbol`."""
        lower((self.called,))
        return self.called.lowered or ""

    def pass_unchecked(self) -> None:
        """Take it as checked: an equal one of another process was, by the same rules."""
        self.failure = ""
        if self.general is not None:
            self.general.pass_unchecked()

    def refuse(self, reason: str) -> None:
        """Note that it cannot be compiled: equal ops are not recorded any more."""
        self.failure = reason

    def arguments(self, operands: Sequence[Any]) -> list[Any]:
        """Return the op's arguments, one for each of its schema, with these operands."""
        return [_fill(arg, operands) for arg in self._args]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.operands))})"

    def check(self) -> None:
        """Trace the op abstractly, once."""
        if self.failure is None and self.general is not None:
            self.general.check()
            self.failure, self.given = "", self.general.given
        if self.failure is None:
            unknown = [str(a) for a in self.operands if not has_jax_dtype(a.dtype)]
            if unknown:
                self.failure = f"XLA has no type for {unknown[0]}"
                raise SpecFailure(self.failure)
            with registry.noting_given() as names:
                try:
                    self.trace()
                    self.failure = ""
                except LazyRuntimeError as error:
                    self.failure = str(error)
            self.given = tuple(
                (name, registry.times_given(name)) for name in sorted(names)
            )
        if self.failure:
            raise SpecFailure(self.failure)

    def trace(self) -> None:
        """Have jax trace the rule, whose text is made of that."""
        self.traced = jax_compat.traced(self.apply, self.symbol, self.signature)

    def _template(self, arg: Any) -> Any:
        if isinstance(arg, Value):
            self.operands.append(Aval(arg.shape, arg.dtype, is_number(arg)))
            return _Operand(len(self.operands) - 1)
        if arg.__class__ is tuple:
            if len(arg) == 2 and arg[0].__class__ is type:  # noqa: PLR2004
                kind, value = arg
                return kind(value) if value.__class__ is str else value
            return [self._template(part) for part in arg]
        return arg


def first_line(error: Exception) -> str:
    """Return what an error of MLIR says first, without the program that follows."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if "error:" in line), lines[0] if lines else "")
    return told.rpartition("error: ")[2] or type(error).__name__


def jax_type(aval: Aval) -> jax.ShapeDtypeStruct:
    """Return an aval as jax spells it."""
    with jax_compat.scope():
        return jax.ShapeDtypeStruct(aval.shape, to_jax_dtype(aval.dtype))


def _fill(arg: Any, operands: Sequence[Any]) -> Any:
    if arg.__class__ is _Operand:
        return operands[arg.position]
    if arg.__class__ is list:
        return [_fill(part, operands) for part in arg]
    return arg


_specs: dict[Any, Spec] = {}
_numbers = itertools.count()


def spec_of(node: Node) -> Spec:
    """Return the spec of a node; equal ones are one object."""
    key = (node.op, _key(node.args), tuple(_type(out) for out in node.outputs))
    spec = _specs.get(key)
    if spec is None:
        spec = _specs[key] = Spec(node, next(_numbers))
    return spec


def forget_specs() -> None:
    """Empty the table of specs; nodes keep theirs."""
    _specs.clear()


registry.on_change.append(forget_specs)


def forget_executables() -> None:
    """Drop the compiled single ops."""
    for spec in _specs.values():
        spec.executable = None


def _type(value: Value | None) -> tuple[tuple[int, ...], torch.dtype] | None:
    return None if value is None else (value.shape, value.dtype)


def _key(args: Any) -> Any:
    parts: list[Any] = []
    for arg in args:
        if isinstance(arg, Value):
            parts.append((arg.shape, arg.dtype, is_number(arg)))
        elif arg.__class__ is tuple:
            parts.append(_key(arg))
        else:
            parts.append((arg.__class__, arg))
    return tuple(parts)


def lower(specs: Iterable[Spec]) -> None:
    """Turn what specs compute into text, those that have none yet by one module together."""
    waiting = [each for each in dict.fromkeys(specs) if each.lowered is None]
    if not waiting:
        return
    try:
        for each in waiting:
            if each.traced is None:  # another process checked it
                each.trace()
        module = jax_compat.stablehlo_of(
            [(each.traced, each.signature) for each in waiting]
        )
    except Exception as error:
        if len(waiting) > 1:  # one by one, which tells whose rule it is
            for each in waiting:
                lower((each,))
            return
        waiting[0].refuse(first_line(error))
        raise LoweringError(
            f"the rule of {waiting[0]} gave what MLIR refuses ({waiting[0].failure}). Correct it."
        ) from error
    functions = _functions(module)
    for each in waiting:
        each.lowered = _private(functions, each.symbol)
        each.traced = None


_FUNCTION = re.compile(r"(?m)^  (?=func\.func (?:public |private )?@([\w.]+))")
_CALL = re.compile(r"(?<!custom_)call @([\w.]+)")


def _functions(module: str) -> dict[str, str]:
    """Return each function of a module by its name."""
    _, *parts = _FUNCTION.split(module[: module.rindex("}")])
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _private(functions: Mapping[str, str], symbol: str) -> str:
    """Return a function and those that it calls, renamed after `symbol`, for another module."""
    new = {symbol: symbol}
    names = [symbol]
    for name in names:  # grows
        for called in _CALL.findall(functions[name]):
            if called not in new:
                new[called] = f"{symbol}__{called.replace('.', '_')}"
                names.append(called)
    texts = [
        re.sub(
            r"(func\.func (?:public |private )?|(?<!custom_)call )@([\w.]+)",
            lambda match: f"{match[1]}@{new[match[2]]}",
            functions[name],
        )
        for name in names
    ]
    return re.sub(r" \{jax\.result_info = \"[^\"]*\"\}", "", "".join(texts)).strip()
