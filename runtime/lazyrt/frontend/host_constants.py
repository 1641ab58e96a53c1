"""What the host knows of values without running the step: bounds of integers, results of constants.

A class that `argmax` picks is less than the number of classes, a truth value is 0 or 1, and
arithmetic carries such bounds on. What comes from the host or from an earlier step is looked
at, once for each array. So an op whose result's size follows from the largest element can be
recorded while the elements are pending.
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from lazyrt.execution import copy_on_donate, transfer
from lazyrt.frontend import scalars
from lazyrt.frontend.infer import run_on_host
from lazyrt.ir.live import lock, pending
from lazyrt.ir.node import Leaf, Node, Value, walk
from lazyrt.lowering.collectives import is_collective

if TYPE_CHECKING:
    from collections.abc import Callable


# All rules are called alike.
# ruff: noqa: ARG001, ARG005


Bounds = tuple[int, int]

_MAX_NODES = 32
_MAX_ARRAYS = 1_000
_arrays: dict[int, tuple[weakref.ref[Any], Bounds | None]] = {}


def bounds_of(value: Value) -> Bounds | None:
    """Return numbers that no element lies below or above; None where nothing tells.

    More than 32 ops under it are not looked at.
    """
    return _Search().of(value)


class _Search:
    """One walk under a value, down to ops and arrays that have bounds of their own."""

    def __init__(self) -> None:
        self._found: dict[Value, Bounds | None] = {}

    def of(self, operand: Any) -> Bounds | None:
        """Return the bounds of an op's operand: a value or a number."""
        if isinstance(operand, int):
            return operand, operand
        if isinstance(operand, tuple):  # a tagged number
            kind, number = operand
            return (int(number), int(number)) if kind is bool else None
        if not isinstance(operand, Value):
            return None
        if operand not in self._found and len(self._found) < _MAX_NODES:
            self._found[operand] = None
            self._found[operand] = _fitting(self._of_value(operand), operand.dtype)
        return self._found.get(operand)

    def _of_value(self, value: Value) -> Bounds | None:
        if not math.prod(value.shape) or not _is_whole(value.dtype):
            return None
        known = (0, 1) if value.dtype is torch.bool else None
        if isinstance(value, Leaf):
            return known or _of_leaf(value)
        if value.node is None:
            return known
        name = value.node.op.name.partition(".")[2]
        rule = _RULES.get(name, _RULES.get(name.partition(".")[0]))
        if rule is None:
            return known
        return rule(self, value.node, value) or known


def _is_whole(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


def _fitting(bounds: Bounds | None, dtype: torch.dtype) -> Bounds | None:
    """Return bounds that a type can hold: beyond its range integers wrap around."""
    if bounds is None or dtype is torch.bool:
        return bounds
    limits = torch.iinfo(dtype)
    return bounds if limits.min <= bounds[0] and bounds[1] <= limits.max else None


def _of_leaf(leaf: Leaf) -> Bounds | None:
    if leaf.kind != "data":
        number = pending.ints[leaf.position] if leaf.kind == "int" else None
        return None if number is None else (number, number)
    with copy_on_donate.reading() as reading:
        with lock:
            reading.found = pending.inputs[leaf.position]
        return _of_array(reading.found, leaf.dtype)


def _of_array(data: Any, dtype: torch.dtype) -> Bounds | None:
    known = _arrays.get(id(data))
    if known is not None and known[0]() is data:
        return known[1]
    host = transfer.sent(data)
    host = transfer.to_host(data, dtype) if host is None else host
    low, high = host.aminmax()
    found = int(low), int(high)
    if len(_arrays) >= _MAX_ARRAYS:  # most of them are gone
        _arrays.clear()
    _arrays[id(data)] = weakref.ref(data), found
    return found


def _same(search: _Search, node: Node, value: Value) -> Bounds | None:
    """Elements of the first operand, moved about or converted."""
    source = node.args[0]
    is_whole = isinstance(source, Value) and _is_whole(source.dtype)
    return search.of(source) if is_whole else None


def _position(search: _Search, node: Node, value: Value) -> Bounds | None:
    """A position along one dimension, or among all elements."""
    source, dim = node.args[0], node.args[1]
    size = math.prod(source.shape) if dim is None else source.shape[dim]
    return 0, max(size - 1, 0)


def _range(search: _Search, node: Node, value: Value) -> Bounds | None:
    start, step = (
        search.of(_argument(node, name, k)) for k, name in enumerate(("start", "step"))
    )
    if start is None or step is None or (start[0], step[0]) != (start[1], step[1]):
        return None
    ends = start[0], start[0] + step[0] * (value.shape[0] - 1)
    return min(ends), max(ends)


def _argument(node: Node, name: str, default: Any) -> Any:
    """Return what an op got for a name of its schema."""
    names = [argument.name for argument in node.op.schema.arguments]
    return node.args[names.index(name)] if name in names else default


def _number(number: int) -> Any:
    return lambda search, node, value: (number, number)


def _one_of(*names: str) -> Any:
    """Return the rule of an op whose elements are those of some of its arguments."""

    def rule(search: _Search, node: Node, value: Value) -> Bounds | None:
        parts: list[Any] = []
        for name in names:
            given = _argument(node, name, ())
            is_list = isinstance(given, tuple) and not scalars.is_number(given)
            parts += given if is_list else [given]
        found = [
            search.of(part)
            for part in parts
            if not (isinstance(part, Value) and 0 in part.shape)
        ]
        known = [bounds for bounds in found if bounds is not None]
        if not known or len(known) < len(found):
            return None
        return min(low for low, _ in known), max(high for _, high in known)

    return rule


def _product(a: Bounds, b: Bounds) -> Bounds:
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)


