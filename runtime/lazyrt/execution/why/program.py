"""Causes in the program's own path: results kept or dropped, loops, modes, branches."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, Any

from lazyrt.execution.why.causes import Cause, Taken
from lazyrt.execution.why.edits import (
    at,
    connected,
    count,
    exclusive,
    first_site,
    is_view,
    listed,
    place,
)
from lazyrt.execution.why.updates import OPTIONS_FIX, is_of_update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lazyrt.execution.why.edits import Edits
    from lazyrt.ir.snapshot import Snapshot, Vertex
    from lazyrt.observe.events import Site

_DROPOUTS = (
    "aten.native_dropout",
    "aten.bernoulli",
    "aten.dropout",
    "aten.feature_dropout",
)
_NORMS = ("batch_norm", "instance_norm")
_WHOLE = 0.8
_CONCATENATIONS = ("aten.cat", "aten.stack")
_PARTS = ("aten.slice", "aten.split", "aten.narrow")
_SHOWN_OPS = 3
_ITEM = re.compile(r"(.+)\[\d+\]")
# Of a line alone, so many kinds of op tell that it is a loop's.
_LINES_OPS = 4


def repeats(edits: Edits) -> list[Cause]:
    """Return a loop that ran another number of times, or a step that held several."""
    sides = (
        (edits.b, edits.a, edits.added, "added"),
        (edits.a, edits.b, edits.removed, "removed"),
    )
    # Types help to tell places apart, unless an input's shape has changed all of them; of equal
    # ops recorded twice, the node says for one only whether it was backward and in which module.
    for (more, fewer, free, sign), spot in product(
        sides, (_typed_spot, _spot, _line_spot)
    ):
        has, had = _count_by(spot, more), _count_by(spot, fewer)
        # What came nowhere before has another cause.
        extra = [
            k
            for k in free
            if not more.vertices[k].is_leaf and had.get(spot(more.vertices[k]))
        ]
        if len(extra) < 2:  # noqa: PLR2004 - one op more is no round
            continue
        places = {spot(more.vertices[k]) for k in extra}
        rounds = _rounds(Counter((had[found], has[found]) for found in places))
        if rounds is None or (spot is _line_spot and len(places) < _LINES_OPS):
            continue
        number = sum(has[k] - had[k] for k in places) // (rounds[1] - rounds[0])
        other = edits.removed if sign == "added" else edits.added
        unmatched = [k for k in other if spot(fewer.vertices[k]) in places]
        return [_repeat(edits, rounds, number, extra, unmatched, sign)]
    return []


def _rounds(counts: Counter[tuple[int, int]]) -> tuple[int, int] | None:
    """Return how often a loop ran on both sides, from how often each of its ops came.

    A line of a loop may record an op several times a round, and the first round or the last
    one more or less of them.

    Example:
        >>> _rounds(Counter({(4, 7): 9, (8, 14): 2, (3, 6): 5}))
        (4, 7)
    """
    found = {
        pair: sum(n for each, n in counts.items() if _is_of_loop(*each, *pair))
        for pair in counts
        if pair[1] > pair[0]
    }
    whole = [pair for pair, hits in found.items() if hits >= _WHOLE * counts.total()]
    # The numbers of most ops are those of the rounds.
    return max(whole, key=lambda pair: (counts[pair], -pair[0]), default=None)


def _is_of_loop(had: int, has: int, old: int, new: int) -> bool:
    if had * new == has * old:
        return True
    times, left = divmod(has - had, new - old)
    if new - old == 1:  # every difference is a multiple of one
        return times == 1 and abs(had - old) <= 1
    return times > 0 and not left and had >= times * (old - 1)


def _repeat(
    edits: Edits,
    counts: tuple[int, int],
    number: int,
    extra: list[int],
    unmatched: list[int],
    sign: str,
) -> Cause:
    """Return the cause of `number` ops a round, in which `unmatched` are of the other side."""
    old, new = counts
    snapshot = edits.b if sign == "added" else edits.a
    site = first_site(snapshot.vertices[k] for k in sorted(extra))
    whole = len(extra) * old >= _WHOLE * (new - old) * sum(
        not v.is_leaf for v in (edits.a if sign == "added" else edits.b).vertices
    )
    ours, theirs = (extra, unmatched) if sign == "added" else (unmatched, extra)
    collects = _collected(edits, ours, theirs)
    taken = edits.take(
        added=_with_leaves(edits.b, ours, edits.added),
        removed=_with_leaves(edits.a, theirs, edits.removed),
        changed=_downstream(edits.b, collects, set(edits.changed)) if collects else (),
    )
    # Where every operation comes k times as often, the boundary between them is missing; a loop
    # within the step ends where it ended before.
    is_within = edits.now.key.ended_by == edits.before.key.ended_by
    if whole and sign == "added" and new % old == 0 and not is_within:
        return Cause(
            kind="missing_boundary",
            text=f"this graph is {edits.before.name} {new // old} times over: no step boundary "
            f"came between them{at(edits.now.key.ended_by[1])}",
            fix="put the work of each step in `with lazyrt.step():`, which ends in a boundary "
            "however it is left",
            now=edits.now.key.ended_by[1],
            before=edits.before.key.ended_by[1],
            taken=taken,
        )
    if sign == "removed":
        old, new = new, old
    return Cause(
        kind="loop_count",
        text=f"the same {count(number, 'operation')}{at(site)} "
        f"came {'once' if new == 1 else f'{new} times'} instead of {old}"
        + (_draws(snapshot, extra) if sign == "added" else ""),
        fix="run the loop a fixed number of times, or put each round in a step of its own",
        now=site if sign == "added" else None,
        before=site if sign == "removed" else None,
        taken=taken,
        sizes=((old, new),),
    )


def _draws(snapshot: Snapshot, extra: list[int]) -> str:
    """Return how much further the state of random numbers goes within the step."""
    draws = sum(snapshot.vertices[k].op in snapshot.random for k in extra)
    if not draws:
        return ""
    return (
        f"; random numbers are drawn {count(draws, 'time')} more in one step, as no boundary came "
        "between the rounds"
    )


def _collected(edits: Edits, added: list[int], removed: list[int]) -> list[int]:
    """Return what joins the results of all rounds: one operand more for each."""
    came, gone = set(added), set(removed)
    return [
        k
        for k, partner in edits.changed.items()
        if len(edits.b.vertices[k].operands) != len(edits.a.vertices[partner].operands)
        and (
            any(operand in came for operand, _ in edits.b.vertices[k].operands)
            or any(o in gone for o, _ in edits.a.vertices[partner].operands)
        )
    ]


def _with_leaves(
    snapshot: Snapshot, vertices: Iterable[int], free: set[int]
) -> set[int]:
    """Return free vertices with the free inputs that only they read."""
    found = set(vertices)
    users = snapshot.users()
    found |= {
        k
        for k in free
        if snapshot.vertices[k].is_leaf and all(user in found for user, _ in users[k])
    }
    return found


def _count_by(spot: Callable[[Vertex], Any], snapshot: Snapshot) -> Counter[Any]:
    return Counter(spot(v) for v in snapshot.vertices if not v.is_leaf)


def _spot(vertex: Vertex) -> Any:
    site = vertex.site
    where = (site.line, site.function) if site is not None else None
    return (vertex.op, vertex.scope, vertex.backward, where)


def _line_spot(vertex: Vertex) -> Any:
    return (vertex.op, vertex.site.line if vertex.site is not None else None)


def _typed_spot(vertex: Vertex) -> Any:
    return (*_spot(vertex), vertex.types)


def regrouped(edits: Edits) -> list[Cause]:
    """Return whether the same tensors are joined in other groups, as gradient buckets are."""
    before = _groups(edits.a, edits.match.to_now)
    now = _groups(edits.b, range(len(edits.b.vertices)))
    members = [_in_one_group(side.values()) for side in (before, now)]
    common = members[0] & members[1]
    if len(common) < 2 or 2 * len(common) < max(map(len, members)):  # noqa: PLR2004
        return []
    parts_before = {frozenset(g) & common for g in before.values()} - {frozenset()}
    parts_now = {frozenset(g) & common for g in now.values()} - {frozenset()}
    if parts_before == parts_now:
        return []
    sizes = [
        sorted((len(g) for g in side.values()), reverse=True) for side in (before, now)
    ]
    moved = [
        k for k, group in now.items() if frozenset(group) & common not in parts_before
    ]
    gone = [
        k for k, group in before.items() if frozenset(group) & common not in parts_now
    ]
    site = first_site(edits.b.vertices[k] for k in moved or now)
    added = connected(edits.b, [*moved, *_readers(edits.b, moved)], edits.added)
    removed = connected(edits.a, [*gone, *_readers(edits.a, gone)], edits.removed)
    changed = _downstream(edits.b, moved or now, set(edits.changed))
    # Where each member lies in its group follows from the grouping.
    changed |= {k for k in edits.changed if edits.b.vertices[k].op.startswith(_PARTS)}
    return [
        Cause(
            kind="regrouped",
            text=f"the same tensors are joined in other groups{at(site)}: "
            f"{_resized(*sizes)}",
            fix="flush the buckets before the step ends, so that each step fills them alike",
            now=site,
            before=first_site(edits.a.vertices[k] for k in gone or before),
            taken=edits.take(added=added, removed=removed, changed=changed),
        )
    ]


def _in_one_group(groups: Iterable[list[int]]) -> set[int]:
    """Return what is joined once: what lies in two groups, as a loop's state does, is no part."""
    times = Counter(member for group in groups for member in set(group) if member >= 0)
    return {member for member, number in times.items() if number == 1}


