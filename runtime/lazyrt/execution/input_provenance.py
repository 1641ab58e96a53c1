"""Where the inputs of a graph come from: which execution, which output, which line."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazygraph.readable import Readable, share_text
from lazyrt.execution.executor import donated_inputs
from lazyrt.ir.live import Buffer, FromCpu, RanAlone, made_in, pending
from lazyrt.ir.node import Leaf, Value, type_text, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lazygraph.snapshot import Name
    from lazyrt.execution.graph import Graph
    from lazyrt.execution.graph_registry import Run
    from lazyrt.observe.events import SourceLocation

ON_CPU = "on the CPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOrigin(Readable):
    """One input of a graph.

    Attributes:
        name: What the user calls it; empty where unknown.
        type: Such as `f32[2,3]`.
        nbytes: Size of its data, in bytes.
        step: The step whose execution produced it; None for data copied from the host.
        graph: Name of the graph that ran there; `output` is the position of its result.
        op, site: What computed it, and the line that recorded that; for data from the host
            the fallback that made it, if one did.
        how: How `op` was run where no step's executable ran it: `on the CPU`,
            `in eager debug mode`, `in op-by-op mode`, `ahead of its step`; else empty.
        block: Name and number of the `step()` block that ran it, such as `train 3`; empty for
            a nameless one, None outside of blocks.
    """

    name: str
    type: str
    nbytes: int
    step: int | None = None
    graph: str = ""
    output: int | None = None
    op: str = ""
    site: SourceLocation | None = None
    block: str | None = None
    how: str = ""

    def __str__(self) -> str:
        """Return one line."""
        called = f"`{self.name}` {self.type}" if self.name else self.type
        where = f" at {self.site}" if self.site is not None else ""
        if self.how:
            return f"{called}: computed {self.how} by {self.op}{where}"
        if self.step is None:
            return f"{called}: copied from the host"
        block = f" '{self.block}'" if self.block else ""
        return (
            f"{called}: output {self.output} of step {self.step}{block} ({self.graph}), "
            f"{self.op}{where}"
        )


class InputOrigins(Readable, tuple[InputOrigin, ...]):
    """The inputs of a graph, in order of their first use, with one sentence about all."""

    __slots__ = ()

    @property
    def computed(self) -> tuple[InputOrigin, ...]:
        """Those that an earlier execution on the device computed."""
        return tuple(
            origin
            for origin in self
            if origin.step is not None or origin.how not in {"", ON_CPU}
        )

    @property
    def text(self) -> str:
        """Return how many inputs, and how much of them, earlier executions computed."""
        computed = self.computed
        some, all_ = (sum(o.nbytes for o in part) for part in (computed, self))
        makers = Counter(o.how or f"by step {o.step}" for o in computed)
        steps = ", ".join(f"{n} {maker}" for maker, n in makers.most_common(3))
        return (
            f"{len(computed)} of {len(self)} inputs ({share_text(some, all_)}) "
            f"were computed by an earlier execution{f': {steps}' if steps else ''}"
        )

    def __str__(self) -> str:
        """Return the sentence and one line for each input."""
        return "\n".join([self.text, *(f"  {origin}" for origin in self)])


def pending_origins(roots: Iterable[Value], names: Mapping[int, Name]) -> InputOrigins:
    """Return the origins of the data that pending values read."""
    return InputOrigins(
        origin_of(leaf, names) for leaf in walk(roots)[1] if leaf.kind == "data"
    )


def origin_of(leaf: Leaf, names: Mapping[int, Name]) -> InputOrigin:
    """Return where the data of one input of the pending step came from."""
    owner = pending.owners[leaf.position]()
    name = names.get(id(owner))
    known: dict[str, Any] = {
        "name": name.text if name is not None else "",
        "type": type_text(leaf.shape, leaf.dtype),
    }
    nbytes = math.prod(leaf.shape) * leaf.dtype.itemsize
    return _origin(known, nbytes, *pending.sources[leaf.position])


def made_by(buffer: Buffer, name: str) -> InputOrigin:
    """Return the origin of a ready buffer's data."""
    shape, dtype, _ = buffer.type
    nbytes = math.prod(shape) * dtype.itemsize
    known = {"name": name, "type": type_text(shape, dtype)}
    return _origin(known, nbytes, *made_in(buffer))


def _origin(
    known: dict[str, Any], nbytes: int, run: Run | FromCpu | RanAlone | None, slot: int
) -> InputOrigin:
    if isinstance(run, FromCpu):
        return InputOrigin(**known, nbytes=nbytes, op=run.op, site=run.site, how=ON_CPU)
    if isinstance(run, RanAlone):
        op, site = run.made[slot]
        return InputOrigin(**known, nbytes=nbytes, op=op, site=site, how=run.how)
    if run is None:
        return InputOrigin(**known, nbytes=nbytes)
    output = run.order[slot]
    op, site, _ = run.record.results[output]
    return InputOrigin(
        **known, nbytes=nbytes, step=run.step, graph=run.record.name, output=output,
        op=op, site=site, block=run.block,
    )  # fmt: skip


# What a pending graph does to memory: names, versions, which inputs are overwritten.
#
# Plain data and IR values: a holding keeps no buffer and no device data alive.


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
    """Return the holdings of a graph's data inputs and live outputs; to be called under `lock`."""
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
