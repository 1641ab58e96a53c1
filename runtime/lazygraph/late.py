"""Operands that stand behind their users in the text, or nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazygraph.module import Computation


class Misread(NamedTuple):
    """What is wrong with what an instruction reads, on which line, and of which name."""

    message: str
    line: int
    at: str


def resolve(
    late: Sequence[tuple[Computation, int, Sequence[str]]], *, partial: bool
) -> Misread | None:
    """Fill in operands that were not known when their users were read.

    Args:
        late: A computation, a position in it, and the names that it reads, for each.
        partial: Operands may be missing.

    Returns:
        What is wrong; None if nothing is.
    """
    reordered: dict[str, Computation] = {}
    for computation, position, names in late:
        found = [computation.index.get(each, -1) for each in names]
        if -1 in found and not partial:
            missing = names[found.index(-1)]
            return Misread(
                f"%{computation.names[position]} reads %{missing}, which the computation "
                f"%{computation.name} does not define. The dump was cut or edited.",
                computation.lines[position],
                missing,
            )
        computation.operands[position] = tuple(found)
        computation.operand_names[position] = tuple(names)
        if any(each >= position for each in found):
            reordered[computation.name] = computation
    sorted_ones = (_sort(computation) for computation in reordered.values())
    return next(filter(None, sorted_ones), None)


def _sort(computation: Computation) -> Misread | None:
    order, waits_for_itself = _topological(computation.operands)
    if waits_for_itself < 0:
        computation.reorder(order)
        return None
    name = computation.names[waits_for_itself]
    return Misread(
        f"the computation %{computation.name} has a cycle through %{name}, which cannot be "
        "computed in any order. The dump was edited.",
        computation.lines[waits_for_itself],
        name,
    )


def _topological(operands: Sequence[tuple[int, ...]]) -> tuple[list[int], int]:
    """Return positions with operands first, keeping the text's order, or who is in a cycle."""
    done: dict[int, None] = {}
    for start in range(len(operands)):
        stack = [start]
        under_way: set[int] = set()
        while stack:
            position = stack[-1]
            if position in done:
                stack.pop()
                continue
            waiting = [
                each for each in operands[position] if each >= 0 and each not in done
            ]
            if not waiting:
                done[position] = None
                stack.pop()
            elif position in under_way:
                return [], position
            else:
                under_way.add(position)
                stack.extend(waiting)
    return list(done), -1