def _resized(before: list[int], now: list[int]) -> str:
    """Return how the sizes of groups changed.

    Example:
        >>> _resized([3, 2], [4, 1])
        'sizes [3, 2] became [4, 1]'
        >>> _resized([3, 3], [3, 3])
        'sizes [3, 3] as before, with other members'
    """
    if before == now:
        return f"sizes {_sizes(now)} as before, with other members"
    return f"sizes {_sizes(before)} became {_sizes(now)}"


def _sizes(sizes: list[int]) -> str:
    shown = ", ".join(map(str, sizes[:6])) + (", ..." if len(sizes) > 6 else "")  # noqa: PLR2004
    return f"[{shown}]"


def _groups(snapshot: Snapshot, names: Any) -> dict[int, list[int]]:
    """Return the members of each concatenation, as vertices of `b`."""
    return {
        k: [names[_unshaped(snapshot, operand)] for operand, _ in vertex.operands]
        for k, vertex in enumerate(snapshot.vertices)
        if vertex.op.startswith(_CONCATENATIONS) and vertex.operands
    }


def _unshaped(snapshot: Snapshot, vertex: int) -> int:
    """Return what a chain of views shows: buckets join flattened tensors."""
    while True:
        found = snapshot.vertices[vertex]
        if not is_view(found) or len(found.operands) != 1:
            return vertex
        vertex = found.operands[0][0]


