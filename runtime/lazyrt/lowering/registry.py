"""The table of lowering rules.

A rule is a function on jax arrays, called with an `OpContext` and one value for each argument
of the op's schema. It returns an array, or a sequence of them for an op with several results:

    @lowers("aten.addcmul.default")
    def addcmul(ctx, self, tensor1, tensor2, value):
        self, tensor1, tensor2, value = ctx.cast(self, tensor1, tensor2, value)
        return self + value * tensor1 * tensor2

Tensors come as arrays of their own dtype, numbers as Python numbers or as 0-d arrays (see
`Aval.weak`), so a rule casts what it computes with. Results are cast to the op's result
dtypes by whoever calls the rule.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from lazyrt.errors import UsageError

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
_on_change: list[Callable[[], None]] = []


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
        for forget in () if is_own else _on_change:
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


def on_change(forget: Callable[[], None]) -> None:
    """Register what remembers what rules gave, to be emptied when somebody registers one."""
    _on_change.append(forget)


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
