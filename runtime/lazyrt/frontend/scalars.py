"""Python numbers in ops: constants of the graph at first, inputs once they vary.

In-place ops, where optimizers put learning rates and the like, pass every float as an input from
the start. Elsewhere a number is a constant until the same line of code gives another one in a
later step; from then on that line's numbers are inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from lazyrt.execution import cache_miss
from lazyrt.frontend import callsite, optimizer_state, provenance
from lazyrt.frontend.torch_compat import aten
from lazyrt.ir.live import float_leaf, int_leaf, pending
from lazyrt.ir.node import Op, Value
from lazyrt.lowering import indexing
from lazyrt.lowering.shape_ops import slice_bounds

_MAX_SITES = 50_000


@dataclass(slots=True)
class _Site:
    """The numbers seen at one line of code for one op."""

    step: int
    numbers: set[Any] = field(default_factory=set)
    baked: list[tuple[dict[Any, Any], Any]] = field(default_factory=list)
    lifted: bool = False


_sites: dict[Any, _Site] = {}
# While a call is recorded to be taken back: the nodes that it made.
_rehearsed: list[tuple[dict[Any, Any], Any]] | None = None


def scalar_key(number: Any) -> Any:
    """Return the key component of a Python number that stays a constant.

    Types are tagged and floats compare by their bits, so that `1`, `True` and `1.0`, and `0.0`
    and `-0.0`, are different constants.
    """
    kind = number.__class__
    if kind is float:
        if number != 0.0 and number == number:  # noqa: PLR0124
            return (float, number)
        return (float, repr(number))
    if kind is int:
        return number
    if kind is bool:
        return (bool, number)
    if kind is complex:
        return (complex, repr(number))
    return number


def is_number(component: Any) -> bool:
    """Return whether a key component is a constant that could be lifted: a float or an int."""
    if component.__class__ is tuple:
        return len(component) == 2 and component[0] is float  # noqa: PLR2004
    return component.__class__ is int


def is_constant(component: Any) -> bool:
    """Return whether a key component is a float, an int or a complex number."""
    return is_number(component) or (
        component.__class__ is tuple and component[:1] == (complex,)
    )


def should_lift(
    cache: dict[Any, Any], key: Any, numbers: tuple[Any, ...], where: Any
) -> bool:
    """Decide whether the numbers of a new node become inputs.

    In eager debug mode all do, and nothing is noted: how often an op is compiled must not depend on
    where barriers stand. While a graph from before is pending none do: a view of it may keep the
    number's input, which eager debug mode gives back. Constants' nodes leave the op's table once
    they are lifted.
    """
    if pending.eager:
        return not pending.parked
    site = _sites.get(where)
    if (
        optimizer_state.steps
        and (site is None or not site.lifted)
        and not optimizer_state.is_fill(where[0].func)
        and optimizer_state.are_derived(numbers)
    ):
        site = _sites[where] = _Site(pending.number, lifted=True)
    if _rehearsed is not None and (site is None or not site.lifted):
        return False
    if site is None:
        if len(_sites) > _MAX_SITES:
            _sites.clear()
        site = _sites[where] = _Site(pending.number)
    if not site.lifted:
        if numbers in site.numbers or pending.number == site.step:
            site.numbers.add(numbers)
            site.baked.append((cache, key))
            return False
        site.lifted = True
        callsite.note_number(where[0].name)
        for table, baked in site.baked:
            table.pop(baked, None)
        site.baked.clear()
    return True


def lift(component: Any) -> Any:
    """Return the input leaf for a liftable component."""
    if component.__class__ is tuple:
        value = component[1]
        return float_leaf(float(value))
    return int_leaf(component)


@contextlib.contextmanager
def unnoticed() -> Iterator[None]:
    """Record ops that will be taken back: no line remembers their numbers, no table their nodes."""
    global _rehearsed
    before, _rehearsed = _rehearsed, []
    try:
        yield
    finally:
        for table, key in _rehearsed:
            table.pop(key, None)
        _rehearsed = before


def note_rehearsed(cache: dict[Any, Any], key: Any) -> bool:
    """Forget a node with the call that is recorded to be taken back; return whether one is.

    An equal op of the program shows its own line then.
    """
    if _rehearsed is None:
        return False
    _rehearsed.append((cache, key))
    return True


def rehearses() -> bool:
    """Return whether ops are recorded to be taken back."""
    return _rehearsed is not None


def forget_nodes() -> None:
    """Forget the nodes of constants, which no table has any more; the lines that vary stay."""
    for site in _sites.values():
        site.baked.clear()


def forget() -> None:
    """Empty the table of call sites."""
    _sites.clear()
    cache_miss.forget_expressions()
    optimizer_state.forget()


# ------------------------------------------------------------ slice positions that vary


_Rewrite = tuple[torch._ops.OpOverload, tuple[Any, ...]]
_Rewriter = Callable[
    [tuple[Any, ...]], "tuple[int, tuple[int, int], Callable[[Value], _Rewrite]] | None"
]


def has_position(func: torch._ops.OpOverload) -> bool:
    """Return whether an op takes a part of a tensor, by a position that may become an input."""
    return func in _REWRITERS


def lift_positions(op: Op, args: tuple[Any, ...], depth: int) -> _Rewrite | None:
    """Return the op and arguments that take a slice's position as an input, if they should."""
    rewriter = _REWRITERS.get(op.func)
    if rewriter is None:
        return None
    found = rewriter(args)
    if found is None:
        return None
    start, extent, build = found
    types = tuple((a.shape, a.dtype) for a in args if isinstance(a, Value))
    where = (op, provenance.call_site(depth), types, extent)
    if not should_lift(op.cache, args, (start,), where):
        return None
    return build(int_leaf(start))


def _part(
    value: Value, dim: int, start: int | None, end: int | None, step: int
) -> tuple[int, int] | None:
    """Return start and size of a slice that has a position: neither empty nor all, step 1."""
    if step != 1 or not value.shape:
        return None
    first, last = slice_bounds(value.shape[dim], start, end)
    size = last - first
    return None if size in {0, value.shape[dim]} else (first, size)


def _slice(args: tuple[Any, ...]) -> Any:
    value, dim, *rest = args
    part = _part(value, dim, *rest)
    if part is None:
        return None
    first, size = part
    return first, (dim, size), lambda at: (indexing.slice_at, (value, dim, at, size))


def _select(args: tuple[Any, ...]) -> Any:
    value, dim, index = args
    size = value.shape[dim]
    if not -size <= index < size:
        return None
    return index % size, (dim, 1), lambda at: (indexing.select_at, (value, dim, at))


def _slice_scatter(args: tuple[Any, ...]) -> Any:
    value, src, dim, *rest = args
    part = _part(value, dim, *rest)
    if part is None:
        return None
    first, size = part
    return (
        first,
        (dim, size),
        lambda at: (indexing.slice_scatter_at, (value, src, dim, at)),
    )


def _select_scatter(args: tuple[Any, ...]) -> Any:
    value, src, dim, index = args
    at_index = index % value.shape[dim]
    return (
        at_index,
        (dim, 1),
        lambda at: (indexing.select_scatter_at, (value, src, dim, at)),
    )


_REWRITERS: dict[torch._ops.OpOverload, _Rewriter] = {
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.slice_scatter.default: _slice_scatter,
    aten.select_scatter.default: _select_scatter,
}