def _readers(snapshot: Snapshot, vertices: Iterable[int]) -> list[int]:
    users = snapshot.users()
    return [user for vertex in vertices for user, _ in users[vertex]]


def _downstream(snapshot: Snapshot, seeds: Iterable[int], free: set[int]) -> set[int]:
    users = snapshot.users()
    found: set[int] = set()
    stack = list(seeds)
    while stack:
        vertex = stack.pop()
        if vertex in found:
            continue
        found.add(vertex)
        stack += [user for user, _ in users[vertex] if user in free]
    return found


def kept_results(edits: Edits) -> list[Cause]:
    """Return which tensors were alive at the boundary on one side only."""
    causes = []
    came = [edits.b.vertices[k] for k in (*edits.added, *edits.changed)]
    gone = [edits.a.vertices[k] for k in edits.removed]
    if any(map(is_mode, (*came, *gone))):
        _forget_what_training_keeps(edits)
    if edits.new_roots:
        causes += _kept(edits)
    if edits.gone_roots:
        causes.append(_dropped(edits))
    return causes


def _forget_what_training_keeps(edits: Edits) -> None:
    """Counters of norms, masks, and what is saved for backward need no cause of their own."""
    edits.new_roots = [k for k in edits.new_roots if _is_users(edits.b, k, edits.added)]
    edits.gone_roots = [
        k for k in edits.gone_roots if _is_users(edits.a, k, edits.removed)
    ]


