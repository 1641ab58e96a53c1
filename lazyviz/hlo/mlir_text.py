"""The surface of MLIR text: functions, statements, balanced brackets, locations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazyviz.hlo.errors import HloSyntaxError
from lazyviz.hlo.graph import Origin
from lazyviz.hlo.module import split_op_name

if TYPE_CHECKING:
    from collections.abc import Iterator

_FUNCTION = re.compile(
    r'^[ \t]*"?func\.func"?\s+(?:(public|private|nested)\s+)?@("(?:[^"\\]|\\.)*"|[\w$.\-]+)',
    re.MULTILINE,
)
_MODULE = re.compile(
    r'^\s*"?(?:builtin\.)?module"?\s+@("(?:[^"\\]|\\.)*"|[\w$.\-]+)', re.MULTILINE
)
# `->` and the comparisons of affine maps hold no angle brackets that pair up.
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"?|[()\[\]{}]', re.DOTALL)
_CONTINUATION = re.compile(r"\s*(?:cond|do|reducer|else)\b")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_MAX_DEPTH = 400
_ALIAS = re.compile(r"^\s*(#loc\d*)\s*=\s*loc\((.*)\)\s*$", re.MULTILINE)
_LOCATION = re.compile(r"\s*\bloc\(")
_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+')
_NAMED = re.compile(r'\s*"((?:[^"\\]|\\.)*)"\s*(?:\(|$)')
_REFERENCE = re.compile(r"#loc\d*")
_MAX_EXPANSIONS = 40


@dataclass(frozen=True, slots=True)
class Statement:
    """One operation with everything between it and the next one.

    Attributes:
        text: As written, without the locations.
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
    """

    name: str
    arguments: str
    body: tuple[Statement, ...]
    line: int
    is_public: bool


def functions(text: str, source: str = "") -> list[Function]:
    """Return the functions of an MLIR module.

    Raises:
        HloSyntaxError: Brackets do not pair up: the text is cut off or edited.
    """
    return [_function(text, found, source) for found in _FUNCTION.finditer(text)]


def module_name(text: str) -> str:
    """Return the name of the module, `module` without one."""
    found = _MODULE.search(text)
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
    body = _body_start(text, end, source)
    if body < 0:
        arguments = text[start + 1 : end - 1]
        return Function(found[2].strip('"'), arguments, (), line, is_public=False)
    stop = closing(text, body, source)
    first = text.count("\n", 0, body) + 1
    statements = tuple(_statements(text[body + 1 : stop - 1], first, source))
    is_public = found[1] == "public" or found[1] is None
    name = found[2].strip('"')
    return Function(name, text[start + 1 : end - 1], statements, line, is_public)


def _body_start(text: str, at: int, source: str) -> int:
    """Return where the `{` of the body is, after results and attributes; -1 for a declaration."""
    while True:
        mark = re.compile(r"[({\n]|attributes\s*\{").search(text, at)
        if mark is None or mark[0] == "\n":
            return -1
        if mark[0] == "{":
            return mark.start()
        at = closing(text, mark.end() - 1, source)


def _statements(body: str, line: int, source: str) -> Iterator[Statement]:
    lines = body.split("\n")
    at = 0
    while at < len(lines):
        first, start = lines[at], at
        if not first.strip() or first.lstrip().startswith("//"):
            at += 1
            continue
        text, depth = first, _depth(first)
        at += 1
        while at < len(lines) and (depth > 0 or _CONTINUATION.match(lines[at])):
            text += f"\n{lines[at]}"
            depth += _depth(lines[at])
            at += 1
        if depth:
            message = "brackets do not pair up in this operation. The text was edited."
            raise HloSyntaxError(message, line + start, 1, source)
        plain, location = without_locations(text)
        column = len(first) - len(first.lstrip()) + 1
        yield Statement(plain.strip(), location, line + start, column)


def _depth(line: str) -> int:
    if '"' in line:
        line = re.sub(r'"(?:[^"\\]|\\.)*"', "", line)
    return (
        line.count("(") + line.count("[") + line.count("{")
        - line.count(")") - line.count("]") - line.count("}")
    )  # fmt: skip
