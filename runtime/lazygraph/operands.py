"""Where the operands of an instruction come from, also those that an excerpt does not show."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lazygraph.cost import type_bytes
from lazygraph.see_through import element_index
from lazygraph.trace_data import Sources

if TYPE_CHECKING:
    from lazygraph.module import Computation, HloModule, Instruction

_MAX_DEPTH = 2_000
TUPLES = frozenset({"get-tuple-element", "getitem"})
# torch_xla calls its inputs p0.1, p1.2, ...
_INPUT_NAME = re.compile(r"p\d+\.\d+")


class Operands:
    """The operands in one module, or in an excerpt of one."""

    def __init__(self, module: HloModule, *, is_excerpt: bool) -> None:
        self._module = module
        self._is_excerpt = is_excerpt

    def sources(self, computation: Computation, position: int) -> Sources:
        """Return which operands of an instruction are inputs, and their sizes."""
        row = computation.instructions[position]
        types = self.types(computation, row)
        resolved = [
            self.resolve(computation, operand, ()) if operand >= 0 else None
            for operand in row.operands
        ]
        presumed = False
        if None in resolved or any(r and r[0] is None for r in resolved):
            presumed = self._presume(computation, row, resolved)
        is_input = [each is not None and each[1] for each in resolved]
        sizes = [type_bytes(each) for each in types]
        return Sources(
            f"%{row.name}",
            len(row.operands),
            sum(is_input),
            sum(sizes),
            sum(size for size, yes in zip(sizes, is_input, strict=True) if yes),
            presumed,
        )

    def _presume(
        self,
        computation: Computation,
        row: Instruction,
        resolved: list[tuple[str | None, bool] | None],
    ) -> bool:
        """Tell operands that an excerpt does not show from a sibling's tuple, by position."""
        whole = self._tuple_of_siblings(computation, row)
        if whole is None:
            return False
        for k, each in enumerate(resolved):
            if each is None:
                name = operand_name(whole, k, computation)
                inside = whole.operands[k]
                known = self.resolve(computation, inside, ()) if inside >= 0 else None
                resolved[k] = known or (name, bool(_INPUT_NAME.fullmatch(name)))
        return True

    def _tuple_of_siblings(
        self, computation: Computation, row: Instruction
    ) -> Instruction | None:
        """Return the tuple whose k-th element is the k-th operand, if one operand shows it."""
        for k, operand in enumerate(row.operands):
            if operand < 0:
                continue
            sibling = computation.instructions[operand]
            if sibling.op not in TUPLES or element_index(sibling) != k:
                continue
            inside = sibling.operands[0] if sibling.operands else -1
            if inside < 0:
                continue
            whole = computation.instructions[inside]
            if whole.op == "tuple" and len(whole.operands) == len(row.operands):
                return whole
        return None

    def resolve(
        self, computation: Computation, position: int, path: tuple[int, ...]
    ) -> tuple[str | None, bool] | None:
        """Return the name of what computes a value, and whether that is an input."""
        for _ in range(_MAX_DEPTH):
            row = computation.instructions[position]
            if row.op in TUPLES and row.operands:
                path = (element_index(row), *path)
            elif row.op == "tuple" and path and path[0] < len(row.operands):
                following = row.operands[path[0]]
                if following < 0:
                    name = operand_name(row, path[0], computation)
                    return name, bool(_INPUT_NAME.fullmatch(name))
                position, path = following, path[1:]
                continue
            else:
                return row.name, row.op == "parameter" and self.is_entry(computation)
            if row.operands[0] < 0:
                return None
            position = row.operands[0]
        return None

    def is_entry(self, computation: Computation) -> bool:
        """Return whether its parameters are inputs of the program."""
        return self._is_excerpt or computation.name == self._module.entry

    def types(self, computation: Computation, row: Instruction) -> list[str]:
        """Return the operands' types, from the operands or from a sibling's tuple."""
        whole = self._tuple_of_siblings(computation, row)
        listed = split_types(whole.type) if whole is not None else []
        found = []
        for k, operand in enumerate(row.operands):
            if operand >= 0:
                found.append(computation.instructions[operand].type)
            else:
                found.append(listed[k] if k < len(listed) else "")
        return found


def operand_name(row: Instruction, slot: int, computation: Computation) -> str:
    """Return the name of an operand, also of one that an excerpt does not show."""
    if row.operands[slot] >= 0:
        return computation.instructions[row.operands[slot]].name
    return row.operand_names[slot] if slot < len(row.operand_names) else "?"


def split_types(type_text: str) -> list[str]:
    """Return the elements of a flat tuple type, or the type itself."""
    if not type_text.startswith("("):
        return [type_text]
    return re.findall(r"[a-z]\w*\[[^\[\]]*\](?:\{[^{}]*\})?", type_text)
