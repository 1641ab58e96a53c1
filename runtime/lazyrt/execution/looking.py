"""Looking at device data without copying it: statistics, a window, a small picture.

Where the device is the CPU the data is read in place; elsewhere the device reduces it, and only
the results are copied. Either way a tensor of a gigabyte costs a few kilobytes to look at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import torch

from lazyrt import jax_compat
from lazyrt.errors import UsageError
from lazyrt.execution import transfer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazyrt.observe.events import Site

WHOLE = 65_536  # elements; larger tensors are copied in part
BINS = 40
_PIXELS = 96  # a side of a picture
_ROWS = 64  # of a window's last two dimensions
_LINE = 4_096  # elements of a window of one dimension


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Statistics of a tensor. Those of magnitudes for complex numbers.

    Attributes:
        shape: Sizes.
        dtype: torch dtype.
        nan: How many elements are NaN.
        infinite: How many are infinite.
        low, high, mean, std: Of the finite elements; NaN when there is none.
        nonzero: How many finite elements differ from zero.
        counts: Histogram of the finite elements, `BINS` equal bins from `low` to `high`; empty
            when they are all alike, or too close or too far apart for so many bins.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    nan: int
    infinite: int
    low: float
    high: float
    mean: float
    std: float
    nonzero: int
    counts: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
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
        summary = summarise(data, dtype)
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
        _, array = _place(data)
        return transfer.to_host(array[np.ix_(*kept)], dtype, site)


def summarise(data: Any, dtype: torch.dtype) -> Summary:
    """Return the statistics of a device array."""
    xp, array = _place(data)
    shape = tuple(data.shape)
    if not array.size:
        nothing = math.nan
        return Summary(
            shape=shape, dtype=dtype, nan=0, infinite=0, low=nothing, high=nothing,
            mean=nothing, std=nothing, nonzero=0,
        )  # fmt: skip
    with np.errstate(all="ignore"):
        numbers = xp.abs(array) if dtype.is_complex else array
        is_float = dtype.is_floating_point or dtype.is_complex
        facts = [float(x) for x in _facts(xp, numbers, is_float=is_float)]
        nan, infinite, low, high, mean, std, nonzero = facts
        counts = _histogram(xp, numbers, low, high)
    return Summary(
        shape=shape, dtype=dtype, nan=int(nan), infinite=int(infinite), low=low, high=high,
        mean=mean, std=std, nonzero=int(nonzero), counts=counts,
    )  # fmt: skip


def not_finite(data: Any, dtype: torch.dtype) -> tuple[int, int]:
    """Return how many elements of a device array are NaN, and how many infinite."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0, 0
    with jax_compat.scope():
        xp, array = _place(data)
        return int(xp.isnan(array).sum()), int(xp.isinf(array).sum())


def _place(data: Any) -> tuple[Any, Any]:
    """Return the module that reads an array where it is, and the array for it."""
    if jax_compat.device().platform != "cpu":
        return jnp, data
    jax_compat.block(data)
    return np, np.asarray(data)  # a view: nothing is copied


def _facts(xp: Any, numbers: Any, *, is_float: bool) -> list[Any]:
    """Return NaNs, infinities, lowest, highest, mean, deviation, and how many are not zero."""
    if not is_float:
        wide = numbers.astype(xp.float64)
        return [0, 0, wide.min(), wide.max(), wide.mean(), _deviation(wide), xp.count_nonzero(numbers)]  # fmt: skip
    nan, infinite = xp.isnan(numbers).sum(), xp.isinf(numbers).sum()
    if not int(nan) and not int(infinite):
        wide = numbers.astype(xp.float64)
        return [nan, infinite, wide.min(), wide.max(), wide.mean(), _deviation(wide), xp.count_nonzero(numbers)]  # fmt: skip
    finite = xp.isfinite(numbers)
    count = finite.sum()
    wide = xp.where(finite, numbers, 0).astype(xp.float64)
    mean = wide.sum() / count
    spread = (xp.where(finite, wide - mean, 0) ** 2).sum()
    has_any = count > 0
    low = xp.where(has_any, xp.where(finite, wide, xp.inf).min(), xp.nan)
    high = xp.where(has_any, xp.where(finite, wide, -xp.inf).max(), xp.nan)
    std = (spread / xp.maximum(count - 1, 1)) ** 0.5
    return [nan, infinite, low, high, mean, std, xp.count_nonzero(wide)]


def _deviation(wide: Any) -> Any:
    return wide.std(ddof=1) if wide.size > 1 else 0.0


def _histogram(xp: Any, numbers: Any, low: float, high: float) -> tuple[int, ...]:
    # Neighbouring numbers, or a range beyond the largest one, have no such bins between them.
    edges = np.linspace(low, high, BINS + 1)
    if not (edges[:-1] < edges[1:]).all():
        return ()
    wide = numbers.astype(xp.float64).reshape(-1)
    if xp is np:
        wide = wide[np.isfinite(wide)]
    else:  # out of range, so it is in no bin
        wide = xp.where(xp.isfinite(wide), wide, high + 2 * (high - low))
    counts, _ = xp.histogram(wide, bins=BINS, range=(low, high))
    return tuple(int(count) for count in np.asarray(counts))


def _checked(axes: Sequence[object], rank: int) -> list[int]:
    """Return the axes of a picture, counted from 0."""
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
    return data[index]


def _picture(data: Any, starts: tuple[int, ...], axes: Sequence[int]) -> Any:
    """Return some axes of an array, rows and columns averaged over blocks, as float32."""
    kept = set(axes)
    index = tuple(
        slice(None) if axis in kept else start for axis, start in enumerate(starts)
    )
    xp, array = _place(data)
    plane = array[index]
    order = sorted(kept)
    plane = plane.transpose([order.index(axis) for axis in axes])
    if np.issubdtype(plane.dtype, np.complexfloating):
        plane = xp.abs(plane)
    *lead, rows, columns = plane.shape
    tall, wide = _block(rows), _block(columns)
    cut = plane[..., : rows // tall * tall, : columns // wide * wide].astype(xp.float32)
    blocks = cut.reshape(*lead, rows // tall, tall, columns // wide, wide)
    return jnp.asarray(blocks.mean(axis=(-3, -1)))


def _block(length: int) -> int:
    return max(1, -(-length // _PIXELS))
