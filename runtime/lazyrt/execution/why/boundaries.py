"""What ends and begins a step: marks of the program, blocks, reads, fallbacks, limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazyrt.execution.why.edits import (
    at,
    place,
)

if TYPE_CHECKING:
    from lazyrt.execution.census import CompiledGraph
    from lazyrt.observe.events import Site


FALLBACK = "CPU fallback of "
BLOCK = "end of step"
_LEFT = ", left by "
LIMIT = "more than "
MARK = "end the step with `lazyrt.mark_step()`"
_CUT_FIX = (
    "read values after the step has ended (or print them: a print never cuts a step), so that "
    "each step ends at one place"
)
_MARK_FIX = (
    "end the step at the same place every time; both places are one compile for each graph, and "
    "nothing after that"
)
_CHECK_FIX = (
    "leave the check out with validate_args=False, or for all distributions with "
    "torch.distributions.Distribution.set_default_validate_args(False)"
)
_LEFT_FIX = (
    "mend the error; or choose with `step(on_error=...)` what becomes of the work of a step that "
    "an error leaves, which runs as a graph of its own by default"
)


def is_left(boundary: tuple[str, Site | None]) -> bool:
    """Return whether an error ended a block."""
    return _LEFT in boundary[0]


def is_block(boundary: tuple[str, Site | None]) -> bool:
    """Return whether a boundary is the end of a `with` block or of a function."""
    return boundary[0].startswith(BLOCK)


def step_text(boundary: tuple[str, Site | None]) -> str:
    """Return the step that a boundary ends, by its name where it has one."""
    if not is_block(boundary):
        article = "a " if boundary[0].startswith("read ") else ""
        return f"the step that {article}{mark_text(boundary)} ends"
    name = boundary[0].removeprefix(BLOCK).partition(_LEFT)[0].strip()
    return f"the step{f' `{name}`' if name else ''}{at(boundary[1])}"


def fallback_op(cause: str) -> str:
    """Return the op that ran on the CPU and cut a graph; empty for any other boundary."""
    return cause.removeprefix(FALLBACK) if cause.startswith(FALLBACK) else ""


def ran_on_the_cpu(cut: tuple[str, Site | None]) -> str:
    """Return what an op that has no lowering does to its step."""
    return (
        f"{fallback_op(cut[0])}{at(cut[1])} ran on the CPU and cut the step: what is before "
        "it and what is after it are graphs of their own"
    )


def cut_fix(cut: tuple[str, Site | None]) -> str:
    """Return what to do about a cut."""
    op = fallback_op(cut[0])
    if op:
        return (
            f"register a lowering with @lowers('{op}'), or move the op out of the step"
        )
    if is_left(cut):
        return _LEFT_FIX
    if not is_cut(cut):
        return _MARK_FIX
    return _CHECK_FIX if "torch.distributions" in cut[0] else _CUT_FIX


def cut_lines(before: CompiledGraph, now: CompiledGraph) -> str:
    """Return between which lines a mark of the program has moved; empty if none has.

    Both graphs begin at the same line, and the same kind of mark ends them at two places.
    """
    (first_before, last_before), (first_now, last_now) = before.lines, now.lines
    if last_before is None or last_now is None:
        return ""
    old, new = before.key.ended_by, now.key.ended_by
    same_mark = old[0] == new[0] and not is_cut(new) and differs(old, new)
    same_start = place(first_before) == place(first_now)
    if not (same_mark and same_start) or place(last_before) == place(last_now):
        return ""
    # The last line of a module's code says nothing of the place of a mark.
    functions = {
        each.function for each in (last_before, last_now, old[1], new[1]) if each
    }
    if len(functions) > 1:
        return ""
    lines = str(last_before), str(last_now)
    if (last_before.file, last_before.cell) == (last_now.file, last_now.cell):
        lines = f"line {last_before.line}", f"line {last_now.line}"
    return f"the step was cut after {lines[0]} before, after {lines[1]} now"


def is_cut(boundary: tuple[str, Site | None]) -> bool:
    """Return whether a boundary came by a read or a limit, and not by a mark of the program."""
    return boundary[0].startswith(("read", LIMIT, FALLBACK))


def is_fallback(boundary: tuple[str, Site | None]) -> bool:
    """Return whether an op that ran on the CPU ended a graph."""
    return boundary[0].startswith(FALLBACK)


def differs(one: tuple[str, Site | None], other: tuple[str, Site | None]) -> bool:
    """Return whether two boundaries are different places; a cell run again is the same one."""
    return one[0] != other[0] or place(one[1]) != place(other[1])


def mark_text(boundary: tuple[str, Site | None]) -> str:
    """Return what a boundary is, with its line."""
    return f"{boundary[0]}{at(boundary[1])}"
