"""What instructions without metadata have from their neighbours in a called computation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazygraph.graph import PARAMETER
from lazygraph.module import INHERITED

if TYPE_CHECKING:
    from lazygraph.module import Computation, HloModule

_COPIES = frozenset({"copy", "bitcast", "copy-start", "copy-done"})


def filled(module: HloModule, computation: Computation) -> list[str]:
    """Return the metadata of each instruction, those of neighbours marked as inherited.

    An instruction without metadata has that of the first that reads it, if that has none
    that of what it reads, and if nothing of the computation has any that of its caller.
    Inputs stay as they are written, and so does the entry computation, which no instruction
    calls, but for its copies: they have that of what they copy.
    """
    rows, written = computation.operands, computation.metadata
    if all(written):
        return written
    if computation.name == module.entry:
        return _copies_filled(computation)
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


def _copies_filled(computation: Computation) -> list[str]:
    written, table = computation.metadata, computation.table
    copies = {form for form in set(computation.forms) if table[form].op in _COPIES}
    if not copies:
        return written
    found = list(written)
    for position, form in enumerate(computation.forms):
        row = computation.operands[position]
        if form in copies and not found[position] and row and row[0] >= 0:
            found[position] = _inherited(found[row[0]])
    return found


def _inherited(metadata: str) -> str:
    return f"{INHERITED}{metadata.removeprefix(INHERITED)}" if metadata else ""
