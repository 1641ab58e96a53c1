"""The surface of MLIR text: functions, statements, balanced brackets, locations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lazygraph.errors import HloSyntaxError
from lazygraph.graph import Origin
from lazygraph.module import split_op_name

if TYPE_CHECKING:
    from collections.abc import Iterator

_FUNCTION = re.compile(
    r'^[ \t]*"?func\.func"?\s+(?:(public|private|nested)\s+)?@("[^"\\]*(?:\\.[^"\\]*)*"|[\w$.\-]+)',
    re.MULTILINE,
)
_GENERIC = re.compile(r'^[ \t]*"func\.func"\(\)', re.MULTILINE)
_SYMBOL_NAME = re.compile(r'\bsym_name = "([^"\\]*(?:\\.[^"\\]*)*)"')
_MODULE_NAME = re.compile(
    r'^\s*"builtin\.module"\(\) <\{sym_name = "([^"\\]*(?:\\.[^"\\]*)*)"'
)
_BLOCK = re.compile(r"\s*\^[\w$.\-]+(\(|:)")
_ARGUMENT = re.compile(r"%([\w$.\-]+)\s*:\s*")
_BRACE = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}]', re.DOTALL)
_MODULE = re.compile(
    r'^\s*"?(?:builtin\.)?module"?\s+@("[^"\\]*(?:\\.[^"\\]*)*"|[\w$.\-]+)',
    re.MULTILINE,
)
# `->` and the comparisons of affine maps hold no angle brackets that pair up.
_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[()\[\]{}]', re.DOTALL)
_CONTINUATION = re.compile(r"\s*(?:cond|do|reducer|else)\b")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_MAX_DEPTH = 400
_ALIAS = re.compile(r"^\s*(#loc\d*)\s*=\s*loc\((.*)\)\s*$", re.MULTILINE)
_LOCATION = re.compile(r"\s*\bloc\(")
_FILE = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)":(\d+):\d+')
_NAMED = re.compile(r'\s*"([^"\\]*(?:\\.[^"\\]*)*)"\s*(?:\(|$)')
_REFERENCE = re.compile(r"#loc\d*")
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
        is_public: Whether it says so.
        results: The text after its arrow: types and notes of what it returns.
        given: Its inputs, where they are known already, as `arguments` gives them.
    """

    name: str
    arguments: str
    body: tuple[Statement, ...]
    line: int
    is_public: bool
    results: str = ""
    given: tuple[tuple[str, str, str, str], ...] = ()

    def inputs(self) -> list[tuple[str, str, str, str]]:
        """Return name, type, location and notes of each argument."""
        return [*self.given, *arguments(self.arguments)]


def functions(text: str, source: str = "") -> list[Function]:
    """Return the functions of an MLIR module, in the usual notation or the generic one.

    Raises:
        HloSyntaxError: Brackets do not pair up: the text is cut off or edited.
    """
    usual = [_function(text, found, source) for found in _FUNCTION.finditer(text)]
    if usual or '"func.func"()' not in text:
        return usual
    return [_generic(text, found, source) for found in _GENERIC.finditer(text)]


def module_name(text: str) -> str:
    """Return the name of the module, `module` without one."""
    found = _MODULE.search(text) or _MODULE_NAME.search(text)
    return found[1].strip('"') if found else "module"


def closing(text: str, at: int, source: str = "") -> int:
    """Return the position after the bracket that closes the one at `at`."""
    stack: list[str] = []
    for found in _BRACKET.finditer(text, at):
        mark = found[0]
        if mark in _CLOSING:
            stack.append(_CLOSING[mark])
            if len(stack) > _MAX_DEPTH:
                message = (
                    f"brackets nest more than {_MAX_DEPTH} deep, which no program does."
                )
                raise HloSyntaxError(message, *position(text, found.start()), source)
        elif mark[0] != '"':
            if stack.pop() != mark:
                message = (
                    f"{mark!r} closes a bracket of another kind. The text was edited."
                )
                raise HloSyntaxError(message, *position(text, found.start()), source)
            if not stack:
                return found.end()
    message = f"{text[at]!r} is never closed. The text was cut off; save it again."
    raise HloSyntaxError(message, *position(text, at), source)


