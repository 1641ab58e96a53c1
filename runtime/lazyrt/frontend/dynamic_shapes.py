"""Ops whose result's shape depends on data, recorded where the host knows what it takes.

A mask (`logits[attention_mask == 1]`) leaves so many elements as the batch says. One that an
installed package asks for is read by a peek, as a package's other small checks are, and the op
is recorded with the positions of its true elements. A mask that bounds decide
(`frontend.bounds`), such as `x >= 0` of an `argmax`, takes no read.

The result of `torch.bincount` is as long as `minlength`, or longer where an element is as large
as that. It is recorded with length `minlength` where the elements' bounds show that none is, and
where the elements are an installed package's small check, with the length that their largest
asks for: a package that gives no `minlength` then gets one graph for each length, as the length
is a constant of the graph.

Elsewhere, as in a user's own line, the op breaks the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lazyrt.frontend import bounds, reads
from lazyrt.frontend.buffers import state_of, value_of
from lazyrt.frontend.torch_compat import DEVICE_TYPE, aten, is_lazy
from lazyrt.ir.live import lock, pending

if TYPE_CHECKING:
    from collections.abc import Sequence

_DYNAMIC = frozenset(
    ("aten.index.Tensor", "aten.index_put.default", "aten.index_put_.default",
     "aten._index_put_impl_.default", "aten.masked_select.default", "aten.bincount.default")
)  # fmt: skip
_MASKS = frozenset((torch.bool, torch.uint8))


def with_known_shape(
    func: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Record an op with the shape that the host knows; `NotImplemented` where it takes a break.

    Args:
        func: The op, called below autograd.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """
    name = str(func)
    if pending.eager or name not in _DYNAMIC:
        return NotImplemented
    if name == "aten.bincount.default":
        names = (argument.name for argument in func._schema.arguments)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        return _bincount(given["self"], given.get("weights"), given.get("minlength", 0))
    x, indices, *rest = (
        *args,
        *(kwargs[a.name] for a in func._schema.arguments if a.name in kwargs),
    )
    with torch.no_grad():
        if name == "aten.masked_select.default":
            return _masked_select(x, indices)
        if name == "aten.index.Tensor" and _hides_nothing(indices, x):
            return x.reshape(-1, *x.shape[indices[0].dim() :]).clone()
        positions = _positions(indices)
        return NotImplemented if positions is None else func(x, positions, *rest)


def _masked_select(x: torch.Tensor, mask: torch.Tensor) -> Any:
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    known = reads.mask_on_host(mask) if is_lazy(mask) else None
    if known is None or not shape:
        return NotImplemented
    places = [
        place.to(DEVICE_TYPE) for place in known.expand(shape).nonzero().unbind(1)
    ]
    return aten.index.Tensor(x.expand(shape), places)


def _hides_nothing(indices: Sequence[Any], x: torch.Tensor) -> bool:
    """Return whether an index list is one mask whose ops tell that all of it is true."""
    if len(indices) != 1 or indices[0] is None or not is_lazy(indices[0]):
        return False
    (mask,) = indices
    if mask.dtype is not torch.bool or not mask.dim() or not state_of(mask).is_pending:
        return False
    fits = mask.shape == x.shape[: mask.dim()]
    return fits and bounds.of(value_of(mask)) == (1, 1)


def _positions(indices: Sequence[Any]) -> list[Any] | None:
    """Return an index list without masks; None if one of them is not known, or there is none."""
    found: list[Any] = []
    masks = 0
    for index in indices:
        if index is None or index.dtype not in _MASKS or not is_lazy(index):
            found.append(index)
            continue
        known = reads.mask_on_host(index)
        if known is None or not known.dim():
            return None
        masks += 1
        found += [place.to(DEVICE_TYPE) for place in known.nonzero().unbind(1)]
    return found if masks else None


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
