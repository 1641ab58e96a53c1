"""`torch.bincount`, recorded where the length of its result is known without a cut.

The result is as long as `minlength`, or longer where an element is as large as that. It is
recorded with length `minlength` where the elements' bounds (`frontend.bounds`) show that none
is, and where the elements are an installed package's small check, with the length that their
largest asks for: a package that gives no `minlength` then gets one graph for each length, as the
length is a constant of the graph. Elsewhere the op runs on the CPU, which cuts the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lazyrt.frontend import bounds, reads
from lazyrt.frontend.buffers import state_of, value_of
from lazyrt.frontend.torch_compat import aten, is_lazy
from lazyrt.ir.live import lock, pending

if TYPE_CHECKING:
    from collections.abc import Sequence


def by_length(
    func: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Record `aten.bincount` by its length; `NotImplemented` where it takes a cut.

    Args:
        func: The op, called below autograd.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """
    if func is not aten.bincount.default or pending.eager:
        return NotImplemented
    names = (argument.name for argument in func._schema.arguments)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return _bincount(given["self"], given.get("weights"), given.get("minlength", 0))


def _bincount(x: torch.Tensor, weights: torch.Tensor | None, least: int) -> Any:
    is_sound = x.dim() == 1 and least >= 0 and is_lazy(x)
    if weights is not None and (weights.shape != x.shape or not is_lazy(weights)):
        is_sound = False
    if not is_sound or x.dtype.is_floating_point or x.dtype.is_complex:
        return NotImplemented  # the CPU finds the words
    length = _length(x, least)
    if length is None:
        return NotImplemented
    with torch.no_grad():
        if weights is None or not x.numel():
            weights = x.new_ones((), dtype=torch.int64).expand(x.shape)
        elif weights.dtype is not torch.float32:
            weights = weights.double()
        return weights.new_zeros(length).scatter_add(0, x.long(), weights)


def _length(x: torch.Tensor, least: int) -> int | None:
    """Return how long the result is; None if that is not known, or an element is negative."""
    if not x.numel():
        return least
    if least and _stay_below(least, x):
        return least
    known = reads.mask_on_host(x) if state_of(x).is_pending else None
    if known is None or int(known.min()) < 0:
        return None
    return max(least, int(known.max()) + 1)


def _stay_below(limit: int, x: torch.Tensor) -> bool:
    with lock:
        value = value_of(x)
    found = bounds.of(value)
    return found is not None and found[0] >= 0 and found[1] < limit