def _pairwise(combine: Callable[[Bounds, Bounds], Bounds]) -> Any:
    """Return the rule of an op of two operands, with torch's `alpha` where it has one."""

    def rule(search: _Search, node: Node, value: Value) -> Bounds | None:
        found = [search.of(operand) for operand in node.args[:2]]
        scale = search.of(node.args[2]) if len(node.args) > 2 else (1, 1)  # noqa: PLR2004
        if found[0] is None or found[1] is None or scale is None:
            return None
        return combine(found[0], _product(found[1], scale))

    return rule


def _comparison(is_true: Callable[[Bounds, Bounds], bool], opposite: str) -> Any:
    """Return the rule of a comparison, which bounds may decide for all elements."""

    def rule(search: _Search, node: Node, value: Value) -> Bounds | None:
        a, b = (search.of(operand) for operand in node.args[:2])
        if a is None or b is None:
            return None
        if is_true(a, b):
            return 1, 1
        return (0, 0) if _ORDERS[opposite](a, b) else None

    return rule


_ORDERS: dict[str, Callable[[Bounds, Bounds], bool]] = {
    "ge": lambda a, b: a[0] >= b[1],
    "gt": lambda a, b: a[0] > b[1],
    "le": lambda a, b: a[1] <= b[0],
    "lt": lambda a, b: a[1] < b[0],
}
# By the name of an op or of one of its overloads.
_RULES: dict[str, Callable[[_Search, Node, Value], Bounds | None]] = {
    **dict.fromkeys(
        ("view", "_unsafe_view", "reshape", "permute", "transpose", "t", "squeeze",
         "unsqueeze", "expand", "select", "slice", "clone", "alias", "detach", "_to_copy",
         "index", "index_select", "gather", "flip", "roll", "repeat", "restride", "slice_at",
         "select_at"),
        _same,
    ),
    **dict.fromkeys(("argmax", "argmin"), _position),
    "view.dtype": lambda search, node, value: None,  # other numbers of the same bits
    "cat": _one_of("tensors"),
    "stack": _one_of("tensors"),
    "scatter.src": _one_of("self", "src"),
    "scatter.value": _one_of("self", "value"),
    "where": _one_of("self", "other"),
    "zeros": _number(0),
    "ones": _number(1),
    "full": lambda search, node, value: search.of(_argument(node, "fill_value", None)),
    "arange": _range,
    "ge": _comparison(_ORDERS["ge"], "lt"),
    "gt": _comparison(_ORDERS["gt"], "le"),
    "le": _comparison(_ORDERS["le"], "gt"),
    "lt": _comparison(_ORDERS["lt"], "ge"),
    "add": _pairwise(lambda a, b: (a[0] + b[0], a[1] + b[1])),
    "sub": _pairwise(lambda a, b: (a[0] - b[1], a[1] - b[0])),
    "mul": _pairwise(_product),
}  # fmt: skip