def position(text: str, at: int) -> tuple[int, int]:
    """Return line and column of a place, from 1."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


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


def _function(text: str, found: re.Match[str], source: str) -> Function:
    line = text.count("\n", 0, found.start()) + 1
    start = text.find("(", found.end())
    if start < 0:
        message = (
            "the head of the function ends early. The text was cut off; save it again."
        )
        raise HloSyntaxError(message, *position(text, found.start()), source)
    end = closing(text, start, source)
    name, given = found[2].strip('"'), text[start + 1 : end - 1]
    body = _body_start(text, end, source)
    if body < 0:
        return Function(name, given, (), line, is_public=False)
    stop = _body_end(text, body, source)
    first = text.count("\n", 0, body) + 1
    rows = tuple(statements(text[body + 1 : stop - 1], first, source))
    is_public = found[1] == "public" or found[1] is None
    results = text[end:body].partition("->")[2]
    return Function(name, given, rows, line, is_public, results)


def _generic(text: str, found: re.Match[str], source: str) -> Function:
    """Return a function in the notation that names every part."""
    line = text.count("\n", 0, found.start()) + 1
    start = opening(text, found.end())
    head = ""
    if start > 0 and text[start - 1] == "<":
        stop = closing(text, start, source)
        head, start = text[start:stop], opening(text, stop)
    if start < 0:
        raise HloSyntaxError(
            "the function has no body. The text was cut off; save it again.",
            line,
            1,
            source,
        )
    stop = closing(text, start, source)
    name = _SYMBOL_NAME.search(head or text[stop : text.find("\n", stop)])
    inputs, rows = block(text[start:stop], text.count("\n", 0, start) + 1, source)
    notes = re.search(r"\barg_attrs = (?=\[)", head)
    if notes is not None:
        stop = closing(head, notes.end(), source)
        each = _dictionaries(head[notes.end() + 1 : stop - 1])
        inputs = [(*given[:3], note) for given, note in zip(inputs, each, strict=False)]
    return Function(
        name[1] if name else "main", "", rows, line, is_public=True, given=tuple(inputs)
    )


def _dictionaries(text: str) -> Iterator[str]:
    at = 0
    while (start := opening(text, at)) >= 0:
        at = closing(text, start)
        yield text[start:at]


def block(
    text: str, line: int, source: str
) -> tuple[list[tuple[str, str, str, str]], tuple[Statement, ...]]:
    """Return the arguments and the operations of a region of one block, braces and all.

    Args:
        text: The region.
        line: In which line of the file it starts.
        source: Name of the file, for errors.
    """
    found = _BLOCK.match(text, 1)
    if found is None:
        return [], tuple(statements(text[1:-1], line, source))
    end, given = found.end(), ""
    if found[1] == "(":
        end = closing(text, end - 1, source)
        given = text[found.end() : end - 1]
        end = text.find(":", end) + 1 or end
    first = line + text.count("\n", 0, end)
    return list(arguments(given)), tuple(statements(text[end:-1], first, source))


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


def _body_end(text: str, at: int, source: str) -> int:
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
    raise HloSyntaxError(message, *position(text, at), source)


def _body_start(text: str, at: int, source: str) -> int:
    """Return where the `{` of the body is, after results and attributes; -1 for a declaration."""
    while True:
        mark = re.compile(r"[({\n]|attributes\s*\{").search(text, at)
        if mark is None or mark[0] == "\n":
            return -1
        if mark[0] == "{":
            return mark.start()
        at = closing(text, mark.end() - 1, source)


def statements(body: str, line: int, source: str) -> Iterator[Statement]:
    """Yield the operations of a text; one with regions is one.

    Raises:
        HloSyntaxError: The brackets of one do not pair up.
    """
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
        depth = _depth(first)
        following = lines[at]
        if not depth and not (following and _CONTINUATION.match(following)):
            plain, location = _without_location(stripped)
            yield Statement(plain.rstrip(), location, line + start, column)
            continue
        text = [stripped]
        while at < end and (depth > 0 or _CONTINUATION.match(lines[at])):
            text.append(lines[at])
            depth += _depth(lines[at])
            at += 1
        if depth:
            message = "brackets do not pair up in this operation. The text was edited."
            raise HloSyntaxError(message, line + start, 1, source)
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


def _depth(line: str) -> int:
    if '"' in line:
        line = re.sub(r'"[^"\\]*(?:\\.[^"\\]*)*"', "", line)
    count = line.count
    depth = count("(") - count(")") + count("[") - count("]")
    return depth + count("{") - count("}") if "{" in line or "}" in line else depth