def _is_users(snapshot: Snapshot, root: int, free: set[int]) -> bool:
    """Return whether a root is the user's own: named, or work of its own."""
    name = snapshot.root_names.get(root)
    vertex = snapshot.roots[root][0]
    if name is not None:
        return name.holder != "buffer"
    return vertex in free and not is_mode(snapshot.vertices[vertex])


def _counters(snapshot: Snapshot) -> list[int]:
    """Return the roots that are buffers of modules."""
    return [k for k, name in snapshot.root_names.items() if name.holder == "buffer"]


def _kept(edits: Edits) -> list[Cause]:
    roots = edits.new_roots
    together, each = exclusive(edits.b, roots, edits.added)
    # What others need too, and the graph before did not compute, came with another path; so did
    # what nothing names and only a new operation reads, which saved it for backward.
    roots = [
        k
        for k in roots
        if each[k]
        or (edits.b.roots[k][0] not in edits.added and not _is_saved(edits, k))
    ]
    edits.new_roots = roots
    by_holder: dict[str, list[int]] = {}
    for k in sorted(roots, key=lambda k: -len(each[k])):
        name = edits.b.root_names.get(k)
        holder = (
            name.holder
            if name is not None and name.holder.startswith("closure")
            else ""
        )
        by_holder.setdefault(holder, []).append(k)
    causes = []
    for holder, mine in by_holder.items():
        nodes = set().union(*(each[k] for k in mine))
        if len(by_holder) == 1:
            nodes = together
        vertex = edits.b.vertices[edits.b.roots[mine[0]][0]]
        called, variable = _root(edits.b, mine[0])
        more = f" (and {len(mine) - 1} more)" if len(mine) > 1 else ""
        held = f", held by the {holder}," if holder else ""
        step, before = edits.now.first_step, edits.before.name
        causes.append(
            Cause(
                kind="closure" if holder else "live_tensor",
                text=f"live tensor {called} created{at(vertex.site)}{held} was alive at the "
                f"boundary of step {step} but not in {before}{more}: "
                f"{_difference('+', len(mine), len(nodes))}",
                fix="log after the boundary, or `del` it, or keep a value of it "
                "(`lazyrt.materialise(t)`), or put it off with a step closure in every step: "
                f"`lazyrt.add_step_closure({_keeper(variable)}, (t,))`",
                variable=variable,
                now=vertex.site,
                taken=edits.take(added=nodes),
            )
        )
        edits.new_roots = [k for k in edits.new_roots if k not in mine]
    return causes


def _keeper(variable: str) -> str:
    """Return what keeps a tensor, as a function: `history.append` for `history[3]`.

    Example:
        >>> _keeper("self.log['loss'][12]"), _keeper("best")
        ("self.log['loss'].append", 'f')
    """
    item = _ITEM.fullmatch(variable)
    return f"{item[1]}.append" if item is not None else "f"