# ---------------------------------------------------------- results that the host knows
# `transformers` asks whether a mask is all ones, once for each layer and step. Such a value takes
# few ops on device data and numbers; it stays known for as long as the arrays and numbers under
# it are the same. One that takes numbers alone, or such as came from the host lately, like the 1.0 of
# `Normal(x, 1.0)`, is computed there.


_MAX_RUN_NODES = 32
_MAX_RESULTS = 1_000
_MAX_BYTES = 16_384
_MAX_ELEMENTS = 65_536
_inputs: dict[Value, tuple[Leaf, ...] | None] = {}
_results: dict[Any, tuple[tuple[Any, ...], torch.Tensor]] = {}


def known(value: Value) -> torch.Tensor | None:
    """Return what an earlier small check of a value found on the same arrays and numbers."""
    if _leaves_read(value) is None:
        return None
    key, arrays = _key(value)
    found = _results.get(key)
    if found is None or any(
        old() is not new for old, new in zip(found[0], arrays, strict=True)
    ):
        return None
    return found[1].clone()


def is_small(value: Value) -> bool:
    """Return whether a value takes few ops on device data and numbers alone."""
    return _leaves_read(value) is not None


def on_host(value: Value) -> torch.Tensor | None:
    """Compute a small value on the CPU, if all that it reads is known there; None otherwise."""
    leaves = _leaves_read(value)
    if leaves is None:
        return None
    values: dict[Any, Any] = {leaf: _host_value(leaf) for leaf in leaves}
    if any(known is None for known in values.values()):
        return None
    try:
        for node in walk((value,))[0]:
            _run(node, values)
    except Exception:  # noqa: BLE001 - such as: only the device has a kernel for it
        return None
    found = values[value]
    return found.clone() if isinstance(found, torch.Tensor) else torch.tensor(found)


def _host_value(leaf: Leaf) -> Any:
    if leaf.kind != "data":
        return _leaf_number(leaf)
    return transfer.sent(pending.inputs[leaf.position])


def _run(node: Node, values: dict[Any, Any]) -> None:
    """Add a node's results to the known values."""
    outputs = [output for output in node.outputs if output is not None]
    if any(math.prod(output.shape) > _MAX_ELEMENTS for output in outputs):
        raise RuntimeError(f"{node.op} is quicker on the device")
    result = run_on_host(node, values)
    values.update(zip(node.outputs, tree_leaves(result), strict=True))


def remember(value: Value, found: torch.Tensor) -> None:
    """Keep what a small check has found, unless it is large."""
    if found.nbytes > _MAX_BYTES:
        return
    if len(_results) >= _MAX_RESULTS:  # most of them on arrays that are gone
        _results.clear()
    key, arrays = _key(value)
    _results[key] = (tuple(map(weakref.ref, arrays)), found)


def _key(value: Value) -> tuple[Any, list[Any]]:
    """Return a value with the numbers that it reads, and the arrays that it reads."""
    leaves = _leaves_read(value) or ()
    arrays = [pending.inputs[leaf.position] for leaf in leaves if leaf.kind == "data"]
    return (
        value,
        *(_leaf_number(leaf) for leaf in leaves if leaf.kind != "data"),
    ), arrays


def _leaves_read(value: Value) -> tuple[Leaf, ...] | None:
    """Return the inputs that a small cone reads; None if it is large or draws at random."""
    if value not in _inputs:
        cone = _small_cone(value)
        read = [operand for node in cone or () for operand in node.operands]
        operands = [value, *read]
        leaves = tuple(dict.fromkeys(o for o in operands if isinstance(o, Leaf)))
        draws = any(leaf.kind == "rng" for leaf in leaves)
        _inputs[value] = None if cone is None or draws else leaves
    return _inputs[value]


def _leaf_number(leaf: Leaf) -> float:
    numbers = pending.floats if leaf.kind == "float" else pending.ints
    return numbers[leaf.position]


def _small_cone(value: Value) -> set[Node] | None:
    """Return the nodes under a value, None if there are too many or other processes are needed.

    Views compute nothing and do not count: where AOTAutograd makes a write to one functional,
    there are more of them than the program has.
    """
    found: set[Node] = set()
    counted = 0
    stack = [value]
    while stack:
        node = stack.pop().node
        if node is None or node in found:
            continue
        counted += not node.op.is_view
        if counted > _MAX_RUN_NODES or is_collective(node):
            return None
        found.add(node)
        stack.extend(node.operands)
    return found


def forget() -> None:
    """Empty the memory of small checks."""
    _inputs.clear()
    _results.clear()
