"""Result types of ops for which torch has no meta kernel, or one that tells less than the CPU.

Each function takes what the op takes, with meta tensors, and returns meta tensors of the types
of its results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Tensor = torch.Tensor
Types = Any


def _fused_adam(
    params: list[Tensor], grads: list[Tensor], first: list[Tensor], second: list[Tensor],
    largest: list[Tensor], *_: Any, **__: Any,
) -> Types:  # fmt: skip
    return params, grads, first, second, largest


def _fused_sgd(
    params: list[Tensor], grads: list[Tensor], buffers: list[Tensor], **_: Any
) -> Types:
    return params, grads, buffers


def _fused_adagrad(
    params: list[Tensor],
    grads: list[Tensor],
    sums: list[Tensor],
    steps: list[Tensor],
    **_: Any,
) -> Types:
    return params, grads, sums, steps


def _fused_adagrad_tensor(*args: Any, **keywords: Any) -> Types:
    return _fused_adagrad(*args, **keywords)[:3]


def _like_second(_grad: Tensor, x: Tensor, *_: Any, **__: Any) -> Types:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _geqrf(x: Tensor) -> Types:
    *batch, rows, columns = x.shape
    factors = x.new_empty((*batch, columns, rows)).mT
    return factors, x.new_empty((*batch, min(rows, columns)))


def _histogram_of_count(x: Tensor, bins: int = 100, **_: Any) -> Types:
    return x.new_empty(bins), x.new_empty(bins + 1)


def _histogram_of_edges(x: Tensor, bins: Tensor, **_: Any) -> Types:
    return x.new_empty(bins.shape[0] - 1), torch.empty_like(bins)


def _edges_dd(x: Tensor, bins: Sequence[int], **_: Any) -> Types:
    return [x.new_empty(count + 1) for count in bins]


def _histogram_dd(x: Tensor, bins: Sequence[Any], **_: Any) -> Types:
    sizes = [b.shape[0] - 1 if isinstance(b, torch.Tensor) else b for b in bins]
    return x.new_empty(sizes)


def _without_statistics(
    func: torch._ops.OpOverload,
) -> Callable[..., Types]:
    """Return the types of a batch norm: in evaluation it saves no statistics."""

    def types(*args: Any) -> Types:
        results = list(func(*args))
        training = args[5]
        if not training:
            results[1:3] = [saved.new_empty(0) for saved in results[1:3]]
        return tuple(results)

    return types


_aten = torch.ops.aten

RESULT_TYPES: dict[str, Callable[..., Types]] = {
    **{
        str(func): _without_statistics(func)
        for func in (
            _aten.native_batch_norm.default,
            _aten._native_batch_norm_legit_functional.default,
        )
    },
    "aten._fused_adam.default": _fused_adam,
    "aten._fused_adam.tensor_lr": _fused_adam,
    "aten._fused_adamw.default": _fused_adam,
    "aten._fused_adamw.tensor_lr": _fused_adam,
    "aten._fused_sgd.default": _fused_sgd,
    "aten._fused_sgd.tensor_lr": _fused_sgd,
    "aten._fused_adagrad.default": _fused_adagrad,
    "aten._fused_adagrad.tensor_lr": _fused_adagrad_tensor,
    "aten.multi_margin_loss_backward.default": _like_second,
    "aten.multilabel_margin_loss_backward.default": _like_second,
    "aten.fractional_max_pool3d_backward.default": _like_second,
    "aten.geqrf.default": _geqrf,
    "aten.histogram.bin_ct": _histogram_of_count,
    "aten.histogram.bins_tensor": _histogram_of_edges,
    "aten._histogramdd_bin_edges.default": _edges_dd,
    "aten._histogramdd_from_bin_cts.default": _histogram_dd,
    "aten._histogramdd_from_bin_tensors.default": _histogram_dd,
}
