"""Looking at a value with a part of the step run ahead, once: the other way to peek.

A peek leaves the step as it is, so what it computed runs again with the step. Here the ops
under the value run now, what the rest of the step needs of them stays, and the rest reads it as
inputs. Nothing runs twice, and the price is that the step becomes another graph, which is
compiled anew the first time: the choice that the peek makes the other way round.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lazygraph.readable import Readable, size_text
from lazyrt.config import config
from lazyrt.execution import compiler, process
from lazyrt.execution.executor import pending_roots, plan_of, run_plan
from lazyrt.execution.graph import Graph
from lazyrt.execution.peek import tell
from lazyrt.execution.process import deferred_interrupt
from lazyrt.frontend import record
from lazyrt.ir.fingerprint import canonicalise, rebuilt
from lazyrt.ir.live import Buffer, leaf_of, lock, pending, ran_alone
from lazyrt.ir.node import Leaf, Node, Value, iter_values, nbytes_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazyrt.frontend.buffers import State
    from lazyrt.observe.events import SourceLocation

_HOW = "ahead of its step"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseChoice(Readable):
    """What looking at a pending value costs in either way; computing nothing told it.

    Attributes:
        tensor: What it is called; empty where that is not known.
        ops: Ops that the look runs. After a peek they run again with the step.
        step_ops: Ops of the whole step.
        kept: Values that `reuse=True` keeps for the rest of the step; `kept_bytes` is their size.
        fingerprint: Of the step, as it is and after a peek.
        reused_fingerprint: Of what remains of it with `reuse=True`; empty if nothing does.
        remaining_ops: Ops of that rest.
    """

    tensor: str
    ops: int
    step_ops: int
    kept: int
    kept_bytes: int
    fingerprint: str
    reused_fingerprint: str
    remaining_ops: int

    def __str__(self) -> str:
        """Return both ways, one to a line."""
        share = round(100 * self.ops / self.step_ops) if self.step_ops else 0
        rest = (
            f"the rest is the graph {self.reused_fingerprint[:8]} of {self.remaining_ops:,} ops"
            if self.reused_fingerprint
            else "nothing of the step remains"
        )
        values = "1 value" if self.kept == 1 else f"{self.kept:,} values"
        are = "is" if self.kept == 1 else "are"
        return (
            f"peek: {self.ops:,} of {self.step_ops:,} ops ({share} %) run twice, and the step "
            f"stays the graph {self.fingerprint[:8]}\n"
            f"reuse=True: no op runs twice, {values} ({size_text(self.kept_bytes)}) {are} "
            f"kept, and {rest}"
        )


@dataclass(frozen=True, slots=True)
class _Cut:
    """The pending step, parted at one value."""

    cone: tuple[Node, ...]
    kept: tuple[Value, ...]
    rest: tuple[Node, ...]
    holders: tuple[tuple[Buffer, Value], ...]


def value_in_step(state: State) -> Value | None:
    """Return what a barrier would compute for a tensor: equal ops of two cells are one by then."""
    pending_roots()
    return state.base.value


def choice(value: Value, tensor: str) -> ReuseChoice:
    """Return what looking at a pending value costs in either way."""
    with lock:
        cut = _cut_at(value)
        whole = Graph(pending_roots())
        first = len(pending.inputs)
        stand_ins: dict[Value, Value] = {
            kept: Leaf("data", first + k, kept.shape, kept.dtype)
            for k, kept in enumerate(cut.kept)
        }
        for kept, leaf in stand_ins.items():
            leaf.strides = kept.strides
        make_twin = functools.partial(record.twin, intern=False)
        new = rebuilt(cut.rest, stand_ins, make_twin)
        held = set(cut.kept)
        roots = [new.get(v, v) for _, v in cut.holders if v not in held]
        rest = Graph(roots)
        return ReuseChoice(
            tensor=tensor,
            ops=len(cut.cone),
            step_ops=len(whole.nodes),
            kept=len(cut.kept),
            kept_bytes=sum(map(nbytes_of, cut.kept)),
            fingerprint=whole.fingerprint,
            reused_fingerprint=rest.fingerprint if rest.nodes else "",
            remaining_ops=len(rest.nodes),
        )


def run_ahead(value: Value, site: SourceLocation | None, tensor: str) -> None:
    """Run what a pending value needs, and let the rest of the step read it as inputs.

    Args:
        value: A pending value that a live buffer holds.
        site: Who asked, for events.
        tensor: What the user's source calls it, for events.
    """
    process.check_not_forked()
    with lock:
        start = time.perf_counter_ns()
        cut = _cut_at(value)
        results = _run(cut.kept)
        with deferred_interrupt():
            _hand_over(cut, results)
        pending.activity += 1
        tell(value, "reuse", len(cut.cone), 0, start, site, tensor)


def _cut_at(value: Value) -> _Cut:
    """Part the pending step: what the value needs, and the rest that will read parts of it."""
    cone = Graph([value]).nodes
    inside = {node for node in cone if not _is_view_of_input(node)}
    holders = tuple(
        (buffer, held)
        for buffer in pending.live()
        if (held := buffer.value) is not None and held.node is not None
    )
    kept = {value: None}
    kept |= dict.fromkeys(held for _, held in holders if held.node in inside)
    others = (held for _, held in holders if held.node not in inside)
    rest = tuple(node for node in Graph(others).nodes if node not in inside)
    for node in rest:
        read = (v for v in iter_values(node.args) if v.node in inside)
        kept |= dict.fromkeys(read)
    return _Cut(cone, tuple(kept), rest, holders)


def _is_view_of_input(node: Node) -> bool:
    """Return whether a node only looks at an input another way, which costs no keeping."""
    returns = node.op.schema.returns
    return all(isinstance(v, Leaf) for v in iter_values(node.args)) and any(
        each.alias_info is not None for each in returns
    )


def _run(wanted: Iterable[Value]) -> dict[Value, Any]:
    roots = list(wanted)
    graph = canonicalise(roots)
    fast = config.compile_tier != "optimised"
    executable = compiler.compile_graph(graph, {}, fast=fast, purpose="peek")
    plan = plan_of(graph, executable, roots)
    plan.make_sure_it_fits()
    return dict(zip(roots, run_plan(plan, "peek"), strict=True))


def _hand_over(cut: _Cut, results: dict[Value, Any]) -> None:
    """Give buffers their data, and the rest of the step inputs in place of what has run."""
    owners: dict[Value, Buffer] = {}
    for buffer, held in cut.holders:
        if held in results:
            type_ = buffer.meta or (held.shape, held.dtype, held.strides)
            buffer.store(results[held], type_)
            buffer.run = ran_alone(_HOW, held)
            owners.setdefault(held, buffer)
    read = {v for node in cut.rest for v in iter_values(node.args)}
    inputs: dict[Value, Value] = {}
    for kept, data in results.items():
        if kept in read:
            owner = owners.get(kept)
            if owner is None:
                owner = Buffer(None)
                owner.store(data, (kept.shape, kept.dtype, kept.strides))
                owner.run = ran_alone(_HOW, kept)
            inputs[kept] = owner.value or leaf_of(owner)
    new = rebuilt(cut.rest, inputs)
    for buffer, held in cut.holders:
        if held in new and held not in results:
            buffer.value = new[held]
            buffer.version += 1
