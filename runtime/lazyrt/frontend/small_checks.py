"""What installed packages asked of constants and inputs, remembered while those stay.

`transformers` asks whether a mask is all ones, once for each layer and step. Such a value takes
few ops on device data and numbers; it stays known for as long as the arrays and numbers under
it are the same.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from lazyrt.ir.live import pending
from lazyrt.ir.node import Leaf, Node, Value

if TYPE_CHECKING:
    import torch

_MAX_NODES = 32
_MAX_RESULTS = 1_000
_MAX_BYTES = 16_384
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
    return (value, *(_number(leaf) for leaf in leaves if leaf.kind != "data")), arrays


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


def _number(leaf: Leaf) -> float:
    numbers = pending.floats if leaf.kind == "float" else pending.ints
    return numbers[leaf.position]


def _small_cone(value: Value) -> set[Node] | None:
    """Return the nodes under a value, None if there are too many."""
    found: set[Node] = set()
    stack = [value]
    while stack:
        node = stack.pop().node
        if node is None or node in found:
            continue
        if len(found) == _MAX_NODES:
            return None
        found.add(node)
        stack.extend(node.operands)
    return found


def forget() -> None:
    """Empty the memory of small checks."""
    _inputs.clear()
    _results.clear()
