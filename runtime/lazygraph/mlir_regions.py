"""Regions of an operation of MLIR: where they stand in the text, and what its head gives them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lazygraph.mlir_text import Function, block, closing, opening

if TYPE_CHECKING:
    from collections.abc import Callable

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


def region_function(
    name: str,
    text: str,
    line: int,
    inputs: list[tuple[str, str, str, str]],
    source: str,
) -> Function:
    """Return a region as a function of its block's arguments, else of what the head gives it."""
    given, rows = block(text, line, source)
    return Function(name, "", rows, line, is_public=False, given=tuple(given or inputs))


def bound_by(body: str, knows: Callable[[str], bool]) -> list[tuple[str, str, str]]:
    """Return what the head of an operation binds for its regions: names with values or types."""
    return [
        (name, value, type_text)
        for name, value, type_text in _BOUND.findall(body)
        if value or not knows(name)
    ]


def without_bound(body: str) -> str:
    """Return the head of an operation without the names that it binds."""
    return _BOUND.sub(_value_alone, body)


def _value_alone(found: re.Match[str]) -> str:
    return "%" if found[2] else found[0] if not found[3] else ""


def uses(body: str, bound: list[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """Return the values that a statement reads; names that it binds itself are none."""
    names = {name for name, _, _ in bound}
    return [(name, part) for name, part in VALUE.findall(body) if name not in names]