def _is_saved(edits: Edits, root: int) -> bool:
    """Return whether a result has no name and the operations that read it are new."""
    vertex = edits.b.roots[root][0]
    if root in edits.b.root_names:
        return False
    return any(
        vertex in (operand for operand, _ in edits.b.vertices[k].operands)
        for k in edits.added
    )


def _dropped(edits: Edits) -> Cause:
    roots = edits.gone_roots
    together, each = exclusive(edits.a, roots, edits.removed)
    first = max(roots, key=lambda k: len(each[k]))
    vertex = edits.a.vertices[edits.a.roots[first][0]]
    called, name = _root(edits.a, first)
    more = f" (and {len(roots) - 1} more)" if len(roots) > 1 else ""
    edits.gone_roots = []
    return Cause(
        kind="live_tensor_gone",
        text=f"live tensor {called} created{at(vertex.site)} was alive at the boundary in "
        f"{edits.before.name} but not in step {edits.now.first_step}{more}: "
        f"{_difference('-', len(roots), len(together))}",
        fix="keep the same tensors alive at each boundary: drop it in every step or in none",
        variable=name,
        before=vertex.site,
        taken=edits.take(removed=together),
    )


def _difference(sign: str, outputs: int, operations: int) -> str:
    """Return how many outputs, and operations for them alone, a graph has more or less.

    Example:
        >>> _difference("+", 2, 4), _difference("-", 1, 0)
        ('+2 outputs, +4 operations', '-1 output')
    """
    shown = f"{sign}{count(outputs, 'output')}"
    return f"{shown}, {sign}{count(operations, 'operation')}" if operations else shown


def _root(snapshot: Snapshot, k: int) -> tuple[str, str]:
    """Return how a sentence calls a root, and its name."""
    vertex, index = snapshot.roots[k]
    type_ = snapshot.vertices[vertex].types[index]
    if k not in snapshot.root_names:
        return f"{type_} of {snapshot.vertices[vertex].op}", ""
    name = snapshot.root_names[k].text
    return f"`{name}` {type_}", name


def train_or_eval(edits: Edits) -> list[Cause]:
    """Return whether dropout or batch norm switched between training and evaluation."""
    more = [k for k in edits.added if is_mode(edits.b.vertices[k])]
    fewer = [k for k in edits.removed if is_mode(edits.a.vertices[k])]
    flags = [
        k
        for k, partner in edits.changed.items()
        if is_mode(edits.b.vertices[k])
        and edits.b.vertices[k].attrs != edits.a.vertices[partner].attrs
    ]
    if not more and not fewer and not flags:
        return []
    to_train = _trains(edits.b, [*more, *flags]) or not (fewer or flags)
    vertices = [edits.b.vertices[k] for k in sorted([*more, *flags])]
    old = [edits.a.vertices[k] for k in sorted(fewer)]
    scopes = [v.scope for v in (*vertices, *old) if v.scope]
    where = f" (in module {listed(scopes)})" if scopes else ""
    old_mode, new_mode = (
        ("evaluation", "training") if to_train else ("training", "evaluation")
    )
    text = f"the model runs in {new_mode} mode, before in {old_mode} mode: "
    fix = _MODE_FIX
    if _is_dropout_alone(edits, [*vertices, *old]):
        text = f"dropout is {'on' if to_train else 'off'}, before it was {'off' if to_train else 'on'}: "
        fix = (
            "set the rate once, before the loop; one compile with dropout and one without, "
            "as after `.train()` and `.eval()`, is what it costs"
        )
    return [
        Cause(
            kind="train_eval",
            text=f"{text}{_norms_and_dropouts([*vertices, *old])} differ{where}",
            fix=fix,
            now=first_site(vertices),
            before=first_site(old),
            taken=edits.take(
                added=connected(edits.b, more, edits.added)
                | exclusive(edits.b, _counters(edits.b), edits.added)[0]
                | {k for k in edits.added if _is_copy(edits.b.vertices[k])},
                removed=connected(edits.a, fewer, edits.removed)
                | exclusive(edits.a, _counters(edits.a), edits.removed)[0],
                changed=_downstream(edits.b, flags, set(edits.changed)),
            ),
        )
    ]


