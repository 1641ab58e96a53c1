"""What a pending graph does to memory: names, versions, which inputs are overwritten.

Plain data and IR values: a holding keeps no buffer and no device data alive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazyrt.execution.executor import donated_inputs
from lazyrt.execution.input_provenance import InputOrigin, origin_of
from lazyrt.ir.live import pending

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lazygraph.snapshot import Name
    from lazyrt.execution.graph import Graph
    from lazyrt.ir.live import Buffer
    from lazyrt.ir.node import Leaf, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What stands behind one input or one output of a pending graph.

    Attributes:
        name: What the user calls the tensor; empty where unknown.
        holder: What holds it: `variable`, `module`, `optimizer`, ...; see `lazygraph.snapshot.Name`.
        version: How often its storage was written, barriers included; None of a finished step.
        overwritten_by: For an input, the value that its storage takes in this step.
        overwrites: For an output, the input whose storage takes it.
        is_donated: Whether a barrier now would hand the input's memory on to the results.
        origin: For an input, where its data came from.
    """

    name: str = ""
    holder: str = ""
    version: int | None = 0
    overwritten_by: Value | None = None
    overwrites: Leaf | None = None
    is_donated: bool = False
    origin: InputOrigin | None = None


def holdings(graph: Graph, names: Mapping[int, Name]) -> dict[Value, Holding]:
    """Return the holdings of a graph's data inputs and live outputs; to be called under `lock`.

    Args:
        graph: A graph of the step that is pending now.
        names: The user's names of buffers, by their identity.
    """
    computed = {v for node in graph.nodes for v in node.outputs if v is not None}
    donated = donated_inputs()
    found: dict[Value, Holding] = {}
    for leaf in graph.parameters:
        if leaf.kind == "data":
            found[leaf] = _of_input(leaf, names, computed, donated)
    overwrites = {
        held.overwritten_by: leaf
        for leaf, held in reversed(list(found.items()))
        if held.overwritten_by is not None
    }
    for value, facts in _outputs(computed, names):
        if facts.get("name") or value not in found:
            found[value] = Holding(**facts, overwrites=overwrites.get(value))  # type: ignore[arg-type]
    return found


def _of_input(
    leaf: Leaf, names: Mapping[int, Name], computed: set[Value], donated: frozenset[int]
) -> Holding:
    owner = pending.owners[leaf.position]()
    successor = owner.value if owner is not None else None
    return Holding(
        **_facts(owner, names),
        overwritten_by=successor if successor in computed else None,
        is_donated=leaf.position in donated,
        origin=origin_of(leaf, names),
    )


def _outputs(
    computed: set[Value], names: Mapping[int, Name]
) -> list[tuple[Value, dict[str, Any]]]:
    return [
        (buffer.value, _facts(buffer, names))
        for buffer in pending.live()
        if buffer.value is not None and buffer.value in computed
    ]


def _facts(buffer: Buffer | None, names: Mapping[int, Name]) -> dict[str, Any]:
    if buffer is None:
        return {}
    name = names.get(id(buffer))
    if name is None:
        return {"version": buffer.version}
    return {"name": name.text, "holder": name.holder, "version": buffer.version}
