"""Ops that torch composes of others by way of data, composed here without reading any.

They are registered above autograd, so that the ops they are made of get the derivatives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def combinations(
    self: torch.Tensor, r: int = 2, with_replacement: bool = False  # noqa: FBT001, FBT002
) -> torch.Tensor:  # fmt: skip
    """`aten.combinations`: the places follow from the size; torch selects them by a mask.

    Raises:
        RuntimeError: The tensor has not one dimension, or `r` is negative.
    """
    places = torch.arange(self.numel(), device="cpu").reshape(self.shape)
    chosen = torch.combinations(places, r, with_replacement)
    if not chosen.numel():
        return self.new_empty(chosen.shape)
    return self.index_select(0, chosen.reshape(-1).to(self.device)).view(chosen.shape)


COMPOSITES: dict[str, Callable[..., torch.Tensor]] = {"combinations": combinations}