def fast_path(edits: Edits) -> list[Cause]:
    """Return whether a module takes another way in evaluation, as torch's attention does."""
    sides = (edits.b, edits.added), (edits.a, edits.removed)
    for is_gain in (True, False):
        snapshot, free = sides[not is_gain]
        drops = [k for k in free if snapshot.vertices[k].op.startswith(_DROPOUTS)]
        found = [snapshot.vertices[k] for k in drops]
        spots = {(vertex.scope, place(vertex.site)) for vertex in found}
        both = [
            sum(_at_spots(side.vertices[k], spots) for k in mine)
            for side, mine in sides
        ]
        if not drops or min(both) < _WAY:
            continue
        old, new = ("evaluation", "training")[:: 1 if is_gain else -1]
        site = first_site(snapshot.vertices[k] for k in sorted(drops))
        names = listed(sorted(scope for scope, _ in spots if scope))
        return [
            Cause(
                kind="train_eval",
                text=f"the model runs in {new} mode, before in {old} mode: dropout and the way "
                f"that torch takes{at(site)} differ"
                + (f" (in module {names})" if names else ""),
                fix=_MODE_FIX,
                now=site if is_gain else None,
                before=None if is_gain else site,
                taken=_take_places(edits, spots),
            )
        ]
    return []


def _at_spots(vertex: Vertex, spots: set[Any]) -> bool:
    return not vertex.is_leaf and (vertex.scope, place(vertex.site)) in spots


def _take_places(edits: Edits, spots: set[Any]) -> Taken:
    """Take out what the same modules recorded on the same lines, on both sides."""
    a, b = edits.a, edits.b
    ours = [k for k in edits.added if _at_spots(b.vertices[k], spots)]
    theirs = [k for k in edits.removed if _at_spots(a.vertices[k], spots)]
    changed = [
        k
        for k, partner in edits.changed.items()
        if _at_spots(b.vertices[k], spots) and _at_spots(a.vertices[partner], spots)
    ]
    return edits.take(
        _with_leaves(b, ours, edits.added),
        _with_leaves(a, theirs, edits.removed),
        changed,
    )


# Dropout alone is one operation or two.
_WAY = 4
_MODE_FIX = (
    "one graph for training and one for evaluation is what it takes; call `.train()` and "
    "`.eval()` at the boundary of steps"
)


def _is_dropout_alone(edits: Edits, vertices: list[Vertex]) -> bool:
    """Return whether both sides train: then a rate of 0 leaves dropout out as well."""
    return all(vertex.op.startswith(_DROPOUTS) for vertex in vertices) and all(
        any(vertex.backward for vertex in side.vertices) for side in (edits.a, edits.b)
    )


def _is_copy(vertex: Vertex) -> bool:
    """Return whether a vertex is what dropout leaves of itself in compiled evaluation."""
    return vertex.op == "aten.clone.default"


def _norms_and_dropouts(vertices: list[Vertex]) -> str:
    ops = Counter(vertex.op for vertex in vertices)
    return ", ".join(f"{number} {op}" for op, number in ops.most_common(_SHOWN_OPS))


def is_mode(vertex: Vertex) -> bool:
    """Return whether training and evaluation do something else in an op."""
    return vertex.op.startswith(_DROPOUTS) or any(norm in vertex.op for norm in _NORMS)


def _trains(snapshot: Snapshot, vertices: list[int]) -> bool:
    return any(
        snapshot.vertices[k].op.startswith(_DROPOUTS)
        or "True" in snapshot.vertices[k].attrs
        for k in vertices
        if "no_training" not in snapshot.vertices[k].op
    )


