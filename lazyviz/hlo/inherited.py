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
    rows, written = computation.operands, computation.metadata
    if computation.name == module.entry or all(written):
        return written
    found = list(written)
    for position in range(len(rows) - 1, -1, -1):
        for operand in rows[position]:
            if operand >= 0 and found[position] and not written[operand]:
                found[operand] = _inherited(found[position])
    for position, row in enumerate(rows):
        if not found[position]:
            near = (found[each] for each in row if each >= 0)
            found[position] = _inherited(next(filter(None, near), ""))
    if not all(found):
        caller = module.caller(computation.name)
        rest = _inherited(caller.metadata if caller is not None else "")
        found = [each or rest for each in found]
    table = computation.table
    return [
        written[position] if table[form].op == PARAMETER else found[position]
        for position, form in enumerate(computation.forms)
    ]


def _inherited(metadata: str) -> str:
    return f"{INHERITED}{metadata.removeprefix(INHERITED)}" if metadata else ""
