"""Graph breaks: a graph that ends or begins elsewhere than the one before.

The values that cross a boundary say so. A graph that ended early keeps, as results, what the rest
of the other one reads; a graph that begins late reads, as inputs, what the other one computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazygraph.explain.attribute import Closure, at
from lazygraph.explain.compare import FALLBACK, differs, is_break, is_view, position
from lazygraph.explain.facts import Fact, Row, follows_from, of_pairs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lazygraph.explain.compare import Comparison, Side
    from lazygraph.explain.model import Boundary

LEFT = ", left by "
_BREAK_FIX = (
    "read values after the step has ended (or print them: a print never breaks the graph), so that "
    "each step ends at one place"
)
_MARK_FIX = "end the step at the same place every time; each place costs one compile"
_CHECK_FIX = (
    "leave the check out with validate_args=False, or for all distributions with "
    "torch.distributions.Distribution.set_default_validate_args(False)"
)
_LEFT_FIX = (
    "mend the error; or choose with `step(on_error=...)` what becomes of the work of a step that "
    "an error leaves, which runs as a graph of its own by default"
)


def mark(boundary: Boundary) -> str:
    """Return what a boundary is, with its line."""
    return f"{boundary[0]}{at(boundary[1])}"


def break_fix(boundary: Boundary) -> str:
    """Return what to do about a graph break."""
    if boundary[0].startswith(FALLBACK):
        op = boundary[0].removeprefix(FALLBACK)
        return (
            f"register a lowering with @lowers('{op}'), or move the op out of the step"
        )
    if LEFT in boundary[0]:
        return _LEFT_FIX
    if not is_break(boundary):
        return _MARK_FIX
    return _CHECK_FIX if "torch.distributions" in boundary[0] else _BREAK_FIX


@of_pairs
def breaks(c: Comparison) -> Iterator[Fact]:
    """Where one graph ends or begins within the other.

    A read, a limit or a fallback that ends one graph alone is a break by itself. A mark of the
    program may stand elsewhere for many reasons: values that cross it say that it moved.
    """
    old, new = c.a.record.key, c.b.record.key
    if differs(old.ended_by, new.ended_by):
        for whole, part, what in ((c.a, c.b, "earlier"), (c.b, c.a, "later")):
            end = part.record.key.ended_by
            rest = whole.unmatched - _front(whole).keys()
            crosses = _keeps(whole, part, rest)
            trains = [any(v.backward for v in s.vertices) for s in (part, whole)]
            # A training step that a read ended keeps values for the rest, an evaluation none.
            is_evaluation = trains == [False, True] and not crosses
            if crosses or (is_break(end) and not is_evaluation):
                cause = old.ended_by if is_break(old.ended_by) and part is c.a else new.ended_by  # fmt: skip
                closure = _closure(
                    c, whole, dict.fromkeys(rest, 0), _on_line_of(part, end)
                )
                # More variables live within a step than at its end.
                closure.new.update(_of_both(c.b, c.new_results if part is c.b else ()))
                closure.gone.update(
                    _of_both(c.a, c.gone_results if part is c.a else ())
                )
                yield _fact(f"ends {what}", old.ended_by, new.ended_by, cause, closure)
                break
    if differs(old.began_after, new.began_after):
        for whole, part, what in ((c.a, c.b, "later"), (c.b, c.a, "earlier")):
            begins = part.record.key.began_after
            front = _front(whole)
            leaves = _handed_on(c, whole, front)
            if is_break(begins) and (read := _made_before(part, whole)):
                leaves |= read
                front |= _from_inputs(whole)
            if leaves:
                own = dict.fromkeys(leaves, 0) | _on_line_of(part, begins)
                closure = _closure(c, whole, front, own)
                yield _fact(f"begins {what}", old.began_after, new.began_after,
                            new.began_after if is_break(new.began_after) else begins, closure)  # fmt: skip
                break


def _closure(
    c: Comparison, whole: Side, more: dict[int, int], own: dict[int, int]
) -> Closure:
    """Return what one graph has more, and what the line of the break records of the other one."""
    return Closure(more, own) if whole is c.a else Closure(own, more)


def _front(side: Side) -> dict[int, int]:
    """Return what one graph alone computes and both need."""
    read = {
        o for k, p in enumerate(side.partner) if p >= 0 for o, _ in side[k].operands
    }
    return side.ancestors(read & side.unmatched, side.unmatched.__contains__)


def _keeps(whole: Side, part: Side, rest: set[int]) -> bool:
    """Return whether a graph keeps, as results, at least half of what the rest of the other reads."""
    read = {
        (whole.partner[operand], index)
        for k in rest
        for operand, index in whole[k].operands
        if whole.partner[operand] >= 0 and not whole[operand].is_leaf
    }
    hard = {pair for pair in read if not is_view(part[pair[0]])} or read
    return bool(read) and 2 * len(read & {*part.roots}) >= len(hard)


def _handed_on(c: Comparison, whole: Side, front: dict[int, int]) -> set[int]:
    """Return the inputs of the graph that begins later which the other one's front computes."""
    part = c.b if whole is c.a else c.a
    found = set()
    for _, old, new in c.substitutions:
        made, leaf = (old, new) if whole is c.a else (new, old)
        origin = part.origin(leaf)
        if origin is None or origin.how or origin.graph == whole.record.name:
            continue
        lines = position(origin.site), position(whole[made].site)
        if made in front and (origin.op, lines[0]) == (whole[made].op, lines[1]):
            found.add(leaf)
    return found


