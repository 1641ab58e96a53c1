"""Refusing an op for what its operands hold, as the CPU does, where they are at hand.

The CPU raises for an index out of range, for an integer divided by zero and the like. A lazy op
knows no values: XLA clamps the index and divides anyway. The modes that run ops one by one have the
operands, so such an op is first called on the CPU: integers as they are, as positions and divisors
are integers; blanks for all else. What the CPU raises then is raised, and the op does not run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lazyrt import jax_compat
from lazyrt.execution import transfer
from lazyrt.execution.op_by_op import Values, read
from lazyrt.frontend.cpu_errors import refusal
from lazyrt.frontend.infer import run_on_host
from lazyrt.ir.node import Leaf, Node, Value

if TYPE_CHECKING:
    from collections.abc import Iterable

# Ops of which some operand holds positions; `index_reduce` would warn once more.
_WITH_POSITIONS = frozenset(
    f"aten::{name}"
    for name in (
        "index", "index_put", "_index_put_impl", "index_select", "index_add", "index_copy",
        "index_fill", "gather", "take", "put", "scatter", "scatter_add",
        "scatter_reduce", "embedding", "_embedding_bag", "_embedding_bag_forward_only",
        "nll_loss_forward", "nll_loss2d_forward", "multi_margin_loss",
        "multilabel_margin_loss_forward", "max_unpool2d", "max_unpool3d",
    )
)  # fmt: skip
# Ops that refuse some integers if their result is one.
_ON_INTEGERS = frozenset(
    f"aten::{name}"
    for name in ("floor_divide", "div", "remainder", "fmod", "pow", "_foreach_pow")
)


def check(node: Node, values: Values) -> None:
    """Raise what the CPU raises for an op on operands that hold what these do.

    Args:
        node: What is to be run.
        values: The data of its operands that are no leaves.

    Raises:
        RuntimeError: The CPU refuses them; another plain error where it raises that.
    """
    name = node.op.schema.name
    if name not in _WITH_POSITIONS and not (
        name in _ON_INTEGERS and all(map(_is_integral, _tensors(node.outputs)))
    ):
        return
    error = refusal(
        lambda: run_on_host(
            node, {value: _on_host(value, values) for value in node.operands}
        )
    )
    if error is not None:
        site = node.provenance.site
        if site is not None:
            error.add_note(f"recorded at {site}")
        raise error.with_traceback(None)  # whose frames hold the device's memory


def _tensors(outputs: Iterable[Value | None]) -> Iterable[Value]:
    return (output for output in outputs if output is not None)


def _is_integral(value: Value) -> bool:
    return not (value.dtype.is_floating_point or value.dtype.is_complex)


def _on_host(value: Value, values: Values) -> Any:
    """Return an operand with its contents if it is integral, a blank that takes no memory if not."""
    if isinstance(value, Leaf) and value.kind in {"float", "int"}:
        return read(value, values).item()
    if not _is_integral(value):
        return torch.zeros((), dtype=value.dtype, device="cpu").expand(value.shape)
    data = read(value, values)
    jax_compat.block(data)
    return transfer.borrowed(data, value.dtype)
