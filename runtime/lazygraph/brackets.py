"""Brackets and quotations in a line of HLO text: how deep it is, where it ends, what is wrong."""

from __future__ import annotations

import re
from typing import NamedTuple

from lazygraph.errors import HloError

_BRACKET = re.compile(r'[()\[\]{}]|"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_MAX_DEPTH = 200


class UnclosedError(HloError):
    """A bracket that nothing closes; `column` says which."""

    def __init__(self, message: str, column: int) -> None:
        self.column = column
        super().__init__(message)


class Fault(NamedTuple):
    """What is wrong with attributes, and from where on."""

    message: str
    at: int


def fault_of(rest: str) -> Fault | None:
    """Return what is wrong with the attributes of an instruction; None if nothing is."""
    start = len(rest) - len(rest.lstrip())
    if start < len(rest) and rest[start] != ",":
        return Fault(
            f"{clip(rest[start:])!r} is no attribute. Attributes follow the operands after a "
            "comma, as in `, dimensions={0}`.",
            start,
        )
    stack: list[tuple[str, int]] = []
    for found in _BRACKET.finditer(rest):
        mark, at = found[0], found.start()
        if mark in _CLOSING:
            stack.append((_CLOSING[mark], at))
            if len(stack) > _MAX_DEPTH:
                return Fault(
                    f"brackets nest more than {_MAX_DEPTH} deep, which no HLO does.", at
                )
        elif mark[0] == '"':
            if len(mark) == 1 or mark[-1] != '"':
                return Fault(
                    "a quotation is never closed. The line was cut off; save the dump again.",
                    at,
                )
        elif not stack or stack.pop()[0] != mark:
            return Fault(f"the `{mark}` closes nothing. The dump was edited.", at)
    if stack:
        _, at = stack[-1]
        return Fault(
            f"the `{rest[at]}` is never closed. The line was cut off; save the dump again.",
            at,
        )
    return None


def depth_of(line: str) -> int:
    """Return how many brackets a line opens more than it closes."""
    depth = 0
    for found in _BRACKET.finditer(line):
        mark = found[0]
        depth += (mark in _CLOSING) - (mark in ")]}")
    return depth


def type_end(text: str, at: int) -> int:
    """Return where the type that starts at `at` ends; `at` itself if there is none."""
    if text.startswith("(", at):
        return closing(text, at)
    found = re.compile(r"[a-z]\w*\[[^\[\]]*\]").match(text, at)
    if found is None:
        return at
    end = found.end()
    return closing(text, end) if text.startswith("{", end) else end


def closing(text: str, at: int) -> int:
    """Return the position after the bracket that closes the one at `at`."""
    stack: list[str] = []
    for found in _BRACKET.finditer(text, at):
        mark = found[0]
        if mark in _CLOSING:
            stack.append(_CLOSING[mark])
            if len(stack) > _MAX_DEPTH:
                raise UnclosedError(
                    f"brackets nest more than {_MAX_DEPTH} deep, which no HLO does.",
                    found.start() + 1,
                )
        elif mark[0] == '"':
            continue
        else:
            if stack.pop() != mark:
                break
            if not stack:
                return found.end()
    shown = text[at]
    raise UnclosedError(
        f"the `{shown}` is never closed. The line was cut off; save the dump again.",
        at + 1,
    )


def clip(text: str, length: int = 40) -> str:
    """Return the first line of a text, shortened."""
    first = text.split("\n", 1)[0]
    return first if len(first) <= length else f"{first[: length - 3]}..."
