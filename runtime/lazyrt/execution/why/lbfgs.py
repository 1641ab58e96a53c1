"""Steps of LBFGS, which decides by values what it computes next and keeps what it did before."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from lazyrt.execution.why.boundaries import differs, mark_text
from lazyrt.execution.why.causes import Cause, Taken
from lazyrt.execution.why.edits import at, count, is_kept, place
from lazyrt.ir.snapshot import OF_LBFGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazyrt.execution.census import CompiledGraph
    from lazyrt.execution.why.edits import Edits, Place
    from lazyrt.ir.snapshot import Snapshot
    from lazyrt.observe.events import Site

_DECIDES = "decides by values how it goes on"
_FILE = "torch/optim/lbfgs.py"
_DIRECTION = re.compile(r"\.(?:old_dirs|old_stps|ro|al)\[(\d+)\]$")
_HISTORY_FIX = (
    "nothing to do once the history is full: it holds up to `history_size` directions (100 if not "
    "given), and each number of them is a graph of its own; a small one, such as "
    "`torch.optim.LBFGS(..., history_size=5)`, is full after a few rounds"
)
_DECIDES_FIX = (
    "nothing to do where it comes back: LBFGS reads the loss and the slope to decide how it goes "
    "on, and each part between two of its reads is one graph"
)


def runs_lbfgs(record: CompiledGraph) -> bool:
    """Return whether a graph is a part of a step of LBFGS."""
    marks = record.key.began_after, record.key.ended_by
    if any(_FILE in mark[0] for mark in marks):
        return True
    snapshot = record.snapshot
    return snapshot is not None and next(_own(snapshot), None) is not None


def _own(snapshot: Snapshot) -> Iterator[tuple[int, str]]:
    """Yield the vertices that LBFGS keeps something of, with the names."""
    for leaf, name in snapshot.leaf_names.items():
        if name.holder == OF_LBFGS:
            yield leaf, name.text
    for k, name in snapshot.root_names.items():
        if name.holder == OF_LBFGS:
            yield snapshot.roots[k][0], name.text


def part_of_lbfgs(record: CompiledGraph) -> Cause:
    """Return that a graph that is like no other is a part of a step of LBFGS."""
    ended = record.key.ended_by
    return Cause(
        kind="step_cut",
        text=f"LBFGS{_at_step(record)} {_DECIDES}: this part, "
        f"{count(record.nodes, 'operation')} up to {_mark(ended)}, had not run before",
        fix=_DECIDES_FIX,
        now=ended[1],
        taken=Taken(added=record.nodes),
    )


def lbfgs(edits: Edits) -> list[Cause]:
    """Return what two parts of steps of LBFGS differ in; what its lines recorded is taken out."""
    if not (runs_lbfgs(edits.before) and runs_lbfgs(edits.now)):
        return []
    lines = _lines(edits.b) | _lines(edits.a)
    old, new = edits.before.key, edits.now.key
    ends = differs(old.ended_by, new.ended_by)
    cut = ends or differs(old.began_after, new.began_after)
    # Where it is cut at another place, the closure's ops are a part of this graph or of the next.
    added = {k for k in edits.added if cut or _is_own(edits.b, k, lines)}
    removed = {k for k in edits.removed if cut or _is_own(edits.a, k, lines)}
    changed = {k for k in edits.changed if _is_own(edits.b, k, lines)}
    numbers = _directions(edits.a), _directions(edits.b)
    edits.new_roots = [k for k in edits.new_roots if is_kept(edits.b.root_names.get(k))]
    edits.gone_roots = [
        k for k in edits.gone_roots if is_kept(edits.a.root_names.get(k))
    ]
    taken = edits.take(added, removed, changed)
    if not sum(taken) and numbers[0] == numbers[1]:
        return []
    before, where = edits.before.name, _at_step(edits.now)
    grows = numbers[1] > 0 and numbers[0] != numbers[1]
    if grows:
        text = f"computes with {count(numbers[1], 'earlier direction')}, {numbers[0] or 'none'} in {before}"
    elif ends:
        text = f"{_DECIDES}: this part ends at {_mark(new.ended_by)}, {before} at {_mark(old.ended_by)}"
    elif cut:
        text = f"{_DECIDES}: this part begins after {_mark(new.began_after)}, {before} after "
        text += _mark(old.began_after)
    else:
        text = f"{_DECIDES}: this part goes another way than {before}"
    return [
        Cause(
            kind="loop_count" if grows else "step_cut",
            text=f"LBFGS{where} {text}",
            fix=_HISTORY_FIX if grows else _DECIDES_FIX,
            now=new.ended_by[1],
            before=old.ended_by[1],
            taken=taken,
        )
    ]


def _mark(boundary: tuple[str, Site | None]) -> str:
    article = "a " if boundary[0].startswith("read ") else ""
    return f"{article}{mark_text(boundary)}"


def _directions(snapshot: Snapshot) -> int:
    """Return how many earlier directions a graph reads or gives."""
    found = {
        hit[1]
        for _, name in _own(snapshot)
        if (hit := _DIRECTION.search(name)) is not None
    }
    return len(found)


def _lines(snapshot: Snapshot) -> set[Place | None]:
    """Return the lines that called LBFGS: they give or read what it keeps."""
    own = {vertex for vertex, _ in _own(snapshot)}
    vertices = snapshot.vertices
    near = [v for k, v in enumerate(vertices) if k in own or _reads(v.operands, own)]
    return {place(v.site) for v in near if not (v.is_leaf or v.scope or v.backward)}


def _reads(operands: tuple[tuple[int, int], ...], own: set[int]) -> bool:
    return any(operand in own for operand, _ in operands)


def _is_own(snapshot: Snapshot, k: int, lines: set[Place | None]) -> bool:
    """Return whether LBFGS has recorded an op, or only it reads an input without a name."""
    vertex = snapshot.vertices[k]
    if not vertex.is_leaf:
        return place(vertex.site) in lines
    name, origin = snapshot.leaf_names.get(k), snapshot.origins.get(k)
    is_users = is_kept(name) or (name is not None and name.holder == "variable")
    if is_users and not (origin is not None and origin.dropped):
        return False
    readers = [v for v in snapshot.vertices if _reads(v.operands, {k})]
    return all(place(reader.site) in lines for reader in readers)


def _at_step(record: CompiledGraph) -> str:
    """Return the line that called LBFGS."""
    snapshot = record.snapshot
    own = {vertex for vertex, _ in _own(snapshot)} if snapshot is not None else set()
    vertices = snapshot.vertices if snapshot is not None else ()
    sites = Counter(
        v.site
        for k, v in enumerate(vertices)
        if not (v.is_leaf or v.backward or v.scope)
        and (k in own or _reads(v.operands, own))
    )
    return at(sites.most_common(1)[0][0] if sites else record.key.ended_by[1])
