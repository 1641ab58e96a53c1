"""A printed number and what had been measured.

torch_xla prints durations wrongly: it rounds each part to the nearest whole number and goes
on with what the part's floor leaves, so a part whose remainder is a half or more shows one
too many. The remainder is printed too, hence the measured value can be had back exactly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from lazyviz.foreign.evidence import EvidenceError, shorten

Rounding = Literal["legacy", "exact"]
Unit = Literal["ns", "bytes", "count"]

_TIME = re.compile(
    r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+)s)?(?:(\d+)ms)?(\d+)\.(\d{3})us"
)
_SCALES = (
    86_400_000_000_000,
    3_600_000_000_000,
    60_000_000_000,
    1_000_000_000,
    1_000_000,
)
_RANGES = (None, 24, 60, 60, 1000)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(B|KB|MB|GB|TB|PB)")
_SUFFIXES = ("B", "KB", "MB", "GB", "TB", "PB")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of a report.

    Attributes:
        unit: `ns`, `bytes` or `count`.
        value: What had been measured: whole nanoseconds for durations; for the others as
            much as the text shows.
        printed: The number as the text shows it, empty when there was no text.
        shown: What the text says when it is taken at its word.
        others: Further values that would have been printed the same, a few at most.
        possible: Whether the assumed printer can print this text at all.
    """

    unit: Unit
    value: float
    printed: str = ""
    shown: float = 0.0
    others: tuple[float, ...] = ()
    possible: bool = True

    @property
    def error(self) -> float:
        """How much more the text shows than had been measured."""
        return self.shown - self.value if self.printed else 0.0


def parse_quantity(text: str, rounding: Rounding = "legacy") -> Quantity:
    """Return the number that a report shows as `text`.

    Args:
        text: A duration like `28s857ms591.389us`, a size like `2.60MB`, or a number.
        rounding: Who printed it: `legacy` for torch_xla, `exact` for lazyrt.

    Raises:
        EvidenceError: It is none of the three.

    Example:
        >>> parse_quantity("28s857ms591.389us").value
        27856591389
        >>> parse_quantity("2.60MB").value
        2726297.6
    """
    found = _TIME.fullmatch(text)
    if found is not None:
        *parts, us, thousandths = found.groups()
        counts = [None if part is None else int(part) for part in parts]
        return _duration(text, counts, int(us) * 1000 + int(thousandths), rounding)
    found = _SIZE.fullmatch(text)
    if found is not None:
        size = float(found[1]) * 1024.0 ** _SUFFIXES.index(found[2])
        return Quantity("bytes", size, text, size)
    if _NUMBER.fullmatch(text) is not None:
        return Quantity("count", float(text), text, float(text))
    raise EvidenceError(
        f"{shorten(text)} is no number of a metrics report. Expected a duration such as "
        "28s857ms591.389us, a size such as 2.60MB, or a plain number."
    )


def _duration(
    text: str, counts: list[int | None], rest: int, rounding: Rounding
) -> Quantity:
    shown = rest + sum(
        count * scale for count, scale in zip(counts, _SCALES, strict=True) if count
    )
    if rounding == "exact":
        possible = _is_normal(counts, rest)
        return Quantity("ns", shown, text, shown, possible=possible)
    found = _measured(counts, rest)
    if not found:
        return Quantity("ns", shown, text, shown, possible=False)
    return Quantity("ns", found[0], text, shown, tuple(found[1:]))


def _measured(counts: list[int | None], rest: int) -> list[int]:
    """Return the durations that the faulty printer shows like this, the likeliest first.

    From the smallest part up: a part shows one too many if what it leaves is at least half.
    Exactly at the half both are possible, since the last part was rounded as well.
    """
    leading = next((k for k, count in enumerate(counts) if count is not None), None)
    found = [rest]
    for k in reversed(range(len(counts))):
        count, scale = counts[k], _SCALES[k]
        if count is None:
            break
        least = 1 if k == leading else 0
        found = [
            whole * scale + low
            for low in found
            for whole in (count, count - 1)
            if whole >= least and low <= scale and _rounds(low, scale, up=whole < count)
        ]
    return found


def _rounds(low: int, scale: int, *, up: bool) -> bool:
    half = scale // 2
    return low >= half if up else low <= half


def _is_normal(counts: list[int | None], rest: int) -> bool:
    """Return whether no part shows as much as one of the next larger unit."""
    given = [count for count in counts if count is not None]
    if given and (rest >= _SCALES[-1] or given[0] == 0):
        return False
    return all(
        limit is None or count is None or count < limit
        for count, limit in zip(counts, _RANGES, strict=True)
    )
