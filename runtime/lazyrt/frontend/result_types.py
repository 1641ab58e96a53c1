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


def _multi_margin(
    x: Tensor, target: Tensor, p: Any = 1, margin: Any = 1, weight: Any = None,
    reduction: int = 1,
) -> Types:  # fmt: skip
    result = _aten.multi_margin_loss.default(x, target, p, margin, weight, reduction)
    return result if target.dim() else result.new_empty(())


def _multilabel_margin(x: Tensor, target: Tensor, reduction: int) -> Types:
    forward = _aten.multilabel_margin_loss_forward.default
    result, marks = forward(x, target, reduction)
    return result if target.dim() > 1 else result.new_empty(()), marks


def _fake_quantize(x: Tensor, *_: Any) -> Types:
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


def _lstm_cell(inputs: Tensor, hidden: Tensor, cell: Tensor, *biases: Any) -> Types:
    """The types of a cell with or without biases; torch's own takes one with biases only."""
    given = [bias for bias in biases if bias is not None]
    zeros = given or [inputs.new_empty(inputs.shape[1])] * 2
    return _aten._thnn_fused_lstm_cell.default(inputs, hidden, cell, *zeros)


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


def _grouped_mm(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Types:  # fmt: skip
    """The product of matrices with rows or columns in groups; torch's own asks for bfloat16."""
    ragged = a.dim() == 2 or b.dim() == 2  # noqa: PLR2004
    wrong = (
        (a.dim() not in {2, 3} or b.dim() not in {2, 3}, "factors have 2 or 3 dimensions"),
        (a.dtype is not b.dtype, "both factors have one dtype"),
        (not a.is_floating_point(), "the factors are of floats"),
        (a.shape[-1:] != b.shape[-2:-1], "the inner sizes are equal"),
        (ragged == (offs is None), "offs goes with a factor of 2 dimensions, and only with one"),
        (offs is not None and (offs.dim() != 1 or offs.dtype is not torch.int32),
         "offs is a vector of int32"),
        (bias is not None, "there is no bias"),
    )  # fmt: skip
    for is_wrong, rule in wrong:
        if is_wrong:
            raise RuntimeError(
                f"grouped_mm of {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)} breaks the "
                f"rule that {rule}. Reshape or convert them first."
            )
    groups = {t.shape[0] for t in (a, b) if t.dim() == 3} | {  # noqa: PLR2004
        t.shape[0] for t in (offs,) if t is not None
    }
    if len(groups) != 1:
        raise RuntimeError(
            f"grouped_mm was given {sorted(groups)} groups: a factor of 3 dimensions and offs have "
            "as many entries as there are groups. Pass one offset for each matrix."
        )
    shape = (
        [*groups, a.shape[-2], b.shape[-1]]
        if a.dim() == b.dim()
        else [a.shape[-2], b.shape[-1]]
    )
    return a.new_empty(shape, dtype=out_dtype or a.dtype)


def _convolution(x: Tensor, weight: Tensor, *args: Any) -> Types:
    result = _aten.convolution.default(x, weight, *args)
    return _laid_out(result, x, weight)


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *args: Any) -> Types:
    of_input, *others = _aten.convolution_backward.default(grad, x, weight, *args)
    laid_out = None if of_input is None else _laid_out(of_input, x, weight)
    return laid_out, *others


def _laid_out(result: Tensor, *operands: Tensor) -> Tensor:
    """Give a result channels last if an operand has them there, as the CPU's kernels do."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(result.dim())
    if last is None or not result.numel():
        return result
    for operand in operands:
        is_last = operand.is_contiguous(memory_format=last)
        if is_last and not operand.is_contiguous():
            return result.contiguous(memory_format=last)
    return result


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


def _like_first(x: Tensor, *_: Any) -> Types:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _broadcast(x: Tensor, y: Tensor, *_: Any) -> Types:
    return x.new_empty(torch.broadcast_shapes(x.shape, y.shape))


_aten = torch.ops.aten

RESULT_TYPES: dict[str, Callable[..., Types]] = {
    **{
        str(func): _without_statistics(func)
        for func in (
            _aten.native_batch_norm.default,
            _aten._native_batch_norm_legit_functional.default,
        )
    },
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
    "aten._fused_adam.default": _fused_adam,
    "aten._fused_adam.tensor_lr": _fused_adam,
    "aten._fused_adamw.default": _fused_adam,
    "aten._fused_adamw.tensor_lr": _fused_adam,
    "aten._fused_sgd.default": _fused_sgd,
    "aten._fused_sgd.tensor_lr": _fused_sgd,
    "aten._fused_adagrad.default": _fused_adagrad,
    "aten._fused_adagrad.tensor_lr": _fused_adagrad_tensor,
    "aten._thnn_fused_lstm_cell.default": _lstm_cell,
    "aten.fake_quantize_per_tensor_affine_cachemask.default": _fake_quantize,
    "aten.fake_quantize_per_channel_affine_cachemask.default": _fake_quantize,
    "aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": _fake_quantize,
    "aten.multi_margin_loss.default": _multi_margin,
    "aten.multilabel_margin_loss_forward.default": _multilabel_margin,
    "aten.multi_margin_loss_backward.default": _like_second,
    "aten.multilabel_margin_loss_backward.default": _like_second,
    "aten.fractional_max_pool3d_backward.default": _like_second,
    "aten._sample_dirichlet.default": _like_first,
    "aten._standard_gamma_grad.default": _like_first,
    "aten._dirichlet_grad.default": _like_first,
    "aten.binomial.default": _broadcast,
    "aten._grouped_mm.default": _grouped_mm,
    "aten.geqrf.default": _geqrf,
    "aten.histogram.bin_ct": _histogram_of_count,
    "aten.histogram.bins_tensor": _histogram_of_edges,
    "aten._histogramdd_bin_edges.default": _edges_dd,
    "aten._histogramdd_from_bin_cts.default": _histogram_dd,
    "aten._histogramdd_from_bin_tensors.default": _histogram_dd,
}
