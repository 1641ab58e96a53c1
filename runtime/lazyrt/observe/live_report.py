"""The live tensors: what a barrier would have to keep, and what the device holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazyrt.ir.live import Buffer, Lost, live_buffers
from lazyrt.ir.node import type_text
from lazyrt.observe.readable import Readable

if TYPE_CHECKING:
    import torch

    from lazyrt.observe.events import Site


@dataclass(frozen=True, slots=True)
class LiveTensor(Readable):
    """One storage on the lazy device that Python still references.

    Attributes:
        shape: Sizes.
        dtype: torch dtype.
        nbytes: Size of the data, in bytes.
        pending: Whether it has yet to be computed.
        op: The op that computes it; empty for data.
        site: Where that op was recorded, None for data.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    nbytes: int
    pending: bool
    op: str
    site: Site | None

    @property
    def is_root(self) -> bool:
        """Whether the next barrier computes it."""
        return self.pending

    def __str__(self) -> str:
        state = f"pending: {self.op}" if self.pending else "ready"
        where = f", {self.site}" if self.site else ""
        return f"{type_text(self.shape, self.dtype)} {state}{where}"


def live_tensors() -> list[LiveTensor]:
    """Return a record of each live tensor, largest first; holds none of them."""
    found = [
        _describe(buffer)
        for buffer in live_buffers()
        if not isinstance(buffer.data, Lost)
    ]
    return sorted(found, key=lambda tensor: -tensor.nbytes)


def _describe(buffer: Buffer) -> LiveTensor:
    shape, dtype, _ = buffer.type
    node = buffer.value.node if buffer.value is not None else None
    return LiveTensor(
        shape=shape,
        dtype=dtype,
        nbytes=math.prod(shape) * dtype.itemsize,
        pending=node is not None,
        op=node.op.name if node is not None else "",
        site=node.provenance.site if node is not None else None,
    )
