"""Ops whose derivative in torch reads values, composed of others where they are differentiated.

torch asks which elements are zero, or NaN, to choose a formula: a cut of the graph in backward.
These are right for every value.
"""

# The signatures are torch's.
# ruff: noqa: FBT001, FBT002

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.autograd import forward_ad

from lazyrt.frontend.torch_compat import below_autograd

if TYPE_CHECKING:
    from collections.abc import Callable


def product(self: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """`aten.prod`: torch's derivative of it asks which elements are zero, a cut of the graph."""
    if not _is_differentiated(self):
        with below_autograd():
            return torch.prod(self, dtype=dtype)
    return _halved(self.to(dtype or self.dtype).reshape(-1), 0)


def product_along(
    self: torch.Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:  # fmt: skip
    """`aten.prod.dim_int`; see `product`."""
    rank = max(self.dim(), 1)
    if not _is_differentiated(self) or not -rank <= dim < rank:
        with below_autograd():
            return torch.prod(self, dim, keepdim, dtype=dtype)
    return _halved(self.to(dtype or self.dtype), dim, keepdim=keepdim)


def _is_differentiated(tensor: torch.Tensor) -> bool:
    """Return whether autograd follows what is done to a tensor, in either mode."""
    is_floating = tensor.is_floating_point() or tensor.is_complex()
    backward = torch.is_grad_enabled() and tensor.requires_grad
    return is_floating and (backward or forward_ad._current_level >= 0)


def _halved(x: torch.Tensor, dim: int, *, keepdim: bool = False) -> torch.Tensor:
    """Return the product along a dimension, of halves of halves: each derivative is a product."""
    while x.dim() and (size := x.shape[dim]) > 1:
        half = size // 2
        pairs = x.narrow(dim, 0, half) * x.narrow(dim, half, half)
        rest = x.narrow(dim, 2 * half, size % 2)
        x = torch.cat([pairs, rest], dim) if size % 2 else pairs
    one = x.sum(dim, keepdim)
    return one if x.numel() or not one.numel() else one + 1


def cumulative_product(
    self: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """`aten.cumprod`: torch's derivative of it divides by the elements, if none is zero."""
    rank = max(self.dim(), 1)
    if not _is_differentiated(self) or not -rank <= dim < rank:
        with below_autograd():
            return torch.cumprod(self, dim, dtype=dtype)
    x = self.to(dtype or self.dtype)
    if not x.dim():
        return x.clone()
    size, reach = x.shape[dim], 1
    while reach < size:  # each element has the product of `reach` ones up to its own
        more = x.narrow(dim, reach, size - reach) * x.narrow(dim, 0, size - reach)
        x = torch.cat([x.narrow(dim, 0, reach), more], dim)
        reach *= 2
    return x if size > 1 else x.clone()


def _choosing(
    op: Callable[[torch.Tensor], torch.Tensor],
    find: Callable[[torch.Tensor], torch.Tensor],
    share: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return an op that chooses one element: its derivative is shared among equal ones, or NaN.

    Args:
        op: The op, for where nothing is differentiated.
        find: Returns its value.
        share: Returns the value that a mask chooses, with a derivative shared among them.
    """

    def chosen(self: torch.Tensor) -> torch.Tensor:
        if not _is_differentiated(self) or not self.numel():
            with below_autograd():
                return op(self)
        return _chosen(self, find(self.detach()), share)

    return chosen


def _median(x: torch.Tensor) -> torch.Tensor:
    return torch.median(x.reshape(-1), 0).values


def _nanmedian(x: torch.Tensor) -> torch.Tensor:
    return torch.nanmedian(x.reshape(-1), 0).values


def _largest(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.amax(torch.where(mask, x, -torch.inf))


def _smallest(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.amin(torch.where(mask, x, torch.inf))


def _either(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Share among the elements of a mask that may be of either infinity: none is like the rest."""
    smallest = _smallest(x, mask)
    return torch.where(smallest == -torch.inf, smallest, _largest(x, mask))


def _chosen(
    x: torch.Tensor,
    value: torch.Tensor,
    share: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Return a value that stands among the elements, with its derivative by each of them.

    Args:
        x: The elements.
        value: One of them, without a derivative.
        share: Of `_choosing`.
    """
    is_nan = x.isnan()
    nans = torch.where(is_nan, x, 0).sum() / is_nan.sum().clamp(min=1)
    return torch.where(value.isnan(), nans.to(x.dtype), share(x, x == value))


def masked_fill(
    self: torch.Tensor, mask: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """`aten.masked_fill.Tensor`: torch's derivative by the value selects by the mask."""
    if value.dim() or not (_is_differentiated(self) or _is_differentiated(value)):
        with below_autograd():
            return torch.masked_fill(self, mask, value)
    return torch.where(mask, value.to(self.dtype), self)


def index_fill(
    self: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """`aten.index_fill.int_Tensor`: torch's derivative by the value asks for unique indices."""
    fits = -self.dim() <= dim < self.dim() and not value.dim()
    if not fits or not (_is_differentiated(self) or _is_differentiated(value)):
        with below_autograd():
            return torch.index_fill(self, dim, index, value)
    sizes = [1] * self.dim()
    sizes[dim] = self.shape[dim]
    filled = torch.zeros(sizes, dtype=torch.bool, device=self.device)
    return torch.where(
        filled.index_fill(dim, index, value=True), value.to(self.dtype), self
    )


def masked_fill_in_place(
    self: torch.Tensor, mask: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """`aten.masked_fill_.Tensor`; see `masked_fill`."""
    if value.dim() or not (_is_differentiated(self) or _is_differentiated(value)):
        with below_autograd():
            return self.masked_fill_(mask, value)
    return self.copy_(masked_fill(self, mask, value))


def index_fill_in_place(
    self: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """`aten.index_fill_.int_Tensor`; see `index_fill`."""
    if value.dim() or not (_is_differentiated(self) or _is_differentiated(value)):
        with below_autograd():
            return self.index_fill_(dim, index, value)
    return self.copy_(index_fill(self, dim, index, value))


# Registered for autograd alone: below it these ops have kernels like any other.
DIFFERENTIATED: dict[str, Callable[..., torch.Tensor]] = {
    "prod": product,
    "prod.dim_int": product_along,
    "cumprod": cumulative_product,
    "max": _choosing(torch.max, torch.amax, _largest),
    "min": _choosing(torch.min, torch.amin, _smallest),
    "median": _choosing(torch.median, _median, _either),
    "nanmedian": _choosing(torch.nanmedian, _nanmedian, _either),
    "masked_fill.Tensor": masked_fill,
    "masked_fill_.Tensor": masked_fill_in_place,
    "index_fill.int_Tensor": index_fill,
    "index_fill_.int_Tensor": index_fill_in_place,
}
