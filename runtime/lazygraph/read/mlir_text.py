"""The surface of MLIR text: functions, statements, regions, types, attributes, locations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lazygraph.graph import HloSyntaxError, Origin
from lazygraph.read.hlo_module import (
    closing,
    depth_of,
    evenly_spaced,
    position,
    split_commas,
    split_op_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FUNCTION = re.compile(
    r'^[ \t]*"?func\.func"?\s+(?:(?:public|private|nested)\s+)?@("[^"\\]*(?:\\.[^"\\]*)*"|[\w$.\-]+)',
    re.MULTILINE,
)
_GENERIC = re.compile(r'^[ \t]*"(?:builtin\.module|func\.func)"(?=\()', re.MULTILINE)
_BLOCK = re.compile(r"\s*\^[\w$.\-]+(\(|:)")
_ARGUMENT = re.compile(r"%([\w$.\-]+)\s*:\s*")
_BRACE = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}]', re.DOTALL)
_MODULE = re.compile(
    r'^\s*"?(?:builtin\.)?module"?\s+@("[^"\\]*(?:\\.[^"\\]*)*"|[\w$.\-]+)',
    re.MULTILINE,
)
_CONTINUATION = re.compile(r"\s*(?:cond|do|reducer|else)\b")
_ALIAS = re.compile(r"^\s*(#loc\d*)\s*=\s*loc\((.*)\)\s*$", re.MULTILINE)
_LOCATION = re.compile(r"\s*\bloc\(")
_FILE = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)":(\d+):\d+')
_NAMED = re.compile(r'\s*"([^"\\]*(?:\\.[^"\\]*)*)"\s*(?:\(|$)')
_REFERENCE = re.compile(r"#loc\d*")
_PARSED_AT = re.compile(r'"-":(\d+):(\d+): ')
_MAX_EXPANSIONS = 40


class Statement(NamedTuple):
    """One operation with everything between it and the next one.

    Attributes:
        text: As written; of one line without the location.
        location: What its own `loc(...)` holds, empty without one.
        line, column: Its start, from 1.
    """

    text: str
    location: str = ""
    line: int = 1
    column: int = 1


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a module.

    Attributes:
        name: Without `@`.
        arguments: The text between the parentheses of its head.
        body: Its statements.
        line: Line of its head, from 1.
        results: The text after its arrow: types and notes of what it returns.
        given: Its inputs, where they are known already, as `arguments` gives them.
    """

    name: str
    arguments: str
    body: tuple[Statement, ...]
    line: int
    results: str = ""
    given: tuple[tuple[str, str, str, str], ...] = ()

    def inputs(self) -> list[tuple[str, str, str, str]]:
        """Return name, type, location and notes of each argument."""
        return [*self.given, *arguments(self.arguments)]


def functions(text: str) -> list[Function]:
    """Return the functions of an MLIR module."""
    return [_function(text, found) for found in _FUNCTION.finditer(text)]


def in_usual_notation(text: str) -> str:
    """Return a module as MLIR prints it by default, whatever is around it in a log.

    Raises:
        HloSyntaxError: It is in the generic notation, `"op"() <{key = value}>`, and MLIR
            does not parse it.
    """
    found = _GENERIC.search(text)
    if found is None:
        return text
    body = text.find("({", found.end())
    body = found.end() if body < 0 else body
    end = text.find("\n", closing(text, body))
    end = len(text) if end < 0 else end
    head, tail = (_aliases(part) for part in (text[: found.start()], text[end:]))
    # MLIR's own parser and printer take longer than this module, and know each op's short form.
    from jax.interpreters import mlir
    from jaxlib.mlir import ir

    context = mlir.make_ir_context()
    context.allow_unregistered_dialects = True
    try:
        module = ir.Module.parse(head + text[found.start() : end] + tail, context)
    except ir.MLIRError as error:
        said = str(error).partition("error: ")[2].partition("\n")[0]
        place = _PARSED_AT.match(said)
        line, column = (int(place[1]), int(place[2])) if place else (1, 1)
        message = (
            f"MLIR does not parse it: {said[place.end() :] if place else said}. The dump was "
            "edited, or is of another version; print it without `print_generic_op_form`."
        )
        raise HloSyntaxError(message, line, column) from None
    return str(module.operation.get_asm(enable_debug_info=True))


def _aliases(text: str) -> str:
    """Return the lines that name locations and types, the others empty."""
    lines = text.split("\n")
    return "\n".join(line if line.startswith(("#", "!")) else "" for line in lines)


def module_name(text: str) -> str:
    """Return the name of the module, `module` without one."""
    found = _MODULE.search(text)
    return found[1].strip('"') if found else "module"


