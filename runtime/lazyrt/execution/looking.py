"""Looking at device data without copying it: statistics, a window, a small picture.

The data is reduced where it is (`summaries.py`), so that a tensor of a gigabyte costs a few
kilobytes to look at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import torch

from lazygraph.readable import Readable
from lazyrt import jax_compat
from lazyrt.errors import UsageError
from lazyrt.execution import summaries, transfer

if TYPE_CHECKING:
    from lazyrt.execution.summaries import Summary
    from lazyrt.observe.events import Site

WHOLE = 65_536  # elements; larger tensors are copied in part
_PIXELS = 96  # a side of a picture
_ROWS = 64  # of a window's last two dimensions
_LINE = 4_096  # elements of a window of one dimension


@dataclass(frozen=True, slots=True, kw_only=True)
class Look(Readable):
    """What was seen of a tensor.

    Attributes:
        summary: Statistics of all of it.
        value: CPU tensor: all of it, or the window that begins at `at`.
        at: First index of the window along each axis; zeros for a whole one.
        is_whole: Whether `value` is all of it.
        picture: CPU tensor of the axes asked for, averaged over blocks; None if not asked.
    """

    summary: Summary
    value: torch.Tensor
    at: tuple[int, ...]
    is_whole: bool
    picture: torch.Tensor | None = None

    def __str__(self) -> str:
        """Return the statistics, and below them the value or the part that was copied."""
        part = "" if self.is_whole else f"a part, from {list(self.at)} on:\n"
        return f"{self.summary}\n{part}{self.value}"


def look(
    data: Any,
    dtype: torch.dtype,
    at: Sequence[int] = (),
    axes: Sequence[int] = (),
    site: Site | None = None,
) -> Look:
    """Return statistics of a device array, and a copy of all of it or of a part.

    Args:
        data: A device array.
        dtype: The torch dtype that it stands for.
        at: Index along each axis from which on a large array is copied; missing ones are 0.
        axes: Axes of a picture: rows and columns last; other axes are at `at`.
        site: Who asked, for events.

    Raises:
        UsageError: The axes are not two or more of the array's.
    """
    shape = tuple(data.shape)
    starts = _clamped(at, shape)
    axes = _checked(axes, len(shape))
    with jax_compat.scope():
        summary = summaries.summarise(data, dtype)
        picture = _picture(data, starts, axes) if axes else None
        whole = math.prod(shape) <= WHOLE
        part = data if whole else _window(data, starts)
    return Look(
        summary=summary,
        value=transfer.to_host(part, dtype, site),
        at=(0,) * len(shape) if whole else starts,
        is_whole=whole,
        picture=None if picture is None else transfer.to_host(picture, torch.float32),
    )


def edges(
    data: Any, dtype: torch.dtype, items: int, site: Site | None = None
) -> torch.Tensor:
    """Return a CPU copy of the first and last few indices along each axis of a device array.

    A long axis keeps one index more between them, so that what prints the copy sees that
    something is left out there.

    Args:
        data: A device array.
        dtype: The torch dtype that it stands for.
        items: How many indices to keep at each end.
        site: Who asked, for events.
    """
    kept = [
        np.arange(size)
        if size <= 2 * items
        else np.r_[0 : items + 1, size - items : size]
        for size in data.shape
    ]
    with jax_compat.scope():
        _, array = summaries.place(data)
        return transfer.to_host(array[np.ix_(*kept)], dtype, site)


def _checked(axes: Sequence[object], rank: int) -> list[int]:
    """Return the axes of a picture, counted from 0."""
    if not isinstance(axes, Sequence):
        raise UsageError(
            f"look() got axes={axes!r:.60}, which is {type(axes).__name__}, not the numbers of two "
            "axes or more. Pass them in a tuple, such as (0, 1), or none for no picture."
        )
    found = [
        axis % rank for axis in axes if isinstance(axis, int) and -rank <= axis < rank
    ]
    if len(set(found)) < len(axes) or len(axes) == 1:
        raise UsageError(
            f"look() got axes={axes!r} for a tensor of {rank} dimensions. A picture has rows and "
            "columns, each an axis of the tensor, and no axis twice. Pass the numbers of two axes "
            "or more, rows and columns last, or none for no picture."
        )
    return found


def _clamped(at: Sequence[int], shape: tuple[int, ...]) -> tuple[int, ...]:
    wanted = [*at, *(0 for _ in shape)][: len(shape)]
    return tuple(
        min(max(int(start), 0), max(size - 1, 0))
        for start, size in zip(wanted, shape, strict=True)
    )


def _window(data: Any, starts: tuple[int, ...]) -> Any:
    """Return the part of a large array that is shown: one index of the leading axes."""
    most = [1] * len(starts)
    most[-2:] = [_LINE] if len(most) == 1 else [_ROWS, _ROWS]
    index = tuple(
        slice(start, min(start + length, size))
        for start, length, size in zip(starts, most, data.shape, strict=True)
    )
    _, array = summaries.place(data)  # on the CPU no program is compiled for it
    return array[index]


def _picture(data: Any, starts: tuple[int, ...], axes: Sequence[int]) -> Any:
    """Return some axes of an array, rows and columns averaged over blocks, as float32."""
    kept = set(axes)
    index = tuple(
        slice(None) if axis in kept else start for axis, start in enumerate(starts)
    )
    xp, array = summaries.place(data)
    plane = array[index]
    order = sorted(kept)
    plane = plane.transpose([order.index(axis) for axis in axes])
    if np.issubdtype(plane.dtype, np.complexfloating):
        plane = xp.abs(plane)
    *lead, rows, columns = plane.shape
    tall, wide = _block(rows), _block(columns)
    cut = plane[..., : rows // tall * tall, : columns // wide * wide]
    blocks = cut.reshape(*lead, rows // tall, tall, columns // wide, wide)
    return jnp.asarray(blocks.mean(axis=(-3, -1), dtype=xp.float32))


def _block(length: int) -> int:
    return max(1, -(-length // _PIXELS))
