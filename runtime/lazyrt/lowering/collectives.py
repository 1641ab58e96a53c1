"""Collectives: ops whose result depends on the operands of several processes.

Each process runs the same program on its own data, and XLA's cross-replica collectives join them.
An op's `ranks` are the processes that take part, of so many `processes`: both are a part of the
graph's key. Its `turn` keeps equal ones of a step apart: what one process has alike, such as empty
tensors that are to be filled, another has not. A program has a replica for each process, and only
those that take part launch it.
"""

# A rule's parameters are those of the op's schema.
# ruff: noqa: ARG001, ARG005

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from lazyrt.jax_compat import Primitive
from lazyrt.lowering.registry import OpContext, lowers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lazyrt.ir.node import Node

_SCHEMAS = (
    "all_reduce(Tensor self, str reduction, int turn, int[] ranks, int processes) -> Tensor",
    "all_gather(Tensor self, int turn, int[] ranks, int processes) -> Tensor",
    "reduce_scatter(Tensor self, str reduction, int turn, int[] ranks, int processes) -> Tensor",
    "all_to_all(Tensor self, int turn, int[] ranks, int processes) -> Tensor",
    "broadcast(Tensor self, int source, int turn, int[] ranks, int processes) -> Tensor",
)
NAMES = frozenset(f"lazyrt.{schema.partition('(')[0]}.default" for schema in _SCHEMAS)

_library = torch.library.Library("lazyrt", "FRAGMENT")
for _schema in _SCHEMAS:
    _library.define(_schema)


