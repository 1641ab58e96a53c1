"""Brackets and commas in the text of HLO and MLIR: what closes what, and what stands between."""

from __future__ import annotations

import re

from lazygraph.errors import HloSyntaxError

# `->` and the comparisons of affine maps hold no angle brackets that pair up.
BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[()\[\]{}]', re.DOTALL)
CLOSING = {"(": ")", "[": "]", "{": "}"}
MAX_DEPTH = 400
# Nor does `<=`, which stands in shardings such as `{devices=[4]<=[4]}`.
_SEPARATOR = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|->|<=|[<({\[]|[>)}\]]|,')


class UnclosedError(HloSyntaxError):
    """A bracket that nothing closes, or that another kind closes."""


def closing(text: str, at: int, source: str = "") -> int:
    """Return the position after the bracket that closes the one at `at`.

    Raises:
        UnclosedError: There is none; its line and column count from the start of the text.
    """
    stack: list[str] = []
    for found in BRACKET.finditer(text, at):
        mark = found[0]
        if mark in CLOSING:
            stack.append(CLOSING[mark])
            if len(stack) > MAX_DEPTH:
                message = (
                    f"brackets nest more than {MAX_DEPTH} deep, which no program does."
                )
                raise UnclosedError(message, *position(text, found.start()), source)
        elif mark[0] != '"':
            if stack.pop() != mark:
                message = (
                    f"{mark!r} closes a bracket of another kind. The text was edited."
                )
                raise UnclosedError(message, *position(text, found.start()), source)
            if not stack:
                return found.end()
    message = f"{text[at]!r} is never closed. The text was cut off; save it again."
    raise UnclosedError(message, *position(text, at), source)


def position(text: str, at: int) -> tuple[int, int]:
    """Return line and column of a place, from 1."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def split_commas(text: str) -> list[str]:
    """Return the parts of a text between commas outside of brackets and quotes.

    Example:
        >>> split_commas('sharding={devices=[4]<=[4]}, dim_labels=bf_io->bf, name="a,b"')
        ['sharding={devices=[4]<=[4]}', ' dim_labels=bf_io->bf', ' name="a,b"']
    """
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
