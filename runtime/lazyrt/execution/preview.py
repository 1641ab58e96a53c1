"""Looking at device data without copying it: statistics, a window, a small picture.

The data is reduced where it is, so that a tensor of a gigabyte costs a few
kilobytes to look at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from lazygraph.readable import Readable
from lazyrt import jax_compat
from lazyrt.errors import UsageError
from lazyrt.execution import transfer

if TYPE_CHECKING:
    from lazyrt.observe.events import SourceLocation


# --------------------------------------------------------------------------- statistics
# Where the device is the CPU the data is read in place, a stretch at a time that stays in the
# processor's cache: no copy as large as the tensor is made. Elsewhere the device reduces it in one
# execution, and some fifty numbers are copied.


Numbers = np.ndarray[Any, np.dtype[np.float64]]

BINS = 40
_STRETCH = 16_384  # elements; 128 KiB as float64


class NonFinite(NamedTuple):
    """How many elements of a tensor are NaN, infinity and minus infinity."""

    nan: int = 0
    inf: int = 0
    minus_inf: int = 0

    def __str__(self) -> str:
        """Return it in words, empty for nothing.

        Example:
            >>> str(NonFinite(1, 2)), str(NonFinite(0, 3, 4)), str(NonFinite())
            ('1 NaN, 2 Inf', '3 Inf, 4 -Inf', '')
        """
        parts = zip(self, ("NaN", "Inf", "-Inf"), strict=True)
        return ", ".join(f"{count:,} {name}" for count, name in parts if count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Statistics of a tensor. Those of magnitudes for complex numbers.

    Attributes:
        shape: Sizes.
        dtype: torch dtype.
        nan: How many elements are NaN.
        infinite: How many are infinite, `minus_infinite` of them below all numbers.
        low, high, mean, std: Of the finite elements; NaN when there is none.
        nonzero: How many finite elements differ from zero.
        counts: Histogram of the finite elements, `BINS` equal bins from `low` to `high`; empty
            when they are all alike, or too close or too far apart for so many bins.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    nan: int
    infinite: int
    minus_infinite: int
    low: float
    high: float
    mean: float
    std: float
    nonzero: int
    counts: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return one line: type, range, mean, and what is not finite."""
        kind = str(self.dtype).removeprefix("torch.")
        parts = [f"{kind}[{', '.join(map(str, self.shape))}]"]
        if not math.isnan(self.low):
            parts.append(f"{self.low:.4g} to {self.high:.4g}")
            parts.append(f"mean {self.mean:.4g}, std {self.std:.4g}")
        parts += str(self.not_finite).split(", ") if any(self.not_finite) else []
        return " · ".join(parts)

    @property
    def not_finite(self) -> NonFinite:
        """How many elements are not finite, of each sort."""
        minus = self.minus_infinite
        return NonFinite(self.nan, self.infinite - minus, minus)

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)


def place(data: Any) -> tuple[Any, Any]:
    """Return the module that reads an array where it is, and the array for it."""
    if jax_compat.device().platform != "cpu":
        return jnp, jax_compat.whole(data)
    return np, jax_compat.on_host(data)  # a view: nothing is copied


def summarise(data: Any, dtype: torch.dtype) -> Summary:
    """Return the statistics of a device array."""
    xp, array = place(data)
    with jax_compat.scope(), np.errstate(all="ignore"):
        facts = _of_host(array) if xp is np else _of_device(array)
    return _summary(tuple(data.shape), dtype, facts)


def of_host(array: Numbers, dtype: torch.dtype) -> Summary:
    """Return the statistics of a numpy array that holds a tensor of some dtype."""
    with np.errstate(all="ignore"):
        return _summary(array.shape, dtype, _of_host(array))


def _summary(
    shape: tuple[int, ...], dtype: torch.dtype, facts: Sequence[float]
) -> Summary:
    nan, infinite, minus, low, high, mean, std, nonzero, *counts = facts
    return Summary(
        shape=shape, dtype=dtype, nan=int(nan), infinite=int(infinite),
        minus_infinite=int(minus), low=low, high=high, mean=mean, std=std, nonzero=int(nonzero), counts=tuple(map(int, counts)),
    )  # fmt: skip


