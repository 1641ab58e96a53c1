"""One metric: everything's count and sum, and a window of the latest samples."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lazyrt.observe.events import Site

Unit = Literal["ns", "bytes", "count"]

WINDOW = 1024
PERCENTILES = (0.25, 0.5, 0.8, 0.9, 0.95, 0.99)
SHOWN_SAMPLES = 5


@dataclass(slots=True)
class Sample:
    """One measured value.

    Attributes:
        time_ns: When it was taken, by `time.perf_counter_ns`.
        value: Nanoseconds, bytes or a count.
        graph: Fingerprint of the graph that it belongs to, or an empty text.
        reason: Why it happened, in words, or an empty text.
        site: The user's line that caused it, None when it is not known (yet).
        step: The runtime's number of the step that it belongs to, None for none.
    """

    time_ns: int
    value: int
    graph: str = ""
    reason: str = ""
    site: Site | None = None
    step: int | None = None


class Series:
    """The samples of one metric.

    Attributes:
        unit: What the values are.
        count: Number of all samples.
        total: Sum of all samples.
        upper_bounds: How many of all samples may be larger than what they measure.
        window: The latest samples, at most `WINDOW`.
    """

    def __init__(self, unit: Unit) -> None:
        self.unit: Unit = unit
        self.count = 0
        self.total = 0
        self.upper_bounds = 0
        self.window: deque[Sample] = deque(maxlen=WINDOW)

    def add(self, sample: Sample) -> None:
        """Take one sample in."""
        self.count += 1
        self.total += sample.value
        self.window.append(sample)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a report says of one metric.

    Attributes:
        unit: `ns`, `bytes` or `count`.
        total_samples: Number of all samples.
        accumulator: Sum of all samples.
        upper_bounds: How many samples may be larger than what they measure.
        window: Number of samples that the attributes below describe.
        mean: Arithmetic mean.
        std_dev: Standard deviation of the population.
        rate: Samples a second from the first to the last; None when they are one moment.
        percentiles: For each share, the sample at `int(share * window)` in order of size.
        behind: For each share, the samples up to that one and above the share before, the
            largest first, at most five of them; and how many there are.
        largest: The largest sample.
        sites: The lines that caused samples, with how many, the most frequent first.
        reasons: The reasons given, with how many.
    """

    unit: Unit
    total_samples: int
    accumulator: int
    upper_bounds: int
    window: int
    mean: float
    std_dev: float
    rate: float | None
    percentiles: dict[float, Sample]
    behind: dict[float, tuple[int, tuple[Sample, ...]]]
    largest: Sample
    sites: dict[str, int]
    reasons: dict[str, int]


def summarise(series: Series, percentiles: Iterable[float] = PERCENTILES) -> Summary:
    """Return the summary of a series that is not empty."""
    samples, shares = list(series.window), tuple(percentiles)
    count = len(samples)
    ordered = sorted(samples, key=lambda sample: sample.value)
    mean = sum(sample.value for sample in samples) / count
    spread = math.fsum((sample.value - mean) ** 2 for sample in samples) / count
    elapsed = samples[-1].time_ns - samples[0].time_ns
    return Summary(
        unit=series.unit,
        total_samples=series.count,
        accumulator=series.total,
        upper_bounds=series.upper_bounds,
        window=count,
        mean=mean,
        std_dev=math.sqrt(spread),
        rate=count / elapsed * 1e9 if elapsed > 0 else None,
        percentiles={share: ordered[int(share * count)] for share in shares},
        behind=_behind(ordered, shares),
        largest=ordered[-1],
        sites=_ranked(str(sample.site) for sample in samples if sample.site),
        reasons=_ranked(sample.reason for sample in samples if sample.reason),
    )


def _behind(
    ordered: list[Sample], shares: Iterable[float]
) -> dict[float, tuple[int, tuple[Sample, ...]]]:
    """Return for each share the samples from the share below up to its own, largest first."""
    found, low = {}, 0
    for share in sorted(shares):
        rank = int(share * len(ordered))
        part = ordered[min(low, rank) : rank + 1]
        found[share] = (len(part), tuple(part[: -SHOWN_SAMPLES - 1 : -1]))
        low = rank + 1
    return found


def _ranked(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())