def without_locations(text: str) -> tuple[str, str]:
    """Return a text without its `loc(...)`, and what the last of them holds."""
    if "loc(" not in text:
        return text, ""
    parts, at, last = [], 0, ""
    for found in _LOCATION.finditer(text):
        if found.start() < at:
            continue
        end = closing(text, found.end() - 1)
        parts.append(text[at : found.start()])
        last = text[found.end() : end - 1]
        at = end
    # What follows the last location belongs to it only if nothing follows.
    is_own = not text[at:].strip()
    return "".join([*parts, text[at:]]), last if is_own else ""


class Locations:
    """Resolves locations through the aliases at the end of a module."""

    def __init__(self, text: str) -> None:
        self._aliases = dict(_ALIAS.findall(text)) if "#loc" in text else {}

    def origin(self, location: str | None) -> Origin:
        """Return the name and the first source line of a location."""
        if not location:
            return Origin()
        name = _NAMED.match(location)
        shown, budget = location, _MAX_EXPANSIONS
        while budget:
            file = _FILE.search(shown)
            reference = _REFERENCE.search(shown)
            if file and not (reference and reference.start() < file.start()):
                break
            if reference is None:
                break
            known = self._aliases.get(reference[0], "")
            shown = shown[: reference.start()] + known + shown[reference.end() :]
            name = name or _NAMED.match(shown)
            budget -= 1
        file = _FILE.search(shown)
        site = f"{file[1]}:{file[2]}" if file and file[1] not in {"", "-"} else ""
        scope, op_name = split_op_name(name[1]) if name else ("", "")
        return Origin(scope, site, op_name)


def _function(text: str, found: re.Match[str]) -> Function:
    line = text.count("\n", 0, found.start()) + 1
    start = text.find("(", found.end())
    if start < 0:
        message = (
            "the head of the function ends early. The text was cut off; save it again."
        )
        raise HloSyntaxError(message, *position(text, found.start()))
    end = closing(text, start)
    name, given = found[1].strip('"'), text[start + 1 : end - 1]
    body = _body_start(text, end)
    if body < 0:
        return Function(name, given, (), line)
    stop = _body_end(text, body)
    first = text.count("\n", 0, body) + 1
    rows = tuple(statements(text[body + 1 : stop - 1], first))
    results = text[end:body].partition("->")[2]
    return Function(name, given, rows, line, results)


def block(
    text: str, line: int
) -> tuple[list[tuple[str, str, str, str]], tuple[Statement, ...]]:
    """Return the arguments and the operations of a region of one block, braces and all."""
    found = _BLOCK.match(text, 1)
    if found is None:
        return [], tuple(statements(text[1:-1], line))
    end, given = found.end(), ""
    if found[1] == "(":
        end = closing(text, end - 1)
        given = text[found.end() : end - 1]
        end = text.find(":", end) + 1 or end
    first = line + text.count("\n", 0, end)
    return list(arguments(given)), tuple(statements(text[end:-1], first))


