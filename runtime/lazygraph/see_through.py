"""Instructions that stand for others: elements of tuples, and parts of collectives."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lazygraph.errors import MisplacedError

if TYPE_CHECKING:
    from collections.abc import Container

    from lazygraph.module import Computation, Instruction

_TUPLE = "tuple"
_ELEMENT = "get-tuple-element"
_INDEX = re.compile(r"\bindex=(\d+)")
VARIADIC = frozenset({
    "reduce-scatter", "all-reduce", "all-gather", "all-to-all", "collective-permute",
    "opt-barrier", "optimization-barrier", "all-reduce-start", "all-gather-start",
})  # fmt: skip


def element_index(instruction: Instruction) -> int:
    """Return which element a get-tuple-element takes."""
    found = _INDEX.search(instruction.attrs)
    if found is None:
        raise MisplacedError(
            f"%{instruction.name} takes an element of a tuple and does not say which. Add "
            "`index=`; where the dump has no attributes at all, print it with them "
            "(print_extra_attributes): without, programs that differ would look the same.",
            instruction.line,
            instruction.name,
        )
    return int(found[1])


class SeeThrough:
    """Which instructions stand for others: elements of tuples, parts of collectives.

    Attributes:
        alias: For each instruction the one that computes its value.
        members: For each part of a collective, the collective and the operand's position.
        erased: Which instructions are no nodes.
    """

    def __init__(
        self, computation: Computation, live: bytearray, *, sees_elements: bool = True
    ) -> None:
        self._computation = computation
        self._rows = computation.operands
        self.alias = list(range(len(computation)))
        self.members: dict[int, tuple[int, int]] = {}
        self.erased = bytearray(len(computation))
        self._tuples = _of_ops(computation, live, {_TUPLE})
        elements = {_ELEMENT} if sees_elements else frozenset()
        self._elements = _of_ops(computation, live, elements)
        split = self._splittable(live)
        for position in self._tuples | split:
            self.erased[position] = 1
        for position in sorted(self._elements):
            if self._rows[position]:
                self._element(position, split)
        self._restore_tuples(live)

    def _splittable(self, live: bytearray) -> set[int]:
        """Return the collectives of several operands that only get-tuple-elements read."""
        rows, root = self._rows, self._computation.root
        collectives = _of_ops(self._computation, live, VARIADIC)
        found = {k for k in collectives if len(rows[k]) > 1 and k != root}
        if not found:
            return found
        for position, row in enumerate(rows):
            if live[position] and position not in self._elements:
                found.difference_update(row)
        return found

    def _element(self, position: int, split: set[int]) -> None:
        whole = self.alias[self._rows[position][0]]
        element = element_index(self._computation.row(position))
        inner = self._rows[whole]
        if whole not in self._tuples and whole not in split:
            self._check_is_tuple(position, whole)
            return
        if element >= len(inner):
            names = self._computation.names
            raise MisplacedError(
                f"%{names[position]} takes element {element} of %{names[whole]}, which has "
                f"{len(inner)}. Elements count from 0.",
                self._computation.lines[position],
                names[position],
            )
        if whole in self._tuples:
            self.alias[position] = self.alias[inner[element]]
            self.erased[position] = 1
        else:
            self.members[position] = (whole, element)

    def _check_is_tuple(self, position: int, whole: int) -> None:
        computation = self._computation
        found = computation.table[computation.forms[whole]].type
        if found.startswith("("):
            return
        name, names = computation.names[position], computation.names
        raise MisplacedError(
            f"%{name} takes an element of %{names[whole]}, which is {found} and no tuple. The "
            "dump was edited.",
            computation.lines[position],
            name,
        )

    def _restore_tuples(self, live: bytearray) -> None:
        """Keep the tuples that something else than get-tuple-element reads."""
        root = self._computation.root
        if self._tuples <= {root}:
            return
        split = {whole for whole, _ in self.members.values()}
        for position, row in enumerate(self._rows):
            if not live[position] or position in split:
                continue
            if position in self._elements or position in self._tuples:
                continue
            for each in row:
                self._restore(self.alias[each])
        if root not in self._tuples:
            self._restore(self.alias[root])

    def _restore(self, start: int) -> None:
        stack = [start]
        while stack:
            position = stack.pop()
            if position in self._tuples and self.erased[position]:
                self.erased[position] = 0
                stack.extend(self.alias[each] for each in self._rows[position])

    def outputs(self, root: int) -> list[int]:
        """Return what the root gives, tuples taken apart."""
        found, stack = [], [root]
        while stack:
            position = self.alias[stack.pop()]
            if position in self._tuples and self.erased[position]:
                stack.extend(reversed(self._rows[position]))
            else:
                found.append(position)
        return found


def _of_ops(computation: Computation, live: bytearray, ops: Container[str]) -> set[int]:
    """Return the live instructions of some opcodes."""
    table = computation.table
    wanted = {form for form in set(computation.forms) if table[form].op in ops}
    if not wanted:
        return set()
    return {k for k, form in enumerate(computation.forms) if form in wanted and live[k]}
