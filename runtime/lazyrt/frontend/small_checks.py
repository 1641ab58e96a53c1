"""What installed packages asked of constants and inputs, remembered while those stay.

`transformers` asks whether a mask is all ones, once for each layer and step. Such a value takes
few ops on device data and numbers; it stays known for as long as the arrays and numbers under
it are the same. One that takes numbers alone, or such as came from the host lately, like the 1.0 of
`Normal(x, 1.0)`, is computed there.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch

from lazyrt.execution import transfer
from lazyrt.frontend.infer import run_on_host
from lazyrt.ir.live import pending
from lazyrt.ir.node import Leaf, Node, Value, walk

_MAX_NODES = 32
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
        return _number(leaf)
    return transfer.sent(pending.inputs[leaf.position])


def _run(node: Node, values: dict[Any, Any]) -> None:
    """Add a node's results to the known values."""
    outputs = [output for output in node.outputs if output is not None]
    if any(math.prod(output.shape) > _MAX_ELEMENTS for output in outputs):
        raise RuntimeError(f"{node.op} is quicker on the device")
    result = run_on_host(node, values)
    values.update(zip(node.outputs, _flat(result), strict=True))


def _flat(result: Any) -> list[Any]:
    """Return an op's results one by one, those of a list among them too."""
    if not isinstance(result, (tuple, list)):
        return [result]
    return [each for part in result for each in _flat(part)]


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
