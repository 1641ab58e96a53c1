"""What a peek will do, and the parts of it that take time: compiles, loads, runs.

The choice between one slice and single ops goes by fixed costs, so that the same program runs the
same way on every machine; how long it takes is expected by `pace`, which learns.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lazyrt.config import config
from lazyrt.execution import compiler
from lazyrt.execution.pace import Part, size_class
from lazyrt.ir import costs
from lazyrt.ir.fingerprint import canonicalise

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lazyrt.execution.compiler import Place
    from lazyrt.ir.node import Node, Value
    from lazyrt.lowering.spec import Spec

# Measured with `python -m benchmarks prints` on two cores: fast-tier compile of one op, the
# same for each node of a slice, the fixed cost of a slice, and running one cached op.
COMPILE_OP_NS = 20_000_000
_COMPILE_SLICE_NODE_NS = 2_500_000
_COMPILE_SLICE_NS = 40_000_000
RUN_OP_NS = 60_000
# Measured with `python -m benchmarks looks`: an executable read from disk, and what the first
# compile of a process takes more than others; compiling a slice; an op that runs for the first
# time; the plan of a slice that is new; running a slice, and each node of it.
_LOAD_NS = 2_500_000
_LOAD_NODE_NS = 80_000
_FIRST_COMPILE_NS = 40_000_000
_FIRST_LOAD_NS = 15_000_000
_GUESSED_SLICE_NS = 30_000_000
_FRESH_OP_NS = 400_000
_PLAN_NS = 1_500_000
_PLAN_NODE_NS = 120_000
_RUN_SLICE_NS = 200_000
_RUN_SLICE_NODE_NS = 10_000
# A look: its fixed part, and the statistics of one element.
_LOOK_NS = 350_000
_LOOK_ELEMENT_NS = 6.0


def slice_is_cheaper(cone: list[Node]) -> bool:
    """Return whether one slice is cheaper than single ops, none of it known."""
    unknown = len({node.spec for node in cone if node.spec.executable is None})
    by_op = unknown * COMPILE_OP_NS + len(cone) * RUN_OP_NS
    return by_op > _COMPILE_SLICE_NS + len(cone) * _COMPILE_SLICE_NODE_NS


def runs_as_slice(cone: list[Node], *, reused: bool) -> bool:
    """Return whether a peek of values whose slice nobody has yet runs as one."""
    return not (config.op_by_op_reads or reused) and slice_is_cheaper(cone)


def op_compiles(cone: Iterable[Node]) -> list[Part]:
    """Return what single ops take until all have executables in memory."""
    unknown = {node.spec: None for node in cone if node.spec.executable is None}
    places = [(spec, compiler.place_of_op(spec)) for spec in unknown]
    return _with_first([part for each in places for part in _getting(*each)])


def op_compile(spec: Spec) -> Part:
    """Return what compiling a single op takes."""
    guess = COMPILE_OP_NS * costs.compile_weight(spec.name)
    return Part(f"compile {spec.name}", int(spec.is_large), guess)


def op_part(spec: Spec, place: Place) -> list[Part]:
    """Return what it takes to get the executable of an op that lies somewhere."""
    return _with_first(_getting(spec, place))


def _getting(spec: Spec, place: Place) -> list[Part]:
    if place == "memory":
        return []
    return [Part("load op", 0, _LOAD_NS) if place == "disk" else op_compile(spec)]


def slice_compile(cone: Sequence[Node], place: Place) -> list[Part]:
    """Return what it takes to get the executable of a cone that lies somewhere."""
    if place == "memory":
        return []
    if place == "disk":
        guess = _LOAD_NS + len(cone) * _LOAD_NODE_NS
        return _with_first([Part("load slice", size_class(len(cone)), guess)])
    nodes = [
        Part(
            f"slice {node.op.name}",
            int(node.spec.is_large),
            _COMPILE_SLICE_NODE_NS * costs.slice_weight(node.op.name),
        )
        for node in cone
    ]
    return _with_first([Part("slice base", 0, _GUESSED_SLICE_NS), *nodes])


def place_of_slice(values: Sequence[Value]) -> Place:
    """Return where the executable of a cone is."""
    return compiler.place_of_graph(canonicalise(values), fast=True, purpose="peek")


def runs(cone: Sequence[Node]) -> list[Part]:
    """Return what running a cone op by op takes once all is compiled."""
    fresh = {node.spec for node in cone if node.spec.executable is None}
    return [
        *_work(cone, ""),
        Part("fixed run", 0, len(cone) * RUN_OP_NS),
        Part("fixed fresh", 0, len(fresh) * _FRESH_OP_NS),
    ]


def slice_runs(cone: Sequence[Node], *, is_new: bool) -> list[Part]:
    """Return what running a cone as one slice takes once it is compiled.

    Args:
        cone: Its nodes.
        is_new: Whether this process has not run it yet.
    """
    launch = _RUN_SLICE_NS + len(cone) * _RUN_SLICE_NODE_NS
    plan = _PLAN_NS + len(cone) * _PLAN_NODE_NS if is_new else 0
    return [
        *_work(cone, "fused-"),
        Part("fixed launch", size_class(len(cone)), launch),
        Part("fixed plan", size_class(len(cone)), plan),
    ]


def _work(cone: Iterable[Node], prefix: str) -> list[Part]:
    parts = []
    for node in cone:
        family = "dense" if costs.is_dense(node) else "run"
        work = costs.run_ns(node)
        parts.append(Part(f"{prefix}{family} {node.op.name}", size_class(work), work))
    return parts


def looks(value: Value) -> list[Part]:
    """Return what the statistics and the picture of a value take."""
    return look_at(str(value.dtype), math.prod(value.shape))


def look_at(dtype: str, elements: int) -> list[Part]:
    """Return what the statistics and the picture of so many elements take."""
    guess = _LOOK_NS + elements * _LOOK_ELEMENT_NS
    return [Part(f"look {dtype}", size_class(elements), guess)]


def _with_first(parts: list[Part]) -> list[Part]:
    """Add what the first compile of a process takes more than others, or its first load."""
    if not parts or compiler.has_compiled():
        return parts
    if all(part.kind.startswith("load") for part in parts):
        return [*parts, Part("fixed first load", 0, _FIRST_LOAD_NS)]
    return [*parts, first_compile()]


def first_compile() -> Part:
    """Return what the first compile of a process takes more than others."""
    return Part("fixed first compile", 0, _FIRST_COMPILE_NS)
