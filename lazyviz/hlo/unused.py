"""Values that nothing needs, with what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazyviz.hlo.cost import flops, type_bytes
from lazyviz.hlo.module import without_layout
from lazyviz.hlo.programs import module_of

if TYPE_CHECKING:
    from lazyviz.hlo.module import Computation, HloModule, Instruction


@dataclass(frozen=True, slots=True)
class Unused:
    """A value that nothing needs.

    Attributes:
        name: The instruction, with `%`.
        op, type, literal: What it is.
        bytes: Size of its result.
        flops: Operations to compute it.
        site: Source line, may be empty.
        line: Line of the text, 0 if it has none.
    """

    name: str
    op: str
    type: str
    literal: str
    bytes: int
    flops: int
    site: str
    line: int


def unused_values(program: Any) -> list[Unused]:
    """Return the values that no result needs, those of most work first."""
    module, is_excerpt = module_of(program)
    found = [
        _unused(module, computation, row)
        for computation in module.computations.values()
        if computation.name == module.entry or is_excerpt
        for row in _dead(computation, is_excerpt=is_excerpt)
    ]
    found.sort(key=lambda each: (-each.flops, -each.bytes))
    return found


def _dead(computation: Computation, *, is_excerpt: bool) -> list[Instruction]:
    rows = computation.instructions
    live = bytearray(len(rows))
    if is_excerpt:
        for row in rows:
            for operand in row.operands:
                if operand >= 0:
                    live[operand] = 1
    else:
        live[computation.root] = 1
        for position in range(len(rows) - 1, -1, -1):
            if live[position]:
                for operand in rows[position].operands:
                    live[operand] = 1
    return [row for row, is_live in zip(rows, live, strict=True) if not is_live]


def _unused(module: HloModule, computation: Computation, row: Instruction) -> Unused:
    types = [computation.instructions[o].type for o in row.operands if o >= 0]
    return Unused(
        name=f"%{row.name}",
        op=row.op,
        type=without_layout(row.type),
        literal="" if row.op == "parameter" else row.literal,
        bytes=type_bytes(row.type),
        flops=flops(row.op, row.type, types, row.attrs),
        site=module.origin(row.metadata).site,
        line=row.line,
    )
