"""Graph breaks: a graph that ends or begins elsewhere than the one before.

The values that cross a boundary say so. A graph that ended early keeps, as results, what the rest
of the other one reads; a graph that begins late reads, as inputs, what the other one computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazygraph.explain.attribute import Closure, at
from lazygraph.explain.compare import (
    FALLBACK,
    differs,
    is_break,
    is_view,
    position,
    slots,
)
from lazygraph.explain.facts import OF_PROGRAM, Fact, Row, of_pairs

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from lazygraph.explain.compare import Comparison, Side
    from lazygraph.explain.model import Boundary, Record
    from lazygraph.snapshot import Snapshot, Vertex

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
# What a fallback of them gives has as many elements as some values say. Other indices are lowered.
_SIZED_BY_VALUES = ("aten.index.", "aten.nonzero.", "aten.masked_select.", "aten._unique", "aten.unique_")  # fmt: skip
_SIZE_FIX = (
    "the size of its result depends on values, so no graph can hold it: keep the size fixed, as by "
    "`torch.where(mask, x, 0)` or a weight of 0 in place of `x[mask]`"
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
        if op.startswith(_SIZED_BY_VALUES):
            return _SIZE_FIX
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
    moved = differs(old.ended_by, new.ended_by)
    for whole, part, what in ((c.a, c.b, "earlier"), (c.b, c.a, "later")):
        is_on_lines = _share_lines(part, whole)
        if not is_on_lines and _share_lines(part, whole, within=True):
            continue  # they do the same on other lines of the same functions
        is_sure = moved and is_break(part.record.key.ended_by) and is_on_lines
        behind = _behind(
            whole, part, 1 if is_sure else 2, c.readers if whole is c.b else ()
        )
        if is_sure or (
            behind and (moved or _continues(whole, behind, c.readers, part))
        ):
            cause = (
                old.ended_by
                if what == "later" and is_break(old.ended_by)
                else new.ended_by
            )
            own = _on_line_of(part, part.record.key.ended_by)
            closure = Closure(behind, own) if whole is c.a else Closure(own, behind)
            # More variables live within a step than at its end.
            closure.new.update(_of_both(c.b, c.new_results if part is c.b else ()))
            closure.gone.update(_of_both(c.a, c.gone_results if part is c.a else ()))
            yield _fact(f"ends {what}", old.ended_by, new.ended_by, cause, closure)
            break
    moved = differs(old.began_after, new.began_after)
    for whole, part, what in ((c.a, c.b, "later"), (c.b, c.a, "earlier")):
        begins = part.record.key.began_after
        previous = c.step if part is c.b else c.makers
        if not is_break(begins):
            previous = [each for each in previous if each is not whole.record]
        is_sure = moved and is_break(begins) and bool(_reads_of(part, previous))
        front, leaves = _in_front(whole, part, previous if is_sure else ())
        if is_sure or (front and (moved or _continues(whole, front, c.makers, part))):
            views = {k for k in part.unmatched if is_view(part[k])}
            own = part.downstream(leaves, views.__contains__)
            own |= _on_line_of(part, begins)
            both = front, own
            closure = Closure(*(both if whole is c.a else both[::-1]))
            yield _fact(f"begins {what}", old.began_after, new.began_after,
                        new.began_after if is_break(new.began_after) else begins, closure)  # fmt: skip
            break


def _share_lines(one: Side, other: Side, *, within: bool = False) -> bool:
    """Return whether both graphs run some op of some line, or `within` some function.

    A view of a parameter has the line of its first reader, whoever else reads it.
    """
    sites = (
        (one[k].site, other[partner].site)
        for k, partner in enumerate(one.partner)
        if partner >= 0 and not (one[k].is_leaf or is_view(one[k]))
    )
    if not within:
        return any(position(a) == position(b) for a, b in sites)
    return any(
        a and b and (a.file, a.function) == (b.file, b.function) for a, b in sites
    )


def _on_line_of(side: Side, boundary: Boundary) -> dict[int, int]:
    """Return what the line of a graph break records of its own, as for the value that it reads."""
    line = position(boundary[1]) if is_break(boundary) else None
    seeds = {k for k in side.unmatched if line and position(side[k].site) == line}
    return dict.fromkeys(seeds | side.dominated((), seeds), 0)


def _of_both(side: Side, results: Iterable[int]) -> Iterator[int]:
    """Yield the results that both graphs compute."""
    return (k for k in results if side.partner[side.roots[k][0]] >= 0)


def _reads_of(side: Side, records: Iterable[Record]) -> set[int]:
    """Return the inputs that some graphs computed."""
    names = {record.name for record in records}
    return {
        leaf for leaf, origin in side.snapshot.origins.items() if origin.graph in names
    }


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


def _visits(
    graph: Side | Snapshot | None, vertices: Iterable[int] | None = None
) -> set[Hashable]:
    """Return the lines and ops of vertices."""
    if graph is None:
        return set()
    numbers = range(len(graph.vertices)) if vertices is None else vertices
    return {_key(graph.vertices[k]) for k in numbers if not graph.vertices[k].is_leaf}


def _key(vertex: Vertex) -> Hashable:
    return (position(vertex.site), vertex.op, vertex.backward)


def _continues(
    side: Side, vertices: Iterable[int], neighbours: Iterable[Record], part: Side
) -> bool:
    """Return whether the graphs that ran next to the one before did the same work.

    Where both boundaries are one line, as in a loop, this tells a boundary that came in another
    round from a loop of another number of rounds. What reads results of the other graph that this
    one reads nothing in the place of, such as gradients, came after a boundary.
    """
    if any(
        side.partner[operand] < 0
        and (origin := side.origin(operand)) is not None
        and origin.graph == part.record.name
        for k in vertices
        for operand, _ in side[k].operands
    ):
        return False
    keys = _visits(side, vertices)
    return any(
        len(keys & _visits(record.snapshot)) * 2 > len(keys) for record in neighbours
    )


def _behind(
    whole: Side, part: Side, share: int, after: Iterable[Record]
) -> dict[int, int]:
    """Return what one graph computes behind the end of the other one; empty if nothing.

    What the rest reads, the graph that ends keeps; one that does something else does not. At least
    1 of `share` values that the rest reads is kept; 1 asks for none. `after` ran after `part` and
    went on with its results.
    """
    read: set[tuple[int, int]] = set()
    first = set()
    for k in whole.unmatched:
        # `ones_like(loss)`, with which backward begins, reads a type and no value.
        operands = () if "_like." in whole[k].op else whole[k].operands
        for operand, index in operands:
            partner = whole.partner[operand]
            same = partner >= 0 and whole[operand].op == part[partner].op
            if same and not part[partner].is_leaf:
                read.add((partner, index))
                first.add(k)
    kept = read & {*part.roots}
    hard = {pair for pair in read if not is_view(part[pair[0]])} or read
    if share > 1 and (not read or share * len(kept) < len(hard)):
        return {}
    if share == 1:
        first = {
            k
            for k in first
            if any(_is_kept(part, (whole.partner[o], i)) for o, i in whole[k].operands)
        }
        ran = {key for record in after for key in _visits(record.snapshot)}
        first |= {k for k in whole.unmatched if _key(whole[k]) in ran}
    found = whole.downstream(first, whole.unmatched.__contains__)
    found.update(dict.fromkeys(whole.dominated((), found), 0))
    return found


def _is_kept(side: Side, value: tuple[int, int]) -> bool:
    """Return whether a value that both sides have is a result, or shows one in another form."""
    while value[0] >= 0 and value not in side.roots and is_view(side[value[0]]):
        value = side[value[0]].operands[0]
    return value in side.roots


def _in_front(
    whole: Side, part: Side, before: Iterable[Record]
) -> tuple[dict[int, int], set[int]]:
    """Return what one graph computes in front of the other's beginning, and what that reads of it.

    `before` ran in front of `part`, where a graph break says so.
    """
    leaves, made = _reads_of(part, before), set()
    ran = {key for record in before for key in _visits(record.snapshot)}
    made |= {k for k in whole.unmatched if _key(whole[k]) in ran}
    by_line: dict[object, list[int]] = {}
    for k in whole.unmatched:
        vertex = whole[k]
        if not vertex.is_leaf:
            key = (vertex.op, position(vertex.site), vertex.types[0])
            by_line.setdefault(key, []).append(k)
    for leaf in part.leaves:
        origin = part.origin(leaf)
        if origin is None or origin.step < 0 or origin.how:
            continue
        if origin.graph == whole.record.name:
            continue
        key = (origin.op, position(origin.site), part[leaf].types[0])
        name = part.name(leaf)
        if part.partner[leaf] >= 0 and name is not None and name.holder in OF_PROGRAM:
            continue  # a state is read by whatever comes next
        found = {*by_line.get(key, ())} if part.partner[leaf] < 0 else set()
        for reader in part.users[leaf]:
            partner = part.partner[reader]
            if partner >= 0:
                pairs = slots(part[reader], whole[partner])
                found |= {o for (m, _), (o, _) in pairs if m == leaf}
        found = {
            k
            for k in found & whole.unmatched
            if not (whole[k].is_leaf or is_view(whole[k]))
        }
        if found:
            leaves.add(leaf)
            made |= found
    return whole.ancestors(made, whole.unmatched.__contains__), leaves
