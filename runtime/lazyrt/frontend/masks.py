"""Boolean masks of installed packages: positions that are known without a cut.

Models leave out what a mask of their input hides (`logits[attention_mask == 1]`), so how many
elements are left depends on data, but only on the batch's. Such a mask is read by a peek, as a
package's other small checks are, and the op is recorded with the positions of its true
elements. A mask that bounds decide (`frontend.bounds`), such as `x >= 0` of an `argmax`, takes
no read. A user's own line cuts the step, which the strip shows; so does any other mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lazyrt.frontend import bounds, reads
from lazyrt.frontend.buffers import state_of, value_of
from lazyrt.frontend.torch_compat import DEVICE_TYPE, aten, is_lazy
from lazyrt.ir.live import pending

if TYPE_CHECKING:
    from collections.abc import Sequence

_INDEXED = frozenset(
    ("aten.index.Tensor", "aten.index_put.default", "aten.index_put_.default",
     "aten._index_put_impl_.default")
)  # fmt: skip
_MASKS = frozenset((torch.bool, torch.uint8))


def by_positions(
    func: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Record an op with positions in place of masks; `NotImplemented` where it takes a cut.

    Args:
        func: The op, called below autograd.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """
    name = str(func)
    if pending.eager or name not in {*_INDEXED, "aten.masked_select.default"}:
        return NotImplemented
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
