"""Values that nothing needs, with what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazygraph.cost import flops, type_bytes
from lazygraph.module import without_layout
from lazygraph.programs import module_of

if TYPE_CHECKING:
    from lazygraph.module import Computation, HloModule


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

    @property
    def price(self) -> str:
        """Its bytes and operations in words."""
        work = f" and {self.flops:,} FLOP" if self.flops else ""
        return f"{self.bytes:,} bytes{work} for nothing"


def unused_values(program: Any) -> list[Unused]:
    """Return the values that no result needs, those of most work first.

    Within loops, branches and other computations that are called, too; what such a value costs
    is told for one call.

    Raises:
        HloError: It is no program, or a text with several.
    """
    module, is_excerpt = module_of(program)
    found = [
        unused(module, computation, position)
        for computation in module.computations.values()
        for position in dead_rows(computation, is_excerpt=is_excerpt)
        if not _must_stand(module, computation, position)
    ]
    found.sort(key=lambda each: (-each.flops, -each.bytes))
    return found


def _must_stand(module: HloModule, computation: Computation, position: int) -> bool:
    """Return whether a dead row is an input of what is called, which takes it by number."""
    is_input = computation.instructions[position].op == "parameter"
    return is_input and computation.name != module.entry


def dead_rows(computation: Computation, *, is_excerpt: bool = False) -> list[int]:
    """Return the positions of what the result of a computation does not need."""
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
    return [position for position, is_live in enumerate(live) if not is_live]


def unused(module: HloModule, computation: Computation, position: int) -> Unused:
    """Return what a row of a computation costs, of which nothing makes use."""
    row = computation.instructions[position]
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