def not_finite(data: Any, dtype: torch.dtype) -> NonFinite:
    """Return how many elements of a device array are not finite; complex ones by magnitude."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return NonFinite()
    xp, array = place(data)
    with jax_compat.scope():
        infinite = int(xp.isinf(array).sum())
        minus = 0
        if infinite and not dtype.is_complex:
            minus = int((array == -xp.inf).sum())
        return NonFinite(int(xp.isnan(array).sum()), infinite - minus, minus)


def _of_host(array: Any) -> list[float]:
    """Return the fields of a `Summary` from `nan` on, the counts one by one."""
    flat = array.reshape(-1)
    nan = infinite = minus = nonzero = 0
    low, high, total = math.inf, -math.inf, 0.0
    for numbers in _stretches(flat):
        # The lowest and the highest are NaN if any number is, and infinite likewise.
        finite = numbers
        if not math.isfinite(numbers.min()) or not math.isfinite(numbers.max()):
            nan += int(np.isnan(numbers).sum())
            infinite += int(np.isinf(numbers).sum())
            minus += int(np.isneginf(numbers).sum())
            finite = numbers[np.isfinite(numbers)]
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
            total += float(finite.sum())
            nonzero += int(np.count_nonzero(finite))
    count = flat.size - nan - infinite
    if not count:
        return [nan, infinite, minus, math.nan, math.nan, math.nan, math.nan, 0]
    mean = total / count
    squares, counts = _spread(flat, low, high, mean, all_finite=count == flat.size)
    std = math.sqrt(squares / max(count - 1, 1))
    return [nan, infinite, minus, low, high, mean, std, nonzero, *counts]


def _spread(
    flat: Any, low: float, high: float, mean: float, *, all_finite: bool
) -> tuple[float, list[int]]:
    """Return the sum of squared distances from the mean, and the histogram's counts."""
    bins = BINS if _has_bins(low, high) else 0
    scale = bins / (high - low) if bins else 0.0
    squares = 0.0
    counts = np.zeros(bins, dtype=np.int64)
    for stretch in _stretches(flat):
        numbers = stretch if all_finite else stretch[np.isfinite(stretch)]
        squares += float(((numbers - mean) ** 2).sum())
        if bins:
            which = ((numbers - low) * scale).astype(np.int64)
            np.minimum(which, bins - 1, out=which)  # the highest is in the last
            counts += np.bincount(which, minlength=bins)
    return squares, counts.tolist()


def _stretches(flat: Any) -> Iterator[Numbers]:
    """Yield the numbers as float64, of complex ones the magnitudes, a stretch at a time."""
    for start in range(0, flat.size, _STRETCH):
        part = flat[start : start + _STRETCH]
        plain = np.abs(part) if part.dtype.kind == "c" else part
        yield plain.astype(np.float64)


def _of_device(array: Any) -> list[float]:
    if not array.size:
        return [0, 0, 0, math.nan, math.nan, math.nan, math.nan, 0]
    facts: list[float] = np.asarray(_reduction()(array.reshape(-1))).tolist()
    low, high = facts[3:5]
    return facts if _has_bins(low, high) else facts[:-BINS]


def _has_bins(low: float, high: float) -> bool:
    """Return whether there are equal bins between two numbers: not between neighbours."""
    edges = np.linspace(low, high, BINS + 1)
    return bool((edges[:-1] < edges[1:]).all())


@lru_cache(maxsize=1)
def _reduction() -> Any:
    """Return what the device runs, made when it is first asked for."""
    return jax.jit(_device_facts)


def _device_facts(flat: Any) -> Any:
    """Return the fields of a `Summary` from `nan` on, the counts one by one."""
    wide = (jnp.abs(flat) if jnp.iscomplexobj(flat) else flat).astype(jnp.float64)
    finite = jnp.isfinite(wide)
    count = finite.sum()
    plain = jnp.where(finite, wide, 0)
    mean = plain.sum() / count
    squares = (jnp.where(finite, wide - mean, 0) ** 2).sum()
    low = jnp.where(count > 0, jnp.where(finite, wide, jnp.inf).min(), jnp.nan)
    high = jnp.where(count > 0, jnp.where(finite, wide, -jnp.inf).max(), jnp.nan)
    which = jnp.clip((plain - low) / (high - low) * BINS, 0, BINS - 1).astype(jnp.int32)
    # Compared with every bin, which fuses with the sum: a scatter to forty places would queue.
    hits = (which[:, None] == jnp.arange(BINS)) & finite[:, None]
    facts = [
        jnp.isnan(wide).sum(), jnp.isinf(wide).sum(), jnp.isneginf(wide).sum(), low, high, mean,
        jnp.sqrt(squares / jnp.maximum(count - 1, 1)), jnp.count_nonzero(plain),
    ]  # fmt: skip
    return jnp.concatenate([jnp.stack(facts), hits.sum(axis=0)]).astype(jnp.float64)


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
    site: SourceLocation | None = None,
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
        value=transfer.to_host(part, dtype, site, is_look=True),
        at=(0,) * len(shape) if whole else starts,
        is_whole=whole,
        picture=None
        if picture is None
        else transfer.to_host(picture, torch.float32, is_look=True),
    )


def edges(
    data: Any, dtype: torch.dtype, items: int, site: SourceLocation | None = None
) -> torch.Tensor:
    """Return a CPU copy of the first and last few indices along each axis of a device array.

    A long axis keeps one index more between them, so that what prints the copy sees that
    something is left out there.
    """
    kept = [
        np.arange(size)
        if size <= 2 * items
        else np.r_[0 : items + 1, size - items : size]
        for size in data.shape
    ]
    with jax_compat.scope():
        _, array = place(data)
        return transfer.to_host(array[np.ix_(*kept)], dtype, site, is_look=True)


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
    _, array = place(data)  # on the CPU no program is compiled for it
    return array[index]


def _picture(data: Any, starts: tuple[int, ...], axes: Sequence[int]) -> Any:
    """Return some axes of an array, rows and columns averaged over blocks, as float32."""
    kept = set(axes)
    index = tuple(
        slice(None) if axis in kept else start for axis, start in enumerate(starts)
    )
    xp, array = place(data)
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
