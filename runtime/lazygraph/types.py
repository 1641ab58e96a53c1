"""Types of values as text, their sizes, and what operations on them cost."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_LAYOUT = re.compile(r"\{[^{}]*\}")
_BLANK = re.compile(r"\s+")
_LONG = re.compile(r"^(bf|f|u|i|c)[a-z]+(?=\d)")


def without_layout(type_text: str) -> str:
    """Return a type as it is compared.

    Example:
        >>> without_layout("(f32[2,3]{1,0:T(8,128)}, /*index=1*/ s32[])")
        '(f32[2,3], s32[])'
    """
    plain = _LAYOUT.sub("", type_text)
    if "/*" in plain:
        plain = re.sub(r"/\*[^*]*\*/", "", plain)
    return _BLANK.sub(" ", plain).replace("( ", "(")


@lru_cache(maxsize=256)
def short_dtype(dtype: object) -> str:
    """Return torch's name of a dtype as the IR spells it.

    Example:
        >>> short_dtype("torch.int64"), short_dtype("bool"), short_dtype("torch.float8_e5m2")
        ('i64', 'bool', 'f8e5m2')
    """
    name = str(dtype).rpartition(".")[2]
    short = _LONG.sub(r"\1", name)
    return name if short == name else short.replace("_", "")


def tensor_type(value: Any) -> str:
    """Return the type of what has a shape and a dtype of torch: `f32[2,3]`."""
    return f"{short_dtype(value.dtype)}[{','.join(map(str, value.shape))}]"


def split_types(type_text: str) -> list[str]:
    """Return the elements of a flat tuple type, or the type itself."""
    if not type_text.startswith("("):
        return [type_text]
    return re.findall(r"none\b|[a-z]\w*\[[^\[\]]*\](?:\{[^{}]*\})?", type_text)


_ARRAY = re.compile(r"\b([a-z]\w*)\[([^\[\]]*)\]")
_BITS = re.compile(r"[a-z]+?(\d+)")
_DIMENSIONS = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_CONTRACTING = re.compile(r"contracting_dims = \[([\d, ]*)\]")
_FREE = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "getitem", "bitcast", "reshape",
    "broadcast", "transpose", "copy", "slice", "concatenate", "pad", "iota", "convert",
    "gather", "scatter", "dynamic-slice", "dynamic-update-slice", "reverse",
})  # fmt: skip
_DATA = frozenset({"reduce", "reduce-window", "all-reduce", "reduce-scatter"})


def type_bytes(type_text: str) -> int:
    """Return the bytes of a value of a type; tuples count all their elements.

    Example:
        >>> type_bytes("f32[32,1024]{1,0}"), type_bytes("(bf16[3], pred[])"), type_bytes("s4[2]")
        (131072, 7, 1)
    """
    return sum(
        math.ceil(_elements(sizes) * _bits(dtype) / 8)
        for dtype, sizes in _ARRAY.findall(type_text)
    )


def elements(type_text: str) -> int:
    """Return how many numbers a value of a type holds."""
    return sum(_elements(sizes) for _, sizes in _ARRAY.findall(type_text))


# Of a plain machine; only the proportions between ops are to be trusted.
FLOPS_PER_NS = 100.0
BYTES_PER_NS = 4.0

MATRIX = {
    "mm": 0, "bmm": 0, "mv": 0, "dot": 0, "addmm": 1, "baddbmm": 1, "addmv": 1, "addbmm": 1,
}  # fmt: skip
_CONVOLUTIONS = ("convolution", "_convolution", "convolution_overrideable")
_ATTENTION = (
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "scaled_dot_product_attention",
)  # fmt: skip
# What multiplies matrices or the like: its products count, not its bytes.
DENSE = frozenset({*MATRIX, *_CONVOLUTIONS, *_ATTENTION, "convolution_backward"})
_ATEN_FREE = frozenset({
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


def short_name(op: str) -> str:
    """Return `add` for `aten.add.Tensor` and for `aten::add`."""
    parts = op.replace("::", ".").split(".")
    return parts[1] if len(parts) > 1 else op


def aten_flops(
    op: str, results: Sequence[Sequence[int] | None], operands: Sequence[Sequence[int]]
) -> int:
    """Return the floating-point operations of an ATen op, 0 for what only moves data.

    Matrix products and convolutions count two for each product, reductions one for each number
    that goes in, everything else one for each that comes out. Results and operands are shapes, None
    for a result that nobody asked for.
    """
    name = short_name(op)
    out = sum(math.prod(shape) for shape in results if shape is not None)
    if name in _ATEN_FREE:
        return 0
    if name in MATRIX:
        left = [shape for shape in operands if shape][MATRIX[name] :] or operands
        return 2 * (left[0][-1] if left and left[0] else 1) * out
    if name in _CONVOLUTIONS and len(operands) > 1:
        return 2 * out * math.prod(operands[1][1:])
    if name == "convolution_backward" and len(operands) > 2:  # noqa: PLR2004
        # Gradients of input and of weight: each as much as the forward.
        one = 2 * math.prod(operands[0]) * math.prod(operands[2][1:])
        return one * max(1, sum(shape is not None for shape in results[:2]))
    if name in _ATTENTION and len(operands) > 2:  # noqa: PLR2004
        query, key, value = operands[:3]
        return 2 * key[-2] * (math.prod(query) + math.prod(query[:-1]) * value[-1])
    inside = [math.prod(shape) for shape in operands] if name in _REDUCTIONS else []
    return max(out, *inside, 0)


def flops(op: str, type_text: str, operand_types: list[str], attrs: str = "") -> int:
    """Return the floating-point operations of an instruction, 0 for what only moves data.

    Elementwise operations count one for each result, reductions one for each number that
    goes in, matrix products two for each product.

    Example:
        >>> flops("aten.mm.default", "f32[4,5]", ["f32[4,3]", "f32[3,5]"])
        120
        >>> flops("dot", "f32[4,5]", ["f32[4,3]", "f32[3,5]"], "lhs_contracting_dims={1}")
        120
        >>> flops("add", "f32[4,5]", []), flops("tuple", "(f32[4])", [])
        (20, 0)
    """
    if op.startswith("aten"):
        made = split_types(type_text)
        results = [None if each == "none" else _sizes(each) for each in made]
        return aten_flops(op, results, [_sizes(each) for each in operand_types])
    if op in _FREE:
        return 0
    if op in {"dot", "dot_general"} and operand_types:
        return 2 * elements(type_text) * _contracted(operand_types[0], attrs)
    if op == "convolution" and len(operand_types) > 1:
        kernel = elements(operand_types[1])
        last = (_sizes(type_text) or [1])[-1]
        return 2 * elements(type_text) * max(1, kernel // max(1, last))
    if op in _DATA and operand_types:
        return elements(operand_types[0])
    return elements(type_text)


def _contracted(type_text: str, attrs: str) -> int:
    found = _DIMENSIONS.search(attrs) or _CONTRACTING.search(attrs)
    sizes = _sizes(type_text)
    if found is None or not sizes:
        return 1
    dims = [int(dim) for dim in found[1].split(",") if dim.strip()]
    return math.prod(sizes[dim] for dim in dims if dim < len(sizes))


def _sizes(type_text: str) -> list[int]:
    found = _ARRAY.search(type_text)
    return [int(n) for n in re.findall(r"\d+", found[2])] if found is not None else []


def _elements(sizes: str) -> int:
    return math.prod(int(number) for number in re.findall(r"\d+", sizes))


def _bits(dtype: str) -> int:
    if dtype in {"pred", "bool"}:
        return 8
    if dtype in {"token", "opaque"}:
        return 0
    found = _BITS.match(dtype)
    return int(found[1]) if found else 0
