"""Bytes, floating-point operations and a guess of the time of IR ops, from shapes alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lazygraph.types import (
    BYTES_PER_NS,
    DENSE,
    FLOPS_PER_NS,
    MATRIX,
    aten_flops,
    short_name,
)
from lazyrt.ir.node import iter_values, walk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazyrt.ir.node import Node, Value

# How much longer some kinds run than the bytes say that they move; of two cores of a CPU.
_RUN_WEIGHTS = {
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"), 20.0),
    **dict.fromkeys(("sort", "argsort", "unique2", "_unique2"), 90.0),
    "topk": 300.0,
    **dict.fromkeys(("median", "nanmedian", "mode", "kthvalue"), 300.0),
    **dict.fromkeys(("rand_like", "randn_like", "bernoulli", "native_dropout", "uniform",
                     "normal", "rand", "randn", "randint", "randperm", "multinomial"), 17.0),
    **dict.fromkeys(("upsample_nearest2d",), 15.0),
    **dict.fromkeys(("upsample_bilinear2d", "argmax", "argmin", "native_batch_norm"), 14.0),
    **dict.fromkeys(("max_pool2d_with_indices",), 7.0),
    **dict.fromkeys(("tanh", "gelu", "sigmoid", "erf", "silu", "pow", "log", "sin", "cos",
                     "log1p", "expm1", "atan2", "softplus"), 2.7),
    "exp": 1.6,
    **dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c", "_safe_softmax"), 4.0),
    **dict.fromkeys(("_softmax", "_log_softmax", "native_layer_norm"), 1.4),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "var", "view", "t", "transpose"), 0.6),
}  # fmt: skip
# The same of those whose products count, against a plain product of matrices.
_DENSE_WEIGHTS = {"convolution": 3.0, "convolution_backward": 4.0}
# How much longer some kinds compile than the sum of two tensors, alone.
_COMPILE_WEIGHTS = {
    **dict.fromkeys(("randn_like", "randn", "normal", "native_dropout", "rand_like", "rand",
                     "uniform", "bernoulli", "randint", "median", "nanmedian"), 2.3),
    **dict.fromkeys(("cumsum", "cumprod", "topk", "gather", "scatter", "native_layer_norm",
                     "native_batch_norm", "max_pool2d_with_indices", "avg_pool2d", "argmax",
                     "argmin", "_safe_softmax", "var", "upsample_nearest2d"), 1.4),
}  # fmt: skip
# And together with others.
_SLICE_WEIGHTS = {
    **dict.fromkeys(("randn_like", "randn", "normal", "native_dropout", "rand_like", "rand",
                     "uniform", "bernoulli", "randint", "median", "nanmedian"), 12.0),
    **dict.fromkeys(("_safe_softmax", "_native_batch_norm_legit_functional", "native_batch_norm",
                     "convolution", "native_layer_norm"), 8.0),
    **dict.fromkeys(("max_pool2d_with_indices", "avg_pool2d", "cumsum", "cumprod", "topk", "sort",
                     "argmax", "argmin", "upsample_nearest2d"), 5.0),
    **dict.fromkeys(("_log_softmax", "_softmax", "gather", "scatter", "var"), 4.0),
    **dict.fromkeys((*MATRIX, "gelu"), 2.4),
}  # fmt: skip


def run_ns(node: Node) -> float:
    """Return a guess of how many nanoseconds a node runs; of little use for a single one."""
    name = short_name(node.op.name)
    moving = moving_ns(name, moved_bytes(node))
    if not is_dense(node):
        return moving
    return max(product_ns(flops(node)) * _DENSE_WEIGHTS.get(name, 1.0), moving)


def product_ns(operations: int) -> float:
    """Return a guess of what so many operations of a product of matrices take."""
    return operations / FLOPS_PER_NS


def moving_ns(name: str, nbytes: int) -> float:
    """Return a guess of what an op takes that reads and writes so many bytes."""
    return nbytes * _RUN_WEIGHTS.get(name, 1.0) / BYTES_PER_NS


def is_dense(node: Node) -> bool:
    """Return whether a node multiplies matrices or the like: its products count, not its bytes."""
    name = short_name(node.op.name)
    return name in DENSE


def compile_weight(name: str) -> float:
    """Return how much longer an op compiles than the sum of two tensors, about."""
    return _COMPILE_WEIGHTS.get(short_name(name), 1.0)


def slice_weight(name: str) -> float:
    """Return the same of an op that is compiled together with others."""
    return _SLICE_WEIGHTS.get(short_name(name), 1.0)


def result_bytes(node: Node) -> int:
    """Return the bytes of a node's results."""
    return sum(_elements(v) * v.dtype.itemsize for v in _results(node))


def moved_bytes(node: Node) -> int:
    """Return the bytes that a node reads and writes."""
    reads = sum(_elements(v) * v.dtype.itemsize for v in node.operands)
    return reads + result_bytes(node)


def flops(node: Node) -> int:
    """Return the floating-point operations of a node, 0 for what only moves data."""
    results = [value.shape if value is not None else None for value in node.outputs]
    return aten_flops(node.op.name, results, [value.shape for value in node.operands])


def _results(node: Node) -> Iterable[Value]:
    return [value for value in node.outputs if value is not None]


def _elements(value: Value) -> int:
    return math.prod(value.shape)


# ---------------------------------------------------------------------------- ancestors


# Nodes counted in one pass. Their sets are integers of so many bits: 512 bytes for each node.
_BLOCK = 4_096


def ancestor_counts(values: Iterable[Value]) -> dict[Value, int]:
    """Return for each value the number of nodes that it needs; 0 for a leaf.

    Takes one pass over the graph for every 4,096 nodes of it.
    """
    wanted = dict.fromkeys(values)
    nodes, _ = walk(wanted)
    numbers = {node: number for number, node in enumerate(nodes)}
    operands = [
        tuple({numbers[v.node] for v in iter_values(node.args) if v.node is not None})
        for node in nodes
    ]
    sizes = dict.fromkeys(wanted, 0)
    for start in range(0, len(nodes), _BLOCK):
        needed = _needed(operands, start)
        for value in sizes:
            if value.node is not None:
                sizes[value] += needed[numbers[value.node]].bit_count()
    return sizes


def _needed(operands: list[tuple[int, ...]], start: int) -> list[int]:
    """Return for each node which of the block's nodes it needs, itself included, as bits."""
    needed: list[int] = []
    for number, reads in enumerate(operands):
        bits = 1 << (number - start) if start <= number < start + _BLOCK else 0
        for operand in reads:
            bits |= needed[operand]
        needed.append(bits)
    return needed


def ancestors(values: Iterable[Value]) -> set[Node]:
    """Return the nodes that some values need, together."""
    return set(walk(values)[0])
