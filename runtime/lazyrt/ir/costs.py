"""Bytes, floating-point operations and a guess of the time of IR ops, from shapes alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lazyrt.ir.node import iter_values, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lazyrt.ir.node import Node, Value


# Of a plain machine; only the proportions between ops are to be trusted.
_FLOPS_PER_NS = 100.0
_BYTES_PER_NS = 4.0

_MATRIX = {
    "mm": 0,
    "bmm": 0,
    "mv": 0,
    "dot": 0,
    "addmm": 1,
    "baddbmm": 1,
    "addmv": 1,
    "addbmm": 1,
}
_CONVOLUTIONS = ("convolution", "_convolution", "convolution_overrideable")
_FREE = frozenset({
    "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand", "squeeze",
    "unsqueeze", "slice", "select", "clone", "copy", "cat", "stack", "as_strided", "alias",
    "detach", "split", "unbind", "diagonal", "slice_scatter", "select_scatter", "index_select",
    "gather", "scatter", "index", "embedding", "zeros", "ones", "full", "empty", "arange",
    "_to_copy", "fill", "flip", "roll", "repeat", "constant_pad_nd", "zeros_like", "ones_like",
    "full_like", "_reshape_alias", "lift_fresh", "unfold",
})  # fmt: skip
_REDUCTIONS = ("sum", "mean", "amax", "amin", "max", "min", "var", "std", "norm", "prod", "argmax",
               "argmin", "logsumexp", "var_mean", "all", "any", "count_nonzero", "_softmax",
               "_log_softmax", "native_layer_norm", "native_batch_norm")  # fmt: skip
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
    **dict.fromkeys((*_MATRIX, "gelu"), 2.4),
}  # fmt: skip


def run_ns(node: Node) -> float:
    """Return a guess of how many nanoseconds a node runs; of little use for a single one."""
    name = _short(node.op.name)
    moving = moving_ns(name, moved_bytes(node))
    if not is_dense(node):
        return moving
    return max(product_ns(flops(node)) * _DENSE_WEIGHTS.get(name, 1.0), moving)


def product_ns(operations: int) -> float:
    """Return a guess of what so many operations of a product of matrices take."""
    return operations / _FLOPS_PER_NS


def moving_ns(name: str, nbytes: int) -> float:
    """Return a guess of what an op takes that reads and writes so many bytes."""
    return nbytes * _RUN_WEIGHTS.get(name, 1.0) / _BYTES_PER_NS


def is_dense(node: Node) -> bool:
    """Return whether a node multiplies matrices or the like: its products count, not its bytes."""
    name = _short(node.op.name)
    return name in _MATRIX or name in _SPECIAL


def compile_weight(name: str) -> float:
    """Return how much longer an op compiles than the sum of two tensors, about."""
    return _COMPILE_WEIGHTS.get(_short(name), 1.0)


def slice_weight(name: str) -> float:
    """Return the same of an op that is compiled together with others."""
    return _SLICE_WEIGHTS.get(_short(name), 1.0)


def _short(name: str) -> str:
    """Return `add` for `aten.add.Tensor`."""
    return name.split(".")[1] if "." in name else name


def result_bytes(node: Node) -> int:
    """Return the bytes of a node's results."""
    return sum(_elements(v) * v.dtype.itemsize for v in _results(node))


def moved_bytes(node: Node) -> int:
    """Return the bytes that a node reads and writes."""
    reads = sum(_elements(v) * v.dtype.itemsize for v in node.operands)
    return reads + result_bytes(node)


def flops(node: Node) -> int:
    """Return the floating-point operations of a node, 0 for what only moves data.

    Matrix products and convolutions count two for each product, reductions one for each number
    that goes in, everything else one for each that comes out.
    """
    name = _short(node.op.name)
    if name in _FREE:
        return 0
    if name in _MATRIX:
        return _product(node, _MATRIX[name])
    special = _SPECIAL.get(name)
    if special is not None:
        return special(node)
    out = sum(map(_elements, _results(node)))
    return max(out, *map(_elements, node.operands), 0) if name in _REDUCTIONS else out


def _product(node: Node, first: int) -> int:
    left = [v for v in node.operands if v.shape][first:] or list(node.operands)
    inner = left[0].shape[-1] if left[0].shape else 1
    return 2 * inner * sum(map(_elements, _results(node)))


def _convolution(node: Node) -> int:
    weight = node.operands[1].shape
    out = sum(map(_elements, _results(node)))
    return 2 * out * math.prod(weight[1:])


def _convolution_backward(node: Node) -> int:
    """Gradients of input and of weight: each as much as the forward."""
    gradient, _, weight = node.operands[:3]
    one = 2 * _elements(gradient) * math.prod(weight.shape[1:])
    wanted = [out is not None for out in node.outputs[:2]]
    return one * max(1, sum(wanted))


def _attention(node: Node) -> int:
    query, key, value = node.operands[:3]
    scores = _elements(query) * key.shape[-2]
    return (
        2 * scores + 2 * math.prod(query.shape[:-1]) * key.shape[-2] * value.shape[-1]
    )


_SPECIAL: dict[str, Callable[[Any], int]] = {
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "scaled_dot_product_attention": _attention,
}


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