def random_numbers(edits: Edits) -> list[Cause]:
    """Return which random ops one side has and the other has not."""
    more = [k for k in edits.added if edits.b.vertices[k].op in edits.b.random]
    fewer = [k for k in edits.removed if edits.a.vertices[k].op in edits.a.random]
    if len(more) == len(fewer):
        return []
    vertices = [edits.b.vertices[k] for k in sorted(more)]
    old = [edits.a.vertices[k] for k in sorted(fewer)]
    change = f"{count(len(more), 'random op')} more" if more else ""
    change += " and " if more and fewer else ""
    change += f"{count(len(fewer), 'random op')} fewer" if fewer else ""
    first = [*vertices, *old][0]
    return [
        Cause(
            kind="rng",
            text=f"the step draws random numbers another number of times: {change}, "
            f"{first.op}{at(first.site)}",
            fix="draw in every step or in none, or before the step begins",
            now=first_site(vertices),
            before=first_site(old),
            taken=edits.take(
                added=_on_lines_of(edits.b, more, edits.added),
                removed=_on_lines_of(edits.a, fewer, edits.removed),
            ),
        )
    ]


def _on_lines_of(
    snapshot: Snapshot, vertices: Iterable[int], free: set[int]
) -> set[int]:
    """Return what is connected with vertices and stands on their lines, backward with it."""
    lines = {place(snapshot.vertices[k].site) for k in vertices}
    near = connected(snapshot, vertices, free)
    mine = [
        k
        for k in near
        if snapshot.vertices[k].backward or place(snapshot.vertices[k].site) in lines
    ]
    return _with_leaves(snapshot, mine, near)


def lifted_numbers(edits: Edits) -> list[Cause]:
    """Return Python numbers that varied and are inputs from now on."""
    users = edits.b.users()
    more = [
        k
        for k in edits.added
        if edits.b.vertices[k].op in {"float", "int"}
        and not edits.added.issuperset(user for user, _ in users[k])
    ]
    gone = [k for k in edits.removed if edits.a.vertices[k].op in {"float", "int"}]
    readers = [edits.b.vertices[k] for k in _readers(edits.b, more)]
    site = first_site(readers)
    if more and len(more) == len(gone):
        return _other_kind_of_number(edits, more, gone, site)
    if len(more) <= len(gone):
        return []
    changed = {k for k in _readers(edits.b, more) if k in edits.changed}
    numbers = "a Python number" if len(more) == 1 else f"{len(more)} Python numbers"
    verb = "varies and is an input" if len(more) == 1 else "vary and are inputs"
    return [
        Cause(
            kind="lifted_number",
            text=f"{numbers}{at(site)} {verb} from now on",
            fix="nothing to do: further values compile nothing",
            now=site,
            taken=edits.take(added=more, changed=changed),
        )
    ]


def positions(edits: Edits) -> list[Cause]:
    """Return that the position of a slice varies and is an input from now on."""
    came = [k for k in edits.added if edits.b.vertices[k].op.startswith(_AT)]
    gone = [k for k in edits.removed if edits.a.vertices[k].op.startswith(_FIXED)]
    if not came or not gone:
        return []
    site = first_site(edits.b.vertices[k] for k in sorted(came))
    many = len(came) > 1
    return [
        Cause(
            kind="lifted_number",
            text=f"{'the positions of slices' if many else 'the position of a slice'}{at(site)} "
            f"{'vary and are inputs' if many else 'varies and is an input'} from now on",
            fix="nothing to do: further positions compile nothing",
            now=site,
            before=first_site(edits.a.vertices[k] for k in sorted(gone)),
            taken=edits.take(
                added=_with_leaves(edits.b, came, edits.added), removed=gone
            ),
        )
    ]


_AT = (
    "lazyrt.slice_at", "lazyrt.select_at", "lazyrt.slice_scatter_at", "lazyrt.select_scatter_at",
)  # fmt: skip
_FIXED = ("aten.slice", "aten.select")


