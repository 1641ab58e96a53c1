"""Running one op through its lowering, with torch on the CPU as the oracle."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from lazyrt import jax_compat
from lazyrt.lowering.arrays import Aval, to_jax_dtype, to_torch_dtype
from lazyrt.lowering.registry import evaluate
from tests.harness import naming

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16}


class Weak:
    """A Python number that reaches the rule as a traced 0-d array."""

    def __init__(self, value: float) -> None:
        self.value = value


def to_jax(tensor: torch.Tensor) -> Any:
    """Return a CPU tensor as a jax array; call it under enable_x64."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype in _BITS:
        raw = tensor.view(_BITS[tensor.dtype]).numpy()
        return jnp.asarray(raw.view(to_jax_dtype(tensor.dtype)).copy())
    return jnp.asarray(tensor.numpy().copy())


def to_torch(array: Any) -> torch.Tensor:
    """Return a jax array as a CPU tensor."""
    dtype = to_torch_dtype(array.dtype)
    host = np.asarray(array)
    if dtype in _BITS:
        host = host.view(np.int16)
        return torch.from_numpy(host.copy()).view(dtype)
    return torch.from_numpy(np.array(host))


def schema_args(
    func: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
) -> list[Any]:
    """Return one entry for each argument of the op's schema."""
    full = []
    for position, argument in enumerate(func._schema.arguments):
        if position < len(args) and not argument.kwarg_only:
            full.append(args[position])
        elif argument.name in kwargs:
            full.append(kwargs[argument.name])
        else:
            has = argument.has_default_value()
            full.append(argument.default_value if has else None)
    return full


def flatten(out: Any) -> list[Any]:
    """Return an op's results as a flat list."""
    if isinstance(out, torch.Tensor) or out is None:
        return [out]
    return [part for entry in out for part in flatten(entry)]


def lowered(
    func: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    *,
    outs: Sequence[torch.Tensor | None],
    key: tuple[int, int] | None = None,
) -> list[Any]:
    """Trace an op's lowering and run it on torch tensors.

    Args:
        func: The op.
        args: Positional arguments; a `Weak` is passed as a lifted number.
        kwargs: Keyword arguments.
        outs: Tensors, possibly meta, of the types that the results must have.
        key: (seed, offset) for a random op.
    """
    return _run([_Call(func, args, kwargs or {}, outs)], key)[0]


@dataclass(frozen=True)
class _Call:
    """An op with its arguments, and tensors of the types that its results must have."""

    func: torch._ops.OpOverload
    args: Sequence[Any]
    kwargs: dict[str, Any]
    outs: Sequence[torch.Tensor | None]


def _run(
    calls: Sequence[_Call], key: tuple[int, int] | None = None
) -> list[list[torch.Tensor | None]]:
    """Trace the lowerings of some calls into one program, and return the results of each."""
    with jax_compat.scope():
        arrays: list[Any] = []
        prepared = []
        for call in calls:
            full = schema_args(call.func, call.args, call.kwargs)
            prepared.append(
                (
                    call.func,
                    [_template(arg, arrays) for arg in full],
                    [_types(arg) for arg in full],
                    [
                        None if o is None else Aval(tuple(o.shape), o.dtype)
                        for o in call.outs
                    ],
                )
            )
        state = None if key is None else jnp.asarray(np.array(key, np.uint64))

        def run(state: Any, *operands: Any) -> list[list[Any]]:
            found = []
            for func, template, avals, out_avals in prepared:
                values = [_fill(arg, operands) for arg in template]
                with naming(func):
                    found.append(evaluate(func, values, avals, out_avals, state))
            return found

        traced = jax.jit(run, compiler_options=jax_compat.FAST_OPTIONS)
        return [
            [None if result is None else to_torch(result) for result in results]
            for results in traced(state, *arrays)
        ]


_together: list[tuple[_Call, dict[str, Any]]] | None = None


def check(
    func: torch._ops.OpOverload,
    *args: Any,
    rtol: float | None = None,
    atol: float | None = None,
    **kwargs: Any,
) -> None:
    """Assert that an op's lowering gives what torch gives: values, dtypes, shapes."""
    plain = [_plain(arg) for arg in args]
    with torch.no_grad():
        named = {name: _plain(arg) for name, arg in kwargs.items()}
        expected = flatten(func(*plain, **named))
    call = _Call(func, args, kwargs, expected)
    if _together is not None:
        _together.append((call, {"rtol": rtol, "atol": atol}))
    else:
        compare(_run([call])[0], expected, rtol=rtol, atol=atol)


@contextmanager
def together() -> Iterator[None]:
    """Check all calls of the block at its end, in one program: compiling is most of the cost."""
    global _together  # noqa: PLW0603 - the calls of the block
    _together = []
    try:
        yield
        calls = _together
    finally:
        _together = None
    results = _run([call for call, _ in calls])
    for (call, tolerances), found in zip(calls, results, strict=True):
        with naming(call.func, *call.args):
            compare(found, call.outs, **tolerances)


def compare(
    found: Sequence[torch.Tensor | None],
    expected: Sequence[torch.Tensor | None],
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Assert that results are equal, as close as their dtypes allow."""
    for have, want in zip(found, expected, strict=True):
        if want is None:
            assert have is None
            continue
        assert have is not None
        torch.testing.assert_close(
            have, want.resolve_conj().resolve_neg().contiguous(), rtol=rtol, atol=atol,
            equal_nan=True,
        )  # fmt: skip


class _Operand:
    def __init__(self, position: int) -> None:
        self.position = position


def _template(arg: Any, arrays: list[Any]) -> Any:
    if isinstance(arg, torch.Tensor):
        arrays.append(to_jax(arg))
        return _Operand(len(arrays) - 1)
    if isinstance(arg, Weak):
        dtype = np.float64 if type(arg.value) is float else np.int64
        arrays.append(jnp.asarray(np.asarray(arg.value, dtype)))
        return _Operand(len(arrays) - 1)
    if isinstance(arg, (list, tuple)):
        return [_template(part, arrays) for part in arg]
    return arg


def _types(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return Aval(tuple(arg.shape), arg.dtype)
    if isinstance(arg, Weak):
        dtype = torch.float64 if type(arg.value) is float else torch.int64
        return Aval((), dtype, weak=True)
    if isinstance(arg, (list, tuple)):
        return [_types(part) for part in arg]
    return arg


def _fill(arg: Any, operands: Sequence[Any]) -> Any:
    if isinstance(arg, _Operand):
        return operands[arg.position]
    if isinstance(arg, list):
        return [_fill(part, operands) for part in arg]
    return arg


def _plain(arg: Any) -> Any:
    if isinstance(arg, Weak):
        return arg.value
    if isinstance(arg, (list, tuple)):
        return [_plain(part) for part in arg]
    return arg
