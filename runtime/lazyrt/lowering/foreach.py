"""Rules of the foreach ops, derived from those of the ops that they repeat."""

# A rule's signature is its op's schema.
# ruff: noqa: ARG001, S101, SLF001

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lazyrt.lowering.avals import Aval
from lazyrt.lowering.registry import Rule, lowers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazyrt.lowering.context import OpContext
    from lazyrt.lowering.dtypes import Array

# The overload of the single op that an overload of the foreach op repeats, where it is not
# simply Tensor for List, Scalar for Scalar and ScalarList.
_SINGLE = {
    "addcmul": {"Scalar": "default", "ScalarList": "default"},
    "addcdiv": {"Scalar": "default", "ScalarList": "default"},
    "copy": {},  # below, as is addcmul with a tensor of factors
    "pow": {"List": "Tensor_Tensor", "Scalar": "Tensor_Scalar", "ScalarList": "Tensor_Scalar",
            "ScalarAndTensor": "Scalar"},
    "maximum": {"List": "default", "Scalar": "default", "ScalarList": "default"},
    "minimum": {"List": "default", "Scalar": "default", "ScalarList": "default"},
    "clamp_min": {"List": "Tensor", "Scalar": "default", "ScalarList": "default"},
    "clamp_max": {"List": "Tensor", "Scalar": "default", "ScalarList": "default"},
    "norm": {"Scalar": "default"},
    "powsum": {},  # only ever called with norm, by distributed code
    "zero": {"default": "default"},
}  # fmt: skip
_COMMON = {"List": "Tensor", "Scalar": "Scalar", "ScalarList": "Scalar", "Tensor": "Tensor",
           "default": "default"}  # fmt: skip
_OTHER_NAME = {"norm": "linalg_vector_norm"}


def _repeated(single: torch._ops.OpOverload) -> Rule:
    """Return the rule that applies another op to each entry of its lists."""

    def rule(ctx: OpContext, *args: Any) -> list[Array]:
        results = []
        for index, out in enumerate(ctx.outs):
            assert out is not None
            entry = [_entry(arg, index) for arg in args]
            types = [_entry(arg, index) for arg in ctx.args]
            results += ctx.call(single, entry, types, out)
        return results

    return rule


def _entry(arg: Any, index: int) -> Any:
    return arg[index] if isinstance(arg, (list, tuple)) else arg


def _foreach_overloads() -> list[tuple[str, str]]:
    """Return (op, overload) of every functional foreach op, the op without its prefix."""
    prefix = "aten::_foreach_"
    found = []
    for qualified in torch._C._dispatch_get_all_op_names():
        if qualified.startswith(prefix):
            name, _, overload = qualified.removeprefix(prefix).partition(".")
            if not name.endswith("_") and not overload.endswith("out"):
                found.append((name, overload or "default"))
    return found


def _register_all() -> None:
    for name, overload in _foreach_overloads():
        suffix = _SINGLE.get(name, _COMMON).get(overload)
        if suffix is not None:
            packet = getattr(torch.ops.aten, _OTHER_NAME.get(name, name))
            single = getattr(packet, suffix)
            lowers(f"aten._foreach_{name}.{overload}")(_repeated(single))


_register_all()


@lowers("aten._foreach_addcmul.Tensor", "aten._foreach_addcdiv.Tensor")
def addc_tensor(
    ctx: OpContext,
    tensors: Sequence[Array],
    first: Sequence[Array],
    second: Sequence[Array],
    scalars: Array,
) -> list[Array]:
    packet = torch.ops.aten.addcmul if "addcmul" in ctx.name else torch.ops.aten.addcdiv
    factor = Aval((), ctx.args[3].dtype)
    results = []
    for index, out in enumerate(ctx.outs):
        assert out is not None
        types = [*(arg[index] for arg in ctx.args[:3]), factor]
        entry = (tensors[index], first[index], second[index], scalars[index])
        results += ctx.call(packet.default, entry, types, out)
    return results


@lowers("aten._foreach_copy.default")
def foreach_copy(
    ctx: OpContext, tensors: Sequence[Array], sources: Sequence[Array], *_: Any
) -> list[Array]:
    return list(sources)