def arguments(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, type, location and notes of each argument of a function or block."""
    found = list(_ARGUMENT.finditer(text))
    for number, each in enumerate(found):
        end = found[number + 1].start() if number + 1 < len(found) else len(text)
        part, location = without_locations(text[each.end() : end].rstrip(", \n"))
        type_text, brace, notes = part.partition("{")
        yield each[1], type_text.strip(), location, (brace + notes).strip()


def opening(text: str, at: int) -> int:
    """Return where the next opening brace outside of quotes is; -1 without one."""
    return next((f.start() for f in _BRACE.finditer(text, at) if f[0] == "{"), -1)


def _body_end(text: str, at: int) -> int:
    """Return the position after the brace that closes the one at `at`."""
    depth = 0
    for found in _BRACE.finditer(text, at):
        mark = found[0]
        if mark == "{":
            depth += 1
        elif mark == "}":
            depth -= 1
            if not depth:
                return found.end()
    message = "'{' is never closed. The text was cut off; save it again."
    raise HloSyntaxError(message, *position(text, at))


def _body_start(text: str, at: int) -> int:
    """Return where the `{` of the body is, after results and attributes; -1 for a declaration."""
    while True:
        mark = re.compile(r"[({\n]|attributes\s*\{").search(text, at)
        if mark is None or mark[0] == "\n":
            return -1
        if mark[0] == "{":
            return mark.start()
        at = closing(text, mark.end() - 1)


def statements(body: str, line: int) -> Iterator[Statement]:
    """Yield the operations of a text; one with regions is one."""
    lines = body.split("\n")
    lines.append("")
    at, end = 0, len(lines) - 1
    while at < end:
        first, start = lines[at], at
        at += 1
        stripped = first.lstrip()
        if not stripped or stripped.startswith("//"):
            continue
        column = len(first) - len(stripped) + 1
        depth = depth_of(first)
        following = lines[at]
        if not depth and not (following and _CONTINUATION.match(following)):
            plain, location = _without_location(stripped)
            yield Statement(plain.rstrip(), location, line + start, column)
            continue
        text = [stripped]
        while at < end and (depth > 0 or _CONTINUATION.match(lines[at])):
            text.append(lines[at])
            depth += depth_of(lines[at])
            at += 1
        if depth:
            message = "brackets do not pair up in this operation. The text was edited."
            raise HloSyntaxError(message, line + start)
        yield Statement("\n".join(text).strip(), "", line + start, column)


def _without_location(line: str) -> tuple[str, str]:
    """Return a line without its location, and what that holds."""
    start = line.rfind(" loc(")
    if start < 0:
        return line, ""
    inside = line[start + 5 : -1]
    # A location as most are: a name for one that the end of the text has.
    if line.endswith(")") and inside.startswith("#loc") and "loc(" not in line[:start]:
        return line[:start], inside
    return without_locations(line)


SYMBOL = re.compile(r'@("[^"\\]*(?:\\.[^"\\]*)*"|[\w$.\-]+)')
_BLANK = re.compile(r"\s+")
_TENSOR = re.compile(r"tensor<((?:[^<>]|<[^<>]*>)*)>")
_SIZES = re.compile(r"(?:[\d?]+x)+")
_LITERAL = re.compile(r"dense(?:_resource)?<([^<>]*)>")
# What stays of operands and regions that were taken out.
_PLACES = re.compile(r"%\s*,\s*|%")
_EMPTY = re.compile(r"<>|\((?:[\s,=]|init:)*\)")
_DICTIONARY_MARK = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|->|<(?=\{)|[<(\[{]|[>)\]}]')
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


def literal_of(body: str) -> str | None:
    """Return the value of a constant, None if it has none that is known."""
    found = _LITERAL.search(body)
    return evenly_spaced(found[1]) if found else None


def attributes_of(op: str, body: str, symbol: Callable[[re.Match[str]], str]) -> str:
    """Return what is left of a statement without operands, types and what does not matter.

    Its body has `%` for each operand; `symbol` gives what stands for a name such as `@main`.
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
    for start, end in _dictionary_spans(text):
        kept = [
            part.strip()
            for part in split_commas(text[start + 1 : end - 1])
            if _matters(part.partition("=")[0].strip().strip('"'), keeps_config)
        ]
        inside = f"{{{', '.join(sorted(kept))}}}" if kept else ""
        parts += [text[at:start], inside]
        at = end
    return "".join([*parts, text[at:]])


def _dictionary_spans(text: str) -> Iterator[tuple[int, int]]:
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


VALUE = re.compile(r"%([\w$.\-]+)(#\d+)?")
_BOUND = re.compile(
    r"%([\w$.\-]+)\s*(?:=\s*%([\w$.\-]+(?:#\d+)?)|:\s*([\w!.]+(?:<[^<>]*(?:<[^<>]*>)?[^<>]*>)?))"
)
# What the regions of an operation are to it.
REGIONS = {
    "while": ("condition", "body"), "if": ("true", "false"), "sort": ("to_apply",),
    "reduce": ("to_apply",), "map": ("to_apply",), "scatter": ("to_apply",),
    "reduce_window": ("to_apply",), "all_reduce": ("to_apply",),
    "reduce_scatter": ("to_apply",), "select_and_scatter": ("select", "scatter"),
    "sdy.manual_computation": ("body",),
}  # fmt: skip


def regions_of(text: str) -> tuple[str, list[tuple[str, int]]]:
    """Return a statement without its regions, and the regions with their lines in it.

    A region is a pair of braces with operations in it.
    """
    if "\n" not in text or "{" not in text:
        return text, []
    parts: list[str] = []
    regions: list[tuple[str, int]] = []
    at = 0
    while True:
        start = opening(text, at)
        if start < 0:
            break
        end = closing(text, start)
        if "\n" in text[start:end]:
            parts.append(text[at:start])
            regions.append((text[start:end], text.count("\n", 0, start)))
        else:
            parts.append(text[at:end])
        at = end
    return "".join([*parts, text[at:]]), regions


def bound_by(body: str, knows: Callable[[str], bool]) -> list[tuple[str, str, str]]:
    """Return what the head of an operation binds for its regions: names with values or types."""
    return [
        (name, value, type_text)
        for name, value, type_text in _BOUND.findall(body)
        if value or not knows(name)
    ]


def without_bound(body: str) -> str:
    """Return the head of an operation without the names that it binds."""
    # Of `name = value` the value stays, of `name: type` nothing.
    return _BOUND.sub(lambda m: "%" if m[2] else "" if m[3] else m[0], body)


def uses(body: str, bound: list[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """Return the values that a statement reads; names that it binds itself are none."""
    names = {name for name, _, _ in bound}
    return [(name, part) for name, part in VALUE.findall(body) if name not in names]
