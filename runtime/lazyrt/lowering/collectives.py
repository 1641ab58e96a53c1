"""Collectives: ops whose result depends on the operands of several processes.

Each process runs the same program on its own data, and XLA's cross-replica collectives join them.
An op's `ranks` are the processes that take part, so they are a part of the graph's key.
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
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from lazyrt.errors import UsageError
from lazyrt.lowering.registry import lowers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lazyrt.ir.node import Node
    from lazyrt.lowering.context import OpContext

_SCHEMAS = (
    "all_reduce(Tensor self, str reduction, int[] ranks) -> Tensor",
    "all_gather(Tensor self, int[] ranks) -> Tensor",
    "reduce_scatter(Tensor self, str reduction, int[] ranks) -> Tensor",
    "all_to_all(Tensor self, int[] ranks) -> Tensor",
    "broadcast(Tensor self, int source, int[] ranks) -> Tensor",
)
NAMES = frozenset(f"lazyrt.{schema.partition('(')[0]}.default" for schema in _SCHEMAS)

_library = torch.library.Library("lazyrt", "FRAGMENT")
for _schema in _SCHEMAS:
    _library.define(_schema)

_types = torch.library.Library("lazyrt", "IMPL", "Meta")
_types.impl("all_reduce", lambda self, reduction, ranks: torch.empty_like(self))
_types.impl("all_to_all", lambda self, ranks: torch.empty_like(self))
_types.impl("broadcast", lambda self, source, ranks: torch.empty_like(self))
_types.impl(
    "all_gather",
    lambda self, ranks: self.new_empty((self.shape[0] * len(ranks), *self.shape[1:])),
)
_types.impl(
    "reduce_scatter",
    lambda self, reduction, ranks: self.new_empty(
        (self.shape[0] // len(ranks), *self.shape[1:])
    ),
)

all_reduce = torch.ops.lazyrt.all_reduce.default
all_gather = torch.ops.lazyrt.all_gather.default
reduce_scatter = torch.ops.lazyrt.reduce_scatter.default
all_to_all = torch.ops.lazyrt.all_to_all.default
broadcast = torch.ops.lazyrt.broadcast.default

OVERLOADS = (all_reduce, all_gather, reduce_scatter, all_to_all, broadcast)


def is_collective(node: Node) -> bool:
    """Return whether several processes compute a node together."""
    return node.op.name in NAMES


def ranks_of(nodes: Iterable[Node]) -> tuple[int, ...]:
    """Return the ranks that compute some nodes together; empty where one process computes them.

    Raises:
        UsageError: The nodes have collectives of several groups.
    """
    groups = {node.args[-1]: node for node in nodes if is_collective(node)}
    if len(groups) > 1:
        (first, one), (second, other) = list(groups.items())[:2]
        raise UsageError(
            f"a step has collectives of several groups: ranks {[*first]} at "
            f"{one.provenance.site} and ranks {[*second]} at {other.provenance.site}. One program "
            "runs on one group. End the step between them with lazyrt.mark_step()."
        )
    ranks = next(iter(groups), ())
    return ranks if len(ranks) > 1 else ()


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


def _groups(count: int) -> Any:
    groups: Any = np.arange(count, dtype=np.int64).reshape(1, count)
    return ir.DenseElementsAttr.get(groups)


def _reducing(name: str, build: Callable[..., Any]) -> Primitive:
    """Return a primitive that reduces over `count` replicas.

    Args:
        name: Its name.
        build: Returns the operation, given result type, operand and replica groups.
    """
    primitive = Primitive(name)

    def type_of(x: Any, *, reduction: str, count: int, parts: int) -> Any:
        shape = (x.shape[0] // parts, *x.shape[1:]) if parts > 1 else x.shape
        return jax.core.ShapedArray(shape, x.dtype)

    def lower(context: Any, x: Any, *, reduction: str, count: int, parts: int) -> Any:
        out = mlir.aval_to_ir_type(context.module_context, context.avals_out[0])
        made = build(out, x, _groups(count))
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


def _gathered(x: Any, *, count: int) -> Any:
    return jax.core.ShapedArray((x.shape[0] * count, *x.shape[1:]), x.dtype)


def _exchanged(x: Any, *, count: int) -> Any:
    return jax.core.ShapedArray(x.shape, x.dtype)


def _replica_type() -> Any:
    return jax.core.ShapedArray((), np.uint32)


def _lower_all_gather(context: Any, x: Any, *, count: int) -> Any:
    out = mlir.aval_to_ir_type(context.module_context, context.avals_out[0])
    return stablehlo.AllGatherOp([out], [x], 0, _groups(count)).results


def _lower_all_to_all(context: Any, x: Any, *, count: int) -> Any:
    return stablehlo.AllToAllOp([x], 0, 0, count, _groups(count)).results


_all_gather.def_abstract_eval(_gathered)
_all_to_all.def_abstract_eval(_exchanged)
_replica.def_abstract_eval(_replica_type)
mlir.register_lowering(_all_gather, _lower_all_gather)
mlir.register_lowering(_all_to_all, _lower_all_to_all)
mlir.register_lowering(_replica, lambda context: stablehlo.ReplicaIdOp().results)


# -------------------------------------------------------------------------------- rules


def _summed(x: Any, count: int) -> Any:
    return _all_reduce.bind(x, reduction="sum", count=count, parts=1)


@lowers("lazyrt.all_reduce.default")
def _lower_reduce(
    ctx: OpContext, self: Any, reduction: str, ranks: Sequence[int]
) -> Any:
    count = len(ranks)
    if reduction in _LOCAL:
        gathered = _all_gather.bind(self[None], count=count)
        return lax.reduce(
            gathered,
            gathered.dtype.type(-1 if reduction == "band" else 0),
            _LOCAL[reduction],
            (0,),
        )
    if self.dtype == jnp.bool_:
        return _lower_reduce(ctx, self.astype(jnp.uint8), _BOOL[reduction], ranks) != 0
    if reduction == "avg":
        return _summed(self, count) / jnp.asarray(count, self.dtype)
    return _all_reduce.bind(self, reduction=reduction, count=count, parts=1)


# Of bytes that are 0 or 1: a sum could overflow.
_BOOL = {"sum": "max", "max": "max", "min": "min", "product": "min"}


@lowers("lazyrt.reduce_scatter.default")
def _lower_reduce_scatter(
    ctx: OpContext, self: Any, reduction: str, ranks: Sequence[int]
) -> Any:
    count = len(ranks)
    if self.dtype == jnp.bool_ or reduction in _LOCAL:
        whole = _lower_reduce(ctx, self, reduction, ranks)
        rows = self.shape[0] // count
        start = _replica.bind().astype(jnp.int32) * rows
        return lax.dynamic_slice_in_dim(whole, start, rows)
    kind = "sum" if reduction == "avg" else reduction
    found = _reduce_scatter.bind(self, reduction=kind, count=count, parts=count)
    return found / jnp.asarray(count, self.dtype) if reduction == "avg" else found


@lowers("lazyrt.all_gather.default")
def _lower_gather(ctx: OpContext, self: Any, ranks: Sequence[int]) -> Any:
    return _all_gather.bind(self, count=len(ranks))


@lowers("lazyrt.all_to_all.default")
def _lower_exchange(ctx: OpContext, self: Any, ranks: Sequence[int]) -> Any:
    return _all_to_all.bind(self, count=len(ranks))


@lowers("lazyrt.broadcast.default")
def _lower_broadcast(
    ctx: OpContext, self: Any, source: int, ranks: Sequence[int]
) -> Any:
    """Sum the source's bits with zeros: exact, and XLA's CPU has no broadcast of replicas."""
    if self.dtype == jnp.bool_:
        return _lower_broadcast(ctx, self.astype(jnp.uint8), source, ranks) != 0
    if jnp.issubdtype(self.dtype, jnp.complexfloating):
        parts = [
            _lower_broadcast(ctx, part, source, ranks)
            for part in (self.real, self.imag)
        ]
        return lax.complex(*parts)
    bits = lax.bitcast_convert_type(self, np.dtype(f"uint{self.dtype.itemsize * 8}"))
    own = jnp.where(_replica.bind() == source, bits, jnp.zeros_like(bits))
    return lax.bitcast_convert_type(_summed(own, len(ranks)), self.dtype)
