"""Lines of HLO text in the form that nearly all have, added to a computation in one loop."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lazygraph.tokens import LITERAL_OPS, operand_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from lazygraph.module import Computation

_HEAD = re.compile(r"\w+\[[^\[\]\s]*\](?:\{[^{}\s]*\})? [a-z][\w\-]*")
_ODD = re.compile(r'["(]')

Key = tuple[str, ...]
"""Of a form: type and opcode, attributes, and a literal where the opcode has one."""
# Stands for the forms of a head and attributes that a literal tells apart.
_BY_LITERAL = -1
# What ends a type that is cut at the bracket of its tiles: `f32[8]{0:T(128)}`.
_TILES = "T"


class FaultError(ValueError):
    """What a line says before or behind the operands cannot be right."""


class _Heads(dict[str, dict[str, int]]):
    """By type and opcode, as they stand in the text, the numbers of forms by attributes."""

    def __init__(self, form_of: Callable[[Key], int]) -> None:
        super().__init__()
        self._form_of = form_of

    def __missing__(self, head: str) -> dict[str, int]:
        if _HEAD.fullmatch(head) is None:
            raise FaultError
        found = self[head] = _Numbers(self._form_of, head)
        return found


class _Numbers(dict[str, int]):
    """The numbers of the forms of one head, by attributes."""

    def __init__(self, form_of: Callable[[Key], int], head: str) -> None:
        super().__init__()
        self._form_of = form_of
        self._head = head
        self._is_literal = head.rpartition(" ")[2] in LITERAL_OPS

    def __missing__(self, rest: str) -> int:
        found = _BY_LITERAL if self._is_literal else self._form_of((self._head, rest))
        self[rest] = found
        return found


class _Literals(dict[Key, int]):
    """The numbers of forms that have a literal."""

    def __init__(self, form_of: Callable[[Key], int]) -> None:
        super().__init__()
        self._form_of = form_of

    def __missing__(self, key: Key) -> int:
        if _ODD.search(key[2]):
            raise FaultError
        found = self[key] = self._form_of(key)
        return found


class CommonLines:
    """Adds common lines of one module to its computations.

    Args:
        form_of: Returns the number of a form; raises a `FaultError` where it cannot be right.
    """

    def __init__(self, form_of: Callable[[Key], int]) -> None:
        self._heads = _Heads(form_of)
        self._literals = _Literals(form_of)

    def add(self, computation: Computation, lines: list[str], at: int) -> int:
        """Add lines, up to the first that has another form, or is wrong; return its position.

        This loop is the time that reading takes, so that all of it stands here. A line is cut
        at its marks, rashly: what comes of brackets within brackets is no type, form or
        operand, and what is no name is noticed where the computation ends.
        """
        start, between = "  ", ", "
        if lines[at].startswith("  %"):
            start, between = "  %", ", %"
        skipped, before = len(between) - 2, len(start)
        heads, literals, index = self._heads, self._literals, computation.index
        position_of = index.__getitem__
        add_name, add_form = computation.names.append, computation.forms.append
        add_operands, add_line = computation.operands.append, computation.lines.append
        add_metadata = computation.metadata.append
        for k in range(at, len(lines)):
            core, marked, tail = lines[k].partition(", metadata={")
            left, _, right = core.partition(" = ")
            head, _, inner = right.partition("(")
            if head[-1:] == _TILES:
                tiles, _, inner = inner.partition("} ")
                op, _, inner = inner.partition("(")
                head = f"{head}({tiles}}} {op}"
            body, closed, rest = inner.partition(")")
            name = left[before:]
            if not closed or left[:before] != start or name in index or " " in name:
                return k
            metadata = ""
            if marked:
                metadata, closed, behind = tail.partition("}")
                if not closed or "{" in metadata or metadata.count('"') & 1:
                    return k
                if behind:
                    rest += behind
            operands: tuple[int, ...] = ()
            try:
                form = heads[head][rest]
                if form == _BY_LITERAL:
                    form = literals[head, rest, body]
                elif skipped and body[:1] != "%":
                    operands = _operands(body, index)
                elif ", " in body:
                    operands = tuple(map(position_of, body[skipped:].split(between)))
                elif body:
                    operands = (index[body[skipped:]],)
            except FaultError:
                return k
            except KeyError:
                try:
                    operands = _operands(body, index)
                except KeyError:
                    return k
            index[name] = len(index)
            add_name(name)
            add_form(form)
            add_operands(operands)
            add_metadata(metadata)
            add_line(k + 1)
        return len(lines)


def _operands(body: str, index: dict[str, int]) -> tuple[int, ...]:
    """Return the positions of operands, however they are written.

    Raises:
        KeyError: One of them comes later, or is none.
    """
    if _ODD.search(body):
        raise KeyError(body)
    return tuple([index[name] for name in operand_names(body)])
