"""Types, attributes and literals of MLIR operations, in the form in which they are compared."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lazygraph.mlir_text import closing
from lazygraph.tokens import evenly_spaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SYMBOL = re.compile(r'@("[^"\\]*(?:\\.[^"\\]*)*"|[\w$.\-]+)')
_BLANK = re.compile(r"\s+")
_TENSOR = re.compile(r"tensor<((?:[^<>]|<[^<>]*>)*)>")
_SIZES = re.compile(r"(?:[\d?]+x)+")
_LITERAL = re.compile(r"dense(?:_resource)?<([^<>]*)>")
# What stays of operands and regions that were taken out.
_PLACES = re.compile(r"%\s*,\s*|%")
_EMPTY = re.compile(r"<>|\((?:[\s,=]|init:)*\)")
_DICTIONARY_MARK = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|->|<(?=\{)|[<(\[{]|[>)\]}]')
_SEPARATOR = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|->|[<({\[]|[>)}\]]|,')
_TYPE_MARK = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|->|[()\[\]{}<>]|\s:\s')
_NOISE = frozenset({
    "result_layout", "operand_layouts", "result_layouts", "xla_shape", "channel_handle",
    "channel_id", "jax.result_info", "jax.arg_info", "operandSegmentSizes",
})  # fmt: skip
# Of these the notes for XLA decide what is computed, or where.
_KEPT_NOTES = frozenset({"mhlo.sharding"})
_CONFIGS = frozenset(
    {"backend_config", "mhlo.backend_config", "mhlo.frontend_attributes"}
)
_DTYPES = {"i1": "pred", "i8": "s8", "i16": "s16", "i32": "s32", "i64": "s64",
           "ui8": "u8", "ui16": "u16", "ui32": "u32", "ui64": "u64",
           "complex<f32>": "c64", "complex<f64>": "c128"}  # fmt: skip


def hlo_type(text: str) -> str:
    """Return an MLIR type as HLO writes it.

    Example:
        >>> hlo_type("tensor<2x3xf32>"), hlo_type("tensor<i1>"), hlo_type("!stablehlo.token")
        ('f32[2,3]', 'pred[]', '!stablehlo.token')
    """
    return _TENSOR.sub(_tensor, text.strip())


def _tensor(found: re.Match[str]) -> str:
    inside = (split_commas(found[1]) or [""])[0].strip()
    end = _SIZES.match(inside)
    count = end.end() if end else 0
    sizes, dtype = inside[:count], inside[count:]
    return f"{_DTYPES.get(dtype, dtype)}[{sizes.replace('x', ',').rstrip(',')}]"


def split_type(text: str) -> tuple[str, str]:
    """Return a statement before and after its type."""
    depth = 0
    cut = -1
    for found in _TYPE_MARK.finditer(text):
        mark = found[0]
        if mark in {"(", "[", "{", "<"}:
            depth += 1
        elif mark in {")", "]", "}", ">"}:
            depth -= 1
        elif mark.strip() == ":" and depth == 0:
            cut = found.start()
    return (text, "") if cut < 0 else (text[:cut], text[cut + 3 :])


def result_types(text: str, count: int) -> list[str]:
    """Return the types of `count` results, of the type that ends a statement."""
    _, arrow, results = text.rpartition("->")
    shown = (results if arrow else text).strip()
    shown = re.split(r"\n| cond\b| do\b| reducer\b", shown)[0].strip()
    if shown.startswith("(") and shown.endswith(")"):
        shown = shown[1:-1]
    types = [hlo_type(part) for part in split_commas(shown)]
    # `select` and its like name several operands' types, the result's last.
    return types[-count:] if types and count else ["()"]


def split_commas(text: str) -> list[str]:
    """Return the parts of a text between commas outside of brackets and quotes."""
    parts, depth, start = [], 0, 0
    for found in _SEPARATOR.finditer(text):
        mark = found[0]
        if mark in "<({[":
            depth += 1
        elif mark in ">)}]":
            depth -= 1
        elif mark == "," and depth == 0:
            parts.append(text[start : found.start()])
            start = found.end()
    parts.append(text[start:])
    return [part for part in parts if part.strip()]


def literal_of(body: str) -> str | None:
    """Return the value of a constant, None if it has none that is known."""
    found = _LITERAL.search(body)
    return evenly_spaced(found[1]) if found else None


def attributes_of(op: str, body: str, symbol: Callable[[re.Match[str]], str]) -> str:
    """Return what is left of a statement without operands, types and what does not matter.

    Args:
        op: Its name, such as `stablehlo.add`.
        body: The rest of it, `%` for each operand.
        symbol: Gives what stands for a name such as `@main`.
    """
    text = _without_noise(body, keeps_config="custom_call" in op)
    if "@" in text:
        text = SYMBOL.sub(symbol, text)
    text = _BLANK.sub(" ", text)
    return _EMPTY.sub("", _PLACES.sub("", text)).strip(" ,")


def dictionary(text: str) -> dict[str, str]:
    """Return the attributes between braces.

    Example:
        >>> dictionary('{jax.buffer_donor = true, mhlo.sharding = "{replicated}"}')
        {'jax.buffer_donor': 'true', 'mhlo.sharding': '"{replicated}"'}
    """
    inside = text.strip()
    if inside.startswith("{"):
        inside = inside[1 : closing(inside, 0) - 1]
    found = {}
    for part in split_commas(inside):
        key, _, value = part.partition("=")
        found[key.strip().strip('"')] = _BLANK.sub(" ", value.strip())
    return found


def _without_noise(text: str, *, keeps_config: bool) -> str:
    """Drop layouts, channels and notes from the dictionaries of a statement."""
    if "{" not in text or "=" not in text:
        return text
    parts, at = [], 0
    for start, end in _dictionaries(text):
        kept = [
            part.strip()
            for part in split_commas(text[start + 1 : end - 1])
            if _matters(part.partition("=")[0].strip().strip('"'), keeps_config)
        ]
        inside = f"{{{', '.join(sorted(kept))}}}" if kept else ""
        parts += [text[at:start], inside]
        at = end
    return "".join([*parts, text[at:]])


def _dictionaries(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the dictionaries of a statement start and end; those of a value are none."""
    depth = end = 0
    for found in _DICTIONARY_MARK.finditer(text):
        mark, start = found[0], found.start()
        if start < end:
            continue
        if mark == "{" and not depth and text[:start].rstrip()[-1:] not in {"=", ","}:
            end = closing(text, start)
            yield start, end
        elif mark == "<" and text.startswith("{", found.end()):
            continue
        elif mark in "<([{":
            depth += 1
        elif mark in ">)]}":
            depth = max(0, depth - 1)


def _matters(key: str, keeps_config: bool) -> bool:  # noqa: FBT001
    if key in _CONFIGS:
        return keeps_config
    if key.startswith("mhlo."):
        return key in _KEPT_NOTES
    return key not in _NOISE