def _other_kind_of_number(
    edits: Edits, more: list[int], gone: list[int], site: Site | None
) -> list[Cause]:
    """Return that numbers which are inputs were integers and are floats, or the other way."""
    kinds = [
        _KINDS[side.vertices[numbers[0]].op]
        for side, numbers in ((edits.a, gone), (edits.b, more))
    ]
    if kinds[0] == kinds[1]:
        return []
    changed = {k for k in _readers(edits.b, more) if k in edits.changed}
    return [
        Cause(
            kind="lifted_number",
            text=f"{'a Python number' if len(more) == 1 else f'{len(more)} Python numbers'}"
            f"{at(site)} {'is' if len(more) == 1 else 'are'} {kinds[1]} and "
            f"{'was' if len(more) == 1 else 'were'} {kinds[0]}",
            fix="write it in one way (`2.0`, not `2`) where it varies; further values of either "
            "kind compile nothing",
            now=site,
            before=first_site(edits.a.vertices[k] for k in _readers(edits.a, gone)),
            taken=edits.take(added=more, removed=gone, changed=changed),
        )
    ]


_KINDS = {"int": "an integer", "float": "a float"}


def other_path(edits: Edits) -> list[Cause]:
    """Return what is left: the program took another path."""
    if not edits.added and not edits.removed and not edits.changed:
        return []
    new = [edits.b.vertices[k] for k in sorted({*edits.added, *edits.changed})]
    old = [edits.a.vertices[k] for k in sorted(edits.removed)]
    places = Counter(
        (v.op, v.scope.rpartition(".")[2]) for v in (*new, *old) if not v.is_leaf
    )
    scopes = {v.scope for v in (*new, *old) if v.scope}
    times = max(places.values(), default=0)
    alike = f", alike in {len(scopes)} modules" if times > 2 and len(scopes) > 2 else ""  # noqa: PLR2004
    if is_of_update(edits):
        return [_other_update(edits, new, old)]
    return [
        Cause(
            kind="code_path",
            text="the program took another path: "
            + _ops_text(new, old)
            + at(first_site(new) or first_site(old))
            + (f" (in module `{next(iter(scopes))}`)" if len(scopes) == 1 else alike),
            fix="a branch, a flag or a loop decides by the step: make the decision once, or "
            "compute both sides and choose with `torch.where`",
            now=first_site(new),
            before=first_site(old),
            taken=edits.take_all(),
        )
    ]


def _other_update(edits: Edits, new: list[Vertex], old: list[Vertex]) -> Cause:
    site = first_site(new) or first_site(old)
    return Cause(
        kind="update",
        text=f"the optimizer's update{at(site)} computes something else: {_ops_text(new, old)}",
        fix=OPTIONS_FIX,
        now=first_site(new),
        before=first_site(old),
        taken=edits.take_all(),
    )


def _telling(ops: Counter[str], views: set[str]) -> list[tuple[str, int]]:
    """Return a few ops, those that merely view last: they come with whatever reads them."""
    return sorted(ops.most_common(), key=lambda item: item[0] in views)[:_SHOWN_OPS]


def _ops_text(new: list[Vertex], old: list[Vertex]) -> str:
    ours = Counter(v.op for v in new if not v.is_leaf)
    theirs = Counter(v.op for v in old if not v.is_leaf)
    views = {v.op for v in (*new, *old) if is_view(v)}
    parts = [f"{n} more {op}" for op, n in _telling(ours - theirs, views)]
    parts += [f"{n} fewer {op}" for op, n in _telling(theirs - ours, views)]
    if not parts:
        inputs = [v for v in (*new, *old) if v.is_leaf]
        if inputs:
            return f"{count(len(inputs), 'other input')}"
        parts = [f"{op} in another form" for op in list(ours)[:_SHOWN_OPS]]
    return ", ".join(parts)