def _same(self: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(self)


def _resized(self: torch.Tensor, rows: int) -> torch.Tensor:
    return self.new_empty((rows, *self.shape[1:]))


_types = torch.library.Library("lazyrt", "IMPL", "Meta")
_types.impl("all_reduce", _same)
_types.impl("all_to_all", _same)
_types.impl("broadcast", _same)
_types.impl(
    "all_gather",
    lambda self, turn, ranks, processes: _resized(self, self.shape[0] * len(ranks)),
)
_types.impl(
    "reduce_scatter",
    lambda self, reduction, turn, ranks, processes: _resized(
        self, self.shape[0] // len(ranks)
    ),
)

all_reduce = torch.ops.lazyrt.all_reduce.default
all_gather = torch.ops.lazyrt.all_gather.default
reduce_scatter = torch.ops.lazyrt.reduce_scatter.default
all_to_all = torch.ops.lazyrt.all_to_all.default
broadcast = torch.ops.lazyrt.broadcast.default


def is_collective(node: Node) -> bool:
    """Return whether several processes compute a node together."""
    return node.op.name in NAMES


def group_of(node: Node) -> tuple[int, ...]:
    """Return the ranks that compute a collective together."""
    ranks: tuple[int, ...] = node.args[-2]
    return ranks


def processes_of(nodes: Iterable[Node]) -> int:
    """Return how many processes a program of some nodes is for; 0 where one computes it alone."""
    found = (n.args[-1] for n in nodes if is_collective(n) and len(group_of(n)) > 1)
    return next(found, 0)


# --------------------------------------------------------------------------- primitives

_REDUCERS: dict[str, Callable[..., Any]] = {
    "sum": stablehlo.add,
    "product": stablehlo.multiply,
    "min": stablehlo.minimum,
    "max": stablehlo.maximum,
}
_LOCAL: dict[str, Callable[..., Any]] = {
    "band": jnp.bitwise_and,
    "bor": jnp.bitwise_or,
    "bxor": jnp.bitwise_xor,
}
REDUCTIONS = frozenset((*_REDUCERS, *_LOCAL, "avg"))


Groups = tuple[tuple[int, ...], ...]


def groups_with(ranks: Sequence[int], processes: int) -> Groups:
    """Return groups of all processes, one of which has some ranks.

    XLA wants each process in a group. Those of the others are made up: a process runs its own.
    The last one is filled with -1 where the groups' size does not divide the processes.
    """
    size = len(ranks)
    rest = [rank for rank in range(processes) if rank not in set(ranks)]
    rest += [-1] * (-len(rest) % size)
    others = [tuple(rest[k : k + size]) for k in range(0, len(rest), size)]
    return tuple(sorted((tuple(ranks), *others), key=lambda group: group[0]))


def _are_uneven(groups: Groups) -> bool:
    return any(-1 in group for group in groups)


def _attribute(groups: Groups) -> Any:
    array: Any = np.array(groups, dtype=np.int64)
    return ir.DenseElementsAttr.get(array)


def _reducing(name: str, build: Callable[..., Any]) -> Primitive:
    """Return a primitive that reduces over the replicas of each group."""
    primitive = Primitive(name)

    def type_of(x: Any, *, reduction: str, groups: Groups, parts: int) -> Any:
        shape = (x.shape[0] // parts, *x.shape[1:]) if parts > 1 else x.shape
        return jax.core.ShapedArray(shape, x.dtype)

    def lower(
        context: Any, x: Any, *, reduction: str, groups: Groups, parts: int
    ) -> Any:
        out = mlir.aval_to_ir_type(context.module_context, context.avals_out[0])
        made = build(out, x, _attribute(groups))
        element = ir.RankedTensorType(x.type).element_type
        scalar = ir.RankedTensorType.get([], element)
        block = made.regions[0].blocks.append(scalar, scalar)
        with ir.InsertionPoint(block):
            stablehlo.return_([_REDUCERS[reduction](*block.arguments)])
        return made.results

    primitive.def_abstract_eval(type_of)
    mlir.register_lowering(primitive, lower)
    return primitive


_all_reduce = _reducing(
    "lazyrt_all_reduce",
    lambda out, x, groups: stablehlo.AllReduceOp([out], [x], groups),
)
_reduce_scatter = _reducing(
    "lazyrt_reduce_scatter",
    lambda out, x, groups: stablehlo.ReduceScatterOp(out, x, 0, groups),
)

_all_gather = Primitive("lazyrt_all_gather")
_all_to_all = Primitive("lazyrt_all_to_all")
_replica = Primitive("lazyrt_replica")


def _gathered(x: Any, *, groups: Groups) -> Any:
    return jax.core.ShapedArray((x.shape[0] * len(groups[0]), *x.shape[1:]), x.dtype)


def _exchanged(x: Any, *, groups: Groups) -> Any:
    return jax.core.ShapedArray(x.shape, x.dtype)


def _replica_type() -> Any:
    return jax.core.ShapedArray((), np.uint32)


def _lower_all_gather(context: Any, x: Any, *, groups: Groups) -> Any:
    out = mlir.aval_to_ir_type(context.module_context, context.avals_out[0])
    return stablehlo.AllGatherOp([out], [x], 0, _attribute(groups)).results


def _lower_all_to_all(context: Any, x: Any, *, groups: Groups) -> Any:
    made = stablehlo.AllToAllOp([x], 0, 0, len(groups[0]), _attribute(groups))
    return made.results


_all_gather.def_abstract_eval(_gathered)
_all_to_all.def_abstract_eval(_exchanged)
_replica.def_abstract_eval(_replica_type)
mlir.register_lowering(_all_gather, _lower_all_gather)
mlir.register_lowering(_all_to_all, _lower_all_to_all)
mlir.register_lowering(_replica, lambda context: stablehlo.ReplicaIdOp().results)


# -------------------------------------------------------------------------------- rules


def _lowers(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a rule that gets groups; a group of one process exchanges nothing."""

    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        @lowers(f"lazyrt.{name}.default")
        def lower(ctx: OpContext, self: Any, *args: Any) -> Any:
            *rest, _turn, ranks, processes = args
            if len(ranks) == 1:
                return self
            return rule(self, *rest, groups_with(ranks, processes))

        lower.__name__ = rule.__name__  # its arguments are not the rule's
        return rule

    return register


def _summed(x: Any, groups: Groups) -> Any:
    return _all_reduce.bind(x, reduction="sum", groups=groups, parts=1)


def _position(groups: Groups) -> Any:
    """Return which one of its group a process is."""
    table = np.zeros(sum(map(len, groups)) + 1, np.int32)
    for group in groups:
        for position, rank in enumerate(group):
            table[rank] = position  # that of -1 is the last, which no process has
    return jnp.asarray(table)[_replica.bind().astype(jnp.int32)]


def _rows_of_own(whole: Any, groups: Groups) -> Any:
    rows = whole.shape[0] // len(groups[0])
    return lax.dynamic_slice_in_dim(whole, _position(groups) * rows, rows)


@_lowers("all_reduce")
def _reduce(self: Any, reduction: str, groups: Groups) -> Any:
    if reduction in _LOCAL:
        gathered = _gather(self[None], groups)
        return lax.reduce(
            gathered,
            gathered.dtype.type(-1 if reduction == "band" else 0),
            _LOCAL[reduction],
            (0,),
        )
    if self.dtype == jnp.bool_:
        return _reduce(self.astype(jnp.uint8), _BOOL[reduction], groups) != 0
    if reduction == "avg":
        return _summed(self, groups) / jnp.asarray(len(groups[0]), self.dtype)
    return _all_reduce.bind(self, reduction=reduction, groups=groups, parts=1)


# Of bytes that are 0 or 1: a sum could overflow.
_BOOL = {"sum": "max", "max": "max", "min": "min", "product": "min"}


@_lowers("reduce_scatter")
def _scatter(self: Any, reduction: str, groups: Groups) -> Any:
    if self.dtype == jnp.bool_ or reduction in _LOCAL or _are_uneven(groups):
        return _rows_of_own(_reduce(self, reduction, groups), groups)
    count = len(groups[0])
    kind = "sum" if reduction == "avg" else reduction
    found = _reduce_scatter.bind(self, reduction=kind, groups=groups, parts=count)
    return found / jnp.asarray(count, self.dtype) if reduction == "avg" else found


@_lowers("all_gather")
def _gather(self: Any, groups: Groups) -> Any:
    if not _are_uneven(groups):
        return _all_gather.bind(self, groups=groups)
    # XLA gathers in groups of one size only.
    parts = [_from_one(self, source, groups) for source in range(len(groups[0]))]
    return jnp.concatenate(parts)


@_lowers("all_to_all")
def _exchange(self: Any, groups: Groups) -> Any:
    if not _are_uneven(groups):
        return _all_to_all.bind(self, groups=groups)
    count = len(groups[0])
    whole = _gather(self, groups).reshape((count, count, -1))
    own = lax.dynamic_index_in_dim(whole, _position(groups), 1, keepdims=False)
    return own.reshape(self.shape)


@_lowers("broadcast")
def _from_one(self: Any, source: int, groups: Groups) -> Any:
    """Sum the source's bits with zeros: exact, and XLA's CPU has no broadcast of replicas."""
    if self.dtype == jnp.bool_:
        return _from_one(self.astype(jnp.uint8), source, groups) != 0
    if jnp.issubdtype(self.dtype, jnp.complexfloating):
        parts = (self.real, self.imag)
        return lax.complex(*(_from_one(part, source, groups) for part in parts))
    bits = lax.bitcast_convert_type(self, np.dtype(f"uint{self.dtype.itemsize * 8}"))
    own = jnp.where(_position(groups) == source, bits, jnp.zeros_like(bits))
    return lax.bitcast_convert_type(_summed(own, groups), self.dtype)
