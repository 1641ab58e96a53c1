"""What instructions without metadata have from their neighbours in a called computation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyviz.hlo.graph import PARAMETER
from lazyviz.hlo.module import INHERITED

if TYPE_CHECKING:
    from lazyviz.hlo.module import Computation, HloModule


def filled(module: HloModule, computation: Computation) -> list[str]:
    """Return the metadata of each instruction, those of neighbours marked as inherited.

    An instruction without metadata has that of the first that reads it, if that has none
    that of what it reads, and if nothing of the computation has any that of its caller.
    Inputs, and the entry computation, which no instruction calls, stay as they are written.
    """
    rows = computation.instructions
    found = [row.metadata for row in rows]
    if computation.name == module.entry or all(found):
        return found
    for position in range(len(rows) - 1, -1, -1):
        for operand in rows[position].operands:
            if operand >= 0 and found[position] and not rows[operand].metadata:
                found[operand] = _inherited(found[position])
    for position, row in enumerate(rows):
        if not found[position]:
            near = (found[each] for each in row.operands if each >= 0)
            found[position] = _inherited(next(filter(None, near), ""))
    if not all(found):
        caller = module.caller(computation.name)
        rest = _inherited(caller.metadata if caller is not None else "")
        found = [each or rest for each in found]
    return [
        row.metadata if row.op == PARAMETER else each
        for row, each in zip(rows, found, strict=True)
    ]


def _inherited(metadata: str) -> str:
    return f"{INHERITED}{metadata.removeprefix(INHERITED)}" if metadata else ""
