"""Lines of HLO text in the form that nearly all have, read many at a time, as columns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lazyviz.hlo.module import Computation

LITERAL_OPS = frozenset({"constant", "parameter", "iota"})
# Each repetition is possessive, so that matching is linear. What a group leaves open, such as
# the letters of names, is checked once for each form or computation.
_LINE = re.compile(
    r"  %?([^ \n]++) = ([a-z][^ \n]*+ [a-z][^ (\n]*+)\(%?([^()\"\n]*+)\)"
    r"((?:, (?!metadata=\{)[^,\n]*+(?:,(?! )[^,\n]*+)*+)*+)"
    r"(?:, metadata=\{([^{}\n]*+)\}((?:, [a-z_]++=[^\n]*+)?+))?\n"
    r"|([^\n]*+)\n"
)
_HEAD = re.compile(r"\w+\[[^\[\]\s]*\](?:\{[^{}\s]*\})? [a-z][\w\-]*")
_ODD = re.compile(r'["(]')
_SEPARATORS = (", %", ", ")
_NAME = re.compile(r"%([\w.\-]+)")
_PLAIN_NAME = re.compile(r"[\w.\-]+")
_TYPED = re.compile(r"(?<![\w.\-])[a-z]\w*\[[^\[\]]*\](?:\{[^{}]*\})?")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_FIRST_LINES, _MOST_LINES = 32, 256

Row = tuple[str, ...]
"""Of one line: name, type and opcode, what stands between the parentheses, attributes,
metadata, attributes behind it, the whole line if it has another form."""
# Stands for the forms of a head and attributes that a literal tells apart.
_BY_LITERAL = -1
_OTHER: Row = ("",) * 6


class FaultError(ValueError):
    """What a line says before or behind the operands cannot be right."""


def rows_of(lines: Sequence[str]) -> list[Row]:
    """Return the lines taken apart."""
    return _LINE.findall("\n".join([*lines, ""]))


def quick_rows_of(lines: Sequence[str]) -> list[Row]:
    """Return the lines cut at their marks: in a third of the time, and rashly.

    What comes of brackets within brackets is no type, form or operand, so that it is noticed
    when it is added.
    """
    rows: list[Row] = []
    for line in lines:
        left, _, right = line.partition(" = ")
        head, _, inner = right.partition("(")
        body, closed, rest = inner.partition(")")
        before, braced, behind = rest.partition(", metadata={")
        metadata = ""
        if braced:
            metadata, braced, behind = behind.partition("}")
            closed = closed if braced and "{" not in metadata else ""
        name = left[3:]
        if closed and head and left[:3] == "  %" and " " not in name:
            rows.append((name, head, body[body[:1] == "%" :], before, metadata, behind))
        else:
            rows.append(_OTHER)
    return rows


def portion(lines: list[str], at: int) -> int:
    """Return how many lines of a computation to take at a time, from its first line on.

    Up to its end, if that is near: what is taken beyond is looked at in vain.
    """
    size = _FIRST_LINES
    while size < _MOST_LINES:
        if "}" in lines[at : at + size]:
            return lines.index("}", at) - at + 1
        size *= 4
    return _MOST_LINES


class _Forms(dict[Row, int]):
    """The numbers of forms, by head, attributes before and behind metadata, and a literal."""

    def __init__(self, form_of: Callable[[Row], int]) -> None:
        super().__init__()
        self._form_of = form_of

    def __missing__(self, key: Row) -> int:
        head, before, behind, *literal = key
        if _HEAD.fullmatch(head) is None or _ODD.search("".join(literal)):
            raise FaultError
        if not literal and head.rpartition(" ")[2] in LITERAL_OPS:
            self[key] = _BY_LITERAL
        else:
            self[key] = self._form_of((head, before + behind, *literal))
        return self[key]


class CommonLines:
    """Adds common lines of one module to its computations.

    Args:
        form_of: Returns the number of a form, given by head, attributes and a literal; raises
            a `FaultError` where they cannot be right.
    """

    def __init__(self, form_of: Callable[[Row], int]) -> None:
        self._forms = _Forms(form_of)
        self._separators = _SEPARATORS

    def add(
        self, computation: Computation, rows: Sequence[Row], line: int
    ) -> list[tuple[int, list[str]]] | None:
        """Add instructions; return which read what comes later, with the names they read.

        Args:
            computation: Grows.
            rows: What `rows_of` gives, none of another form.
            line: Number of the first of these lines.

        Returns:
            None if something is wrong with one of the lines. Then nothing was added.
        """
        columns = list(zip(*rows, strict=True))
        names, heads, bodies, before, metadata, behind = columns[:6]
        if [each for each in metadata if each.count('"') % 2]:
            return None  # what ends it may stand within a quotation
        known, base, index = self._forms, len(computation), computation.index
        read = list(bodies)
        try:
            forms = [known[key] for key in zip(heads, before, behind, strict=True)]
            if _BY_LITERAL in forms:
                for k in [k for k, form in enumerate(forms) if form == _BY_LITERAL]:
                    forms[k] = known[heads[k], before[k], behind[k], bodies[k]]
                    read[k] = ""
        except FaultError:
            return None
        index.update(zip(names, range(base, base + len(rows)), strict=True))
        found = None  # where a name occurs twice
        if len(index) == base + len(rows):
            found = self._operands(index, read, base)
        if found is None:
            index.clear()
            index.update(zip(computation.names, range(base), strict=True))
            return None
        operands, late = found
        computation.names += names
        computation.forms += forms
        computation.operands += operands
        computation.metadata += metadata
        computation.lines += range(line, line + len(rows))
        return late

    def _operands(
        self, index: dict[str, int], bodies: list[str], base: int
    ) -> tuple[list[tuple[int, ...]], list[tuple[int, list[str]]]] | None:
        position_of = index.__getitem__
        found: list[tuple[int, ...]] = []
        for separator in self._separators:
            try:
                found = [
                    tuple(map(position_of, body.split(separator))) if body else ()
                    for body in bodies
                ]
            except KeyError:
                continue
            if separator != self._separators[0]:
                self._separators = (separator, self._separators[0])
            break
        is_loose = not found
        if is_loose and any(map(_ODD.search, bodies)):
            return None
        if is_loose:
            for body in bodies:
                names = _names_read(body)
                found.append(tuple([index.get(name, -1) for name in names]))
        late = [
            (k, _names_read(bodies[k - base]))
            for k, row in enumerate(found, base)
            if row and (max(row) >= k or (is_loose and min(row) < 0))
        ]
        return found, late


def _names_read(body: str) -> list[str]:
    """Return operand names, the first of which has lost its `%`."""
    if not body:
        return []
    return operand_names(f"%{body}" if "%" in body and "[" not in body else body)


def operand_names(body: str) -> list[str]:
    """Return the names between an instruction's parentheses, however they are written.

    Example:
        >>> operand_names("f32[2]{0} %x, s32[] %y"), operand_names("f32[2]{0} x, y.1")
        (['x', 'y'], ['x', 'y.1'])
        >>> operand_names("/*index=0*/%x, /*index=1*/%y")
        ['x', 'y']
    """
    if "/*" in body:
        body = _COMMENT.sub("", body)
    if "%" in body:
        return _NAME.findall(body)
    if "[" in body:
        body = _TYPED.sub(" ", body)
    if "(" in body:
        body = re.sub(r"\([^()]*\)", " ", body)
    return [
        found[-1] for part in body.split(",") if (found := _PLAIN_NAME.findall(part))
    ]
