"""The smallest parts of HLO text, for everything that reads a line of it."""

from __future__ import annotations

import re

LITERAL_OPS = frozenset({"constant", "parameter", "iota"})
# What begins an instruction, up to its type.
START = re.compile(r"\s*(ROOT\s+)?%?([\w.\-]+)\s*=\s*")
NAME = re.compile(r"%([\w.\-]+)")
PLAIN_NAME = re.compile(r"[\w.\-]+")
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
METADATA = re.compile(
    r',?\s*metadata=\{((?:[^"{}]|"[^"\\]*(?:\\.[^"\\]*)*"|\{[^{}]*\})*)\}'
)
# Blanks that are not one space alone.
_UNEVEN = re.compile(r"[^\S ]\s*| \s+")
_TYPED = re.compile(r"(?<![\w.\-])[a-z]\w*\[[^\[\]]*\](?:\{[^{}]*\})?")


def instruction_count(text: str) -> int:
    r"""Return how many instructions stand in an HLO text.

    Example:
        >>> instruction_count("ENTRY e {\n  %a = f32[] parameter(0)\n  ROOT b = f32[] negate(a)\n}")
        2
    """
    lines = text.split("\n")
    return sum(1 for line in lines if line[:1].isspace() and START.match(line))


def without_metadata(rest: str) -> tuple[str, str]:
    """Return the attributes without the metadata, and the metadata."""
    before, _, after = rest.partition(", metadata={")
    plain, brace, behind = after.partition("}")
    if brace and "{" not in plain and plain.count('"') % 2 == 0:
        return (before + behind if behind else before), plain
    cut = METADATA.search(rest)
    if cut is None:
        return rest, ""
    return rest[: cut.start()] + rest[cut.end() :], cut[1]


def evenly_spaced(text: str) -> str:
    r"""Return a text with one space where it has blanks, and none around it.

    A literal may have millions of single spaces, which stay where they are.

    Example:
        >>> evenly_spaced(" {1,  2,\n 3} "), evenly_spaced("a\tb")
        ('{1, 2, 3}', 'a b')
    """
    return _UNEVEN.sub(" ", text.strip())


def operand_names(body: str) -> list[str]:
    """Return the names between an instruction's parentheses, however they are written.

    Example:
        >>> operand_names("f32[2]{0} %x, s32[] %y"), operand_names("f32[2]{0} x, y.1")
        (['x', 'y'], ['x', 'y.1'])
        >>> operand_names("/*index=0*/%x, /*index=1*/%y")
        ['x', 'y']
    """
    if "/*" in body:
        body = COMMENT.sub("", body)
    if "%" in body:
        return NAME.findall(body)
    if "[" in body:
        body = _TYPED.sub(" ", body)
    if "(" in body:
        body = re.sub(r"\([^()]*\)", " ", body)
    return [
        found[-1] for part in body.split(",") if (found := PLAIN_NAME.findall(part))
    ]
