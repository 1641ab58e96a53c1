"""Parts of a step that reads cut several times: the pieces between them, and the rest."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lazyrt.execution.why.boundaries import cut_fix, differs, is_cut, mark_text
from lazyrt.execution.why.causes import Cause, Taken
from lazyrt.execution.why.edits import count

if TYPE_CHECKING:
    from lazyrt.execution.census import Census, CompiledGraph
    from lazyrt.ir.snapshot import Snapshot


def begun_by(now: CompiledGraph, census: Census) -> CompiledGraph | None:
    """Return the graph that a cut ended and whose results a new one goes on with.

    Between them may lie any number of pieces that read some of these results.
    """
    cut = now.key.began_after
    made = _maker(now, census)
    if made is None or not is_cut(cut) or differs(made.key.ended_by, cut):
        return None
    return made


def piece(now: CompiledGraph, census: Census) -> tuple[Cause, CompiledGraph] | None:
    """Return that a graph is what a read in a loop asks of a step that it has cut before.

    All that such a graph reads was computed by the part of the step before the first read.
    """
    snapshot = now.snapshot
    made = begun_by(now, census)
    if snapshot is None or made is None or differs(made.key.ended_by, now.key.ended_by):
        return None
    read = _data(snapshot)
    of_one = all(snapshot.origins[leaf].graph == made.name for leaf in read)
    if not of_one or any(v.backward or v.scope for v in snapshot.vertices):
        return None
    types = snapshot.vertices[read[0]].types[0]
    called = snapshot.leaf_names.get(read[0])
    what = f"`{called.text}` {types}" if called is not None else types
    more = f" and {len(read) - 1} more" if len(read) > 1 else ""
    cause = Cause(
        kind="step_cut",
        text=f"{mark_text(now.key.ended_by)} cut the step once more: this graph is the "
        f"{count(now.nodes, 'operation')} on {what}{more} between two of its reads",
        fix="read once: collect the tensors in the loop, and after the step has ended ask for "
        "`torch.stack(values).tolist()`; " + cut_fix(now.key.ended_by),
        variable=called.text if called is not None else "",
        now=now.key.ended_by[1],
        before=made.key.ended_by[1],
        taken=Taken(added=now.nodes),
    )
    return cause, made


def _data(snapshot: Snapshot) -> list[int]:
    return [k for k, vertex in enumerate(snapshot.vertices) if vertex.op == "data"]


def _maker(now: CompiledGraph, census: Census) -> CompiledGraph | None:
    """Return the graph that computed most of what is neither parameter nor state."""
    snapshot = now.snapshot
    if snapshot is None:
        return None
    names = snapshot.leaf_names
    made = Counter(
        origin.graph
        for leaf, origin in snapshot.origins.items()
        if origin.graph
        and not (
            leaf in names
            and (names[leaf].in_module or names[leaf].holder == "optimizer")
        )
    )
    if not made:
        return None
    graph = made.most_common(1)[0][0]
    return next((record for record in census if record.name == graph), None)