def _made_before(part: Side, whole: Side) -> set[int]:
    """Return the inputs that earlier graphs computed and that are no state of the program."""
    return {
        leaf
        for leaf, origin in part.snapshot.origins.items()
        if part.partner[leaf] < 0 and origin.step >= 0 and not origin.how
        if origin.graph != whole.record.name and not _is_state(part, leaf)
    }


def _from_inputs(side: Side) -> dict[int, int]:
    """Return what one graph alone computes of nothing that both compute."""
    found: dict[int, int] = {}
    for k in sorted(side.unmatched):
        read = [o for o, _ in side[k].operands if not side[o].is_leaf]
        if not side[k].is_leaf and all(o in found for o in read):
            found[k] = 0
    return found


def _on_line_of(side: Side, boundary: Boundary) -> dict[int, int]:
    """Return what the line of a graph break records of its own, as for the value that it reads."""
    line = position(boundary[1]) if is_break(boundary) else None
    seeds = {k for k in side.unmatched if line and position(side[k].site) == line}
    return dict.fromkeys(seeds | side.dominated((), seeds), 0)


def _of_both(side: Side, results: Iterable[int]) -> Iterator[int]:
    """Yield the results that both graphs compute."""
    return (k for k in results if side.partner[side.roots[k][0]] >= 0)


def _fact(
    what: str, old: Boundary, new: Boundary, cause: Boundary, closure: Closure
) -> Fact:
    after = "after " if what.startswith("begins") else ""
    instead = f", not {after}{mark(old)}" if old[0] and differs(old, new) else ""
    text = f"graph break: the graph {what}, {after or 'at '}{mark(new)}{instead}"
    more = {"closure": closure, "fix": break_fix(cause),
            "kind": "fallback" if cause[0].startswith(FALLBACK) else "graph_break"}  # fmt: skip
    before = Row(old[0], text, site=old[1], more=more)
    return Fact("break", before, Row(new[0], text, site=new[1], more=more))


def _is_state(side: Side, leaf: int) -> bool:
    """Return whether an input is there in each step; a gradient is, where backward adds to it."""
    name = side.name(leaf)
    if name is None:
        return False
    if name.holder == "gradient":
        return any(vertex.backward for vertex in side.vertices)
    return name.in_module or name.holder == "optimizer" or follows_from(side, leaf)
