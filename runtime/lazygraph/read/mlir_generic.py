"""MLIR's generic notation, `"op"() <{key = value}>`, said as the short one says it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lazygraph.read.brackets import closing
from lazygraph.read.mlir_text import dictionary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ARRAY = re.compile(r"array<i(?:1|32|64)(?:: ([^<>]*))?>")
_INTEGER = re.compile(r"(-?\d+) : i(?:32|64)")
_WORD = re.compile(r"#stablehlo<\w+ (\w+)>")
_DENSE = re.compile(r"dense<(.*)> : tensor<(\d+)x(\d+)xi64>")
_CONV = re.compile(r"#stablehlo\.conv<(.*)>")
_DOT = re.compile(r"#stablehlo\.dot<(.*)>")
_DOT_SIDE = re.compile(r"([lr]hs)_(\w+)_dimensions = (\[[^\]]*\])")
_UNSAID = frozenset({
    ("api_version", "1 : i32"), ("called_computations", "[]"), ("has_side_effect", "false"),
})  # fmt: skip
# A region whose only operation is of its two arguments, in their order.
_LOC = r"(?: loc\([^\n]*\))?"
_ONE_OP = re.compile(
    r"\s*\{?\s*\^\w+\(%(\w+): [^,%]*, %(\w+): [^%]*\):\s*"
    rf'%(\w+) = "(stablehlo\.\w+)"\(%\1, %\2\) : \([^()]*\) -> \S+{_LOC}\s*'
    rf'"stablehlo\.return"\(%\3\) : \([^()]*\) -> \(\){_LOC}\s*\}}?\s*'
)


def short_notation(
    op: str, attrs: str, inner: list[str], regions: Sequence[str]
) -> tuple[str, list[str]]:
    """Return attributes and regions of an operation as the short notation has them.

    What has no short notation, or says more than it could, stays as it is.

    Args:
        op: Without its dialect, such as `slice`.
        attrs: Such as `<{dimension = 1 : i64}>`.
        inner: What stands for its regions, such as `to_apply=#1234`.
        regions: Their texts.

    Example:
        >>> short_notation("concatenate", "<{dimension = 1 : i64}>", [], [])
        ('dim = 1', [])
        >>> short_notation("slice", "<{a = 1 : i64}>", [], [])
        ('<{a = 1 : i64}>', [])
    """
    if op == "custom_call" and attrs.startswith("<{"):
        return _custom_call(attrs), inner
    write = _WRITERS.get(op)
    if write is None or not (attrs.startswith("<{") and attrs.endswith("}>")):
        return attrs, inner
    found = {key: _plain(value) for key, value in dictionary(attrs[1:-1]).items()}
    try:
        said = write(found)
    except KeyError:
        return attrs, inner
    if found:
        return attrs, inner
    single = _ONE_OP.fullmatch(regions[0]) if op == "reduce" and regions else None
    return (said, inner) if single is None else (f"applies {single[4]} {said}", [])


def _plain(value: str) -> str:
    """Return a value without the types of its numbers."""
    for pattern, shown in ((_ARRAY, r"[\1]"), (_INTEGER, r"\1"), (_WORD, r"\1")):
        value = pattern.sub(shown, value)
    return value


def _named(**names: str) -> Callable[[dict[str, str]], str]:
    """Return what writes some attributes under the short names given here."""

    def write(found: dict[str, str]) -> str:
        return ", ".join(f"{short} = {found.pop(key)}" for short, key in names.items())

    return write


def _compare(found: dict[str, str]) -> str:
    words = [found.pop("comparison_direction"), found.pop("compare_type", "")]
    return ", ".join(filter(None, words))


def _slice(found: dict[str, str]) -> str:
    keys = ("start_indices", "limit_indices", "strides")
    columns = [found.pop(key).strip("[]").split(", ") for key in keys]
    parts = [
        f"{start}:{limit}" if step == "1" else f"{start}:{limit}:{step}"
        for start, limit, step in zip(*columns, strict=True)
    ]
    return f"[{', '.join(parts)}]".replace("[:]", "[]")


def _dot(found: dict[str, str]) -> str:
    numbers = _DOT.fullmatch(found.pop("dot_dimension_numbers"))
    sides = _DOT_SIDE.findall(numbers[1]) if numbers else []
    dims = {(side, what): value for side, what, value in sides}
    said = [
        f"{what}_dims = {dims.get(('lhs', what), '[]')} x {dims.get(('rhs', what), '[]')}"
        for what in ("batching", "contracting")
        if ("lhs", what) in dims or what == "contracting"
    ]
    if "precision_config" in found:
        said.append(f"precision = {found.pop('precision_config')}")
    return ", ".join(said)


def _precision(found: dict[str, str]) -> str:
    exponent, mantissa = found.pop("exponent_bits"), found.pop("mantissa_bits")
    return f"format = e{exponent}m{mantissa}"


def _fft(found: dict[str, str]) -> str:
    return f"type = {found.pop('fft_type')}, length = {found.pop('fft_length')}"


def _top_k(found: dict[str, str]) -> str:
    return f"(k = {found.pop('k')})"


def _convolution(found: dict[str, str]) -> str:
    numbers = _CONV.fullmatch(found.pop("dimension_numbers"))
    if numbers is None:
        raise KeyError("dimension_numbers")
    if "padding" in found:
        found["padding"] = _rows(found["padding"])
    window = [
        f"{short} = {found.pop(key)}" for short, key in _WINDOW.items() if key in found
    ]
    rest = [
        f"{key} = {found.pop(key)} : i64"
        for key in ("batch_group_count", "feature_group_count")
    ]
    if "precision_config" in found:
        words = found.pop("precision_config").strip("[]").split(", ")
        said = ", ".join(f"#stablehlo<precision {word}>" for word in words)
        rest.append(f"precision_config = [{said}]")
    return f"dim_numbers = {numbers[1]}, window = {{{', '.join(window)}}} {{{', '.join(rest)}}}"


def _rows(dense: str) -> str:
    """Return a table of numbers in full: of equal ones the generic notation says one."""
    found = _DENSE.fullmatch(dense)
    if found is None or found[1].startswith("["):
        return found[1] if found else dense
    row = f"[{', '.join([found[1]] * int(found[3]))}]"
    return f"[{', '.join([row] * int(found[2]))}]"


def _custom_call(attrs: str) -> str:
    """Return the two dictionaries of a custom call as one, without what goes without saying."""
    end = closing(attrs, 1)
    found = dictionary(attrs[1:end]) | dictionary(attrs[end + 1 :].strip())
    name = found.pop("call_target_name", '""').strip('"')
    said = [
        f"{key} = {value}"
        for key, value in sorted(found.items())
        if (key, value) not in _UNSAID
    ]
    return f"@{name} {{{', '.join(said)}}}" if said else f"@{name}"


def _reduce(found: dict[str, str]) -> str:
    return f"across dimensions = {found.pop('dimensions')}"


# What the short notation calls the parts of a window, in its order.
_WINDOW = {
    "stride": "window_strides", "pad": "padding", "lhs_dilate": "lhs_dilation",
    "rhs_dilate": "rhs_dilation", "reverse": "window_reversal",
}  # fmt: skip
_WRITERS: dict[str, Callable[[dict[str, str]], str]] = {
    "broadcast_in_dim": _named(dims="broadcast_dimensions"),
    "chlo.top_k": _top_k,
    "compare": _compare,
    "concatenate": _named(dim="dimension"),
    "convolution": _convolution,
    "dot_general": _dot,
    "dynamic_slice": _named(sizes="slice_sizes"),
    "fft": _fft,
    "iota": _named(dim="iota_dimension"),
    "pad": _named(
        low="edge_padding_low", high="edge_padding_high", interior="interior_padding"
    ),
    "reduce": _reduce,
    "reduce_precision": _precision,
    "reverse": _named(dims="dimensions"),
    "rng_bit_generator": _named(algorithm="rng_algorithm"),
    "slice": _slice,
    "transpose": _named(dims="permutation"),
}
